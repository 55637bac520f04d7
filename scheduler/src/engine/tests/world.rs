//! A cluster of members that follow what the scheduler says, with an oracle of who has which chunk's data. Messages wait in
//! inboxes until the test lets a member take them; with the scheduler's end those that wait are lost.

use super::*;
use daemon::control::Undecided;
use proto_common::ids::{ChunkId, ChunkIndex};
use proto_common::message::{self, Resume};
use proto_common::shard_map::{KeyRange, ShardMap};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const CHUNK: u64 = 4096;

pub(super) struct Player {
    pub(super) id: MemberId,
    pub(super) life: u64,
    pub(super) connection: u64,
    inbox: VecDeque<FromScheduler>,
    undecided: Undecided,
    pub(super) map: ShardMap,
    roster: Vec<message::Member>,
    left: Vec<Rank>,
    epoch: Epoch,
    term: u32,
    /// Epochs of assignments to be answered.
    unanswered: Vec<Epoch>,
}

impl Player {
    /// What it knows, and what may be in force.
    fn show(&self, shape: ClusterShape) -> Resume {
        let (epoch, map) = (self.epoch.max(self.map.epoch()), self.map.whole());
        let (members, left) = (self.roster.clone(), self.left.clone());
        let (rank, term, shape) = (self.id.rank, self.term, Some(shape));
        self.undecided.show(Resume { rank, term, epoch, members, left, map, shape, ..Resume::default() })
    }
}

pub(super) struct World {
    pub(super) engine: Engine,
    config: EngineConfig,
    pub(super) now_ms: u64,
    pub(super) players: Vec<Player>,
    next: u64,
    /// Whose life has all of a chunk.
    data: BTreeMap<ChunkId, BTreeSet<u64>>,
    /// The newest decision by which somebody serves a chunk.
    served: BTreeMap<ChunkId, Epoch>,
    told: Epoch,
    pub(super) outcome: Option<Outcome>,
    /// Members that are asked for their votes.
    voters: Vec<(ConnectionId, Epoch)>,
    /// Something died that had no copy, or more died at once than a copy is for.
    pub(super) may_lose: bool,
}

impl World {
    pub(super) fn new(config: EngineConfig) -> Self {
        let mut world = Self {
            engine: Engine::new(config.clone(), 0),
            now_ms: 0,
            players: Vec::new(),
            next: 1,
            data: BTreeMap::new(),
            served: BTreeMap::new(),
            told: Epoch::default(),
            outcome: None,
            may_lose: false,
            voters: Vec::new(),
            config,
        };
        (0..world.config.shape.servers).for_each(|_| world.come(Role::Server));
        (0..world.config.shape.workers).for_each(|_| world.come(Role::Worker));
        world.deliver_all();
        assert_eq!(world.engine.phase, Phase::Running);
        world
    }

    pub(super) fn come(&mut self, role: Role) {
        let life = self.next;
        self.next += 1;
        self.input_as(life, role, life, ToScheduler::Register(register(role, life)));
    }

    /// A message of somebody who is no player yet; a welcome makes it one.
    fn input_as(&mut self, connection: u64, role: Role, life: u64, message: ToScheduler) {
        let shape = &self.config.shape;
        let player = Player {
            id: MemberId { role, rank: Rank(u32::MAX) },
            life,
            connection,
            inbox: VecDeque::new(),
            undecided: Undecided::default(),
            map: ShardMap::new(shape.chunk_bytes, shape.lanes),
            roster: Vec::new(),
            left: Vec::new(),
            epoch: Epoch::default(),
            term: 0,
            unanswered: Vec::new(),
        };
        self.players.push(player);
        self.input(Input::Message { from: ConnectionId(connection), message });
    }

    pub(super) fn say(&mut self, at: usize, message: ToScheduler) {
        let from = ConnectionId(self.players[at].connection);
        self.input(Input::Message { from, message });
    }

