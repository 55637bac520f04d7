//! Chunks whose rounds differ in length: what storage is told of it, and what workers are.

use super::*;

/// A rig with a dynamic chunk: index 1, key 2.
fn rig(workers: u32) -> Rig {
    let mut rig = Rig::new(config(workers));
    let dynamic = ChunkSpec { dynamic: true, optimizer: Optimizer::assign(), ..spec(2) };
    rig.engine.assign(Epoch::default(), &[dynamic]);
    rig
}

fn of(block: Block) -> Block {
    Block { id: ChunkId::new(2, 0), ..block }
}

fn push_of(operation: u64, round: u64, bytes: u64) -> Block {
    Block { bytes, ..of(push(operation, round)) }
}

fn size(bytes: u64) -> Command {
    Command::Size { chunk: 1, bytes }
}

/// Answers with the length that a pull brought.
fn lengths(rig: &mut Rig) -> Vec<(u32, Status, Option<u64>)> {
    let told = rig.flush_blocks().into_iter();
    let told = told
        .map(|(rank, result)| (rank, result.block.status, result.block.landing.map(|landing| landing.bytes)));
    let told = told.collect();
    rig.return_slots();
    told
}

#[test]
fn each_round_has_its_own_length() {
    let mut rig = rig(2);
    let commands = rig.send(0, &[push_of(1, 1, 8)]);
    assert_eq!(commands, [size(8), Command::Reduce { chunk: 1, addend: first(rig.at()) }]);
    let commands = rig.send(1, &[push_of(1, 1, 8)]);
    assert!(
        matches!(commands[..], [Command::Finish { chunk: 1, .. }]),
        "no need to say it twice: {commands:?}"
    );
    lengths(&mut rig);
    // The next round comes before the first one is pulled.
    let commands = rig.send(1, &[push_of(2, 2, 12)]);
    assert_eq!(commands, [size(12), Command::Reduce { chunk: 1, addend: first(rig.at()) }]);
    let commands = rig.send(0, &[of(pull(2, 1))]);
    let lands = Command::Land { peer: Rank(0), chunk: 1, buffer: 0, landing: landing() };
    assert_eq!(commands, [size(8), lands], "what is in force has its own length");
    assert_eq!(lengths(&mut rig), [(0, Status::Done, Some(8))]);
    let commands = rig.send(0, &[push_of(3, 2, 12)]);
    assert!(
        matches!(commands[..], [Command::Size { bytes: 12, .. }, Command::Finish { into: 1, .. }]),
        "{commands:?}"
    );
}

#[test]
fn a_contribution_that_waits_keeps_its_length() {
    let mut rig = rig(2);
    let commands = rig.send(1, &[push_of(1, 1, 4), push_of(2, 2, 16)]);
    let spilt = Command::Spill { chunk: 1, from: rig.at(), to: 0 };
    assert_eq!(commands, [size(4), Command::Reduce { chunk: 1, addend: first(rig.at()) }, size(16), spilt]);
    let commands = rig.send(0, &[push_of(1, 1, 4)]);
    assert!(
        matches!(
            commands[..],
            [
                Command::Size { bytes: 4, .. },
                Command::Finish { .. },
                Command::Size { bytes: 16, .. },
                Command::Reduce { addend: Addend { from: Source::Spill(0), onto: Onto::Nothing }, .. }
            ]
        ),
        "{commands:?}"
    );
}

#[test]
fn all_contributions_to_a_round_agree_on_the_length() {
    let mut rig = rig(3);
    rig.send(0, &[push_of(1, 1, 8)]);
    assert_eq!(rig.send(1, &[push_of(1, 1, 12)]), []);
    assert_eq!(lengths(&mut rig), [(1, Status::WrongShape, None)]);
    rig.send(2, &[push_of(1, 2, 4)]); // Kept for its turn.
    assert_eq!(rig.send(1, &[push_of(2, 2, 8)]), []);
    assert_eq!(lengths(&mut rig), [(1, Status::WrongShape, None)]);
}

#[test]
fn an_empty_one_is_told_and_not_written() {
    let mut rig = rig(1);
    assert_eq!(rig.send(0, &[of(pull(1, 0))]), []);
    assert_eq!(lengths(&mut rig), [(0, Status::Done, Some(0))]);
    rig.send(0, &[push_of(2, 1, 0)]);
    assert_eq!(rig.send(0, &[of(pull(3, 1))]), []);
    assert_eq!(lengths(&mut rig), [(0, Status::Done, None), (0, Status::Done, Some(0))]);
}

#[test]
fn what_fits_no_dynamic_chunk_is_refused() {
    for (bad, status) in [
        (push_of(1, 1, BYTES + 4), Status::WrongShape),
        (push_of(1, 1, 6), Status::WrongShape),
        (of(push_pull(1, 1)), Status::Refused),
        (of(init(1, BYTES)), Status::Refused),
        (Block { data: BlockData::Placed, ..of(pull(1, 0)) }, Status::None),
        (
            Block { data: BlockData::ByReference { region: 1, offset: 0 }, ..push_of(1, 1, 0) },
            Status::Refused,
        ),
        (Block { landing: Some(Landing { bytes: 8, ..landing() }), ..of(pull(1, 0)) }, Status::WrongShape),
    ] {
        let mut rig = rig(1);
        let commands = rig.send(0, &[bad]);
        if status == Status::None {
            assert!(expelled(&commands).contains("without a grant"));
        } else {
            assert_eq!((commands, lengths(&mut rig)), (Vec::new(), vec![(0, status, None)]), "{bad:?}");
        }
    }
}

#[test]
fn a_read_and_a_key_buffer_take_as_much_as_there_is() {
    let mut rig = rig(1);
    let reference = BlockData::ByReference { region: REGION, offset: 64 };
    let commands = rig.send(0, &[Block { data: reference, ..push_of(1, 1, 8) }]);
    assert_eq!(
        commands,
        [size(8), Command::Fetch { peer: Rank(0), chunk: 1, region: REGION, offset: 64, to: 0 }]
    );
    let mut out = Commands::default();
    rig.engine.fetched(Rank(0), 1, 0, &mut out);
    assert!(
        matches!(out.list[..], [Command::Finish { last: Some(Addend { from: Source::Spill(0), .. }), .. }]),
        "{:?}",
        out.list
    );
    rig.flush();
    rig.send(0, &[Block { data: BlockData::Announced { keep: true }, ..push_of(2, 2, 4) }]);
    assert_eq!(lengths(&mut rig), [(0, Status::Granted, Some(BYTES))], "room for the longest");
    let commands = rig.send(0, &[Block { data: BlockData::Placed, ..push_of(2, 2, 4) }]);
    assert!(matches!(commands[..], [Command::Size { bytes: 4, .. }, Command::Finish { .. }]), "{commands:?}");
}
