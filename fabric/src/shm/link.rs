//! The socket between the two ends of a channel: its greeting, and after that handed-over regions and bells.
//! It owns the bytes and descriptors on that socket, sending and receiving them without ever blocking; it
//! must not decide what they mean for a channel.

use crate::error::FabricError;
use crate::random::Secret;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Bytes of a greeting.
const GREETING_BYTES: usize = 32;
/// Longer than every message, so that a longer one is recognised.
const MESSAGE_BYTES_MAX: usize = 64;
/// Descriptors of a greeting: doorbell, ring. More than that are refused.
const FDS_MAX: usize = 2;
const MAGIC: [u8; 4] = *b"GWS2";
const KIND_REGION: u8 = 1;
const KIND_BELL: u8 = 2;
const REGION_BYTES: usize = 17;

/// The first message each way; the doorbell's and the ring's memory come with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Greeting {
    pub(super) index: u16,
    /// Slots of the sender's receive ring.
    pub(super) capacity: u32,
    pub(super) secret: Secret,
}

impl Greeting {
    pub(super) fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.index.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.capacity.to_le_bytes());
        bytes[16..].copy_from_slice(&self.secret.0);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; GREETING_BYTES] = bytes.try_into().ok()?;
        if bytes[..4] != MAGIC || bytes[6..8] != [0; 2] || bytes[12..16] != [0; 4] {
            return None;
        }
        let mut secret = [0; 16];
        secret.copy_from_slice(&bytes[16..]);
        Some(Self {
            index: u16::from_le_bytes([bytes[4], bytes[5]]),
            capacity: u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]),
            secret: Secret(secret),
        })
    }
}

/// A message after the greeting.
#[derive(Debug)]
pub(super) enum Message {
    /// The peer lets us address a region of its.
    Region { key: u64, bytes: u64, memfd: OwnedFd },
    /// Wake up.
    Bell,
}

/// The peer's greeting, with its doorbell's and ring's memory.
pub(super) struct Greeted {
    pub(super) greeting: Greeting,
    pub(super) bell: OwnedFd,
    pub(super) ring: OwnedFd,
}

/// Why a look at the socket found no message.
#[derive(Debug)]
pub(super) enum NoMessage {
    /// None has come.
    Nothing,
    /// The peer has gone.
    Closed,
    /// The peer sent what it must not.
    Garbage(&'static str),
    Failed(Errno),
}

pub(super) fn timespec(duration: Duration) -> Timespec {
    // Invariant: sleeps are far shorter than the centuries that do not fit.
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 })
}

/// Waits until one of the descriptors is readable or closed, or the deadline passes.
pub(super) fn wait_readable(fds: &mut [PollFd<'_>], deadline: Instant) -> Result<(), FabricError> {
    let timeout = timespec(deadline.saturating_duration_since(Instant::now()));
    match rustix::event::poll(fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(FabricError::os("waiting for a shared-memory peer", e)),
    }
}

/// Waits for one descriptor.
pub(super) fn wait_one(fd: BorrowedFd<'_>, deadline: Instant) -> Result<(), FabricError> {
    wait_readable(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], deadline)
}

fn send(link: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(link, &[IoSlice::new(bytes)], &mut control, flags) {
            Err(Errno::INTR) => {}
            // Messages go whole or not at all.
            other => return other.map(|_| ()),
        }
    }
}

pub(super) fn send_greeting(
    link: BorrowedFd<'_>,
    greeting: &Greeting,
    bell: BorrowedFd<'_>,
    ring: BorrowedFd<'_>,
) -> Result<(), FabricError> {
    send(link, &greeting.encode(), &[bell, ring])
        .map_err(|e| FabricError::os("greeting a shared-memory peer", e))
}

