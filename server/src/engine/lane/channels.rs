//! Workers' channels, as they come and go, and what goes over them: notices, credits, results. Who may write when is decided in
//! [`Peers`](crate::engine::peers::Peers) and [`Quarantine`](crate::engine::quarantine::Quarantine).

use super::LaneEngine;
use crate::engine::command::Commands;
use crate::engine::credits::Misuse;
use crate::engine::quarantine::{FenceId, Granted};
use fabric::Fenced;
use proto_common::batch::{Notice, SlotGrant};
use proto_common::ids::{Incarnation, Rank};

impl LaneEngine {
    /// Credits not granted to anyone, and all there are.
    #[must_use]
    pub fn credits(&self) -> (usize, usize) {
        self.peers.credits()
    }

    /// Credits that workers hold. With the free ones, and those in quarantine, they are all there are.
    #[must_use]
    pub fn credits_lent(&self) -> usize {
        self.peers.credits_lent()
    }

    /// The incarnation of a connected worker; zero of one that is not.
    #[must_use]
    pub fn peer_incarnation(&self, rank: Rank) -> Incarnation {
        self.peers.incarnation(rank).unwrap_or_default()
    }

    /// A worker's channel is up. Returns its first credits, which travel with the bootstrap.
    /// `in_place`: it and this server read each other's memory in place. Views of a life before end; those that this one
    /// had over an earlier channel it may read still.
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

    /// A worker's channel is closed. Its contributions stay, but for those that are in its memory only, which it may write
    /// again from now on. Its views stay: it may live, and read them still. What it had been granted comes back with
    /// [`LaneEngine::fenced`].
    pub fn peer_down(&mut self, rank: Rank) -> FenceId {
        let slots = self.peers.down(rank);
        self.chunks.iter_mut().for_each(|chunk| chunk.waiters.forget(rank));
        let spills = self.take_back(rank);
        self.calls.peer_down(rank);
        self.quarantine.begin(rank, Granted { slots, spills })
    }

    /// The fence is done: what the channel had been granted is free.
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

    /// Workers that may be in the middle of a copy over a channel that has ended, and hold up memory by it.
    pub fn fencing(&self) -> impl Iterator<Item = Rank> {
        self.quarantine.ranks()
    }

    /// A peer says that a batch lies in a slot: may it be read? After an old grant it may not, because the
    /// slot can be somebody else's by now. Nothing is redeemed yet; `batch` does that.
    pub fn notified(&mut self, peer: Rank, grant: SlotGrant, out: &mut Commands) -> bool {
        match self.peers.check(peer, grant) {
            Ok(()) => return true,
            Err(Misuse::Stale) => self.stats.duplicates += 1,
            Err(Misuse::NotGranted) => out.expel(peer, "it wrote to a slot that was never granted"),
        }
        false
    }

    /// Is the slot this worker's to write?
    #[must_use]
    pub fn is_granted(&self, peer: Rank, grant: SlotGrant) -> bool {
        self.peers.check(peer, grant).is_ok()
    }

    /// A write that carried only a notice.
    pub fn notice(&mut self, peer: Rank, notice: Notice, out: &mut Commands) {
        let counts = self.peers.notice(peer, notice, out);
        self.stats.duplicates += u64::from(!counts);
    }

    /// Hands out credits and sends what is to be said, in at most `batches` batches; the rest goes with the
    /// next flush. Called after each burst of events.
    pub fn flush(&mut self, batches: usize, out: &mut Commands) {
        self.peers.hand_out();
        self.pump(out);
        if !self.places.retired().is_empty() {
            self.free_retired(out);
        }
        self.calls.report_gone(out);
        self.peers.send(batches, out);
    }
}
