//! The library's memory as arrays have it: who owns a stretch, and which stretch an address lies in. An array is known
//! by the stretch that it lies in, which is the library's for as long as any array of it exists.

use crate::error::{Failure, lock};
use crate::here::Here;
use fabric::copy::{memcpy, streaming};
use gradwire_worker::{Client, SharedBuffer};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Copies of at least this much pass by the cache: it is too small to hold them until they are sent.
const STREAMING_BYTES_MIN: usize = 4 << 20;

/// Copies between memory of the library's and that of others, of the same length.
pub(crate) fn copy(into: &mut [u8], from: &[u8]) {
    if from.len() >= STREAMING_BYTES_MIN {
        streaming(into, from);
    } else {
        memcpy(into, from);
    }
}

/// Stretches of a client's memory that arrays lie in, by their address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stretches(Arc<Mutex<BTreeMap<usize, SharedBuffer>>>);

impl Stretches {
    /// The library's memory at an address, if all of it is.
    pub(crate) fn at(&self, address: usize, bytes: usize) -> Option<SharedBuffer> {
        let stretches = lock(&self.0);
        let (start, buffer) = stretches.range(..=address).next_back()?;
        buffer.slice((address - start) as u64, bytes as u64).ok()
    }
}

/// A stretch of registered memory, zeroed when new, for numpy to make an array of (`__array_interface__`).
#[pyclass(module = "gradwire._native", frozen)]
#[derive(Debug)]
pub(crate) struct Memory {
    address: usize,
    bytes: usize,
    shape: Vec<usize>,
    typestr: String,
    place: Here<Place>,
}

/// Takes the stretch out of the list with it.
#[derive(Debug)]
struct Place {
    address: usize,
    stretches: Stretches,
}

impl Drop for Place {
    fn drop(&mut self) {
        let gone = lock(&self.stretches.0).remove(&self.address);
        // The pool has a lock of its own.
        drop(gone);
    }
}

impl Memory {
    pub(crate) fn allocate(
        client: &Client,
        stretches: &Stretches,
        bytes: usize,
        (shape, typestr): (Vec<usize>, String),
    ) -> Result<(Self, SharedBuffer), Failure> {
        let mut buffer = client.allocate(bytes as u64)?;
        let address = buffer.as_mut_ptr() as usize;
        let shared = buffer.share();
        lock(&stretches.0).insert(address, shared.clone());
        let place = Here::new(Place { address, stretches: stretches.clone() });
        Ok((Self { address, bytes, shape, typestr, place }, shared))
    }
}

#[pymethods]
impl Memory {
    /// What numpy makes an array of.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        // A child has no such memory.
        self.place.get()?;
        let interface = PyDict::new(py);
        interface.set_item("data", (self.address, false))?;
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        interface.set_item("typestr", &self.typestr)?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }

    /// Its bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    fn __repr__(&self) -> String {
        format!("<gradwire memory, {} bytes at {:#x}>", self.bytes, self.address)
    }
}
