//! The bootstrap of data paths as a model: workers connect servers, servers connect servers that have copies of theirs; in
//! stages with time between them. Through a partition, or to the dead, nothing is connected.

use super::Lab;
use fabric::ChannelId;
use gradwire_server::runtime::WorkerInbox;
use gradwire_worker::runtime::ServerInbox;
use proto_common::batch::SlotGrant;
use proto_common::ids::{Epoch, Incarnation, Rank};
use proto_common::message::{InboxGrant, Member as Entry};

/// A connection is given up after this long.
const DIAL_US: u64 = 2_000_000;

/// A worker connects a server.
#[derive(Debug)]
pub(super) struct WorkerDial {
    pub(super) at: usize,
    pub(super) number: u64,
    pub(super) to: Rank,
    target: usize,
    incarnation: Incarnation,
    epoch: Epoch,
    due_us: u64,
    until_us: u64,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Hello,
    /// The worker has its end of each lane's channel and has told its inbox.
    Attached(Vec<(ChannelId, WorkerInbox)>),
    /// The server has its end of each and has told its inbox.
    Adopted(Vec<ServerInbox>),
    /// The first write is under way.
    Probing,
}

/// A server connects a server.
#[derive(Debug)]
pub(super) struct StreamDial {
    pub(super) at: usize,
    pub(super) number: u64,
    pub(super) to: Rank,
    pub(super) target: usize,
    pub(super) incarnation: Incarnation,
    pub(super) epoch: Epoch,
    pub(super) due_us: u64,
}

impl WorkerDial {
    pub(super) fn new(at: usize, number: u64, server: &Entry, epoch: Epoch, due_us: u64) -> Self {
        let target = server.data_address.as_deref().and_then(|text| text.parse().ok()).expect("a seat");
        let (to, incarnation) = (server.id.rank, server.incarnation);
        let until_us = due_us + DIAL_US;
        Self { at, number, to, target, incarnation, epoch, due_us, until_us, stage: Stage::Hello }
    }
}

fn slots(grant: &InboxGrant) -> Vec<SlotGrant> {
    grant.grants.iter().map(|wire| SlotGrant::from_wire(*wire).expect("our own grants")).collect()
}

impl Lab {
    /// True time when so much has passed by a seat's clock.
    pub(super) fn later_us(&self, at: usize, after_ms: u64) -> u64 {
        let seat = &self.seats[at];
        seat.clock.true_us(seat.clock.clock_ms(self.now_us()) + after_ms).max(self.now_us())
    }

    pub(super) fn dial_server(&mut self, dial: WorkerDial) {
        self.worker_dials.retain(|other| other.at != dial.at || other.to != dial.to);
        self.worker_dials.push(dial);
    }

    pub(super) fn step_dials(&mut self) {
        let now_us = self.now_us();
        for mut dial in std::mem::take(&mut self.worker_dials) {
            self.between();
            let wanted = self.seats[dial.at].worker_ref().and_then(|worker| worker.expected.get(&dial.to));
            if wanted != Some(&dial.number) {
                continue;
            }
            if dial.due_us > now_us || self.is_paused(dial.at) {
                self.worker_dials.push(dial);
                continue;
            }
            match self.advance_dial(&mut dial) {
                Ok(true) => self.dialled(dial.at, dial.number, Ok(())),
                Ok(false) if now_us > dial.until_us => {
                    self.undo(&dial);
                    self.dialled(dial.at, dial.number, Err("it took too long".into()));
                }
                Ok(false) => {
                    dial.due_us = now_us + self.rng.within(1, 2 * self.shape.bootstrap_us);
                    self.worker_dials.push(dial);
                }
                Err(reason) => {
                    self.undo(&dial);
                    self.dialled(dial.at, dial.number, Err(reason));
                }
            }
        }
        self.step_stream_dials();
    }

    fn undo(&mut self, dial: &WorkerDial) {
        if let Some(worker) = self.seats[dial.at].worker()
            && !matches!(dial.stage, Stage::Hello)
        {
            worker.lanes.iter_mut().for_each(|lane| lane.detach(dial.to));
        }
    }

    fn dialled(&mut self, at: usize, number: u64, result: Result<(), String>) {
        let now_ms = self.clock_ms(at);
        let Some(worker) = self.seats[at].worker() else { return };
        let mut out = Vec::new();
        worker.member.connected(number, result, now_ms, &mut out);
        self.run_worker(at, out);
    }

    /// Is a life of a seat there, and can another seat reach it?
    pub(super) fn reaches(&self, from: usize, to: usize, life: Incarnation) -> bool {
        let (Some(one), Some(other)) = (&self.seats[from].process, &self.seats[to].process) else {
            return false;
        };
        let (a, b) = (one.node.min(other.node), one.node.max(other.node));
        other.life == life && !self.partitions.contains(&(a, b))
    }

