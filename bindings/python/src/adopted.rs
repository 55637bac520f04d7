//! Arrays of the caller's that were pushed: kept as buffers, so that their next push goes from where they lie. An array
//! is known by its object, which is held here, never by an address alone; it is let go of once nobody else has it.

use crate::array::{Array, references};
use crate::error::lock;
use fabric::BufferId;
use gradwire_worker::UserBuffer;
use proto_common::element::Dtype;
use pyo3::intern;
use pyo3::prelude::*;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// Arrays that are remembered; what comes beyond them is copied each time.
const ARRAYS_MAX: usize = 4096;

/// Object, address, bytes.
type Name = (usize, usize, usize);

/// Where the memory that an object's elements lie in starts, and its bytes.
type Storage = (usize, usize);

#[derive(Debug)]
struct Entry {
    buffer: UserBuffer,
    kept: Kept,
    /// The memory as it was when the buffer was made. If the object has other memory now (numpy's `resize`, torch's `resize_` of a
    /// storage), a device would still send what it registered then, also where the new memory is at the same address.
    storage: Storage,
}

/// The objects that an array is known by.
#[derive(Debug)]
struct Kept {
    seen: Py<PyAny>,
    /// What keeps the memory: the array, a view of what is seen, or a capsule. The buffer has it, too.
    owner: Py<PyAny>,
    /// So many references to `seen` are the buffer's and this one's, beside the owner's here.
    ours: isize,
}

impl Kept {
    fn clone_ref(&self, py: Python<'_>) -> Self {
        Self { seen: self.seen.clone_ref(py), owner: self.owner.clone_ref(py), ours: self.ours }
    }

    /// Does anybody have the array but the entry, and this clone of it? May run anything of Python's.
    fn is_with_others(&self, py: Python<'_>) -> bool {
        let is_one = self.seen.is(&self.owner);
        let (of_seen, of_owner) = (references(py, &self.seen), references(py, &self.owner));
        // The clone has each once; the owner is there thrice, by the buffer, the entry and the clone.
        if of_seen > self.ours + 1 + if is_one { 2 } else { 0 } || (!is_one && of_owner > 3) {
            return true;
        }
        // A gradient of torch's is its parameter's, of which Python's count says nothing; the object and our capsule are
        // two of torch's own count.
        let count = self.seen.bind(py).call_method0(intern!(py, "_use_count"));
        count.and_then(|count| count.extract::<usize>()).is_ok_and(|count| count > 2)
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Adopted(Arc<Mutex<HashMap<Name, Entry>>>);

impl Adopted {
    /// The array as a buffer; `None` where it is to be copied.
    pub(crate) fn buffer(&self, py: Python<'_>, array: &Array) -> Option<UserBuffer> {
        if array.dtype != Dtype::F32 || !array.is_aligned() {
            return None;
        }
        let name = (array.seen.as_ptr() as usize, array.address, array.bytes());
        let storage = storage_of(py, array);
        if let Some(entry) = lock(&self.0).get(&name).filter(|entry| entry.storage == storage) {
            return Some(entry.buffer.clone());
        }
        let stale: Vec<_> =
            lock(&self.0).extract_if(|other, entry| other.0 == name.0 && entry.storage != storage).collect();
        // Dropped without the lock: an array's end may do anything.
        drop(stale);
        self.sweep(py);
        let start = NonNull::new(array.address as *mut f32)?;
        let owner = Box::new(array.owner.clone_ref(py));
        // SAFETY: the owner's array or capsule keeps these numbers where they are, valid for reading, until it is
        // dropped or resized (numpy refuses to resize what others refer to, unless it is told not to look; a capsule keeps its
        // storage). The buffer of memory that was resized is not used again (`Entry::storage`). The address is aligned.
        // Numbers are borrowed as slices while a push begins only, and callers are told not to write what they push
        // until its handle is done. Needed because Python's arrays are no Rust types.
        let buffer = unsafe { UserBuffer::adopt(start, array.elements(), owner) };
        let kept =
            Kept { seen: array.seen.clone_ref(py), owner: array.owner.clone_ref(py), ours: array.ours };
        let mut entries = lock(&self.0);
        let known = entries.len();
        let before = if known < ARRAYS_MAX {
            entries.insert(name, Entry { buffer: buffer.clone(), kept, storage })
        } else {
            None
        };
        drop(entries);
        // Another thread's of the same array, dropped without the lock.
        drop(before);
        Some(buffer)
    }

    /// Lets go of arrays that nobody else has. Whoever is asked about an array may do anything, and so may an array's end:
    /// both without the lock.
    pub(crate) fn sweep(&self, py: Python<'_>) {
        let all: Vec<(Name, BufferId, Kept)> = lock(&self.0)
            .iter()
            .map(|(name, entry)| (*name, entry.buffer.id(), entry.kept.clone_ref(py)))
            .collect();
        let mut gone = Vec::new();
        for (name, id, kept) in all {
            if !kept.is_with_others(py) {
                // If somebody has just pushed it again, it is copied once more. What was adopted under this name meanwhile stays.
                gone.extend(
                    lock(&self.0).extract_if(|other, entry| *other == name && entry.buffer.id() == id),
                );
            }
        }
        drop(gone);
    }

    /// Lets go of an array; its next push is copied. What was kept of it is returned.
    pub(crate) fn forget(&self, array: &Array) -> Vec<UserBuffer> {
        let of = |name: &Name| name.0 == array.seen.as_ptr() as usize && name.1 == array.address;
        let gone: Vec<_> = lock(&self.0).extract_if(|name, _| of(name)).collect();
        gone.into_iter().map(|(_, entry)| entry.buffer).collect()
    }

    /// Lets go of all.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *lock(&self.0));
        drop(all);
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.0).len()
    }
}

/// The memory of what is seen of an array, of which the array may be a part. Nothing, where it does not say: arrays that share a
/// buffer are then parts of the same one, and none of them replaces another.
fn storage_of(py: Python<'_>, array: &Array) -> Storage {
    let own = (array.address, array.bytes());
    if array.seen.is(&array.owner) {
        return own;
    }
    let seen = array.seen.bind(py);
    let of_numpy = || -> PyResult<Storage> {
        let (start, _): (usize, bool) =
            seen.getattr(intern!(py, "__array_interface__"))?.get_item("data")?.extract()?;
        Ok((start, seen.getattr(intern!(py, "nbytes"))?.extract()?))
    };
    let of_torch = || -> PyResult<Storage> {
        // The latter before torch 2.
        let storage = seen
            .call_method0(intern!(py, "untyped_storage"))
            .or_else(|_| seen.call_method0(intern!(py, "storage")))?;
        let start = storage.call_method0(intern!(py, "data_ptr"))?.extract()?;
        Ok((start, storage.call_method0(intern!(py, "nbytes"))?.extract()?))
    };
    of_numpy().or_else(|_| of_torch()).unwrap_or_default()
}
