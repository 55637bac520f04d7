//! What an operation sends, and where its weights land: registered memory of the client's, or a buffer of the trainer's
//! own.

use super::{SharedBuffer, TensorBuffer};
use fabric::UserBuffer;

/// The payload of a push or an initial value. The operation owns it until it ends, and
/// [`Handle::wait`](super::Handle::wait) returns it.
#[derive(Debug)]
pub enum Source {
    /// Registered memory, sent from where it lies.
    Pool(TensorBuffer),
    /// The same, of which others have a part, too.
    Shared(SharedBuffer),
    /// The trainer's own memory: copied when it is seen for the first time, then sent from where it lies. Keep a
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

    pub(super) fn is_of(&self, region: &fabric::Region) -> bool {
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
