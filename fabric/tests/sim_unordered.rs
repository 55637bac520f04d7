//! A simulated transport that keeps no order within a channel: what its queues promise all the same, and what they do not.

#![allow(clippy::unwrap_used, reason = "test code")]

mod sim_rig;

use fabric::sim::SimFaults;
use fabric::{CompletionKind, CompletionQueue, Order, PostError, Read, RemoteSpan, Write};
use sim_rig::{Rig, Side};

/// Pairs of a write and a notice for it.
const PAIRS: u32 = 60;
const BYTES: u64 = 100;

fn unordered() -> SimFaults {
    SimFaults { order: Order::Any, ..SimFaults::rough() }
}

/// As the server does with weights and results: a write without a notice, and then a notice without bytes.
fn post(side: &mut Side, key: fabric::RemoteKey, pair: u32, is_notice: bool) -> Result<(), PostError> {
    let at = u64::from(pair) * BYTES;
    let (span, remote) = (side.region.span(at, BYTES).unwrap(), RemoteSpan { key, offset: at });
    let id = u64::from(pair) * 2 + u64::from(is_notice);
    let gather: &[_] = if is_notice { &[] } else { &[span] };
    let immediate = is_notice.then_some(pair);
    side.queue.post_write(side.channel, &Write { id, gather, remote, immediate, signaled: true })?;
    side.queue.flush();
    Ok(())
}

/// Sends all pairs. How many notices were seen before their bytes.
fn send_pairs(rig: &mut Rig) -> usize {
    (0..PAIRS).for_each(|pair| rig.a.fill(u64::from(pair) * BYTES, BYTES as usize, pair as u8 + 1));
    let mut posts = (0..PAIRS).flat_map(|pair| [(pair, false), (pair, true)]).peekable();
    let (mut seen, mut early, mut moves) = (0, 0, true);
    while moves || posts.peek().is_some() {
        while let Some((pair, is_notice)) = posts.peek().copied() {
            match post(&mut rig.a, rig.b.key, pair, is_notice) {
                Ok(()) => posts.next(),
                Err(error) => {
                    assert_eq!(error, PostError::Full);
                    break;
                }
            };
        }
        moves = rig.step();
        let notices = rig.b.immediates();
        for pair in &notices[seen..] {
            let bytes = rig.b.bytes(u64::from(*pair) * BYTES, BYTES as usize);
            early += usize::from(bytes.iter().any(|byte| *byte != *pair as u8 + 1));
        }
        seen = notices.len();
    }
    early
}

#[test]
fn a_notice_comes_after_all_writes_before_it_and_everything_completes_in_order() {
    let mut held = 0;
    for seed in 0..100 {
        let faults = SimFaults { loss_per_10k: 1_000, send_depth: 8 + seed as usize % 60, ..unordered() };
        let mut rig = Rig::new(seed, faults);
        assert_eq!(rig.a.queue.caps().order, Order::Any);
        assert_eq!(send_pairs(&mut rig), 0, "seed {seed}");
        assert_eq!(rig.b.immediates(), (0..PAIRS).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(rig.a.done(), (0..u64::from(PAIRS) * 2).collect::<Vec<_>>(), "seed {seed}");
        assert_eq!(rig.net.under_way(), 0, "seed {seed}");
        held += rig.net.stats(rig.b.node).held_notices;
    }
    assert!(held > 1_000, "{held} notices had to wait");
}

#[test]
fn without_the_gate_notices_come_before_their_bytes_and_out_of_order() {
    let (mut early, mut out_of_order) = (0, 0);
    for seed in 0..20 {
        let mut rig = Rig::new(seed, SimFaults { is_ungated: true, ..unordered() });
        early += send_pairs(&mut rig);
        out_of_order += usize::from(!rig.b.immediates().is_sorted());
    }
    assert!(early > 100 && out_of_order == 20, "early {early}, out of order in {out_of_order}");
}

#[test]
fn a_repeated_notice_is_handed_over_once() {
    let mut repeated = 0;
    for seed in 0..50 {
        let mut rig = Rig::new(seed, SimFaults { duplicate_notice_per_10k: 5_000, ..unordered() });
        send_pairs(&mut rig);
        assert_eq!(rig.b.immediates(), (0..PAIRS).collect::<Vec<_>>(), "seed {seed}");
        repeated += rig.net.stats(rig.b.node).duplicates;
    }
    assert!(repeated > 500, "{repeated} notices were repeated");
}

#[test]
fn what_the_gate_holds_is_dropped_with_the_channel() {
    let mut dropped = 0;
    for seed in 0..100 {
        let mut rig = Rig::new(seed, SimFaults { spurious_full_per_10k: 0, ..unordered() });
        for pair in 0..PAIRS {
            post(&mut rig.a, rig.b.key, pair, false).unwrap();
            post(&mut rig.a, rig.b.key, pair, true).unwrap();
        }
        rig.net.advance_to(50 + seed);
        rig.b.poll();
        let closer = if seed % 2 == 0 { &mut rig.a } else { &mut rig.b };
        closer.queue.close(closer.channel);
        let held = rig.net.stats(rig.b.node).held_notices;
        rig.run();
        let notices = rig.b.immediates();
        assert_eq!(notices, (0..notices.len() as u32).collect::<Vec<_>>(), "seed {seed}");
        if seed % 2 == 0 {
            assert!(rig.b.end().is_some(), "nothing comes after the end");
        }
        assert_eq!(rig.net.under_way(), 0, "seed {seed}");
        dropped += usize::from(held > 0 && notices.len() < PAIRS as usize);
    }
    assert!(dropped > 50, "{dropped} channels ended with notices at the gate");
}

#[test]
fn a_read_may_miss_the_write_before_it_and_sees_it_once_that_is_done() {
    let (mut missed, mut seen) = (0, 0);
    for seed in 0..100 {
        let mut rig = Rig::new(seed, SimFaults { spurious_full_per_10k: 0, ..unordered() });
        rig.a.fill(0, BYTES as usize, 5);
        post(&mut rig.a, rig.b.key, 0, false).unwrap();
        let is_patient = seed % 2 == 0;
        while is_patient && rig.a.done().is_empty() {
            assert!(rig.step());
        }
        let local = rig.a.region.span(8192, BYTES).unwrap();
        let read = Read { id: 2, local: &local, remote: RemoteSpan { key: rig.b.key, offset: 0 } };
        rig.a.queue.post_read(rig.a.channel, &read).unwrap();
        rig.a.queue.flush();
        rig.run();
        assert_eq!(rig.a.got, [CompletionKind::WriteDone { id: 0 }, CompletionKind::ReadDone { id: 2 }]);
        let has_seen = rig.a.bytes(8192, BYTES as usize) == [5; BYTES as usize];
        assert!(has_seen || !is_patient, "seed {seed}: what has completed is there");
        missed += usize::from(!has_seen);
        seen += usize::from(has_seen && !is_patient);
    }
    assert!(missed > 5 && seen > 5, "missed {missed}, seen {seen}");
}
