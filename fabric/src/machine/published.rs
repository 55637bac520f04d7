//! Regions by the names that peers look them up under, and waiting for one that is not there yet.

use crate::error::FabricError;
use crate::memory::Region;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Names of one machine.
const PUBLISHED_MAX: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Published {
    regions: Mutex<HashMap<String, Region>>,
    added: Condvar,
}

impl Published {
    pub(super) fn insert(&self, name: &str, region: &Region) -> Result<(), FabricError> {
        let mut regions = locked(&self.regions);
        match regions.get(name) {
            Some(known) if known.id() == region.id() => return Ok(()),
            Some(_) => {
                return Err(FabricError::Misuse(format!("another region is already published as {name:?}")));
            }
            None if regions.len() == PUBLISHED_MAX => {
                return Err(FabricError::Misuse(format!(
                    "{PUBLISHED_MAX} regions are already published, the maximum"
                )));
            }
            None => drop(regions.insert(name.to_owned(), region.clone())),
        }
        self.added.notify_all();
        Ok(())
    }

    /// The region of that name, once it is there.
    pub(super) fn wait_for(&self, name: &str, within: Duration) -> Option<Region> {
        let regions = locked(&self.regions);
        let waited = self.added.wait_timeout_while(regions, within, |regions| !regions.contains_key(name));
        waited.unwrap_or_else(PoisonError::into_inner).0.get(name).cloned()
    }
}

/// A panic while one of these is held leaves nothing half done that matters.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_once_it_is_published_and_stands_for_one_region() {
        let published = Published::default();
        let (one, other) = (Region::allocate(1, "a").unwrap(), Region::allocate(1, "b").unwrap());
        assert!(published.wait_for("x", Duration::from_millis(1)).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| published.wait_for("x", Duration::from_secs(30)));
            published.insert("y", &other).unwrap();
            published.insert("x", &one).unwrap();
            assert_eq!(waiting.join().unwrap().map(|region| region.id()), Some(one.id()));
        });
        published.insert("x", &one).unwrap();
        assert!(matches!(published.insert("x", &other), Err(FabricError::Misuse(_))));
    }
}
