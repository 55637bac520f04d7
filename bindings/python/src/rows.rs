//! Sparse tables as Python has them. One thread of a client's begins its pushes and pulls, in the order in which they were
//! asked for, so that Python goes on meanwhile and a pull brings what was pushed before it and nothing later.

use crate::array::Array;
use crate::error::{Failure, Kind};
use crate::finisher::{Finisher, Thread};
use crate::here::Here;
use crate::pending::{Brought, Pending, Teller};
use gradwire_worker::{Client, RowsHandle};
use proto_common::element::Dtype;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};

/// Pushes that are under way at most before the thread waits for the oldest: what is kept of them is bounded.
const PUSHES_MAX: usize = 64;
/// What may wait to be begun; whoever asks for more waits for a place.
const WAITING_MAX: usize = 64;

/// Rows to be pushed or pulled. The arrays are the caller's to leave alone until it has ended.
struct Work {
    table: gradwire_worker::Table,
    ids: Array,
    numbers: Array,
    what: What,
    teller: Teller,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Pull,
    /// In a step, where the trainer says so.
    Push(Option<u64>),
}

/// The thread, once there is something for it to do.
#[derive(Debug, Default)]
pub(crate) struct Rows(Mutex<Thread<SyncSender<Work>>>);

impl Rows {
    /// Hands it over, once there is a place. The interpreter's lock must not be held.
    fn begin(&self, client: &Client, work: Work) -> Result<(), Failure> {
        // Without the lock: whoever closes the client is to come through while others wait for a place.
        let sent = self.sender(client)?.is_some_and(|sender| sender.send(work).is_ok());
        let text = "the client is closed: connect again".to_owned();
        if sent { Ok(()) } else { Err(Failure::new(Kind::Closed, "closed", text)) }
    }

    /// To the thread, which the first one starts; None once it has ended.
    fn sender(&self, client: &Client) -> Result<Option<SyncSender<Work>>, Failure> {
        let start = || {
            let (sender, receiver) = sync_channel(WAITING_MAX);
            let client = client.clone();
            let run = move || run(&client, &receiver);
            Ok((sender, std::thread::Builder::new().name("gradwire-rows".into()).spawn(run)?))
        };
        Thread::sender(&self.0, start)
            .map_err(|error| Failure::internal(format!("cannot start a thread: {error}")))
    }

    /// Ends it, once the client has been closed, which ends what is under way. The interpreter's lock must not be held.
    pub(crate) fn end(&self) {
        Thread::end(&self.0);
    }
}

/// Begins what comes; waits for pushes while nothing comes.
fn run(client: &Client, receiver: &Receiver<Work>) {
    let mut pushes: VecDeque<(RowsHandle, Work)> = VecDeque::new();
    loop {
        while pushes.front().is_some_and(|(handle, _)| handle.is_done())
            && let Some((handle, work)) = pushes.pop_front()
        {
            end(work, handle.wait().map_err(Failure::from));
        }
        let next = match pushes.len() {
            0 => receiver.recv().map_err(|_| TryRecvError::Disconnected),
            PUSHES_MAX.. => Err(TryRecvError::Empty),
            _ => receiver.try_recv(),
        };
        match next {
            Ok(work) => pushes.extend(begin(client, work)),
            Err(_) => match pushes.pop_front() {
                Some((handle, work)) => end(work, handle.wait().map_err(Failure::from)),
                None => return,
            },
        }
    }
}

/// Begins a push, which it returns, or does a pull.
fn begin(client: &Client, work: Work) -> Option<(RowsHandle, Work)> {
    let (Some(ids), Some(address)) = (numbers::<u64>(&work.ids), work.numbers.aligned()) else {
        end(work, Err(Failure::internal("arrays that were checked are not aligned".into())));
        return None;
    };
    if work.what == What::Pull {
        // SAFETY: the array keeps so many aligned, writable f32 at the address (`Table::start` has looked), and callers
        // are told to leave it alone until the handle is done. Needed because Python's arrays are no Rust types.
        let out = unsafe { std::slice::from_raw_parts_mut(address as *mut f32, work.numbers.elements()) };
        let result = client.pull_rows(&work.table, ids, out);
        end(work, result.map_err(Failure::from));
        return None;
    }
    let values = numbers::<f32>(&work.numbers).unwrap_or_default();
    let pushed = match work.what {
        What::Push(Some(step)) => client.push_rows_in_step(&work.table, step, ids, values),
        _ => client.push_rows(&work.table, ids, values),
    };
    match pushed {
        Ok(handle) => Some((handle, work)),
        Err(error) => {
            end(work, Err(error.into()));
            None
        }
    }
}

