//! Moving tensors: push, pull, push_pull, init. Zero-copy with registered buffers, and with buffers of the trainer's
//! own from their second use on; plain slices are copied once into registered memory.

use super::buffer::copy_in;
use super::gate::Passing;
use super::going::{Going, Parts, used_of};
use super::registrations::Way;
use super::tensor::{CodedTensor, Numbers};
use super::{Client, Element, Ended, Handle, Source, Target, Tensor, TensorBuffer};
use crate::engine::{GATHER_BYTES_MAX, Submit};
use crate::error::{ClientError, OpError};
use crate::host::Host;
use crate::runtime::{LaneHandle, OpBuffers};
use fabric::{Exclusive, Span, UserBuffer};
use proto_common::batch::{Count, OpKind};
use proto_common::ids::{Rank, Version};
use proto_common::plan::Placement;
use proto_common::table::home_of;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use zerocopy::FromBytes;

/// Servers that share this worker's memory reduce gradients in place in the pool. A buffer that the program allocated itself is copied
/// to the pool each time if it has at least this many bytes, because writing it to the servers' slots takes half as long again. For a
/// quarter of this size, writing is faster.
const READ_THERE_BYTES_MIN: u64 = 1 << 20;

/// The parameters of an operation.
struct Call {
    kind: OpKind,
    source: Option<Source>,
    target: Option<Target>,
    /// Weights are read in the servers' memory.
    view: bool,
    priority: i32,
    /// It is a pull of the round after the last one, which waits at most this long.
    probe: Option<Duration>,
}

impl Call {
    fn new(kind: OpKind, source: Option<Source>, target: Option<Target>, priority: i32) -> Self {
        Self { kind, source, target, view: false, priority, probe: None }
    }
}

impl Client {
    /// Contributes a gradient to the tensor's next round, from registered memory or a [`UserBuffer`]. Ends when the
    /// round is published; outside mode sync when the gradient is applied and no worker is too far behind
    /// (`docs/modes.md`). For a dynamic tensor the buffer may have any number of elements up to the maximum; all
    /// contributions to a round must have the same length.
    pub fn push(&self, tensor: &Tensor, gradient: impl Into<Source>) -> Result<Handle, ClientError> {
        self.push_at(tensor, gradient, 0)
    }

    /// As [`Client::push`], with a priority: operations with higher `priority` go first, but operations of one tensor
    /// are never reordered.
    pub fn push_at(
        &self,
        tensor: &Tensor,
        gradient: impl Into<Source>,
        priority: i32,
    ) -> Result<Handle, ClientError> {
        self.start(tensor, Call::new(OpKind::Push, Some(gradient.into()), None, priority))
    }

    /// Writes the weights of the last round this worker contributed to, or of a later one, into `weights`; outside
    /// mode sync the current weights, which include everything that this worker contributed. For a dynamic tensor
    /// `weights` must have room for the maximum, and [`Ended::landed_bytes`] is the length. Wait for it before the
    /// next push: otherwise, after a broken channel, parts of it could be those of the next round.
    pub fn pull(&self, tensor: &Tensor, weights: impl Into<Target>) -> Result<Handle, ClientError> {
        self.pull_at(tensor, weights, 0)
    }

    /// As [`Client::pull`], with a priority: operations with higher `priority` go first, but operations of one tensor
    /// are never reordered.
    pub fn pull_at(
        &self,
        tensor: &Tensor,
        weights: impl Into<Target>,
        priority: i32,
    ) -> Result<Handle, ClientError> {
        self.start(tensor, Call::new(OpKind::Pull, None, Some(weights.into()), priority))
    }

    /// Contributes a gradient and returns the weights of that round. Operations with higher `priority` go first;
    /// operations of one tensor are never reordered.
    pub fn push_pull(
        &self,
        tensor: &Tensor,
        gradient: impl Into<Source>,
        weights: impl Into<Target>,
        priority: i32,
    ) -> Result<Handle, ClientError> {
        let (gradient, weights) = (gradient.into(), weights.into());
        self.start(tensor, Call::new(OpKind::PushPull, Some(gradient), Some(weights), priority))
    }

