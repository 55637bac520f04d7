//! The simulation's faults do what they say: duplicates, loss, partitions, breaks, crashes, misbehaviour;
//! and every end of a channel hears of its end.

#![allow(clippy::unwrap_used, reason = "test code")]

mod sim_rig;

use fabric::sim::{Action, FaultScript, ScriptShape, SimFaults};
use fabric::{CompletionQueue, DisconnectReason, Order, PostError, RemoteKey};
use sim_rig::{Rig, failed};

/// Of two seeds one has a transport that keeps no order within a channel.
fn order_of(seed: u64) -> Order {
    if seed.is_multiple_of(2) { Order::Posted } else { Order::Any }
}

fn short_fuse() -> SimFaults {
    SimFaults { retry_max: 3, detect_min_us: 10, detect_max_us: 50, ..SimFaults::calm() }
}

#[test]
fn a_duplicate_brings_bytes_and_notice_a_second_time() {
    let faults = SimFaults { duplicate_per_10k: 10_000, duplicate_within_us: 30, ..SimFaults::calm() };
    for seed in 0..30 {
        let mut rig = Rig::new(seed, faults.clone());
        rig.a.fill(0, 64, 1);
        rig.send(0, 64, 7);
        while rig.b.immediates().is_empty() {
            assert!(rig.step());
        }
        let first_us = rig.net.now_us();
        rig.b.fill(0, 64, 0);
        rig.a.fill(0, 64, 2);
        while rig.b.immediates().len() < 2 {
            assert!(rig.step());
        }
        assert!(rig.net.now_us() <= first_us + 30);
        let at_once = rig.net.now_us() == first_us;
        rig.run();
        assert_eq!(rig.b.immediates(), [7, 7]);
        assert_eq!(rig.a.done(), [7], "the sender knows of one");
        if !at_once {
            assert_eq!(rig.b.bytes(0, 64), [1; 64], "the bytes of the first time");
        }
        assert_eq!(rig.net.stats(rig.b.node).duplicates, 1);
    }
}

#[test]
fn a_duplicated_notice_leaves_the_memory_alone() {
    let mut rig = Rig::new(1, SimFaults { duplicate_notice_per_10k: 10_000, ..SimFaults::calm() });
    rig.a.fill(0, 64, 1);
    rig.send(0, 64, 7);
    while rig.b.immediates().is_empty() {
        assert!(rig.step());
    }
    rig.b.fill(0, 64, 3);
    rig.run();
    assert_eq!(rig.b.immediates(), [7, 7]);
    assert_eq!(rig.b.bytes(0, 64), [3; 64]);
}

#[test]
fn no_duplicate_comes_after_the_end() {
    for seed in 0..100 {
        let faults = SimFaults { duplicate_per_10k: 10_000, jitter_us: 50, ..SimFaults::calm() };
        let mut rig = Rig::new(seed, faults);
        (0..10).for_each(|number| rig.send(0, 8, number));
        rig.net.advance_to(seed);
        rig.a.queue.close(rig.a.channel);
        rig.run();
        assert_eq!(rig.b.end(), Some(&DisconnectReason::PeerClosed));
    }
}

#[test]
fn too_many_losses_break_the_channel_on_both_sides() {
    let (mut partly, mut untouched) = (0, 0);
    for seed in 0..100 {
        let mut rig = Rig::new(seed, SimFaults { loss_per_10k: 10_000, ..short_fuse() });
        rig.a.fill(0, 4096, 1);
        rig.send(0, 4096, 1);
        rig.run();
        assert_eq!(rig.a.end(), Some(&failed("retries exhausted")));
        assert_eq!(rig.b.end(), Some(&failed("retries exhausted")));
        assert_eq!((rig.a.got.len(), rig.b.got.len()), (1, 1), "no completion, no notice");
        assert_eq!(rig.net.under_way(), 0);
        assert_eq!(rig.a.write(rig.b.key, 0, 8, 2), Err(PostError::Closed));
        assert_eq!(rig.a.queue.expose(rig.a.channel, &rig.a.region), Err(PostError::Closed));
        let landed = rig.b.bytes(0, 4096).iter().filter(|&&byte| byte == 1).count();
        partly += usize::from(landed > 0);
        untouched += usize::from(landed == 0);
    }
    assert!(partly > 10 && untouched > 0, "lost writes land in part: {partly}, or not at all: {untouched}");
}

