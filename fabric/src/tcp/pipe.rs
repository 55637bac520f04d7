//! What is between the frames of a channel and its socket: nothing, or records that are sealed. It owns no state of frames.

use super::seal::Sealed;
use super::sys::{self, IoRange};
use crate::error::FabricError;
use crate::random::Secret;
use rustix::io::Errno;
use socket2::Socket;
use std::os::fd::BorrowedFd;

/// See the module.
#[derive(Debug)]
pub(crate) enum Pipe {
    /// Frames go as they are, straight from and to registered memory.
    Plain,
    /// Encrypted, with a copy on each side.
    Sealed(Box<Sealed>),
}

impl Pipe {
    /// For a channel of an offer whose frames are sealed: its secret, the channel, and whether this side has connected it. What a
    /// unix socket carries does not leave the host, nor its user.
    pub(super) fn of(socket: &Socket, sealed: Option<(&Secret, u16, bool)>) -> Result<Self, FabricError> {
        match sealed.filter(|_| !sys::is_unix(socket)) {
            None => Ok(Self::Plain),
            Some((secret, index, connecting)) => {
                Ok(Self::Sealed(Box::new(Sealed::new(secret, index, connecting)?)))
            }
        }
    }

    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain)
    }

    /// Does the kernel lack something that was taken?
    pub(super) fn has_unsent(&self) -> bool {
        match self {
            Self::Plain => false,
            Self::Sealed(sealed) => sealed.has_unsent(),
        }
    }

    /// Takes as much of the ranges as goes.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, ranges: &[IoRange<'_>]) -> Result<usize, Errno> {
        match self {
            Self::Plain => sys::send(socket, ranges),
            Self::Sealed(sealed) => sealed.send(socket, ranges),
        }
    }

    /// Gives the kernel what it lacks.
    pub(super) fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        match self {
            Self::Plain => Ok(()),
            Self::Sealed(sealed) => sealed.flush(socket),
        }
    }

    /// Fills the ranges with what has come.
    pub(super) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        ranges: &mut [IoRange<'_>],
    ) -> Result<usize, Errno> {
        match self {
            Self::Plain => sys::receive(socket, ranges),
            Self::Sealed(sealed) => sealed.receive(socket, ranges),
        }
    }

    /// Fills private memory with what has come.
    pub(super) fn receive_private(
        &mut self,
        socket: BorrowedFd<'_>,
        into: &mut [u8],
    ) -> Result<usize, Errno> {
        match self {
            Self::Plain => sys::receive_private(socket, into),
            Self::Sealed(sealed) => sealed.receive(socket, &[IoRange::of_slice_mut(into)]),
        }
    }
}

/// What carries the frames of a channel, for people.
pub(crate) fn carrier(socket: &Socket, pipe: &Pipe) -> &'static str {
    match (sys::is_unix(socket), pipe.is_plain()) {
        (true, _) => "unix socket",
        (false, true) => "tcp socket",
        (false, false) => "tcp socket, encrypted",
    }
}
