//! Streams and copies, as lists of commands; and whatever another server sends, no panic and no slot that is lost.

use super::*;
use crate::engine::{Payload, RecordContext, Role, Verdict};
use proptest::prelude::*;
use proto_common::batch::Judgement;
use proto_common::table::Spread;

mod comers;
mod earlier;
mod many;

const OTHER: Rank = Rank(1);
const ALONE: Role = Role::Primary { backup: None, seeding: None };
const BACKED: Role = Role::Primary { backup: Some(OTHER), seeding: None };
const SEEDING: Role = Role::Primary { backup: None, seeding: Some(OTHER) };

fn epoch(counter: u32) -> Epoch {
    Epoch { term: 1, counter }
}

fn roles(engine: &mut LaneEngine, counter: u32, role: Role) -> Vec<Command> {
    let mut out = Commands::default();
    engine.roles(epoch(counter), &[(spec(1), role)], &mut out);
    out.list
}

fn grants(count: u32) -> Vec<SlotGrant> {
    (0..count).map(|slot| SlotGrant { slot, generation: 1 }).collect()
}

/// A server of one worker whose chunk has a backup, and the stream to it.
fn backed() -> Rig {
    let mut rig = Rig::new(config(1));
    assert_eq!(roles(&mut rig.engine, 2, BACKED), []);
    rig.engine.stream_up(OTHER, Incarnation(5), &grants(4), 1 << 20, &mut Commands::default());
    rig
}

fn records(rig: &mut Rig) -> Vec<(OpKind, u64, SlotGrant)> {
    let mut out = Commands::default();
    rig.engine.flush(8, &mut out);
    let record = |command: &Command| match command {
        Command::Record { to, slot, block, .. } => {
            assert_eq!(*to, OTHER);
            Some((block.op, block.count.round(), *slot))
        }
        _ => None,
    };
    out.list.iter().filter_map(record).collect()
}

fn told(rig: &mut Rig, notice: Notice) -> Vec<Command> {
    let mut out = Commands::default();
    rig.engine.stream_notice(OTHER, notice, &mut out);
    out.list
}

fn judged(rig: &mut Rig, slot: SlotGrant, judgement: Judgement) -> Vec<Command> {
    let list = told(rig, Notice::Judged(slot, judgement));
    let generation = slot.generation.wrapping_add(1);
    assert_eq!(told(rig, Notice::Returned(SlotGrant { generation, ..slot })), []);
    list
}

/// The check that a stream begins with is answered.
fn joined(judgement: Judgement) -> Rig {
    let mut rig = backed();
    let all = records(&mut rig);
    assert_eq!(all.len(), 1);
    let (op, round, slot) = all[0];
    assert_eq!((op, round), (OpKind::CopyCheck, 0));
    judged(&mut rig, slot, judgement);
    rig
}

#[test]
fn a_round_is_answered_when_the_backup_has_confirmed_it_and_not_before() {
    let mut rig = joined(Judgement::Confirmed);
    let all = records(&mut rig);
    assert_eq!(all.iter().map(|record| record.0).collect::<Vec<_>>(), [OpKind::CopyRules]);
    judged(&mut rig, all[0].2, Judgement::Confirmed);
    let list = rig.send(0, &[push_pull(1, 1)]);
    assert!(matches!(list[..], [Command::Reduce { chunk: 0, .. }]), "{list:?}");
    let all = records(&mut rig);
    let [(OpKind::CopyUpdate, 1, slot)] = all[..] else { panic!("{all:?}") };
    assert_eq!(rig.engine.version(ChunkId::new(1, 0)).map(|version| version.0), Some(0));
    let list = judged(&mut rig, slot, Judgement::Confirmed);
    assert!(
        matches!(list[..], [Command::Finish { round: 1, last: None, .. }, Command::Land { .. }]),
        "{list:?}"
    );
    assert_eq!(rig.flush(), [done(0, 1, 1)]);
}

