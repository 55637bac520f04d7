//! What a server does with what the scheduler says: the commands, in their order.

use crate::engine::Role;
use crate::engine::member::{Departure, Held, Holdings, Member, MemberCommand, MemberConfig};
use proto_common::config::Settings;
use proto_common::ids::{ChunkId, Epoch, Incarnation, Key, MemberId, Rank, Role as MemberRole};
use proto_common::message::{ClusterShape, FromScheduler, Member as Entry, RoundsPart, ToScheduler};
use proto_common::optimizer::Optimizer;
use proto_common::shard_map::{KeyRange, MapChange, MapUpdate};
use proto_common::tensor::TensorSpec;

const CHUNK_BYTES: u64 = 4096;

fn shape() -> ClusterShape {
    let shape = Settings::default().shape();
    ClusterShape { servers: 3, lanes: 2, chunk_bytes: CHUNK_BYTES, replicas: 1, ..shape }
}

fn epoch(counter: u32) -> Epoch {
    Epoch { term: 1, counter }
}

fn server(rank: u32, life: u64) -> Entry {
    let id = MemberId { role: MemberRole::Server, rank: Rank(rank) };
    let data_address = Some(format!("server-{rank}:{life}"));
    Entry { id, incarnation: Incarnation(life), data_address, http_address: None }
}

fn worker(rank: u32, life: u64) -> Entry {
    let id = MemberId { role: MemberRole::Worker, rank: Rank(rank) };
    Entry { id, incarnation: Incarnation(life), data_address: None, http_address: None }
}

fn roster(counter: u32, members: &[Entry]) -> FromScheduler {
    FromScheduler::Roster { epoch: epoch(counter), members: members.to_vec(), left: vec![Rank(7)] }
}

fn everyone() -> Vec<Entry> {
    vec![server(0, 100), server(1, 101), server(2, 102), worker(0, 10), worker(1, 11)]
}

fn range(key: u64, server: u32, backup: Option<u32>, seeding: Option<u32>) -> KeyRange {
    let mut range = KeyRange::alone(ChunkId::new(key, 0), 2, Rank(server));
    (range.backup, range.seeding) = (backup.map(Rank), seeding.map(Rank));
    range
}

fn tensor(key: u64) -> TensorSpec {
    TensorSpec::f32(key, 2 * CHUNK_BYTES / 4, Optimizer::sum())
}

fn assign(counter: u32, ranges: &[KeyRange]) -> FromScheduler {
    let tensors = ranges.iter().map(|range| tensor(range.first.key.0)).collect();
    FromScheduler::Assign(MapUpdate { epoch: epoch(counter), tensors, ranges: ranges.to_vec() })
}

fn ranges(counter: u32, ranges: &[KeyRange]) -> FromScheduler {
    FromScheduler::Remap { epoch: epoch(counter), change: MapChange::Ranges(ranges.to_vec()) }
}

fn gone(counter: u32, rank: u32) -> FromScheduler {
    FromScheduler::Remap { epoch: epoch(counter), change: MapChange::ServerGone(Rank(rank)) }
}

/// Server 0, which has heard of everyone.
fn member() -> Member {
    let mut member =
        Member::new(MemberConfig { rank: Rank(0), incarnation: Incarnation(100), shape: shape() });
    assert_eq!(hear(&mut member, roster(1, &everyone())), [workers(1, &[(0, 10), (1, 11)])]);
    member
}

fn workers(counter: u32, present: &[(u32, u64)]) -> MemberCommand {
    let present = present.iter().map(|(rank, life)| (Rank(*rank), Incarnation(*life))).collect();
    MemberCommand::Workers { epoch: epoch(counter), present, left: vec![Rank(7)] }
}

fn hear(member: &mut Member, message: FromScheduler) -> Vec<MemberCommand> {
    let mut out = Vec::new();
    member.heard(message, &mut out);
    out
}

fn with(member: &mut Member, act: impl FnOnce(&mut Member, &mut Vec<MemberCommand>)) -> Vec<MemberCommand> {
    let mut out = Vec::new();
    act(member, &mut out);
    out
}

fn dial(number: u64, to: u32, counter: u32, after_ms: u64) -> MemberCommand {
    let incarnation = Incarnation(100 + u64::from(to));
    let (to, address, epoch) =
        (Rank(to), format!("server-{to}:{incarnation}", incarnation = 100 + to), epoch(counter));
    MemberCommand::Dial { number, to, incarnation, address, epoch, after_ms }
}

/// The chunks that lanes are told of, with their roles, whatever the lane.
fn told(command: &MemberCommand) -> (u64, Epoch, Vec<(ChunkId, Role)>) {
    let MemberCommand::Roles { number, epoch, lanes } = command else { panic!("{command:?}") };
    let mut all: Vec<_> = lanes.iter().flatten().map(|(spec, role)| (spec.id, *role)).collect();
    all.sort_by_key(|(id, _)| *id);
    (*number, *epoch, all)
}

