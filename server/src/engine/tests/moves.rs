//! Chunks that move, and copies that take over: rules of docs/recovery.md one by one.

use super::*;
use crate::engine::{ChunkState, RecordContext, Role};
use proto_common::batch::Judgement;
use proto_common::optimizer::Lamb;

const OTHER: Rank = Rank(1);
const THIRD: Rank = Rank(2);
const ALONE: Role = Role::Primary { backup: None, seeding: None };
const BACKED: Role = Role::Primary { backup: Some(OTHER), seeding: None };
const COPY: Role = Role::Copy { of: OTHER };

fn epoch(counter: u32) -> Epoch {
    Epoch { term: 1, counter }
}

fn roles(engine: &mut LaneEngine, counter: u32, role: Role) -> Vec<Command> {
    let mut out = Commands::default();
    engine.roles(epoch(counter), &[(spec(1), role)], &mut out);
    out.list
}

impl Rig {
    /// As [`Rig::send`], from a worker that knows of this decision.
    fn send_knowing(&mut self, counter: u32, rank: u32, blocks: &[Block]) -> Vec<Command> {
        let slot = self.workers[rank as usize].credits.pop_front().expect("it has credits");
        let header = BatchHeader { epoch: epoch(counter), ..self.header(rank) };
        self.deliver(rank, slot, &header, blocks, &[])
    }
}

fn grants(count: u32) -> Vec<SlotGrant> {
    (0..count).map(|slot| SlotGrant { slot, generation: 1 }).collect()
}

/// What goes out to copies: what kind, and the slot.
fn records(rig: &mut Rig) -> Vec<(OpKind, SlotGrant)> {
    let mut out = Commands::default();
    rig.engine.flush(8, &mut out);
    let record = |command: &Command| match command {
        Command::Record { block, slot, .. } => Some((block.op, *slot)),
        _ => None,
    };
    out.list.iter().filter_map(record).collect()
}

fn judged(rig: &mut Rig, slot: SlotGrant, judgement: Judgement) -> Vec<Command> {
    let mut out = Commands::default();
    rig.engine.stream_notice(OTHER, Notice::Judged(slot, judgement), &mut out);
    out.list
}

/// What a server's stream says, in the first slot, and what it is told.
fn says(engine: &mut LaneEngine, from: (Rank, u64), op: OpKind, round: u64) -> Vec<Command> {
    says_of(engine, from, op, round, Operation(0))
}

/// As [`says`], with what its worker's contributions have come to.
fn says_of(
    engine: &mut LaneEngine,
    (from, life): (Rank, u64),
    op: OpKind,
    round: u64,
    operation: Operation,
) -> Vec<Command> {
    let slot = engine.copy_up(from, Incarnation(life), 1)[0];
    let header = BatchHeader {
        kind: BatchKind::Record,
        lane: Lane(0),
        wanted: 0,
        sender: from,
        job: JobId(7),
        epoch: epoch(2),
        sender_incarnation: Incarnation(life),
        receiver_incarnation: SERVER,
        sequence: 1,
        payload_offset: PAYLOAD,
        payload_bytes: 64,
        payload_checksum: None,
    };
    let whole = (op == OpKind::CopyUpdate).then_some(Landing { region: BYTES, offset: 0, bytes: BYTES });
    let bytes = if whole.is_some() { BYTES } else { 0 };
    let record =
        Block { op, landing: whole, bytes, timeout_ms: 0, token: 0, ..block(OpKind::Pull, 0, round) };
    let block = Block { operation, ..record };
    let mut out = Commands::default();
    assert!(engine.record_notified(from, slot, &mut out));
    let (blocks, contributors) = (&[block][..], &[1][..]);
    engine.record(&RecordContext { from, slot, header: &header, blocks, contributors }, &mut out);
    out.list
}

fn word(commands: &[Command]) -> Judgement {
    match commands.first() {
        Some(Command::TellPrimary { notice: Notice::Judged(_, judgement), .. }) => *judgement,
        _ => panic!("{commands:?}"),
    }
}