#[test]
fn a_backup_that_has_a_round_more_has_confirmed_it() {
    let mut rig = joined(Judgement::Confirmed);
    rig.send(0, &[push(1, 1)]);
    let all = records(&mut rig);
    assert_eq!(all.last().map(|record| record.0), Some(OpKind::CopyUpdate));
    // It was confirmed, but the word was lost with the stream.
    rig.engine.stream_down(OTHER, &mut Commands::default());
    assert_eq!(rig.flush(), []);
    rig.engine.stream_up(OTHER, Incarnation(5), &grants(4), 1 << 20, &mut Commands::default());
    let all = records(&mut rig);
    let [(OpKind::CopyCheck, 0, slot)] = all[..] else { panic!("{all:?}") };
    let list = judged(&mut rig, slot, Judgement::Ahead);
    assert!(matches!(list[..], [Command::Finish { round: 1, .. }]), "{list:?}");
    assert_eq!(rig.engine.version(ChunkId::new(1, 0)).map(|version| version.0), Some(1));
}

#[test]
fn an_initial_value_that_comes_while_the_backup_is_asked_goes_there_as_a_state() {
    let mut rig = backed();
    let (_, _, check) = records(&mut rig)[0];
    rig.send(0, &[init(1, BYTES)]);
    assert_eq!(judged(&mut rig, check, Judgement::Confirmed), []);
    let mut out = Commands::default();
    rig.engine.flush(8, &mut out);
    let [Command::Capture { ref state, .. }] = out.list[..] else { panic!("{:?}", out.list) };
    assert!(state.initialised);
    rig.engine.captured(OTHER, 0, 100, &mut Commands::default());
    let slot = SlotGrant { slot: 1, generation: 1 };
    judged(&mut rig, slot, Judgement::Confirmed);
    assert_eq!(rig.flush(), [done(0, 1, 0)]);
}

#[test]
fn a_backup_that_has_something_else_gets_a_state_and_the_update_behind_it() {
    let mut rig = joined(Judgement::Wanting);
    rig.send(0, &[push(1, 1)]);
    let mut out = Commands::default();
    rig.engine.flush(8, &mut out);
    assert!(matches!(out.list[..], [Command::Capture { chunk: 0, .. }]), "{:?}", out.list);
    let mut out = Commands::default();
    rig.engine.captured(OTHER, 0, 100, &mut out);
    let ops = |command: &Command| match command {
        Command::Record { block, payload, slot, .. } => Some((block.op, *payload, *slot)),
        _ => None,
    };
    let all: Vec<_> = out.list.iter().filter_map(ops).collect();
    let [(OpKind::CopyState, Payload::Image, first), (OpKind::CopyUpdate, Payload::Sum, second)] = all[..]
    else {
        panic!("{all:?}")
    };
    assert_eq!(judged(&mut rig, first, Judgement::Confirmed), []);
    assert!(matches!(judged(&mut rig, second, Judgement::Confirmed)[..], [Command::Finish { .. }]));
    assert_eq!(rig.flush(), [done(0, 1, 1)]);
    assert_eq!(rig.engine.copies(), (1, 1, 0));
}

#[test]
fn a_copy_that_was_whole_once_holds_rounds_up_and_one_that_was_not_does_not() {
    let mut rig = Rig::new(config(1));
    roles(&mut rig.engine, 2, SEEDING);
    rig.send(0, &[push(1, 1)]);
    assert_eq!(rig.flush(), [done(0, 1, 1)], "nothing of it is there");
    rig.engine.stream_up(OTHER, Incarnation(5), &grants(4), 1 << 20, &mut Commands::default());
    let (_, _, slot) = records(&mut rig)[0];
    judged(&mut rig, slot, Judgement::Confirmed);
    let mut out = Commands::default();
    rig.engine.flush(8, &mut out);
    assert!(
        out.list.contains(&Command::Seeded { to: OTHER, epoch: epoch(2) }) || {
            // The rules that follow go first.
            let slots: Vec<_> = out
                .list
                .iter()
                .filter_map(|command| match command {
                    Command::Record { slot, .. } => Some(*slot),
                    _ => None,
                })
                .collect();
            slots.into_iter().for_each(|slot| _ = judged(&mut rig, slot, Judgement::Confirmed));
            let mut out = Commands::default();
            rig.engine.flush(8, &mut out);
            out.list.contains(&Command::Seeded { to: OTHER, epoch: epoch(2) })
        }
    );
    rig.engine.stream_down(OTHER, &mut Commands::default());
    rig.send(0, &[push(2, 2)]);
    assert_eq!(rig.flush(), [], "the scheduler may have made it the server");
    let list = roles(&mut rig.engine, 3, ALONE);
    assert!(matches!(list[..], [Command::Finish { round: 2, .. }]), "it was no backup: {list:?}");
    assert_eq!(rig.flush(), [done(0, 2, 2)]);
}

