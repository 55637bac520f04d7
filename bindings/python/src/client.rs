//! The client as Python has it: joins, declares, begins operations. What it makes of arguments is here; how arrays are
//! read, memory is owned and operations end is elsewhere.

use crate::adopted::Adopted;
use crate::array::{Array, typestr_of};
use crate::error::Failure;
use crate::finisher::Finisher;
use crate::handle::{Handle, Out, Viewing};
use crate::here::Here;
use crate::interrupt::interruptible;
use crate::memory::{Memory, Stretches};
use crate::pending::{Brought, Pending};
use crate::rows::{Rows, Table};
use crate::settings;
use crate::tensor::Tensor;
use gradwire_worker::{CallRequest, ClientError, Piece, Source, Target, TensorBuffer, UserBuffer};
use proto_common::element::Dtype;
use proto_common::message::{Coming, NodeGroup};
use proto_common::optimizer::Optimizer;
use proto_common::table::TableSpec;
use proto_common::tensor::TensorSpec;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Server, driver, why.
type Links = Vec<(u32, String, String)>;

/// A worker of a cluster. `gradwire.Client` is what programs use.
#[pyclass(module = "gradwire._native", frozen, subclass)]
#[derive(Debug)]
pub(crate) struct Client {
    inner: Here<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: gradwire_worker::Client,
    stretches: Stretches,
    adopted: Adopted,
    finisher: Arc<Finisher>,
    rows: Arc<Rows>,
    warnings: Vec<String>,
}

impl Drop for Inner {
    /// Whoever drops it may hold the interpreter's lock, which the finisher may be waiting for.
    fn drop(&mut self) {
        // Without what only those who hold that lock may touch.
        let (client, rows, finisher) = (&self.client, &self.rows, &self.finisher);
        if Python::try_attach(|py| py.detach(|| leave(client, rows, finisher))).is_none() {
            leave(client, rows, finisher);
        }
    }
}

/// Leaves the cluster, which ends all that is under way, and then ends the threads.
fn leave(client: &gradwire_worker::Client, rows: &Rows, finisher: &Finisher) {
    client.close();
    rows.end();
    finisher.end();
}

/// What an operation sends: where the library has it already, or an array's buffer, or a copy.
fn source(py: Python<'_>, inner: &Inner, array: &Array) -> PyResult<Source> {
    if let Some(shared) = inner.stretches.at(array.address, array.bytes()) {
        return Ok(shared.into());
    }
    if let Some(buffer) = inner.adopted.buffer(py, array) {
        return Ok(buffer.into());
    }
    Ok(copied(py, &inner.client, array)?.into())
}

/// A copy in the library's memory, of an array that is not empty.
fn copied(py: Python<'_>, client: &gradwire_worker::Client, array: &Array) -> Result<TensorBuffer, Failure> {
    let (address, bytes) = (array.address, array.bytes());
    py.detach(|| {
        let mut copy = client.allocate(bytes as u64)?;
        // SAFETY: the array keeps so many bytes at the address, and the caller holds it; nothing of ours writes them.
        // Needed because Python's arrays are no Rust types.
        let from = unsafe { std::slice::from_raw_parts(address as *const u8, bytes) };
        copy.copy_from_slice(from);
        Ok(copy)
    })
}

/// Where weights go.
struct Place {
    /// Memory of the library's that they land in; None: they are shown where servers have them.
    target: Option<Target>,
    /// Memory of the caller's, which they are copied to.
    copied: Option<Out>,
    /// What `wait` returns.
    array: Py<PyAny>,
}

impl Inner {
    fn place(&self, tensor: &Tensor, out: Option<&Bound<'_, PyAny>>, py: Python<'_>) -> PyResult<Place> {
        let Some(out) = out else {
            let (array, shared) = self.empty(py, &tensor.shape, tensor.dtype(), tensor.numpy.bind(py))?;
            return Ok(Place { target: Some(shared.into()), copied: None, array });
        };
        let of = Array::writable(out, tensor)?;
        let array = out.clone().unbind();
        if let Some(shared) = self.stretches.at(of.address, of.bytes()) {
            return Ok(Place { target: Some(shared.into()), copied: None, array });
        }
        if tensor.inner.spec().dynamic {
            let text =
                format!("{} is dynamic: `out` must be an array of client.empty(), or None", tensor.label());
            return Err(Failure::input("dynamic", text).into());
        }
        let viewed = Viewing::take(&tensor.viewed);
        // Where another operation on the tensor is shown its weights, these land.
        let target = match viewed {
            Some(_) => None,
            None => {
                Some(py.detach(|| self.client.allocate(tensor.inner.bytes())).map_err(Failure::from)?.into())
            }
        };
        let copied = Out { address: of.address, bytes: of.bytes(), viewed, _owner: of.owner };
        Ok(Place { target, copied: Some(copied), array })
    }