fn both(key: u64, role: Role) -> Vec<(ChunkId, Role)> {
    vec![(ChunkId::new(key, 0), role), (ChunkId::new(key, 1), role)]
}

fn primary(backup: Option<u32>, seeding: Option<u32>) -> Role {
    Role::Primary { backup: backup.map(Rank), seeding: seeding.map(Rank) }
}

fn say_assigned(counter: u32, error: Option<&str>) -> MemberCommand {
    let error = error.map(Into::into);
    MemberCommand::Say(ToScheduler::Assigned { epoch: epoch(counter), error })
}

fn say_seeded(counter: u32, to: u32) -> MemberCommand {
    MemberCommand::Say(ToScheduler::Seeded { epoch: epoch(counter), to: Rank(to) })
}

#[test]
fn chunks_without_copies_are_added_and_told_when_all_lanes_have_them() {
    let mut member = member();
    let commands = hear(&mut member, assign(2, &[range(7, 0, None, None), range(8, 1, None, None)]));
    let [MemberCommand::Assign { number: 1, epoch: at, lanes }] = &commands[..] else {
        panic!("{commands:?}")
    };
    assert_eq!(*at, epoch(2));
    let ids: Vec<_> = lanes.iter().flatten().map(|spec| spec.id.key).collect();
    assert_eq!(ids, [Key(7), Key(7)], "of what others serve nothing");
    let answer = with(&mut member, |member, out| member.lanes_answered(1, Ok(()), out));
    assert_eq!(answer, [say_assigned(2, None)]);
    let again = with(&mut member, |member, out| member.lanes_answered(1, Ok(()), out));
    assert_eq!(again, [], "an answer is told once");
}

#[test]
fn what_has_a_backup_is_told_with_roles_and_its_stream_is_dialled() {
    let mut member = member();
    let commands = hear(&mut member, assign(2, &[range(7, 0, Some(1), None), range(8, 2, Some(0), None)]));
    let (number, at, roles) = told(&commands[0]);
    assert_eq!(at, epoch(2));
    assert_eq!(roles, [both(7, primary(Some(1), None)), both(8, Role::Copy { of: Rank(2) })].concat());
    assert_eq!(commands[1..], [dial(2, 1, 2, 0)]);
    let peers = member.peers().unwrap();
    assert_eq!(peers.copies_of.into_iter().collect::<Vec<_>>(), [Rank(2)]);
    let refused = with(&mut member, |member, out| member.lanes_answered(number, Err("no room".into()), out));
    assert_eq!(refused, [say_assigned(2, Some("no room"))]);
}

#[test]
fn a_stream_that_fails_or_breaks_is_dialled_again_and_ever_later_while_it_is_wanted() {
    let mut member = member();
    hear(&mut member, assign(2, &[range(7, 0, Some(1), None)]));
    let mut number = 2;
    for after_ms in [100, 200, 400, 800, 1_600, 2_000, 2_000] {
        let commands = with(&mut member, |member, out| member.dialled(number, false, out));
        number += 1;
        assert_eq!(commands, [dial(number, 1, 2, after_ms)]);
    }
    assert_eq!(with(&mut member, |member, out| member.dialled(number, true, out)), []);
    let stale = with(&mut member, |member, out| member.stream_down(Rank(1), number - 1, out));
    assert_eq!(stale, [], "an earlier channel's end is no news");
    let commands = with(&mut member, |member, out| member.stream_down(Rank(1), number, out));
    assert_eq!(commands, [dial(number + 1, 1, 2, 100)]);
    // A lane's ends before the others have theirs.
    number += 1;
    assert_eq!(with(&mut member, |member, out| member.stream_down(Rank(1), number, out)), []);
    let commands = with(&mut member, |member, out| member.dialled(number, true, out));
    assert_eq!(commands, [dial(number + 1, 1, 2, 200)]);
    // The map moves on.
    let commands = hear(&mut member, ranges(3, &[range(7, 0, Some(2), None)]));
    assert_eq!(told(&commands[0]).2, both(7, primary(Some(2), None)));
    assert_eq!(commands[1], MemberCommand::HangUp { to: Rank(1) });
    assert!(matches!(commands[2], MemberCommand::Dial { to: Rank(2), after_ms: 0, .. }));
    let late = with(&mut member, |member, out| member.dialled(number + 1, false, out));
    assert_eq!(late, [], "what was given up is not tried again");
}

