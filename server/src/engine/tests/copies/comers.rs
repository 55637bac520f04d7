//! Copies while a worker comes between rounds: from a server that has not heard of this worker, nothing is taken in which it may count.

use super::*;
use proto_common::config::WorkerLoss;

const COMER: Rank = Rank(1);
const LIFE: Incarnation = Incarnation(9);

/// A copy that the other server's stream has reached. Worker 1 has failed, and comes again: this server was asked for its rounds.
fn asked(mode: Mode) -> (LaneEngine, Vec<SlotGrant>) {
    let mut engine = LaneEngine::new(EngineConfig { worker_loss: WorkerLoss::Continue, ..config(2) });
    let mut out = Commands::default();
    engine.roles(epoch(2), &[(ChunkSpec { mode, ..spec(1) }, Role::Copy { of: OTHER })], &mut out);
    let slots = engine.copy_up(OTHER, Incarnation(5), 8);
    deliver(&mut engine, slots[0], &record_header(), record(OpKind::CopyCheck, 0));
    let first = (Rank(0), life(0));
    engine.workers_changed(epoch(3), &[first, (COMER, life(1))], &[], &mut out);
    engine.workers_changed(epoch(4), &[first], &[], &mut out);
    engine.workers_changed(epoch(5), &[first, (COMER, LIFE)], &[], &mut out);
    assert_eq!(engine.ask_rounds(COMER, LIFE).len(), 1);
    (engine, slots)
}

/// What is said of a record of these contributors.
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

fn end_round(engine: &mut LaneEngine) {
    engine.finished(0, Verdict::Fits, &mut Commands::default());
}

/// Is the other server to send again what it was to send later?
fn is_ready(list: &[Command]) -> bool {
    list.contains(&Command::TellPrimary { from: OTHER, notice: Notice::Ready })
}

#[test]
fn a_round_in_which_it_may_count_is_taken_when_its_first_round_is_decided() {
    let (mut engine, slots) = asked(Mode::Sync);
    let update = |round| record(OpKind::CopyUpdate, round);
    assert_eq!(said_of(&mut engine, slots[1], update(1), 0b1), Some(Judgement::Confirmed));
    end_round(&mut engine);
    assert_eq!(said_of(&mut engine, slots[2], update(2), 0b1), Some(Judgement::Later));
    let mut out = Commands::default();
    engine.count_from(COMER, LIFE, &[(Key(1), 3)], &mut out);
    assert!(is_ready(&out.list), "{:?}", out.list);
    assert_eq!(said_of(&mut engine, slots[3], update(2), 0b1), Some(Judgement::Confirmed));
}

#[test]
fn what_an_earlier_process_of_it_contributed_is_taken_when_the_number_of_its_first_is_decided() {
    let (mut engine, slots) = asked(Mode::Async);
    let update = |round| Block { operation: Operation(1), ..record(OpKind::CopyUpdate, round) };
    assert_eq!(said_of(&mut engine, slots[1], update(1), 0b10), Some(Judgement::Later));
    assert_eq!(
        said_of(&mut engine, slots[2], update(1), 0b1),
        Some(Judgement::Confirmed),
        "of another worker"
    );
    end_round(&mut engine);
    let mut out = Commands::default();
    engine.workers_changed(epoch(6), &[(Rank(0), life(0))], &[], &mut out);
    assert!(is_ready(&out.list), "it is gone: {:?}", out.list);
    assert_eq!(said_of(&mut engine, slots[3], update(2), 0b10), Some(Judgement::Confirmed));
}

#[test]
fn an_image_of_such_a_round_is_taken_then_too() {
    for mode in [Mode::Sync, Mode::Async] {
        let (mut engine, slots) = asked(mode);
        let whole = Some(Landing { region: 0, offset: 0, bytes: 8 });
        let image = Block { landing: whole, bytes: 8, ..record(OpKind::CopyState, 2) };
        assert_eq!(said_of(&mut engine, slots[1], image, 0), Some(Judgement::Later));
        let mut out = Commands::default();
        engine.count_from(COMER, LIFE, &[(Key(1), 4)], &mut out);
        assert!(is_ready(&out.list), "{:?}", out.list);
        assert_eq!(said_of(&mut engine, slots[2], image, 0), None, "it is loaded first");
    }
}
