//! TensorFlow: operations of graphs whose kernels exchange tensors. Nothing holds the interpreter's lock, and results lie where they have
//! landed. `abi` is TensorFlow's side, `exchange` the client's.
//! Which operations a graph has, and what a tensor's place is, is decided in Python (`gradwire.tensorflow._native_ops`).
//!
//! `GradwireStart` copies a tensor into registered memory, starts its exchange, and returns a number. `GradwireWait` takes the numbers of
//! a group, and waits on its thread for their results. They are two, so that a group is in flight at once, and a thread waits only when
//! the whole group has been started.

mod abi;
mod exchange;

use crate::client::Client;
use crate::error::{Failure, Kind, lock};
use crate::here::Here;
use crate::tensor::Tensor;
use abi::{Definition, Fault, Kernel, Turn, code};
use exchange::{Exchange, What};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Finds the exchange of a tensor: `(request, type, bytes)` to a `TfExchange`, or to a code and a text.
static PLACE: OnceLock<Py<PyAny>> = OnceLock::new();
/// Counts the clients that the process has had. What kernels have found with an earlier one is not used.
static GENERATION: AtomicU64 = AtomicU64::new(0);
/// Whether the operations are registered, and if not, why.
static REGISTERED: OnceLock<Result<(), Fault>> = OnceLock::new();

/// The place of a tensor at the servers, for operations of TensorFlow's. Its memory lives as long as it, and as results of it.
#[pyclass(module = "gradwire._native", frozen, weakref)]
pub(crate) struct TfExchange {
    exchange: Here<Arc<Exchange>>,
}

#[pymethods]
impl TfExchange {
    /// For tensors of more than `floor_bytes`. `kind` is TensorFlow's number of the element type.
    #[new]
    fn new(client: &Client, tensor: &Tensor, kind: i32, floor_bytes: usize) -> PyResult<Self> {
        let exchange = Exchange::add(client.shared()?, tensor.inner.clone(), (kind, floor_bytes));
        Ok(Self { exchange: Here::new(exchange) })
    }

    /// How contributions travel now: "slot", "static", "rendezvous-read" or "rendezvous-write".
    #[getter]
    fn placement(&self) -> PyResult<String> {
        Ok(self.exchange.get()?.placement())
    }

    /// Operations that were started, and copies that they made: of inputs, and of outputs.
    #[getter]
    fn counts(&self) -> PyResult<(u64, u64, u64)> {
        let counts = &self.exchange.get()?.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Ok((of(&counts.operations), of(&counts.copies_in), of(&counts.copies_out)))
    }

    fn __repr__(&self) -> String {
        let label = self.exchange.get().map_or_else(|_| "another process".to_owned(), |one| one.label());
        format!("<gradwire.TfExchange of {label}>")
    }
}

impl Drop for TfExchange {
    fn drop(&mut self) {
        // In a forked child the lock may be held by a thread that it does not have.
        if let Ok(exchange) = self.exchange.get() {
            exchange.remove();
        }
    }
}

/// What a kernel has found. It keeps no memory of a client that was closed.
#[derive(Clone)]
struct Found {
    exchange: Weak<Exchange>,
    generation: u64,
    /// A child that was forked must not use it.
    pid: u32,
}

/// `GradwireStart`.
struct Start {
    request: String,
    asked: Result<(What, i32), Fault>,
    found: Mutex<Option<Found>>,
}

/// What the kernel itself needs of a request.
#[derive(serde::Deserialize)]
struct Asked {
    what: String,
    priority: i32,
}

impl Asked {
    fn parsed(request: &str) -> Result<(What, i32), Fault> {
        let invalid = |why: &str| {
            let text = format!("invalid attribute `request` of GradwireStart ({why}): {request}");
            Fault::new(code::INVALID_ARGUMENT, &text)
        };
        let asked: Self = serde_json::from_str(request).map_err(|error| invalid(&error.to_string()))?;
        let what = match asked.what.as_str() {
            "push_pull" => What::PushPull,
            "push" => What::Push,
            "pull" => What::Pull,
            _ => return Err(invalid("unknown operation")),
        };
        Ok((what, asked.priority))
    }
}

impl Start {
    /// The exchange for a tensor of so many bytes. If it is not the one of the last time, Python is asked.
    fn exchange(&self, kind: i32, bytes: usize) -> Result<Arc<Exchange>, Fault> {
        let (generation, pid) = (GENERATION.load(Ordering::Acquire), std::process::id());
        let last = lock(&self.found).clone();
        let last = last.filter(|found| found.generation == generation && found.pid == pid);
        let last = last.and_then(|found| found.exchange.upgrade());
        if let Some(exchange) = last.filter(|exchange| exchange.fits(kind, bytes)) {
            return Ok(exchange);
        }
        let placed = Python::try_attach(|py| -> PyResult<Result<Arc<Exchange>, Fault>> {
            let Some(place) = PLACE.get() else {
                return Ok(Err(Fault::internal("gradwire.tensorflow is not imported")));
            };
            let placed = place.bind(py).call1((self.request.as_str(), kind, bytes))?;
            if let Ok(exchange) = placed.cast::<TfExchange>() {
                return Ok(exchange.get().exchange.get().cloned().map_err(Fault::from));
            }
            let (code, text) = placed.extract()?;
            Ok(Err(Fault { code, text }))
        });
        let placed = placed.ok_or_else(|| Fault::internal("the Python interpreter is shutting down"))?;
        let exchange = placed.map_err(|error| interrupted(&error))??;
        if !exchange.fits(kind, bytes) {
            let text =
                format!("{} has another length than the tensor, which has {bytes} bytes", exchange.label());
            return Err(Fault::new(code::INVALID_ARGUMENT, &text));
        }
        *lock(&self.found) = Some(Found { exchange: Arc::downgrade(&exchange), generation, pid });
        Ok(exchange)
    }
}

