//! What an operation sends: registered memory of the client's, or a buffer of the trainer's own.

use super::TensorBuffer;
use fabric::UserBuffer;

/// The payload of a push or an initial value. The operation owns it until it ends, and
/// [`Handle::wait`](super::Handle::wait) returns it.
#[derive(Debug)]
pub enum Source {
    /// Registered memory, sent from where it lies.
    Pool(TensorBuffer),
    /// The trainer's own memory: copied when it is seen for the first time, then sent from where it lies. Keep a
    /// clone to have it also after an error; no clone can be changed until the operation has ended. The last one to go
    /// may be the operation's, or the client's memory of it: what its owner does when it is dropped has to be brief,
    /// and must not wait for an operation.
    User(UserBuffer),
}

impl From<TensorBuffer> for Source {
    fn from(buffer: TensorBuffer) -> Self {
        Self::Pool(buffer)
    }
}

impl From<UserBuffer> for Source {
    fn from(buffer: UserBuffer) -> Self {
        Self::User(buffer)
    }
}
