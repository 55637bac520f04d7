//! Declarations: placed once, agreed by all, answered only when servers have allocated.

use super::super::command::TIMEOUT_MS_MAX;
use super::*;
use crate::engine::declarations::CHANGES_MAX;
use proto_common::codec::{Codec, Compression};
use proto_common::element::Dtype;
use proto_common::limits::CONTROL_FRAME_BYTES_MAX;
use proto_common::message::{DeclareError, NotTaken};
use proto_common::optimizer::{Decay, Lamb, Own, Range, Schedule};
use proto_common::shard_map::SharedUpdate;
use proto_common::tensor::RuleChange;

const ELEMENTS: u64 = 3 * 1024;
const TIMEOUT_MS: u64 = 40;

fn tensor(key: u64) -> TensorSpec {
    // Settled, as it is told to everyone.
    TensorSpec::f32(key, ELEMENTS, Optimizer::sum()).in_mode(Mode::Sync).with_backup(0)
}

fn declare(request: u64, tensors: Vec<TensorSpec>) -> ToScheduler {
    ToScheduler::Declare { request, tensors, timeout_ms: TIMEOUT_MS }
}

fn assignment(commands: &[Command]) -> MapUpdate {
    match only(commands) {
        FromScheduler::Assign(update) => update.clone(),
        other => panic!("{other:?}"),
    }
}

fn answer(commands: &[Command]) -> (u64, Result<MapUpdate, DeclareError>) {
    match only(commands) {
        FromScheduler::Declared { request, result } => {
            (*request, result.clone().map(SharedUpdate::into_inner))
        }
        other => panic!("{other:?}"),
    }
}

fn assigned(epoch: Epoch) -> ToScheduler {
    ToScheduler::Assigned { epoch, error: None }
}

#[test]
fn workers_hear_after_every_server_has_allocated() {
    let mut rig = Rig::running(2, 2);
    let commands = rig.say(worker(0), declare(1, vec![tensor(5), tensor(1 << 40)]));
    let update = assignment(&commands);
    assert_eq!(commands, [to(&[server(0), server(1)], FromScheduler::Assign(update.clone()))]);
    assert_eq!(update.epoch, Epoch { term: 1, counter: 2 });
    assert_eq!(update.ranges.iter().map(|r| r.chunks).sum::<u32>(), 6);
    assert!(rig.say(worker(1), declare(8, vec![tensor(5)])).is_empty(), "the same: waits, places nothing");
    assert!(rig.say(server(0), assigned(update.epoch)).is_empty(), "one server is not all");
    assert!(rig.say(server(0), assigned(update.epoch)).is_empty(), "twice is not two");
    let commands = rig.say(server(1), assigned(update.epoch));
    let all = FromScheduler::Declared { request: 1, result: Ok(update.clone().into()) };
    let ranges = update.ranges.iter().filter(|r| r.first.key == Key(5)).copied().collect();
    let part = MapUpdate { epoch: update.epoch, tensors: vec![tensor(5)], ranges };
    let part = FromScheduler::Declared { request: 8, result: Ok(part.into()) };
    assert_eq!(commands, [to(&[worker(0)], all), to(&[worker(1)], part)]);
    assert_eq!(rig.engine.status(0).tensors, 2);
    assert_eq!(rig.engine.status(0).tensor_bytes, 2 * 4 * ELEMENTS);
}

#[test]
fn the_same_again_is_answered_at_once_with_the_same_ranges() {
    let mut rig = Rig::running(1, 1);
    let update = assignment(&rig.say(worker(0), declare(1, vec![tensor(5)])));
    let first = answer(&rig.say(server(0), assigned(update.epoch))).1;
    let again = answer(&rig.say(worker(0), declare(2, vec![tensor(5)])));
    assert_eq!(again, (2, first));
    let (_, result) = answer(&rig.say(worker(0), declare(3, Vec::new())));
    assert_eq!(result, Ok(MapUpdate::default()), "nothing declared, nothing to wait for");
}

