//! The worker as a member of the cluster, without I/O. Messages of the scheduler go in. Commands come out: connect to a server, close
//! its channels, send a chunk's operations to another server. It keeps the roster, and the part of the shard map that this worker
//! has declared. It must not know how lanes work, do I/O, or read a clock.

mod dials;

use crate::error::OpError;
use dials::Dials;
use proto_common::ids::{ChunkId, Epoch, Incarnation, Key, Rank, Role};
use proto_common::message::{ClusterShape, FromScheduler, Member as Entry, Resume, RoundsSoFar};
use proto_common::shard_map::{MapChange, MapError, MapUpdate, ShardMap};
use std::collections::BTreeMap;

/// What a worker knows of itself, once it is registered.
#[derive(Clone, Copy, Debug)]
pub struct MemberConfig {
    /// Its rank.
    pub rank: Rank,
    /// The incarnation of its process.
    pub incarnation: Incarnation,
    /// The cluster's shape.
    pub shape: ClusterShape,
    /// For so long the worker tries to connect again to a server that is in the roster and whose channels broke; then the job ends.
    pub reach_ms: u64,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum MemberCommand {
    /// Connect all lanes to a server. [`Member::connected`] with the number says how it went, [`Member::broken`] when one of
    /// the channels ends later. Lanes take no other connection to this rank from now on.
    Connect {
        /// Names it in the answer.
        number: u64,
        /// Whom, and where.
        server: Entry,
        /// The newest epoch.
        epoch: Epoch,
        /// Not before so long from now.
        after_ms: u64,
    },
    /// A server's process has failed or left: all lanes close and fence their channels to it, and accept no connection to this rank.
    End {
        /// Its rank.
        server: Rank,
    },
    /// Chunks have other servers from now on: by lane.
    Remap {
        /// Since when.
        epoch: Epoch,
        /// The chunks, and who has them.
        lanes: Vec<Vec<(ChunkId, Rank)>>,
    },
    /// The newest epoch, for what lanes send.
    Epoch(Epoch),
    /// It is over.
    Leave(OpError),
}

/// The membership.
#[derive(Clone, Debug)]
struct Roster {
    epoch: Epoch,
    /// All members that have not failed or left.
    members: Vec<Entry>,
    /// Workers that left in good order.
    left: Vec<Rank>,
}

/// See the module.
#[derive(Debug)]
pub struct Member {
    config: MemberConfig,
    roster: Option<Roster>,
    map: ShardMap,
    dials: Dials,
    failovers: u64,
    counts: Option<BTreeMap<Key, u64>>,
    /// The same, as far as it was said.
    counting: RoundsSoFar,
}

impl Member {
    /// A worker that has just been registered.
    #[must_use]
    pub fn new(config: MemberConfig) -> Self {
        Self {
            roster: None,
            map: ShardMap::new(config.shape.chunk_bytes, config.shape.lanes),
            dials: Dials::new(config.reach_ms),
            failovers: 0,
            counts: None,
            counting: RoundsSoFar::default(),
            config,
        }
    }

    /// What was declared here, and who has it.
    #[must_use]
    pub fn map(&self) -> &ShardMap {
        &self.map
    }

    /// The newest epoch of roster and map.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        let roster = self.roster.as_ref().map_or(Epoch::default(), |roster| roster.epoch);
        self.map.epoch().max(roster)
    }

    /// Servers of the roster that are not connected.
    #[must_use]
    pub fn missing(&self) -> Vec<Rank> {
        self.servers().map(|server| server.id.rank).filter(|rank| !self.dials.is_up(*rank)).collect()
    }

    /// Failures of servers whose chunks others took over.
    #[must_use]
    pub fn failovers(&self) -> u64 {
        self.failovers
    }

    /// Of a worker that came in between: from which round of each tensor on it counts, once that is decided.
    #[must_use]
    pub fn counts(&self) -> Option<&BTreeMap<Key, u64>> {
        self.counts.as_ref()
    }

