//! Buffers of the caller's own, over which regions are made: work requests gather from them where they are. It knows
//! who still has such a buffer; which regions over them are kept is the business of whoever asks for one.

use super::region::{Access, Region};
use std::any::Any;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

/// Which buffer it is, among all that this process ever has: one that lies where another lay is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferId(u64);

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Numbers in memory that the library did not allocate. Clones share them, and an operation has a clone for as long
/// as it lasts; they are written only by the holder of the only one. They are never given back too early: a region
/// over them keeps them, whoever has dropped the buffer.
#[derive(Clone, Debug)]
pub struct UserBuffer {
    memory: Arc<Memory>,
    /// One count for each clone; regions are none.
    handle: Arc<()>,
}

/// Who has a buffer, seen without having it.
#[derive(Clone, Debug)]
pub struct Handles(Weak<()>);

impl Handles {
    /// Has everybody dropped the buffer? Then nobody can ever name it again.
    #[must_use]
    pub fn are_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// Where the numbers are, and what keeps them there.
struct Memory {
    id: BufferId,
    start: NonNull<f32>,
    count: usize,
    owner: Owner,
}

enum Owner {
    /// They were handed over: a vector that moves leaves its elements where they are.
    Ours(Vec<f32>),
    /// Others have them too.
    Shared { _owner: Box<dyn Any + Send + Sync> },
}

// SAFETY: the numbers stay where they are, valid from any thread, as long as the owner lives, which is part of it and
// may itself be sent. Needed because raw pointers are not Send.
unsafe impl Send for Memory {}
// SAFETY: as above; they are written only through the only handle, borrowed exclusively.
unsafe impl Sync for Memory {}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("id", &self.id).field("count", &self.count).finish_non_exhaustive()
    }
}

impl From<Vec<f32>> for UserBuffer {
    /// Numbers that are handed over: they can be changed between operations, and taken back.
    fn from(mut numbers: Vec<f32>) -> Self {
        let start = NonNull::new(numbers.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self::new(start, numbers.len(), Owner::Ours(numbers))
    }
}

impl<T: AsRef<[f32]> + Send + Sync + ?Sized + 'static> From<Arc<T>> for UserBuffer {
    /// Numbers that others have too (`Arc<Vec<f32>>`, `Arc<[f32]>`): only for reading. Keep the buffer: a second one
    /// of the same `Arc` is another.
    fn from(owner: Arc<T>) -> Self {
        let numbers: &[f32] = (*owner).as_ref();
        let (start, count) = (NonNull::from(numbers).cast(), numbers.len());
        // What `as_ref` returned is borrowed from the `T`, which neither moves nor is dropped or borrowed mutably as
        // long as an `Arc` of it exists, and this keeps one: so the slice is valid, and nothing changes it, for as
        // long.
        Self::new(start, count, Owner::Shared { _owner: Box::new(owner) })
    }
}

impl UserBuffer {
    fn new(start: NonNull<f32>, count: usize, owner: Owner) -> Self {
        let id = BufferId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        Self { memory: Arc::new(Memory { id, start, count, owner }), handle: Arc::new(()) }
    }

    /// Numbers of an owner that Rust does not know, such as an array of another language.
    ///
    /// # Safety
    /// As for [`Region::adopt`] with [`Access::Read`]; `start` must be aligned for `f32`, and nobody may write the
    /// numbers while a clone of the buffer is borrowed as a slice.
    #[must_use]
    pub unsafe fn adopt(start: NonNull<f32>, count: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self::new(start, count, Owner::Shared { _owner: owner })
    }

    /// Which buffer it is.
    #[must_use]
    pub fn id(&self) -> BufferId {
        self.memory.id
    }

