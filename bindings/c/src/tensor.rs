//! Declared tensors, and their update rules.

use crate::border::{object, put, slice, slice_mut, text};
use crate::client::GradwireClient;
use crate::error::{Failure, GradwireCode, guard, guard_or};
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

/// Room for the name of any checkpoint, with the nul: looked at before one is written.
const NAME_BYTES_MIN: usize = 129;

/// A declared tensor. Its functions may be called from any thread. Freed with `gradwire_tensor_free`, which leaves the
/// tensor itself where it is: declaring it again, or `gradwire_tensor_of`, finds it.
#[derive(Debug)]
pub struct GradwireTensor(pub(crate) Tensor);

/// Types of elements.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradwireDtype {
    /// `float`.
    F32 = 1,
    /// `double`.
    F64 = 2,
    /// IEEE 754 binary16, 2 bytes; summed and kept in f32.
    F16 = 3,
    /// bfloat16, 2 bytes; summed and kept in f32.
    Bf16 = 4,
    /// `int8_t`; integers are summed in 64 bits, and a value that does not fit is an error.
    I8 = 5,
    /// `uint8_t`.
    U8 = 6,
    /// `int32_t`.
    I32 = 7,
    /// `int64_t`.
    I64 = 8,
}

/// How contributions of several workers become versions.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradwireMode {
    /// What the cluster's settings say (`cluster.mode`).
    Cluster = 0,
    /// One version a round, from the contributions of all workers.
    Sync = 1,
    /// Every contribution makes a version, and workers may be at most `staleness` contributions apart.
    Bounded = 2,
    /// Every contribution makes a version.
    Async = 3,
}

/// What a tensor is. Every worker declares the same. Set all of it to zeros before filling it: zeros are the defaults of
/// what is not filled.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradwireTensorSpec {
    /// Its key, any number.
    pub key: u64,
    /// Its elements; the most it may have in a round, where it is dynamic.
    pub elements: u64,
    /// A name for people; may be null.
    pub name: *const c_char,
    /// A `GradwireDtype`.
    pub dtype: i32,
    /// A `GradwireMode`.
    pub mode: i32,
    /// Of bounded mode: contributions that workers may be apart.
    pub staleness: u32,
    /// Workers whose contribution a round does not wait for (sync mode); the cluster's where 0.
    pub backup_workers: u32,
    /// Operations carry a length of their own, where not 0.
    pub dynamic: i32,
    /// How contributions are encoded: null or "plain", "f16", "bf16", "onebit", "twobit:THRESHOLD", "topk:SHARE",
    /// "randomk:SHARE", "dither:BITS". Only of f32 tensors that are not dynamic.
    pub codec: *const c_char,
    /// Of a codec: whether the next gradient gets what the encoding of this one left out. 0: where the codec leaves something
    /// out; 1: it does; -1: it does not.
    pub feedback: i32,
    /// Of a codec: momentum before the encoding, 0 to below 1 (Nesterov's). A rule with momentum of its own would have it
    /// twice.
    pub momentum: f32,
    /// What servers do with contributions.
    pub optimizer: GradwireOptimizer,
}

impl GradwireTensorSpec {
    fn typed(&self) -> Result<TensorSpec, Failure> {
        let dtype = u8::try_from(self.dtype).ok().and_then(Dtype::from_wire);
        let no_dtype =
            || Failure::argument(format!("dtype {} is none; use a GRADWIRE_DTYPE_ constant", self.dtype));
        let optional = |given: *const c_char, name| if given.is_null() { Ok("") } else { text(given, name) };
        let codec = match optional(self.codec, "codec")? {
            "" => Codec::default(),
            name => name.parse().map_err(|error| Failure::argument(format!("{error}")))?,
        };
        let feedback = match self.feedback {
            0 => Compression::of(codec).feedback,
            1 => true,
            -1 => false,
            other => return Err(Failure::argument(format!("feedback {other} is none; use 0, 1 or -1"))),
        };
        let mode = match self.mode {
            0 => None,
            1 => Some(Mode::Sync),
            2 => Some(Mode::Bounded(self.staleness)),
            3 => Some(Mode::Async),
            mode => {
                let text = format!("mode {mode} is none; use a GRADWIRE_MODE_ constant");
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

/// Declares `count` tensors and writes them to `tensors`, in the order given: room for `count` pointers. Every worker
/// declares the same ones, in any number of calls; repeating a declaration is harmless. A new tensor is all zeros. Waits
/// for the servers, at most `deadlines.operation_ms`. On an error nothing is written.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_declare(
    client: Option<&GradwireClient>,
    specs: *const GradwireTensorSpec,
    count: u64,
    tensors: *mut Option<Box<GradwireTensor>>,
) -> GradwireCode {
    guard(|| {
        let client = object(client, "client")?.client();
        let specs = slice(specs, count, "specs")?;
        let places = slice_mut(tensors.cast::<std::mem::MaybeUninit<_>>(), count, "tensors")?;
        let specs: Vec<_> = specs.iter().map(GradwireTensorSpec::typed).collect::<Result<_, _>>()?;
        let declared = client.declare(&specs)?;
        for (place, tensor) in places.iter_mut().zip(declared) {
            place.write(Some(Box::new(GradwireTensor(tensor))));
        }
        Ok(())
    })
}

/// A tensor that this client has declared, by its key.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_tensor_of(
    client: Option<&GradwireClient>,
    key: u64,
    tensor: Option<&mut MaybeUninit<Option<Box<GradwireTensor>>>>,
) -> GradwireCode {
    guard(|| {
        let found = object(client, "client")?.client().tensor(key)?;
        put(tensor, "tensor", Some(Box::new(GradwireTensor(found))))
    })
}

/// Gives a tensor another update rule, from this worker's next contribution on; one worker's call is enough. `round`
/// may be null; it gets the first round of the new rule.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_change_rule(
    client: Option<&GradwireClient>,
    tensor: Option<&GradwireTensor>,
    optimizer: Option<&GradwireOptimizer>,
    round: Option<&mut MaybeUninit<u64>>,
) -> GradwireCode {
    guard(|| {
        let (client, tensor) = (object(client, "client")?.client(), object(tensor, "tensor")?);
        let from = client.change_rule(&tensor.0, object(optimizer, "optimizer")?.typed()?)?;
        if let Some(round) = round {
            round.write(from);
        }
        Ok(())
    })
}

/// Where training is: `round` gets the one that every worker has finished of these `count` tensors, which are all that the
/// program contributes to; 0 in a job that has just begun. To be called once, after declaring them and before anything is pushed:
/// this worker's next contribution is to the round after it, and its first pull brings the weights that the round left. That is
/// how a program goes on whose earlier life died where rounds wait for it (`cluster.worker_loss = "wait"`), or that begins from
/// a checkpoint; with 0 it sets initial values. What a codec had left over in a process that died is lost.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_resume(
    client: Option<&GradwireClient>,
    tensors: *const Option<&GradwireTensor>,
    count: u64,
    round: Option<&mut MaybeUninit<u64>>,
) -> GradwireCode {
    guard(|| {
        let client = object(client, "client")?.client();
        let tensor = |tensor: &Option<&GradwireTensor>| Ok(object(*tensor, "tensor")?.0.clone());
        let tensors = slice(tensors, count, "tensors")?.iter().map(tensor);
        let tensors = tensors.collect::<Result<Vec<Tensor>, Failure>>()?;
        put(round, "round", client.resume(&tensors)?)
    })
}

