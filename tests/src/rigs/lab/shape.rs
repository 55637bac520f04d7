//! What a laboratory's cluster is like: its size, its clocks, its network, and how much goes wrong.

use fabric::Order;
use fabric::sim::{Rng, SimFaults};
use proto_common::config::WorkerLoss;
use proto_common::message::ClusterShape;
use proto_common::mode::Mode;

/// Bytes of a chunk: fewer than settings allow, so that a seed is quick.
pub(super) const CHUNK_BYTES: u64 = 512;

/// See the module.
#[derive(Clone, Debug)]
pub struct LabShape {
    /// Servers at the start.
    pub servers: u32,
    /// Servers that there may be.
    pub places: u32,
    /// Workers.
    pub workers: u32,
    /// Copies of each chunk.
    pub replicas: u32,
    /// Lanes of each server and worker.
    pub lanes: u16,
    /// Rounds that each worker trains.
    pub rounds: u64,
    /// Slots of each server's inbox.
    pub inbox_slots: u32,
    /// Slots of each worker's inbox, per server.
    pub result_slots: u32,
    /// Spill blocks of each server.
    pub spill_blocks: u32,
    /// How contributions become versions, of all tensors.
    pub mode: Mode,
    /// How contributions travel: each operation draws one of these places in `sim::PLACEMENTS`.
    pub placements: Vec<usize>,
    /// The network of the data paths.
    pub faults: SimFaults,
    /// The longest way of a control message, in microseconds.
    pub control_us: u64,
    /// Most time between two stages of connecting, in microseconds.
    pub bootstrap_us: u64,
    /// Most that a member's clock is fast or slow, in millionths.
    pub skew_ppm: u64,
    /// Rounds go on without a worker that died, and it comes in again between two of them.
    pub continues: bool,
    /// What happens how often.
    pub plan: Plan,
    /// The second scheduler of a divided network asks for no majority.
    pub forced: bool,
    /// A rule that servers break.
    #[cfg(feature = "sabotage")]
    pub broken: Option<gradwire_server::engine::BrokenRule>,
}

/// How many faults of each kind happen while training goes on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// All faults are over by then, in microseconds since training began.
    pub horizon_us: u64,
    /// Data channels between two processes that break.
    pub breaks: u32,
    /// Pairs of processes that cannot reach each other's data paths for a while.
    pub partitions: u32,
    /// Processes whose data paths come and go for a while.
    pub flaps: u32,
    /// Members that the scheduler cannot hear, or that cannot hear it, for less than makes them dead.
    pub silences: u32,
    /// Members whose control messages take longer for a while.
    pub lags: u32,
    /// Processes that do nothing for a while.
    pub pauses: u32,
    /// Members that take their time for a while.
    pub slow: u32,
    /// Servers that die.
    pub server_crashes: u32,
    /// After each of them another one dies before the first death is decided about, where they share no chunk.
    pub second: bool,
    /// Or where they do, and the job is to end so.
    pub fatal: bool,
    /// Servers that are cut off from the scheduler until it declares them dead, and live.
    pub deposed: u32,
    /// Workers that are.
    pub deposed_workers: u32,
    /// Processes that do nothing for longer than makes them dead, and go on then.
    pub sleeps: u32,
    /// Lives of the scheduler that end.
    pub scheduler_crashes: u32,
    /// Servers that come.
    pub joins: u32,
    /// Servers that wish to go.
    pub drains: u32,
    /// Workers that die and come again.
    pub worker_crashes: u32,
    /// Divisions of the network, each with a second scheduler.
    pub divides: u32,
}

impl Plan {
    /// Nothing goes wrong.
    pub const NOTHING: Self = Self {
        // While training goes on, mostly.
        horizon_us: 300_000,
        breaks: 0,
        partitions: 0,
        flaps: 0,
        silences: 0,
        lags: 0,
        pauses: 0,
        slow: 0,
        server_crashes: 0,
        second: false,
        fatal: false,
        deposed: 0,
        deposed_workers: 0,
        sleeps: 0,
        scheduler_crashes: 0,
        joins: 0,
        drains: 0,
        worker_crashes: 0,
        divides: 0,
    };

