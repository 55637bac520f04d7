//! Declared tensors, and their update rules.

use crate::border::{make, object, put, put_if_wanted, slice, slice_mut, text};
use crate::client::GradwireClient;
use crate::error::{Failure, GradwireCode, free, guard, guard_or};
use crate::optimizer::GradwireOptimizer;
use gradwire_worker::Tensor;
use proto_common::codec::{Codec, Compression};
use proto_common::element::Dtype;
use proto_common::ids::Key;
use proto_common::plan::Placement;
use proto_common::tensor::{Mode, TensorSpec};
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::time::Duration;

/// Room for the name of any checkpoint, with the terminating nul. Checked before a checkpoint is written.
const NAME_BYTES_MIN: usize = 129;

/// A declared tensor. Any thread may call its functions. `gradwire_tensor_free` frees only this object and not the
/// tensor: a repeated declaration, or `gradwire_tensor_of`, returns it again.
#[derive(Debug)]
pub struct GradwireTensor(pub(crate) Tensor);

/// How contributions of several workers become versions.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradwireMode {
    /// The cluster's mode (`cluster.mode`).
    Cluster = 0,
    /// One version per round, from the contributions of all workers.
    Sync = 1,
    /// Every contribution makes a version. Workers may be at most `staleness` contributions apart.
    Bounded = 2,
    /// Every contribution makes a version.
    Async = 3,
}

/// Declaration of a tensor. All workers must declare the same. Initialise the structure with zeros: zero is the
/// default of every field.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradwireTensorSpec {
    /// The key, any number.
    pub key: u64,
    /// The number of elements; for a dynamic tensor the largest number in a round.
    pub elements: u64,
    /// A name for logs and errors; may be null.
    pub name: *const c_char,
    /// A `GradwireDtype`.
    pub dtype: i32,
    /// A `GradwireMode`.
    pub mode: i32,
    /// Mode bounded: how many contributions workers may be apart.
    pub staleness: u32,
    /// Mode sync: how many workers a round does not wait for. 0: the cluster's setting.
    pub backup_workers: u32,
    /// Not 0: dynamic, each operation has its own length.
    pub dynamic: i32,
    /// The codec of contributions: null or "plain", "f16", "bf16", "onebit", "twobit:THRESHOLD", "topk:SHARE",
    /// "randomk:SHARE", "dither:BITS". Only for f32 tensors that are not dynamic.
    pub codec: *const c_char,
    /// Error feedback of the codec: whether what this encoding left out is added to the next gradient. 0: yes if the
    /// codec is lossy; 1: yes; -1: no.
    pub feedback: i32,
    /// Momentum before the encoding, from 0 to below 1 (Nesterov's). With a rule that has momentum, it would be
    /// applied twice.
    pub momentum: f32,
    /// The update rule on the servers.
    pub optimizer: GradwireOptimizer,
}

impl GradwireTensorSpec {
    fn typed(&self) -> Result<TensorSpec, Failure> {
        let dtype = u8::try_from(self.dtype).ok().and_then(Dtype::from_wire);
        let no_dtype =
            || Failure::argument(format!("invalid dtype {}; use a GRADWIRE_DTYPE_ constant", self.dtype));
        let optional = |given: *const c_char, name| if given.is_null() { Ok("") } else { text(given, name) };
        let codec = match optional(self.codec, "codec")? {
            "" => Codec::default(),
            name => name.parse().map_err(|error| Failure::argument(format!("{error}")))?,
        };
        let feedback = match self.feedback {
            0 => Compression::of(codec).feedback,
            1 => true,
            -1 => false,
            other => return Err(Failure::argument(format!("invalid feedback {other}; use 0, 1 or -1"))),
        };
        let mode = match self.mode {
            0 => None,
            1 => Some(Mode::Sync),
            2 => Some(Mode::Bounded(self.staleness)),
            3 => Some(Mode::Async),
            mode => {
                let text = format!("invalid mode {mode}; use a GRADWIRE_MODE_ constant");
                return Err(Failure::argument(text));
            }
        };
        Ok(TensorSpec {
            key: Key(self.key),
            name: optional(self.name, "name")?.to_owned(),
            dtype: dtype.ok_or_else(no_dtype)?,
            elements: self.elements,
            dynamic: self.dynamic != 0,
            compression: Compression { codec, feedback, momentum: self.momentum },
            optimizer: self.optimizer.typed()?,
            mode,
            backup_workers: (self.backup_workers > 0).then_some(self.backup_workers),
        })
    }
}

/// Declares `count` tensors and writes them to `tensors`, in the given order: it needs room for `count` pointers. All
/// workers must declare the same tensors, in any number of calls. A repeated declaration has no effect. A new tensor
/// is all zeros. Waits for the servers, at most `deadlines.operation_ms`. On an error nothing is written.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_declare(
    client: Option<&GradwireClient>,
    specs: *const GradwireTensorSpec,
    count: u64,
    tensors: *mut Option<Box<GradwireTensor>>,
) -> GradwireCode {
    guard(|| {
        let client = &object(client, "client")?.client;
        let specs = slice(specs, count, "specs")?;
        let places = slice_mut(tensors.cast::<MaybeUninit<_>>(), count, "tensors")?;
        let specs: Vec<_> = specs.iter().map(GradwireTensorSpec::typed).collect::<Result<_, _>>()?;
        let declared = client.declare(&specs)?;
        for (place, tensor) in places.iter_mut().zip(declared) {
            place.write(Some(Box::new(GradwireTensor(tensor))));
        }
        Ok(())
    })
}