#[test]
fn without_its_backup_a_server_takes_what_knows_of_that_only() {
    let mut rig = joined(Judgement::Confirmed);
    rig.send(0, &[push(1, 1)]);
    assert_eq!(roles(&mut rig.engine, 3, ALONE), [], "what was collected comes again");
    assert_eq!(rig.flush(), [answer(0, 1, Status::Reroute, 0)]);
    rig.send(0, &[push(1, 1)]);
    let told = rig.flush();
    assert_eq!((told[0].status, told[0].operation), (Status::Reroute, 1), "its batch has the epoch before");
}

#[test]
fn what_is_served_elsewhere_is_sent_there() {
    let mut rig = Rig::new(config(1));
    roles(&mut rig.engine, 2, ALONE);
    rig.send(0, &[pull(1, 5)]);
    assert_eq!(roles(&mut rig.engine, 3, Role::Copy { of: OTHER }), []);
    assert_eq!(rig.flush(), [answer(0, 1, Status::Reroute, 0)]);
    rig.send(0, &[push(1, 1)]);
    assert_eq!(rig.flush()[0].status, Status::Reroute);
    let mut out = Commands::default();
    rig.engine.roles(epoch(4), &[], &mut out);
    assert_eq!(out.list, [Command::Free { chunk: 0 }]);
    rig.send(0, &[push(1, 1)]);
    assert_eq!(rig.flush()[0].status, Status::Reroute);
    // An older decision comes late.
    roles(&mut rig.engine, 3, ALONE);
    assert_eq!(rig.engine.index_of(ChunkId::new(1, 0)), None);
}

#[test]
fn a_thousand_moves_take_no_more_places() {
    let mut engine = LaneEngine::new(config(1));
    let lamb = |chunk| ChunkSpec {
        id: ChunkId::new(9, chunk),
        optimizer: Optimizer::mean(proto_common::optimizer::Lamb::default(), 0.1),
        ..spec(9)
    };
    for turn in 0..1000u32 {
        let all = [spec(1), lamb(0), lamb(1), spec(2)].map(|spec| (spec, ALONE));
        let mut out = Commands::default();
        let changes = engine.roles(epoch(2 * turn + 2), &all, &mut out);
        assert_eq!(changes.added.len(), 4);
        assert!(changes.added.iter().all(|(index, _)| *index < 4), "{:?}", changes.added);
        engine.roles(epoch(2 * turn + 3), &[], &mut out);
        assert_eq!(out.list.len(), 4, "all of them are free");
    }
}

/// The side with the copy.
fn copy() -> (LaneEngine, Vec<SlotGrant>) {
    let mut engine = LaneEngine::new(config(2));
    roles(&mut engine, 2, Role::Copy { of: OTHER });
    let slots = engine.copy_up(OTHER, Incarnation(5), 2);
    (engine, slots)
}

fn record_header() -> BatchHeader {
    BatchHeader {
        kind: BatchKind::Record,
        lane: Lane(0),
        wanted: 0,
        sender: OTHER,
        job: JobId(7),
        epoch: epoch(2),
        sender_incarnation: Incarnation(5),
        receiver_incarnation: SERVER,
        sequence: 1,
        payload_offset: PAYLOAD,
        payload_bytes: 64,
        payload_checksum: None,
    }
}

fn record(op: OpKind, round: u64) -> Block {
    let whole = (op == OpKind::CopyUpdate).then_some(Landing { region: BYTES, offset: 0, bytes: BYTES });
    Block {
        op,
        landing: whole,
        bytes: if whole.is_some() { BYTES } else { 0 },
        timeout_ms: 0,
        token: 0,
        ..block(OpKind::Pull, 0, round)
    }
}

