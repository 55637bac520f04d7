//! Moving tensors: push, pull, push_pull and initial values, from plain or registered memory.

use crate::border::{bytes, make, object, slice_mut};
use crate::buffer::{GradwireBuffer, Taken};
use crate::call::copied;
use crate::client::GradwireClient;
use crate::error::{Failure, GradwireCode, guard};
use crate::handle::{GradwireHandle, Landing, Plain};
use crate::tensor::GradwireTensor;
use gradwire_worker::{Client, Tensor, TensorBuffer};
use std::ffi::c_void;
use std::mem::MaybeUninit;

/// The objects of a call.
fn objects<'a>(
    client: Option<&'a GradwireClient>,
    tensor: Option<&'a GradwireTensor>,
) -> Result<(&'a Client, &'a Tensor), Failure> {
    Ok((&object(client, "client")?.client, &object(tensor, "tensor")?.0))
}

/// Has the memory the tensor's length? A dynamic tensor's contribution may be shorter.
fn fits(tensor: &Tensor, have: u64, shorter: bool) -> Result<(), Failure> {
    let (want, label) = (tensor.bytes(), tensor.spec().label());
    if have == want || (shorter && have < want && have.is_multiple_of(tensor.spec().dtype.bytes() as u64)) {
        return Ok(());
    }
    Err(Failure::argument(format!(
        "{label} has {want} bytes of {}, but the memory has {have} bytes. Pass exactly {want} bytes.",
        tensor.spec().dtype
    )))
}

/// A copy of the program's contribution in registered memory.
fn contribution(
    client: &Client,
    tensor: &Tensor,
    (data, data_bytes): (*const c_void, u64),
    shorter: bool,
) -> Result<TensorBuffer, Failure> {
    fits(tensor, data_bytes, shorter)?;
    copied(client, bytes(data.cast(), data_bytes, "data")?)
}

/// Registered memory on its way into an operation of the tensor.
fn taken(
    buffer: Option<&GradwireBuffer>,
    name: &str,
    tensor: &Tensor,
    shorter: bool,
) -> Result<Taken, Failure> {
    let buffer = object(buffer, name)?;
    fits(tensor, buffer.bytes(), shorter)?;
    buffer.take(name)
}

/// Memory of the program's that the wait writes: looked at now, so that what is wrong with it is told now.
fn plain(tensor: &Tensor, into: *mut u8, into_bytes: u64) -> Result<Landing, Failure> {
    fits(tensor, into_bytes, false)?;
    let width = tensor.spec().dtype.bytes();
    slice_mut(into, into_bytes, "into")?;
    if !(into as usize).is_multiple_of(width) {
        return Err(Failure::argument(format!(
            "into is not aligned: its address must be a multiple of {width} bytes"
        )));
    }
    Ok(Landing::Plain(Plain(into)))
}

/// Contributes a gradient of `data_bytes` bytes to the tensor's next round. The memory is copied during the call;
/// after it the program may use it again. The operation ends when the round is published: in mode sync when all
/// workers have contributed. Operations with higher `priority` go first; operations of one tensor are never reordered.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_push(
    client: Option<&GradwireClient>,
    tensor: Option<&GradwireTensor>,
    data: *const c_void,
    data_bytes: u64,
    priority: i32,
    handle: Option<&mut MaybeUninit<Option<Box<GradwireHandle>>>>,
) -> GradwireCode {
    guard(|| {
        let (client, tensor) = objects(client, tensor)?;
        make(handle, "handle", || {
            let source = contribution(client, tensor, (data, data_bytes), tensor.spec().dynamic)?;
            Ok(GradwireHandle::new(client.push_at(tensor, source, priority)?, None, Landing::Nowhere))
        })
    })
}

/// As `gradwire_push`, from registered memory. The memory is sent in place, and belongs to the operation until a wait
/// completes it successfully.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_push_buffer(
    client: Option<&GradwireClient>,
    tensor: Option<&GradwireTensor>,
    gradient: Option<&GradwireBuffer>,
    priority: i32,
    handle: Option<&mut MaybeUninit<Option<Box<GradwireHandle>>>>,
) -> GradwireCode {
    guard(|| {
        let (client, tensor) = objects(client, tensor)?;
        make(handle, "handle", || {
            let source = taken(gradient, "gradient", tensor, tensor.spec().dynamic)?;
            let handle = client.push_at(tensor, source.memory(), priority)?;
            Ok(GradwireHandle::new(handle, Some(source.keep()), Landing::Nowhere))
        })
    })
}

