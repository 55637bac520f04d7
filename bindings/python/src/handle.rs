//! Operations in flight as Python has them: waited for by any number of threads, asked, or calling back. How one ended
//! is kept: waiting twice tells the same twice. Whoever sees the end first settles it: takes the result, copies weights
//! to where the caller wants them, calls back.

use crate::error::{Failure, Kind, lock};
use crate::finisher::{Finish, Finisher};
use crate::here::Here;
use crate::interrupt::{STRETCH, deadline_of, wait_in_stretches};
use gradwire_worker::Ended;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// A place of the caller's own that weights are copied to.
#[derive(Debug)]
pub(crate) struct Out {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    /// Of an operation that is shown weights where servers have them.
    pub(crate) viewed: Option<Viewing>,
    /// Keeps the memory.
    pub(crate) _owner: Py<PyAny>,
}

/// A tensor's one view is taken, until this ends: by `release`, or dropped.
#[derive(Debug)]
pub(crate) struct Viewing {
    taken: Arc<AtomicBool>,
    released: AtomicBool,
}

impl Viewing {
    /// Takes it, if nobody has it.
    pub(crate) fn take(of: &Arc<AtomicBool>) -> Option<Self> {
        let was_taken = of.swap(true, Ordering::AcqRel);
        (!was_taken).then(|| Self { taken: of.clone(), released: AtomicBool::new(false) })
    }

    /// Once: afterwards another operation may have taken it.
    fn release(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            self.taken.store(false, Ordering::Release);
        }
    }
}

impl Drop for Viewing {
    fn drop(&mut self) {
        self.release();
    }
}

enum State {
    Flying(gradwire_worker::Handle),
    /// Somebody waits for it, or settles it.
    Taken,
    Ended(Result<Told, Failure>),
}

/// What an operation that ended well tells.
#[derive(Clone, Debug)]
struct Told {
    version: u64,
    late_chunks: u32,
    chunk_versions: Option<Arc<[u64]>>,
    /// Elements of a dynamic tensor that landed.
    landed_bytes: u64,
}

struct Guarded {
    state: State,
    callbacks: Vec<Py<PyAny>>,
    /// The finisher will be told.
    watched: bool,
}

/// What waiters, callbacks and the finisher share.
pub(crate) struct Core {
    guarded: Mutex<Guarded>,
    changed: Condvar,
    out: Option<Out>,
    finisher: Arc<Finisher>,
}

impl Core {
    fn end(&self, result: Result<Told, Failure>) -> Vec<Py<PyAny>> {
        let mut guarded = lock(&self.guarded);
        guarded.state = State::Ended(result);
        self.changed.notify_all();
        std::mem::take(&mut guarded.callbacks)
    }

    /// Takes the result of a handle that has ended. Copies, so without the interpreter's lock.
    fn settle(&self, handle: gradwire_worker::Handle) -> Vec<Py<PyAny>> {
        let result = handle.wait().map_err(Failure::from).and_then(|ended| self.take(ended));
        // Well or not: what was shown is gone with the handle.
        self.out.iter().filter_map(|out| out.viewed.as_ref()).for_each(Viewing::release);
        self.end(result)
    }

    fn take(&self, mut ended: Ended) -> Result<Told, Failure> {
        let versions = ended.chunk_versions.take();
        let told = Told {
            version: ended.version.0,
            late_chunks: ended.late_chunks,
            chunk_versions: versions.map(|all| all.into_iter().map(|version| version.0).collect()),
            landed_bytes: ended.landed_bytes,
        };
        let Some(out) = &self.out else { return Ok(told) };
        // SAFETY: the owner keeps so many writable bytes at the address: it was looked at as the operation began
        // (`Array::writable`), and every bit pattern is a number of it. Callers are told to leave `out` alone until the
        // handle is done. Needed because Python's arrays are no Rust types.
        let into = unsafe { std::slice::from_raw_parts_mut(out.address as *mut u8, out.bytes) };
        match (&ended.weights, &ended.target) {
            (Some(weights), _) => weights.copy_bytes_to(into)?,
            (None, Some(buffer)) => into.copy_from_slice(buffer),
            (None, None) => return Err(Failure::internal("a pull returned no weights".into())),
        }
        Ok(told)
    }

