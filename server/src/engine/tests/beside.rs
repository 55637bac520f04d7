//! Copies that are begun, or go on, beside rounds that are under way; and contributions that come again while one of them is
//! being applied.

use super::*;
use crate::engine::rounds::Stage;
use crate::engine::{ChunkState, RecordContext, Role};
use proto_common::batch::Judgement;
use proto_common::optimizer::Lamb;

const OTHER: Rank = Rank(1);
const THIRD: Rank = Rank(2);
const BACKED: Role = Role::Primary { backup: Some(OTHER), seeding: None };
const SEEDING: Role = Role::Primary { backup: None, seeding: Some(OTHER) };

fn epoch(counter: u32) -> Epoch {
    Epoch { term: 1, counter }
}

/// Chunks of key 1 that end rounds together.
fn both(role: Role) -> [(ChunkSpec, Role); 2] {
    let optimizer = Optimizer::mean(Lamb::default(), 0.1);
    [0, 1].map(|at| (ChunkSpec { id: ChunkId::new(1, at), optimizer, ..spec(1) }, role))
}

fn of(chunk: u32, block: Block) -> Block {
    Block { id: ChunkId::new(1, chunk), ..block }
}

/// One worker's server, whose chunks have these roles, with streams to two others.
fn rig_of(config: EngineConfig, chunks: &[(ChunkSpec, Role)]) -> Rig {
    let mut rig = Rig::new(config);
    rig.engine = LaneEngine::new(config);
    rig.engine.roles(epoch(1), chunks, &mut Commands::default());
    (0..config.workers).for_each(|rank| rig.connect(rank));
    for to in [OTHER, THIRD] {
        let slots: Vec<_> = (0..8).map(|slot| SlotGrant { slot, generation: 1 }).collect();
        rig.engine.stream_up(to, Incarnation(5), &slots, 1 << 20, &mut Commands::default());
    }
    rig
}

/// What goes out: to whom, what, of which chunk and round, in which slot. Images are taken and go out, too.
fn records(rig: &mut Rig) -> Vec<(Rank, OpKind, u32, u64, SlotGrant)> {
    let mut all = Vec::new();
    let mut out = Commands::default();
    rig.engine.flush(64, &mut out);
    while !out.list.is_empty() {
        let mut next = Commands::default();
        for command in std::mem::take(&mut out.list) {
            match command {
                Command::Record { to, slot, chunk, block, .. } => {
                    all.push((to, block.op, chunk, block.count.round(), slot));
                }
                Command::Capture { to, chunk, .. } => rig.engine.captured(to, chunk, 100, &mut next),
                _ => {}
            }
        }
        out = next;
    }
    all
}

fn judged(rig: &mut Rig, to: Rank, slot: SlotGrant, judgement: Judgement) -> Vec<Command> {
    let mut out = Commands::default();
    rig.engine.stream_notice(to, Notice::Judged(slot, judgement), &mut out);
    let returned = SlotGrant { generation: slot.generation.wrapping_add(1), ..slot };
    rig.engine.stream_notice(to, Notice::Returned(returned), &mut out);
    out.list
}

/// All that goes out is judged like this; what comes of it.
fn answered(rig: &mut Rig, judgement: Judgement) -> Vec<Command> {
    let all = records(rig);
    assert!(!all.is_empty());
    all.into_iter().flat_map(|(to, _, _, _, slot)| judged(rig, to, slot, judgement)).collect()
}

fn confirmed(rig: &mut Rig) -> Vec<Command> {
    answered(rig, Judgement::Confirmed)
}

fn ops(all: &[(Rank, OpKind, u32, u64, SlotGrant)]) -> Vec<(OpKind, u32, u64)> {
    all.iter().map(|(_, op, chunk, round, _)| (*op, *chunk, *round)).collect()
}

