//! Messages between programs: passed on, answered once, bounded, and told where they cannot be.

use super::*;
use proto_common::message::{
    POST_BODY_BYTES_MAX, POSTS_ASKED_MAX, POSTS_OWED_BYTES_MAX, POSTS_OWED_MAX, PostError, PostMessage,
    PostReply, PostTo,
};

const SCHEDULER: MemberId = MemberId { role: Role::Scheduler, rank: Rank(0) };
const EVERYONE: PostTo = PostTo::Group(NodeGroup { scheduler: true, servers: true, workers: true });

fn message(bytes: usize) -> PostMessage {
    PostMessage { app: 3, head: 5, body: vec![7; bytes] }
}

fn post(request: u64, to: PostTo, bytes: usize) -> ToScheduler {
    ToScheduler::Post { request, to, message: message(bytes), timeout_ms: 40 }
}

fn posted(ticket: u64, from: MemberId, bytes: usize) -> FromScheduler {
    FromScheduler::Posted { ticket, from, message: message(bytes), timeout_ms: 40 }
}

fn reply() -> Result<PostReply, PostError> {
    Ok(PostReply { head: -5, body: vec![1] })
}

fn answer(request: u64, from: MemberId, of: u32, result: Result<PostReply, PostError>) -> FromScheduler {
    FromScheduler::PostAnswered { request, from, of, result }
}

fn refusal(commands: &[Command]) -> &PostError {
    match only(commands) {
        FromScheduler::PostAnswered { result: Err(error), .. } => error,
        other => panic!("{other:?}"),
    }
}

fn local(message: FromScheduler) -> Command {
    Command::Send { to: vec![LOCAL], message: Box::new(message) }
}

#[test]
fn a_message_goes_to_its_receiver_and_the_answer_back_once() {
    let mut rig = Rig::running(1, 2);
    let commands = rig.say(worker(0), post(9, PostTo::One(worker(1)), 2));
    assert_eq!(commands, [to(&[worker(1)], posted(1, worker(0), 2))]);
    let told = ToScheduler::PostReply { ticket: 1, result: reply() };
    assert_eq!(rig.say(server(0), told.clone()), [], "it was not asked");
    let back = to(&[worker(0)], answer(9, worker(1), 1, reply()));
    assert_eq!(rig.say(worker(1), told.clone()), [back]);
    assert_eq!(rig.say(worker(1), told), [], "it has answered");
}

#[test]
fn a_group_has_an_answer_of_each_and_the_scheduler_s_own_program_takes_part() {
    let mut rig = Rig::running(1, 1);
    let commands = rig.say(worker(0), post(1, EVERYONE, 0));
    let from = worker(0);
    // All are told the same, so that it is encoded once.
    let [Command::Send { to: told, message }] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(**message, posted(1, from, 0));
    assert!(told.len() == 3 && told.contains(&LOCAL), "{told:?}");
    let told = rig.say_on(LOCAL.0, ToScheduler::PostReply { ticket: 1, result: reply() });
    assert_eq!(told, [to(&[worker(0)], answer(1, SCHEDULER, 3, reply()))]);
    let commands = rig.say_on(LOCAL.0, post(7, PostTo::One(server(0)), 0));
    assert_eq!(commands, [to(&[server(0)], posted(2, SCHEDULER, 0))]);
    // What a receiver says of its failure is not passed on.
    let words = Err(PostError::NotNow("words".into()));
    let told = rig.say(server(0), ToScheduler::PostReply { ticket: 2, result: words });
    assert_eq!(told, [local(answer(7, server(0), 1, Err(PostError::NoReply)))]);
}

#[test]
fn deadlines_and_departures_are_told() {
    let mut rig = Rig::running(1, 3);
    rig.now_ms = 5;
    rig.say(worker(0), post(1, PostTo::One(server(0)), 0));
    assert_eq!(rig.engine.next_tick_ms(40), 45);
    let late = Err(PostError::Deadline { member: server(0), waited_ms: 40 });
    assert_eq!(rig.tick_at(45), [to(&[worker(0)], answer(1, server(0), 1, late))]);
    assert_eq!(rig.say(server(0), ToScheduler::PostReply { ticket: 1, result: reply() }), [], "too late");
    rig.say(worker(0), post(2, PostTo::One(worker(1)), 0));
    rig.say(worker(1), post(3, PostTo::One(worker(0)), 0));
    let commands = quiet(rig.say(worker(1), ToScheduler::Goodbye));
    let gone = || Err(PostError::Gone { member: worker(1) });
    let told = to(&[worker(0)], answer(2, worker(1), 1, gone()));
    assert_eq!(commands, [told, goodbye_ack(worker(1)), close(worker(1))]);
    let commands = rig.say(worker(0), ToScheduler::PostReply { ticket: 3, result: reply() });
    assert_eq!(commands, [], "who asked has left");
    let commands = rig.say(worker(0), post(4, PostTo::One(worker(1)), 0));
    assert_eq!(commands, [to(&[worker(0)], answer(4, worker(1), 1, gone()))]);
}