/// A copy of one worker's chunk that has confirmed round 1.
fn copy() -> Rig {
    let mut rig = Rig::new(config(1));
    roles(&mut rig.engine, 2, COPY);
    assert_eq!(word(&says(&mut rig.engine, (OTHER, 5), OpKind::CopyCheck, 0)), Judgement::Confirmed);
    assert_eq!(word(&says(&mut rig.engine, (OTHER, 5), OpKind::CopyUpdate, 1)), Judgement::Confirmed);
    rig
}

#[test]
fn whoever_takes_over_answers_nothing_before_its_backup_has_what_it_has() {
    let mut rig = copy();
    // The one that it was a copy of keeps a copy now, and may be a round behind.
    assert_eq!(roles(&mut rig.engine, 3, BACKED), []);
    rig.send_knowing(3, 0, &[push(1, 1)]);
    assert_eq!(rig.flush(), [], "round 1 may be here only");
    rig.engine.stream_up(OTHER, Incarnation(6), &grants(4), 1 << 20, &mut Commands::default());
    let [(OpKind::CopyCheck, check)] = records(&mut rig)[..] else { panic!("it is asked first") };
    judged(&mut rig, check, Judgement::Wanting);
    assert_eq!(records(&mut rig), [], "its image is being taken");
    let mut out = Commands::default();
    rig.engine.captured(OTHER, 0, 100, &mut out);
    let Some(Command::Record { slot, .. }) = out.list.first() else { panic!("{:?}", out.list) };
    assert_eq!(rig.engine.stats().answers, 0);
    judged(&mut rig, *slot, Judgement::Confirmed);
    assert_eq!(rig.engine.stats().answers, 1);
}

#[test]
fn a_copy_that_takes_over_alone_answers_to_whom_knows_of_that_only() {
    let mut rig = copy();
    assert_eq!(roles(&mut rig.engine, 3, ALONE), []);
    rig.send_knowing(2, 0, &[push(1, 2)]);
    assert_eq!(rig.flush()[0].status, Status::Reroute, "it may have been sent for an earlier role");
    let list = rig.send_knowing(3, 0, &[push(1, 2)]);
    assert!(matches!(list[..], [Command::Finish { round: 2, .. }]), "{list:?}");
    assert_eq!(rig.flush(), [done(0, 1, 2)]);
}

#[test]
fn what_a_copy_had_from_another_server_or_life_counts_for_nothing() {
    let mut rig = copy();
    let check = |rig: &mut Rig, from, round| word(&says(&mut rig.engine, from, OpKind::CopyCheck, round));
    assert_eq!(check(&mut rig, (OTHER, 5), 1), Judgement::Confirmed);
    assert_eq!(check(&mut rig, (OTHER, 5), 0), Judgement::Ahead);
    assert_eq!(check(&mut rig, (OTHER, 6), 1), Judgement::Wanting, "another life of it");
    roles(&mut rig.engine, 3, Role::Copy { of: THIRD });
    assert_eq!(check(&mut rig, (THIRD, 7), 1), Judgement::Wanting, "another server");
    assert_eq!(check(&mut rig, (THIRD, 7), 0), Judgement::Wanting, "nor is it one ahead");
    let update = says(&mut rig.engine, (THIRD, 7), OpKind::CopyUpdate, 2);
    assert_eq!(word(&update), Judgement::Wanting);
    assert_eq!(rig.version(), 1);
    // What it served itself counts for nothing, either.
    roles(&mut rig.engine, 4, ALONE);
    roles(&mut rig.engine, 5, COPY);
    assert_eq!(check(&mut rig, (OTHER, 5), 1), Judgement::Wanting);
}

