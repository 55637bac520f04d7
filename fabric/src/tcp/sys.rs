//! The system calls of the TCP driver that move payload: gather and scatter by raw address, and the socket
//! options. It owns no state and decides nothing.
//!
//! Payload lies in regions that other threads and, on the same host, other processes may touch at any
//! time, so no slice is ever formed over it: addresses go to the kernel as they are.

use crate::error::FabricError;
use crate::memory::Span;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use socket2::{Domain, SockRef, Socket, TcpKeepalive};
use std::io::{self, IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

/// An address range for one system call; same layout as `struct iovec`. Lives no longer than what it was
/// made of.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct IoRange<'a> {
    base: *mut u8,
    bytes: usize,
    life: PhantomData<&'a ()>,
}

const _: () = assert!(size_of::<IoRange<'_>>() == size_of::<IoSlice<'_>>());
const _: () = assert!(align_of::<IoRange<'_>>() == align_of::<IoSlice<'_>>());

impl IoRange<'_> {
    pub(super) const EMPTY: Self = Self { base: std::ptr::dangling_mut(), bytes: 0, life: PhantomData };

    pub(super) fn len(&self) -> usize {
        self.bytes
    }
}

impl<'a> IoRange<'a> {
    /// A range of private memory to send.
    pub(super) fn of_slice(slice: &'a [u8]) -> Self {
        Self { base: slice.as_ptr().cast_mut(), bytes: slice.len(), life: PhantomData }
    }

    /// A range of private memory to fill.
    pub(super) fn of_slice_mut(slice: &'a mut [u8]) -> Self {
        Self { base: slice.as_mut_ptr(), bytes: slice.len(), life: PhantomData }
    }

    /// Part of a span of region memory: at most `bytes` after the first `skip`.
    pub(super) fn of_span(span: &'a Span, skip: u64, bytes: u64) -> Self {
        let skip = skip.min(span.len());
        // Regions fit the address space, so what is left of a span fits a usize.
        let bytes = bytes.min(span.len() - skip) as usize;
        // SAFETY: `skip` is within the span (above), the span within its mapping, and the span outlives 'a.
        // Needed because region memory is only ever reached by address.
        let base = unsafe { span.as_ptr().add(skip as usize) };
        Self { base, bytes, life: PhantomData }
    }
}

