//! Calls on their way: windows, what servers are told of answers, replies with and without room.

use super::*;
use crate::call_fault::CallFault;
use proto_common::call::{CALLS_IN_FLIGHT_MAX, call_id};

/// Bytes of each frame.
pub(super) const FRAME: u64 = 40;

pub(super) fn call_part(app: u32, server: u32, room: u64) -> PartSpec {
    let coded = Some(Coded { codec: 0, offset: 0, bytes: FRAME });
    PartSpec { id: call_id(app, Rank(server)), server: Rank(server), offset: 0, bytes: room, coded }
}

impl Rig {
    pub(super) fn call(&mut self, operation: u64, part: PartSpec) -> u64 {
        let submit = Submit { payload: true, count: Count::Body(1_000), ..submit(OpKind::Call, operation) };
        self.submit_as(submit, &[part])
    }
}

/// The answer to a call whose reply came with the result.
pub(super) fn replied(block: &Block, bytes: u64) -> Block {
    Block { bytes, ..reply(block, Status::Done, 0) }
}

#[test]
fn a_call_travels_in_its_slot_and_says_what_is_known() {
    let mut rig = Rig::new(8);
    let first = rig.call(1, call_part(4, 0, 64));
    let second = rig.call(2, call_part(4, 0, 0));
    let sent = rig.sent();
    let blocks = &sent[0].blocks;
    assert_eq!(sent.len(), 1, "they share a batch");
    for (block, room) in blocks.iter().zip([64, 0]) {
        assert_eq!((block.op, block.bytes, block.count), (OpKind::Call, FRAME, Count::Body(1_000)));
        assert_eq!(block.landing.map(|landing| landing.bytes), Some(room));
        assert_eq!(block.first_open, Operation(1));
    }
    // The second ends before the first: nothing before the first is known.
    let told = rig.results(0, &[replied(&blocks[1], 7)], &[]);
    let inline = |op, bytes, landed| Command::Replied { op, offset: 0, bytes, landed };
    assert_eq!(told, [inline(second, 7, None), Command::Done { op: second, version: 0 }]);
    rig.call(3, call_part(4, 0, 0));
    assert_eq!(rig.sent()[0].blocks[0].first_open, Operation(1));
    let landing = Some(Landing { region: 0, offset: 0, bytes: 60 });
    let told = rig.results(0, &[Block { landing, ..replied(&blocks[0], 9) }], &[]);
    assert_eq!(told, [inline(first, 9, Some(60)), Command::Done { op: first, version: 0 }]);
    rig.call(4, call_part(4, 0, 0));
    assert_eq!(rig.sent()[0].blocks[0].first_open, Operation(3));
}

#[test]
fn a_line_has_a_window_and_others_go_on() {
    let mut rig = Rig::new(64);
    for operation in 1..=CALLS_IN_FLIGHT_MAX + 1 {
        rig.call(operation, call_part(4, 0, 0));
    }
    rig.call(1, call_part(4, 1, 0));
    let blocks: Vec<Block> = rig.sent().into_iter().flat_map(|sent| sent.blocks).collect();
    assert_eq!(blocks.len() as u64, CALLS_IN_FLIGHT_MAX + 1, "one waits; the other server's has gone");
    // A later one ends: the oldest is still open.
    rig.results(0, &[replied(&blocks[5], 2)], &[]);
    assert_eq!(rig.sent(), []);
    rig.results(0, &[replied(&blocks[0], 2)], &[]);
    assert_eq!(rig.sent()[0].operations(), [(4, CALLS_IN_FLIGHT_MAX + 1)]);
}

#[test]
fn a_reply_without_room_is_asked_for_again_without_the_request() {
    let mut rig = Rig::new(8);
    let op = rig.call(1, call_part(4, 0, 10));
    let block = rig.sent()[0].blocks[0];
    let told = rig.results(0, &[reply(&block, Status::ReplyRoom, 500)], &[]);
    assert_eq!(told, [Command::Room { op, bytes: 500 }]);
    assert_eq!((rig.sent(), rig.engine.wants_room(op)), (Vec::new(), true), "there is none yet");
    rig.engine.has_room(op, 500);
    let again = rig.sent()[0].blocks[0];
    assert_eq!((again.operation, again.bytes), (block.operation, 0));
    assert_eq!(again.landing.map(|landing| landing.bytes), Some(500));
    let landing = Some(Landing { region: 0, offset: 0, bytes: 500 });
    let told = rig.results(0, &[Block { landing, ..replied(&again, 2) }], &[]);
    assert_eq!(told[1], Command::Done { op, version: 0 });
    // Without any room here the call ends, and what follows goes on.
    let op = rig.call(2, call_part(4, 0, 0));
    let block = rig.sent()[0].blocks[0];
    rig.results(0, &[reply(&block, Status::ReplyRoom, 500)], &[]);
    let mut out = Commands::default();
    rig.engine.give_up(op, 500, &mut out);
    assert!(matches!(&out.list[..], [Command::Failed { .. }]), "{:?}", out.list);
    // The server is told, so that it lets go of the reply.
    let last = rig.sent()[0].blocks[0];
    assert_eq!((last.operation, last.status, last.landing), (block.operation, Status::Corrupt, None));
    assert_eq!(rig.results(0, &[reply(&last, Status::Refused, 0)], &[]), [Command::Done { op, version: 0 }]);
    rig.call(3, call_part(4, 0, 0));
    assert_eq!(rig.sent()[0].blocks[0].first_open, Operation(3));
    // Whose caller was told that it failed needs no room.
    rig.call(4, call_part(4, 0, 0));
    let block = rig.sent().remove(0).blocks[0];
    rig.tick(1_000_000);
    assert_eq!(rig.results(0, &[reply(&block, Status::ReplyRoom, 500)], &grants(90..94)), []);
    assert_eq!(rig.sent()[0].blocks[0].status, Status::Corrupt);
}