/// An exception that `place` did not expect. Ctrl-C is raised again where the interpreter is next.
fn interrupted(error: &PyErr) -> Fault {
    Python::attach(|py| {
        if error.is_instance_of::<PyKeyboardInterrupt>(py) {
            // SAFETY: the interpreter's lock is held. Needed because there is no safe way to simulate the signal.
            unsafe { pyo3::ffi::PyErr_SetInterrupt() };
            return Fault::new(code::CANCELLED, "interrupted");
        }
        Fault::internal(&error.to_string())
    })
}

impl Kernel for Start {
    const HAS_REQUEST: bool = true;

    fn create(request: String) -> Self {
        let asked = Asked::parsed(&request);
        Self { request, asked, found: Mutex::default() }
    }

    fn compute(&self, turn: &Turn) -> Result<(), Fault> {
        let (what, priority) = self.asked.clone()?;
        let tensor = turn.input(0)?;
        let exchange = self.exchange(tensor.kind(), tensor.bytes())?;
        let operation = exchange.start(what, &tensor, priority)?;
        turn.output_number(i64::from(exchange.number) << 32 | i64::from(operation))
    }
}

/// `GradwireWait`.
struct Wait;

/// The exchange of a token, and the number of its operation there.
fn found_by(token: &abi::Tensor) -> Option<(Arc<Exchange>, u32)> {
    let token = token.number().unwrap_or_default();
    let (number, operation) = ((token >> 32) as u32, token as u32);
    Some((Exchange::find(number)?, operation))
}

impl Kernel for Wait {
    const HAS_REQUEST: bool = false;

    fn create(_request: String) -> Self {
        Self
    }

    fn compute(&self, turn: &Turn) -> Result<(), Fault> {
        let mut failed = None;
        for at in 0..turn.inputs() {
            let found = found_by(&turn.input(at)?);
            match (found, &failed) {
                (Some((exchange, operation)), None) => {
                    failed = exchange.end(operation, (turn, at)).err();
                }
                // Their results have nowhere to go.
                (Some((exchange, operation)), Some(_)) => exchange.abandon(operation),
                (None, _) => {
                    let text = "the client was closed before its operations were waited for: wait first, then close it";
                    failed = failed.or_else(|| Some(Fault::new(code::FAILED_PRECONDITION, text)));
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }
}

/// The names of the functions that `tensorflow_register` needs, in order.
#[pyfunction]
pub(crate) fn tensorflow_functions() -> Vec<&'static str> {
    abi::NAMES.to_vec()
}

/// Registers the operations `GradwireStart` and `GradwireWait`, once. `addresses` are those of `tensorflow_functions`, in the
/// `libtensorflow_framework` of the process; `place` finds the exchange of a tensor.
#[pyfunction]
pub(crate) fn tensorflow_register(addresses: Vec<usize>, place: Py<PyAny>) -> PyResult<()> {
    PLACE.get_or_init(|| place);
    REGISTERED.get_or_init(|| registered(&addresses)).clone().map_err(|fault| refused(&fault.text))
}

fn registered(addresses: &[usize]) -> Result<(), Fault> {
    // SAFETY: `gradwire.tensorflow` passes the addresses of the functions in their order, and the interpreter never unloads the library.
    if !unsafe { abi::found(addresses) } {
        return Err(Fault::internal("functions of its C interface are missing"));
    }
    let start = Definition {
        name: c"GradwireStart",
        attributes: &[c"T: type", c"request: string"],
        inputs: &[c"tensor: T", c"order: int64"],
        outputs: &[c"token: int64"],
    };
    let wait = Definition {
        name: c"GradwireWait",
        attributes: &[c"N: int >= 1", c"T: list(type) >= 1"],
        inputs: &[c"tokens: N * int64"],
        outputs: &[c"results: T"],
    };
    abi::register::<Start>(&start)?;
    abi::register::<Wait>(&wait)
}

fn refused(why: &str) -> PyErr {
    let text = format!("native operations cannot be registered with TensorFlow: {why}");
    Failure::new(Kind::Operation, "tensorflow", text).into()
}

/// The client of the process has changed: kernels ask again for the places of their tensors.
#[pyfunction]
pub(crate) fn tensorflow_forget() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}