#[test]
fn a_mode_that_is_not_said_is_the_cluster_s_and_the_same_as_the_one_said() {
    let mut rig = Rig::running(1, 1);
    let open = TensorSpec { mode: None, backup_workers: None, ..tensor(5) };
    let update = assignment(&rig.say(worker(0), declare(1, vec![open.clone()])));
    assert_eq!(update.tensors, [tensor(5)]);
    rig.say(server(0), assigned(update.epoch));
    for same in [open, tensor(5)] {
        assert!(answer(&rig.say(worker(0), declare(2, vec![same]))).1.is_ok());
    }
    let (_, other) = answer(&rig.say(worker(0), declare(3, vec![tensor(5).in_mode(Mode::Async)])));
    let Err(DeclareError::Conflict { before, now, .. }) = other else { panic!("{other:?}") };
    assert!(
        before.ends_with("mode sync with 0 backup workers") && now.contains("mode async"),
        "{before}; {now}"
    );
    let (_, backed) = answer(&rig.say(worker(0), declare(4, vec![tensor(6).with_backup(1)])));
    assert!(backed.is_err_and(|error| error.to_string().contains("cluster.deterministic = false")));
}

/// One with the longest rule, schedule and codec.
#[test]
fn a_tensor_is_counted_with_all_its_bytes() {
    let schedule = Schedule { warmup_rounds: 1, decay: Decay::Cosine { rounds: 2, last: 0.5 } };
    let compression = Compression::of(Codec::TopK { share: 0.1 });
    let names: Vec<String> = (0..8).map(|at| format!("parameter_{at:02}")).collect();
    let parameters: Vec<(&str, f32)> = names.iter().map(|name| (name.as_str(), 1.0)).collect();
    let own = Own::new("the_longest_name_of_rule", &parameters).unwrap();
    for optimizer in [Optimizer::mean(Lamb::default(), 0.1), Optimizer::mean(own, 0.1)] {
        let optimizer = Optimizer { schedule, ..optimizer };
        let spec = TensorSpec { optimizer, compression, ..tensor(1).in_mode(Mode::Bounded(1)) };
        let (bytes, most) = (proto_common::message::to_bytes(&spec).unwrap().len(), spec.message_bytes());
        assert!((most - 36..=most).contains(&bytes), "{bytes} {most}");
    }
}

fn declares_own(request: u64, key: u64, name: &str, parameters: &[(&str, f32)]) -> ToScheduler {
    let own = Own::new(name, parameters).unwrap();
    declare(request, vec![TensorSpec::f32(key, 8, Optimizer::mean(own, 0.1))])
}

fn clipped() -> OwnKind {
    OwnKind::new("clipped").parameter("clip", Range::Positive, 1.0).keeps(2)
}

#[test]
fn a_rule_of_the_servers_program_is_settled_by_what_they_have_registered() {
    let mut rig = Rig::running_with(2, 1, &[clipped()]);
    let update = assignment(&rig.say(worker(0), declares_own(1, 1, "clipped", &[])));
    let settled = update.tensors[0].optimizer;
    assert_eq!((settled.state_arrays(), settled.rule.values()[0]), (2, 1.0));
    for id in [server(0), server(1)] {
        rig.say(id, assigned(update.epoch));
    }
    let (_, same) = answer(&rig.say(worker(0), declares_own(2, 1, "clipped", &[("clip", 1.0)])));
    assert_eq!(same.unwrap().tensors[0].optimizer, settled, "the usual value, said or not");
    let refused = |rig: &mut Rig, message| answer(&rig.say(worker(0), message)).1.unwrap_err().to_string();
    let text = refused(&mut rig, declares_own(3, 2, "other", &[]));
    assert!(text.contains("no update rule \"other\": they have clipped"), "{text}");
    let text = refused(&mut rig, declares_own(4, 2, "clipped", &[("clip", 0.0)]));
    assert!(text.contains("parameter clip = 0 is out of range"), "{text}");
    let text = refused(&mut rig, declares_own(5, 2, "clipped", &[("clop", 1.0)]));
    assert!(text.contains("no parameter \"clop\""), "{text}");
    let own = Optimizer::mean(Own::new("clipped", &[]).unwrap(), 0.1);
    let text = refused(&mut rig, declare(6, vec![TensorSpec::of(Dtype::F64, 3, 8, own)]));
    assert!(text.contains("dtype f64 cannot have it"), "{text}");
    let change = |name| RuleChange {
        key: Key(1),
        from_round: 2,
        optimizer: Optimizer::mean(Own::new(name, &[]).unwrap(), 0.5),
    };
    let text =
        refused(&mut rig, ToScheduler::ChangeRule { request: 7, change: change("other"), timeout_ms: 9 });
    assert!(text.contains("they have clipped"), "{text}");
    let out =
        rig.say(worker(0), ToScheduler::ChangeRule { request: 8, change: change("clipped"), timeout_ms: 9 });
    let FromScheduler::ChangeRule { change, .. } = only(&out) else { panic!("{out:?}") };
    assert_eq!(change.optimizer.state_arrays(), 2);
}

