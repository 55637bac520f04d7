//! The bodies of requests and replies, as handlers see them and as lanes send them. It must not know who calls, or how an answer
//! gets to its lane.

use super::ahead::Reader;
use crate::engine::CallAnswer;
use fabric::{Borrowed, Exclusive, Pool, Region, Span, lock};
use proto_common::batch::Status;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, OnceLock};

/// The body of a request: dereferences to its bytes.
#[derive(Debug)]
pub struct Body {
    held: Held,
    /// Goes after that: then the lane looks whether somebody reads the body.
    reader: Mutex<Option<Arc<Reader>>>,
}

#[derive(Debug)]
enum Held {
    Plain { bytes: Vec<u8>, from: usize },
    Pool(Exclusive),
    InPlace(Box<InPlace>),
}

/// A body of which one piece is where the worker has it.
#[derive(Debug)]
struct InPlace {
    bytes: u64,
    before: Vec<u8>,
    /// None once the handler does not read it any more.
    piece: Mutex<Option<Arc<Borrowed>>>,
    after: Vec<u8>,
    /// All of it in one piece, once somebody has asked for that, and the memory for it.
    whole: OnceLock<Option<Exclusive>>,
    memory: Pool,
}

impl InPlace {
    /// Nothing if the piece was released before, or there is no memory for a copy of it.
    fn whole(&self) -> &[u8] {
        let whole = self.whole.get_or_init(|| {
            let piece = lock(&self.piece).clone()?;
            let (from, to) = (self.before.len(), self.before.len() + piece.place().1 as usize);
            let mut whole = self.memory.allocate_anyway((to + self.after.len()) as u64).ok()?;
            whole[..from].copy_from_slice(&self.before);
            piece.read(&mut whole[from..to]).ok()?;
            whole[to..].copy_from_slice(&self.after);
            Some(whole)
        });
        whole.as_deref().unwrap_or_default()
    }

    fn part(&self, offset: u64, bytes: u64) -> Option<Part> {
        let end = offset.checked_add(bytes)?;
        let before = self.before.len() as u64;
        let piece = lock(&self.piece);
        let (start, length) = piece.as_ref().map(|piece| piece.place())?;
        let of = |part: &[u8], from: u64| {
            let part = part.get((offset - from) as usize..(end - from) as usize)?;
            Some(Part { start: part.as_ptr(), is_lent: false })
        };
        if end <= before {
            return of(&self.before, 0);
        }
        if offset >= before + length {
            return of(&self.after, before + length);
        }
        if offset >= before && end <= before + length {
            return Some(Part { start: start.wrapping_add((offset - before) as usize), is_lent: true });
        }
        drop(piece);
        of(self.whole(), 0)
    }
}

/// Where a part of a body is.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its first byte.
    pub start: *const u8,
    /// It is in the worker's memory, and valid until [`Body::release`] or the end of the body.
    pub is_lent: bool,
}

impl Body {
    pub(crate) fn plain(bytes: Vec<u8>, from: usize) -> Self {
        Self::of(Held::Plain { bytes, from })
    }

    pub(crate) fn of_pool(buffer: Exclusive) -> Self {
        Self::of(Held::Pool(buffer))
    }

    fn of(held: Held) -> Self {
        Self { held, reader: Mutex::new(None) }
    }

    /// The lane wants to know how long its handler reads it.
    pub(crate) fn with_reader(self, reader: Arc<Reader>) -> Self {
        Self { reader: Mutex::new(Some(reader)), ..self }
    }

    /// One with a piece that the handler reads where the worker has it, between two others.
    pub(crate) fn in_place((before, after): (Vec<u8>, Vec<u8>), piece: Arc<Borrowed>, memory: Pool) -> Self {
        let bytes = before.len() as u64 + piece.place().1 + after.len() as u64;
        let piece = Mutex::new(Some(piece));
        Self::of(Held::InPlace(Box::new(InPlace {
            bytes,
            before,
            piece,
            after,
            whole: OnceLock::new(),
            memory,
        })))
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match &self.held {
            Held::InPlace(body) => body.bytes,
            Held::Plain { .. } | Held::Pool(_) => self.len() as u64,
        }
    }

    /// A part of it, for handlers that [read in place](super::App::reads_in_place): not copied where it is one piece. None if the body
    /// is shorter. The worker gets its memory back when the call is answered; bytes that are still in use then are copied, in such a
    /// way that they stay where they are.
    #[must_use]
    pub fn part(&self, offset: u64, bytes: u64) -> Option<Part> {
        if let Held::InPlace(body) = &self.held {
            return body.part(offset, bytes);
        }
        let end = offset.checked_add(bytes)?;
        let part = self.get(usize::try_from(offset).ok()?..usize::try_from(end).ok()?)?;
        Some(Part { start: part.as_ptr(), is_lent: false })
    }

    /// The handler reads no part of it any more that is lent. If it says so before the call is answered, or some milliseconds after that,
    /// a copy is saved.
    pub fn release(&self) {
        if let Held::InPlace(body) = &self.held {
            let piece = lock(&body.piece).take();
            // Without the lock, because its drop looks whether it was written.
            drop(piece);
        }
        let reader = lock(&self.reader).take();
        drop(reader);
    }