/// The tensor with this key, if this client has declared it.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_tensor_of(
    client: Option<&GradwireClient>,
    key: u64,
    tensor: Option<&mut MaybeUninit<Option<Box<GradwireTensor>>>>,
) -> GradwireCode {
    guard(|| make(tensor, "tensor", || Ok(GradwireTensor(object(client, "client")?.client.tensor(key)?))))
}

/// Changes a tensor's update rule, from this worker's next contribution on. One worker's call is enough. `round`
/// receives the first round of the new rule; it may be null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_change_rule(
    client: Option<&GradwireClient>,
    tensor: Option<&GradwireTensor>,
    optimizer: Option<&GradwireOptimizer>,
    round: Option<&mut MaybeUninit<u64>>,
) -> GradwireCode {
    guard(|| {
        let (client, tensor) = (&object(client, "client")?.client, object(tensor, "tensor")?);
        let from = client.change_rule(&tensor.0, object(optimizer, "optimizer")?.typed()?)?;
        put_if_wanted(round, from);
        Ok(())
    })
}

fn tensors_of(tensors: *const Option<&GradwireTensor>, count: u64) -> Result<Vec<Tensor>, Failure> {
    slice(tensors, count, "tensors")?.iter().map(|tensor| Ok(object(*tensor, "tensor")?.0.clone())).collect()
}

/// Where training is. `round` receives the last round of these `count` tensors that all workers have finished; 0 in a
/// job that has just begun. Pass all tensors that the program contributes to. Call it once, after they are declared
/// and before anything is pushed. This worker's next contribution is to the round after `round`, and its first pull
/// returns the weights of `round`. A restarted program continues in this way if rounds wait for it
/// (`cluster.worker_loss = "wait"`), and so does a program that begins from a checkpoint. If `round` is 0, set initial
/// values. What a codec had left over in the failed process is lost.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_resume(
    client: Option<&GradwireClient>,
    tensors: *const Option<&GradwireTensor>,
    count: u64,
    round: Option<&mut MaybeUninit<u64>>,
) -> GradwireCode {
    guard(|| {
        let client = &object(client, "client")?.client;
        put(round, "round", client.resume(&tensors_of(tensors, count)?)?)
    })
}

/// Has servers write a checkpoint of the round that this worker has finished, for these `count` tensors; pass all
/// tensors that the program contributes to. Returns when the checkpoint is complete, after `timeout_ms` at the latest.
/// `name` receives the value of `checkpoint.restore` that continues from it, with a terminating nul, in at most
/// `name_bytes` bytes; 256 are enough, and null with 0 omits the name. Call it between rounds: after the wait for a
/// round's operations, and before anything is pushed to the next one. One worker is enough. Training stands still
/// meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_checkpoint(
    client: Option<&GradwireClient>,
    tensors: *const Option<&GradwireTensor>,
    count: u64,
    timeout_ms: u64,
    name: *mut c_char,
    name_bytes: u64,
) -> GradwireCode {
    guard(|| {
        let client = &object(client, "client")?.client;
        let place = slice_mut(name.cast::<u8>(), name_bytes, "name")?;
        let tensors = tensors_of(tensors, count)?;
        if !place.is_empty() && place.len() < NAME_BYTES_MIN {
            let what =
                format!("name_bytes is {name_bytes}, but the name of a checkpoint may need {NAME_BYTES_MIN}");
            return Err(Failure::argument(what));
        }
        let written = client.checkpoint(&tensors, Duration::from_millis(timeout_ms))?;
        if !place.is_empty() {
            let bytes = written.as_bytes();
            let place = place.get_mut(..=bytes.len());
            let place =
                place.ok_or_else(|| Failure::argument(format!("the buffer has no room for {written}")))?;
            place[..bytes.len()].copy_from_slice(bytes);
            place[bytes.len()] = 0;
        }
        Ok(())
    })
}

/// The size in bytes of a contribution, and of a pull. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_tensor_bytes(tensor: Option<&GradwireTensor>) -> u64 {
    guard_or(0, || Ok(object(tensor, "tensor")?.0.bytes()))
}

/// Bytes of a contribution as it is sent; with a codec fewer than the tensor's. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_tensor_sent_bytes(tensor: Option<&GradwireTensor>) -> u64 {
    guard_or(0, || Ok(object(tensor, "tensor")?.0.sent_bytes()))
}

/// The current placement of its contributions: "slot", "static", "rendezvous-read" or "rendezvous-write". It is chosen
/// when the tensor is declared and again after the first round, or by the setting `transport.placement`. Never freed;
/// null for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_tensor_placement(tensor: Option<&GradwireTensor>) -> *const c_char {
    guard_or(std::ptr::null(), || {
        let name = match object(tensor, "tensor")?.0.placement() {
            Placement::Slot => c"slot",
            Placement::Static => c"static",
            Placement::RendezvousRead => c"rendezvous-read",
            Placement::RendezvousWrite => c"rendezvous-write",
        };
        Ok(name.as_ptr())
    })
}

/// The same tensor, with operations that also return the version of each chunk: see `gradwire_chunk_versions`. A
/// separate object, to be freed separately.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_tensor_with_chunk_versions(
    tensor: Option<&GradwireTensor>,
    with_versions: Option<&mut MaybeUninit<Option<Box<GradwireTensor>>>>,
) -> GradwireCode {
    guard(|| {
        let telling = || Ok(GradwireTensor(object(tensor, "tensor")?.0.with_chunk_versions()));
        make(with_versions, "with_versions", telling)
    })
}

/// Its key. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_tensor_key(tensor: Option<&GradwireTensor>) -> u64 {
    guard_or(0, || Ok(object(tensor, "tensor")?.0.key().0))
}

/// Frees the object, and not the tensor. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_tensor_free(tensor: Option<Box<GradwireTensor>>) {
    free(tensor);
}
