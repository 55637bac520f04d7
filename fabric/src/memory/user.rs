//! Buffers of the caller's own, over which regions lie: work requests gather from them where they are. It knows who
//! still has such a buffer; which of them stay registered is the business of whoever keeps their regions.

use super::region::{Access, Region, Span};
use std::any::Any;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

/// Numbers in memory that the library did not allocate. Clones share them, and an operation has a clone for as long
/// as it lasts; they are written only by the holder of the only one. Where they lie is never forgotten too early:
/// the region over them keeps them, whoever has dropped the buffer.
///
/// The identity of a buffer is its region's id, which no other buffer of this process ever has: not one at the same
/// address, and not a second one over the same `Arc`.
#[derive(Clone, Debug)]
pub struct UserBuffer {
    region: Region,
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

impl From<Vec<f32>> for UserBuffer {
    /// Numbers that are handed over: they can be changed between operations, and taken back.
    fn from(numbers: Vec<f32>) -> Self {
        Self::of(Region::of_numbers(numbers))
    }
}

impl<T: AsRef<[f32]> + Send + Sync + ?Sized + 'static> From<Arc<T>> for UserBuffer {
    /// Numbers that others have too (`Arc<Vec<f32>>`, `Arc<[f32]>`): only for reading.
    fn from(owner: Arc<T>) -> Self {
        let numbers: &[f32] = (*owner).as_ref();
        let (start, bytes) = (NonNull::from(numbers).cast(), size_of_val(numbers));
        // SAFETY: what `as_ref` returned is borrowed from the `T`, which neither moves nor is dropped or borrowed
        // mutably as long as an `Arc` of it exists, and the region keeps one: so the slice is valid, and nothing
        // changes it, for as long. It is only read. Needed because a region outlives every borrow.
        Self::of(unsafe { Region::adopt(start, bytes, Access::Read, Box::new(owner)) })
    }
}

impl UserBuffer {
    fn of(region: Region) -> Self {
        Self { region, handle: Arc::new(()) }
    }

    /// Numbers of an owner that Rust does not know, such as an array of another language.
    ///
    /// # Safety
    /// As for [`Region::adopt`] with [`Access::Read`]; `start` must be aligned for `f32`.
    #[must_use]
    pub unsafe fn adopt(start: NonNull<f32>, count: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        let bytes = count * size_of::<f32>();
        // SAFETY: the caller's promise is passed on.
        Self::of(unsafe { Region::adopt(start.cast(), bytes, Access::Read, owner) })
    }

    /// The region over it. Whoever posts work from it keeps a clone of the buffer meanwhile, so that nobody writes
    /// it.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// All of it, for work requests.
    #[must_use]
    pub fn span(&self) -> Span {
        self.region.all()
    }

    /// Who has it.
    #[must_use]
    pub fn handles(&self) -> Handles {
        Handles(Arc::downgrade(&self.handle))
    }

    /// The numbers, to be changed: where they were handed over, and nobody has a clone, so that no operation is under
    /// way with them.
    pub fn get_mut(&mut self) -> Option<&mut [f32]> {
        if !self.is_mine() {
            return None;
        }
        let (start, count) = self.numbers();
        // SAFETY: the numbers are alive and writable (handed over). This is the only clone and borrowed exclusively,
        // so nobody else has a reference; operations that used it have dropped their clones. Regions hand out none.
        // Needed because the numbers stay where the region lies.
        Some(unsafe { std::slice::from_raw_parts_mut(start, count) })
    }

    /// The numbers that were handed over. Where somebody has a clone, or a region over it (a cache, an operation),
    /// or where they were not handed over at all, the buffer comes back.
    pub fn into_vec(self) -> Result<Vec<f32>, Self> {
        if !self.is_mine() {
            return Err(self);
        }
        let Self { region, handle } = self;
        region.into_numbers().map_err(|region| Self { region, handle })
    }

    /// Writable, and nobody has a clone.
    fn is_mine(&self) -> bool {
        let is_only = Arc::strong_count(&self.handle) == 1;
        // What those did with it who dropped their clones was before this.
        fence(Ordering::Acquire);
        is_only && self.region.is_writable()
    }

    fn numbers(&self) -> (*mut f32, usize) {
        (self.span().as_ptr().cast(), self.region.len() / size_of::<f32>())
    }
}

impl Deref for UserBuffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        let (start, count) = self.numbers();
        // SAFETY: the region keeps the numbers alive; as long as this borrow lasts `get_mut` is not called on this
        // clone, and answers nothing on another. Peers write them only under a grant, and whoever gives one has the
        // buffer to itself. Needed so that trainers read what they own.
        unsafe { std::slice::from_raw_parts(start, count) }
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
        assert_eq!((buffer.as_ptr(), buffer.region().len()), (at, 4000));
        buffer.get_mut().unwrap()[999] = 0.5;
        let mut last = [0; 4];
        buffer.region().read(3996, &mut last).unwrap();
        assert_eq!(f32::from_ne_bytes(last), 0.5);
        assert!(buffer.region().memfd().is_none() && buffer.region().is_writable());
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
        let region = buffer.region().clone();
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
        assert!(buffer.region().write(0, &[0]).is_err());
        assert!(buffer.span().writable().is_err());
        let buffer = buffer.into_vec().unwrap_err();
        let (region, handles) = (buffer.region().clone(), buffer.handles());
        drop(buffer);
        assert!(handles.are_gone());
        assert_eq!((drops.load(Ordering::SeqCst), region.f32s(12, 1).unwrap().at(0)), (0, 3.0));
        drop(region);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn owners_of_all_kinds() {
        let slice: Arc<[f32]> = vec![1.0, 2.0].into();
        assert_eq!(*UserBuffer::from(slice.clone()), [1.0, 2.0]);
        assert_eq!(*UserBuffer::from(Arc::new(vec![4.0f32])), [4.0]);
        assert!(UserBuffer::from(Vec::new()).is_empty());
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
        assert_ne!(first.region().id(), second.region().id());
        assert_eq!(first.region().id(), first.clone().region().id());
    }
}
