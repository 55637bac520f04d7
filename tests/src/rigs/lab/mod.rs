//! The fault laboratory: whole clusters in one process and in virtual time. The scheduler's engine, the member engines and
//! the lane runtimes of servers and workers are the ones that ship. Around them are simulated control connections, a
//! simulated fabric, processes that crash and restart, clocks that run at different rates, and an oracle that knows the bits of every
//! version.
//!
//! ```text
//! let mut lab = Lab::new(seed, shape);      processes start, and register
//! lab.train();                              to the end of training, through all faults of the shape's plan
//! Lab::restored(seed, shape).train();       the same of a job that continues from the checkpoint of another one
//! ```

mod bearable;
mod brain;
mod control;
mod data;
mod divided;
mod faults;
mod landings;
mod restored;
mod seat;
mod server;
mod shape;
mod steps;
mod strikes;
mod trainer;
mod watch;
mod wire;
mod worker;

pub use faults::Tally;
pub use shape::{LabShape, Plan};

use super::sim::{Oracle, tensors};
use brain::Brain;
use data::{StreamDial, WorkerDial};
use divided::Division;
use fabric::sim::{NodeId, QueueId, Rng, SimNet};
use faults::Fault;
use gradwire_scheduler::engine::Outcome;
use proto_common::ids::Role;
use proto_common::tensor::TensorSpec;
use restored::Restored;
use seat::{Clock, Seat};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use trainer::Trainer;
use watch::Watch;
use wire::Wires;

/// Lines of the trace that a failure shows.
const TRACE_LINES: usize = 40;
/// What notes of the laboratory begin with.
const NOTE: &str = "lab: ";

/// See the module.
#[derive(Debug)]
pub struct Lab {
    seed: u64,
    shape: LabShape,
    net: SimNet,
    rng: Rng,
    oracle: Oracle,
    tensors: Vec<TensorSpec>,
    brain: Brain,
    /// A second scheduler, where the network is divided.
    rival: Brain,
    division: Option<Division>,
    wires: Wires,
    /// Servers first.
    seats: Vec<Seat>,
    worker_dials: Vec<WorkerDial>,
    stream_dials: Vec<StreamDial>,
    faults: VecDeque<(u64, Fault)>,
    /// None is put off beyond.
    fault_end_us: u64,
    heals: BTreeMap<(u64, u64), (NodeId, NodeId)>,
    heal_count: u64,
    partitions: BTreeSet<(NodeId, NodeId)>,
    /// When a server died last, or was cut off.
    trouble_us: Option<u64>,
    /// A server is cut off from the scheduler until then.
    cut_off_us: u64,
    /// By then it is decided about all who were cut off, or stopped, for longer than makes them dead.
    doubt_us: u64,
    watch: Watch,
    tick_us: u64,
    again_us: Option<u64>,
    ready: Vec<QueueId>,
    steps: u64,
    /// The last step took no time.
    stalled: bool,
    may_fail: bool,
    /// Both copies of something are gone: the job is to end with that error.
    has_lost: bool,
    /// All processes' nodes so far.
    nodes: Vec<NodeId>,
    struck: Tally,
    /// All workers have made all rounds: what is pulled now has all of them.
    gate: bool,
    /// All was looked at: workers may go.
    may_go: bool,
    /// The checkpoint that the job continues from.
    restored: Option<Restored>,
}

