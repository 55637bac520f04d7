//! What an observer of the commands knows: which contribution lies in which slot or spill block, what each
//! chunk has folded, who reads which buffer. It checks every command against the promises of a round, or of the mode
//! in which each contribution is an update of its own.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

/// Whose contribution to which round of which chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gift {
    pub(super) rank: u32,
    pub(super) round: u64,
    pub(super) chunk: u32,
}

#[derive(Debug, Default)]
pub(super) struct ChunkView {
    pub(super) version: u64,
    buffer: u8,
    pins: [u32; 2],
    /// Ranks folded into the accumulator, in order.
    folded: Vec<u32>,
    /// By rank: the last contribution that is in force.
    pub(super) made: Vec<u64>,
    /// What was folded last, in a chunk whose contributions are updates of their own.
    applying: Option<Gift>,
    /// Rounds, or contributions, that did not fit.
    bad: BTreeSet<Gift>,
}

#[derive(Debug)]
pub(super) struct Observer {
    rules: Rules,
    pub(super) chunks: Vec<ChunkView>,
    /// What lies where in the slots of the batch that is being decided.
    pub(super) slots: BTreeMap<(u32, u64), Gift>,
    spills: BTreeMap<u32, Gift>,
    /// What lies in a worker's memory, by rank and remote offset.
    pub(super) referenced: BTreeMap<(u32, u64), Gift>,
    /// Reads under way: peer, chunk, spill block.
    pub(super) fetches: Vec<(u32, u32, u32)>,
    reading: Vec<Gift>,
    /// Landings under way: peer, chunk, buffer.
    pub(super) landings: Vec<(u32, u32, u8)>,
    /// Chunks whose values storage is to judge, each with the buffer that they go to.
    pub(super) judged: Vec<(u32, u8)>,
    /// Every contribution that went into some round: at most once each.
    applied: BTreeSet<Gift>,
}

/// What holds for all chunks of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) workers: u32,
    pub(super) deterministic: bool,
    pub(super) mode: Mode,
    pub(super) backup_workers: u32,
    pub(super) integers: bool,
}

impl Rules {
    /// Contributions that make a version.
    pub(super) fn needed(&self) -> u32 {
        if self.mode.has_rounds() { self.workers - self.backup_workers } else { 1 }
    }
}

impl Observer {
    pub(super) fn new(rules: Rules, chunks: usize) -> Self {
        let view = || ChunkView { made: vec![0; rules.workers as usize], ..ChunkView::default() };
        Self {
            rules,
            chunks: (0..chunks).map(|_| view()).collect(),
            judged: Vec::new(),
            slots: BTreeMap::new(),
            spills: BTreeMap::new(),
            referenced: BTreeMap::new(),
            fetches: Vec::new(),
            reading: Vec::new(),
            landings: Vec::new(),
            applied: BTreeSet::new(),
        }
    }

    pub(super) fn applied(&self) -> usize {
        self.applied.len()
    }

