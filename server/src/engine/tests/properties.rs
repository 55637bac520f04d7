//! Random interleavings of several workers that keep the protocol, over channels that duplicate and break, with
//! payloads that travel in every way:
//! at most one contribution per (rank, round, chunk), rounds published exactly when all have contributed (or all but the
//! backup workers), versions that only grow, no credit lost, and in the end everything answered. Outside mode sync: each
//! contribution in force once and in its worker's order, weights with their reader's own contributions in them, and none
//! further ahead of the slowest worker than the bound.

use super::model::{Gift, Observer, Rules};
use super::*;
use proptest::prelude::*;
use proto_common::optimizer::Lamb;
use std::collections::BTreeMap;

/// Chunks of two tensors, or of one whose chunks finish together.
fn ids(norms: bool) -> [ChunkId; 2] {
    if norms { [ChunkId::new(1, 0), ChunkId::new(1, 1)] } else { [ChunkId::new(1, 0), ChunkId::new(2, 0)] }
}

#[derive(Clone, Debug)]
enum Action {
    Submit { rank: u32, chunk: u32, kind: u8, way: Way },
    Send { rank: u32, most: usize },
    Again { rank: u32 },
    Break { rank: u32 },
    Landed { at: prop::sample::Index },
    Fetched { at: prop::sample::Index },
    Idle { rank: u32 },
    Pass { ms: u64 },
}

/// How a contribution travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Slot,
    Reference,
    Write { keep: bool },
}

fn way() -> impl Strategy<Value = Way> {
    let ways = [Way::Slot, Way::Reference, Way::Write { keep: false }, Way::Write { keep: true }];
    prop::sample::select(ways.to_vec())
}

/// A worker's right to a block, as far as it knows.
#[derive(Clone, Copy, Debug)]
struct Grant {
    block: u32,
    keep: bool,
}

fn actions(workers: u32) -> impl Strategy<Value = Vec<Action>> {
    let rank = 0..workers;
    let action = prop_oneof![
        8 => (rank.clone(), 0u32..2, 0u8..4, way())
            .prop_map(|(rank, chunk, kind, way)| Action::Submit { rank, chunk, kind, way }),
        10 => (rank.clone(), 1usize..5).prop_map(|(rank, most)| Action::Send { rank, most }),
        2 => rank.clone().prop_map(|rank| Action::Again { rank }),
        1 => rank.clone().prop_map(|rank| Action::Break { rank }),
        4 => any::<prop::sample::Index>().prop_map(|at| Action::Landed { at }),
        4 => any::<prop::sample::Index>().prop_map(|at| Action::Fetched { at }),
        1 => rank.prop_map(|rank| Action::Idle { rank }),
        // Up to beyond the deadline, so that operations end in mid-read.
        1 => (0u64..1_200).prop_map(|ms| Action::Pass { ms }),
    ];
    prop::collection::vec(action, 1..150)
}

/// Operations of one worker by (chunk, number): not sent (again), or sent and not answered.
#[derive(Debug, Default)]
struct Trainer {
    unsent: BTreeMap<(u64, u32), Block>,
    /// Sent back: not sent again before some time has passed, so that the others get their turn.
    back: BTreeMap<(u64, u32), Block>,
    sent: BTreeMap<(u64, u32), Block>,
    operations: [u64; 2],
    rounds: [u64; 2],
    /// The newest version it was told of.
    told: [u64; 2],
    /// By order of the operation.
    ways: BTreeMap<u64, Way>,
    /// By chunk: an announcement that is not answered, so that nothing of the chunk is sent.
    asked: [Option<u64>; 2],
    /// By chunk: a block that may be written.
    grants: [Option<Grant>; 2],
    /// Operations whose payload lies in a block, and which.
    placed: BTreeMap<u64, Grant>,
    last: Option<(SlotGrant, BatchHeader, Vec<Block>)>,
}

impl Trainer {
    /// The first operation that may be sent.
    fn next(&self) -> Option<(u64, u32)> {
        self.unsent.keys().find(|(_, chunk)| self.asked[*chunk as usize].is_none()).copied()
    }

    /// The channel is gone, with all grants.
    fn forget_grants(&mut self) -> Vec<u32> {
        (self.asked, self.placed) = ([None; 2], BTreeMap::new());
        std::mem::take(&mut self.grants).into_iter().flatten().map(|grant| grant.block).collect()
    }

    fn idle(&self) -> bool {
        self.unsent.is_empty() && self.back.is_empty() && self.sent.is_empty()
    }
}

