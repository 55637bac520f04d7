//! A region: library-allocated memory (a sealed memfd, mapped shared) that drivers register and peers may
//! be granted. Its bytes are reached by raw copies with a bounds check, never by a reference, because a
//! peer may write them at any time; exclusive parts are handed out by the [pool](super::Pool).

use crate::error::FabricError;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// A stretch that is not inside its region: the caller's mistake, or a peer's lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{bytes} bytes at {offset} are not within the {region_bytes} bytes of the region")]
pub struct OutOfBounds {
    /// Offset asked for.
    pub offset: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Bytes there are.
    pub region_bytes: u64,
}

impl OutOfBounds {
    /// The one bounds check of regions, spans and views; a sum that overflows is out of bounds.
    #[inline]
    pub(crate) fn unless_within(offset: u64, bytes: u64, region_bytes: u64) -> Result<(), Self> {
        match offset.checked_add(bytes) {
            Some(end) if end <= region_bytes => Ok(()),
            _ => Err(Self { offset, bytes, region_bytes }),
        }
    }
}

/// A mapped stretch of shared memory; unmapped on drop.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is an address range that stays valid until drop, wherever it is used from; all access
// through it is by raw copies or atomics. Needed because raw pointers are not Send.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent raw copies may tear bytes but touch nothing outside the range.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of a memfd for reading, and writing where asked. The fd must be sealed against
    /// shrinking, or a peer could make every access a bus error.
    pub(crate) fn of_fd(fd: BorrowedFd<'_>, bytes: usize, writable: bool) -> Result<Self, FabricError> {
        let seals =
            fcntl_get_seals(fd).map_err(|e| FabricError::os("reading the seals of shared memory", e))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(FabricError::Peer("its shared memory is not sealed against shrinking".into()));
        }
        let size = fstat(fd).map_err(|e| FabricError::os("reading the size of shared memory", e))?.st_size;
        if bytes == 0 || u64::try_from(size).unwrap_or(0) < bytes as u64 {
            return Err(FabricError::Peer(format!(
                "its shared memory has {size} bytes, {bytes} were announced"
            )));
        }
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice, of a file that cannot shrink below
        // it. Needed because mmap is the only way to share memory.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, prot, flags, fd, 0) }
            .map_err(|e| FabricError::os("mapping shared memory", e))?;
        // SAFETY: the range just mapped. Forked children must not share it: a write of theirs would be seen
        // by peers. Failure only loses that protection.
        let _ = unsafe { madvise(base, bytes, Advice::LinuxDontFork) };
        let base =
            NonNull::new(base.cast()).ok_or_else(|| FabricError::Internal("mmap returned null".into()))?;
        Ok(Self { base, bytes })
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn check(&self, offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        OutOfBounds::unless_within(offset, bytes, self.bytes as u64)
    }

    /// Address of a checked stretch, for raw copies and system calls.
    pub(crate) fn at(&self, offset: u64, bytes: u64) -> Result<*mut u8, OutOfBounds> {
        self.check(offset, bytes)?;
        // SAFETY: offset is within the mapping, checked above.
        Ok(unsafe { self.base.as_ptr().add(offset as usize) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `of_fd` with these values and not used after; needed to give memory back.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping");
    }
}

#[derive(Debug)]
struct Inner {
    mapping: Mapping,
    memfd: OwnedFd,
    id: u64,
}

/// A region of registered memory. Clones share it; it lives until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Region(Arc<Inner>);

/// Region ids are unique within the process for its whole life: one that is gone is never honoured again.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Region {
    /// Allocates zeroed memory. Pages are taken from the system at first touch.
    pub fn allocate(bytes: usize, name: &str) -> Result<Self, FabricError> {
        let what = |step: &str| format!("allocating region {name:?} of {bytes} bytes: {step}");
        let memfd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(|e| FabricError::os(what("memfd_create"), e))?;
        ftruncate(&memfd, bytes as u64).map_err(|e| FabricError::os(what("ftruncate"), e))?;
        fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|e| FabricError::os(what("sealing"), e))?;
        let mapping = Mapping::of_fd(memfd.as_fd(), bytes, true)?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Ok(Self(Arc::new(Inner { mapping, memfd, id })))
    }

    /// Unique id within this process; also the remote key on shm and tcp.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Bytes of the region.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.mapping.len()
    }

    /// Regions are never empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The file behind it, to hand to a peer on this host.
    pub(crate) fn memfd(&self) -> BorrowedFd<'_> {
        self.0.memfd.as_fd()
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.0.mapping
    }

    /// A checked stretch.
    pub fn span(&self, offset: u64, bytes: u64) -> Result<Span, OutOfBounds> {
        self.mapping().check(offset, bytes)?;
        Ok(Span { region: self.clone(), offset, bytes })
    }

    /// Copies bytes out. A peer writing at the same time can tear them: validate the copy.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.mapping().at(offset, into.len() as u64)?;
        // SAFETY: the source lies in the mapping (checked), the target is an exclusive slice, and they do
        // not overlap because no reference into a region of this kind is ever given out while peers write.
        // Needed because a peer's memory must not be a Rust reference.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes from a place in any region.
    pub fn copy(&self, offset: u64, from: &Self, from_offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        let (to, from) = (self.mapping().at(offset, bytes)?, from.mapping().at(from_offset, bytes)?);
        // SAFETY: both stretches lie in live mappings (checked); they may overlap. As in `read`, nobody has a
        // reference into memory that peers write. Needed so that a spilt contribution is copied once.
        unsafe { std::ptr::copy(from.cast_const(), to, bytes as usize) };
        Ok(())
    }

    /// Copies bytes in.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfBounds> {
        let to = self.mapping().at(offset, from.len() as u64)?;
        // SAFETY: as in `read`, the other way.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }
}

