//! Rows that nobody has copies of, what members may say of the past, and what a sleep leaves.

use super::losing::{come_again, declared, known_in, messages, next_after, rig_of};
use super::*;
use proto_common::message::{self, CheckpointNews, PostMessage, PostTo, RefusalReason, Resume};
use proto_common::shard_map::MapChange;
use proto_common::table::Spread;

/// The homes of a cluster's tables, declared and allocated.
fn with_homes(rig: &mut Rig) {
    let spread = Spread { servers: 2, lanes: rig.engine.config.shape.lanes };
    let chunk_bytes = rig.engine.config.shape.chunk_bytes;
    let homes = (0..spread.parts()).map(|part| spread.home_spec(part, chunk_bytes)).collect();
    rig.say(worker(0), ToScheduler::Declare { request: 1, tensors: homes, timeout_ms: 50 });
    let epoch = rig.engine.epoch();
    for rank in 0..2 {
        rig.say(server(rank), ToScheduler::Assigned { epoch, error: None });
    }
}

#[test]
fn the_death_of_a_server_with_rows_goes_by_their_copies() {
    for replicas in [0, 1] {
        let mut rig = rig_of(replicas, WorkerLoss::Stop);
        with_homes(&mut rig);
        assert!(rig.engine.declarations.shards.map().ranges().any(|range| range.server == Rank(1)));
        let commands = rig.lose(server(1));
        let died = |m: &&FromScheduler| matches!(m, FromScheduler::MemberDied(death) if death.to_string().contains("rows of sparse tables"));
        assert_eq!(messages(&commands).iter().any(died), replicas == 0, "{commands:?}");
        if replicas > 0 {
            assert!(rig.engine.declarations.shards.map().ranges().all(|range| range.server == Rank(0)));
        }
    }
}

#[test]
fn homes_go_from_a_server_that_wishes_to_go() {
    let mut rig = rig_of(0, WorkerLoss::Stop);
    with_homes(&mut rig);
    let commands = rig.say(server(1), ToScheduler::Drain);
    let moves = messages(&commands).into_iter().filter_map(|m| match m {
        FromScheduler::Remap { change: MapChange::Ranges(ranges), .. } => Some(ranges),
        _ => None,
    });
    assert!(moves.flatten().any(|range| range.seeding == Some(Rank(0))), "{commands:?}");
}

#[test]
fn the_newest_connection_of_a_life_is_the_members() {
    let mut before = rig_of(1, WorkerLoss::Stop);
    declared(&mut before);
    let resume = known_in(&before);
    let mut rig = next_after(&before);
    for id in [server(0), server(1), worker(0)] {
        come_again(&mut rig, id, &resume);
    }
    let of_before = Resume { rank: Rank(0), ..resume.clone() };
    let again =
        Register { resume: Some(of_before.head()), ..register(Role::Worker, connection(worker(0)).0 + 1) };
    rig.say_on(900, ToScheduler::Register(again));
    rig.say_on(900, ToScheduler::Resuming { part: of_before, last: true });
    come_again(&mut rig, worker(1), &resume);
    assert_eq!(rig.engine.phase, Phase::Running);
    assert_eq!(rig.engine.member_of(ConnectionId(900)), Some(worker(0)));
    assert!(!rig.engine.members.is_dead(Incarnation(connection(worker(0)).0 + 1)), "it is alive");
}