struct World {
    rig: Rig,
    observer: Observer,
    trainers: Vec<Trainer>,
    /// Operations in the order they were made, for fairness of sending.
    order: u64,
    versions: [u64; 2],
    passes: u64,
    norms: bool,
    rules: Rules,
    /// Operations that were told that they came too late, one a chunk.
    late: u64,
}

impl World {
    fn new(rules: Rules, (norms, in_place): (bool, bool), (slots, spills): (u32, u32)) -> Self {
        let Rules { workers, deterministic, mode, backup_workers, integers } = rules;
        let config =
            EngineConfig { deterministic, inbox_slots: slots, spill_blocks: spills, ..config(workers) };
        let mut rig = Rig::with(config, in_place);
        let lamb = Optimizer::mean(Lamb::default(), 0.1);
        let optimizer = if norms { lamb } else { Optimizer::sum() };
        let dtype = if integers { Dtype::I32 } else { Dtype::F32 };
        let spec = ChunkSpec { optimizer, dtype, mode, backup_workers, ..spec(1) };
        rig.engine = LaneEngine::new(config);
        rig.engine.assign(Epoch::default(), &ids(norms).map(|id| ChunkSpec { id, ..spec }));
        (0..workers).for_each(|rank| rig.connect(rank));
        let trainers = (0..workers).map(|_| Trainer::default()).collect();
        let observer = Observer::new(rules, 2);
        Self { rig, observer, trainers, order: 0, versions: [0; 2], passes: 0, norms, rules, late: 0 }
    }

    fn submit(&mut self, rank: u32, chunk: u32, kind: u8, way: Way) {
        let trainer = &mut self.trainers[rank as usize];
        let at = chunk as usize;
        let op = [OpKind::Push, OpKind::PushPull, OpKind::PushPull, OpKind::Pull][usize::from(kind)];
        // As the worker's engine does: only so many operations of one chunk are under way.
        let under_way = trainer
            .unsent
            .keys()
            .chain(trainer.sent.keys())
            .chain(trainer.back.keys())
            .filter(|(_, c)| *c == chunk)
            .count();
        if under_way >= 4 {
            return;
        }
        trainer.operations[at] += 1;
        trainer.rounds[at] += u64::from(op.contributes());
        self.order += 1;
        trainer.ways.insert(self.order, way);
        let id = ids(self.norms)[at];
        let dtype = if self.rules.integers { Dtype::I32 } else { Dtype::F32 };
        let made = block(op, trainer.operations[at], trainer.rounds[at]);
        // Where it lands says whose operation it is.
        let landing = made.landing.map(|landing| Landing { offset: self.order, ..landing });
        let made = Block { id, dtype, landing, token: self.order, ..made };
        trainer.unsent.insert((self.order, chunk), made);
    }

    fn send(&mut self, rank: u32, most: usize) {
        let trainer = &mut self.trainers[rank as usize];
        if trainer.next().is_none() {
            return;
        }
        let Some(slot) = self.rig.workers[rank as usize].credits.pop_front() else {
            let commands = self.rig.notice(rank, Notice::Want(1));
            return self.settle(&commands);
        };
        let mut blocks = Vec::new();
        while let Some((order, chunk)) = trainer.next() {
            let made = trainer.unsent.remove(&(order, chunk)).expect("just found");
            trainer.sent.insert((order, chunk), made);
            let mut data = BlockData::Inline { offset: blocks.len() as u64 * BYTES };
            if made.op.contributes() {
                data = travel(trainer, &mut self.observer, (rank, order, chunk), &made, (slot.slot, data));
            }
            blocks.push(Block { data, ..made });
            if blocks.len() == most {
                break;
            }
        }
        let header = BatchHeader { wanted: trainer.unsent.len() as u16, ..self.rig.header(rank) };
        trainer.last = Some((slot, header, blocks.clone()));
        let commands = self.rig.deliver(rank, slot, &header, &blocks, &[]);
        self.settle(&commands);
    }

    fn again(&mut self, rank: u32) {
        if let Some((slot, header, blocks)) = self.trainers[rank as usize].last.clone() {
            let commands = self.rig.deliver(rank, slot, &header, &blocks, &[]);
            assert_eq!(commands, [], "a repeated batch does nothing");
        }
    }

