//! The regions a peer has handed to one channel, mapped here: bounded in number and bytes. It must not touch
//! their content.

use super::shared::map_peer_memory;
use crate::error::FabricError;
use crate::memory::{Mapping, PeerPages};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

/// Most regions one channel maps, and hands over.
pub(super) const REGIONS_MAX: usize = 1024;
/// Most address space one channel's regions take (16 TiB of the 128 a process has).
const REGION_BYTES_MAX: u64 = 1 << 44;
/// The descriptors of so many regions stay open, so that something can be borrowed from them: a worker's pool, and its inbox, which may
/// come first. A process has a thousand descriptors, and no peer may use them up.
const OPEN_MAX: usize = 2;
/// Nothing is borrowed from longer regions: each mapping of them takes as much address space.
const OPEN_BYTES_MAX: u64 = 1 << 40;
/// Mappings of a region that borrowed stretches keep.
const MAPPINGS_MAX: usize = 4;
/// Most requests that are copied until something is borrowed again.
const PAUSE_MAX: u32 = 1 << 8;
/// Shorter regions hold nothing that is worth it.
const OPEN_BYTES_MIN: u64 = 1 << 20;

/// A region as the peer handed it over.
#[derive(Debug)]
struct Mapped {
    key: u64,
    mapping: Arc<Mapping>,
    /// Where something may be borrowed from it.
    lending: Option<Lending>,
}

/// A region that a program borrows from. For a program that keeps what it borrows, or writes it, each request would need a new mapping,
/// which costs more than a copy. So after each such case twice as many requests are copied before the next try.
#[derive(Debug)]
struct Lending {
    memfd: OwnedFd,
    pages: Option<Arc<PeerPages>>,
    /// Earlier ones, which may be kept by what was borrowed from them.
    before: Vec<Weak<PeerPages>>,
    /// Requests that are copied after the next such case, and those of the last one that are still to come.
    pause: u32,
    left: u32,
}

impl Lending {
    fn new(memfd: OwnedFd) -> Self {
        Self { memfd, pages: None, before: Vec::new(), pause: 1, left: 0 }
    }

    /// Pages to borrow from, unless this request is to be copied.
    fn pages(&mut self, bytes: usize) -> Option<&Arc<PeerPages>> {
        if self.left > 0 {
            self.left -= 1;
            return None;
        }
        self.before.retain(|pages| pages.strong_count() > 0);
        if self.pages.is_none() && self.before.len() < MAPPINGS_MAX {
            self.pages = PeerPages::of_peer(self.memfd.as_fd(), bytes);
        }
        // A system that cannot do it is asked again, too, because the reason may be a limit of memory.
        if self.pages.as_ref().is_none_or(|pages| pages.is_spoiled()) {
            self.before.extend(self.pages.take().map(|pages| Arc::downgrade(&pages)));
            self.left = self.pause;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        self.pages.as_ref()
    }
}

/// Mapped regions of one peer, by key.
#[derive(Debug, Default)]
pub(super) struct PeerRegions {
    /// Sorted by key. Peers have a few regions, so that a binary search beats hashing.
    mapped: Vec<Mapped>,
    total_bytes: u64,
    /// This process borrows from them.
    borrows: bool,
}

impl PeerRegions {
    pub(super) fn new(borrows: bool) -> Self {
        Self { borrows, ..Self::default() }
    }

    pub(super) fn find(&self, key: u64) -> Option<&Arc<Mapping>> {
        Some(&self.mapped[self.at(key).ok()?].mapping)
    }

    fn at(&self, key: u64) -> Result<usize, usize> {
        self.mapped.binary_search_by_key(&key, |one| one.key)
    }

    /// Pages of a region to borrow from. None where what is wanted is to be copied.
    pub(super) fn pages(&mut self, key: u64) -> Option<&Arc<PeerPages>> {
        let at = self.at(key).ok()?;
        let Mapped { mapping, lending, .. } = &mut self.mapped[at];
        lending.as_mut()?.pages(mapping.len())
    }

