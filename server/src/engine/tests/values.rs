//! Rounds whose values do not fit their type: who is told, and what stays as it was.

use super::*;

/// Workers on one chunk of integers, of key 1.
fn rig(workers: u32) -> Rig {
    let mut rig = Rig::new(config(workers));
    rig.engine = LaneEngine::new(rig.config);
    rig.engine.assign(Epoch { term: 1, counter: 1 }, &[ChunkSpec { dtype: Dtype::I32, ..spec(1) }]);
    (0..workers).for_each(|rank| rig.connect(rank));
    rig
}

fn int(block: Block) -> Block {
    Block { dtype: Dtype::I32, ..block }
}

impl Rig {
    fn finished(&mut self, verdict: Verdict) -> Vec<Command> {
        let mut out = Commands::default();
        self.engine.finished(0, verdict, &mut out);
        out.list
    }

    fn sorted(&mut self) -> Vec<Answer> {
        let mut answers = self.flush();
        answers.sort_by_key(|answer| (answer.rank, answer.operation));
        answers
    }
}

#[test]
fn nobody_is_told_before_storage_has_judged() {
    let mut rig = rig(2);
    rig.send(0, &[int(push(1, 1))]);
    let commands = rig.send(1, &[int(push(1, 1)), int(pull(2, 0)), int(push(3, 2))]);
    assert!(
        matches!(commands[..], [Command::Finish { round: 1, .. }, Command::Spill { .. }]),
        "{commands:?}"
    );
    assert_eq!((rig.flush(), rig.version()), (vec![], 0));
    let commands = rig.finished(Verdict::Fits);
    assert!(matches!(
        commands[..],
        [Command::Land { buffer: 0, .. }, Command::Reduce { addend: Addend { onto: Onto::Nothing, .. }, .. }]
    ));
    assert_eq!(rig.sorted(), [done(0, 1, 1), done(1, 1, 1), done(1, 2, 1)]);
    assert_eq!(rig.finished(Verdict::BadValue), [], "an answer that nobody asked for");
    assert_eq!(rig.version(), 1);
}

#[test]
fn a_bad_round_is_told_to_its_contributors_and_leaves_the_weights() {
    let mut rig = rig(2);
    rig.send(0, &[int(push_pull(1, 1))]);
    rig.send(1, &[int(push(1, 1)), int(pull(2, 1))]);
    let commands = rig.finished(Verdict::BadValue);
    assert_eq!(commands, [land(1, 0)], "a pull is of the weights in force, whichever round made them");
    let bad = |rank, operation| answer(rank, operation, Status::BadValue, 1);
    assert_eq!(rig.sorted(), [bad(0, 1), bad(1, 1), done(1, 2, 1)]);
    assert_eq!(rig.engine.stats().bad_rounds, 1);

    // Somebody reads buffer 0, so the next round would have gone to the other one.
    rig.send(0, &[int(push(2, 2))]);
    let commands = rig.send(1, &[int(push(3, 2))]);
    assert!(matches!(commands[..], [Command::Finish { round: 2, old: 0, into: 1, .. }]), "{commands:?}");
    rig.finished(Verdict::BadValue);
    rig.flush();
    rig.send(0, &[int(push(3, 3))]);
    let commands = rig.send(1, &[int(push_pull(4, 3))]);
    assert!(matches!(commands[..], [Command::Finish { round: 3, old: 0, into: 1, .. }]), "{commands:?}");
    assert_eq!(rig.finished(Verdict::Fits), [land(1, 1)]);
    assert_eq!(rig.sorted(), [done(0, 3, 3), done(1, 4, 3)]);
    assert_eq!(rig.engine.stats().rounds, 3);
}

#[test]
fn a_replay_is_told_how_its_round_ended() {
    let mut rig = rig(1);
    for (round, verdict) in (1..).zip([Verdict::Fits, Verdict::BadValue, Verdict::Fits, Verdict::BadValue]) {
        rig.send_wanting(0, 2, &[int(push(round, round))]);
        rig.finished(verdict);
        rig.flush();
    }
    rig.send_wanting(0, 4, &[1, 2, 3, 4].map(|round| int(push(round, round))));
    let statuses: Vec<Status> = rig.flush().into_iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [Status::Done, Status::BadValue, Status::Done, Status::BadValue]);
    for round in 5..80 {
        rig.send_wanting(0, 2, &[int(push(round, round))]);
        rig.finished(Verdict::Fits);
        rig.flush();
    }
    rig.send_wanting(0, 4, &[int(push(2, 2))]);
    assert_eq!(rig.flush(), [done(0, 2, 79)], "what is long over is not kept");
}

#[test]
fn a_dynamic_chunk_keeps_its_length_with_its_weights() {
    let mut rig = rig(1);
    let dynamic = ChunkSpec { dtype: Dtype::I32, dynamic: true, optimizer: Optimizer::assign(), ..spec(2) };
    rig.engine.assign(Epoch { term: 1, counter: 2 }, &[dynamic]);
    let of = |block: Block, bytes| Block { id: dynamic.id, bytes, ..int(block) };
    for (round, bytes, verdict) in [(1, 12, Verdict::Fits), (2, 8, Verdict::BadValue)] {
        rig.send_wanting(0, 2, &[of(push(round, round), bytes)]);
        rig.engine.finished(1, verdict, &mut Commands::default());
        rig.flush();
    }
    rig.send_wanting(0, 2, &[of(pull(3, 2), 0)]);
    let landed = rig.flush_blocks()[0].1.block.landing;
    assert_eq!(landed.map(|landing| landing.bytes), Some(12));
}

#[test]
fn an_initial_value_comes_too_late_for_a_round_that_waits_for_its_verdict() {
    let mut rig = rig(1);
    rig.send_wanting(0, 4, &[int(push(1, 1))]);
    assert_eq!(rig.send(0, &[int(init(2, BYTES))]), [], "nothing is written");
    assert_eq!(rig.sorted(), [answer(0, 2, Status::Refused, 0)]);
    rig.finished(Verdict::Fits);
    assert_eq!(rig.sorted(), [done(0, 1, 1)]);
}
