//! Checkpoints: which version of a chunk is copied, and what waits for that.

use super::*;
use crate::engine::SavingNews;
use proto_common::optimizer::Lamb;

/// One worker, chunks of keys 1 and 2.
fn rig() -> Rig {
    let mut rig = Rig::new(config(1));
    rig.engine = LaneEngine::new(rig.config);
    rig.engine.assign(Epoch { term: 1, counter: 1 }, &[spec(1), spec(2)]);
    rig.connect(0);
    rig
}

fn of(key: u64, block: Block) -> Block {
    Block { id: ChunkId::new(key, 0), ..block }
}

/// What is to be copied next: its index and version.
fn due(rig: &mut Rig) -> Option<(u32, u64)> {
    rig.engine.next_to_save().map(|(index, state, _)| (index, state.version))
}

fn saved(rig: &mut Rig, index: u32) -> (bool, Vec<Command>) {
    let mut out = Commands::default();
    let is_last = rig.engine.saved(index, &mut out);
    (is_last, out.list)
}

fn finished(commands: &[Command]) -> Vec<(u32, u64)> {
    let finish = |command: &Command| match command {
        Command::Finish { chunk, round, .. } => Some((*chunk, *round)),
        _ => None,
    };
    commands.iter().filter_map(finish).collect()
}

#[test]
fn a_version_is_copied_before_the_next_one_is_published() {
    let mut rig = rig();
    rig.engine.savings().begin_every(2);
    for round in [1, 2] {
        let commands = rig.send_wanting(0, 4, &[of(1, push(round, round)), of(2, push(round, round))]);
        assert_eq!(finished(&commands), [(0, round), (1, round)]);
    }
    assert_eq!(rig.engine.savings().next_news(), Some(SavingNews::Begun(2)));
    assert_eq!(due(&mut rig), Some((0, 2)));
    let commands = rig.send_wanting(0, 4, &[of(2, push(3, 3))]);
    assert_eq!(finished(&commands), [], "its second version is to be copied");
    let oldest = rig.engine.oldest(0).expect("it waits");
    assert_eq!((oldest.cause, oldest.on), (WaitCause::Checkpoint, vec![]));
    rig.flush();
    assert_eq!(rig.tick(1_000), [answer(0, 3, Status::DeadlineSaving, 2)]);
    assert_eq!(due(&mut rig), Some((1, 2)), "what holds a round up goes first");
    let (is_last, commands) = saved(&mut rig, 1);
    assert_eq!((is_last, finished(&commands)), (false, vec![(1, 3)]));
    assert_eq!(due(&mut rig), Some((0, 2)));
    assert!(saved(&mut rig, 0).0);
    assert_eq!((rig.engine.saving(), due(&mut rig)), (None, None));
    let commands = rig.send_wanting(0, 4, &[of(1, push(3, 3))]);
    assert_eq!(finished(&commands), [(0, 3)]);
}

#[test]
fn a_chunk_without_contributions_is_copied_once_others_have_gone_on() {
    let mut rig = rig();
    rig.engine.savings().begin_every(2);
    for round in 1..=4 {
        let commands = rig.send_wanting(0, 4, &[of(1, push(round, round))]);
        assert_eq!(finished(&commands), [(0, round)]);
        rig.flush();
        if round == 2 {
            assert!(!saved(&mut rig, 0).0);
        }
        assert_eq!(due(&mut rig), None, "the next one does not begin before this one has ended");
    }
    assert_eq!(rig.engine.savings().next_news(), Some(SavingNews::Begun(2)));
    assert_eq!(rig.engine.savings().next_news(), Some(SavingNews::Passed(2)));
    rig.engine.pass_save(4);
    assert_eq!(due(&mut rig), None, "of another");
    rig.engine.pass_save(2);
    assert_eq!(due(&mut rig), Some((1, 0)));
    assert!(saved(&mut rig, 1).0);
    for round in [5, 6] {
        rig.send_wanting(0, 4, &[of(1, push(round, round))]);
        rig.flush();
    }
    assert_eq!(due(&mut rig), Some((0, 6)));
}

