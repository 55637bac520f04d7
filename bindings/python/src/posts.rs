//! Small messages between the Python packages of two workers, through the scheduler. `gradwire._transfers` defines their contents.

use crate::error::{Failure, Kind, lock};
use crate::finisher::Finisher;
use crate::here::Here;
use crate::pending::{Brought, Pending};
use daemon::post::{Answering, Post};
use gradwire_worker::Client;
use proto_common::ids::{MemberId, Rank, Role};
use proto_common::message::{PostError, PostMessage, PostTo};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The number of these messages: "gwtr" in ASCII.
const APP: u32 = 0x6777_7472;

/// Sends a message to a worker, which has `deadlines.busy_ms` to answer. The `Pending` completes with the body of the answer.
pub(crate) fn send(client: &Client, finisher: &Arc<Finisher>, worker: u32, body: Vec<u8>) -> Pending {
    let to = MemberId { role: Role::Worker, rank: Rank(worker) };
    let (pending, teller) = Pending::new(finisher, format!("message to worker {worker}"), None);
    let mut teller = Some(teller);
    let within = Duration::from_millis(client.busy_ms());
    client.posts().post(PostTo::One(to), PostMessage { app: APP, head: 0, body }, within, move |answer| {
        if let Some(teller) = teller.take() {
            teller.tell(answer.result.map(|reply| Brought::Body(reply.body)).map_err(failure));
        }
    });
    pending
}

fn failure(error: PostError) -> Failure {
    let (kind, code) = match error {
        PostError::Deadline { .. } => (Kind::Deadline, "no_answer"),
        PostError::Gone { .. } => (Kind::Died, "left"),
        PostError::NotNow(_) => (Kind::Operation, "not_now"),
        _ => (Kind::Operation, "message"),
    };
    Failure::new(kind, code, error.to_string())
}

/// Calls `handler(rank, body, answer)` for messages of workers, on the thread of all handlers: it must not wait. If `answer` is dropped
/// without a call, the sender gets an error.
pub(crate) fn listen(client: &Client, handler: Py<PyAny>) {
    client.posts().register(APP, move |post: Post| {
        if post.from.role != Role::Worker {
            return;
        }
        // Python cannot be called while the interpreter exits.
        let _ = Python::try_attach(|py| {
            let answer = PostAnswer(Here::new(Mutex::new(Some(post.reply))));
            let words = (post.from.rank.0, PyBytes::new(py, &post.body), answer);
            if let Err(error) = handler.call1(py, words) {
                error.print(py);
            }
        });
    });
}

/// The handler is called no more. The caller must not hold the interpreter's lock.
pub(crate) fn end(client: &Client) {
    if let Err(stuck) = client.posts().unregister(APP) {
        tracing::warn!(%stuck, "closed a client while a message of its program was handled");
    }
}

/// Answers one message, once.
#[pyclass(module = "gradwire._native", frozen)]
pub(crate) struct PostAnswer(Here<Mutex<Option<Answering>>>);

#[pymethods]
impl PostAnswer {
    /// Answers with these bytes. Further calls do nothing.
    fn __call__(&self, body: Vec<u8>) -> PyResult<()> {
        let Some(reply) = lock(self.0.get()?).take() else { return Ok(()) };
        Ok(reply.send(0, body).map_err(failure)?)
    }
}
