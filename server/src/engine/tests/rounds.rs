//! Rounds: in which order contributions are folded, when a round is published, who is answered.

use super::*;

/// `old` and `into`: the buffer in force and the one to be written.
fn finish(round: u64, last: Option<Addend>, (old, into): (u8, u8), contributors: u32) -> Command {
    Command::Finish { chunk: 0, round, last, old, into, contributors }
}

#[test]
fn a_round_is_reduced_in_order_and_the_last_contribution_is_fused() {
    let mut rig = Rig::new(config(3));
    let commands = rig.send(0, &[push(1, 1)]);
    assert_eq!(commands, [reduce(rig.at(), Onto::Nothing)]);
    let commands = rig.send(1, &[push(1, 1)]);
    assert_eq!(commands, [reduce(rig.at(), Onto::Sum)]);
    assert_eq!(rig.flush(), [], "nobody is answered before the round is published");
    let commands = rig.send(2, &[push(1, 1)]);
    assert_eq!(commands, [finish(1, Some(onto_sum(rig.at())), (0, 0), 3)]);
    let mut answers = rig.flush();
    answers.sort_by_key(|answer| answer.rank);
    assert_eq!(answers, [done(0, 1, 1), done(1, 1, 1), done(2, 1, 1)]);
    assert_eq!(rig.version(), 1);
}

#[test]
fn what_is_under_way_is_what_is_not_answered() {
    let mut rig = Rig::new(config(2));
    rig.send(0, &[push(1, 1)]);
    assert_eq!(rig.engine.under_way(), 1);
    rig.send(1, &[push(1, 1)]);
    rig.send(1, &[pull(2, 1)]);
    rig.flush();
    assert_eq!(rig.engine.under_way(), 0);
    // Answers and contributions are as many by now, because pulls are answered, too.
    rig.send(0, &[push(2, 2)]);
    rig.send(1, &[pull(3, 2)]);
    assert_eq!(rig.engine.under_way(), 2);
}

#[test]
fn arrivals_are_told_of_rounds_that_began_early_enough() {
    for (told_before_ms, is_told) in [(0, false), (4, false), (5, true), (u64::MAX, true)] {
        let mut rig = Rig::new(config(2));
        rig.now_ms = 5;
        rig.send(0, &[push(1, 1)]);
        let header = BatchHeader { sequence: 1, ..rig.header(1) };
        let slot = rig.workers[1].credits.pop_front().unwrap();
        let (mut out, blocks) = (Commands { told_before_ms, ..Commands::default() }, [push(1, 1)]);
        let context = BatchContext { peer: Rank(1), slot, header: &header, blocks: &blocks, grants: &[] };
        rig.engine.batch(&context, 9, &mut out);
        let came = |rank, since_ms| Arrival { chunk: 0, round: 1, rank: Rank(rank), since_ms };
        let all = [came(0, 5), came(1, u64::MAX)];
        assert_eq!(out.arrivals, if is_told { &all[..] } else { &[] }, "{told_before_ms}");
    }
}

#[test]
fn one_worker_is_one_fused_pass_in_place_where_nobody_reads() {
    let mut rig = Rig::new(config(1));
    for round in 1..5u64 {
        let commands = rig.send_wanting(0, 2, &[push_pull(round, round)]);
        assert_eq!(commands, [finish(round, Some(first(rig.at())), (0, 0), 1), land(0, 0)]);
        assert_eq!(rig.flush(), [done(0, round, round)]);
        assert_eq!(rig.landed(0, 0), []);
    }
}

#[test]
fn what_is_being_read_is_not_written_and_the_buffers_alternate() {
    let mut rig = Rig::new(config(1));
    rig.send(0, &[push_pull(1, 1)]); // Reads buffer 0.
    for round in 2..5u64 {
        let into = (round as u8 + 1) % 2;
        let commands = rig.send_wanting(0, 2, &[push_pull(round, round)]);
        assert_eq!(commands, [finish(round, Some(first(rig.at())), (1 - into, into), 1), land(0, into)]);
        assert_eq!(rig.landed(0, 1 - into), []);
        rig.flush();
    }
}

