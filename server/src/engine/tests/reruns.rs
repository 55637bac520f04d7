//! Calls that are answered where the worker's memory lies: their replies are not kept, and a replay runs them again, without
//! those behind them being taken twice.

use super::*;
use crate::engine::CallAnswer;
use proto_common::call::call_id;

const APP: u32 = 4;
/// Bytes of a reply that does not travel with its result.
const LONG: u64 = 1 << 20;
/// Bytes that are kept of a reply without a body.
const SHORT: u64 = 3;

/// A call with 10 bytes of body and room for a long reply.
fn call(operation: u64) -> Block {
    Block {
        id: call_id(APP, Rank(0)),
        bytes: 32,
        landing: Some(Landing { region: REGION, offset: 0, bytes: LONG }),
        ..block(OpKind::Call, operation, 10)
    }
}

fn taken(commands: &[Command]) -> Vec<u64> {
    let take = |command: &Command| match command {
        Command::CallTake(taken) => taken.call,
        other => panic!("nothing but calls to take: {other:?}"),
    };
    commands.iter().map(take).collect()
}

struct Calls(Rig);

impl Calls {
    fn new() -> Self {
        Self(Rig::new(config(1)))
    }

    fn run(&mut self, run: impl FnOnce(&mut LaneEngine, &mut Commands)) -> Vec<Command> {
        let mut out = Commands::default();
        run(&mut self.0.engine, &mut out);
        out.list
    }

    fn deliver(&mut self, call: u64) {
        assert_eq!(self.run(|engine, out| engine.call_arrived(call, out)), [Command::CallDeliver { call }]);
    }

    /// Of a long reply: one that lies at its place, or one that is kept.
    fn answer(&mut self, call: u64, is_placed: bool, body_bytes: u64) -> Vec<Command> {
        let answer = CallAnswer { status: Status::Done, head_bytes: 1, body_bytes };
        self.run(|engine, out| match is_placed {
            true => engine.call_placed(call, answer, out),
            false => engine.call_answered(call, answer, out),
        })
    }

    /// What its worker is told: operation, status, and bytes that have landed.
    fn told(&mut self) -> Vec<(u64, Status, Option<u64>)> {
        let mut out = Commands::default();
        self.0.engine.flush(usize::MAX, &mut out);
        let told = out.results.iter().map(|result| {
            let block = &result.block;
            (block.operation.0, block.status, block.landing.map(|landing| landing.bytes))
        });
        told.collect()
    }

    fn reconnect(&mut self) {
        self.0.down(Rank(0));
        self.0.connect(0);
    }
}

#[test]
fn a_placed_reply_is_told_and_not_kept() {
    let mut calls = Calls::new();
    assert_eq!(taken(&calls.0.send(0, &[call(1)])), [1]);
    calls.deliver(1);
    assert_eq!(calls.0.engine.call_landing(1).map(|landing| landing.bytes), Some(LONG));
    assert_eq!(calls.answer(1, true, LONG), [], "nothing is to be written any more");
    assert_eq!(calls.told(), [(1, Status::Done, Some(LONG))]);
    assert_eq!(calls.0.engine.call_bytes(), 0);
    assert_eq!(calls.0.engine.call_landing(1), None, "it has ended");
    assert_eq!(calls.answer(1, true, LONG), [Command::CallDrop { call: 1 }]);
}

#[test]
fn a_replay_of_it_runs_again_and_what_follows_does_not() {
    let mut calls = Calls::new();
    calls.0.send(0, &[call(1), call(2)]);
    calls.deliver(1);
    calls.answer(1, true, LONG);
    calls.deliver(2);
    calls.answer(2, false, 0);
    calls.reconnect();
    assert_eq!(taken(&calls.0.send(0, &[call(1), call(2)])), [1], "the second one is told as it was");
    assert_eq!(calls.told(), [(2, Status::Done, None)]);
    // The channel ends while the first one is read again, and while it is executed.
    for is_delivered in [false, true] {
        calls.reconnect();
        assert_eq!(taken(&calls.0.send(0, &[call(1), call(2)])), [1]);
        if is_delivered {
            calls.deliver(1);
            calls.0.engine.call_returned(1);
        }
    }
    calls.reconnect();
    assert_eq!(taken(&calls.0.send(0, &[call(1), call(2), call(3)])), [1, 3]);
    calls.deliver(1);
    calls.answer(1, true, LONG - 1);
    assert_eq!(calls.told(), [(2, Status::Done, None), (1, Status::Done, Some(LONG - 1))]);
    let third = 10 + LONG;
    assert_eq!(
        calls.0.engine.call_bytes(),
        third + SHORT,
        "the third one's, with its room, and the second one's reply"
    );
}

#[test]
fn without_room_for_it_a_reply_is_not_placed() {
    let mut calls = Calls::new();
    calls.0.send(0, &[Block { landing: None, ..call(1) }]);
    calls.deliver(1);
    calls.answer(1, true, LONG);
    assert_eq!(calls.told(), [(1, Status::ReplyRoom, None)]);
}

#[test]
fn what_could_not_be_read_comes_again_with_what_is_behind_it() {
    let mut calls = Calls::new();
    calls.0.send(0, &[call(1), call(2), call(3)]);
    for call in 1..=3 {
        calls.deliver(call);
    }
    calls.answer(1, false, 0);
    calls.0.engine.call_returned(1);
    calls.0.engine.call_returned(2);
    calls.0.engine.call_returned(3);
    assert_eq!(calls.0.engine.call_bytes(), SHORT, "of the first one");
    assert_eq!(calls.answer(3, false, 0), [Command::CallDrop { call: 3 }]);
    calls.reconnect();
    assert_eq!(taken(&calls.0.send(0, &[call(1), call(2), call(3)])), [4, 5]);
}

#[test]
fn one_that_runs_again_is_ended_by_its_deadline() {
    let mut calls = Calls::new();
    calls.0.send(0, &[call(1)]);
    calls.deliver(1);
    calls.answer(1, true, LONG);
    calls.reconnect();
    calls.0.send(0, &[call(1)]);
    calls.0.now_ms = 1_000;
    calls.0.time();
    assert_eq!(calls.told(), [(1, Status::NoHandler, None)]);
    calls.reconnect();
    assert_eq!(calls.0.send(0, &[call(1)]), [], "it has ended for good");
}

#[test]
fn a_rerun_needs_its_room_as_a_new_call_does() {
    let mut calls = Calls::new();
    calls.0.engine.limit_calls(4 * LONG);
    calls.0.send(0, &[call(1), call(2)]);
    calls.deliver(1);
    calls.answer(1, true, LONG);
    calls.told();
    calls.reconnect();
    assert_eq!(
        calls.0.send(0, &[Block { count: Count::Body(1 << 40), ..call(1) }]),
        [],
        "no body is so long"
    );
    assert_eq!(calls.told(), [(1, Status::CallRoom, None)]);
    let full = [call(1), Block { count: Count::Body(3 * LONG + 1), landing: None, ..call(2) }];
    assert_eq!(taken(&calls.0.send(0, &full[1..])), [3]);
    assert_eq!(calls.0.send(0, &full[..1]), []);
    assert_eq!(calls.told(), [(1, Status::CallRoom, None)], "not now");
    assert_eq!(calls.0.engine.call_bytes(), 3 * LONG + 1);
    calls.deliver(3);
    calls.answer(3, false, 0);
    assert_eq!(calls.told(), [(2, Status::Done, None)]);
    assert_eq!(taken(&calls.0.send(0, &full[..1])), [1]);
}