fn deliver(engine: &mut LaneEngine, slot: SlotGrant, header: &BatchHeader, block: Block) -> Vec<Command> {
    let mut out = Commands::default();
    if engine.record_notified(OTHER, slot, &mut out) {
        let (blocks, contributors) = (&[block][..], &[0b11][..]);
        engine.record(&RecordContext { from: OTHER, slot, header, blocks, contributors }, &mut out);
    }
    out.list
}

#[test]
fn a_copy_confirms_before_it_applies_and_once() {
    let (mut engine, slots) = copy();
    let header = record_header();
    let list = deliver(&mut engine, slots[0], &header, record(OpKind::CopyCheck, 0));
    let next = |slot: SlotGrant| SlotGrant { generation: slot.generation + 1, ..slot };
    let tell = |notice| Command::TellPrimary { from: OTHER, notice };
    let told = |slot, judgement| [tell(Notice::Judged(slot, judgement)), tell(Notice::Returned(next(slot)))];
    assert_eq!(list, told(slots[0], Judgement::Confirmed));
    let list = deliver(&mut engine, slots[1], &header, record(OpKind::CopyUpdate, 1));
    assert_eq!(list[0], tell(Notice::Judged(slots[1], Judgement::Confirmed)));
    assert!(
        matches!(
            list[1..],
            [
                Command::Finish {
                    contributors: 2,
                    last: Some(Addend { from: Source::Record { .. }, onto: Onto::Nothing }),
                    ..
                },
                Command::TellPrimary { notice: Notice::Returned(_), .. }
            ]
        ),
        "{list:?}"
    );
    // Again, or out of turn: it is not applied.
    let list = deliver(&mut engine, next(slots[1]), &header, record(OpKind::CopyUpdate, 1));
    assert_eq!(list, told(next(slots[1]), Judgement::Wanting));
    // A notice that comes again is no record, and a slot that was not granted ends the stream.
    assert_eq!(deliver(&mut engine, slots[1], &header, record(OpKind::CopyUpdate, 2)), []);
    assert_eq!(deliver(&mut engine, slots[0], &header, record(OpKind::CopyCheck, 2)), []);
    let list = deliver(&mut engine, next(next(next(slots[1]))), &header, record(OpKind::CopyUpdate, 2));
    assert!(matches!(list[..], [Command::EndStream { ours: false, .. }]), "{list:?}");
}

#[test]
fn what_a_copy_says_twice_counts_once() {
    let mut rig = backed();
    let (_, _, slot) = records(&mut rig)[0];
    told(&mut rig, Notice::Judged(slot, Judgement::Confirmed));
    assert_eq!(told(&mut rig, Notice::Judged(slot, Judgement::Confirmed)), []);
    let returned = Notice::Returned(SlotGrant { generation: slot.generation + 1, ..slot });
    assert_eq!(told(&mut rig, returned), []);
    assert_eq!(told(&mut rig, returned), []);
    assert_eq!(told(&mut rig, Notice::Judged(slot, Judgement::Confirmed)), []);
    let never = Notice::Returned(SlotGrant { generation: slot.generation + 2, ..slot });
    assert!(matches!(told(&mut rig, never)[..], [Command::EndStream { ours: true, .. }]));
}

#[test]
fn a_sum_in_pieces_is_taken_out_of_its_slots_and_applied_when_it_is_whole() {
    let (mut engine, slots) = copy();
    let header = record_header();
    deliver(&mut engine, slots[0], &header, record(OpKind::CopyCheck, 0));
    let part = |offset, bytes| Block {
        bytes,
        landing: Some(Landing { region: BYTES, offset, bytes: BYTES }),
        ..record(OpKind::CopyUpdate, 1)
    };
    let list = deliver(&mut engine, slots[1], &header, part(0, BYTES - 8));
    let [Command::TakeSum { at: 0, .. }, Command::TellPrimary { notice: Notice::Returned(again), .. }] =
        list[..]
    else {
        panic!("{list:?}")
    };
    let list = deliver(&mut engine, again, &header, part(BYTES - 8, 8));
    let judged = Command::TellPrimary { from: OTHER, notice: Notice::Judged(again, Judgement::Confirmed) };
    assert_eq!(list[0], judged);
    let [
        Command::TakeSum { at, bytes: 8, .. },
        Command::Finish { last: None, .. },
        Command::TellPrimary { .. },
    ] = list[1..]
    else {
        panic!("{list:?}")
    };
    assert_eq!(at, BYTES - 8);
}