#[test]
fn a_write_whose_acknowledgement_is_lost_has_landed_without_a_completion() {
    let mut rig = Rig::new(1, short_fuse());
    rig.a.fill(0, 64, 1);
    rig.send(0, 64, 1);
    while rig.b.immediates().is_empty() {
        assert!(rig.step());
    }
    rig.net.partition(rig.a.node, rig.b.node);
    rig.run();
    assert_eq!(rig.b.bytes(0, 64), [1; 64]);
    assert!(rig.a.done().is_empty());
    assert_eq!(rig.a.end(), Some(&failed("retries exhausted")));
    assert_eq!(rig.b.end(), Some(&failed("retries exhausted")));
}

#[test]
fn a_short_partition_only_delays() {
    let faults = short_fuse();
    let mut rig = Rig::new(1, faults.clone());
    rig.net.partition(rig.b.node, rig.a.node);
    rig.send(0, 64, 1);
    rig.net.advance_to(faults.retry_budget_us() / 2);
    rig.b.poll();
    assert!(rig.b.got.is_empty(), "nothing passes");
    rig.net.heal(rig.a.node, rig.b.node);
    rig.run();
    assert_eq!((rig.b.immediates(), rig.a.done()), (vec![1], vec![1]));
    assert_eq!((rig.a.end(), rig.b.end()), (None, None));
}

#[test]
fn a_long_partition_breaks_within_the_budget_and_spares_idle_channels() {
    let faults = short_fuse();
    let mut rig = Rig::new(1, faults.clone());
    let (spare, _) = rig.net.connect(&rig.a.queue, &rig.b.queue);
    rig.net.partition(rig.a.node, rig.b.node);
    rig.send(0, 64, 1);
    rig.net.advance_to(faults.retry_budget_us() + 5);
    rig.a.poll();
    assert_eq!(rig.a.end(), Some(&failed("retries exhausted")));
    rig.run();
    assert_eq!(rig.b.end(), Some(&failed("retries exhausted")));
    assert_eq!(rig.b.bytes(0, 64), [0; 64], "a partition lets nothing pass");
    rig.net.heal(rig.a.node, rig.b.node);
    assert!(rig.a.queue.expose(spare, &rig.a.region).is_ok(), "the idle channel is still there");
    let (fresh, _) = rig.net.connect(&rig.a.queue, &rig.b.queue);
    assert!(fresh > spare, "ids are not reused");
}

#[test]
fn a_crash_is_heard_within_the_bound_and_late_writes_land_before_it() {
    let (mut late, mut partly) = (0, 0);
    for seed in 0..200 {
        let faults = SimFaults { detect_min_us: 100, detect_max_us: 300, jitter_us: 50, ..SimFaults::calm() };
        // A message that a spike delays must not delay the news.
        let faults = SimFaults { spike_per_10k: 1_000, spike_us: 9_000, order: order_of(seed), ..faults };
        let mut rig = Rig::new(seed, faults);
        rig.a.fill(0, 800, 1);
        (0..8).for_each(|number| rig.send(u64::from(number) * 100, 100, number));
        rig.net.advance_to(20);
        rig.b.poll();
        let before = rig.b.immediates().len();
        rig.net.crash(rig.a.node);
        assert!(rig.net.is_crashed(rig.a.node));
        assert_eq!(rig.a.poll(), 0);
        assert_eq!(rig.a.write(rig.b.key, 0, 8, 9), Err(PostError::Closed));
        // Its memory is gone: what it would hold later can never be sent.
        rig.a.fill(0, 800, 2);
        while rig.b.end().is_none() {
            assert!(rig.step());
        }
        assert!(rig.net.now_us() <= 320, "seed {seed}: heard at {}", rig.net.now_us());
        assert_eq!(rig.b.end(), Some(&DisconnectReason::PeerClosed));
        let frozen = rig.b.bytes(0, 800);
        rig.run();
        assert_eq!(rig.b.bytes(0, 800), frozen, "nothing lands after the end");
        assert!(!frozen.contains(&2));
        let (notices, landed) = (rig.b.immediates().len(), frozen.iter().filter(|&&byte| byte == 1).count());
        assert_eq!(rig.b.immediates(), (0..notices as u32).collect::<Vec<_>>());
        late += usize::from(notices > before);
        partly += usize::from(landed > notices * 100);
        assert!(rig.a.got.iter().all(|kind| !matches!(kind, fabric::CompletionKind::Disconnected(_))));
        assert_eq!(rig.net.under_way(), 0);
        assert_eq!(rig.net.stats(rig.a.node).registered_bytes, 0);
    }
    assert!(late > 50 && partly > 10, "late {late}, partly {partly}");
}

