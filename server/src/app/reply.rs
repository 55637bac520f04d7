//! The path of an answer to the lane that received the call: at once, or when the handler's journal has the request.

use super::body::{Answer, AnswerBody, CallBuffer, ReplyBody};
use super::memory::{ReplyError, ReplyMemory};
use crate::journal::Noted;
use crate::runtime::Answers;
use fabric::FabricError;
use proto_common::call::CALL_HEAD_BYTES_MAX;

/// Answers one call, once, from any thread. If it is dropped without an answer, the worker gets an error.
#[derive(Debug)]
pub struct Reply {
    /// Gone once the call is answered.
    way: Option<Way>,
    call: u64,
    memory: ReplyMemory,
    is_again: bool,
}

#[derive(Debug)]
enum Way {
    /// To the lane that the call came over.
    Lane(Answers),
    /// By the journal of the handler. No lane: the worker knows the answer, from an earlier process.
    Journal(Noted, Option<Answers>),
}

impl Way {
    /// False when the lane has ended.
    fn send(self, call: u64, answer: Option<AnswerBody>) -> bool {
        match self {
            Self::Lane(answers) => answers.send(call, answer.map(Answer::Own)),
            Self::Journal(noted, answers) => {
                noted.answer(answers.map(|answers| (answers, call)), answer);
                true
            }
        }
    }
}

impl Reply {
    pub(crate) fn new(answers: Answers, call: u64, memory: ReplyMemory) -> Self {
        Self { way: Some(Way::Lane(answers)), call, memory, is_again: false }
    }

    /// Of a request that a journal has, and that is handled again.
    pub(crate) fn again(noted: Noted, lane: Option<(Answers, u64)>, memory: ReplyMemory) -> Self {
        let (answers, call) = lane.map_or((None, 0), |(answers, call)| (Some(answers), call));
        Self { way: Some(Way::Journal(noted, answers)), call, memory, is_again: true }
    }

    /// Goes by the handler's journal from now on.
    pub(crate) fn go_by(&mut self, noted: Noted) {
        self.way = match self.way.take() {
            Some(Way::Lane(answers)) => Some(Way::Journal(noted, Some(answers))),
            other => other,
        };
    }

    /// Has an earlier process of this server received the request, before it failed? Then its journal has it.
    #[must_use]
    pub fn is_again(&self) -> bool {
        self.is_again
    }

    /// Registered memory for the body, with undefined contents.
    pub fn allocate(&self, bytes: u64) -> Result<CallBuffer, FabricError> {
        self.memory.allocate(bytes).map(CallBuffer::new)
    }

    /// Answers the call.
    pub fn send(mut self, head: &[u8], body: impl Into<ReplyBody>) -> Result<(), ReplyError> {
        if head.len() > CALL_HEAD_BYTES_MAX {
            return Err(ReplyError::LongHead(head.len()));
        }
        let body = self.memory.settle(body.into())?;
        let answer = AnswerBody::new(head, body);
        let is_sent = self.way.take().is_some_and(|way| way.send(self.call, Some(answer)));
        is_sent.then_some(()).ok_or(ReplyError::Ended)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if let Some(way) = self.way.take() {
            // Nobody waits for it where the lane has ended.
            let _ = way.send(self.call, None);
        }
    }
}
