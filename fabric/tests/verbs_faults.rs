//! Faults of peers, devices and links on a real RDMA device: what is reported, and after how long, each as one printed
//! line. Runs where such devices are (`tests/guest`): `one_device` where both ends share one, `two_devices` where a wire
//! lies between them. Faults that every driver may meet stand in `conformance`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "test code: a panic is a failed test"
)]

mod conformance;

use conformance::rig::{End, Verbs, at, bytes_of, filled, meet, pair, pair_with, region, report};
use conformance::{child, over};
use fabric::{CompletionKind, DisconnectReason};
use std::process::Command;
use std::time::{Duration, Instant};

// The process that the tests below start.
over!(over_verbs, crate::conformance::rig::Verbs;);

/// Longest time until a device with the patience of `Verbs` gives up.
const GIVES_UP_WITHIN: Duration = Duration::from_secs(5);
const PAGE: usize = 4096;
const UNTOUCHED: u8 = 0xEE;

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status().unwrap();
    assert!(status.success(), "{program} {args:?}: {status}");
}

/// The end of a channel by the device's word, which must have this one: the whole of it.
fn assert_device_says(case: &str, end: &mut End<Verbs>, word: &str, since: Instant) -> String {
    let (reason, _) = end.ended();
    report(case, &format!("{reason:?}"), since);
    assert!(matches!(&reason, DisconnectReason::Failed(what) if what.contains(word)), "{reason:?}");
    assert!(since.elapsed() < GIVES_UP_WITHIN, "{:?}", since.elapsed());
    reason.to_string()
}

/// The end of a channel whose peer had the fault.
fn assert_peer_closed(case: &str, end: &mut End<Verbs>, since: Instant) {
    let (reason, _) = end.ended();
    report(case, &format!("{reason:?}"), since);
    assert_eq!(reason, DisconnectReason::PeerClosed);
}

mod one_device {
    use super::*;
    use conformance::child::Role;
    use conformance::rig::{DEPTH, NOWHERE, Place, Rig, connect, pair_of_depth};
    use fabric::{
        Access, CompletionQueue, Device, FabricError, Forged, PostError, ShmDevice, VerbsConfig, VerbsDevice,
    };
    use std::net::{IpAddr, Ipv4Addr};
    use std::os::fd::AsFd;

