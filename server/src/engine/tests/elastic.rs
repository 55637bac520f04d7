//! Workers that go: in good order, or by dying, where rounds wait for them and where they go on.

use super::*;
use proto_common::optimizer::Lamb;

fn going_on(workers: u32) -> EngineConfig {
    EngineConfig { worker_loss: WorkerLoss::Continue, ..config(workers) }
}

fn waiting(workers: u32) -> EngineConfig {
    EngineConfig { worker_loss: WorkerLoss::Wait, ..config(workers) }
}

fn finished_by(commands: &[Command]) -> Vec<(u64, u32)> {
    let finish = |command: &Command| match command {
        Command::Finish { round, contributors, .. } => Some((*round, *contributors)),
        _ => None,
    };
    commands.iter().filter_map(finish).collect()
}

#[test]
fn after_a_goodbye_rounds_go_on_without_the_worker() {
    let mut rig = Rig::new(config(3));
    rig.roster(1, &[0, 1, 2], &[]);
    for rank in [0, 1, 2] {
        rig.send(rank, &[push(1, 1)]);
    }
    rig.send(2, &[push(2, 2)]);
    rig.send(0, &[push(2, 2)]);
    rig.down(Rank(1));
    let commands = rig.roster(2, &[0, 2], &[1]);
    assert_eq!(finished_by(&commands), [(2, 2)], "what was held for its turn ends the round: {commands:?}");
    rig.send(0, &[push(3, 3)]);
    let commands = rig.send(2, &[push(3, 3)]);
    assert_eq!(
        commands[0],
        Command::Finish {
            chunk: 0,
            round: 3,
            last: Some(onto_sum(rig.at())),
            old: 0,
            into: 0,
            contributors: 2
        }
    );
}

#[test]
fn an_open_round_goes_on_with_what_has_come_when_a_worker_dies() {
    let mut rig = Rig::new(going_on(3));
    rig.roster(1, &[0, 1, 2], &[]);
    rig.send(0, &[push(1, 1)]);
    rig.send(1, &[push(1, 1)]);
    rig.down(Rank(2));
    let finish = Command::Finish { chunk: 0, round: 1, last: None, old: 0, into: 0, contributors: 2 };
    assert_eq!(rig.roster(2, &[0, 1], &[]), [finish]);
    assert_eq!(rig.flush(), [done(0, 1, 1), done(1, 1, 1)]);
    assert_eq!(rig.roster(1, &[0, 1, 2], &[]), [], "an older roster");
    rig.send(0, &[push(2, 2)]);
    assert_eq!(finished_by(&rig.send(1, &[push(2, 2)])), [(2, 2)]);
}

#[test]
fn what_the_dead_had_given_counts_and_what_was_only_in_its_memory_does_not() {
    let mut rig = Rig::new(going_on(3));
    rig.roster(1, &[0, 1, 2], &[]);
    rig.send(2, &[push(1, 1), push(2, 2)]);
    rig.down(Rank(2));
    assert_eq!(rig.roster(2, &[0, 1], &[]), []);
    rig.send(0, &[push(1, 1)]);
    assert_eq!(finished_by(&rig.send(1, &[push(1, 1)])), [(1, 3)]);
    rig.send(0, &[push(2, 2)]);
    assert_eq!(finished_by(&rig.send(1, &[push(2, 2)])), [(2, 3)]);
    rig.send(0, &[push(3, 3)]);
    assert_eq!(finished_by(&rig.send(1, &[push(3, 3)])), [(3, 2)]);

    let mut rig = Rig::new(going_on(2));
    rig.roster(1, &[0, 1], &[]);
    let there = Block { data: BlockData::ByReference { region: REGION, offset: 0 }, ..push(1, 1) };
    rig.send(0, &[there]);
    rig.down(Rank(0));
    assert_eq!(rig.roster(2, &[1], &[]), []);
    let commands = rig.send(1, &[push(1, 1)]);
    assert_eq!(finished_by(&commands), [(1, 1)], "{commands:?}");
}