    /// One stretch of waiting. Returns what is to be called back, and whether it has ended.
    fn wait_until(self: &Arc<Self>, until: Instant) -> (Vec<Py<PyAny>>, bool) {
        let mut guarded = lock(&self.guarded);
        match std::mem::replace(&mut guarded.state, State::Taken) {
            ended @ State::Ended(_) => {
                guarded.state = ended;
                (Vec::new(), true)
            }
            State::Taken => {
                let left = until.saturating_duration_since(Instant::now());
                let guarded =
                    self.changed.wait_timeout(guarded, left).unwrap_or_else(PoisonError::into_inner).0;
                (Vec::new(), matches!(guarded.state, State::Ended(_)))
            }
            State::Flying(handle) => {
                drop(guarded);
                if handle.is_done_by(until) || handle.is_overdue() {
                    return (self.settle(handle), true);
                }
                let mut guarded = lock(&self.guarded);
                self.watch(&mut guarded, &handle);
                guarded.state = State::Flying(handle);
                self.changed.notify_all();
                (Vec::new(), false)
            }
        }
    }

    /// Somebody is to be called back, and nobody may be waiting: the finisher ends it.
    fn watch(self: &Arc<Self>, guarded: &mut Guarded, handle: &gradwire_worker::Handle) {
        if guarded.callbacks.is_empty() || std::mem::replace(&mut guarded.watched, true) {
            return;
        }
        let Some(sender) = self.finisher.sender() else { return };
        let core = self.clone();
        // Where the finisher is gone the client was closed, which ended all operations before.
        handle.on_end(move |_| drop(sender.send(core)));
    }

    fn result(&self) -> Option<Result<Told, Failure>> {
        match &lock(&self.guarded).state {
            State::Ended(result) => Some(result.clone()),
            State::Flying(_) | State::Taken => None,
        }
    }
}

impl Drop for Core {
    /// An operation that nobody waits for goes on, and has its view until it ends.
    fn drop(&mut self) {
        let guarded = self.guarded.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let State::Flying(handle) = &guarded.state
            && let Some(viewing) = self.out.as_mut().and_then(|out| out.viewed.take())
        {
            handle.on_end(move |_| drop(viewing));
        }
    }
}

impl Finish for Core {
    /// It has ended: settles it unless somebody does already, and calls back.
    fn finish(self: Arc<Self>) {
        loop {
            let (callbacks, ended) = self.wait_until(Instant::now() + STRETCH);
            if !callbacks.is_empty() {
                // While the interpreter ends nobody can be called any more.
                let _ = Python::try_attach(|py| call_back(py, callbacks));
            }
            if ended {
                return;
            }
        }
    }
}

/// Calls each; they have their handle in them. What they raise is told as Python tells of what nobody catches.
pub(crate) fn call_back(py: Python<'_>, callbacks: Vec<Py<PyAny>>) {
    for callback in callbacks {
        if let Err(error) = callback.call0(py) {
            error.write_unraisable(py, Some(callback.bind(py)));
        }
    }
}

/// An operation in flight. Dropping it cancels nothing; a pull into an array of your own is then not copied there.
#[pyclass(module = "gradwire._native", frozen)]
pub(crate) struct Handle {
    core: Here<Arc<Core>>,
    /// What `wait` returns of a pull: the array that was passed, or one that was made.
    array: Option<Py<PyAny>>,
    tensor: gradwire_worker::Tensor,
}

impl Handle {
    pub(crate) fn new(
        handle: gradwire_worker::Handle,
        finisher: Arc<Finisher>,
        (array, out): (Option<Py<PyAny>>, Option<Out>),
        tensor: gradwire_worker::Tensor,
    ) -> Self {
        let state = State::Flying(handle);
        let guarded = Guarded { state, callbacks: Vec::new(), watched: false };
        let core = Core { guarded: Mutex::new(guarded), changed: Condvar::new(), out, finisher };
        Self { core: Here::new(Arc::new(core)), array, tensor }
    }

    /// The array, or of a dynamic tensor what of it landed.
    fn value(&self, py: Python<'_>, told: &Told) -> PyResult<Py<PyAny>> {
        let Some(array) = &self.array else { return Ok(py.None()) };
        if !self.tensor.spec().dynamic {
            return Ok(array.clone_ref(py));
        }
        let array = array.bind(py);
        let size: u64 = array.getattr("itemsize")?.extract()?;
        let landed = told.landed_bytes / size.max(1);
        let part = pyo3::types::PySlice::new(py, 0, landed as isize, 1);
        Ok(array.get_item(part)?.unbind())
    }

