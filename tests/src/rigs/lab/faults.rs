//! What goes wrong, and when: drawn from the seed before training begins. It strikes between any two steps of anybody, once
//! its time has come; `strikes` carries it out, `bearable` says whether the cluster can bear it. It must not touch members.

use super::Lab;
use super::seat::Clock;
use fabric::sim::{NodeId, Rng};
use proto_common::ids::{Rank, Role};
use std::collections::BTreeMap;

/// A fault that the cluster cannot bear is put off for so long at most.
const PUT_OFF_US: u64 = 10_000_000;
/// Until it is tried again.
const RETRY_US: u64 = 5_000;
/// How often a fault whose time has come strikes at a step's border, of 10,000.
const STRIKE_PER_10K: u32 = 2_000;
/// After this time it strikes before the next step.
const STRIKE_US: u64 = 300;

/// One thing that goes wrong, or happens. Members are drawn when it happens, of those that are there then.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    /// All data channels between two processes break.
    Break,
    /// Two processes cannot reach each other's data paths.
    Partition {
        us: u64,
    },
    /// A process's data paths come and go, to all others, until so much time is over.
    Flap {
        of: Option<(usize, NodeId)>,
        left_us: u64,
    },
    /// A member's control connection is silent, and all comes at once afterwards.
    Silence {
        us: u64,
        both: bool,
    },
    /// All of a member's control messages take longer.
    Lag {
        us: u64,
    },
    /// A process does nothing for less than makes it dead.
    Pause {
        us: u64,
    },
    PauseScheduler {
        us: u64,
    },
    /// A process takes its time with everything.
    Slow {
        us: u64,
    },
    CrashServer {
        back_us: u64,
    },
    /// Another server dies before the death of the first is decided about.
    CrashSecond {
        first: Rank,
        back_us: u64,
    },
    CrashScheduler {
        down_us: u64,
    },
    CrashWorker {
        back_us: u64,
    },
    /// A member's control connection is silent for longer than makes it dead, or breaks (`at_once`). It lives on.
    Depose {
        role: Role,
        at_once: bool,
        flaps: bool,
    },
    /// A process does nothing for longer than makes it dead, and goes on then.
    Sleep {
        role: Role,
        us: u64,
    },
    /// Members are divided, control and data, and a second scheduler starts on the other side.
    Divide {
        us: u64,
        after_us: u64,
    },
    /// A server comes.
    Join,
    /// A server wishes to go.
    Drain,
}

/// How often each kind of fault has struck.
pub type Tally = BTreeMap<&'static str, u64>;

impl Lab {
    /// Draws all faults of the plan, from now on.
    pub(super) fn draw_faults(&mut self) {
        let plan = self.shape.plan;
        let now_us = self.now_us();
        let silence_us = self.shape.cluster().silence_ms * 1_000;
        let mut rng = self.rng.fork();
        // All of them together are shorter than what makes dead.
        let short = |rng: &mut Rng| rng.within(1_000, silence_us / 8);
        let long = |rng: &mut Rng| rng.within(silence_us * 4 / 3, 3 * silence_us);
        let back = |rng: &mut Rng| rng.within(10_000, 2_000_000);
        let even = |rng: &mut Rng| rng.below(2) == 0;
        let mut all: Vec<(u64, Fault)> = Vec::new();
        let mut add = |count: u32, fault: &mut dyn FnMut(&mut Rng) -> Fault| {
            for _ in 0..count {
                let at_us = now_us + rng.below(plan.horizon_us.max(1));
                all.push((at_us, fault(&mut rng)));
            }
        };
        add(plan.breaks, &mut |_| Fault::Break);
        add(plan.partitions, &mut |rng| Fault::Partition { us: rng.within(1_000, 2_000_000) });
        add(plan.flaps, &mut |rng| Fault::Flap { of: None, left_us: rng.within(5_000, 100_000) });
        add(plan.silences, &mut |rng| Fault::Silence { us: short(rng), both: even(rng) });
        add(plan.lags, &mut |rng| Fault::Lag { us: rng.within(10_000, 500_000) });
        add(plan.pauses, &mut |rng| match rng.below(4) {
            0 => Fault::PauseScheduler { us: short(rng) },
            _ => Fault::Pause { us: short(rng) },
        });
        add(plan.slow, &mut |rng| Fault::Slow { us: rng.within(10_000, 500_000) });
        add(plan.server_crashes, &mut |rng| Fault::CrashServer { back_us: back(rng) });
        add(plan.worker_crashes, &mut |rng| Fault::CrashWorker { back_us: back(rng) });
        add(plan.scheduler_crashes, &mut |rng| Fault::CrashScheduler {
            down_us: rng.within(1_000, 3_000_000),
        });
        for (role, count) in [(Role::Server, plan.deposed), (Role::Worker, plan.deposed_workers)] {
            add(count, &mut |rng| Fault::Depose { role, at_once: even(rng), flaps: even(rng) });
        }
        add(plan.sleeps, &mut |rng| {
            let role = [Role::Server, Role::Worker, Role::Scheduler][rng.below(3) as usize];
            Fault::Sleep { role, us: long(rng) }
        });
        add(plan.joins, &mut |_| Fault::Join);
        add(plan.drains, &mut |_| Fault::Drain);
        add(plan.divides, &mut |rng| Fault::Divide {
            us: rng.within(silence_us, 20 * silence_us),
            after_us: rng.below(4 * silence_us),
        });
        all.sort_by_key(|(at_us, _)| *at_us);
        self.faults = all.into();
        self.fault_end_us = now_us + plan.horizon_us + PUT_OFF_US;
    }