/// A checked stretch of a region: what work requests gather from.
#[derive(Clone, Debug)]
pub struct Span {
    region: Region,
    offset: u64,
    bytes: u64,
}

impl Span {
    /// The region it lies in.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Bytes before it in the region.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Is it empty?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// A stretch of this stretch.
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<Self, OutOfBounds> {
        OutOfBounds::unless_within(offset, bytes, self.bytes)?;
        Ok(Self { region: self.region.clone(), offset: self.offset + offset, bytes })
    }

    /// Address for raw copies and system calls; valid as long as the span lives.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        // SAFETY: offset and length were checked against the region when the span was made.
        unsafe { self.region.mapping().base.as_ptr().add(self.offset as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_the_bound() {
        let region = Region::allocate(4096, "test").unwrap();
        region.write(4092, b"tail").unwrap();
        let mut out = [0; 4];
        region.read(4092, &mut out).unwrap();
        assert_eq!(&out, b"tail");
        assert!(region.write(4093, b"tail").is_err());
        assert!(region.read(u64::MAX, &mut out).is_err());
        assert!(region.span(0, 4096).is_ok());
        assert_eq!(
            region.span(1, 4096).err(),
            Some(OutOfBounds { offset: 1, bytes: 4096, region_bytes: 4096 })
        );
        let span = region.span(4000, 96).unwrap();
        assert!(span.slice(90, 6).is_ok());
        assert!(span.slice(90, 7).is_err());
    }

    #[test]
    fn copies_from_region_to_region() {
        let (from, to) = (Region::allocate(4096, "from").unwrap(), Region::allocate(8192, "to").unwrap());
        from.write(4090, b"abcdef").unwrap();
        to.copy(8186, &from, 4090, 6).unwrap();
        to.copy(8184, &to, 8186, 6).unwrap();
        let mut out = [0; 8];
        to.read(8184, &mut out).unwrap();
        assert_eq!(&out, b"abcdefef");
        assert!(to.copy(8187, &from, 4090, 6).is_err());
        assert!(to.copy(0, &from, 4091, 6).is_err());
    }

    #[test]
    fn memory_that_could_shrink_is_not_mapped() {
        let memfd = memfd_create("open", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memfd, 4096).unwrap();
        assert!(matches!(Mapping::of_fd(memfd.as_fd(), 4096, true), Err(FabricError::Peer(_))));
        fcntl_add_seals(&memfd, SealFlags::SHRINK).unwrap();
        assert!(Mapping::of_fd(memfd.as_fd(), 4096, true).is_ok());
        assert!(matches!(Mapping::of_fd(memfd.as_fd(), 4097, true), Err(FabricError::Peer(_))));
    }

    #[test]
    fn ids_are_never_reused() {
        let first = Region::allocate(4096, "a").unwrap().id();
        assert!(Region::allocate(4096, "b").unwrap().id() > first);
    }
}
