//! Workers that come between rounds.

use super::*;

/// Three workers, of which the last one has died after two rounds.
fn without_one() -> Rig {
    let mut rig = Rig::new(EngineConfig { worker_loss: WorkerLoss::Continue, inbox_slots: 32, ..config(3) });
    rig.roster(1, &[0, 1, 2], &[]);
    for number in 1..=2 {
        for rank in [0, 1, 2] {
            rig.send(rank, &[push(number, number)]);
        }
    }
    rig.flush();
    rig.again(2);
    rig.roster(2, &[0, 1], &[]);
    rig.roster(3, &[0, 1, 2], &[]);
    rig.connect(2);
    rig
}

#[test]
fn a_worker_that_comes_counts_from_the_round_that_is_named() {
    let mut rig = without_one();
    rig.send(0, &[push(3, 3)]);
    assert_eq!(rig.ask_rounds(2), [(1, 4)], "round 3 is under way, and goes on without it");
    assert!(matches!(rig.send(1, &[push(3, 3)])[..], [Command::Finish { contributors: 2, .. }]));
    assert_eq!(rig.send(0, &[push(4, 4)]), [spill(rig.at(), 0)], "round 4 is not begun");
    assert_eq!(rig.send(1, &[push(4, 4)]), [spill(rig.at(), 1)]);
    rig.flush();
    let commands = rig.count_from(2, &[(1, 5)]);
    assert!(matches!(commands[1], Command::Finish { round: 4, contributors: 2, .. }), "{commands:?}");
    rig.send(2, &[push(1, 5)]);
    rig.send(1, &[push(5, 5)]);
    let commands = rig.send(0, &[push(5, 5)]);
    assert!(matches!(commands[..], [_, Command::Finish { round: 5, contributors: 3, .. }]), "{commands:?}");
}

#[test]
fn before_its_round_is_named_it_is_sent_away_and_before_that_round_it_is_late() {
    let mut rig = without_one();
    rig.send(2, &[push(1, 4)]);
    assert_eq!(rig.flush()[0].status, Status::Retry);
    assert_eq!(rig.ask_rounds(2), [(1, 4)]);
    rig.count_from(2, &[(1, 4)]);
    rig.send(2, &[push(1, 3)]);
    assert_eq!(rig.flush(), [], "round 3 goes on without it");
    assert_eq!(rig.send(2, &[push(2, 4)]), [spill(rig.at(), 0)]);
    rig.send(0, &[push(3, 3)]);
    assert!(matches!(rig.send(1, &[push(3, 3)])[..], [Command::Finish { contributors: 2, .. }]));
    assert_eq!(rig.flush(), [answer(2, 1, Status::Late, 3), done(0, 3, 3), done(1, 3, 3)]);
}

#[test]
fn whoever_waits_for_a_round_that_is_not_begun_is_told_for_whom() {
    let mut rig = without_one();
    rig.ask_rounds(2);
    rig.send(0, &[push(3, 3)]);
    rig.send(1, &[push(3, 3), push(4, 4)]);
    rig.send(0, &[push(4, 4)]);
    rig.flush();
    let late = |rank| Answer { missing: vec![2], ..answer(rank, 4, Status::DeadlineWaiting, 3) };
    assert_eq!(rig.tick(1_000), [late(0), late(1)]);
}

#[test]
fn a_question_that_is_asked_again_has_the_same_answer() {
    let mut rig = without_one();
    rig.send(0, &[push(3, 3)]);
    assert_eq!(rig.ask_rounds(2), [(1, 4)]);
    rig.send(1, &[push(3, 3)]);
    assert_eq!((rig.version(), rig.ask_rounds(2)), (3, vec![(1, 4)]), "round 4 is not begun");
    rig.count_from(2, &[(1, 6)]);
    assert_eq!(rig.ask_rounds(2), [(1, 6)], "a scheduler that was restarted hears what the last one said");
}

#[test]
fn one_that_dies_before_it_counts_holds_nobody_up() {
    let mut rig = without_one();
    rig.ask_rounds(2);
    rig.send(0, &[push(3, 3)]);
    rig.send(1, &[push(3, 3)]);
    rig.flush();
    rig.send(0, &[push(4, 4)]);
    rig.send(1, &[push(4, 4)]);
    assert_eq!(rig.version(), 3);
    rig.down(Rank(2));
    rig.roster(4, &[0, 1], &[]);
    assert_eq!(rig.version(), 4);
    rig.flush();
    assert_eq!(rig.count_from(2, &[(1, 5)]), [], "what was decided since is nobody's");
    rig.send(0, &[push(5, 5)]);
    rig.send(1, &[push(5, 5)]);
    assert_eq!(rig.version(), 5);
}

#[test]
fn of_a_tensor_that_is_new_nothing_is_begun_before_it_is_said_who_counts() {
    let mut rig = without_one();
    rig.ask_rounds(2);
    rig.engine.assign(Epoch { term: 1, counter: 4 }, &[spec(2)]);
    let to = |block| Block { id: ChunkId::new(2, 0), ..block };
    let commands = rig.send(0, &[to(push(1, 1))]);
    assert!(matches!(commands[..], [Command::Spill { chunk: 1, .. }]), "{commands:?}");
    assert_eq!(rig.ask_rounds(2), [(1, 4), (2, 1)]);
    let commands = rig.count_from(2, &[(1, 4), (2, 1)]);
    assert!(matches!(commands[..], [Command::Reduce { chunk: 1, .. }]), "{commands:?}");
    rig.send(1, &[to(push(1, 1))]);
    let commands = rig.send(2, &[to(push(1, 1))]);
    assert!(matches!(commands[..], [Command::Finish { contributors: 3, .. }]), "{commands:?}");
}