/// The order came a moment after the lane had begun the same round by itself. Without it the second chunk waited for a contribution
/// of the worker that waited for the checkpoint.
#[test]
fn a_worker_that_waits_for_one_that_began_by_itself_is_not_waited_for() {
    let mut rig = rig();
    rig.engine.savings().begin_every(1);
    rig.send_wanting(0, 4, &[of(1, push(1, 1))]);
    assert_eq!(rig.engine.savings().next_news(), Some(SavingNews::Begun(1)));
    assert!(!saved(&mut rig, 0).0);
    let mut out = Commands::default();
    assert!(!rig.engine.begin_save(1, false, &mut out), "it has begun");
    assert_eq!(due(&mut rig), None);
    assert!(!rig.engine.begin_save(1, true, &mut out), "it has begun");
    assert_eq!(due(&mut rig), Some((1, 0)));
    assert!(saved(&mut rig, 1).0);
}

#[test]
fn one_that_is_given_up_holds_nothing_up_any_more() {
    let mut rig = rig();
    let mut out = Commands::default();
    assert!(rig.engine.begin_save(0, true, &mut out));
    assert!(!rig.engine.begin_save(0, true, &mut out), "it has begun");
    let commands = rig.send_wanting(0, 4, &[of(1, push(1, 1))]);
    assert_eq!(finished(&commands), []);
    rig.engine.drop_save(7, &mut out);
    assert!(out.list.is_empty(), "of another");
    rig.engine.drop_save(0, &mut out);
    assert_eq!(finished(&out.list), [(0, 1)]);
    assert_eq!(due(&mut rig), None);
}

#[test]
fn a_tensor_with_norms_is_copied_before_its_step_is_made() {
    let mut rig = Rig::new(config(1));
    rig.engine = LaneEngine::new(rig.config);
    let lamb = Optimizer::mean(Lamb::default(), 0.1);
    let chunk = |index| ChunkSpec { id: ChunkId::new(1, index), optimizer: lamb, ..spec(1) };
    rig.engine.assign(Epoch { term: 1, counter: 1 }, &[chunk(0), chunk(1)]);
    rig.connect(0);
    let at = |index, block: Block| Block { id: ChunkId::new(1, index), ..block };
    let mut out = Commands::default();
    // In the middle of a round's end: the version that it makes is copied, of both.
    rig.send_wanting(0, 4, &[at(0, push(1, 1))]);
    assert!(rig.engine.begin_save(0, true, &mut out));
    assert_eq!(due(&mut rig), Some((1, 0)));
    let commands = rig.send_wanting(0, 4, &[at(1, push(1, 1))]);
    let prepared = |commands: &[Command]| commands.iter().any(|c| matches!(c, Command::Prepare { .. }));
    assert!(!prepared(&commands), "{commands:?}");
    let (_, commands) = saved(&mut rig, 1);
    assert!(prepared(&commands));
    assert_eq!(finished(&commands), [(0, 1), (1, 1)]);
    assert_eq!(due(&mut rig), Some((0, 1)));
    assert!(saved(&mut rig, 0).0);
}

#[test]
fn rounds_that_nobody_is_left_for_are_told_and_wait_for_copies_as_others_do() {
    let mut rig = Rig::new(EngineConfig { worker_loss: WorkerLoss::Continue, ..config(2) });
    rig.engine.savings().begin_every(2);
    rig.roster(2, &[0], &[1]);
    assert_eq!(finished(&rig.send(0, &[push(1, 1)])), [(0, 1)]);
    rig.flush();
    rig.roster(3, &[0, 1], &[]);
    rig.ask_rounds(1);
    rig.count_from(1, &[(1, 5)]);
    // Nobody is left for rounds 2 to 4.
    rig.roster(4, &[1], &[0]);
    assert_eq!(rig.version(), 2);
    assert_eq!(rig.engine.savings().next_news(), Some(SavingNews::Begun(2)));
    assert_eq!(due(&mut rig), Some((0, 2)), "it stays as it is until it is copied");
    let (is_last, commands) = saved(&mut rig, 0);
    assert_eq!((is_last, commands, rig.version()), (true, vec![], 4));
    assert_eq!(rig.engine.savings().next_news(), Some(SavingNews::Begun(4)));
}