    /// What it was read into, until it is whole.
    pub(crate) fn buffer(&self) -> Option<&Exclusive> {
        match &self.held {
            Held::Plain { .. } | Held::InPlace(_) => None,
            Held::Pool(buffer) => Some(buffer),
        }
    }
}

impl Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.held {
            Held::Plain { bytes, from } => bytes.get(*from..).unwrap_or_default(),
            Held::Pool(buffer) => buffer,
            Held::InPlace(body) => body.whole(),
        }
    }
}

/// Registered memory of the server for a reply's body, which is sent in place.
#[derive(Debug)]
pub struct CallBuffer(Exclusive);

impl CallBuffer {
    pub(crate) fn new(buffer: Exclusive) -> Self {
        Self(buffer)
    }
}

impl Deref for CallBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for CallBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// The memory of a reply's body. A large body is not copied. An RDMA device reads only registered memory, so over such
/// a device everything except [`ReplyBody::Buffer`] is copied into registered memory.
#[derive(Debug)]
pub enum ReplyBody {
    /// Plain bytes.
    Bytes(Vec<u8>),
    /// Registered memory.
    Buffer(CallBuffer),
    /// Memory of another owner ([`Region::adopt`]). It is released when the worker has the reply, or later.
    Adopted(Region),
}

impl ReplyBody {
    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Buffer(buffer) => buffer.len(),
            Self::Adopted(region) => region.len(),
        }
    }

    /// Has it none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Vec<u8>> for ReplyBody {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<&[u8]> for ReplyBody {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.to_vec())
    }
}

impl From<CallBuffer> for ReplyBody {
    fn from(buffer: CallBuffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl From<Region> for ReplyBody {
    fn from(region: Region) -> Self {
        Self::Adopted(region)
    }
}

/// A handler's answer, for its lane.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The lane's alone.
    Own(AnswerBody),
    /// The handler's journal takes it over while the lane keeps it.
    Shared(Arc<AnswerBody>),
}

impl Deref for Answer {
    type Target = AnswerBody;

    fn deref(&self) -> &AnswerBody {
        match self {
            Self::Own(answer) => answer,
            Self::Shared(answer) => answer,
        }
    }
}

/// A reply on its way: short, or written from its own memory.
#[derive(Debug)]
pub(crate) struct AnswerBody {
    head: Vec<u8>,
    body: Sent,
}

#[derive(Debug)]
enum Sent {
    Inline(Vec<u8>),
    Pool(Exclusive),
    Elsewhere(Region),
}

impl AnswerBody {
    pub(crate) fn new(head: &[u8], body: ReplyBody) -> Self {
        // As the engine decides it: what does not travel with its result is kept as it is to be written.
        let is_short = answer_of(head, body.len() as u64).is_inline();
        let body = match body {
            ReplyBody::Bytes(bytes) if is_short => Sent::Inline(bytes),
            ReplyBody::Bytes(bytes) => Sent::Elsewhere(Region::of_bytes(bytes)),
            ReplyBody::Buffer(buffer) if is_short => Sent::Inline(buffer.to_vec()),
            ReplyBody::Buffer(buffer) => Sent::Pool(buffer.0),
            ReplyBody::Adopted(region) if is_short => Sent::Inline(region.contents().into_owned()),
            ReplyBody::Adopted(region) => Sent::Elsewhere(region),
        };
        Self { head: head.to_vec(), body }
    }

    /// A reply whose body, so many bytes, is where the worker wants it.
    pub(crate) fn placed(head: &[u8], body_bytes: u64) -> (Self, CallAnswer) {
        (Self { head: head.to_vec(), body: Sent::Inline(Vec::new()) }, answer_of(head, body_bytes))
    }

    /// Head and body, copied.
    pub(crate) fn copied(&self) -> (Vec<u8>, Vec<u8>) {
        let body = match &self.body {
            Sent::Inline(bytes) => bytes.clone(),
            Sent::Pool(buffer) => buffer.to_vec(),
            Sent::Elsewhere(region) => region.contents().into_owned(),
        };
        (self.head.clone(), body)
    }

    fn bytes(&self) -> u64 {
        match &self.body {
            Sent::Inline(bytes) => bytes.len() as u64,
            Sent::Pool(buffer) => buffer.len() as u64,
            Sent::Elsewhere(region) => region.len() as u64,
        }
    }

    /// What the engine is to know of it.
    pub(crate) fn answer(&self) -> CallAnswer {
        answer_of(&self.head, self.bytes())
    }

    /// What of it travels with its result: head, and body.
    pub(crate) fn prefix(&self) -> (&[u8], &[u8]) {
        let body = match &self.body {
            Sent::Inline(bytes) => bytes.as_slice(),
            Sent::Pool(_) | Sent::Elsewhere(_) => &[],
        };
        (&self.head, body)
    }

    /// Where its body lies, if that is written by itself.
    pub(crate) fn span(&self) -> Option<Span> {
        match &self.body {
            Sent::Inline(_) => None,
            Sent::Pool(buffer) => Some(buffer.span()),
            Sent::Elsewhere(region) => Some(region.all()),
        }
    }
}

fn answer_of(head: &[u8], body_bytes: u64) -> CallAnswer {
    // A head's length is checked where it is sent.
    CallAnswer { status: Status::Done, head_bytes: head.len() as u32, body_bytes }
}