#[test]
fn ranks_zero_and_one_commute_and_later_ranks_wait_in_spill() {
    let mut rig = Rig::new(config(4));
    let commands = rig.send(3, &[push(1, 1)]);
    assert_eq!(commands, [spill(rig.at(), 0)]);
    let commands = rig.send(1, &[push(1, 1)]);
    assert_eq!(commands, [reduce(rig.at(), Onto::Nothing)], "rank 1 may be first: one addition commutes");
    let commands = rig.send(2, &[push(1, 1)]);
    assert_eq!(commands, [spill(rig.at(), 1)], "rank 2 is not folded before rank 0");
    assert_eq!(rig.engine.spills(), (2, 8));
    let commands = rig.send(0, &[push(1, 1)]);
    let (two, three) = (Source::Spill(1), Source::Spill(0));
    assert_eq!(
        commands,
        [reduce(rig.at(), Onto::Sum), reduce(two, Onto::Sum), finish(1, Some(onto_sum(three)), (0, 0), 4)]
    );
    assert_eq!(rig.engine.spills(), (0, 8));
}

#[test]
fn without_determinism_contributions_are_folded_as_they_come() {
    let mut rig = Rig::new(EngineConfig { deterministic: false, ..config(3) });
    let commands = rig.send(2, &[push(1, 1)]);
    assert_eq!(commands, [reduce(rig.at(), Onto::Nothing)]);
    let commands = rig.send(1, &[push(1, 1)]);
    assert_eq!(commands, [reduce(rig.at(), Onto::Sum)]);
    let commands = rig.send(0, &[push(1, 1)]);
    assert_eq!(commands, [finish(1, Some(onto_sum(rig.at())), (0, 0), 3)]);
}

#[test]
fn a_fast_workers_next_rounds_are_kept_and_folded_in_their_turn() {
    let mut rig = Rig::new(config(2));
    let commands = rig.send(0, &[push(1, 1), push(2, 2), push(3, 3)]);
    let at = rig.at();
    assert_eq!(commands, [reduce(at, Onto::Nothing), spill(at, 0), spill(at, 1)]);
    let commands = rig.send(1, &[push(1, 1)]);
    assert_eq!(
        commands,
        [finish(1, Some(onto_sum(rig.at())), (0, 0), 2), reduce(Source::Spill(0), Onto::Nothing)]
    );
    let commands = rig.send(1, &[push(2, 2)]);
    assert_eq!(
        commands,
        [finish(2, Some(onto_sum(rig.at())), (0, 0), 2), reduce(Source::Spill(1), Onto::Nothing)]
    );
    assert_eq!(rig.version(), 2);
}

#[test]
fn a_pull_waits_for_its_version_and_lands_it() {
    let mut rig = Rig::new(config(2));
    assert_eq!(rig.send(0, &[pull(1, 0)]), [land(0, 0)], "version 0 is there from the start");
    assert_eq!(rig.flush(), [done(0, 1, 0)]);
    let commands = rig.send(0, &[push(2, 1), pull(3, 1)]);
    assert_eq!(commands, [reduce(rig.at(), Onto::Nothing)]);
    let commands = rig.send(1, &[push_pull(1, 1)]);
    assert_eq!(commands, [finish(1, Some(onto_sum(rig.at())), (0, 1), 2), land(0, 1), land(1, 1)]);
    assert_eq!(rig.flush(), [done(0, 2, 1), done(0, 3, 1), done(1, 1, 1)]);
}

#[test]
fn a_pinned_buffer_delays_the_publication_until_it_has_landed() {
    let mut rig = Rig::new(config(1));
    rig.send(0, &[pull(1, 0)]); // Pins buffer 0.
    rig.send(0, &[push_pull(2, 1)]); // Into buffer 1, and pins it.
    assert_eq!(rig.version(), 1);
    let commands = rig.send_wanting(0, 4, &[push(3, 2)]);
    assert_eq!(
        commands,
        [reduce(rig.at(), Onto::Nothing)],
        "reduced, but not into a buffer that is being read"
    );
    assert_eq!((rig.version(), rig.flush()), (1, vec![done(0, 1, 0), done(0, 2, 1)]));
    let commands = rig.send(0, &[push(4, 3)]);
    assert_eq!(commands, [spill(rig.at(), 0)], "the accumulator is not free yet");
    let commands = rig.landed(0, 0);
    assert_eq!(commands, [finish(2, None, (1, 0), 1), finish(3, Some(first(Source::Spill(0))), (0, 0), 1)]);
    assert_eq!((rig.version(), rig.flush()), (3, vec![done(0, 3, 2), done(0, 4, 3)]));
}

#[test]
fn init_is_rank_zeros_and_happens_once() {
    let mut rig = Rig::new(config(2));
    assert_eq!(rig.send(1, &[init(1, 0)]), []);
    assert_eq!(rig.flush(), [], "the others wait until it is set");
    let commands = rig.send(0, &[init(1, BYTES)]);
    assert!(
        matches!(commands[..], [Command::Init { chunk: 0, from, .. }] if from == rig.at()),
        "{commands:?}"
    );
    assert_eq!(rig.flush().len(), 2);
    assert_eq!(rig.send(0, &[init(2, BYTES)]), [], "a second one changes nothing");
    assert_eq!(rig.send(1, &[init(2, BYTES)]), []);
    assert_eq!(rig.flush(), [done(0, 2, 0), done(1, 2, 0)]);
}