    pub(super) fn input(&mut self, input: Input) {
        if self.outcome.is_some() {
            return;
        }
        let commands = self.engine.handle(self.now_ms, input);
        for command in commands {
            match command {
                Command::Send { to, message } => self.send(&to, *message),
                Command::Close { connection } => self.players.retain(|p| p.connection != connection.0),
                Command::WriteManifest(_) | Command::ClearAway(_) => {}
                Command::End(outcome) => self.outcome = Some(outcome),
            }
        }
        if let Phase::Ending { outcome, .. } = &self.engine.phase {
            self.outcome = Some(outcome.clone());
        }
        self.check_map();
        while let Some((from, epoch)) = self.voters.pop() {
            self.input(Input::Message { from, message: ToScheduler::Heard { epoch } });
        }
    }

    fn send(&mut self, to: &[ConnectionId], message: FromScheduler) {
        let epoch = match &message {
            FromScheduler::Roster { epoch, .. } | FromScheduler::Remap { epoch, .. } => Some(*epoch),
            FromScheduler::Assign(update) => Some(update.epoch),
            _ => None,
        };
        // One decision may be told in two ways, to servers and to workers.
        assert!(epoch.is_none_or(|epoch| epoch >= self.told), "{message:?} after {}", self.told);
        self.told = epoch.unwrap_or(self.told);
        if let FromScheduler::Assign(update) = &message {
            self.begin(update);
        }
        if let FromScheduler::Candidate { term } = &message {
            let epoch = Epoch { term: *term, counter: 0 };
            return self.voters.extend(to.iter().map(|to| (*to, epoch)));
        }
        for player in &mut self.players {
            if to.contains(&ConnectionId(player.connection)) {
                if let FromScheduler::Welcome(welcome) = &message {
                    (player.id.rank, player.term) = (welcome.rank, welcome.epoch.term);
                }
                player.inbox.push_back(message.clone());
            }
        }
    }

    /// A tensor that nobody had is empty: whoever is to have it has it.
    fn begin(&mut self, update: &MapUpdate) {
        let servers = self.players.iter().filter(|player| player.id.role == Role::Server);
        let lives: BTreeMap<Rank, u64> = servers.map(|player| (player.id.rank, player.life)).collect();
        for range in &update.ranges {
            let at = [Some(range.server), range.backup].into_iter().flatten();
            let at: BTreeSet<u64> = at.filter_map(|rank| lives.get(&rank).copied()).collect();
            for chunk in chunks_of(range) {
                self.data.entry(chunk).or_insert_with(|| at.clone());
            }
        }
    }

    /// The scheduler's own map: servers that are there, copies elsewhere, one decision a range.
    fn check_map(&self) {
        if self.engine.phase != Phase::Running {
            return;
        }
        let there = self.engine.members.servers().there;
        for range in self.engine.declarations.shards.map().ranges() {
            let parts = [Some(range.server), range.backup, range.seeding];
            let parts: Vec<Rank> = parts.into_iter().flatten().collect();
            let apart: BTreeSet<Rank> = parts.iter().copied().collect();
            assert_eq!(apart.len(), parts.len(), "a copy on the server itself: {range:?}");
            assert!(apart.is_subset(&there), "{range:?} with {there:?}");
            let seed = self.engine.declarations.shards.seeds().get(&range.first);
            assert_eq!(seed.map(|seed| seed.to), range.seeding, "{range:?}");
        }
    }

    /// A member takes its next message.
    pub(super) fn deliver(&mut self, at: usize) -> bool {
        let player = &mut self.players[at];
        let Some(message) = player.inbox.pop_front() else { return false };
        let (mut now, life) = (Vec::new(), player.life);
        let answer = player.undecided.take(message, &mut now).unwrap();
        now.into_iter().for_each(|message| self.obey(at, message));
        if let (Some(answer), true) = (answer, self.players.get(at).is_some_and(|player| player.life == life))
        {
            self.say(at, answer);
        }
        true
    }

