//! A server's process: its member engine and its lanes, joined as `server::runtime` joins them.

use super::Lab;
use super::brain::JOB;
use super::data::StreamDial;
use super::seat::{Body, Seat};
use super::shape::CHUNK_BYTES;
use fabric::sim::{QueueId, SimQueue};
use gradwire_server::engine::EngineConfig;
use gradwire_server::engine::member::{Departure, Member, MemberCommand, MemberConfig};
use gradwire_server::runtime::{DataLane, LaneConfig, LaneError};
use gradwire_server::space::Space;
use proto_common::ids::{ChunkId, Incarnation, Lane, Rank};
use proto_common::limits::CARRIED_BYTES_MAX;
use proto_common::message::{FromScheduler, NotTaken, ToScheduler, Welcome};
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) rank: Rank,
    pub(super) queues: Vec<QueueId>,
    pub(super) lanes: Vec<DataLane<SimQueue>>,
    pub(super) member: Member,
    /// Versions at the last look: they never go back in one life, but for a copy that is made anew.
    pub(super) versions: BTreeMap<ChunkId, u64>,
}

impl Seat {
    pub(super) fn server(&mut self) -> Option<&mut Server> {
        match &mut self.process.as_mut()?.body {
            Body::Server(server) => Some(server),
            _ => None,
        }
    }

    pub(super) fn server_ref(&self) -> Option<&Server> {
        match &self.process.as_ref()?.body {
            Body::Server(server) => Some(server),
            _ => None,
        }
    }
}

impl Server {
    fn each_lane(&mut self, tell: impl FnMut(&mut DataLane<SimQueue>)) {
        self.lanes.iter_mut().for_each(tell);
    }
}

/// Tells each lane its part; what the first has against it that has something.
fn told<T>(
    lanes: &mut [DataLane<SimQueue>],
    parts: &[Vec<T>],
    mut tell: impl FnMut(&mut DataLane<SimQueue>, &[T]) -> Result<(), LaneError>,
) -> Result<(), String> {
    let answers: Vec<_> = lanes.iter_mut().zip(parts).map(|(lane, part)| tell(lane, part)).collect();
    answers.into_iter().collect::<Result<(), _>>().map_err(|error| error.to_string())
}

impl Lab {
    pub(super) fn become_server(&mut self, at: usize, welcome: &Welcome) {
        let lanes = (0..self.shape.lanes).map(|lane| self.server_lane(at, lane, welcome)).collect::<Vec<_>>();
        let Some(process) = &mut self.seats[at].process else { return };
        let member = MemberConfig { rank: welcome.rank, incarnation: process.life, shape: welcome.shape };
        process.body = Body::Server(Box::new(Server {
            rank: welcome.rank,
            queues: lanes.iter().map(|lane| lane.0).collect(),
            lanes: lanes.into_iter().map(|lane| lane.1).collect(),
            member: Member::new(member),
            versions: BTreeMap::new(),
        }));
    }

    fn server_lane(&self, at: usize, lane: u16, welcome: &Welcome) -> (QueueId, DataLane<SimQueue>) {
        let process = self.seats[at].process.as_ref().expect("somebody to be welcomed");
        let queue = self.net.create_cq(process.node);
        let queue_id = queue.id();
        let engine = EngineConfig {
            job: JOB,
            incarnation: process.life,
            lane: Lane(lane),
            workers: self.shape.workers,
            deterministic: true,
            inbox_slots: self.shape.inbox_slots,
            spill_blocks: self.shape.spill_blocks,
            // Every second seed has small weights that are written.
            carried_bytes_max: if self.seed.is_multiple_of(2) { CARRIED_BYTES_MAX } else { 0 },
            worker_loss: welcome.shape.worker_loss,
        };
        let lane =
            LaneConfig { engine, rank: welcome.rank, chunk_bytes: CHUNK_BYTES, space: Space::default() };
        let mut lane = DataLane::new(queue, lane).expect("a lane");
        #[cfg(feature = "sabotage")]
        if let Some(rule) = self.shape.broken {
            lane.sabotage(rule);
        }
        if let Some(restored) = &self.restored {
            let (place, name) = restored.checkpoint();
            lane.restore_from(place, name, self.shape.lanes).expect("the checkpoint of the job before");
        }
        (queue_id, lane)
    }