#[test]
fn what_a_member_knows_is_bounded_however_many_parts_it_comes_in() {
    let mut before = rig_of(1, WorkerLoss::Stop);
    declared(&mut before);
    let resume = known_in(&before);
    let one = resume.members[0].clone();
    let long = message::Member { data_address: Some("x".repeat(NAME_BYTES_MAX + 1)), ..one.clone() };
    let barrier = |name: String| (name, NodeGroup::WORKERS, 1);
    let parts = [
        Resume { members: vec![one; 3000], ..Resume::default() },
        Resume { members: vec![long], ..Resume::default() },
        Resume { left: vec![Rank(0); 3000], ..Resume::default() },
        Resume { barriers: vec![barrier("b".into()); 3000], ..Resume::default() },
        Resume { barriers: vec![barrier("x".repeat(NAME_BYTES_MAX + 1))], ..Resume::default() },
    ];
    for part in parts {
        let mut rig = next_after(&before);
        let again = Register { resume: Some(resume.head()), ..register(Role::Worker, 101) };
        rig.say(worker(0), ToScheduler::Register(again));
        let mut say = || rig.say(worker(0), ToScheduler::Resuming { part: part.clone(), last: false });
        let (first, second) = (say(), say());
        let refused = |commands: &[Command]| {
            messages(commands).iter().any(|m| matches!(m, FromScheduler::Refused(reason) if reason.to_string().contains("than there can be")))
        };
        assert!(refused(&first) || refused(&second), "{first:?} {second:?}");
    }
}

#[test]
fn a_term_that_cannot_be_followed_is_not_taken_up() {
    let mut before = rig_of(1, WorkerLoss::Wait);
    declared(&mut before);
    let resume = known_in(&before);
    let shows = |term, epoch_term| {
        let epoch = Epoch { term: epoch_term, ..resume.epoch };
        Resume { term, epoch, rank: Rank(0), ..resume.clone() }
    };
    for liar in [shows(u32::MAX, 1), shows(1, u32::MAX)] {
        let mut rig = next_after(&before);
        let again = Register { resume: Some(liar.head()), ..register(Role::Worker, 101) };
        let commands = rig.say(worker(0), ToScheduler::Register(again));
        let FromScheduler::Refused(reason) = only(&commands) else { panic!("{commands:?}") };
        assert!(reason.to_string().contains("no scheduler can follow"), "{reason}");
        assert_eq!(rig.engine.phase, Phase::Assembling, "it is no sign of a job before");
    }
    let mut rig = next_after(&before);
    for id in [server(0), server(1), worker(0), worker(1)] {
        let told = shows(u32::MAX - 1, 1);
        come_again(&mut rig, id, &told);
    }
    assert_eq!((&rig.engine.phase, rig.engine.epoch().term), (&Phase::Running, u32::MAX), "at the bound");
}

#[test]
fn a_roster_counts_where_its_teller_is_in_it() {
    let mut before = rig_of(1, WorkerLoss::Wait);
    declared(&mut before);
    let resume = known_in(&before);
    let mut rig = next_after(&before);
    // Newer than what all others know, and without the one that shows it.
    let newest = Epoch { counter: resume.epoch.counter + 100, ..resume.epoch };
    let others = resume.members.iter().filter(|member| member.id != worker(1)).cloned().collect();
    let told = Resume { epoch: newest, members: others, ..resume.clone() };
    let commands = come_again(&mut rig, worker(1), &told);
    let FromScheduler::Refused(reason) = only(&commands) else { panic!("{commands:?}") };
    assert!(reason.to_string().contains("does not contain this process"), "{reason}");
    for id in [server(0), server(1), worker(0)] {
        come_again(&mut rig, id, &resume);
    }
    assert_eq!(rig.engine.phase, Phase::Rebuilding, "worker 1 of the roster that counts may come");
    come_again(&mut rig, worker(1), &resume);
    assert_eq!(rig.engine.phase, Phase::Running);
}