#[test]
fn one_that_cannot_be_copied_holds_no_other_up() {
    let mut rig = rig();
    let mut out = Commands::default();
    assert!(rig.engine.begin_save(0, true, &mut out));
    assert_eq!(due(&mut rig), Some((0, 0)));
    // Its initial value is being read.
    let data = BlockData::ByReference { region: REGION, offset: 8 };
    rig.send_wanting(0, 4, &[of(1, Block { data, ..init(1, BYTES) })]);
    let commands = rig.send_wanting(0, 4, &[of(2, push(1, 1))]);
    assert_eq!(finished(&commands), []);
    assert_eq!(due(&mut rig), Some((1, 0)));
    let (is_last, commands) = saved(&mut rig, 1);
    assert_eq!((is_last, finished(&commands)), (false, vec![(1, 1)]));
    assert_eq!(due(&mut rig), None);
    rig.fetched(0, 0);
    assert_eq!(due(&mut rig), Some((0, 0)));
}

#[test]
fn one_of_the_same_round_is_another_one_and_none_far_ahead_stops_those_before() {
    let mut rig = rig();
    rig.engine.savings().begin_every(1);
    let mut out = Commands::default();
    assert!(rig.engine.begin_save(0, true, &mut out));
    let first = rig.engine.savings().number();
    assert!(!saved(&mut rig, 0).0 && saved(&mut rig, 1).0);
    assert!(rig.engine.begin_save(0, true, &mut out));
    assert_ne!(rig.engine.savings().number(), first);
    rig.engine.drop_save(0, &mut out);
    assert!(rig.engine.begin_save(100, false, &mut out));
    rig.engine.drop_save(100, &mut out);
    rig.send_wanting(0, 4, &[of(1, push(1, 1))]);
    assert_eq!(rig.engine.savings().next_news(), Some(SavingNews::Begun(1)));
}

#[test]
fn without_rounds_they_are_of_what_each_worker_has_contributed_and_none_begins_beside_tensors_with_rounds() {
    let mut rig = Rig::new(config(2));
    rig.engine = LaneEngine::new(rig.config);
    let loose = ChunkSpec { mode: Mode::Async, ..spec(1) };
    rig.engine.assign(Epoch { term: 1, counter: 1 }, &[loose]);
    (0..2).for_each(|rank| rig.connect(rank));
    rig.engine.savings().begin_every(3);
    let contribute = |rig: &mut Rig, rounds: std::ops::RangeInclusive<u64>| {
        for round in rounds {
            (0..2).for_each(|rank| drop(rig.send(rank, &[push(round, round)])));
            rig.flush();
        }
    };
    contribute(&mut rig, 1..=3);
    assert_eq!(rig.version(), 6);
    assert_eq!(rig.engine.savings().next_news(), Some(SavingNews::Begun(3)));
    assert_eq!((due(&mut rig), rig.engine.newest_version()), (Some((0, 6)), 3));
    assert!(saved(&mut rig, 0).0);
    contribute(&mut rig, 4..=5);
    rig.engine.savings().count_rounds();
    contribute(&mut rig, 6..=9);
    assert_eq!((rig.engine.savings().next_news(), rig.engine.saving()), (None, None));
}

/// With a step for each pair of chunks, these would take minutes.
#[test]
fn many_chunks_are_copied_one_by_one() {
    const CHUNKS: u64 = 50_000;
    let mut rig = rig();
    let specs: Vec<_> = (3..=CHUNKS).map(spec).collect();
    rig.engine.assign(Epoch { term: 1, counter: 2 }, &specs);
    assert!(rig.engine.begin_save(1, true, &mut Commands::default()));
    // The last one holds a round up, and is copied first.
    rig.send_wanting(0, 4, &[of(CHUNKS, push(1, 1))]);
    let first = due(&mut rig).map(|(index, _)| index);
    assert_eq!(first.and_then(|index| rig.engine.chunk_id(index)), Some(ChunkId::new(CHUNKS, 0)));
    let mut copied = 0;
    while let Some((index, _)) = due(&mut rig) {
        copied += 1;
        assert_eq!(saved(&mut rig, index).0, copied == CHUNKS);
    }
    assert_eq!((copied, rig.engine.saving()), (CHUNKS, None));
}
