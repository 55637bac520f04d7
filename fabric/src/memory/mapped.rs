//! The regions of one peer that are read where they lie, each mapped once. What their content means is the caller's.

use super::View;
use crate::device::CompletionQueue;
use crate::error::PostError;
use crate::work::{ChannelId, RemoteSpan};

/// Mapped regions by key. A channel bounds how many its peer hands over; they stay readable when it has ended.
#[derive(Debug, Default)]
pub struct MappedRegions(Vec<(u64, View)>);

impl MappedRegions {
    /// A stretch of the peer's memory, whose region is mapped when it is first named.
    pub fn view<Q: CompletionQueue>(
        &mut self,
        queue: &mut Q,
        channel: ChannelId,
        remote: RemoteSpan,
        bytes: u64,
    ) -> Result<View, PostError> {
        if self.0.iter().all(|(key, _)| *key != remote.key.0) {
            self.0.push((remote.key.0, queue.map(channel, remote.key)?));
        }
        self.find(remote, bytes).ok_or(PostError::RemoteAccess)
    }

    /// The same of regions that were named before.
    #[must_use]
    pub fn find(&self, remote: RemoteSpan, bytes: u64) -> Option<View> {
        let (_, region) = self.0.iter().find(|(key, _)| *key == remote.key.0)?;
        region.slice(remote.offset, bytes).ok()
    }
}