impl Rig {
    fn push_knowing(&mut self, counter: u32, rank: u32, blocks: &[Block]) -> Vec<Command> {
        let slot = self.workers[rank as usize].credits.pop_front().expect("it has credits");
        let header = BatchHeader { epoch: epoch(counter), ..self.header(rank) };
        self.deliver(rank, slot, &header, blocks, &[])
    }
}

/// A copy is being made of a chunk whose third round waits for readers of both buffers; what it says when it is asked.
fn read_while_asked(judgement: Judgement) -> Rig {
    let mut rig = rig_of(config(1), &[(spec(1), SEEDING)]);
    let check = records(&mut rig)[0].4;
    for round in [1, 2] {
        rig.send(0, &[push_pull(round, round)]);
        rig.flush();
    }
    rig.send(0, &[push(3, 3)]);
    assert_eq!(rig.version(), 2);
    judged(&mut rig, OTHER, check, judgement);
    rig
}

#[test]
fn a_copy_is_begun_after_a_round_that_waits_for_readers() {
    let mut rig = read_while_asked(Judgement::Wanting);
    assert_eq!(records(&mut rig), [], "nothing would follow that has the third round");
    let list = rig.landed(0, 0);
    assert!(matches!(list[..], [Command::Finish { round: 3, .. }]), "{list:?}");
    assert_eq!(ops(&records(&mut rig)), [(OpKind::CopyState, 0, 3)]);
}

#[test]
fn a_copy_that_has_the_round_before_does_not_join_while_one_waits_for_readers() {
    let mut rig = rig_of(config(1), &[(spec(1), SEEDING)]);
    records(&mut rig);
    for round in [1, 2] {
        rig.send(0, &[push_pull(round, round)]);
        rig.flush();
    }
    rig.engine.stream_up(
        OTHER,
        Incarnation(5),
        &[SlotGrant { slot: 0, generation: 1 }],
        1 << 20,
        &mut Commands::default(),
    );
    let all = records(&mut rig);
    assert_eq!(ops(&all), [(OpKind::CopyCheck, 0, 2)]);
    rig.send(0, &[push(3, 3)]);
    judged(&mut rig, OTHER, all[0].4, Judgement::Confirmed);
    assert_eq!(rig.engine.copies().1, 0, "it lacks the third round, which is not sent any more");
    rig.landed(0, 0);
    assert_eq!(ops(&records(&mut rig)), [(OpKind::CopyState, 0, 3)]);
}

#[test]
fn a_copy_that_was_ahead_of_a_round_that_is_over_does_not_join_either() {
    let mut rig = rig_of(config(1), &[(spec(1), SEEDING)]);
    records(&mut rig);
    rig.send(0, &[push_pull(1, 1)]);
    rig.flush();
    let grant = SlotGrant { slot: 0, generation: 1 };
    rig.engine.stream_up(OTHER, Incarnation(5), &[grant], 1 << 20, &mut Commands::default());
    let check = records(&mut rig)[0].4;
    rig.send(0, &[push_pull(2, 2)]);
    rig.flush();
    rig.send(0, &[push(3, 3)]);
    judged(&mut rig, OTHER, check, Judgement::Ahead);
    assert_eq!(rig.engine.copies().1, 0);
}

#[test]
fn a_copy_of_a_tensor_with_norms_is_begun_between_its_rounds() {
    let mut rig = rig_of(config(1), &both(SEEDING));
    answered(&mut rig, Judgement::Wanting);
    rig.send(0, &[of(0, push(1, 1))]);
    assert_eq!(records(&mut rig), [], "half a round could never be ended there");
    let list = rig.send(0, &[of(1, push(1, 1))]);
    assert!(matches!(list.last(), Some(Command::Finish { chunk: 1, round: 1, .. })), "{list:?}");
    let all = records(&mut rig);
    assert_eq!(ops(&all), [(OpKind::CopyState, 0, 1)]);
    // From then on rounds wait for it, and the rest goes there while they do.
    rig.flush();
    assert_eq!(rig.send(0, &[of(1, push(2, 2))]).len(), 1, "it is reduced, and waits");
    judged(&mut rig, OTHER, all[0].4, Judgement::Confirmed);
    let all = records(&mut rig);
    assert_eq!(ops(&all), [(OpKind::CopyState, 1, 1), (OpKind::CopyUpdate, 1, 2)]);
    all.iter().for_each(|(to, _, _, _, slot)| _ = judged(&mut rig, *to, *slot, Judgement::Confirmed));
    let mut out = Commands::default();
    rig.engine.flush(8, &mut out);
    assert_eq!(rig.engine.copies(), (2, 2, 0), "they go on while the second round waits for norms");
}

