//! A process that has taken the place of a failed one: what its workers send again is handled once, as far as journals say.

use super::*;
use crate::engine::RestoredLine;

const DONE: CallAnswer = CallAnswer { status: Status::Done, head_bytes: 4, body_bytes: 1 };

/// The journal has answered calls, and calls to handle again.
fn line(next: u64, acked: u64, calls: &[(u64, Option<CallAnswer>)]) -> RestoredLine {
    let (worker, named) = (Rank(0), call_id(APP, Rank(0)));
    RestoredLine { worker, life: life(0), named, next, acked, calls: calls.to_vec() }
}

fn again(operation: u64) -> Block {
    Block { status: Status::Again, ..call(operation) }
}

fn taken_over() -> Rig {
    let mut rig = Rig::new(config(1));
    rig.engine.take_over();
    rig
}

fn has(rig: &mut Rig, line: RestoredLine) -> Vec<u64> {
    let ids = rig.engine.restore_calls(APP, &[line], 0).remove(0);
    rig.engine.set_handler(APP, true);
    ids
}

#[test]
fn calls_wait_at_their_workers_until_the_handler_is_there() {
    let mut rig = taken_over();
    assert_eq!(rig.send(0, &[again(1), call(2)]), []);
    assert_eq!(rig.flush_calls().0, [(1, Status::Retry, 0), (2, Status::Retry, 0)]);
    assert!(has(&mut rig, line(1, 1, &[])).is_empty());
    let taken = rig.send(0, &[again(1), call(2)]);
    assert_eq!(taken, [take(&rig, 1, 10), take(&rig, 2, 10)], "the journal has neither");
    // At its deadline it hears that there is no handler.
    let mut rig = taken_over();
    rig.send(0, &[Block { timeout_ms: 0, ..call(1) }]);
    assert_eq!(rig.flush_calls().0, [(1, Status::NoHandler, 0)]);
}

#[test]
fn what_a_journal_has_is_answered_and_not_taken_again() {
    let mut rig = taken_over();
    let ids = has(&mut rig, line(5, 2, &[(2, Some(DONE)), (3, None), (4, None)]));
    assert_eq!((ids.len(), rig.engine.calls()), (3, 3));
    // One is answered before its worker has come, and one after.
    assert_eq!(rig.answered(ids[1], 1), []);
    assert_eq!(rig.flush_calls().0, [], "nobody has asked");
    assert_eq!(rig.send(0, &[again(2), again(3), again(4)]), []);
    assert_eq!(rig.flush_calls().0, [(2, Status::Done, 7), (3, Status::Done, 7)]);
    assert_eq!(rig.answered(ids[2], 1), []);
    assert_eq!(rig.flush_calls().0, [(4, Status::Done, 7)]);
    let taken = rig.send(0, &[again(5)]);
    assert_eq!(taken, [take_as(&rig, 4, (5, 1), 10)], "the earlier process had it, and its journal has not");
    assert_eq!(rig.engine.under_way(), 1);
}

#[test]
fn a_call_of_the_journal_whose_answer_its_worker_knows_is_no_fault() {
    let mut rig = taken_over();
    let ids = has(&mut rig, line(3, 1, &[(1, None), (2, None)]));
    let taken = rig.send(0, &[call_from(3, 3, 10)]);
    assert_eq!(taken, [take_as(&rig, 3, (3, 3), 10)]);
    assert_eq!(rig.flush_calls().1, ids);
    assert_eq!(rig.answered(ids[0], 1), [Command::CallDrop { call: ids[0] }], "nobody waits for it");
}

#[test]
fn without_a_journal_what_an_earlier_process_had_is_not_handled_again() {
    let mut rig = taken_over();
    rig.engine.set_handler(APP, true);
    let taken = rig.send(0, &[again(1), call(2)]);
    assert_eq!(taken, [take(&rig, 2, 10)]);
    assert_eq!(rig.flush_calls().0, [(1, Status::NoReply, 0)]);
    // Its worker has kept only the number.
    let mut rig = taken_over();
    has(&mut rig, line(1, 1, &[]));
    let bare = Block { bytes: 0, landing: None, ..again(1) };
    assert_eq!(rig.send(0, &[bare]), []);
    assert_eq!(rig.flush_calls().0, [(1, Status::NoReply, 0)]);
}

#[test]
fn a_lost_state_is_said_to_all() {
    let mut rig = taken_over();
    let ids = has(&mut rig, line(2, 1, &[(1, None)]));
    assert_eq!(rig.send(0, &[again(1)]), []);
    let mut out = Commands::default();
    rig.engine.lose_calls(APP, &mut out);
    assert_eq!(out.list, [Command::CallCancel { call: ids[0] }], "its handler need not begin it");
    assert_eq!(rig.flush_calls().0, [(1, Status::StateLost, 0)], "it was being handled again");
    assert_eq!(rig.send(0, &[again(2), call(3)]), []);
    assert_eq!(rig.flush_calls().0, [(2, Status::StateLost, 0), (3, Status::StateLost, 0)]);
}

#[test]
fn of_another_process_of_the_worker_nothing_is_restored() {
    let mut rig = taken_over();
    let other = RestoredLine { life: Incarnation(999), ..line(3, 1, &[(2, None)]) };
    assert!(has(&mut rig, other).is_empty());
    let taken = rig.send(0, &[call(1)]);
    assert_eq!(taken, [take(&rig, 1, 10)]);
}
