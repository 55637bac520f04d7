//! Calls to a server whose process fails, in a job with replicas: they wait for the next process, and no call is executed after its caller
//! has heard of its failure.

use super::calls::{FRAME, call_part, replied};
use super::*;
use crate::call_fault::CallFault;
use crate::engine::op::GRACE_MS;
use proto_common::table::table_app;

const APP: u32 = 4;
/// The time of a call.
const TIMEOUT_MS: u64 = 5_000;

/// Two servers, connected, and a worker whose calls wait for the next process of one that fails. Server 1 has no credits to give back.
fn rig() -> Rig {
    let mut rig = Rig::down(EngineConfig { keeps_calls: true, ..config() });
    [(0, 8), (1, 0)].into_iter().for_each(|(server, credits)| rig.up(server, credits));
    rig
}

impl Rig {
    /// A call to a handler of server 0.
    fn ask(&mut self, operation: u64) -> u64 {
        self.call(operation, call_part(APP, 0, 0))
    }

    /// A call that has more time than others.
    fn ask_for_long(&mut self, operation: u64) -> u64 {
        let submit = Submit { payload: true, timeout_ms: 60_000, ..submit(OpKind::Call, operation) };
        self.submit_as(submit, &[call_part(APP, 0, 0)])
    }

    /// The process of server 0 fails.
    fn exit(&mut self) -> Vec<Command> {
        self.engine.server_down(Rank(0));
        let mut out = Commands::default();
        self.engine.server_gone(Rank(0), &mut out);
        out.list
    }

    fn blocks(&mut self) -> Vec<Block> {
        self.sent().into_iter().flat_map(|sent| sent.blocks).collect()
    }

    /// Another process takes the rank of server 0: what it receives.
    fn next_process(&mut self) -> Vec<Block> {
        self.up(0, 8);
        self.blocks()
    }
}

/// Number and status of each block.
fn numbers(blocks: &[Block]) -> Vec<(u64, Status)> {
    blocks.iter().map(|block| (block.operation.0, block.status)).collect()
}

