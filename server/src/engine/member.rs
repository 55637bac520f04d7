//! The server as a member of the cluster, sans I/O: what the scheduler says goes in, and what lanes, streams and the
//! connections of others are to do comes out. It keeps the roster and the whole shard map. It must not know how lanes work,
//! reach anybody, or read a clock.

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

/// What a server knows of itself, once it is registered.
#[derive(Clone, Copy, Debug)]
pub struct MemberConfig {
    /// Its rank.
    pub rank: Rank,
    /// Its life.
    pub incarnation: Incarnation,
    /// The cluster's shape.
    pub shape: ClusterShape,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a few at a time, and none of them is kept")]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum MemberCommand {
    /// New chunks for each lane, all of them served here and kept nowhere else. [`Member::lanes_answered`] with the number
    /// when all lanes have answered.
    Assign { number: u64, epoch: Epoch, lanes: Vec<Vec<ChunkSpec>> },
    /// All that each lane has a part in from now on. Answered like `Assign`.
    Roles { number: u64, epoch: Epoch, lanes: Vec<Vec<(ChunkSpec, Role)>> },
    /// A tensor's rule changes, on all lanes. Answered like `Assign`.
    ChangeRule { number: u64, change: RuleChange },
    /// A server's life is over: all lanes close and fence its channels.
    EndServer { rank: Rank },
    /// Who is there: all lanes end the channels of other lives, and rounds go on without whom they need no more.
    /// `left` have left in good order.
    Workers { epoch: Epoch, present: Vec<(Rank, Incarnation)>, left: Vec<Rank> },
    /// Ask all lanes from which round of each tensor on this worker could count; [`Member::rounds_answered`] says it.
    AskRounds { rank: Rank, incarnation: Incarnation },
    /// Tell all lanes from which rounds on this worker counts.
    CountFrom { rank: Rank, incarnation: Incarnation, rounds: Vec<(Key, u64)> },
    /// Connect the streams of all lanes to another server, as the map of this epoch wants. [`Member::dialled`] with the number says how
    /// it went.
    Dial {
        number: u64,
        to: Rank,
        incarnation: Incarnation,
        address: String,
        epoch: Epoch,
        /// Not before so long from now.
        after_ms: u64,
    },
    /// Nobody wants that stream any more: it is closed, and a `Dial` to it that is under way is given up.
    HangUp { to: Rank },
    /// Tell the scheduler.
    Say(ToScheduler),
    /// It is over.
    Leave(Departure),
}

/// Why a server leaves.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum Departure {
    /// The job is over.
    Over { reason: String },
    /// It wished to go, and others hold now what it held.
    Drained,
    /// A member died without whom the job cannot go on.
    Died(Death),
    /// The scheduler has no use for it.
    Refused(RefusalReason),
    /// The scheduler has decided in this epoch that this life is dead.
    Deposed { epoch: Epoch },
}

/// Who may connect: what hellos are checked against.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// The newest epoch of roster and map.
    pub epoch: Epoch,
    /// Workers of the roster.
    pub workers: BTreeMap<Rank, Incarnation>,
    /// Other servers of the roster.
    pub servers: BTreeMap<Rank, Incarnation>,
    /// Servers whose chunks this one has copies of.
    pub copies_of: BTreeSet<Rank>,
}

/// See the module.
#[derive(Debug)]
pub struct Member {
    config: MemberConfig,
    /// The roster's epoch, and everyone in it that is not known to be gone.
    roster: Option<(Epoch, Vec<Entry>)>,
    /// Workers that have left in good order.
    left: Vec<Rank>,
    map: ShardMap,
    streams: Streams,
    seeding: Seeding,
    /// What the lanes were told and have not answered: the epoch, and whether the scheduler waits for the answer.
    told: BTreeMap<u64, (Epoch, bool)>,
    /// From which rounds on a worker counts, as far as that was said. The parts of one list come in a row.
    counting: RoundsSoFar,
    next: u64,
    drain: Drain,
    /// The next scheduler has been told what this server knows: the last one's decisions count no more.
    is_resuming: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drain {
    Stays,
    /// The scheduler was told; it has not answered by a decision yet.
    Asked,
    /// A decision has come since.
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

    /// Has the scheduler said who is there?
    #[must_use]
    pub fn has_roster(&self) -> bool {
        self.roster.is_some()
    }

    /// Who may connect now; nobody before the first roster.
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
            copies_of: copies_of.collect(),
        })
    }

    /// What a scheduler that knows nothing is to know; until [`Member::back`] nothing is decided for this server any more, also
    /// nothing that was decided before and comes late. Barriers, shape and `restore` are somebody else's to add.
    #[must_use]
    pub fn resume(&mut self) -> Resume {
        self.is_resuming = true;
        let (epoch, members) = self.roster.clone().unwrap_or_default();
        let (map, left) = (self.map.whole(), self.left.clone());
        let (rank, epoch) = (self.config.rank, epoch.max(map.epoch));
        Resume { rank, term: epoch.term, epoch, members, left, map, ..Resume::default() }
    }

    /// There is a new scheduler: what may not have reached the last one is said again.
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

    /// How many chunks the map still gives this server, copies included.
    #[must_use]
    pub fn chunks_left(&self) -> u64 {
        let own = self.config.rank;
        let mine = self.map.ranges().filter(|range| range.server == own || copied_at(range, own));
        mine.map(|range| u64::from(range.chunks)).sum()
    }

    /// Takes what the scheduler said.
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
        // A change of roles is not waited for, but one that failed is the scheduler's to know.
        if is_asked || error.is_some() {
            out.push(MemberCommand::Say(ToScheduler::Assigned { epoch, error }));
        }
        self.leave_when_empty(out);
    }

    /// From which round of each tensor on a worker could count, by what each lane said.
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

    /// A lane's chunks that were being copied to a server are all kept up there, as of this epoch.
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
            // A deposed scheduler's, or one that was overtaken.
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
        // Lanes need not hear again of all that they have.
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
        // A deposed scheduler is still talking.
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
            // First of all: nothing of it is taken after something that its successor took.
            self.end_server(*gone, out);
        }
        if self.drain == Drain::Asked {
            self.drain = Drain::Going;
        }
        self.set_roles(epoch, false, out);
    }

    /// Tells lanes what they have from now on, and connects what that needs.
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

    /// Dials what the map wants and the roster has.
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