#[test]
fn after_a_sleep_the_newest_checkpoint_is_known_and_replies_of_before_are_nobodys() {
    let mut rig = rig_of(1, WorkerLoss::Stop);
    declared(&mut rig);
    rig.engine.last_checkpoint = Some("round-000000120".into());
    let post = |rig: &mut Rig| {
        let message = PostMessage { app: 1, head: 0, body: Vec::new() };
        let to = PostTo::One(worker(1));
        let commands = rig.say(worker(0), ToScheduler::Post { request: 1, to, message, timeout_ms: 50 });
        let FromScheduler::Posted { ticket, .. } = only(&commands) else { panic!("{commands:?}") };
        *ticket
    };
    let early = post(&mut rig);
    let resume = known_in(&rig);
    rig.tick_at(SILENCE_MS - 10);
    assert_eq!(rig.engine.phase, Phase::Rebuilding, "their last sign of it may be a heartbeat older");
    for id in [server(0), server(1), worker(0), worker(1)] {
        come_again(&mut rig, id, &resume);
    }
    assert_eq!(rig.engine.phase, Phase::Running);
    assert_eq!(rig.engine.last_checkpoint.as_deref(), Some("round-000000120"));
    let late = post(&mut rig);
    assert!(late > early && late >> 32 == u64::from(rig.engine.epoch().term));
}

#[test]
fn a_job_whose_scheduler_was_started_again_began_from_what_its_members_were_told() {
    let mut before = rig_of(1, WorkerLoss::Stop);
    declared(&mut before);
    let resume = Resume { restore: Some("round-000000100".into()), ..known_in(&before) };
    let mut config = before.engine.config.clone();
    config.checkpoints.restore = Some("round-000000200".into());
    let mut rig = Rig { engine: Engine::new(config, 0), now_ms: 0 };
    // Told of the newer one, before it was known that this is no fresh job.
    let early = rig.say_on(
        90,
        ToScheduler::Register(Register { wanted_rank: Some(Rank(2)), ..register(Role::Server, 90) }),
    );
    let mut commands = Vec::new();
    for id in [server(0), server(1), worker(0), worker(1)] {
        commands = come_again(&mut rig, id, &resume);
    }
    let restored = messages(&commands).into_iter().filter_map(|message| match message {
        FromScheduler::Welcome(welcome) => Some(welcome.restore.as_deref()),
        _ => None,
    });
    assert_eq!(restored.collect::<Vec<_>>(), [Some("round-000000100"); 4]);
    let is_refusal = |message: &&FromScheduler| matches!(message, FromScheduler::Refused(_));
    let was_let_in = messages(&early).iter().any(|message| matches!(message, FromScheduler::Welcome(_)));
    assert_eq!(messages(&commands).iter().any(is_refusal), was_let_in);
    assert_eq!(rig.engine.status(0).servers, 2);
}

/// It has begun its handlers with an empty state, because it was told that the job is a new one.
#[test]
fn a_server_that_came_before_the_running_job_was_known_may_not_replace_a_failed_one() {
    for (rank, stays) in [(1, false), (2, true)] {
        let before = rig_of(1, WorkerLoss::Continue);
        let resume = known_in(&before);
        let mut rig = next_after(&before);
        let early = Register { wanted_rank: Some(Rank(rank)), ..register(Role::Server, 90) };
        let commands = rig.say_on(90, ToScheduler::Register(early));
        let FromScheduler::Welcome(welcome) = messages(&commands)[0] else { panic!("{commands:?}") };
        assert_eq!(welcome.coming, Coming::Start);
        let mut commands = Vec::new();
        let others = [server(0), worker(0), worker(1)];
        let all = others.into_iter().chain((rank != 1).then_some(server(1)));
        all.for_each(|id| commands.extend(come_again(&mut rig, id, &resume)));
        commands.extend(rig.wait_until(SILENCE_MS));
        assert_eq!(rig.engine.phase, Phase::Running);
        let is_later =
            |message: &&FromScheduler| matches!(message, FromScheduler::Refused(RefusalReason::Later(_)));
        assert_eq!(messages(&commands).iter().any(is_later), !stays, "{rank}");
        let member = rig.engine.member_of(ConnectionId(90));
        assert_eq!(member, stays.then_some(server(rank)), "{rank}");
    }
}

