//! Whatever workers do that die, go, come and repeat: each contribution counts once, what was acknowledged is in its
//! round, and all rounds finish once nobody dies any more.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// By tensor (keys 1 and 2) two chunks each.
const CHUNKS: [(u64, u32); 4] = [(1, 0), (1, 1), (2, 0), (2, 1)];
/// Rounds that a worker contributes to before it waits for an answer.
const AHEAD_MAX: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Action {
    /// A worker has the next round of a tensor ready.
    Push {
        rank: u32,
        tensor: usize,
    },
    /// Its next operation on a chunk goes out: in the batch, or to be read.
    Send {
        rank: u32,
        chunk: usize,
        inline: bool,
    },
    Read,
    Flush,
    Break {
        rank: u32,
    },
    Die {
        rank: u32,
    },
    Return {
        rank: u32,
    },
    Leave {
        rank: u32,
    },
    Ask {
        rank: u32,
    },
    Name {
        rank: u32,
        later: u64,
    },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let rank = 0u32..4;
    let action = prop_oneof![
        8 => (rank.clone(), 0usize..2).prop_map(|(rank, tensor)| Action::Push { rank, tensor }),
        20 => (rank.clone(), 0usize..4, any::<bool>())
            .prop_map(|(rank, chunk, inline)| Action::Send { rank, chunk, inline }),
        5 => Just(Action::Read),
        8 => Just(Action::Flush),
        1 => rank.clone().prop_map(|rank| Action::Break { rank }),
        1 => rank.clone().prop_map(|rank| Action::Die { rank }),
        2 => rank.clone().prop_map(|rank| Action::Return { rank }),
        1 => rank.clone().prop_map(|rank| Action::Leave { rank }),
        2 => rank.clone().prop_map(|rank| Action::Ask { rank }),
        2 => (rank, 0u64..3).prop_map(|(rank, later)| Action::Name { rank, later }),
    ];
    prop::collection::vec(action, 0..400)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Gift {
    rank: u32,
    chunk: usize,
    round: u64,
}

#[derive(Clone, Copy, Debug)]
struct Sending {
    operation: u64,
    round: u64,
    sent: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Counts,
    Comes,
    Asked([u64; 2]),
    Gone,
}

#[derive(Clone, Debug)]
struct Player {
    state: State,
    /// By tensor, the next round that it contributes to.
    next: [u64; 2],
    /// By tensor, from which it counts.
    from: [u64; 2],
    operations: [u64; 4],
    /// By chunk, what is not answered.
    open: [VecDeque<Sending>; 4],
}

struct World {
    rig: Rig,
    players: Vec<Player>,
    left: BTreeSet<u32>,
    counter: u32,
    spills: BTreeMap<u32, Gift>,
    /// Reads under way: whose, of which chunk, into which spill block.
    reads: Vec<(u32, u32, u32)>,
    folded: [Vec<u32>; 4],
    /// By chunk, who contributed to each round; nobody, where all who counted in it died.
    rounds: [Vec<Vec<u32>>; 4],
}

impl World {
    fn new(workers: u32, loss: WorkerLoss) -> Self {
        let base = EngineConfig { worker_loss: loss, inbox_slots: 64, ..config(workers) };
        let mut rig = Rig::new(base);
        let specs = CHUNKS.map(|(key, chunk)| ChunkSpec { id: ChunkId::new(key, chunk), ..spec(key) });
        rig.engine.assign(Epoch { term: 1, counter: 1 }, &specs);
        let player = Player {
            state: State::Counts,
            next: [1; 2],
            from: [1; 2],
            operations: [0; 4],
            open: Default::default(),
        };
        let players = vec![player; workers as usize];
        let (spills, reads) = (BTreeMap::new(), Vec::new());
        let (folded, rounds) = (Default::default(), Default::default());
        let mut world =
            Self { rig, players, left: BTreeSet::new(), counter: 0, spills, reads, folded, rounds };
        world.announce();
        world
    }

    fn loss(&self) -> WorkerLoss {
        self.rig.config.worker_loss
    }

    /// The scheduler says who is there.
    fn announce(&mut self) {
        self.counter += 1;
        let is_there = |rank: &u32| self.players[*rank as usize].state != State::Gone;
        let present: Vec<u32> = (0..self.players.len() as u32).filter(is_there).collect();
        let left: Vec<u32> = self.left.iter().copied().collect();
        let commands = self.rig.roster(self.counter, &present, &left);
        self.observe(&commands, None);
    }

    fn gift(&mut self, from: Source, sent: Option<Gift>) -> Gift {
        match from {
            Source::Slot { .. } => sent.expect("a slot of the batch that is being decided"),
            Source::Spill(block) => self.spills[&block],
            Source::Worker { .. } | Source::Record { .. } => panic!("nothing lies there"),
        }
    }

    /// Does nobody who is there count in a round, and somebody in a later one? All who counted have died, or left when they had
    /// contributed to all rounds before it.
    fn is_vacant(&self, tensor: usize, round: u64) -> bool {
        let all = (0u32..).zip(&self.players);
        let is_awaited = |rank: u32| self.loss() == WorkerLoss::Wait && !self.left.contains(&rank);
        let counts = |(rank, player): (u32, &Player)| match player.state {
            State::Counts => player.from[tensor] <= round,
            State::Gone => is_awaited(rank) && player.from[tensor] <= round,
            State::Comes | State::Asked(_) => false,
        };
        !all.into_iter().any(counts)
    }

    fn fold(&mut self, chunk: u32, from: Source, sent: Option<Gift>) {
        let gift = self.gift(from, sent);
        let at = chunk as usize;
        while self.folded[at].is_empty() && (self.rounds[at].len() as u64) + 1 < gift.round {
            let round = self.rounds[at].len() as u64 + 1;
            assert!(self.is_vacant(at / 2, round), "{gift:?} without round {round}: {:?}", self.players);
            self.rounds[at].push(Vec::new());
        }
        assert_eq!((gift.chunk, gift.round), (at, self.rounds[at].len() as u64 + 1), "{gift:?}");
        assert!(!self.folded[at].contains(&gift.rank), "{gift:?} counts twice");
        self.folded[at].push(gift.rank);
    }

    fn observe(&mut self, commands: &[Command], sent: Option<Gift>) {
        for command in commands {
            match *command {
                Command::Reduce { chunk, addend } => self.fold(chunk, addend.from, sent),
                Command::Spill { from, to, .. } => {
                    let gift = self.gift(from, sent);
                    self.spills.insert(to, gift);
                }
                Command::Fetch { peer, chunk, to, .. } => {
                    self.spills.insert(to, sent.expect("what is read was sent"));
                    self.reads.push((peer.0, chunk, to));
                }
                Command::Finish { chunk, round, last, contributors, .. } => {
                    if let Some(last) = last {
                        self.fold(chunk, last.from, sent);
                    }
                    let at = chunk as usize;
                    let set = std::mem::take(&mut self.folded[at]);
                    assert_eq!((round, contributors), (self.rounds[at].len() as u64 + 1, set.len() as u32));
                    let in_order = set.windows(2).skip(1).all(|pair| pair[0] < pair[1]);
                    assert!(in_order && set.iter().skip(2).all(|rank| *rank > set[0]), "{set:?}");
                    self.rounds[at].push(set);
                }
                ref other => panic!("nothing else happens here: {other:?}"),
            }
        }
    }

    fn push(&mut self, rank: u32, tensor: usize) {
        let player = &mut self.players[rank as usize];
        let at = [2 * tensor, 2 * tensor + 1];
        let free = at.iter().all(|chunk| player.open[*chunk].len() < AHEAD_MAX);
        if player.state == State::Counts && free {
            let round = player.next[tensor];
            player.next[tensor] += 1;
            for chunk in at {
                player.operations[chunk] += 1;
                let operation = player.operations[chunk];
                player.open[chunk].push_back(Sending { operation, round, sent: false });
            }
        }
    }

    fn send(&mut self, rank: u32, chunk: usize, inline: bool) {
        let player = &mut self.players[rank as usize];
        if player.state == State::Gone || self.rig.held(rank) == 0 {
            return;
        }
        let Some(first_open) = player.open[chunk].front().map(|first| Operation(first.operation)) else {
            return;
        };
        let Some(next) = player.open[chunk].iter_mut().find(|sending| !sending.sent) else { return };
        next.sent = true;
        let (key, index) = CHUNKS[chunk];
        let mut block =
            Block { id: ChunkId::new(key, index), first_open, ..push(next.operation, next.round) };
        if !inline {
            block.data = BlockData::ByReference { region: REGION, offset: 0 };
        }
        let gift = Gift { rank, chunk, round: next.round };
        let commands = self.rig.send(rank, &[block]);
        self.observe(&commands, Some(gift));
    }

    fn read(&mut self) {
        if let Some((rank, chunk, spill)) = self.reads.pop() {
            let mut out = Commands::default();
            self.rig.engine.fetched(Rank(rank), chunk, spill, &mut out);
            self.observe(&out.list, None);
        }
    }

    fn flush(&mut self) {
        for (rank, result) in self.rig.flush_blocks() {
            let block = result.block;
            let at = (block.id.key.0, block.id.chunk.0);
            let chunk = CHUNKS.iter().position(|id| *id == at).expect("a chunk of ours");
            let open = &mut self.players[rank as usize].open[chunk];
            let Some(place) = open.iter().position(|sending| sending.operation == block.operation.0) else {
                panic!("answered twice: {block:?}");
            };
            match block.status {
                Status::Done => {
                    let round = open.remove(place).map_or(0, |sending| sending.round) as usize;
                    let set = &self.rounds[chunk][round - 1];
                    assert!(set.contains(&rank), "round {round} is acknowledged, and {rank} not in {set:?}");
                }
                Status::Late => {
                    let round = open.remove(place).map_or(0, |sending| sending.round);
                    let from = self.players[rank as usize].from[chunk / 2];
                    assert!(round < from, "{rank} counts in round {round}");
                }
                Status::Retry | Status::Granted => open[place].sent = false,
                status => panic!("{status:?} to {rank}: {block:?}"),
            }
        }
        self.rig.return_slots();
    }

    /// The channel is over: what was not read is not there, and what is open goes out again.
    fn cut(&mut self, rank: u32) {
        self.rig.down(Rank(rank));
        self.reads.retain(|(of, ..)| *of != rank);
        let player = &mut self.players[rank as usize];
        player.open.iter_mut().flatten().for_each(|sending| sending.sent = false);
    }

    fn others_count(&self, rank: u32) -> bool {
        let all = (0u32..).zip(&self.players);
        all.filter(|(other, player)| *other != rank && player.state == State::Counts).count() > 0
    }

    fn die(&mut self, rank: u32) {
        if self.players[rank as usize].state == State::Gone || !self.others_count(rank) {
            return;
        }
        // Who dies before it counts is not waited for, like those that left.
        if self.players[rank as usize].state != State::Counts {
            self.left.insert(rank);
        }
        self.cut(rank);
        self.rig.again(rank);
        let player = &mut self.players[rank as usize];
        (player.state, player.operations, player.open) = (State::Gone, [0; 4], Default::default());
        self.announce();
    }

    fn leave(&mut self, rank: u32) {
        let player = &self.players[rank as usize];
        let idle = player.open.iter().all(VecDeque::is_empty);
        if player.state == State::Counts && idle && self.others_count(rank) {
            self.left.insert(rank);
            self.die(rank);
        }
    }

    fn come(&mut self, rank: u32) {
        if self.players[rank as usize].state != State::Gone {
            return;
        }
        let waited_for = !self.left.remove(&rank) && self.loss() == WorkerLoss::Wait;
        self.players[rank as usize].state = if waited_for { State::Counts } else { State::Comes };
        if waited_for {
            let finished = |chunks: &[Vec<Vec<u32>>]| chunks.iter().map(Vec::len).min().unwrap_or(0) as u64;
            self.players[rank as usize].next =
                [finished(&self.rounds[..2]) + 1, finished(&self.rounds[2..]) + 1];
        }
        self.announce();
        self.rig.connect(rank);
    }

    fn ask(&mut self, rank: u32) {
        if self.players[rank as usize].state == State::Comes {
            let rounds = self.rig.ask_rounds(rank);
            let of = |key| rounds.iter().find(|(other, _)| *other == key).map_or(0, |(_, round)| *round);
            self.players[rank as usize].state = State::Asked([of(1), of(2)]);
        }
    }

    fn name(&mut self, rank: u32, later: u64) {
        let State::Asked(first) = self.players[rank as usize].state else { return };
        let from = [first[0] + later, first[1]];
        let player = &mut self.players[rank as usize];
        (player.state, player.next, player.from) = (State::Counts, from, from);
        let commands = self.rig.count_from(rank, &[(1, from[0]), (2, from[1])]);
        self.observe(&commands, None);
    }

    fn act(&mut self, action: Action) {
        let workers = self.players.len() as u32;
        match action {
            Action::Push { rank, tensor } => self.push(rank % workers, tensor),
            Action::Send { rank, chunk, inline } => self.send(rank % workers, chunk, inline),
            Action::Read => self.read(),
            Action::Flush => self.flush(),
            Action::Break { rank } => {
                let rank = rank % workers;
                if self.players[rank as usize].state != State::Gone {
                    self.cut(rank);
                    self.rig.connect(rank);
                }
            }
            Action::Die { rank } => self.die(rank % workers),
            Action::Return { rank } => self.come(rank % workers),
            Action::Leave { rank } => self.leave(rank % workers),
            Action::Ask { rank } => self.ask(rank % workers),
            Action::Name { rank, later } => self.name(rank % workers, later),
        }
    }

    /// Nobody dies any more: everybody who is there contributes up to the same round.
    fn settle(&mut self) {
        let workers = self.players.len() as u32;
        for rank in 0..workers {
            if self.loss() == WorkerLoss::Wait && !self.left.contains(&rank) {
                self.come(rank);
            }
            self.ask(rank);
            self.name(rank, 0);
        }
        let last =
            |tensor: usize| self.players.iter().map(|player| player.next[tensor]).max().unwrap_or(1) + 2;
        let last = [last(0), last(1)];
        let done = |world: &Self| {
            let done = |chunk: usize| world.rounds[chunk].len() as u64 >= last[chunk / 2];
            (0..4).all(done) && world.players.iter().all(|player| player.open.iter().all(VecDeque::is_empty))
        };
        for _ in 0..2_000 {
            if done(self) {
                return;
            }
            for rank in 0..workers {
                for (tensor, last) in last.into_iter().enumerate() {
                    if self.players[rank as usize].next[tensor] <= last {
                        self.push(rank, tensor);
                    }
                }
                (0..4).for_each(|chunk| self.send(rank, chunk, true));
                self.read();
                self.flush();
            }
        }
        let reached: Vec<usize> = self.rounds.iter().map(Vec::len).collect();
        panic!("rounds do not finish: {reached:?} of {last:?}, players {:?}", self.players);
    }
}

fn run(workers: u32, loss: WorkerLoss, actions: &[Action]) -> World {
    let mut world = World::new(workers, loss);
    actions.iter().for_each(|action| world.act(*action));
    world.settle();
    world
}

proptest! {
    #[test]
    fn each_contribution_counts_once_and_rounds_finish(workers in 2u32..5, waits: bool, actions in actions()) {
        let loss = if waits { WorkerLoss::Wait } else { WorkerLoss::Continue };
        let world = run(workers, loss, &actions);
        if waits && !actions.iter().any(|action| matches!(action, Action::Leave { .. })) {
            let all: BTreeSet<u32> = (0..workers).collect();
            for set in world.rounds.iter().flatten() {
                prop_assert_eq!(set.iter().copied().collect::<BTreeSet<_>>(), all.clone());
            }
        }
    }

    #[test]
    fn all_chunks_of_a_tensor_have_equal_sets_where_workers_leave_and_join_in_order(
        workers in 2u32..5,
        waits: bool,
        actions in actions(),
    ) {
        let orderly = |action: &Action| !matches!(action, Action::Die { .. });
        let actions: Vec<Action> = actions.into_iter().filter(orderly).collect();
        let loss = if waits { WorkerLoss::Wait } else { WorkerLoss::Continue };
        let world = run(workers, loss, &actions);
        let sets = |chunk: usize| world.rounds[chunk].iter().map(|set| set.iter().collect::<BTreeSet<_>>());
        for (one, other) in [(0, 1), (2, 3)] {
            prop_assert!(sets(one).eq(sets(other)), "{:?}", world.rounds);
        }
    }
}
