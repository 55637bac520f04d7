//! The regions a peer has handed to one channel, mapped here: bounded in number and bytes. It must not touch
//! their content.

use super::shared::map_peer_memory;
use crate::error::FabricError;
use crate::memory::Mapping;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Most regions one channel maps, and hands over.
pub(super) const REGIONS_MAX: usize = 1024;
/// Most address space one channel's regions take (16 TiB of the 128 a process has).
const REGION_BYTES_MAX: u64 = 1 << 44;

/// Mapped regions of one peer, by key.
#[derive(Debug, Default)]
pub(super) struct PeerRegions {
    /// Sorted by key. Peers have a few regions, so that a binary search beats hashing.
    mapped: Vec<(u64, Arc<Mapping>)>,
    total_bytes: u64,
}

impl PeerRegions {
    pub(super) fn find(&self, key: u64) -> Option<&Arc<Mapping>> {
        let at = self.mapped.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        Some(&self.mapped[at].1)
    }

    /// Maps what the peer handed over. Keys are never replaced: a mapping may be in use.
    pub(super) fn insert(&mut self, key: u64, bytes: u64, memfd: BorrowedFd<'_>) -> Result<(), FabricError> {
        let at = match self.mapped.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(_) => return Err(FabricError::Peer(format!("it handed over region {key} twice"))),
            Err(at) => at,
        };
        let total_bytes = self.total_bytes.saturating_add(bytes);
        if self.mapped.len() == REGIONS_MAX || total_bytes > REGION_BYTES_MAX {
            let why = format!("it handed over more than {REGIONS_MAX} regions or {REGION_BYTES_MAX} bytes");
            return Err(FabricError::Peer(why));
        }
        let size = usize::try_from(bytes).map_err(|_| FabricError::Peer("its region has no size".into()))?;
        self.mapped.insert(at, (key, Arc::new(map_peer_memory(memfd, size)?)));
        self.total_bytes = total_bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;

    #[test]
    fn both_sides_of_the_bounds() {
        let region = Region::allocate(4096, "test").unwrap();
        let mut regions = PeerRegions::default();
        for key in (0..REGIONS_MAX as u64).rev() {
            regions.insert(key, 4096, region.memfd().unwrap()).unwrap();
        }
        assert!(regions.find(0).is_some() && regions.find(1023).is_some() && regions.find(1024).is_none());
        assert!(
            matches!(regions.insert(7, 4096, region.memfd().unwrap()), Err(FabricError::Peer(_))),
            "twice"
        );
        assert!(
            matches!(regions.insert(1024, 4096, region.memfd().unwrap()), Err(FabricError::Peer(_))),
            "too many"
        );
    }

    #[test]
    fn address_space_is_bounded_and_lies_refused() {
        let huge = Region::allocate(1 << 44, "sparse").unwrap();
        let page = Region::allocate(4096, "page").unwrap();
        let mut regions = PeerRegions::default();
        assert!(regions.insert(1, 4097, page.memfd().unwrap()).is_err(), "larger than it is");
        assert!(regions.insert(1, 0, page.memfd().unwrap()).is_err());
        assert!(regions.insert(1, u64::MAX, page.memfd().unwrap()).is_err());
        regions.insert(1, 1 << 44, huge.memfd().unwrap()).unwrap();
        assert!(regions.insert(2, 4096, page.memfd().unwrap()).is_err(), "one page too much");
    }
}
