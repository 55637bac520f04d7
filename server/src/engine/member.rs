//! The server as a member of the cluster, without I/O. Messages of the scheduler go in; commands for lanes, streams and connections come
//! out. It stores the roster and the whole shard map. It must not know how lanes work, do I/O, or read a clock.

mod holdings;
mod seeding;
mod streams;

use super::role::Role;
use super::spec::ChunkSpec;
pub use holdings::{Held, Holdings, Left};
use proto_common::error::Death;
use proto_common::ids::{ChunkIndex, Epoch, Incarnation, Key, Rank, Role as MemberRole};
use proto_common::message::{
    ClusterShape, FromScheduler, Member as Entry, NotTaken, RefusalReason, Resume, RoundsPart, RoundsSoFar,
    ToScheduler,
};
use proto_common::shard_map::{KeyRange, MapChange, MapUpdate, ShardMap};
use proto_common::tensor::RuleChange;
use seeding::Seeding;
use std::collections::{BTreeMap, BTreeSet};
use streams::Streams;

/// What a server knows about itself after its registration.
#[derive(Clone, Copy, Debug)]
pub struct MemberConfig {
    /// Its rank.
    pub rank: Rank,
    /// The incarnation of its process.
    pub incarnation: Incarnation,
    /// The cluster's shape.
    pub shape: ClusterShape,
}

/// Commands for the runtime, in this order.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a few at a time, and none of them is kept")]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum MemberCommand {
    /// New chunks for each lane. This server serves all of them, and they have no replicas. The runtime calls
    /// [`Member::lanes_answered`] with the number when all lanes have answered.
    Assign { number: u64, epoch: Epoch, lanes: Vec<Vec<ChunkSpec>> },
    /// All chunks of each lane from now on, with this server's roles. Answered like `Assign`.
    Roles { number: u64, epoch: Epoch, lanes: Vec<Vec<(ChunkSpec, Role)>> },
    /// A tensor's rule changes, on all lanes. Answered like `Assign`.
    ChangeRule { number: u64, change: RuleChange },
    /// A server's process has failed or left: all lanes close and fence its channels.
    EndServer { rank: Rank },
    /// The workers of the roster: all lanes end the channels of other incarnations, and rounds continue without workers that are not
    /// expected any more. `left` have left in good order.
    Workers { epoch: Epoch, present: Vec<(Rank, Incarnation)>, left: Vec<Rank> },
    /// Ask all lanes from which round of each tensor on this worker could count; [`Member::rounds_answered`] says it.
    AskRounds { rank: Rank, incarnation: Incarnation },
    /// All lanes learn from which rounds on this worker counts.
    CountFrom { rank: Rank, incarnation: Incarnation, rounds: Vec<(Key, u64)> },
    /// Connect the streams of all lanes to another server, as the map of this epoch requires. The runtime reports the result with
    /// [`Member::dialled`] and the number.
    Dial {
        number: u64,
        to: Rank,
        incarnation: Incarnation,
        address: String,
        epoch: Epoch,
        /// The pause before the attempt.
        after_ms: u64,
    },
    /// The map does not require that stream any more: it is closed, and a `Dial` that is under way is given up.
    HangUp { to: Rank },
    /// Send this message to the scheduler.
    Say(ToScheduler),
    /// This server leaves the job.
    Leave(Departure),
}

/// Why a server leaves.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum Departure {
    /// The job is over.
    Over { reason: String },
    /// It was asked to leave, and other servers have taken over all its chunks.
    Drained,
    /// A member has failed, and the job cannot continue without it.
    Died(Death),
    /// The scheduler has refused its registration.
    Refused(RefusalReason),
    /// In this epoch the scheduler has declared this incarnation failed.
    Deposed { epoch: Epoch },
}

/// The members that may connect. Hello messages are checked against it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// The newest epoch of roster and map.
    pub epoch: Epoch,
    /// Workers of the roster.
    pub workers: BTreeMap<Rank, Incarnation>,
    /// Other servers of the roster.
    pub servers: BTreeMap<Rank, Incarnation>,
    /// Their addresses.
    pub addresses: BTreeMap<Rank, String>,
    /// Servers of whose chunks this one has replicas.
    pub copies_of: BTreeSet<Rank>,
}

