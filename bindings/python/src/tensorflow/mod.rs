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
use abi::{Definition, Fault, Kernel, Turn};
use exchange::{Exchange, What};
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// TensorFlow's code of an error (`TF_Code`), as `gradwire.tensorflow._errors` has it for exceptions.
fn fault_of(failure: &Failure) -> Fault {
    let code = match failure.kind() {
        Kind::Input | Kind::Declare | Kind::Setting => 3,
        Kind::Died | Kind::Connect => 14,
        Kind::Deadline | Kind::WaitTimeout => 4,
        Kind::Memory => 8,
        Kind::Closed | Kind::Fork => 9,
        Kind::Operation => 10,
        Kind::Internal => 2,
    };
    Fault { code, text: failure.to_string() }
}

/// Finds the exchange of a tensor: `(request, type, bytes)` to a `TfExchange`, or to a code and a text.
static PLACE: OnceLock<Py<PyAny>> = OnceLock::new();
/// Exchanges by their numbers, which operations in flight have.
static EXCHANGES: Mutex<BTreeMap<u32, Weak<Exchange>>> = Mutex::new(BTreeMap::new());
static NEXT_EXCHANGE: AtomicU32 = AtomicU32::new(1);
/// Grows when the client of the process is another one, or gone: what kernels have found before counts no more.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The place of a tensor at the servers, for operations of TensorFlow's.
#[pyclass(module = "gradwire._native", frozen)]
pub(crate) struct TfExchange {
    exchange: Here<Arc<Exchange>>,
    number: u32,
}

#[pymethods]
impl TfExchange {
    /// For tensors of more than `floor_bytes`. `kind` is TensorFlow's number of the element type.
    #[new]
    fn new(client: &Client, tensor: &Tensor, kind: i32, floor_bytes: usize) -> PyResult<Self> {
        let exchange = Arc::new(Exchange::new(client.shared()?, tensor.inner.clone(), kind, floor_bytes));
        let number = NEXT_EXCHANGE.fetch_add(1, Ordering::Relaxed);
        lock(&EXCHANGES).insert(number, Arc::downgrade(&exchange));
        Ok(Self { exchange: Here::new(exchange), number })
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
        lock(&EXCHANGES).remove(&self.number);
    }
}

/// What a kernel has found.
#[derive(Clone)]
struct Found {
    exchange: Arc<Exchange>,
    number: u32,
    generation: u64,
    /// A child that was forked must not use it.
    pid: u32,
}

/// `GradwireStart`.
struct Start {
    request: String,
    what: What,
    priority: i32,
    found: Mutex<Option<Found>>,
}

/// What the kernel itself needs of a request.
#[derive(serde::Deserialize)]
struct Asked {
    what: String,
    #[serde(default)]
    priority: i32,
}

impl Start {
    /// The exchange for a tensor of so many bytes; the interpreter is asked where it is another one than the last time.
    fn exchange(&self, kind: i32, bytes: usize) -> Result<Found, Fault> {
        let (generation, pid) = (GENERATION.load(Ordering::Acquire), std::process::id());
        let last = lock(&self.found).clone();
        let still = |found: &Found| {
            found.generation == generation && found.pid == pid && found.exchange.fits(kind, bytes)
        };
        if let Some(found) = last.filter(still) {
            return Ok(found);
        }
        let internal = |text: String| Fault { code: 13, text };
        let placed = Python::try_attach(|py| -> PyResult<Result<Found, Fault>> {
            let Some(place) = PLACE.get() else {
                return Ok(Err(internal("gradwire.tensorflow is not imported".into())));
            };
            let placed = place.bind(py).call1((self.request.as_str(), kind, bytes))?;
            if let Ok(exchange) = placed.cast::<TfExchange>() {
                let TfExchange { exchange, number } = exchange.get();
                let found = exchange.get().map(|exchange| {
                    let exchange = exchange.clone();
                    Found { exchange, number: *number, generation, pid }
                });
                return Ok(found.map_err(|failure| fault_of(&failure)));
            }
            let (code, text) = placed.extract()?;
            Ok(Err(Fault { code, text }))
        });
        let placed = placed.ok_or_else(|| internal("the interpreter ends".into()))?;
        let found = placed.map_err(|error| internal(error.to_string()))??;
        *lock(&self.found) = Some(found.clone());
        Ok(found)
    }

    fn start(&self, turn: &Turn) -> Result<(), Fault> {
        let tensor = turn.input(0)?;
        let Found { exchange, number, .. } = self.exchange(tensor.kind(), tensor.bytes())?;
        let operation = exchange.start(self.what, &tensor, self.priority).map_err(|one| fault_of(&one))?;
        turn.output_number(i64::from(number) << 32 | i64::from(operation))
    }
}

impl Kernel for Start {
    fn create(request: String) -> Self {
        // Python tells what is wrong with a request that is none.
        let asked = serde_json::from_str(&request);
        let Asked { what, priority } = asked.unwrap_or(Asked { what: String::new(), priority: 0 });
        let what = match what.as_str() {
            "push" => What::Push,
            "pull" => What::Pull,
            _ => What::PushPull,
        };
        Self { request, what, priority, found: Mutex::default() }
    }

    fn compute(&self, turn: &Turn) -> Result<(), Fault> {
        self.start(turn)
    }
}

/// `GradwireWait`.
struct Wait;

impl Kernel for Wait {
    fn create(_request: String) -> Self {
        Self
    }

    fn compute(&self, turn: &Turn) -> Result<(), Fault> {
        for at in 0..turn.inputs() {
            let token = turn.input(at)?.number().unwrap_or_default();
            let (number, operation) = ((token >> 32) as u32, token as u32);
            let exchange = lock(&EXCHANGES).get(&number).and_then(Weak::upgrade);
            let Some(exchange) = exchange else {
                let text = "the client was closed before the operation was waited for".into();
                return Err(Fault { code: 9, text });
            };
            exchange.end(operation, (turn, at))?;
        }
        Ok(())
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
    if PLACE.set(place).is_err() {
        return Ok(());
    }
    // SAFETY: `gradwire.tensorflow` passes the addresses of the functions in their order, and the interpreter never unloads the library.
    if !unsafe { abi::found(&addresses) } {
        return Err(refused("it lacks functions of the C interface"));
    }
    let start = Definition {
        name: c"GradwireStart",
        attributes: &[c"T: type", c"request: string"],
        inputs: &[c"tensor: T", c"order: int64"],
        outputs: &[c"token: int64"],
    };
    let wait = Definition {
        name: c"GradwireWait",
        attributes: &[c"N: int >= 1", c"T: list(type) >= 1", c"request: string"],
        inputs: &[c"tokens: N * int64"],
        outputs: &[c"results: T"],
    };
    abi::register::<Start>(&start).map_err(|fault| refused(&fault.text))?;
    abi::register::<Wait>(&wait).map_err(|fault| refused(&fault.text))
}

fn refused(why: &str) -> PyErr {
    let text = format!("TensorFlow does not take native operations: {why}");
    Failure::new(Kind::Operation, "tensorflow", text).into()
}

/// The client of the process is another one now, or none: kernels ask again for their tensors' places.
#[pyfunction]
pub(crate) fn tensorflow_forget() {
    GENERATION.fetch_add(1, Ordering::AcqRel);
}