#[test]
fn a_server_that_comes_later_is_told_who_counts_from_when() {
    let mut rig = Rig::new(EngineConfig { worker_loss: WorkerLoss::Continue, ..config(2) });
    rig.roster(9, &[0, 1], &[]);
    assert_eq!(rig.count_from(1, &[(1, 3)]), []);
    for round in 1..=2 {
        assert!(matches!(rig.send(0, &[push(round, round)])[..], [Command::Finish { contributors: 1, .. }]));
    }
    rig.send(0, &[push(3, 3)]);
    assert_eq!(rig.version(), 2);
    rig.send(1, &[push(1, 3)]);
    assert_eq!(rig.version(), 3);
}

#[test]
fn an_image_of_before_it_came_does_not_take_back_from_where_it_counts() {
    let mut rig = Rig::new(EngineConfig { worker_loss: WorkerLoss::Continue, ..config(2) });
    let bounded = ChunkSpec { mode: Mode::Bounded(1), ..spec(2) };
    rig.engine.assign(Epoch { term: 1, counter: 1 }, &[bounded]);
    let to = |block| Block { id: ChunkId::new(2, 0), ..block };
    rig.roster(1, &[0], &[]);
    rig.roster(2, &[0, 1], &[]);
    rig.connect(1);
    let (before, _) = rig.engine.state(1, false).expect("nothing is under way");
    rig.ask_rounds(1);
    rig.count_from(1, &[(1, 1), (2, 9)]);
    rig.engine.restore(1, &before, 0).expect("it is of this chunk");
    rig.send(0, &[to(push(1, 1)), to(push(2, 2)), to(push(3, 3))]);
    assert_eq!(rig.flush().len(), 3, "worker 1 is at its eighth contribution, not before its first");
}

/// A server that came while others were asked: in its first roster that worker is there, and so counts.
#[test]
fn a_copy_of_before_it_came_hears_from_where_it_counts_where_it_counted_from_the_start() {
    let rig = || Rig::new(EngineConfig { worker_loss: WorkerLoss::Continue, ..config(2) });
    let bounded = ChunkSpec { mode: Mode::Bounded(1), ..spec(2) };
    let mut before = rig();
    before.engine.assign(Epoch { term: 1, counter: 1 }, &[bounded]);
    let (image, _) = before.engine.state(1, false).expect("nothing is under way");
    let mut rig = rig();
    let roles = |rig: &mut Rig, counter, role| {
        let mut out = Commands::default();
        rig.engine.roles(Epoch { term: 1, counter }, &[(bounded, role)], &mut out);
    };
    roles(&mut rig, 2, Role::Copy { of: Rank(1) });
    rig.engine.restore(1, &image, 0).expect("it is of this chunk");
    rig.roster(1, &[0, 1], &[]);
    rig.connect(1);
    rig.count_from(1, &[(2, 9)]);
    roles(&mut rig, 3, Role::Primary { backup: None, seeding: None });
    let to = |block| Block { id: ChunkId::new(2, 0), ..block };
    let header = BatchHeader { epoch: Epoch { term: 1, counter: 3 }, ..rig.header(0) };
    let slot = rig.workers[0].credits.pop_front().expect("it has sent nothing");
    rig.deliver(0, slot, &header, &[to(push(1, 1)), to(push(2, 2)), to(push(3, 3))], &[]);
    let answers = rig.flush();
    assert!(answers.len() == 3 && answers.iter().all(|answer| answer.status == Status::Done), "{answers:?}");
}

#[test]
fn in_a_bounded_tensor_it_begins_where_the_slowest_is() {
    let mut rig = Rig::new(EngineConfig { worker_loss: WorkerLoss::Continue, ..config(3) });
    let bounded = ChunkSpec { mode: Mode::Bounded(1), ..spec(2) };
    rig.engine.assign(Epoch { term: 1, counter: 1 }, &[bounded]);
    let to = |block| Block { id: ChunkId::new(2, 0), ..block };
    rig.roster(1, &[0, 1], &[]);
    rig.send(0, &[to(push(1, 1)), to(push(2, 2))]);
    rig.send(1, &[to(push(1, 1))]);
    rig.flush();
    rig.roster(2, &[0, 1, 2], &[]);
    rig.connect(2);
    assert_eq!(rig.ask_rounds(2), [(1, 2), (2, 2)]);
    rig.send(0, &[to(push(3, 3))]);
    assert_eq!(rig.flush(), [], "it is two ahead of worker 1");
    rig.send(1, &[to(push(2, 2))]);
    assert_eq!(rig.flush().len(), 2, "nothing delays the job for the one that comes");
    rig.count_from(2, &[(1, 2), (2, 2)]);
    rig.send(0, &[to(push(4, 4))]);
    rig.send(1, &[to(push(3, 3))]);
    let late = rig.flush();
    assert_eq!(
        late.iter().map(|answer| answer.rank).collect::<Vec<_>>(),
        [0; 0],
        "worker 2 has made one less"
    );
    rig.send(2, &[to(push(1, 2)), to(push(2, 3))]);
    assert_eq!(rig.flush().len(), 4);
}

#[test]
fn a_life_that_the_scheduler_does_not_know_gets_no_channel() {
    let mut rig = without_one();
    assert!(rig.engine.admits(Rank(2), rig.lives[2]) && !rig.engine.admits(Rank(2), life(2)));
    rig.roster(4, &[0, 1], &[]);
    assert!(!rig.engine.admits(Rank(2), rig.lives[2]) && !rig.engine.admits(Rank(7), life(7)));
}