    /// The channel breaks: landings and results under way are lost; everything unanswered goes out again.
    fn reconnect(&mut self, rank: u32) {
        while let Some(at) = self.observer.landings.iter().position(|(peer, ..)| *peer == rank) {
            self.land(at);
        }
        self.rig.down(Rank(rank));
        self.rig.connect(rank);
        let trainer = &mut self.trainers[rank as usize];
        let untaken = trainer.forget_grants();
        self.observer.gone(rank, &untaken);
        trainer.last = None;
        let sent = std::mem::take(&mut trainer.sent);
        trainer.unsent.extend(sent);
        trainer.unsent.append(&mut trainer.back);
        self.settle(&[]);
    }

    fn land(&mut self, at: usize) {
        let (peer, chunk, buffer) = self.observer.landed(at);
        let mut out = Commands::default();
        self.rig.engine.landed(Rank(peer), chunk, buffer, &mut out);
        self.settle(&out.list);
    }

    fn fetch(&mut self, at: usize) {
        let (peer, chunk, block) = self.observer.fetched(at);
        let mut out = Commands::default();
        self.rig.engine.fetched(Rank(peer), chunk, block, &mut out);
        self.settle(&out.list);
    }

    fn settle(&mut self, commands: &[Command]) {
        for command in commands {
            self.observer.check(command);
            if let Command::Land { peer, landing, .. } = command {
                let sent = &self.trainers[peer.0 as usize].sent;
                let made = sent.iter().find(|((order, _), _)| *order == landing.offset);
                let ((_, chunk), made) = made.expect("only what was asked for lands");
                self.check_bound(peer.0, *chunk, made.count.round());
            }
        }
        while let Some((chunk, into)) = self.observer.judged.pop() {
            let fits = !(self.observer.chunks[chunk as usize].version + 1).is_multiple_of(3);
            self.observer.publish(chunk, into, fits);
            let verdict = if fits { Verdict::Fits } else { Verdict::BadValue };
            let mut out = Commands::default();
            self.rig.engine.finished(chunk, verdict, &mut out);
            self.settle(&out.list);
        }
        for (rank, result) in self.rig.flush_blocks() {
            self.take(rank, &result);
        }
        self.rig.return_slots();
        let held: usize = self.rig.workers.iter().map(|worker| worker.credits.len()).sum();
        let (free, total) = self.rig.engine.credits();
        assert!(free + held <= total, "a slot is granted twice");
        for (at, id) in ids(self.norms).into_iter().enumerate() {
            let version = self.rig.engine.version(id).expect("assigned").0;
            assert!(version >= self.versions[at], "versions only grow");
            assert_eq!(version, self.observer.chunks[at].version, "published exactly when it is finished");
            self.versions[at] = version;
        }
    }

    /// Weights that a worker gets, or is told of, have its own contributions in them and, of each other worker, all but as
    /// many as the bound says.
    fn check_bound(&self, rank: u32, chunk: u32, round: u64) {
        let made = &self.observer.chunks[chunk as usize].made;
        let bound = match self.rules.mode {
            Mode::Sync => return,
            Mode::Bounded(bound) => u64::from(bound),
            Mode::Async => u64::MAX,
        };
        assert!(made[rank as usize] >= round, "worker {rank} reads what it wrote: {made:?}, {round}");
        let least = made.iter().min().expect("there are workers");
        assert!(*least >= round.saturating_sub(bound), "bound {bound}: {made:?}, {rank} is at {round}");
    }

