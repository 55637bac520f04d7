//! Handles of operations in flight: wait for the end, poll, or register a callback.

use super::going::used_of;
use super::state::Inner;
use super::{Tensor, TensorBuffer, Weights};
use crate::error::{ClientError, OpError};
use crate::runtime::{Blocked, LaneHandle, OpBuffers, OpState, OpStates, drive_until};
use crate::subject::Subject;
use fabric::UserBuffer;
use proto_common::batch::OpKind;
use proto_common::ids::{Rank, Version};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The result of a successful operation, with its buffers.
#[derive(Debug)]
pub struct Ended {
    /// The version that was published or returned. Outside mode sync each chunk has its own version, the number of its
    /// applied contributions; this is the lowest of them.
    pub version: Version,
    /// The version of each chunk, in order, for a tensor [`Tensor::with_chunk_versions`].
    pub chunk_versions: Option<Vec<Version>>,
    /// Chunks of the contribution that were late: their round had ended without them, and they were dropped. Only for
    /// tensors with backup workers. The returned weights of these chunks are newer than the round's, and the next
    /// contribution is to the round after them.
    pub late_chunks: u32,
    /// The gradient's buffer, if it was registered memory of the client with no other owner.
    pub source: Option<TensorBuffer>,
    /// The gradient's buffer, if it was one of the trainer's own.
    pub user: Option<UserBuffer>,
    /// The weights' buffer, if the operation had one with no other owner.
    pub target: Option<TensorBuffer>,
    /// The weights, if they were requested without a buffer.
    pub weights: Option<Weights>,
    /// Bytes of weights at the beginning of the buffer: all of them, or for a dynamic tensor those of the last round.
    pub landed_bytes: u64,
}

/// An operation in flight. Dropping it does not cancel the operation; its buffers return to the pool when it has
/// ended.
#[derive(Debug)]
pub struct Handle {
    state: Arc<OpState>,
    /// Where the state goes when the operation has ended.
    states: Arc<OpStates>,
    lanes: Arc<[LaneHandle]>,
    /// Which of the lanes work on it, by their number as a bit.
    used: u64,
    client: Weak<Inner>,
    tensor: Tensor,
    /// For errors.
    kind: OpKind,
    /// Weights are to be read, not to be had as a buffer.
    view: bool,
    started: Instant,
    /// Past it the wait ends by itself, even if the data thread were stuck.
    deadline: Instant,
}

impl Handle {
    pub(super) fn new(
        (state, states): (Arc<OpState>, Arc<OpStates>),
        lanes: Arc<[LaneHandle]>,
        used: u64,
        (client, tensor, kind): (Weak<Inner>, Tensor, OpKind),
        (started, timeout): (Instant, Duration),
    ) -> Self {
        // The lane answers at the deadline plus its grace; this is the net under it.
        Self {
            state,
            states,
            lanes,
            used,
            client,
            tensor,
            kind,
            view: false,
            started,
            deadline: started + timeout + Duration::from_secs(3),
        }
    }

    /// Its weights are to be read, wherever they are.
    pub(super) fn into_view(self) -> Self {
        Self { view: true, ..self }
    }

    fn lanes(&self) -> impl Iterator<Item = &LaneHandle> + Clone {
        used_of(&self.lanes, self.used)
    }

