//! DLPack: how arrays of one library are read by another. Owns the layout of its structures, and reads tensors out of
//! capsules. The capsule is never consumed: it stays the owner, and ends what it keeps when Python drops it.

use crate::error::Failure;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict};
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
/// The major version whose layout is below.
const MAJOR: u32 = 1;
/// A bit of the flags of versioned tensors.
const READ_ONLY: u64 = 1;
/// More than any array has.
const DIMENSIONS_MAX: i32 = 64;

/// Kinds of devices; more exist.
const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;

#[repr(C)]
#[derive(Clone, Copy)]
struct Device {
    kind: i32,
    id: i32,
}

/// What the elements are.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataType {
    pub(crate) code: u8,
    pub(crate) bits: u8,
    pub(crate) lanes: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawTensor {
    data: *mut c_void,
    device: Device,
    ndim: i32,
    dtype: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// Begins what a versioned capsule holds.
#[repr(C)]
struct RawVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    tensor: RawTensor,
}

/// An array in memory that this processor reads.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) address: usize,
    pub(crate) dtype: DataType,
    pub(crate) shape: Vec<usize>,
    pub(crate) contiguous: bool,
    /// `None` where the capsule does not say.
    pub(crate) read_only: Option<bool>,
    /// Keeps the memory.
    pub(crate) owner: Py<PyAny>,
}

/// Asks an object for its memory; `None` where it has no `__dlpack__`.
pub(crate) fn ask(array: &Bound<'_, PyAny>) -> PyResult<Option<Found>> {
    let py = array.py();
    let Ok(method) = array.getattr("__dlpack__") else { return Ok(None) };
    check_device(array)?;
    let words = PyDict::new(py);
    words.set_item("max_version", (MAJOR, 0))?;
    // Libraries from before version 1 do not know the word.
    let capsule =
        method.call((), Some(&words)).or_else(|_| method.call0()).map_err(|error| refused(py, error))?;
    let capsule = capsule.cast_into::<PyCapsule>()?;
    let (tensor, read_only) = tensor_of(&capsule)?;
    read(&tensor, read_only, capsule.into_any().unbind()).map(Some)
}

/// Why an array's own library does not hand it out; what is no error of the array's (an interrupt) stays as it is.
fn refused(py: Python<'_>, error: PyErr) -> PyErr {
    if !error.is_instance_of::<PyException>(py) {
        return error;
    }
    let text = format!(
        "cannot read the memory of the array: {}; pass a plain array (torch tensors: tensor.detach(), .resolve_conj(), \
         .to_dense(), and no tensor on the meta device)",
        error.value(py)
    );
    Failure::input("wrong_array", text).into()
}

/// Asked first, because some libraries would copy to here, and others refuse with words of their own.
fn check_device(array: &Bound<'_, PyAny>) -> PyResult<()> {
    let Ok(device) = array.call_method0("__dlpack_device__") else { return Ok(()) };
    // The kind may be an enumeration's member.
    let kind: i32 = device.get_item(0)?.call_method0("__int__")?.extract()?;
    let id: i32 = device.get_item(1)?.call_method0("__int__")?.extract()?;
    if matches!(kind, CPU | CUDA_HOST) {
        return Ok(());
    }
    let name =
        if kind == CUDA { format!("cuda:{id}") } else { format!("of DLPack type {kind}, number {id}") };
    let text = format!(
        "the array is on device {name}: copy it to CPU memory first (gradwire.torch does that for torch tensors, \
         through pinned memory)"
    );
    Err(Failure::input("wrong_device", text).into())
}

fn tensor_of(capsule: &Bound<'_, PyCapsule>) -> PyResult<(RawTensor, Option<bool>)> {
    if let Ok(pointer) = capsule.pointer_checked(Some(VERSIONED)) {
        let versioned = pointer.cast::<RawVersioned>();
        // SAFETY: a capsule of this name holds such a structure (DLPack's specification), which begins with the
        // version in all of them, and it lives as long as the capsule, borrowed here. Needed because DLPack is a
        // protocol of pointers.
        let major = unsafe { (*versioned.as_ptr()).major };
        if major != MAJOR {
            let text = format!("unsupported DLPack version {major}: pass a numpy array");
            return Err(Failure::input("wrong_array", text).into());
        }
        // SAFETY: as above, and this major version has the layout above.
        let (flags, tensor) = unsafe { ((*versioned.as_ptr()).flags, (*versioned.as_ptr()).tensor) };
        return Ok((tensor, Some(flags & READ_ONLY != 0)));
    }
    let pointer: NonNull<c_void> = capsule.pointer_checked(Some(PLAIN))?;
    // SAFETY: a capsule of this name holds a structure that begins with the tensor (DLPack's specification) and lives
    // as long as the capsule, borrowed here. Needed because DLPack is a protocol of pointers.
    Ok((unsafe { *pointer.cast::<RawTensor>().as_ptr() }, None))
}

fn read(tensor: &RawTensor, read_only: Option<bool>, owner: Py<PyAny>) -> PyResult<Found> {
    if !(0..=DIMENSIONS_MAX).contains(&tensor.ndim) {
        let text = format!("invalid number of dimensions: {}", tensor.ndim);
        return Err(Failure::input("wrong_shape", text).into());
    }
    let count = tensor.ndim as usize;
    let (shape, strides) = (numbers(tensor.shape, count), numbers(tensor.strides, count));
    let strides = if tensor.strides.is_null() { None } else { Some(strides) };
    let contiguous = strides.is_none_or(|strides| is_contiguous(&shape, &strides));
    let address = (tensor.data as usize).wrapping_add(tensor.byte_offset as usize);
    let shape = shape.iter().map(|one| usize::try_from(*one).unwrap_or(0)).collect();
    Ok(Found { address, dtype: tensor.dtype, shape, contiguous, read_only, owner })
}

fn numbers(start: *const i64, count: usize) -> Vec<i64> {
    if start.is_null() {
        return Vec::new();
    }
    // SAFETY: DLPack's shapes and strides have as many numbers as the tensor has dimensions, and live as long as it,
    // whose capsule the caller holds. Needed because they are told as pointers.
    (0..count).map(|at| unsafe { start.add(at).read() }).collect()
}

/// Row by row without gaps; dimensions of one element may have any stride.
pub(crate) fn is_contiguous(shape: &[i64], strides: &[i64]) -> bool {
    let mut expected = 1i64;
    for (length, stride) in shape.iter().zip(strides).rev() {
        if *length != 1 && *stride != expected {
            return shape.contains(&0);
        }
        expected = expected.saturating_mul(*length);
    }
    true
}
