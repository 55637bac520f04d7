//! Time: what happens next, which lanes are stepped and in which order, and what must hold after every step.

use super::cluster::Cluster;
use super::ops::OpId;
use super::shape::needed;
use fabric::sim::Action;
use proto_common::ids::{ChunkId, Rank};

/// Every lane is stepped this often, whether or not something came.
const TICK_US: u64 = 10_000;
/// A lane that was left out is stepped within this time.
const LATE_US: u64 = 300;
/// Virtual time that a run may take.
const RUN_US_MAX: u64 = 120_000_000;
/// After this long without anything to do everybody has given everything back.
const QUIET_US: u64 = 1_000_000;
/// Quiets that breaks may spoil.
const QUIETS_MAX: usize = 20;

impl Cluster {
    /// Moves to the next time at which something happens, and lets everybody do what they can.
    pub fn step(&mut self) {
        let retry = self.workers.iter().filter(|worker| !worker.crashed);
        let retry =
            retry.filter_map(|worker| worker.lane.engine().next_retry_ms()).min().map(|ms| ms * 1_000);
        let fault = self.faults.front().map(|(at_us, _)| *at_us);
        let times = [self.net.next_event_us(), self.next_stage_us(), self.again_us, retry, fault];
        let next_us = times.into_iter().flatten().fold(self.tick_us, u64::min);
        self.net.advance_to(next_us);
        self.again_us = None;
        self.act();
        self.connect_links();
        self.step_lanes();
    }

    fn act(&mut self) {
        while self.faults.front().is_some_and(|(at_us, _)| *at_us <= self.net.now_us()) {
            let Some((_, action)) = self.faults.pop_front() else { break };
            match action {
                Action::Partition(a, b) => {
                    self.partitions.insert((a.min(b), a.max(b)));
                    self.net.partition(a, b);
                }
                Action::Heal(a, b) => {
                    self.partitions.remove(&(a.min(b), a.max(b)));
                    self.net.heal(a, b);
                }
                Action::Break(a, b) => self.net.break_between(a, b),
                Action::Crash(node) => {
                    self.net.crash(node);
                    for worker in self.workers.iter_mut().filter(|worker| worker.node == node) {
                        worker.crashed = true;
                    }
                }
            }
        }
    }

    /// Steps all lanes at a tick, else those with something to do; in a seeded order, and not always all.
    fn step_lanes(&mut self) {
        let now_us = self.net.now_us();
        let (servers, all) = (self.servers.len(), self.servers.len() + self.workers.len());
        let everybody = now_us >= self.tick_us;
        if everybody {
            self.tick_us = now_us + TICK_US;
        }
        self.ready.clear();
        self.net.ready_queues(&mut self.ready);
        let mut order: Vec<usize> = (0..all).collect();
        for at in (1..all).rev() {
            order.swap(at, self.rng.below(at as u64 + 1) as usize);
        }
        for at in order {
            let ready =
                if at < servers { self.server_ready(at) } else { self.worker_ready(at - servers, now_us) };
            if !everybody && ready && self.rng.chance(1_000) {
                self.again_us = Some(now_us + self.rng.within(1, LATE_US));
            } else if everybody || ready {
                if at < servers { self.step_server(at) } else { self.step_worker(at - servers) }
            }
        }
    }

    fn server_ready(&self, at: usize) -> bool {
        self.ready.contains(&self.servers[at].queue)
    }

    fn worker_ready(&self, at: usize, now_us: u64) -> bool {
        let worker = &self.workers[at];
        let retry = worker.lane.engine().next_retry_ms().is_some_and(|ms| ms * 1_000 <= now_us);
        !worker.crashed && (retry || self.ready.contains(&worker.queue))
    }

    fn step_server(&mut self, at: usize) {
        if self.net.is_crashed(self.servers[at].node) {
            return;
        }
        let now_ms = self.net.now_us() / 1_000;
        self.servers[at].lane.step(now_ms).expect("a lane goes on");
        self.check_server(at);
    }

    fn step_worker(&mut self, at: usize) {
        if self.workers[at].crashed {
            return;
        }
        let now_ms = self.net.now_us() / 1_000;
        self.workers[at].lane.step(now_ms);
        self.collect(at);
        self.advance_trainer(at);
        // What was submitted goes out now, as after a mailbox's waking.
        self.workers[at].lane.step(now_ms);
    }

