//! A region: memory that drivers register and peers may be granted, allocated by the library (a sealed memfd,
//! mapped shared) or adopted from whoever owns it. Its bytes are reached by raw copies with a bounds check, never
//! by a reference, because a peer may write them at any time, and only here: parts for this process alone are handed out by
//! the [pool](super::Pool), parts that peers write are [`PeerWritable`](super::PeerWritable), and adopted memory is handed out
//! by the [user buffer](super::UserBuffer) over it.

use crate::address_space::not_mapped;
use crate::error::{FabricError, PostError};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::any::Any;
use std::borrow::Cow;
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use thiserror::Error;

/// A stretch that is not inside its region: the caller's mistake, or a peer's lie. Of a region that is only for
/// reading, no bytes can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("out of bounds: {bytes} bytes at offset {offset} of a region of {region_bytes} bytes")]
pub struct OutOfBounds {
    /// Offset asked for.
    pub offset: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Bytes there are, to be used in this way.
    pub region_bytes: u64,
}

impl OutOfBounds {
    /// The one bounds check of regions, spans and views; a sum that overflows is out of bounds.
    #[inline]
    pub fn unless_within(offset: u64, bytes: u64, region_bytes: u64) -> Result<(), Self> {
        match offset.checked_add(bytes) {
            Some(end) if end <= region_bytes => Ok(()),
            _ => Err(Self { offset, bytes, region_bytes }),
        }
    }
}

/// A stretch of memory: mapped by us and unmapped on drop, or adopted and valid for as long as its owner lives.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    is_ours: bool,
    is_writable: bool,
}

// SAFETY: a mapping is an address range that stays valid until drop, wherever it is used from; all access
// through it is by raw copies or atomics. Whoever adopts promised the same. Needed because raw pointers are not Send.
unsafe impl Send for Mapping {}
// SAFETY: as above; concurrent raw copies may tear bytes but touch nothing outside the range.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `bytes` of a memfd for reading, and writing where asked. The fd must be sealed against
    /// shrinking, or a peer could make every access a bus error.
    pub(crate) fn of_fd(fd: BorrowedFd<'_>, bytes: usize, writable: bool) -> Result<Self, FabricError> {
        Self::shared(fd, bytes, writable, MapFlags::NORESERVE)
    }

    fn shared(
        fd: BorrowedFd<'_>,
        bytes: usize,
        writable: bool,
        flags: MapFlags,
    ) -> Result<Self, FabricError> {
        let mapping = Self::with_flags(fd, bytes, writable, MapFlags::SHARED | flags)?;
        // SAFETY: the whole of a live mapping. Forked children must not share it, because peers would see what they write. Failure
        // only loses that protection. Needed because there is no other way to say it.
        let _ = unsafe { madvise(mapping.base.as_ptr().cast(), bytes, Advice::LinuxDontFork) };
        Ok(mapping)
    }

    /// Memory of a peer, copy on write: what is written to it, the peer does not see.
    pub(super) fn private_of_peer(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, FabricError> {
        Self::with_flags(fd, bytes, true, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    fn with_flags(
        fd: BorrowedFd<'_>,
        bytes: usize,
        writable: bool,
        flags: MapFlags,
    ) -> Result<Self, FabricError> {
        let seals =
            fcntl_get_seals(fd).map_err(|e| FabricError::os("reading the seals of shared memory", e))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(FabricError::Peer("its shared memory is not sealed against shrinking".into()));
        }
        let size = fstat(fd).map_err(|e| FabricError::os("reading the size of shared memory", e))?.st_size;
        if bytes == 0 || u64::try_from(size).unwrap_or(0) < bytes as u64 {
            return Err(FabricError::Peer(format!(
                "its shared memory has {size} bytes, but {bytes} bytes were announced"
            )));
        }
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a fresh mapping at an address of the kernel's choice, of a file that cannot shrink below
        // it. Needed because mmap is the only way to share memory.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, prot, flags, fd, 0) }
            .map_err(|e| not_mapped("mapping shared memory", bytes, e))?;
        Self::ours(base, bytes, writable)
    }

    /// What was just mapped.
    fn ours(base: *mut c_void, bytes: usize, is_writable: bool) -> Result<Self, FabricError> {
        let base =
            NonNull::new(base.cast()).ok_or_else(|| FabricError::Internal("mmap returned null".into()))?;
        Ok(Self { base, bytes, is_ours: true, is_writable })
    }

    /// Fresh memory that nobody else has.
    pub(super) fn private(bytes: usize) -> Result<Self, FabricError> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice. Needed because a pool of all that may ever be kept must
        // take no pages before they are used, which the allocator does not promise.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes, prot, MapFlags::PRIVATE | MapFlags::NORESERVE)
        }
        .map_err(|e| not_mapped("mapping memory", bytes, e))?;
        Self::ours(base, bytes, true)
    }

    /// As [`Mapping::of_fd`] for memory of a peer: to be written, too, unless it is sealed against that.
    pub(crate) fn of_peer(fd: BorrowedFd<'_>, bytes: usize) -> Result<Self, FabricError> {
        let seals =
            fcntl_get_seals(fd).map_err(|e| FabricError::os("reading the seals of shared memory", e))?;
        Self::of_fd(fd, bytes, !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE))
    }

    /// May its bytes be written? A write to others would be a fault of the processor.
    pub(crate) fn is_writable(&self) -> bool {
        self.is_writable
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    #[inline]
    pub(super) fn start(&self) -> *mut u8 {
        self.base.as_ptr()
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
        if !self.is_ours {
            return;
        }
        // SAFETY: mapped in `with_flags` or `private` with these values and not used after; needed to give memory back.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping");
    }
}

