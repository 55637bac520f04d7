//! Replicas while a worker joins between rounds: a round in which it may count is not taken before the decision.

use super::*;
use proto_common::config::WorkerLoss;

const COMER: Rank = Rank(1);
const INCARNATION: Incarnation = Incarnation(9);

/// A replica with a stream of the other server. Worker 1 has failed and joins again, and this server was asked for its first rounds.
fn asked(mode: Mode) -> (LaneEngine, Vec<SlotGrant>) {
    let mut engine = LaneEngine::new(EngineConfig { worker_loss: WorkerLoss::Continue, ..config(2) });
    let mut out = Commands::default();
    engine.roles(epoch(2), &[(ChunkSpec { mode, ..spec(1) }, Role::Copy { of: OTHER })], &mut out);
    let slots = engine.copy_up(OTHER, Incarnation(5), 8);
    deliver(&mut engine, slots[0], &record_header(), record(OpKind::CopyCheck, 0));
    let first = (Rank(0), life(0));
    engine.workers_changed(epoch(3), &[first, (COMER, life(1))], &[], &mut out);
    engine.workers_changed(epoch(4), &[first], &[], &mut out);
    engine.workers_changed(epoch(5), &[first, (COMER, INCARNATION)], &[], &mut out);
    assert_eq!(engine.ask_rounds(COMER, INCARNATION).len(), 1);
    (engine, slots)
}

/// The judgement on a record with these contributors.
fn said_of(engine: &mut LaneEngine, slot: SlotGrant, block: Block, contributors: u64) -> Option<Judgement> {
    let mut out = Commands::default();
    assert!(engine.record_notified(OTHER, slot, &mut out));
    let (header, blocks, contributors) = (record_header(), &[block][..], &[contributors][..]);
    engine.record(&RecordContext { from: OTHER, slot, header: &header, blocks, contributors }, &mut out);
    out.list.iter().find_map(|command| match command {
        Command::TellPrimary { notice: Notice::Judged(_, judgement), .. } => Some(*judgement),
        _ => None,
    })
}

/// Is the other server told to send again?
fn is_ready(list: &[Command]) -> bool {
    list.contains(&Command::TellPrimary { from: OTHER, notice: Notice::Ready })
}

#[test]
fn a_round_in_which_a_joining_worker_may_count_is_taken_after_the_decision() {
    let (mut engine, slots) = asked(Mode::Sync);
    let update = |round| record(OpKind::CopyUpdate, round);
    assert_eq!(said_of(&mut engine, slots[1], update(1), 0b1), Some(Judgement::Confirmed));
    assert_eq!(said_of(&mut engine, slots[2], update(2), 0b1), Some(Judgement::Later));
    let mut out = Commands::default();
    engine.count_from(COMER, INCARNATION, &[(Key(1), 3)], &mut out);
    assert!(is_ready(&out.list), "{:?}", out.list);
    assert_eq!(said_of(&mut engine, slots[3], update(2), 0b1), Some(Judgement::Confirmed));
}

#[test]
fn a_contribution_of_its_earlier_process_is_taken_after_the_decision() {
    let (mut engine, slots) = asked(Mode::Async);
    let update = |round| Block { operation: Operation(1), ..record(OpKind::CopyUpdate, round) };
    assert_eq!(said_of(&mut engine, slots[1], update(1), 0b10), Some(Judgement::Later));
    assert_eq!(
        said_of(&mut engine, slots[2], update(1), 0b1),
        Some(Judgement::Confirmed),
        "of another worker"
    );
    let mut out = Commands::default();
    engine.workers_changed(epoch(6), &[(Rank(0), life(0))], &[], &mut out);
    assert!(is_ready(&out.list), "the worker has left: {:?}", out.list);
    assert_eq!(said_of(&mut engine, slots[3], update(2), 0b10), Some(Judgement::Confirmed));
}

#[test]
fn an_image_with_such_a_round_is_taken_after_the_decision() {
    for mode in [Mode::Sync, Mode::Async] {
        let (mut engine, slots) = asked(mode);
        let whole = Some(Landing { region: 0, offset: 0, bytes: 8 });
        let image = Block { landing: whole, bytes: 8, ..record(OpKind::CopyState, 2) };
        assert_eq!(said_of(&mut engine, slots[1], image, 0), Some(Judgement::Later));
        let mut out = Commands::default();
        engine.count_from(COMER, INCARNATION, &[(Key(1), 4)], &mut out);
        assert!(is_ready(&out.list), "{:?}", out.list);
        assert_eq!(said_of(&mut engine, slots[2], image, 0), None, "it is loaded first");
    }
}

/// The decision may take longer than the deadline for servers: the operation is one that waits for workers.
#[test]
fn whoever_waits_for_such_a_round_is_told_which_worker_joins() {
    let mut rig = Rig::new(EngineConfig { worker_loss: WorkerLoss::Continue, ..config(3) });
    roles(&mut rig.engine, 2, BACKED);
    rig.engine.stream_up(OTHER, Incarnation(5), &grants(4), 1 << 20, &mut Commands::default());
    for _ in 0..2 {
        // What it has, and the rules.
        for (_, _, slot) in records(&mut rig) {
            judged(&mut rig, slot, Judgement::Confirmed);
        }
    }
    rig.roster(3, &[0, 1, 2], &[]);
    rig.again(2);
    rig.roster(4, &[0, 1], &[]);
    rig.roster(5, &[0, 1, 2], &[]);
    rig.send(0, &[push(1, 1)]);
    rig.ask_rounds(2);
    rig.send(1, &[push(1, 1)]);
    let [(OpKind::CopyUpdate, 1, slot)] = records(&mut rig)[..] else { panic!("no record") };
    judged(&mut rig, slot, Judgement::Later);
    let waits = |rank| Answer { missing: vec![2], ..answer(rank, 1, Status::DeadlineWaiting, 0) };
    assert_eq!(rig.tick(1_000), [waits(0), waits(1)]);
}
