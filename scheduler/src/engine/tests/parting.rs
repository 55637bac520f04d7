//! The scheduler dies, or sleeps, while members leave.

use super::losing::{come_again, declared, known_in, messages, next_after, rig_of};
use super::*;
use proto_common::message::{CheckpointNews, Resume};

/// Every worker has left while a checkpoint was under way, which the job waited for, and then the scheduler dies, or sleeps.
#[test]
fn the_next_scheduler_ends_a_job_that_waited_for_its_last_checkpoint_only() {
    for (sleeps, is_told, servers) in
        [(false, true, 2), (true, true, 2), (false, false, 2), (false, false, 1)]
    {
        let mut before = rig_of(1, WorkerLoss::Stop);
        declared(&mut before);
        before.say(server(0), ToScheduler::Checkpoint(CheckpointNews::Begun { round: 5 }));
        before.say(worker(0), ToScheduler::Goodbye);
        let commands = before.say(worker(1), ToScheduler::Goodbye);
        assert!(before.engine.saving.is_some());
        let told = messages(&commands).into_iter().find_map(|message| match message {
            FromScheduler::Roster { left, .. } => Some(left.clone()),
            _ => None,
        });
        let left = told.expect("servers know that nobody is left");
        assert_eq!(left, [Rank(0), Rank(1)]);
        let mut resume = known_in(&before);
        resume.members.retain(|member| member.id.role == Role::Server);
        let resume = Resume { left, ..resume };
        let mut rig = next_after(&before);
        if sleeps {
            before.engine.config.shape.scheduler_ms = 10 * SILENCE_MS;
            before.engine.handle(before.now_ms + 100 * SILENCE_MS, Input::Tick);
            before.now_ms += 100 * SILENCE_MS;
            rig = before;
        }
        // Units do not say that there was one before, and a server may have been told of the end, and be gone.
        rig.engine.config.resume = is_told;
        let mut commands = come_again(&mut rig, server(0), &resume);
        commands.extend(if servers > 1 {
            come_again(&mut rig, server(1), &resume)
        } else {
            rig.wait_until(SILENCE_MS)
        });
        let is_done = matches!(&rig.engine.phase, Phase::Ending { outcome: Outcome::Done { .. }, .. });
        assert!(is_done, "{sleeps}: {:?}", rig.engine.phase);
        assert!(messages(&commands).iter().any(|message| matches!(message, FromScheduler::Shutdown { .. })));
    }
}

/// The scheduler dies between what it tells the others and its answer to who leaves.
#[test]
fn whose_goodbye_was_not_confirmed_has_left_before_anybody_is_missed() {
    let mut before = rig_of(0, WorkerLoss::Wait);
    declared(&mut before);
    let older = Resume { leaves: true, ..known_in(&before) };
    before.say(worker(1), ToScheduler::Goodbye);
    let known = known_in(&before);
    let members = known.members.iter().filter(|member| member.id != worker(1)).cloned().collect();
    let newest = Resume { members, left: vec![Rank(1)], ..known };
    // The others know that it has left.
    let mut rig = next_after(&before);
    for id in [server(0), server(1), worker(0)] {
        come_again(&mut rig, id, &newest);
    }
    rig.wait_until(SILENCE_MS);
    let register = Register {
        resume: Some(Resume { rank: Rank(1), ..older.head() }),
        ..register(Role::Worker, connection(worker(1)).0 + 1)
    };
    let late = rig.say(worker(1), ToScheduler::Register(register.clone()));
    assert_eq!(late, [goodbye_ack(worker(1)), close(worker(1))], "it has not come before all others had");
    let stays = Resume { leaves: false, ..older.head() };
    let stays = rig.say(worker(1), ToScheduler::Register(Register { resume: Some(stays), ..register }));
    assert!(matches!(only(&stays), FromScheduler::Refused(_)), "{stays:?}");
    let mut rig = next_after(&before);
    come_again(&mut rig, worker(1), &older);
    come_again(&mut rig, server(0), &newest);
    come_again(&mut rig, server(1), &newest);
    let commands = come_again(&mut rig, worker(0), &newest);
    let gone = [goodbye_ack(worker(1)), close(worker(1))];
    assert!(commands.windows(2).any(|two| two == gone), "{commands:?}");
    assert_eq!(rig.engine.phase, Phase::Running);
    // The last one: servers have heard of the end, and are gone.
    let mut rig = next_after(&before);
    come_again(&mut rig, worker(0), &Resume { leaves: true, ..newest });
    let commands = rig.wait_until(SILENCE_MS);
    assert_eq!(rig.engine.take_notes(), [Note::Left(worker(0))]);
    let is_done = matches!(
        &rig.engine.phase,
        Phase::Ending { outcome: Outcome::Done { .. }, .. } | Phase::Ended { outcome: Outcome::Done { .. } }
    );
    assert!(is_done, "{:?}", rig.engine.phase);
    assert!(commands.contains(&goodbye_ack(worker(0))), "{commands:?}");
}

/// A drained server that the others know as gone, and one of which they have not heard.
#[test]
fn a_drained_servers_goodbye_is_confirmed_by_the_next_scheduler() {
    let mut before = rig_of(0, WorkerLoss::Wait);
    declared(&mut before);
    let older = Resume { leaves: true, ..known_in(&before) };
    let known = known_in(&before);
    let members = known.members.iter().filter(|member| member.id != server(1)).cloned().collect();
    let epoch = known.epoch.next();
    let newest = Resume { members, epoch, ..known };
    let mut rig = next_after(&before);
    come_again(&mut rig, server(1), &older);
    for id in [server(0), worker(0), worker(1)] {
        let commands = come_again(&mut rig, id, &newest);
        let is_answered = commands.contains(&goodbye_ack(server(1)));
        assert_eq!(is_answered, id == worker(1), "when all have come: {commands:?}");
    }
}