/// What a region's memory is made of, kept for as long as the region lives.
enum Backing {
    /// The library's own, which peers on this host may map.
    Memfd { file: OwnedFd, peers_write: bool },
    /// The library's own, of huge pages. Peers do not map these: nothing guarantees them that a page is there.
    HugePages { _memfd: OwnedFd },
    /// The library's own, which nobody else can map.
    Private,
    /// Somebody else's.
    Adopted { _owner: Box<dyn Any + Send + Sync> },
}

/// What may be done to adopted memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing is ever written to it, by anybody: it is the source of writes, or read by peers.
    Read,
    /// It may also be landed in.
    ReadWrite,
}

/// Which pages library memory is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// The system's usual ones, taken at first touch.
    #[default]
    Normal,
    /// Huge ones where as many are free, taken at once; else normal ones.
    Huge,
    /// For this process alone, the system's usual ones, taken at first touch, which takes less time than that of memory that
    /// others may map.
    Private,
}

// Field order matters: what is behind the mapping goes after it.
struct Inner {
    mapping: Mapping,
    backing: Backing,
    id: u64,
}

/// A region of registered memory. Clones share it; it lives until the last clone is dropped.
#[derive(Clone)]
pub struct Region(Arc<Inner>);

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("id", &self.0.id).field("bytes", &self.len()).finish_non_exhaustive()
    }
}

/// Region ids are unique within the process for its whole life: one that is gone is never honoured again.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Has it been said that normal pages have to do?
static NO_HUGE_PAGES: Once = Once::new();

/// A name that no other memory of this process has.
pub(crate) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

impl Region {
    /// Allocates zeroed memory. Pages are taken from the system at first touch.
    pub fn allocate(bytes: usize, name: &str) -> Result<Self, FabricError> {
        Self::allocate_sealed(bytes, name, SealFlags::empty())
    }

    /// As [`Region::allocate`]; whoever it is handed to can map it for reading only: the kernel refuses more.
    pub fn allocate_readable(bytes: usize, name: &str) -> Result<Self, FabricError> {
        Self::allocate_sealed(bytes, name, SealFlags::FUTURE_WRITE)
    }

    fn allocate_sealed(bytes: usize, name: &str, seals: SealFlags) -> Result<Self, FabricError> {
        let (file, mapping) = Self::memfd_of(bytes, name, MemfdFlags::empty(), seals)?;
        Ok(Self::new(mapping, Backing::Memfd { file, peers_write: seals.is_empty() }))
    }

    /// As [`Region::allocate`], with huge pages where they are asked for and free; it is then rounded up to whole
    /// ones, and cannot be granted over shared memory. A warning, once in a process, says that normal pages have to do.
    pub fn allocate_with(pages: Pages, bytes: usize, name: &str) -> Result<Self, FabricError> {
        if pages == Pages::Private {
            return Ok(Self::new(Mapping::private(bytes)?, Backing::Private));
        }
        if pages == Pages::Huge {
            match Self::allocate_huge(bytes, name) {
                Ok(region) => return Ok(region),
                Err(error) => NO_HUGE_PAGES.call_once(|| {
                    tracing::warn!(
                        %error,
                        "too few free huge pages, using normal pages; raise vm.nr_hugepages (`sysctl vm.nr_hugepages=N`), or set memory.huge_pages = false"
                    );
                }),
            }
        }
        Self::allocate(bytes, name)
    }

