//! A worker's program: declare, initialise, rounds over all tensors in a random order, the final weights, goodbye. One that
//! came again asks where training is, takes exactly those weights, and goes on, as the client's `resume` does. Every landing is
//! judged (`landings`); sources are spoilt as soon as they are free, targets are looked at again in the end: reads and writes
//! after an operation's end show.

use super::{Lab, landings};
use crate::rigs::sim::{PLACEMENTS, bits_hash};
use fabric::Exclusive;
use fabric::sim::Rng;
use gradwire_worker::engine::{PartSpec, Submit};
use gradwire_worker::runtime::{OpState, Submission};
use proto_common::batch::{Count, OpKind, Reading};
use proto_common::element::Dtype;
use proto_common::ids::{Operation, Rank};
use proto_common::message::{Coming, ToScheduler};
use proto_common::mode::Mode;
use proto_common::tensor::TensorSpec;
use std::sync::Arc;

/// Time that an operation has; all faults together are to be shorter.
const OPERATION_MS: u32 = 60_000;
const DECLARE: u64 = 1;

/// See the module.
#[derive(Debug)]
pub(super) struct Trainer {
    pub(super) is_declared: bool,
    stage: Stage,
    rng: Rng,
    /// Rounds begun.
    pub(super) round: u64,
    /// Operations and contributions of each tensor so far.
    numbers: Vec<(u64, u64)>,
    todo: Vec<(usize, OpKind)>,
    open: Vec<Live>,
    ended: Vec<Ended>,
    next_op: u64,
    /// How it came.
    pub(super) coming: Coming,
    /// The least version that it was told when it asked.
    told: Option<u64>,
    /// It knows from which rounds on it counts.
    begins: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Declare,
    Declaring,
    Init,
    /// It came again: which round have all finished?
    Asking,
    /// Exactly the weights of that round.
    Resuming,
    Rounds,
    /// All rounds are over; not yet those of others, perhaps.
    Gate,
    Last,
    Over,
}

#[derive(Debug)]
pub(super) struct Live {
    pub(super) tensor: usize,
    pub(super) kind: OpKind,
    pub(super) round: u64,
    /// What of its own was acknowledged before it began.
    pub(super) acknowledged: u64,
    state: Arc<OpState>,
    source: Option<Exclusive>,
    target: Option<Exclusive>,
}

/// What is looked at again.
#[derive(Debug)]
struct Ended {
    target: Exclusive,
    hash: u64,
    name: String,
}

impl Trainer {
    pub(super) fn new(tensors: usize, coming: Coming, rng: Rng) -> Self {
        Self {
            is_declared: false,
            stage: Stage::Declare,
            rng,
            round: 0,
            numbers: vec![(0, 0); tensors],
            todo: Vec::new(),
            open: Vec::new(),
            ended: Vec::new(),
            next_op: 0,
            coming,
            told: None,
            begins: coming != Coming::Between,
        }
    }

    fn shuffled(&mut self, tensors: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..tensors).collect();
        for at in (1..tensors).rev() {
            order.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        order
    }

    /// Goes to the next stage or round when nothing is left of the one before.
    fn next(&mut self, rounds: u64, gate: bool) {
        let tensors = self.numbers.len();
        self.stage = match self.stage {
            Stage::Declaring if self.is_declared && self.coming == Coming::Again => Stage::Asking,
            // Between rounds nothing is initial any more, as for a trainer that the client's `resume` says a round.
            Stage::Declaring if self.is_declared && self.round > 0 => Stage::Rounds,
            Stage::Declaring if self.is_declared => Stage::Init,
            // Nothing was finished: it begins as its earlier life did.
            Stage::Asking if self.told == Some(0) => Stage::Init,
            Stage::Asking if self.told.is_some() => {
                self.go_on_after(self.told.unwrap_or(0));
                Stage::Resuming
            }
            Stage::Init | Stage::Resuming => Stage::Rounds,
            Stage::Rounds if self.round >= rounds => Stage::Gate,
            Stage::Gate if gate => Stage::Last,
            Stage::Last => Stage::Over,
            other => other,
        };
        let kind = match self.stage {
            Stage::Init => OpKind::Init,
            Stage::Asking if self.told.is_none() => OpKind::Release,
            Stage::Rounds if self.round < rounds => OpKind::PushPull,
            Stage::Resuming | Stage::Last => OpKind::Pull,
            _ => return,
        };
        self.round += u64::from(kind == OpKind::PushPull);
        self.todo = self.shuffled(tensors).into_iter().map(|tensor| (tensor, kind)).collect();
        if kind == OpKind::PushPull {
            // Who came in between counts from a later round of some tensors on.
            self.todo.retain(|(tensor, _)| self.numbers[*tensor].1 < self.round);
        }
    }

