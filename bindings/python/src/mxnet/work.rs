//! An operation from its turn in the engine to its end. It copies the gradient into registered memory and hands it to the
//! client; a begin waits only on a thread whose caller said for how long (`patience`). At the end the weights are copied into
//! MXNet's array, and the engine is notified. A data thread copies small weights itself, which saves the wake-up of another
//! thread, and leaves large ones to the finisher's thread. So neither data threads nor the engine's threads copy much or
//! wait.

use super::abi::{Array, Ending, Work};
use super::patience;
use crate::ends::when_ended;
use crate::error::{Failure, lock};
use crate::memory::copy;
use gradwire_worker::{Client, ClientError, Ended, Handle, Tensor, TensorBuffer};
use proto_common::tensor::Mode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

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
    /// The last push, where it brings the round's weights, too, until somebody wants them.
    bringing: Mutex<Option<Handle>>,
    /// Weights were pulled since the last push: those of the next will be, too.
    pulled: AtomicBool,
    /// What became of a push, for which nobody waits.
    failure: Mutex<Option<Failure>>,
}

impl Key {
    pub(crate) fn new(client: Client, tensor: Tensor, finisher: Arc<Finisher>, order: Array) -> Self {
        Self {
            client,
            tensor,
            finisher,
            order,
            spare: Mutex::default(),
            bringing: Mutex::default(),
            pulled: AtomicBool::new(false),
            failure: Mutex::default(),
        }
    }

    pub(crate) fn order(&self) -> usize {
        self.order.handle()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.tensor.bytes()
    }

    /// What went wrong with an earlier push, told until the end: its round lacks a contribution.
    pub(crate) fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }

    pub(crate) fn fail(&self, failure: Failure) {
        lock(&self.failure).get_or_insert(failure);
    }

    fn buffer(&self) -> Result<TensorBuffer, ClientError> {
        let spare = lock(&self.spare).pop();
        spare.map_or_else(|| self.client.allocate(self.bytes()), Ok)
    }

    /// Takes back what an operation has done with.
    pub(crate) fn take_back(&self, buffers: impl IntoIterator<Item = TensorBuffer>) {
        let mut spare = lock(&self.spare);
        spare.extend(buffers);
        spare.truncate(SPARE_MAX);
    }

    fn brought(&self) -> Option<Handle> {
        lock(&self.bringing).take()
    }

    /// Nobody wants what the last push brings: servers need not keep it, and what went wrong is noted.
    fn let_go(self: &Arc<Self>) {
        if let Some(handle) = self.brought() {
            let end = End { key: self.clone(), contributes: true, weights: Vec::new(), ending: None };
            self.finisher.when_ended(handle, end);
        }
    }

    /// A gradient as it is now.
    fn copy_of(&self, gradient: &Array) -> Result<TensorBuffer, Failure> {
        let from = gradient.numbers(self.bytes()).map_err(|reason| Failure::input("array", reason))?;
        let mut buffer = self.buffer()?;
        // SAFETY: so many bytes of an array that nobody writes now: it is the engine's turn of an operation that reads or
        // has it. Needed because the array is another library's.
        let from = unsafe { std::slice::from_raw_parts(from, buffer.len()) };
        copy(&mut buffer, from);
        Ok(buffer)
    }
}

/// An operation on a key: with a gradient, with arrays for weights, or both.
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

    /// Hands it to the client. None: whoever pulls next takes what comes of it.
    ///
    /// In rounds, the weights that a pull brings are those of the round that this worker contributed to last, whenever it
    /// is asked for. So where pulls follow pushes, the push asks for them, too, and one message goes where two went.
    fn start(&self) -> Result<Option<Started>, Failure> {
        let key = &self.key;
        let (client, tensor) = (&key.client, &key.tensor);
        // A worker that reads weights where servers have them keeps others from publishing, until its next operation on
        // them: in rounds they wait for that anyway, elsewhere they must not.
        let in_place = tensor.spec().mode == Some(Mode::Sync);
        let Some(gradient) = &self.gradient else {
            key.pulled.store(true, Ordering::Relaxed);
            let (handle, contributes) = match key.brought() {
                Some(handle) => (handle, true),
                None if in_place => (client.pull_view(tensor)?, false),
                None => (client.pull(tensor, key.buffer()?)?, false),
            };
            return Ok(Some(Started { handle, contributes }));
        };
        key.let_go();
        let gradient = key.copy_of(gradient)?;
        let handle = match self.weights.is_empty() {
            true if in_place && key.pulled.swap(false, Ordering::Relaxed) => {
                let handle = client.push_pull_view(tensor, gradient, self.priority)?;
                *lock(&key.bringing) = Some(handle);
                return Ok(None);
            }
            true => client.push_at(tensor, gradient, self.priority)?,
            false if in_place => client.push_pull_view(tensor, gradient, self.priority)?,
            false => client.push_pull(tensor, gradient, key.buffer()?, self.priority)?,
        };
        Ok(Some(Started { handle, contributes: true }))
    }
}

