//! Random interleavings of several workers that keep the protocol, over channels that duplicate and break:
//! at most one contribution per (rank, round, chunk), rounds published exactly when all have contributed,
//! versions that only grow, no credit lost, and in the end everything answered.

use super::model::{Gift, Observer};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const KEYS: [u64; 2] = [1, 2];

#[derive(Clone, Debug)]
enum Action {
    Submit { rank: u32, chunk: u32, kind: u8 },
    Send { rank: u32, most: usize },
    Again { rank: u32 },
    Break { rank: u32 },
    Landed { at: prop::sample::Index },
    Idle { rank: u32 },
    Pass { ms: u64 },
}

fn actions(workers: u32) -> impl Strategy<Value = Vec<Action>> {
    let rank = 0..workers;
    let action = prop_oneof![
        8 => (rank.clone(), 0u32..2, 0u8..4).prop_map(|(rank, chunk, kind)| Action::Submit { rank, chunk, kind }),
        10 => (rank.clone(), 1usize..5).prop_map(|(rank, most)| Action::Send { rank, most }),
        2 => rank.clone().prop_map(|rank| Action::Again { rank }),
        1 => rank.clone().prop_map(|rank| Action::Break { rank }),
        4 => any::<prop::sample::Index>().prop_map(|at| Action::Landed { at }),
        1 => rank.prop_map(|rank| Action::Idle { rank }),
        1 => (0u64..400).prop_map(|ms| Action::Pass { ms }),
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
    last: Option<(SlotGrant, BatchHeader, Vec<Block>)>,
}

impl Trainer {
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
}

impl World {
    fn new(workers: u32, deterministic: bool, slots: u32, spills: u32) -> Self {
        let config =
            EngineConfig { deterministic, inbox_slots: slots, spill_blocks: spills, ..config(workers) };
        let mut rig = Rig::new(config);
        rig.engine.assign(Epoch::default(), &[spec(2)]);
        let trainers = (0..workers).map(|_| Trainer::default()).collect();
        Self { rig, observer: Observer::new(workers, deterministic, 2), trainers, order: 0, versions: [0; 2] }
    }

    fn submit(&mut self, rank: u32, chunk: u32, kind: u8) {
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
        let id = ChunkId::new(KEYS[at], 0);
        let made = Block { id, token: self.order, ..block(op, trainer.operations[at], trainer.rounds[at]) };
        trainer.unsent.insert((self.order, chunk), made);
    }

    fn send(&mut self, rank: u32, most: usize) {
        let trainer = &mut self.trainers[rank as usize];
        if trainer.unsent.is_empty() {
            return;
        }
        let Some(slot) = self.rig.workers[rank as usize].credits.pop_front() else {
            let commands = self.rig.notice(rank, Notice::Want(1));
            return self.settle(&commands);
        };
        let mut blocks = Vec::new();
        while let Some(((order, chunk), made)) = trainer.unsent.pop_first() {
            let offset = blocks.len() as u64 * BYTES;
            trainer.sent.insert((order, chunk), made);
            if made.op.contributes() {
                let gift = Gift { rank, round: made.round, chunk };
                self.observer.slots.insert((slot.slot, PAYLOAD + offset), gift);
            }
            blocks.push(Block { data: BlockData::Inline { offset }, ..made });
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
        self.rig.engine.peer_down(Rank(rank));
        self.rig.connect(rank);
        let trainer = &mut self.trainers[rank as usize];
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

    fn settle(&mut self, commands: &[Command]) {
        commands.iter().for_each(|command| self.observer.check(command));
        for (rank, result) in self.rig.flush_blocks() {
            self.take(rank, &result.block);
        }
        self.rig.return_slots();
        let held: usize = self.rig.workers.iter().map(|worker| worker.credits.len()).sum();
        let (free, total) = self.rig.engine.credits();
        assert!(free + held <= total, "a slot is granted twice");
        for (at, key) in KEYS.into_iter().enumerate() {
            let version = self.rig.engine.version(ChunkId::new(key, 0)).expect("assigned").0;
            assert!(version >= self.versions[at], "versions only grow");
            assert_eq!(version, self.observer.chunks[at].version, "published exactly when it is finished");
            self.versions[at] = version;
        }
    }

    fn take(&mut self, rank: u32, block: &Block) {
        let trainer = &mut self.trainers[rank as usize];
        let key = trainer.sent.keys().find(|(order, _)| *order == block.token).copied();
        let key = key.unwrap_or_else(|| panic!("answered twice, or never asked: {block:?}"));
        let made = trainer.sent.remove(&key).expect("found above");
        match block.status {
            Status::Done => assert!(block.round >= made.round, "{block:?} {made:?}"),
            Status::DeadlineWaiting | Status::DeadlineReading => {}
            Status::Retry => drop(trainer.back.insert(key, made)),
            other => panic!("{other:?} for {made:?}"),
        }
    }

    /// Everybody contributes to as many rounds as the fastest, and nothing disturbs any more.
    fn finish(&mut self) {
        let most =
            |world: &Self, chunk: usize| world.trainers.iter().map(|trainer| trainer.rounds[chunk]).max();
        let goal = [most(self, 0).unwrap_or(0), most(self, 1).unwrap_or(0)];
        let mut turns = 0;
        while self.trainers.iter().any(|trainer| trainer.rounds != goal) {
            for rank in 0..self.trainers.len() as u32 {
                for chunk in 0..2u32 {
                    let at = chunk as usize;
                    if self.trainers[rank as usize].rounds[at] < goal[at] {
                        self.submit(rank, chunk, 1);
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
    }

    /// Everybody sends all it has; everything lands.
    fn pass(&mut self) {
        for rank in 0..self.trainers.len() as u32 {
            let trainer = &mut self.trainers[rank as usize];
            trainer.unsent.append(&mut trainer.back);
            for _ in 0..32 {
                self.send(rank, 4); // Without a credit it only asks.
            }
            self.rig.give_back(rank);
        }
        while !self.observer.landings.is_empty() {
            self.land(0);
        }
    }

    fn play(&mut self, action: &Action) {
        match action {
            Action::Submit { rank, chunk, kind } => self.submit(*rank, *chunk, *kind),
            Action::Send { rank, most } => self.send(*rank, *most),
            Action::Again { rank } => self.again(*rank),
            Action::Break { rank } => self.reconnect(*rank),
            Action::Landed { at } => {
                if !self.observer.landings.is_empty() {
                    self.land(at.index(self.observer.landings.len()));
                }
            }
            Action::Idle { rank } => self.rig.give_back(*rank),
            Action::Pass { ms } => {
                self.trainers.iter_mut().for_each(|trainer| trainer.unsent.append(&mut trainer.back));
                self.rig.now_ms += ms;
                self.rig.engine.tick(self.rig.now_ms);
                self.settle(&[]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn rounds_are_exact_whatever_the_interleaving(
        (workers, actions) in (1u32..6).prop_flat_map(|workers| (Just(workers), actions(workers))),
        deterministic in prop::bool::weighted(0.8), slots in 2u32..8, spills in 1u32..6,
    ) {
        let mut world = World::new(workers, deterministic, slots, spills);
        for action in &actions {
            world.play(action);
        }
        world.finish();
        let rounds: u64 = world.versions.iter().sum();
        let stats = world.rig.engine.stats();
        prop_assert_eq!(stats.rounds, rounds);
        prop_assert_eq!(stats.contributions, rounds * u64::from(workers), "each contribution once");
        prop_assert_eq!(world.observer.applied() as u64, stats.contributions);
        for trainer in &world.trainers {
            prop_assert_eq!(trainer.rounds, world.versions, "a round for each contribution");
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
    }
}