/// The address of another server.
fn address_of(member: &Entry, own: Rank) -> Option<(Rank, String)> {
    let is_other = member.id.role == MemberRole::Server && member.id.rank != own;
    Some((member.id.rank, member.data_address.clone().filter(|_| is_other)?))
}

/// See the module.
#[derive(Debug)]
pub struct Member {
    config: MemberConfig,
    /// The roster's epoch, and its members that are not known to have exited.
    roster: Option<(Epoch, Vec<Entry>)>,
    /// Workers that have left in good order.
    left: Vec<Rank>,
    map: ShardMap,
    streams: Streams,
    seeding: Seeding,
    /// Commands that the lanes have not answered yet: the epoch, and whether the scheduler waits for the answer.
    told: BTreeMap<u64, (Epoch, bool)>,
    /// The rounds from which on a worker counts, as far as their list has arrived. Parts of one list arrive one after the other.
    counting: RoundsSoFar,
    next: u64,
    drain: Drain,
    /// The next scheduler has received what this server knows. Decisions of the last scheduler do not count any more.
    is_resuming: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    Stays,
    /// The scheduler knows that this server wants to leave, but has not decided anything yet.
    Asked,
    /// A decision has arrived since.
    Going,
    Gone,
}

impl Member {
    /// A server that has just been registered.
    #[must_use]
    pub fn new(config: MemberConfig) -> Self {
        Self {
            roster: None,
            left: Vec::new(),
            map: ShardMap::new(config.shape.chunk_bytes, config.shape.lanes),
            streams: Streams::default(),
            seeding: Seeding::default(),
            told: BTreeMap::new(),
            counting: RoundsSoFar::default(),
            next: 0,
            drain: Drain::Stays,
            is_resuming: false,
            config,
        }
    }

    /// The shard map in force.
    #[must_use]
    pub fn map(&self) -> &ShardMap {
        &self.map
    }

    /// Has the scheduler sent a roster?
    #[must_use]
    pub fn has_roster(&self) -> bool {
        self.roster.is_some()
    }

    /// The members that may connect now. Before the first roster there are none.
    #[must_use]
    pub fn peers(&self) -> Option<Peers> {
        let (epoch, members) = self.roster.as_ref()?;
        let of = |role: MemberRole| {
            let wanted = members.iter().filter(move |member| member.id.role == role);
            wanted.map(|member| (member.id.rank, member.incarnation))
        };
        let own = self.config.rank;
        let copies_of = self.map.ranges().filter(|range| copied_at(range, own)).map(|range| range.server);
        Some(Peers {
            epoch: self.map.epoch().max(*epoch),
            workers: of(MemberRole::Worker).collect(),
            servers: of(MemberRole::Server).filter(|(rank, _)| *rank != own).collect(),
            addresses: members.iter().filter_map(|member| address_of(member, own)).collect(),
            copies_of: copies_of.collect(),
        })
    }

    /// The report for a restarted scheduler. From now on until [`Member::back`], this server applies no decision, not even an earlier one
    /// that arrives late. The caller adds barriers, shape and `restore`.
    #[must_use]
    pub fn resume(&mut self) -> Resume {
        self.is_resuming = true;
        let (epoch, members) = self.roster.clone().unwrap_or_default();
        let (map, left) = (self.map.whole(), self.left.clone());
        let (rank, epoch) = (self.config.rank, epoch.max(map.epoch));
        Resume { rank, term: epoch.term, epoch, members, left, map, ..Resume::default() }
    }

    /// There is a new scheduler. Messages that may not have reached the last one are sent again.
    pub fn back(&mut self, out: &mut Vec<MemberCommand>) {
        self.is_resuming = false;
        self.say_seeded(out);
        if self.drain == Drain::Asked || self.drain == Drain::Going {
            self.drain = Drain::Asked;
            out.push(MemberCommand::Say(ToScheduler::Drain));
        }
    }

    /// This server is to go: true where the scheduler is asked to have others take over, who are there.
    pub fn drain(&mut self, out: &mut Vec<MemberCommand>) -> bool {
        let own = self.config.rank;
        let is_other = |member: &Entry| member.id.role == MemberRole::Server && member.id.rank != own;
        if !self.roster.as_ref().is_some_and(|(_, members)| members.iter().any(is_other)) {
            return false;
        }
        if self.drain == Drain::Stays {
            self.drain = Drain::Asked;
            out.push(MemberCommand::Say(ToScheduler::Drain));
        }
        true
    }