#[test]
fn no_server_has_a_rule_that_none_has_registered() {
    let mut rig = Rig::running(1, 1);
    let (_, refused) = answer(&rig.say(worker(0), declares_own(1, 1, "clipped", &[])));
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("registered none") && text.contains("docs/own-rules.md"), "{text}");
}

#[test]
fn later_tensors_even_out_the_servers() {
    let mut rig = Rig::running(2, 1);
    let mut servers = Vec::new();
    for key in 0..2 {
        let spec = TensorSpec::f32(key, 8, Optimizer::sum());
        let update = assignment(&rig.say(worker(0), declare(key, vec![spec])));
        servers.push(update.ranges[0].server);
        for id in [server(0), server(1)] {
            rig.say(id, assigned(update.epoch));
        }
    }
    assert_ne!(servers[0], servers[1]);
}

#[test]
fn contradictions_and_nonsense_are_refused_by_cause() {
    let mut rig = Rig::running(1, 2);
    rig.say(worker(0), declare(1, vec![tensor(5)]));
    let mut said = |tensors| answer(&rig.say(worker(1), declare(9, tensors))).1.unwrap_err();
    let other = TensorSpec { elements: 1, ..tensor(5) };
    let conflict = said(vec![other]);
    assert!(matches!(conflict, DeclareError::Conflict { key: Key(5), .. }), "{conflict}");
    assert!(conflict.to_string().contains("3072 elements"), "{conflict}");
    assert_eq!(
        said(vec![tensor(6), tensor(6)]),
        DeclareError::Duplicate { key: Key(6), name: String::new() }
    );
    let empty = TensorSpec { elements: 0, ..tensor(6) };
    assert!(matches!(said(vec![empty]), DeclareError::Tensor(_)));
    let endless = TensorSpec { elements: 1 << 40, ..tensor(6) };
    assert!(matches!(said(vec![endless]), DeclareError::Tensor(_)), "more chunks than are placed at once");
    assert_eq!(rig.engine.status(0).tensors, 1, "a refused declaration leaves nothing");
    assert_eq!(rig.engine.epoch(), Epoch { term: 1, counter: 2 });
}

#[test]
fn a_servers_error_reaches_everyone_who_waits_for_that_tensor_and_who_comes_later_tries_again() {
    let mut rig = Rig::running(2, 2);
    let update = assignment(&rig.say(worker(0), declare(1, vec![tensor(5)])));
    assert!(rig.say(worker(1), declare(2, vec![tensor(5)])).is_empty());
    rig.say(server(0), ToScheduler::Assigned { epoch: update.epoch, error: Some("no memory".into()) });
    let commands = rig.say(server(1), assigned(update.epoch));
    let error = DeclareError::Server { server: Rank(0), reason: "no memory".into() };
    assert_eq!(answer(&commands[..1]), (1, Err(error.clone())));
    assert_eq!(answer(&commands[1..2]), (2, Err(error)));
    let again = assignment(&rig.say(worker(1), declare(3, vec![tensor(5)])));
    assert!(again.epoch > update.epoch);
}

#[test]
fn a_checkpoint_that_a_server_cannot_use_is_called_that() {
    let mut rig = Rig::running(1, 1);
    let update = assignment(&rig.say(worker(0), declare(1, vec![tensor(5)])));
    let error = Some(NotTaken { reason: "damaged".into(), is_checkpoint: true });
    let commands = rig.say(server(0), ToScheduler::Assigned { epoch: update.epoch, error });
    let error = DeclareError::Checkpoint { server: Rank(0), reason: "damaged".into() };
    assert_eq!(answer(&commands[..1]), (1, Err(error)));
}

