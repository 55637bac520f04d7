//! For tests of what a device refuses: what a queue was told of a peer's memory can be read, and made a lie that only
//! the device can find. Nothing else may use it.

use super::queue::VerbsQueue;
use super::reach::{Told, encode_told};
use crate::error::PostError;
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
}
