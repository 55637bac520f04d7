//! A declared tensor as Python sees it: the client's, with a shape.

use crate::error::Failure;
use proto_common::element::Dtype;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use ring::digest::{SHA256, digest};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Keys of names have this bit, so that they never meet small numbers that somebody chose.
const NAMED: u64 = 1 << 63;

/// A declared tensor.
#[pyclass(module = "gradwire._native", frozen, subclass)]
#[derive(Debug)]
pub(crate) struct Tensor {
    pub(crate) inner: gradwire_worker::Tensor,
    pub(crate) shape: Vec<usize>,
    /// The numpy type of arrays that the library makes for it.
    pub(crate) numpy: Py<PyAny>,
    pub(crate) priority: i32,
    /// An operation that is shown its weights is under way: servers have room for one such.
    pub(crate) viewed: Arc<AtomicBool>,
}

impl Tensor {
    pub(crate) fn new(
        inner: gradwire_worker::Tensor,
        shape: Vec<usize>,
        numpy: Py<PyAny>,
        priority: i32,
    ) -> Result<Self, Failure> {
        let elements = shape.iter().try_fold(1u64, |all, one| all.checked_mul(*one as u64));
        match elements {
            Some(elements) if elements == inner.spec().elements => {
                Ok(Self { inner, shape, numpy, priority, viewed: Arc::default() })
            }
            _ => Err(Failure::input(
                "wrong_shape",
                format!("{} does not have the shape {shape:?}", inner.spec().label()),
            )),
        }
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.inner.spec().dtype
    }

    pub(crate) fn elements(&self) -> usize {
        self.inner.spec().elements as usize
    }

    /// As messages name it: `tensor "fc1.weight"`, or `tensor 5` if it was declared by number.
    pub(crate) fn label(&self) -> String {
        self.inner.spec().label()
    }
}

#[pymethods]
impl Tensor {
    /// The key of the tensor.
    #[getter]
    fn key(&self) -> u64 {
        self.inner.key().0
    }

    /// The name of the tensor; empty if it was declared by a number.
    #[getter]
    fn name(&self) -> &str {
        &self.inner.spec().name
    }

    /// The shape of the tensor.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// The numpy dtype of the elements.
    #[getter(dtype)]
    fn numpy_dtype(&self, py: Python<'_>) -> Py<PyAny> {
        self.numpy.clone_ref(py)
    }

    /// Gradwire's name of the element type: "f32", "bf16", …
    #[getter]
    fn element(&self) -> String {
        self.dtype().to_string()
    }

    /// The number of elements.
    #[getter]
    fn size(&self) -> usize {
        self.elements()
    }

    /// The size of the tensor in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.inner.bytes()
    }

    /// The size in bytes of one contribution as it is sent (after compression).
    #[getter]
    fn sent_nbytes(&self) -> u64 {
        self.inner.sent_bytes()
    }

    /// How contributions to the tensor currently travel: "slot", "static", "rendezvous-read" or "rendezvous-write".
    #[getter]
    fn placement(&self) -> String {
        self.inner.placement().to_string()
    }

    /// The priority of operations on this tensor that do not pass one.
    #[getter]
    fn priority(&self) -> i32 {
        self.priority
    }

    /// The same tensor, whose handles also have the version of each chunk in `Handle.chunk_versions`.
    fn with_chunk_versions(&self, py: Python<'_>) -> Self {
        Self {
            inner: self.inner.with_chunk_versions(),
            shape: self.shape.clone(),
            numpy: self.numpy.clone_ref(py),
            priority: self.priority,
            viewed: self.viewed.clone(),
        }
    }

    fn __repr__(&self) -> String {
        let spec = self.inner.spec();
        let name = if spec.name.is_empty() { spec.key.to_string() } else { format!("{:?}", spec.name) };
        format!("<gradwire.Tensor {name} {:?} {}>", self.shape, self.dtype())
    }
}

/// The key of a name: the first 8 bytes of its SHA-256, little-endian, with the highest bit set.
#[pyfunction]
pub(crate) fn key_of_name(name: &str) -> u64 {
    let digest = digest(&SHA256, name.as_bytes());
    let mut first = [0u8; 8];
    first.copy_from_slice(&digest.as_ref()[..8]);
    u64::from_le_bytes(first) | NAMED
}
