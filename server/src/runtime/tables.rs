//! Requests about rows: calls that the lane's own tables answer, at once and on its data thread.

use super::calls::AnswerBody;
use super::lane::{DataLane, LaneError};
use crate::app::{CallBuffer, ReplyBody};
use crate::tables::{TableStats, Told};
use fabric::CompletionQueue;
use proto_common::table::{RowStatus, table_of};

impl<Q: CompletionQueue> DataLane<Q> {
    /// A call goes to its handler, or to the table that it is about.
    pub(super) fn deliver_call(&mut self, call: u64) -> Result<(), LaneError> {
        let Some((key, _)) = self.calls.app_of(call).and_then(table_of) else {
            self.calls.deliver(call);
            return Ok(());
        };
        let Some((head, mut body)) = self.calls.take_request(call) else { return Ok(()) };
        let Self { tables, calls, .. } = self;
        let told = tables.request(key, &head, body.bytes_mut(), |bytes| calls.allocate(bytes));
        let answer = match told {
            Told::Status(status, why) => AnswerBody::new(&[status as u8], ReplyBody::Bytes(why.into_bytes())),
            Told::Rows(rows) => {
                AnswerBody::new(&[RowStatus::Done as u8], ReplyBody::Buffer(CallBuffer::new(rows)))
            }
        };
        self.note_answer(call, Some(answer));
        Ok(())
    }

    /// What the lane's tables have done.
    pub(super) fn table_stats(&self) -> TableStats {
        self.tables.stats()
    }
}
