//! Requests in flight that are no tensor's operations: rows of tables, and calls. One thread of the library's tells how it
//! ended, without the interpreter's lock; any number of Python's wait, ask, or are called back.

use crate::error::{Failure, Kind, lock};
use crate::finisher::{Finish, Finisher};
use crate::here::Here;
use crate::interrupt::{deadline_of, wait_in_stretches};
use gradwire_worker::CallReply;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// What it brought.
#[derive(Clone, Debug)]
pub(crate) enum Brought {
    /// Rows, which are in the array, or nothing.
    Rows,
    /// What a handler answered.
    Reply(Arc<CallReply>),
}

#[derive(Default)]
struct Guarded {
    result: Option<Result<Brought, Failure>>,
    callbacks: Vec<Py<PyAny>>,
    /// Whom to tell of the end, once there are callbacks.
    finisher: Option<Sender<Arc<dyn Finish>>>,
}

/// What waiters and who ends it share.
pub(crate) struct Shared {
    guarded: Mutex<Guarded>,
    changed: Condvar,
}

impl Shared {
    fn is_ended_by(&self, deadline: Instant) -> bool {
        let mut guarded = lock(&self.guarded);
        while guarded.result.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            guarded = self.changed.wait_timeout(guarded, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Finish for Shared {
    fn finish(self: Arc<Self>) {
        let callbacks = std::mem::take(&mut lock(&self.guarded).callbacks);
        // While the interpreter ends nobody can be called any more.
        let _ = Python::try_attach(|py| crate::handle::call_back(py, callbacks));
    }
}

/// Tells the end once. Dropped untold, it tells that the client was closed: no wait is for ever.
pub(crate) struct Teller(Option<Arc<Shared>>);

impl Teller {
    /// It has ended so. Takes no lock of the interpreter's.
    pub(crate) fn tell(mut self, result: Result<Brought, Failure>) {
        self.end(result);
    }

    fn end(&mut self, result: Result<Brought, Failure>) {
        let Some(shared) = self.0.take() else { return };
        let mut guarded = lock(&shared.guarded);
        guarded.result = Some(result);
        shared.changed.notify_all();
        let finisher = guarded.finisher.take();
        drop(guarded);
        if let Some(finisher) = finisher {
            // Where the finisher is gone, so is the client, and nobody is to be called.
            let _ = finisher.send(shared);
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        let text = "the client was closed before the request completed: wait for all handles before you close the client".to_owned();
        self.end(Err(Failure::new(Kind::Closed, "closed", text)));
    }
}

/// A request for rows, or a call, in flight. Dropping the object does not cancel the request.
#[pyclass(module = "gradwire._native", frozen)]
pub(crate) struct Pending {
    shared: Here<Arc<Shared>>,
    finisher: Arc<Finisher>,
    /// For people: what it is.
    what: String,
    /// What `wait` returns of rows that are pulled.
    array: Option<Py<PyAny>>,
}

impl Pending {
    pub(crate) fn new(finisher: &Arc<Finisher>, what: String, array: Option<Py<PyAny>>) -> (Self, Teller) {
        let shared = Arc::new(Shared { guarded: Mutex::default(), changed: Condvar::new() });
        let teller = Teller(Some(shared.clone()));
        (Self { shared: Here::new(shared), finisher: finisher.clone(), what, array }, teller)
    }

    fn is_ended_by(&self, py: Python<'_>, deadline: Option<Instant>) -> PyResult<bool> {
        let shared = self.shared.get()?;
        wait_in_stretches(py, deadline, |until| py.detach(|| shared.is_ended_by(until)))
    }
}

#[pymethods]
impl Pending {
    /// Waits until the request has completed, at most until its deadline. Returns the array of a pull, the `Reply` of a
    /// call, and None for a push; raises the error of a failed request. Each further call has the same result. If
    /// `timeout` (seconds) passes first, raises WaitTimeout, and the request continues.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        if !self.is_ended_by(py, deadline_of(timeout)?)? {
            let seconds = timeout.unwrap_or_default();
            let text = format!("wait for a {} timed out after {seconds} s; the request continues", self.what);
            return Err(Failure::new(Kind::WaitTimeout, "wait_timeout", text).into());
        }
        // Without the lock from here on: what is made of it is Python's.
        let result = lock(&self.shared.get()?.guarded).result.clone();
        match result {
            Some(Ok(Brought::Rows)) => {
                Ok(self.array.as_ref().map_or_else(|| py.None(), |array| array.clone_ref(py)))
            }
            Some(Ok(Brought::Reply(reply))) => {
                let parts = (PyBytes::new(py, &reply.head), PyBytes::new(py, &reply.body));
                Ok(py.import("gradwire.client")?.getattr("Reply")?.call1(parts)?.unbind())
            }
            Some(Err(failure)) => Err(failure.into()),
            None => Err(Failure::internal("a completed request has no result".into()).into()),
        }
    }

    /// Whether the request has completed or failed.
    fn done(&self) -> PyResult<bool> {
        Ok(lock(&self.shared.get()?.guarded).result.is_some())
    }

    /// Calls `callback(handle)` when the request has ended: on a thread of the library, or at once on this thread if it
    /// has already ended.
    fn add_done_callback(slf: &Bound<'_, Self>, callback: Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let this = slf.get();
        let shared = this.shared.get()?;
        let partial = py.import("functools")?.getattr("partial")?.call1((callback, slf))?.unbind();
        // Before the lock: the first one starts a thread.
        let finisher = this.finisher.sender();
        {
            let mut guarded = lock(&shared.guarded);
            if guarded.result.is_none() {
                guarded.callbacks.push(partial);
                guarded.finisher = finisher;
                return Ok(());
            }
        }
        partial.call0(py).map(drop)
    }

    /// `await handle`: like `wait`, without blocking a thread.
    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().shared.get()?;
        slf.py().import("gradwire._aio")?.call_method1("iterate", (slf,))
    }

    fn __repr__(&self) -> String {
        let state =
            match self.shared.get().map(|shared| lock(&shared.guarded).result.as_ref().map(Result::is_ok)) {
                Err(_) => "from another process",
                Ok(None) => "in flight",
                Ok(Some(true)) => "done",
                Ok(Some(false)) => "failed",
            };
        format!("<gradwire.Pending {}: {state}>", self.what)
    }
}
