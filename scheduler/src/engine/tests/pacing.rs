//! Pace and stragglers as heartbeats tell of them.

use super::*;
use daemon::status::StragglerStatus;

/// A heartbeat of everybody: workers' rounds, and whom servers wait for.
fn beat(rig: &mut Rig, servers: u32, rounds: &[u64], waits_for: &[u32]) {
    for rank in 0..servers {
        let on = waits_for.iter().copied().map(Rank).collect();
        let oldest =
            Wait { what: "a round".into(), of: None, waited_ms: 5, cause: WaitCause::Contributions, on };
        let report = MemberReport { waits: vec![oldest], ..MemberReport::default() };
        rig.say(server(rank), ToScheduler::Heartbeat(report));
    }
    for (rank, round) in (0..).zip(rounds) {
        let report = MemberReport { round: *round, ..MemberReport::default() };
        rig.say(worker(rank), ToScheduler::Heartbeat(report));
    }
}

#[test]
fn a_worker_that_servers_wait_for_is_a_straggler_though_nobody_is_behind() {
    let mut rig = Rig::running(2, 4);
    for look in 0..8u64 {
        rig.now_ms = look * 500;
        // Now and then another one is last.
        let waits_for: &[u32] = if look == 3 { &[1] } else { &[2] };
        beat(&mut rig, 2, &[look * 5; 4], waits_for);
    }
    let status = rig.engine.status(rig.now_ms);
    assert_eq!(status.rounds_per_second, 10.0);
    let late = StragglerStatus { worker: Rank(2), behind: 0, waited_for_percent: 87 };
    assert_eq!(status.stragglers, [late]);
    let percents: Vec<u32> = status.members.iter().map(|member| member.waited_for_percent).collect();
    assert_eq!(percents, [0, 0, 0, 12, 87, 0], "servers first, for whom nobody is waited like this");
}

#[test]
fn one_that_stands_still_is_behind_and_heartbeats_at_other_times_are_not() {
    let mut rig = Rig::running(1, 3);
    for look in 0..10u64 {
        rig.now_ms = look * 500;
        beat(&mut rig, 1, &[look * 50, 7.min(look * 50)], &[]);
        // The third one's heartbeats come 200 ms later, when it is as far as all are then.
        rig.now_ms += 200;
        let report = MemberReport { round: look * 50 + 20, ..MemberReport::default() };
        rig.say(worker(2), ToScheduler::Heartbeat(report));
    }
    let status = rig.engine.status(rig.now_ms);
    let late: Vec<u32> = status.stragglers.iter().map(|late| late.worker.0).collect();
    assert_eq!(late, [1], "{:?}", status.stragglers);
    // What it made at the beginning counts a little.
    assert_eq!(status.stragglers[0].behind, 462);
}

#[test]
fn what_an_idle_worker_has_done_since_its_rare_heartbeat_is_not_behind() {
    let mut rig = Rig::running(1, 2);
    (rig.engine.config.shape.heartbeat_ms, rig.engine.config.shape.silence_ms) = (500, 10_000);
    for look in 0..3u64 {
        rig.now_ms = look * 500;
        beat(&mut rig, 1, &[7, 7], &[]);
    }
    // Both go on at once, and only worker 0 has said so.
    for look in 3..6u64 {
        rig.now_ms = look * 500;
        beat(&mut rig, 1, &[7 + 50 * (look - 2)], &[]);
    }
    assert_eq!(rig.engine.status(rig.now_ms).stragglers, []);
    // It says that it has done nothing.
    let report = MemberReport { round: 7, ..MemberReport::default() };
    rig.say(worker(1), ToScheduler::Heartbeat(report));
    for look in 6..9u64 {
        rig.now_ms = look * 500;
        beat(&mut rig, 1, &[7 + 50 * (look - 2)], &[]);
    }
    let status = rig.engine.status(rig.now_ms);
    let late: Vec<(u32, u64)> = status.stragglers.iter().map(|late| (late.worker.0, late.behind)).collect();
    assert_eq!(late, [(1, 150)], "as of what it said");
}

#[test]
fn those_who_wait_for_a_silent_worker_are_not_behind_it() {
    let mut rig = Rig::running(1, 3);
    for look in 0..6u64 {
        rig.now_ms = look * 500;
        beat(&mut rig, 1, &[look * 20; 3], &[]);
    }
    // Worker 2 is stopped; the others come as far as the round that it lacks.
    for look in 6..12u64 {
        rig.now_ms = look * 500;
        beat(&mut rig, 1, &[101; 2], &[2]);
    }
    let status = rig.engine.status(rig.now_ms);
    let late: Vec<(u32, u64)> = status.stragglers.iter().map(|late| (late.worker.0, late.behind)).collect();
    assert_eq!(late, [(2, 0)], "servers wait for it: {:?}", status.stragglers);
}

#[test]
fn few_rounds_and_one_worker_are_no_reason() {
    let mut rig = Rig::running(1, 1);
    for look in 0..4u64 {
        rig.now_ms = look * 500;
        beat(&mut rig, 1, &[look], &[0]);
    }
    assert_eq!(rig.engine.status(rig.now_ms).stragglers, []);
    let mut rig = Rig::running(1, 2);
    rig.now_ms = 500;
    beat(&mut rig, 1, &[2, 0], &[]);
    assert_eq!(rig.engine.status(rig.now_ms).stragglers, [], "two rounds behind");
    rig.now_ms = 1_000;
    beat(&mut rig, 1, &[3, 0], &[]);
    assert_eq!(rig.engine.status(rig.now_ms).stragglers.len(), 1, "three");
}
