//! One channel: what is put together for its queue pair, what is under way, and which of the peer's memory it was told.

use super::counters::PortCounters;
use super::cut::{Cut, Cuts};
use super::dmabuf::Dmabuf;
use super::endpoint::READY;
use super::ids::Id;
use super::queue::{OWN_REQUESTS, Plan};
use super::reach::{MESSAGE_BYTES, Reach, Told, encode_told};
use super::sys::{Chain, QueuePair, Request, ibv_sge};
use crate::error::PostError;
use crate::memory::{Region, Span};
use crate::work::{ChannelId, Completion, CompletionKind, DisconnectReason, Read, RemoteSpan, Write};
use socket2::Socket;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{ErrorKind, Read as _};
use std::net::Shutdown;

mod flags;

pub(super) use flags::Flags;

/// One in so many requests, at most, is told of by the device, so that those before it are known to be over.
const SIGNAL_EVERY_MAX: u64 = 16;

/// What becomes known when a request is over.
#[derive(Clone, Copy, Debug)]
enum OnDone {
    Nothing,
    Told,
    WriteDone(u64),
    ReadDone(u64),
}

/// What the requests of a transfer are.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Write { immediate: Option<u32> },
    Read,
}

impl Kind {
    fn request(self, cut: &Cut, is_last: bool) -> Request {
        let Cut { address, key, .. } = *cut;
        match self {
            Self::Write { immediate } => {
                Request::Write { address, key, immediate: immediate.filter(|_| is_last) }
            }
            Self::Read => Request::Read { address, key },
        }
    }
}

/// One transfer, cut into requests (`cuts`).
#[derive(Debug)]
struct Transfer {
    kind: Kind,
    /// The first that is not put together yet.
    next: usize,
    /// A notice by a flag, after the last.
    flag: Option<u32>,
    on_done: OnDone,
    /// Its memory, where requests of it are still to come.
    regions: Vec<Region>,
}

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) id: ChannelId,
    pub(super) queue_pair: QueuePair,
    pub(super) socket: Socket,
    /// Its lane has the channel: what is sent is heard.
    pub(super) is_peer_ready: bool,
    chain: Chain,
    cuts: Cuts,
    /// A transfer of more requests than fit, whose rest follows as they end; nothing overtakes it.
    rest: Option<Transfer>,
    /// Unfinished requests of its user, at most.
    depth: usize,
    signal_every: u64,
    /// Places of one request.
    gather_max: usize,
    /// Requests that are not known to be over, by age; the first one's number.
    under_way: VecDeque<OnDone>,
    first: u64,
    /// Of these, our own.
    own_under_way: usize,
    /// Memory that requests are from or into, with the number of the last one: it lives until that is over.
    owned: VecDeque<(u64, Region)>,
    /// What the peer is to be told, oldest first; nothing overtakes it.
    to_tell: VecDeque<[u8; MESSAGE_BYTES]>,
    /// Extents (region and index) that the peer knows the keys of, or will.
    pub(super) lent: HashSet<(u64, u64)>,
    /// Exposed regions live as long as the peer may reach them.
    pub(super) exposed: HashMap<u64, Region>,
    dmabufs: Vec<Dmabuf>,
    pub(super) reach: Reach,
    /// Notices by flags.
    pub(super) flags: Option<Flags>,
    /// What the port had counted when the channel was new.
    pub(super) port_began: PortCounters,
}

impl Channel {
    pub(super) fn new(
        id: ChannelId,
        queue_pair: QueuePair,
        socket: Socket,
        plan: &Plan,
        flags: Option<Flags>,
    ) -> Self {
        let &Plan { depth, gather_max, .. } = plan;
        Self {
            id,
            chain: Chain::new(queue_pair.inline_bytes),
            queue_pair,
            socket,
            is_peer_ready: false,
            gather_max,
            cuts: Cuts::default(),
            rest: None,
            depth,
            signal_every: (depth as u64 / 4).clamp(1, SIGNAL_EVERY_MAX),
            under_way: VecDeque::with_capacity(depth + OWN_REQUESTS),
            first: 0,
            own_under_way: 0,
            owned: VecDeque::new(),
            to_tell: VecDeque::new(),
            lent: HashSet::new(),
            exposed: HashMap::new(),
            dmabufs: Vec::new(),
            reach: Reach::default(),
            flags,
            port_began: PortCounters::default(),
        }
    }

