//! Small weights come in the payload of the results.

use super::*;

fn carrying(block: &Block, bytes: u64) -> Block {
    Block { bytes, data: BlockData::Inline { offset: 64 }, ..done(block) }
}

#[test]
fn they_are_passed_on_before_the_end_of_the_operation() {
    let mut rig = Rig::new(4);
    let op = rig.submit_as(submit(OpKind::PushPull, 1), &[PartSpec { offset: 128, ..part(1, 0) }]);
    let block = rig.sent()[0].blocks[0];
    let commands = rig.results(0, &[carrying(&block, BYTES)], &[]);
    let carried = Command::Carried { op, offset: 128, from: 64, bytes: BYTES };
    assert_eq!(commands, [carried, Command::Done { op, version: block.count.round() }]);
}

#[test]
fn a_server_that_sends_other_bytes_than_it_was_asked_for_is_left() {
    for (kind, bytes) in [(OpKind::PushPull, BYTES - 4), (OpKind::Pull, BYTES + 4), (OpKind::Push, BYTES)] {
        let mut rig = Rig::new(4);
        rig.submit_as(submit(kind, 1), &[part(1, 0)]);
        let block = rig.sent()[0].blocks[0];
        let commands = rig.results(0, &[carrying(&block, bytes)], &[]);
        assert!(closed(&commands).contains("of another size, or that nobody asked for"), "{kind:?}");
    }
    let mut rig = Rig::new(4);
    rig.submit_as(Submit { view: true, ..submit(OpKind::Pull, 1) }, &[part(1, 0)]);
    let block = rig.sent()[0].blocks[0];
    let commands = rig.results(0, &[carrying(&block, BYTES)], &[]);
    assert!(matches!(commands[..], [Command::Close { .. }]), "{commands:?}");
}

/// The payload of a success is not read as a list of ranks.
#[test]
fn they_name_nobody() {
    let mut rig = Rig::new(4);
    rig.submit_as(submit(OpKind::Pull, 1), &[part(1, 0)]);
    let block = rig.sent()[0].blocks[0];
    let commands = rig.results(0, &[Block { status: Status::Late, ..carrying(&block, BYTES) }], &[]);
    assert!(matches!(commands[..], [Command::Carried { .. }, Command::Late { .. }, Command::Done { .. }]));
}
