//! The workers' channels: which slots each worker may write here (credits), what each is to be told, and when both are sent. Owns the
//! ledger of slots, the queue of workers that want credits, and the list of workers that something is to be sent to. It must not
//! know what operations mean, or how they end.
//!
//! ```text
//!                      want                       a slot is free             the next flush
//!  content ───────────────────────────▶ wanting ─────────────────▶ granted ──────────────────▶ told
//!     ▲                                    │                          │                          │
//!     └──────── GivenBack: it is idle ─────┴──────────────────────────┘                          │
//!     └──────────────────────── a batch in the slot, or GivenBack ◀──────────────────────────────┘
//!
//!          push (a result), mark (grants)                  all is sent
//!  clean ─────────────────────────────────▶ dirty ─────────────────────────▶ clean
//!                                             │  ▲
//!                                             └──┘ no budget: the next flush continues
//! ```
//!
//! A worker that returns a slot of its inbox becomes dirty again: results that found no slot are sent then.

use super::command::{Command, Commands, Place, ResultBlock};
use super::credits::{Ledger, Misuse, misuse};
use proto_common::batch::{BatchRoom, Block, BlockData, Landing, Notice, SlotGrant, Status};
use proto_common::ids::{Incarnation, Rank};
use proto_common::limits::{GRANTS_PER_BATCH_MAX, OPERATIONS_PER_WORKER_MAX, RESULT_SLOT_BYTES};
use std::collections::VecDeque;

/// Credits a worker gets when it connects, where there are enough.
const FIRST_CREDITS: usize = 4;
/// Credits that a worker has beyond its need, so that its next batch need not ask, where slots are plenty.
const RESERVE: u32 = 2;

/// The worker's inbox as granted to us.
#[derive(Debug, Default)]
struct ResultSlots {
    free: Vec<SlotGrant>,
    /// Written, and not returned yet.
    used: Vec<SlotGrant>,
}

impl ResultSlots {
    fn new(grants: &[SlotGrant]) -> Self {
        Self { free: grants.to_vec(), used: Vec::new() }
    }

    fn take(&mut self) -> Option<SlotGrant> {
        let grant = self.free.pop()?;
        self.used.push(grant);
        Some(grant)
    }

    /// The worker has read the slot and grants it again, with the next generation. A notice of that which
    /// comes twice must not free the slot twice: results would be written over unread ones.
    fn give(&mut self, grant: SlotGrant) -> Result<(), Misuse> {
        if let Some(at) = self.used.iter().position(|used| used.slot == grant.slot) {
            let used = self.used[at].generation;
            if grant.generation != used.wrapping_add(1) {
                return Err(misuse(used, grant.generation));
            }
            self.used.swap_remove(at);
            self.free.push(grant);
            return Ok(());
        }
        let free = self.free.iter().find(|free| free.slot == grant.slot).ok_or(Misuse::NotGranted)?;
        Err(misuse(free.generation, grant.generation))
    }
}

/// One worker with a channel.
#[derive(Debug, Default)]
struct Peer {
    incarnation: Incarnation,
    result_slots: ResultSlots,
    /// Results not sent yet; bounded by the operations the worker may have in flight.
    results: VecDeque<ResultBlock>,
    /// How many of them carry weights.
    carrying: usize,
    /// Operations taken whose result is not sent yet.
    unanswered: usize,
    /// Grants not sent yet.
    grants: Vec<SlotGrant>,
    /// Credits it holds, as far as we told it.
    credits: u32,
    /// Credits it could use beyond those.
    wanted: u32,
    /// Did it say that it needs them? Otherwise they can wait for a result to ride on.
    needy: bool,
    /// Is it in the queue of peers that want credits?
    queued: bool,
    /// Is it in the list of peers to flush?
    dirty: bool,
    /// It and this server read each other's memory in place.
    in_place: bool,
    /// Count of result batches on this channel.
    sequence: u64,
}

impl Peer {
    /// Packs results and grants into as many of the worker's slots as there are, at most `left` of them. Grants
    /// alone are sent only to a worker that is about to run out; otherwise they wait for a result to ride on.
    /// False when more could be sent.
    fn send(&mut self, rank: Rank, left: &mut usize, carried: &mut Vec<Carried>, out: &mut Commands) -> bool {
        let is_all = self.pack(rank, left, carried, out);
        // What is not sent now may wait for long, and would keep its buffer from the next rounds. A write can be moved out of their way.
        for result in self.results.iter_mut().filter(|_| self.carrying > 0) {
            if let Some((chunk, buffer)) = result.carried()
                && let Some(landing) = result.block.landing.take()
            {
                result.place = None;
                out.push(Command::Land { peer: rank, chunk, buffer, landing });
            }
        }
        self.carrying = 0;
        is_all
    }