    /// Sets the tensor's initial value. Rank 0's value counts, and the call of every rank ends when it is set. Only
    /// before the first round or contribution. Other ranks send nothing, unless all workers of lower ranks have left
    /// without setting it; then the value of the lowest remaining rank counts.
    pub fn init<T: Element>(&self, tensor: &Tensor, values: &[T]) -> Result<(), ClientError> {
        self.init_from(tensor, self.copied(tensor, values)?)?.wait().map(drop)
    }

    /// As [`Client::init`], with a buffer and without waiting.
    pub fn init_from(&self, tensor: &Tensor, values: impl Into<Source>) -> Result<Handle, ClientError> {
        self.start(tensor, Call::new(OpKind::Init, Some(values.into()), None, 0))
    }

    /// As [`Client::push`], with plain memory; waits for the end.
    pub fn push_slice<T: Element>(&self, tensor: &Tensor, gradient: &[T]) -> Result<Version, ClientError> {
        let gradient = self.copied(tensor, gradient)?;
        Ok(self.push(tensor, gradient)?.wait()?.version)
    }

    /// As [`Client::pull`], with plain memory; waits for the end. For a dynamic tensor `weights` must have the round's
    /// length.
    pub fn pull_slice<T: Element>(&self, tensor: &Tensor, weights: &mut [T]) -> Result<Version, ClientError> {
        tensor.check_typed::<T>(weights.len(), tensor.spec().dynamic)?;
        copy_out(&self.pull_view(tensor)?.wait()?, weights)
    }

    /// As [`Client::push_pull`], with plain memory; waits for the end.
    pub fn push_pull_slice<T: Element>(
        &self,
        tensor: &Tensor,
        gradient: &[T],
        weights: &mut [T],
    ) -> Result<Version, ClientError> {
        tensor.check_typed::<T>(weights.len(), false)?;
        let gradient = self.copied(tensor, gradient)?;
        copy_out(&self.push_pull_view(tensor, gradient, 0)?.wait()?, weights)
    }

    /// As [`Client::pull`], without a buffer: read the result from [`Ended::weights`]. On shared memory this is the
    /// servers' memory, and nothing is copied. Over other transports, outside mode sync and with backup workers, the
    /// weights are written into the client's memory, because a reader would delay workers that otherwise do not wait
    /// for it. Wait for the handle: weights that were never taken are released only with the tensor's next operation.
    pub fn pull_view(&self, tensor: &Tensor) -> Result<Handle, ClientError> {
        self.pull_view_at(tensor, 0)
    }

    /// As [`Client::pull_view`], with a priority as in [`Client::pull_at`].
    pub fn pull_view_at(&self, tensor: &Tensor, priority: i32) -> Result<Handle, ClientError> {
        self.start_view(tensor, OpKind::Pull, None, priority)
    }

    /// As [`Client::push_pull`] without a buffer for the weights; see [`Client::pull_view`].
    pub fn push_pull_view(
        &self,
        tensor: &Tensor,
        gradient: impl Into<Source>,
        priority: i32,
    ) -> Result<Handle, ClientError> {
        self.start_view(tensor, OpKind::PushPull, Some(gradient.into()), priority)
    }

    fn start_view(
        &self,
        tensor: &Tensor,
        kind: OpKind,
        source: Option<Source>,
        priority: i32,
    ) -> Result<Handle, ClientError> {
        // A pull of one exact version is not a view: a view has the newest version, and the exact one may be the version before it.
        let is_exact = tensor.numbers().is_exact && kind == OpKind::Pull;
        // What others of this host have received is copied.
        let is_shared = self.gate(tensor, kind).is_some();
        let in_place = tensor.may_be_shown() && self.0.links.share_memory() && !is_exact && !is_shared;
        let target = if in_place { None } else { Some(self.allocate(tensor.bytes())?.into()) };
        Ok(self
            .start(tensor, Call { view: in_place, ..Call::new(kind, source, target, priority) })?
            .into_view())
    }

