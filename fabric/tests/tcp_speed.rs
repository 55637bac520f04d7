//! What the TCP driver reaches on loopback beside a plain socket in the same run; printed, never judged, as
//! it depends on the machine. `cargo test --release -p gradwire-fabric --test tcp_speed -- --ignored --nocapture`
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

mod tcp_rig;

use fabric::{CompletionKind, CompletionQueue, PeerWritable, Pool, RemoteKey, RemoteSpan, TcpQueue, Write};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tcp_rig::{Carrier, End, at, lend_all, pair, pairs, region};

const CARRIERS: [Carrier; 2] = [Carrier::Unix, Carrier::Tcp];

const CHUNK: u64 = 256 << 10;
const TOTAL: u64 = 2 << 30;
/// Larger than the caches.
const SOURCE: u64 = 256 << 20;

/// Spins a little, then sleeps, as lanes do.
fn poll_or_wait(end: &mut End) {
    for _ in 0..200 {
        end.poll();
        if !end.seen.is_empty() {
            return;
        }
        std::hint::spin_loop();
    }
    end.queue.wait(Duration::from_secs(5));
}

/// Rate and cost of moving bytes: MB/s, and processor milliseconds of the whole process per GB, which a busy
/// machine disturbs less.
fn measure(bytes: u64, work: impl FnOnce()) -> (f64, f64) {
    let cpu = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (started, before) = (Instant::now(), cpu());
    work();
    let gigabytes = bytes as f64 / 1e9;
    (gigabytes * 1e3 / started.elapsed().as_secs_f64(), (cpu() - before) * 1e3 / gigabytes)
}

fn received(end: &mut End) -> u64 {
    let count = end.seen.iter().filter(|c| matches!(c.kind, CompletionKind::Received { .. })).count();
    end.seen.clear();
    count as u64
}

fn touched(bytes: u64) -> PeerWritable {
    let memory = region(bytes as usize);
    for at in (0..bytes).step_by(4096) {
        memory.write(at, &[1]).unwrap();
    }
    memory
}

/// One-sided chunk writes with `window` chunks under way, acknowledged one by one.
fn one_sided(
    carrier: Carrier,
    chunk: u64,
    window: u64,
    target: u64,
    total: u64,
    buffers: Option<usize>,
) -> (f64, f64) {
    let (mut left, mut right) = pair(carrier, 1024, buffers);
    let (from, to) = (touched(SOURCE), touched(target));
    let key = right.expose(&to);
    let chunks = total / chunk;
    let work = || {
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut seen = 0;
                while seen < chunks {
                    poll_or_wait(&mut right);
                    let new = received(&mut right);
                    seen += new;
                    for _ in 0..new {
                        right.write(0, &[], at(RemoteKey(0), 0), Some(0)).unwrap();
                    }
                    right.queue.flush();
                }
            });
            let (mut sent, mut acknowledged) = (0, 0);
            while acknowledged < chunks {
                while sent < chunks && sent - acknowledged < window {
                    let span = [from.span(sent * chunk % SOURCE, chunk).unwrap()];
                    let remote = RemoteSpan { key, offset: sent * chunk % target };
                    let write =
                        Write { id: sent, gather: &span, remote, immediate: Some(0), signaled: false };
                    left.queue.post_write(left.channel, &write).unwrap();
                    sent += 1;
                }
                left.queue.flush();
                poll_or_wait(&mut left);
                acknowledged += received(&mut left);
            }
        });
    };
    measure(total, work)
}

/// A plain blocking socket: the least a TCP transfer into memory costs.
fn plain(chunk: u64, target: u64, total: u64) -> (f64, f64) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut out = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut into, _) = listener.accept().unwrap();
    // The same kind of memory as ours: huge pages of the heap would flatter it.
    let buffer = |bytes| {
        let mut buffer = Pool::new(bytes, "plain").unwrap().allocate(bytes).unwrap();
        buffer.fill(1);
        buffer
    };
    let (from, mut to) = (buffer(SOURCE), buffer(target));
    let work = || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for piece in (0..total / chunk).map(|n| (n * chunk % SOURCE) as usize) {
                    out.write_all(&from[piece..piece + chunk as usize]).unwrap();
                }
            });
            for piece in (0..total / chunk).map(|n| (n * chunk % target) as usize) {
                into.read_exact(&mut to[piece..piece + chunk as usize]).unwrap();
            }
        });
    };
    measure(total, work)
}