    /// A new region over it, which keeps its memory. Whoever posts work from it keeps a clone of the buffer
    /// meanwhile, so that nobody writes it.
    #[must_use]
    pub fn region(&self) -> Region {
        let access = if self.is_shared() { Access::Read } else { Access::ReadWrite };
        // SAFETY: the memory is valid, and at this place, as long as its owner lives, which the region keeps. Shared
        // numbers are never written; ours only by the holder of the only clone, and whoever posts work has another.
        // Two regions over one buffer may overlap: neither writes by itself. Needed because a region outlives every
        // borrow.
        unsafe {
            Region::adopt(self.memory.start.cast(), self.bytes(), access, Box::new(self.memory.clone()))
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val::<[f32]>(self)
    }

    /// Who has it.
    #[must_use]
    pub fn handles(&self) -> Handles {
        Handles(Arc::downgrade(&self.handle))
    }

    /// The numbers, to be changed: where they were handed over, and nobody has a clone, so that no operation is under
    /// way with them.
    pub fn get_mut(&mut self) -> Option<&mut [f32]> {
        if !self.is_only() || self.is_shared() {
            return None;
        }
        let (start, count) = (self.memory.start.as_ptr(), self.memory.count);
        // SAFETY: the numbers are alive and writable (handed over). This is the only clone and borrowed exclusively,
        // so nobody else has a reference; operations that used it have dropped their clones. Regions hand out none.
        // Needed because the numbers stay where regions lie.
        Some(unsafe { std::slice::from_raw_parts_mut(start, count) })
    }

    /// The numbers that were handed over. Where somebody has a clone, or a region over it (a cache, an operation),
    /// or where they were not handed over at all, the buffer comes back.
    pub fn into_vec(self) -> Result<Vec<f32>, Self> {
        if !self.is_only() || self.is_shared() {
            return Err(self);
        }
        let Self { memory, handle } = self;
        match Arc::try_unwrap(memory).map(|memory| memory.owner) {
            Ok(Owner::Ours(numbers)) => Ok(numbers),
            // Invariant: looked at above.
            Ok(Owner::Shared { .. }) => unreachable!("shared numbers were sent back"),
            Err(memory) => Err(Self { memory, handle }),
        }
    }

    fn is_shared(&self) -> bool {
        matches!(self.memory.owner, Owner::Shared { .. })
    }

    /// Has nobody a clone?
    fn is_only(&self) -> bool {
        let is_only = Arc::strong_count(&self.handle) == 1;
        // What those did with it who dropped their clones was before this.
        fence(Ordering::Acquire);
        is_only
    }
}

impl Deref for UserBuffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        // SAFETY: the owner keeps the numbers alive; as long as this borrow lasts `get_mut` is not called on this
        // clone, and answers nothing on another. Peers write them only under a grant, and whoever gives one has the
        // buffer to itself. Needed so that trainers read what they own.
        unsafe { std::slice::from_raw_parts(self.memory.start.as_ptr(), self.memory.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    /// Counts how often it was dropped.
    struct Counted(Vec<f32>, Arc<AtomicUsize>);

    impl AsRef<[f32]> for Counted {
        fn as_ref(&self) -> &[f32] {
            &self.0
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn numbers_stay_where_they_are_and_are_read_there() {
        let numbers: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let at = numbers.as_ptr();
        let mut buffer = UserBuffer::from(numbers);
        let region = buffer.region();
        assert_eq!((buffer.as_ptr(), buffer.bytes(), region.len()), (at, 4000, 4000));
        buffer.get_mut().unwrap()[999] = 0.5;
        assert_eq!(region.contents()[3996..], 0.5f32.to_ne_bytes());
        assert!(region.memfd().is_none() && region.is_writable());
        drop(region);
        let numbers = buffer.into_vec().unwrap();
        assert_eq!((numbers.as_ptr(), numbers[999]), (at, 0.5));
    }

    #[test]
    fn whoever_has_a_clone_or_a_region_keeps_it() {
        let mut buffer = UserBuffer::from(vec![1.0f32; 4]);
        let handles = buffer.handles();
        let in_use = buffer.clone();
        assert!(buffer.get_mut().is_none());
        drop(in_use);
        let region = buffer.region();
        assert!(buffer.get_mut().is_some(), "a region that nobody posts from is no obstacle");
        let mut buffer = buffer.into_vec().unwrap_err();
        drop(region);
        buffer.get_mut().unwrap().fill(2.0);
        assert!(!handles.are_gone());
        assert_eq!(buffer.into_vec().unwrap(), [2.0; 4]);
        assert!(handles.are_gone());
    }

    #[test]
    fn a_shared_owner_lives_as_long_as_the_region_and_is_never_written() {
        let drops = Arc::new(AtomicUsize::new(0));
        let mut buffer = UserBuffer::from(Arc::new(Counted(vec![3.0; 4], drops.clone())));
        assert!(buffer.get_mut().is_none());
        let buffer = buffer.into_vec().unwrap_err();
        let (region, handles) = (buffer.region(), buffer.handles());
        assert!(region.write(0, &[0]).is_err() && region.all().writable().is_err());
        let other = Region::allocate(16, "other").unwrap();
        assert!(region.copy(0, &other, 0, 4).is_err());
        drop(buffer);
        assert!(handles.are_gone());
        assert_eq!((drops.load(Ordering::SeqCst), &region.contents()[12..]), (0, &3.0f32.to_ne_bytes()[..]));
        drop(region);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn owners_of_all_kinds() {
        let slice: Arc<[f32]> = vec![1.0, 2.0].into();
        assert_eq!(*UserBuffer::from(slice.clone()), [1.0, 2.0]);
        assert_eq!(*UserBuffer::from(Arc::new(vec![4.0f32])), [4.0]);
        assert!(UserBuffer::from(Vec::new()).region().is_empty());
        let start = NonNull::from(&slice[1]);
        // SAFETY: the number is part of the slice, which goes along.
        let adopted = unsafe { UserBuffer::adopt(start, 1, Box::new(slice)) };
        assert_eq!(*adopted, [2.0]);
    }

    #[test]
    fn no_two_buffers_are_the_same_even_at_one_address() {
        let numbers = Arc::new(vec![1.0f32; 16]);
        let (first, second) = (UserBuffer::from(numbers.clone()), UserBuffer::from(numbers));
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert_ne!(first.id(), second.id());
        assert_eq!(first.id(), first.clone().id());
        assert_ne!(first.region().id(), first.region().id(), "each registration is one of its own");
    }
}
