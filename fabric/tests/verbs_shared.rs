//! What channels share on a real RDMA device (a queue of a lane, registrations of a region): if one channel ends or fails,
//! the others continue. And how long a request or a registration owns its memory. Needs a device (`tests/guest`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

mod conformance;

use conformance::rig::{NOWHERE, Place, Rig, Verbs, VerbsLane, at, connect, meet, pair, region, soon};
use fabric::{CompletionKind, CompletionQueue, VerbsConfig, VerbsDevice, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;

/// Polls by `turn` until it says that it is done.
fn until(what: &str, mut turn: impl FnMut() -> bool) {
    let end = soon();
    while !turn() {
        assert!(Instant::now() < end, "{what}");
    }
}

/// A lane's other channel has more to say than is taken from the device at once.
#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn a_last_word_is_heard_behind_the_words_of_many_others() {
    const OTHERS: u32 = 400;
    let (mut a, mut b) = pair::<VerbsLane>();
    let (near, far) = connect::<VerbsLane>(&mut a.queue, &mut b.queue);
    meet(&mut a, &mut b);
    let first = (a.channel, b.channel);
    (a.channel, b.channel) = (near, far);
    meet(&mut a, &mut b);
    (a.channel, b.channel) = first;
    let mut sent = 0;
    while sent < OTHERS {
        sent += u32::from(a.write(&[], NOWHERE, Some(sent), Some(u64::from(sent))).is_ok());
        a.poll();
    }
    until("all are sent", || {
        a.poll();
        a.seen.len() >= OTHERS as usize
    });
    a.seen.clear();
    let last = Write { id: 7, gather: &[], remote: NOWHERE, immediate: Some(4242), signaled: true };
    a.queue.post_write(near, &last).unwrap();
    a.queue.flush();
    until("the last is sent", || {
        a.poll();
        !a.seen.is_empty()
    });
    a.queue.close(near);
    let (mut told, mut of_far) = (Vec::new(), Vec::new());
    until("the end is told", || {
        // Looks at the sockets before it polls.
        b.queue.wait(Duration::from_millis(50));
        b.queue.poll(&mut told);
        of_far.extend(told.drain(..).filter(|completion| completion.channel == far).map(|c| c.kind));
        matches!(of_far.last(), Some(CompletionKind::Disconnected(_)))
    });
    assert_eq!(of_far[0], CompletionKind::Received { immediate: 4242 }, "{of_far:?}");
}

/// Again and again beside writes from the same region, as of another thread's buffer in one pool.
#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn a_stretch_too_large_to_register_disturbs_nobody_who_uses_a_part_of_it() {
    const BUDGET: usize = 48 << 20;
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let config = VerbsConfig { registered_bytes_max: BUDGET as u64, timeout: 14, ..VerbsConfig::default() };
    let device = VerbsDevice::open(&config, local, local.to_string()).unwrap();
    let mut near = device.queue(64).unwrap();
    let mut far = Verbs::queue(Place::Far, 64).unwrap();
    let lent = region(PAGE);
    let (a, b) = connect::<Verbs>(&mut near, &mut far);
    let key = far.expose(b, &lent).unwrap();
    far.flush();
    let large = region(2 * BUDGET);
    let (first, all) = (large.span(0, 64).unwrap(), large.all());
    device.prepare(&first).unwrap();
    let before = device.registered_bytes();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let failing = scope.spawn(|| {
            let mut tries = 0;
            while !is_over.load(Ordering::Relaxed) {
                let error = device.prepare(&all).unwrap_err().to_string();
                assert!(error.contains("memory.registered_bytes"), "{error}");
                tries += 1;
            }
            tries
        });
        let (mut told, mut done, mut id) = (Vec::new(), 0, 0);
        until("all writes are done", || {
            let write = Write {
                id,
                gather: std::slice::from_ref(&first),
                remote: at(key, 0),
                immediate: None,
                signaled: true,
            };
            id += u64::from(near.post_write(a, &write).is_ok());
            near.flush();
            near.poll(&mut told);
            far.poll(&mut Vec::new());
            for completion in told.drain(..) {
                assert!(matches!(completion.kind, CompletionKind::WriteDone { .. }), "{completion:?}");
                done += 1;
            }
            done >= 500
        });
        is_over.store(true, Ordering::Relaxed);
        assert!(failing.join().unwrap() > 0);
    });
    assert_eq!(device.registered_bytes(), before, "what failed left nothing");
}