    /// What was just pushed owns this memory.
    fn own<'a>(&mut self, regions: impl Iterator<Item = &'a Region>) {
        let number = (self.first + self.under_way.len() as u64).saturating_sub(1);
        for region in regions {
            match self.owned.back_mut() {
                Some((last, known)) if known.id() == region.id() => *last = number,
                _ => self.owned.push_back((number, region.clone())),
            }
        }
    }

    /// Is there nothing to send?
    pub(super) fn is_quiet(&self) -> bool {
        self.chain.is_empty() && self.to_tell.is_empty()
    }

    fn push(&mut self, request: Request, places: &[ibv_sge], on_done: OnDone) {
        let number = self.first + self.under_way.len() as u64;
        let signaled = !matches!(on_done, OnDone::Nothing) || number.is_multiple_of(self.signal_every);
        let id = Id::Sent { channel: self.id, number: number as u32 };
        self.chain.push(id.encode(), request, places.iter().copied(), signaled);
        self.under_way.push_back(on_done);
    }

    /// Tells the peer the key of an extent, named by region and index, before anything that is posted after this.
    pub(super) fn tell(&mut self, name: (u64, u64), told: &Told) {
        self.lent.insert(name);
        self.to_tell.push_back(encode_told(name.0, told));
        self.tell_more();
    }

    /// A dmabuf is told whole, once.
    pub(super) fn expose_dmabuf(&mut self, dmabuf: &Dmabuf) {
        if self.dmabufs.iter().any(|known| known.name() == dmabuf.name()) {
            return;
        }
        let told = Told { offset: 0, bytes: dmabuf.bytes(), address: 0, key: dmabuf.key() };
        self.tell((dmabuf.name(), 0), &told);
        self.dmabufs.push(dmabuf.clone());
    }

    fn tell_more(&mut self) {
        while self.own_under_way < OWN_REQUESTS
            && let Some(message) = self.to_tell.pop_front()
        {
            self.push_inline(Request::Message, &message, OnDone::Told);
            self.own_under_way += 1;
        }
    }

    /// Of bytes that travel inside the request.
    fn push_inline(&mut self, request: Request, bytes: &[u8], on_done: OnDone) {
        let number = self.first + self.under_way.len() as u64;
        self.chain.push_word(Id::Sent { channel: self.id, number: number as u32 }.encode(), request, bytes);
        self.under_way.push_back(on_done);
    }

    /// Is there room for the first of so many more requests of its user, after all that is to be told? Half of the depth
    /// is always there once: of fewer requests the device may not tell that they are over.
    fn check_room(&self, requests: usize) -> Result<(), PostError> {
        let enough = requests.min(self.depth.div_ceil(2));
        let free = self.depth.saturating_sub(self.under_way.len() - self.own_under_way);
        if self.rest.is_some() || !self.to_tell.is_empty() || free < enough {
            return Err(PostError::Full);
        }
        Ok(())
    }

    pub(super) fn write(
        &mut self,
        write: &Write<'_>,
        places: &[ibv_sge],
        bytes_max: u64,
    ) -> Result<(), PostError> {
        let on_done = if write.signaled { OnDone::WriteDone(write.id) } else { OnDone::Nothing };
        let (immediate, flag) = self.notice_of(write.immediate)?;
        let transfer =
            Transfer { kind: Kind::Write { immediate }, next: 0, flag, on_done, regions: Vec::new() };
        self.post(transfer, (places, write.remote, write.gather), (self.gather_max, bytes_max))
    }

    /// Puts together the requests of one transfer, or none of them: as many as it may have at once.
    fn post(
        &mut self,
        transfer: Transfer,
        (places, remote, spans): (&[ibv_sge], RemoteSpan, &[Span]),
        (gather_max, bytes_max): (usize, u64),
    ) -> Result<(), PostError> {
        // The requests of the one before it are still needed.
        self.check_room(1)?;
        self.cuts.cut(places, remote, &self.reach, gather_max, bytes_max)?;
        if transfer.flag.is_some() && places.is_empty() {
            self.cuts.cuts.clear();
        }
        self.check_room(self.cuts.cuts.len() + usize::from(transfer.flag.is_some()))?;
        match self.go_on(transfer) {
            None => self.own(spans.iter().map(Span::region)),
            Some(mut rest) => {
                rest.regions.extend(spans.iter().map(|span| span.region().clone()));
                rest.regions.dedup_by_key(|region| region.id());
                self.rest = Some(rest);
            }
        }
        Ok(())
    }

    /// Pushes requests of a transfer while there is room; what is left of it. The last one's end is the transfer's.
    fn go_on(&mut self, mut transfer: Transfer) -> Option<Transfer> {
        let cuts = std::mem::take(&mut self.cuts);
        let count = cuts.cuts.len();
        while transfer.next < count && self.has_room() {
            let cut = &cuts.cuts[transfer.next];
            transfer.next += 1;
            let is_last = transfer.next == count;
            let ends = is_last && transfer.flag.is_none();
            let on_done = if ends { transfer.on_done } else { OnDone::Nothing };
            self.push(transfer.kind.request(cut, is_last), &cuts.places[cut.places.clone()], on_done);
        }
        self.cuts = cuts;
        if transfer.next < count {
            return Some(transfer);
        }
        let immediate = transfer.flag?;
        if !self.has_room() {
            return Some(transfer);
        }
        self.push_flag(immediate, transfer.on_done);
        None
    }

    fn has_room(&self) -> bool {
        self.under_way.len() - self.own_under_way < self.depth
    }

    pub(super) fn read(
        &mut self,
        read: &Read<'_>,
        places: &[ibv_sge],
        bytes_max: u64,
    ) -> Result<(), PostError> {
        let on_done = OnDone::ReadDone(read.id);
        let transfer = Transfer { kind: Kind::Read, next: 0, flag: None, on_done, regions: Vec::new() };
        self.post(transfer, (places, read.remote, std::slice::from_ref(read.local)), (1, bytes_max))
    }

    /// The request of a completion by the lower half of its number; none where it is over already, or never was.
    pub(super) fn number_of(&self, low: u32) -> Option<u64> {
        let ahead = u64::from(low.wrapping_sub(self.first as u32));
        (ahead < self.under_way.len() as u64).then(|| self.first + ahead)
    }

    /// The device is done with this request and all before it. Is there now something to send?
    pub(super) fn over(&mut self, number: u64, completions: &mut Vec<Completion>) -> bool {
        while self.owned.front().is_some_and(|(last, _)| *last <= number) {
            self.owned.pop_front();
        }
        while self.first <= number
            && let Some(on_done) = self.under_way.pop_front()
        {
            self.first += 1;
            let kind = match on_done {
                OnDone::Nothing => continue,
                OnDone::Told => {
                    self.own_under_way -= 1;
                    continue;
                }
                OnDone::WriteDone(id) => CompletionKind::WriteDone { id },
                OnDone::ReadDone(id) => CompletionKind::ReadDone { id },
            };
            completions.push(Completion { channel: self.id, kind });
        }
        if let Some(mut rest) = self.rest.take() {
            let regions = std::mem::take(&mut rest.regions);
            match self.go_on(rest) {
                None => self.own(regions.iter()),
                Some(rest) => self.rest = Some(Transfer { regions, ..rest }),
            }
        }
        !self.is_quiet()
    }

    pub(super) fn send(&mut self) -> Result<(), DisconnectReason> {
        if !self.is_peer_ready {
            return Ok(());
        }
        self.tell_more();
        let posted = self.queue_pair.post(&mut self.chain);
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

    /// In error the queue pair takes nothing from the peer any more, and what is under way ends. False if the device refuses that.
    pub(super) fn end(&self) -> bool {
        let ended = self.queue_pair.fail();
        if let Err(error) = &ended {
            tracing::debug!(%error, "a queue pair could not be ended before it is destroyed");
        }
        ended.is_ok()
    }

    /// False if the device refuses that, too: then it may write for the peer whenever the peer says so.
    pub(super) fn destroy(&mut self) -> bool {
        // The memory that it reached is let go of after it.
        let owned = (std::mem::take(&mut self.owned), self.rest.take());
        let exposed = (std::mem::take(&mut self.exposed), std::mem::take(&mut self.dmabufs));
        let is_destroyed = self.queue_pair.destroy((owned, exposed, self.flags.take()));
        // Then the peer is told.
        let _ = self.socket.shutdown(Shutdown::Both);
        is_destroyed
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // Ended first: a device that refuses to destroy the queue pair is to take nothing from the peer all the same.
        if self.queue_pair.exists() {
            self.end();
            self.destroy();
        }
    }
}