/// What a server's stream to a copy says.
fn says(engine: &mut LaneEngine, chunk: u32, op: OpKind, round: u64) -> Vec<Command> {
    let slot = engine.copy_up(OTHER, Incarnation(5), 1)[0];
    let header = BatchHeader {
        kind: BatchKind::Record,
        lane: Lane(0),
        wanted: 0,
        sender: OTHER,
        job: JobId(7),
        epoch: epoch(1),
        sender_incarnation: Incarnation(5),
        receiver_incarnation: SERVER,
        sequence: 1,
        payload_offset: PAYLOAD,
        payload_bytes: 64,
        payload_checksum: None,
    };
    let bytes = if op == OpKind::CopyUpdate { BYTES } else { 0 };
    let landing = (bytes > 0).then_some(Landing { region: BYTES, offset: 0, bytes: BYTES });
    let block = of(chunk, Block { op, landing, bytes, timeout_ms: 0, token: 0, ..pull(0, round) });
    let mut out = Commands::default();
    assert!(engine.record_notified(OTHER, slot, &mut out));
    let (blocks, contributors) = (&[block][..], &[1][..]);
    engine.record(&RecordContext { from: OTHER, slot, header: &header, blocks, contributors }, &mut out);
    out.list
}

/// A copy of a tensor with norms that has confirmed a round of its first chunk.
fn half_a_round() -> Rig {
    let mut rig = rig_of(config(1), &both(Role::Copy { of: OTHER }));
    for chunk in [0, 1] {
        says(&mut rig.engine, chunk, OpKind::CopyCheck, 0);
    }
    let list = says(&mut rig.engine, 0, OpKind::CopyUpdate, 1);
    let prepared = |command: &Command| matches!(command, Command::Prepare { chunk: 0, .. });
    assert!(list.iter().any(prepared), "{list:?}");
    rig
}

#[test]
fn a_round_of_a_tensor_with_norms_that_was_half_made_ends_and_is_told_when_the_backup_has_it_whole() {
    let mut rig = half_a_round();
    rig.engine.roles(epoch(2), &both(BACKED), &mut Commands::default());
    answered(&mut rig, Judgement::Wanting);
    assert_eq!(records(&mut rig), []);
    let list = rig.push_knowing(2, 0, &[of(0, push(1, 1)), of(1, push(1, 1))]);
    assert!(matches!(list.last(), Some(Command::Finish { chunk: 1, round: 1, .. })), "{list:?}");
    assert_eq!(rig.engine.stats().answers, 0, "nobody else has it");
    for (chunk, answers) in [(0, 1), (1, 2)] {
        let all = records(&mut rig);
        assert_eq!(ops(&all).last(), Some(&(OpKind::CopyState, chunk, 1)));
        all.iter().for_each(|(to, _, _, _, slot)| _ = judged(&mut rig, *to, *slot, Judgement::Confirmed));
        assert_eq!(rig.engine.stats().answers, answers);
    }
}

