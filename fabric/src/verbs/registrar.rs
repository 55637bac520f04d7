//! Registered memory of one device, shared by all its lanes: regions are registered in extents, when a stretch of one is
//! first used, so that a large pool of which little is touched costs little. Nothing is registered twice, and all of it
//! counts against one budget. An extent is given back some time after its region has lost its last other owner.

use super::sys::{Domain, Registration};
use crate::error::FabricError;
use crate::lock::lock;
use crate::memlock;
use crate::memory::{Region, Span};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

/// Extents where memory is not scarce. The kernel pins an extent whole.
const EXTENT_BYTES_MAX: u64 = 16 << 20;
const EXTENT_BYTES_MIN: u64 = 64 << 10;
/// What may be pinned or registered at all, in extents, at least.
const EXTENTS_WITHIN_LIMIT: u64 = 64;

/// A registered stretch of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Bytes from the region's start.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    /// Where it begins, as the device knows it.
    pub(super) address: u64,
    /// Key for our own requests.
    pub(super) local_key: u32,
    /// Key for the peers'.
    pub(super) remote_key: u32,
    /// May peers reach it?
    pub(super) is_remote: bool,
}

#[derive(Debug, Default)]
struct Held {
    /// By region id, then by offset and whether peers may reach it.
    regions: HashMap<u64, BTreeMap<(u64, bool), Kept>>,
    /// Regions that were exposed: what is registered of them is for peers, too.
    exposed: HashSet<u64>,
    bytes: u64,
}

