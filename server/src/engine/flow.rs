//! Who may write when: notices, credits handed out to workers, results sent into the slots that workers
//! granted. The other half of the lane's engine; what operations mean is in `lane`.

use super::answers::send_results;
use super::command::{Command, Commands};
use super::credits::Misuse;
use super::lane::LaneEngine;
use proto_common::batch::{Notice, SlotGrant};
use proto_common::ids::Rank;

/// Credits that a worker has beyond its need, so that its next batch need not ask, where slots are plenty.
const RESERVE: u32 = 2;

impl LaneEngine {
    /// A peer says that a batch lies in a slot: may it be read? After an old grant it may not, because the
    /// slot can be somebody else's by now. Nothing is redeemed yet; `batch` does that.
    pub fn notified(&mut self, peer: Rank, grant: SlotGrant, out: &mut Commands) -> bool {
        match self.ledger.check(peer, grant) {
            Ok(()) => return true,
            Err(Misuse::Stale) => self.stats.duplicates += 1,
            Err(Misuse::NotGranted) => out.expel(peer, "it wrote to a slot that was never granted"),
        }
        false
    }

    /// Is the slot this worker's to write?
    #[must_use]
    pub fn is_granted(&self, peer: Rank, grant: SlotGrant) -> bool {
        self.ledger.check(peer, grant).is_ok()
    }

    /// A write that carried only a notice.
    pub fn notice(&mut self, peer: Rank, notice: Notice, out: &mut Commands) {
        let Some(Some(state)) = self.peers.get_mut(peer.0 as usize) else { return };
        match notice {
            Notice::Returned(grant) => match state.result_slots.give(grant) {
                Ok(()) => self.mark_dirty(peer),
                Err(Misuse::Stale) => self.stats.duplicates += 1,
                Err(Misuse::NotGranted) => {
                    out.expel(peer, "it returned a slot of its inbox that we did not use");
                }
            },
            Notice::GivenBack(grant) => match self.ledger.redeem(peer, grant) {
                Ok(()) => self.given_back(peer),
                Err(Misuse::Stale) => self.stats.duplicates += 1,
                Err(Misuse::NotGranted) => out.expel(peer, "it gave back a slot it never had"),
            },
            Notice::Want(count) => self.want(peer, u32::from(count)),
            Notice::Probe => out.push(Command::Notice { peer, notice: Notice::ProbeReply }),
            Notice::ProbeReply | Notice::Batch(_) | Notice::Judged(..) | Notice::Ready => {}
        }
    }

    /// The worker is idle: what it wanted before, and grants that it was not told of, would only lie there.
    fn given_back(&mut self, peer: Rank) {
        let Some(Some(state)) = self.peers.get_mut(peer.0 as usize) else { return };
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
    pub(super) fn want(&mut self, peer: Rank, need: u32) {
        let (total, workers) = (self.ledger.total() as u32, self.config.workers.max(1));
        let (share, reserve) = ((total / workers).max(1), if total < workers { 0 } else { RESERVE });
        let Some(Some(state)) = self.peers.get_mut(peer.0 as usize) else { return };
        let could_use = need.max(reserve.saturating_sub(state.credits));
        state.wanted = could_use.min(share.saturating_sub(state.credits));
        state.needy = need > 0;
        if state.wanted > 0 && !state.queued {
            state.queued = true;
            self.wanting.push_back(peer);
        }
    }

    pub(super) fn mark_dirty(&mut self, peer: Rank) {
        if let Some(Some(state)) = self.peers.get_mut(peer.0 as usize)
            && !state.dirty
        {
            state.dirty = true;
            self.dirty.push(peer);
        }
    }

    /// Hands out credits and sends what is to be said, in at most `batches` batches; the rest goes with the
    /// next flush. Called after each burst of events.
    pub fn flush(&mut self, batches: usize, out: &mut Commands) {
        self.hand_out();
        self.pump(out);
        if !self.copying.retired.is_empty() {
            self.free_retired(out);
        }
        self.drop_calls(out);
        let mut left = batches;
        let mut dirty = std::mem::take(&mut self.dirty);
        dirty.retain(|rank| {
            let Some(Some(peer)) = self.peers.get_mut(rank.0 as usize) else { return false };
            peer.dirty = !send_results(*rank, peer, &mut left, out);
            peer.dirty
        });
        self.dirty = dirty;
    }

    /// Free slots go round-robin to those who want them.
    fn hand_out(&mut self) {
        while self.ledger.free() > 0 {
            let Some(rank) = self.wanting.pop_front() else { break };
            let Some(Some(peer)) = self.peers.get_mut(rank.0 as usize) else { continue };
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
}