#[test]
fn posts_to_a_crashed_peer_are_taken_until_it_is_known() {
    let mut rig = Rig::new(1, SimFaults { send_depth: 4, ..SimFaults::calm() });
    rig.net.crash(rig.b.node);
    (0..4).for_each(|number| rig.a.write(rig.b.key, 0, 8, number).unwrap());
    assert_eq!(rig.a.write(rig.b.key, 0, 8, 4), Err(PostError::Full));
    rig.run();
    assert_eq!(rig.a.got.len(), 1);
    assert_eq!(rig.a.end(), Some(&DisconnectReason::PeerClosed));
    assert_eq!(rig.b.bytes(0, 8), [0; 8]);
    let (channel, _) = rig.net.connect(&rig.a.queue, &rig.b.queue);
    rig.a.channel = channel;
    rig.a.got.clear();
    rig.run();
    assert_eq!(rig.a.end(), Some(&DisconnectReason::PeerClosed), "a new channel to it ends as well");
}

#[test]
fn nothing_lands_after_close() {
    for seed in 0..200 {
        let mut rig =
            Rig::new(seed, SimFaults { torn_us: 100, order: order_of(seed), ..SimFaults::hostile() });
        rig.a.fill(0, 6400, 1);
        (0..64).for_each(|number| rig.send(u64::from(number) * 100, 100, number));
        rig.net.advance_to(rig.net.now_us() + seed * 3);
        rig.b.queue.close(rig.b.channel);
        rig.b.queue.close(rig.b.channel);
        let frozen = rig.b.bytes(0, 6400);
        assert!(!rig.net.has_ready(&rig.b.queue));
        let polled = rig.b.got.len();
        rig.run();
        assert_eq!(rig.b.bytes(0, 6400), frozen);
        assert_eq!(rig.b.got.len(), polled, "the closer hears nothing more");
        assert_eq!(rig.a.end(), Some(&DisconnectReason::PeerClosed));
        assert_eq!(rig.net.under_way(), 0);
    }
}

#[test]
fn what_a_closer_had_under_way_comes_before_the_news() {
    let mut arrived = 0;
    for seed in 0..50 {
        let mut rig = Rig::new(seed, SimFaults::calm());
        rig.a.fill(0, 64, 1);
        (0..4).for_each(|number| rig.send(0, 64, number));
        rig.a.queue.close(rig.a.channel);
        rig.a.fill(0, 64, 2);
        rig.run();
        assert_eq!(rig.b.end(), Some(&DisconnectReason::PeerClosed));
        arrived += rig.b.immediates().len();
        assert!(!rig.b.bytes(0, 64).contains(&2), "a closed channel reads no source any more");
    }
    assert!(arrived > 20, "{arrived}");
}

#[test]
fn dropping_a_queue_closes_its_channels() {
    let Rig { net, a, mut b } = Rig::new(1, SimFaults::calm());
    drop(a);
    while net.advance() {}
    b.poll();
    assert_eq!(b.end(), Some(&DisconnectReason::PeerClosed));
}