#[test]
fn a_step_that_is_made_in_part_stays_with_a_chunk_that_moves_and_comes_back() {
    let mut rig = Rig::new(config(1));
    rig.engine = LaneEngine::new(rig.config);
    let lamb = Optimizer::mean(Lamb::default(), 0.1);
    let both =
        |role| [0, 1].map(|at| (ChunkSpec { id: ChunkId::new(1, at), optimizer: lamb, ..spec(1) }, role));
    let of = |chunk, block: Block| Block { id: ChunkId::new(1, chunk), ..block };
    let mut out = Commands::default();
    rig.engine.roles(epoch(1), &both(ALONE), &mut out);
    rig.connect(0);
    let list = rig.send(0, &[of(0, push(1, 1))]);
    assert!(matches!(list[..], [Command::Prepare { chunk: 0, .. }]), "{list:?}");
    rig.engine.roles(epoch(2), &both(COPY), &mut out);
    assert_eq!(rig.flush(), [answer(0, 1, Status::Reroute, 0)]);
    rig.engine.roles(epoch(3), &both(ALONE), &mut out);
    assert_eq!(out.list, []);
    assert_eq!(rig.send_knowing(3, 0, &[of(0, push(1, 1))]), [], "its step is made, and counts once");
    let list = rig.send_knowing(3, 0, &[of(1, push(1, 1))]);
    assert!(
        matches!(
            list[..],
            [
                Command::Prepare { chunk: 1, .. },
                Command::Norms { .. },
                Command::Finish { chunk: 0, .. },
                Command::Finish { chunk: 1, .. }
            ]
        ),
        "{list:?}"
    );
}

fn returned(rig: &mut Rig, slot: SlotGrant) {
    let slot = SlotGrant { generation: slot.generation.wrapping_add(1), ..slot };
    rig.engine.stream_notice(OTHER, Notice::Returned(slot), &mut Commands::default());
}

/// Chunks that are freed now.
fn freed(rig: &mut Rig) -> Vec<u32> {
    let mut out = Commands::default();
    rig.engine.flush(8, &mut out);
    let free = |command: &Command| if let Command::Free { chunk } = command { Some(*chunk) } else { None };
    out.list.iter().filter_map(free).collect()
}

/// A server that is given a copy of a chunk has been sent its first round, in two parts or only the first of them, and then the
/// chunk is given up.
fn given_up_under_way(parts: u32) -> (Rig, Vec<SlotGrant>) {
    let mut rig = Rig::new(config(1));
    rig.engine = LaneEngine::new(rig.config);
    let seeding = Role::Primary { backup: None, seeding: Some(OTHER) };
    let mut out = Commands::default();
    rig.engine.roles(epoch(2), &[(ChunkSpec { bytes: 128, ..spec(1) }, seeding)], &mut out);
    rig.connect(0);
    rig.engine.stream_up(OTHER, Incarnation(6), &grants(parts), 64, &mut out);
    for expected in [OpKind::CopyCheck, OpKind::CopyRules] {
        let [(op, slot)] = records(&mut rig)[..] else { panic!("one after the other") };
        assert_eq!(op, expected);
        judged(&mut rig, slot, Judgement::Confirmed);
        returned(&mut rig, slot);
    }
    rig.send_knowing(2, 0, &[Block { bytes: 128, ..push(1, 1) }]);
    let sent: Vec<SlotGrant> = records(&mut rig).into_iter().map(|(_, slot)| slot).collect();
    assert_eq!(sent.len(), parts as usize);
    out.list.clear();
    rig.engine.roles(epoch(3), &[], &mut out);
    assert_eq!((out.list, freed(&mut rig)), (vec![], vec![]), "its sum is still read");
    (rig, sent)
}

/// Scenario: the receiver of a record is stopped, so that half of it is still to be sent when the chunk is given up. If another chunk
/// were summed up in the memory, the receiver would take that for the other half.
#[test]
fn the_sum_of_a_chunk_that_is_given_up_stays_until_its_records_have_arrived() {
    let (mut rig, sent) = given_up_under_way(2);
    returned(&mut rig, sent[0]);
    judged(&mut rig, sent[1], Judgement::Later);
    assert_eq!(freed(&mut rig), [0; 0]);
    returned(&mut rig, sent[1]);
    assert_eq!(freed(&mut rig), [0]);
    // The second part never leaves.
    let (mut rig, sent) = given_up_under_way(1);
    returned(&mut rig, sent[0]);
    assert_eq!(freed(&mut rig), [0]);
    // Nor does anything once the stream has ended.
    let (mut rig, _) = given_up_under_way(2);
    rig.engine.stream_down(OTHER, &mut Commands::default());
    assert_eq!(freed(&mut rig), [0]);
}

