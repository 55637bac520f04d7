//! The byte stream of one channel, encrypted: records of AES-256-GCM under keys drawn from the offer's secret, which travelled on
//! an authenticated and encrypted connection, and which no other channel has. It knows nothing of frames.
//!
//! A record is its plaintext's length (which is authenticated), the ciphertext and a tag. Records are numbered on both sides, so
//! that none can be left out, repeated or moved, and keys change long before their cipher wears out.

use super::sys::{self, IoRange};
use crate::error::FabricError;
use crate::random::Secret;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use rustix::io::Errno;
use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// Plaintext of one record: both halves of a copy stay in the second-level cache.
const RECORD_BYTES: usize = 64 << 10;
const LENGTH_BYTES: usize = 4;
/// The largest record on the wire.
const WIRE_BYTES: usize = LENGTH_BYTES + RECORD_BYTES + MAX_TAG_LEN;
/// What is read at once: some records, so that a system call brings more than one.
const READ_BYTES: usize = 4 * WIRE_BYTES;
/// Records under one key: 64 GiB, a sixth of what the cipher bears by the bounds that TLS 1.3 keeps to.
const RECORDS_PER_KEY: u64 = 1 << 20;
/// Names what the keys are for, so that the secret's other uses tell nothing of them.
const PURPOSE: &[u8] = b"gradwire tcp records 1";

/// Which way records go.
#[derive(Clone, Copy)]
enum Way {
    /// From the side that has connected.
    Out,
    /// To it.
    Back,
}

/// Draws keys for one way of one channel, one after the other.
struct Keys {
    root: Prk,
    way: u8,
    index: u16,
    key: LessSafeKey,
    record: u64,
}

impl Keys {
    fn new(secret: &Secret, index: u16, way: Way) -> Result<Self, FabricError> {
        let root = Salt::new(HKDF_SHA256, PURPOSE).extract(&secret.0);
        let way = way as u8;
        let key = draw(&root, index, way, 0);
        let key = key.ok_or_else(|| FabricError::Internal("a key of this length cannot be drawn".into()))?;
        Ok(Self { root, way, index, key, record: 0 })
    }

    /// The next record's number as a nonce, under the key that it belongs to.
    fn next(&mut self) -> Result<Nonce, Errno> {
        if self.record > 0 && self.record.is_multiple_of(RECORDS_PER_KEY) {
            let generation = self.record / RECORDS_PER_KEY;
            self.key = draw(&self.root, self.index, self.way, generation).ok_or(Errno::KEYREJECTED)?;
        }
        let mut nonce = [0; NONCE_LEN];
        nonce[..8].copy_from_slice(&self.record.to_le_bytes());
        self.record += 1;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

fn draw(root: &Prk, index: u16, way: u8, generation: u64) -> Option<LessSafeKey> {
    let (index, generation) = (index.to_le_bytes(), generation.to_le_bytes());
    let info = [&index[..], &[way], &generation];
    let okm = root.expand(&info, &AES_256_GCM).ok()?;
    Some(LessSafeKey::new(UnboundKey::from(okm)))
}

/// Both ways of one channel.
pub(crate) struct Sealed {
    sending: Keys,
    receiving: Keys,
    /// A sealed record, and which part of it the kernel does not have yet.
    out: Box<[u8]>,
    unsent: Range<usize>,
    /// What came: an opened record's rest, then what is still sealed.
    came: Box<[u8]>,
    opened: Range<usize>,
    sealed: Range<usize>,
}

impl fmt::Debug for Sealed {
    /// Keys stay out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealed(..)")
    }
}

impl Sealed {
    /// For channel `index` of an offer; `connecting`: on the side that has connected it.
    pub(super) fn new(secret: &Secret, index: u16, connecting: bool) -> Result<Self, FabricError> {
        let (ours, theirs) = if connecting { (Way::Out, Way::Back) } else { (Way::Back, Way::Out) };
        Ok(Self {
            sending: Keys::new(secret, index, ours)?,
            receiving: Keys::new(secret, index, theirs)?,
            out: vec![0; WIRE_BYTES].into(),
            unsent: 0..0,
            came: vec![0; READ_BYTES].into(),
            opened: 0..0,
            sealed: 0..0,
        })
    }

    /// Does the kernel lack something that was taken from the ranges?
    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Gives the kernel what it lacks.
    pub(super) fn flush(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        while self.has_unsent() {
            let sent = match sys::send(socket, &[IoRange::of_slice(&self.out[self.unsent.clone()])]) {
                Err(Errno::INTR) => continue,
                sent => sent?,
            };
            self.unsent.start += sent;
        }
        Ok(())
    }