    /// All of it, of each seed something else.
    #[must_use]
    pub fn everything(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x1AB0_FA17);
        let mut some = |most: u64| rng.below(most + 1) as u32;
        Self {
            breaks: some(3),
            partitions: some(2),
            flaps: some(1),
            silences: some(2),
            lags: some(2),
            pauses: some(2),
            slow: some(2),
            server_crashes: some(2),
            second: some(2) == 0,
            fatal: some(7) == 0,
            deposed: some(1),
            deposed_workers: some(1),
            sleeps: some(1),
            scheduler_crashes: some(1),
            joins: some(1),
            drains: some(1),
            worker_crashes: some(2),
            ..Self::NOTHING
        }
    }

    /// What a plan's faults are called where they are counted: with enough seeds each of them is to strike.
    #[must_use]
    pub fn kinds(&self) -> Vec<&'static str> {
        let kinds: [(bool, &[&str]); 17] = [
            (self.breaks > 0, &["data: channels break"]),
            (self.partitions > 0, &["data: partition"]),
            (self.flaps > 0, &["data: flapping link"]),
            (self.silences > 0, &["control: partition"]),
            (self.lags > 0, &["control: delay"]),
            (self.pauses > 0, &["pause: member", "pause: scheduler"]),
            (self.slow > 0, &["slow node"]),
            (self.server_crashes > 0, &["crash: server"]),
            (self.second && !self.fatal, &["crash: two servers, apart"]),
            (self.second && self.fatal, &["crash: chunk and copy"]),
            (self.deposed > 0, &["deposed: server"]),
            (self.deposed_workers > 0, &["deposed: worker"]),
            (self.sleeps > 0, &["long pause: server", "long pause: worker", "long pause: scheduler"]),
            (self.scheduler_crashes > 0, &["crash: scheduler"]),
            (self.joins + self.drains > 0, &["a server comes", "a server goes"]),
            (self.worker_crashes > 0, &["crash: worker"]),
            (self.divides > 0, &["divided", "a second scheduler decides"]),
        ];
        kinds
            .into_iter()
            .filter(|(is_planned, _)| *is_planned)
            .flat_map(|(_, names)| names)
            .copied()
            .collect()
    }

    /// May servers be gone, or go?
    fn needs_copies(&self) -> bool {
        self.server_crashes + self.deposed + self.sleeps + self.joins + self.drains > 0
    }

    /// May workers be gone?
    fn loses_workers(&self) -> bool {
        self.worker_crashes + self.deposed_workers + self.sleeps > 0
    }
}

impl LabShape {
    /// Of a seed, with copies, or a spare place, as a plan needs them.
    #[must_use]
    pub fn with(seed: u64, plan: Plan) -> Self {
        let drawn = Self::drawn(seed).varied(seed);
        // Of three servers any two share chunks.
        let servers = if plan.second && !plan.fatal { 4 } else { drawn.servers };
        let places = servers + u32::from(plan.joins > 0);
        // Without anybody left the job would end.
        let may_continue = plan.loses_workers() && drawn.workers > 1;
        let continues = may_continue && Rng::new(seed ^ 0x1AB0_C0DE).below(4) == 0;
        Self { servers, replicas: u32::from(plan.needs_copies()), places, continues, plan, ..drawn }
    }

    /// Of a seed, with all that can go wrong.
    #[must_use]
    pub fn everything(seed: u64) -> Self {
        let shape = Self::with(seed, Plan::everything(seed));
        let is_crowded = shape.plan.deposed_workers > 0 && seed.is_multiple_of(8);
        if is_crowded { shape.in_crowd(seed / 8) } else { shape }
    }

    /// Of a seed, with a division in the middle of the training. Workers push without waiting for each other, so both sides may
    /// go on.
    #[must_use]
    pub fn divided(seed: u64) -> Self {
        let plan = Plan { divides: 1, horizon_us: 30_000, ..Plan::NOTHING };
        let mut rng = Rng::new(seed ^ 0x1AB0_D1DE);
        let servers = rng.within(2, 4) as u32;
        let (workers, rounds) = (rng.within(2, 4) as u32, rng.within(20, 60));
        let drawn = Self::drawn(seed);
        let control_us = drawn.control_us.min(2_000);
        let (places, replicas, mode) = (servers, 1, Mode::Async);
        Self { servers, places, workers, rounds, replicas, mode, control_us, continues: true, plan, ..drawn }
    }