#[test]
fn a_server_that_died_while_a_checkpoint_was_waited_for_is_missed_when_the_job_goes_on() {
    let mut rig = rig_of(1, WorkerLoss::Continue);
    declared(&mut rig);
    rig.say(server(0), ToScheduler::Checkpoint(CheckpointNews::Begun { round: 5 }));
    rig.engine.checkpoints.complete_all();
    for id in [worker(0), worker(1)] {
        rig.say(id, ToScheduler::Goodbye);
    }
    assert!(rig.engine.saving.is_some());
    rig.lose(server(1));
    assert!(!rig.engine.declarations.shards.is_empty_at(Rank(1)), "nobody may need it any more");
    rig.say_on(90, ToScheduler::Register(register(Role::Worker, 90)));
    assert_eq!((&rig.engine.phase, &rig.engine.saving), (&Phase::Running, &None));
    assert!(rig.engine.declarations.shards.is_empty_at(Rank(1)), "others have taken over");
    assert!(rig.engine.members.get(server(1)).is_none());
    assert_eq!((rig.engine.status(0).servers, rig.engine.status(0).workers), (2, 1));
}

#[test]
fn a_copy_that_cannot_be_made_is_given_up_and_tried_elsewhere_and_only_so_often() {
    let mut rig = rig_of(1, WorkerLoss::Stop);
    declared(&mut rig);
    rig.lose(server(0));
    let message = Register { wanted_rank: Some(Rank(0)), ..register(Role::Server, 9) };
    rig.say_on(50, ToScheduler::Register(message));
    let mut refusals = 0;
    while let Some(seed) = rig.engine.declarations.shards.seeds().values().next().copied() {
        assert_eq!(seed.to, Rank(0));
        assert!(refusals < 10, "it is asked again and again");
        let error = Some("memlock".into());
        rig.say_on(50, ToScheduler::Assigned { epoch: rig.engine.epoch(), error });
        refusals += 1;
        // The third time there is nobody left to be asked.
        let tried = usize::from(refusals < 3);
        let notes = rig.engine.take_notes();
        let [Note::Refused { given_up, tried: again, .. }] = notes[..] else { panic!("{notes:?}") };
        assert_eq!((given_up.min(1), again.min(1)), (1, tried), "{notes:?}");
    }
    assert_eq!(refusals, 3);
    assert!(rig.engine.declarations.is_level(), "nothing is left to be tried");
    // Another one is.
    rig.say_on(51, ToScheduler::Register(register(Role::Server, 10)));
    let to: Vec<Rank> = rig.engine.declarations.shards.seeds().values().map(|seed| seed.to).collect();
    assert_eq!(to, [Rank(2)]);
}

#[test]
fn what_could_not_be_allocated_leaves_the_map() {
    let mut rig = rig_of(1, WorkerLoss::Stop);
    let tensors = vec![TensorSpec::f32(7, 4 * 1024, Optimizer::sum())];
    let declare = ToScheduler::Declare { request: 1, tensors, timeout_ms: 50 };
    rig.say(worker(0), declare.clone());
    let epoch = rig.engine.epoch();
    rig.say(server(0), ToScheduler::Assigned { epoch, error: Some("no memory".into()) });
    let commands = rig.say(server(1), ToScheduler::Assigned { epoch, error: None });
    let dropped = MapChange::Dropped(vec![Key(7)]);
    assert!(
        messages(&commands)
            .iter()
            .any(|m| matches!(m, FromScheduler::Remap { change, .. } if *change == dropped))
    );
    assert!(rig.engine.declarations.shards.is_empty_at(Rank(0)));
    assert_eq!(rig.engine.declarations.shards.uncopied(), 0);
    let error = messages(&commands).into_iter().find_map(|message| match message {
        FromScheduler::Declared { result: Err(error), .. } => Some(error.to_string()),
        _ => None,
    });
    assert!(error.as_ref().is_some_and(|error| error.contains("no memory")), "{commands:?}");
    // It can be declared anew, in whatever shape.
    let tensors = vec![TensorSpec::f32(7, 1024, Optimizer::sum())];
    rig.say(worker(1), ToScheduler::Declare { request: 1, tensors, timeout_ms: 50 });
    let epoch = rig.engine.epoch();
    rig.say(server(0), ToScheduler::Assigned { epoch, error: None });
    let commands = rig.say(server(1), ToScheduler::Assigned { epoch, error: None });
    assert!(matches!(only(&commands), FromScheduler::Declared { result: Ok(_), .. }), "{commands:?}");
}

