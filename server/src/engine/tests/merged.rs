//! Contributions that come as a part of another worker's: they count, and nothing is added for them.

use super::*;

fn merged(operation: u64, round: u64) -> Block {
    Block { data: BlockData::Merged, bytes: 0, ..push(operation, round) }
}

fn finish(last: Option<Addend>, contributors: u32) -> Command {
    Command::Finish { chunk: 0, round: 1, last, old: 0, into: 0, contributors }
}

#[test]
fn a_round_is_complete_when_the_sum_and_all_who_are_in_it_have_come_in_whatever_order() {
    for order in [[0, 1, 2], [1, 0, 2], [2, 1, 0], [1, 2, 0]] {
        let mut rig = Rig::new(config(3));
        let mut commands = Vec::new();
        for rank in order {
            let block = if rank == 0 { push(1, 1) } else { merged(1, 1) };
            commands.extend(rig.send(rank, &[block]));
        }
        let reduced = commands.iter().filter(|command| matches!(command, Command::Reduce { .. })).count();
        let Some(Command::Finish { last, contributors: 3, .. }) = commands.last() else {
            panic!("{commands:?}")
        };
        assert_eq!(reduced + usize::from(last.is_some()), 1, "{order:?}: {commands:?}");
        let onto = commands.iter().find_map(|command| match command {
            Command::Reduce { addend, .. } | Command::Finish { last: Some(addend), .. } => Some(addend.onto),
            _ => None,
        });
        assert_eq!(onto, Some(Onto::Nothing), "{order:?}: what the accumulator has is of another round");
        let mut told = rig.flush();
        told.sort_by_key(|answer| answer.rank);
        assert_eq!(told, [0, 1, 2].map(|rank| done(rank, 1, 1)), "{order:?}");
        assert_eq!((rig.engine.stats().merged, rig.engine.stats().contributions), (2, 1));
    }
}

#[test]
fn others_are_added_to_the_sum_in_rank_order() {
    let mut rig = Rig::new(config(4));
    assert_eq!(rig.send(1, &[merged(1, 1)]), []);
    assert!(
        matches!(rig.send(3, &[push(1, 1)])[..], [Command::Spill { .. }]),
        "the sum of 0 and 1, and 2, come first"
    );
    assert!(matches!(
        rig.send(0, &[push(1, 1)])[..],
        [Command::Reduce { addend: Addend { onto: Onto::Nothing, .. }, .. }]
    ));
    let commands = rig.send(2, &[push(1, 1)]);
    let [Command::Reduce { addend: Addend { onto: Onto::Sum, .. }, .. }, last] = &commands[..] else {
        panic!("{commands:?}")
    };
    assert_eq!(*last, finish(Some(Addend { from: Source::Spill(0), onto: Onto::Sum }), 4));
}

#[test]
fn a_first_contribution_in_its_worker_s_memory_is_added_before_others_count() {
    let mut rig = Rig::with(config(3), true);
    let there = Block { data: BlockData::ByReference { region: REGION, offset: 64 }, ..push(1, 1) };
    assert_eq!(rig.send(0, &[there]), [], "it may stay there while it is alone");
    assert!(matches!(rig.send(1, &[merged(1, 1)])[..], [Command::Reduce { .. }]));
    assert!(matches!(
        rig.send(2, &[merged(1, 1)])[..],
        [Command::Finish { last: None, contributors: 3, .. }]
    ));
    let mut rig = Rig::with(config(3), true);
    rig.send(1, &[merged(1, 1)]);
    assert!(
        matches!(rig.send(0, &[there])[..], [Command::Reduce { .. }]),
        "it does not stay beside another one"
    );
}

#[test]
fn without_any_sum_a_round_ends_without_new_weights() {
    let mut rig = Rig::new(config(2));
    for rank in [0, 1] {
        assert_eq!(rig.send(rank, &[merged(1, 1)]), [], "nothing is reduced, and no old sum applied");
    }
    let bad = |rank| answer(rank, 1, Status::BadValue, 1);
    let mut told = rig.flush();
    told.sort_by_key(|answer| answer.rank);
    assert_eq!(told, [bad(0), bad(1)]);
}

#[test]
fn one_for_a_round_to_come_is_sent_again_later_and_a_repeated_one_counts_once() {
    let mut rig = Rig::new(config(2));
    assert_eq!(rig.send(1, &[merged(1, 2)]), []);
    assert_eq!(rig.flush().iter().map(|answer| answer.status).collect::<Vec<_>>(), [Status::Retry]);
    rig.send(1, &[merged(1, 1)]);
    rig.send(1, &[merged(1, 1)]);
    assert_eq!((rig.engine.stats().merged, rig.engine.stats().duplicates), (1, 1));
    assert!(matches!(rig.send(0, &[push(1, 1)])[..], [Command::Finish { contributors: 2, .. }]));
}

#[test]
fn what_cannot_be_part_of_a_sum_is_refused() {
    let status = |edit: fn(ChunkSpec) -> ChunkSpec, block: Block| {
        let mut rig = Rig::new(EngineConfig { deterministic: false, ..config(2) });
        rig.engine = LaneEngine::new(rig.config);
        rig.engine.assign(Epoch { term: 1, counter: 1 }, &[edit(spec(1))]);
        [0, 1].into_iter().for_each(|rank| rig.connect(rank));
        rig.send(1, &[block]);
        rig.flush().iter().map(|answer| answer.status).collect::<Vec<_>>()
    };
    let plain = |spec| spec;
    let pull = Block { data: BlockData::Merged, ..pull(1, 0) };
    assert_eq!(status(plain, Block { bytes: BYTES, ..merged(1, 1) }), [Status::WrongShape]);
    assert_eq!(
        status(plain, Block { data: BlockData::Merged, bytes: 0, ..push_pull(1, 1) }),
        [Status::WrongShape]
    );
    assert_eq!(status(plain, pull), [Status::Refused]);
    let others: [fn(ChunkSpec) -> ChunkSpec; 3] = [
        |spec| ChunkSpec { mode: Mode::Async, ..spec },
        |spec| ChunkSpec { backup_workers: 1, ..spec },
        |spec| ChunkSpec { codec: Codec::TopK { share: 0.5 }, ..spec },
    ];
    for edit in others {
        assert_eq!(status(edit, merged(1, 1)), [Status::WrongShape]);
    }
}