#[test]
fn a_reply_that_waits_for_room_is_announced_again_over_a_new_channel() {
    let mut rig = Rig::new(8);
    let op = rig.call(1, call_part(4, 0, 0));
    let block = rig.sent()[0].blocks[0];
    rig.results(0, &[reply(&block, Status::ReplyRoom, 500)], &[]);
    rig.engine.server_down(Rank(0));
    assert!(!rig.engine.wants_room(op), "until then nobody knows whether it is kept");
    rig.engine.has_room(op, 500);
    rig.up(0, 4);
    let again = rig.sent()[0].blocks[0];
    assert_eq!(
        (again.bytes, again.landing.map(|landing| landing.bytes)),
        (0, Some(0)),
        "the server has the request"
    );
    let told = rig.results(0, &[reply(&again, Status::ReplyRoom, 500)], &[]);
    assert_eq!(told, [Command::Room { op, bytes: 500 }]);
    rig.engine.has_room(op, 500);
    assert_eq!(rig.sent()[0].blocks[0].landing.map(|landing| landing.bytes), Some(500));
}

#[test]
fn a_call_that_finds_no_room_at_its_server_says_so() {
    let mut rig = Rig::new(8);
    let op = rig.call(1, call_part(4, 0, 10));
    let block = rig.sent()[0].blocks[0];
    rig.now_ms += 5_000_000;
    rig.results(0, &[reply(&block, Status::CallRoom, 0)], &[]);
    let told = rig.tick(0);
    let [Command::Failed { op: failed, error: OpError::Call { app: 4, fault, .. } }, ..] = &told[..] else {
        panic!("{told:?}")
    };
    assert_eq!((*failed, fault), (op, &CallFault::Crowded));
    assert!(fault.to_string().contains("memory.call_bytes"));
}

#[test]
fn after_a_new_channel_all_open_calls_come_again_in_order() {
    let mut rig = Rig::new(8);
    for operation in 1..=3 {
        rig.call(operation, call_part(4, 0, 0));
    }
    let blocks = rig.sent().remove(0).blocks;
    rig.results(0, &[replied(&blocks[1], 2)], &[]);
    rig.engine.server_down(Rank(0));
    rig.up(0, 4);
    let again = rig.sent().remove(0);
    assert_eq!(again.operations(), [(4, 1), (4, 3)]);
    assert!(again.blocks.iter().all(|block| block.first_open == Operation(1)));
}

#[test]
fn failures_end_the_call_and_lies_the_channel() {
    let mut rig = Rig::new(8);
    let op = rig.call(1, call_part(4, 0, 10));
    let block = rig.sent()[0].blocks[0];
    let told = rig.results(0, &[reply(&block, Status::NoHandler, 0)], &[]);
    assert!(matches!(&told[..], [Command::Failed { op: failed, .. }, Command::Done { .. }] if *failed == op));
    let lies = |lie: &dyn Fn(&Block) -> Block| {
        let mut rig = Rig::new(8);
        rig.call(1, call_part(4, 0, 10));
        let block = rig.sent()[0].blocks[0];
        closed(&rig.results(0, &[lie(&block)], &[])).to_owned()
    };
    let landing = |bytes| Some(Landing { region: 0, offset: 0, bytes });
    let why = "with an invalid result";
    assert!(lies(&|block| Block { landing: landing(11), ..replied(block, 2) }).contains(why));
    assert!(lies(&|block| reply(block, Status::ReplyRoom, 10)).contains(why), "it had that room");
    assert!(lies(&|block| reply(block, Status::Granted, 0)).contains("not requested"));
    let mut rig = Rig::new(8);
    rig.push(1, &[part(1, 0)]);
    let block = rig.sent()[0].blocks[0];
    let told = rig.results(0, &[Block { op: OpKind::Call, ..done(&block) }], &[]);
    assert!(closed(&told).contains("not a call as a call"));
}