    fn take(&mut self, rank: u32, result: &ResultBlock) {
        let block = &result.block;
        let trainer = &mut self.trainers[rank as usize];
        let key = trainer.sent.keys().find(|(order, _)| *order == block.token).copied();
        let key = key.unwrap_or_else(|| panic!("answered twice, or never asked: {block:?}"));
        let made = trainer.sent.remove(&key).expect("found above");
        let (order, chunk) = key;
        let placed = trainer.placed.remove(&order);
        trainer.asked[chunk as usize].take_if(|asked| *asked == order);
        if let Some(placed) = placed.filter(|_| block.status == Status::Retry) {
            self.observer.untaken(placed.block);
        }
        if block.status == Status::Retry
            || (matches!(block.status, Status::Done | Status::Late) && placed.is_some_and(|p| p.keep))
        {
            // As it was before; after a deadline the contribution may still lie there.
            trainer.grants[chunk as usize] = trainer.grants[chunk as usize].or(placed);
        }
        // A pull's own memory is never read, whatever the contribution before it waits for.
        if made.op.contributes() && block.status != Status::Retry && block.status != Status::Granted {
            let gift = Gift { rank, round: made.count.round(), chunk };
            assert!(!self.observer.is_reading(gift), "memory that is being read is given up: {made:?}");
            self.observer.referenced.remove(&(rank, order));
        }
        match block.status {
            Status::Granted => {
                let keep = trainer.ways[&order] == Way::Write { keep: true };
                match result.place {
                    Some(Place::Spill(block)) => {
                        trainer.grants[chunk as usize] = Some(Grant { block, keep });
                    }
                    Some(other) => panic!("granted: {other:?}"),
                    None => drop(trainer.ways.insert(order, Way::Slot)),
                }
                trainer.unsent.insert(key, made);
            }
            Status::Done | Status::BadValue | Status::Late => {
                let gift = Gift { rank, round: made.count.round(), chunk };
                assert!(block.count.round() >= trainer.told[chunk as usize], "versions only grow");
                trainer.told[chunk as usize] = block.count.round();
                if self.rules.backup_workers > 0 {
                    let rounds = &mut trainer.rounds[chunk as usize];
                    *rounds = (*rounds).max(block.count.round());
                }
                let contributes = made.op.contributes();
                let bad = contributes && self.observer.is_bad(gift);
                let late = contributes && !self.observer.has_applied(gift);
                let expected = if late {
                    Status::Late
                } else if bad {
                    Status::BadValue
                } else {
                    Status::Done
                };
                assert_eq!(block.status, expected, "{made:?}");
                self.late += u64::from(late);
                match self.rules.mode {
                    Mode::Sync => assert!(block.count.round() >= made.count.round(), "{block:?} {made:?}"),
                    _ => self.check_bound(rank, chunk, made.count.round()),
                }
            }
            Status::DeadlineWaiting | Status::DeadlineReading => {}
            Status::DeadlineBehind => assert!(matches!(self.rules.mode, Mode::Bounded(_))),
            Status::Retry => drop(trainer.back.insert(key, made)),
            other => panic!("{other:?} for {made:?}"),
        }
    }

    /// Everybody contributes to as many rounds as the fastest, and nothing disturbs any more.
    fn finish(&mut self) {
        let most =
            |world: &Self, chunk: usize| world.trainers.iter().map(|trainer| trainer.rounds[chunk]).max();
        let mut goal = [most(self, 0).unwrap_or(0), most(self, 1).unwrap_or(0)];
        if self.norms {
            goal = [goal[0].max(goal[1]); 2];
        }
        let mut turns = 0;
        while self.trainers.iter().any(|trainer| trainer.rounds != goal) {
            for rank in 0..self.trainers.len() as u32 {
                for chunk in 0..2u32 {
                    let at = chunk as usize;
                    if self.trainers[rank as usize].rounds[at] < goal[at] {
                        self.submit(rank, chunk, 1, Way::Slot);
                    }
                }
            }
            self.pass();
            turns += 1;
            assert!(turns < 1_000, "cannot contribute any more: {:?}", self.trainers);
        }
        let mut turns = 0;
        while self.trainers.iter().any(|trainer| !trainer.idle()) {
            self.pass();
            turns += 1;
            assert!(turns < 1_000, "not answered: {:?}", self.trainers);
        }
        // What deadlines ended may still be on its way.
        self.pass();
        self.pass();
    }

    /// Everybody sends all it has; everything lands.
    fn pass(&mut self) {
        self.passes += 1;
        for rank in 0..self.trainers.len() as u32 {
            let trainer = &mut self.trainers[rank as usize];
            // Every other time, as workers wait with the chunk of what was sent back: it may be the other one that is
            // waited for, and there may be a credit for one batch only.
            if self.passes.is_multiple_of(2) {
                trainer.unsent.append(&mut trainer.back);
            }
            for _ in 0..32 {
                self.send(rank, 4); // Without a credit it only asks.
            }
            self.rig.give_back(rank);
        }
        while !self.observer.fetches.is_empty() {
            self.fetch(0);
        }
        while !self.observer.landings.is_empty() {
            self.land(0);
        }
    }