    fn open(config: &VerbsConfig) -> Result<VerbsDevice, FabricError> {
        let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
        VerbsDevice::open(config, local, local.to_string())
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_device_that_is_not_there_is_named_beside_those_that_are() {
        let elsewhere = VerbsConfig { device: Some("no-such-device".into()), ..VerbsConfig::default() };
        let error = open(&elsewhere).unwrap_err().to_string();
        assert!(error.contains("no-such-device") && error.contains("rxe0"), "{error}");
        let queue = Verbs::queue(Place::Near, DEPTH).unwrap();
        assert!(matches!(ShmDevice::new().offer(&[queue.handle()]), Err(FabricError::Misuse(_))));
    }

    /// A lie about a region of the peer, told to the device by a write and by a read.
    fn assert_device_refuses(case: &str, lie: impl Fn(&mut Forged)) {
        for reads in [false, true] {
            let lent = region(PAGE);
            lent.write(0, &[UNTOUCHED; PAGE]).unwrap();
            let (mut a, mut b, key) = pair_with::<Verbs>(&lent);
            let mut forged = a.queue.told(a.channel, key).unwrap();
            lie(&mut forged);
            a.queue.pretend(a.channel, key, forged).unwrap();
            let ours = filled(1, 2 * PAGE);
            let span = ours.span(0, forged.bytes).unwrap();
            let started = Instant::now();
            if reads {
                a.read(&span, at(key, 0), 1).unwrap();
            } else {
                a.write(&[span], at(key, 0), Some(1), Some(1)).unwrap();
            }
            let what = if reads { "read" } else { "write" };
            assert_device_says(&format!("{case}, {what}"), &mut a, "remote access refused", started);
            assert_peer_closed(&format!("{case}, {what}, the victim"), &mut b, started);
            assert_eq!(a.write(&[], NOWHERE, Some(1), None), Err(PostError::Closed));
            assert!(bytes_of(&lent, 0, PAGE) == [UNTOUCHED; PAGE], "something landed");
        }
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_wrong_rkey_is_refused_by_the_peer_s_device() {
        assert_device_refuses("wrong rkey", |forged| forged.rkey ^= 1);
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_stretch_out_of_bounds_is_refused_by_the_peer_s_device() {
        assert_device_refuses("out of bounds", |forged| forged.bytes += 1);
        assert_device_refuses("before the region", |forged| forged.address -= 1);
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_fault_ends_its_own_channel_and_no_other() {
        let lent = region(PAGE);
        let (mut a, mut b, key) = pair_with::<Verbs>(&lent);
        let others: Vec<_> = (0..3).map(|_| connect::<Verbs>(&mut a.queue, &mut b.queue)).collect();
        let forged = a.queue.told(a.channel, key).unwrap();
        a.queue.pretend(a.channel, key, Forged { rkey: !forged.rkey, ..forged }).unwrap();
        let started = Instant::now();
        a.write(&[filled(1, 8).span(0, 8).unwrap()], at(key, 0), None, None).unwrap();
        assert_device_says("wrong rkey beside others", &mut a, "remote access refused", started);
        assert_peer_closed("wrong rkey beside others, the victim", &mut b, started);
        for (near, far) in others {
            (a.channel, b.channel) = (near, far);
            meet(&mut a, &mut b);
        }
    }

    /// Numbers of queue pairs come round again, and so may what a device still has to say of one that is gone.
    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_completion_of_what_is_gone_is_nobody_s() {
        let lent = region(PAGE);
        let (mut a, mut b, key) = pair_with::<Verbs>(&lent);
        let source = filled(1, PAGE);
        let page = source.span(0, PAGE as u64).unwrap();
        a.write_patiently(std::slice::from_ref(&page), at(key, 0), None, Some(1));
        assert_eq!(a.next(), CompletionKind::WriteDone { id: 1 });
        let (live, gone) = (a.channel, connect::<Verbs>(&mut a.queue, &mut b.queue).0);
        a.queue.close(gone);
        let before = a.queue.stale();
        a.post(&[page], at(key, 0), None, Some(2)).unwrap();
        // An earlier request's, one's that was never posted, a channel's that is gone, and another queue pair's.
        for (channel, number, queue_pair) in
            [(live, u32::MAX, live), (live, 1 << 20, live), (gone, 1, live), (live, 1, gone)]
        {
            a.queue.complete(channel, number, queue_pair);
        }
        // A receive that is not posted: of a turn to come, and no place at all.
        a.queue.receive(live, (0, 77));
        a.queue.receive(live, (u32::MAX, 0));
        assert_eq!(a.queue.stale() - before, 6);
        assert_eq!(VerbsDevice::kept_objects(), 0, "all that was destroyed until now is gone");
        a.queue.flush();
        assert_eq!(a.next(), CompletionKind::WriteDone { id: 2 });
    }

    /// The software device cannot, whatever the descriptor is of.
    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_device_that_takes_no_dmabuf_says_so() {
        let device = open(&VerbsConfig::default()).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let refused = device.register_dmabuf(file.as_fd(), 0, 4096, Access::ReadWrite).unwrap_err();
        assert!(
            matches!(&refused, FabricError::Unsupported { why, .. } if why.contains("rxe0")),
            "{refused}"
        );
        for (offset, bytes) in [(0, 0), (1, 4096), (4095, 1)] {
            let refused = device.register_dmabuf(file.as_fd(), offset, bytes, Access::Read).unwrap_err();
            assert!(matches!(refused, FabricError::Misuse(_)), "{refused}");
        }
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_region_that_cannot_be_exposed_is_not_half_exposed() {
        let registered_bytes_max = fabric::VERBS_QUEUE_BYTES + (32 << 10);
        let device = open(&VerbsConfig { registered_bytes_max, ..VerbsConfig::default() }).unwrap();
        let (mut near, mut far) = (device.queue(4).unwrap(), Verbs::queue(Place::Far, 4).unwrap());
        let (a, _b) = connect::<Verbs>(&mut near, &mut far);
        let (large, small) = (region(64 << 10), region(PAGE)); // So little is registered whole.
        assert_eq!(near.expose(a, &large), Err(PostError::Unregistered));
        assert_eq!(
            near.lend(a, &large.span(0, 1).unwrap(), Access::ReadWrite, 0),
            Err(PostError::RemoteAccess)
        );
        near.expose(a, &small).unwrap();
        assert_eq!(near.lend(a, &small.all(), Access::ReadWrite, 0), Ok(()));
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_completion_queue_grows_with_the_channels_of_its_lane() {
        let (mut a, mut b) = pair_of_depth::<Verbs>(4);
        let (few, mut others) = (a.queue.entries(), Vec::new());
        // The software device rounds up, to room for 105.
        while others.len() < 110 {
            others.push(connect::<Verbs>(&mut a.queue, &mut b.queue));
        }
        // Each may end with its four requests and those of our own told.
        let needed = 1024 + 111 * 68;
        assert!(few < needed && a.queue.entries() >= needed, "{few}, then {}", a.queue.entries());
        (a.channel, b.channel) = others[109];
        meet(&mut a, &mut b);
    }

    fn assert_goes_on_as_requests_end<R: Rig>() {
        const SPANS: usize = 200;
        let lent = region(2 * PAGE);
        let (mut a, mut b) = pair_of_depth::<R>(4);
        let key = b.grant(&lent);
        assert_eq!(a.next_with(&mut b), CompletionKind::Received { immediate: key.0 as u32 });
        let source = filled(3, 2 * SPANS);
        let spans: Vec<_> = (0..SPANS).map(|i| source.span(2 * i as u64, 1).unwrap()).collect();
        // Some of which the device says nothing.
        for _ in 0..3 {
            a.write_patiently(&spans[..1], at(key, 0), None, None);
        }
        a.write_patiently(&spans, at(key, 10), Some(7), Some(1));
        assert_eq!(
            a.write(&spans[..1], at(key, 0), None, None),
            Err(PostError::Full),
            "nothing overtakes it"
        );
        drop(spans);
        assert_eq!(a.next_with(&mut b), CompletionKind::WriteDone { id: 1 });
        assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate: 7 });
        let sent = bytes_of(&source, 0, 2 * SPANS);
        let expected: Vec<u8> = sent.into_iter().step_by(2).collect();
        assert_eq!(bytes_of(&lent, 10, SPANS), expected);
        meet(&mut a, &mut b);
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_transfer_of_more_requests_than_the_depth_goes_on_as_they_end() {
        assert_goes_on_as_requests_end::<Verbs>();
        assert_goes_on_as_requests_end::<conformance::rig::VerbsFlags>();
        // Three requests of the software device, one at a time.
        const LONG: usize = 17 << 20;
        let lent = filled(4, LONG);
        let (mut a, mut b) = pair_of_depth::<Verbs>(1);
        let key = b.expose(&lent);
        b.queue.lend(b.channel, &lent.all(), Access::ReadWrite, 0).unwrap();
        b.notify(key.0 as u32);
        assert_eq!(a.next_with(&mut b), CompletionKind::Received { immediate: key.0 as u32 });
        let into = region(LONG);
        a.read(&into.all(), at(key, 0), 5).unwrap();
        assert_eq!(a.next(), CompletionKind::ReadDone { id: 5 });
        assert!(bytes_of(&into, 0, LONG) == bytes_of(&lent, 0, LONG));
    }

    /// By design it is no fault: a receiver that is slow to post receives is waited for without end.
    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_receiver_without_posted_receives_is_waited_for() {
        const NOTICES: u32 = 1200;
        let (mut a, mut b) = pair::<Verbs>();
        let (mut posted, mut last) = (0, Instant::now());
        while last.elapsed() < Duration::from_secs(1) {
            while posted < NOTICES && a.write(&[], NOWHERE, Some(posted), None).is_ok() {
                posted += 1;
                last = Instant::now();
            }
            a.poll();
        }
        assert_eq!(a.seen, []);
        assert!(posted > 1000 && posted < NOTICES, "{posted}");
        report("no posted receive", &format!("nothing, {posted} of {NOTICES} notices posted"), last);
        let polls = Instant::now();
        for expected in 0..NOTICES {
            if posted < NOTICES && a.write(&[], NOWHERE, Some(posted), None).is_ok() {
                posted += 1;
            }
            assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate: expected });
        }
        report("no posted receive, then polled", "all notices, in their order,", polls);
        assert_eq!(a.seen, []);
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_stopped_peer_is_not_noticed_by_its_device() {
        use rustix::process::Signal;
        let (mut end, peer) = child::spawn::<Verbs>(Role::Echoes);
        let key = end.granted();
        let source = filled(1, PAGE);
        peer.signal(Signal::STOP);
        let stopped = Instant::now();
        for id in 0..100 {
            end.write_patiently(&[source.span(0, PAGE as u64).unwrap()], at(key, 0), None, Some(id));
            assert_eq!(end.next(), CompletionKind::WriteDone { id });
        }
        end.notify(7);
        while stopped.elapsed() < Duration::from_secs(1) {
            end.poll();
        }
        assert_eq!(end.seen, [], "a heartbeat above has to find it");
        report("peer stopped while idle", "writes complete, nothing else", stopped);
        peer.signal(Signal::CONT);
        let continued = Instant::now();
        assert_eq!(end.next_notice(), 7);
        report("stopped peer continued", "its answer", continued);
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_peer_that_came_back_honours_no_grant_of_its_former_life() {
        let (mut end, first) = child::spawn::<Verbs>(Role::Echoes);
        let key = end.granted();
        let old = end.queue.told(end.channel, key).unwrap();
        first.kill();
        assert_eq!(end.ended().0, DisconnectReason::PeerClosed);
        let (mut end, _second) = child::connect_child::<Verbs>(end.queue, Role::Echoes);
        let key = end.granted();
        let new = end.queue.told(end.channel, key).unwrap();
        assert_ne!(old.rkey, new.rkey);
        end.queue.pretend(end.channel, key, old).unwrap();
        let started = Instant::now();
        end.write(&[filled(1, 8).span(0, 8).unwrap()], at(key, 0), Some(1), None).unwrap();
        assert_device_says("old grant after a restart", &mut end, "remote access refused", started);
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_link_that_goes_down_ends_what_is_under_way() {
        let lent = region(PAGE);
        let (mut a, _b, key) = pair_with::<Verbs>(&lent);
        let source = filled(1, PAGE);
        let name = VerbsDevice::names().unwrap().remove(0);
        let netdev = std::fs::read_to_string(format!("/sys/class/infiniband/{name}/parent")).unwrap();
        let netdev = netdev.trim();
        run("ip", &["link", "set", netdev, "down"]);
        let down = Instant::now();
        a.write_patiently(&[source.span(0, PAGE as u64).unwrap()], at(key, 0), None, Some(1));
        let (reason, before) = a.ended();
        report("link down", &format!("{before:?} {reason:?}"), down);
        let why = reason.to_string();
        assert!(why.contains("port 1 of RDMA device") && why.contains("went down"), "{why}");
        let refused = open(&VerbsConfig::default()).unwrap_err().to_string();
        assert!(refused.contains("is down"), "{refused}");
        run("ip", &["link", "set", netdev, "up"]);
        pair::<Verbs>();
    }
}

mod two_devices {
    use super::*;
    use conformance::rig::{Limits, Place, Rig};
    use conformance::{data, flow, life};
    use fabric::{Device, FabricError};

    /// The ends of the wire (`tests/guest/netem.sh`).
    const WIRE: [&str; 2] = ["v0", "v1"];

    /// Whatever is done to the wire is undone, however the test ends.
    struct Faulty;

    impl Faulty {
        fn wire(how: &[&str]) -> Self {
            let this = Self;
            for end in WIRE {
                run(
                    "tc",
                    &[&["qdisc", "replace", "dev", end, "root", "netem", "limit", "100000"], how].concat(),
                );
            }
            this
        }
    }

    impl Drop for Faulty {
        fn drop(&mut self) {
            for end in WIRE {
                let _ = Command::new("tc").args(["qdisc", "del", "dev", end, "root"]).status();
            }
        }
    }

    fn sent_bytes() -> u64 {
        let sent =
            |end| std::fs::read_to_string(format!("/sys/class/net/{end}/statistics/tx_bytes")).unwrap();
        WIRE.into_iter().map(|end| sent(end).trim().parse::<u64>().unwrap()).sum()
    }

    fn dropped_packets() -> u64 {
        let told = Command::new("tc").args(["-s", "qdisc", "show", "dev", WIRE[0]]).output().unwrap().stdout;
        let told = String::from_utf8(told).unwrap();
        let after = told.split("(dropped ").nth(1).expect("tc's statistics");
        after.split(',').next().unwrap().parse().unwrap()
    }

    /// The same devices, which try again for some two seconds instead of half a one: an emulated machine that is busy is
    /// itself slower than the short patience, and each time costs one of the retries that the wire is to have.
    #[derive(Clone, Copy, Debug)]
    struct Patient;

    impl Patient {
        const TIMEOUT: Option<u8> = Some(16);
    }

    impl Rig for Patient {
        type Queue = <Verbs as Rig>::Queue;
        const NAME: &'static str = Verbs::NAME;
        const CARRIER: &'static str = Verbs::CARRIER;
        // So that it takes seconds where packets are lost.
        const LIMITS: Limits = Limits { long_bytes: 2 << 20, ..Verbs::LIMITS };

        fn device(place: Place) -> Box<dyn Device> {
            Box::new(Verbs::open(place, Self::TIMEOUT))
        }

        fn queue(place: Place, send_depth: usize) -> Result<Self::Queue, FabricError> {
            Verbs::open(place, Self::TIMEOUT).queue(send_depth)
        }
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn bytes_go_over_the_wire() {
        let before = sent_bytes();
        data::a_read_sees_what_was_written_before_it::<Verbs>();
        data::several_reads_are_under_way_at_once_and_complete_in_their_order::<Verbs>();
        let sent = sent_bytes() - before;
        assert!(sent > 6 << 20, "{sent} bytes: the devices do not use the wire");
    }

    fn assert_nothing_is_lost(percent: &str, checks: &[(&str, fn())]) {
        let wire = Faulty::wire(&["loss", percent]);
        for (name, check) in checks {
            let before = dropped_packets();
            let started = Instant::now();
            check();
            let lost = dropped_packets() - before;
            let what = format!("nothing, all arrived though {lost} packets were lost one way,");
            report(&format!("{percent} of packets lost, {name}"), &what, started);
        }
        assert!(dropped_packets() > 0);
        drop(wire);
    }

    const ORDER: (&str, fn()) =
        ("order over full queues", data::thousands_of_writes_keep_their_order_over_full_queues::<Patient>);
    const AT_ONCE: (&str, fn()) =
        ("several queues", data::channels_of_several_queues_are_told_apart_and_work_at_once::<Patient>);

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn one_percent_loss_loses_nothing() {
        const SIZES: (&str, fn()) =
            ("writes of all sizes", data::writes_of_all_sizes_land_before_their_notice::<Patient>);
        assert_nothing_is_lost("1%", &[SIZES, ORDER, AT_ONCE]);
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn five_percent_loss_loses_nothing() {
        assert_nothing_is_lost("5%", &[ORDER, AT_ONCE]);
    }

    /// Only an acknowledgement renews a device's retries, and the software device asks for one in 64 packets: on a wire
    /// as bad as this they may not last.
    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_long_write_over_a_bad_wire_arrives_whole_or_ends_its_channel() {
        const LONG: usize = 4 << 20;
        let lent = region(LONG);
        let (mut a, mut b, key) = pair_with::<Verbs>(&lent);
        let source = filled(1, LONG);
        let wire = Faulty::wire(&["loss", "5%"]);
        let started = Instant::now();
        a.write(&[source.span(0, LONG as u64).unwrap()], at(key, 0), Some(1), Some(1)).unwrap();
        let case = "5% of packets lost, one write of 4 MiB";
        match a.next() {
            CompletionKind::WriteDone { id: 1 } => {
                report(case, "nothing, it arrived", started);
                assert_eq!(b.next(), CompletionKind::Received { immediate: 1 });
                assert!(bytes_of(&lent, 0, LONG) == bytes_of(&source, 0, LONG));
            }
            CompletionKind::Disconnected(reason) => {
                report(case, &format!("{reason:?}"), started);
                assert!(matches!(&reason, DisconnectReason::Failed(what) if what.contains("no answer")));
                assert_peer_closed(&format!("{case}, the other end"), &mut b, started);
                life::assert_nothing_lands::<Verbs>(&lent);
            }
            other => panic!("{other:?}"),
        }
        drop(wire);
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn packets_out_of_order_and_twice_change_nothing() {
        let wire = Faulty::wire(&["delay", "1ms", "reorder", "95%", "duplicate", "2%"]);
        let started = Instant::now();
        data::thousands_of_writes_keep_their_order_over_full_queues::<Patient>();
        flow::one_poll_brings_no_more_than_it_may::<Patient>();
        report("packets out of order and twice", "nothing, all arrived in order", started);
        drop(wire);
    }

    /// The connection that a channel was set up over is elsewhere, so that only the device can tell.
    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_wire_that_is_cut_ends_what_is_under_way_and_only_that() {
        let lent = region(PAGE);
        let (mut a, mut b, key) = pair_with::<Verbs>(&lent);
        let (mut c, mut d) = pair::<Verbs>();
        let source = filled(1, PAGE);
        let wire = Faulty::wire(&["loss", "100%"]);
        let cut = Instant::now();
        a.write(&[source.span(0, PAGE as u64).unwrap()], at(key, 0), Some(1), Some(1)).unwrap();
        let why = assert_device_says("wire cut", &mut a, "no answer after all retries; check the path", cut);
        assert!(why.contains("counted since the channel began, of all channels: "), "{why}");
        assert!(why.contains("retry_exceeded_err"), "{why}");
        assert_peer_closed("wire cut, the other end", &mut b, cut);
        assert!(bytes_of(&lent, 0, PAGE) == [0; PAGE], "it came over a wire that was cut");
        drop(wire);
        meet(&mut c, &mut d);
        pair::<Verbs>();
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_wire_cut_for_less_than_the_patience_is_not_noticed() {
        let lent = region(PAGE);
        let (mut a, mut b, key) = pair_with::<Patient>(&lent);
        let wire = Faulty::wire(&["loss", "100%"]);
        let cut = Instant::now();
        a.write(&[filled(1, PAGE).span(0, PAGE as u64).unwrap()], at(key, 0), Some(1), Some(1)).unwrap();
        // Long enough for a patience of half a second to end.
        std::thread::sleep(Duration::from_millis(700));
        drop(wire);
        assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate: 1 });
        assert_eq!(a.next(), CompletionKind::WriteDone { id: 1 });
        report("wire cut for 700 ms, a timeout of 16", "nothing, the write arrived", cut);
    }
}
