//! How the bytes of calls move: frames are copied out of slots, bodies are read out of workers' memory, and replies are written back.
//! Which of that happens, and when, is the engine's to decide.

use super::calls::{BorrowedBody, CallMemory, Lent};
use super::error::LaneError;
use super::lane::DataLane;
use super::link::Post;
use super::moving::{Move, Moves};
use crate::app::{Answer, AnswerBody, Body, Handling, ReplyMemory};
use crate::engine::{CallAnswer, CallTaken, RestoredLine, Source};
use fabric::{CompletionQueue, RemoteKey, RemoteSpan, Waker};
use proto_common::batch::{Landing, Status};
use proto_common::call::{Frame, PieceAt};
use proto_common::ids::Rank;
use proto_common::table::table_of;
use std::sync::Arc;

/// A handler reads pieces of at least this length in place. The copy of a shorter one costs less than to find out whether the handler
/// has written it.
const BORROWED_BYTES_MIN: u64 = 64 << 10;

impl<Q: CompletionQueue> DataLane<Q> {
    /// Bytes of requests and replies that this lane keeps at most.
    pub fn limit_calls(&mut self, bytes: u64) -> Result<(), LaneError> {
        self.engine.limit_calls(bytes);
        self.calls = CallMemory::new(bytes, self.config.space)?;
        Ok(())
    }

    /// Requests that handlers could read in workers' memory.
    pub(super) fn lent(&self) -> Lent {
        self.calls.lent()
    }

    /// Where bodies and replies lie.
    pub(super) fn reply_memory(&self) -> &ReplyMemory {
        &self.calls.memory
    }

    /// Replies are sent from memory that is registered once, because a device would register other memory for each.
    pub fn register_replies(&mut self) {
        self.calls.memory.is_registered = true;
    }

    /// Bytes of rows that this lane's tables keep at most.
    pub fn limit_tables(&mut self, bytes: u64) {
        self.tables.limit(bytes);
    }

    /// A handler came or went.
    pub(super) fn set_handler(&mut self, app: u32, handling: Handling) {
        self.calls.set_handler(app, handling);
        self.engine.set_handler(app, handling != Handling::Nobody);
    }

    /// This process has taken the place of a failed one.
    pub(super) fn take_over(&mut self) {
        self.engine.take_over();
    }

    /// What a handler's journal has of its calls over this lane: each line with the replies of its answered calls. Returns each line's
    /// calls as they are numbered here.
    pub(super) fn restore_calls(
        &mut self,
        app: u32,
        lines: Vec<(RestoredLine, Vec<Answer>)>,
        now_ms: u64,
    ) -> Vec<Vec<u64>> {
        let (lines, replies): (Vec<_>, Vec<_>) = lines.into_iter().unzip();
        let all = self.engine.restore_calls(app, &lines, now_ms);
        for ((line, replies), ids) in lines.iter().zip(replies).zip(&all) {
            let mut replies = replies.into_iter();
            for ((_, answer), id) in line.calls.iter().zip(ids) {
                let reply = answer.and_then(|_| replies.next());
                self.calls.hold_restored(*id, (line.worker, app), reply);
            }
        }
        all
    }

    /// The journal of a handler is lost, and with it its state.
    pub(super) fn lose_calls(&mut self, app: u32) {
        self.engine.lose_calls(app, &mut self.commands);
        self.execute();
    }

    /// A call is answered; the body of its reply, so many bytes, is where the worker wants it.
    pub(super) fn note_placed(&mut self, call: u64, head: &[u8], body_bytes: u64) {
        let (reply, answer) = AnswerBody::placed(head, body_bytes);
        // No handler reads it.
        if let Ok(true) = self.calls.answered(call, Some(Answer::Own(reply))) {
            self.engine.call_placed(call, answer, &mut self.commands);
        }
    }

    /// A handler has answered a call, or let go of it. What follows is executed by the caller.
    pub(super) fn note_answer(&mut self, call: u64, reply: Option<Answer>) {
        match self.calls.is_lent(call) {
            true => self.calls.wait_for_release(call, reply),
            false => self.answer(call, reply),
        }
    }

    /// Answers whose handlers have released their calls, or read on for so long that they get a copy.
    pub(super) fn answer_released(&mut self, now_ms: u64) {
        while let Some((call, reply)) = self.calls.next_released(now_ms) {
            self.answer(call, reply);
        }
    }

    /// Do answers wait for handlers?
    pub(super) fn has_unreleased(&self) -> bool {
        self.calls.has_unreleased()
    }

    fn answer(&mut self, call: u64, reply: Option<Answer>) {
        let none = CallAnswer { status: Status::NoReply, head_bytes: 0, body_bytes: 0 };
        let answer = reply.as_ref().map_or(none, |reply| reply.answer());
        match self.calls.answered(call, reply) {
            Ok(true) => self.engine.call_answered(call, answer, &mut self.commands),
            Ok(false) => {}
            Err(error) => _ = self.failure.get_or_insert(error.into()),
        }
    }

