//! Buffers that trainers compute in: registered memory, handed to an operation and back, or memory of their own; what operations send and
//! where weights land; and the types of elements.

use fabric::{Exclusive, OutOfBounds, PeerWritable, Region, Span, UserBuffer};
use half::{bf16, f16};
use proto_common::element::Dtype;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A type of elements: f32, f64, [`half::f16`] and [`half::bf16`], which servers sum in f32 and keep in f32, and
/// integers, which they sum in i64.
pub trait Element: Copy + FromBytes + IntoBytes + Immutable + sealed::Sealed + 'static {
    /// Its name in declarations.
    const DTYPE: Dtype;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($(#[$_about:meta])* $dtype:ident = $_wire:literal, $_numpy:literal, $_bytes:literal: $_arithmetic:ident($element:ident);)*) => {
        $(impl sealed::Sealed for $element {}
        impl Element for $element {
            const DTYPE: Dtype = Dtype::$dtype;
        })*
    };
}

proto_common::element_types!(elements);

/// An exclusive, 64-byte aligned piece of the client's registered memory. It is moved into an operation and returned
/// by [`Handle::wait`](super::Handle::wait). Meanwhile only the server with the grant can write it.
#[derive(Debug)]
pub struct TensorBuffer(Exclusive);

impl TensorBuffer {
    pub(crate) fn new(buffer: Exclusive) -> Self {
        Self(buffer)
    }

    pub(super) fn is_of(&self, region: &Region) -> bool {
        self.0.span().region().id() == region.id()
    }

    pub(super) fn span(&self) -> Span {
        self.0.span()
    }

    pub(crate) fn into_inner(self) -> Exclusive {
        self.0
    }

    /// Copies bytes to its beginning, as many as fit. For memory that was never used this is faster than writing
    /// through a slice.
    pub fn copy_in(&mut self, from: &[u8]) {
        self.0.copy_in(from);
    }

    /// Gives up exclusive access: for other languages, where several arrays may refer to the memory.
    #[must_use]
    pub fn share(self) -> SharedBuffer {
        let lent = self.0.lend();
        SharedBuffer { span: lent.all(), buffer: Arc::new(lent) }
    }

    /// The bytes as elements. Trailing bytes that are no whole element are left out.
    #[must_use]
    pub fn as_slice<T: Element>(&self) -> &[T] {
        let elements = self.0.len() / size_of::<T>();
        <[T]>::ref_from_prefix_with_elems(&self.0, elements).map_or(&[], |(elements, _)| elements)
    }

    /// The bytes as mutable elements.
    #[must_use]
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        let elements = self.0.len() / size_of::<T>();
        <[T]>::mut_from_prefix_with_elems(&mut self.0, elements).map_or(&mut [], |(elements, _)| elements)
    }

    /// The bytes as f32.
    #[must_use]
    pub fn as_f32(&self) -> &[f32] {
        self.as_slice()
    }

    /// The bytes as mutable f32.
    #[must_use]
    pub fn as_f32_mut(&mut self) -> &mut [f32] {
        self.as_mut_slice()
    }
}

/// Registered memory, or a part of it, with several owners. Clones share it, and an operation owns a clone until it
/// ends. Rust code never reads or writes it through a reference, so other code may do either at any time. If it is
/// written while it is sent, the sent bytes are a mixture. One buffer may be an operation's gradient and its weights,
/// because weights arrive only after the gradient has been read.
#[derive(Clone, Debug)]
pub struct SharedBuffer {
    buffer: Arc<PeerWritable>,
    span: Span,
}

impl SharedBuffer {
    /// A part of it.
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<Self, OutOfBounds> {
        Ok(Self { buffer: self.buffer.clone(), span: self.span.slice(offset, bytes)? })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.span.len()
    }

    pub(super) fn is_of(&self, region: &Region) -> bool {
        self.span.region().id() == region.id()
    }

    pub(super) fn span(&self) -> Span {
        self.span.clone()
    }

    /// Copies all of it out.
    pub(super) fn read(&self, into: &mut [u8]) -> Result<(), OutOfBounds> {
        self.buffer.read(self.span.offset() - self.buffer.all().offset(), into)
    }

    /// What keeps the memory.
    pub(super) fn into_inner(self) -> Arc<PeerWritable> {
        self.buffer
    }
}

