//! Payloads that do not come in a slot: read from the worker, or written by it into a key buffer.

use super::*;

fn by_reference(block: Block, offset: u64) -> Block {
    Block { data: BlockData::ByReference { region: REGION, offset }, ..block }
}

fn announced(block: Block, keep: bool) -> Block {
    Block { data: BlockData::Announced { keep }, ..block }
}

fn placed(block: Block) -> Block {
    Block { data: BlockData::Placed, ..block }
}

fn fetch(rank: u32, offset: u64, to: u32) -> Command {
    Command::Fetch { peer: Rank(rank), chunk: 0, region: REGION, offset, to }
}

impl Rig {
    /// Announces, and returns the spill block granted, if one was.
    fn ask(&mut self, rank: u32, block: Block, keep: bool) -> Option<u32> {
        assert_eq!(self.send(rank, &[announced(block, keep)]), []);
        let told = self.flush_blocks();
        self.return_slots();
        let [(to, result)] = &told[..] else { panic!("one answer: {told:?}") };
        let place = result.place;
        let result = result.block;
        assert_eq!((*to, result.status, result.operation), (rank, Status::Granted, block.operation));
        assert_eq!(result.token, block.token);
        assert_eq!(result.landing.map(|landing| landing.bytes), place.map(|_| BYTES));
        place.map(|place| match place {
            Place::Spill(spill) => spill,
            Place::Weights { .. } | Place::Carried { .. } => panic!("{place:?}"),
        })
    }
}

#[test]
fn a_reference_is_read_first_and_reduced_when_it_is_there() {
    let mut rig = Rig::new(config(2));
    assert_eq!(rig.send(0, &[by_reference(push(1, 1), 40)]), [fetch(0, 40, 0)]);
    assert_eq!(rig.engine.spills().0, 1);
    let early = rig.send(1, &[push(1, 1)]);
    assert_eq!(
        early,
        [reduce(rig.at(), Onto::Nothing)],
        "which of the first two comes first does not matter"
    );
    let commands = rig.fetched(0, 0);
    assert!(
        matches!(
            commands[..],
            [Command::Finish { last: Some(Addend { from: Source::Spill(0), onto: Onto::Sum }), .. }]
        ),
        "{commands:?}"
    );
    assert_eq!(rig.flush(), [done(0, 1, 1), done(1, 1, 1)]);
    assert_eq!((rig.engine.spills().0, rig.engine.stats().fetches), (0, 1));
    assert_eq!(rig.fetched(0, 0), [], "a read that nobody knows of changes nothing");
}

#[test]
fn a_reference_before_its_turn_waits_in_its_block() {
    let mut rig = Rig::new(config(3));
    assert_eq!(rig.send(2, &[by_reference(push(1, 1), 0)]), [fetch(2, 0, 0)]);
    assert_eq!(rig.fetched(2, 0), [], "ranks 0 and 1 come first");
    rig.send(0, &[push(1, 1)]);
    let commands = rig.send(1, &[push(1, 1)]);
    assert_eq!(commands[0], reduce(rig.at(), Onto::Sum));
    assert!(
        matches!(commands[1], Command::Finish { last: Some(Addend { from: Source::Spill(0), .. }), .. }),
        "{commands:?}"
    );
}

#[test]
fn without_a_free_block_it_is_to_come_in_a_slot_at_its_turn_and_later_otherwise() {
    let mut rig = Rig::new(EngineConfig { spill_blocks: 1, ..config(3) });
    rig.send(2, &[push(1, 1)]); // Takes the only block.
    assert_eq!(rig.send(0, &[by_reference(push(1, 1), 0)]), []);
    assert_eq!(rig.flush(), [answer(0, 1, Status::Granted, 1)], "others wait for it");
    let commands = rig.send(0, &[push(1, 1)]);
    assert_eq!(commands, [reduce(rig.at(), Onto::Nothing)], "the same operation, in a slot");
    assert_eq!(rig.send(0, &[by_reference(push(2, 2), 0)]), []);
    let told = rig.flush();
    assert_eq!((told[0].status, &told[0].missing[..]), (Status::Retry, &[1][..]), "not before the others");
}