#[test]
fn only_workers_of_a_complete_cluster_declare() {
    let mut rig = Rig::new(1, 1);
    rig.say(worker(0), ToScheduler::Register(register(Role::Worker, 1)));
    let (_, early) = answer(&rig.say(worker(0), declare(1, vec![tensor(5)])));
    assert!(early.unwrap_err().to_string().contains("not complete"));
    let mut rig = Rig::running(1, 1);
    let (_, server) = answer(&rig.say(server(0), declare(1, vec![tensor(5)])));
    assert!(server.unwrap_err().to_string().contains("only workers"));
}

#[test]
fn an_answer_to_no_question_is_nothing() {
    let mut rig = Rig::running(1, 1);
    assert!(rig.say(server(0), assigned(Epoch { term: 1, counter: 77 })).is_empty());
    let update = assignment(&rig.say(worker(0), declare(1, vec![tensor(5)])));
    assert!(rig.say(worker(0), assigned(update.epoch)).is_empty(), "a worker is no server");
}

/// A declaration that comes later than another one that waits: each has its own deadline.
#[test]
fn a_stuck_server_is_named_at_each_declarations_own_deadline() {
    let mut rig = Rig::running(3, 2);
    let update = assignment(&rig.say(worker(0), declare(1, vec![tensor(5)])));
    rig.say(server(1), assigned(update.epoch));
    rig.now_ms = 10;
    assert!(rig.say(worker(1), declare(7, vec![tensor(5)])).is_empty());
    assert_eq!(rig.engine.next_tick_ms(35), TIMEOUT_MS, "nearer than the heartbeat period");
    assert!(rig.tick_at(TIMEOUT_MS - 1).is_empty(), "not yet");
    let (request, result) = answer(&rig.tick_at(TIMEOUT_MS));
    let error = result.unwrap_err();
    assert_eq!(request, 1);
    assert_eq!(error, DeclareError::Deadline { waited_ms: TIMEOUT_MS, servers: vec![Rank(0), Rank(2)] });
    assert!(error.to_string().contains("waiting for server 0, 2:"), "{error}");
    assert!(rig.tick_at(TIMEOUT_MS + 9).is_empty(), "answered once");
    rig.say(server(0), assigned(update.epoch));
    let commands = rig.tick_at(TIMEOUT_MS + 10);
    assert!(matches!(&commands[..], [Command::Send { to, .. }] if *to == [connection(worker(1))]));
    let error = DeclareError::Deadline { waited_ms: TIMEOUT_MS, servers: vec![Rank(2)] };
    assert_eq!(answer(&commands), (7, Err(error)));
}

#[test]
fn after_its_deadline_a_declaration_can_be_repeated() {
    let mut rig = Rig::running(2, 1);
    let update = assignment(&rig.say(worker(0), declare(1, vec![tensor(5)])));
    rig.say(server(0), assigned(update.epoch));
    assert!(answer(&rig.tick_at(TIMEOUT_MS)).1.is_err());
    assert_eq!(rig.engine.status(rig.now_ms).tensors, 1, "it stays placed");
    // The same again waits for the same server and places nothing.
    assert!(rig.say(worker(0), declare(2, vec![tensor(5)])).is_empty());
    let (request, result) = answer(&rig.tick_at(2 * TIMEOUT_MS));
    assert_eq!(request, 2);
    assert_eq!(result, Err(DeclareError::Deadline { waited_ms: TIMEOUT_MS, servers: vec![Rank(1)] }));
    assert!(rig.say(server(1), assigned(update.epoch)).is_empty(), "late: nobody waits");
    assert_eq!(answer(&rig.say(worker(0), declare(3, vec![tensor(5)]))), (3, Ok(update.clone())));
    assert_eq!(rig.engine.epoch(), update.epoch);
    // With a new tensor beside it, only the new one is assigned, and the deadline starts anew.
    let more = assignment(&rig.say(worker(0), declare(4, vec![tensor(5), tensor(6)])));
    assert_eq!(more.tensors, [tensor(6)]);
    rig.say(server(0), assigned(more.epoch));
    rig.now_ms = 3 * TIMEOUT_MS - 1;
    let (request, result) = answer(&rig.say(server(1), assigned(more.epoch)));
    assert_eq!((request, result.map(|update| update.tensors.len())), (4, Ok(2)));
    assert!(rig.tick_at(3 * TIMEOUT_MS).is_empty(), "answered before its deadline");
}