#[test]
fn a_dead_server_is_fenced_before_its_chunks_are_served() {
    let mut member = member();
    hear(&mut member, assign(2, &[range(7, 1, Some(0), None), range(8, 0, Some(1), None)]));
    let commands = hear(&mut member, gone(3, 1));
    assert_eq!(commands[0], MemberCommand::EndServer { rank: Rank(1) });
    assert_eq!(commands[1], MemberCommand::HangUp { to: Rank(1) });
    assert_eq!(told(&commands[2]).2, [both(7, primary(None, None)), both(8, primary(None, None))].concat());
    assert_eq!(commands.len(), 3);
    assert!(!member.peers().unwrap().servers.contains_key(&Rank(1)), "its hellos are refused at once");
    let left: Vec<_> = everyone().into_iter().filter(|one| one.id.rank != Rank(1)).collect();
    let again = hear(&mut member, roster(4, &[left, vec![worker(1, 11)]].concat()));
    assert_eq!(again, [workers(4, &[(0, 10), (1, 11)])], "it was ended already");
}

#[test]
fn seeded_is_said_once_all_lanes_that_copy_have_said_so_for_the_newest_chunks() {
    let mut member = member();
    hear(&mut member, assign(2, &[range(7, 0, None, None), range(8, 0, None, None)]));
    hear(&mut member, ranges(3, &[range(7, 0, None, Some(1))]));
    let seeded = |member: &mut Member, lane, counter| {
        with(member, |member, out| member.seeded(lane, Rank(1), epoch(counter), out))
    };
    assert_eq!(seeded(&mut member, 0, 2), [], "of an earlier map");
    assert_eq!(seeded(&mut member, 0, 3), []);
    // More to be copied: lanes that have some of it are waited for anew.
    hear(&mut member, ranges(4, &[range(8, 0, None, Some(1))]));
    assert_eq!(seeded(&mut member, 1, 4), []);
    assert_eq!(seeded(&mut member, 0, 3), []);
    assert_eq!(seeded(&mut member, 0, 4), [say_seeded(4, 1)]);
    assert_eq!(seeded(&mut member, 0, 4), [], "once");
    // Something else changes before the scheduler has heard of it; and the scheduler comes again.
    let commands = hear(&mut member, assign(5, &[range(9, 0, Some(2), None)]));
    assert!(commands.contains(&say_seeded(5, 1)), "{commands:?}");
    assert_eq!(with(&mut member, Member::back), [say_seeded(5, 1)]);
    // A part of it is a backup now: the rest is as it was.
    let commands = hear(&mut member, ranges(6, &[range(7, 0, Some(1), None)]));
    assert!(commands.contains(&say_seeded(6, 1)), "{commands:?}");
    // It dies: what comes in its place has nothing.
    hear(&mut member, gone(7, 1));
    assert_eq!(with(&mut member, Member::back), []);
}

#[test]
fn lives_that_are_not_in_the_roster_any_more_are_ended() {
    let mut member = member();
    let mut members = everyone();
    members[1] = server(1, 201);
    members.retain(|one| one.id != worker(0, 10).id);
    members[3] = worker(1, 21);
    let commands = hear(&mut member, roster(2, &members));
    assert_eq!(commands, [MemberCommand::EndServer { rank: Rank(1) }, workers(2, &[(1, 21)])]);
    assert_eq!(hear(&mut member, roster(1, &everyone())), [], "an older one");
    let peers = member.peers().unwrap();
    assert_eq!(peers.workers.into_iter().collect::<Vec<_>>(), [(Rank(1), Incarnation(21))]);
    assert_eq!(peers.servers[&Rank(1)], Incarnation(201));
}

#[test]
fn a_server_that_is_declared_dead_leaves() {
    let deposed = |counter| [MemberCommand::Leave(Departure::Deposed { epoch: epoch(counter) })];
    assert_eq!(hear(&mut member(), gone(2, 0)), deposed(2));
    assert_eq!(hear(&mut member(), roster(3, &[server(0, 200), server(1, 101)])), deposed(3));
}

#[test]
fn what_a_deposed_scheduler_says_changes_nothing() {
    let mut member = member();
    let again = Epoch { term: 2, counter: 5 };
    let update =
        MapUpdate { epoch: again, tensors: vec![tensor(7)], ranges: vec![range(7, 0, Some(1), None)] };
    hear(&mut member, FromScheduler::Assign(update));
    let before = member.map().clone();
    assert_eq!(hear(&mut member, gone(9, 1)), []);
    let refused = hear(&mut member, assign(9, &[range(8, 0, None, None)]));
    assert!(
        matches!(&refused[..], [MemberCommand::Say(ToScheduler::Assigned { error: Some(error), .. })] if error.reason.contains("replaced scheduler")),
        "{refused:?}"
    );
    assert_eq!(*member.map(), before);
    let resume = member.resume();
    assert_eq!((resume.rank, resume.epoch, resume.map), (Rank(0), again, before.whole()));
    assert_eq!(resume.members, everyone());
    // What it has told is what it knows, until somebody decides who was told.
    let late = |counter| FromScheduler::Remap {
        epoch: Epoch { term: 2, counter },
        change: MapChange::ServerGone(Rank(1)),
    };
    assert_eq!(hear(&mut member, late(6)), []);
    assert_eq!(*member.map(), before);
    with(&mut member, Member::back);
    assert_eq!(hear(&mut member, late(6))[0], MemberCommand::EndServer { rank: Rank(1) });
}