/// Hands a region over. `AGAIN`: the peer has not taken the last ones yet.
pub(super) fn send_region(
    link: BorrowedFd<'_>,
    key: u64,
    bytes: u64,
    memfd: BorrowedFd<'_>,
) -> Result<(), Errno> {
    let mut message = [0; REGION_BYTES];
    message[0] = KIND_REGION;
    message[1..9].copy_from_slice(&key.to_le_bytes());
    message[9..].copy_from_slice(&bytes.to_le_bytes());
    send(link, &message, &[memfd])
}

pub(super) fn send_bell(link: BorrowedFd<'_>) -> Result<(), Errno> {
    send(link, &[KIND_BELL], &[])
}

/// Receives one message with its descriptors into `buffer`.
fn receive(
    link: BorrowedFd<'_>,
    buffer: &mut [u8; MESSAGE_BYTES_MAX],
) -> Result<(usize, [Option<OwnedFd>; FDS_MAX]), NoMessage> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(link, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(NoMessage::Nothing),
            Err(Errno::CONNRESET) => return Err(NoMessage::Closed),
            Err(e) => return Err(NoMessage::Failed(e)),
        }
    };
    let mut fds = [const { None }; FDS_MAX];
    let mut count = 0;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            for fd in rights {
                if let Some(place) = fds.get_mut(count) {
                    *place = Some(fd);
                }
                count += 1;
            }
        }
    }
    if received.flags.intersects(ReturnFlags::CTRUNC | ReturnFlags::TRUNC) || count > FDS_MAX {
        return Err(NoMessage::Garbage("a message or its descriptors were cut off"));
    }
    if received.bytes == 0 { Err(NoMessage::Closed) } else { Ok((received.bytes, fds)) }
}

/// The peer's first message.
pub(super) fn receive_greeting(link: BorrowedFd<'_>) -> Result<Greeted, NoMessage> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let (bytes, [Some(bell), Some(ring)]) = receive(link, &mut buffer)? else {
        return Err(NoMessage::Garbage("its first message came without its memory"));
    };
    let greeting = Greeting::decode(&buffer[..bytes]);
    let greeting = greeting.ok_or(NoMessage::Garbage("its first message is not a greeting"))?;
    Ok(Greeted { greeting, bell, ring })
}

/// The next message after the greeting.
pub(super) fn receive_message(link: BorrowedFd<'_>) -> Result<Message, NoMessage> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let (bytes, fds) = receive(link, &mut buffer)?;
    match (buffer[0], bytes, fds) {
        (KIND_BELL, 1, [None, None]) => Ok(Message::Bell),
        (KIND_REGION, REGION_BYTES, [Some(memfd), None]) => {
            let word = |at: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&buffer[at..at + 8]);
                u64::from_le_bytes(word)
            };
            Ok(Message::Region { key: word(1), bytes: word(9), memfd })
        }
        _ => Err(NoMessage::Garbage("it sent an unknown message on its socket")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_are_frozen() {
        let greeting = Greeting { index: 0x102, capacity: 64, secret: Secret([9; 16]) };
        let mut bytes = b"GWS2\x02\x01\0\0\x40\0\0\0\0\0\0\0".to_vec();
        bytes.extend_from_slice(&[9; 16]);
        assert_eq!(greeting.encode().to_vec(), bytes);
        let decoded = Greeting::decode(&bytes).unwrap();
        assert_eq!((decoded.index, decoded.capacity), (0x102, 64));
        assert_eq!(decoded.secret, greeting.secret);
        assert_ne!(decoded.secret, Secret([8; 16]));
        assert!(!format!("{greeting:?}").contains('9'));
    }

    proptest! {
        #[test]
        fn decoding_anything_is_safe_and_canonical(mut bytes in prop::collection::vec(any::<u8>(), 0..64), good: bool) {
            if good && bytes.len() >= 16 {
                bytes.resize(GREETING_BYTES, 1);
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[6..8].fill(0);
                bytes[12..16].fill(0);
            }
            if let Some(greeting) = Greeting::decode(&bytes) {
                prop_assert_eq!(greeting.encode().to_vec(), bytes);
            }
        }
    }
}