impl Lab {
    /// Starts all processes. Nothing goes wrong before [`Lab::train`].
    #[must_use]
    pub fn new(seed: u64, shape: LabShape) -> Self {
        let net = SimNet::new(seed, shape.faults.clone());
        let mut rng = Rng::new(seed ^ 0x1AB_0FF1CE);
        let mut tensors = tensors();
        if shape.is_counted() {
            tensors = tensors.into_iter().map(|spec| landings::counting(spec, shape.mode)).collect();
        }
        let mut oracle = Oracle::new(seed, shape.workers, &tensors);
        (0..tensors.len()).for_each(|tensor| oracle.initialise(tensor));
        let mut seat = |role| Seat {
            role,
            clock: Clock::drawn(&mut rng, shape.skew_ppm),
            process: None,
            lives: 0,
            start_us: None,
            paused_until_us: 0,
            slow_until_us: 0,
            late_until_us: 0,
            is_done: false,
        };
        let mut seats: Vec<Seat> = (0..shape.places).map(|_| seat(Role::Server)).collect();
        seats.extend((0..shape.workers).map(|_| seat(Role::Worker)));
        for at in (0..shape.servers).chain(shape.places..shape.places + shape.workers) {
            seats[at as usize].start_us = Some(rng.below(50_000));
        }
        let clock = Clock::drawn(&mut rng, shape.skew_ppm);
        let brain = Brain { start_us: Some(rng.below(50_000)), ..Brain::new(clock) };
        Self {
            seed,
            net,
            rng,
            oracle,
            tensors,
            rival: Brain::rival(brain.clock),
            division: None,
            brain,
            wires: Wires::default(),
            seats,
            worker_dials: Vec::new(),
            stream_dials: Vec::new(),
            faults: VecDeque::new(),
            fault_end_us: 0,
            heals: BTreeMap::new(),
            heal_count: 0,
            partitions: BTreeSet::new(),
            trouble_us: None,
            cut_off_us: 0,
            doubt_us: 0,
            watch: Watch::new(shape.continues),
            tick_us: 0,
            again_us: None,
            ready: Vec::new(),
            steps: 0,
            stalled: false,
            may_fail: false,
            has_lost: false,
            nodes: Vec::new(),
            struck: Tally::new(),
            gate: false,
            may_go: false,
            restored: None,
            shape,
        }
    }

    /// From here on the job may end with an error, which every member is to report.
    pub fn allow_failure(&mut self) {
        self.may_fail = true;
    }

    /// How the job ended, by the scheduler.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        self.brain.outcome.as_ref()
    }

    /// Events so far, and a hash over all of them: two runs with the same one did the same.
    #[must_use]
    pub fn trace(&self) -> (u64, u64) {
        (self.net.trace_events(), self.net.trace_hash())
    }

    fn note(&self, text: &str) {
        self.net.note(&format!("{NOTE}{text}"));
    }

    fn now_us(&self) -> u64 {
        self.net.now_us()
    }

    fn clock_ms(&self, at: usize) -> u64 {
        self.seats[at].clock.clock_ms(self.now_us())
    }

    fn is_paused(&self, at: usize) -> bool {
        self.seats[at].paused_until_us > self.now_us()
    }

    fn is_trained(&self) -> bool {
        self.all_workers(Trainer::is_over)
    }

    /// Are all workers there, and is it so of their programs?
    fn all_workers(&self, is_so: impl Fn(&Trainer) -> bool) -> bool {
        let mut workers = self.seats.iter().filter(|seat| seat.role == Role::Worker);
        workers.all(|seat| seat.is_done || seat.worker_ref().is_some_and(|worker| is_so(&worker.trainer)))
    }

    /// What an ended process had: its late writes would show in it.
    fn retire(&mut self, at: usize, process: seat::Process) {
        if let seat::Body::Worker(worker) = &process.body {
            worker.trainer.check_targets();
        }
        self.worker_dials.retain(|dial| dial.at != at);
        self.stream_dials.retain(|dial| dial.at != at);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let trace = self.net.trace();
            let tail = &trace[trace.len().saturating_sub(TRACE_LINES)..];
            // What members and the scheduler did is further back than what the fabric does all the time.
            let noted = trace.iter().filter(|line| line.contains(NOTE));
            noted.for_each(|line| eprintln!("  {line}"));
            eprintln!("{}", self.describe());
            eprintln!(
                "seed {}: {:?}\nthe last of {} events:",
                self.seed,
                self.shape,
                self.net.trace_events()
            );
            tail.iter().for_each(|line| eprintln!("  {line}"));
        }
    }
}
