//! What an operation does when its turn in the engine has come: copies the gradient into registered memory, hands it to
//! the client, and leaves the end to the finisher. It must not wait.

use super::abi::{Array, Ending, Work};
use super::finisher::{End, Finisher};
use crate::error::Failure;
use fabric::copy::{memcpy, streaming};
use gradwire_worker::{Client, ClientError, Handle, Tensor, TensorBuffer};
use proto_common::element::Dtype;
use proto_common::tensor::Mode;
use std::sync::{Arc, Mutex, PoisonError};

/// Copies of at least this much pass by the cache: it is too small to hold them until they are sent.
pub(crate) const STREAMING_BYTES_MIN: usize = 4 << 20;
/// Buffers a key keeps for its next operations: one under way, one being filled.
const SPARE_MAX: usize = 3;

/// What the operations of a key share.
pub(crate) struct Key {
    client: Client,
    tensor: Tensor,
    finisher: Arc<Finisher>,
    /// All operations write it, which gives them their order.
    order: Array,
    spare: Mutex<Vec<TensorBuffer>>,
    /// What became of a push, for which nobody waits.
    failure: Mutex<Option<Failure>>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("tensor", &self.tensor.key()).finish_non_exhaustive()
    }
}

impl Key {
    pub(crate) fn new(client: Client, tensor: Tensor, finisher: Arc<Finisher>, order: Array) -> Self {
        Self { client, tensor, finisher, order, spare: Mutex::default(), failure: Mutex::default() }
    }

    pub(crate) fn order(&self) -> usize {
        self.order.handle()
    }

    pub(crate) fn dtype(&self) -> Dtype {
        self.tensor.spec().dtype
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.tensor.bytes()
    }

    /// What went wrong with an earlier push, told until the end: its round lacks a contribution.
    pub(crate) fn failure(&self) -> Option<Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn fail(&self, failure: Failure) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
    }

    fn buffer(&self) -> Result<TensorBuffer, ClientError> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.map_or_else(|| self.client.allocate(self.bytes()), Ok)
    }

    /// Takes back what an operation has done with.
    pub(crate) fn take_back(&self, buffers: impl IntoIterator<Item = TensorBuffer>) {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.extend(buffers);
        spare.truncate(SPARE_MAX);
    }

    /// A gradient as it is now.
    fn copy_of(&self, gradient: &Array) -> Result<TensorBuffer, Failure> {
        let from = gradient.numbers(self.bytes()).map_err(|reason| Failure::input("array", reason))?;
        let mut buffer = self.buffer()?;
        // SAFETY: so many bytes of an array that nobody writes now: it is the engine's turn of an operation that reads or
        // has it. Needed because the array is another library's.
        let from = unsafe { std::slice::from_raw_parts(from, buffer.len()) };
        if from.len() >= STREAMING_BYTES_MIN {
            streaming(&mut buffer, from);
        } else {
            memcpy(&mut buffer, from);
        }
        Ok(buffer)
    }
}

/// An operation on a key: with a gradient, with arrays for weights, or both.
#[derive(Debug)]
pub(crate) struct Operation {
    key: Arc<Key>,
    gradient: Option<Array>,
    weights: Vec<Array>,
    priority: i32,
}

impl Operation {
    pub(crate) fn new(key: Arc<Key>, gradient: Option<Array>, weights: Vec<Array>, priority: i32) -> Self {
        Self { key, gradient, weights, priority }
    }

    fn start(&self) -> Result<Handle, Failure> {
        let Key { client, tensor, .. } = &*self.key;
        let gradient = self.gradient.as_ref().map(|gradient| self.key.copy_of(gradient)).transpose()?;
        // A worker that reads weights where servers have them keeps others from publishing, until its next operation on
        // them: in rounds they wait for that anyway, elsewhere they must not.
        let in_place = tensor.spec().mode == Some(Mode::Sync);
        let handle = match (gradient, !self.weights.is_empty()) {
            (None, _) if in_place => client.pull_view(tensor),
            (None, _) => client.pull(tensor, self.key.buffer()?),
            (Some(gradient), false) => client.push_at(tensor, gradient, self.priority),
            (Some(gradient), true) if in_place => client.push_pull_view(tensor, gradient, self.priority),
            (Some(gradient), true) => client.push_pull(tensor, gradient, self.key.buffer()?, self.priority),
        };
        Ok(handle?)
    }
}

impl Work for Operation {
    fn begin(self, ending: Ending) {
        let handle = match self.start() {
            Ok(handle) => handle,
            Err(failure) => {
                ending.badly(&failure.to_string());
                // A round lacks this worker's contribution: the key is of no use any more.
                return if self.gradient.is_some() {
                    self.key.fail(failure);
                };
            }
        };
        let Self { key, gradient, weights, .. } = self;
        drop(gradient);
        let ending = if weights.is_empty() {
            // A gradient that was copied is its owner's again; whoever pulls waits for the weights.
            ending.well();
            None
        } else {
            Some(ending)
        };
        let finisher = key.finisher.clone();
        finisher.when_ended(handle, End { key, weights, ending });
    }
}
