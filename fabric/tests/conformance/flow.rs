//! Room and rest: full queues that empty again, polls that end soon, sleeps that miss nothing and cost nothing.

use super::rig::{
    DEPTH, LONG_SLEEP, NOWHERE, Place, Queue, Rig, at, connect_all, pair, pair_of_depth, pair_with, region,
    soon,
};
use fabric::{Completion, CompletionKind, CompletionQueue, PostError, Write};
use std::time::{Duration, Instant};

/// What one poll may bring, whatever is there.
const POLLED_MAX: usize = 256;

pub fn completions_not_taken_keep_their_places<R: Rig>() {
    let (lent, source) = (region(4096), region(4096));
    let (mut a, mut b) = pair_of_depth::<R>(4);
    b.grant(&lent);
    let key = a.granted();
    let span = [source.span(0, 8).unwrap()];
    for lap in 0..3u64 {
        // The notices that the two ends met by may still be under way here.
        a.write_patiently(&span, at(key, 0), None, Some(100));
        assert_eq!(a.next_with(&mut b), CompletionKind::WriteDone { id: 100 });
        for id in 0..4 {
            assert_eq!(a.write(&span, at(key, 0), None, Some(id)), Ok(()), "{id} in lap {lap}");
        }
        assert_eq!(a.write(&span, at(key, 0), None, Some(4)), Err(PostError::Full));
        for id in 0..4 {
            assert_eq!(a.next_with(&mut b), CompletionKind::WriteDone { id });
        }
    }
    assert_eq!(a.queue.caps().send_depth, 4);
}

/// A sleep that nobody ended: the whole of it passes.
fn assert_no_wake_was_lost(slowest: Duration) {
    assert!(slowest < LONG_SLEEP / 2, "a wake was lost: one step took {slowest:?}");
}

pub fn who_sleeps_over_a_full_queue_is_woken_when_there_is_room<R: Rig>() {
    let (mut a, mut b) = pair_of_depth::<R>(4);
    let rounds = R::LIMITS.rounds / 10;
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || {
            let mut slowest = Duration::ZERO;
            for i in 0..rounds {
                let started = Instant::now();
                a.notify(i);
                slowest = slowest.max(started.elapsed());
            }
            assert_eq!(a.next(), CompletionKind::Received { immediate: rounds });
            slowest
        });
        for i in 0..rounds {
            assert_eq!(b.next_notice(), i);
            if i % 16 == 0 {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        b.notify(rounds);
        assert_no_wake_was_lost(writing.join().unwrap());
    });
}

pub fn one_poll_brings_no_more_than_it_may<R: Rig>() {
    const CHANNELS: usize = 4;
    // In all, more than a few polls may bring, and less than a device holds for its receiver.
    const NOTICES: u32 = 240;
    let (mut near, mut far) = (R::queue(Place::Near, 256).unwrap(), R::queue(Place::Far, 256).unwrap());
    let (ours, theirs) = (std::slice::from_mut(&mut near), std::slice::from_mut(&mut far));
    let ids = connect_all::<R>(ours, theirs, &[(0, 0); CHANNELS]);
    for immediate in 0..NOTICES {
        for &(channel, _) in &ids {
            let write =
                Write { id: 0, gather: &[], remote: NOWHERE, immediate: Some(immediate), signaled: false };
            near.post_write(channel, &write).unwrap();
        }
        near.flush();
    }
    let mut next = [0; CHANNELS];
    let deadline = soon();
    while next != [NOTICES; CHANNELS] {
        assert!(Instant::now() < deadline, "{next:?}");
        let mut polled: Vec<Completion> = Vec::new();
        near.poll(&mut polled);
        assert_eq!(polled, [], "nothing of it is signalled");
        far.poll(&mut polled);
        assert!(polled.len() <= POLLED_MAX, "{} completions at once", polled.len());
        for completion in polled {
            let i = ids.iter().position(|(_, id)| *id == completion.channel).expect("one of ours");
            assert_eq!(completion.kind, CompletionKind::Received { immediate: next[i] });
            next[i] += 1;
        }
    }
}

/// Pauses that make both sides fall asleep at every point of each other's steps.
fn jitter(i: u32) {
    for _ in 0..(i.wrapping_mul(2_654_435_761) >> 20) % 2000 {
        std::hint::spin_loop();
    }
}

pub fn ping_and_pong_that_both_sleep_lose_no_wake<R: Rig>() {
    let (mut a, mut b) = pair::<R>();
    let rounds = R::LIMITS.rounds;
    let mut slowest = Duration::ZERO;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..rounds {
                assert_eq!(b.next_notice(), round);
                jitter(round.wrapping_mul(7));
                b.notify(round);
            }
            // Whoever goes first is not to take the last answer along.
            b.ended();
        });
        for round in 0..rounds {
            let started = Instant::now();
            a.notify(round);
            jitter(round);
            assert_eq!(a.next_notice(), round);
            slowest = slowest.max(started.elapsed());
        }
        drop(a);
    });
    assert_no_wake_was_lost(slowest);
}

fn cpu() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

pub fn an_idle_wait_costs_no_processor_time<R: Rig>() {
    const WHOLE: Duration = Duration::from_secs(1);
    let lent = region(4096);
    let (mut a, _b, _) = pair_with::<R>(&lent);
    let (before, started, mut waits) = (cpu(), Instant::now(), 0);
    while let Some(left) = WHOLE.checked_sub(started.elapsed()) {
        a.queue.wait(left);
        a.poll();
        waits += 1;
    }
    let spent = cpu() - before;
    assert!(spent < R::LIMITS.idle_cpu, "{spent:?} of a second");
    assert!(waits < 20, "{waits} waits in a second");
    assert!(a.seen.is_empty(), "{:?}", a.seen);
}

pub fn a_wait_ends_with_its_time<R: Rig>() {
    let (mut a, _b) = pair::<R>();
    for timeout in [Duration::ZERO, Duration::from_millis(30)] {
        let started = Instant::now();
        a.queue.wait(timeout);
        assert!(started.elapsed() < Duration::from_secs(5), "{timeout:?} took {:?}", started.elapsed());
    }
    let mut alone = R::queue(Place::Near, DEPTH).unwrap();
    let started = Instant::now();
    alone.wait(Duration::from_millis(30));
    assert!(started.elapsed() < Duration::from_secs(5), "without channels: {:?}", started.elapsed());
}