    /// The workers whose contribution to the round after this worker's last one is missing, this worker included, in mode sync.
    /// Servers answer after `within`.
    pub fn missing_from_next_round(
        &self,
        tensor: &Tensor,
        within: Duration,
    ) -> Result<Vec<Rank>, ClientError> {
        let target = self.allocate(tensor.bytes())?.into();
        let probe = Call { probe: Some(within), ..Call::new(OpKind::Pull, None, Some(target), i32::MAX) };
        match self.start(tensor, probe)?.wait() {
            Ok(_) => Ok(Vec::new()),
            Err(ClientError::Op(OpError::Deadline { missing, .. })) => Ok(missing),
            Err(error) => Err(error),
        }
    }

    /// Starts an operation without payload and weights. It notifies servers of views that have ended, and its result is the
    /// tensor's version (see [`OpKind::Release`]).
    pub(super) fn tell(&self, tensor: &Tensor, kind: OpKind) -> Result<Handle, ClientError> {
        self.start(tensor, Call::new(kind, None, None, i32::MAX))
    }

    fn copied<T: Element>(&self, tensor: &Tensor, values: &[T]) -> Result<TensorBuffer, ClientError> {
        tensor.check_typed::<T>(values.len(), false)?;
        let mut buffer = self.allocate(tensor.bytes())?;
        copy_in(&mut buffer, values);
        Ok(buffer)
    }

    /// Checks that tensor and buffers belong to this client, and that sizes match.
    fn check(
        &self,
        tensor: &Tensor,
        kind: OpKind,
        source: Option<&Source>,
        target: Option<&Target>,
    ) -> Result<(), ClientError> {
        if tensor.spec().dynamic && !matches!(kind, OpKind::Push | OpKind::Pull | OpKind::Release) {
            return Err(ClientError::Dynamic { key: tensor.key(), name: tensor.name() });
        }
        if !tensor.is_of(self.0.incarnation) {
            return Err(tensor.foreign("tensor", "`declare` or `tensor`"));
        }
        let region = self.0.pool.region();
        let pool = |is_ours: bool| {
            // Weights land at an offset of our own region. With another client's buffer they would overwrite other memory.
            match is_ours {
                true => Ok(()),
                false => Err(tensor.foreign("buffer", "`allocate`")),
            }
        };
        let shorter = kind == OpKind::Push && tensor.spec().dynamic;
        match source {
            Some(Source::User(buffer)) => tensor.check_typed::<f32>(buffer.len(), shorter)?,
            Some(Source::Pool(buffer)) => {
                tensor.check_length(buffer.len() as u64, shorter)?;
                pool(buffer.is_of(region))?;
            }
            Some(Source::Shared(buffer)) => {
                tensor.check_length(buffer.bytes(), shorter)?;
                pool(buffer.is_of(region))?;
            }
            None => {}
        }
        match target {
            Some(target) => {
                tensor.check_length(target.bytes(), false).and_then(|()| pool(target.is_of(region)))
            }
            None => Ok(()),
        }
    }

    /// As `source`, for a gradient that is sent as it is. `in_pool`: other workers read it in the pool.
    fn gather(
        &self,
        tensor: &Tensor,
        source: Option<Source>,
        in_pool: bool,
        buffers: &mut OpBuffers,
    ) -> Result<Option<Span>, ClientError> {
        let span = match source {
            None => return Ok(None),
            Some(Source::Pool(buffer)) => buffers.source.insert(buffer.into_inner()).span(),
            Some(Source::Shared(buffer)) => {
                let span = buffer.span();
                buffers.shared[0] = Some(buffer.into_inner());
                span
            }
            Some(Source::User(user)) => {
                let is_read_there = tensor.bytes() >= READ_THERE_BYTES_MIN
                    && tensor.placement() == Placement::RendezvousRead
                    && self.0.links.share_memory();
                let user = buffers.user.insert(user);
                let way =
                    if is_read_there || in_pool { Way::Copy } else { self.0.registrations.look_up(user) };
                match way {
                    Way::InPlace(span) if self.prepare(&span).is_ok() => span,
                    Way::Copy => buffers.source.insert(self.copy_of(user)?).span(),
                    Way::InPlace(span) => {
                        // The device cannot register this memory: send a copy of it.
                        drop(span);
                        self.0.registrations.forget(user);
                        buffers.source.insert(self.copy_of(user)?).span()
                    }
                }
            }
        };
        Ok(Some(span))
    }

