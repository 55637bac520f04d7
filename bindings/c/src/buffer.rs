//! Registered memory for C: owned by the program, or by the operation it was passed to, never by both.

use crate::border::{object, put};
use crate::client::GradwireClient;
use crate::error::{Failure, GradwireCode, guard, guard_or};
use gradwire_worker::TensorBuffer;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory that the client has registered with its transports: what is sent from it, and what lands in it, is not copied
/// by this process. Freed with `gradwire_buffer_free`.
///
/// It belongs to an operation from the call that starts it until the wait that ends it well. Meanwhile its data pointer is
/// null, and memory got from an earlier one must be neither read nor written. After an operation that failed it stays
/// with that operation, because a server may still write it: free the buffer and allocate another.
#[derive(Debug)]
pub struct GradwireBuffer {
    bytes: u64,
    cell: Arc<Cell>,
}

/// Where the memory is while no operation has it.
#[derive(Debug)]
pub(crate) struct Cell(Mutex<Option<TensorBuffer>>);

impl Cell {
    fn lock(&self) -> MutexGuard<'_, Option<TensorBuffer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn give_back(&self, buffer: Option<TensorBuffer>) {
        if let Some(buffer) = buffer {
            *self.lock() = Some(buffer);
        }
    }
}

impl GradwireBuffer {
    pub(crate) fn cell(&self) -> Arc<Cell> {
        self.cell.clone()
    }

    /// Takes the memory for an operation.
    pub(crate) fn take(&self, name: &str) -> Result<TensorBuffer, Failure> {
        let in_use = || {
            let text = format!(
                "{name} belongs to an operation that has not been waited for, or that failed; wait for it, or allocate another"
            );
            Failure::new(GradwireCode::BufferInUse, text)
        };
        self.cell.lock().take().ok_or_else(in_use)
    }
}

/// Registered memory of so many bytes, zeroed, at a multiple of 64 bytes. Fails with `GRADWIRE_CODE_MEMORY` where
/// `memory.pool_bytes` is used up. May be passed to operations of this client only.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_buffer_allocate(
    client: Option<&GradwireClient>,
    bytes: u64,
    buffer: Option<&mut MaybeUninit<Option<Box<GradwireBuffer>>>>,
) -> GradwireCode {
    guard(|| {
        let memory = object(client, "client")?.client().allocate(bytes)?;
        let cell = Arc::new(Cell(Mutex::new(Some(memory))));
        put(buffer, "buffer", Some(Box::new(GradwireBuffer { bytes, cell })))
    })
}

/// Where the memory starts: the same for its whole life. Null while an operation has it (see `GradwireBuffer`).
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_buffer_data(buffer: Option<&GradwireBuffer>) -> *mut c_void {
    guard_or(std::ptr::null_mut(), || {
        let mut memory = object(buffer, "buffer")?.cell.lock();
        Ok(memory.as_mut().map_or(std::ptr::null_mut(), |memory| memory.as_mut_ptr().cast()))
    })
}

/// Its bytes, as they were asked for. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_buffer_bytes(buffer: Option<&GradwireBuffer>) -> u64 {
    buffer.map_or(0, |buffer| buffer.bytes)
}

/// Frees a buffer. Null is fine. Memory that an operation has is freed when that has ended.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_buffer_free(buffer: Option<Box<GradwireBuffer>>) {
    drop(buffer);
}
