//! The worker as a member: rosters, maps and broken channels, as lists of commands.

use super::super::member::{Member, MemberCommand, MemberConfig};
use super::*;
use proto_common::config::WorkerLoss;
use proto_common::ids::{MemberId, Role};
use proto_common::message::{ClusterShape, FromScheduler, Member as Entry, RoundsPart};
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;
use proto_common::shard_map::{KeyRange, MapChange, MapUpdate};
use proto_common::tensor::TensorSpec;

const REACH_MS: u64 = 10_000;

fn shape() -> ClusterShape {
    ClusterShape {
        workers: 2,
        servers: 2,
        chunk_bytes: 4096,
        lanes: 2,
        deterministic: true,
        mode: Mode::Sync,
        backup_workers: 0,
        heartbeat_ms: 100,
        silence_ms: 1_000,
        replicas: 1,
        server_places: 3,
        worker_loss: WorkerLoss::Stop,
        workers_min: 1,
        scheduler_ms: 1_000,
    }
}

fn epoch(counter: u32) -> Epoch {
    Epoch { term: 1, counter }
}

fn entry(role: Role, rank: u32, life: u64) -> Entry {
    let id = MemberId { role, rank: Rank(rank) };
    Entry { id, incarnation: Incarnation(life), data_address: None, http_address: None }
}

/// These servers by rank and life, and this worker.
fn roster(counter: u32, servers: &[(u32, u64)]) -> FromScheduler {
    let servers = servers.iter().map(|(rank, life)| entry(Role::Server, *rank, *life));
    let members = servers.chain([entry(Role::Worker, 0, WORKER.0)]).collect();
    FromScheduler::Roster { epoch: epoch(counter), members, left: Vec::new() }
}

fn gone(counter: u32, server: u32) -> FromScheduler {
    FromScheduler::Remap { epoch: epoch(counter), change: MapChange::ServerGone(Rank(server)) }
}

struct Bed(Member);

impl Bed {
    fn new() -> Self {
        let config = MemberConfig { rank: Rank(0), incarnation: WORKER, shape: shape(), reach_ms: REACH_MS };
        Self(Member::new(config))
    }

    /// Two servers, both connected, and a tensor of two chunks, one on each, each the other's backup.
    fn connected() -> Self {
        let mut bed = Self::new();
        bed.heard(&roster(1, &[(0, 100), (1, 101)]));
        for number in 1..=2 {
            assert_eq!(bed.connected_now(number, Ok(())), []);
        }
        let range = |chunk: u32| KeyRange {
            backup: Some(Rank(1 - chunk)),
            ..KeyRange::alone(ChunkId::new(7, chunk), 1, Rank(chunk))
        };
        let tensors = vec![TensorSpec::f32(7, 2_048, Optimizer::sum())];
        let update = MapUpdate { epoch: epoch(2), tensors, ranges: vec![range(0), range(1)] };
        let mut out = Vec::new();
        bed.0.declared(&update, &mut out).unwrap();
        assert_eq!(out, [MemberCommand::Epoch(epoch(2))]);
        bed
    }

    fn heard(&mut self, message: &FromScheduler) -> Vec<MemberCommand> {
        let mut out = Vec::new();
        self.0.heard(message, &mut out);
        out
    }

    fn connected_at(&mut self, number: u64, result: Result<(), String>, now_ms: u64) -> Vec<MemberCommand> {
        let mut out = Vec::new();
        self.0.connected(number, result, now_ms, &mut out);
        out
    }

    fn connected_now(&mut self, number: u64, result: Result<(), String>) -> Vec<MemberCommand> {
        self.connected_at(number, result, 0)
    }

    fn broken(&mut self, server: u32, number: u64, now_ms: u64) -> Vec<MemberCommand> {
        let mut out = Vec::new();
        self.0.broken(Rank(server), number, "it closed".into(), now_ms, &mut out);
        out
    }
}