    /// It is in force, or is no decision.
    fn obey(&mut self, at: usize, message: FromScheduler) {
        let player = &mut self.players[at];
        match message {
            FromScheduler::Roster { epoch, members, left } => {
                (player.roster, player.left) = (members, left);
                player.epoch = player.epoch.max(epoch);
            }
            FromScheduler::Assign(update) => {
                player.map.apply(&update).unwrap();
                player.unanswered.push(update.epoch);
                self.follow(at);
            }
            FromScheduler::Remap { epoch, change } => {
                player.map.change(epoch, &change).unwrap();
                self.follow(at);
            }
            FromScheduler::Declared { result: Ok(update), .. } => player.map.apply(&update).unwrap(),
            _ => {}
        }
    }

    /// A primary keeps up those copies that its map names; it must have the data, and so must its backup.
    fn follow(&mut self, at: usize) {
        let player = &self.players[at];
        let lives = Self::lives(player);
        if player.id.role != Role::Server {
            return;
        }
        for range in player.map.ranges().filter(|range| range.server == player.id.rank) {
            let parts = [Some(range.server), range.backup, range.seeding].into_iter().flatten();
            let kept: BTreeSet<u64> = parts.filter_map(|rank| lives.get(&rank).copied()).collect();
            for chunk in chunks_of(range) {
                let newest = self.served.entry(chunk).or_default();
                if *newest > player.map.epoch() {
                    // It has been deposed, and has not heard of it: nobody confirms what it does.
                    continue;
                }
                *newest = player.map.epoch();
                let data = self.data.entry(chunk).or_default();
                assert!(data.contains(&player.life), "{} serves {chunk} without its data", player.id);
                if let Some(backup) = range.backup.and_then(|rank| lives.get(&rank)) {
                    let is_alive = self.players.iter().any(|player| player.life == *backup);
                    assert!(data.contains(backup) || !is_alive, "{range:?}: a backup that is not kept up");
                }
                data.retain(|life| kept.contains(life));
            }
        }
    }

    /// The lives that servers' ranks have, as this member was told.
    fn lives(player: &Player) -> BTreeMap<Rank, u64> {
        let servers = player.roster.iter().filter(|member| member.id.role == Role::Server);
        servers.map(|member| (member.id.rank, member.incarnation.0)).collect()
    }

    pub(super) fn deliver_all(&mut self) {
        let mut has_more = true;
        while has_more {
            has_more = false;
            for at in 0..self.players.len() {
                while at < self.players.len() && self.deliver(at) {
                    has_more = true;
                }
            }
        }
    }

    /// A primary has copied all that it is to copy, by what it knows.
    pub(super) fn seed(&mut self, at: usize) {
        let player = &self.players[at];
        let lives = Self::lives(player);
        let mut done: BTreeSet<Rank> = BTreeSet::new();
        for range in player.map.ranges().filter(|range| range.server == player.id.rank) {
            let Some(to) = range.seeding else { continue };
            let Some(life) = lives.get(&to) else { continue };
            done.insert(to);
            for chunk in chunks_of(range) {
                self.data.entry(chunk).or_default().insert(*life);
            }
        }
        let epoch = player.map.epoch();
        done.into_iter().for_each(|to| self.say(at, ToScheduler::Seeded { epoch, to }));
    }

    /// A server says that it has allocated what it was asked for.
    pub(super) fn answer(&mut self, at: usize) {
        for epoch in std::mem::take(&mut self.players[at].unanswered) {
            if self.outcome.is_none() && at < self.players.len() {
                self.say(at, ToScheduler::Assigned { epoch, error: None });
            }
        }
    }

    pub(super) fn kill(&mut self, at: usize) {
        let gone = self.players.remove(at);
        let map = self.engine.declarations.shards.map();
        let alone = |range: &KeyRange| range.server == gone.id.rank && range.backup.is_none();
        let is_alone = gone.id.role == Role::Server && map.ranges().any(alone);
        self.may_lose |= is_alone;
        self.data.values_mut().for_each(|lives| _ = lives.remove(&gone.life));
        // It was heard of until then: a connection that closes after a silence does not show that the process has exited.
        let (connection, beat) =
            (ConnectionId(gone.connection), ToScheduler::Heartbeat(MemberReport::default()));
        if self.engine.member_of(connection).is_some() {
            self.input(Input::Message { from: connection, message: beat });
        }
        self.input(Input::Closed { connection, fault: None });
    }