fn announced(operation: u64) -> Block {
    Block { data: BlockData::Announced { keep: true }, ..push(operation, operation) }
}

fn placed(operation: u64, round: u64) -> Block {
    Block { data: BlockData::Placed, ..push(operation, round) }
}

/// Two workers that have kept key buffers for a chunk that another server has now, since epoch 3.
fn moved() -> Rig {
    let mut rig = Rig::new(config(2));
    roles(&mut rig.engine, 2, ALONE);
    for rank in [0, 1] {
        rig.send_knowing(2, rank, &[announced(1)]);
        assert_eq!(rig.flush()[0].status, Status::Granted);
    }
    assert_eq!(rig.engine.key_buffers(), 2);
    let mut out = Commands::default();
    rig.engine.roles(epoch(3), &[], &mut out);
    assert_eq!(out.list, [], "workers may write them still");
    rig
}

#[test]
fn a_buffer_of_a_chunk_that_has_moved_is_freed_when_its_worker_knows_of_that_or_is_gone() {
    let mut rig = moved();
    assert_eq!(rig.send_knowing(2, 0, &[placed(1, 1)]), []);
    assert_eq!(rig.flush()[0].status, Status::Reroute);
    assert_eq!(rig.engine.key_buffers(), 2, "it is written again and again, by who knows no better");
    assert_eq!(rig.send_knowing(3, 0, &[pull(2, 1)]), []);
    assert_eq!(rig.flush()[0].status, Status::Reroute);
    assert_eq!(rig.engine.key_buffers(), 1);
    rig.down(Rank(1));
    assert_eq!((rig.engine.key_buffers(), rig.engine.spills().0), (0, 0));
    let mut out = Commands::default();
    rig.engine.roles(epoch(4), &[], &mut out);
    assert_eq!(out.list, [Command::Free { chunk: 0 }]);
}

#[test]
fn a_payload_in_a_buffer_of_before_is_sent_back_where_the_chunk_is_here_again() {
    let mut rig = moved();
    // Worker 1 has heard of the move, and not that it was undone.
    rig.send_knowing(3, 1, &[pull(1, 1)]);
    rig.flush();
    roles(&mut rig.engine, 4, ALONE);
    assert_eq!(rig.send_knowing(2, 0, &[placed(1, 1)]), []);
    assert_eq!(rig.flush()[0].status, Status::Granted, "it lies where the chunk was: it comes in a slot");
    assert_eq!(rig.send_knowing(3, 1, &[placed(1, 1)]), [], "no worker is expelled for it");
    assert_eq!(rig.flush()[0].status, Status::Reroute);
    let list = rig.send_knowing(4, 1, &[placed(1, 1)]);
    assert!(expelled(&list).contains("without a grant"), "{list:?}");
}

#[test]
fn at_the_deadline_of_a_round_that_waits_for_a_copy_its_server_is_named() {
    let mut rig = Rig::new(config(1));
    roles(&mut rig.engine, 2, BACKED);
    rig.send_knowing(2, 0, &[push(1, 1)]);
    let oldest = rig.engine.oldest(0).expect("it waits");
    assert_eq!((oldest.cause, oldest.on), (WaitCause::Copies, vec![Rank(1)]));
    let named = |version| Answer { missing: vec![1], ..answer(0, 1, Status::DeadlineCopies, version) };
    assert_eq!(rig.tick(1_000), [named(0)]);
    // It takes over, and what it has may be here only.
    let mut rig = copy();
    roles(&mut rig.engine, 3, BACKED);
    rig.send_knowing(3, 0, &[push(1, 1)]);
    assert_eq!(rig.tick(1_000), [named(1)]);
}