    /// Takes as much from the ranges as the kernel takes of records, and one record more; at once `AGAIN` where the last one is
    /// still on its way.
    pub(super) fn send(&mut self, socket: BorrowedFd<'_>, ranges: &[IoRange<'_>]) -> Result<usize, Errno> {
        self.flush(socket)?;
        let mut taken = 0;
        loop {
            let room = &mut self.out[LENGTH_BYTES..LENGTH_BYTES + RECORD_BYTES];
            let bytes = sys::gather(ranges, taken, room);
            if bytes == 0 {
                return Ok(taken);
            }
            self.seal(bytes)?;
            taken += bytes;
            match self.flush(socket) {
                Ok(()) => {}
                Err(Errno::AGAIN) => return Ok(taken),
                Err(error) => return Err(error),
            }
        }
    }

    fn seal(&mut self, bytes: usize) -> Result<(), Errno> {
        // At most RECORD_BYTES.
        let length = (bytes as u32).to_le_bytes();
        let nonce = self.sending.next()?;
        let (head, rest) = self.out.split_at_mut(LENGTH_BYTES);
        head.copy_from_slice(&length);
        let (text, tag_room) = rest.split_at_mut(bytes);
        let tag = self.sending.key.seal_in_place_separate_tag(nonce, Aad::from(length), text);
        let tag = tag.map_err(|_| Errno::KEYREJECTED)?;
        tag_room[..MAX_TAG_LEN].copy_from_slice(tag.as_ref());
        self.unsent = 0..LENGTH_BYTES + bytes + MAX_TAG_LEN;
        Ok(())
    }

