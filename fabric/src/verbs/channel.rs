//! One channel: what is put together for its queue pair, what is under way, and which of the peer's memory it was told.

use super::endpoint::READY;
use super::sys::{Chain, QueuePair, Request, inline_place};
use super::told::{MESSAGE_BYTES, Told};
use crate::error::PostError;
use crate::work::{ChannelId, Completion, CompletionKind, DisconnectReason, Read, Write};
use socket2::Socket;
use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read as _};
use std::net::Shutdown;

/// Spans of one request.
pub(super) const GATHER_MAX: u32 = 8;
/// One in so many requests, at most, is told of by the device, so that those before it are known to be over.
const SIGNAL_EVERY_MAX: u64 = 16;

/// What becomes known when a request is over.
#[derive(Clone, Copy, Debug)]
enum OnDone {
    Nothing,
    WriteDone(u64),
    ReadDone(u64),
}

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) id: ChannelId,
    pub(super) queue_pair: QueuePair,
    pub(super) socket: Socket,
    pub(super) is_peer_ready: bool,
    pub(super) chain: Chain,
    /// Of the chain: they travel inside their requests, and so need be here only until it is posted.
    #[expect(clippy::vec_box, reason = "requests name their addresses, which must not change")]
    messages: Vec<Box<[u8; MESSAGE_BYTES]>>,
    signal_every: u64,
    /// Requests that are not known to be over, by age; the first one's number.
    under_way: VecDeque<OnDone>,
    first: u64,
    pub(super) told: HashMap<u64, Told>,
    pub(super) exposed: Vec<u64>,
}

impl Channel {
    pub(super) fn new(
        id: ChannelId,
        queue_pair: QueuePair,
        socket: Socket,
        is_peer_ready: bool,
        depth: usize,
    ) -> Self {
        Self {
            id,
            queue_pair,
            socket,
            is_peer_ready,
            chain: Chain::default(),
            messages: Vec::new(),
            signal_every: (depth as u64 / 4).clamp(1, SIGNAL_EVERY_MAX),
            under_way: VecDeque::with_capacity(depth),
            first: 0,
            told: HashMap::new(),
            exposed: Vec::new(),
        }
    }

    fn next_number(&self) -> u64 {
        self.first + self.under_way.len() as u64
    }

    fn push(&mut self, request: Request, places: &[ibverbs_sys::ibv_sge], on_done: OnDone) {
        let number = self.next_number();
        let signaled = !matches!(on_done, OnDone::Nothing) || number.is_multiple_of(self.signal_every);
        self.chain.push(number, request, places.iter().copied(), signaled);
        self.under_way.push_back(on_done);
    }

    /// Tells the peer something of our own. `most`: requests that the queue pair has room for.
    pub(super) fn tell(&mut self, message: [u8; MESSAGE_BYTES], most: usize) -> Result<(), PostError> {
        if self.under_way.len() >= most {
            return Err(PostError::Full);
        }
        let message = Box::new(message);
        self.push(Request::Message, &[inline_place(&message[..])], OnDone::Nothing);
        self.messages.push(message);
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        write: &Write<'_>,
        places: &[ibverbs_sys::ibv_sge],
        depth: usize,
        bytes_max: u64,
    ) -> Result<(), PostError> {
        let bytes: u64 = places.iter().map(|place| u64::from(place.length)).sum();
        let (mut address, key) = match self.told.get(&write.remote.key.0) {
            Some(told) => (told.at(write.remote.offset, bytes)?, told.key),
            None if bytes == 0 => (0, 0),
            None => return Err(PostError::RemoteAccess),
        };
        let on_done = if write.signaled { OnDone::WriteDone(write.id) } else { OnDone::Nothing };
        let requests = requests(places, bytes_max);
        if requests > depth {
            return Err(PostError::TooManySpans);
        }
        if self.under_way.len() + requests > depth {
            return Err(PostError::Full);
        }
        let mut rest = places;
        loop {
            let (now, later) = rest.split_at(take(rest, bytes_max));
            rest = later;
            let is_last = rest.is_empty();
            let immediate = write.immediate.filter(|_| is_last);
            let on_done = if is_last { on_done } else { OnDone::Nothing };
            self.push(Request::Write { address, key, immediate }, now, on_done);
            if is_last {
                return Ok(());
            }
            address += now.iter().map(|place| u64::from(place.length)).sum::<u64>();
        }
    }