    pub(super) fn server_heard(&mut self, at: usize, message: FromScheduler) {
        let Some(server) = self.seats[at].server() else { return };
        let mut out = Vec::new();
        server.member.heard(message, &mut out);
        self.run_server(at, out);
    }

    pub(super) fn server_back(&mut self, at: usize) {
        let Some(server) = self.seats[at].server() else { return };
        let mut out = Vec::new();
        server.member.back(&mut out);
        self.run_server(at, out);
    }

    /// Asks a server to go in good order.
    pub(super) fn drain_server(&mut self, at: usize) {
        let Some(server) = self.seats[at].server() else { return };
        let mut out = Vec::new();
        server.member.drain(&mut out);
        self.run_server(at, out);
    }

    pub(super) fn run_server(&mut self, at: usize, commands: Vec<MemberCommand>) {
        for command in commands {
            self.between();
            let Some(server) = self.seats[at].server() else { return };
            match command {
                MemberCommand::Assign { number, epoch, lanes } => {
                    let result = told(&mut server.lanes, &lanes, |lane, specs| lane.assign(epoch, specs));
                    self.lanes_answered(at, number, result.map_err(NotTaken::from));
                }
                MemberCommand::Roles { number, epoch, lanes } => {
                    let result = told(&mut server.lanes, &lanes, |lane, chunks| lane.roles(epoch, chunks));
                    self.lanes_answered(at, number, result.map_err(NotTaken::from));
                }
                MemberCommand::ChangeRule { number, .. } => self.lanes_answered(at, number, Ok(())),
                MemberCommand::EndServer { rank } => {
                    server.each_lane(|lane| lane.end_server(rank));
                    self.hang_up(at, rank);
                }
                MemberCommand::Workers { epoch, present, left } => {
                    server.each_lane(|lane| lane.workers(epoch, &present, &left));
                }
                MemberCommand::AskRounds { rank, incarnation } => {
                    let rounds: Vec<_> =
                        server.lanes.iter_mut().map(|lane| lane.ask_rounds(rank, incarnation)).collect();
                    let mut out = Vec::new();
                    server.member.rounds_answered(rank, incarnation, rounds, &mut out);
                    self.run_server(at, out);
                }
                MemberCommand::CountFrom { rank, incarnation, rounds } => {
                    server.each_lane(|lane| lane.count_from(rank, incarnation, &rounds));
                }
                MemberCommand::Dial { number, to, incarnation, address, epoch, after_ms } => {
                    let due_us = self.later_us(at, after_ms);
                    let target: usize = address.parse().expect("a seat");
                    let dial = StreamDial { at, number, to, target, incarnation, epoch, due_us };
                    self.dial_stream(dial);
                }
                MemberCommand::HangUp { to } => {
                    server.each_lane(|lane| lane.hang_up(to));
                    self.hang_up(at, to);
                }
                MemberCommand::Say(message) => self.say(at, message),
                MemberCommand::Leave(departure) => {
                    self.server_leaves(at, &departure);
                    return;
                }
            }
        }
    }

    fn lanes_answered(&mut self, at: usize, number: u64, result: Result<(), NotTaken>) {
        let Some(server) = self.seats[at].server() else { return };
        let mut out = Vec::new();
        server.member.lanes_answered(number, result, &mut out);
        self.run_server(at, out);
    }

    fn server_leaves(&mut self, at: usize, departure: &Departure) {
        if !matches!(departure, Departure::Over { .. } | Departure::Drained) {
            return self.give_up(at, &format!("{departure:?}"));
        }
        self.say(at, ToScheduler::Goodbye);
        self.seats[at].is_done = true;
        self.end_process(at, &format!("{departure:?}"));
    }

    /// Who may connect, by a server's roster.
    pub(super) fn expects(&self, at: usize, worker: Rank, life: Incarnation) -> bool {
        let peers = self.seats[at].server_ref().and_then(|server| server.member.peers());
        peers.is_some_and(|peers| peers.workers.get(&worker) == Some(&life))
    }
}
