//! MXNet: pushes and pulls as operations of its dependency engine. The engine begins one when the arrays it reads are
//! written; one that is under way holds no thread of the engine's, and nowhere the interpreter's lock. `abi` is the
//! engine's side, `work` what operations do and how they end, `patience` which operations wait where they begin. Keys, optimizers and
//! trainers are defined in Python (`gradwire.mxnet`).

mod abi;
mod patience;
mod work;

use crate::client::Client;
use crate::error::{Failure, Kind};
use crate::here::Here;
use crate::tensor::Tensor;
use abi::{Array, Library, On};
use patience::Turns;
use pyo3::prelude::*;
use std::sync::Arc;
use work::{Finisher, Key, Operation};

/// Gradients of at most so many bytes are copied by the thread that pushes them; larger ones beside it.
const COPIED_AT_ONCE_BYTES_MAX: u64 = 1 << 20;

/// A store's part in MXNet's engine.
#[pyclass(module = "gradwire._native", frozen)]
pub(crate) struct MxEngine {
    library: Arc<Library>,
    finisher: Here<Arc<Finisher>>,
    client: Py<Client>,
    turns: Arc<Turns>,
}

#[pymethods]
impl MxEngine {
    /// `addresses` are those of the functions in MXNet's library, as `gradwire.mxnet` collects them.
    #[new]
    fn new(client: Py<Client>, addresses: [usize; 7], has_on_start: bool) -> PyResult<Self> {
        // SAFETY: `gradwire.mxnet` passes addresses of the functions that `Library` names, in that order, in the `libmxnet` that it has
        // imported, which the interpreter never unloads.
        let library = unsafe { Library::at(addresses, has_on_start) };
        let library = library.ok_or_else(|| {
            Failure::input(
                "mxnet",
                "this MXNet does not have the C functions of 1.9.1 and 2.0.0b1: use one of these releases",
            )
        })?;
        let finisher = Finisher::start().map_err(|error| Failure::internal(error.to_string()))?;
        let (finisher, turns) = (Here::new(Arc::new(finisher)), Arc::default());
        Ok(Self { library: Arc::new(library), finisher, client, turns })
    }

    /// A key: its tensor, and an array of MXNet's (by its handle) that gives its operations their order.
    fn key(&self, tensor: &Tensor, order: usize) -> PyResult<MxKey> {
        let finisher = self.finisher.get()?.clone();
        let client = self.client.get().shared()?;
        // SAFETY: `gradwire.mxnet` passes the handle of an array that it has.
        let order = unsafe { Array::of(&self.library, order) }.map_err(refused)?;
        let key = Key::new(client, tensor.inner.clone(), finisher, order);
        let (library, turns) = (self.library.clone(), self.turns.clone());
        Ok(MxKey { library, key: Here::new(Arc::new(key)), number: turns.number_key(), turns })
    }
}

/// A key of a store. Its operations are first in, first out.
#[pyclass(module = "gradwire._native", frozen)]
pub(crate) struct MxKey {
    library: Arc<Library>,
    key: Here<Arc<Key>>,
    number: u64,
    turns: Arc<Turns>,
}

impl MxKey {
    fn start(&self, gradient: Option<usize>, weights: &[usize], priority: i32) -> PyResult<()> {
        let key = self.key.get()?;
        if let Some(failure) = key.failure() {
            return Err(failure.into());
        }
        // SAFETY: `gradwire.mxnet` passes handles of arrays that it has.
        let array = |handle: &usize| unsafe { Array::of(&self.library, *handle) };
        let source = gradient.as_ref().map(array).transpose().map_err(refused)?;
        let targets = weights.iter().map(array).collect::<Result<Vec<_>, _>>().map_err(refused)?;
        let writes: Vec<usize> = [key.order()].into_iter().chain(weights.iter().copied()).collect();
        let reads: Vec<usize> = gradient.into_iter().filter(|handle| !weights.contains(handle)).collect();
        let is_brief = key.bytes() <= COPIED_AT_ONCE_BYTES_MAX;
        let copies = gradient.is_some() && !is_brief;
        let on = if copies { On::Beside } else { On::Pusher };
        let waits = !weights.is_empty() && self.turns.is_again(self.number) && is_brief;
        let operation = Operation::new(key.clone(), source, targets, priority);
        patience::with(waits, || self.library.push(operation, (&reads, &writes), (on, priority)))
            .map_err(refused)
    }
}

#[pymethods]
impl MxKey {
    /// Contributes a gradient, an array by its handle. Its memory is free once the operation of the engine has ended.
    fn push(&self, py: Python<'_>, gradient: usize, priority: i32) -> PyResult<()> {
        py.detach(|| self.start(Some(gradient), &[], priority))
    }

    /// Brings the weights of the last round that this worker contributed to, into arrays by their handles.
    fn pull(&self, py: Python<'_>, weights: Vec<usize>, priority: i32) -> PyResult<()> {
        py.detach(|| self.start(None, &weights, priority))
    }

    /// Both as one operation.
    fn push_pull(&self, py: Python<'_>, gradient: usize, weights: Vec<usize>, priority: i32) -> PyResult<()> {
        py.detach(|| self.start(Some(gradient), &weights, priority))
    }
}

fn refused(reason: String) -> PyErr {
    Failure::new(Kind::Operation, "mxnet", reason).into()
}
