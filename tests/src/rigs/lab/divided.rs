//! A network that is divided: members on one side reach neither the data paths nor the scheduler of the other side, where a second
//! scheduler is started. Both sides train on as far as they may, and what holds at every step of a laboratory holds for both: no
//! acknowledged contribution is missing where the newest map says that it is.

use super::Lab;
use super::brain::Brain;
use super::seat::Clock;
use proto_common::ids::Role;
use std::collections::BTreeSet;

/// Lives of second schedulers are numbered from here.
const RIVALS: u64 = 1_000;
/// Virtual time of a run.
const RUN_US: u64 = 30_000_000;

/// See the module.
#[derive(Debug)]
pub(super) struct Division {
    /// Seats on the other side of the first scheduler.
    others: BTreeSet<usize>,
    until_us: u64,
}

impl Brain {
    /// A second scheduler, which nobody has started.
    pub(super) fn rival(clock: Clock) -> Self {
        Self { life: RIVALS, ..Self::new(clock) }
    }

    pub(super) fn is_rival(&self) -> bool {
        self.life >= RIVALS
    }

    fn is_idle(&self) -> bool {
        self.engine.is_none() && self.start_us.is_none()
    }
}

impl Lab {
    /// Both schedulers take what has come to them.
    pub(super) fn step_brains(&mut self) {
        self.step_brain();
        if self.rival.is_idle() {
            return;
        }
        std::mem::swap(&mut self.brain, &mut self.rival);
        self.step_brain();
        std::mem::swap(&mut self.brain, &mut self.rival);
        let kind = "a second scheduler decides";
        if self.rival.is_running(self.now_us()) && !self.struck.contains_key(kind) {
            self.count(kind);
        }
    }

    /// The job has ended, for all schedulers that there are.
    pub(super) fn is_over(&self) -> bool {
        self.brain.outcome.is_some() && self.rival.is_idle()
    }

    fn is_divided(&self) -> bool {
        self.division.as_ref().is_some_and(|division| division.until_us > self.now_us())
    }

    /// Seats on the other side of one.
    fn beyond(&self, at: usize) -> Vec<usize> {
        let Some(division) = self.division.as_ref().filter(|_| self.is_divided()) else { return Vec::new() };
        let is_other = |seat: usize| division.others.contains(&seat);
        (0..self.seats.len()).filter(|seat| is_other(*seat) != is_other(at)).collect()
    }

    /// Members are divided at random, and a second scheduler starts after some time.
    pub(super) fn divide(&mut self, us: u64, after_us: u64) {
        if self.division.is_some() {
            return;
        }
        let (now_us, seats, rng) = (self.now_us(), self.seats.len(), &mut self.rng);
        let others: BTreeSet<usize> = (0..seats).filter(|_| rng.below(2) == 0).collect();
        let living = self.living(None);
        let count = living.iter().filter(|at| others.contains(*at)).count();
        if count == 0 || count == living.len() {
            return;
        }
        self.count("divided");
        self.note(&format!("divided: seats {others:?} from the others"));
        self.division = Some(Division { others: others.clone(), until_us: now_us + us });
        others.iter().for_each(|at| self.wires.cut_off(*at, now_us + us));
        others.into_iter().for_each(|at| self.cut_from_others(at));
        self.rival.start_us = Some(now_us + after_us);
    }

    /// A process on one side reaches nobody on the other.
    pub(super) fn cut_from_others(&mut self, at: usize) {
        let left_us = self.division.as_ref().map_or(0, |one| one.until_us.saturating_sub(self.now_us()));
        let Some(node) = self.node_of(at) else { return };
        for beyond in self.beyond(at) {
            if let Some(other) = self.node_of(beyond) {
                self.cut(node, other, left_us);
            }
        }
    }

    /// Which scheduler a member finds: that of its side; afterwards any.
    pub(super) fn finds_rival(&mut self, at: usize) -> bool {
        let is_other = self.division.as_ref().is_some_and(|division| division.others.contains(&at));
        match (self.is_divided(), self.brain.engine.is_some(), self.rival.engine.is_some()) {
            (true, ..) => is_other,
            (false, true, true) => self.rng.below(2) == 0,
            (false, _, is_there) => is_there,
        }
    }

    /// Trains while the network is divided, and afterwards. A side may end with an error; none may lose what was acknowledged.
    pub fn train_divided(&mut self) {
        self.may_fail = true;
        self.assemble();
        self.draw_faults();
        let end_us = self.now_us() + RUN_US;
        let is_healed = |lab: &Self| lab.faults.is_empty() && lab.heals.is_empty();
        while self.now_us() < end_us && !self.is_over() && !(self.is_trained() && is_healed(self)) {
            self.step();
        }
        if self.is_trained() && self.seats.iter().any(|seat| seat.role == Role::Worker) {
            self.count("all workers have trained all rounds");
        }
    }
}
