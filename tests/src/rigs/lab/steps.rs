//! Time: what happens next, who is stepped and in which order, and how training ends.

use super::Lab;
use super::seat::{Body, Link};
use super::trainer::Trainer;
use fabric::sim::QueueId;
use gradwire_scheduler::engine::Outcome;
use gradwire_server::runtime::{DataLane, LaneNews};
use gradwire_worker::runtime::LaneDriver;
use proto_common::error::Death;
use proto_common::ids::Role;

/// Everybody is stepped this often, whether or not something came.
const TICK_US: u64 = 10_000;
/// A lane that was left out is stepped within this time.
const LATE_US: u64 = 300;
/// The same of a member that is slow.
const SLOW_US: u64 = 4_000;
/// Virtual time that training may take once nothing goes wrong any more.
const CALM_US: u64 = 60_000_000;
/// Steps of a run at most.
const STEPS_MAX: u64 = 2_000_000;

impl Lab {
    /// Waits until every worker has a roster.
    pub(super) fn assemble(&mut self) {
        self.run_until("a roster", |lab| {
            lab.seats.iter().all(|seat| match seat.process.as_ref().map(|process| &process.body) {
                Some(Body::Worker(worker)) => worker.member.resume().is_some(),
                Some(Body::Server(server)) => server.member.has_roster(),
                _ => seat.role != Role::Worker,
            })
        });
    }

    /// Trains through all faults of the plan, until every worker has made all rounds and every slot is free.
    pub(super) fn make_rounds(&mut self) {
        self.assemble();
        self.draw_faults();
        self.run_until("the end of training", |lab| {
            lab.is_trained() && !lab.has_lost || lab.brain.outcome.is_some()
        });
        // Those who wait for nobody hold nothing: every slot is free again.
        self.run_until("the last credit", |lab| lab.is_quiet() || lab.brain.outcome.is_some());
    }

    /// Trains through all faults of the shape's plan, and then lets the job end.
    pub fn train(&mut self) {
        self.make_rounds();
        // Where rounds go on without the dead, somebody has to be there still when a worker is found dead.
        self.run_until("the last death", |lab| {
            let is_decided = lab.doubt_us < lab.now_us() && lab.is_trained();
            !lab.shape.continues || is_decided || lab.brain.outcome.is_some()
        });
        self.may_go = true;
        self.run_until("the end of the job", |lab| {
            lab.brain.outcome.is_some() && lab.seats.iter().all(|seat| seat.process.is_none())
        });
        let outcome = self.brain.outcome.as_ref();
        assert!(
            self.may_fail || matches!(outcome, Some(Outcome::Done { .. })),
            "the job ended so: {outcome:?}"
        );
        if self.has_lost {
            let is_so = |death: &Death| {
                death.member.role == Role::Server
                    && death.to_string().contains("no other server has its part")
            };
            // A scheduler that fails as it ends the job may have told some members only. Those who are left are no majority then, and the
            // restarted one waits for a server.
            let is_told = match outcome {
                Some(Outcome::Died(death)) => is_so(death),
                Some(Outcome::Incomplete { missing, .. }) => {
                    self.brain.life > 1 && missing.iter().any(|one| one.role == Role::Server)
                }
                _ => false,
            };
            assert!(is_told, "both copies are gone, and the job ended so: {outcome:?}");
        }
    }

    fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let mut end_us = self.now_us() + CALM_US;
        while !done(self) {
            self.step();
            if !self.faults.is_empty() || !self.heals.is_empty() {
                end_us = self.now_us() + CALM_US;
            }
            assert!(self.now_us() < end_us, "{what} did not come");
        }
    }

    pub(super) fn describe(&self) -> String {
        let seat = |(at, seat): (usize, &super::seat::Seat)| match &seat.process {
            None => format!("{at}: nobody"),
            Some(process) => match &process.body {
                Body::Nobody => format!("{at}: {:?}", process.link),
                Body::Server(server) => {
                    let mut text = format!("{at}: server {} {}", server.rank, server.member.map().epoch());
                    for engine in server.lanes.iter().map(DataLane::engine) {
                        let (copies, credits) = (engine.copies(), engine.credits());
                        let oldest = engine.oldest(seat.clock.clock_ms(self.now_us()));
                        let lane = format!("; copies {copies:?} credits {credits:?} oldest {oldest:?}");
                        text.push_str(&lane);
                    }
                    text
                }
                Body::Worker(worker) => {
                    format!(
                        "{at}: worker {} {} {:?}",
                        worker.rank,
                        worker.member.epoch(),
                        worker.trainer.summary()
                    )
                }
            },
        };
        self.seats.iter().enumerate().map(seat).collect::<Vec<_>>().join("\n")
    }

    fn next_us(&self) -> u64 {
        let retries = self.seats.iter().filter_map(|seat| {
            let retry_ms = seat.worker_ref()?.next_retry_ms()?;
            Some(seat.clock.true_us(retry_ms).max(seat.paused_until_us))
        });
        let seeking = self.seats.iter().filter_map(|seat| match seat.process.as_ref()?.link {
            Link::Seeking { next_us, .. } => Some(next_us.max(seat.paused_until_us)),
            _ => None,
        });
        let starts = self.seats.iter().filter_map(|seat| seat.start_us);
        let schedulers = [&self.brain, &self.rival].map(|brain| brain.listening(self.now_us()));
        let times = [
            self.net.next_event_us(),
            self.wires.next_us(&schedulers, |at| self.is_paused(at)),
            self.brain.next_us(),
            self.rival.next_us(),
            self.next_dial_us(),
            self.again_us,
            self.faults.front().map(|(at_us, _)| *at_us),
            self.heals.first_key_value().map(|((at_us, _), _)| *at_us),
        ];
        let all = times.into_iter().flatten().chain(retries).chain(seeking).chain(starts);
        all.fold(self.tick_us, u64::min)
    }

    /// Moves to the next time at which something happens, and lets everybody do what they can.
    pub(super) fn step(&mut self) {
        // What is overdue waits for somebody who pauses: time goes on.
        let next_us = self.next_us().max(self.now_us() + u64::from(self.stalled));
        let before_us = self.now_us();
        self.steps += 1;
        assert!(self.steps < STEPS_MAX, "time does not go on");
        self.net.advance_to(next_us);
        self.again_us = None;
        self.gate = self.gate || self.all_workers(Trainer::is_through);
        self.act();
        self.step_brains();
        self.step_links();
        self.step_dials();
        self.step_lanes();
        self.stalled = self.now_us() == before_us;
    }

    /// Steps all lanes at a tick, else those with something to do; in a seeded order, and not always all.
    fn step_lanes(&mut self) {
        let now_us = self.now_us();
        let everybody = now_us >= self.tick_us;
        if everybody {
            self.tick_us = now_us + TICK_US;
        }
        self.ready.clear();
        self.net.ready_queues(&mut self.ready);
        let mut order: Vec<usize> = (0..self.seats.len()).collect();
        for at in (1..order.len()).rev() {
            order.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        for at in order {
            self.between();
            if self.is_paused(at) {
                continue;
            }
            let ready = self.is_ready(at, now_us);
            let is_slow = self.seats[at].slow_until_us > now_us;
            let (late_us, left_out) = if is_slow { (SLOW_US, 8_000) } else { (LATE_US, 1_000) };
            if !everybody && ready && self.rng.chance(left_out) {
                let again_us = now_us + self.rng.within(1, late_us);
                self.again_us = Some(self.again_us.map_or(again_us, |us| us.min(again_us)));
            } else if everybody || ready {
                self.step_lane(at);
            }
        }
    }

    fn is_ready(&self, at: usize, now_us: u64) -> bool {
        let seat = &self.seats[at];
        let has = |queue: &QueueId| self.ready.contains(queue);
        match seat.process.as_ref().map(|process| &process.body) {
            Some(Body::Server(server)) => server.queues.iter().any(has),
            Some(Body::Worker(worker)) => {
                let retry = worker.next_retry_ms();
                worker.queues.iter().any(has) || retry.is_some_and(|ms| seat.clock.true_us(ms) <= now_us)
            }
            _ => false,
        }
    }

    fn step_lane(&mut self, at: usize) {
        let now_ms = self.clock_ms(at);
        let lanes = usize::from(self.shape.lanes);
        let first = self.rng.below(lanes as u64) as usize;
        for lane in (first..first + lanes).map(|lane| lane % lanes) {
            self.between();
            if let Some(server) = self.seats[at].server() {
                server.lanes[lane].step(now_ms).expect("a lane goes on");
                self.take_news(at);
                self.check_server(at);
                self.check_records(at);
            } else if let Some(worker) = self.seats[at].worker() {
                worker.lanes[lane].step(now_ms);
                self.report_broken(at, now_ms);
            }
        }
        self.advance_trainer(at);
        // What was submitted goes out now, as after a mailbox's waking.
        for lane in 0..lanes {
            self.between();
            if let Some(worker) = self.seats[at].worker() {
                worker.lanes[lane].step(now_ms);
            }
        }
    }

    fn take_news(&mut self, at: usize) {
        let mut out = Vec::new();
        let Some(server) = self.seats[at].server() else { return };
        while let Some(news) = server.lanes.iter_mut().find_map(DataLane::next_news) {
            match news {
                LaneNews::Seeded { lane, to, epoch } => server.member.seeded(lane, to, epoch, &mut out),
                LaneNews::StreamDown { to, number, .. } => server.member.stream_down(to, number, &mut out),
            }
        }
        self.run_server(at, out);
    }

    fn report_broken(&mut self, at: usize, now_ms: u64) {
        let mut out = Vec::new();
        let Some(worker) = self.seats[at].worker() else { return };
        while let Some((server, number, reason)) = worker.lanes.iter_mut().find_map(LaneDriver::take_broken) {
            if worker.expected.get(&server) == Some(&number) {
                worker.member.broken(server, number, reason, now_ms, &mut out);
            }
        }
        self.run_worker(at, out);
    }
}
