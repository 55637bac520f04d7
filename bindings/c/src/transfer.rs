//! Moving tensors: push, pull, push_pull and initial values, from plain or registered memory.

use crate::border::{Out, bytes, object, slice_mut};
use crate::buffer::GradwireBuffer;
use crate::client::GradwireClient;
use crate::error::{Failure, GradwireCode, guard};
use crate::handle::{GradwireHandle, Landing, Plain};
use crate::tensor::GradwireTensor;
use gradwire_worker::{Client, Tensor, TensorBuffer};
use std::ffi::c_void;
use std::mem::MaybeUninit;

type HandleOut<'a> = Out<'a, Option<Box<GradwireHandle>>>;

/// The objects of a call.
fn objects<'a>(
    client: Option<&'a GradwireClient>,
    tensor: Option<&'a GradwireTensor>,
) -> Result<(&'a Client, &'a Tensor), Failure> {
    Ok((object(client, "client")?.client(), &object(tensor, "tensor")?.0))
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

/// A copy of plain memory in registered memory.
fn copied(client: &Client, data: &[u8]) -> Result<TensorBuffer, Failure> {
    let mut buffer = client.allocate(data.len() as u64)?;
    buffer.copy_in(data);
    Ok(buffer)
}

/// Memory of the program's that the wait writes: looked at now, so that what is wrong with it is told now.
fn plain(tensor: &Tensor, into: *mut u8, into_bytes: u64) -> Result<Landing, Failure> {
    fits(tensor, into_bytes, false)?;
    let dtype = tensor.spec().dtype;
    let (start, width) = (into, dtype.bytes());
    slice_mut(start, into_bytes, "into")?;
    if !(start as usize).is_multiple_of(width) {
        return Err(Failure::argument(format!(
            "into is not aligned: its address must be a multiple of {width} bytes"
        )));
    }
    Ok(Landing::Plain(Plain { start, dtype }))
}

/// Where the handle goes is known before anything is started.
fn started<'a>(
    handle: HandleOut<'a>,
    start: impl FnOnce() -> Result<GradwireHandle, Failure>,
) -> Result<(), Failure> {
    let place = handle.ok_or_else(|| Failure::null("handle"))?;
    place.write(Some(Box::new(start()?)));
    Ok(())
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
        fits(tensor, data_bytes, tensor.spec().dynamic)?;
        let data = bytes(data.cast(), data_bytes, "data")?;
        started(handle, || {
            let source = copied(client, data)?;
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
        let gradient = object(gradient, "gradient")?;
        fits(tensor, gradient.bytes(), tensor.spec().dynamic)?;
        started(handle, || {
            let source = gradient.take("gradient")?;
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
        started(handle, || Ok(GradwireHandle::new(client.pull_view_at(tensor, priority)?, None, landing)))
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
        let weights = object(weights, "weights")?;
        fits(tensor, weights.bytes(), false)?;
        started(handle, || {
            let target = weights.take("weights")?;
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
        fits(tensor, data_bytes, false)?;
        let data = bytes(data.cast(), data_bytes, "data")?;
        started(handle, || {
            let source = copied(client, data)?;
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
        let (gradient, weights) = (object(gradient, "gradient")?, object(weights, "weights")?);
        for buffer in [gradient, weights] {
            fits(tensor, buffer.bytes(), false)?;
        }
        started(handle, || {
            let source = gradient.take("gradient")?;
            let target = weights.take("weights")?;
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
        fits(tensor, data_bytes, false)?;
        let data = bytes(data.cast(), data_bytes, "data")?;
        started(handle, || {
            let source = copied(client, data)?;
            Ok(GradwireHandle::new(client.init_from(tensor, source)?, None, Landing::Nowhere))
        })
    })
}
