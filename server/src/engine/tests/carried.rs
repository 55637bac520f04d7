//! Small weights travel in the result of their operation.

use super::*;

fn carrying(workers: u32) -> EngineConfig {
    EngineConfig { carried_bytes_max: BYTES, ..config(workers) }
}

/// Which buffers rounds are published into, in order.
fn published(commands: &[Command]) -> Vec<(u64, u8)> {
    let of = |command: &Command| match command {
        Command::Finish { round, into, .. } => Some((*round, *into)),
        _ => None,
    };
    commands.iter().filter_map(of).collect()
}

fn flush(rig: &mut Rig) -> Commands {
    let mut out = Commands::default();
    rig.engine.flush(usize::MAX, &mut out);
    out
}

#[test]
fn they_need_no_write_and_no_answer_to_it() {
    let mut rig = Rig::new(carrying(1));
    for round in 1..5u64 {
        let commands = rig.send_wanting(0, 2, &[push_pull(round, round)]);
        assert_eq!((commands.len(), published(&commands)), (1, vec![(round, 0)]), "nobody reads: in place");
        let told = rig.flush_blocks();
        let [(0, result)] = &told[..] else { panic!("{told:?}") };
        assert_eq!(result.place, Some(Place::Carried { chunk: 0, buffer: 0 }));
        assert_eq!((result.block.status, result.inline_bytes()), (Status::Done, BYTES));
        rig.return_slots();
    }
}

#[test]
fn larger_ones_and_those_of_dynamic_tensors_are_written() {
    let mut rig = Rig::new(EngineConfig { carried_bytes_max: BYTES - 1, ..config(1) });
    assert_eq!(rig.send(0, &[push_pull(1, 1)])[1..], [land(0, 0)]);
}

/// Three rounds arrive in one turn: the third one needs the buffer of the first one, whose weights are in the batch only after the flush.
#[test]
fn a_round_waits_until_they_are_in_the_batch_and_is_told_in_the_same_flush() {
    let mut rig = Rig::new(carrying(1));
    let commands = rig.send(0, &[push_pull(1, 1), push_pull(2, 2), push_pull(3, 3)]);
    assert_eq!(published(&commands), [(1, 0), (2, 1)]);
    let out = flush(&mut rig);
    assert_eq!(published(&out.list).len(), 1, "{:?}", out.list);
    let at = |wanted: fn(&Command) -> bool| out.list.iter().position(wanted).unwrap();
    let (sent, ended) =
        (at(|c| matches!(c, Command::Results { .. })), at(|c| matches!(c, Command::Finish { .. })));
    assert!(sent < ended, "the batch is filled before the buffer is: {:?}", out.list);
    assert_eq!(out.results.len(), 3);
}

/// A worker that is stopped returns no slot of its inbox. Weights for it must not keep a buffer meanwhile: a write can be moved away.
#[test]
fn those_that_find_no_slot_are_written() {
    let mut rig = Rig::new(carrying(1));
    rig.down(Rank(0));
    assert_eq!(rig.connect_with(0, 1), []);
    rig.send(0, &[push_pull(1, 1)]);
    assert_eq!(rig.flush_blocks().len(), 1);
    rig.send(0, &[push_pull(2, 2)]);
    assert_eq!(flush(&mut rig).list, [land(0, 0)]);
    assert_eq!(flush(&mut rig).list, [], "once");
    rig.return_slots();
    let told = rig.flush_blocks();
    let [(0, result)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((result.place, result.block.landing, result.inline_bytes()), (None, None, 0));
    let commands = rig.send(0, &[push_pull(3, 3)]);
    assert_eq!(published(&commands), [(3, 1)], "the first buffer is being read");
    assert_eq!(rig.landed(0, 0), []);
}

#[test]
fn a_channel_that_ends_before_the_flush_keeps_no_buffer() {
    let mut rig = Rig::new(carrying(1));
    rig.send(0, &[push_pull(1, 1), push_pull(2, 2)]);
    rig.down(Rank(0));
    rig.connect(0);
    assert_eq!(flush(&mut rig).list, []);
    let commands = rig.send(0, &[push_pull(1, 1), push_pull(2, 2), push_pull(3, 3)]);
    assert_eq!(published(&commands).len(), 1, "what was taken is told again: {commands:?}");
    assert_eq!(flush(&mut rig).results.len(), 3);
}