    pub(super) fn read(
        &mut self,
        read: &Read<'_>,
        places: &[ibverbs_sys::ibv_sge],
        depth: usize,
    ) -> Result<(), PostError> {
        let told = self.told.get(&read.remote.key.0).ok_or(PostError::RemoteAccess)?;
        let (mut address, key) = (told.at(read.remote.offset, read.local.len())?, told.key);
        if self.under_way.len() + places.len().max(1) > depth {
            return Err(PostError::Full);
        }
        if places.is_empty() {
            // A read of nothing completes, too, and in its turn.
            self.push(Request::Read { address, key }, &[], OnDone::ReadDone(read.id));
        }
        for (i, place) in places.iter().enumerate() {
            let is_last = i + 1 == places.len();
            let on_done = if is_last { OnDone::ReadDone(read.id) } else { OnDone::Nothing };
            self.push(Request::Read { address, key }, std::slice::from_ref(place), on_done);
            address += u64::from(place.length);
        }
        Ok(())
    }

    /// The device is done with this request and all before it.
    pub(super) fn over(&mut self, number: u64, completions: &mut Vec<Completion>) {
        while self.first <= number
            && let Some(on_done) = self.under_way.pop_front()
        {
            self.first += 1;
            let kind = match on_done {
                OnDone::Nothing => continue,
                OnDone::WriteDone(id) => CompletionKind::WriteDone { id },
                OnDone::ReadDone(id) => CompletionKind::ReadDone { id },
            };
            completions.push(Completion { channel: self.id, kind });
        }
    }

    pub(super) fn send(&mut self) -> Result<(), DisconnectReason> {
        if !self.is_peer_ready {
            return Ok(());
        }
        let posted = self.queue_pair.post(&mut self.chain);
        self.messages.clear();
        posted.map_err(|e| DisconnectReason::Failed(e.to_string()))
    }

    /// What the connection says, which is one byte at most.
    pub(super) fn listen(&mut self) -> Result<(), DisconnectReason> {
        let mut word = [0];
        match (&self.socket).read(&mut word) {
            Ok(0) => Err(DisconnectReason::PeerClosed),
            Ok(_) if !self.is_peer_ready && word == [READY] => {
                self.is_peer_ready = true;
                self.send()
            }
            Ok(_) => Err(DisconnectReason::PeerMisbehaved("it talked on a channel's connection".into())),
            Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::Interrupted => Ok(()),
            Err(_) => Err(DisconnectReason::PeerClosed),
        }
    }
}

/// How many requests the places are.
fn requests(mut places: &[ibverbs_sys::ibv_sge], bytes_max: u64) -> usize {
    let mut requests = 1;
    loop {
        places = &places[take(places, bytes_max)..];
        if places.is_empty() {
            return requests;
        }
        requests += 1;
    }
}

/// How many of the places go into one request.
fn take(places: &[ibverbs_sys::ibv_sge], bytes_max: u64) -> usize {
    let mut bytes = 0;
    let fits = |place: &&ibverbs_sys::ibv_sge| {
        bytes += u64::from(place.length);
        bytes <= bytes_max
    };
    places.iter().take(GATHER_MAX as usize).take_while(fits).count().max(1).min(places.len())
}

impl Drop for Channel {
    fn drop(&mut self) {
        // First in error, so that what is under way ends; then the queue pair is destroyed, and only then does the peer
        // see the end, so that it sends nothing more into memory that is used again.
        if let Err(error) = self.queue_pair.fail() {
            tracing::debug!(%error, "a queue pair could not be ended before it is destroyed");
        }
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
