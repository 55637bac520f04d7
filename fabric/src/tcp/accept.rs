//! The accepting half of a channel's set-up: the listeners of one offer, a TCP port and perhaps a unix socket,
//! that wait for the preambles of the right peer while strangers, liars and silent connections are dropped. It
//! knows nothing of frames.

use super::invite::{Offer, PREAMBLE_BYTES, decode_preamble};
use super::pace::{self, SystemChoice};
use super::pipe::Pipe;
use super::{local, sys};
use crate::device::{ChannelSetup, PendingOffer, SetupKind};
use crate::error::FabricError;
use crate::random::Secret;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::Socket;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Connections whose preamble is not complete yet; with one more, the oldest goes. The right peer sends its
/// preamble at once, so it is the silent ones that grow old.
const HALF_OPEN_MAX: usize = 64;
/// New connections of a listener taken between two looks at the clock and the others.
const ACCEPTS_PER_ROUND: usize = 64;

/// An offer that waits for its peer.
#[derive(Debug)]
pub(super) struct TcpPending {
    pub(super) tcp: Socket,
    pub(super) address: SocketAddr,
    /// What its connections from other hosts get back.
    pub(super) choice: Option<SystemChoice>,
    pub(super) unix: Option<Socket>,
    pub(super) buffer_bytes: Option<usize>,
    pub(super) offer: Offer,
}

#[derive(Debug)]
struct HalfOpen {
    socket: Socket,
    bytes: [u8; PREAMBLE_BYTES],
    have: usize,
}

impl HalfOpen {
    /// Reads what is there, never past the preamble: what follows belongs to the channel. Which channel that is, once all of it
    /// has come, or why it is refused.
    fn advance(&mut self, secret: &Secret) -> Result<Option<u16>, &'static str> {
        while self.have < PREAMBLE_BYTES {
            match self.socket.read(&mut self.bytes[self.have..]) {
                Ok(0) => return Err("it closed the connection before its first message"),
                Ok(bytes) => self.have += bytes,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err("broke"),
            }
        }
        decode_preamble(&self.bytes, secret).map(Some)
    }
}

/// The state of one `accept`.
struct Round {
    half_open: VecDeque<HalfOpen>,
    slots: Vec<Option<Socket>>,
}

impl Round {
    /// Files a connection by what it has said so far.
    fn judge(&mut self, mut candidate: HalfOpen, secret: &Secret) {
        let why = match candidate.advance(secret) {
            Ok(None) => {
                if self.half_open.len() == HALF_OPEN_MAX {
                    self.half_open.pop_front();
                }
                return self.half_open.push_back(candidate);
            }
            Ok(Some(index)) => match self.slots.get_mut(usize::from(index)) {
                Some(slot) if slot.is_none() => {
                    *slot = Some(candidate.socket);
                    return;
                }
                Some(_) => "a channel that is already connected",
                None => "a channel that was not offered",
            },
            Err(why) => why,
        };
        let peer = candidate.socket.peer_addr().ok().and_then(|address| address.as_socket());
        tracing::debug!(?peer, why, "dropped a connection to an offer");
    }
}

impl TcpPending {
    fn listeners(&self) -> impl Iterator<Item = &Socket> {
        std::iter::once(&self.tcp).chain(&self.unix)
    }

    /// Takes the connections that wait in a listener.
    fn take_new(&self, listener: &Socket, round: &mut Round) -> Result<(), FabricError> {
        for _ in 0..ACCEPTS_PER_ROUND {
            match listener.accept() {
                Ok((socket, _)) => {
                    if local::may_enter(&socket) && sys::tune(&socket, self.buffer_bytes).is_ok() {
                        if let Some(choice) = self.choice.as_ref().filter(|_| !sys::is_unix(&socket)) {
                            pace::accepted(&socket, choice);
                        }
                        round.judge(
                            HalfOpen { socket, bytes: [0; PREAMBLE_BYTES], have: 0 },
                            &self.offer.secret,
                        );
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if is_shortage(&e) && !round.half_open.is_empty() => round.half_open.clear(),
                Err(e) if is_shortage(&e) => {
                    let what =
                        format!("accepting channels at {} (raise the limit of open files)", self.address);
                    return Err(FabricError::os(what, e));
                }
                // Whatever befell a connection before it was taken is its own affair.
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn sleep(&self, round: &Round, left: Duration) -> Result<(), FabricError> {
        let half_open = round.half_open.iter().map(|half_open| &half_open.socket);
        let mut fds: Vec<_> =
            self.listeners().chain(half_open).map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(left).ok();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(FabricError::os(format!("waiting for channels at {}", self.address), e)),
        }
    }

    fn what_is_missing(&self, round: &Round) -> String {
        let missing: Vec<_> = round
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.is_none())
            .map(|(i, _)| i.to_string())
            .collect();
        let (shown, dots) = if missing.len() > 8 { (&missing[..8], ", ...") } else { (&missing[..], "") };
        format!(
            "the peer to connect channels {}{dots} (of {}) at {} (does it run, does a firewall block the port?)",
            shown.join(", "),
            self.offer.channels,
            self.address
        )
    }
}

fn is_shortage(error: &std::io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

impl PendingOffer for TcpPending {
    fn accept(self: Box<Self>, deadline: Instant) -> Result<Vec<ChannelSetup>, FabricError> {
        let started = Instant::now();
        let slots = (0..self.offer.channels).map(|_| None).collect();
        let mut round = Round { half_open: VecDeque::with_capacity(HALF_OPEN_MAX), slots };
        loop {
            for listener in self.listeners() {
                self.take_new(listener, &mut round)?;
            }
            for _ in 0..round.half_open.len() {
                if let Some(candidate) = round.half_open.pop_front() {
                    round.judge(candidate, &self.offer.secret);
                }
            }
            if round.slots.iter().all(Option::is_some) {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(FabricError::late(self.what_is_missing(&round), started));
            }
            self.sleep(&round, left)?;
        }
        let setup = |(index, socket)| {
            let pipe = Pipe::of(&socket, self.offer.sealed.then_some((&self.offer.secret, index, false)))?;
            Ok(ChannelSetup { kind: SetupKind::Tcp(socket, pipe) })
        };
        (0..).zip(round.slots.into_iter().flatten()).map(setup).collect()
    }
}