/// A registration, and whether anybody has been told of it: until then whoever made it may take it back.
#[derive(Debug)]
struct Kept {
    registration: Registration,
    is_told: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Registrar {
    domain: Arc<Domain>,
    extent_bytes: u64,
    budget_bytes: u64,
    held: Mutex<Held>,
}

impl Registrar {
    pub(super) fn new(domain: Arc<Domain>, budget_bytes: u64) -> Self {
        let extent_bytes = extent_bytes(memlock::limit_bytes(), budget_bytes);
        Self { domain, extent_bytes, budget_bytes, held: Mutex::default() }
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Which extent of its region an offset lies in.
    pub(super) fn index(&self, offset: u64) -> u64 {
        offset / self.extent_bytes
    }

    pub(super) fn registered_bytes(&self) -> u64 {
        lock(&self.held).bytes
    }

    /// Peers may be given keys of this region from now on. False: they could before.
    pub(super) fn expose(&self, region: &Region) -> bool {
        lock(&self.held).exposed.insert(region.id())
    }

    /// No peer was given a key: what is registered from now on is for us alone.
    pub(super) fn withdraw(&self, region: &Region) {
        lock(&self.held).exposed.remove(&region.id());
    }

    /// The extent of a region that an offset lies in, registered now if it was not, and its key where it is new. `for_peers`: one
    /// that they may reach. `tell`: it will be used from now on. Takes a lock, and long at first use: lanes remember what they got.
    pub(super) fn extent(
        &self,
        region: &Region,
        offset: u64,
        for_peers: bool,
        tell: bool,
    ) -> Result<(Extent, Option<(u64, bool)>), FabricError> {
        let start = self.index(offset) * self.extent_bytes;
        if let Some(extent) = lock(&self.held).find(region, start, for_peers) {
            return Ok((extent, None));
        }
        self.release_unused();
        let mut held = lock(&self.held);
        if let Some(extent) = held.find(region, start, for_peers) {
            return Ok((extent, None));
        }
        let bytes = self.extent_bytes.min((region.len() as u64).saturating_sub(start));
        let in_use = held.bytes;
        held.take(bytes, self.budget_bytes)?;
        let is_remote = for_peers || held.exposed.contains(&region.id());
        let registration = Registration::new(&self.domain, region, (start, bytes), is_remote)
            .map_err(|error| explain(error, bytes, in_use))
            .inspect_err(|_| held.bytes -= bytes)?;
        let (extent, key) = (extent(&registration), (start, is_remote));
        held.regions.entry(region.id()).or_default().insert(key, Kept { registration, is_told: tell });
        Ok((extent, Some(key)))
    }

    /// Registers a stretch. Where that fails nothing stays registered by it, but for what others use by then.
    pub(super) fn prepare(&self, span: &Span) -> Result<(), FabricError> {
        self.release_unused();
        let region = span.region();
        let (mut at, end) = (span.offset(), span.offset() + span.len());
        // What cannot succeed takes no room from others meanwhile.
        let missing = lock(&self.held).missing(region, (at, end), self.extent_bytes);
        lock(&self.held).check(missing, self.budget_bytes)?;
        let mut new = Vec::new();
        while at < end {
            match self.extent(region, at, false, false) {
                Ok((extent, key)) => {
                    new.extend(key);
                    at = extent.offset + extent.bytes;
                }
                Err(error) => {
                    self.take_back(region, &new);
                    return Err(error);
                }
            }
        }
        lock(&self.held).told(region, &new);
        Ok(())
    }

    /// Registers memory that the driver itself needs: it counts as any other.
    pub(super) fn own(self: &Arc<Self>, bytes: u64, name: &str, is_remote: bool) -> Result<Own, FabricError> {
        let region = Region::allocate(bytes as usize, name)?;
        lock(&self.held).take(bytes, self.budget_bytes)?;
        // Given back with this, also where there is no registration.
        let charge = Charge { registrar: Arc::clone(self), bytes };
        let registration = Registration::new(&self.domain, &region, (0, bytes), is_remote)
            .map_err(|error| explain(error, bytes, self.registered_bytes()))?;
        Ok(Own { registration, _charge: charge })
    }

    /// Gives back what nobody was told of.
    fn take_back(&self, region: &Region, new: &[(u64, bool)]) {
        let mut gone = Vec::new();
        if let Some(extents) = lock(&self.held).regions.get_mut(&region.id()) {
            for key in new {
                if extents.get(key).is_some_and(|kept| !kept.is_told) {
                    gone.extend(extents.remove(key).map(|kept| kept.registration));
                }
            }
        }
        self.give_back(gone);
    }

    /// Gives back what nobody else owns any more.
    pub(super) fn release_unused(&self) {
        let gone = lock(&self.held).take_unused();
        self.give_back(gone);
    }

    /// Without the lock: the last owner of user memory may do anything when it goes.
    fn give_back(&self, gone: Vec<Registration>) {
        let bytes = gone.iter().map(|registration| registration.bytes).sum::<u64>();
        drop(gone);
        lock(&self.held).bytes -= bytes;
    }
}

/// Memory of the driver's own: what peers send comes in there.
#[derive(Debug)]
pub(super) struct Own {
    // Given back before it is taken off the budget.
    pub(super) registration: Registration,
    _charge: Charge,
}

#[derive(Debug)]
struct Charge {
    registrar: Arc<Registrar>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        lock(&self.registrar.held).bytes -= self.bytes;
    }
}

impl Held {
    /// Takes bytes off the budget.
    fn take(&mut self, bytes: u64, budget: u64) -> Result<(), FabricError> {
        self.check(bytes, budget)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Is there room for so many bytes?
    fn check(&self, bytes: u64, budget: u64) -> Result<(), FabricError> {
        let in_use = self.bytes;
        if bytes > budget.saturating_sub(in_use) {
            let what = format!(
                "{bytes} more bytes would have to be registered with the RDMA device, and {in_use} of the {budget} allowed are"
            );
            return Err(FabricError::Unregistered { what, fix: "raise memory.registered_bytes" });
        }
        Ok(())
    }

    /// Bytes of a stretch's extents that are not registered.
    fn missing(&self, region: &Region, (from, to): (u64, u64), extent_bytes: u64) -> u64 {
        let extents = self.regions.get(&region.id());
        let is_there = |start: u64| {
            extents.is_some_and(|all| all.contains_key(&(start, true)) || all.contains_key(&(start, false)))
        };
        let starts = (from / extent_bytes..to.div_ceil(extent_bytes)).map(|index| index * extent_bytes);
        let missing = starts.filter(|start| !is_there(*start));
        missing.map(|start| extent_bytes.min((region.len() as u64).saturating_sub(start))).sum()
    }

    /// These will be used from now on.
    fn told(&mut self, region: &Region, keys: &[(u64, bool)]) {
        let Some(extents) = self.regions.get_mut(&region.id()) else { return };
        for key in keys {
            if let Some(kept) = extents.get_mut(key) {
                kept.is_told = true;
            }
        }
    }

    fn find(&mut self, region: &Region, start: u64, for_peers: bool) -> Option<Extent> {
        let extents = self.regions.get_mut(&region.id())?;
        let remote = extents.contains_key(&(start, true));
        let kept = extents.get_mut(&(start, remote || for_peers))?;
        kept.is_told = true;
        Some(extent(&kept.registration))
    }

    fn take_unused(&mut self) -> Vec<Registration> {
        let is_unused = |extents: &BTreeMap<_, Kept>| {
            let first = extents.first_key_value();
            first.is_none_or(|(_, kept)| kept.registration.region.owners() <= extents.len())
        };
        let unused: Vec<u64> =
            self.regions.iter().filter(|(_, extents)| is_unused(extents)).map(|(id, _)| *id).collect();
        let mut gone = Vec::new();
        for id in unused {
            self.exposed.remove(&id);
            let extents = self.regions.remove(&id).into_iter().flat_map(BTreeMap::into_values);
            gone.extend(extents.map(|kept| kept.registration));
        }
        gone
    }
}

fn extent(registration: &Registration) -> Extent {
    let (local_key, remote_key, address) = registration.keys();
    let Registration { offset, bytes, is_remote, .. } = *registration;
    Extent { offset, bytes, address, local_key, remote_key, is_remote }
}

/// Says of a failure to register whether the limit is the reason, and what to do.
pub(super) fn explain(error: FabricError, bytes: u64, pinned_bytes: u64) -> FabricError {
    let FabricError::Os { what, source } = error else { return error };
    let what = format!("{what} ({bytes} bytes, beside {pinned_bytes})");
    match memlock::limit_bytes() {
        Some(limit) if source.raw_os_error() == Some(libc::ENOMEM) => FabricError::Unregistered {
            what: format!("{what} does not fit the {} KiB that this process may pin", limit / 1024),
            fix: memlock::FIX,
        },
        _ => FabricError::Os { what, source },
    }
}

/// Small ones where little may be pinned or registered, so that little of it is wasted.
fn extent_bytes(pinned_max: Option<u64>, budget_bytes: u64) -> u64 {
    let within = pinned_max.map_or(budget_bytes, |bytes| bytes.min(budget_bytes)) / EXTENTS_WITHIN_LIMIT;
    let power = 1 << within.max(1).ilog2();
    u64::clamp(power, EXTENT_BYTES_MIN, EXTENT_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_small_where_memory_is_scarce() {
        assert_eq!(extent_bytes(None, u64::MAX), EXTENT_BYTES_MAX);
        assert_eq!(extent_bytes(Some(1 << 40), u64::MAX), EXTENT_BYTES_MAX);
        assert_eq!(extent_bytes(Some(64 << 20), u64::MAX), 1 << 20);
        assert_eq!(extent_bytes(Some(65 << 10), u64::MAX), EXTENT_BYTES_MIN);
        assert_eq!(extent_bytes(Some(0), u64::MAX), EXTENT_BYTES_MIN);
    }

    #[test]
    fn extents_fit_the_budget_as_they_fit_what_may_be_pinned() {
        assert_eq!(extent_bytes(None, 8 << 20), 128 << 10);
        assert_eq!(extent_bytes(Some(1 << 40), 8 << 20), 128 << 10);
        assert_eq!(extent_bytes(Some(8 << 20), 1 << 40), 128 << 10);
        assert_eq!(extent_bytes(None, 0), EXTENT_BYTES_MIN);
    }

    #[test]
    fn a_failure_to_pin_names_the_fix_only_where_that_is_it() {
        let os = |code| FabricError::os("registering memory", std::io::Error::from_raw_os_error(code));
        let other = explain(os(libc::EINVAL), 1, 2).to_string();
        assert!(!other.contains("ulimit"), "{other}");
        let text = explain(os(libc::ENOMEM), 1, 2).to_string();
        assert_eq!(text.contains("ulimit"), memlock::limit_bytes().is_some(), "{text}");
    }
}