    pub(super) fn check(&mut self, command: &Command) {
        match *command {
            Command::Reduce { chunk, addend } => self.fold(chunk, addend),
            Command::Finish { chunk, round, last, old, into, contributors } => {
                if let Some(last) = last {
                    self.fold(chunk, last);
                }
                let view = &self.chunks[chunk as usize];
                assert_eq!(old, view.buffer);
                assert_eq!(round, view.version + 1, "rounds are counted from 1");
                self.finish(chunk, into, contributors);
            }
            Command::Spill { chunk, from, to } => {
                let gift = self.gift(from);
                assert_eq!(gift.chunk, chunk);
                let before = self.spills.insert(to, gift);
                assert!(before.is_none_or(|gift| self.is_over(gift)), "spill block {to} holds {before:?}");
            }
            Command::Fetch { peer, chunk, region, offset, to } => {
                self.fetch(peer.0, chunk, (region, offset), to);
            }
            Command::Land { peer, chunk, buffer, .. } => {
                let view = &mut self.chunks[chunk as usize];
                assert_eq!(buffer, view.buffer, "only the version in force lands");
                view.pins[usize::from(buffer)] += 1;
                self.landings.push((peer.0, chunk, buffer));
            }
            Command::Init { chunk, into, .. } => {
                let view = &mut self.chunks[chunk as usize];
                assert_eq!((view.version, view.pins[usize::from(into)]), (0, 0));
                view.buffer = into;
            }
            Command::Prepare { chunk, last, old, .. } => {
                assert_eq!(old, self.chunks[chunk as usize].buffer);
                if let Some(last) = last {
                    self.fold(chunk, last);
                }
            }
            Command::Norms { ref chunks } => {
                let all = || chunks.clone().map(|chunk| &self.chunks[chunk as usize]);
                let rounds: BTreeSet<u64> = all().map(|view| view.version).collect();
                assert_eq!(rounds.len(), 1, "norms of one round");
                assert!(all().all(|view| view.folded.len() as u32 == self.rules.needed()));
            }
            Command::Results { .. } | Command::Notice { .. } | Command::Size { .. } => {}
            Command::Relieve { .. } => panic!("nobody asks for it: {command:?}"),
            Command::CallTake(..)
            | Command::CallDeliver { .. }
            | Command::CallCancel { .. }
            | Command::CallLand { .. }
            | Command::CallDrop { .. } => panic!("nobody calls: {command:?}"),
            Command::Capture { .. }
            | Command::Record { .. }
            | Command::TellPrimary { .. }
            | Command::TakeSum { .. }
            | Command::TakePart { .. }
            | Command::Load { .. }
            | Command::TakeRules { .. }
            | Command::EndStream { .. }
            | Command::Free { .. }
            | Command::Seeded { .. } => panic!("there are no copies: {command:?}"),
            Command::Expel { .. } => panic!("workers that keep the protocol are not expelled: {command:?}"),
        }
    }

    fn gift(&mut self, from: Source) -> Gift {
        match from {
            Source::Slot { slot, offset } => self.slots[&(slot, offset)],
            Source::Spill(block) => self.spills.remove(&block).expect("a spill block that holds something"),
            Source::Record { .. } => panic!("there are no copies"),
            Source::Worker { peer, offset, region, .. } => {
                assert_eq!(region, REGION);
                self.referenced[&(peer.0, offset)]
            }
        }
    }

    /// Has its round ended without it? Then it is dropped from wherever it lies.
    fn is_over(&self, gift: Gift) -> bool {
        let view = &self.chunks[gift.chunk as usize];
        let is_complete = view.folded.len() as u32 == self.rules.needed();
        self.rules.backup_workers > 0
            && !self.applied.contains(&gift)
            && gift.round <= view.version + u64::from(is_complete)
    }

    /// Did this contribution not fit, or the round that it is in?
    pub(super) fn is_bad(&self, gift: Gift) -> bool {
        self.chunks[gift.chunk as usize].bad.contains(&gift)
    }

    pub(super) fn has_applied(&self, gift: Gift) -> bool {
        self.applied.contains(&gift)
    }

    pub(super) fn is_reading(&self, gift: Gift) -> bool {
        self.reading.contains(&gift)
    }

    fn fetch(&mut self, rank: u32, chunk: u32, (region, offset): (u64, u64), to: u32) {
        let gift = self.referenced[&(rank, offset)];
        assert_eq!((gift.rank, gift.chunk, region), (rank, chunk, REGION));
        assert!(self.fetches.iter().all(|(.., block)| *block != to), "two reads into one block");
        let held = self.spills.remove(&to);
        assert!(held.is_none_or(|gift| self.is_over(gift)), "spill block {to} is in use");
        self.fetches.push((rank, chunk, to));
        self.reading.push(gift);
    }