/// What the client has of an operation.
struct Started {
    handle: Handle,
    /// To a round.
    contributes: bool,
}

impl Work for Operation {
    fn begin(self, ending: Ending) {
        let started = self.start();
        let Self { key, gradient, weights, .. } = self;
        let has_gradient = gradient.is_some();
        // References to arrays are dropped before the engine is notified, so that what it frees then is really freed.
        drop(gradient);
        let started = match started {
            Ok(started) => started,
            Err(failure) => {
                drop(weights);
                ending.badly(&failure.to_string());
                // A round lacks this worker's contribution: the key is of no use any more.
                return if has_gradient {
                    key.fail(failure);
                };
            }
        };
        let ending = if weights.is_empty() {
            // A gradient that was copied is its owner's again; whoever pulls waits for the weights.
            ending.well();
            None
        } else {
            Some(ending)
        };
        let Some(Started { handle, contributes }) = started else { return };
        let (finisher, end) = (key.finisher.clone(), End { key, contributes, weights, ending });
        match patience::of_this_thread() {
            Some(time) if handle.is_done_by(Instant::now() + time) => end.finish(handle),
            _ => finisher.when_ended(handle, end),
        }
    }
}

/// Weights of at most so many bytes are copied by whoever sees the end.
const COPIED_AT_ONCE_BYTES_MAX: u64 = 1 << 20;

/// What is to be done when an operation has ended.
pub(crate) struct End {
    pub(crate) key: Arc<Key>,
    /// It is a contribution to a round, perhaps with more.
    pub(crate) contributes: bool,
    /// Where weights go.
    pub(crate) weights: Vec<Array>,
    /// The engine's, where it has not been told yet.
    pub(crate) ending: Option<Ending>,
}

/// Ends operations. Its thread ends with the last key of its store.
pub(crate) struct Finisher(Sender<(Handle, End)>);

impl Finisher {
    pub(crate) fn start() -> std::io::Result<Self> {
        let (sender, receiver) = channel::<(Handle, End)>();
        let run = move || receiver.iter().for_each(|(handle, end)| end.finish(handle));
        std::thread::Builder::new().name("gradwire-mxnet".into()).spawn(run)?;
        Ok(Self(sender))
    }

    /// Ends an operation when it has ended.
    pub(crate) fn when_ended(&self, handle: Handle, end: End) {
        let sender = self.0.clone();
        when_ended(handle, end, move |handle, end| leave(&sender, handle, end));
    }
}

impl End {
    fn is_brief(&self) -> bool {
        self.weights.is_empty() || self.key.bytes() <= COPIED_AT_ONCE_BYTES_MAX
    }

    /// Does what is to be done, with an operation that has ended.
    pub(crate) fn finish(self, handle: Handle) {
        let Self { key, contributes, weights, ending } = self;
        let ended = handle.wait().map_err(Failure::from);
        if let (Err(failure), true) = (&ended, contributes) {
            // A round lacks this worker's contribution: the key is of no use any more.
            key.fail(failure.clone());
        }
        let done = ended.and_then(|ended| bring(&key, ended, &weights));
        // References to arrays are dropped before the engine is notified, so that what it frees then is really freed.
        drop(weights);
        match (done, ending) {
            (Ok(()), Some(ending)) => ending.well(),
            (Err(failure), Some(ending)) => ending.badly(&failure.to_string()),
            (_, None) => {}
        }
    }
}

/// Ends an operation here, or has the thread do it. Where that is gone the process ends: what is dropped tells the engine.
fn leave(sender: &Sender<(Handle, End)>, handle: Handle, end: End) {
    if end.is_brief() {
        end.finish(handle);
    } else {
        let _ = sender.send((handle, end));
    }
}

/// Copies the weights to each array, and gives the key its buffers back.
fn bring(key: &Key, ended: Ended, arrays: &[Array]) -> Result<(), Failure> {
    let Ended { source, target, weights, .. } = ended;
    for array in arrays {
        let address = array.numbers(key.bytes()).map_err(|reason| Failure::input("array", reason))?;
        // SAFETY: the array has this many bytes, this operation alone uses it until the engine is notified, and every bit
        // pattern is a valid number. Needed because the array is another library's.
        let into = unsafe { std::slice::from_raw_parts_mut(address, key.bytes() as usize) };
        match (&weights, &target) {
            (Some(weights), _) => weights.copy_bytes_to(into)?,
            (None, Some(target)) => copy(into, target),
            (None, None) => return Err(Failure::internal("a pull returned no weights".into())),
        }
    }
    drop(weights);
    key.take_back(source.into_iter().chain(target));
    Ok(())
}