/// Who is connected under which number, and after how long.
fn dials(commands: &[MemberCommand]) -> Vec<(u32, u64, u64)> {
    let dial = |command: &MemberCommand| match command {
        MemberCommand::Connect { number, server, after_ms, .. } => {
            Some((server.id.rank.0, *number, *after_ms))
        }
        _ => None,
    };
    commands.iter().filter_map(dial).collect()
}

#[test]
fn servers_that_come_are_connected_and_channels_of_those_that_are_gone_end_first() {
    let mut bed = Bed::new();
    assert_eq!(bed.0.resume(), None, "in no roster yet");
    assert_eq!(dials(&bed.heard(&roster(1, &[(0, 100), (1, 101)]))), [(0, 1, 0), (1, 2, 0)]);
    assert_eq!(bed.0.missing(), [Rank(0), Rank(1)]);
    bed.connected_now(1, Ok(()));
    assert_eq!(bed.0.missing(), [Rank(1)]);
    // Server 1 has another life, and there is a third.
    let told = bed.heard(&roster(3, &[(0, 100), (1, 201), (2, 102)]));
    assert_eq!(told[0], MemberCommand::End { server: Rank(1) });
    assert_eq!(dials(&told), [(1, 3, 0), (2, 4, 0)]);
    // The connection to the life before is late.
    let mut out = Vec::new();
    assert!(!bed.0.connected(2, Ok(()), 0, &mut out) && out.is_empty());
    assert_eq!(bed.heard(&roster(2, &[(0, 100)])), [], "overtaken");
    let resume = bed.0.resume().expect("a member");
    assert_eq!((resume.rank, resume.epoch, resume.members.len()), (Rank(0), epoch(3), 4));
}

#[test]
fn a_server_s_death_fences_it_before_anything_goes_to_its_backup() {
    let mut bed = Bed::connected();
    let told = bed.heard(&gone(3, 0));
    let lane = usize::from(bed.0.map().lane_of(ChunkId::new(7, 0)).0);
    let mut lanes = vec![Vec::new(), Vec::new()];
    lanes[lane].push((ChunkId::new(7, 0), Rank(1)));
    let remap = MemberCommand::Remap { epoch: epoch(3), lanes };
    assert_eq!(told, [MemberCommand::End { server: Rank(0) }, remap]);
    assert_eq!((bed.0.failovers(), bed.0.missing()), (1, vec![]));
    // The roster says it once more; the rank's next life is another one.
    assert_eq!(bed.heard(&roster(4, &[(1, 101)])), [MemberCommand::Epoch(epoch(4))]);
    assert_eq!(dials(&bed.heard(&roster(5, &[(0, 200), (1, 101)]))), [(0, 3, 0)]);
    // A death that was decided before that life came does not concern it.
    assert!(!bed.heard(&gone(3, 0)).contains(&MemberCommand::End { server: Rank(0) }));
}

#[test]
fn what_a_deposed_scheduler_says_changes_nothing() {
    let mut bed = Bed::connected();
    let old =
        FromScheduler::Remap { epoch: Epoch { term: 0, counter: 9 }, change: MapChange::ServerGone(Rank(0)) };
    assert_eq!(bed.heard(&old), []);
    let members = vec![entry(Role::Worker, 0, WORKER.0)];
    let old = FromScheduler::Roster { epoch: Epoch { term: 0, counter: 9 }, members, left: Vec::new() };
    assert_eq!(bed.heard(&old), []);
}

#[test]
fn an_answer_without_tensors_is_no_map() {
    let (mut bed, mut out) = (Bed::connected(), Vec::new());
    assert_eq!(bed.0.declared(&MapUpdate::default(), &mut out), Ok(()), "a changed rule's");
    assert!(out.is_empty());
}