#[test]
fn a_server_that_drains_leaves_when_a_decision_has_left_it_nothing() {
    let mut member = member();
    hear(&mut member, assign(2, &[range(7, 0, Some(1), None), range(8, 1, Some(0), None)]));
    let mut out = Vec::new();
    assert!(member.drain(&mut out));
    assert_eq!(out, [MemberCommand::Say(ToScheduler::Drain)]);
    assert_eq!(with(&mut member, |member, out| assert!(member.drain(out))), [], "it is asked for once");
    assert_eq!(with(&mut member, Member::back), [MemberCommand::Say(ToScheduler::Drain)]);
    hear(&mut member, ranges(3, &[range(7, 1, Some(2), None)]));
    assert_eq!(member.chunks_left(), 2);
    assert_eq!(member.left().to_string(), "the scheduler to choose a server for 2 chunks");
    let commands = hear(&mut member, ranges(4, &[range(8, 1, Some(2), None)]));
    let (number, _, roles) = told(&commands[0]);
    assert_eq!(roles, []);
    let mut numbers: Vec<_> = (1..=number).collect();
    let last = numbers.pop().unwrap();
    for number in numbers {
        let said = with(&mut member, |member, out| member.lanes_answered(number, Ok(()), out));
        assert!(!said.contains(&MemberCommand::Leave(Departure::Drained)), "lanes still have some of it");
    }
    let said = with(&mut member, |member, out| member.lanes_answered(last, Ok(()), out));
    assert_eq!(said, [MemberCommand::Leave(Departure::Drained)]);
}

#[test]
fn a_worker_that_comes_counts_from_the_latest_round_that_any_lane_names() {
    let mut member = member();
    let (rank, incarnation) = (Rank(1), Incarnation(21));
    let commands = hear(&mut member, FromScheduler::AskRounds { rank, incarnation });
    assert_eq!(commands, [MemberCommand::AskRounds { rank, incarnation }]);
    let lanes = [vec![(Key(7), 4), (Key(8), 9)], vec![(Key(7), 5)]];
    let said = with(&mut member, |member, out| member.rounds_answered(rank, incarnation, lanes, out));
    let rounds = vec![(Key(7), 5), (Key(8), 9)];
    let answer = ToScheduler::Rounds { rank, incarnation, rounds: RoundsPart::whole(rounds.clone()) };
    assert_eq!(said, [MemberCommand::Say(answer)]);
    let told = FromScheduler::CountFrom { rank, incarnation, rounds: RoundsPart::whole(rounds.clone()) };
    assert_eq!(hear(&mut member, told), [MemberCommand::CountFrom { rank, incarnation, rounds }]);
}

#[test]
fn what_it_holds_is_told_by_what_it_holds_it_for() {
    let mut member = member();
    let mut short = range(11, 2, None, Some(0));
    short.chunks = 1;
    let update = MapUpdate {
        epoch: epoch(2),
        tensors: vec![tensor(7), tensor(8), tensor(9), tensor(10), TensorSpec::f32(11, 10, Optimizer::sum())],
        ranges: vec![
            range(7, 0, None, None),
            range(8, 0, Some(1), Some(2)),
            range(9, 1, Some(0), None),
            range(10, 1, Some(2), None),
            short,
        ],
    };
    hear(&mut member, FromScheduler::Assign(update));
    let held = |chunks, bytes| Held { chunks, bytes };
    let two = held(2, 2 * CHUNK_BYTES);
    let wanted = Holdings {
        served: held(4, 4 * CHUNK_BYTES),
        backed: two,
        copying: two,
        copies: two,
        arriving: held(1, 40),
    };
    assert_eq!(member.holdings(), wanted);
    assert_eq!(member.chunks_left(), 7);
    let left = "the scheduler to choose a server for 5 chunks, and server 2 to receive 2 chunks";
    assert_eq!(member.left().to_string(), left);
}

#[test]
fn alone_there_is_nobody_to_drain_to() {
    let mut member =
        Member::new(MemberConfig { rank: Rank(0), incarnation: Incarnation(100), shape: shape() });
    assert_eq!(with(&mut member, |member, out| assert!(!member.drain(out))), []);
    hear(&mut member, roster(1, &[server(0, 100), worker(0, 10)]));
    assert_eq!(with(&mut member, |member, out| assert!(!member.drain(out))), []);
}