#[test]
fn half_a_round_of_a_copy_goes_when_the_rest_of_its_tensor_is_loaded_past_it() {
    let mut rig = half_a_round();
    let state = |version| ChunkState {
        version,
        versions: (version, version),
        live_bytes: BYTES,
        ..ChunkState::default()
    };
    let slot = rig.engine.copy_up(OTHER, Incarnation(5), 1)[0];
    let load = |rig: &mut Rig, version| {
        rig.engine.loaded((OTHER, slot), 1, Some((&state(version), 1)), &mut Commands::default());
    };
    load(&mut rig, 0);
    assert_eq!(rig.engine.chunk_mut(0).rounds.stage(), Stage::Norms, "its other half is to come");
    load(&mut rig, 1);
    let list = says(&mut rig.engine, 1, OpKind::CopyUpdate, 2);
    let prepared = |command: &Command| matches!(command, Command::Prepare { chunk: 1, .. });
    assert!(list.iter().any(prepared), "{list:?}");
    assert!(
        !list.iter().any(|command| matches!(command, Command::Norms { .. })),
        "with whose norms? {list:?}"
    );
    let list = says(&mut rig.engine, 0, OpKind::CopyUpdate, 2);
    let word = list.first();
    let wanting = |word: &Command| {
        matches!(word, Command::TellPrimary { notice: Notice::Judged(_, Judgement::Wanting), .. })
    };
    assert!(word.is_some_and(wanting), "{list:?}");
}

#[test]
fn what_a_copy_had_of_a_round_that_is_collected_anew_counts_for_nothing() {
    let roles = |backup, seeding| [(spec(1), Role::Primary { backup, seeding })];
    let mut rig = rig_of(config(1), &roles(Some(OTHER), Some(THIRD)));
    confirmed(&mut rig);
    confirmed(&mut rig);
    rig.send(0, &[push(1, 1)]);
    let all = records(&mut rig);
    assert_eq!(all.len(), 2);
    // The copy that is being made has it, and the backup dies.
    let (to, op, _, round, slot) = all[1];
    assert_eq!((to, op, round), (THIRD, OpKind::CopyUpdate, 1));
    judged(&mut rig, THIRD, slot, Judgement::Confirmed);
    let mut out = Commands::default();
    rig.engine.roles(epoch(2), &roles(None, Some(THIRD)), &mut out);
    rig.engine.stream_down(OTHER, &mut out);
    assert_eq!(out.list, []);
    rig.push_knowing(2, 0, &[push(1, 1)]);
    assert_eq!(rig.version(), 0, "it may have other contributions");
    let all = records(&mut rig);
    assert_eq!(ops(&all), [(OpKind::CopyState, 0, 0), (OpKind::CopyUpdate, 0, 1)]);
    judged(&mut rig, THIRD, all[0].4, Judgement::Confirmed);
    assert_eq!(rig.version(), 0);
    judged(&mut rig, THIRD, all[1].4, Judgement::Confirmed);
    assert_eq!(rig.version(), 1);
}

#[test]
fn what_may_not_have_left_of_a_round_that_is_collected_anew_never_does() {
    let roles = |backup, seeding| [(spec(1), Role::Primary { backup, seeding })];
    let mut rig = rig_of(config(1), &roles(Some(OTHER), Some(THIRD)));
    confirmed(&mut rig);
    confirmed(&mut rig);
    rig.send(0, &[push(1, 1)]);
    assert_eq!(records(&mut rig).len(), 2);
    let mut out = Commands::default();
    rig.engine.roles(epoch(2), &roles(None, Some(THIRD)), &mut out);
    let ended = |command: &Command| matches!(command, Command::EndStream { peer: THIRD, ours: true, .. });
    assert!(matches!(&out.list[..], [one] if ended(one)), "{:?}", out.list);
}

/// The other server serves the chunk from now on, and sends rounds that are summed up where the third one's record is still read.
#[test]
fn nor_does_what_may_not_have_left_of_a_chunk_that_goes_to_its_copy() {
    let serves = [(spec(1), Role::Primary { backup: Some(OTHER), seeding: Some(THIRD) })];
    let mut rig = rig_of(config(1), &serves);
    confirmed(&mut rig);
    confirmed(&mut rig);
    rig.send(0, &[push(1, 1)]);
    assert_eq!(records(&mut rig).len(), 2);
    let mut out = Commands::default();
    rig.engine.roles(epoch(2), &[(spec(1), Role::Copy { of: OTHER })], &mut out);
    let ended = |command: &Command| matches!(command, Command::EndStream { peer: THIRD, ours: true, .. });
    assert!(matches!(&out.list[..], [one] if ended(one)), "{:?}", out.list);
}