    /// Copies a call's frame out of its slot. What is not in it is read when the handler is about to need it.
    pub(super) fn take_call(&mut self, taken: &CallTaken) -> Result<(), LaneError> {
        let Source::Slot { slot, offset } = taken.from else { return Ok(()) };
        let mut bytes = vec![0; taken.frame_bytes as usize];
        self.inbox.memory().read(self.inbox.start(slot) + offset, &mut bytes)?;
        let Ok(frame) = Frame::read(&bytes, taken.bytes) else {
            self.expel(taken.peer, "the frame of its call is cut short, or says more than it may");
            return Ok(());
        };
        let head = frame.head.to_vec();
        let is_whole = frame.pieces().all(|piece| matches!(piece, PieceAt::Frame { .. }));
        if is_whole || taken.bytes == 0 {
            let from = bytes.len() - taken.bytes as usize;
            self.calls.hold(taken, head, (Some(Body::plain(bytes, from)), None));
        } else if let Some(lies) = self.lies(taken, &frame) {
            self.calls.hold(taken, head, (None, Some(lies)));
        } else {
            self.calls.hold(taken, head, (None, None));
            self.calls.wait(bytes, taken);
            return self.read_ahead();
        }
        self.engine.call_arrived(taken.call, &mut self.commands);
        Ok(())
    }

    /// Sets the waker of the thread that reads bodies when a handler has taken one.
    pub(super) fn wake_by(&self, waker: Waker) {
        self.calls.ahead.wake_by(waker);
    }

    /// Starts to read the bodies that may be read now.
    pub(super) fn read_ahead(&mut self) -> Result<(), LaneError> {
        while let Some((bytes, taken)) = self.calls.next_to_read() {
            self.begin_body(&bytes, &taken)?;
        }
        Ok(())
    }

    /// Starts to read a body out of the worker's memory; parts of it are in the frame.
    fn begin_body(&mut self, bytes: &[u8], taken: &CallTaken) -> Result<(), LaneError> {
        let CallTaken { call, peer, app, .. } = *taken;
        // It was read before.
        let Ok(frame) = Frame::read(bytes, taken.bytes) else { return Ok(()) };
        let borrowed = self.borrowed(taken, &frame, bytes);
        self.calls.ahead.note((peer, app), borrowed.is_some());
        if let Some(body) = borrowed {
            self.calls.lend(call, body);
            self.engine.call_arrived(call, &mut self.commands);
            return Ok(());
        }
        let mut buffer = match self.calls.memory.allocate(taken.bytes) {
            Ok(buffer) => buffer,
            Err(error) => {
                tracing::error!(worker = peer.0, app, %error, "no memory for the body of a call");
                self.engine.call_failed(call, &mut self.commands);
                return Ok(());
            }
        };
        let (mut at, mut unread_bytes) = (0, 0);
        for piece in frame.pieces() {
            match piece {
                PieceAt::Frame { offset, bytes: length } => {
                    let to = at as usize;
                    buffer[to..to + length].copy_from_slice(&bytes[offset..offset + length]);
                }
                PieceAt::Worker { offset, bytes } => {
                    let from = RemoteSpan { key: RemoteKey(taken.region), offset };
                    self.queue_read(peer, (call, at), from, bytes);
                    unread_bytes += bytes;
                }
            }
            at += piece.bytes();
        }
        self.calls.begin(call, Body::of_pool(buffer), unread_bytes);
        if unread_bytes == 0 {
            self.engine.call_arrived(call, &mut self.commands);
        }
        self.read_on(peer)
    }

    /// Where a request about rows lies that is read there: over a channel whose peer's memory can be, as one piece.
    fn lies(&self, taken: &CallTaken, frame: &Frame<'_>) -> Option<(RemoteSpan, u64)> {
        let link = self.links.get(taken.peer.0 as usize)?.as_ref()?;
        let mut pieces = frame.pieces();
        match (pieces.next(), pieces.next()) {
            (Some(PieceAt::Worker { offset, bytes }), None)
                if link.in_place && table_of(taken.app).is_some() =>
            {
                Some((RemoteSpan { key: RemoteKey(taken.region), offset }, bytes))
            }
            _ => None,
        }
    }

    /// A body whose handler reads its long piece where the worker has it. None if all of it is to be copied.
    fn borrowed(&mut self, taken: &CallTaken, frame: &Frame<'_>, bytes: &[u8]) -> Option<BorrowedBody> {
        let Self { queue, links, calls, .. } = self;
        let link = links.get_mut(taken.peer.0 as usize)?.as_mut()?;
        if !link.in_place || !calls.lends_to(taken.app) {
            return None;
        }
        let (mut before, mut after, mut place) = (Vec::new(), Vec::new(), None);
        for piece in frame.pieces() {
            match piece {
                PieceAt::Frame { offset, bytes: length } => {
                    let part = if place.is_none() { &mut before } else { &mut after };
                    part.extend_from_slice(&bytes[offset..offset + length]);
                }
                PieceAt::Worker { offset, bytes } if place.is_none() && bytes >= BORROWED_BYTES_MIN => {
                    place = Some((RemoteSpan { key: RemoteKey(taken.region), offset }, bytes));
                }
                PieceAt::Worker { .. } => return None,
            }
        }
        let (at, bytes) = place?;
        // What is wrong with it is said where it is read.
        let piece = queue.borrow(link.channel, at, bytes).ok()??;
        if !link.reads {
            queue.begin_reads(link.channel).ok()?;
            link.reads = true;
        }
        Some(BorrowedBody { before, piece: Arc::new(piece), after })
    }

