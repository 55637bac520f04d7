//! Servers that have shown weights, and have the chunk no more: each hears once that nobody reads them.

use super::*;
use proto_common::batch::{Count, Kept};
use proto_common::ids::Version;

const ID: ChunkId = ChunkId { key: Key(1), chunk: proto_common::ids::ChunkIndex(0) };

fn reading(from: u64, kept: Kept) -> Reading {
    Reading { from: Operation(from), kept }
}

/// A pull of a view, of version 5 unless it is said otherwise, answered by the server that has the chunk.
fn view(rig: &mut Rig, operation: u64, reading: Reading, server: u32) {
    let whole = Submit { view: true, reading, ..submit(OpKind::Pull, operation) };
    rig.submit_as(whole, &[part(1, 0)]);
    let sent = rig.sent();
    let [Sent { server: to, blocks, .. }] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((*to, blocks.len()), (server, 1));
    let landing = Some(Landing { region: 0, offset: 0, bytes: BYTES });
    let answer = Block { view: true, landing, ..reply(&blocks[0], Status::Done, 5) };
    assert_eq!(rig.results(server, &[answer], &grants(9..10)).len(), 2, "shown, and done");
}

/// A push that says what is read; what goes out: server, operation, what is not read any more.
fn push(rig: &mut Rig, operation: u64, reading: Reading) -> Vec<(u32, u64, Reading)> {
    rig.submit_as(Submit { reading, ..submit(OpKind::Push, operation) }, &[part(1, 0)]);
    let sent = rig.sent();
    let blocks = sent.iter().flat_map(|sent| sent.blocks.iter().map(|block| (sent.server, *block)));
    blocks.map(|(server, block)| (server, block.operation.0, block.reading)).collect()
}

#[test]
fn a_server_that_had_the_chunk_hears_once_that_nobody_reads_what_it_showed() {
    let mut rig = Rig::new(40);
    view(&mut rig, 1, reading(1, Kept::None), 0);
    rig.engine.remap(&[(ID, Rank(1))]);
    let held = reading(2, Kept::Version(Version(5)));
    assert_eq!(push(&mut rig, 2, held), [(1, 2, held)], "it is read still");
    let newer = reading(3, Kept::Version(Version(6)));
    let told = (0, 0, newer);
    assert_eq!(push(&mut rig, 3, newer), [told, (1, 3, newer)]);
    let none = reading(4, Kept::None);
    assert_eq!(push(&mut rig, 4, none), [(1, 4, none)], "once");
}

#[test]
fn what_a_chunk_s_own_server_showed_is_said_by_operations() {
    let mut rig = Rig::new(40);
    view(&mut rig, 1, reading(1, Kept::None), 0);
    let none = reading(2, Kept::None);
    assert_eq!(push(&mut rig, 2, none), [(0, 2, none)]);
    // What it showed when it had the chunk before is another matter.
    view(&mut rig, 3, reading(3, Kept::None), 0);
}

#[test]
fn what_a_channel_may_have_lost_is_said_again() {
    let mut rig = Rig::new(40);
    view(&mut rig, 1, reading(1, Kept::None), 0);
    rig.engine.remap(&[(ID, Rank(1))]);
    let none = |from| reading(from, Kept::None);
    assert_eq!(push(&mut rig, 2, none(2)).len(), 2);
    rig.engine.server_down(Rank(0));
    assert_eq!(push(&mut rig, 3, none(3)), [(1, 3, none(3))], "nobody to hear it");
    rig.up(0, 4);
    assert_eq!(push(&mut rig, 4, none(4)), [(0, 0, none(4)), (1, 4, none(4))]);
    let told = Submit { reading: none(4), ..submit(OpKind::Release, 0) };
    let answer = Block { token: u64::MAX, ..reply(&farewell(told.reading), Status::Done, 0) };
    assert_eq!(rig.results(0, &[answer], &[]), []);
    rig.engine.server_down(Rank(0));
    rig.up(0, 4);
    assert_eq!(push(&mut rig, 5, none(5)).len(), 1, "it has heard it");
    assert_eq!(rig.engine.stats().duplicates, 0);
}

#[test]
fn what_a_server_shows_again_is_not_given_up_with_what_it_showed_before() {
    let mut rig = Rig::new(40);
    view(&mut rig, 1, reading(1, Kept::None), 0);
    rig.engine.remap(&[(ID, Rank(1))]);
    rig.engine.remap(&[(ID, Rank(0))]);
    let first = reading(2, Kept::Version(Version(5)));
    rig.submit_as(Submit { view: true, reading: first, ..submit(OpKind::Pull, 2) }, &[part(1, 0)]);
    let sent = rig.sent();
    let landing = Some(Landing { region: 0, offset: 0, bytes: BYTES });
    let answer = Block { view: true, landing, ..reply(&sent[0].blocks[0], Status::Done, 9) };
    rig.results(0, &[answer], &grants(9..10));
    let second = reading(3, Kept::Version(Version(9)));
    assert_eq!(push(&mut rig, 3, second), [(0, 0, second), (0, 3, second)]);
}

#[test]
fn what_was_changed_on_the_way_is_said_again() {
    let mut rig = Rig::new(40);
    view(&mut rig, 1, reading(1, Kept::None), 0);
    rig.engine.remap(&[(ID, Rank(1))]);
    let none = |from| reading(from, Kept::None);
    for (operation, status, said) in
        [(2, Status::Corrupt, true), (3, Status::Done, true), (4, Status::Done, false)]
    {
        let sent = push(&mut rig, operation, none(operation));
        assert_eq!(sent.contains(&(0, 0, none(operation))), said, "{operation}: {sent:?}");
        let answer = Block { token: u64::MAX, ..reply(&farewell(none(operation)), status, 0) };
        rig.results(0, &[answer], &grants(operation as u32 + 10..operation as u32 + 11));
    }
}

fn farewell(reading: Reading) -> Block {
    Block {
        id: ID,
        op: OpKind::Release,
        dtype: Dtype::F32,
        codec: 0,
        status: Status::None,
        operation: Operation(0),
        first_open: Operation(0),
        count: Count::Round(0),
        bytes: 0,
        data: BlockData::Inline { offset: 0 },
        landing: None,
        view: false,
        exact: false,
        reading,
        timeout_ms: 0,
        token: u64::MAX,
    }
}

#[test]
fn a_server_that_is_gone_is_told_nothing() {
    let mut rig = Rig::new(40);
    view(&mut rig, 1, reading(1, Kept::None), 0);
    rig.engine.remap(&[(ID, Rank(1))]);
    rig.engine.server_down(Rank(0));
    rig.engine.server_gone(Rank(0), &mut Commands::default());
    rig.up(0, 4);
    assert_eq!(push(&mut rig, 2, reading(2, Kept::None)).len(), 1);
}

#[test]
fn without_a_credit_one_is_asked_for() {
    let mut rig = Rig::new(1);
    view(&mut rig, 1, reading(1, Kept::None), 0);
    rig.results(0, &[], &[]);
    rig.engine.remap(&[(ID, Rank(1))]);
    // The one that came with the view.
    assert_eq!(rig.tick(300).len(), 2, "idle credits go back");
    rig.submit_as(Submit { reading: reading(2, Kept::None), ..submit(OpKind::Push, 2) }, &[part(1, 0)]);
    let happened = rig.flush();
    assert_eq!(happened.sent, []);
    let want = Command::Notice { server: Rank(0), notice: Notice::Want(1) };
    assert!(happened.rest.contains(&want), "{:?}", happened.rest);
    rig.results(0, &[], &grants(3..4));
    assert_eq!(rig.sent().len(), 1);
}