    fn empty(
        &self,
        py: Python<'_>,
        shape: &[usize],
        dtype: Dtype,
        numpy: &Bound<'_, PyAny>,
    ) -> PyResult<(Py<PyAny>, gradwire_worker::SharedBuffer)> {
        let elements = shape.iter().try_fold(1usize, |all, one| all.checked_mul(*one));
        let bytes = elements.and_then(|elements| elements.checked_mul(dtype.bytes()));
        let bytes =
            bytes.ok_or_else(|| Failure::input("wrong_shape", format!("shape {shape:?} is too large")))?;
        let (client, stretches) = (&self.client, &self.stretches);
        let how = (shape.to_vec(), String::from_utf8_lossy(&typestr_of(dtype)).into_owned());
        let (memory, shared) = py.detach(|| Memory::allocate(client, stretches, bytes, how))?;
        let array = py.import("numpy")?.call_method1("asarray", (Bound::new(py, memory)?,))?;
        // A type that numpy does not know is laid over numbers of its size.
        let array = if dtype == Dtype::Bf16 { array.call_method1("view", (numpy,))? } else { array };
        Ok((array.unbind(), shared))
    }

    /// The handle of an operation, if it began. If not, another operation may use the tensor's view.
    fn begun(
        &self,
        handle: Result<gradwire_worker::Handle, ClientError>,
        tensor: &Tensor,
        array: Option<Py<PyAny>>,
        out: Option<Out>,
    ) -> PyResult<Handle> {
        let handle = handle.map_err(Failure::from)?;
        Ok(Handle::new(handle, self.finisher.clone(), (array, out), tensor.inner.clone()))
    }
}

fn parsed<'a, T: serde::Deserialize<'a>>(json: &'a str) -> Result<T, Failure> {
    serde_json::from_str(json).map_err(|error| Failure::input("declaration", format!("{error} in {json}")))
}

impl Client {
    /// The library's own client, for parts of this module that move arrays of other libraries.
    pub(crate) fn shared(&self) -> Result<gradwire_worker::Client, Failure> {
        Ok(self.inner.get()?.client.clone())
    }
}

#[pymethods]
impl Client {
    /// Joins the cluster of the given settings. `given` are pairs of dotted name and value; they override all other sources.
    #[new]
    #[pyo3(signature = (config = None, given = Vec::new()))]
    fn new(py: Python<'_>, config: Option<PathBuf>, given: Vec<(String, String)>) -> PyResult<Self> {
        let loaded = settings::load(config, &given)?;
        loaded.log();
        let (settings, warnings) = (loaded.settings, loaded.warnings);
        let client = interruptible(py, move || Ok(gradwire_worker::Client::connect(settings)?))?;
        let inner = Inner {
            client,
            stretches: Stretches::default(),
            adopted: Adopted::default(),
            finisher: Arc::default(),
            rows: Arc::default(),
            warnings,
        };
        Ok(Self { inner: Here::new(inner) })
    }

    /// The rank of this worker.
    #[getter]
    fn rank(&self) -> PyResult<u32> {
        Ok(self.inner.get()?.client.rank())
    }

    /// The number of workers of the job.
    #[getter]
    fn workers(&self) -> PyResult<u32> {
        Ok(self.inner.get()?.client.workers())
    }

    /// The number of servers of the job.
    #[getter]
    fn servers(&self) -> PyResult<u32> {
        Ok(self.inner.get()?.client.servers())
    }

    /// The default mode of tensors (`cluster.mode`): "sync", "async" or "bounded:N".
    #[getter]
    fn mode(&self) -> PyResult<String> {
        Ok(self.inner.get()?.client.mode().to_string())
    }

    /// The transport drivers in use: "shm", "tcp", "shm+tcp", …
    #[getter]
    fn transport(&self) -> PyResult<String> {
        Ok(self.inner.get()?.client.transport())
    }

