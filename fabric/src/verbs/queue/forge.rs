//! For tests of what devices do wrong or refuse: what a queue was told of a peer's memory can be read, and made a lie
//! that only the device can find; completions can be made up. Nothing else may use it.

use super::VerbsQueue;
use crate::error::PostError;
use crate::verbs::ids::Id;
use crate::verbs::reach::{Reach, Told, encode_told};
use crate::verbs::sys::{Work, WorkKind};
use crate::work::{ChannelId, RemoteKey};

/// A peer's memory as the device addresses it.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forged {
    /// Where it begins.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
    /// Its rkey.
    pub rkey: u32,
}

impl VerbsQueue {
    /// What the peer told.
    #[doc(hidden)]
    pub fn told(&mut self, channel: ChannelId, key: RemoteKey) -> Option<Forged> {
        let Told { address, bytes, key: rkey, .. } = self.reach_of(channel).ok()?.first(key.0)?;
        Some(Forged { address, bytes, rkey })
    }

    /// As if the peer had told this.
    #[doc(hidden)]
    pub fn pretend(&mut self, channel: ChannelId, key: RemoteKey, forged: Forged) -> Result<(), PostError> {
        let Forged { address, bytes, rkey } = forged;
        let told = Told { offset: 0, bytes, address, key: rkey };
        self.reach_of(channel)?.hear(&encode_told(key.0, &told)).map_err(|_| PostError::RemoteAccess)
    }

    /// As if the device had completed a request of a channel, by number, on that one's queue pair or another.
    #[doc(hidden)]
    pub fn complete(&mut self, channel: ChannelId, number: u32, queue_pair: ChannelId) {
        let queue_pair = self.queue_pair_of(queue_pair).unwrap_or(u32::MAX);
        self.made_up(Id::Sent { channel, number }, queue_pair);
    }

    /// As if a notice had been received on a channel by a receive, the so many-th in its place.
    #[doc(hidden)]
    pub fn receive(&mut self, channel: ChannelId, (place, turn): (u32, u32)) {
        let queue_pair = self.queue_pair_of(channel).unwrap_or(u32::MAX);
        self.made_up(Id::Received { place, turn }, queue_pair);
    }

    /// Completions that were of nothing there is.
    #[doc(hidden)]
    pub fn stale(&self) -> u64 {
        self.stale
    }

    /// What the peer of a channel said of its memory.
    fn reach_of(&mut self, id: ChannelId) -> Result<&mut Reach, PostError> {
        let at = self.at(id)?;
        Ok(&mut self.channels[at].reach)
    }

    fn queue_pair_of(&self, id: ChannelId) -> Option<u32> {
        Some(self.channels[self.at(id).ok()?].queue_pair.number)
    }

    fn made_up(&mut self, id: Id, queue_pair: u32) {
        let kind = match id {
            Id::Sent { .. } => WorkKind::Sent,
            Id::Received { .. } => WorkKind::Notice { immediate: u32::MAX },
        };
        let work = Work { id: id.encode(), queue_pair, failure: None, kind };
        self.take_one(self.owner(&work), &work);
    }
}