#[test]
fn what_a_server_refuses_after_a_restart_is_dropped_only_where_nobody_was_told_of_it() {
    for all_come in [true, false] {
        let mut before = rig_of(1, WorkerLoss::Wait);
        declared(&mut before);
        let of_worker = known_in(&before);
        let tensors = vec![TensorSpec::f32(9, 1024, Optimizer::sum())];
        before.say(worker(0), ToScheduler::Declare { request: 2, tensors, timeout_ms: 50 });
        let of_server = known_in(&before);
        let mut rig = next_after(&before);
        let mut commands = Vec::new();
        for id in [server(0), server(1), worker(0), worker(1)] {
            let resume = if id.role == Role::Server { &of_server } else { &of_worker };
            if all_come || id != worker(1) {
                commands.extend(come_again(&mut rig, id, resume));
            }
        }
        if !all_come {
            commands.extend(rig.wait_until(SILENCE_MS));
        }
        assert_eq!(rig.engine.phase, Phase::Running);
        let (mut told, mut notes) = (Vec::new(), Vec::new());
        for message in messages(&commands) {
            let FromScheduler::Assign(update) = message else { continue };
            let (epoch, error) = (update.epoch, Some("its lane does not answer".into()));
            told.extend(rig.say(server(0), ToScheduler::Assigned { epoch, error }));
            notes.extend(rig.engine.take_notes());
            told.extend(rig.say(server(1), ToScheduler::Assigned { epoch, error: None }));
        }
        let dropped = messages(&told).into_iter().find_map(|message| match message {
            FromScheduler::Remap { change: MapChange::Dropped(keys), .. } => Some(keys.clone()),
            _ => None,
        });
        // Whoever has not come may know of it.
        assert_eq!(dropped, all_come.then(|| vec![Key(9)]));
        let map = rig.engine.declarations.shards.map();
        assert!(map.tensor(Key(7)).is_some() && rig.engine.declarations.is_ready(Key(7)));
        assert_eq!(map.tensor(Key(9)).is_some(), !all_come);
        let said = |note: &Note| matches!(note, Note::Refused { reason, .. } if reason.contains("lane"));
        assert!(notes.iter().any(said), "{notes:?}");
    }
}

#[test]
fn deaths_that_the_job_survives_are_told_with_who_takes_over() {
    let mut rig = rig_of(1, WorkerLoss::Wait);
    declared(&mut rig);
    rig.lose(server(0));
    let death = |member| Death { member, cause: proto_common::error::DeathCause::ConnectionLost };
    let taken = Note::TakenOver { from: Rank(0), by: vec![Rank(1)] };
    assert_eq!(rig.engine.take_notes(), [Note::Lost(death(server(0))), taken]);
    rig.lose(worker(1));
    assert_eq!(rig.engine.take_notes(), [Note::Lost(death(worker(1)))]);
}

#[test]
fn a_server_that_comes_ends_the_checkpoint_that_would_lack_its_parts() {
    let mut rig = rig_of(1, WorkerLoss::Stop);
    declared(&mut rig);
    rig.say(server(0), ToScheduler::Checkpoint(CheckpointNews::Begun { round: 5 }));
    assert!(rig.engine.checkpoints.is_writing());
    rig.say_on(50, ToScheduler::Register(register(Role::Server, 9)));
    assert!(!rig.engine.checkpoints.is_writing());
    let notes = rig.engine.take_notes();
    assert!(
        matches!(&notes[..], [Note::CheckpointFailed(why)] if why.contains("server 2 came")),
        "{notes:?}"
    );
}
