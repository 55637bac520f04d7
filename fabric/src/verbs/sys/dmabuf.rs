//! Memory of another device (a graphics processor's, say), registered by its dmabuf without a copy in ours. Older
//! versions of the library do not have the function, and everything else works with them.

use super::abi as ffi;
use super::context::Domain;
use super::keep::keep_unless_done;
use crate::error::FabricError;
use crate::memory::Access;
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

/// A registered stretch of a dmabuf: peers may reach it until this is dropped.
#[derive(Debug)]
pub(in crate::verbs) struct DmabufRegistration {
    pointer: NonNull<ffi::ibv_mr>,
    domain: Arc<Domain>,
}

// SAFETY: as for `Context`.
unsafe impl Send for DmabufRegistration {}
// SAFETY: as above; what is read of it does not change.
unsafe impl Sync for DmabufRegistration {}

impl DmabufRegistration {
    /// Peers address it from 0 on.
    pub(in crate::verbs) fn new(
        domain: &Arc<Domain>,
        fd: BorrowedFd<'_>,
        (offset, bytes): (u64, usize),
        access: Access,
    ) -> Result<Self, FabricError> {
        let missing = || FabricError::Unsupported {
            what: "registering a dmabuf".into(),
            why: "this verbs library does not know it (rdma-core 34 and later do)".into(),
        };
        let register = domain.context.library.ibv_reg_dmabuf_mr.ok_or_else(missing)?;
        let mut flags = ffi::IBV_ACCESS_REMOTE_READ;
        if access == Access::ReadWrite {
            flags |= ffi::IBV_ACCESS_REMOTE_WRITE | ffi::IBV_ACCESS_LOCAL_WRITE;
        }
        // SAFETY: a domain of ours and an open descriptor, of which the kernel keeps the memory for as long as needed. No
        // memory of this process is reached by it.
        let pointer =
            unsafe { register(domain.pointer.as_ptr(), offset, bytes, 0, fd.as_raw_fd(), flags as c_int) };
        let Some(pointer) = NonNull::new(pointer) else {
            let source = io::Error::last_os_error();
            return Err(match source.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT) => FabricError::Unsupported {
                    what: "registering a dmabuf".into(),
                    why: format!(
                        "RDMA device {} cannot ({source}): copy through a buffer of a pool",
                        domain.context.name
                    ),
                },
                _ => {
                    FabricError::os(format!("registering {bytes} bytes of a dmabuf from {offset} on"), source)
                }
            });
        };
        Ok(Self { pointer, domain: Arc::clone(domain) })
    }

    /// The peers' key.
    pub(in crate::verbs) fn key(&self) -> u32 {
        // SAFETY: registered until drop; the library does not change this field.
        unsafe { self.pointer.as_ref() }.rkey
    }
}

impl Drop for DmabufRegistration {
    fn drop(&mut self) {
        // SAFETY: registered by us, once.
        let code = unsafe { (self.domain.context.library.ibv_dereg_mr)(self.pointer.as_ptr()) };
        keep_unless_done(code, "taking a dmabuf back from an RDMA device", Arc::clone(&self.domain));
    }
}
