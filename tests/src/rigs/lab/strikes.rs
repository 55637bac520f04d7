//! Faults as they are carried out. It must not draw what happens, nor decide what can be borne.

use super::Lab;
use super::faults::Fault;
use fabric::sim::NodeId;
use proto_common::ids::{Rank, Role};

/// After a death no other server is in trouble for so long.
const QUIET_US: u64 = 100_000;

impl Lab {
    pub(super) fn carry_out(&mut self, fault: Fault) {
        let now_us = self.now_us();
        match fault {
            Fault::Break => {
                if let Some((a, b)) = self.pair() {
                    self.count("data: channels break");
                    self.net.break_between(a, b);
                }
            }
            Fault::Partition { us } => {
                if let Some((a, b)) = self.pair() {
                    self.count("data: partition");
                    self.cut(a, b, us);
                }
            }
            Fault::Flap { of, left_us } => self.flap(of, left_us),
            Fault::Silence { us, both } => {
                if let Some(at) = self.pick(None) {
                    let up_us = now_us + us;
                    let down_us = if both { up_us } else { now_us };
                    self.strikes("control: partition", at);
                    self.wires.silence(at, up_us, down_us);
                }
            }
            Fault::Lag { us } => {
                if let Some(at) = self.pick(None) {
                    self.strikes("control: delay", at);
                    self.seats[at].late_until_us = now_us + us;
                }
            }
            Fault::Pause { us } => {
                if let Some(at) = self.pick(None) {
                    self.strikes("pause: member", at);
                    self.seats[at].paused_until_us = now_us + us;
                }
            }
            Fault::PauseScheduler { us } => self.pause_scheduler("pause: scheduler", us),
            Fault::Slow { us } => {
                if let Some(at) = self.pick(None) {
                    self.strikes("slow node", at);
                    self.seats[at].slow_until_us = now_us + us;
                }
            }
            Fault::CrashServer { back_us } => self.crash_server(back_us),
            Fault::CrashSecond { first, back_us } => self.crash_second(first, back_us),
            Fault::CrashScheduler { down_us } => self.crash_scheduler(down_us),
            Fault::CrashWorker { back_us } => self.crash_worker(back_us),
            Fault::Depose { role, at_once, flaps } => self.depose(role, at_once, flaps),
            Fault::Sleep { role, us } => self.sleep(role, us),
            Fault::Divide { us, after_us } => self.divide(us, after_us),
            Fault::Join => self.start_server(),
            Fault::Drain => {
                let servers = self.living(Some(Role::Server));
                if servers.len() > 2
                    && let Some(at) = self.pick(Some(Role::Server))
                {
                    self.strikes("a server goes", at);
                    self.drain_server(at);
                }
            }
        }
    }

    fn start_server(&mut self) {
        let free = |at: &usize| {
            let seat = &self.seats[*at];
            seat.role == Role::Server && seat.process.is_none() && seat.start_us.is_none()
        };
        if let Some(at) = (0..self.seats.len()).find(free) {
            self.strikes("a server comes", at);
            self.seats[at].start_us = Some(self.now_us());
        }
    }

    fn strikes(&mut self, kind: &'static str, at: usize) {
        self.count(kind);
        self.note(&format!("{kind}: seat {at}"));
    }

    /// Seats of a role with a process on them.
    pub(super) fn living(&self, role: Option<Role>) -> Vec<usize> {
        let wanted = |at: &usize| {
            let seat = &self.seats[*at];
            seat.process.is_some() && role.is_none_or(|role| seat.role == role)
        };
        (0..self.seats.len()).filter(wanted).collect()
    }

    fn one_of(&mut self, seats: &[usize]) -> Option<usize> {
        (!seats.is_empty()).then(|| seats[self.rng.below(seats.len() as u64) as usize])
    }

    fn pick(&mut self, role: Option<Role>) -> Option<usize> {
        let living = self.living(role);
        self.one_of(&living)
    }

    pub(super) fn node_of(&self, at: usize) -> Option<NodeId> {
        self.seats[at].process.as_ref().map(|process| process.node)
    }

    fn pair(&mut self) -> Option<(NodeId, NodeId)> {
        let (one, other) = (self.pick(None)?, self.pick(None)?);
        let (one, other) = (self.node_of(one)?, self.node_of(other)?);
        (one != other).then_some((one, other))
    }

    /// Two processes' data paths are cut for some time.
    pub(super) fn cut(&mut self, one: NodeId, other: NodeId, us: u64) {
        let pair = (one.min(other), one.max(other));
        if self.partitions.insert(pair) {
            self.net.partition(pair.0, pair.1);
            self.heal_count += 1;
            self.heals.insert((self.now_us() + us, self.heal_count), pair);
        }
    }

    /// Cuts one process off from all others for less than breaks channels, mostly; then again, until the time is over.
    fn flap(&mut self, of: Option<(usize, NodeId)>, left_us: u64) {
        let is_first = of.is_none();
        let Some(at) = of.map(|(at, _)| at).or_else(|| self.pick(None)) else { return };
        let Some(node) = self.node_of(at).filter(|node| of.is_none_or(|(_, of)| of == *node)) else { return };
        if is_first {
            self.strikes("data: flapping link", at);
        }
        let us = self.rng.within(1_000, 11_000);
        let others: Vec<NodeId> = (0..self.seats.len())
            .filter_map(|other| self.node_of(other))
            .filter(|other| *other != node)
            .collect();
        others.into_iter().for_each(|other| self.cut(node, other, us));
        let again_us = self.now_us() + us + self.rng.within(200, 6_000);
        if left_us > us {
            self.later(again_us, Fault::Flap { of: Some((at, node)), left_us: left_us - us });
        }
    }