#[test]
fn bad_access_ends_the_channel_at_the_victim() {
    let end = sim_rig::REGION_BYTES as u64;
    let cases = [(RemoteKey(u64::MAX), 0, 8), (RemoteKey(0), end - 7, 8), (RemoteKey(0), u64::MAX - 3, 8)];
    for (key, offset, bytes) in cases {
        let mut rig = Rig::new(1, SimFaults::rough());
        let key = if key == RemoteKey(0) { rig.b.key } else { key };
        let gather = [rig.a.region.span(0, bytes).unwrap()];
        let remote = fabric::RemoteSpan { key, offset };
        let write = fabric::Write { id: 1, gather: &gather, remote, immediate: Some(1), signaled: true };
        while rig.a.queue.post_write(rig.a.channel, &write).is_err() {}
        rig.send(0, 8, 2);
        rig.run();
        assert!(matches!(rig.b.end(), Some(DisconnectReason::PeerMisbehaved(_))), "{:?}", rig.b.got);
        assert_eq!(rig.a.end(), Some(&DisconnectReason::PeerClosed));
        assert_eq!((rig.a.got.len(), rig.b.got.len()), (1, 1), "what stood behind it did not arrive");
        assert_eq!(rig.net.under_way(), 0);
    }
    let mut rig = Rig::new(1, SimFaults::calm());
    rig.send(end - 8, 8, 1);
    rig.run();
    assert_eq!(rig.b.immediates(), [1], "the last bytes of a region are good");
}

#[test]
fn a_break_ends_all_channels_between_two_nodes() {
    let mut rig = Rig::new(1, SimFaults::calm());
    rig.send(0, 64, 1);
    rig.net.at(2, Action::Break(rig.b.node, rig.a.node));
    rig.run();
    assert_eq!(rig.a.end(), Some(&failed("the link broke")));
    assert_eq!(rig.b.end(), Some(&failed("the link broke")));
}

/// Whatever happens: order, no notice twice, an end is heard on both sides or on none, nothing is left over.
#[test]
fn a_thousand_random_scripts_end_well() {
    let mut ends = [0; 2];
    for seed in 0..1_000 {
        let faults = SimFaults { duplicate_notice_per_10k: 0, retry_max: 4, ..SimFaults::hostile() };
        let faults = SimFaults { order: order_of(seed), ..faults };
        let mut rig = Rig::new(seed, faults);
        let nodes = [rig.a.node, rig.b.node];
        let shape = ScriptShape {
            horizon_us: 8_000,
            partitions: 2,
            partition_max_us: 4_000,
            breaks: u32::from(seed % 4 == 0),
            crashes: u32::from(seed % 3 == 0),
        };
        rig.net.run_script(&FaultScript::random(seed, &nodes, &nodes, shape));
        let (mut next, mut open) = ([0_u32; 2], true);
        while open {
            let (a_key, b_key) = (rig.a.key, rig.b.key);
            for (side, (from, key)) in [(&mut rig.a, b_key), (&mut rig.b, a_key)].into_iter().enumerate() {
                if next[side] < 60 && from.write(key, 0, 200, next[side]).is_ok() {
                    next[side] += 1;
                }
            }
            open = rig.step();
        }
        for side in [&rig.a, &rig.b] {
            let order = side.immediates();
            assert_eq!(order, (0..order.len() as u32).collect::<Vec<_>>(), "seed {seed}");
        }
        let dead = nodes.map(|node| rig.net.is_crashed(node));
        let ended = [rig.a.end().is_some() || dead[0], rig.b.end().is_some() || dead[1]];
        assert_eq!(ended[0], ended[1], "seed {seed}:\n{}", rig.net.trace().join("\n"));
        assert_eq!(rig.net.under_way(), 0, "seed {seed}");
        ends[usize::from(ended[0])] += 1;
    }
    assert!(ends[0] > 100 && ends[1] > 100, "both fates are common: {ends:?}");
}