#[test]
fn a_contribution_that_waits_in_memory_for_the_second_is_the_last_one_then() {
    let mut rig = Rig::with(going_on(2), true);
    rig.roster(1, &[0, 1], &[]);
    let there = Block { data: BlockData::ByReference { region: REGION, offset: 0 }, ..push(1, 1) };
    assert_eq!(rig.send(0, &[there]), []);
    rig.down(Rank(1));
    let from = Source::Worker { peer: Rank(0), region: REGION, offset: 0, bytes: BYTES };
    let finish = Command::Finish { chunk: 0, round: 1, last: None, old: 0, into: 0, contributors: 1 };
    assert_eq!(rig.roster(2, &[0], &[]), [reduce(from, Onto::Nothing), finish]);
    assert_eq!(rig.engine.stats().in_place, 1);
}

#[test]
fn where_the_dead_are_waited_for_a_new_life_may_repeat_what_counts_already() {
    let mut rig = Rig::new(waiting(2));
    rig.roster(1, &[0, 1], &[]);
    for number in 1..=2 {
        rig.send(0, &[push(number, number)]);
        rig.send(1, &[push(number, number)]);
    }
    rig.send(0, &[push(3, 3)]);
    assert_eq!(rig.send(1, &[pull(3, 2)]), [land(1, 0)]);
    rig.landed(1, 0);
    rig.flush();
    rig.again(0);
    assert_eq!(rig.roster(2, &[1], &[]), []);
    assert_eq!(rig.send(1, &[push(4, 3)]).len(), 1, "the earlier life's contribution stays");
    assert_eq!((rig.version(), rig.flush()), (3, vec![done(1, 4, 3)]));
    rig.send(1, &[push(5, 4)]);
    let late = Answer { missing: vec![0], ..answer(1, 5, Status::DeadlineWaiting, 3) };
    assert_eq!(rig.tick(1_000), [late], "it is named, and waited for");
    rig.roster(3, &[0, 1], &[]);
    rig.connect(0);
    assert_eq!(rig.send(0, &[push(1, 3)]), [], "numbers begin anew, rounds do not");
    let commands = rig.send(0, &[push(2, 4)]);
    assert_eq!(finished_by(&commands), [(4, 2)]);
    assert_eq!(rig.flush(), [done(0, 1, 3), done(0, 2, 4)]);
    assert_eq!(rig.engine.stats().duplicates, 1);
}

#[test]
fn views_of_a_life_that_is_over_hold_nothing_up() {
    let mut rig = Rig::with(going_on(2), true);
    rig.roster(1, &[0, 1], &[]);
    let data = BlockData::ByReference { region: REGION, offset: 0 };
    let shown = |block| Block { view: true, landing: None, data, ..block };
    for rank in [0, 1] {
        rig.send(rank, &[shown(push_pull(1, 1))]);
    }
    for rank in [0, 1] {
        rig.send(rank, &[shown(push_pull(2, 2))]);
    }
    rig.flush();
    let next = Block { reading: Reading { from: Operation(3), ..Reading::default() }, ..push(3, 3) };
    rig.send(0, &[next]);
    rig.send(1, &[push(3, 3)]);
    assert_eq!(rig.version(), 2, "worker 1 reads both buffers");
    rig.down(Rank(1));
    assert_eq!(finished_by(&rig.roster(2, &[0], &[])), [(3, 2)]);
}

#[test]
fn with_backup_workers_one_that_is_gone_is_one_of_those_not_waited_for() {
    let mut rig = Rig::new(EngineConfig { deterministic: false, ..going_on(4) });
    let spare = ChunkSpec { backup_workers: 1, ..spec(2) };
    rig.engine.assign(Epoch { term: 1, counter: 1 }, &[spare]);
    let to = |block| Block { id: ChunkId::new(2, 0), ..block };
    rig.roster(1, &[0, 1, 2, 3], &[]);
    rig.send(0, &[to(push(1, 1))]);
    rig.send(1, &[to(push(1, 1))]);
    rig.down(Rank(3));
    assert_eq!(rig.roster(2, &[0, 1, 2], &[]), [], "three are needed still, and three are there");
    rig.down(Rank(2));
    let commands = rig.roster(3, &[0, 1], &[]);
    assert_eq!(finished_by(&commands), [(1, 2)], "{commands:?}");
}