/// The error of a call that has ended.
fn fault(commands: &[Command], op: u64) -> &CallFault {
    match commands {
        [Command::Failed { op: failed, error }, Command::Done { op: done, version: 0 }] => {
            assert_eq!((*failed, *done), (op, op));
            let OpError::Call { app: APP, server: Rank(0), fault, .. } = error else { panic!("{error:?}") };
            fault
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_come_again_in_order_and_those_that_were_sent_are_marked() {
    let mut rig = rig();
    (1..=2).for_each(|operation| _ = rig.ask(operation));
    assert_eq!(numbers(&rig.blocks()), [(1, Status::None), (2, Status::None)]);
    rig.ask(3);
    assert_eq!(rig.exit(), []);
    rig.ask(4);
    assert_eq!((rig.sent(), rig.engine.in_flight()), (Vec::new(), 4));
    let blocks = rig.next_process();
    let expected = [(1, Status::Again), (2, Status::Again), (3, Status::None), (4, Status::None)];
    assert_eq!(numbers(&blocks), expected);
    assert!(blocks.iter().all(|block| (block.bytes, block.first_open) == (FRAME, Operation(1))));
    let answers: Vec<Block> = blocks.iter().map(|block| replied(block, 2)).collect();
    assert_eq!(rig.results(0, &answers, &[]).len(), 8, "each has its reply, and ends");
    rig.ask(5);
    assert_eq!(rig.blocks()[0].first_open, Operation(5));
}

#[test]
fn a_broken_channel_to_the_same_process_marks_nothing() {
    let mut rig = rig();
    rig.ask(1);
    rig.blocks();
    rig.engine.server_down(Rank(0));
    assert_eq!(numbers(&rig.next_process()), [(1, Status::None)]);
}

#[test]
fn without_replicas_calls_end_with_the_process() {
    let mut rig = Rig::new(8);
    let op = rig.ask(1);
    rig.blocks();
    assert_eq!(fault(&rig.exit(), op), &CallFault::ServerDied);
    rig.ask(2);
    let blocks = rig.next_process();
    assert_eq!((numbers(&blocks), blocks[0].first_open), (vec![(2, Status::None)], Operation(2)));
}

#[test]
fn calls_to_tables_fail_at_once_because_other_servers_have_the_rows() {
    let mut rig = rig();
    let table = table_app(1, Lane(0));
    let op = rig.call(1, call_part(table, 0, 0));
    rig.ask(1);
    rig.blocks();
    let ended = rig.exit();
    let [Command::Failed { op: failed, error }, Command::Done { .. }] = &ended[..] else {
        panic!("{ended:?}")
    };
    let OpError::Call { app, fault: CallFault::ServerDied, .. } = error else { panic!("{error:?}") };
    assert_eq!((*failed, *app), (op, table));
    let again = rig.next_process();
    assert_eq!((again[0].id.key, numbers(&again)), (Key(u64::from(APP)), vec![(1, Status::Again)]));
}

#[test]
fn a_process_that_knows_nothing_of_an_earlier_request_or_has_lost_its_state_says_so() {
    for (status, expected) in
        [(Status::NoReply, CallFault::ServerDied), (Status::StateLost, CallFault::StateLost)]
    {
        let mut rig = rig();
        let op = rig.ask(1);
        rig.blocks();
        rig.exit();
        let block = rig.next_process()[0];
        assert_eq!(fault(&rig.results(0, &[reply(&block, status, 0)], &[]), op), &expected);
        rig.ask(2);
        assert_eq!(rig.blocks()[0].first_open, Operation(2));
    }
    let text = CallFault::StateLost.to_string();
    assert!(text.contains("state of the handler is lost") && text.contains("Start the job again"), "{text}");
    // The handler of this process dropped it.
    let mut rig = rig();
    rig.exit();
    rig.ask(1);
    let block = rig.next_process()[0];
    let ended = rig.results(0, &[reply(&block, Status::NoReply, 0)], &[]);
    let refused =
        |command: &Command| matches!(command, Command::Failed { error: OpError::Refused { .. }, .. });
    assert!(refused(&ended[0]), "{ended:?}");
}

#[test]
fn a_deadline_without_a_process_ends_the_call_and_the_next_process_does_not_execute_it() {
    let mut rig = rig();
    let first = rig.ask(1);
    rig.blocks();
    rig.exit();
    let second = rig.ask(2);
    assert_eq!(rig.tick(TIMEOUT_MS + GRACE_MS - 1), []);
    let ended = rig.tick(1);
    for (commands, op) in [(&ended[..2], first), (&ended[2..], second)] {
        assert_eq!(fault(commands, op), &CallFault::ServerDied);
    }
    let Command::Failed { error: OpError::Call { waited_ms, .. }, .. } = &ended[0] else {
        panic!("{ended:?}")
    };
    assert_eq!(*waited_ms, TIMEOUT_MS + GRACE_MS);
    assert_eq!((rig.engine.in_flight(), rig.engine.oldest(rig.now_ms)), (0, None));
    assert_eq!(rig.tick(60_000), [], "it is said once");
    // A process may have had the first one. None has had the second one.
    rig.ask(3);
    let blocks = rig.next_process();
    assert_eq!(numbers(&blocks), [(1, Status::Corrupt), (3, Status::None)]);
    assert_eq!((blocks[0].bytes, blocks[0].landing, blocks[0].timeout_ms), (0, None, 0));
    assert_eq!(rig.results(0, &[reply(&blocks[0], Status::Refused, 0)], &[]), []);
    rig.ask(4);
    assert_eq!(rig.blocks()[0].first_open, Operation(3));
}

#[test]
fn the_number_of_a_failed_call_behind_an_open_one_is_not_missing() {
    let mut rig = rig();
    rig.ask_for_long(1);
    rig.blocks();
    rig.exit();
    let second = rig.ask(2);
    let ended = rig.tick(TIMEOUT_MS + GRACE_MS);
    assert_eq!(fault(&ended, second), &CallFault::ServerDied);
    rig.ask(3);
    let expected = [(1, Status::Again), (2, Status::Corrupt), (3, Status::None)];
    assert_eq!(numbers(&rig.next_process()), expected);
}

#[test]
fn a_call_that_had_failed_before_the_process_did_ends_and_does_not_hold_up_later_ones() {
    let mut rig = rig();
    let op = rig.ask(1);
    rig.blocks();
    let failed = rig.tick(TIMEOUT_MS + GRACE_MS);
    assert!(matches!(failed[0], Command::Failed { error: OpError::NoAnswer { .. }, .. }), "{failed:?}");
    assert_eq!(rig.engine.in_flight(), 1, "the server may use its memory");
    rig.ask(2);
    assert_eq!(rig.exit(), [Command::Done { op, version: 0 }]);
    let blocks = rig.next_process();
    assert_eq!(numbers(&blocks), [(1, Status::Corrupt), (2, Status::None)]);
    assert_eq!(rig.results(0, &[replied(&blocks[1], 2)], &[]).len(), 2);
    // An earlier process may have answered it meanwhile.
    let told = rig.results(0, &[reply(&blocks[0], Status::NoReply, 0)], &[]);
    assert_eq!(told, []);
    rig.ask(3);
    assert_eq!(rig.blocks()[0].first_open, Operation(3));
}

#[test]
fn numbers_that_no_process_has_seen_do_not_add_up() {
    let mut rig = rig();
    rig.exit();
    for operation in 1..=300 {
        let op = rig.ask(operation);
        assert_eq!(fault(&rig.tick(TIMEOUT_MS + GRACE_MS), op), &CallFault::ServerDied);
    }
    // Their places are used again by others.
    rig.push(1, &[part(1, 1)]);
    rig.ask(301);
    (0..2).for_each(|server| rig.up(server, 8));
    let sent = rig.sent();
    let what: Vec<_> = sent.iter().map(|sent| (sent.server, sent.operations())).collect();
    assert_eq!(what, [(0, vec![(u64::from(APP), 301)]), (1, vec![(1, 1)])]);
    assert_eq!(sent[0].blocks[0].first_open, Operation(301));
}

#[test]
fn a_call_to_a_server_that_was_never_connected_is_not_executed_after_its_deadline() {
    let mut rig = Rig::down(EngineConfig { keeps_calls: true, ..config() });
    let op = rig.ask(1);
    let ended = rig.tick(TIMEOUT_MS + GRACE_MS);
    let [Command::Failed { error: OpError::Unconnected { servers, .. }, .. }, done] = &ended[..] else {
        panic!("{ended:?}")
    };
    assert_eq!((&servers[..], done), (&[Rank(0)][..], &Command::Done { op, version: 0 }));
    rig.ask(2);
    let blocks = rig.next_process();
    assert_eq!((numbers(&blocks), blocks[0].first_open), (vec![(2, Status::None)], Operation(2)));
}

#[test]
fn a_reply_that_waits_for_room_is_asked_for_again_without_the_request() {
    let announced = || {
        let mut rig = rig();
        let op = rig.ask(1);
        let block = rig.blocks()[0];
        let told = rig.results(0, &[reply(&block, Status::ReplyRoom, 500)], &[]);
        assert_eq!(told, [Command::Room { op, bytes: 500 }]);
        assert_eq!(rig.exit(), []);
        assert!(!rig.engine.wants_room(op), "the next process says whether it has the reply");
        rig.engine.has_room(op, 500);
        let block = rig.next_process()[0];
        let room = block.landing.map(|landing| landing.bytes);
        assert_eq!((block.status, block.bytes, room), (Status::Again, 0, Some(0)));
        (rig, op, block)
    };
    let (mut rig, op, block) = announced();
    let told = rig.results(0, &[reply(&block, Status::ReplyRoom, 500)], &[]);
    assert_eq!(told, [Command::Room { op, bytes: 500 }]);
    rig.engine.has_room(op, 500);
    let block = rig.blocks()[0];
    let room = block.landing.map(|landing| landing.bytes);
    assert_eq!((block.status, block.bytes, room), (Status::Again, 0, Some(500)));
    let landing = Some(Landing { region: 0, offset: 0, bytes: 500 });
    let told = rig.results(0, &[Block { landing, ..replied(&block, 2) }], &[]);
    assert_eq!(told[1], Command::Done { op, version: 0 });
    // The reply went with the process.
    let (mut rig, op, block) = announced();
    let told = rig.results(0, &[reply(&block, Status::NoReply, 0)], &[]);
    assert_eq!(fault(&told, op), &CallFault::ServerDied);
}

#[test]
fn two_processes_fail_in_a_row() {
    let mut rig = rig();
    rig.ask(1);
    rig.blocks();
    rig.exit();
    rig.ask(2);
    assert_eq!(numbers(&rig.next_process()), [(1, Status::Again), (2, Status::None)]);
    rig.ask(3);
    assert_eq!(rig.exit(), []);
    // The next one fails before it is sent anything.
    rig.up(0, 0);
    assert_eq!(rig.exit(), []);
    let expected = [(1, Status::Again), (2, Status::Again), (3, Status::None)];
    assert_eq!(numbers(&rig.next_process()), expected);
}

#[test]
fn operations_whose_end_was_reported_are_not_ended_again_with_the_lane() {
    let mut rig = rig();
    rig.ask(1);
    rig.blocks();
    rig.exit();
    assert_eq!(rig.tick(TIMEOUT_MS + GRACE_MS).len(), 2);
    let open = rig.ask(2);
    let mut out = Commands::default();
    let error = OpError::Closed("over".into());
    rig.engine.fail_all(&error, &mut out);
    assert_eq!(out.list, [Command::Failed { op: open, error }, Command::Done { op: open, version: 0 }]);
}

/// A number that waits behind an open call goes when that call goes. The line must not lose the calls behind it with that.
#[test]
fn a_number_that_goes_with_the_call_before_it_takes_no_other_call_with_it() {
    let mut rig = rig();
    rig.ask_for_long(1);
    rig.blocks();
    rig.exit();
    rig.ask(2);
    rig.tick(TIMEOUT_MS + GRACE_MS);
    // The next process has a channel, and no credit to be sent anything with.
    rig.up(0, 0);
    rig.tick(60_000);
    let open = rig.ask(3);
    rig.exit();
    let blocks = rig.next_process();
    assert_eq!(numbers(&blocks).last(), Some(&(3, Status::None)));
    let answers: Vec<Block> = blocks.iter().map(|block| replied(block, 2)).collect();
    let ended = rig.results(0, &answers, &[]);
    assert!(ended.contains(&Command::Done { op: open, version: 0 }), "{ended:?}");
    rig.ask(4);
    assert_eq!(rig.blocks()[0].first_open, Operation(4));
}
