//! Why the TCP driver sends payload with `sendmsg`, which copies it into the kernel, and not by reference to
//! the pages of its region's memfd, with `sendfile` or with `splice` through a large pipe: all three over a
//! plain loopback socket, in turns. On two busy cores references cost 1.2 to 1.6 times the processor time of
//! the copy (medians), most of it at the receiver. Printed, never judged, as it depends on the machine.
//! `cargo test --release -p gradwire-fabric --test tcp_sendfile -- --ignored --nocapture`
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement")]

use fabric::{Exclusive, Pool};
use rustix::net::{SendFlags, send};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use rustix::time::{ClockId, clock_gettime};
use std::fs::{File, read_dir, read_link};
use std::io::{IoSlice, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Instant;

const MIB: u64 = 1 << 20;
const TOTAL: u64 = 1 << 30;
/// As long as a frame's header.
const HEADER: [u8; 40] = [7; 40];
const ROUNDS: usize = 9;

/// A touched buffer that is all of its region, and the region's file.
struct Memory {
    buffer: Exclusive,
    file: File,
}

impl Memory {
    fn new(bytes: u64, name: &str) -> Self {
        let mut buffer = Pool::new(bytes, name).unwrap().allocate(bytes).unwrap();
        buffer.fill(1);
        let wanted = format!("/memfd:{name} (deleted)");
        let named = |path: &std::path::PathBuf| read_link(path).is_ok_and(|to| to.as_os_str() == &*wanted);
        let path = read_dir("/proc/self/fd").unwrap().map(|e| e.unwrap().path()).find(named).unwrap();
        Self { buffer, file: File::open(path).unwrap() }
    }
}

fn cpu_s(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// A way to send.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Header and payload in one system call.
    Sendmsg,
    /// The header held back for the first pages.
    Sendfile,
    /// The same through a pipe that takes more than the 16 pages of `sendfile`'s own.
    Splice,
}

const WAYS: [Way; 3] = [Way::Sendmsg, Way::Sendfile, Way::Splice];

struct Sender {
    socket: TcpStream,
    pipe: (OwnedFd, OwnedFd),
}

impl Sender {
    fn new(socket: TcpStream) -> Self {
        socket.set_nodelay(true).unwrap();
        let pipe = pipe_with(PipeFlags::CLOEXEC).unwrap();
        fcntl_setpipe_size(&pipe.0, 1 << 20).unwrap();
        Self { socket, pipe }
    }

    fn send(&mut self, from: &Memory, offset: u64, bytes: u64, way: Way) {
        if matches!(way, Way::Sendmsg) {
            let payload = &from.buffer[offset as usize..][..bytes as usize];
            let mut slices = &mut [IoSlice::new(&HEADER), IoSlice::new(payload)][..];
            while !slices.is_empty() {
                let taken = self.socket.write_vectored(slices).unwrap();
                IoSlice::advance_slices(&mut slices, taken);
            }
            return;
        }
        assert_eq!(send(&self.socket, &HEADER, SendFlags::MORE).unwrap(), HEADER.len());
        let mut at = offset;
        while at < offset + bytes {
            let left = (offset + bytes - at) as usize;
            if matches!(way, Way::Sendfile) {
                rustix::fs::sendfile(&self.socket, &from.file, Some(&mut at), left).unwrap();
                continue;
            }
            let none = SpliceFlags::empty();
            let mut piped = splice(&from.file, Some(&mut at), &self.pipe.1, None, left, none).unwrap();
            while piped > 0 {
                piped -= splice(&self.pipe.0, None, &self.socket, None, piped, none).unwrap();
            }
        }
    }
}

/// GB/s, and processor seconds per GB of the sender, the receiver and both.
fn transfer(from: &Memory, to: &mut Memory, chunk: u64, way: Way) -> [f64; 4] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut out = Sender::new(TcpStream::connect(listener.local_addr().unwrap()).unwrap());
    let (mut into, _) = listener.accept().unwrap();
    let chunks = TOTAL / chunk;
    let (source, target) = (from.buffer.len() as u64, to.buffer.len() as u64);
    let (started, before) = (Instant::now(), cpu_s(ClockId::ProcessCPUTime));
    let (sender, receiver) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let before = cpu_s(ClockId::ThreadCPUTime);
            (0..chunks).for_each(|n| out.send(from, n * chunk % source, chunk, way));
            cpu_s(ClockId::ThreadCPUTime) - before
        });
        let before = cpu_s(ClockId::ThreadCPUTime);
        let mut header = HEADER;
        for at in (0..chunks).map(|n| (n * chunk % target) as usize) {
            into.read_exact(&mut header).unwrap();
            into.read_exact(&mut to.buffer[at..at + chunk as usize]).unwrap();
        }
        let receiver = cpu_s(ClockId::ThreadCPUTime) - before;
        (sender.join().unwrap(), receiver)
    });
    let gigabytes = TOTAL as f64 / 1e9;
    let both = cpu_s(ClockId::ProcessCPUTime) - before;
    [gigabytes / started.elapsed().as_secs_f64(), sender / gigabytes, receiver / gigabytes, both / gigabytes]
}

#[test]
#[ignore = "a measurement"]
fn copied_or_by_reference() {
    println!("[GB/s, CPU s/GB of sender, of receiver, of both], by the cost of both");
    for (source, target) in [(1, 1), (1, 64), (64, 1), (64, 64)] {
        let from = Memory::new(source * MIB, "sendfile-source");
        let mut to = Memory::new(target * MIB, "sendfile-target");
        let mut runs = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            for (way, runs) in WAYS.into_iter().zip(&mut runs) {
                runs.push(transfer(&from, &mut to, 256 << 10, way));
            }
        }
        println!("256 KiB chunks of {source} MiB into {target} MiB");
        for (way, runs) in WAYS.into_iter().zip(&mut runs) {
            runs.sort_by(|a, b| a[3].total_cmp(&b[3]));
            println!("  {way:?}: least {:.3?}, median {:.3?}", runs[0], runs[ROUNDS / 2]);
        }
    }
}
