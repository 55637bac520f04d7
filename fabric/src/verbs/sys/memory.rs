//! Memory that a device may reach: registered regions, and receives posted into them.

use super::abi as ffi;
use super::context::Domain;
use super::keep::keep_unless_done;
use super::{done, made};
use crate::error::FabricError;
use crate::memory::Region;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// A registered stretch of a region: the device may reach it until this is dropped.
#[derive(Debug)]
pub(in crate::verbs) struct Registration {
    pointer: NonNull<ffi::ibv_mr>,
    domain: Arc<Domain>,
    pub(in crate::verbs) region: Region,
    /// Bytes from the region's start.
    pub(in crate::verbs) offset: u64,
    pub(in crate::verbs) bytes: u64,
    /// May peers reach it, with its key?
    pub(in crate::verbs) is_remote: bool,
}

// SAFETY: as for `Context`.
unsafe impl Send for Registration {}

impl Registration {
    pub(in crate::verbs) fn new(
        domain: &Arc<Domain>,
        region: &Region,
        (offset, bytes): (u64, u64),
        is_remote: bool,
    ) -> Result<Self, FabricError> {
        let mut flags = 0;
        if region.is_writable() {
            flags |= ffi::IBV_ACCESS_LOCAL_WRITE;
        }
        // A key can be guessed: what no peer is to reach has none that is good for anything.
        if is_remote {
            flags |= ffi::IBV_ACCESS_REMOTE_READ;
        }
        if is_remote && region.is_writable() {
            flags |= ffi::IBV_ACCESS_REMOTE_WRITE;
        }
        let start = region.mapping().at(offset, bytes).map_err(|e| FabricError::Internal(e.to_string()))?;
        // SAFETY: the mapping lives as long as the region, which is kept here and dropped after the registration.
        let pointer = unsafe {
            (domain.context.library.ibv_reg_mr)(
                domain.pointer.as_ptr(),
                start.cast(),
                bytes as usize,
                flags as i32,
            )
        };
        let pointer = made(pointer, "registering memory with the RDMA device")?;
        Ok(Self { pointer, domain: Arc::clone(domain), region: region.clone(), offset, bytes, is_remote })
    }

    /// Key for our own requests, key for the peers', and the address that both begin at.
    pub(in crate::verbs) fn keys(&self) -> (u32, u32, u64) {
        // SAFETY: registered until drop; the library does not change these fields.
        let mr = unsafe { self.pointer.as_ref() };
        (mr.lkey, mr.rkey, mr.addr as u64)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: registered by us, once. The domain and the region are dropped after this.
        let code = unsafe { (self.domain.context.library.ibv_dereg_mr)(self.pointer.as_ptr()) };
        let needs = (self.region.clone(), Arc::clone(&self.domain));
        keep_unless_done(code, "taking memory back from an RDMA device", needs);
    }
}

/// What peers' notices and messages are received by, for all channels of a lane.
#[derive(Debug)]
pub(in crate::verbs) struct Receives {
    pub(super) pointer: NonNull<ffi::ibv_srq>,
    domain: Arc<Domain>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Receives {}
// SAFETY: as above.
unsafe impl Sync for Receives {}

impl Receives {
    pub(in crate::verbs) fn new(domain: &Arc<Domain>, depth: u32) -> Result<Arc<Self>, FabricError> {
        let attr = ffi::ibv_srq_attr { max_wr: depth, max_sge: 1, srq_limit: 0 };
        let mut init = ffi::ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: a domain of ours and a complete description.
        let pointer = unsafe { (domain.context.library.ibv_create_srq)(domain.pointer.as_ptr(), &mut init) };
        let pointer = made(pointer, &format!("making a shared receive queue of {depth} entries"))?;
        Ok(Arc::new(Self { pointer, domain: Arc::clone(domain) }))
    }

    /// By what events name it.
    pub(in crate::verbs) fn address(&self) -> usize {
        self.pointer.as_ptr() as usize
    }

    /// Posts a receive into a stretch of registered memory.
    pub(in crate::verbs) fn post(&self, id: u64, place: &ffi::ibv_sge) -> Result<(), FabricError> {
        let mut place = *place;
        let mut request = ffi::ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: &mut place, num_sge: 1 };
        let mut bad = null_mut();
        // SAFETY: the request is read during the call; its memory is registered and kept by the caller.
        let code = unsafe {
            let ops = &(*self.domain.context.pointer.as_ptr()).ops;
            ops.post_srq_recv.map_or(libc::ENOSYS, |post| post(self.pointer.as_ptr(), &mut request, &mut bad))
        };
        done(code, "posting a receive")
    }
}

impl Drop for Receives {
    fn drop(&mut self) {
        // SAFETY: ours; the queue pairs on it held it and are gone.
        let code = unsafe { (self.domain.context.library.ibv_destroy_srq)(self.pointer.as_ptr()) };
        keep_unless_done(code, "destroying a shared receive queue", Arc::clone(&self.domain));
    }
}