#[test]
fn nor_does_it_where_the_stream_breaks_meanwhile() {
    let roles = |backup, seeding| [(spec(1), Role::Primary { backup, seeding })];
    let mut rig = rig_of(config(1), &roles(Some(OTHER), Some(THIRD)));
    confirmed(&mut rig);
    confirmed(&mut rig);
    rig.send(0, &[push(1, 1)]);
    records(&mut rig);
    let mut out = Commands::default();
    rig.engine.stream_down(THIRD, &mut out);
    rig.engine.roles(epoch(2), &roles(None, Some(THIRD)), &mut out);
    rig.push_knowing(2, 0, &[push(1, 1)]);
    let slots: Vec<_> = (0..8).map(|slot| SlotGrant { slot, generation: 1 }).collect();
    rig.engine.stream_up(THIRD, Incarnation(5), &slots, 1 << 20, &mut out);
    let all = records(&mut rig);
    assert_eq!(ops(&all), [(OpKind::CopyCheck, 0, 0)]);
    judged(&mut rig, THIRD, all[0].4, Judgement::Ahead);
    assert_eq!(rig.version(), 0, "it is ahead by the round that was thrown away");
    confirmed(&mut rig);
    assert_eq!(rig.version(), 1);
}

#[test]
fn a_new_life_repeats_what_is_being_applied_and_it_counts_once() {
    let mode = Mode::Async;
    let chunks = [(ChunkSpec { mode, ..spec(1) }, BACKED)];
    let mut rig = rig_of(EngineConfig { worker_loss: WorkerLoss::Continue, ..config(2) }, &chunks);
    confirmed(&mut rig);
    confirmed(&mut rig);
    rig.send(0, &[pull(1, 0), push(2, 1)]);
    let update = records(&mut rig)[0].4;
    rig.again(0);
    rig.connect(0);
    // What it asks first: how many of its contributions are in force.
    let asks = |operation| Block { bytes: 0, ..block(OpKind::Release, operation, 0) };
    rig.send(0, &[asks(1), push(2, 1)]);
    assert_eq!(rig.flush_blocks_of_workers(), [], "one is under way");
    let list = judged(&mut rig, OTHER, update, Judgement::Confirmed);
    assert!(matches!(list[..], [Command::Finish { round: 1, .. }]), "{list:?}");
    assert_eq!(rig.flush(), [done(0, 1, 1), done(0, 2, 1)]);
    assert_eq!(rig.version(), 1);
    assert_eq!(rig.engine.stats().contributions, 1);
}

impl Rig {
    /// As [`Rig::flush`], where records may go out as well.
    fn flush_blocks_of_workers(&mut self) -> Vec<Command> {
        let mut out = Commands::default();
        self.engine.flush(usize::MAX, &mut out);
        out.list.into_iter().filter(|command| matches!(command, Command::Results { .. })).collect()
    }
}

#[test]
fn a_count_that_no_worker_can_have_come_to_makes_nobody_further() {
    let mut rig = rig_of(
        config(2),
        &[(ChunkSpec { mode: Mode::Bounded(0), ..spec(1) }, Role::Primary { backup: None, seeding: None })],
    );
    rig.send(1, &[Block { bytes: 4, ..push(1, u64::MAX) }, push(2, u64::MAX)]);
    assert_eq!(
        rig.flush(),
        [answer(1, 1, Status::WrongShape, u64::MAX), answer(1, 2, Status::Refused, u64::MAX)]
    );
    rig.send(0, &[push(1, 1)]);
    assert_eq!(rig.flush(), [], "worker 1 has made none");
    assert_eq!(rig.ask_rounds(0), [] as [(u64, u64); 0]);
}