    /// Fills the ranges with what has come; as a socket does it: no bytes at the end, `AGAIN` where there are none yet.
    /// `BADMSG`: what came is not what the peer sealed.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>, ranges: &[IoRange<'_>]) -> Result<usize, Errno> {
        let mut given = 0;
        loop {
            let part = sys::scatter(&self.came[self.opened.clone()], ranges, given);
            self.opened.start += part;
            given += part;
            if !self.opened.is_empty() {
                return Ok(given);
            }
            if self.open()? {
                continue;
            }
            match self.refill(socket) {
                Ok(0) | Err(Errno::AGAIN) if given > 0 => return Ok(given),
                Ok(0) => return Ok(0),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens the next record, where it is there as a whole.
    fn open(&mut self) -> Result<bool, Errno> {
        let start = self.sealed.start;
        let Some(length) = self.came[self.sealed.clone()].first_chunk::<LENGTH_BYTES>().copied() else {
            return Ok(false);
        };
        let bytes = u32::from_le_bytes(length) as usize;
        if bytes == 0 || bytes > RECORD_BYTES {
            return Err(Errno::BADMSG);
        }
        let end = start + LENGTH_BYTES + bytes + MAX_TAG_LEN;
        if end > self.sealed.end {
            return Ok(false);
        }
        let nonce = self.receiving.next()?;
        let record = &mut self.came[start + LENGTH_BYTES..end];
        let opened = self.receiving.key.open_in_place(nonce, Aad::from(length), record);
        opened.map_err(|_| Errno::BADMSG)?;
        self.opened = start + LENGTH_BYTES..start + LENGTH_BYTES + bytes;
        self.sealed.start = end;
        Ok(true)
    }

    fn refill(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        // Nothing opened is left, and less than a record that is sealed: it fits, and something behind it.
        self.came.copy_within(self.sealed.clone(), 0);
        self.sealed = 0..self.sealed.len();
        let got = sys::receive_private(socket, &mut self.came[self.sealed.end..])?;
        self.sealed.end += got;
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::{Domain, Socket, Type};
    use std::io::{Read as _, Write as _};
    use std::os::fd::AsFd as _;

    fn pair() -> (Socket, Socket) {
        let (a, b) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        [&a, &b].iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        (a, b)
    }

    fn ends(secret: u8) -> (Sealed, Sealed) {
        let end = |connecting| Sealed::new(&Secret([secret; 16]), 3, connecting).unwrap();
        (end(true), end(false))
    }

    fn text(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    /// Moves all of it, through sockets that take a part at a time.
    fn moved(from: &mut Sealed, to: &mut Sealed, sent: &[u8]) -> Vec<u8> {
        let (near, far) = pair();
        let (mut taken, mut got) = (0, Vec::new());
        let mut room = vec![0; 10_000];
        while got.len() < sent.len() {
            let left = sent.len() - taken;
            // In three ranges of odd sizes.
            let (first, rest) = sent[taken..].split_at(left.min(70_001));
            let (second, third) = rest.split_at(rest.len().min(13));
            let ranges = [first, second, third].map(IoRange::of_slice);
            match from.send(near.as_fd(), &ranges) {
                Ok(bytes) => taken += bytes,
                Err(Errno::AGAIN) => {}
                Err(error) => panic!("{error}"),
            }
            match to.receive(far.as_fd(), &[IoRange::of_slice_mut(&mut room)]) {
                Ok(bytes) => got.extend_from_slice(&room[..bytes]),
                Err(Errno::AGAIN) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(!from.has_unsent());
        got
    }

    #[test]
    fn what_goes_in_comes_out_both_ways_and_is_not_seen_between() {
        let (mut near, mut far) = ends(1);
        let sent = text(3_000_017);
        assert_eq!(moved(&mut near, &mut far, &sent), sent);
        assert_eq!(moved(&mut far, &mut near, &sent[..5]), &sent[..5]);
        let (socket, mut other) = pair();
        near.send(socket.as_fd(), &[IoRange::of_slice(&sent[..1000])]).unwrap();
        let mut seen = vec![0; 2000];
        let bytes = other.read(&mut seen).unwrap();
        assert_eq!(bytes, LENGTH_BYTES + 1000 + MAX_TAG_LEN);
        assert!(!seen[..bytes].windows(16).any(|part| sent[..1000].windows(16).any(|own| own == part)));
    }

    #[test]
    fn keys_change_and_both_sides_change_them_together() {
        let (mut near, mut far) = ends(2);
        (near.sending.record, far.receiving.record) = (RECORDS_PER_KEY - 2, RECORDS_PER_KEY - 2);
        let sent = text(5 * RECORD_BYTES);
        assert_eq!(moved(&mut near, &mut far, &sent), sent);
        assert_eq!(near.sending.record, RECORDS_PER_KEY + 3);
        let (mut near, mut far) = ends(2);
        near.sending.record = RECORDS_PER_KEY;
        let (a, b) = pair();
        near.send(a.as_fd(), &[IoRange::of_slice(&sent[..10])]).unwrap();
        let mut room = [0; 10];
        assert_eq!(far.receive(b.as_fd(), &[IoRange::of_slice_mut(&mut room)]), Err(Errno::BADMSG));
    }

    #[test]
    fn a_record_that_was_touched_repeated_left_out_or_is_of_others_does_not_open() {
        let sealed = |end: &mut Sealed, bytes: usize| {
            let (a, mut b) = pair();
            end.send(a.as_fd(), &[IoRange::of_slice(&text(bytes))]).unwrap();
            let mut record = vec![0; WIRE_BYTES];
            let bytes = b.read(&mut record).unwrap();
            record.truncate(bytes);
            record
        };
        let opens = |end: &mut Sealed, records: &[u8]| {
            let (mut a, b) = pair();
            a.write_all(records).unwrap();
            let mut room = vec![0; 4096];
            let mut got = 0;
            loop {
                match end.receive(b.as_fd(), &[IoRange::of_slice_mut(&mut room)]) {
                    Ok(bytes) => got += bytes,
                    Err(Errno::AGAIN) => return Ok(got),
                    Err(error) => return Err(error),
                }
            }
        };
        let (mut near, mut far) = ends(4);
        let (first, second) = (sealed(&mut near, 100), sealed(&mut near, 50));
        for at in 0..first.len() {
            let mut touched = first.clone();
            touched[at] ^= 1;
            let (_, mut fresh) = ends(4);
            // A length that grew waits for the rest of it, and never gives anything.
            assert!(matches!(opens(&mut fresh, &touched), Err(Errno::BADMSG) | Ok(0)), "byte {at}");
        }
        let (_, mut fresh) = ends(4);
        assert_eq!(opens(&mut fresh, &second), Err(Errno::BADMSG), "the first one left out");
        assert_eq!(opens(&mut far, &[first.clone(), second].concat()), Ok(150));
        assert_eq!(opens(&mut far, &first), Err(Errno::BADMSG), "repeated");
        let (_, mut stranger) = ends(5);
        assert_eq!(opens(&mut stranger, &first), Err(Errno::BADMSG), "another secret");
        let mut other = Sealed::new(&Secret([4; 16]), 2, false).unwrap();
        assert_eq!(opens(&mut other, &first), Err(Errno::BADMSG), "another channel");
        let (mut same_side, _) = ends(4);
        assert_eq!(opens(&mut same_side, &first), Err(Errno::BADMSG), "sent back");
        for length in [0, RECORD_BYTES as u32 + 1, u32::MAX] {
            let (_, mut fresh) = ends(4);
            assert_eq!(opens(&mut fresh, &length.to_le_bytes()), Err(Errno::BADMSG), "{length}");
        }
    }

    #[test]
    fn the_end_comes_after_what_was_sent_and_within_a_record_gives_nothing() {
        let (mut near, mut far) = ends(6);
        let (a, b) = pair();
        near.send(a.as_fd(), &[IoRange::of_slice(&text(10))]).unwrap();
        drop(a);
        let mut room = [0; 64];
        assert_eq!(far.receive(b.as_fd(), &[IoRange::of_slice_mut(&mut room)]), Ok(10));
        assert_eq!(far.receive(b.as_fd(), &[IoRange::of_slice_mut(&mut room)]), Ok(0));
        let (mut near, mut far) = ends(6);
        let ((a, mut between), (mut to, b)) = (pair(), pair());
        near.send(a.as_fd(), &[IoRange::of_slice(&text(10))]).unwrap();
        let mut record = [0; 64];
        let bytes = between.read(&mut record).unwrap();
        to.write_all(&record[..bytes - 1]).unwrap();
        drop(to);
        assert_eq!(far.receive(b.as_fd(), &[IoRange::of_slice_mut(&mut room)]), Ok(0));
    }
}
