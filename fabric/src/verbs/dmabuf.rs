//! Memory of another device that peers may be let reach (`VerbsDevice::register_dmabuf`). It is nobody's to read or write
//! here: no address of this process leads to it.

use super::registrar::Registrar;
use super::sys::DmabufRegistration;
use crate::error::FabricError;
use crate::memory::{Access, next_id};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Offsets are in whole pages, as devices take them.
const PAGE_BYTES: u64 = 4096;

/// A registered stretch of a dmabuf. Clones share it; it stays registered while one of them, or a channel that it was
/// exposed on, is there.
#[derive(Clone, Debug)]
pub struct Dmabuf(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registration: DmabufRegistration,
    registrar: Arc<Registrar>,
    name: u64,
    bytes: u64,
}

impl Dmabuf {
    pub(super) fn new(
        registrar: &Arc<Registrar>,
        fd: BorrowedFd<'_>,
        (offset, bytes): (u64, u64),
        access: Access,
    ) -> Result<Self, FabricError> {
        let length =
            usize::try_from(bytes).ok().filter(|length| *length > 0 && offset.is_multiple_of(PAGE_BYTES));
        let length = length.ok_or_else(|| {
            FabricError::Misuse(format!(
                "{bytes} bytes from {offset} on of a dmabuf: take at least one byte, from a multiple of {PAGE_BYTES} on"
            ))
        })?;
        let registration = DmabufRegistration::new(registrar.domain(), fd, (offset, length), access)?;
        Ok(Self(Arc::new(Inner { registration, registrar: Arc::clone(registrar), name: next_id(), bytes })))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.bytes
    }

    pub(super) fn name(&self) -> u64 {
        self.0.name
    }

    pub(super) fn key(&self) -> u32 {
        self.0.registration.key()
    }

    pub(super) fn is_of(&self, registrar: &Arc<Registrar>) -> bool {
        Arc::ptr_eq(&self.0.registrar, registrar)
    }
}