/// Microseconds per round trip of `bytes` with immediate, sorted.
fn round_trips(carrier: Carrier, bytes: u64, channels: u16, spin: bool) -> Vec<f64> {
    const ROUNDS: usize = 20_000;
    let (mut left, mut right, ids) = pairs(carrier, channels, 64, None);
    let memory = region(4096);
    let keys: Vec<_> = ids
        .iter()
        .map(|(ours, theirs)| (lend_all(&mut left, *ours, &memory), lend_all(&mut right, *theirs, &memory)))
        .collect();
    let span = [memory.span(0, bytes).unwrap()];
    let send = |queue: &mut TcpQueue, channel, key| {
        let remote = RemoteSpan { key, offset: 0 };
        let write = Write { id: 0, gather: &span, remote, immediate: Some(1), signaled: false };
        queue.post_write(channel, &write).unwrap();
        queue.flush();
    };
    let next = |queue: &mut TcpQueue, seen: &mut Vec<_>| {
        seen.clear();
        while seen.is_empty() {
            queue.poll(seen);
            if seen.is_empty() && !spin {
                queue.wait(Duration::from_secs(5));
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seen = Vec::new();
            for _ in 0..ROUNDS {
                next(&mut right, &mut seen);
                let at = ids.iter().position(|(_, theirs)| *theirs == seen[0].channel).unwrap();
                send(&mut right, ids[at].1, keys[at].0);
            }
        });
        let mut seen = Vec::new();
        let mut times = Vec::with_capacity(ROUNDS);
        for round in 0..ROUNDS {
            let at = round % ids.len();
            let started = Instant::now();
            send(&mut left, ids[at].0, keys[at].1);
            next(&mut left, &mut seen);
            times.push(started.elapsed().as_secs_f64() * 1e6);
        }
        times.sort_by(f64::total_cmp);
        times
    })
}

#[test]
#[ignore = "a measurement"]
fn throughput() {
    let show = |name: &str, run: &dyn Fn() -> (f64, f64)| {
        let mut runs: Vec<_> = (0..5).map(|_| run()).collect();
        runs.sort_by(|a, b| a.1.total_cmp(&b.1));
        println!("{name}: (MB/s, CPU ms/GB) {runs:.0?}");
    };
    for (target, name) in [(4 * CHUNK, "into a 1 MiB ring"), (SOURCE, "into 256 MiB")] {
        show(&format!("plain socket {name}"), &|| plain(CHUNK, target, TOTAL));
        for (window, carrier) in [4, 16].into_iter().flat_map(|w| CARRIERS.map(|c| (w, c))) {
            let name = format!("256 KiB writes over {carrier:?}, {window} under way, {name}");
            show(&name, &|| one_sided(carrier, CHUNK, window, target, TOTAL, None));
            show(&format!("{name}, 4 MiB buffers"), &|| {
                one_sided(carrier, CHUNK, window, target, TOTAL, Some(4 << 20))
            });
        }
    }
    for carrier in CARRIERS {
        let name = format!("1 KiB writes over {carrier:?}, 64 under way");
        show(&name, &|| one_sided(carrier, 1024, 64, 1 << 20, 128 << 20, None));
    }
}

/// For `strace -f -c` or `perf stat`: only the driver's transfer.
#[test]
#[ignore = "a measurement"]
fn system_calls() {
    for carrier in CARRIERS {
        let cost = one_sided(carrier, CHUNK, 4, 4 * CHUNK, TOTAL, None);
        println!("{carrier:?}: (MB/s, CPU ms/GB) {cost:.0?}");
    }
}

/// The same over a plain socket, sleeping in blocking calls or spinning on non-blocking ones.
fn plain_round_trips(bytes: usize, spin: bool) -> Vec<f64> {
    const ROUNDS: usize = 20_000;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut right, _) = listener.accept().unwrap();
    for socket in [&left, &right] {
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(spin).unwrap();
    }
    let next = |socket: &mut TcpStream, into: &mut [u8]| {
        let mut have = 0;
        while have < into.len() {
            have += socket.read(&mut into[have..]).unwrap_or(0);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut message = vec![0; bytes];
            for _ in 0..ROUNDS {
                next(&mut right, &mut message);
                right.write_all(&message).unwrap();
            }
        });
        let mut message = vec![0; bytes];
        let mut times = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let started = Instant::now();
            left.write_all(&message).unwrap();
            next(&mut left, &mut message);
            times.push(started.elapsed().as_secs_f64() * 1e6);
        }
        times.sort_by(f64::total_cmp);
        times
    })
}

fn show_times(name: &str, times: &[f64]) {
    let (p50, p99) = (times[times.len() / 2], times[times.len() * 99 / 100]);
    println!("{name}: least {:.1} us, p50 {p50:.1} us, p99 {p99:.1} us", times[0]);
}

#[test]
#[ignore = "a measurement"]
fn latency() {
    for spin in [true, false] {
        let how = if spin { "spinning" } else { "sleeping" };
        show_times(&format!("56 bytes, plain socket, {how}"), &plain_round_trips(56, spin));
    }
    for (channels, spin) in [(1, true), (1, false), (2, true), (4, true), (16, true)] {
        for (bytes, carrier) in [16, 1024].into_iter().flat_map(|b| CARRIERS.map(|c| (b, c))) {
            let how = if spin { "spinning" } else { "sleeping" };
            show_times(
                &format!("{bytes} bytes over {carrier:?}, {channels} channels, {how}"),
                &round_trips(carrier, bytes, channels, spin),
            );
        }
    }
}