/// Whose memory is it, and until when?
mod ownership {
    use super::*;
    use crate::conformance::rig::{bytes_of, filled, pair_with};
    use fabric::UserBuffer;
    use std::sync::mpsc::channel;
    use std::sync::{Arc, OnceLock};

    /// Posted, not started, and let go of by everybody else.
    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_request_owns_its_memory_until_it_is_over() {
        let device = Verbs::open(Place::Near, None);
        let lent = region(1 << 20);
        let (mut a, mut b, key) = pair_with::<Verbs>(&lent);
        for (bytes, seed) in [(64, 1), (1 << 20, 2)] {
            let ours = filled(seed, 1 << 20);
            a.post(&[ours.span(0, bytes).unwrap()], at(key, 0), Some(7), Some(1)).unwrap();
            drop(ours);
            // Some registration elsewhere sweeps what nobody owns.
            device.release_unused();
            a.queue.prepare(&region(4096).all()).unwrap();
            a.queue.flush();
            assert_eq!(b.next_with(&mut a), CompletionKind::Received { immediate: 7 });
            assert_eq!(a.next_with(&mut b), CompletionKind::WriteDone { id: 1 });
            assert!(bytes_of(&lent, 0, bytes as usize) == conformance::rig::pattern(seed, bytes as usize));
        }
    }

    struct Owner(Vec<f32>, Arc<OnceLock<VerbsDevice>>);

    impl AsRef<[f32]> for Owner {
        fn as_ref(&self) -> &[f32] {
            &self.0
        }
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            let _ = self.1.get().map(VerbsDevice::registered_bytes);
        }
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn an_owner_may_use_the_device_when_it_goes() {
        let (tell, told) = channel();
        std::thread::spawn(move || {
            let device = Verbs::open(Place::Near, None);
            let place = Arc::new(OnceLock::new());
            let _ = place.set(device.clone());
            let user = UserBuffer::from(Arc::new(Owner(vec![1.0; 65_536], place)));
            let region = user.region();
            device.prepare(&region.all()).unwrap();
            drop((user, region));
            device.release_unused();
            tell.send(device.registered_bytes()).unwrap();
        });
        assert_eq!(told.recv_timeout(Duration::from_secs(10)), Ok(0));
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn what_does_not_fit_the_budget_leaves_nothing_behind() {
        let local = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        let config = fabric::VerbsConfig { registered_bytes_max: 40 << 20, ..fabric::VerbsConfig::default() };
        let device = VerbsDevice::open(&config, local, local.to_string()).unwrap();
        let (large, small) = (region(64 << 20), region(1 << 20));
        let error = device.prepare(&large.all()).unwrap_err().to_string();
        assert!(error.contains("memory.registered_bytes"), "{error}");
        assert_eq!(device.registered_bytes(), 0);
        device.prepare(&small.all()).unwrap();
        assert_eq!(device.registered_bytes(), 1 << 20);
        // What the driver itself needs counts, too.
        let queue = device.queue(4).unwrap();
        assert_eq!(device.registered_bytes(), (1 << 20) + fabric::VERBS_QUEUE_BYTES);
        drop(queue);
        assert_eq!(device.registered_bytes(), 1 << 20);
        let little = fabric::VerbsConfig { registered_bytes_max: 1024, ..fabric::VerbsConfig::default() };
        let error = VerbsDevice::open(&little, local, local.to_string()).unwrap_err().to_string();
        assert!(error.contains("memory.registered_bytes"), "{error}");
    }
}
