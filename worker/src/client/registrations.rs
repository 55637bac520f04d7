//! The registration cache: which of the trainer's own buffers are sent in place. The first push of a buffer copies it, and the cache
//! notes the buffer. From the second push on its region stays registered here. The cache has two bounds, and evicts the least recently
//! used buffer.
//!
//! A buffer is identified by its id, never by its address. Ids are not used twice, and the cache holds the region's memory. So memory
//! that was freed and mapped again is never taken for the old buffer. An entry is removed when the last clone of its buffer is dropped
//! (checked with the next new buffer, after some more look-ups, and at every heartbeat), when it is evicted, or by
//! [`Client::forget`](super::Client::forget).

use fabric::{BufferId, Devices, Handles, Region, Span, UserBuffer, lock};
use proto_common::config::MemorySettings;
use std::collections::HashMap;
use std::sync::Mutex;

/// Buffers of any size, so that small ones do not fill the process with entries.
const ENTRIES_MAX: usize = 1 << 14;
/// Look-ups between two sweeps, if there is no new buffer.
const LOOK_UPS_PER_SWEEP: u64 = 64;

/// How a buffer is to be sent.
#[derive(Debug)]
pub(super) enum Way {
    Copy,
    InPlace(Span),
}

/// What the registration cache has done and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegistrationStats {
    /// Operations that sent a trainer's own buffer in place.
    pub hits: u64,
    /// Operations that copied a trainer's own buffer first.
    pub copies: u64,
    /// Buffers that were evicted.
    pub evictions: u64,
    /// Buffers registered now.
    pub registered: u64,
    /// Their bytes.
    pub registered_bytes: u64,
}

#[derive(Debug)]
struct Entry {
    /// The look-up that used it last.
    used: u64,
    handles: Handles,
    /// `None` until the buffer is seen again.
    region: Option<Region>,
}

#[derive(Debug, Default)]
struct Entries {
    by_id: HashMap<BufferId, Entry>,
    look_ups: u64,
    stats: RegistrationStats,
    /// Taken out, to be dropped without the lock: an owner's drop may do anything.
    gone: Vec<Region>,
}

/// See the module. Its lock is taken once for each operation with such a buffer, by the thread that starts it.
#[derive(Debug)]
pub(super) struct RegistrationCache {
    entries_max: usize,
    bytes_max: u64,
    entries: Mutex<Entries>,
    /// Told of what goes, so that nothing stays registered for nobody.
    devices: Option<Devices>,
}

impl RegistrationCache {
    pub(super) fn new(settings: &MemorySettings, devices: Option<Devices>) -> Self {
        Self {
            devices,
            entries_max: ENTRIES_MAX,
            bytes_max: settings.registration_cache_bytes,
            entries: Mutex::default(),
        }
    }

    /// How this buffer is to be sent now. Each use of a buffer asks once.
    pub(super) fn look_up(&self, buffer: &UserBuffer) -> Way {
        self.change(|entries| {
            let way = self.way(entries, buffer);
            match way {
                Way::InPlace(_) => entries.stats.hits += 1,
                Way::Copy => entries.stats.copies += 1,
            }
            way
        })
    }

    pub(super) fn forget(&self, buffer: &UserBuffer) {
        self.change(|entries| entries.remove(buffer.id()));
    }

    /// Lets go of buffers that nobody has any more, and tells what there is.
    pub(super) fn sweep(&self) -> RegistrationStats {
        let stats = self.change(|entries| {
            entries.sweep();
            entries.stats
        });
        // Also what was let go of while an operation still had it.
        self.devices.iter().for_each(Devices::release_unused);
        stats
    }

    fn change<T>(&self, change: impl FnOnce(&mut Entries) -> T) -> T {
        let mut entries = lock(&self.entries);
        let result = change(&mut entries);
        let gone = std::mem::take(&mut entries.gone);
        drop(entries);
        if !gone.is_empty() {
            drop(gone);
            self.devices.iter().for_each(Devices::release_unused);
        }
        result
    }

