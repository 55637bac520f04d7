//! A worker's process: its member engine, its lanes and its trainer, joined as `worker::runtime` joins them.

use super::Lab;
use super::brain::JOB;
use super::data::WorkerDial;
use super::seat::{Body, Seat};
use super::trainer::Trainer;
use fabric::Pool;
use fabric::sim::{QueueId, SimQueue};
use gradwire_worker::engine::{EngineConfig, Member, MemberCommand, MemberConfig};
use gradwire_worker::runtime::{LaneConfig, LaneDriver};
use proto_common::ids::{Lane, Rank};
use proto_common::message::{Coming, FromScheduler, ToScheduler, Welcome};
use std::collections::BTreeMap;

/// Registered memory of a worker; pages are taken when they are touched.
const POOL_BYTES: u64 = 16 << 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) rank: Rank,
    pub(super) queues: Vec<QueueId>,
    pub(super) lanes: Vec<LaneDriver<SimQueue>>,
    pub(super) pool: Pool,
    pub(super) member: Member,
    pub(super) trainer: Trainer,
    /// Which connection of each server the lane takes channels of.
    pub(super) expected: BTreeMap<Rank, u64>,
    /// Requests to the scheduler that are not answered.
    pub(super) asked: BTreeMap<u64, ToScheduler>,
}

impl Seat {
    pub(super) fn worker(&mut self) -> Option<&mut Worker> {
        match &mut self.process.as_mut()?.body {
            Body::Worker(worker) => Some(worker),
            _ => None,
        }
    }

    pub(super) fn worker_ref(&self) -> Option<&Worker> {
        match &self.process.as_ref()?.body {
            Body::Worker(worker) => Some(worker),
            _ => None,
        }
    }
}

impl Worker {
    /// When some lane has something to do again, by the worker's clock.
    pub(super) fn next_retry_ms(&self) -> Option<u64> {
        self.lanes.iter().filter_map(|lane| lane.engine().next_retry_ms()).min()
    }
}

impl Lab {
    pub(super) fn become_worker(&mut self, at: usize, welcome: &Welcome) {
        let tensors = self.tensors.len();
        // A worker of a job that restores a checkpoint asks for the newest round, as a worker that rejoins does.
        let coming = match welcome.coming {
            Coming::Start if self.restored.is_some() => Coming::Again,
            coming => coming,
        };
        let trainer = Trainer::new(tensors, coming, self.rng.fork());
        let Some(process) = &mut self.seats[at].process else { return };
        let member = MemberConfig {
            rank: welcome.rank,
            incarnation: process.life,
            shape: welcome.shape,
            reach_ms: 60_000,
        };
        let pool = Pool::new(POOL_BYTES, "lab-worker").expect("a pool");
        let (mut queues, mut lanes) = (Vec::new(), Vec::new());
        for lane in 0..self.shape.lanes {
            let queue = self.net.create_cq(process.node);
            queues.push(queue.id());
            let engine = EngineConfig {
                job: JOB,
                incarnation: process.life,
                lane: Lane(lane),
                rank: welcome.rank,
                servers: self.shape.places,
                gather_max: 16,
                in_flight_max: 1_000,
                keeps_calls: self.shape.replicas > 0,
            };
            let lane = LaneConfig { engine, result_slots: self.shape.result_slots };
            lanes.push(LaneDriver::new(queue, lane, pool.region().clone()).expect("a lane"));
        }
        process.body = Body::Worker(Box::new(Worker {
            rank: welcome.rank,
            queues,
            lanes,
            pool,
            member: Member::new(member),
            trainer,
            expected: BTreeMap::new(),
            asked: BTreeMap::new(),
        }));
    }

    pub(super) fn worker_heard(&mut self, at: usize, message: FromScheduler) {
        let Some(worker) = self.seats[at].worker() else { return };
        let mut out = Vec::new();
        match message {
            FromScheduler::Declared { request, result } => {
                worker.asked.remove(&request);
                let update = result.unwrap_or_else(|error| panic!("declaring failed: {error}"));
                worker.member.declared(&update, &mut out).expect("a map that fits");
                worker.trainer.is_declared = true;
            }
            message => worker.member.heard(&message, &mut out),
        }
        self.run_worker(at, out);
    }

    pub(super) fn worker_back(&mut self, at: usize) {
        let Some(worker) = self.seats[at].worker() else { return };
        let open: Vec<_> = worker.asked.values().cloned().collect();
        open.into_iter().for_each(|message| self.say(at, message));
        if self.seats[at].is_done {
            self.say(at, ToScheduler::Goodbye);
        }
    }

    /// Asks the scheduler for something that it will answer.
    pub(super) fn ask(&mut self, at: usize, request: u64, message: ToScheduler) {
        if let Some(worker) = self.seats[at].worker() {
            worker.asked.insert(request, message.clone());
        }
        self.say(at, message);
    }

    pub(super) fn run_worker(&mut self, at: usize, commands: Vec<MemberCommand>) {
        for command in commands {
            self.between();
            let Some(worker) = self.seats[at].worker() else { return };
            match command {
                MemberCommand::Connect { number, server, epoch, after_ms } => {
                    worker.expected.insert(server.id.rank, number);
                    let due_us = self.later_us(at, after_ms);
                    self.dial_server(WorkerDial::new(at, number, &server, epoch, due_us));
                }
                MemberCommand::End { server } => {
                    worker.expected.remove(&server);
                    worker.lanes.iter_mut().for_each(|lane| lane.end_server(server));
                    self.worker_dials.retain(|dial| dial.at != at || dial.to != server);
                }
                MemberCommand::Remap { epoch, lanes } => {
                    worker.lanes.iter_mut().zip(&lanes).for_each(|(lane, moves)| lane.remap(epoch, moves));
                }
                MemberCommand::Epoch(epoch) => {
                    worker.lanes.iter_mut().for_each(|lane| lane.set_epoch(epoch));
                }
                MemberCommand::Leave(error) => {
                    self.worker_leaves(at, &error.to_string());
                    return;
                }
            }
        }
    }

    fn worker_leaves(&mut self, at: usize, why: &str) {
        let may_end = self.may_fail || self.brain.outcome.is_some();
        assert!(may_end || self.seats[at].is_done, "worker at seat {at} leaves: {why}");
        self.end_process(at, why);
    }
}
