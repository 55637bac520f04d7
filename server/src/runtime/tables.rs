//! Rows of sparse tables: calls about them, which the lane's own tables answer, at once and on its data thread; and what a
//! round of a home is. Where the worker's memory can be read and written in place, ids are taken from there and rows put
//! there.

use super::calls::Request;
use super::error::LaneError;
use super::lane::{DataLane, Saves};
use crate::app::{Answer, AnswerBody, CallBuffer, ReplyBody};
use crate::engine::{Addend, Source, Verdict};
use crate::storage::{Round, Views};
use crate::tables::{Applied, Asked, Room, Rows, TableStats, Told, home_key_of};
use fabric::{CompletionQueue, PostError, RemoteKey, RemoteSpan, View};
use proto_common::ids::{ChunkId, Rank};
use proto_common::table::{RowStatus, home_of, table_of};

/// Rows of one request that are written where the worker wants them: a worker that closes does not wait long for that.
const IN_PLACE_BYTES_MAX: u64 = 1 << 20;

impl<Q: CompletionQueue> DataLane<Q> {
    /// A call goes to its handler, or to the table that it is about.
    pub(super) fn deliver_call(&mut self, call: u64) -> Result<(), LaneError> {
        let Some((key, _)) = self.calls.app_of(call).and_then(table_of) else {
            self.calls.deliver(call);
            return Ok(());
        };
        let Some(request) = self.calls.take_request(call) else { return Ok(()) };
        let told = self.ask_table(call, key, &request);
        match told {
            Ok(Told::Placed(bytes)) => self.note_placed(call, &[RowStatus::Done as u8], bytes),
            Ok(Told::Status(status, why)) => {
                let answer = AnswerBody::new(&[status as u8], ReplyBody::Bytes(why.into_bytes()));
                self.note_answer(call, Some(Answer::Own(answer)));
            }
            Ok(Told::Rows(rows)) => {
                let rows = ReplyBody::Buffer(CallBuffer::new(rows));
                let answer = AnswerBody::new(&[RowStatus::Done as u8], rows);
                self.note_answer(call, Some(Answer::Own(answer)));
            }
            // Nothing was done; the worker's next channel brings it again.
            Err(PostError::Closed) => self.engine.call_returned(call),
            Err(_) => {
                self.engine.call_returned(call);
                self.expel(request.peer, "its request about rows refers to memory that it did not hand over");
            }
        }
        // The worker continues with this one while the next one is executed.
        self.engine.flush(self.blocks.free(), &mut self.commands);
        Ok(())
    }

    fn ask_table(&mut self, call: u64, key: u32, request: &Request) -> Result<Told, PostError> {
        let home = home_key_of(&request.head).map_or(ChunkId::default(), |key| ChunkId::new(key, 0));
        if home_of(home.key).is_none() {
            return Ok(Told::Status(RowStatus::Malformed, String::new()));
        }
        if !self.engine.may_answer_rows(home) {
            return Ok(Told::Status(RowStatus::Elsewhere, String::new()));
        }
        let in_place = 1..=IN_PLACE_BYTES_MAX;
        let landing = self.engine.call_landing(call).filter(|landing| in_place.contains(&landing.bytes));
        let Request { peer, head, body, lies } = request;
        let room = |landing: proto_common::batch::Landing| {
            let at = RemoteSpan { key: RemoteKey(landing.region), offset: landing.offset };
            (at, landing.bytes)
        };
        let there = landing.map(room).map(|place| self.worker_memory(*peer, place)).transpose()?.flatten();
        let body = match (lies, body) {
            (Some(place), _) => Asked::There(self.worker_memory(*peer, *place)?.ok_or(PostError::Closed)?),
            (None, Some(body)) => Asked::Here(body),
            (None, None) => return Err(PostError::Closed),
        };
        let Self { queue, tables, calls, links, .. } = self;
        let allocate = |bytes| calls.memory.allocate(bytes);
        if lies.is_none() && there.is_none() {
            return Ok(tables.request(home, key, head, &body, &Room { there, allocate: &allocate }));
        }
        let link = links.get(peer.0 as usize).and_then(Option::as_ref).ok_or(PostError::Closed)?;
        let room = Room { there, allocate: &allocate };
        let mut told = None;
        queue.while_open(link.channel, &mut || told = Some(tables.request(home, key, head, &body, &room)))?;
        told.ok_or(PostError::Closed)
    }

    /// A stretch of a worker's memory; none where it is not reached in place.
    fn worker_memory(
        &mut self,
        peer: Rank,
        (at, bytes): (RemoteSpan, u64),
    ) -> Result<Option<View>, PostError> {
        let Self { queue, links, .. } = self;
        let link = links.get_mut(peer.0 as usize).and_then(Option::as_mut).ok_or(PostError::Closed)?;
        if !link.in_place {
            return Ok(None);
        }
        link.mapped.view(queue, link.channel, at, bytes).map(Some)
    }

    /// What the tables that this lane serves have done.
    pub(super) fn table_stats(&self) -> TableStats {
        self.tables.stats(|home| self.engine.serves_home(home))
    }

    /// What was contributed to a home that is served here is about to be sent to copies, or applied: it says from now on what
    /// there is room for.
    pub(super) fn plan_rows(&mut self, chunk: u32, addend: &Addend) -> Result<(), LaneError> {
        let Self { engine, storage, tables, saves, .. } = self;
        // The server whose copy this is has planned what comes from it.
        let Some(home) = engine.home(chunk).filter(|_| !matches!(addend.from, Source::Record { .. })) else {
            return Ok(());
        };
        tables.plan(home, storage.sum_of_round(chunk)?, &refill_of(saves));
        Ok(())
    }

    /// A round of a home is complete: what was contributed is done to its rows.
    pub(super) fn finish_rows(
        &mut self,
        (chunk, home): (u32, ChunkId),
        round: &Round,
        views: &Views,
    ) -> Result<Verdict, LaneError> {
        if let Some(last) = round.last {
            self.storage.reduce(chunk, last, views)?;
            self.plan_rows(chunk, &last)?;
        }
        let Self { engine, storage, tables, saves, .. } = self;
        match tables.apply(home, storage.sum_of_round(chunk)?, &refill_of(saves)) {
            Applied::Done => Ok(Verdict::Fits),
            // A copy that cannot be what its server has would be found out when it is needed.
            Applied::Lacking(why) if !engine.serves_home(home) => Err(LaneError::Copy(why)),
            Applied::LeftOut | Applied::Lacking(_) => Ok(Verdict::BadValue),
        }
    }
}

/// Tables begin with what the checkpoint has of them that the job continues from.
fn refill_of(saves: &Saves) -> impl Fn(&mut Rows, usize) -> Result<(), String> + '_ {
    |rows, part| saves.restorer.as_ref().map_or(Ok(()), |restorer| restorer.refill(rows, part))
}

#[cfg(test)]
mod tests;
