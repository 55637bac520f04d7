//! What is refused, and what costs a worker its channel. Both sides of each check.

use super::*;

fn refused(blocks: &[Block]) -> Vec<Status> {
    let mut rig = Rig::new(config(1));
    assert_eq!(rig.send(0, blocks), [], "nothing of a refused block reaches storage");
    rig.flush().into_iter().map(|answer| answer.status).collect()
}

#[test]
fn wrong_dtype_length_or_landing() {
    let good = push_pull(1, 1);
    for bad in [
        Block { dtype: Dtype::F64, ..good },
        Block { bytes: BYTES - 4, ..good },
        Block { bytes: BYTES + 4, ..good },
        Block { landing: None, ..good },
        Block { landing: Some(Landing { bytes: BYTES - 4, ..landing() }), ..good },
        Block { landing: Some(landing()), ..push(1, 1) },
        Block { bytes: BYTES, ..pull(1, 0) },
        init(1, BYTES - 4),
    ] {
        assert_eq!(refused(&[bad]), [Status::WrongShape], "{bad:?}");
    }
}

#[test]
fn what_no_version_of_ours_sends() {
    let good = push(1, 1);
    for bad in [
        Block { codec: 1, ..good },
        Block { status: Status::Done, ..good },
        Block { operation: Operation(0), ..good },
        Block { data: BlockData::ByReference { region: 1, offset: 0 }, ..pull(1, 0) },
        Block { data: BlockData::Announced { keep: false }, ..pull(1, 0) },
        init(1, 0),
    ] {
        assert_eq!(refused(&[bad]), [Status::Refused], "{bad:?}");
    }
    assert_eq!(refused(&[Block { id: ChunkId::new(2, 0), ..good }]), [Status::UnknownChunk]);
    assert_eq!(refused(&[Block { id: ChunkId::new(1, 1), ..good }]), [Status::UnknownChunk]);
}

#[test]
fn a_refused_operation_does_not_block_the_next_one() {
    let mut rig = Rig::new(config(1));
    rig.send(0, &[push(1, 1)]);
    rig.send(0, &[init(2, BYTES), pull(3, 1)]);
    assert_eq!(rig.flush(), [done(0, 1, 1), answer(0, 2, Status::Refused, 0), done(0, 3, 1)]);
    let wrong = Block { dtype: Dtype::I8, ..pull(4, 1) };
    rig.send(0, &[wrong, pull(5, 1)]);
    assert_eq!(rig.flush(), [answer(0, 4, Status::WrongShape, 1), done(0, 5, 1)]);
    let wrong = Block { data: BlockData::ByReference { region: 1, offset: 0 }, ..pull(6, 2) };
    rig.send_wanting(0, 4, &[wrong, pull(7, 1)]);
    assert_eq!(rig.flush(), [answer(0, 6, Status::Refused, 2), done(0, 7, 1)]);
}

#[test]
fn a_refused_operation_keeps_its_place_behind_a_gap() {
    let mut rig = Rig::new(config(1));
    let wrong = Block { dtype: Dtype::I8, ..pull(2, 0) };
    rig.send(0, &[wrong]);
    assert_eq!(rig.flush(), [answer(0, 2, Status::Retry, 0)], "judged in its turn");
}

#[test]
fn a_header_for_someone_else_costs_the_channel() {
    let rig = Rig::new(config(2));
    let good = rig.header(0);
    for (bad, what) in [
        (BatchHeader { kind: BatchKind::Result, ..good }, "kind"),
        (BatchHeader { job: JobId(8), ..good }, "job"),
        (BatchHeader { sender: Rank(1), ..good }, "rank"),
        (BatchHeader { sender_incarnation: life(1), ..good }, "incarnation"),
        (BatchHeader { receiver_incarnation: life(1), ..good }, "incarnation"),
        (BatchHeader { lane: Lane(1), ..good }, "lane"),
    ] {
        let mut rig = Rig::new(config(2));
        let slot = rig.workers[0].credits[0];
        let commands = rig.deliver(0, slot, &bad, &[push(1, 1)], &[]);
        assert!(expelled(&commands).contains(what), "{commands:?}");
        assert_eq!(rig.engine.stats().contributions, 0);
    }
}

#[test]
fn a_higher_term_or_counter_is_no_offence() {
    let mut rig = Rig::new(config(2));
    let header = BatchHeader { epoch: Epoch { term: 2, counter: 0 }, ..rig.header(0) };
    let slot = rig.workers[0].credits[0];
    assert_eq!(rig.deliver(0, slot, &header, &[push(1, 1)], &[]), [reduce(rig.at(), Onto::Nothing)]);
}

#[test]
fn slots_that_were_never_granted() {
    let mut rig = Rig::new(config(2));
    let header = rig.header(0);
    let granted = rig.workers[0].credits[0];
    for slot in
        [SlotGrant { slot: 16, generation: 1 }, SlotGrant { generation: granted.generation + 1, ..granted }]
    {
        let commands = rig.deliver(0, slot, &header, &[push(1, 1)], &[]);
        assert!(expelled(&commands).contains("never granted"), "{slot:?} {commands:?}");
    }
    let others = rig.workers[1].credits[0];
    assert_eq!(
        rig.deliver(0, others, &header, &[push(1, 1)], &[]),
        [],
        "another worker's slot gives nothing"
    );
    assert_eq!(rig.engine.stats().contributions, 0);
    assert!(
        expelled(&rig.notice(0, Notice::GivenBack(SlotGrant { slot: 16, generation: 1 })))
            .contains("never had")
    );
}

