//! Two schedulers and a divided network: who may decide, and when a decision is in force.

use super::losing::{come_again, known_in, next_after};
use super::*;
use proto_common::message::Resume;

const SCHEDULER_MS: u64 = 1_000;

/// Two servers with each other's copies and three workers, who are waited for.
fn five() -> Rig {
    let mut rig = Rig::new(2, 3);
    let shape = &mut rig.engine.config.shape;
    (shape.replicas, shape.worker_loss, shape.scheduler_ms) = (1, WorkerLoss::Wait, SCHEDULER_MS);
    rig.engine.config.rejoin_ms = 60_000;
    rig.engine = Engine::new(rig.engine.config.clone(), 0);
    rig.all_register();
    rig
}

/// A scheduler that follows that one.
fn after(before: &Rig, force: bool) -> Rig {
    let mut rig = next_after(before);
    let config = EngineConfig { resume: true, force, ..rig.engine.config.clone() };
    rig.engine = Engine::new(config, 0);
    rig
}

fn beat(rig: &mut Rig, members: &[MemberId]) {
    for id in members {
        rig.say(*id, ToScheduler::Heartbeat(MemberReport::default()));
    }
}

/// Time passes, and of all members these are heard.
fn pass(rig: &mut Rig, heard: &[MemberId], end_ms: u64) -> Vec<Command> {
    let mut commands = Vec::new();
    while rig.now_ms < end_ms {
        let next_ms = rig.engine.next_tick_ms(rig.now_ms).clamp(rig.now_ms + 1, end_ms);
        commands.extend(rig.tick_at(next_ms));
        beat(rig, heard);
    }
    commands
}

fn messages(commands: &[Command]) -> Vec<&FromScheduler> {
    let mut messages = Vec::new();
    for command in commands {
        if let Command::Send { message, .. } = command {
            messages.push(&**message);
        }
    }
    messages
}

#[test]
fn a_restarted_scheduler_decides_with_a_majority_of_the_newest_roster_only() {
    let before = five();
    let known = known_in(&before);
    let mut rig = after(&before, false);
    for id in [server(1), worker(2)] {
        come_again(&mut rig, id, &known);
    }
    let commands = pass(&mut rig, &[], 5 * SILENCE_MS);
    assert_eq!(messages(&commands), Vec::<&FromScheduler>::new(), "nothing is decided");
    assert_eq!(rig.engine.phase, Phase::Rebuilding);
    assert_eq!(rig.engine.status(rig.now_ms).missing, [server(0), worker(0), worker(1)]);
    come_again(&mut rig, worker(0), &known);
    assert_eq!(rig.engine.phase, Phase::Running, "three of five have come, and the others had their time");
}

#[test]
fn without_a_majority_a_restarted_scheduler_ends_and_an_operator_may_continue() {
    let before = five();
    let known = known_in(&before);
    let mut rig = after(&before, false);
    come_again(&mut rig, server(1), &known);
    come_again(&mut rig, worker(2), &known);
    pass(&mut rig, &[], SCHEDULER_MS);
    let Phase::Ended { outcome: Outcome::Incomplete { missing, .. } } = &rig.engine.phase else {
        panic!("{:?}", rig.engine.phase)
    };
    assert_eq!(missing, &[server(0), worker(0), worker(1)]);
    let mut rig = after(&before, true);
    come_again(&mut rig, server(1), &known);
    come_again(&mut rig, worker(2), &known);
    pass(&mut rig, &[], SILENCE_MS + 1);
    assert_eq!(rig.engine.phase, Phase::Running);
}

#[test]
fn half_of_the_members_are_enough_with_the_first_of_them_only() {
    let mut before = Rig::new(2, 2);
    let shape = &mut before.engine.config.shape;
    (shape.replicas, shape.worker_loss, shape.scheduler_ms) = (1, WorkerLoss::Wait, SCHEDULER_MS);
    before.engine = Engine::new(before.engine.config.clone(), 0);
    let places: Vec<MemberId> = before.engine.places().collect();
    for id in places {
        before.say(id, ToScheduler::Register(register(id.role, connection(id).0 + 1)));
    }
    before.wait_until(SILENCE_MS);
    let known = known_in(&before);
    for (half, runs) in [([server(0), worker(0)], true), ([server(1), worker(1)], false)] {
        let mut rig = after(&before, false);
        for id in half {
            come_again(&mut rig, id, &known);
        }
        pass(&mut rig, &[], 3 * SILENCE_MS);
        assert_eq!(rig.engine.phase == Phase::Running, runs, "{half:?}");
    }
}