#[test]
fn a_deadline_does_not_end_an_operation_whose_memory_is_being_read() {
    let mut rig = Rig::new(config(2));
    rig.send(0, &[by_reference(push(1, 1), 0)]);
    assert_eq!(rig.tick(5_000), [], "the worker would write the next gradient there");
    rig.fetched(0, 0);
    let told = rig.tick(1);
    assert_eq!((told[0].status, &told[0].missing[..]), (Status::DeadlineWaiting, &[1][..]));
}

#[test]
fn whoever_waits_for_a_read_is_told_whose_it_is() {
    let mut rig = Rig::new(config(2));
    rig.send(1, &[push(1, 1)]);
    rig.send(0, &[by_reference(push(1, 1), 0)]);
    let told = rig.tick(2_000);
    assert_eq!((told[0].rank, told[0].status, &told[0].missing[..]), (1, Status::DeadlineWaiting, &[0][..]));
}

#[test]
fn a_channel_that_ends_in_mid_read_takes_the_operation_back() {
    let mut rig = Rig::new(config(2));
    rig.send(0, &[by_reference(push(1, 1), 0), by_reference(push(2, 2), 64)]);
    assert_eq!(rig.fetched(0, 1), [], "the second one is there, the first one never");
    rig.down(Rank(0));
    assert_eq!(rig.engine.spills().0, 1, "what had arrived stays");
    rig.connect(0);
    assert_eq!(rig.fetched(0, 0), [], "too late");
    let commands = rig.send(0, &[push(1, 1), push(2, 2)]);
    assert_eq!(
        commands,
        [reduce(rig.at(), Onto::Nothing)],
        "the first one counts as new, the second one came before"
    );
    rig.send(1, &[push(1, 1), push(2, 2)]);
    assert_eq!((rig.version(), rig.engine.stats().contributions), (2, 4));
    assert_eq!(rig.engine.spills().0, 0);
}

#[test]
fn an_operation_taken_back_leaves_no_gap_before_one_that_its_deadline_ended() {
    let mut rig = Rig::new(config(2));
    rig.send(0, &[by_reference(push(1, 1), 0), push(2, 2), by_reference(push(3, 3), 64)]);
    let told = rig.tick(1_000);
    assert_eq!((told.len(), told[0].operation, told[0].status), (1, 2, Status::DeadlineWaiting), "{told:?}");
    rig.down(Rank(0));
    rig.connect(0);
    assert_eq!(rig.send(0, &[push(3, 3), push(4, 4)]), [], "not before the first one");
    let told = rig.flush();
    assert!(told.iter().all(|told| told.status == Status::Retry) && told.len() == 2, "{told:?}");
    let commands = rig.send(0, &[push(1, 1), push(3, 3), push(4, 4)]);
    assert_eq!(
        commands.first(),
        Some(&reduce(rig.at(), Onto::Nothing)),
        "the second one was told of its end"
    );
    for round in 1..5 {
        rig.send(1, &[push(round, round)]);
        rig.flush();
    }
    assert_eq!((rig.version(), rig.engine.stats().contributions), (4, 8));
}

#[test]
fn nothing_is_folded_before_an_initial_value_that_is_to_be_read_again() {
    let mut rig = Rig::new(config(2));
    rig.send(0, &[by_reference(init(1, BYTES), 8), push(2, 1)]);
    rig.down(Rank(0));
    rig.connect(0);
    let early = rig.send(1, &[init(1, 0), push(2, 1)]);
    assert!(matches!(early[..], [Command::Spill { .. }]), "{early:?}");
    let commands = rig.send(0, &[init(1, BYTES)]);
    assert_eq!(commands[0], Command::Init { chunk: 0, from: rig.at(), into: 1 });
    assert!(matches!(commands[1..], [Command::Reduce { .. }, Command::Finish { .. }]), "{commands:?}");
}