#[test]
fn parts_are_as_long_as_the_slots_of_their_stream() {
    const LONG_BYTES: u64 = 256;
    for part_bytes in [LONG_BYTES / 2, LONG_BYTES] {
        let mut rig = Rig::new(config(1));
        let long = ChunkSpec { bytes: LONG_BYTES, ..spec(1) };
        rig.engine = LaneEngine::new(config(1));
        rig.engine.roles(epoch(1), &[(long, BACKED)], &mut Commands::default());
        rig.connect(0);
        // The stream before had short slots.
        for part_bytes in [64, part_bytes] {
            rig.engine.stream_up(OTHER, Incarnation(5), &grants(4), part_bytes, &mut Commands::default());
        }
        for _ in ["its version", "its rule"] {
            let slot = records(&mut rig)[0].2;
            judged(&mut rig, slot, Judgement::Confirmed);
        }
        rig.send(0, &[Block { bytes: LONG_BYTES, ..push(1, 1) }]);
        let all = records(&mut rig);
        assert!(all.iter().all(|record| record.0 == OpKind::CopyUpdate), "{all:?}");
        assert_eq!(all.len() as u64, LONG_BYTES / part_bytes);
    }
}

#[test]
fn a_copy_takes_nothing_of_whom_it_is_not_a_copy() {
    let (mut engine, slots) = copy();
    let header = record_header();
    roles(&mut engine, 3, ALONE);
    let list = deliver(&mut engine, slots[0], &header, record(OpKind::CopyUpdate, 1));
    assert!(
        matches!(list[0], Command::TellPrimary { notice: Notice::Judged(_, Judgement::Later), .. }),
        "{list:?}"
    );
    roles(&mut engine, 4, Role::Copy { of: OTHER });
    for wrong in [
        BatchHeader { sender: Rank(3), ..header },
        BatchHeader { job: JobId(8), ..header },
        BatchHeader { lane: Lane(1), ..header },
        BatchHeader { sender_incarnation: Incarnation(6), ..header },
        BatchHeader { receiver_incarnation: Incarnation(6), ..header },
        BatchHeader { kind: BatchKind::Request, ..header },
    ] {
        engine.copy_up(OTHER, Incarnation(5), 2);
        let list = deliver(&mut engine, slots[1], &wrong, record(OpKind::CopyUpdate, 1));
        assert!(matches!(list[..], [Command::EndStream { ours: false, .. }]), "{wrong:?}: {list:?}");
    }
}

