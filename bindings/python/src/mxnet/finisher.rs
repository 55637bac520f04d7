//! How operations of MXNet's engine end: weights are copied to where they are wanted, and the engine is told. A data thread
//! does it itself where little is to be copied, which saves a thread's waking up; the rest it leaves to a thread here. So
//! neither data threads nor the engine's ever copy much or wait.

use super::abi::{Array, Ending};
use super::work::{Key, copy};
use crate::error::Failure;
use crate::lock;
use gradwire_worker::{Ended, Handle};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

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

/// See the module. The thread ends with the last key of its store.
pub(crate) struct Finisher(Sender<(Handle, End)>);

/// Who comes first: the caller, to leave what is to be ended, or the end itself.
enum Meeting {
    Nobody,
    Left(Handle, End),
    Over,
}

impl Finisher {
    pub(crate) fn start() -> std::io::Result<Self> {
        let (sender, receiver) = channel::<(Handle, End)>();
        let run = move || receiver.iter().for_each(|(handle, end)| end.finish(handle));
        std::thread::Builder::new().name("gradwire-mxnet".into()).spawn(run)?;
        Ok(Self(sender))
    }

    /// Ends an operation when it has ended.
    pub(crate) fn when_ended(&self, handle: Handle, end: End) {
        if handle.is_done() {
            return leave(&self.0, handle, end);
        }
        let meeting = Arc::new(Mutex::new(Meeting::Nobody));
        let (sender, place) = (self.0.clone(), meeting.clone());
        handle.on_end(move |_| {
            let before = std::mem::replace(&mut *lock(&place), Meeting::Over);
            if let Meeting::Left(handle, end) = before {
                leave(&sender, handle, end);
            }
        });
        let mut place = lock(&meeting);
        if let Meeting::Over = *place {
            drop(place);
            leave(&self.0, handle, end);
        } else {
            *place = Meeting::Left(handle, end);
        }
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
        // References to arrays go before the engine is told: what it frees then is free.
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
        // SAFETY: so many bytes of an array that this operation alone has, until the engine is told; every bit pattern is a
        // number of it. Needed because the array is another library's.
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
