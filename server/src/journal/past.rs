//! What a process that takes the place of a failed server finds of a handler: its journal, and from that the calls that each lane must
//! know, the state to load, and the requests to handle again.

use super::log::{Log, Noted, Record};
use crate::app::{Answer, AnswerBody, Body, Call, Origin, Reply, ReplyMemory};
use crate::engine::RestoredLine;
use crate::runtime::Answers;
use proto_common::call::{CALL_INLINE_BYTES_MAX, call_id};
use proto_common::ids::{Incarnation, Rank};
use proto_common::message::{JournalLine, JournalRecord};
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(crate) generation: u64,
    /// The server that has it.
    pub(crate) keeper: Option<(Rank, Incarnation)>,
    /// The number of the last record.
    pub(crate) last: u64,
    pub(crate) records: Vec<Record>,
}

/// One worker's calls, as the journal has them.
#[derive(Debug, Default)]
struct Line {
    next: u64,
    first_open: u64,
    replies: BTreeMap<u64, Arc<AnswerBody>>,
    requests: Vec<u64>,
}

/// One lane's part of a journal.
#[derive(Debug, Default)]
pub(crate) struct Placed {
    /// Lines, with the replies of their answered calls.
    pub(crate) lines: Vec<(RestoredLine, Vec<Answer>)>,
    /// Each line's calls.
    pub(crate) calls: Vec<Vec<(JournalLine, u64)>>,
}

/// Where lanes have put calls.
pub(crate) type Places = BTreeMap<(JournalLine, u64), (Answers, u64)>;

/// The body as handlers get it from workers: a large one is aligned.
fn aligned(bytes: Vec<u8>, memory: &ReplyMemory) -> Body {
    let is_large = bytes.len() as u64 > CALL_INLINE_BYTES_MAX;
    match is_large.then(|| memory.allocate(bytes.len() as u64)) {
        Some(Ok(mut buffer)) => {
            buffer.copy_from_slice(&bytes);
            Body::of_pool(buffer)
        }
        Some(Err(_)) | None => Body::plain(bytes, 0),
    }
}

impl Past {
    fn lines(&mut self) -> BTreeMap<JournalLine, Line> {
        let mut lines: BTreeMap<JournalLine, Line> = BTreeMap::new();
        for Record { record, body } in &mut self.records {
            match record {
                JournalRecord::Line { line, next, first_open } => {
                    let known = lines.entry(*line).or_default();
                    (known.next, known.first_open) = (*next, *first_open);
                }
                JournalRecord::Reply { line, operation, head } => {
                    let reply = AnswerBody::new(head, std::mem::take(body).into());
                    lines.entry(*line).or_default().replies.insert(*operation, Arc::new(reply));
                }
                JournalRecord::State => {}
                JournalRecord::Request { line, operation, first_open, .. } => {
                    let known = lines.entry(*line).or_default();
                    known.next = known.next.max(operation.saturating_add(1));
                    known.first_open = known.first_open.max(*first_open);
                    known.requests.push(*operation);
                }
            }
        }
        lines
    }

    /// What lanes must know of its calls, by lane. The log knows the lines and replies from now on.
    pub(crate) fn place(&mut self, lanes: usize, log: &Log) -> Vec<Placed> {
        let mut all: Vec<Placed> = (0..lanes).map(|_| Placed::default()).collect();
        for (line, Line { next, first_open, replies, requests }) in self.lines() {
            log.line(line, (next, first_open));
            let mut calls: BTreeMap<u64, Option<Arc<AnswerBody>>> =
                requests.into_iter().map(|operation| (operation, None)).collect();
            calls.extend(replies.into_iter().map(|(operation, reply)| (operation, Some(reply))));
            let open = calls.split_off(&first_open);
            for (operation, reply) in &open {
                reply.iter().for_each(|reply| log.reply(line, *operation, reply));
            }
            let JournalLine { worker, life, lane } = line;
            let named = call_id(log.app, log.own);
            let known =
                open.iter().map(|(operation, reply)| (*operation, reply.as_ref().map(|r| r.answer())));
            let restored =
                RestoredLine { worker, life, named, next, acked: first_open, calls: known.collect() };
            let replies = open.into_values().flatten().map(Answer::Shared).collect();
            if let Some(placed) = all.get_mut(usize::from(lane)) {
                placed.calls.push(restored.calls.iter().map(|(operation, _)| (line, *operation)).collect());
                placed.lines.push((restored, replies));
            }
        }
        all
    }

    /// The state to load.
    pub(crate) fn state(&mut self) -> Vec<u8> {
        let mut states = self.records.iter_mut().filter(|record| record.record == JournalRecord::State);
        states.next().map(|state| std::mem::take(&mut state.body)).unwrap_or_default()
    }

    /// The requests to handle again, in order.
    pub(crate) fn requests<'a>(
        self,
        log: &'a Arc<Log>,
        mut places: Places,
        memory: &'a ReplyMemory,
    ) -> impl Iterator<Item = Call> + 'a {
        self.records.into_iter().filter_map(move |Record { record, body }| {
            let JournalRecord::Request { line, operation, first_open, head } = record else { return None };
            let noted: Noted = log.note(line, operation, first_open);
            let lane = places.remove(&(line, operation));
            let reply = Reply::again(noted, lane, memory.clone());
            let JournalLine { worker: from, life, lane } = line;
            let origin = Origin { lane, life, operation, first_open };
            Some(Call { from, app: log.app, head, body: aligned(body, memory), reply, origin })
        })
    }
}