#[test]
fn a_change_of_a_rule_is_made_when_copies_have_it() {
    let mut rig = Rig::new(config(1));
    roles(&mut rig.engine, 2, BACKED);
    rig.engine.rule_changed(0);
    assert!(rig.engine.lacking_rules(Key(1)).next().is_some(), "it would be lost with this server");
    rig.engine.stream_up(OTHER, Incarnation(5), &grants(4), 1 << 20, &mut Commands::default());
    let [(OpKind::CopyCheck, check)] = records(&mut rig)[..] else { panic!("it is asked first") };
    judged(&mut rig, check, Judgement::Confirmed);
    let [(OpKind::CopyRules, first)] = records(&mut rig)[..] else { panic!("changes follow") };
    // Another one, that is not in the first record.
    rig.engine.rule_changed(0);
    judged(&mut rig, first, Judgement::Confirmed);
    assert!(rig.engine.lacking_rules(Key(1)).next().is_some());
    let [(OpKind::CopyRules, second)] = records(&mut rig)[..] else { panic!("it follows, too") };
    judged(&mut rig, second, Judgement::Confirmed);
    assert!([Key(1), Key(9)].iter().all(|key| rig.engine.lacking_rules(*key).next().is_none()));
    rig.engine.rule_changed(0);
    roles(&mut rig.engine, 3, ALONE);
    assert!(rig.engine.lacking_rules(Key(1)).next().is_none(), "nobody else is to have it");
}

#[test]
fn a_tensor_with_norms_whose_copy_was_half_made_is_refused_at_once() {
    // Which states had come when the server that sent them died; and had an update of the first chunk come before?
    for (states, updated, is_torn) in [
        (&[][..], false, false),
        (&[1], false, true),
        (&[0, 1], false, false),
        (&[1], true, true),
        (&[1, 0], true, false),
    ] {
        let mut rig = Rig::new(config(1));
        rig.engine = LaneEngine::new(rig.config);
        let lamb = Optimizer::mean(Lamb::default(), 0.1);
        let both =
            |role| [0, 1].map(|at| (ChunkSpec { id: ChunkId::new(1, at), optimizer: lamb, ..spec(1) }, role));
        let mut out = Commands::default();
        rig.engine.roles(epoch(2), &both(COPY), &mut out);
        rig.connect(0);
        if updated {
            assert_eq!(word(&says(&mut rig.engine, (OTHER, 5), OpKind::CopyCheck, 0)), Judgement::Confirmed);
            assert_eq!(word(&says(&mut rig.engine, (OTHER, 5), OpKind::CopyUpdate, 1)), Judgement::Confirmed);
        }
        let slot = rig.engine.copy_up(OTHER, Incarnation(5), 1)[0];
        let state = ChunkState { version: 1, versions: (1, 1), live_bytes: BYTES, ..ChunkState::default() };
        for chunk in states {
            rig.engine.loaded((OTHER, slot), *chunk, Some((&state, 0)), &mut out);
        }
        rig.engine.roles(epoch(3), &both(ALONE), &mut out);
        rig.send_knowing(3, 0, &[pull(1, 0)]);
        let version = rig.version();
        let status = if is_torn { Status::Torn } else { Status::Done };
        assert_eq!(rig.flush(), [answer(0, 1, status, version)], "{states:?} {updated}");
    }
}

#[test]
fn a_count_that_nobody_can_come_to_ends_its_stream() {
    let loose = ChunkSpec { mode: Mode::Async, ..spec(1) };
    for (count, is_taken) in [(7, true), (u64::MAX / 2 - 1, true), (u64::MAX / 2, false), (u64::MAX, false)] {
        let mut rig = Rig::new(config(1));
        rig.engine = LaneEngine::new(rig.config);
        rig.engine.roles(epoch(2), &[(loose, COPY)], &mut Commands::default());
        let check = says(&mut rig.engine, (OTHER, 5), OpKind::CopyCheck, 0);
        assert_eq!(word(&check), Judgement::Confirmed);
        let list = says_of(&mut rig.engine, (OTHER, 5), OpKind::CopyUpdate, 1, Operation(count));
        match is_taken {
            true => assert_eq!(word(&list), Judgement::Confirmed),
            false => assert!(matches!(list[..], [Command::EndStream { peer: OTHER, .. }]), "{list:?}"),
        }
        assert_eq!(rig.version(), u64::from(is_taken));
    }
}