#[test]
fn both_sides_of_each_bound() {
    let mut rig = Rig::running(1, 2);
    let one = PostTo::One(server(0));
    let whole = POSTS_OWED_BYTES_MAX / POST_BODY_BYTES_MAX;
    for request in 0..whole {
        let commands = rig.say(worker(0), post(request as u64, one, POST_BODY_BYTES_MAX));
        assert!(matches!(only(&commands), FromScheduler::Posted { .. }));
    }
    assert_eq!(rig.say(worker(1), post(1, one, 1)), [], "held, by its bytes");
    let long = POST_BODY_BYTES_MAX + 1;
    let told = rig.say(worker(0), post(1, PostTo::One(worker(1)), long));
    assert_eq!(refusal(&told), &PostError::TooLong { bytes: long as u64 });
    for request in 0..POSTS_OWED_MAX {
        let commands = rig.say(worker(0), post(request as u64, PostTo::One(worker(1)), 0));
        assert!(matches!(only(&commands), FromScheduler::Posted { .. }));
    }
    assert_eq!(rig.say(worker(0), post(1, PostTo::One(worker(1)), 0)), [], "held, by their number");
    // So much is held of one sender.
    for request in 0..whole {
        assert_eq!(rig.say(worker(1), post(request as u64, one, POST_BODY_BYTES_MAX - 1)), []);
    }
    assert_eq!(refusal(&rig.say(worker(1), post(1, one, whole))), &PostError::Busy);
    let nobody = PostTo::Group(NodeGroup { scheduler: false, servers: false, workers: false });
    assert_eq!(refusal(&rig.say(worker(0), post(1, nobody, 0))), &PostError::Nobody);
    assert_eq!(refusal(&rig.say(worker(0), post(1, PostTo::One(server(1)), 0))), &PostError::Nobody);
    // All of them end with their deadline, and there is room again.
    assert_eq!(rig.tick_at(40).len(), 2 * whole + POSTS_OWED_MAX + 2);
    let commands = rig.say(worker(0), post(1, one, POST_BODY_BYTES_MAX));
    assert!(matches!(only(&commands), FromScheduler::Posted { .. }));
    const { assert!(POSTS_ASKED_MAX > POSTS_OWED_MAX) };
    let mut early = Rig::new(1, 1);
    early.say(worker(0), ToScheduler::Register(register(Role::Worker, 5)));
    assert!(matches!(refusal(&early.say(worker(0), post(1, one, 0))), PostError::NotNow(_)));
}

#[test]
fn what_a_receiver_has_no_room_for_is_told_as_that_and_is_not_owed() {
    let mut rig = Rig::running(1, 2);
    let one = PostTo::One(server(0));
    for request in 0..POSTS_OWED_MAX as u64 {
        rig.say(worker(0), post(request, one, 0));
    }
    // By the scheduler, which has not sent it, and by the receiver, whose handler is behind.
    let busy = |request| [to(&[worker(0)], answer(request, server(0), 1, Err(PostError::Busy)))];
    let not_sent = Input::NotPosted { ticket: 1, to: connection(server(0)) };
    assert_eq!(rig.handle(not_sent.clone()), busy(0));
    assert_eq!(rig.handle(not_sent), [], "once");
    let behind = ToScheduler::PostReply { ticket: 2, result: Err(PostError::Busy) };
    assert_eq!(rig.say(server(0), behind), busy(1));
    for _ in 0..2 {
        let commands = rig.say(worker(1), post(1, one, 0));
        assert!(matches!(only(&commands), FromScheduler::Posted { .. }));
    }
    assert_eq!(rig.say(worker(1), post(1, one, 0)), [], "it is full");
}

#[test]
fn what_a_receiver_has_no_room_for_is_passed_on_in_order_when_it_has_answered() {
    let mut rig = Rig::running(1, 2);
    let one = PostTo::One(server(0));
    for request in 1..=POSTS_OWED_MAX as u64 {
        rig.say(worker(0), post(request, one, 0));
    }
    let first = POSTS_OWED_MAX as u64 + 1;
    for request in 0..3 {
        assert_eq!(rig.say(worker(1), post(request, one, 2)), []);
    }
    let told = |ticket| ToScheduler::PostReply { ticket, result: reply() };
    assert_eq!(rig.say(server(0), told(first)), [], "it was not asked that yet");
    let back = to(&[worker(0)], answer(1, server(0), 1, reply()));
    let next = |ticket| to(&[server(0)], posted(ticket, worker(1), 2));
    assert_eq!(rig.say(server(0), told(1)), [back, next(first)]);
    // A sender that leaves makes room, too.
    let commands = quiet(rig.say(worker(0), ToScheduler::Goodbye));
    assert_eq!(commands[..2], [next(first + 1), next(first + 2)]);
    // Of a receiver that leaves nothing is held.
    for request in 0..POSTS_OWED_MAX as u64 {
        rig.say(server(0), post(request, PostTo::One(worker(1)), 0));
    }
    assert_eq!(rig.say(server(0), post(7, PostTo::One(worker(1)), 0)), []);
    let gone = Err(PostError::Gone { member: worker(1) });
    let commands = quiet(rig.say(worker(1), ToScheduler::Goodbye));
    assert!(commands.contains(&to(&[server(0)], answer(7, worker(1), 1, gone))), "{commands:?}");
}