    /// As `source`, for a gradient that will be encoded: allocates memory for the encoded bytes.
    fn hold(
        &self,
        coded: &CodedTensor,
        source: Option<Source>,
        buffers: &mut OpBuffers,
    ) -> Result<Option<Span>, ClientError> {
        match source {
            None => return Ok(None),
            Some(Source::Pool(buffer)) => buffers.source = Some(buffer.into_inner()),
            Some(Source::User(user)) => buffers.user = Some(user),
            // Another thread may write it while it is encoded, so a copy is encoded.
            Some(Source::Shared(shared)) => {
                let mut copy = self.0.pool.allocate(shared.bytes())?;
                shared.read(&mut copy).map_err(|error| ClientError::Internal(error.to_string()))?;
                buffers.source = Some(copy);
            }
        }
        Ok(buffers.encoded.insert(coded.spares.take(|| self.prepared(coded.bytes))?).span())
    }

    /// Servers read only from the pool. Payloads in other memory are sent to them.
    fn placement_of(&self, tensor: &Tensor, source: Option<&Span>) -> Placement {
        let elsewhere = source.is_some_and(|source| source.region().id() != self.0.pool.region().id());
        match tensor.placement() {
            Placement::RendezvousRead if elsewhere => Placement::Slot,
            placement => placement,
        }
    }

    /// Memory of the pool.
    fn prepared(&self, bytes: u64) -> Result<Exclusive, ClientError> {
        let buffer = self.0.pool.allocate(bytes)?;
        self.prepare(&buffer.span())?;
        Ok(buffer)
    }

    fn copy_of(&self, user: &UserBuffer) -> Result<Exclusive, ClientError> {
        let mut copy = self.prepared(user.bytes() as u64)?;
        copy_in::<f32>(&mut copy, user);
        Ok(copy)
    }

    /// Starts operations of so many bytes that were submitted to these lanes (one bit per lane), and returns the time. Returns an error
    /// if one of the lanes has ended.
    fn kick(&self, used: u64, bytes: u64) -> Result<Instant, OpError> {
        let kick = if bytes <= GATHER_BYTES_MAX { LaneHandle::kick_small } else { LaneHandle::kick };
        let kicked = used_of(&self.0.lanes, used).map(kick);
        // Also the lanes after one that has ended.
        kicked.reduce(Result::and).unwrap_or_else(|| Ok(Instant::now()))
    }

    /// Where the operation meets those of other workers of this host, if it does.
    fn gate(&self, tensor: &Tensor, kind: OpKind) -> Option<&Host<Passing>> {
        self.0.host.get().filter(|_| kind.contributes() && tensor.spec().merges())
    }

    /// The memory of an operation's payload. `buffers` gets those that the operation owns.
    fn source(
        &self,
        tensor: &Tensor,
        kind: OpKind,
        source: Option<Source>,
        buffers: &mut OpBuffers,
    ) -> Result<Option<Span>, ClientError> {
        match (tensor.coded(kind), self.gate(tensor, kind)) {
            (Some(coded), _) => self.hold(coded, source, buffers),
            (None, None) => self.gather(tensor, source, false, buffers),
            (None, Some(gate)) => {
                let in_pool = !gate.is_head() && gate.is_on();
                let span = self.gather(tensor, source, in_pool, buffers)?;
                if gate.is_head() && gate.is_on() {
                    // Without memory for a sum everybody of this host sends its own.
                    buffers.encoded = tensor.sums().take(|| self.prepared(tensor.bytes())).ok();
                }
                Ok(span)
            }
        }
    }

