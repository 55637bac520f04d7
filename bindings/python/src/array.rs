//! Arrays that callers pass: where their elements lie, what they are, who owns them. numpy's array interface first, then
//! DLPack, then whatever memoryview takes. Looks, copies nothing.

use crate::dlpack::{self, DataType, Found};
use crate::error::Failure;
use crate::tensor::Tensor;
use proto_common::element::Dtype;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Contiguous elements in memory that somebody else owns.
#[derive(Debug)]
pub(crate) struct Array {
    pub(crate) address: usize,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) read_only: bool,
    /// Keeps the memory.
    pub(crate) owner: Py<PyAny>,
    /// What the caller has of it: when nobody else has that any more, it will not come again.
    pub(crate) seen: Py<PyAny>,
    /// So many references to `seen` are there once only a `seen` and the owner have it.
    pub(crate) ours: isize,
}

impl Array {
    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.elements() * self.dtype.bytes()
    }

    pub(crate) fn is_aligned(&self) -> bool {
        self.address.is_multiple_of(self.dtype.bytes())
    }

    /// Where its elements are, if they are aligned for their type. Without elements: anywhere that is.
    pub(crate) fn aligned(&self) -> Option<usize> {
        let anywhere = self.dtype.bytes();
        match self.elements() {
            0 => Some(anywhere),
            _ => (self.is_aligned() && self.address != 0).then_some(self.address),
        }
    }

    /// Reads any array.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        if let Ok(interface) = object.getattr(intern!(py, "__array_interface__")) {
            return from_interface(object, &interface.cast_into::<PyDict>()?);
        }
        let seen = object.clone().unbind();
        let before = references(py, &seen);
        if let Some(found) = dlpack::ask(object)? {
            // What a capsule has of its object is not always a reference.
            let capsules = references(py, &seen) - before;
            return from_dlpack(object, found, capsules.max(0));
        }
        let viewed = py
            .import("builtins")?
            .call_method1("memoryview", (object,))
            .and_then(|view| py.import("numpy")?.call_method1("asarray", (view,)));
        let Ok(viewed) = viewed else {
            let text = format!(
                "{} is not an array: pass a numpy array, or an object with __dlpack__ or the buffer protocol",
                object.get_type()
            );
            return Err(Failure::input("wrong_array", text).into());
        };
        let interface = viewed.getattr(intern!(py, "__array_interface__"))?;
        from_interface(&viewed, &interface.cast_into::<PyDict>()?)
    }

    /// Reads an array that fits a tensor.
    pub(crate) fn fitting(object: &Bound<'_, PyAny>, tensor: &Tensor, shorter: bool) -> PyResult<Self> {
        let array = Self::of(object)?;
        array.check(tensor, shorter)?;
        Ok(array)
    }

    /// Reads an array that fits a tensor and can be written.
    pub(crate) fn writable(object: &Bound<'_, PyAny>, tensor: &Tensor) -> PyResult<Self> {
        let array = Self::fitting(object, tensor, false)?;
        if array.read_only {
            let text = format!("`out` for {} is read-only: pass a writable array", tensor.label());
            return Err(Failure::input("read_only", text).into());
        }
        if !array.is_aligned() {
            let text = format!(
                "`out` for {} is not aligned to its element size: pass an aligned array",
                tensor.label()
            );
            return Err(Failure::input("not_aligned", text).into());
        }
        Ok(array)
    }

    fn check(&self, tensor: &Tensor, shorter: bool) -> Result<(), Failure> {
        let (want, have, label) = (tensor.dtype(), self.dtype, tensor.label());
        if want != have {
            let text = format!(
                "{label} has elements of type {want}, but the array has {have}: convert the array, or declare the tensor as {have}"
            );
            return Err(Failure::input("wrong_dtype", text));
        }
        let flat = self.shape.len() == 1;
        let fits = self.shape == tensor.shape
            || flat && self.elements() == tensor.elements()
            || flat && shorter && self.elements() <= tensor.elements();
        if !fits {
            let text = format!(
                "{label} has shape {:?}, but the array has shape {:?}: pass an array of the tensor's shape, or a flat \
                 array of {} elements",
                tensor.shape,
                self.shape,
                tensor.elements()
            );
            return Err(Failure::input("wrong_shape", text));
        }
        Ok(())
    }
}

fn not_contiguous(shape: &[usize]) -> PyErr {
    let text = format!(
        "the array of shape {shape:?} is not contiguous: pass numpy.ascontiguousarray(array), or tensor.contiguous()"
    );
    Failure::input("not_contiguous", text).into()
}

