//! The journal of a handler: what the server that has the handler says to the server that keeps its journal, and what that one gives
//! back to a process that takes the place of a failed server.
//!
//! A journal is a list of numbered records: the state of the handler at one moment ([`JournalRecord::Line`] and
//! [`JournalRecord::Reply`], then [`JournalRecord::State`]), and the requests since. Bytes of a record follow it in pieces.

use crate::ids::{Incarnation, Rank};
use serde::{Deserialize, Serialize};

/// Bytes of one piece, at most.
pub const JOURNAL_PIECE_BYTES: usize = 1 << 20;

/// The calls of one worker to the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct JournalLine {
    /// The worker.
    pub worker: Rank,
    /// Its process.
    pub life: Incarnation,
    /// The lane that its calls come over.
    pub lane: u16,
}

/// What a journal has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JournalRecord {
    /// Of the state that follows: the number of the worker's next call, and of the first that it may ask for again.
    Line {
        /// Whose.
        line: JournalLine,
        /// The next call.
        next: u64,
        /// Calls before this one are known to be answered.
        first_open: u64,
    },
    /// Of the state that follows: a reply that its worker may not have yet. Its body follows.
    Reply {
        /// Whose.
        line: JournalLine,
        /// The call.
        operation: u64,
        /// The reply's head.
        #[serde(with = "serde_bytes")]
        head: Vec<u8>,
    },
    /// The handler's state, which follows. Records before its lines and replies are not needed any more.
    State,
    /// A request, whose body follows.
    Request {
        /// Whose.
        line: JournalLine,
        /// The call.
        operation: u64,
        /// As the request says it.
        first_open: u64,
        /// The request's head.
        #[serde(with = "serde_bytes")]
        head: Vec<u8>,
    },
}

impl JournalRecord {
    /// Bytes of its head.
    #[must_use]
    pub fn head_bytes(&self) -> usize {
        match self {
            Self::Reply { head, .. } | Self::Request { head, .. } => head.len(),
            Self::Line { .. } | Self::State => 0,
        }
    }
}

/// A record on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JournalFrame {
    /// A record, of which so many bytes follow.
    Record {
        /// Its number.
        number: u64,
        /// The record.
        record: JournalRecord,
        /// Bytes that follow.
        bytes: u64,
    },
    /// The next bytes of the last record, at most [`JOURNAL_PIECE_BYTES`].
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
}

/// To the server that keeps journals, after [`crate::message::ToServer::Journal`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToKeeper {
    /// The sender writes the journal of this handler from now on.
    Write {
        /// The handler.
        app: u32,
        /// How many processes have had it, the sender included.
        generation: u64,
        /// None of them has answered a call: if this one fails before its first state is kept, nothing is lost.
        is_new: bool,
    },
    /// The next part of it.
    Frame(JournalFrame),
    /// Send what is kept of the sender's rank. Earlier processes of that rank may write no more.
    Read,
}

/// From the server that keeps journals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromKeeper {
    /// It does not do what was asked.
    Refused {
        /// Why, and what to do.
        reason: String,
    },
    /// In answer to `Write`: the number of the record that it wants next; 0: of this process it has no state, and wants one.
    Ready {
        /// The number.
        next: u64,
    },
    /// All records up to this one are kept.
    Kept {
        /// The number.
        number: u64,
    },
    /// In answer to `Read`: the journal of a handler, whose records follow; none, if no process has answered a call to it.
    Journal {
        /// The handler.
        app: u32,
        /// Of the process that wrote it.
        generation: u64,
    },
    /// The next part of it.
    Frame(JournalFrame),
    /// All was sent.
    End,
}

/// Puts records together from their frames. Memory grows only with bytes that came.
#[derive(Debug)]
pub struct JournalReader {
    most_bytes: u64,
    coming: Option<(u64, JournalRecord, u64)>,
    body: Vec<u8>,
}

impl JournalReader {
    /// Of records with at most so many bytes.
    #[must_use]
    pub fn new(most_bytes: u64) -> Self {
        Self { most_bytes, coming: None, body: Vec::new() }
    }