#[test]
fn a_timeout_of_zero_or_of_ages_is_bounded() {
    let mut rig = Rig::running(1, 2);
    let ask = |request, timeout_ms| ToScheduler::Declare { request, tensors: vec![tensor(5)], timeout_ms };
    assignment(&rig.say(worker(0), ask(1, 0)));
    assert!(rig.say(worker(1), ask(2, u64::MAX)).is_empty());
    assert!(rig.tick_at(0).is_empty());
    assert_eq!(answer(&rig.tick_at(1)).0, 1);
    assert_eq!(rig.engine.declarations.next_deadline_ms(), Some(TIMEOUT_MS_MAX));
}

#[test]
fn who_is_gone_is_not_answered_at_its_deadline() {
    let mut rig = Rig::running(1, 2);
    assignment(&rig.say(worker(0), declare(1, vec![tensor(5)])));
    rig.say(worker(0), ToScheduler::Goodbye);
    assert!(rig.tick_at(TIMEOUT_MS).is_empty());
}

#[test]
fn what_was_declared_in_parts_need_not_fit_one_answer() {
    let mut rig = Rig::running(1, 2);
    let half = CONTROL_FRAME_BYTES_MAX as u64 / 150;
    let part = |first: u64| (first..first + half).map(tensor).collect::<Vec<_>>();
    for first in [1, 1 + half] {
        let update = assignment(&rig.say(worker(0), declare(first, part(first))));
        assert_eq!(answer(&rig.say(server(0), assigned(update.epoch))).1.unwrap().tensors.len() as u64, half);
    }
    let all = [part(1), part(1 + half)].concat();
    let (_, refused) = answer(&rig.say(worker(1), declare(7, all)));
    assert!(refused.unwrap_err().to_string().contains("declare fewer tensors at once"));
    assert!(answer(&rig.say(worker(1), declare(8, part(1 + half)))).1.is_ok(), "and so it goes");
}

#[test]
fn a_changed_rule_is_answered_when_every_server_has_it() {
    let mut rig = Rig::running(2, 1);
    let update = assignment(&rig.say(worker(0), declare(1, vec![tensor(5)])));
    for rank in 0..2 {
        rig.say(server(rank), assigned(update.epoch));
    }
    let change = |key, learning_rate| ToScheduler::ChangeRule {
        request: 2,
        change: RuleChange {
            key: Key(key),
            from_round: 4,
            optimizer: Optimizer::sgd(learning_rate, 0.0, 0.0),
        },
        timeout_ms: 50,
    };
    let commands = rig.say(worker(0), change(5, 0.5));
    let [Command::Send { to, message }] = &commands[..] else { panic!("{commands:?}") };
    let FromScheduler::ChangeRule { epoch, .. } = **message else { panic!("{message:?}") };
    assert!(to.len() == 2 && epoch > update.epoch);
    assert_eq!(rig.say(server(0), assigned(epoch)), []);
    assert_eq!(answer(&rig.say(server(1), assigned(epoch))), (2, Ok(MapUpdate::default())));

    for (key, rate, words) in [(6, 0.5, "declare it before"), (5, f32::NAN, "learning_rate")] {
        let (_, result) = answer(&rig.say(worker(0), change(key, rate)));
        assert!(result.unwrap_err().to_string().contains(words));
    }
    // A server that fails it fails the change, and not the tensor.
    let Command::Send { message, .. } = &rig.say(worker(0), change(5, 0.5))[0] else { panic!("not sent") };
    let FromScheduler::ChangeRule { epoch, .. } = **message else { panic!("{message:?}") };
    rig.say(server(0), ToScheduler::Assigned { epoch, error: Some("too late".into()) });
    let (_, result) = answer(&rig.say(server(1), assigned(epoch)));
    assert!(result.unwrap_err().to_string().contains("too late"));
    assert!(answer(&rig.say(worker(0), declare(3, vec![tensor(5)]))).1.is_ok());
}

