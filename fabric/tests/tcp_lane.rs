//! The TCP driver behind the device trait and a lane's queue, as the roles use it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod tcp_rig;

use fabric::{CompletionKind, CompletionQueue, Device, LaneQueue, RemoteSpan, Write};
use std::time::{Duration, Instant};
use tcp_rig::{Carrier, bytes_of, device, over_both, region, soon};

over_both!(one_channel_per_lane_over_the_device_trait, a_waker_ends_a_lane_s_wait_that_has_tcp_channels_only);

fn one_channel_per_lane_over_the_device_trait(carrier: Carrier) {
    let (mut ours, mut theirs) =
        ([0; 3].map(|_| LaneQueue::new(64).unwrap()), [0; 3].map(|_| LaneQueue::new(64).unwrap()));
    let tcp: Box<dyn Device> = Box::new(device(carrier, None));
    let handles: Vec<_> = ours.iter().map(LaneQueue::handle).collect();
    let (offer, pending) = tcp.offer(&handles).unwrap();
    let connected: Vec<_> = (0..3u16)
        .map(|lane| {
            let queue = &mut theirs[usize::from(lane)];
            let setup = tcp.connect(&offer, lane, &queue.handle(), soon()).unwrap();
            queue.attach(setup).unwrap()
        })
        .collect();
    let setups = pending.accept(soon()).unwrap();
    let (from, to) = (region(4096), region(4096));
    from.write(0, b"one-sided").unwrap();
    for (lane, setup) in setups.into_iter().enumerate() {
        let channel = ours[lane].attach(setup).unwrap();
        let key = ours[lane].expose(channel, &to).unwrap();
        let gather = [from.span(0, 9).unwrap()];
        let remote = RemoteSpan { key, offset: lane as u64 * 64 };
        let write = Write { id: 0, gather: &gather, remote, immediate: Some(lane as u32), signaled: false };
        let queue = &mut theirs[lane];
        queue.post_write(connected[lane], &write).unwrap();
        queue.flush();
        let (mut seen, deadline) = (Vec::new(), soon());
        while seen.is_empty() {
            assert!(Instant::now() < deadline);
            ours[lane].wait(Duration::from_secs(1));
            ours[lane].poll(&mut seen);
        }
        assert_eq!(seen[0].channel, channel);
        assert_eq!(seen[0].kind, CompletionKind::Received { immediate: lane as u32 });
        assert_eq!(bytes_of(&to, lane as u64 * 64, 9), b"one-sided");
    }
}

fn a_waker_ends_a_lane_s_wait_that_has_tcp_channels_only(carrier: Carrier) {
    let (mut ours, theirs) = (LaneQueue::new(64).unwrap(), LaneQueue::new(64).unwrap());
    let (offer, pending) = device(carrier, None).offer(&[ours.handle()]).unwrap();
    let _setup = device(carrier, None).connect(&offer, 0, &theirs.handle(), soon()).unwrap();
    ours.attach(pending.accept(soon()).unwrap().remove(0)).unwrap();
    let waker = ours.waker();
    for _ in 0..20 {
        let started = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(5));
                waker.wake();
            });
            while started.elapsed() < Duration::from_millis(5) {
                ours.wait(Duration::from_secs(30));
                ours.poll(&mut Vec::new());
            }
        });
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