/// The home of rows of tables: what the copy has confirmed of a push is not done again, and what it never had is.
#[test]
fn a_push_to_rows_counts_once_where_a_copy_takes_over() {
    let id = Spread { servers: 1, lanes: 1 }.home(0);
    let home = ChunkSpec { id, dynamic: true, mode: Mode::Async, optimizer: Optimizer::assign(), ..spec(1) };
    let as_role = |engine: &mut LaneEngine, counter, role| {
        let mut out = Commands::default();
        engine.roles(epoch(counter), &[(home, role)], &mut out);
        out.list
    };
    let mut rig = Rig::new(config(1));
    as_role(&mut rig.engine, 2, Role::Copy { of: OTHER });
    assert_eq!((rig.engine.has_home(id), rig.engine.serves_home(id)), (true, false));
    let index = rig.engine.index_of(id).unwrap();
    let slots = rig.engine.copy_up(OTHER, Incarnation(5), 2);
    let (header, checked) = (record_header(), Block { id, ..record(OpKind::CopyCheck, 0) });
    deliver(&mut rig.engine, slots[0], &header, checked);
    // The one worker's first push.
    let update = Block { id, operation: Operation(1), ..record(OpKind::CopyUpdate, 1) };
    let mut out = Commands::default();
    assert!(rig.engine.record_notified(OTHER, slots[1], &mut out));
    let (blocks, contributors) = (&[update][..], &[0b1][..]);
    rig.engine.record(
        &RecordContext { from: OTHER, slot: slots[1], header: &header, blocks, contributors },
        &mut out,
    );
    let ends = |command: &Command| matches!(command, Command::Finish { round: 1, .. });
    assert!(out.list.iter().any(ends), "{:?}", out.list);
    assert_eq!(rig.engine.home(index), Some(id));
    rig.engine.finished(index, Verdict::Fits, &mut Commands::default());
    as_role(&mut rig.engine, 3, ALONE);
    assert!(rig.engine.serves_home(id) && rig.engine.may_answer_rows(id));
    // It had no answer: the worker, which knows of the decision, sends it again, and another one.
    let send = |rig: &mut Rig, block: Block| {
        let slot = rig.workers[0].credits.pop_front().unwrap();
        let header = BatchHeader { epoch: epoch(3), ..rig.header(0) };
        rig.deliver(0, slot, &header, &[block], &[])
    };
    let again = Block { id, ..push(1, 1) };
    let is_done = |list: &[Command]| list.iter().any(|command| matches!(command, Command::Finish { .. }));
    let list = send(&mut rig, again);
    assert!(!is_done(&list), "{list:?}");
    let answered = rig.flush();
    assert_eq!(answered.iter().map(|answer| answer.status).collect::<Vec<_>>(), [Status::Done]);
    let list = send(&mut rig, Block { id, ..push(2, 2) });
    assert!(is_done(&list), "{list:?}");
    rig.engine.finished(index, Verdict::BadValue, &mut Commands::default());
    let answered = rig.flush();
    assert_eq!(
        answered.iter().map(|answer| answer.status).collect::<Vec<_>>(),
        [Status::BadValue],
        "no room"
    );
}

#[test]
fn a_copy_that_has_heard_of_a_new_scheduler_first_goes_on_taking() {
    let (mut engine, slots) = copy();
    let before = BatchHeader { epoch: Epoch { term: 0, counter: 9 }, ..record_header() };
    let list = deliver(&mut engine, slots[0], &before, record(OpKind::CopyCheck, 0));
    assert!(matches!(list[0], Command::TellPrimary { notice: Notice::Judged(_, Judgement::Confirmed), .. }));
}

#[test]
fn a_check_says_since_when_there_is_to_be_a_copy() {
    let mut rig = backed();
    let mut out = Commands::default();
    rig.engine.flush(8, &mut out);
    let since = out.list.iter().find_map(|command| match command {
        Command::Record { block, .. } if block.op == OpKind::CopyCheck => Some(block.operation.0),
        _ => None,
    });
    assert_eq!(since.map(Epoch::from_number), Some(epoch(2)));
}

#[test]
fn whoever_was_told_to_ask_later_hears_when() {
    let (mut engine, slots) = copy();
    let header = record_header();
    let stranger = Block { id: ChunkId::new(2, 0), ..record(OpKind::CopyCheck, 0) };
    let list = deliver(&mut engine, slots[0], &header, stranger);
    assert!(matches!(list[0], Command::TellPrimary { notice: Notice::Judged(_, Judgement::Later), .. }));
    let both = [1, 2].map(|key| (spec(key), Role::Copy { of: OTHER }));
    let mut out = Commands::default();
    engine.roles(epoch(3), &both, &mut out);
    assert_eq!(out.list, [Command::TellPrimary { from: OTHER, notice: Notice::Ready }]);
}