#[test]
fn a_restarted_scheduler_says_nothing_before_a_majority_has_voted_for_it() {
    let before = five();
    let known = known_in(&before);
    let mut rig = after(&before, false);
    let all: Vec<MemberId> = rig.engine.places().collect();
    let mut commands = Vec::new();
    for id in &all {
        let resume = Resume { rank: id.rank, ..known.clone() };
        let again = Register { resume: Some(resume.head()), ..register(id.role, connection(*id).0 + 1) };
        let from = connection(*id);
        for message in [ToScheduler::Register(again), ToScheduler::Resuming { part: resume, last: true }] {
            commands.extend(rig.engine.handle(0, Input::Message { from, message }));
        }
    }
    let asked: Vec<&FromScheduler> = messages(&commands);
    assert_eq!(asked, vec![&FromScheduler::Candidate { term: 2 }; 5]);
    let vote = |term| ToScheduler::Heard { epoch: Epoch { term, counter: 0 } };
    for id in [server(0), worker(1)] {
        assert_eq!(rig.engine.handle(1, Input::Message { from: connection(id), message: vote(2) }), []);
    }
    // A member of that job comes on another connection, which has voted for another scheduler meanwhile: this one needs a higher term.
    let resume = Resume { rank: Rank(2), term: 2, ..known.clone() };
    let again =
        Register { resume: Some(resume.head()), ..register(Role::Worker, connection(worker(2)).0 + 1) };
    let from = ConnectionId(900);
    rig.engine.handle(1, Input::Closed { connection: connection(worker(2)), fault: None });
    rig.engine.handle(2, Input::Message { from, message: ToScheduler::Register(again) });
    let message = ToScheduler::Resuming { part: resume, last: true };
    let commands = rig.engine.handle(2, Input::Message { from, message });
    assert_eq!(messages(&commands), vec![&FromScheduler::Candidate { term: 3 }; 5]);
    for from in [connection(server(0)), connection(server(1))] {
        rig.engine.handle(3, Input::Message { from, message: vote(3) });
        // One of before does not count.
        rig.engine.handle(3, Input::Message { from, message: vote(2) });
    }
    assert_eq!(rig.engine.phase, Phase::Rebuilding);
    let commands = rig.engine.handle(3, Input::Message { from, message: vote(3) });
    assert_eq!(rig.engine.phase, Phase::Running);
    let welcomes = messages(&commands);
    let terms = welcomes.iter().filter_map(|message| match message {
        FromScheduler::Welcome(welcome) => Some(welcome.epoch.term),
        _ => None,
    });
    assert_eq!(terms.collect::<Vec<_>>(), [3; 5]);
}

#[test]
fn a_decision_is_in_force_when_a_majority_of_the_roster_before_it_has_heard_of_it() {
    let mut rig = five();
    // Worker 2 is silent, and the others hear of its end one after the other.
    let others = [server(0), server(1), worker(0), worker(1)];
    pass(&mut rig, &others, SILENCE_MS);
    rig.now_ms += 1;
    let commands = rig.engine.handle(rig.now_ms, Input::Tick);
    let told = messages(&commands);
    assert!(
        told.iter()
            .any(|message| matches!(message, FromScheduler::Roster { members, .. } if members.len() == 4))
    );
    let Some(FromScheduler::Proposed { epoch, rosters }) = told.last() else { panic!("{told:?}") };
    assert_eq!(rosters.iter().map(Vec::len).collect::<Vec<_>>(), [5]);
    let heard = |epoch| ToScheduler::Heard { epoch };
    for id in [worker(0), worker(0), server(1)] {
        let commands =
            rig.engine.handle(rig.now_ms, Input::Message { from: connection(id), message: heard(*epoch) });
        assert_eq!(commands, [], "two of five have heard of it");
    }
    // What is decided meanwhile is proposed next.
    let commands =
        rig.engine.handle(rig.now_ms, Input::Closed { connection: connection(worker(1)), fault: None });
    assert!(
        messages(&commands)
            .iter()
            .any(|message| matches!(message, FromScheduler::Roster { members, .. } if members.len() == 3))
    );
    // Without the one that exited these two are half of four, and the first is not among them.
    assert!(messages(&commands).iter().all(|message| !matches!(message, FromScheduler::Decided { .. })));
    let commands =
        rig.engine.handle(rig.now_ms, Input::Message { from: connection(server(0)), message: heard(*epoch) });
    let told = messages(&commands);
    assert_eq!(told[0], &FromScheduler::Decided { epoch: *epoch });
    let FromScheduler::Proposed { epoch: next, rosters } = told[1] else { panic!("{told:?}") };
    assert!(next > epoch);
    assert_eq!(rosters.iter().map(Vec::len).collect::<Vec<_>>(), [4], "the roster that is in force now");
}