/// Sends from the ranges; never blocks, never raises SIGPIPE (in a trainer's process it may be fatal).
pub(super) fn send(socket: BorrowedFd<'_>, ranges: &[IoRange<'_>]) -> Result<usize, Errno> {
    // SAFETY: `IoSlice` is guaranteed to have iovec's layout, as `IoRange` has (asserted above), and carries
    // no further validity requirement; the slices are only handed to the kernel, which reads ranges that are
    // mapped for the ranges' lifetime and copes with bytes that change meanwhile. Needed because a reference
    // to memory that peers may write would be undefined behaviour.
    let slices = unsafe { std::slice::from_raw_parts(ranges.as_ptr().cast::<IoSlice<'_>>(), ranges.len()) };
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags)
}

/// Receives into the ranges. The socket must be non-blocking. Of each range the kernel may write all.
pub(super) fn receive(socket: BorrowedFd<'_>, ranges: &mut [IoRange<'_>]) -> Result<usize, Errno> {
    // SAFETY: as in `send`; the kernel writes these ranges, `of_slice_mut` has them exclusively and regions
    // may be written by anybody at any time by design.
    let slices =
        unsafe { std::slice::from_raw_parts_mut(ranges.as_mut_ptr().cast::<IoSliceMut<'_>>(), ranges.len()) };
    rustix::io::readv(socket, slices)
}

/// Receives into private memory; one range costs the kernel less than a list of ranges.
pub(super) fn receive_private(socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<usize, Errno> {
    rustix::net::recv(socket, into, RecvFlags::DONTWAIT).map(|(bytes, _)| bytes)
}

/// Copies what the ranges have after their first `skip` bytes, as much as there is room for; how much.
pub(super) fn gather(ranges: &[IoRange<'_>], skip: usize, into: &mut [u8]) -> usize {
    let mut done = 0;
    for_each_part(ranges, skip, into.len(), |base, bytes| {
        let to = &mut into[done..done + bytes];
        // SAFETY: `base` has `bytes` bytes that are mapped for the range's life (`for_each_part`), `to` is private memory of
        // the same length. Needed because region memory is only ever reached by address.
        unsafe { std::ptr::copy_nonoverlapping(base, to.as_mut_ptr(), bytes) };
        done += bytes;
    });
    done
}

/// Copies to where the ranges are after their first `skip` bytes, as much as there is room for; how much.
pub(super) fn scatter(from: &[u8], ranges: &[IoRange<'_>], skip: usize) -> usize {
    let mut done = 0;
    for_each_part(ranges, skip, from.len(), |base, bytes| {
        let from = &from[done..done + bytes];
        // SAFETY: `base` has `bytes` bytes that are mapped and may be written for the range's life (`for_each_part`; ranges
        // to fill are made of exclusive slices or of spans that are checked to be writable), `from` is private memory of the
        // same length. Needed because region memory is only ever reached by address.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), base, bytes) };
        done += bytes;
    });
    done
}

/// The stretches of the ranges after their first `skip` bytes, `most` bytes of them.
fn for_each_part(
    ranges: &[IoRange<'_>],
    mut skip: usize,
    mut most: usize,
    mut each: impl FnMut(*mut u8, usize),
) {
    for range in ranges {
        let left = range.bytes.saturating_sub(skip);
        let bytes = left.min(most);
        if bytes > 0 {
            // SAFETY: `skip` is less than the range's length, so the sum stays within it. Needed as above.
            each(unsafe { range.base.add(skip) }, bytes);
        }
        most -= bytes;
        skip = skip.saturating_sub(range.bytes);
    }
}

/// Is it a unix socket, and not one of TCP?
pub(super) fn is_unix(socket: &Socket) -> bool {
    socket.domain().is_ok_and(|domain| domain == Domain::UNIX)
}

/// The socket reports itself readable, and wakes who waits for it, only with so many bytes (or at its end).
pub(super) fn set_low_water(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: the descriptor is open for the borrow; the option takes one int, read from `value` before the call
    // returns. Needed because neither rustix nor socket2 has this option.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            std::ptr::from_ref(&value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What a unix socket's buffers hold, unless they were fixed: many chunks. The system caps it.
pub(super) const UNIX_BUFFER_BYTES: usize = 4 << 20;

/// What every channel's socket has. `buffer_bytes`: of a unix socket, which inherits none from its listener.
pub(super) fn tune(socket: &Socket, buffer_bytes: Option<usize>) -> Result<(), FabricError> {
    socket.set_nonblocking(true).map_err(|e| FabricError::os("setting up a channel's socket", e))?;
    if is_unix(socket) {
        fix_buffers(socket, buffer_bytes.unwrap_or(UNIX_BUFFER_BYTES))
    } else {
        tune_tcp(socket)
    }
}

fn tune_tcp(socket: &Socket) -> Result<(), FabricError> {
    // A host that vanished without a word is noticed on an idle channel too; a peer that is only slow
    // answers these probes and is left alone.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(3))
        .with_retries(4);
    socket
        .set_tcp_nodelay(true)
        .and_then(|()| socket.set_tcp_keepalive(&keepalive))
        .map_err(|e| FabricError::os("setting up a channel's socket", e))
}

/// Fixes both socket buffers (before listening or connecting, so that the window scale fits them). The
/// kernel then no longer adapts them to the link.
pub(super) fn fix_buffers<'s>(socket: impl Into<SockRef<'s>>, bytes: usize) -> Result<(), FabricError> {
    let socket = socket.into();
    socket
        .set_send_buffer_size(bytes)
        .and_then(|()| socket.set_recv_buffer_size(bytes))
        .map_err(|e| FabricError::os(format!("setting socket buffers of {bytes} bytes"), e))
}