    fn start(&self, tensor: &Tensor, call: Call) -> Result<Handle, ClientError> {
        let Call { kind, source, target, view, priority, probe } = call;
        self.check(tensor, kind, source.as_ref(), target.as_ref())?;
        if let Some(error) = self.dead() {
            return Err(error.into());
        }
        let gate = self.gate(tensor, kind);
        let tensor_lanes = tensor.coded(kind).map_or(tensor.lanes(), |coded| &coded.lanes);
        let parts = Parts { lanes: &self.0.lanes, of_lanes: tensor_lanes, dynamic: tensor.spec().dynamic };
        let used = parts.used();
        let mut state = self.0.states.take(used.count_ones() + u32::from(gate.is_some()));
        let buffers = state.buffers();
        let source = self.source(tensor, kind, source, buffers)?;
        let target = target.map(|target| buffers.keep_target(target));
        let mut numbers = tensor.numbers();
        let ((operation, round), exact) = (numbers.next(kind, tensor.seen()), numbers.exactly(kind));
        let round = round + u64::from(probe.is_some());
        tensor.begin_telling(buffers);
        numbers.encode(round, buffers);
        buffers.busy = Some(tensor.viewing().busy());
        let by_chunk = buffers.versions.is_some();
        let op = self.0.next_op.fetch_add(1, Ordering::Relaxed);
        let sums = buffers.encoded.is_some();
        buffers.gate = gate.map(|gate| (gate.answering(), op));
        let reading = tensor.viewing().reading(operation);
        buffers.shown = view.then(|| tensor.begin_view(operation));
        let state = state.share();
        let submit = Submit {
            op,
            kind,
            dtype: tensor.spec().dtype,
            payload: source.is_some() && (kind != OpKind::Init || self.0.rank == Rank(0)),
            placement: self.placement_of(tensor, source.as_ref()),
            operation,
            view,
            exact,
            reading,
            count: Count::Round(round),
            priority,
            timeout_ms: probe.map_or(self.operation_ms(), |within| within.as_millis() as u32),
            busy_ms: if probe.is_some() { 0 } else { self.busy_ms() },
            by_chunk,
        };
        let going = Going { state: state.clone(), submit, source, target, refused: None };
        let (mut kicked, mut passes) = (0, None);
        match gate {
            Some(gate) => {
                let passing = Passing::new(tensor, &self.0.lanes, &going);
                passes = Some((gate, passing.coming(&going, sums), passing));
                numbers.waiting.push(going, true);
            }
            None if !numbers.waiting.is_empty() => numbers.waiting.push(going, false),
            // If a lane has ended, the kick returns the error.
            None => kicked = parts.submit(going, &mut Vec::new()),
        }
        // All lanes have the operation, or it has a place at the gate. So its place among the tensor's operations is fixed, and
        // starting it needs no lock.
        drop(numbers);
        if let Some((gate, coming, passing)) = passes {
            gate.submit(coming, passing);
        }
        // Rows of tables (homes) have no rounds.
        if kind.contributes() && home_of(tensor.key()).is_none() {
            self.look_at_round(round);
        }
        let started = self.kick(kicked, tensor.bytes())?;
        Ok(Handle::new(
            (state, self.0.states.clone()),
            self.0.lanes.clone(),
            used,
            (Arc::downgrade(&self.0), tensor.clone(), kind),
            (started, self.operation_ends()),
        ))
    }
}

impl OpBuffers {
    /// The destination of the weights belongs to the operation.
    fn keep_target(&mut self, target: Target) -> Span {
        match target {
            Target::Pool(buffer) => self.target.insert(buffer.into_inner().lend()).all(),
            Target::Shared(buffer) => {
                let span = buffer.span();
                self.shared[1] = Some(buffer.into_inner());
                span
            }
        }
    }
}

fn copy_out<T: Element>(ended: &Ended, weights: &mut [T]) -> Result<Version, ClientError> {
    ended.weights.as_ref().map_or(Ok(()), |found| found.copy_to(weights))?;
    Ok(ended.version)
}

fn gradient(buffers: &OpBuffers) -> &[f32] {
    match (&buffers.user, &buffers.source) {
        (Some(user), _) => user,
        // Pool buffers are aligned, and the tensor's length was checked.
        (None, Some(source)) => <[f32]>::ref_from_bytes(source).unwrap_or_default(),
        (None, None) => &[],
    }
}

impl Numbers {
    /// Encodes the contribution to a round that was numbered just now: rounds follow one another, and so does what the
    /// encoder keeps.
    pub(super) fn encode(&mut self, round: u64, buffers: &mut OpBuffers) {
        if let Some(encoder) = &mut self.encoder
            && let Some(mut encoded) = buffers.encoded.take()
        {
            encoder.encode(gradient(buffers), round, &mut encoded);
            buffers.encoded = Some(encoded);
        }
    }
}