#[test]
fn slots_of_its_inbox_that_we_did_not_use() {
    let mut rig = Rig::new(config(2));
    let unused = SlotGrant { slot: 0, generation: 2 };
    let (slot, header) = (rig.workers[0].credits[0], rig.header(0));
    assert!(expelled(&rig.deliver(0, slot, &header, &[], &[unused])).contains("grants"));
    assert!(expelled(&rig.notice(1, Notice::Returned(unused))).contains("did not use"));
    let stranger = SlotGrant { slot: 77, generation: 1 };
    assert!(expelled(&rig.notice(1, Notice::Returned(stranger))).contains("did not use"));
}

#[test]
fn unanswered_operations_are_bounded() {
    let bound = proto_common::limits::OPERATIONS_PER_WORKER_MAX;
    let mut rig = Rig::new(config(2));
    let specs: Vec<ChunkSpec> = (2..bound as u64 + 3).map(spec).collect();
    rig.engine.assign(Epoch { term: 1, counter: 2 }, &specs);
    let pulls: Vec<Block> = specs.iter().map(|spec| Block { id: spec.id, ..pull(1, 1) }).collect();
    for batch in pulls[..bound].chunks(128) {
        assert_eq!(rig.send_wanting(0, 2, batch), []);
        assert_eq!(rig.flush(), []);
    }
    let commands = rig.send(0, &pulls[bound..]);
    assert!(expelled(&commands).contains("in flight"), "{commands:?}");
}

#[test]
fn probes_are_answered() {
    let mut rig = Rig::new(config(1));
    let reply = Command::Notice { peer: Rank(0), notice: Notice::ProbeReply };
    assert_eq!(rig.notice(0, Notice::Probe), [reply]);
    assert_eq!(rig.notice(0, Notice::ProbeReply), []);
}

#[test]
fn of_a_corrupt_batch_nothing_is_taken_and_all_can_come_again() {
    let mut rig = Rig::new(config(1));
    let blocks = [push(1, 1), pull(2, 1)];
    let corrupt = |rig: &mut Rig| {
        let slot = rig.workers[0].credits.pop_front().expect("first credits");
        let header = BatchHeader { wanted: 2, ..rig.header(0) };
        let mut out = Commands::default();
        let context = BatchContext { peer: Rank(0), slot, header: &header, blocks: &blocks, grants: &[] };
        rig.engine.corrupt_batch(&context, &mut out);
        assert_eq!(out.list, [], "nothing reaches storage");
        (slot, rig.flush())
    };
    let (slot, told) = corrupt(&mut rig);
    // The number is echoed, as everything of a request is.
    let back = |operation, round| answer(0, operation, Status::Corrupt, round);
    assert_eq!(told, [back(1, 1), back(2, 1)]);
    let stats = rig.engine.stats();
    assert_eq!((stats.corrupt_batches, stats.batches, stats.contributions, stats.refusals), (1, 1, 0, 0));
    // The slot's credit is used: the same batch again is an old one.
    let header = rig.header(0);
    assert_eq!(rig.deliver(0, slot, &header, &blocks, &[]), []);
    assert_eq!((rig.engine.stats().duplicates, rig.version()), (1, 0));
    assert_eq!(corrupt(&mut rig).1.len(), 2);
    let commands = rig.send(0, &blocks);
    assert!(matches!(commands[..], [Command::Finish { .. }, Command::Land { .. }]), "{commands:?}");
    assert_eq!(rig.flush(), [done(0, 1, 1), done(0, 2, 1)]);
}

#[test]
fn a_number_that_is_given_up_leaves_no_gap() {
    let mut rig = Rig::new(EngineConfig { inbox_slots: 32, ..config(1) });
    let given_up = |block: Block| Block { status: Status::Corrupt, bytes: 0, landing: None, ..block };
    for (number, lost) in [(1, pull(1, 0)), (3, push(3, 2)), (5, push_pull(5, 3)), (7, init(7, BYTES))] {
        let slot = rig.workers[0].credits.pop_front().expect("one is returned with each answer");
        let header = BatchHeader { wanted: 2, ..rig.header(0) };
        let mut out = Commands::default();
        // Another payload of the batch has changed again; this one has none.
        let blocks = [given_up(lost), push(number + 1, 9)];
        let context = BatchContext { peer: Rank(0), slot, header: &header, blocks: &blocks, grants: &[] };
        rig.engine.corrupt_batch(&context, &mut out);
        assert_eq!(out.list, []);
        let told: Vec<_> = rig.flush().into_iter().map(|answer| answer.status).collect();
        assert!(matches!(told[..], [Status::WrongShape | Status::Refused, Status::Corrupt]), "{told:?}");
        let round = rig.version() + 1;
        let commands = rig.send_wanting(0, 2, &[push(number + 1, round)]);
        assert!(matches!(commands[..], [Command::Finish { .. }]), "what follows is taken: {commands:?}");
        assert_eq!(rig.flush(), [done(0, number + 1, round)]);
    }
}

#[test]
fn a_corrupt_batch_is_judged_like_any_other() {
    let mut rig = Rig::new(config(1));
    let slot = rig.workers[0].credits[0];
    let header = BatchHeader { job: JobId(8), ..rig.header(0) };
    let mut out = Commands::default();
    let blocks = [push(1, 1)];
    let context = BatchContext { peer: Rank(0), slot, header: &header, blocks: &blocks, grants: &[] };
    rig.engine.corrupt_batch(&context, &mut out);
    assert!(expelled(&out.list).contains("job"), "{:?}", out.list);
    assert_eq!(rig.engine.stats().corrupt_batches, 0);
}