    /// It came in between: from these rounds on it counts, of tensors that are not named from the first.
    fn begin_from(&mut self, rounds: impl Iterator<Item = u64>) {
        self.numbers.iter_mut().zip(rounds).for_each(|(numbers, from)| numbers.1 = from.saturating_sub(1));
        self.round = self.numbers.iter().map(|(_, rounds)| *rounds).min().unwrap_or(0);
        self.begins = true;
    }

    fn go_on_after(&mut self, round: u64) {
        self.round = round;
        self.numbers.iter_mut().for_each(|(_, rounds)| *rounds = round);
    }

    /// Has it contributed to all rounds, and been answered?
    pub(super) fn is_through(&self) -> bool {
        matches!(self.stage, Stage::Gate | Stage::Last | Stage::Over)
    }

    /// Is nothing left but to go?
    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// For failures.
    pub(super) fn summary(&self) -> String {
        let open = self.open.iter().map(|live| format!("{:?} {} of {}", live.kind, live.round, live.tensor));
        format!("{:?}, open: {}", self.stage, open.collect::<Vec<_>>().join(", "))
    }

    /// Nothing was written into a target after its operation's end.
    pub(super) fn check_targets(&self) {
        for ended in &self.ended {
            assert_eq!(ended.hash, bits_hash(&floats(&ended.target)), "a late write: {}", ended.name);
        }
    }
}

pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

impl Lab {
    /// Lets a worker's program go on as far as it can.
    pub(super) fn advance_trainer(&mut self, at: usize) {
        self.collect(at);
        loop {
            let (rounds, gate) = (self.shape.rounds, self.gate);
            let Some(worker) = self.seats[at].worker() else { return };
            let trainer = &mut worker.trainer;
            match trainer.stage {
                Stage::Declare if worker.member.resume().is_some() => {
                    trainer.stage = Stage::Declaring;
                    let tensors = self.tensors.clone();
                    let (request, timeout_ms) = (DECLARE, u64::from(OPERATION_MS));
                    self.ask(at, request, ToScheduler::Declare { request, tensors, timeout_ms });
                    return;
                }
                // Contributions before that would be to rounds which go on without it.
                Stage::Declaring if trainer.is_declared && !trainer.begins => {
                    let Some(counts) = worker.member.counts() else { return };
                    let from = |spec: &TensorSpec| counts.get(&spec.key).copied().unwrap_or(0);
                    trainer.begin_from(self.tensors.iter().map(from));
                }
                Stage::Over => return self.graduate(at),
                _ => {}
            }
            if let Some((tensor, kind)) = trainer.todo.pop() {
                self.submit(at, tensor, kind);
                continue;
            }
            let before = (trainer.stage, trainer.round);
            if !trainer.open.is_empty() {
                return;
            }
            trainer.next(rounds, gate);
            if before == (trainer.stage, trainer.round) && trainer.todo.is_empty() {
                return;
            }
        }
    }

    fn graduate(&mut self, at: usize) {
        if self.may_go && !self.seats[at].is_done {
            self.seats[at].is_done = true;
            self.say(at, ToScheduler::Goodbye);
        }
    }