fn from_interface(object: &Bound<'_, PyAny>, interface: &Bound<'_, PyDict>) -> PyResult<Array> {
    let py = object.py();
    let missing = || {
        Failure::input(
            "wrong_array",
            "the __array_interface__ of the array is incomplete: pass a numpy array",
        )
    };
    let item = |name| interface.get_item(name)?.ok_or_else(|| missing().into());
    let entry = |name| -> PyResult<Bound<'_, PyAny>> { item(name) };
    let shape: Vec<usize> = entry(intern!(py, "shape"))?.extract()?;
    let (address, read_only): (usize, bool) = entry(intern!(py, "data"))?.extract()?;
    let typestr = entry(intern!(py, "typestr"))?;
    let typestr: &str = &typestr.extract::<std::borrow::Cow<'_, str>>()?;
    let known = Dtype::ALL
        .into_iter()
        .find(|dtype| *dtype != Dtype::Bf16 && typestr_of(*dtype) == typestr.as_bytes());
    let dtype = known.map_or_else(|| named_dtype(object, typestr), Ok)?;
    if let Some(strides) = interface.get_item(intern!(py, "strides"))?.filter(|strides| !strides.is_none()) {
        let strides: Vec<i64> = strides.cast::<PyTuple>()?.extract()?;
        let size = dtype.bytes() as i64;
        let lengths: Vec<i64> = shape.iter().map(|one| *one as i64).collect();
        let in_elements: Vec<i64> = strides.iter().map(|stride| stride / size).collect();
        if strides.iter().any(|stride| stride % size != 0) || !dlpack::is_contiguous(&lengths, &in_elements) {
            return Err(not_contiguous(&shape));
        }
    }
    if interface.contains(intern!(py, "__ref"))? {
        // A scalar: its numbers are in an array made for this, which only what describes it has.
        let only = interface.clone().into_any().unbind();
        let (owner, seen) = (only.clone_ref(py), only);
        return Ok(Array { address, dtype, shape, read_only: true, owner, seen, ours: 2 });
    }
    let owner = object.clone().unbind();
    // A view made for one call is gone after it: what it is a view of is what comes again.
    let base = object.getattr(intern!(py, "base")).ok().filter(|base| !base.is_none());
    let seen = base.unwrap_or_else(|| object.clone()).unbind();
    // The owner is the array, or a view of it, and so has a reference to what is seen.
    Ok(Array { address, dtype, shape, read_only, owner, seen, ours: 2 })
}

/// numpy's code of a type; of bfloat16, which numpy does not have, that of numbers of its size.
pub(crate) fn typestr_of(dtype: Dtype) -> [u8; 3] {
    let kind = if dtype == Dtype::Bf16 { b'u' } else { dtype.numpy_name().as_bytes()[0] };
    let order = if dtype.bytes() == 1 { b'|' } else { b'<' };
    [order, kind, b'0' + dtype.bytes() as u8]
}

/// DLPack's code of a type.
fn dlpack_of(dtype: Dtype) -> DataType {
    let code = match dtype.numpy_name().trim_end_matches(char::is_numeric) {
        "int" => 0,
        "uint" => 1,
        "float" => 2,
        // bfloat16.
        _ => 4,
    };
    DataType { code, bits: 8 * dtype.bytes() as u8, lanes: 1 }
}

/// The names of all types in numpy, for messages.
fn names() -> String {
    let [others @ .., last] = Dtype::ALL.map(Dtype::numpy_name);
    format!("{} or {last}", others.join(", "))
}

/// bfloat16 is no type of numpy's own; ml_dtypes gives it one.
fn named_dtype(object: &Bound<'_, PyAny>, typestr: &str) -> PyResult<Dtype> {
    let name = object.getattr("dtype").and_then(|dtype| dtype.getattr("name"));
    let name = name.and_then(|name| name.extract::<String>()).unwrap_or_else(|_| typestr.to_owned());
    if name == "bfloat16" {
        return Ok(Dtype::Bf16);
    }
    let swapped = if typestr.starts_with('>') { " (non-native byte order)" } else { "" };
    let text = format!("unsupported dtype {name}{swapped}: use {}", names());
    Err(Failure::input("wrong_dtype", text).into())
}

fn from_dlpack(object: &Bound<'_, PyAny>, found: Found, capsules: isize) -> PyResult<Array> {
    let known = Dtype::ALL.into_iter().find(|dtype| dlpack_of(*dtype) == found.dtype);
    let dtype = known.ok_or_else(|| {
        let DataType { code, bits, lanes } = found.dtype;
        let text =
            format!("unsupported DLPack dtype (code {code}, {bits} bits, {lanes} lanes): use {}", names());
        Failure::input("wrong_dtype", text)
    })?;
    if !found.contiguous {
        return Err(not_contiguous(&found.shape));
    }
    // Arrays of JAX never change, whatever their capsules say; torch's say nothing and do.
    let module = object.get_type().getattr("__module__")?.extract::<String>()?;
    let read_only =
        !module.starts_with("torch") && found.read_only.unwrap_or(true) || module.starts_with("jax");
    let seen = object.clone().unbind();
    // torch's capsule has the tensor, which counts for its object once, whoever else has it.
    let ours = if module.starts_with("torch") { 2 } else { 1 + capsules };
    let Found { address, shape, owner, .. } = found;
    Ok(Array { address, dtype, shape, read_only, owner, seen, ours })
}

/// How many have the object.
pub(crate) fn references(_py: Python<'_>, object: &Py<PyAny>) -> isize {
    // SAFETY: the object is alive, because a reference to it is held, and the interpreter's lock is held, so the count
    // does not change. Needed because there is no safe way to ask.
    unsafe { pyo3::ffi::Py_REFCNT(object.as_ptr()) }
}