    /// Maps what the peer handed over. Keys are never replaced: a mapping may be in use.
    pub(super) fn insert(&mut self, key: u64, bytes: u64, memfd: OwnedFd) -> Result<(), FabricError> {
        let at = match self.at(key) {
            Ok(_) => return Err(FabricError::Peer(format!("it handed over region {key} twice"))),
            Err(at) => at,
        };
        let total_bytes = self.total_bytes.saturating_add(bytes);
        if self.mapped.len() == REGIONS_MAX || total_bytes > REGION_BYTES_MAX {
            let why = format!("it handed over more than {REGIONS_MAX} regions or {REGION_BYTES_MAX} bytes");
            return Err(FabricError::Peer(why));
        }
        let size = usize::try_from(bytes).map_err(|_| FabricError::Peer("its region has no size".into()))?;
        let mapping = Arc::new(map_peer_memory(memfd.as_fd(), size)?);
        let open = self.mapped.iter().filter(|one| one.lending.is_some()).count();
        let has_length = (OPEN_BYTES_MIN..=OPEN_BYTES_MAX).contains(&bytes);
        let is_open = self.borrows && has_length && open < OPEN_MAX;
        let lending = is_open.then(|| Lending::new(memfd));
        self.mapped.insert(at, Mapped { key, mapping, lending });
        self.total_bytes = total_bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;

    fn memfd_of(region: &Region) -> OwnedFd {
        region.memfd().unwrap().try_clone_to_owned().unwrap()
    }

    #[test]
    fn both_sides_of_the_bounds() {
        let region = Region::allocate(4096, "test").unwrap();
        let mut regions = PeerRegions::default();
        for key in (0..REGIONS_MAX as u64).rev() {
            regions.insert(key, 4096, memfd_of(&region)).unwrap();
        }
        assert!(regions.find(0).is_some() && regions.find(1023).is_some() && regions.find(1024).is_none());
        assert!(matches!(regions.insert(7, 4096, memfd_of(&region)), Err(FabricError::Peer(_))), "twice");
        assert!(
            matches!(regions.insert(1024, 4096, memfd_of(&region)), Err(FabricError::Peer(_))),
            "too many"
        );
    }

    #[test]
    fn address_space_is_bounded_and_lies_refused() {
        let huge = Region::allocate(1 << 44, "sparse").unwrap();
        let page = Region::allocate(4096, "page").unwrap();
        let mut regions = PeerRegions::default();
        assert!(regions.insert(1, 4097, memfd_of(&page)).is_err(), "larger than it is");
        assert!(regions.insert(1, 0, memfd_of(&page)).is_err());
        assert!(regions.insert(1, u64::MAX, memfd_of(&page)).is_err());
        regions.insert(1, 1 << 44, memfd_of(&huge)).unwrap();
        assert!(regions.insert(2, 4096, memfd_of(&page)).is_err(), "one page too much");
    }

    #[test]
    fn after_each_spoiled_mapping_more_requests_are_copied() {
        let region = Region::allocate(OPEN_BYTES_MIN as usize, "pool").unwrap();
        let mut regions = PeerRegions::new(true);
        for key in 0..=OPEN_MAX as u64 {
            regions.insert(key, OPEN_BYTES_MIN, memfd_of(&region)).unwrap();
        }
        assert!(regions.pages(OPEN_MAX as u64).is_none(), "no descriptors for more");
        let mut copied = 0;
        let mut runs = Vec::new();
        while runs.len() < 5 && copied < 100 {
            match regions.pages(0) {
                None => copied += 1,
                Some(pages) => {
                    pages.borrow(0, 4096).unwrap().unwrap().keep().unwrap();
                    runs.push(std::mem::take(&mut copied));
                }
            }
        }
        // The request that finds the mapping spoiled is copied, too.
        assert!(runs == [0, 2, 3, 5, 9] || cfg!(not(target_arch = "x86_64")), "{runs:?}");
        assert!(
            regions.pages(1).is_some() || cfg!(not(target_arch = "x86_64")),
            "another region is not concerned"
        );
    }

    #[test]
    fn a_region_has_a_few_mappings_at_most() {
        let region = Region::allocate(OPEN_BYTES_MIN as usize, "pool").unwrap();
        let mut regions = PeerRegions::new(true);
        regions.insert(0, OPEN_BYTES_MIN, memfd_of(&region)).unwrap();
        let mut kept = Vec::new();
        for _ in 0..100 {
            kept.extend(regions.pages(0).and_then(|pages| pages.borrow(0, 4096).unwrap()));
            kept.iter().for_each(|borrowed| borrowed.keep().unwrap());
        }
        assert!(kept.len() == MAPPINGS_MAX || cfg!(not(target_arch = "x86_64")), "{}", kept.len());
    }
}