    fn way(&self, entries: &mut Entries, buffer: &UserBuffer) -> Way {
        entries.look_ups += 1;
        let used = entries.look_ups;
        if used.is_multiple_of(LOOK_UPS_PER_SWEEP) {
            entries.sweep();
        }
        if buffer.bytes() as u64 > self.bytes_max {
            return Way::Copy;
        }
        let Some(entry) = entries.by_id.get_mut(&buffer.id()) else {
            self.note(entries, buffer);
            return Way::Copy;
        };
        entry.used = used;
        match &entry.region {
            Some(region) => Way::InPlace(region.all()),
            None => Way::InPlace(self.register(entries, buffer)),
        }
    }

    /// Remembers that a buffer was seen. There is room for one at least.
    fn note(&self, entries: &mut Entries, buffer: &UserBuffer) {
        entries.sweep();
        while entries.by_id.len() >= self.entries_max && entries.evict(|_| true) {}
        let entry = Entry { used: entries.look_ups, handles: buffer.handles(), region: None };
        entries.by_id.insert(buffer.id(), entry);
    }

    /// Keeps a region over a buffer that was noted. It is within the bound by itself.
    fn register(&self, entries: &mut Entries, buffer: &UserBuffer) -> Span {
        let (region, bytes) = (buffer.region(), buffer.bytes() as u64);
        entries.sweep();
        while entries.stats.registered_bytes + bytes > self.bytes_max
            && entries.evict(|entry| entry.region.is_some())
        {}
        let span = region.all();
        if let Some(entry) = entries.by_id.get_mut(&buffer.id()) {
            entry.region = Some(region);
            entries.stats.registered += 1;
            entries.stats.registered_bytes += bytes;
        }
        span
    }
}

impl Entries {
    fn remove(&mut self, id: BufferId) {
        if let Some(region) = self.by_id.remove(&id).and_then(|entry| entry.region) {
            self.stats.registered -= 1;
            self.stats.registered_bytes -= region.len() as u64;
            self.gone.push(region);
        }
    }

    fn sweep(&mut self) {
        let Self { by_id, stats, gone, .. } = self;
        by_id.retain(|_, entry| {
            let is_gone = entry.handles.are_gone();
            if is_gone && let Some(region) = entry.region.take() {
                stats.registered -= 1;
                stats.registered_bytes -= region.len() as u64;
                gone.push(region);
            }
            !is_gone
        });
    }

    /// Takes out the least recently used of these; false where there is none.
    fn evict(&mut self, of: impl Fn(&Entry) -> bool) -> bool {
        let those = self.by_id.iter().filter(|(_, entry)| of(entry));
        let Some(id) = those.min_by_key(|(_, entry)| entry.used).map(|(id, _)| *id) else { return false };
        self.stats.evictions += 1;
        self.remove(id);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, OnceLock};

    fn cache(entries_max: usize, bytes: u64) -> RegistrationCache {
        let settings = MemorySettings { registration_cache_bytes: bytes, ..MemorySettings::default() };
        RegistrationCache { entries_max, ..RegistrationCache::new(&settings, None) }
    }

    /// 16 bytes.
    fn buffer() -> UserBuffer {
        vec![1.0f32; 4].into()
    }

    /// Which of them were copied.
    fn copied(cache: &RegistrationCache, buffers: &[&UserBuffer]) -> Vec<bool> {
        buffers.iter().map(|buffer| matches!(cache.look_up(buffer), Way::Copy)).collect()
    }

    #[test]
    fn the_first_use_is_copied_and_the_next_are_not() {
        let (cache, a, b) = (cache(8, 1 << 20), buffer(), buffer());
        assert_eq!(copied(&cache, &[&a, &a.clone(), &b, &a]), [true, false, true, false]);
        let stats =
            RegistrationStats { hits: 2, copies: 2, evictions: 0, registered: 1, registered_bytes: 16 };
        assert_eq!(cache.sweep(), stats);
    }