#[test]
fn an_initial_value_is_read_before_anything_is_folded_or_told() {
    let mut rig = Rig::new(config(2));
    assert_eq!(rig.send(0, &[by_reference(init(1, BYTES), 8)]), [fetch(0, 8, 0)]);
    let commands = rig.send(1, &[init(1, 0), push(2, 1)]);
    assert_eq!(commands, [spill(rig.at(), 1)]);
    assert_eq!(rig.send(0, &[pull(2, 0)]), []);
    assert_eq!(rig.flush(), []);
    let commands = rig.fetched(0, 0);
    let value = Command::Init { chunk: 0, from: Source::Spill(0), into: 1 };
    assert_eq!(commands, [value, land(0, 1), reduce(Source::Spill(1), Onto::Nothing)]);
    assert_eq!(rig.flush(), [done(0, 1, 0), done(0, 2, 0), done(1, 1, 0)]);
}

#[test]
fn an_initial_value_that_never_arrives_comes_again() {
    let mut rig = Rig::new(config(2));
    rig.send(0, &[by_reference(init(1, BYTES), 8)]);
    rig.down(Rank(0));
    rig.connect(0);
    let commands = rig.send(0, &[init(1, BYTES)]);
    assert_eq!(commands, [Command::Init { chunk: 0, from: rig.at(), into: 1 }]);
}

#[test]
fn a_grant_for_one_landing_is_used_up_by_it() {
    let mut rig = Rig::new(config(1));
    assert_eq!(rig.ask(0, push(1, 1), false), Some(0));
    assert_eq!((rig.engine.key_buffers(), rig.engine.spills().0), (1, 0));
    let commands = rig.send(0, &[placed(push(1, 1))]);
    assert!(
        matches!(commands[..], [Command::Finish { last: Some(Addend { from: Source::Spill(0), .. }), .. }]),
        "{commands:?}"
    );
    assert_eq!(rig.flush(), [done(0, 1, 1)]);
    assert_eq!((rig.engine.key_buffers(), rig.engine.stats().placed), (0, 1));
    assert!(expelled(&rig.send(0, &[placed(push(2, 2))])).contains("without a grant"));
}

#[test]
fn a_kept_grant_serves_again_and_again() {
    let mut rig = Rig::new(config(2));
    assert_eq!(rig.ask(0, push(1, 1), true), Some(0));
    assert_eq!(rig.ask(1, push(1, 1), true), Some(1), "a buffer for each worker");
    for round in 1..4 {
        assert_eq!(rig.send(0, &[placed(push(round, round))]), [reduce(Source::Spill(0), Onto::Nothing)]);
        let commands = rig.send(1, &[placed(push(round, round))]);
        assert!(
            matches!(
                commands[..],
                [Command::Finish { last: Some(Addend { from: Source::Spill(1), .. }), .. }]
            ),
            "{commands:?}"
        );
    }
    assert_eq!((rig.engine.key_buffers(), rig.engine.stats().spills), (2, 0));
}

#[test]
fn a_kept_grant_asked_for_once_more_for_one_landing_ends_with_that() {
    let mut rig = Rig::new(config(1));
    assert_eq!(rig.ask(0, push(1, 1), true), Some(0));
    rig.send(0, &[placed(push(1, 1))]);
    rig.flush();
    assert_eq!(rig.ask(0, push(2, 2), false), Some(0), "the same one");
    rig.send(0, &[placed(push(2, 2))]);
    assert_eq!(rig.flush(), [done(0, 2, 2)]);
    assert_eq!((rig.engine.key_buffers(), rig.engine.spills().0), (0, 0));
    assert!(expelled(&rig.send(0, &[placed(push(3, 3))])).contains("without a grant"));
}

