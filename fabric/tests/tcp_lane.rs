//! A lane's queue with the TCP driver alone behind it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod tcp_rig;

use fabric::{CompletionQueue, Device, LaneQueue};
use std::time::{Duration, Instant};
use tcp_rig::{Carrier, device, over_both, soon};

over_both!(a_waker_ends_a_lane_s_wait_that_has_tcp_channels_only);

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