    /// What a scheduler that knows nothing is to know, once there was a roster. Barriers, shape and `restore` are somebody else's to add.
    #[must_use]
    pub fn resume(&self) -> Option<Resume> {
        let Roster { members, left, .. } = self.roster.clone()?;
        let (rank, epoch, map) = (self.config.rank, self.epoch(), self.map.whole());
        Some(Resume { rank, term: epoch.term, epoch, members, left, map, ..Resume::default() })
    }

    fn servers(&self) -> impl Iterator<Item = &Entry> {
        let members = self.roster.iter().flat_map(|roster| &roster.members);
        members.filter(|member| member.id.role == Role::Server)
    }

    /// Takes what the scheduler said on its own account.
    pub fn heard(&mut self, message: &FromScheduler, out: &mut Vec<MemberCommand>) {
        match message {
            FromScheduler::Roster { epoch, members, left } => {
                let (members, left) = (members.clone(), left.clone());
                self.take_roster(Roster { epoch: *epoch, members, left }, out);
            }
            FromScheduler::Remap { epoch, change } => self.remap(*epoch, change, out),
            FromScheduler::CountFrom { rank, incarnation, rounds } => {
                if (*rank, *incarnation) == (self.config.rank, self.config.incarnation)
                    && let Some(rounds) = self.counting.take(rounds.clone())
                {
                    self.counts = Some(rounds.into_iter().collect());
                }
            }
            FromScheduler::MemberDied(death) => out.push(MemberCommand::Leave(OpError::Died(death.clone()))),
            FromScheduler::Shutdown { reason } => {
                let why = format!("the scheduler ends the job: {reason}");
                out.push(MemberCommand::Leave(OpError::Closed(why)));
            }
            FromScheduler::Refused(reason) => {
                let why = format!("the scheduler refused this worker: {reason}");
                out.push(MemberCommand::Leave(OpError::Closed(why)));
            }
            FromScheduler::Welcome(_)
            | FromScheduler::Assign(_)
            | FromScheduler::ChangeRule { .. }
            | FromScheduler::AskRounds { .. }
            | FromScheduler::Checkpoint(_)
            | FromScheduler::CheckpointSaved { .. }
            | FromScheduler::CheckpointGoes(_)
            | FromScheduler::Declared { .. }
            | FromScheduler::Released { .. }
            | FromScheduler::HeartbeatAck
            | FromScheduler::SendMap
            | FromScheduler::GoodbyeAck
            | FromScheduler::Posted { .. }
            | FromScheduler::PostAnswered { .. }
            | FromScheduler::Candidate { .. }
            | FromScheduler::Proposed { .. }
            | FromScheduler::Decided { .. } => {}
        }
    }

    /// Takes the answer to a declaration, in its place among what the scheduler says.
    pub fn declared(&mut self, update: &MapUpdate, out: &mut Vec<MemberCommand>) -> Result<(), MapError> {
        if update.tensors.is_empty() {
            // A changed rule's answer, or one to nothing declared: no map changes, and no epoch is named.
            return Ok(());
        }
        let keys: Vec<Key> = update.tensors.iter().map(|spec| spec.key).collect();
        let before = self.servers_of(&keys);
        self.map.apply(update)?;
        // A lane names an epoch only when it knows of all that moved with it.
        self.say_moved(before, out);
        out.push(MemberCommand::Epoch(self.epoch()));
        Ok(())
    }

    fn take_roster(&mut self, roster: Roster, out: &mut Vec<MemberCommand>) {
        let epoch = roster.epoch;
        if self.roster.as_ref().is_some_and(|have| epoch < have.epoch) {
            // A deposed scheduler's, or one that was overtaken.
            return;
        }
        let is_own = |member: &Entry| {
            member.id.role == Role::Worker
                && member.id.rank == self.config.rank
                && member.incarnation == self.config.incarnation
        };
        if !roster.members.iter().any(is_own) {
            return out.push(MemberCommand::Leave(OpError::Deposed { epoch }));
        }
        self.roster = Some(roster);
        let servers: Vec<Entry> = self.servers().cloned().collect();
        for server in self.dials.keep(&servers) {
            out.push(MemberCommand::End { server });
        }
        out.push(MemberCommand::Epoch(self.epoch()));
        for server in servers {
            if let Some(number) = self.dials.begin(&server) {
                out.push(MemberCommand::Connect { number, server, epoch: self.epoch(), after_ms: 0 });
            }
        }
    }

