//! How members go and how the job ends.

use super::*;
use proto_common::error::DeathCause;
use proto_common::message::RefusalReason;

fn died(member: MemberId, cause: DeathCause) -> FromScheduler {
    FromScheduler::MemberDied(Death { member, cause })
}

#[test]
fn the_orderly_end() {
    let mut rig = Rig::running(2, 2);
    let commands = rig.say(worker(1), ToScheduler::Goodbye);
    assert_eq!(rig.engine.take_notes(), [Note::Left(worker(1))]);
    let left = |message: &FromScheduler| matches!(message, FromScheduler::Roster { members, left, .. } if members.len() == 3 && left[..] == [Rank(1)]);
    assert!(left(only(&commands)), "the others hear of it: {commands:?}");
    let last = &commands[commands.len() - 2..];
    assert_eq!(last, [goodbye_ack(worker(1)), close(worker(1))], "it goes when they are told");
    assert!(rig.lose(worker(1)).is_empty(), "closed by both sides");
    let commands = rig.say(worker(0), ToScheduler::Goodbye);
    let shutdown = FromScheduler::Shutdown { reason: "all workers are done".into() };
    let both = to(&[server(0), server(1)], shutdown);
    assert_eq!(commands, [both, goodbye_ack(worker(0)), close(worker(0))]);
    let commands = rig.say(server(1), ToScheduler::Goodbye);
    assert_eq!(commands, [goodbye_ack(server(1)), close(server(1))]);
    let done = Outcome::Done { reason: "all workers are done".into() };
    assert_eq!(rig.lose(server(0)), [Command::End(done)], "a server that just closes is fine now");
    assert!(rig.tick_at(9_999).is_empty(), "nothing follows the end");
}

#[test]
fn servers_that_do_not_leave_are_not_waited_for_longer_than_the_drain() {
    let mut rig = Rig::running(1, 1);
    rig.now_ms = 50;
    rig.say(worker(0), ToScheduler::Goodbye);
    assert_eq!(rig.engine.next_tick_ms(50 + DRAIN_MS - 1), 50 + DRAIN_MS);
    assert!(rig.tick_at(50 + DRAIN_MS - 1).is_empty());
    assert!(matches!(rig.tick_at(50 + DRAIN_MS)[..], [Command::End(Outcome::Done { .. })]));
}

#[test]
fn a_lost_connection_is_a_death_at_once() {
    let mut rig = Rig::running(1, 3);
    rig.say(worker(2), ToScheduler::Goodbye);
    let commands = rig.lose(worker(1));
    assert_eq!(commands, [to(&[server(0), worker(0)], died(worker(1), DeathCause::ConnectionLost))]);
    assert!(rig.lose(server(0)).is_empty(), "those who leave because of it are no deaths");
    let end = rig.lose(worker(0));
    let death = Death { member: worker(1), cause: DeathCause::ConnectionLost };
    assert_eq!(end, [Command::End(Outcome::Died(death))]);
}

#[test]
fn silence_is_a_death_beyond_its_bound() {
    let mut rig = Rig::running(1, 1);
    rig.now_ms = 60;
    rig.say(server(0), ToScheduler::Heartbeat(MemberReport::default()));
    assert!(rig.tick_at(SILENCE_MS).is_empty(), "at the bound");
    let commands = rig.tick_at(SILENCE_MS + 1);
    let cause = DeathCause::Silent { silent_ms: SILENCE_MS + 1 };
    assert_eq!(commands, [close(worker(0)), to(&[server(0)], died(worker(0), cause))]);
}

#[test]
fn a_member_that_fails_is_quoted() {
    let mut rig = Rig::running(1, 2);
    let reason = "ü".repeat(2000);
    let commands = rig.say(worker(0), ToScheduler::Failing { reason });
    let cause = DeathCause::Failed { reason: "ü".repeat(1024) };
    assert_eq!(commands, [close(worker(0)), to(&[server(0), worker(1)], died(worker(0), cause))]);
}

#[test]
fn a_broken_peer_is_dead_and_its_fault_is_named() {
    let mut rig = Rig::running(1, 1);
    let fault = Some("it does not read".to_owned());
    let commands = rig.handle(Input::Closed { connection: connection(worker(0)), fault });
    let cause = DeathCause::Failed { reason: "it does not read".into() };
    assert_eq!(commands, [to(&[server(0)], died(worker(0), cause))]);
}

#[test]
fn leaving_too_early_is_a_death() {
    let mut rig = Rig::running(1, 1);
    let commands = rig.say(server(0), ToScheduler::Goodbye);
    assert!(
        matches!(only(&commands), FromScheduler::MemberDied(d) if d.to_string().contains("still needed"))
    );
    let mut rig = Rig::new(1, 2);
    rig.say(worker(0), ToScheduler::Register(register(Role::Worker, 1)));
    rig.say(worker(1), ToScheduler::Register(register(Role::Worker, 2)));
    let commands = rig.lose(worker(0));
    assert_eq!(commands, [to(&[worker(1)], died(worker(0), DeathCause::ConnectionLost))]);
}

#[test]
fn those_who_came_are_told_who_did_not() {
    let mut rig = Rig::new(2, 1);
    rig.say(server(0), ToScheduler::Register(register(Role::Server, 1)));
    rig.now_ms = ASSEMBLE_MS - 1;
    rig.say(server(0), ToScheduler::LinksReady);
    assert!(rig.tick_at(ASSEMBLE_MS - 1).is_empty());
    let commands = rig.tick_at(ASSEMBLE_MS);
    let missing = vec![server(1), worker(0)];
    let reason = RefusalReason::Incomplete { waited_ms: ASSEMBLE_MS, missing: missing.clone() };
    let end = Command::End(Outcome::Incomplete { waited_ms: ASSEMBLE_MS, missing });
    assert_eq!(commands, [to(&[server(0)], FromScheduler::Refused(reason)), close(server(0)), end]);
}

#[test]
fn nobody_at_all_is_an_end_too() {
    let mut rig = Rig::new(1, 1);
    assert!(matches!(rig.tick_at(ASSEMBLE_MS)[..], [Command::End(Outcome::Incomplete { .. })]));
}

#[test]
fn a_request_to_stop_ends_in_good_order() {
    let mut rig = Rig::running(1, 1);
    let commands = rig.handle(Input::Stop { reason: "SIGTERM received".into() });
    let reason = "the scheduler was stopped: SIGTERM received".to_owned();
    let shutdown = FromScheduler::Shutdown { reason: reason.clone() };
    assert_eq!(commands, [to(&[server(0), worker(0)], shutdown)]);
    rig.say(worker(0), ToScheduler::Goodbye);
    let end = rig.say(server(0), ToScheduler::Failing { reason: "late".into() });
    assert_eq!(end, [close(server(0)), Command::End(Outcome::Done { reason })]);
    let mut empty = Rig::new(1, 1);
    assert_eq!(empty.handle(Input::Stop { reason: "x".into() }).len(), 1, "nobody there: ends at once");
}
