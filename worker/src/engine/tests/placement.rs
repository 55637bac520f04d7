//! Payloads that do not travel in slots: what is announced, written, referenced, and when a slot serves instead.

use super::*;

const WHERE: Landing = Landing { region: 3, offset: 4096, bytes: BYTES };

impl Rig {
    fn push_by(&mut self, placement: Placement, operation: u64) -> u64 {
        let parts = [PartSpec { offset: 128, ..part(1, 0) }];
        self.submit_as(Submit { placement, ..submit(OpKind::Push, operation) }, &parts)
    }

    /// The one block that goes out, and the buffer that is written before it.
    fn goes_out(&mut self) -> (Block, Option<Landing>) {
        let happened = self.flush();
        let [sent] = &happened.sent[..] else { panic!("one batch: {happened:?}") };
        let [block] = sent.blocks[..] else { panic!("one block: {sent:?}") };
        let written = match &happened.rest[..] {
            [] => None,
            [Command::Place { server: Rank(0), remote, .. }] => {
                assert_eq!(happened.placed, [PartBlock { op: happened.placed[0].op, offset: 128, block }]);
                Some(*remote)
            }
            other => panic!("{other:?}"),
        };
        (block, written)
    }

    fn grant(&mut self, block: &Block, landing: Option<Landing>) {
        let grant = Block { landing, ..reply(block, Status::Granted, 0) };
        assert_eq!(self.results(0, &[grant], &[]), []);
    }

    fn done(&mut self, block: &Block) {
        let commands = self.results(0, &[done(block)], &[]);
        assert!(matches!(commands[..], [Command::Done { .. }]), "{commands:?}");
    }
}

fn announced(block: &Block) -> Option<bool> {
    match block.data {
        BlockData::Announced { keep } => Some(keep),
        _ => None,
    }
}

fn in_slot(block: &Block) -> bool {
    matches!(block.data, BlockData::Inline { .. })
}

#[test]
fn a_reference_says_where_the_payload_lies() {
    let mut rig = Rig::new(4);
    rig.push_by(Placement::RendezvousRead, 1);
    let (block, written) = rig.goes_out();
    assert_eq!((block.data, block.bytes), (BlockData::ByReference { region: 0, offset: 128 }, BYTES));
    assert_eq!(written, None);
    rig.done(&block);
    assert_eq!(rig.engine.stats().referenced, 1);
}

#[test]
fn many_references_share_a_batch_however_long_they_are() {
    let mut rig = Rig::new(4);
    for key in 1..=5 {
        let parts = [PartSpec { bytes: 4096, ..part(key, 0) }];
        let placement = Placement::RendezvousRead;
        rig.submit_as(Submit { placement, ..submit(OpKind::Push, 1) }, &parts);
    }
    let sent = rig.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].blocks.len(), 5, "their payloads take no room");
}

#[test]
fn a_written_payload_is_announced_granted_and_placed_before_its_batch() {
    let mut rig = Rig::new(4);
    rig.push_by(Placement::RendezvousWrite, 1);
    rig.push_by(Placement::RendezvousWrite, 2);
    let (first, written) = rig.goes_out();
    assert_eq!((announced(&first), written), (Some(false), None));
    assert_eq!(rig.sent(), [], "what follows on the chunk waits for the answer");
    rig.grant(&first, Some(WHERE));
    let happened = rig.flush();
    assert!(
        matches!(happened.rest[..], [Command::Place { server: Rank(0), remote: WHERE, .. }]),
        "{happened:?}"
    );
    let [first, second] = happened.sent[0].blocks[..] else { panic!("{happened:?}") };
    assert_eq!((first.data, first.operation), (BlockData::Placed, Operation(1)));
    assert!(in_slot(&second), "the buffer is occupied");
    rig.done(&first);
    rig.push_by(Placement::RendezvousWrite, 3);
    assert_eq!(announced(&rig.goes_out().0), Some(false), "a grant for one landing is used up");
    assert_eq!((rig.engine.stats().placed, rig.engine.stats().parts), (1, 4));
    assert_eq!(rig.engine.stats().sent_bytes, 2 * BYTES, "announcements carry nothing");
}

#[test]
fn a_kept_buffer_is_written_without_asking_again() {
    let mut rig = Rig::new(8);
    rig.push_by(Placement::Static, 1);
    let (block, _) = rig.goes_out();
    assert_eq!(announced(&block), Some(true));
    rig.grant(&block, Some(WHERE));
    for operation in 1..4 {
        let (block, written) = rig.goes_out();
        assert_eq!((block.data, block.operation), (BlockData::Placed, Operation(operation)));
        assert_eq!(written, Some(WHERE));
        rig.push_by(Placement::Static, operation + 1);
        rig.done(&block);
    }
}

#[test]
fn a_kept_buffer_of_a_tensor_that_is_placed_anew_is_given_up_with_one_last_landing() {
    for placement in [Placement::Slot, Placement::RendezvousRead, Placement::RendezvousWrite] {
        let mut rig = Rig::new(8);
        rig.push_by(Placement::Static, 1);
        let (block, _) = rig.goes_out();
        rig.grant(&block, Some(WHERE));
        let (block, _) = rig.goes_out();
        rig.push_by(placement, 2);
        rig.push_by(placement, 3);
        rig.done(&block);
        let sent = rig.sent();
        let [last] = sent[0].blocks[..] else { panic!("{sent:?}") };
        assert_eq!(announced(&last), Some(false), "for one landing: {placement}");
        rig.grant(&last, Some(WHERE));
        let happened = rig.flush();
        let [last, next] = happened.sent[0].blocks[..] else { panic!("{happened:?}") };
        assert_eq!((last.data, last.operation), (BlockData::Placed, Operation(2)), "{placement}");
        assert_ne!(next.data, BlockData::Placed, "{placement}");
        rig.done(&last);
        rig.done(&next);
        rig.push_by(placement, 4);
        assert_ne!(rig.goes_out().0.data, BlockData::Placed, "it is not ours any more: {placement}");
    }
}

