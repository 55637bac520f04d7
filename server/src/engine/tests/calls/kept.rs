//! What is kept of calls: within the bound, given up for others only when it was told, and not for ever.

use super::*;
use crate::engine::CallWaits;

#[test]
fn a_reply_that_nobody_asks_for_is_let_go_of() {
    let mut rig = Rig::new(config(1));
    rig.engine.limit_calls(2 * LONG);
    rig.send(0, &[call(1), call(2)]);
    rig.arrived(1);
    rig.arrived(2);
    rig.answered(1, LONG);
    rig.answered(2, LONG - 100);
    assert_eq!(rig.flush_calls().0, [(1, Status::ReplyRoom, 0), (2, Status::ReplyRoom, 0)]);
    // Its worker has no room either, and says so.
    let given_up = Block { status: Status::Corrupt, bytes: 0, landing: None, ..call(1) };
    assert_eq!(rig.send(0, &[given_up]), [Command::CallDrop { call: 1 }]);
    assert_eq!(rig.flush_calls().0, [(1, Status::Refused, 0)]);
    assert!(rig.engine.call_bytes() < LONG);
    // Or it says nothing.
    rig.now_ms = 1_000;
    assert_eq!(rig.time(), [], "a tick sees it wait");
    rig.now_ms = 31_000;
    assert_eq!(rig.time(), [Command::CallDrop { call: 2 }]);
    assert_eq!(rig.engine.call_bytes(), 0);
    let landing = Some(Landing { region: REGION, offset: 0, bytes: LONG });
    rig.send(0, &[Block { landing, ..call(2) }]);
    assert_eq!(rig.flush_calls().0, [(2, Status::NoReply, 0)]);
}

#[test]
fn a_reply_whose_result_is_not_sent_makes_no_way() {
    let mut rig = Rig::new(config(1));
    rig.engine.limit_calls(2 * LONG);
    let landing = Some(Landing { region: REGION, offset: 0, bytes: LONG });
    let long = |operation, bytes| Block { landing, ..call_from(operation, 1, bytes) };
    rig.send(0, &[long(1, 10)]);
    rig.arrived(1);
    rig.answered(1, LONG);
    let next = Block { landing: None, ..call_from(2, 1, 2 * LONG) };
    assert_eq!(rig.send(0, &[next]), [], "it is being written");
    rig.reply_sent(1);
    assert_eq!(rig.send(0, &[next]), [], "its result waits to be sent, and has its head");
    let told = [(2, Status::CallRoom, 0), (1, Status::Done, 6), (2, Status::CallRoom, 0)];
    assert_eq!(rig.flush_calls().0, told);
    assert_eq!(rig.send(0, &[next]), [take(&rig, 2, 2 * LONG)].map(without_region));
    assert_eq!(rig.flush_calls().1, [1]);
}

fn without_region(take: Command) -> Command {
    match take {
        Command::CallTake(taken) => Command::CallTake(CallTaken { region: 0, ..taken }),
        other => other,
    }
}

#[test]
fn replies_are_within_the_bound_too() {
    let mut rig = Rig::new(config(1));
    rig.engine.limit_calls(4 * LONG);
    // Nobody said how long they would be: they have come, and to refuse one would free nothing.
    rig.send(0, &[call(1), call(2), call(3)]);
    (1..=3).for_each(|call| drop(rig.arrived(call)));
    for call in 1..=3 {
        assert_eq!(rig.answered(call, 2 * LONG), []);
    }
    let told = [(1, Status::ReplyRoom, 0), (2, Status::ReplyRoom, 0), (3, Status::ReplyRoom, 0)];
    assert_eq!(rig.flush_calls().0, told);
    // They wait for their workers' memory, which requests may have: those are taken, as many as there is room for.
    let whole = |operation| call_from(operation, 1, 4 * LONG);
    assert_eq!(rig.send(0, &[whole(4), whole(5)]).len(), 1);
    assert_eq!(rig.flush_calls().0, [(5, Status::CallRoom, 0)]);
    // What they have room for is kept free from the start.
    let mut rig = Rig::new(config(1));
    rig.engine.limit_calls(4 * LONG);
    let landing = Some(Landing { region: REGION, offset: 0, bytes: 3 * LONG });
    let long = |operation| Block { landing, ..call(operation) };
    assert_eq!(rig.send(0, &[long(1), long(2)]).len(), 1);
    assert_eq!(rig.flush_calls().0, [(2, Status::CallRoom, 0)]);
    // Short ones count, and make way.
    let mut rig = Rig::new(config(1));
    rig.engine.limit_calls(1_000);
    for operation in 1..=100 {
        assert_eq!(rig.send(0, &[call(operation)]), [take(&rig, operation, 10)]);
        rig.arrived(operation);
        rig.answered(operation, 94);
        assert_eq!(rig.flush_calls().0, [(operation, Status::Done, 100)]);
        assert!(rig.engine.call_bytes() <= 1_000);
    }
    assert!(rig.engine.calls() <= 10, "{}", rig.engine.calls());
    assert_eq!(rig.send(0, &[call(1)]), []);
    assert_eq!(rig.flush_calls().0, [(1, Status::NoReply, 0)]);
}

#[test]
fn a_stuck_handler_is_told_of() {
    let mut rig = Rig::new(config(1));
    assert_eq!(rig.engine.oldest(5), None);
    rig.send(0, &[call(1), call(2)]);
    let call_of = |rig: &Rig, now_ms| rig.engine.oldest(now_ms).map(|oldest| (oldest.call, oldest.waited_ms));
    assert_eq!(call_of(&rig, 7), Some((Some(CallWaits::Body), 7)));
    rig.arrived(1);
    assert_eq!(call_of(&rig, 7), Some((Some(CallWaits::Handler), 7)));
    rig.engine.set_handler(APP, true);
    let text = rig.engine.oldest(7).unwrap().words("tensor 1");
    assert_eq!(text, "a call of worker 0 to handler 4 at server 0 waits: the handler has not answered it");
    rig.answered(1, 0);
    assert_eq!(call_of(&rig, 8), Some((Some(CallWaits::Body), 8)), "the second");
}