/// Has servers write a checkpoint of the round that this worker has finished of these `count` tensors, which are all that the
/// program contributes to; returns when it is complete, after `timeout_ms` at the latest. `name` gets what
/// `checkpoint.restore` is to be to go on from it, as text that ends with a nul, of at most `name_bytes` bytes with it; 256 are
/// enough, and null with 0 says that nobody asks. To be called between rounds: when the operations of one were waited for, and
/// before anything is pushed to the next. One worker is enough; training stands still meanwhile.
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
        let client = object(client, "client")?.client();
        let place = slice_mut(name.cast::<u8>(), name_bytes, "name")?;
        let tensor = |tensor: &Option<&GradwireTensor>| Ok(object(*tensor, "tensor")?.0.clone());
        let tensors = slice(tensors, count, "tensors")?.iter().map(tensor);
        let tensors = tensors.collect::<Result<Vec<Tensor>, Failure>>()?;
        if !place.is_empty() && place.len() < NAME_BYTES_MIN {
            let what = format!("name_bytes is {name_bytes}; a checkpoint's name may need {NAME_BYTES_MIN}");
            return Err(Failure::argument(what));
        }
        let written = client.checkpoint(&tensors, Duration::from_millis(timeout_ms))?;
        if !place.is_empty() {
            let bytes = written.as_bytes();
            let place = place.get_mut(..=bytes.len());
            let place = place.ok_or_else(|| Failure::argument(format!("there is no room for {written}")))?;
            place[..bytes.len()].copy_from_slice(bytes);
            place[bytes.len()] = 0;
        }
        Ok(())
    })
}

/// Its bytes: how many a contribution has, and how many a pull brings. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_tensor_bytes(tensor: Option<&GradwireTensor>) -> u64 {
    guard_or(0, || Ok(object(tensor, "tensor")?.0.bytes()))
}

/// Bytes of a contribution as it is sent: fewer than the tensor's where it has a codec. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_tensor_sent_bytes(tensor: Option<&GradwireTensor>) -> u64 {
    guard_or(0, || Ok(object(tensor, "tensor")?.0.sent_bytes()))
}

/// How contributions to it travel now: "slot", "static", "rendezvous-read" or "rendezvous-write". It is chosen when the tensor is
/// declared, once more after the first round, and by the setting `transport.placement`. Never freed; null for null.
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

/// The same tensor, whose operations tell the version of each chunk, too: see `gradwire_chunk_versions`. Another object, to
/// be freed by itself.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_tensor_with_chunk_versions(
    tensor: Option<&GradwireTensor>,
    with_versions: Option<&mut MaybeUninit<Option<Box<GradwireTensor>>>>,
) -> GradwireCode {
    guard(|| {
        let telling = object(tensor, "tensor")?.0.with_chunk_versions();
        put(with_versions, "with_versions", Some(Box::new(GradwireTensor(telling))))
    })
}

/// Its key. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_tensor_key(tensor: Option<&GradwireTensor>) -> u64 {
    guard_or(0, || Ok(object(tensor, "tensor")?.0.key().0))
}

/// Frees what stands for the tensor. Null is fine.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_tensor_free(tensor: Option<Box<GradwireTensor>>) {
    drop(tensor);
}