#[test]
fn an_image_that_waits_for_a_checkpoint_s_copy_is_asked_for_again_when_that_is_made() {
    let mut engine = LaneEngine::new(config(2));
    roles(&mut engine, 2, ALONE);
    assert!(engine.begin_save(0, true, &mut Commands::default()));
    // What is to be copied for the checkpoint is handed over meanwhile.
    roles(&mut engine, 3, Role::Copy { of: OTHER });
    let slots = engine.copy_up(OTHER, Incarnation(5), 2);
    let whole = Some(Landing { region: 0, offset: 0, bytes: 8 });
    let image = Block { landing: whole, bytes: 8, ..record(OpKind::CopyState, 0) };
    let list = deliver(&mut engine, slots[0], &record_header(), image);
    let later = |command: &Command| {
        matches!(command, Command::TellPrimary { notice: Notice::Judged(_, Judgement::Later), .. })
    };
    assert!(list.iter().any(later), "{list:?}");
    let mut out = Commands::default();
    match engine.next_to_save() {
        Some((index, ..)) => _ = engine.saved(index, &mut out),
        None => engine.drop_save(0, &mut out),
    }
    assert_eq!(out.list, [Command::TellPrimary { from: OTHER, notice: Notice::Ready }]);
}

proptest! {
    /// Notices of a server with copies, in any order: an engine that is told nonsense ends the stream, and goes on.
    #[test]
    fn whatever_is_said_about_records_harms_nothing(
        events in prop::collection::vec((0u8..9, 0u32..5, 0u8..4, 0u8..4), 1..60),
    ) {
        let mut rig = backed();
        for (event, slot, generation, judgement) in events {
            let slot = SlotGrant { slot, generation };
            let judgement = [Judgement::Confirmed, Judgement::Ahead, Judgement::Wanting, Judgement::Later]
                [usize::from(judgement)];
            let mut out = Commands::default();
            match event {
                0 | 1 => rig.engine.stream_notice(OTHER, Notice::Judged(slot, judgement), &mut out),
                2 => rig.engine.stream_notice(OTHER, Notice::Returned(slot), &mut out),
                3 => rig.engine.stream_notice(OTHER, Notice::Ready, &mut out),
                4 => rig.engine.captured(OTHER, 0, 70, &mut out),
                5 => _ = rig.engine.roles(epoch(2), &[(spec(1), if slot.slot & 1 == 0 { SEEDING } else { BACKED })], &mut out),
                6 => rig.engine.flush(2, &mut out),
                7 => rig.engine.stream_up(OTHER, Incarnation(6), &grants(2), 64, &mut out),
                _ => rig.engine.stream_down(OTHER, &mut out),
            }
        }
    }

    /// Records as another server might make them: each is judged, or ends the stream.
    #[test]
    fn whatever_comes_as_a_record_harms_nothing(
        events in prop::collection::vec(
            (0u8..5, 0u64..3, 0u64..3, prop::collection::vec(0u64..40, 3), any::<u64>(), 0u8..6),
            1..40,
        ),
    ) {
        let (mut engine, mut slots) = copy();
        for (op, key, round, lengths, contributors, event) in events {
            let ops = [OpKind::CopyCheck, OpKind::CopyUpdate, OpKind::CopyState, OpKind::CopyRules, OpKind::Push];
            let landing = Landing { region: lengths[0], offset: lengths[1], bytes: lengths[2] };
            let landing = (event != 0).then_some(landing);
            let bytes = if event == 1 { BYTES } else { lengths[1] };
            let landing = if event == 1 { Some(Landing { region: BYTES, offset: 0, bytes: BYTES }) } else { landing };
            let made = Block { id: ChunkId::new(key, 0), landing, bytes, ..record(ops[usize::from(op)], round) };
            let slot = slots[0];
            let mut out = Commands::default();
            if engine.record_notified(OTHER, slot, &mut out) {
                let (blocks, contributors) = (&[made][..], &[contributors][..]);
                let header = record_header();
                engine.record(&RecordContext { from: OTHER, slot, header: &header, blocks, contributors }, &mut out);
            }
            for command in out.list {
                match command {
                    Command::TellPrimary { notice: Notice::Returned(grant), .. } => slots[0] = grant,
                    Command::EndStream { .. } => slots = engine.copy_up(OTHER, Incarnation(5), 2),
                    Command::Load { slot, .. } => {
                        let mut out = Commands::default();
                        engine.loaded((OTHER, slot), 0, None, &mut out);
                        slots = engine.copy_up(OTHER, Incarnation(5), 2);
                    }
                    _ => {}
                }
            }
        }
    }
}