    /// Whether it has ended, successfully or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state.is_told()
    }

    /// Registers a callback for its end. It is called on a data thread or in another thread's [`Handle::wait`], or at
    /// once if the operation has ended. The callback must return quickly and must not wait for an operation.
    pub fn on_end(&self, callback: impl FnOnce(Result<Version, OpError>) + Send + 'static) {
        self.lanes().for_each(LaneHandle::expect_callback);
        let expected = Expected { lanes: self.lanes.clone(), used: self.used };
        let (kind, tensor) = (self.kind, self.tensor.clone());
        self.state.on_end(Box::new(move |result| {
            callback(result.map_err(|error| error.about(kind, &tensor.spec().name)));
            drop(tensor);
            drop(expected);
        }));
    }

    /// Waits until it has ended, or until `deadline`. Returns whether it has ended.
    #[must_use]
    pub fn is_done_by(&self, deadline: Instant) -> bool {
        let deadline = deadline.min(self.deadline);
        let told = || self.is_done();
        self.lanes().for_each(LaneHandle::visit);
        if !told() {
            drive_until(self.lanes(), deadline, told);
        }
        let blocked = (!told()).then(|| Blocked::new(self.lanes()));
        let ended = self.state.wait(deadline);
        drop(blocked);
        ended
    }

    /// May it end still? Past its deadline and some grace [`Handle::wait`] ends at once.
    #[must_use]
    pub fn is_overdue(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Waits until it has ended. Every operation ends within its deadline (`deadlines.operation_ms`; `deadlines.busy_ms`
    /// while workers that are alive are waited for), and the error names the processes that were waited for. After an error
    /// the buffers stay with the operation until no server can write them any more; then a clone of a [`UserBuffer`] can be
    /// changed again.
    pub fn wait(self) -> Result<Ended, ClientError> {
        let ended = self.is_done_by(self.deadline);
        let result = if ended { self.state.poll() } else { None };
        let (key, dynamic) = (self.tensor.key(), self.tensor.spec().dynamic);
        match result {
            Some(Ok(version)) if dynamic && self.state.newest() > version => {
                let (name, newest) = (self.tensor.spec().name.clone(), self.state.newest());
                Err(ClientError::Torn { key, name, oldest: version, newest })
            }
            Some(Ok(version)) => {
                let OpBuffers { source, user, landed: target, shown, shared, versions, .. } =
                    self.state.take_buffers().unwrap_or_default();
                let (late_chunks, chunk_versions) = (self.state.late_chunks(), versions.map(in_order));
                // Beside a buffer of the trainer's own it is the copy of it, which has served its turn.
                let source = source.filter(|_| user.is_none()).map(TensorBuffer::new);
                let target = target.map(TensorBuffer::new);
                let lands = target.is_some() || shared[1].is_some();
                let whole_bytes = if lands { self.tensor.bytes() } else { 0 };
                let landed_bytes =
                    if dynamic { self.state.landed_bytes().min(whole_bytes) } else { whole_bytes };
                let (tensor, client) = (self.tensor.clone(), self.client.clone());
                let (target, weights) = match (shown, target) {
                    (Some(shown), target) => (target, Some(Weights::shown(version, shown, tensor, client))),
                    (None, Some(target)) if self.view => {
                        (None, Some(Weights::landed(version, target, landed_bytes, tensor)))
                    }
                    (None, target) => (target, None),
                };
                self.states.give_back(self.state);
                Ok(Ended {
                    version,
                    chunk_versions,
                    late_chunks,
                    source,
                    user,
                    target,
                    weights,
                    landed_bytes,
                })
            }
            Some(Err(error)) => Err(error.about(self.kind, &self.tensor.spec().name).into()),
            None => {
                let waited_ms = self.started.elapsed().as_millis() as u64;
                let (subject, servers) = (Subject::default(), Vec::<Rank>::new());
                let error = OpError::NoAnswer { subject, key, servers, waited_ms };
                Err(error.about(self.kind, &self.tensor.spec().name).into())
            }
        }
    }
}

/// Lanes that know of an operation's callback, until it has run.
struct Expected {
    lanes: Arc<[LaneHandle]>,
    used: u64,
}

impl Drop for Expected {
    fn drop(&mut self) {
        used_of(&self.lanes, self.used).for_each(LaneHandle::forget_callback);
    }
}

/// Chunks' versions by their place in the tensor.
fn in_order(mut versions: Vec<(u64, Version)>) -> Vec<Version> {
    versions.sort_unstable();
    versions.into_iter().map(|(_, version)| version).collect()
}
