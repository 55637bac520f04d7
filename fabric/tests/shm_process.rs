//! Two real processes over shared memory: many notices, sleeping and waking under load; and, on
//! request, how fast it is: `cargo test --release -p gradwire-fabric --test shm_process -- --ignored measure
//! --nocapture`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod shm_rig;

use fabric::{CompletionKind, CompletionQueue, DisconnectReason, PeerWritable, RemoteKey, RemoteSpan};
use shm_rig::{DEPTH, Side, region, to_parent, with_child};
use std::time::{Duration, Instant};

const NOTICES: u32 = 100_000;

#[test]
fn a_hundred_thousand_notices_arrive_in_order() {
    let (mut parent, child) = with_child("child_sends_notices", DEPTH);
    let target = region(4096);
    let key = parent.expose(&target);
    parent.notify(key.0 as u32).unwrap();
    let mut word = [0; 4];
    for expected in 0..NOTICES {
        assert_eq!(parent.next_immediate(), expected);
        let slot = u64::from(expected) % 1024 * 4;
        target.read(slot, &mut word).unwrap();
        let landed = u32::from_le_bytes(word);
        // A later lap may have overwritten it, never an earlier one.
        assert!(landed >= expected && (landed - expected) % 1024 == 0, "{landed} for {expected}");
    }
    assert_eq!(parent.next_end(), DisconnectReason::PeerClosed);
    child.finish();
}

#[test]
#[ignore = "the other process of a test"]
fn child_sends_notices() {
    let Some(mut side) = to_parent(DEPTH) else { return };
    let key = RemoteKey(side.next_immediate().into());
    let source = region(4096);
    for i in 0..NOTICES {
        let at = u64::from(i) % 1024 * 4;
        source.write(at, &i.to_le_bytes()).unwrap();
        let (span, remote) = ([source.span(at, 4).unwrap()], RemoteSpan { key, offset: at });
        while side.write(&span, remote, Some(i), false).is_err() {
            side.queue.poll(&mut side.inbox);
            side.queue.wait(Duration::from_secs(10));
        }
    }
}

/// Pauses that make both sides fall asleep at every point of each other's steps.
fn jitter(i: u32) {
    for _ in 0..(i.wrapping_mul(2_654_435_761) >> 20) % 2000 {
        std::hint::spin_loop();
    }
}

#[test]
fn no_wake_is_lost_under_load() {
    let (mut parent, child) = with_child("child_echoes", DEPTH);
    let started = Instant::now();
    let mut slowest = Duration::ZERO;
    for i in 0..20_000 {
        let sent = Instant::now();
        parent.notify(i).unwrap();
        jitter(i);
        assert_eq!(parent.next_immediate(), i);
        slowest = slowest.max(sent.elapsed());
    }
    // A lost wake would cost the sleeper's next look at its links, or the whole timeout.
    println!("20,000 echoes with sleeps: {:?}, slowest {slowest:?}", started.elapsed());
    parent.notify(u32::MAX).unwrap();
    child.finish();
}

#[test]
#[ignore = "the other process of a test"]
fn child_echoes() {
    let Some(mut side) = to_parent(DEPTH) else { return };
    loop {
        let i = side.next_immediate();
        if i == u32::MAX {
            return;
        }
        jitter(i.wrapping_mul(7));
        side.notify(i).unwrap();
    }
}

/// Takes notices by spinning for `spin`, then sleeping.
fn take(side: &mut Side, spin: Duration) -> u32 {
    let mut started = Instant::now();
    loop {
        side.queue.poll(&mut side.inbox);
        match side.inbox.pop().map(|completion| completion.kind) {
            Some(CompletionKind::Received { immediate }) => return immediate,
            Some(CompletionKind::Disconnected(reason)) => panic!("{reason:?}"),
            Some(_) => {}
            None if started.elapsed() >= spin => {
                side.queue.wait(Duration::from_secs(10));
                started = Instant::now();
            }
            None => std::hint::spin_loop(),
        }
    }
}

const SPIN: Duration = Duration::from_millis(5);
/// As a role would: spin briefly, then sleep, so that others on the machine disturb less.
const BRIEFLY: Duration = Duration::from_micros(20);
const ROUNDS: usize = 50_000;
const BIG: usize = 256 << 10;
const SLOTS: usize = 1024;

fn percentile(samples: &mut [Duration], percent: usize) -> f64 {
    samples.sort_unstable();
    samples[(samples.len() - 1) * percent / 100].as_secs_f64() * 1e6
}

/// Writes every slot twice at least, three under way.
fn megabytes_per_second(parent: &mut Side, source: &PeerWritable, key: RemoteKey, slots: usize) -> f64 {
    let started = Instant::now();
    for i in 0..SLOTS * 2 {
        if i >= 3 {
            take(parent, BRIEFLY);
        }
        let offset = (i % slots * BIG) as u64;
        let span = [source.span(offset, BIG as u64).unwrap()];
        parent.write(&span, RemoteSpan { key, offset }, Some(i as u32), false).unwrap();
    }
    for _ in 0..3 {
        take(parent, BRIEFLY);
    }
    (SLOTS * 2 * BIG) as f64 / started.elapsed().as_secs_f64() / 1e6
}

#[test]
#[ignore = "a measurement"]
fn measure() {
    let (mut parent, child) = with_child("child_measured", DEPTH);
    for (name, spin) in [("spinning", SPIN), ("sleeping", Duration::ZERO)] {
        let mut samples = Vec::with_capacity(ROUNDS);
        for i in 0..ROUNDS as u32 {
            let sent = Instant::now();
            parent.notify(i).unwrap();
            assert_eq!(take(&mut parent, spin), i);
            samples.push(sent.elapsed());
        }
        let (p50, p99) = (percentile(&mut samples, 50), percentile(&mut samples, 99));
        println!("ping-pong, {name}: p50 {p50:.2} us, p99 {p99:.2} us there and back");
    }
    let source = region(SLOTS * BIG);
    source.write(0, &vec![1; SLOTS * BIG]).unwrap();
    let key = RemoteKey(take(&mut parent, SPIN).into());
    for (name, slots) in [("4 slots", 4), ("1024 slots (256 MiB)", SLOTS)] {
        let rates = (0..5).map(|_| megabytes_per_second(&mut parent, &source, key, slots));
        let mut rates: Vec<_> = rates.collect();
        rates.sort_unstable_by(f64::total_cmp);
        println!(
            "256 KiB writes into {name}, acknowledged: median {:.0}, best {:.0} MB/s",
            rates[2], rates[4]
        );
    }
    parent.notify(u32::MAX).unwrap();
    child.finish();
}

#[test]
#[ignore = "the other process of a measurement"]
fn child_measured() {
    let Some(mut side) = to_parent(DEPTH) else { return };
    for spin in [SPIN, Duration::ZERO] {
        for _ in 0..ROUNDS {
            let i = take(&mut side, spin);
            side.notify(i).unwrap();
        }
    }
    let target = region(SLOTS * BIG);
    target.write(0, &vec![0; SLOTS * BIG]).unwrap();
    let key = side.expose(&target);
    side.notify(key.0 as u32).unwrap();
    loop {
        match take(&mut side, BRIEFLY) {
            u32::MAX => return,
            i => side.notify(i).unwrap(),
        }
    }
}
