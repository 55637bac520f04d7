//! Requests as the library takes them, put together to chains without allocating for each.

use super::abi as ffi;
use crate::memory::Span;
use crate::verbs::reach::MESSAGE_BYTES;
use std::ptr::null_mut;

/// Bytes that a request carries inside itself: as many as are of use, or else as many as messages need.
pub(super) const INLINE_BYTES: [u32; 2] = [128, MESSAGE_BYTES as u32];

/// A stretch of registered memory as requests name it.
pub(in crate::verbs) fn place(span: &Span, key: u32) -> ffi::ibv_sge {
    ffi::ibv_sge { addr: span.as_ptr() as u64, length: span.len() as u32, lkey: key }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum Request {
    Write {
        address: u64,
        key: u32,
        immediate: Option<u32>,
    },
    Read {
        address: u64,
        key: u32,
    },
    /// Into whatever receive the peer has posted.
    Message,
}

/// Requests that are posted together. Keeps its memory for the next.
#[derive(Debug)]
pub(in crate::verbs) struct Chain {
    inline_bytes: u32,
    pub(super) requests: Vec<ffi::ibv_send_wr>,
    /// Of each request, its first place.
    firsts: Vec<usize>,
    places: Vec<ffi::ibv_sge>,
    /// Bytes of our own that travel inside a request, and the place that they are.
    words: Vec<(usize, [u8; MESSAGE_BYTES])>,
}

// SAFETY: the pointers in it are set and used within `QueuePair::post` only.
unsafe impl Send for Chain {}

impl Chain {
    /// For a queue pair whose requests carry so many bytes inside themselves.
    pub(in crate::verbs) fn new(inline_bytes: u32) -> Self {
        Self { inline_bytes, requests: Vec::new(), firsts: Vec::new(), places: Vec::new(), words: Vec::new() }
    }

    pub(in crate::verbs) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(in crate::verbs) fn clear(&mut self) {
        self.requests.clear();
        self.firsts.clear();
        self.places.clear();
        self.words.clear();
    }

    /// Adds a request of bytes that travel inside it, of which the chain has its own copy: no longer than a message.
    pub(in crate::verbs) fn push_word(&mut self, id: u64, request: Request, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(MESSAGE_BYTES)];
        let mut word = [0; MESSAGE_BYTES];
        word[..bytes.len()].copy_from_slice(bytes);
        self.words.push((self.places.len(), word));
        // Where it lies is known once the chain is complete.
        let place = ffi::ibv_sge { addr: 0, length: bytes.len() as u32, lkey: 0 };
        self.push(id, request, std::iter::once(place), true);
    }

    /// Adds a request. The places must stay registered, and as they are, until it completes; with so few bytes that
    /// they travel inside the request, until it is posted.
    pub(in crate::verbs) fn push(
        &mut self,
        id: u64,
        request: Request,
        places: impl Iterator<Item = ffi::ibv_sge>,
        signaled: bool,
    ) {
        let first = self.places.len();
        self.places.extend(places);
        let bytes: u64 = self.places[first..].iter().map(|place| u64::from(place.length)).sum();
        let mut raw = ffi::ibv_send_wr::new(id, (self.places.len() - first) as i32);
        let target =
            |address, key| ffi::ibv_send_wr_rdma { remote_addr: address, rkey: key, ..Default::default() };
        let mut flags = 0;
        match request {
            Request::Write { address, key, immediate } => {
                raw.rdma = target(address, key);
                raw.opcode = ffi::IBV_WR_RDMA_WRITE;
                if let Some(immediate) = immediate {
                    raw.opcode = ffi::IBV_WR_RDMA_WRITE_WITH_IMM;
                    raw.imm_data = immediate.to_be();
                }
            }
            Request::Read { address, key } => {
                raw.rdma = target(address, key);
                raw.opcode = ffi::IBV_WR_RDMA_READ;
            }
            Request::Message => raw.opcode = ffi::IBV_WR_SEND,
        }
        if signaled {
            flags |= ffi::IBV_SEND_SIGNALED;
        }
        if bytes <= u64::from(self.inline_bytes) && !matches!(request, Request::Read { .. }) {
            flags |= ffi::IBV_SEND_INLINE;
        }
        raw.send_flags = flags;
        self.requests.push(raw);
        self.firsts.push(first);
    }

    /// Sets the pointers, which no push may follow before the post.
    pub(super) fn link(&mut self) -> *mut ffi::ibv_send_wr {
        for (place, word) in &self.words {
            self.places[*place].addr = word.as_ptr() as u64;
        }
        let places = self.places.as_mut_ptr();
        let requests = self.requests.as_mut_ptr();
        for (i, &first) in self.firsts.iter().enumerate() {
            let is_last = i + 1 == self.firsts.len();
            // SAFETY: both indices are within their vectors, which this borrow keeps from moving.
            unsafe {
                (*requests.add(i)).sg_list = places.add(first);
                (*requests.add(i)).next = if is_last { null_mut() } else { requests.add(i + 1) };
            }
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_wherever_the_chain_has_moved_them() {
        let mut chain = Chain::new(INLINE_BYTES[1]);
        for round in 0..2u8 {
            for i in 0..100u8 {
                chain.push(0, Request::Message, std::iter::empty(), false);
                chain.push_word(i.into(), Request::Message, &[i, round]);
            }
            chain.link();
            for (i, (place, word)) in chain.words.iter().enumerate() {
                let sge = chain.places[*place];
                assert_eq!((sge.addr, sge.length), (word.as_ptr() as u64, 2));
                assert_eq!(word[..2], [i as u8, round]);
            }
            let flags = ffi::IBV_SEND_INLINE | ffi::IBV_SEND_SIGNALED;
            assert!(chain.requests.iter().skip(1).step_by(2).all(|request| request.send_flags == flags));
            let kept = chain.words.capacity();
            chain.clear();
            assert!(chain.is_empty() && chain.words.capacity() == kept);
        }
    }
}