fn end(work: Work, result: Result<(), Failure>) {
    let Work { ids, numbers, teller, .. } = work;
    // The arrays first: whoever waits may ask who has them.
    drop((ids, numbers));
    teller.tell(result.map(|()| Brought::Rows));
}

/// The array's elements, of a type of its elements' size.
fn numbers<T: zerocopy::FromBytes>(array: &Array) -> Option<&[T]> {
    let address = array.aligned()?;
    debug_assert_eq!(size_of::<T>(), array.dtype.bytes());
    // SAFETY: the array keeps so many aligned elements at the address for as long as it is borrowed, every bit pattern is
    // a number, and callers are told to leave it alone until the handle is done. Needed because Python's arrays are no
    // Rust types.
    Some(unsafe { std::slice::from_raw_parts(address as *const T, array.elements()) })
}

/// A declared table; `gradwire.Client.table` returns one.
#[pyclass(module = "gradwire._native", frozen, subclass)]
#[derive(Debug)]
pub(crate) struct Table {
    inner: gradwire_worker::Table,
    client: Here<Client>,
    rows: Arc<Rows>,
    finisher: Arc<Finisher>,
}

impl Table {
    pub(crate) fn new(
        inner: gradwire_worker::Table,
        client: Client,
        rows: Arc<Rows>,
        finisher: Arc<Finisher>,
    ) -> Self {
        Self { inner, client: Here::new(client), rows, finisher }
    }

    fn start(&self, ids: &Bound<'_, PyAny>, numbers: &Bound<'_, PyAny>, what: What) -> PyResult<Pending> {
        let pulls = what == What::Pull;
        let (py, client) = (numbers.py(), self.client.get()?);
        let (key, width) = (self.inner.spec().key, self.inner.spec().width as usize);
        let (ids, array) = (Array::of(ids)?, Array::of(numbers)?);
        let name = if pulls { "out" } else { "values" };
        let wrong = |code, text: String| Err(Failure::input(code, format!("table {key}: {text}")).into());
        if array.dtype != Dtype::F32 || ids.dtype != Dtype::I64 {
            return wrong(
                "wrong_dtype",
                format!("`{name}` has elements of type {}: pass float32", array.dtype),
            );
        }
        if !fits(&ids.shape, width, &array.shape) {
            let text = format!(
                "ids have shape {:?}, so `{name}` must have that shape and one more dimension of {width}, the shape \
                 [{}, {width}], or be flat, but it has shape {:?}",
                ids.shape,
                ids.elements(),
                array.shape
            );
            return wrong("wrong_shape", text);
        }
        if pulls && array.read_only {
            return wrong("read_only", "`out` is read-only: pass a writable array".into());
        }
        if !array.is_aligned() || !ids.is_aligned() {
            return wrong(
                "not_aligned",
                format!("ids or `{name}` are not aligned to their element size: pass aligned arrays"),
            );
        }
        let words =
            format!("{} of {} rows of table {key}", if pulls { "pull" } else { "push" }, ids.elements());
        let brings = pulls.then(|| numbers.clone().unbind());
        let (pending, teller) = Pending::new(&self.finisher, words, brings);
        let work = Work { table: self.inner.clone(), ids, numbers: array, what, teller };
        py.detach(|| self.rows.begin(client, work))?;
        Ok(pending)
    }
}

/// Has an array a row for each id, and in their order? Also without the ids' own shape.
fn fits(ids: &[usize], width: usize, have: &[usize]) -> bool {
    let rows: usize = ids.iter().product();
    match have {
        [flat] => rows.checked_mul(width) == Some(*flat),
        [first, last] if *first == rows && *last == width => true,
        _ => have.split_last() == Some((&width, ids)),
    }
}

#[pymethods]
impl Table {
    /// The key of the table.
    #[getter]
    fn key(&self) -> u32 {
        self.inner.spec().key
    }

    /// The number of elements in a row.
    #[getter]
    fn width(&self) -> u32 {
        self.inner.spec().width
    }

    /// `ids` have 64 bits each.
    fn _push(
        &self,
        ids: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        step: Option<u64>,
    ) -> PyResult<Pending> {
        self.start(ids, values, What::Push(step))
    }

    /// The same.
    fn _pull(&self, ids: &Bound<'_, PyAny>, out: &Bound<'_, PyAny>) -> PyResult<Pending> {
        self.start(ids, out, What::Pull)
    }

    fn __repr__(&self) -> String {
        format!("<gradwire.Table {} of rows of {}>", self.key(), self.width())
    }
}