    fn told(&self) -> PyResult<Option<Told>> {
        Ok(self.core.get()?.result().and_then(Result::ok))
    }

    /// Waits, and calls back if it was the one to settle.
    fn wait_for(&self, py: Python<'_>, core: &Arc<Core>, deadline: Option<Instant>) -> PyResult<bool> {
        wait_in_stretches(py, deadline, |until| {
            let (callbacks, ended) = py.detach(|| core.wait_until(until));
            call_back(py, callbacks);
            ended
        })
    }
}

#[pymethods]
impl Handle {
    /// Waits until the operation has completed, at most until its deadline: deadlines.operation_ms for servers,
    /// deadlines.busy_ms for other workers. Returns the array of a pull, and None for a push; raises the error of a failed
    /// operation. Each further call has the same result. If `timeout` (seconds) passes first, raises WaitTimeout, and the
    /// operation continues.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let core = self.core.get()?;
        let deadline = deadline_of(timeout)?;
        if !self.wait_for(py, core, deadline)? {
            let text = format!(
                "wait for an operation on {} timed out after {} s; the operation continues",
                self.tensor.spec().label(),
                timeout.unwrap_or_default()
            );
            return Err(Failure::new(Kind::WaitTimeout, "wait_timeout", text).into());
        }
        match core.result() {
            Some(Ok(told)) => self.value(py, &told),
            Some(Err(failure)) => Err(failure.into()),
            None => Err(Failure::internal("a completed operation has no result".into()).into()),
        }
    }

    /// Whether the operation has completed or failed.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        // What is to be copied is then there, too.
        self.wait_for(py, self.core.get()?, Some(Instant::now()))
    }

    /// The version that was published or received; None while in flight, and after an error.
    #[getter]
    fn version(&self) -> PyResult<Option<u64>> {
        Ok(self.told()?.map(|told| told.version))
    }

    /// The version of each chunk, in order, for a tensor `with_chunk_versions`; otherwise, and while in flight, None.
    #[getter]
    fn chunk_versions(&self) -> PyResult<Option<Vec<u64>>> {
        Ok(self.told()?.and_then(|told| told.chunk_versions).map(|all| all.to_vec()))
    }

    /// The number of chunks that arrived after their round had completed without them, and were dropped (tensors with
    /// backup workers only). None while in flight, and after an error.
    #[getter]
    fn late_chunks(&self) -> PyResult<Option<u32>> {
        Ok(self.told()?.map(|told| told.late_chunks))
    }

    /// Calls `callback(handle)` when the operation has ended: on a thread of the library, on the thread of another `wait`,
    /// or at once on this thread if it has already ended.
    fn add_done_callback(slf: &Bound<'_, Self>, callback: Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let core = slf.get().core.get()?;
        let partial = py.import("functools")?.getattr("partial")?.call1((callback, slf))?.unbind();
        {
            let mut guarded = lock(&core.guarded);
            if !matches!(guarded.state, State::Ended(_)) {
                guarded.callbacks.push(partial);
                // Whoever has taken it either settles it, or sees to this as it puts it back.
                if let State::Flying(handle) = std::mem::replace(&mut guarded.state, State::Taken) {
                    core.watch(&mut guarded, &handle);
                    guarded.state = State::Flying(handle);
                }
                return Ok(());
            }
        }
        partial.call0(py).map(drop)
    }

    /// `await handle`: like `wait`, without blocking a thread.
    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().core.get()?;
        slf.py().import("gradwire._aio")?.call_method1("iterate", (slf,))
    }

    fn __repr__(&self) -> String {
        let state = match self.core.get().map(|core| core.result()) {
            Err(_) => "from another process".to_owned(),
            Ok(None) => "in flight".to_owned(),
            Ok(Some(Ok(told))) => format!("version {}", told.version),
            Ok(Some(Err(_))) => "failed".to_owned(),
        };
        format!("<gradwire.Handle of {}: {state}>", self.tensor.spec().label())
    }
}