#[test]
fn a_minority_decides_nothing_and_continues_when_the_others_are_heard_again() {
    let mut rig = five();
    let minority = [server(0), worker(0)];
    let others = [server(1), worker(1), worker(2)];
    let commands = pass(&mut rig, &minority, 3 * SILENCE_MS);
    assert_eq!(messages(&commands), Vec::<&FromScheduler>::new());
    beat(&mut rig, &others);
    let commands = pass(&mut rig, &[minority.as_slice(), &others].concat(), 2 * SCHEDULER_MS);
    assert_eq!((messages(&commands), &rig.engine.phase), (vec![], &Phase::Running));
    let end_ms = rig.now_ms + SCHEDULER_MS + 2 * SILENCE_MS;
    let commands = pass(&mut rig, &minority, end_ms);
    let Some(FromScheduler::MemberDied(death)) = messages(&commands).first().copied() else {
        panic!("{commands:?}")
    };
    assert!(
        death.to_string().contains("no majority of the members (server 1, worker 1, worker 2 silent)"),
        "{death}"
    );
}

#[test]
fn a_majority_that_has_given_the_scheduler_up_may_come_back_to_it() {
    let mut rig = five();
    let known = known_in(&rig);
    let (minority, others) = ([server(0), worker(0)], [server(1), worker(1), worker(2)]);
    for id in others {
        rig.say(id, ToScheduler::Abandons);
        rig.lose(id);
    }
    pass(&mut rig, &minority, 3 * SILENCE_MS);
    let mut commands = Vec::new();
    for (number, id) in [others.as_slice(), &minority].concat().into_iter().enumerate() {
        let resume = Resume { rank: id.rank, ..known.clone() };
        let again = Register { resume: Some(resume.head()), ..register(id.role, connection(id).0 + 1) };
        let from = 500 + number as u64;
        commands.extend(rig.say_on(from, ToScheduler::Register(again)));
        commands.extend(rig.say_on(from, ToScheduler::Resuming { part: resume, last: true }));
    }
    let is_refusal = |message: &&FromScheduler| matches!(message, FromScheduler::Refused(_));
    assert_eq!(messages(&commands).into_iter().filter(is_refusal).count(), 0, "{commands:?}");
    assert_eq!((&rig.engine.phase, rig.engine.epoch().term), (&Phase::Running, 2));
    assert_eq!(rig.engine.status(rig.now_ms).members.len(), 5);
}

#[test]
fn the_job_of_two_goes_on_when_one_of_them_exits() {
    let mut rig = Rig::new(1, 2);
    let shape = &mut rig.engine.config.shape;
    (shape.worker_loss, shape.scheduler_ms) = (WorkerLoss::Continue, SCHEDULER_MS);
    rig.engine = Engine::new(rig.engine.config.clone(), 0);
    for id in [server(0), worker(0), worker(1)] {
        let message = Register { wanted_rank: Some(id.rank), ..register(id.role, connection(id).0 + 1) };
        rig.say(id, ToScheduler::Register(message));
    }
    for gone in [worker(1), server(0)] {
        let commands = rig.engine.handle(0, Input::Closed { connection: connection(gone), fault: None });
        let told = messages(&commands);
        if gone == server(0) {
            assert!(matches!(told[..], [FromScheduler::MemberDied(_)]), "{told:?}");
            continue;
        }
        let Some(FromScheduler::Proposed { epoch, .. }) = told.last() else { panic!("{told:?}") };
        let message = ToScheduler::Heard { epoch: *epoch };
        let commands = rig.engine.handle(0, Input::Message { from: connection(server(0)), message });
        assert!(matches!(messages(&commands)[..], [FromScheduler::Decided { .. }]), "{commands:?}");
    }
}

#[test]
fn a_member_that_looks_for_another_scheduler_has_not_exited() {
    let mut rig = five();
    let others = [server(1), worker(1), worker(2)];
    for id in others {
        assert_eq!(rig.say(id, ToScheduler::Abandons), []);
        assert_eq!(rig.lose(id), [], "it may follow another scheduler by now");
    }
    let commands = pass(&mut rig, &[server(0), worker(0)], 3 * SILENCE_MS);
    assert_eq!(messages(&commands), Vec::<&FromScheduler>::new());
    // Those whose connection just closes have exited, and count for nothing.
    let mut rig = five();
    others.into_iter().for_each(|id| drop(rig.lose(id)));
    let commands = pass(&mut rig, &[server(0), worker(0)], 3 * SILENCE_MS);
    assert_eq!((messages(&commands), &rig.engine.phase), (vec![], &Phase::Running));
    assert_eq!(rig.engine.quorum.rosters().iter().map(Vec::len).collect::<Vec<_>>(), [2], "in force");
}