    /// Another scheduler: those that `come` say come with what they know, in this order; the others are dead.
    pub(super) fn restart(&mut self, dies: Option<usize>) {
        if let Some(at) = dies.filter(|at| *at < self.players.len()) {
            let gone = self.players.remove(at);
            self.data.values_mut().for_each(|lives| _ = lives.remove(&gone.life));
        }
        self.engine = Engine::new(self.config.clone(), self.now_ms);
        // Who is in no roster yet does not outlive its scheduler; and that may be news to others who lose one more.
        let before = self.players.len();
        self.players.retain(|player| !player.roster.is_empty());
        self.may_lose |= dies.is_some() || self.players.len() < before;
        let lives: BTreeSet<u64> = self.players.iter().map(|player| player.life).collect();
        self.data.values_mut().for_each(|has| has.retain(|life| lives.contains(life)));
        // A tensor that nobody has heard of any more was declared in vain.
        self.players.iter_mut().for_each(|player| player.undecided.lost());
        let shown = self.players.iter().flat_map(|player| player.show(self.config.shape).map.tensors);
        let known: BTreeSet<_> = shown.map(|spec| spec.key).collect();
        self.data.retain(|chunk, _| known.contains(&chunk.key));
        for life in lives {
            // Some are refused while others come.
            let Some(at) = self.players.iter().position(|player| player.life == life) else { continue };
            let connection = self.next;
            self.next += 1;
            let player = &mut self.players[at];
            player.connection = connection;
            player.inbox.clear();
            let resume = player.show(self.config.shape);
            let again = Register { resume: Some(resume.head()), ..register(player.id.role, player.life) };
            let from = ConnectionId(connection);
            self.input(Input::Message { from, message: ToScheduler::Register(again) });
            self.input(Input::Message { from, message: ToScheduler::Resuming { part: resume, last: true } });
        }
        let end_ms = self.now_ms + SILENCE_MS + 1;
        while self.now_ms < end_ms {
            self.now_ms = self.engine.next_tick_ms(self.now_ms).clamp(self.now_ms + 1, end_ms);
            self.input(Input::Tick);
        }
    }

    /// Everybody hears and answers everything, until nothing is left to do.
    pub(super) fn settle(&mut self) {
        for _ in 0..200 {
            let before = self.told;
            self.deliver_all();
            let lives: Vec<u64> = self.players.iter().map(|player| player.life).collect();
            for life in lives {
                let Some(at) = self.players.iter().position(|player| player.life == life) else { continue };
                self.answer(at);
                self.deliver_all();
                self.seed(at);
            }
            self.leave();
            if self.told == before {
                return;
            }
        }
        panic!("decisions do not end: {:?}", self.engine.declarations.shards);
    }

    /// Servers that wish to go and have nothing left go.
    fn leave(&mut self) {
        let draining = self.engine.members.servers().draining;
        let goes = |player: &&Player| {
            let own = player.id.rank;
            let holds = |range: &KeyRange| {
                range.server == own || range.backup == Some(own) || range.seeding == Some(own)
            };
            player.id.role == Role::Server && draining.contains(&own) && !player.map.ranges().any(holds)
        };
        let gone: Vec<u64> = self.players.iter().filter(goes).map(|player| player.connection).collect();
        for connection in gone {
            if self.engine.members.servers().there.len() > 1 {
                self.input(Input::Message { from: ConnectionId(connection), message: ToScheduler::Goodbye });
            }
        }
    }
}

fn chunks_of(range: &KeyRange) -> impl Iterator<Item = ChunkId> + use<> {
    let first = range.first;
    (0..range.chunks).map(move |at| ChunkId { chunk: ChunkIndex(first.chunk.0 + at), ..first })
}

pub(super) const CHUNK_BYTES: u64 = CHUNK;