    #[test]
    fn as_many_entries_as_allowed_and_no_more() {
        let (cache, a, b, c) = (cache(2, 1 << 20), buffer(), buffer(), buffer());
        copied(&cache, &[&a, &b, &a, &b]);
        assert_eq!((cache.sweep().registered, cache.sweep().evictions), (2, 0));
        copied(&cache, &[&a, &c]);
        assert_eq!((cache.sweep().registered, cache.sweep().evictions), (1, 1));
        assert_eq!(copied(&cache, &[&a, &b]), [false, true], "b was the least recently used");
    }

    #[test]
    fn as_many_bytes_as_allowed_and_no_more() {
        let (cache, a, b, c) = (cache(8, 32), buffer(), buffer(), buffer());
        copied(&cache, &[&a, &b, &a, &b]);
        assert_eq!((cache.sweep().registered_bytes, cache.sweep().evictions), (32, 0));
        assert_eq!(copied(&cache, &[&c, &c]), [true, false]);
        assert_eq!((cache.sweep().registered_bytes, cache.sweep().evictions), (32, 1));
        assert_eq!(copied(&cache, &[&b, &a]), [false, true]);
    }

    #[test]
    fn a_buffer_above_the_bound_is_always_copied() {
        let whole: UserBuffer = vec![1.0f32; 8].into();
        let over: UserBuffer = vec![1.0f32; 9].into();
        let cache = cache(8, 32);
        assert_eq!(copied(&cache, &[&over, &over, &whole, &whole]), [true, true, true, false]);
    }

    #[test]
    fn none_allowed_is_off() {
        let (cache, a) = (cache(8, 0), buffer());
        assert_eq!(copied(&cache, &[&a, &a, &a]), [true; 3]);
        assert_eq!(cache.sweep().registered, 0);
    }

    #[test]
    fn what_nobody_has_any_more_goes_and_makes_room() {
        let (cache, dead, live) = (cache(2, 1 << 20), Arc::new(vec![1.0f32; 4]), buffer());
        let user = UserBuffer::from(dead.clone());
        copied(&cache, &[&user, &user, &live, &live]);
        drop(user);
        assert_eq!(Arc::strong_count(&dead), 2, "kept until it is noticed");
        let new = buffer();
        copied(&cache, &[&new, &new, &live]);
        assert_eq!(Arc::strong_count(&dead), 1);
        let stats = cache.sweep();
        assert_eq!((stats.registered, stats.evictions), (2, 0));
    }

    #[test]
    fn it_is_noticed_also_where_no_new_buffer_comes() {
        let (cache, dead, live) = (cache(8, 1 << 20), Arc::new(vec![1.0f32; 4]), buffer());
        let user = UserBuffer::from(dead.clone());
        copied(&cache, &[&user, &user, &live, &live]);
        drop(user);
        copied(&cache, &[&live; LOOK_UPS_PER_SWEEP as usize]);
        assert_eq!(Arc::strong_count(&dead), 1);
    }

    #[test]
    fn forgotten_is_as_if_never_seen() {
        let (cache, a) = (cache(8, 1 << 20), buffer());
        copied(&cache, &[&a, &a]);
        cache.forget(&a);
        assert_eq!(cache.sweep().registered_bytes, 0);
        assert_eq!(copied(&cache, &[&a, &a]), [true, false]);
        cache.forget(&buffer());
        cache.forget(&a);
        assert!(a.into_vec().is_ok(), "nothing else has it");
    }

    /// An owner whose end uses the cache.
    struct Caller(Vec<f32>, Arc<OnceLock<Arc<RegistrationCache>>>);

    impl AsRef<[f32]> for Caller {
        fn as_ref(&self) -> &[f32] {
            &self.0
        }
    }

    impl Drop for Caller {
        fn drop(&mut self) {
            self.1.get().map(|cache| cache.sweep());
        }
    }

    #[test]
    fn an_owner_that_ends_may_use_the_cache() {
        let place = Arc::new(OnceLock::new());
        let cache = Arc::new(cache(8, 1 << 20));
        assert!(place.set(cache.clone()).is_ok());
        let user = UserBuffer::from(Arc::new(Caller(vec![1.0], place)));
        copied(&cache, &[&user, &user]);
        drop(user);
        assert_eq!(cache.sweep().registered, 0);
    }
}