    fn allocate_huge(bytes: usize, name: &str) -> Result<Self, FabricError> {
        let (memfd, mapping) = Self::memfd_of(bytes, name, MemfdFlags::HUGETLB, SealFlags::empty())?;
        Ok(Self::new(mapping, Backing::HugePages { _memfd: memfd }))
    }

    /// A file of so many bytes, or whole huge pages, that neither shrinks nor grows, and our mapping of it.
    fn memfd_of(
        bytes: usize,
        name: &str,
        pages: MemfdFlags,
        seals: SealFlags,
    ) -> Result<(OwnedFd, Mapping), FabricError> {
        let what = |step: &str| format!("allocating region {name:?} of {bytes} bytes: {step}");
        let memfd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | pages)
            .map_err(|e| FabricError::os(what("memfd_create"), e))?;
        let (mut whole, mut flags) = (bytes, MapFlags::NORESERVE);
        if !pages.is_empty() {
            let page = fstat(&memfd).map_err(|e| FabricError::os(what("fstat"), e))?.st_blksize;
            whole = bytes.next_multiple_of(usize::try_from(page).unwrap_or(1).max(1));
            // All are reserved now: a touch that found none would kill the process.
            flags = MapFlags::empty();
        }
        ftruncate(&memfd, whole as u64).map_err(|e| FabricError::os(what("ftruncate"), e))?;
        let seal = |seals| fcntl_add_seals(&memfd, seals).map_err(|e| FabricError::os(what("sealing"), e));
        seal(SealFlags::SHRINK | SealFlags::GROW)?;
        // Ours comes before a seal that forbids others like it.
        let mapping = Mapping::shared(memfd.as_fd(), whole, true, flags)?;
        seal(seals | SealFlags::SEAL)?;
        Ok((memfd, mapping))
    }

    fn new(mapping: Mapping, backing: Backing) -> Self {
        let id = next_id();
        Self(Arc::new(Inner { mapping, backing, id }))
    }

    /// Makes a region of memory that the library did not allocate, and keeps its owner for as long as the region
    /// lives. Writes from it work with every driver; peers can be granted it over tcp and verbs, but not over shared
    /// memory, where there is no file to hand over.
    ///
    /// Forked children do get this memory, other than the library's own: its pages may hold things that are none
    /// of ours, and a child that lacked them would crash. Linux copies pages that a device uses at once when a
    /// process forks (since 5.12), so that the parent keeps them.
    ///
    /// # Safety
    /// From `start` on, `bytes` bytes must be readable, and writable where `access` says so, at this address and
    /// from any thread, until `owner` is dropped. Until then nobody may change them through what the owner gives
    /// out while work from them is under way, and with [`Access::ReadWrite`] nobody may read or write them while a
    /// peer may land there. Of several regions over them, work may write by one at a time and none reads meanwhile.
    #[must_use]
    pub unsafe fn adopt(
        start: NonNull<u8>,
        bytes: usize,
        access: Access,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        let is_writable = access == Access::ReadWrite;
        let mapping = Mapping { base: start, bytes, is_ours: false, is_writable };
        Self::new(mapping, Backing::Adopted { _owner: owner })
    }

    /// A region over bytes that are handed over, for reading.
    #[must_use]
    pub fn of_bytes(bytes: Vec<u8>) -> Self {
        let (start, count) =
            (NonNull::new(bytes.as_ptr().cast_mut()).unwrap_or(NonNull::dangling()), bytes.len());
        // SAFETY: a vector that moves leaves its elements where they are, valid from any thread until it is dropped; the
        // region has the only one, and nothing writes them. Needed because a region outlives every borrow.
        unsafe { Self::adopt(start, count, Access::Read, Box::new(bytes)) }
    }

    /// May its bytes be written? Not those of memory that was adopted for reading.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.mapping().is_writable()
    }

    /// May peers write it, where they are granted that? Not what they are let read only.
    pub(crate) fn peers_write(&self) -> bool {
        self.is_writable() && !matches!(self.0.backing, Backing::Memfd { peers_write: false, .. })
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

    /// Has it no bytes? Only adopted memory can be so.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many own it, spans included.
    pub(crate) fn owners(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// The file behind it, to hand to a peer on this host; there is none that a peer would map for adopted memory
    /// and huge pages.
    pub(crate) fn memfd(&self) -> Option<BorrowedFd<'_>> {
        match &self.0.backing {
            Backing::Memfd { file, .. } => Some(file.as_fd()),
            Backing::HugePages { .. } | Backing::Private | Backing::Adopted { .. } => None,
        }
    }

    /// In a forked child, which has no memory at this place (see `Mapping::of_fd`'s advice): what is read there from
    /// now on is what the parent has, and what is written is the child's own. For languages whose arrays lie in regions
    /// and are looked at without asking. Where there is memory already, as in the parent, it is an error and changes
    /// nothing; memory of other kinds is left out.
    pub fn copy_for_child(&self) -> Result<(), FabricError> {
        let Some(memfd) = self.memfd() else { return Ok(()) };
        let Mapping { base, bytes, .. } = *self.mapping();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
        // SAFETY: maps only where nothing is mapped, which the kernel checks, at the place that this region's pointers
        // point to; the file cannot shrink below it. Needed because mmap is the only way to have memory at a place.
        let mapped =
            unsafe { mmap(base.as_ptr().cast(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags, memfd, 0) };
        mapped.map(drop).map_err(|e| FabricError::os("mapping memory for a forked child", e))
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.0.mapping
    }

    /// A checked stretch.
    pub fn span(&self, offset: u64, bytes: u64) -> Result<Span, OutOfBounds> {
        self.mapping().check(offset, bytes)?;
        Ok(Span { region: self.clone(), offset, bytes })
    }

    /// The stretch of this region that `memory` was adopted from, if it was.
    #[must_use]
    pub fn stretch_of(&self, memory: &Self) -> Option<Span> {
        let [start, other] = [self, memory].map(|region| region.mapping().start() as usize);
        self.span(other.checked_sub(start)? as u64, memory.len() as u64).ok()
    }

    /// All of it.
    #[must_use]
    pub fn all(&self) -> Span {
        Span { region: self.clone(), offset: 0, bytes: self.len() as u64 }
    }

    /// All of its bytes: where they lie, if the memory was adopted for reading, and else a copy.
    #[must_use]
    pub fn contents(&self) -> Cow<'_, [u8]> {
        self.adopted().map_or_else(
            || {
                let mut bytes = vec![0; self.len()];
                // All of it: it is within.
                let _ = self.read(0, &mut bytes);
                bytes.into()
            },
            Into::into,
        )
    }

    /// Copies bytes out. A peer writing at the same time can tear them: validate the copy.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.mapping().at(offset, into.len() as u64)?;
        // SAFETY: the source lies in the mapping (checked), the target is an exclusive slice, and they do
        // not overlap because no reference into a region of this kind is ever given out while peers write.
        // Needed because a peer's memory must not be a Rust reference.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Where bytes may be written: nowhere in memory that is for reading only.
    pub(crate) fn writable_at(&self, offset: u64, bytes: u64) -> Result<*mut u8, OutOfBounds> {
        if !self.is_writable() {
            OutOfBounds::unless_within(offset, bytes, 0)?;
        }
        self.mapping().at(offset, bytes)
    }

    /// Copies bytes from a place in any region.
    pub(crate) fn copy(
        &self,
        offset: u64,
        from: &Self,
        from_offset: u64,
        bytes: u64,
    ) -> Result<(), OutOfBounds> {
        let (to, from) = (self.writable_at(offset, bytes)?, from.mapping().at(from_offset, bytes)?);
        // SAFETY: both stretches lie in live mappings (checked); they may overlap. As in `read`, nobody has a
        // reference into memory that peers write. Needed so that a spilt contribution is copied once.
        unsafe { std::ptr::copy(from.cast_const(), to, bytes as usize) };
        Ok(())
    }

    /// The aligned word at an offset, as a peer wrote it last: what it wrote before is seen from here on.
    pub(crate) fn load(&self, offset: u64) -> Result<u64, OutOfBounds> {
        let at = self.mapping().at(offset & !7, 8)?;
        // SAFETY: in the mapping (checked), aligned as mappings and the offset are, and only ever read as an atomic here.
        // Needed because a device writes it at any time.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Acquire))
    }

    /// Writes bytes to pages that were never touched, through their file: so that they are neither cleared nor mapped first,
    /// which takes longer than the copy. How many were written: none where there is no file, or it says no.
    pub(super) fn write_untouched(&self, offset: u64, from: &[u8]) -> usize {
        let Some(memfd) = self.memfd().filter(|_| self.mapping().check(offset, from.len() as u64).is_ok())
        else {
            return 0;
        };
        let mut written = 0;
        while written < from.len() {
            match rustix::io::pwrite(memfd, &from[written..], offset + written as u64) {
                Ok(bytes) if bytes > 0 => written += bytes,
                Err(rustix::io::Errno::INTR) => {}
                _ => break,
            }
        }
        written
    }

    /// The bytes of memory that was adopted for reading.
    pub(super) fn adopted(&self) -> Option<&[u8]> {
        if self.is_writable() {
            return None;
        }
        // SAFETY: whoever adopted it promised that it is readable as long as the owner lives, which this region keeps, and that
        // nobody changes it while work from it is under way, which the caller's copy is. Needed to copy it to where only
        // system calls reach.
        Some(unsafe { std::slice::from_raw_parts(self.mapping().base.as_ptr(), self.len()) })
    }

    /// Copies bytes in.
    pub(crate) fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfBounds> {
        let to = self.writable_at(offset, from.len() as u64)?;
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

    /// Copies bytes to this offset in it. As for a read that lands here, the caller sees to it that nobody has a reference into the span.
    pub fn receive(&self, offset: u64, from: &[u8]) -> Result<(), OutOfBounds> {
        OutOfBounds::unless_within(offset, from.len() as u64, self.bytes)?;
        self.region.write(self.offset + offset, from)
    }

    /// May a read land in it?
    pub(crate) fn writable(&self) -> Result<(), PostError> {
        if self.region.is_writable() { Ok(()) } else { Err(PostError::ReadOnly) }
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
    fn memory_that_is_there_is_no_child_s() {
        let region = Region::allocate(4096, "test").unwrap();
        region.write(0, &[7]).unwrap();
        assert!(region.copy_for_child().is_err());
        let mut byte = [0];
        region.read(0, &mut byte).unwrap();
        assert_eq!(byte, [7]);
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
    fn what_is_only_for_reading_is_written_by_its_owner_alone() {
        let region = Region::allocate_readable(4096, "weights").unwrap();
        region.write(0, b"ours").unwrap();
        let memfd = region.memfd().unwrap();
        assert!(Mapping::of_fd(memfd, 4096, true).is_err(), "the kernel refuses a mapping to write");
        let mapping = Mapping::of_peer(memfd, 4096).unwrap();
        assert!(!mapping.is_writable());
        let open = Region::allocate(4096, "inbox").unwrap();
        assert!(Mapping::of_peer(open.memfd().unwrap(), 4096).unwrap().is_writable());
    }

    /// Real ones where the machine has free ones (`vm.nr_hugepages`), which a test cannot assume.
    #[test]
    fn huge_pages_or_normal_ones_work_the_same() {
        let region = Region::allocate_with(Pages::Huge, 5000, "huge").unwrap();
        let is_huge = matches!(region.0.backing, Backing::HugePages { .. });
        assert_eq!(region.memfd().is_none(), is_huge, "huge pages are never handed to a peer");
        let bytes = region.len() as u64;
        assert!(if is_huge { bytes.is_multiple_of(2 << 20) } else { bytes == 5000 }, "{bytes}");
        region.write(bytes - 4, b"tail").unwrap();
        assert!(region.write(bytes - 3, b"tail").is_err());
        assert!(Region::allocate_with(Pages::Normal, 5000, "normal").unwrap().memfd().is_some());
    }

    #[test]
    fn more_huge_pages_than_there_can_be_fall_back_to_normal_ones() {
        let region = Region::allocate_with(Pages::Huge, 1 << 44, "huge").unwrap();
        assert_eq!((region.len(), region.memfd().is_some()), (1 << 44, true));
    }

    #[test]
    fn ids_are_never_reused() {
        let first = Region::allocate(4096, "a").unwrap().id();
        assert!(Region::allocate(4096, "b").unwrap().id() > first);
    }
}