    fn remap(&mut self, epoch: Epoch, change: &MapChange, out: &mut Vec<MemberCommand>) {
        let keys: Vec<Key> = match change {
            MapChange::ServerGone(_) => self.map.whole().tensors.iter().map(|spec| spec.key).collect(),
            MapChange::Ranges(ranges) => ranges.iter().map(|range| range.first.key).collect(),
            // No worker was told of them.
            MapChange::Dropped(_) => Vec::new(),
        };
        let before = self.servers_of(&keys);
        if self.map.change(epoch, change).is_err() {
            // A deposed scheduler is still talking.
            return;
        }
        if let MapChange::ServerGone(gone) = change {
            self.forget(*gone, epoch, out);
        }
        let moves = out.len();
        self.say_moved(before, out);
        if out.len() == moves {
            out.push(MemberCommand::Epoch(self.epoch()));
        } else {
            self.failovers += u64::from(matches!(change, MapChange::ServerGone(_)));
        }
    }

    /// A server has failed. Its channels end before anything is sent to its successor, so that nothing from it lands afterwards.
    fn forget(&mut self, gone: Rank, epoch: Epoch, out: &mut Vec<MemberCommand>) {
        let Some(roster) = &mut self.roster else { return };
        if epoch < roster.epoch {
            // It was an earlier process of this rank.
            return;
        }
        roster.members.retain(|one| one.id.role != Role::Server || one.id.rank != gone);
        if self.dials.end(gone) {
            out.push(MemberCommand::End { server: gone });
        }
    }

    fn servers_of(&self, keys: &[Key]) -> BTreeMap<Key, Vec<Rank>> {
        let servers = |key: &Key| self.map.placed_chunks(*key).map(|(_, server)| server).collect();
        keys.iter().map(|key| (*key, servers(key))).collect()
    }

    /// Tells lanes which chunks of these tensors have another server than before.
    fn say_moved(&self, before: BTreeMap<Key, Vec<Rank>>, out: &mut Vec<MemberCommand>) {
        let mut lanes = vec![Vec::new(); usize::from(self.config.shape.lanes.max(1))];
        for (key, before) in before {
            for ((span, server), before) in self.map.placed_chunks(key).zip(before) {
                if server != before {
                    lanes[usize::from(self.map.lane_of(span.id).0)].push((span.id, server));
                }
            }
        }
        if lanes.iter().any(|moves| !moves.is_empty()) {
            out.push(MemberCommand::Remap { epoch: self.epoch(), lanes });
        }
    }

    /// A server is connected on all lanes, or could not be. False where nobody wants that connection any more.
    pub fn connected(
        &mut self,
        number: u64,
        result: Result<(), String>,
        now_ms: u64,
        out: &mut Vec<MemberCommand>,
    ) -> bool {
        let Some((server, is_up)) = self.dials.answered(number, result, now_ms) else { return false };
        if !is_up {
            self.redial(server, now_ms, out);
        }
        true
    }

    /// A channel ended that the connection of this number had made.
    pub fn broken(
        &mut self,
        server: Rank,
        number: u64,
        reason: String,
        now_ms: u64,
        out: &mut Vec<MemberCommand>,
    ) {
        if self.dials.broke(server, number, reason, now_ms) {
            self.redial(server, now_ms, out);
        }
    }

    /// The server is still in the roster: the worker connects again, within a bound.
    fn redial(&mut self, rank: Rank, now_ms: u64, out: &mut Vec<MemberCommand>) {
        let Some(server) = self.servers().find(|server| server.id.rank == rank).cloned() else { return };
        match self.dials.again(rank, now_ms) {
            Ok((number, after_ms)) => {
                out.push(MemberCommand::Connect { number, server, epoch: self.epoch(), after_ms });
            }
            Err(reason) => out.push(MemberCommand::Leave(OpError::Broken { server: rank, reason })),
        }
    }
}