    fn pack(&mut self, rank: Rank, left: &mut usize, carried: &mut Vec<Carried>, out: &mut Commands) -> bool {
        loop {
            let in_hand = self.credits.saturating_sub(self.grants.len() as u32);
            let urgent = !self.grants.is_empty() && in_hand <= u32::from(self.needy);
            if self.results.is_empty() && !urgent {
                return true;
            }
            if *left == 0 {
                return false;
            }
            // Without a slot it continues when the worker returns one.
            let Some(slot) = self.result_slots.take() else { return true };
            *left -= 1;
            let (first_result, first_grant) = (out.results.len(), out.grants.len());
            let mut room = BatchRoom::new(RESULT_SLOT_BYTES);
            while let Some(result) = self.results.front() {
                if !room.take(result.inline_bytes()) {
                    break;
                }
                if let Some((chunk, buffer)) = result.carried() {
                    carried.push((rank, chunk, buffer));
                    self.carrying -= 1;
                }
                out.results.extend(self.results.pop_front());
                self.unanswered = self.unanswered.saturating_sub(1);
            }
            let take = self.grants.len().min(GRANTS_PER_BATCH_MAX);
            out.grants.extend(self.grants.drain(..take));
            self.sequence += 1;
            out.push(Command::Results {
                peer: rank,
                slot,
                results: first_result..out.results.len(),
                grants: first_grant..out.grants.len(),
                sequence: self.sequence,
            });
        }
    }
}

/// A worker, a chunk, and the buffer whose weights a result carries.
type Carried = (Rank, u32, u8);

