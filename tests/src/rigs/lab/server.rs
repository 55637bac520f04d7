//! A server's process: its member engine and its lane, joined as `server::runtime` joins them.

use super::Lab;
use super::brain::JOB;
use super::data::StreamDial;
use super::seat::{Body, Seat};
use super::shape::CHUNK_BYTES;
use fabric::sim::{QueueId, SimQueue};
use gradwire_server::engine::EngineConfig;
use gradwire_server::engine::member::{Departure, Member, MemberCommand, MemberConfig};
use gradwire_server::runtime::{DataLane, LaneConfig};
use proto_common::ids::{ChunkId, Incarnation, Lane, Rank};
use proto_common::limits::RESULT_SLOT_BYTES;
use proto_common::message::{FromScheduler, ToScheduler, Welcome};
use std::collections::BTreeMap;

/// See the module.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) rank: Rank,
    pub(super) queue: QueueId,
    pub(super) lane: DataLane<SimQueue>,
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

impl Lab {
    pub(super) fn become_server(&mut self, at: usize, welcome: &Welcome) {
        let Some(process) = &mut self.seats[at].process else { return };
        let queue = self.net.create_cq(process.node);
        let queue_id = queue.id();
        let engine = EngineConfig {
            job: JOB,
            incarnation: process.life,
            lane: Lane(0),
            workers: self.shape.workers,
            deterministic: true,
            inbox_slots: self.shape.inbox_slots,
            result_slot_bytes: RESULT_SLOT_BYTES,
            spill_blocks: self.shape.spill_blocks,
            keep_previous: welcome.shape.worker_loss == proto_common::config::WorkerLoss::Wait,
            worker_loss: welcome.shape.worker_loss,
        };
        let lane = LaneConfig { engine, rank: welcome.rank, chunk_bytes: CHUNK_BYTES };
        let member = MemberConfig { rank: welcome.rank, incarnation: process.life, shape: welcome.shape };
        #[cfg_attr(not(feature = "sabotage"), allow(unused_mut, reason = "no rule can be broken"))]
        let mut lane = DataLane::new(queue, lane).expect("a lane");
        #[cfg(feature = "sabotage")]
        if let Some(rule) = self.shape.broken {
            lane.sabotage(rule);
        }
        process.body = Body::Server(Box::new(Server {
            rank: welcome.rank,
            queue: queue_id,
            lane,
            member: Member::new(member),
            versions: BTreeMap::new(),
        }));
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
            let Some(server) = self.seats[at].server() else { return };
            let answered = match command {
                MemberCommand::Assign { number, epoch, lanes } => {
                    let specs = lanes.into_iter().next().unwrap_or_default();
                    Some((number, server.lane.assign(epoch, &specs).map_err(|error| error.to_string())))
                }
                MemberCommand::Roles { number, epoch, lanes } => {
                    let chunks = lanes.into_iter().next().unwrap_or_default();
                    let result = server.lane.roles(epoch, &chunks).map_err(|error| error.to_string());
                    Some((number, result))
                }
                MemberCommand::ChangeRule { number, .. } => Some((number, Ok(()))),
                MemberCommand::EndServer { rank } => {
                    server.lane.end_server(rank).expect("a lane goes on");
                    self.hang_up(at, rank);
                    None
                }
                MemberCommand::Workers { epoch, present, left } => {
                    server.lane.workers(epoch, &present, &left).expect("a lane goes on");
                    None
                }
                MemberCommand::AskRounds { rank, incarnation } => {
                    let rounds = server.lane.ask_rounds(rank, incarnation);
                    let mut out = Vec::new();
                    server.member.rounds_answered(rank, incarnation, vec![rounds], &mut out);
                    self.run_server(at, out);
                    None
                }
                MemberCommand::CountFrom { rank, incarnation, rounds } => {
                    server.lane.count_from(rank, incarnation, &rounds).expect("a lane goes on");
                    None
                }
                MemberCommand::Dial { number, to, incarnation, address, epoch, after_ms } => {
                    let due_us = self.later_us(at, after_ms);
                    let target: usize = address.parse().expect("a seat");
                    let dial = StreamDial { at, number, to, target, incarnation, epoch, due_us };
                    self.dial_stream(dial);
                    None
                }
                MemberCommand::HangUp { to } => {
                    self.hang_up(at, to);
                    None
                }
                MemberCommand::Say(message) => {
                    self.say(at, message);
                    None
                }
                MemberCommand::Leave(departure) => {
                    self.server_leaves(at, &departure);
                    return;
                }
            };
            if let Some((number, result)) = answered {
                let Some(server) = self.seats[at].server() else { return };
                let mut out = Vec::new();
                server.member.lanes_answered(number, result, &mut out);
                self.run_server(at, out);
            }
        }
    }

    fn server_leaves(&mut self, at: usize, departure: &Departure) {
        if matches!(departure, Departure::Over { .. } | Departure::Drained) {
            self.say(at, ToScheduler::Goodbye);
            self.seats[at].is_done = true;
        }
        self.end_process(at, &format!("{departure:?}"));
    }

    /// Who may connect, by a server's roster.
    pub(super) fn expects(&self, at: usize, worker: Rank, life: Incarnation) -> bool {
        let peers = self.seats[at].server_ref().and_then(|server| server.member.peers());
        peers.is_some_and(|peers| peers.workers.get(&worker) == Some(&life))
    }
}
