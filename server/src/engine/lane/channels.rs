//! Workers' channels, from their beginning to their end, and their notices, credits and results. [`Peers`](crate::engine::peers::Peers) and
//! [`Quarantine`](crate::engine::quarantine::Quarantine) decide which peer may write a slot.

use super::LaneEngine;
use crate::engine::command::Commands;
use crate::engine::credits::Misuse;
use crate::engine::quarantine::{FenceId, Granted};
use fabric::Fenced;
use proto_common::batch::{Notice, SlotGrant};
use proto_common::ids::{Incarnation, Rank};

impl LaneEngine {
    /// Credits that no worker holds, and the number of all credits.
    #[must_use]
    pub fn credits(&self) -> (usize, usize) {
        self.peers.credits()
    }

    /// Credits that workers hold. Together with the free ones and those in quarantine, they are all credits.
    #[must_use]
    pub fn credits_lent(&self) -> usize {
        self.peers.credits_lent()
    }

    /// The incarnation of a connected worker; zero of one that is not.
    #[must_use]
    pub fn peer_incarnation(&self, rank: Rank) -> Incarnation {
        self.peers.incarnation(rank).unwrap_or_default()
    }

    /// A worker's channel is up. Returns its first credits, which travel with the bootstrap. `in_place`: it and this server read each
    /// other's memory in place. Views of an earlier incarnation end. This incarnation may still read the views that it had over an
    /// earlier channel.
    pub fn peer_up(
        &mut self,
        rank: Rank,
        incarnation: Incarnation,
        inbox: &[SlotGrant],
        in_place: bool,
        out: &mut Commands,
    ) -> Vec<SlotGrant> {
        self.begin_life(rank, incarnation, out);
        self.calls.peer_up(rank, incarnation);
        self.peers.up(rank, incarnation, inbox, in_place)
    }

    /// A worker's channel is closed. Its contributions stay, except those that are only in its memory, which it may overwrite from now
    /// on. Its views stay, because the worker may still run and read them. The memory that it was granted returns with
    /// [`LaneEngine::fenced`].
    pub fn peer_down(&mut self, rank: Rank) -> FenceId {
        let slots = self.peers.down(rank);
        self.chunks.iter_mut().for_each(|chunk| chunk.waiters.forget(rank));
        let spills = self.take_back(rank);
        self.calls.peer_down(rank);
        self.quarantine.begin(rank, Granted { slots, spills })
    }

    /// The fence is done: the memory that was granted over the channel is free.
    pub fn fenced(&mut self, fence: FenceId, _proof: Fenced) {
        if let Some(Granted { slots, spills }) = self.quarantine.end(fence) {
            self.peers.free_slots(&slots);
            self.placement.give_all(&spills);
        }
    }

    /// Slots and spill blocks whose fence is pending.
    #[must_use]
    pub fn quarantined(&self) -> (usize, usize) {
        self.quarantine.sizes()
    }

    /// Workers that may be in the middle of a copy over a channel that has ended, so that memory stays in quarantine.
    pub fn fencing(&self) -> impl Iterator<Item = Rank> {
        self.quarantine.ranks()
    }

    /// A peer notifies that a batch lies in a slot. May the slot be read? Not with an old grant, because another peer may have the slot by
    /// now. This redeems nothing yet; `batch` does.
    pub fn notified(&mut self, peer: Rank, grant: SlotGrant, out: &mut Commands) -> bool {
        match self.peers.check(peer, grant) {
            Ok(()) => return true,
            Err(Misuse::Stale) => self.stats.duplicates += 1,
            Err(Misuse::NotGranted) => out.expel(peer, "it wrote to a slot that was never granted"),
        }
        false
    }

    /// May this worker write the slot?
    #[must_use]
    pub fn is_granted(&self, peer: Rank, grant: SlotGrant) -> bool {
        self.peers.check(peer, grant).is_ok()
    }

    /// A write that carried only a notice.
    pub fn notice(&mut self, peer: Rank, notice: Notice, out: &mut Commands) {
        let counts = self.peers.notice(peer, notice, out);
        self.stats.duplicates += u64::from(!counts);
    }

    /// Grants credits and sends queued results, in at most `batches` batches; the rest is sent with the next flush. Called after each burst
    /// of events.
    pub fn flush(&mut self, batches: usize, out: &mut Commands) {
        self.peers.hand_out();
        if !self.places.retired().is_empty() {
            self.free_retired(out);
        }
        self.calls.report_gone(out);
        let mut left = batches;
        loop {
            self.pump(out);
            left = self.peers.send(left, out);
            let mut is_over = true;
            // Their weights are in the batches now. Rounds that waited for a buffer may end, and have records and results to send.
            while let Some((rank, chunk, buffer)) = self.peers.next_carried() {
                if let Some(state) = self.chunks.get_mut(chunk as usize) {
                    state.weights.views.carried(rank, buffer & 1);
                    self.finish_late(chunk, out);
                }
                is_over = false;
            }
            if is_over {
                return;
            }
        }
    }

    /// Have results come since the last flush?
    #[must_use]
    pub fn has_to_tell(&self) -> bool {
        self.peers.has_dirty()
    }
}