#[test]
fn the_next_scheduler_needs_a_majority_of_each_roster_that_may_be_in_force() {
    let before = five();
    let known = known_in(&before);
    let lives =
        |ids: &[MemberId]| ids.iter().map(|id| Incarnation(connection(*id).0 + 1)).collect::<Vec<_>>();
    // The roster without server 0 and worker 0 was proposed; that is in force only if a majority of all five has heard of it.
    let members: Vec<_> = known.members.iter().filter(|member| member.id.rank != Rank(0)).cloned().collect();
    let rosters = vec![lives(&[server(0), server(1), worker(0), worker(1), worker(2)])];
    let newer = Resume { epoch: known.epoch.next(), members, rosters, ..known.clone() };
    let mut rig = after(&before, false);
    come_again(&mut rig, server(1), &newer);
    come_again(&mut rig, worker(1), &newer);
    pass(&mut rig, &[], 3 * SILENCE_MS);
    assert_eq!(rig.engine.phase, Phase::Rebuilding, "two of the newest three, and two of the five before");
    come_again(&mut rig, worker(0), &known);
    assert_eq!(rig.engine.phase, Phase::Running);
    assert!(rig.engine.members.get(worker(0)).is_none(), "the newest roster is what continues");
}

#[test]
fn a_connection_that_closes_after_a_silence_does_not_show_an_exit() {
    let mut rig = five();
    let (minority, others) = ([server(0), worker(0)], [server(1), worker(1), worker(2)]);
    let end_ms = rig.now_ms + 2 * SILENCE_MS;
    pass(&mut rig, &minority, end_ms);
    for id in others {
        assert_eq!(rig.lose(id), [], "its notice that it looks for another scheduler may be lost");
    }
    let end_ms = rig.now_ms + SILENCE_MS;
    let commands = pass(&mut rig, &minority, end_ms);
    assert_eq!(messages(&commands), Vec::<&FromScheduler>::new());
}

#[test]
fn an_operators_word_holds_for_one_recovery() {
    let before = five();
    let known = known_in(&before);
    let mut rig = after(&before, true);
    come_again(&mut rig, server(1), &known);
    come_again(&mut rig, worker(2), &known);
    pass(&mut rig, &[], SILENCE_MS + 1);
    assert_eq!(rig.engine.phase, Phase::Running);
    let known = known_in(&rig);
    rig.engine.follow_itself(rig.now_ms, &mut Vec::new());
    let resume = Resume { rank: Rank(2), ..known };
    let again =
        Register { resume: Some(resume.head()), ..register(Role::Worker, connection(worker(2)).0 + 1) };
    rig.say_on(500, ToScheduler::Register(again));
    rig.say_on(500, ToScheduler::Resuming { part: resume, last: true });
    let end_ms = rig.now_ms + 3 * SILENCE_MS;
    pass(&mut rig, &[], end_ms);
    assert_eq!(
        rig.engine.phase,
        Phase::Rebuilding,
        "server 1 may run now, whatever was said of others before"
    );
}

#[test]
fn a_server_that_leaves_counts_for_no_majority() {
    let mut rig = five();
    let say = |rig: &mut Rig, id, message| {
        rig.engine.handle(rig.now_ms, Input::Message { from: connection(id), message })
    };
    let commands = say(&mut rig, server(0), ToScheduler::Goodbye);
    let told = messages(&commands);
    let Some(FromScheduler::Proposed { epoch, .. }) =
        told.iter().find(|message| matches!(message, FromScheduler::Proposed { .. }))
    else {
        panic!("{told:?}")
    };
    assert_eq!(told.last(), Some(&&FromScheduler::GoodbyeAck), "after the others have heard of it");
    assert_eq!(say(&mut rig, server(1), ToScheduler::Heard { epoch: *epoch }), []);
    let commands = say(&mut rig, worker(0), ToScheduler::Heard { epoch: *epoch });
    assert!(matches!(messages(&commands)[..], [FromScheduler::Decided { .. }]), "{commands:?}");
}