/// Registered memory of a client that its program has as well. It is a call's until that has ended: until then nobody may write it, nor
/// read it if a reply is to land there.
#[derive(Debug)]
pub struct LentMemory {
    span: Span,
    /// The same memory, adopted from the program.
    memory: Region,
}

impl LentMemory {
    pub(super) fn new(span: Span, memory: Region) -> Self {
        Self { span, memory }
    }

    pub(super) fn span(&self) -> Span {
        self.span.clone()
    }

    pub(super) fn is_of(&self, region: &Region) -> bool {
        self.span.region().id() == region.id()
    }

    /// The program's side of it, to be copied.
    pub(super) fn memory(&self) -> &Region {
        &self.memory
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.span.len()
    }
}

/// Where the body of a reply is to land.
#[derive(Debug)]
pub enum ReplyInto {
    /// It is returned in the reply.
    Buffer(TensorBuffer),
    /// It stays there.
    Lent(LentMemory),
}

impl ReplyInto {
    pub(super) fn is_of(&self, region: &Region) -> bool {
        match self {
            Self::Buffer(buffer) => buffer.is_of(region),
            Self::Lent(memory) => memory.is_of(region),
        }
    }
}

impl ReplyInto {
    /// The room for a reply of so many bytes, by its owner. A buffer that is too short is none.
    pub(super) fn split(self, bytes: u64) -> (Option<Exclusive>, Option<LentMemory>) {
        match self {
            Self::Buffer(buffer) => ((buffer.len() as u64 >= bytes).then(|| buffer.into_inner()), None),
            Self::Lent(memory) => (None, Some(memory)),
        }
    }
}

impl From<TensorBuffer> for ReplyInto {
    fn from(buffer: TensorBuffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl Deref for TensorBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for TensorBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Copies plain elements into registered memory.
pub(super) fn copy_in<T: Element>(buffer: &mut [u8], values: &[T]) {
    let bytes = values.as_bytes();
    buffer[..bytes.len()].copy_from_slice(bytes);
}

/// A piece of a request's body, owned until the call has ended.
#[derive(Debug)]
pub enum Piece {
    /// Registered memory of this client. A server reads a large piece in place.
    Buffer(TensorBuffer),
    /// Plain bytes, copied once into registered memory.
    Bytes(Vec<u8>),
    /// Memory of another owner ([`Region::adopt`]), copied once into registered memory.
    Adopted(Region),
    /// Registered memory of this client that stays with its owner. A server reads a large piece in place.
    Lent(LentMemory),
}

impl Piece {
    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::Bytes(bytes) => bytes.len(),
            Self::Adopted(region) => region.len(),
            Self::Lent(memory) => memory.bytes() as usize,
        }
    }

    /// Has it none?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The payload of a push or an initial value. The operation owns it until it ends, and
/// [`Handle::wait`](super::Handle::wait) returns it.
#[derive(Debug)]
pub enum Source {
    /// Registered memory, sent in place.
    Pool(TensorBuffer),
    /// The same, of which others have a part, too.
    Shared(SharedBuffer),
    /// The trainer's own memory: copied when it is seen for the first time, then sent in place. Keep a
    /// clone to have it also after an error; no clone can be changed until the operation has ended. The last one to go
    /// may be the operation's, or the client's memory of it: what its owner does when it is dropped has to be brief,
    /// and must not wait for an operation.
    User(UserBuffer),
}

/// Where weights land. The operation owns it until it ends.
#[derive(Debug)]
pub enum Target {
    /// Registered memory, which [`Handle::wait`](super::Handle::wait) returns.
    Pool(TensorBuffer),
    /// The same, of which others have a part, too.
    Shared(SharedBuffer),
}

impl Target {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Pool(buffer) => buffer.len() as u64,
            Self::Shared(buffer) => buffer.bytes(),
        }
    }

    pub(super) fn is_of(&self, region: &Region) -> bool {
        match self {
            Self::Pool(buffer) => buffer.is_of(region),
            Self::Shared(buffer) => buffer.is_of(region),
        }
    }
}

macro_rules! is_a {
    ($($buffer:ty, $of:ident::$kind:ident;)*) => {$(
        impl From<$buffer> for $of {
            fn from(buffer: $buffer) -> Self {
                Self::$kind(buffer)
            }
        }
    )*};
}

is_a! {
    TensorBuffer, Source::Pool;
    SharedBuffer, Source::Shared;
    UserBuffer, Source::User;
    TensorBuffer, Target::Pool;
    SharedBuffer, Target::Shared;
}
