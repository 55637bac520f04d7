//! Completion queues: polling, arming, and what the device says of finished work.

use super::abi as ffi;
use super::context::Context;
use super::keep::keep_unless_done;
use super::{done, last_error, made};
use crate::error::FabricError;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// A completion queue with the channel on which it tells of completions.
#[derive(Debug)]
pub(in crate::verbs) struct Completions {
    pub(super) pointer: NonNull<ffi::ibv_cq>,
    channel: NonNull<ffi::ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

/// A completion as the device tells it.
#[derive(Clone, Copy, Debug)]
pub(in crate::verbs) struct Work {
    pub(in crate::verbs) id: u64,
    pub(in crate::verbs) queue_pair: u32,
    /// `None` where it went well.
    pub(in crate::verbs) failure: Option<u32>,
    pub(in crate::verbs) kind: WorkKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum WorkKind {
    Sent,
    Message { bytes: u32 },
    Notice { immediate: u32 },
}

/// Completions taken by one call.
pub(in crate::verbs) const POLLED_MAX: usize = 32;

impl Completions {
    pub(in crate::verbs) fn new(context: &Arc<Context>, entries: u32) -> Result<Arc<Self>, FabricError> {
        // SAFETY: an open device.
        let channel = unsafe { (context.library.ibv_create_comp_channel)(context.pointer.as_ptr()) };
        let channel = made(channel, "opening a completion channel")?;
        let entries = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: an open device and its channel.
        let pointer = unsafe {
            (context.library.ibv_create_cq)(
                context.pointer.as_ptr(),
                entries,
                null_mut(),
                channel.as_ptr(),
                0,
            )
        };
        let pointer =
            made(pointer, &format!("making a completion queue of {entries} entries")).inspect_err(|_| {
                // SAFETY: ours, and nothing uses it.
                unsafe { (context.library.ibv_destroy_comp_channel)(channel.as_ptr()) };
            })?;
        let this = Self { pointer, channel, context: Arc::clone(context) };
        rustix::io::ioctl_fionbio(&this, true)
            .map_err(|e| FabricError::os("setting up a completion channel", e))?;
        Ok(Arc::new(this))
    }

    /// By what events name it.
    pub(in crate::verbs) fn address(&self) -> usize {
        self.pointer.as_ptr() as usize
    }

    /// Makes room for so many completions; those in it stay. By the thread that polls only.
    pub(in crate::verbs) fn grow(&self, entries: usize) -> Result<(), FabricError> {
        let wanted = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: a queue of ours, which nobody else polls.
        let code = unsafe { (self.context.library.ibv_resize_cq)(self.pointer.as_ptr(), wanted) };
        done(code, &format!("making a completion queue of {} entries one of {entries}", self.entries()))
    }

    /// How many completions it has room for.
    pub(in crate::verbs) fn entries(&self) -> usize {
        // SAFETY: a queue of ours; the library changes this field in a resize only, which needs the lane's thread, too.
        usize::try_from(unsafe { self.pointer.as_ref().cqe }).unwrap_or(0)
    }

    /// Asks for an event with the next completion. What came before has to be polled after this.
    pub(in crate::verbs) fn arm(&self) -> Result<(), FabricError> {
        // SAFETY: a queue of ours, whose context has the function for as long as it is open.
        let code = unsafe {
            let ops = &(*self.context.pointer.as_ptr()).ops;
            ops.req_notify_cq.map_or(libc::ENOSYS, |arm| arm(self.pointer.as_ptr(), 0))
        };
        done(code, "arming a completion queue")
    }

    /// Takes the events that came.
    pub(in crate::verbs) fn take_events(&self) {
        let (mut queue, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is non-blocking: it gives an event or fails.
        while unsafe {
            (self.context.library.ibv_get_cq_event)(self.channel.as_ptr(), &mut queue, &mut context)
        } == 0
        {
            // SAFETY: one event was taken; each must be acknowledged before the queue is destroyed.
            unsafe { (self.context.library.ibv_ack_cq_events)(queue, 1) };
        }
    }

    /// Calls `each` for at most [`POLLED_MAX`] completions; how many they were.
    pub(in crate::verbs) fn poll(&self, mut each: impl FnMut(Work)) -> Result<usize, FabricError> {
        let mut polled = [ffi::ibv_wc::default(); POLLED_MAX];
        // SAFETY: as in `arm`; there is room for as many as are asked for.
        let count = unsafe {
            let ops = &(*self.context.pointer.as_ptr()).ops;
            ops.poll_cq.map_or(-1, |poll| poll(self.pointer.as_ptr(), POLLED_MAX as i32, polled.as_mut_ptr()))
        };
        let count = usize::try_from(count).map_err(|_| last_error("polling a completion queue"))?;
        polled[..count].iter().for_each(|wc| each(work(wc)));
        Ok(count)
    }
}

fn work(wc: &ffi::ibv_wc) -> Work {
    let failure = (wc.status != ffi::IBV_WC_SUCCESS).then_some(wc.status);
    let kind = match wc.opcode {
        // Only these are the receiver's; a sender's completion of a write with immediate carries one, too.
        ffi::IBV_WC_RECV_RDMA_WITH_IMM if failure.is_none() => {
            WorkKind::Notice { immediate: u32::from_be(wc.imm_data) }
        }
        ffi::IBV_WC_RECV if failure.is_none() => WorkKind::Message { bytes: wc.byte_len },
        _ => WorkKind::Sent,
    };
    Work { id: wc.wr_id, queue_pair: wc.qp_num, failure, kind }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: ours; the queue pairs on it held it and are gone, and all events were acknowledged.
        let code = unsafe { (self.context.library.ibv_destroy_cq)(self.pointer.as_ptr()) };
        keep_unless_done(code, "destroying a completion queue", Arc::clone(&self.context));
        // SAFETY: ours, and nothing uses it any more; with a queue left on it this fails and changes nothing.
        let code = unsafe { (self.context.library.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
        keep_unless_done(code, "closing a completion channel", Arc::clone(&self.context));
    }
}

impl AsFd for Completions {
    /// Readable after a completion that came while armed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel's descriptor is open until drop.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }
}

/// The device's word for a failure.
pub(in crate::verbs) fn failure_name(status: u32) -> &'static str {
    match status {
        ffi::IBV_WC_LOC_LEN_ERR => "longer than what receives it",
        ffi::IBV_WC_REM_OP_ERR => "the peer's device could not do it",
        ffi::IBV_WC_LOC_PROT_ERR => "local protection error",
        ffi::IBV_WC_LOC_QP_OP_ERR => "local queue pair error",
        ffi::IBV_WC_WR_FLUSH_ERR => "flushed",
        ffi::IBV_WC_REM_ACCESS_ERR => "remote access refused (key or bounds)",
        ffi::IBV_WC_REM_INV_REQ_ERR => "remote side refused the request",
        ffi::IBV_WC_RETRY_EXC_ERR => {
            "no answer after all retries; check the path between the machines; verbs.timeout bounds how long it may be silent"
        }
        ffi::IBV_WC_RNR_RETRY_EXC_ERR => "the peer posted no receive",
        _ => "error",
    }
}

/// Was it only ended by an earlier failure?
pub(in crate::verbs) fn is_flush(status: u32) -> bool {
    status == ffi::IBV_WC_WR_FLUSH_ERR
}