    /// The number of chunks that the map still assigns to this server, replicas included.
    #[must_use]
    pub fn chunks_left(&self) -> u64 {
        let own = self.config.rank;
        let mine = self.map.ranges().filter(|range| range.server == own || copied_at(range, own));
        mine.map(|range| u64::from(range.chunks)).sum()
    }

    /// Handles a message of the scheduler.
    pub fn heard(&mut self, message: FromScheduler, out: &mut Vec<MemberCommand>) {
        let decides = matches!(
            message,
            FromScheduler::Roster { .. }
                | FromScheduler::Assign(_)
                | FromScheduler::Remap { .. }
                | FromScheduler::ChangeRule { .. }
                | FromScheduler::AskRounds { .. }
                | FromScheduler::CountFrom { .. }
        );
        if self.is_resuming && decides {
            return;
        }
        match message {
            FromScheduler::Roster { epoch, members, left } => {
                self.take_roster(epoch, members, left, out);
            }
            FromScheduler::Assign(update) => self.assign(&update, out),
            FromScheduler::Remap { epoch, change } => self.remap(epoch, &change, out),
            FromScheduler::ChangeRule { epoch, change } => {
                let number = self.number(epoch, true);
                out.push(MemberCommand::ChangeRule { number, change });
            }
            FromScheduler::AskRounds { rank, incarnation } => {
                out.push(MemberCommand::AskRounds { rank, incarnation });
            }
            FromScheduler::CountFrom { rank, incarnation, rounds } => {
                if let Some(rounds) = self.counting.take(rounds) {
                    out.push(MemberCommand::CountFrom { rank, incarnation, rounds });
                }
            }
            FromScheduler::MemberDied(death) => out.push(MemberCommand::Leave(Departure::Died(death))),
            FromScheduler::Refused(reason) => out.push(MemberCommand::Leave(Departure::Refused(reason))),
            FromScheduler::Shutdown { reason } => {
                out.push(MemberCommand::Leave(Departure::Over { reason }));
            }
            FromScheduler::Welcome(_)
            | FromScheduler::Declared { .. }
            | FromScheduler::Released { .. }
            | FromScheduler::Checkpoint(_)
            | FromScheduler::CheckpointSaved { .. }
            | FromScheduler::CheckpointGoes(_)
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

    /// All lanes have answered what they were told under a number, or one had something against it.
    pub fn lanes_answered(
        &mut self,
        number: u64,
        result: Result<(), NotTaken>,
        out: &mut Vec<MemberCommand>,
    ) {
        let Some((epoch, is_asked)) = self.told.remove(&number) else { return };
        let error = result.err();
        // The scheduler does not wait for a change of roles, but learns of one that has failed.
        if is_asked || error.is_some() {
            out.push(MemberCommand::Say(ToScheduler::Assigned { epoch, error }));
        }
        self.leave_when_empty(out);
    }

    /// All lanes have answered from which round of each tensor on a worker could count.
    pub fn rounds_answered(
        &mut self,
        rank: Rank,
        incarnation: Incarnation,
        lanes: impl IntoIterator<Item = Vec<(Key, u64)>>,
        out: &mut Vec<MemberCommand>,
    ) {
        let mut first: BTreeMap<Key, u64> = BTreeMap::new();
        for (key, round) in lanes.into_iter().flatten() {
            let known = first.entry(key).or_default();
            *known = round.max(*known);
        }
        let rounds: Vec<_> = first.into_iter().collect();
        let say = |rounds| MemberCommand::Say(ToScheduler::Rounds { rank, incarnation, rounds });
        out.extend(RoundsPart::cut(&rounds).into_iter().map(say));
    }

    /// All chunks of a lane that were being copied to a server have complete replicas there, as of this epoch.
    pub fn seeded(&mut self, lane: u16, to: Rank, epoch: Epoch, out: &mut Vec<MemberCommand>) {
        if self.seeding.done(lane, to, epoch) {
            out.push(MemberCommand::Say(ToScheduler::Seeded { epoch: self.map.epoch(), to }));
        }
    }

    /// The stream to a server is connected on all lanes, or could not be.
    pub fn dialled(&mut self, number: u64, is_up: bool, out: &mut Vec<MemberCommand>) {
        self.streams.dialled(number, is_up);
        self.dial(out);
    }

    /// A stream ended that the dial of this number had connected.
    pub fn stream_down(&mut self, to: Rank, number: u64, out: &mut Vec<MemberCommand>) {
        self.streams.down(to, number);
        self.dial(out);
    }

    fn number(&mut self, epoch: Epoch, is_asked: bool) -> u64 {
        self.next += 1;
        self.told.insert(self.next, (epoch, is_asked));
        self.next
    }

    fn take_roster(
        &mut self,
        epoch: Epoch,
        members: Vec<Entry>,
        left: Vec<Rank>,
        out: &mut Vec<MemberCommand>,
    ) {
        let had = match &self.roster {
            // From a deposed scheduler, or older than a decision that is in force.
            Some((have, _)) if epoch < *have => return,
            Some((_, had)) => had.clone(),
            None => Vec::new(),
        };
        let own = members.iter().any(|member| {
            member.id.role == MemberRole::Server
                && member.id.rank == self.config.rank
                && member.incarnation == self.config.incarnation
        });
        if !own {
            return self.deposed(epoch, out);
        }
        let is_there = |one: &Entry| {
            members.iter().any(|other| other.id == one.id && other.incarnation == one.incarnation)
        };
        for gone in had.iter().filter(|one| !is_there(one)) {
            if gone.id.role == MemberRole::Server {
                self.end_server(gone.id.rank, out);
            }
        }
        let workers = members.iter().filter(|one| one.id.role == MemberRole::Worker);
        let present = workers.map(|one| (one.id.rank, one.incarnation)).collect();
        out.push(MemberCommand::Workers { epoch, present, left: left.clone() });
        self.left = left;
        self.roster = Some((epoch, members));
        self.dial(out);
    }

    fn deposed(&self, epoch: Epoch, out: &mut Vec<MemberCommand>) {
        if self.drain != Drain::Gone {
            out.push(MemberCommand::Leave(Departure::Deposed { epoch }));
        }
    }

    fn end_server(&mut self, rank: Rank, out: &mut Vec<MemberCommand>) {
        out.push(MemberCommand::EndServer { rank });
        if self.streams.end(rank) {
            out.push(MemberCommand::HangUp { to: rank });
        }
        self.seeding.end(rank);
    }

    fn assign(&mut self, update: &MapUpdate, out: &mut Vec<MemberCommand>) {
        let epoch = update.epoch;
        let is_new = self.adds_only(update);
        if let Err(error) = self.map.apply(update) {
            let error = Some(error.to_string().into());
            return out.push(MemberCommand::Say(ToScheduler::Assigned { epoch, error }));
        }
        // Lanes know their other chunks already.
        if is_new {
            let number = self.number(epoch, true);
            let lanes = self.new_chunks(update);
            return out.push(MemberCommand::Assign { number, epoch, lanes });
        }
        self.set_roles(epoch, true, out);
    }

    /// Tensors that are new, or just as they were, and of which this server has nothing that is copied.
    fn adds_only(&self, update: &MapUpdate) -> bool {
        let own = self.config.rank;
        let alone = update.ranges.iter().all(|range| match range.server == own {
            true => range.backup.is_none() && range.seeding.is_none(),
            false => !copied_at(range, own),
        });
        let ranges_of = |key| update.ranges.iter().filter(move |range| range.first.key == key);
        alone
            && update.tensors.iter().all(|spec| {
                let have = self.map.ranges_of(spec.key);
                have.is_empty() || have.iter().eq(ranges_of(spec.key))
            })
    }

    fn remap(&mut self, epoch: Epoch, change: &MapChange, out: &mut Vec<MemberCommand>) {
        // The message is from a deposed scheduler.
        if self.map.change(epoch, change).is_err() {
            return;
        }
        if let MapChange::ServerGone(gone) = change {
            if *gone == self.config.rank {
                return self.deposed(epoch, out);
            }
            if let Some((_, members)) = &mut self.roster {
                members.retain(|one| one.id.role != MemberRole::Server || one.id.rank != *gone);
            }
            // First, so that nothing from the failed server is accepted after its successor has accepted something.
            self.end_server(*gone, out);
        }
        if self.drain == Drain::Asked {
            self.drain = Drain::Going;
        }
        self.set_roles(epoch, false, out);
    }

    /// Sends lanes their new roles, and connects the streams that these need.
    fn set_roles(&mut self, epoch: Epoch, is_asked: bool, out: &mut Vec<MemberCommand>) {
        let number = self.number(epoch, is_asked);
        let lanes = self.roles();
        self.seeding.want(epoch, &lanes);
        out.push(MemberCommand::Roles { number, epoch, lanes });
        self.say_seeded(out);
        self.dial(out);
    }

    fn say_seeded(&self, out: &mut Vec<MemberCommand>) {
        let epoch = self.map.epoch();
        let done = self.seeding.complete();
        out.extend(done.map(|to| MemberCommand::Say(ToScheduler::Seeded { epoch, to })));
    }

    /// Dials the servers of the roster to which the map requires streams.
    fn dial(&mut self, out: &mut Vec<MemberCommand>) {
        let Some((_, members)) = &self.roster else { return };
        let own = self.config.rank;
        let mine = self.map.ranges().filter(|range| range.server == own);
        let wanted: BTreeSet<Rank> =
            mine.flat_map(|range| range.backup.into_iter().chain(range.seeding)).collect();
        out.extend(self.streams.keep(&wanted).into_iter().map(|to| MemberCommand::HangUp { to }));
        for member in members.iter().filter(|one| one.id.role == MemberRole::Server) {
            let to = member.id.rank;
            if !wanted.contains(&to) || to == own {
                continue;
            }
            let number = self.next + 1;
            let Some(after_ms) = self.streams.begin(to, number) else { continue };
            self.next = number;
            out.push(MemberCommand::Dial {
                number,
                to,
                incarnation: member.incarnation,
                address: member.data_address.clone().unwrap_or_default(),
                epoch: self.map.epoch(),
                after_ms,
            });
        }
    }

    fn leave_when_empty(&mut self, out: &mut Vec<MemberCommand>) {
        let has_nothing = self.told.is_empty() && self.chunks_left() == 0;
        if self.drain == Drain::Going && has_nothing {
            self.drain = Drain::Gone;
            out.push(MemberCommand::Leave(Departure::Drained));
        }
    }

    fn new_chunks(&self, update: &MapUpdate) -> Vec<Vec<ChunkSpec>> {
        let mut lanes = vec![Vec::new(); usize::from(self.config.shape.lanes.max(1))];
        for spec in &update.tensors {
            let mine = self.map.placed_chunks(spec.key).filter(|(_, server)| *server == self.config.rank);
            for (span, _) in mine {
                lanes[usize::from(self.map.lane_of(span.id).0)].push(ChunkSpec::of(spec, &span));
            }
        }
        lanes
    }

    fn roles(&self) -> Vec<Vec<(ChunkSpec, Role)>> {
        let mut lanes = vec![Vec::new(); usize::from(self.config.shape.lanes.max(1))];
        for (range, role) in self.map.ranges().filter_map(|range| Some((range, self.role(range)?))) {
            let Some(spec) = self.map.tensor(range.first.key) else { continue };
            let first = range.first.chunk.0;
            for chunk in first..first.saturating_add(range.chunks) {
                let Some(span) = spec.chunk(ChunkIndex(chunk), self.map.chunk_bytes()) else {
                    continue;
                };
                lanes[usize::from(self.map.lane_of(span.id).0)].push((ChunkSpec::of(spec, &span), role));
            }
        }
        lanes
    }

    fn role(&self, range: &KeyRange) -> Option<Role> {
        let own = self.config.rank;
        if range.server == own {
            return Some(Role::Primary { backup: range.backup, seeding: range.seeding });
        }
        copied_at(range, own).then_some(Role::Copy { of: range.server })
    }
}

fn copied_at(range: &KeyRange, rank: Rank) -> bool {
    range.backup == Some(rank) || range.seeding == Some(rank)
}