    /// A process ends, and what it had said last may not have left it. The next life begins after some time.
    fn kill(&mut self, kind: &'static str, at: usize, back_us: u64) {
        self.count(kind);
        self.lose_last_words(at);
        self.end_process(at, "killed");
        self.seats[at].start_us = Some(self.now_us() + back_us);
    }

    /// What happens to a server, where there is nobody to decide about it.
    fn while_away(&mut self, kind: &'static str) {
        if self.brain.engine.is_none() {
            self.count(kind);
        }
    }

    /// No other server is in trouble before this one's death is decided about, and everybody has heard of it.
    fn in_trouble(&mut self, until_us: u64) {
        self.trouble_us = Some(self.now_us());
        self.cut_off_us = self.cut_off_us.max(until_us + QUIET_US + 2 * self.shape.control_us);
    }

    /// Kills a server whose chunks others have whole; else tries again a little later. Perhaps another one follows.
    fn crash_server(&mut self, back_us: u64) {
        let may = self.servers_that_can_go();
        let Some(at) = self.one_of(&may) else { return self.put_off(Fault::CrashServer { back_us }) };
        let now_us = self.now_us();
        let rank = self.seats[at].server_ref().map(|server| server.rank);
        self.kill("crash: server", at, back_us);
        self.while_away("crash: server, no scheduler");
        self.in_trouble(now_us);
        if let Some(first) = rank.filter(|_| self.shape.plan.second) {
            let after_us = self.rng.below(2 * self.shape.control_us);
            self.later(now_us + after_us, Fault::CrashSecond { first, back_us });
        }
    }

    fn crash_second(&mut self, first: Rank, back_us: u64) {
        // A backup that wishes to go may be let go meanwhile.
        if !self.is_undecided() || self.struck.contains_key("a server goes") {
            return;
        }
        let (apart, bound) = self.second_servers(first);
        if let Some(at) = self.one_of(&apart) {
            self.kill("crash: two servers, apart", at, back_us);
            self.while_away("crash: two servers, no scheduler");
            self.in_trouble(self.now_us());
        } else if self.shape.plan.fatal
            && !self.gate
            // The next scheduler ends the job as well; but where no server is left it names the server only, not what is lost.
            && self.brain.engine.is_some()
            && let Some(at) = self.one_of(&bound)
        {
            self.kill("crash: chunk and copy", at, back_us);
            (self.may_fail, self.has_lost) = (true, true);
        }
    }

    /// Cuts a member off from the scheduler until it is declared dead, or breaks its connection. It lives on with its data
    /// paths, which may flap at that time, so that much is under way when others give it up.
    fn depose(&mut self, role: Role, at_once: bool, flaps: bool) {
        let may = self.can_go_of(role);
        let Some(at) = self.one_of(&may) else { return self.put_off(Fault::Depose { role, at_once, flaps }) };
        let now_us = self.now_us();
        let silence_us = self.shape.cluster().silence_ms * 1_000;
        let until_us = now_us + if at_once { self.rng.below(3 * silence_us) } else { 3 * silence_us };
        let kind = if role == Role::Server { "deposed: server" } else { "deposed: worker" };
        self.strikes(kind, at);
        self.doubt(at, until_us);
        if at_once {
            self.wires.tear(at, now_us, until_us);
        }
        self.wires.silence(at, until_us, until_us);
        if role == Role::Server {
            self.in_trouble(until_us);
            self.while_away("deposed: server, no scheduler");
        }
        if flaps {
            let (from_us, for_us) = if at_once { (0, 60_000) } else { (silence_us * 9 / 10, silence_us / 4) };
            let of = self.node_of(at).map(|node| (at, node));
            self.later(now_us + from_us, Fault::Flap { of, left_us: for_us });
        }
    }

    fn doubt(&mut self, at: usize, until_us: u64) {
        self.doubt_us = self.doubt_us.max(until_us + 2 * self.shape.cluster().silence_ms * 1_000);
        if let Some(process) = &mut self.seats[at].process {
            process.is_doubtful = true;
        }
    }

    /// A process is stopped until it counts as dead, and goes on then.
    fn sleep(&mut self, role: Role, us: u64) {
        if role == Role::Scheduler {
            return match self.can_lose_scheduler() {
                true => self.pause_scheduler("long pause: scheduler", us),
                false => self.put_off(Fault::Sleep { role, us }),
            };
        }
        let may = self.can_go_of(role);
        let Some(at) = self.one_of(&may) else { return self.put_off(Fault::Sleep { role, us }) };
        let kind = if role == Role::Server { "long pause: server" } else { "long pause: worker" };
        self.strikes(kind, at);
        let until_us = self.now_us() + us;
        self.doubt(at, until_us);
        self.seats[at].paused_until_us = until_us;
        if role == Role::Server {
            self.in_trouble(until_us);
            self.while_away("long pause: server, no scheduler");
        }
    }

    fn crash_worker(&mut self, back_us: u64) {
        let may = self.workers_that_can_go();
        match self.one_of(&may) {
            Some(at) => self.kill("crash: worker", at, back_us),
            None => self.put_off(Fault::CrashWorker { back_us }),
        }
    }

    fn crash_scheduler(&mut self, down_us: u64) {
        if !self.can_lose_scheduler() {
            return self.put_off(Fault::CrashScheduler { down_us });
        }
        self.count("crash: scheduler");
        self.crash_brain(down_us);
    }

    fn pause_scheduler(&mut self, kind: &'static str, us: u64) {
        if self.brain.engine.is_some() {
            self.count(kind);
            self.note(kind);
            self.brain.paused_until_us = self.now_us() + us;
        }
    }
}
