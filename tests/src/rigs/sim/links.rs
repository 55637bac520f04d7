//! A model of the bootstrap: connects every worker to every server in three stages with time between them,
//! and again when the worker's channel breaks. Through a partition, or to the dead, nothing is connected.

use super::cluster::Cluster;
use fabric::ChannelId;
use gradwire_server::runtime::WorkerInbox;
use gradwire_worker::runtime::ServerInbox;
use proto_common::batch::SlotGrant;
use proto_common::ids::Rank;
use proto_common::message::InboxGrant;

/// Where one pair stands.
#[derive(Debug, Default)]
pub(super) struct Link {
    stage: Stage,
    /// When the next stage is due.
    due_us: u64,
    was_up: bool,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Down,
    /// The worker has its end and has told its inbox.
    Attached(ChannelId, WorkerInbox),
    /// The server has its end and has told its inbox.
    Adopted(ServerInbox),
    Up,
}

fn slots(grant: &InboxGrant) -> Vec<SlotGrant> {
    grant.grants.iter().map(|wire| SlotGrant::from_wire(*wire).expect("our own grants")).collect()
}

impl Cluster {
    /// When the next stage of any pair is due.
    pub(super) fn next_stage_us(&self) -> Option<u64> {
        let waits = |link: &&Link| !matches!(link.stage, Stage::Up);
        self.links.iter().filter(waits).map(|link| link.due_us).filter(|due| *due != u64::MAX).min()
    }

    /// Are all pairs of living processes connected, with their first write answered?
    #[must_use]
    pub fn connected(&self) -> bool {
        let workers = self.shape.workers as usize;
        self.links.iter().enumerate().all(|(at, link)| {
            let (server, worker) = (at / workers, &self.workers[at % workers]);
            let dead = worker.crashed || self.net.is_crashed(self.servers[server].node);
            dead || (matches!(link.stage, Stage::Up) && worker.lane.probed(Rank(server as u32)))
        })
    }

    /// Notices broken channels and does what is due.
    pub(super) fn connect_links(&mut self) {
        for server in 0..self.servers.len() {
            for worker in 0..self.workers.len() {
                self.connect_link(server, worker);
            }
        }
    }

    fn connect_link(&mut self, server: usize, worker: usize) {
        let now_us = self.net.now_us();
        let channel_there = self.workers[worker].lane.connected(Rank(server as u32));
        let again_us = now_us + self.rng.within(0, 2 * self.shape.bootstrap_us);
        let link = self.link(server, worker);
        if !channel_there && !matches!(link.stage, Stage::Down) {
            (link.stage, link.due_us) = (Stage::Down, again_us);
        }
        if matches!(link.stage, Stage::Up) || now_us < link.due_us {
            return;
        }
        let stage = std::mem::take(&mut link.stage);
        let next = match stage {
            Stage::Down => self.attach(server, worker),
            Stage::Attached(channel, inbox) => self.adopt(server, worker, channel, inbox),
            Stage::Adopted(inbox) => self.activate(server, worker, inbox),
            Stage::Up => Some(Stage::Up),
        };
        let link = self.link(server, worker);
        (link.stage, link.due_us) = (next.unwrap_or_default(), again_us);
    }

    fn reachable(&self, server: usize, worker: usize) -> bool {
        let (a, b) = (self.servers[server].node, self.workers[worker].node);
        let dead = self.net.is_crashed(a) || self.net.is_crashed(b);
        !dead && !self.partitions.contains(&(a.min(b), a.max(b)))
    }

    fn attach(&mut self, server: usize, worker: usize) -> Option<Stage> {
        if !self.reachable(server, worker) {
            return None;
        }
        let (s, w) = (&mut self.servers[server], &mut self.workers[worker]);
        let (theirs, ours) = self.net.connect(s.lane.queue_mut(), w.lane.queue_mut());
        let grant = w.lane.attach(Rank(server as u32), 0, ours).ok()?;
        let grants = slots(&grant);
        let InboxGrant { region, offset, slot_bytes, .. } = grant;
        Some(Stage::Attached(theirs, WorkerInbox { region, offset, slot_bytes, grants }))
    }

    fn adopt(
        &mut self,
        server: usize,
        worker: usize,
        channel: ChannelId,
        inbox: WorkerInbox,
    ) -> Option<Stage> {
        if !self.reachable(server, worker) {
            self.workers[worker].lane.detach(Rank(server as u32));
            return None;
        }
        let (rank, life) = (Rank(worker as u32), self.workers[worker].life);
        let Ok(grant) = self.servers[server].lane.adopt(rank, life, channel, inbox) else {
            self.workers[worker].lane.detach(Rank(server as u32));
            return None;
        };
        let grants = slots(&grant);
        let InboxGrant { region, offset, slot_bytes, .. } = grant;
        Some(Stage::Adopted(ServerInbox { region, offset, slot_bytes, grants }))
    }

    fn activate(&mut self, server: usize, worker: usize, inbox: ServerInbox) -> Option<Stage> {
        if !self.reachable(server, worker) {
            self.workers[worker].lane.detach(Rank(server as u32));
            return None;
        }
        let life = self.servers[server].life;
        self.workers[worker].lane.activate(Rank(server as u32), life, inbox).ok()?;
        let again = std::mem::replace(&mut self.link(server, worker).was_up, true);
        self.reconnects += u64::from(again);
        Some(Stage::Up)
    }
}