    /// Workers that are given up while they live, and whose writes are late; others use the few slots that there are at once.
    #[must_use]
    pub fn crowded(seed: u64) -> Self {
        let plan = Plan { deposed_workers: 3, flaps: 2, slow: 3, ..Plan::NOTHING };
        Self { continues: false, ..Self::with(seed, plan).in_crowd(seed) }
    }

    fn in_crowd(self, seed: u64) -> Self {
        let mode = if seed.is_multiple_of(2) { Mode::Async } else { Mode::Bounded(8) };
        // Messages that take long: workers are given up while something of theirs is under way.
        let faults = SimFaults { spike_per_10k: 2_000, ..self.faults };
        Self { mode, workers: 3, inbox_slots: 2, rounds: 30, faults, ..self }
    }

    /// A cluster drawn from a seed, whose plan is empty.
    #[must_use]
    pub fn drawn(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x1AB0_5A9E);
        let servers = rng.within(2, 3) as u32;
        Self {
            servers,
            places: servers,
            workers: rng.within(1, 3) as u32,
            replicas: 0,
            lanes: 1,
            rounds: rng.within(4, 10),
            inbox_slots: rng.within(2, 10) as u32,
            result_slots: rng.within(1, 4) as u32,
            spill_blocks: rng.within(1, 12) as u32,
            mode: Mode::Sync,
            placements: vec![0],
            // Copies that end when the slots of a worker that was given up could be granted again.
            faults: SimFaults { late_copy_per_10k: 5_000, late_copy_us: 2_000, ..SimFaults::rough() },
            control_us: [200, 2_000, 20_000][rng.below(3) as usize],
            bootstrap_us: 300,
            skew_ppm: 50_000,
            continues: false,
            plan: Plan::default(),
            forced: false,
            #[cfg(feature = "sabotage")]
            broken: None,
        }
    }

    /// The same with its mode, its placements, how often the network repeats itself and whether it keeps the order of a channel
    /// drawn too.
    #[must_use]
    pub fn varied(self, seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x1AB0_3A2D);
        let mode = match rng.below(4) {
            0 | 1 => Mode::Sync,
            2 => Mode::Bounded(rng.below(4) as u32),
            _ => Mode::Async,
        };
        let placements = match rng.below(8) {
            one @ 1..4 => vec![one as usize],
            4 | 5 => vec![0, 1, 2, 3],
            _ => vec![0],
        };
        let repeats = [0, 0, 500, 2_000][rng.below(4) as usize];
        let lanes = 1 + u16::from(rng.below(3) == 0);
        let order = if rng.below(3) == 0 { Order::Any } else { Order::Posted };
        let faults = SimFaults { duplicate_notice_per_10k: repeats, order, ..self.faults };
        Self { mode, placements, faults, lanes, ..self }
    }

    /// Are contributions such that weights count them? Where rounds go on without the dead, nobody knows more of them before.
    pub(super) fn is_counted(&self) -> bool {
        self.continues || self.mode != Mode::Sync
    }

    fn worker_loss(&self) -> WorkerLoss {
        match (self.continues, self.plan.loses_workers()) {
            (true, _) => WorkerLoss::Continue,
            (false, true) => WorkerLoss::Wait,
            (false, false) => WorkerLoss::Stop,
        }
    }

    pub(super) fn cluster(&self) -> ClusterShape {
        ClusterShape {
            workers: self.workers,
            servers: self.servers,
            chunk_bytes: CHUNK_BYTES,
            lanes: self.lanes,
            deterministic: true,
            mode: self.mode,
            backup_workers: 0,
            heartbeat_ms: 50,
            silence_ms: 500,
            replicas: self.replicas,
            server_places: self.places,
            worker_loss: self.worker_loss(),
            workers_min: 1,
            scheduler_ms: match self.plan {
                Plan { divides: 1.., .. } => 5_000,
                plan if plan.scheduler_crashes + plan.sleeps > 0 => 30_000,
                _ => 0,
            },
        }
    }
}