#[test]
fn a_key_buffer_keeps_a_contribution_until_its_turn() {
    let mut rig = Rig::new(config(3));
    rig.ask(2, push(1, 1), true);
    assert_eq!(rig.send(2, &[placed(push(1, 1))]), [], "not copied: it stays where it is");
    assert_eq!(rig.ask(2, push(2, 2), true), None, "it holds the first one");
    let next = rig.send(2, &[push(2, 2)]);
    assert_eq!(next, [spill(rig.at(), 1)], "so the second one comes in a slot");
    assert!(expelled(&rig.send(2, &[placed(push(3, 3)), push(4, 4)])).contains("not reduced yet"));
}

#[test]
fn a_gap_leaves_the_grant_as_it_was() {
    let mut rig = Rig::new(config(1));
    rig.ask(0, push(1, 1), false);
    assert_eq!(rig.send(0, &[placed(push(2, 2))]), []);
    assert_eq!(rig.flush()[0].status, Status::Retry);
    let commands = rig.send(0, &[placed(push(1, 1))]);
    assert!(
        matches!(commands[..], [Command::Finish { last: Some(Addend { from: Source::Spill(0), .. }), .. }]),
        "{commands:?}"
    );
}

#[test]
fn no_more_than_half_of_the_blocks_are_key_buffers() {
    let mut rig = Rig::new(EngineConfig { spill_blocks: 3, ..config(2) });
    assert_eq!(rig.ask(0, push(1, 1), true), Some(0));
    assert_eq!(rig.ask(0, push(1, 1), true), Some(0), "the same one, asked for twice");
    assert_eq!(rig.ask(1, push(1, 1), true), None);
    let mut rig = Rig::new(EngineConfig { spill_blocks: 1, ..config(1) });
    assert_eq!(rig.ask(0, push(1, 1), false), None);
}

#[test]
fn grants_end_with_the_channel_and_what_was_placed_stays() {
    let mut rig = Rig::new(config(3));
    rig.ask(1, push(1, 1), true);
    rig.ask(2, push(1, 1), true);
    rig.send(2, &[placed(push(1, 1))]);
    for rank in [1, 2] {
        rig.down(Rank(rank));
        rig.connect(rank);
    }
    assert_eq!((rig.engine.key_buffers(), rig.engine.spills().0), (0, 1));
    assert!(expelled(&rig.send(1, &[placed(push(1, 1))])).contains("without a grant"));
    rig.send(0, &[push(1, 1)]);
    rig.down(Rank(1));
    rig.connect(1);
    let commands = rig.send(1, &[push(1, 1)]);
    assert!(
        matches!(commands[1], Command::Finish { last: Some(Addend { from: Source::Spill(1), .. }), .. }),
        "{commands:?}"
    );
    assert_eq!(rig.engine.spills().0, 0);
}

#[test]
fn an_announcement_of_what_came_before_is_answered_with_its_result() {
    let mut rig = Rig::new(config(1));
    rig.send(0, &[push(1, 1)]);
    rig.down(Rank(0));
    rig.connect(0);
    rig.send(0, &[announced(push(1, 1), true)]);
    assert_eq!(rig.flush(), [done(0, 1, 1)]);
    assert_eq!(rig.engine.key_buffers(), 0);
}

#[test]
fn a_placed_payload_longer_than_its_grant_is_misuse() {
    let mut rig = Rig::new(config(1));
    rig.ask(0, push(1, 1), true);
    let long = Block { bytes: BYTES + 4, ..placed(push(1, 1)) };
    assert!(expelled(&rig.send(0, &[long])).contains("longer than its grant"));
    rig.down(Rank(0));
    rig.connect(0);
    rig.ask(0, push(1, 1), true);
    let short = Block { bytes: BYTES - 4, ..placed(push(1, 1)) };
    assert_eq!(rig.send(0, &[short]), []);
    assert_eq!(rig.flush()[0].status, Status::WrongShape);
}

#[test]
fn an_initial_value_can_be_placed() {
    let mut rig = Rig::new(config(1));
    assert_eq!(rig.ask(0, init(1, BYTES), false), Some(0));
    let commands = rig.send(0, &[placed(init(1, BYTES))]);
    assert_eq!(commands, [Command::Init { chunk: 0, from: Source::Spill(0), into: 1 }]);
    assert_eq!(rig.engine.key_buffers(), 0);
}