    fn moves(&mut self, peer: Rank) -> Option<&mut Moves> {
        Some(&mut self.links.get_mut(peer.0 as usize)?.as_mut()?.moves)
    }

    /// A piece of a body is to be read out of a worker's memory, behind those before it.
    pub(super) fn queue_read(&mut self, peer: Rank, (call, at): (u64, u64), remote: RemoteSpan, bytes: u64) {
        if let Some(moves) = self.moves(peer) {
            moves.reads.push_back(Move { call, at, remote, left: bytes });
        }
    }

    /// Starts as many reads as may be.
    pub(super) fn read_on(&mut self, peer: Rank) -> Result<(), LaneError> {
        loop {
            let Self { links, calls, .. } = self;
            let Some(Some(link)) = links.get_mut(peer.0 as usize) else { return Ok(()) };
            let Moves { reads, reading_bytes, .. } = &mut link.moves;
            let next = Moves::next(reads, reading_bytes, |call| calls.is_reading(call));
            let Some((piece, _)) = next else { return Ok(()) };
            let Move { call, at, remote: from, left: bytes } = piece;
            let Some(span) = self.calls.body_span(call, at, bytes) else { continue };
            if let Err(error) = self.queue.prepare(&span?) {
                tracing::error!(worker = peer.0, call, %error, "no memory for the body of a call");
                self.moves(peer).into_iter().for_each(|moves| moves.reading_bytes -= bytes);
                self.engine.call_failed(call, &mut self.commands);
                self.calls.drop_call(call)?;
                continue;
            }
            self.calls.reading(call);
            self.post(peer, Post::CallRead { call, at, bytes, from })?;
        }
    }

    /// Part of a body is there.
    pub(super) fn call_read(&mut self, peer: Rank, call: u64, bytes: u64) -> Result<(), LaneError> {
        if let Some(moves) = self.moves(peer) {
            moves.reading_bytes = moves.reading_bytes.saturating_sub(bytes);
        }
        if self.calls.read(call, bytes) {
            self.engine.call_arrived(call, &mut self.commands);
        }
        self.read_on(peer)
    }

    /// A reply goes to where its call granted room, behind those before it.
    pub(super) fn land_call(&mut self, peer: Rank, call: u64, landing: Landing) -> Result<(), LaneError> {
        let remote = RemoteSpan { key: RemoteKey(landing.region), offset: landing.offset };
        if let Some(moves) = self.moves(peer) {
            moves.writes.push_back(Move { call, at: 0, remote, left: landing.bytes });
        }
        self.write_on(peer)
    }

    /// Starts as many writes as may be. When the last of a reply is posted its result may follow: channels keep order.
    fn write_on(&mut self, peer: Rank) -> Result<(), LaneError> {
        loop {
            let Self { links, calls, .. } = self;
            let Some(Some(link)) = links.get_mut(peer.0 as usize) else { return Ok(()) };
            let Moves { writes, writing_bytes, .. } = &mut link.moves;
            let next = Moves::next(writes, writing_bytes, |call| calls.is_sending(call));
            let Some((Move { call, at, remote, left: bytes }, is_last)) = next else { return Ok(()) };
            let Some(span) = self.calls.reply_span(call) else { continue };
            if let Err(error) = self.queue.prepare(&span.slice(at, bytes)?) {
                tracing::error!(worker = peer.0, call, %error, "cannot send a reply");
                self.moves(peer).into_iter().for_each(|moves| moves.writing_bytes -= bytes);
                self.engine.call_landed(call, false, &mut self.commands);
                self.calls.drop_call(call)?;
                continue;
            }
            self.calls.landing(call);
            self.moves(peer).into_iter().for_each(|moves| moves.writing.push_back(bytes));
            let landing = Landing { region: remote.key.0, offset: remote.offset, bytes };
            let is_flood = self.moves(peer).is_some_and(|moves| moves.is_flood(bytes));
            if is_flood {
                self.queue.stream_writes(true);
            }
            self.post(peer, Post::CallLand { call, at, landing })?;
            if is_flood {
                self.note_stored();
            }
            if is_last {
                self.engine.call_landed(call, true, &mut self.commands);
            }
        }
    }

    /// Part of a reply is written.
    pub(super) fn call_written(&mut self, peer: Rank) -> Result<(), LaneError> {
        if let Some(moves) = self.moves(peer) {
            let bytes = moves.writing.pop_front().unwrap_or(0);
            moves.writing_bytes = moves.writing_bytes.saturating_sub(bytes);
        }
        self.write_on(peer)
    }
}