#[test]
fn in_a_bounded_tensor_the_slowest_is_one_that_is_there() {
    let mut rig = Rig::new(going_on(3));
    let bounded = ChunkSpec { mode: Mode::Bounded(1), ..spec(2) };
    rig.engine.assign(Epoch { term: 1, counter: 1 }, &[bounded]);
    let to = |block| Block { id: ChunkId::new(2, 0), ..block };
    rig.roster(1, &[0, 1, 2], &[]);
    rig.send(1, &[to(push(1, 1)), to(push(2, 2))]);
    rig.send(0, &[to(push(1, 1)), to(push(2, 2)), to(push(3, 3))]);
    let ahead = |answers: &[Answer]| answers.iter().map(|a| (a.rank, a.operation)).collect::<Vec<_>>();
    assert_eq!(ahead(&rig.flush()), [(1, 1), (0, 1)], "worker 2 has made none");
    rig.down(Rank(2));
    rig.roster(2, &[0, 1], &[]);
    assert_eq!(ahead(&rig.flush()), [(0, 2), (0, 3), (1, 2)]);
}

#[test]
fn a_contribution_counts_once_outside_mode_sync_too_whatever_the_life() {
    for mode in [Mode::Async, Mode::Bounded(2)] {
        let mut rig = Rig::new(waiting(1));
        let loose = ChunkSpec { mode, ..spec(2) };
        rig.engine.assign(Epoch { term: 1, counter: 1 }, &[loose]);
        let to = |block| Block { id: ChunkId::new(2, 0), ..block };
        rig.roster(1, &[0], &[]);
        rig.send(0, &[to(push(1, 1)), to(push(2, 2))]);
        rig.again(0);
        rig.roster(2, &[0], &[]);
        rig.connect(0);
        assert_eq!(rig.send(0, &[to(push(1, 2))]), []);
        assert_eq!(rig.send(0, &[to(push(2, 3))]).len(), 1);
        assert_eq!(rig.engine.stats().contributions, 3);
    }
}

#[test]
fn who_comes_again_goes_on_after_what_its_life_before_has_under_way() {
    for mode in [Mode::Async, Mode::Bounded(2)] {
        let mut rig = Rig::new(going_on(2));
        let loose = ChunkSpec { mode, ..spec(2) };
        rig.engine.assign(Epoch { term: 1, counter: 1 }, &[loose]);
        let to = |block| Block { id: ChunkId::new(2, 0), ..block };
        rig.roster(1, &[0, 1], &[]);
        rig.connect(1);
        // Worker 0 reads both buffers: what worker 1 contributes waits.
        rig.send(0, &[to(pull(1, 0))]);
        rig.send(0, &[to(push_pull(2, 1))]);
        rig.flush();
        rig.send(1, &[to(push(1, 1)), to(push(2, 2))]);
        rig.again(1);
        rig.roster(2, &[0], &[]);
        rig.roster(3, &[0, 1], &[]);
        rig.connect(1);
        let of_it = |(key, from): &(u64, u64)| (*key == 2).then_some(*from);
        let from = rig.ask_rounds(1).iter().find_map(of_it);
        assert_eq!(from, Some(3), "{mode}: two are under way");
        rig.count_from(1, &[(1, 1), (2, 3)]);
        rig.engine.landed(Rank(0), 1, 0, &mut Commands::default());
        let version = |rig: &Rig| rig.engine.version(ChunkId::new(2, 0)).map(|version| version.0);
        assert_eq!(version(&rig), Some(3), "{mode}");
        rig.send(1, &[to(push(1, 3))]);
        assert_eq!(version(&rig), Some(4), "{mode}: it is one of its own");
    }
}

#[test]
fn chunks_whose_norms_count_finish_together_without_the_dead() {
    let mut rig = Rig::new(going_on(2));
    let lamb = Optimizer::mean(Lamb::default(), 0.1);
    let specs: Vec<_> =
        (0..2).map(|at| ChunkSpec { id: ChunkId::new(2, at), optimizer: lamb, ..spec(2) }).collect();
    rig.engine.assign(Epoch { term: 1, counter: 1 }, &specs);
    let to = |at, block| Block { id: ChunkId::new(2, at), ..block };
    rig.roster(1, &[0, 1], &[]);
    rig.send(0, &[to(0, push(1, 1))]);
    rig.send(0, &[to(1, push(1, 1))]);
    rig.send(1, &[to(1, push(1, 1))]);
    rig.down(Rank(1));
    let commands = rig.roster(2, &[0], &[]);
    let prepare = Command::Prepare { chunk: 1, round: 1, last: None, old: 0, contributors: 1 };
    assert_eq!(commands[..2], [prepare, Command::Norms { chunks: 1..3 }]);
    assert_eq!(finished_by(&commands), [(1, 1), (1, 2)], "each divides by its own contributors");
}