#[test]
fn init_never_writes_a_buffer_that_is_being_read() {
    let mut rig = Rig::new(config(2));
    assert_eq!(rig.send(1, &[pull(1, 0)]), [land(1, 0)]);
    let commands = rig.send(0, &[init(1, BYTES), pull(2, 0)]);
    let from = rig.at();
    assert_eq!(commands, [Command::Init { chunk: 0, from, into: 1 }, land(0, 1)]);
    rig.landed(1, 0);
    rig.landed(0, 1);
    rig.send(0, &[push(3, 1)]);
    let commands = rig.send(1, &[push(2, 1)]);
    assert_eq!(
        commands,
        [finish(1, Some(onto_sum(rig.at())), (1, 1), 2)],
        "the update is of the initial value"
    );
}

#[test]
fn init_after_the_first_round_is_refused() {
    let mut rig = Rig::new(config(1));
    rig.send(0, &[push(1, 1)]);
    assert_eq!(rig.send(0, &[init(2, BYTES)]), []);
    assert_eq!(rig.flush(), [done(0, 1, 1), answer(0, 2, Status::Refused, 0)]);
}

#[test]
fn init_and_reads_at_once_find_a_place() {
    let mut rig = Rig::new(config(1));
    rig.send(0, &[pull(1, 0), init(2, BYTES), pull(3, 0)]); // Both buffers are read now.
    let commands = rig.send_wanting(0, 4, &[push(4, 1)]);
    assert_eq!(commands, [reduce(rig.at(), Onto::Nothing)]);
    assert_eq!(rig.landed(0, 1), [finish(1, None, (1, 1), 1)], "the first free one will do");
}

/// A worker that is stopped holds up nobody, as long as there is a spill block.
#[test]
fn weights_that_a_worker_does_not_copy_are_moved_out_of_the_way() {
    let mut rig = Rig::new(config(1));
    let relieve = |rig: &mut Rig, now_ms| {
        let mut out = Commands::default();
        rig.engine.relieve(now_ms, &mut out);
        out.list
    };
    for round in 1..=3 {
        rig.send(0, &[push_pull(round, round)]);
        rig.flush();
    }
    assert_eq!((rig.version(), rig.engine.is_stuck()), (2, true), "both buffers are to be copied");
    assert_eq!(relieve(&mut rig, 100), [], "it may be about to do so");
    let commands = relieve(&mut rig, 105);
    let [Command::Relieve { chunk: 0, buffer, to }] = commands[..] else { panic!("{commands:?}") };
    assert_eq!(relieve(&mut rig, 106), [], "once");
    let used = rig.engine.spills().0;
    let mut out = Commands::default();
    rig.engine.relieved(0, buffer, to, &[Rank(0)], &mut out);
    assert!(
        matches!(out.list[..], [Command::Finish { round: 3, into, .. }, ..] if into == buffer),
        "{:?}",
        out.list
    );
    assert_eq!((rig.version(), rig.engine.stats().relieved), (3, 1));
    assert_eq!(relieve(&mut rig, 200), []);
    assert!(!rig.engine.is_stuck());
    // It continues: first it copies what was moved, whose block is free then.
    assert_eq!(rig.landed(0, buffer), []);
    assert_eq!(rig.engine.spills().0, used - 1);
    for buffer in [1 - buffer, buffer] {
        rig.landed(0, buffer);
    }
    rig.send(0, &[push_pull(4, 4)]);
    assert_eq!((rig.version(), rig.engine.is_stuck()), (4, false));
}

#[test]
fn what_cannot_be_moved_is_waited_for() {
    let mut rig = Rig::new(config(1));
    for round in 1..=3 {
        rig.send(0, &[push_pull(round, round)]);
        rig.flush();
    }
    let mut out = Commands::default();
    rig.engine.relieve(0, &mut out);
    rig.engine.relieve(5, &mut out);
    let [Command::Relieve { buffer, to, .. }] = out.list[..] else { panic!("{:?}", out.list) };
    let used = rig.engine.spills().0;
    out.clear();
    // Its bytes are on their way already.
    rig.engine.relieved(0, buffer, to, &[], &mut out);
    assert_eq!((&out.list[..], rig.engine.spills().0), (&[][..], used - 1));
    assert_eq!((rig.version(), rig.engine.is_stuck()), (2, true));
    rig.landed(0, buffer);
    assert_eq!(rig.version(), 3);
}