/// Reads the weights of the last round this worker contributed to, or a later one, into `into`: as many bytes as the
/// tensor has, aligned to the element size. The wait writes them, and nothing else does, so the memory must exist
/// until then. A handle that is freed without a wait writes nothing. `priority` is as for a push.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_pull(
    client: Option<&GradwireClient>,
    tensor: Option<&GradwireTensor>,
    into: *mut c_void,
    into_bytes: u64,
    priority: i32,
    handle: Option<&mut MaybeUninit<Option<Box<GradwireHandle>>>>,
) -> GradwireCode {
    guard(|| {
        let (client, tensor) = objects(client, tensor)?;
        let landing = plain(tensor, into.cast(), into_bytes)?;
        make(handle, "handle", || {
            Ok(GradwireHandle::new(client.pull_view_at(tensor, priority)?, None, landing))
        })
    })
}

/// As `gradwire_pull`, into registered memory. The servers write it in place. It belongs to the operation until a wait
/// completes it successfully.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_pull_buffer(
    client: Option<&GradwireClient>,
    tensor: Option<&GradwireTensor>,
    weights: Option<&GradwireBuffer>,
    priority: i32,
    handle: Option<&mut MaybeUninit<Option<Box<GradwireHandle>>>>,
) -> GradwireCode {
    guard(|| {
        let (client, tensor) = objects(client, tensor)?;
        make(handle, "handle", || {
            let target = taken(weights, "weights", tensor, false)?;
            let handle = client.pull_at(tensor, target.memory(), priority)?;
            Ok(GradwireHandle::new(handle, None, Landing::Buffer(target.keep())))
        })
    })
}

/// Contributes a gradient and reads the weights of that round: `gradwire_push` and `gradwire_pull` in one, with their
/// rules for memory. `data` and `into` may be the same. Operations with higher `priority` go first; operations of one
/// tensor are never reordered. Not for dynamic tensors.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_push_pull(
    client: Option<&GradwireClient>,
    tensor: Option<&GradwireTensor>,
    data: *const c_void,
    data_bytes: u64,
    into: *mut c_void,
    into_bytes: u64,
    priority: i32,
    handle: Option<&mut MaybeUninit<Option<Box<GradwireHandle>>>>,
) -> GradwireCode {
    guard(|| {
        let (client, tensor) = objects(client, tensor)?;
        let landing = plain(tensor, into.cast(), into_bytes)?;
        make(handle, "handle", || {
            let source = contribution(client, tensor, (data, data_bytes), false)?;
            let handle = client.push_pull_view(tensor, source, priority)?;
            Ok(GradwireHandle::new(handle, None, landing))
        })
    })
}

/// As `gradwire_push_pull`, with registered memory in two different buffers.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_push_pull_buffers(
    client: Option<&GradwireClient>,
    tensor: Option<&GradwireTensor>,
    gradient: Option<&GradwireBuffer>,
    weights: Option<&GradwireBuffer>,
    priority: i32,
    handle: Option<&mut MaybeUninit<Option<Box<GradwireHandle>>>>,
) -> GradwireCode {
    guard(|| {
        let (client, tensor) = objects(client, tensor)?;
        make(handle, "handle", || {
            let source = taken(gradient, "gradient", tensor, false)?;
            let target = taken(weights, "weights", tensor, false)?;
            let handle = client.push_pull(tensor, source.memory(), target.memory(), priority)?;
            Ok(GradwireHandle::new(handle, Some(source.keep()), Landing::Buffer(target.keep())))
        })
    })
}

/// Sets the tensor's initial value, before its first round. Rank 0's value counts; the operation of every rank ends
/// when it is set. The memory is copied during the call.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_init(
    client: Option<&GradwireClient>,
    tensor: Option<&GradwireTensor>,
    data: *const c_void,
    data_bytes: u64,
    handle: Option<&mut MaybeUninit<Option<Box<GradwireHandle>>>>,
) -> GradwireCode {
    guard(|| {
        let (client, tensor) = objects(client, tensor)?;
        make(handle, "handle", || {
            let source = contribution(client, tensor, (data, data_bytes), false)?;
            Ok(GradwireHandle::new(client.init_from(tensor, source)?, None, Landing::Nowhere))
        })
    })
}