#[test]
fn a_goodbye_is_answered_when_the_leaving_is_proposed() {
    let mut rig = five();
    let say = |rig: &mut Rig, id, message| {
        rig.engine.handle(rig.now_ms, Input::Message { from: connection(id), message })
    };
    let has_ack = |commands: &[Command]| messages(commands).contains(&&FromScheduler::GoodbyeAck);
    let first = say(&mut rig, worker(0), ToScheduler::Goodbye);
    assert!(has_ack(&first));
    assert!(!has_ack(&say(&mut rig, worker(1), ToScheduler::Goodbye)), "the first proposal is not decided");
    // It was told to register first.
    let commands = say(&mut rig, worker(1), ToScheduler::Heartbeat(MemberReport::default()));
    assert_eq!(messages(&commands), [&FromScheduler::HeartbeatAck]);
    assert_eq!(say(&mut rig, worker(1), ToScheduler::LinksReady), []);
    let Some(FromScheduler::Proposed { epoch, .. }) = messages(&first)
        .into_iter()
        .find(|message| matches!(message, FromScheduler::Proposed { .. }))
        .cloned()
    else {
        panic!("{first:?}")
    };
    let answers = [server(0), server(1)].map(|id| say(&mut rig, id, ToScheduler::Heard { epoch }));
    assert!(answers.iter().any(|commands| has_ack(commands)), "{answers:?}");
}

#[test]
fn a_scheduler_that_was_suspended_answers_the_goodbyes_that_it_still_owes() {
    let mut rig = five();
    let say = |rig: &mut Rig, id, message| {
        rig.engine.handle(rig.now_ms, Input::Message { from: connection(id), message })
    };
    say(&mut rig, worker(0), ToScheduler::Goodbye);
    say(&mut rig, worker(1), ToScheduler::Goodbye);
    let commands = rig.engine.handle(rig.now_ms + 10 * SILENCE_MS, Input::Tick);
    assert_eq!(rig.engine.phase, Phase::Rebuilding);
    assert!(messages(&commands).contains(&&FromScheduler::GoodbyeAck), "{commands:?}");
}

#[test]
fn a_process_that_is_refused_as_failed_counts_until_it_has_said_goodbye() {
    let before = five();
    let known = known_in(&before);
    let mut rig = after(&before, false);
    let (there, failed) = ([server(1), worker(0), worker(2)], [server(0), worker(1)]);
    there.into_iter().for_each(|id| drop(come_again(&mut rig, id, &known)));
    // The engine's own answers: no member hears at once of a decision here.
    let say = |rig: &mut Rig, from: ConnectionId, message: ToScheduler| {
        rig.engine.handle(rig.now_ms, Input::Message { from, message })
    };
    for _ in 0..=SILENCE_MS / 10 {
        rig.now_ms += 10;
        rig.engine.handle(rig.now_ms, Input::Tick);
    }
    let vote = ToScheduler::Heard { epoch: Epoch { term: 2, counter: 0 } };
    there.into_iter().for_each(|id| drop(say(&mut rig, connection(id), vote.clone())));
    let decided = rig.engine.epoch();
    // The decision without those two is on its way, and one more leaves: two are left of four, without the first of them.
    say(&mut rig, connection(worker(2)), ToScheduler::Goodbye);
    let epoch = rig.engine.epoch();
    for id in [server(1), worker(0)] {
        say(&mut rig, connection(id), ToScheduler::Heard { epoch });
    }
    let refused = |rig: &mut Rig, number: u64, id: MemberId| {
        let resume = Resume { rank: id.rank, ..known.clone() };
        let again = Register { resume: Some(resume.head()), ..register(id.role, connection(id).0 + 1) };
        let from = ConnectionId(number);
        let mut commands = say(rig, from, ToScheduler::Register(again));
        commands.extend(say(rig, from, ToScheduler::Resuming { part: resume, last: true }));
        assert!(matches!(messages(&commands)[..], [FromScheduler::Refused(_)]), "{commands:?}");
        assert!(!commands.contains(&Command::Close { connection: from }), "it has not said goodbye");
        assert_eq!(rig.engine.standing(from), Standing::Member);
        from
    };
    let from = refused(&mut rig, 500, failed[0]);
    assert_eq!(
        rig.engine.quorum.rosters()[0].len(),
        5,
        "it may not have received the refusal, and follow another scheduler"
    );
    let commands = say(&mut rig, from, ToScheduler::Goodbye);
    assert_eq!(commands[0], Command::Close { connection: from });
    assert!(messages(&commands).contains(&&FromScheduler::Decided { epoch: decided }), "{commands:?}");
    // Who says nothing is waited for no longer than a member.
    let last = refused(&mut rig, 501, failed[1]);
    let end_ms = rig.now_ms + SILENCE_MS + 1;
    let commands = pass(&mut rig, &[server(1), worker(0)], end_ms);
    assert!(commands.contains(&Command::Close { connection: last }), "{commands:?}");
    assert_eq!(rig.engine.standing(last), Standing::Stranger);
}