    /// What holds after every step of a server.
    fn check_server(&mut self, at: usize) {
        for chunk in 0..self.servers[at].chunks.len() {
            let (id, before, tensor) = self.servers[at].chunks[chunk];
            let version = self.servers[at].lane.engine().version(id).expect("assigned").0;
            assert!(version >= before, "server {at} {id:?}: version {version} after {before}");
            let most = self.submitted(tensor);
            assert!(version <= most, "server {at} {id:?}: version {version}, contributed was to {most} only");
            self.servers[at].chunks[chunk].1 = version;
        }
        let server = &self.servers[at];
        let (free, total) = server.lane.engine().credits();
        assert!(free <= total && total == self.shape.inbox_slots as usize);
        assert_eq!(server.lane.expelled(), 0, "server {at} expelled a worker that kept the protocol");
    }

    /// Steps until `done`, which must come within the longest time that a run may take.
    pub fn run_until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let end_us = self.net.now_us() + RUN_US_MAX;
        while !done(self) {
            assert!(self.net.now_us() < end_us, "{what} did not come within {} s", RUN_US_MAX / 1_000_000);
            self.step();
        }
    }

    /// Steps for this long.
    pub fn run_for(&mut self, us: u64) {
        let end_us = self.net.now_us() + us;
        while self.net.now_us() < end_us {
            self.step();
        }
    }

    /// Steps until all pairs are connected.
    pub fn run_until_connected(&mut self) {
        self.run_until("a connected cluster", Self::connected);
    }

    /// Steps until these operations have ended.
    pub fn run_until_ended(&mut self, ops: &[OpId]) {
        let ops = ops.to_vec();
        self.run_until("the end of the operations", move |cluster| {
            ops.iter().all(|op| cluster.ended(*op).is_some())
        });
    }

    /// Steps until the trainers are through, then until nobody has anything to do, and checks what must hold
    /// then: all rounds there and no other, each contribution applied once, nothing held, nothing written late.
    pub fn finish(&mut self) {
        self.run_until("the end of training", |cluster| {
            cluster.trained() && cluster.workers.iter().all(|worker| worker.crashed || worker.open.is_empty())
        });
        // A channel that breaks in the quiet begins anew, with first credits that are to be given back again.
        for _ in 0..QUIETS_MAX {
            let before = self.reconnects;
            self.run_for(QUIET_US);
            if self.connected() && self.reconnects == before {
                break;
            }
        }
        self.check_quiet();
    }

    fn check_quiet(&self) {
        self.check_targets();
        let crashed = self.workers.iter().any(|worker| worker.crashed);
        for (rank, server) in
            self.servers.iter().enumerate().filter(|(_, server)| !self.net.is_crashed(server.node))
        {
            let engine = server.lane.engine();
            let (free, total) = engine.credits();
            assert_eq!(free, total, "server {rank}: idle workers hold {} credits", total - free);
            let (stats, versions) = (engine.stats(), server.chunks.iter().map(|chunk| chunk.1).sum::<u64>());
            assert_eq!(stats.rounds, versions, "server {rank}: a round made more than one version");
            if crashed {
                continue;
            }
            assert_eq!(engine.spills().0, 0, "server {rank} still keeps contributions");
            assert!(
                2 * engine.key_buffers() <= self.shape.spill_blocks,
                "server {rank}: the budget of key buffers"
            );
            let made = |(_, version, tensor): &(ChunkId, u64, usize)| {
                version * u64::from(needed(&self.shape.tensors[*tensor], self.shape.workers))
            };
            let contributions: u64 = server.chunks.iter().map(made).sum();
            assert_eq!(stats.contributions, contributions, "server {rank}: each contribution once");
            for (id, version, tensor) in &server.chunks {
                assert_eq!(*version, self.submitted(*tensor), "server {rank} {id:?}: all rounds");
            }
            for worker in &self.workers {
                let peer = Rank(rank as u32);
                assert!(worker.lane.connected(peer), "everybody is connected in the end");
            }
        }
    }
}