#[test]
fn a_server_that_does_not_take_a_changed_rule_is_named() {
    let mut rig = Rig::running(2, 1);
    let update = assignment(&rig.say(worker(0), declare(1, vec![tensor(5)])));
    for rank in 0..2 {
        rig.say(server(rank), assigned(update.epoch));
    }
    let change = RuleChange { key: Key(5), from_round: 4, optimizer: Optimizer::assign() };
    let commands = rig.say(worker(0), ToScheduler::ChangeRule { request: 2, change, timeout_ms: 50 });
    let Command::Send { message, .. } = &commands[0] else { panic!("not sent") };
    let FromScheduler::ChangeRule { epoch, .. } = **message else { panic!("{message:?}") };
    rig.say(server(0), assigned(epoch));
    let (request, result) = answer(&rig.tick_at(50));
    assert_eq!(request, 2);
    assert_eq!(result, Err(DeclareError::Deadline { waited_ms: 50, servers: vec![Rank(1)] }));
    assert_eq!(rig.say(server(1), assigned(epoch)), [], "it is answered once");
}

#[test]
fn a_changed_rule_that_a_dying_server_had_not_answered_is_to_be_changed_again() {
    let mut rig = Rig::running(2, 1);
    rig.engine.config.shape.replicas = 1;
    let update = assignment(&rig.say(worker(0), declare(1, vec![tensor(5)])));
    for rank in 0..2 {
        rig.say(server(rank), assigned(update.epoch));
    }
    let Command::Send { message, .. } = &rig.say(worker(0), change(5))[0] else { panic!("not sent") };
    let FromScheduler::ChangeRule { epoch, .. } = **message else { panic!("{message:?}") };
    assert_eq!(rig.say(server(0), assigned(epoch)), []);
    let due = rig.engine.declarations.without(Rank(1));
    let [(_, 2, Err(error))] = &due[..] else { panic!("{due:?}") };
    assert!(error.to_string().contains("server 1 failed while the rule was changed"), "{error}");
}

fn change(key: u64) -> ToScheduler {
    let change = RuleChange { key: Key(key), from_round: 4, optimizer: Optimizer::assign() };
    ToScheduler::ChangeRule { request: 2, change, timeout_ms: TIMEOUT_MS }
}

#[test]
fn changed_rules_that_servers_do_not_answer_are_bounded_also_past_their_deadlines() {
    let mut rig = Rig::running(1, 1);
    let update = assignment(&rig.say(worker(0), declare(1, vec![tensor(5)])));
    rig.say(server(0), assigned(update.epoch));
    let mut epochs = Vec::new();
    for _ in 0..CHANGES_MAX {
        let FromScheduler::ChangeRule { epoch, .. } = only(&rig.say(worker(0), change(5))).clone() else {
            panic!("it is not asked for")
        };
        epochs.push(epoch);
    }
    assert_eq!(rig.tick_at(TIMEOUT_MS).len(), CHANGES_MAX, "nobody waits any more");
    let (_, refused) = answer(&rig.say(worker(0), change(5)));
    assert!(matches!(refused, Err(DeclareError::NotNow(_))), "{refused:?}");
    rig.say(server(0), assigned(epochs[0]));
    assert!(matches!(only(&rig.say(worker(0), change(5))), FromScheduler::ChangeRule { .. }));
}

#[test]
fn a_rule_that_cannot_be_changed_yet_or_any_more_says_why() {
    let mut rig = Rig::running(1, 1);
    let update = assignment(&rig.say(worker(0), declare(1, vec![tensor(5)])));
    let (_, early) = answer(&rig.say(worker(0), change(5)));
    assert!(early.unwrap_err().to_string().contains("still allocating"));
    let failed = ToScheduler::Assigned { epoch: update.epoch, error: Some("no memory".into()) };
    rig.say(server(0), failed);
    let (_, late) = answer(&rig.say(worker(0), change(5)));
    assert!(late.unwrap_err().to_string().contains("not declared"), "it has left the map");
}