#[test]
fn nobody_contributes_alone_to_a_round_that_nobody_is_left_for() {
    let mut rig = Rig::new(going_on(2));
    rig.roster(1, &[0, 1], &[]);
    rig.down(Rank(0));
    rig.down(Rank(1));
    assert_eq!(rig.roster(2, &[], &[]), []);
    assert_eq!(rig.version(), 0);
}

#[test]
fn the_initial_value_is_of_the_lowest_rank_that_has_not_left() {
    let mut rig = Rig::new(config(3));
    rig.roster(1, &[0, 1, 2], &[]);
    rig.send(2, &[init(1, 0)]);
    rig.send(1, &[init(1, 0)]);
    assert_eq!(rig.flush(), []);
    rig.down(Rank(0));
    assert_eq!(rig.roster(2, &[1, 2], &[0]), []);
    assert_eq!(rig.flush(), [answer(1, 1, Status::Unset, 0)], "it waited without a value");
    assert!(matches!(rig.send(1, &[init(1, BYTES)])[..], [Command::Init { chunk: 0, .. }]));
    assert_eq!(rig.flush().len(), 2);
    rig.send(2, &[init(2, BYTES)]);
    assert_eq!(rig.flush(), [done(2, 2, 0)], "a second value changes nothing");
}

#[test]
fn a_worker_that_begins_after_the_lower_ranks_have_left_is_asked_for_its_value_at_once() {
    let mut rig = Rig::new(config(3));
    rig.roster(1, &[0, 1, 2], &[]);
    rig.down(Rank(0));
    rig.roster(2, &[1, 2], &[0]);
    rig.send(2, &[init(1, BYTES)]);
    assert_eq!(rig.flush(), [Answer { missing: vec![1], ..answer(2, 1, Status::Retry, 0) }]);
    rig.send(1, &[init(1, 0)]);
    assert_eq!(rig.flush(), [answer(1, 1, Status::Unset, 0)]);
    assert!(matches!(rig.send(1, &[init(1, BYTES)])[..], [Command::Init { chunk: 0, .. }]));
    rig.send(2, &[init(1, 0)]);
    assert_eq!(rig.flush(), [done(1, 1, 0), done(2, 1, 0)]);
}

#[test]
fn no_round_ends_before_the_initial_value_that_a_worker_was_asked_for() {
    let mut rig = Rig::new(config(2));
    rig.roster(1, &[0, 1], &[]);
    let commands = rig.send(1, &[init(1, 0), push(2, 1)]);
    assert!(matches!(commands[..], [Command::Reduce { .. }]), "{commands:?}");
    rig.down(Rank(0));
    assert_eq!(rig.roster(2, &[1], &[0]), [], "the update would be of zeros");
    assert_eq!(rig.flush(), [answer(1, 1, Status::Unset, 0)]);
    assert_eq!(rig.tick(1_000), [Answer { missing: vec![1], ..answer(1, 2, Status::DeadlineWaiting, 0) }]);
    // The value may travel in each way, although the operation was taken before.
    let announced = Block { data: BlockData::Announced { keep: false }, ..init(1, BYTES) };
    assert_eq!(rig.send(1, &[announced]), []);
    assert_eq!(rig.flush(), [answer(1, 1, Status::Granted, 0)]);
    let commands = rig.send(1, &[Block { data: BlockData::Placed, ..init(1, BYTES) }]);
    assert!(
        matches!(commands[..], [Command::Init { .. }, Command::Finish { round: 1, contributors: 1, .. }]),
        "{commands:?}"
    );
    assert_eq!((rig.flush(), rig.version()), (vec![done(1, 1, 1)], 1));
}

#[test]
fn the_initial_value_of_a_worker_that_is_waited_for_is_waited_for() {
    let mut rig = Rig::new(waiting(2));
    rig.roster(1, &[0, 1], &[]);
    rig.send(1, &[init(1, 0)]);
    rig.down(Rank(0));
    assert_eq!(rig.roster(2, &[1], &[]), []);
    assert_eq!(rig.flush(), []);
}