    /// The transport driver to each server, by rank, and why it was chosen.
    #[getter]
    fn _links(&self) -> PyResult<Links> {
        let links = self.inner.get()?.client.links().into_iter();
        Ok(links.map(|(rank, choice)| (rank.0, choice.driver.to_string(), choice.why)).collect())
    }

    /// Warnings about settings that were ignored.
    #[getter]
    fn _warnings(&self) -> PyResult<Vec<String>> {
        Ok(self.inner.get()?.warnings.clone())
    }

    /// Why the job ended; None while it runs.
    #[getter]
    fn dead(&self) -> PyResult<Option<String>> {
        Ok(self.inner.get()?.client.dead().map(|error| error.to_string()))
    }

    /// Counters of this worker's operations and bytes, and of arrays that were sent without a copy.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let inner = self.inner.get()?;
        inner.adopted.sweep(py);
        let (stats, buffers) = py.detach(|| (inner.client.stats(), inner.client.registrations()));
        let counts = [
            ("batches", stats.batches),
            ("parts", stats.parts),
            ("sent_bytes", stats.sent_bytes),
            ("plain_bytes", stats.plain_bytes),
            ("placed", stats.placed),
            ("referenced", stats.referenced),
            ("landed_bytes", stats.landed_bytes),
            ("shown_bytes", stats.shown_bytes),
            ("operations_done", stats.done),
            ("operations_failed", stats.failed),
            ("retries", stats.retries),
            ("credit_waits", stats.credit_waits),
            ("duplicates", stats.duplicates),
            ("arrays_in_place", buffers.hits),
            ("arrays_copied", buffers.copies),
            ("arrays_registered", buffers.registered),
            ("arrays_registered_bytes", buffers.registered_bytes),
            ("arrays_remembered", inner.adopted.count() as u64),
        ];
        let dict = PyDict::new(py);
        counts.iter().try_for_each(|(name, count)| dict.set_item(name, count))?;
        Ok(dict)
    }

    /// Declares tensors. Each is given as its specification in JSON, its shape, its numpy dtype and its priority.
    fn _declare(
        &self,
        py: Python<'_>,
        specs: Vec<(String, Vec<usize>, Py<PyAny>, i32)>,
    ) -> PyResult<Vec<Tensor>> {
        let client = self.inner.get()?.client.clone();
        let all: Vec<TensorSpec> = specs.iter().map(|spec| parsed(&spec.0)).collect::<Result<_, _>>()?;
        let declared = interruptible(py, move || Ok(client.declare(&all)?))?;
        let pairs = declared.into_iter().zip(specs);
        let tensors =
            pairs.map(|(inner, (_, shape, numpy, priority))| Tensor::new(inner, shape, numpy, priority));
        Ok(tensors.collect::<Result<_, _>>()?)
    }

    /// Changes the optimizer of a tensor (JSON), and returns the first round that uses it.
    fn _change_rule(&self, py: Python<'_>, tensor: &Tensor, rule: &str) -> PyResult<u64> {
        let (client, tensor) = (self.inner.get()?.client.clone(), tensor.inner.clone());
        let rule: Optimizer = parsed(rule)?;
        interruptible(py, move || Ok(client.change_rule(&tensor, rule)?))
    }

    /// Whether the job was already running when this worker joined it: it replaces one that failed, or is one more.
    #[getter]
    fn _has_rejoined(&self) -> PyResult<bool> {
        Ok(self.inner.get()?.client.coming() != Coming::Start)
    }

    /// Whether rounds wait for this worker, because it replaces one that failed.
    #[getter]
    fn _is_awaited(&self) -> PyResult<bool> {
        Ok(self.inner.get()?.client.coming() == Coming::Again)
    }

    /// Returns the round that every worker has completed for these tensors, to resume training there.
    fn _resume(&self, py: Python<'_>, tensors: Vec<PyRef<'_, Tensor>>) -> PyResult<u64> {
        let client = self.inner.get()?.client.clone();
        let tensors: Vec<_> = tensors.iter().map(|tensor| tensor.inner.clone()).collect();
        interruptible(py, move || Ok(client.resume(&tensors)?))
    }

    /// Writes a checkpoint of the round that this worker has completed for these tensors, and returns its name.
    fn _checkpoint(&self, py: Python<'_>, tensors: Vec<PyRef<'_, Tensor>>, timeout: f64) -> PyResult<String> {
        let wrong = |_| Failure::input("timeout", "`timeout` must be a number of seconds, at least 0");
        let within = Duration::try_from_secs_f64(timeout).map_err(wrong)?;
        let client = self.inner.get()?.client.clone();
        let tensors: Vec<_> = tensors.iter().map(|tensor| tensor.inner.clone()).collect();
        interruptible(py, move || Ok(client.checkpoint(&tensors, within)?))
    }

    /// A new array of zeros in registered memory. `dtype` is Gradwire's name of the type, `numpy` is numpy's.
    fn _empty(
        &self,
        py: Python<'_>,
        shape: Vec<usize>,
        dtype: &str,
        numpy: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let found = Dtype::ALL.into_iter().find(|one| one.name() == dtype);
        let dtype = found.ok_or_else(|| Failure::input("wrong_dtype", format!("unknown dtype {dtype:?}")))?;
        Ok(self.inner.get()?.empty(py, &shape, dtype, numpy)?.0)
    }

    /// Starts `init` without waiting for it. The value of rank 0 is used. Wait for the handle before you pull: a pull does
    /// not wait for the initial value of another rank.
    fn init_start(&self, py: Python<'_>, tensor: &Tensor, array: &Bound<'_, PyAny>) -> PyResult<Handle> {
        let inner = self.inner.get()?;
        let array = Array::fitting(array, tensor, false)?;
        let source = source(py, inner, &array)?;
        inner.begun(py.detach(|| inner.client.init_from(&tensor.inner, source)), tensor, None, None)
    }

    /// Contributes a gradient to the next round of the tensor. Do not read or write the array until the handle is done.
    #[pyo3(signature = (tensor, array, priority = None))]
    fn push(
        &self,
        py: Python<'_>,
        tensor: &Tensor,
        array: &Bound<'_, PyAny>,
        priority: Option<i32>,
    ) -> PyResult<Handle> {
        let inner = self.inner.get()?;
        let array = Array::fitting(array, tensor, tensor.inner.spec().dynamic)?;
        let (source, priority) = (source(py, inner, &array)?, priority.unwrap_or(tensor.priority));
        let begin = || inner.client.push_at(&tensor.inner, source, priority);
        inner.begun(py.detach(begin), tensor, None, None)
    }

    /// Fetches the weights of the last round that this worker contributed to, or of a later round, into `out` or into a
    /// new array in registered memory. `wait` of the handle returns the array.
    #[pyo3(signature = (tensor, out = None))]
    fn pull(&self, py: Python<'_>, tensor: &Tensor, out: Option<&Bound<'_, PyAny>>) -> PyResult<Handle> {
        let inner = self.inner.get()?;
        let Place { target, copied, array } = inner.place(tensor, out, py)?;
        let begin = || match target {
            Some(target) => inner.client.pull(&tensor.inner, target),
            None => inner.client.pull_view(&tensor.inner),
        };
        inner.begun(py.detach(begin), tensor, Some(array), copied)
    }

    /// Contributes a gradient and fetches the weights of that round, as `pull` does. `out` may be the same array as `array`.
    #[pyo3(signature = (tensor, array, out = None, priority = None))]
    fn push_pull(
        &self,
        py: Python<'_>,
        tensor: &Tensor,
        array: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        priority: Option<i32>,
    ) -> PyResult<Handle> {
        let inner = self.inner.get()?;
        let array = Array::fitting(array, tensor, false)?;
        // The place last: it may be a tensor's only view, which nothing that fails before the operation begins takes.
        let (source, priority) = (source(py, inner, &array)?, priority.unwrap_or(tensor.priority));
        let Place { target, copied, array } = inner.place(tensor, out, py)?;
        let begin = || match target {
            Some(target) => inner.client.push_pull(&tensor.inner, source, target, priority),
            None => inner.client.push_pull_view(&tensor.inner, source, priority),
        };
        inner.begun(py.detach(begin), tensor, Some(array), copied)
    }

    /// Declares a table. Its specification is JSON.
    fn _table(&self, py: Python<'_>, spec: &str) -> PyResult<Table> {
        let inner = self.inner.get()?;
        let (client, spec) = (inner.client.clone(), parsed::<TableSpec>(spec)?);
        let declared = interruptible(py, move || Ok(client.declare_table(&spec)?))?;
        Ok(Table::new(declared, inner.client.clone(), inner.rows.clone(), inner.finisher.clone()))
    }

    /// Calls a handler that was registered at a server. A handler receives the calls of this client in order.
    #[pyo3(signature = (app, server = 0, head = Vec::new(), body = None, *, reply_bytes = 0, priority = 0, timeout = None))]
    #[expect(clippy::too_many_arguments, reason = "they are words in Python")]
    fn call(
        &self,
        py: Python<'_>,
        app: u32,
        server: u32,
        head: Vec<u8>,
        body: Option<&Bound<'_, PyAny>>,
        reply_bytes: u64,
        priority: i32,
        timeout: Option<f64>,
    ) -> PyResult<Pending> {
        let inner = self.inner.get()?;
        let wrong =
            || Failure::input("timeout", "`timeout` must be a number of seconds, at least 0, or None");
        let timeout = timeout.map(|seconds| Duration::try_from_secs_f64(seconds).map_err(|_| wrong()));
        let timeout = timeout.transpose()?;
        let body = body.map(Array::of).transpose()?.filter(|body| body.bytes() > 0);
        let body = body.map(|body| copied(py, &inner.client, &body).map(Piece::Buffer)).transpose()?;
        let body: Vec<Piece> = body.into_iter().collect();
        let request = CallRequest { head, body, priority, reply_bytes, reply_into: None, timeout };
        let handle = py.detach(|| inner.client.call(app, server, request)).map_err(Failure::from)?;
        let what = format!("call to handler {app} at server {server}");
        let (pending, teller) = Pending::new(&inner.finisher, what, None);
        let told = |result: Result<_, gradwire_worker::OpError>| {
            let brought = result.map(|reply| Brought::Reply(Arc::new(reply)));
            teller.tell(brought.map_err(|error| ClientError::from(error).into()));
        };
        py.detach(|| handle.on_end(told));
        Ok(pending)
    }

    /// Waits until every worker has reached the barrier of this name, for at most deadlines.busy_ms. Every
    /// deadlines.operation_ms a warning names the workers that are missing.
    #[pyo3(signature = (name = "workers"))]
    fn barrier(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let (client, name) = (self.inner.get()?.client.clone(), name.to_owned());
        interruptible(py, move || Ok(client.barrier_of(&name, NodeGroup::WORKERS)?))
    }

    /// As `barrier`, for at most so many seconds.
    fn _barrier_within(&self, py: Python<'_>, name: String, seconds: f64) -> PyResult<()> {
        let client = self.inner.get()?.client.clone();
        let within = Duration::from_secs_f64(seconds);
        interruptible(py, move || Ok(client.barrier_within(&name, NodeGroup::WORKERS, within)?))
    }

    /// The ranks whose contributions to the round after this worker's last one are missing, this worker's included.
    fn _missing(&self, py: Python<'_>, tensor: &Tensor, seconds: f64) -> PyResult<Vec<u32>> {
        let (client, tensor) = (self.inner.get()?.client.clone(), tensor.inner.clone());
        let within = Duration::from_secs_f64(seconds);
        let ranks = interruptible(py, move || Ok(client.missing_from_next_round(&tensor, within)?))?;
        Ok(ranks.into_iter().map(|rank| rank.0).collect())
    }

    /// Reports a number of the training, such as the loss, under a name.
    fn report_metric(&self, name: &str, value: f64) -> PyResult<()> {
        Ok(self.inner.get()?.client.report_metric(name, value).map_err(Failure::from)?)
    }

    /// Releases everything that the library keeps for an array that was pushed; its next push is copied first.
    fn forget(&self, array: &Bound<'_, PyAny>) -> PyResult<()> {
        let inner = self.inner.get()?;
        let gone: Vec<UserBuffer> = inner.adopted.forget(&Array::of(array)?);
        gone.iter().for_each(|buffer| inner.client.forget(buffer));
        Ok(())
    }

    /// Leaves the cluster. Operations in flight end with ClosedError; arrays of `empty` stay valid. A second call does
    /// nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.inner.get()?;
        py.detach(|| leave(&inner.client, &inner.rows, &inner.finisher));
        inner.adopted.clear();
        Ok(())
    }

    /// In a forked child: replaces the library's memory with copies, so that arrays stay readable.
    fn _after_fork_in_child(&self) -> PyResult<()> {
        let Some(inner) = self.inner.in_child() else { return Ok(()) };
        Ok(inner.client.copy_memory_for_child().map_err(Failure::from)?)
    }

    /// Leaves the cluster because the program failed. All other members are notified of the reason.
    fn fail(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let inner = self.inner.get()?;
        py.detach(|| inner.client.fail(reason));
        self.close(py)
    }
}
