//! Registered memory for C: the program's, or an operation's that it was passed to, never both's.

use crate::border::{make, object};
use crate::client::GradwireClient;
use crate::error::{Failure, GradwireCode, free, guard, guard_or};
use gradwire_worker::{SharedBuffer, TensorBuffer};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// Memory that the client has registered with its transports. This process does not copy what is sent from it or
/// received into it. Free it with `gradwire_buffer_free`.
///
/// It belongs to an operation from the call that starts it until the wait that completes it successfully. Meanwhile
/// its data pointer is null, and the program must not read or write memory from an earlier pointer. If the call fails,
/// the buffer stays with the program. After a failed operation the buffer stays with that operation, because a server
/// may still write it: free the buffer and allocate another one.
#[derive(Debug)]
pub struct GradwireBuffer(Arc<Cell>);

/// The memory, and whether an operation has it. The library reads and writes it through no reference, so that it can be here
/// and there at once.
#[derive(Debug)]
pub(crate) struct Cell {
    memory: SharedBuffer,
    start: AtomicPtr<u8>,
    is_taken: AtomicBool,
}

impl Cell {
    /// The program has it again.
    pub(crate) fn give_back(&self) {
        self.is_taken.store(false, Ordering::Release);
    }
}

/// Memory on its way into an operation. Dropped before it is there, it goes back to the program.
pub(crate) struct Taken {
    cell: Arc<Cell>,
    goes_back: bool,
}

impl Taken {
    /// What the operation gets.
    pub(crate) fn memory(&self) -> SharedBuffer {
        self.cell.memory.clone()
    }

    /// The operation has it now, until its wait gives it back.
    pub(crate) fn keep(mut self) -> Arc<Cell> {
        self.goes_back = false;
        self.cell.clone()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.goes_back {
            self.cell.give_back();
        }
    }
}

impl GradwireBuffer {
    /// Takes the memory for an operation.
    pub(crate) fn take(&self, name: &str) -> Result<Taken, Failure> {
        if self.0.is_taken.swap(true, Ordering::AcqRel) {
            let text = format!(
                "{name} belongs to an operation that has not been waited for, or that failed; wait for the operation, or allocate another buffer"
            );
            return Err(Failure::new(GradwireCode::BufferInUse, text));
        }
        Ok(Taken { cell: self.0.clone(), goes_back: true })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.memory.bytes()
    }
}

/// Allocates registered memory of this many bytes, aligned to 64 bytes, with undefined contents. Fails with
/// `GRADWIRE_CODE_MEMORY` if `memory.pool_bytes` is used up. Only operations of this client may use it.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_buffer_allocate(
    client: Option<&GradwireClient>,
    bytes: u64,
    buffer: Option<&mut MaybeUninit<Option<Box<GradwireBuffer>>>>,
) -> GradwireCode {
    guard(|| make(buffer, "buffer", || Ok(made(object(client, "client")?.client.allocate(bytes)?))))
}

fn made(mut memory: TensorBuffer) -> GradwireBuffer {
    let (start, is_taken) = (AtomicPtr::new(memory.as_mut_ptr()), AtomicBool::new(false));
    GradwireBuffer(Arc::new(Cell { memory: memory.share(), start, is_taken }))
}

/// As `gradwire_buffer_allocate`, for memory that the program keeps for long: it is no part of `memory.pool_bytes`, and at
/// most as much again. Null if that is used up: use memory of the program's then.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_buffer_allocate_kept(
    client: Option<&GradwireClient>,
    bytes: u64,
) -> Option<Box<GradwireBuffer>> {
    let client = &client?.client;
    guard_or(None, || Ok(client.allocate_kept(bytes)?.map(|memory| Box::new(made(memory)))))
}

/// The address of the memory, which never changes. Null while an operation has it (see `GradwireBuffer`).
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_buffer_data(buffer: Option<&GradwireBuffer>) -> *mut c_void {
    guard_or(std::ptr::null_mut(), || {
        let cell = &object(buffer, "buffer")?.0;
        Ok(match cell.is_taken.load(Ordering::Acquire) {
            true => std::ptr::null_mut(),
            false => cell.start.load(Ordering::Relaxed).cast(),
        })
    })
}

/// Its size in bytes, as requested. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_buffer_bytes(buffer: Option<&GradwireBuffer>) -> u64 {
    buffer.map_or(0, GradwireBuffer::bytes)
}

/// Frees a buffer. Null is allowed. If an operation has the memory, it is freed when the operation has ended.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_buffer_free(buffer: Option<Box<GradwireBuffer>>) {
    free(buffer);
}