#[test]
fn chunks_that_move_are_told_to_their_lanes() {
    let mut bed = Bed::connected();
    let ranges = vec![KeyRange::alone(ChunkId::new(7, 0), 2, Rank(1))];
    let told = bed.heard(&FromScheduler::Remap { epoch: epoch(3), change: MapChange::Ranges(ranges) });
    let [MemberCommand::Remap { epoch: at, lanes }] = &told[..] else { panic!("{told:?}") };
    assert_eq!((*at, lanes.concat()), (epoch(3), vec![(ChunkId::new(7, 0), Rank(1))]));
    assert_eq!(bed.0.failovers(), 0);
}

#[test]
fn a_broken_channel_to_a_living_server_is_made_again_with_pauses_and_within_a_bound() {
    let mut bed = Bed::connected();
    let mut told = bed.broken(0, 1, 1_000);
    let (mut now_ms, mut pauses) = (1_000, Vec::new());
    let error = loop {
        let [(0, number, after_ms)] = dials(&told)[..] else { break told };
        pauses.push(after_ms);
        now_ms += after_ms + 1;
        assert!(now_ms < 1_000 + 2 * REACH_MS, "for ever");
        told = bed.connected_at(number, Err("refused".into()), now_ms);
    };
    assert!(pauses.is_sorted() && pauses.len() > 5, "{pauses:?}");
    let [MemberCommand::Leave(OpError::Broken { server: Rank(0), reason })] = &error[..] else {
        panic!("{error:?}")
    };
    assert!(reason.contains("refused"), "{reason}");
}

#[test]
fn a_first_connection_is_tried_as_long_as_a_later_one() {
    let mut bed = Bed::new();
    assert_eq!(dials(&bed.heard(&roster(1, &[(0, 100)]))), [(0, 1, 0)]);
    // The server is just coming, and has not heard of this worker.
    assert_eq!(dials(&bed.connected_at(1, Err("who are you?".into()), 500)), [(0, 2, 20)]);
    assert_eq!(dials(&bed.connected_at(2, Err("who are you?".into()), 499 + REACH_MS)), [(0, 3, 40)]);
    let told = bed.connected_at(3, Err("who are you?".into()), 500 + REACH_MS);
    let [MemberCommand::Leave(OpError::Broken { server: Rank(0), reason })] = &told[..] else {
        panic!("{told:?}")
    };
    assert!(reason.contains("who are you?") && reason.contains("10000 ms"), "{reason}");
}

#[test]
fn a_channel_that_breaks_while_others_are_made_has_all_made_again() {
    let mut bed = Bed::connected();
    let again = dials(&bed.broken(0, 1, 1_000));
    assert_eq!(again, [(0, 3, 20)]);
    assert_eq!(bed.broken(0, 1, 1_001), [], "another lane's, of the same connection");
    assert_eq!(bed.broken(0, 3, 1_002), []);
    assert_eq!(dials(&bed.connected_at(3, Ok(()), 1_003)), [(0, 4, 40)]);
    assert_eq!(bed.connected_at(4, Ok(()), 1_010), []);
    // One that held counts as new.
    assert_eq!(dials(&bed.broken(0, 4, 20_000)), [(0, 5, 20)]);
}

#[test]
fn a_worker_that_was_declared_dead_is_told_so() {
    let mut bed = Bed::connected();
    let members = vec![entry(Role::Worker, 0, 99)];
    let told = bed.heard(&FromScheduler::Roster { epoch: epoch(3), members, left: Vec::new() });
    assert_eq!(told, [MemberCommand::Leave(OpError::Deposed { epoch: epoch(3) })]);
}

#[test]
fn rounds_to_count_from_are_this_life_s_only() {
    let mut bed = Bed::connected();
    let told = |life: u64| FromScheduler::CountFrom {
        rank: Rank(0),
        incarnation: Incarnation(life),
        rounds: RoundsPart::whole(vec![(Key(7), 12)]),
    };
    bed.heard(&told(3));
    assert_eq!(bed.0.counts(), None);
    bed.heard(&told(WORKER.0));
    assert_eq!(bed.0.counts().and_then(|counts| counts.get(&Key(7))), Some(&12));
}
