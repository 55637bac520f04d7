//! What the lane does when a chunk moves to another server, or when a server or its channel fails. A part that was sent belongs to
//! the server that it was sent to until the server has answered or the channel has ended, because until then the server may write
//! the part's memory. Before that, no other part of the chunk is sent to the chunk's new server.

use super::LaneEngine;
use crate::call_fault::CallFault;
use crate::engine::command::Commands;
use crate::engine::op::{Op, Told};
use crate::engine::part::{Part, State};
use crate::error::OpError;
use proto_common::call::called;
use proto_common::ids::{ChunkId, Rank};
use std::collections::BTreeSet;

impl LaneEngine {
    /// Chunks have moved to other servers. Parts that wait, and parts of later operations, are sent there. Parts that were sent
    /// are answered first, or their channel ends.
    pub fn remap(&mut self, moves: &[(ChunkId, Rank)]) {
        let (mut moved, mut ids) = (BTreeSet::new(), BTreeSet::new());
        for (id, server) in moves {
            let at = self.chunks.place(*id);
            let Some(waiting) = self.chunks[at].remap(*server) else { continue };
            for index in waiting {
                if let Some(part) = self.parts.get_mut(index) {
                    (part.spec.server, part.told_ms) = (*server, None);
                }
            }
            moved.insert(at);
            ids.insert(*id);
        }
        self.chunks.forget_retries(&moved);
        let stays = |part: &Part| !moved.contains(&part.chunk);
        for link in &mut self.links {
            link.retain(|part| self.parts.get(part).is_some_and(stays));
            // A server that gives a chunk up may use the buffers that it granted for it for something else.
            link.buffers.retain(|id| !ids.contains(&id));
        }
        for at in moved {
            self.enqueue(at);
        }
    }

    /// The channel to a server is closed and drained. Parts that were sent and not answered are sent again: over the next channel,
    /// or to the server that has the chunk by then.
    pub fn server_down(&mut self, server: Rank) {
        let Some(link) = self.link(server) else { return };
        link.close();
        // A notice that views have ended may be lost with the channel.
        self.chunks.iter_mut().for_each(|chunk| chunk.shown_by.say_again(server));
        let mut mine = BTreeSet::new();
        let mut sent = Vec::new();
        for (index, part) in self.parts.iter_mut().filter(|(_, part)| part.spec.server == server) {
            mine.insert(part.chunk);
            part.told_ms = None;
            if part.state != State::Queued {
                sent.push((index, *part));
            }
        }
        for at in &mine {
            self.chunks[*at].channel_ended(server);
        }
        self.chunks.forget_retries(&mine);
        self.stats.replays += sent.len() as u64;
        for (index, part) in sent {
            self.requeue(index, part);
        }
        for at in mine {
            self.enqueue(at);
        }
    }

    /// A server's process has exited, and its channel was closed. Calls to it wait for its next process (`kept`), or fail: no other
    /// server has received them.
    pub fn server_gone(&mut self, server: Rank, out: &mut Commands) {
        self.chunks.iter_mut().for_each(|chunk| chunk.shown_by.forget(server));
        let is_call = |part: &Part| self.ops.get(part.op).is_some_and(Op::is_call);
        let calls = self.parts.iter().filter(|(_, part)| part.spec.server == server && is_call(part));
        let calls: Vec<u32> = calls.map(|(index, _)| index).collect();
        if let Some(link) = self.link(server) {
            link.exit();
        }
        for index in calls {
            // A number that was behind another call may have gone with that.
            let Some(part) = self.parts.get(index).copied() else { continue };
            if self.is_kept(&part) {
                self.keep(index, out);
                continue;
            }
            let waited_ms = self.ops.get(part.op).map_or(0, |op| op.waited_ms(self.now_ms));
            let app = called(part.spec.id).map_or(0, |(app, _)| app);
            // All calls of this line end here, and none is in flight.
            self.chunks[part.chunk].drop_waiting();
            let failure = OpError::Call { app, server, waited_ms, fault: CallFault::ServerDied };
            self.end_part(index, part.spec, 0, Some(failure), out);
        }
        if let Some(link) = self.links.get_mut(server.0 as usize) {
            link.retain(|part| self.parts.get(part).is_some());
        }
    }

    /// A server answers that it does not have the chunk. If the chunk has moved in this worker's map, the part is sent to the new
    /// server. Otherwise it is sent to the same server again after a pause: the map of one of the two is older.
    pub(super) fn rerouted(&mut self, index: u32, part: Part) {
        self.stats.reroutes += 1;
        self.put_back(index, part);
        let (server, chunk, now_ms) = (part.spec.server, part.spec.id, self.now_ms);
        if let Some(part) = self.parts.get_mut(index) {
            part.told_ms = (part.spec.server == server).then_some(now_ms);
        }
        if let Some(op) = self.ops.get_mut(part.op) {
            op.tell(Told::Elsewhere { chunk, server });
        }
    }
}