    /// Before a step: what is over heals, and what is overdue strikes.
    pub(super) fn act(&mut self) {
        let now_us = self.now_us();
        while let Some((_, heal)) = self.heals.first_key_value().filter(|(at_us, _)| at_us.0 <= now_us) {
            let (a, b) = *heal;
            self.heals.pop_first();
            self.partitions.remove(&(a, b));
            self.net.heal(a, b);
        }
        if self.is_trained() {
            // The end of a job is not what is tried here.
            self.faults.clear();
        }
        let is_overdue = |(at_us, fault): &(u64, Fault)| {
            let patience_us = if matches!(fault, Fault::Drain) { 0 } else { STRIKE_US };
            at_us + patience_us <= now_us
        };
        while self.faults.front().is_some_and(is_overdue) {
            let Some((_, fault)) = self.faults.pop_front() else { return };
            self.carry_out(fault);
        }
    }

    /// Between any two steps, of the scheduler, of members, of lanes, and between what each of them does in a step.
    pub(super) fn between(&mut self) {
        let Some((at_us, fault)) = self.faults.front() else { return };
        // A member that is in the middle of something is not asked to do something else.
        if matches!(fault, Fault::Drain) || *at_us > self.now_us() || !self.rng.chance(STRIKE_PER_10K) {
            return;
        }
        if let Some((_, fault)) = self.faults.pop_front() {
            self.carry_out(fault);
        }
    }

    /// Something is to go wrong later.
    pub(super) fn later(&mut self, at_us: u64, fault: Fault) {
        let place = self.faults.partition_point(|(other_us, _)| *other_us <= at_us);
        self.faults.insert(place, (at_us, fault));
    }

    /// Tries a fault again a little later, but not for ever.
    pub(super) fn put_off(&mut self, fault: Fault) {
        if self.now_us() < self.fault_end_us {
            self.later(self.now_us() + RETRY_US, fault);
        }
    }

    pub(super) fn count(&mut self, kind: &'static str) {
        *self.struck.entry(kind).or_default() += 1;
    }

    /// How often each kind of fault has struck so far: what was drawn, and what the network did by itself.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let mut tally = self.struck.clone();
        let mut add = |kind, count| *tally.entry(kind).or_default() += count;
        for node in &self.nodes {
            let stats = self.net.stats(*node);
            add("data: loss", stats.losses);
            add("data: delay", stats.delays);
            add("data: duplicate", stats.duplicates);
            add("data: reorder", stats.overtaken);
            add("data: reorder in a channel", stats.held_notices);
        }
        let is_off = |clock: &Clock| u64::from(clock.rate_ppm != 1_000_000);
        let clocks = self.seats.iter().map(|seat| &seat.clock).chain([&self.brain.clock]);
        add("clock: offset and drift", clocks.map(is_off).sum());
        add("slots of records checked", self.watch.record_slots);
        tally.retain(|_, count| *count > 0);
        tally
    }
}
