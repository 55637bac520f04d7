//! What the control side tells a lane of other members: the roster, whose channels come and go, and from which rounds on a worker
//! counts. It must not decide about rounds.

use super::error::LaneError;
use super::lane::DataLane;
use super::link::{Link, WorkerInbox};
use super::records::{CopyLink, PREFIX_BYTES, StreamLink};
use super::slots::{lend_cells, slots_of};
use daemon::flight::Kind;
use fabric::{Blocks, ChannelId, CompletionQueue};
use proto_common::batch::SlotGrant;
use proto_common::ids::{Epoch, Incarnation, Key, Rank};
use proto_common::limits::{REPLICA_SLOTS, RESULT_SLOT_BYTES, TABLE_BYTES_MAX, slot_bytes_for};
use proto_common::message::InboxGrant;
use std::collections::VecDeque;

impl<Q: CompletionQueue> DataLane<Q> {
    /// The roster has changed: channels of lives that are not in it any more are closed and fenced, and rounds continue without
    /// those that are needed no more. `left` have gone in good order.
    pub fn workers(&mut self, epoch: Epoch, present: &[(Rank, Incarnation)], left: &[Rank]) {
        if self.engine.knows_newer(epoch) {
            return;
        }
        for rank in (0..self.config.engine.workers).map(Rank) {
            let life = self.engine.peer_incarnation(rank);
            if self.connected(rank) && !present.contains(&(rank, life)) {
                tracing::info!(worker = rank.0, %epoch, "worker process has ended: closed its data channel");
                self.detach(rank);
            }
        }
        self.execute();
        self.engine.workers_changed(epoch, present, left, &mut self.commands);
        self.execute();
    }

    /// A worker is to count between two rounds: from which of each tensor could it? See [`crate::engine::LaneEngine::ask_rounds`].
    pub fn ask_rounds(&mut self, rank: Rank, incarnation: Incarnation) -> Vec<(Key, u64)> {
        self.engine.ask_rounds(rank, incarnation)
    }

    /// From these rounds on a worker counts.
    pub fn count_from(&mut self, rank: Rank, incarnation: Incarnation, rounds: &[(Key, u64)]) {
        self.engine.count_from(rank, incarnation, rounds, &mut self.commands);
        self.execute();
    }

    /// Makes a channel of the queue the worker's. Returns what the worker needs of our inbox.
    pub fn adopt(
        &mut self,
        rank: Rank,
        incarnation: Incarnation,
        channel: ChannelId,
        inbox: WorkerInbox,
    ) -> Result<InboxGrant, LaneError> {
        let refuse = |queue: &mut Q, reason: String| {
            // Nothing was granted over it that anybody is granted again.
            queue.close(channel);
            Err(LaneError::Attach { rank, reason })
        };
        if inbox.slot_bytes < RESULT_SLOT_BYTES {
            return refuse(
                &mut self.queue,
                format!(
                    "its inbox slots have {} bytes, but {RESULT_SLOT_BYTES} are needed",
                    inbox.slot_bytes
                ),
            );
        }
        if !self.engine.admits(rank, incarnation) {
            return refuse(
                &mut self.queue,
                "its process has ended, as the scheduler reported meanwhile".into(),
            );
        }
        self.detach(rank);
        // Before there is another channel of that worker: none of it is for that one.
        self.execute();
        let place = rank.0 as usize;
        if place >= self.links.len() {
            return refuse(&mut self.queue, "its rank is out of range".into());
        }
        let in_place = self.queue.reads_in_place(channel);
        let inbox_key = self.queue.expose(channel, self.inbox.memory());
        let region = match inbox_key
            .and_then(|key| self.queue.open(channel, &self.inbox.memory().all()).map(|()| key))
        {
            Ok(key) => key.0,
            Err(error) => {
                let reason = self.queue.explain(error);
                return refuse(&mut self.queue, reason);
            }
        };
        let grants = self.engine.peer_up(rank, incarnation, &inbox.grants, in_place, &mut self.commands);
        self.links[place] = Some(Link::new(channel, inbox, in_place));
        if let Err(error) = self.lend_slots(rank, &grants) {
            let reason = self.queue.explain(error);
            self.detach(rank);
            return Err(LaneError::Attach { rank, reason });
        }
        self.ranks.insert(channel, rank);
        self.flight.peer(Kind::ChannelUp, rank);
        let grants = grants.into_iter().map(SlotGrant::to_wire).collect();
        Ok(InboxGrant { region, offset: 0, slot_bytes: self.inbox.cell_bytes(), grants })
    }

    /// Makes a channel of the queue our stream to a server, which granted these slots.
    pub fn adopt_stream(
        &mut self,
        (to, number): (Rank, u64),
        incarnation: Incarnation,
        channel: ChannelId,
        inbox: InboxGrant,
    ) -> Result<(), LaneError> {
        self.close_stream(to);
        self.execute();
        let slots = slots_of(&inbox, slot_bytes_for(self.config.chunk_bytes)).and_then(|grants| {
            let prefixes = Blocks::new(grants.len() as u32, PREFIX_BYTES, "gradwire-records");
            Ok((grants, prefixes.map_err(|error| error.to_string())?))
        });
        let (grants, prefixes) = match slots {
            Ok(slots) => slots,
            Err(reason) => {
                self.queue.close(channel);
                return Err(LaneError::Attach { rank: to, reason });
            }
        };
        let part_bytes = inbox.slot_bytes.saturating_sub(TABLE_BYTES_MAX as u64) & !63;
        let (image, backlog) = (None, VecDeque::new());
        self.replicas.streams.push(StreamLink { to, number, channel, inbox, prefixes, image, backlog });
        self.replicas.channels.insert(channel, (to, true));
        self.engine.stream_up(to, incarnation, &grants, part_bytes, &mut self.commands);
        self.execute();
        Ok(())
    }

    /// Makes a channel of the queue a server's stream to us. Returns what that needs of the slots for it.
    pub fn adopt_copy(
        &mut self,
        from: Rank,
        incarnation: Incarnation,
        channel: ChannelId,
    ) -> Result<InboxGrant, LaneError> {
        self.close_copy(from);
        let each = (REPLICA_SLOTS, slot_bytes_for(self.config.chunk_bytes));
        let (cells, region) = match lend_cells(&mut self.queue, channel, each) {
            Ok(lent) => lent,
            Err(error) => {
                self.queue.close(channel);
                return Err(error);
            }
        };
        self.storage.set_records(from, Some(cells.clone()));
        let (image, backlog, is_over) = (Vec::new(), VecDeque::new(), false);
        self.replicas.copies.push(CopyLink { from, channel, cells, image, backlog, is_over });
        self.replicas.channels.insert(channel, (from, false));
        let grants = self.engine.copy_up(from, incarnation, REPLICA_SLOTS);
        let grants = grants.into_iter().map(SlotGrant::to_wire).collect();
        Ok(InboxGrant { region, offset: 0, slot_bytes: each.1, grants })
    }

    /// Nobody wants our stream to a server any more.
    pub fn hang_up(&mut self, to: Rank) {
        self.close_stream(to);
        self.execute();
    }

    /// That incarnation of a server has ended: nothing of it lands any more.
    pub fn end_server(&mut self, rank: Rank) {
        self.close_copy(rank);
        self.close_stream(rank);
        self.execute();
    }
}