    /// One stage. True when connected.
    fn advance_dial(&mut self, dial: &mut WorkerDial) -> Result<bool, String> {
        if !self.reaches(dial.at, dial.target, dial.incarnation) {
            return Err("nobody answers".into());
        }
        if self.is_paused(dial.target) {
            return Ok(false);
        }
        let Some(worker) = self.seats[dial.at].worker_ref() else { return Err("gone".into()) };
        let rank = worker.rank;
        let life = self.seats[dial.at].process.as_ref().map_or(Incarnation(0), |process| process.life);
        let Some(server) = self.seats[dial.target].server_ref() else { return Err("no server".into()) };
        let known = server.member.peers().map_or(Epoch::default(), |peers| peers.epoch);
        if known < dial.epoch {
            return Ok(false);
        }
        if !self.expects(dial.target, rank, life) {
            return Err("a stranger".into());
        }
        dial.stage = match std::mem::replace(&mut dial.stage, Stage::Hello) {
            Stage::Hello => self.attach(dial)?,
            Stage::Attached(ends) => self.adopt(dial, rank, life, ends)?,
            Stage::Adopted(inboxes) => {
                let Some(worker) = self.seats[dial.at].worker() else { return Err("gone".into()) };
                for (lane, inbox) in worker.lanes.iter_mut().zip(inboxes) {
                    let active = lane.activate(dial.to, dial.incarnation, inbox);
                    active.map_err(|error| error.to_string())?;
                }
                Stage::Probing
            }
            Stage::Probing => {
                let Some(worker) = self.seats[dial.at].worker() else { return Err("gone".into()) };
                if let Some(reason) = worker.lanes.iter().find_map(|lane| lane.unready(dial.to)) {
                    return Err(reason.to_owned());
                }
                if worker.lanes.iter().all(|lane| lane.probed(dial.to)) {
                    return Ok(true);
                }
                Stage::Probing
            }
        };
        Ok(false)
    }

    fn attach(&mut self, dial: &WorkerDial) -> Result<Stage, String> {
        let (servers, workers) = self.seats.split_at_mut(self.shape.places as usize);
        let worker = workers[dial.at - servers.len()].worker().ok_or("gone")?;
        let server = servers[dial.target].server().ok_or("gone")?;
        let mut ends = Vec::new();
        for (server, worker) in server.lanes.iter_mut().zip(&mut worker.lanes) {
            let (theirs, ours) = self.net.connect(server.queue_mut(), worker.queue_mut());
            let grant = worker.attach(dial.to, dial.number, ours).map_err(|error| error.to_string())?;
            let grants = slots(&grant);
            let InboxGrant { region, offset, slot_bytes, .. } = grant;
            ends.push((theirs, WorkerInbox { region, offset, slot_bytes, grants }));
        }
        Ok(Stage::Attached(ends))
    }

    fn adopt(
        &mut self,
        dial: &WorkerDial,
        rank: Rank,
        life: Incarnation,
        ends: Vec<(ChannelId, WorkerInbox)>,
    ) -> Result<Stage, String> {
        let server = self.seats[dial.target].server().ok_or("gone")?;
        let mut inboxes = Vec::new();
        for (lane, (channel, inbox)) in server.lanes.iter_mut().zip(ends) {
            let grant = lane.adopt(rank, life, channel, inbox).map_err(|error| error.to_string())?;
            let grants = slots(&grant);
            let InboxGrant { region, offset, slot_bytes, .. } = grant;
            inboxes.push(ServerInbox { region, offset, slot_bytes, grants });
        }
        Ok(Stage::Adopted(inboxes))
    }

    /// When the next stage of any connection is due.
    pub(super) fn next_dial_us(&self) -> Option<u64> {
        let workers = self.worker_dials.iter().map(|dial| (dial.at, dial.due_us));
        let streams = self.stream_dials.iter().map(|dial| (dial.at, dial.due_us));
        workers.chain(streams).map(|(at, due_us)| due_us.max(self.seats[at].paused_until_us)).min()
    }
}

impl Lab {
    pub(super) fn dial_stream(&mut self, dial: StreamDial) {
        self.hang_up(dial.at, dial.to);
        self.stream_dials.push(dial);
    }

    pub(super) fn hang_up(&mut self, at: usize, to: Rank) {
        self.stream_dials.retain(|dial| dial.at != at || dial.to != to);
    }

    fn step_stream_dials(&mut self) {
        let now_us = self.now_us();
        for dial in std::mem::take(&mut self.stream_dials) {
            self.between();
            if dial.due_us > now_us || self.is_paused(dial.at) {
                self.stream_dials.push(dial);
                continue;
            }
            let result = self.connect_stream(&dial);
            if let Err(reason) = &result {
                self.note(&format!("no stream from seat {} to {}: {reason}", dial.at, dial.target));
            }
            let Some(server) = self.seats[dial.at].server() else { continue };
            let mut out = Vec::new();
            server.member.dialled(dial.number, result.is_ok(), &mut out);
            self.run_server(dial.at, out);
        }
    }

    fn connect_stream(&mut self, dial: &StreamDial) -> Result<(), String> {
        let (from, to) = (dial.at, dial.target);
        if !self.reaches(from, to, dial.incarnation) || self.is_paused(to) {
            return Err("nobody answers".into());
        }
        let own = self.seats[from].process.as_ref().map_or(Incarnation(0), |process| process.life);
        let [one, other] = self.seats.get_disjoint_mut([from, to]).map_err(|error| error.to_string())?;
        let (Some(one), Some(other)) = (one.server(), other.server()) else { return Err("gone".into()) };
        let peers = other.member.peers().ok_or("it has no roster")?;
        if peers.servers.get(&one.rank) != Some(&own) {
            return Err("a stranger".into());
        }
        if peers.epoch < dial.epoch || !peers.copies_of.contains(&one.rank) {
            return Err("it has another map".into());
        }
        let (rank, stream) = (one.rank, (dial.to, dial.number));
        for (one, other) in one.lanes.iter_mut().zip(&mut other.lanes) {
            let (ours, theirs) = self.net.connect(one.queue_mut(), other.queue_mut());
            let granted = other.adopt_copy(rank, own, theirs).map_err(|error| error.to_string())?;
            let adopted = one.adopt_stream(stream, dial.incarnation, ours, granted);
            adopted.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