/// The worker may be in the middle of a copy into any of it.
#[test]
fn what_a_worker_was_granted_is_nobody_s_until_its_fence_is_done() {
    let mut rig = Rig::new(config(2));
    let block = rig.ask(0, push(1, 1), true).expect("a key buffer");
    let total = rig.engine.credits().1;
    let sum = |rig: &Rig| rig.engine.credits().0 + rig.engine.credits_lent() + rig.engine.quarantined().0;
    assert!(rig.held(0) > 0 && sum(&rig) == total);
    let fence = rig.engine.peer_down(Rank(0));
    let (slots, blocks) = rig.engine.quarantined();
    assert!(slots > 0 && sum(&rig) == total, "{slots} of {total}");
    assert_eq!((blocks, rig.engine.key_buffers()), (1, 0), "nobody may write the buffer any more");
    assert_eq!(rig.engine.fencing().collect::<Vec<_>>(), [Rank(0)]);
    // Others are granted other memory meanwhile, and so is another channel of that worker.
    let other = rig.ask(1, push(1, 1), true).expect("another key buffer");
    assert_ne!(block, other);
    rig.connect(0);
    let again = rig.ask(0, push(1, 1), true).expect("a third one");
    assert!(again != block && again != other && sum(&rig) == total);
    rig.engine.fenced(fence, fabric::Fenced::answered());
    assert_eq!((rig.engine.quarantined(), rig.engine.fencing().count()), ((0, 0), 0));
    assert_eq!((sum(&rig), rig.engine.spills().0), (total, 0));
    rig.engine.fenced(fence, fabric::Fenced::answered());
    assert_eq!(sum(&rig), total, "once");
}

/// As many as a server may have lost touch with while it was stopped itself. Other lives of them come at once.
#[test]
fn sixty_four_workers_that_are_stopped_hold_up_their_own_grants_only() {
    const STOPPED: u32 = 64;
    let mut rig = Rig::new(EngineConfig { inbox_slots: 1024, spill_blocks: 512, ..config(STOPPED + 1) });
    let total = rig.engine.credits().1;
    let ask = |rig: &mut Rig, rank| rig.ask(rank, push(1, 1), true).expect("a key buffer");
    let before: Vec<u32> = (0..STOPPED).map(|rank| ask(&mut rig, rank)).collect();
    let held: usize = (0..STOPPED).map(|rank| rig.held(rank)).sum();
    let fences: Vec<_> = (0..STOPPED).map(|rank| rig.engine.peer_down(Rank(rank))).collect();
    let (slots, blocks) = rig.engine.quarantined();
    assert_eq!((slots, blocks), (held, STOPPED as usize));
    assert!(slots > 0);
    assert_eq!(rig.engine.fencing().count(), STOPPED as usize);
    // They get other memory, and finish rounds.
    for rank in 0..STOPPED {
        rig.connect(rank);
        let block = ask(&mut rig, rank);
        assert!(!before.contains(&block), "block {block} may still be written");
    }
    for round in 1..=3 {
        for rank in 0..=STOPPED {
            let block = if rank == STOPPED { push(round, round) } else { placed(push(round, round)) };
            rig.send(rank, &[block]);
        }
        assert_eq!((rig.version(), rig.flush().len()), (round, STOPPED as usize + 1));
    }
    assert_eq!(rig.engine.quarantined(), (slots, blocks), "nothing of it came back early");
    // Each fence brings back what its channel had.
    for (done, fence) in fences.into_iter().rev().enumerate() {
        let left = STOPPED as usize - done;
        assert_eq!(rig.engine.quarantined(), (slots / STOPPED as usize * left, left));
        rig.engine.fenced(fence, fabric::Fenced::answered());
    }
    assert_eq!((rig.engine.quarantined(), rig.engine.fencing().count()), ((0, 0), 0));
    assert_eq!(rig.engine.credits().0 + rig.engine.credits_lent(), total);
}
