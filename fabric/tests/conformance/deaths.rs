//! Peers that die or stop: noticed, awake and asleep, and nothing of the dead lands in memory that is used again. How
//! long it took is printed.

use super::child::{BIG, Role, spawn};
use super::life::assert_nothing_lands;
use super::rig::{LONG_SLEEP, Queue, Rig, at, region, report};
use fabric::{CompletionKind, DisconnectReason, PostError, RemoteKey};
use std::time::{Duration, Instant};

const NOTICED_WITHIN: Duration = Duration::from_secs(5);

pub fn nothing_of_a_writer_killed_in_its_middle_lands_once_its_channel_has_ended<R: Rig>() {
    let lent = region(BIG);
    let (mut end, child) = spawn::<R>(Role::Writes);
    end.grant(&lent);
    for round in 0..3 {
        assert_eq!(end.next(), CompletionKind::Received { immediate: round });
    }
    let killed = Instant::now();
    child.kill();
    let (reason, _) = end.ended();
    report(&format!("{}: peer killed in mid-write", R::NAME), &format!("{reason:?}"), killed);
    assert!(killed.elapsed() < NOTICED_WITHIN, "{:?}", killed.elapsed());
    assert_nothing_lands::<R>(&lent);
    end.poll();
    assert!(end.seen.is_empty(), "nothing comes after the end: {:?}", end.seen);
    assert_eq!(end.write(&[], at(RemoteKey(0), 0), Some(1), None), Err(PostError::Closed));
}

pub fn a_peer_killed_while_idle_is_noticed_asleep_and_awake<R: Rig>() {
    for asleep in [true, false] {
        let (mut end, child) = spawn::<R>(Role::Echoes);
        end.granted();
        let killed = Instant::now();
        child.kill();
        while end.seen.is_empty() {
            assert!(killed.elapsed() < NOTICED_WITHIN, "{:?}", killed.elapsed());
            if asleep {
                end.queue.wait(LONG_SLEEP);
            }
            end.poll();
        }
        let (reason, _) = end.ended();
        let how = if asleep { "asleep" } else { "polling" };
        report(&format!("{}: idle peer killed, {how}", R::NAME), &format!("{reason:?}"), killed);
        assert_eq!(reason, DisconnectReason::PeerClosed);
    }
}

pub fn a_write_towards_a_killed_peer_ends_with_its_channel<R: Rig>() {
    let source = region(4096);
    let (mut end, child) = spawn::<R>(Role::Echoes);
    let key = end.granted();
    let span = [source.span(0, 4096).unwrap()];
    let killed = Instant::now();
    child.kill();
    // Some go into the void; then all are refused.
    while !matches!(end.write(&span, at(key, 0), None, None), Err(PostError::Closed)) {
        assert!(killed.elapsed() < NOTICED_WITHIN, "{:?}", killed.elapsed());
        end.poll();
    }
    let (reason, _) = end.ended();
    report(&format!("{}: written to a killed peer", R::NAME), &format!("{reason:?}"), killed);
    end.poll();
    assert!(end.seen.is_empty(), "{:?}", end.seen);
}