    fn play(&mut self, action: &Action) {
        match action {
            Action::Submit { rank, chunk, kind, way } => self.submit(*rank, *chunk, *kind, *way),
            Action::Send { rank, most } => self.send(*rank, *most),
            Action::Again { rank } => self.again(*rank),
            Action::Break { rank } => self.reconnect(*rank),
            Action::Landed { at } => {
                if !self.observer.landings.is_empty() {
                    self.land(at.index(self.observer.landings.len()));
                }
            }
            Action::Fetched { at } => {
                if !self.observer.fetches.is_empty() {
                    self.fetch(at.index(self.observer.fetches.len()));
                }
            }
            Action::Idle { rank } => self.rig.give_back(*rank),
            Action::Pass { ms } => {
                self.trainers.iter_mut().for_each(|trainer| trainer.unsent.append(&mut trainer.back));
                self.rig.now_ms += ms;
                let commands = self.rig.time();
                self.settle(&commands);
            }
        }
    }
}

/// Where a contribution's payload is said to be, and put.
fn travel(
    trainer: &mut Trainer,
    observer: &mut Observer,
    (rank, order, chunk): (u32, u64, u32),
    made: &Block,
    (slot, inline): (u32, BlockData),
) -> BlockData {
    let gift = Gift { rank, round: made.count.round(), chunk };
    let occupied = trainer.sent.keys().any(|(other, at)| *at == chunk && trainer.placed.contains_key(other));
    match trainer.ways[&order] {
        Way::Reference => {
            observer.referenced.insert((rank, order), gift);
            BlockData::ByReference { region: REGION, offset: order }
        }
        Way::Write { keep } if !occupied => match trainer.grants[chunk as usize].take() {
            Some(grant) => {
                observer.place(grant.block, gift);
                trainer.placed.insert(order, grant);
                BlockData::Placed
            }
            None => {
                trainer.asked[chunk as usize] = Some(order);
                BlockData::Announced { keep }
            }
        },
        Way::Slot | Way::Write { .. } => {
            let BlockData::Inline { offset } = inline else { return inline };
            observer.slots.insert((slot, PAYLOAD + offset), gift);
            inline
        }
    }
}

fn modes() -> impl Strategy<Value = (Mode, u32)> {
    prop_oneof![
        3 => Just((Mode::Sync, 0)),
        2 => (1u32..5).prop_map(|backup| (Mode::Sync, backup)),
        2 => (0u32..4).prop_map(|bound| (Mode::Bounded(bound), 0)),
        2 => Just((Mode::Async, 0)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]
    #[test]
    fn rounds_are_exact_whatever_the_interleaving(
        (workers, actions) in (1u32..6).prop_flat_map(|workers| (Just(workers), actions(workers))),
        ordered in prop::bool::weighted(0.8), together in prop::bool::weighted(0.3),
        slots in 2u32..8, spills in 1u32..6, in_place: bool,
        (mode, backup) in modes(), integers in prop::bool::weighted(0.3),
    ) {
        let backup_workers = backup.min(workers - 1);
        let deterministic = ordered && backup_workers == 0;
        let norms = together && mode == Mode::Sync;
        let integers = integers && !norms;
        let rules = Rules { workers, deterministic, mode, backup_workers, integers };
        let mut world = World::new(rules, (norms, in_place), (slots, spills));
        for action in &actions {
            world.play(action);
        }
        world.finish();
        let versions: u64 = world.versions.iter().sum();
        let stats = world.rig.engine.stats();
        prop_assert_eq!(stats.rounds, versions);
        prop_assert_eq!(stats.newest, world.versions.iter().copied().max().unwrap_or(0), "not their sum");
        prop_assert_eq!(stats.contributions, versions * u64::from(rules.needed()), "each contribution once");
        prop_assert_eq!(world.observer.applied() as u64, stats.contributions);
        prop_assert!(stats.late >= world.late && (backup_workers > 0 || stats.late == 0));
        for trainer in &world.trainers {
            for (chunk, rounds) in trainer.rounds.into_iter().enumerate() {
                let of_all = if mode.has_rounds() { 1 } else { u64::from(workers) };
                prop_assert_eq!(rounds * of_all, world.versions[chunk], "a version for each contribution, or round");
            }
        }
        for rank in 0..workers {
            world.rig.give_back(rank);
        }
        world.rig.flush();
        for rank in 0..workers {
            world.rig.give_back(rank);
        }
        prop_assert_eq!(world.rig.engine.credits(), (slots as usize, slots as usize), "no credit is lost");
        prop_assert_eq!(world.rig.engine.spills().0, 0);
        for rank in 0..workers {
            world.rig.down(Rank(rank));
        }
        prop_assert_eq!(world.rig.engine.key_buffers(), 0, "grants end with their channels");
        prop_assert_eq!(world.rig.engine.spills().0, 0);
    }
}