/// An operation's block on its way back, without what it carried.
pub(super) fn sent_back(block: &Block, status: Status) -> Block {
    let data = BlockData::Inline { offset: 0 };
    Block { status, bytes: 0, data, landing: None, view: false, timeout_ms: 0, ..*block }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Peers {
    places: Vec<Option<Peer>>,
    ledger: Ledger,
    /// Workers that want credits, in the order in which they get them.
    wanting: VecDeque<Rank>,
    /// Workers that something is to be sent to.
    dirty: Vec<Rank>,
    /// Buffers whose weights no queued result carries any more.
    carried: Vec<Carried>,
}

impl Peers {
    pub(super) fn new(workers: u32, inbox_slots: u32) -> Self {
        Self {
            places: (0..workers).map(|_| None).collect(),
            ledger: Ledger::new(inbox_slots),
            wanting: VecDeque::new(),
            dirty: Vec::new(),
            carried: Vec::new(),
        }
    }

    fn get(&self, rank: Rank) -> Option<&Peer> {
        self.places.get(rank.0 as usize)?.as_ref()
    }

    fn get_mut(&mut self, rank: Rank) -> Option<&mut Peer> {
        self.places.get_mut(rank.0 as usize)?.as_mut()
    }

    /// A worker's channel is up. Returns its first credits.
    pub(super) fn up(
        &mut self,
        rank: Rank,
        incarnation: Incarnation,
        inbox: &[SlotGrant],
        in_place: bool,
    ) -> Vec<SlotGrant> {
        let workers = self.places.len();
        let Some(place) = self.places.get_mut(rank.0 as usize) else { return Vec::new() };
        let fair = (self.ledger.total() / workers.max(1)).clamp(1, FIRST_CREDITS);
        let grants: Vec<_> = (0..fair).map_while(|_| self.ledger.grant(rank)).collect();
        let (result_slots, credits) = (ResultSlots::new(inbox), grants.len() as u32);
        *place = Some(Peer { incarnation, result_slots, in_place, credits, ..Peer::default() });
        grants
    }

    /// A worker's channel is closed. Returns the slots that it may be writing still: they are nobody's until [`Peers::free_slots`].
    pub(super) fn down(&mut self, rank: Rank) -> Vec<u32> {
        if let Some(peer) = self.places.get_mut(rank.0 as usize).and_then(Option::take) {
            let carried = peer.results.iter().filter_map(ResultBlock::carried);
            self.carried.extend(carried.map(|(chunk, buffer)| (rank, chunk, buffer)));
        }
        self.wanting.retain(|other| *other != rank);
        self.dirty.retain(|other| *other != rank);
        self.ledger.revoke(rank)
    }

    /// Nobody writes these slots any more.
    pub(super) fn free_slots(&mut self, slots: &[u32]) {
        self.ledger.take_back(slots);
    }

    /// Is the slot this worker's to write?
    pub(super) fn check(&self, peer: Rank, grant: SlotGrant) -> Result<(), Misuse> {
        self.ledger.check(peer, grant)
    }

    /// The incarnation of a worker that has a channel.
    pub(super) fn incarnation(&self, rank: Rank) -> Option<Incarnation> {
        self.get(rank).map(|peer| peer.incarnation)
    }

    /// Do this worker and the server read each other's memory in place?
    pub(super) fn reads_in_place(&self, rank: Rank) -> bool {
        self.get(rank).is_some_and(|peer| peer.in_place)
    }

    /// Has the worker operations that were taken and are not answered?
    pub(super) fn owes(&self, rank: Rank) -> bool {
        self.get(rank).is_some_and(|peer| peer.unanswered > 0)
    }

    /// Are all operations that were taken answered?
    pub(super) fn owe_nothing(&self) -> bool {
        self.places.iter().flatten().all(|peer| peer.unanswered == 0)
    }

    /// Does the result of a call wait to be sent to the worker?
    pub(super) fn has_unsent(&self, rank: Rank, call: u64) -> bool {
        self.get(rank).is_some_and(|peer| peer.results.iter().any(|told| told.call == Some(call)))
    }

    /// Credits not granted to anyone, and all there are.
    pub(super) fn credits(&self) -> (usize, usize) {
        (self.ledger.free(), self.ledger.total())
    }

    /// Credits that workers hold.
    pub(super) fn credits_lent(&self) -> usize {
        self.ledger.held()
    }

    /// A batch came: its slot is used (or, with `keeps`, stays granted), and slots of the worker's inbox are granted again. The error
    /// says what is wrong with the batch; it says nothing where the grant is an old one, and the batch is to be ignored.
    pub(super) fn take_batch(
        &mut self,
        peer: Rank,
        slot: SlotGrant,
        (grants, wanted): (&[SlotGrant], u16),
        keeps: bool,
    ) -> Result<(), Option<&'static str>> {
        let redeemed = if keeps { self.ledger.check(peer, slot) } else { self.ledger.redeem(peer, slot) };
        match redeemed {
            Ok(()) => {}
            Err(Misuse::Stale) => return Err(None),
            Err(Misuse::NotGranted) => return Err(Some("slot: it was never granted")),
        }
        let Some(state) = self.get_mut(peer) else { return Err(None) };
        state.credits = state.credits.saturating_sub(1);
        for grant in grants {
            if state.result_slots.give(*grant) == Err(Misuse::NotGranted) {
                return Err(Some("grants: slots of its inbox that were not used"));
            }
        }
        self.want(peer, u32::from(wanted));
        self.mark_dirty(peer);
        Ok(())
    }

    /// A write that carried only a notice. False where the notice is an old one, which counts for nothing.
    pub(super) fn notice(&mut self, peer: Rank, notice: Notice, out: &mut Commands) -> bool {
        let Some(state) = self.get_mut(peer) else { return true };
        match notice {
            Notice::Returned(grant) => match state.result_slots.give(grant) {
                Ok(()) => self.mark_dirty(peer),
                Err(Misuse::Stale) => return false,
                Err(Misuse::NotGranted) => {
                    out.expel(peer, "it returned a slot of its inbox that we did not use");
                }
            },
            Notice::GivenBack(grant) => match self.ledger.redeem(peer, grant) {
                Ok(()) => self.given_back(peer),
                Err(Misuse::Stale) => return false,
                Err(Misuse::NotGranted) => out.expel(peer, "it gave back a slot it never had"),
            },
            Notice::Want(count) => self.want(peer, u32::from(count)),
            Notice::Probe => out.push(Command::Notice { peer, notice: Notice::ProbeReply }),
            Notice::ProbeReply | Notice::Batch(_) | Notice::Judged(..) | Notice::Ready => {}
        }
        true
    }

    /// The worker is idle: what it wanted before, and grants that it was not told of, would only lie there.
    fn given_back(&mut self, peer: Rank) {
        let Some(Some(state)) = self.places.get_mut(peer.0 as usize) else { return };
        state.credits = state.credits.saturating_sub(1);
        (state.wanted, state.needy) = (0, false);
        for grant in state.grants.drain(..) {
            // Refused where the worker guessed the grant and used it before it was told: that slot is free.
            let _ = self.ledger.redeem(peer, grant);
            state.credits = state.credits.saturating_sub(1);
        }
    }

    /// A worker could use `need` credits beyond those it holds. It gets no more than its share, because
    /// others wait for the contributions of those who have none; the reserve only where all can have one.
    fn want(&mut self, peer: Rank, need: u32) {
        let (total, workers) = (self.ledger.total() as u32, self.places.len().max(1) as u32);
        let (share, reserve) = ((total / workers).max(1), if total < workers { 0 } else { RESERVE });
        let Some(state) = self.get_mut(peer) else { return };
        let could_use = need.max(reserve.saturating_sub(state.credits));
        state.wanted = could_use.min(share.saturating_sub(state.credits));
        state.needy = need > 0;
        if state.wanted > 0 && !state.queued {
            state.queued = true;
            self.wanting.push_back(peer);
        }
    }

    fn mark_dirty(&mut self, rank: Rank) {
        if let Some(Some(state)) = self.places.get_mut(rank.0 as usize)
            && !state.dirty
        {
            state.dirty = true;
            self.dirty.push(rank);
        }
    }

    /// Counts an operation that will be answered; false when the worker has too many.
    pub(super) fn count_operation(&mut self, peer: Rank) -> bool {
        self.get_mut(peer).is_some_and(|state| {
            state.unanswered += 1;
            state.unanswered <= OPERATIONS_PER_WORKER_MAX
        })
    }

    /// So many operations are not answered by themselves: later ones replaced them.
    pub(super) fn uncount_operations(&mut self, peer: Rank, count: usize) {
        if let Some(state) = self.get_mut(peer) {
            state.unanswered = state.unanswered.saturating_sub(count);
        }
    }

    /// Queues the result of an operation for its worker. Without a channel it is dropped.
    pub(super) fn push(&mut self, rank: Rank, result: ResultBlock) {
        let Self { places, dirty, .. } = self;
        if let Some(Some(peer)) = places.get_mut(rank.0 as usize) {
            peer.results.push_back(result);
            if !peer.dirty {
                peer.dirty = true;
                dirty.push(rank);
            }
        }
    }

    /// As [`Peers::push`], of an operation on a chunk; `missing` are the ranks that were waited for.
    pub(super) fn answer(&mut self, rank: Rank, block: Block, missing: Vec<Rank>) {
        self.push(rank, ResultBlock { block, place: None, missing, call: None });
    }

    /// As [`Peers::push`], of an operation that is granted so many bytes of a place, or is shown them.
    pub(super) fn answer_with_place(&mut self, rank: Rank, block: Block, place: Place, bytes: u64) {
        let landing = Some(Landing { region: 0, offset: 0, bytes });
        let block = Block { landing, ..block };
        self.push(rank, ResultBlock { block, place: Some(place), missing: Vec::new(), call: None });
    }

    /// As [`Peers::push`], of an operation whose weights travel in the batch. Its landing is where they would be written. With the next
    /// [`Peers::send`], the weights are in the batch, or are written.
    pub(super) fn carry(&mut self, rank: Rank, block: Block, (chunk, buffer): (u32, u8)) {
        match self.places.get_mut(rank.0 as usize).and_then(Option::as_mut) {
            Some(peer) => peer.carrying += 1,
            None => self.carried.push((rank, chunk, buffer)),
        }
        let place = Some(Place::Carried { chunk, buffer });
        self.push(rank, ResultBlock { block, place, missing: Vec::new(), call: None });
    }

    /// Has a worker to be told something?
    pub(super) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The next buffer whose weights no queued result carries any more, because the batch has them or the worker has no channel.
    pub(super) fn next_carried(&mut self) -> Option<Carried> {
        self.carried.pop()
    }

    /// The operation was not taken: its block goes back, without what it carried.
    pub(super) fn send_back(&mut self, rank: Rank, block: &Block, status: Status, missing: Vec<Rank>) {
        self.answer(rank, sent_back(block, status), missing);
    }

    /// Free slots go round-robin to those who want them.
    pub(super) fn hand_out(&mut self) {
        while self.ledger.free() > 0 {
            let Some(rank) = self.wanting.pop_front() else { break };
            let Some(Some(peer)) = self.places.get_mut(rank.0 as usize) else { continue };
            peer.queued = false;
            if peer.wanted == 0 {
                continue;
            }
            if let Some(grant) = self.ledger.grant(rank) {
                peer.grants.push(grant);
                peer.credits += 1;
                peer.wanted -= 1;
            }
            if peer.wanted > 0 {
                peer.queued = true;
                self.wanting.push_back(rank);
            }
            self.mark_dirty(rank);
        }
    }

    /// Sends what is to be told, in at most `left` batches. Returns how many are left.
    pub(super) fn send(&mut self, mut left: usize, out: &mut Commands) -> usize {
        let Self { places, dirty, carried, .. } = self;
        dirty.retain(|rank| {
            let Some(Some(peer)) = places.get_mut(rank.0 as usize) else { return false };
            peer.dirty = !peer.send(*rank, &mut left, carried, out);
            peer.dirty
        });
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::batch::OpKind;
    use proto_common::element::Dtype;
    use proto_common::ids::{ChunkId, Operation};

    fn grant(slot: u32, generation: u8) -> SlotGrant {
        SlotGrant { slot, generation }
    }

    fn result(operation: u64) -> ResultBlock {
        let block = Block::bare(ChunkId::new(1, 0), OpKind::Push, Dtype::F32, Operation(operation));
        ResultBlock { block, place: None, missing: Vec::new(), call: None }
    }

    /// Operations and grants of each batch that a flush sends.
    fn flush(peers: &mut Peers, left: usize) -> Vec<(u32, Vec<u64>, usize)> {
        let mut out = Commands::default();
        peers.hand_out();
        peers.send(left, &mut out);
        let batch = |command: &Command| match command {
            Command::Results { peer, results, grants, .. } => {
                let results = &out.results[results.clone()];
                (peer.0, results.iter().map(|told| told.block.operation.0).collect(), grants.len())
            }
            other => panic!("{other:?}"),
        };
        out.list.iter().map(batch).collect()
    }

    #[test]
    fn credits_go_round_to_whoever_wants_them_and_none_is_lost() {
        let mut peers = Peers::new(2, 4);
        let first = peers.up(Rank(0), Incarnation(1), &[grant(0, 1)], false);
        assert_eq!((first.len(), peers.up(Rank(1), Incarnation(2), &[], false).len()), (2, 2));
        assert_eq!(peers.credits(), (0, 4));
        // Worker 0 uses one and wants more: it is granted again at the next flush, because no more than one is in its hand.
        assert_eq!(peers.take_batch(Rank(0), first[0], (&[], 1), false), Ok(()));
        assert_eq!(peers.take_batch(Rank(0), first[0], (&[], 1), false), Err(None), "an old grant");
        assert_eq!(flush(&mut peers, usize::MAX), [(0, vec![], 1)]);
        assert_eq!((peers.credits(), peers.credits_lent()), ((0, 4), 4));
        // A channel that has ended gives its slots to nobody before its fence is done.
        let revoked = peers.down(Rank(1));
        assert_eq!((revoked.len(), peers.credits_lent(), peers.credits().0), (2, 2, 0));
        peers.free_slots(&revoked);
        assert_eq!(peers.credits().0, 2);
    }

    #[test]
    fn results_wait_for_slots_and_for_the_budget_and_nobody_is_told_without_a_channel() {
        let mut peers = Peers::new(2, 2);
        peers.push(Rank(0), result(1));
        peers.push(Rank(7), result(1));
        assert_eq!(flush(&mut peers, usize::MAX), []);
        peers.up(Rank(0), Incarnation(1), &[grant(3, 1)], false);
        assert!(peers.count_operation(Rank(0)) && peers.owes(Rank(0)));
        peers.push(Rank(0), result(2));
        assert_eq!(flush(&mut peers, 0), [], "no budget");
        assert_eq!(flush(&mut peers, 1), [(0, vec![2], 0)]);
        assert!(!peers.owes(Rank(0)));
        peers.push(Rank(0), result(3));
        assert_eq!(flush(&mut peers, 9), [], "its only slot is not returned");
        let mut out = Commands::default();
        assert!(peers.notice(Rank(0), Notice::Returned(grant(3, 2)), &mut out));
        assert!(!peers.notice(Rank(0), Notice::Returned(grant(3, 2)), &mut out), "once");
        assert_eq!(flush(&mut peers, 9), [(0, vec![3], 0)]);
        assert_eq!(out.list, []);
        peers.notice(Rank(0), Notice::Returned(grant(9, 1)), &mut out);
        assert!(matches!(out.list[..], [Command::Expel { peer: Rank(0), .. }]));
    }
}