    /// Takes a frame; a record comes out when it is whole. The error says what is wrong with the sender.
    #[expect(clippy::type_complexity, reason = "a name for it would say no more")]
    pub fn take(
        &mut self,
        frame: JournalFrame,
    ) -> Result<Option<(u64, JournalRecord, Vec<u8>)>, &'static str> {
        match (frame, &self.coming) {
            (JournalFrame::Record { bytes, .. }, None) if bytes > self.most_bytes => {
                return Err("a record of its journal is longer than is kept");
            }
            (JournalFrame::Record { number, record, bytes }, None) => {
                self.coming = Some((number, record, bytes));
            }
            (JournalFrame::Bytes(piece), Some((.., bytes))) => {
                let room = bytes.saturating_sub(self.body.len() as u64);
                if piece.is_empty() || piece.len() > JOURNAL_PIECE_BYTES || piece.len() as u64 > room {
                    return Err("a piece of its journal is empty or too long");
                }
                self.body.extend_from_slice(&piece);
            }
            _ => return Err("a record of its journal is cut short"),
        }
        match self.coming.take() {
            Some((number, record, bytes)) if bytes == self.body.len() as u64 => {
                Ok(Some((number, record, std::mem::take(&mut self.body))))
            }
            coming => {
                self.coming = coming;
                Ok(None)
            }
        }
    }
}

/// The frames of a record, in order.
pub fn journal_frames(
    number: u64,
    record: &JournalRecord,
    body: &[u8],
) -> impl Iterator<Item = JournalFrame> {
    let first = JournalFrame::Record { number, record: record.clone(), bytes: body.len() as u64 };
    let pieces = body.chunks(JOURNAL_PIECE_BYTES);
    std::iter::once(first).chain(pieces.map(|piece| JournalFrame::Bytes(piece.to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{decode, encode};

    fn request() -> JournalRecord {
        let line = JournalLine { worker: Rank(1), life: Incarnation(7), lane: 0 };
        JournalRecord::Request { line, operation: 3, first_open: 2, head: b"hi".to_vec() }
    }

    #[test]
    fn a_record_comes_whole_and_in_order_over_its_frames() {
        let body: Vec<u8> = (0..JOURNAL_PIECE_BYTES + 5).map(|at| at as u8).collect();
        let mut reader = JournalReader::new(u64::MAX);
        let frames: Vec<JournalFrame> = journal_frames(9, &request(), &body).collect();
        assert_eq!(frames.len(), 3);
        let sent = frames.into_iter().map(|frame| {
            let bytes = encode(&ToKeeper::Frame(frame)).unwrap();
            let Ok(ToKeeper::Frame(frame)) = decode(&bytes) else { panic!("another message") };
            reader.take(frame).unwrap()
        });
        let taken: Vec<_> = sent.collect();
        assert_eq!(taken, [None, None, Some((9, request(), body))]);
        let frame = journal_frames(10, &JournalRecord::State, &[]).next().unwrap();
        assert_eq!(reader.take(frame), Ok(Some((10, JournalRecord::State, Vec::new()))));
    }

    #[test]
    fn frames_out_of_order_or_too_long_are_refused() {
        let (mut reader, piece) = (JournalReader::new(100), JournalFrame::Bytes(vec![1, 2]));
        assert!(reader.take(piece.clone()).is_err(), "of no record");
        let record = |bytes| JournalFrame::Record { number: 1, record: request(), bytes };
        assert!(reader.take(record(101)).is_err(), "longer than may be");
        assert_eq!(reader.take(record(1)), Ok(None));
        assert!(reader.take(piece).is_err(), "longer than its record");
        assert!(reader.take(record(2)).is_err(), "in the middle of another one");
        assert!(reader.take(JournalFrame::Bytes(Vec::new())).is_err(), "it would go on for ever");
    }

    #[test]
    fn frozen_bytes_of_a_piece() {
        let bytes = encode(&ToKeeper::Frame(JournalFrame::Bytes(vec![7, 8]))).unwrap();
        assert_eq!(bytes, [1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7, 8]);
    }
}