impl Channel {
    /// How a write tells its notice: by an immediate, or by a flag after it. The peer may be behind with flags: there is no room then.
    fn notice_of(&self, immediate: Option<u32>) -> Result<(Option<u32>, Option<u32>), PostError> {
        match &self.flags {
            None => Ok((immediate, None)),
            Some(flags) if immediate.is_some() && flags.is_full() => Err(PostError::Full),
            Some(_) => Ok((None, immediate)),
        }
    }

    /// The peer's notices by flags, and where they were many the word that they were taken.
    pub(in crate::verbs) fn take_flags(&mut self, completions: &mut Vec<Completion>) {
        let Some(flags) = &mut self.flags else { return };
        // A peer that goes on and on does not keep us here.
        for immediate in (0..flags::ENTRIES).map_while(|_| flags.take()) {
            completions.push(Completion { channel: self.id, kind: CompletionKind::Received { immediate } });
        }
        if self.own_under_way < OWN_REQUESTS
            && let Some((offset, word)) = flags.acknowledgement()
        {
            let (address, key) = flags.at(offset);
            self.push_inline(Request::Write { address, key, immediate: None }, &word, OnDone::Told);
            self.own_under_way += 1;
        }
    }

    /// The word that is a notice, after the bytes that it tells of.
    fn push_flag(&mut self, immediate: u32, on_done: OnDone) {
        let Some(flags) = &mut self.flags else { return };
        let (address, key) = flags.at(flags.next_at());
        let word = flags.next(immediate);
        self.push_inline(Request::Write { address, key, immediate: None }, &word, on_done);
    }
}
