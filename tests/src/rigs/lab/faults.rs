//! What goes wrong: drawn from the seed before, carried out when its time has come and the cluster can bear it.

use super::Lab;
use super::seat::Seat;
use fabric::sim::{NodeId, Rng};
use proto_common::ids::Role;

/// After a death no other server is in trouble for so long.
const QUIET_US: u64 = 100_000;

/// A fault that the cluster cannot bear is put off for so long.
const PUT_OFF_US: u64 = 10_000_000;

/// One thing that goes wrong, or happens. Members are drawn when it happens, of those that are there then.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Break,
    Partition { us: u64 },
    Silence { us: u64, both: bool },
    Pause { us: u64 },
    Slow { us: u64 },
    CrashServer { back_us: u64 },
    Depose,
    CrashScheduler { down_us: u64 },
    Join,
    Drain,
    CrashWorker { back_us: u64 },
}

impl Lab {
    /// Draws all faults of the plan, from now on.
    pub(super) fn draw_faults(&mut self) {
        let plan = self.shape.plan;
        let now_us = self.now_us();
        let silence_us = self.shape.cluster().silence_ms * 1_000;
        let mut rng = self.rng.fork();
        // All of them together are shorter than what makes dead.
        let short = |rng: &mut Rng| rng.within(1_000, silence_us / 6);
        let mut all: Vec<(u64, Fault)> = Vec::new();
        let mut add = |count: u32, rng: &mut Rng, fault: &mut dyn FnMut(&mut Rng) -> Fault| {
            for _ in 0..count {
                let at_us = now_us + rng.below(plan.horizon_us.max(1));
                let fault = fault(rng);
                all.push((at_us, fault));
            }
        };
        add(plan.breaks, &mut rng, &mut |_| Fault::Break);
        add(plan.partitions, &mut rng, &mut |rng| Fault::Partition { us: rng.within(1_000, 2_000_000) });
        add(plan.silences, &mut rng, &mut |rng| Fault::Silence { us: short(rng), both: rng.below(2) == 0 });
        add(plan.pauses, &mut rng, &mut |rng| Fault::Pause { us: short(rng) });
        add(plan.slow, &mut rng, &mut |rng| Fault::Slow { us: rng.within(10_000, 500_000) });
        add(plan.server_crashes, &mut rng, &mut |rng| Fault::CrashServer {
            back_us: rng.within(10_000, 2_000_000),
        });
        add(plan.deposed, &mut rng, &mut |_| Fault::Depose);
        add(plan.scheduler_crashes, &mut rng, &mut |rng| Fault::CrashScheduler {
            down_us: rng.within(1_000, 3_000_000),
        });
        add(plan.joins, &mut rng, &mut |_| Fault::Join);
        add(plan.drains, &mut rng, &mut |_| Fault::Drain);
        add(plan.worker_crashes, &mut rng, &mut |rng| Fault::CrashWorker {
            back_us: rng.within(10_000, 2_000_000),
        });
        all.sort_by_key(|(at_us, _)| *at_us);
        self.faults = all.into();
        self.fault_end_us = now_us + plan.horizon_us + PUT_OFF_US;
    }

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
        while self.faults.front().is_some_and(|(at_us, _)| *at_us <= now_us) {
            let Some((_, fault)) = self.faults.pop_front() else { return };
            self.carry_out(fault);
        }
    }

    /// Seats of a role with a process on them.
    fn living(&self, role: Option<Role>) -> Vec<usize> {
        let wanted = |at: &usize| {
            let seat = &self.seats[*at];
            seat.process.is_some() && role.is_none_or(|role| seat.role == role)
        };
        (0..self.seats.len()).filter(wanted).collect()
    }

    fn pick(&mut self, role: Option<Role>) -> Option<usize> {
        let living = self.living(role);
        (!living.is_empty()).then(|| living[self.rng.below(living.len() as u64) as usize])
    }

    fn pair(&mut self) -> Option<(NodeId, NodeId)> {
        let (one, other) = (self.pick(None)?, self.pick(None)?);
        let node = |at: usize| self.seats[at].process.as_ref().map(|process| process.node);
        let (one, other) = (node(one)?, node(other)?);
        (one != other).then(|| (one.min(other), one.max(other)))
    }

    fn carry_out(&mut self, fault: Fault) {
        let now_us = self.now_us();
        match fault {
            Fault::Break => {
                if let Some((a, b)) = self.pair() {
                    self.net.break_between(a, b);
                }
            }
            Fault::Partition { us } => {
                if let Some((a, b)) = self.pair()
                    && self.partitions.insert((a, b))
                {
                    self.net.partition(a, b);
                    self.heal_at(now_us + us, (a, b));
                }
            }
            Fault::Silence { us, both } => {
                if let Some(at) = self.pick(None) {
                    let up_us = now_us + us;
                    let down_us = if both { up_us } else { now_us };
                    self.note(&format!("seat {at} is not heard"));
                    self.wires.silence(at, up_us, down_us);
                }
            }
            Fault::Pause { us } => {
                if let Some(at) = self.pick(None) {
                    self.note(&format!("seat {at} pauses"));
                    self.seats[at].paused_until_us = now_us + us;
                }
            }
            Fault::Slow { us } => {
                if let Some(at) = self.pick(None) {
                    self.note(&format!("seat {at} is slow"));
                    self.seats[at].slow_until_us = now_us + us;
                }
            }
            Fault::CrashScheduler { down_us } => self.crash_scheduler(down_us),
            Fault::CrashServer { back_us } => self.crash_server(back_us),
            Fault::CrashWorker { back_us } => self.crash_worker(back_us),
            Fault::Depose => self.depose(),
            Fault::Join => {
                let free = |at: &usize| {
                    self.seats[*at].role == Role::Server
                        && self.seats[*at].process.is_none()
                        && self.seats[*at].start_us.is_none()
                };
                if let Some(at) = (0..self.seats.len()).find(free) {
                    self.seats[at].start_us = Some(now_us);
                }
            }
            Fault::Drain => {
                let servers = self.living(Some(Role::Server));
                if servers.len() > 2
                    && let Some(at) = self.pick(Some(Role::Server))
                {
                    self.drain_server(at);
                }
            }
        }
    }

    fn heal_at(&mut self, at_us: u64, nodes: (NodeId, NodeId)) {
        self.heal_count += 1;
        self.heals.insert((at_us, self.heal_count), nodes);
    }

    /// Kills a server whose chunks others have whole; else tries again a little later.
    fn crash_server(&mut self, back_us: u64) {
        let now_us = self.now_us();
        let may =
            self.living(Some(Role::Server)).into_iter().filter(|at| self.can_go(*at)).collect::<Vec<_>>();
        if may.is_empty() {
            return self.put_off(Fault::CrashServer { back_us });
        }
        let at = may[self.rng.below(may.len() as u64) as usize];
        self.end_process(at, "killed");
        self.trouble_us = Some(now_us);
        // Members hear of it later than the scheduler decides it: until then their maps show copies that are gone.
        self.cut_off_us = self.cut_off_us.max(now_us + QUIET_US + 2 * self.shape.control_us);
        self.seats[at].start_us = Some(now_us + back_us);
    }

    /// Cuts a server off from the scheduler until it is declared dead; it lives on with its data paths.
    fn depose(&mut self) {
        let now_us = self.now_us();
        let silence_us = self.shape.cluster().silence_ms * 1_000;
        let may =
            self.living(Some(Role::Server)).into_iter().filter(|at| self.can_go(*at)).collect::<Vec<_>>();
        if may.is_empty() {
            return self.put_off(Fault::Depose);
        }
        let at = may[self.rng.below(may.len() as u64) as usize];
        self.note(&format!("seat {at} is cut off from the scheduler"));
        let until_us = now_us + 3 * silence_us;
        self.trouble_us = Some(now_us);
        self.wires.silence(at, until_us, until_us);
        self.cut_off_us = self.cut_off_us.max(until_us + QUIET_US);
    }

    /// Tries a fault again a little later, but not for ever.
    fn put_off(&mut self, fault: Fault) {
        if self.now_us() < self.fault_end_us {
            self.faults.push_back((self.now_us() + 5_000, fault));
            self.faults.make_contiguous().sort_by_key(|(at_us, _)| *at_us);
        }
    }

    /// Kills a worker, but for the last one while a scheduler that takes over has only it to learn from.
    fn crash_worker(&mut self, back_us: u64) {
        let knows = |seat: &Seat| seat.worker_ref().is_some_and(|worker| worker.member.resume().is_some());
        let others = self.seats.iter().filter(|seat| knows(seat)).count();
        let is_led = self.brain.engine.is_some() && self.brain.decided_life == self.brain.life;
        let living = self.living(Some(Role::Worker));
        let may: Vec<usize> = living.into_iter().filter(|at| !self.seats[*at].is_done).collect();
        if may.is_empty() || !(others > 1 || is_led) {
            return self.put_off(Fault::CrashWorker { back_us });
        }
        let at = may[self.rng.below(may.len() as u64) as usize];
        self.end_process(at, "killed");
        self.seats[at].start_us = Some(self.now_us() + back_us);
    }

    /// Kills the scheduler, where there is a worker that the next one can learn from.
    fn crash_scheduler(&mut self, down_us: u64) {
        if self
            .seats
            .iter()
            .any(|seat| seat.worker_ref().is_some_and(|worker| worker.member.resume().is_some()))
        {
            self.crash_brain(down_us);
        } else {
            self.put_off(Fault::CrashScheduler { down_us });
        }
    }

    /// Has somebody else all that a server has, by every map that is known, and is nobody else in trouble?
    fn can_go(&self, at: usize) -> bool {
        let Some(server) = self.seats[at].server_ref() else { return false };
        let told_us = self.brain.decided_us + 2 * self.shape.control_us;
        // One death is decided about before the next.
        let is_settled = self.trouble_us.is_none_or(|trouble_us| self.brain.decided_us > trouble_us);
        if self.brain.engine.is_none() || !is_settled || self.cut_off_us.max(told_us) > self.now_us() {
            return false;
        }
        let newest =
            self.seats.iter().filter_map(super::seat::Seat::server_ref).map(|s| s.member.map().epoch()).max();
        let map = server.member.map();
        let is_whole = |range: &proto_common::shard_map::KeyRange| {
            range.backup.is_some_and(|backup| {
                let there =
                    |s: &super::server::Server| s.rank == backup && s.member.map().epoch() == map.epoch();
                self.seats.iter().filter_map(super::seat::Seat::server_ref).any(there)
            })
        };
        Some(map.epoch()) == newest && !map.is_empty() && map.ranges().all(is_whole)
    }
}