    fn submit(&mut self, at: usize, tensor: usize, kind: OpKind) {
        let spec = self.tensors[tensor].clone();
        let clock_ms = self.clock_ms(at);
        let placement =
            PLACEMENTS[self.shape.placements[self.rng.below(self.shape.placements.len() as u64) as usize]];
        let Some(worker) = self.seats[at].worker() else { return };
        let (rank, trainer) = (worker.rank, &mut worker.trainer);
        let (operations, rounds) = &mut trainer.numbers[tensor];
        *operations += 1;
        *rounds += u64::from(kind.contributes());
        let asks = matches!(kind, OpKind::Init | OpKind::Release);
        // Who came in after all rounds counts from one on that nobody makes; others leave here only when it has its weights.
        let round = if asks { 0 } else { (*rounds).min(self.shape.rounds) };
        let values = match kind {
            OpKind::Init => Some(self.oracle.initial(tensor)),
            OpKind::PushPull if !self.shape.is_counted() => Some(self.oracle.gradient(tensor, rank.0, round)),
            OpKind::PushPull => Some(landings::marks(rank, spec.elements)),
            _ => None,
        };
        let allocate = || worker.pool.allocate(spec.bytes()).expect("room for all operations");
        let source = values.map(|values| {
            let mut buffer = allocate();
            for (bytes, value) in buffer.chunks_exact_mut(4).zip(values) {
                bytes.copy_from_slice(&value.to_le_bytes());
            }
            buffer
        });
        let target = kind.lands().then(|| {
            let mut buffer = allocate();
            buffer.fill(0xAA);
            buffer
        });
        let map = worker.member.map();
        let mut lanes: Vec<Vec<PartSpec>> = vec![Vec::new(); worker.lanes.len()];
        for (span, server) in map.placed_chunks(spec.key) {
            let (id, offset, bytes) = (span.id, span.offset, span.bytes);
            lanes[usize::from(map.lane_of(id).0)].push(PartSpec { id, server, offset, bytes, coded: None });
        }
        let state = OpState::new(lanes.iter().filter(|parts| !parts.is_empty()).count() as u32);
        trainer.next_op += 1;
        let exact = trainer.stage == Stage::Resuming && self.shape.mode == Mode::Sync;
        let submit = Submit {
            view: false,
            exact,
            reading: Reading::default(),
            op: trainer.next_op,
            kind,
            dtype: Dtype::F32,
            placement,
            operation: Operation(*operations),
            count: Count::Round(round),
            priority: trainer.rng.below(4) as i32,
            timeout_ms: OPERATION_MS,
            busy_ms: 0,
            payload: source.is_some() && (kind != OpKind::Init || rank == Rank(0)),
            by_chunk: false,
        };
        let submission = |parts: Vec<PartSpec>| Submission {
            state: state.clone(),
            parts: parts.into(),
            source: source.as_ref().map(Exclusive::span),
            target: target.as_ref().map(Exclusive::span),
            submit,
        };
        for (lane, parts) in worker.lanes.iter_mut().zip(lanes).filter(|(_, parts)| !parts.is_empty()) {
            lane.submit(submission(parts), clock_ms);
        }
        self.watch.begin(tensor, rank, round * u64::from(kind.contributes()));
        let acknowledged = self.watch.acknowledged_of(tensor, rank);
        trainer.open.push(Live { tensor, kind, round, acknowledged, state, source, target });
    }

    /// Looks at a worker's operations: which have ended, and are they right?
    fn collect(&mut self, at: usize) {
        let Some(worker) = self.seats[at].worker() else { return };
        let rank = worker.rank;
        let trainer = &mut worker.trainer;
        let mut over = Vec::new();
        let mut index = 0;
        while index < trainer.open.len() {
            match trainer.open[index].state.poll() {
                Some(result) => over.push((trainer.open.swap_remove(index), result)),
                None => index += 1,
            }
        }
        for (mut live, result) in over {
            let name =
                format!("worker {rank} {:?} of tensor {} round {}", live.kind, live.tensor, live.round);
            let version = match result {
                Ok(version) => version,
                Err(_) if self.may_fail => continue,
                Err(error) => panic!("{name}: {error}"),
            };
            let is_numbered = self.shape.mode == Mode::Sync || !self.shape.continues;
            assert!(!is_numbered || version.0 >= live.round, "{name}: version {version}");
            if let Some(source) = &mut live.source {
                source.fill(0xFF);
            }
            if live.kind.contributes() {
                self.watch.acknowledge(live.tensor, rank, live.round);
            }
            if live.kind == OpKind::Release
                && let Some(worker) = self.seats[at].worker()
            {
                let told = &mut worker.trainer.told;
                *told = Some(told.unwrap_or(u64::MAX).min(version.0));
            }
            if let Some(target) = live.target.take() {
                let weights = floats(&target);
                self.check_landing(rank, &live, &weights, &name);
                let ended = Ended { hash: bits_hash(&weights), target, name };
                if let Some(worker) = self.seats[at].worker() {
                    worker.trainer.ended.push(ended);
                }
            }
        }
    }
}