#[test]
fn without_a_buffer_it_goes_by_slot_and_asks_again_later() {
    for placement in [Placement::Static, Placement::RendezvousRead] {
        let mut rig = Rig::new(8);
        rig.push_by(placement, 1);
        let (block, _) = rig.goes_out();
        assert!(!in_slot(&block));
        rig.grant(&block, None);
        let (block, _) = rig.goes_out();
        assert!(in_slot(&block) && block.operation == Operation(1));
        rig.done(&block);
        rig.push_by(placement, 2);
        let (block, _) = rig.goes_out();
        assert!(in_slot(&block), "not so soon");
        rig.done(&block);
        rig.now_ms += 1_001;
        rig.push_by(placement, 3);
        assert!(!in_slot(&rig.goes_out().0));
    }
}

#[test]
fn a_retry_leaves_the_buffer_ours_and_a_deadline_does_not() {
    let mut rig = Rig::new(8);
    rig.push_by(Placement::Static, 1);
    let (block, _) = rig.goes_out();
    rig.grant(&block, Some(WHERE));
    let (block, _) = rig.goes_out();
    assert_eq!(rig.results(0, &[reply(&block, Status::Retry, 0)], &[]), []);
    rig.now_ms += 100;
    let (block, written) = rig.goes_out();
    assert_eq!((block.data, written), (BlockData::Placed, Some(WHERE)), "written again");
    let commands = rig.results(0, &[reply(&block, Status::DeadlineWaiting, 0)], &[]);
    assert_eq!(commands.len(), 2, "failed and done: {commands:?}");
    rig.push_by(Placement::Static, 2);
    assert_eq!(announced(&rig.goes_out().0), Some(true), "the late contribution may still lie there");
}

#[test]
fn grants_end_with_the_channel() {
    let mut rig = Rig::new(4);
    rig.push_by(Placement::Static, 1);
    let (block, _) = rig.goes_out();
    rig.grant(&block, Some(WHERE));
    rig.goes_out();
    rig.engine.server_down(Rank(0));
    rig.up(0, 4);
    assert_eq!(announced(&rig.goes_out().0), Some(true), "the replay asks anew");
}

#[test]
fn an_announcement_answered_with_a_result_is_over() {
    let mut rig = Rig::new(4);
    rig.push_by(Placement::RendezvousWrite, 1);
    rig.push_by(Placement::Slot, 2);
    let (block, _) = rig.goes_out();
    rig.done(&block);
    assert_eq!(rig.goes_out().0.operation, Operation(2), "and holds nothing up");
}

#[test]
fn an_earlier_part_that_comes_back_goes_before_the_announced_one() {
    let mut rig = Rig::new(4);
    rig.push_by(Placement::Slot, 1);
    rig.push_by(Placement::RendezvousWrite, 2);
    let sent = rig.sent();
    let [first, second] = sent[0].blocks[..] else { panic!("{sent:?}") };
    assert_eq!(announced(&second), Some(false));
    let answers = [reply(&first, Status::Retry, 0), reply(&second, Status::Retry, 0)];
    assert_eq!(rig.results(0, &answers, &[]), []);
    rig.now_ms += 100;
    let sent = rig.sent();
    assert_eq!(sent[0].operations(), [(1, 1), (1, 2)]);
}

#[test]
fn what_carries_a_checksum_travels_in_slots() {
    let mut rig = Rig::new(4);
    rig.engine.use_slots_only(Rank(0));
    for (operation, placement) in
        [Placement::Static, Placement::RendezvousRead, Placement::RendezvousWrite].into_iter().enumerate()
    {
        rig.push_by(placement, operation as u64 + 1);
    }
    assert!(rig.sent()[0].blocks.iter().all(in_slot));
}

#[test]
fn nothing_without_payload_is_placed() {
    let mut rig = Rig::new(4);
    let parts = [part(1, 0)];
    rig.submit_as(Submit { placement: Placement::Static, ..submit(OpKind::Pull, 1) }, &parts);
    assert!(in_slot(&rig.goes_out().0));
}

#[test]
fn a_server_that_grants_what_was_not_asked_for_is_left() {
    let short = Landing { bytes: BYTES - 1, ..WHERE };
    for (placement, landing, reason) in [
        (Placement::Slot, Some(WHERE), "not requested"),
        (Placement::Slot, None, "not requested"),
        (Placement::RendezvousRead, Some(WHERE), "not requested"),
        (Placement::Static, Some(short), "too short"),
    ] {
        let mut rig = Rig::new(4);
        rig.push_by(placement, 1);
        let (block, _) = rig.goes_out();
        let grant = Block { landing, ..reply(&block, Status::Granted, 0) };
        assert!(closed(&rig.results(0, &[grant], &[])).contains(reason));
    }
}