    /// A read is done: only now its block holds something.
    pub(super) fn fetched(&mut self, at: usize) -> (u32, u32, u32) {
        let (read, gift) = (self.fetches.remove(at), self.reading.remove(at));
        let before = self.spills.insert(read.2, gift);
        assert!(before.is_none(), "spill block {} holds {before:?}", read.2);
        read
    }

    /// The worker writes a contribution into the block that it was granted.
    /// Not if it came before: then it must not be folded from there.
    pub(super) fn place(&mut self, block: u32, gift: Gift) {
        if self.applied.contains(&gift) || self.spills.iter().any(|(at, held)| *at != block && *held == gift)
        {
            return;
        }
        let before = self.spills.insert(block, gift);
        let may = |before: Gift| before == gift || self.is_over(before);
        assert!(before.is_none_or(may), "written over {before:?}, which was not folded");
    }

    /// What was written into a block is not taken: something else may be written there.
    pub(super) fn untaken(&mut self, block: u32) {
        self.spills.remove(&block);
    }

    /// The worker's channel is gone, with what was being read over it and what was written and not taken.
    pub(super) fn gone(&mut self, rank: u32, untaken: &[u32]) {
        while let Some(at) = self.fetches.iter().position(|(peer, ..)| *peer == rank) {
            self.fetches.remove(at);
            self.reading.remove(at);
        }
        untaken.iter().for_each(|block| self.untaken(*block));
    }

    fn fold(&mut self, chunk: u32, Addend { from, onto }: Addend) {
        if let Onto::First(first) = onto {
            assert!(matches!(first, Source::Worker { .. }), "only there it is nobody else's");
            self.fold(chunk, Addend { from: first, onto: Onto::Nothing });
        }
        let gift = self.gift(from);
        let view = &mut self.chunks[chunk as usize];
        let made = view.made[gift.rank as usize];
        let round = if self.rules.mode.has_rounds() { view.version } else { made } + 1;
        assert_eq!(
            (gift.chunk, gift.round),
            (chunk, round),
            "folded into its own round, or in its own order"
        );
        view.applying = Some(gift);
        assert_eq!(onto == Onto::Nothing, view.folded.is_empty());
        view.folded.push(gift.rank);
        assert!(self.applied.insert(gift), "{gift:?} is applied twice");
        if self.rules.deterministic && self.rules.mode.has_rounds() {
            let mut order = view.folded.clone();
            if order.len() > 1 {
                order[..2].sort_unstable();
            }
            let expected: Vec<u32> = (0..order.len() as u32).collect();
            assert!(order == expected || order == [1], "folded in rank order: {:?}", view.folded);
        }
    }

    fn finish(&mut self, chunk: u32, into: u8, contributors: u32) {
        let needed = self.rules.needed();
        let view = &mut self.chunks[chunk as usize];
        assert_eq!((view.folded.len() as u32, contributors), (needed, needed));
        assert_eq!(view.pins[usize::from(into)], 0, "a buffer that is being read is not written");
        if self.rules.integers {
            self.judged.push((chunk, into));
        } else {
            self.publish(chunk, into, true);
        }
    }

    /// What was finished is in force, or did not fit.
    pub(super) fn publish(&mut self, chunk: u32, into: u8, fits: bool) {
        let view = &mut self.chunks[chunk as usize];
        view.version += 1;
        if let Some(gift) = view.applying.take() {
            for rank in view.folded.drain(..) {
                view.made[rank as usize] = gift.round;
                if !fits {
                    view.bad.insert(Gift { rank, ..gift });
                }
            }
        }
        if fits {
            view.buffer = into;
        }
    }

    /// A landing is done, or dropped with its channel.
    pub(super) fn landed(&mut self, at: usize) -> (u32, u32, u8) {
        let (peer, chunk, buffer) = self.landings.swap_remove(at);
        self.chunks[chunk as usize].pins[usize::from(buffer)] -= 1;
        (peer, chunk, buffer)
    }
}
