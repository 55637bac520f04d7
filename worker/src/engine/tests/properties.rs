//! Random operations, with payloads that travel in every way, against servers that keep the protocol, answer in any
//! order, cannot take everything at once, whose channels break, and who take chunks over from each other, before or after the
//! worker hears of it: each operation ends once, chunks stay FIFO and are under way to one server at a time, credits are used
//! once and all come back.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Debug)]
enum Action {
    Submit {
        key: u64,
        kind: u8,
        priority: i32,
        placement: Placement,
    },
    Flush {
        batches: usize,
    },
    /// A server decides about the oldest batch that it has; it takes no more than this many of its blocks.
    Take {
        server: usize,
        most: usize,
    },
    Answer {
        server: usize,
        at: prop::sample::Index,
        grant: bool,
    },
    Break {
        server: usize,
    },
    /// A chunk goes to a server; the worker hears of it later.
    Move {
        id: ChunkId,
        server: usize,
    },
    /// The worker hears of the oldest move that it does not know.
    Learn,
    /// A server dies: the other one has all of its chunks, and the worker hears of it.
    Die {
        server: usize,
    },
    Pass {
        ms: u64,
    },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let server = 0usize..2;
    let action = prop_oneof![
        6 => (1u64..6, 0u8..3, -2i32..3, prop::sample::select(PLACEMENTS.to_vec()))
            .prop_map(|(key, kind, priority, placement)| Action::Submit { key, kind, priority, placement }),
        6 => (0usize..4).prop_map(|batches| Action::Flush { batches }),
        6 => (server.clone(), 0usize..5).prop_map(|(server, most)| Action::Take { server, most }),
        8 => (server.clone(), any::<prop::sample::Index>(), any::<bool>())
            .prop_map(|(server, at, grant)| Action::Answer { server, at, grant }),
        1 => server.clone().prop_map(|server| Action::Break { server }),
        1 => (1u64..6, 0u32..2, server.clone())
            .prop_map(|(key, chunk, server)| Action::Move { id: ChunkId::new(key, chunk), server }),
        2 => Just(Action::Learn),
        1 => server.prop_map(|server| Action::Die { server }),
        2 => (0u64..150).prop_map(|ms| Action::Pass { ms }),
    ];
    prop::collection::vec(action, 1..150)
}

const SLOTS: u32 = 5;

/// A server as its side of the protocol goes.
#[derive(Debug, Default)]
struct Peer {
    /// Batches that have come and are not decided.
    inbox: VecDeque<Sent>,
    /// Blocks taken and not answered.
    taken: Vec<Block>,
    /// Generation of each slot, and whether the worker may write it.
    slots: Vec<(u8, bool)>,
    /// Credits that the worker said it could use, and did not get.
    wants: u16,
    /// Slots of the worker's inbox that may be written.
    results: Vec<SlotGrant>,
    /// Chunks with an operation sent back on this channel.
    sent_back: BTreeSet<ChunkId>,
    /// Buffers that the worker may write, and whether for ever.
    buffers: BTreeMap<ChunkId, bool>,
    /// Chunks that it had on this channel, and gave up.
    gave_up: BTreeSet<ChunkId>,
    /// Tokens of blocks whose payload lies in their chunk's buffer.
    placed: BTreeMap<u64, (ChunkId, bool)>,
}

impl Peer {
    /// What a server that keeps the protocol says to a block at once; none where it takes it.
    fn judge(&mut self, block: &Block, last: u64) -> Option<Block> {
        if block.operation.0 > last + 1 {
            return Some(reply(block, Status::Retry, 0));
        }
        match block.data {
            BlockData::Announced { keep } if block.operation.0 == last + 1 => {
                let occupied = self.placed.values().any(|(id, _)| *id == block.id);
                let landing = Landing { region: 1, offset: 0, bytes: block.bytes };
                let landing = (!occupied && !block.token.is_multiple_of(3)).then_some(landing);
                if landing.is_some() {
                    self.buffers.insert(block.id, keep);
                }
                Some(Block { landing, ..reply(block, Status::Granted, 0) })
            }
            BlockData::ByReference { .. } if block.token.is_multiple_of(4) => {
                self.sent_back.insert(block.id);
                Some(reply(block, Status::Granted, 0))
            }
            // The chunk was away, and the worker did not know.
            BlockData::Placed if !self.buffers.contains_key(&block.id) => {
                assert!(self.gave_up.contains(&block.id), "a buffer that was granted and is free");
                Some(reply(block, Status::Reroute, 0))
            }
            BlockData::Placed => {
                let keep = self.buffers.remove(&block.id).expect("looked at just now");
                self.placed.insert(block.token, (block.id, keep));
                None
            }
            _ => None,
        }
    }

    /// An operation is answered: a kept buffer is free again.
    fn answered(&mut self, token: u64) {
        if let Some((id, true)) = self.placed.remove(&token) {
            self.buffers.insert(id, true);
        }
    }
}

struct World {
    rig: Rig,
    peers: [Peer; 2],
    numbers: BTreeMap<u64, u64>,
    ended: BTreeSet<u64>,
    /// Last operation taken, by chunk; survives channels, and moves with the chunk.
    last: BTreeMap<ChunkId, u64>,
    /// Who has a chunk, where that is not whom its number says.
    serving: BTreeMap<ChunkId, usize>,
    /// Moves that the worker has not heard of.
    unheard: VecDeque<(ChunkId, Rank)>,
    /// Blocks of a chunk that are sent and not answered, and where.
    under_way: BTreeMap<ChunkId, (u32, usize)>,
    /// Operations that are not answered.
    open: BTreeMap<ChunkId, BTreeSet<u64>>,
}

impl World {
    fn new() -> Self {
        let config = EngineConfig { gather_max: 4, in_flight_max: 12, ..config() };
        let rig = Rig::down(config);
        let mut world = Self {
            rig,
            peers: Default::default(),
            numbers: BTreeMap::new(),
            ended: BTreeSet::new(),
            last: BTreeMap::new(),
            serving: BTreeMap::new(),
            unheard: VecDeque::new(),
            under_way: BTreeMap::new(),
            open: BTreeMap::new(),
        };
        (0..2).for_each(|server| world.connect(server));
        world
    }

    fn connect(&mut self, server: usize) {
        self.under_way.retain(|_, (there, _)| *there != server as u32);
        let peer = &mut self.peers[server];
        let results = grants(server as u32 * INBOX..(server as u32 + 1) * INBOX);
        *peer = Peer { results, slots: vec![(1, true); 2], ..Peer::default() };
        peer.slots.resize(SLOTS as usize, (0, false));
        self.rig.up(server as u32, 2);
    }

    fn submit(&mut self, key: u64, kind: u8, priority: i32, placement: Placement) {
        let number = self.numbers.entry(key).or_default();
        *number += 1;
        let kind = [OpKind::Push, OpKind::Pull, OpKind::PushPull][usize::from(kind)];
        // Two chunks, one on each server.
        let parts = [part(key, 0), PartSpec { id: ChunkId::new(key, 1), ..part(key, 1) }];
        for part in parts {
            self.open.entry(part.id).or_default().insert(*number);
        }
        let timeout_ms = u32::MAX;
        let submit = Submit { priority, placement, timeout_ms, ..submit(kind, *number) };
        self.rig.submit_as(submit, &parts);
    }

    fn flush(&mut self, batches: usize) {
        let happened = self.rig.flush_at_most(batches);
        assert!(happened.sent.len() <= batches);
        for sent in happened.sent {
            let peer = &mut self.peers[sent.server as usize];
            let (generation, granted) = &mut peer.slots[sent.slot.slot as usize];
            assert!(
                *granted && *generation == sent.slot.generation,
                "a credit is used once: {:?}",
                sent.slot
            );
            *granted = false;
            peer.wants = sent.wanted.min(SLOTS as u16);
            for grant in &sent.grants {
                give(peer, *grant);
            }
            for block in &sent.blocks {
                let (at, count) = self.under_way.entry(block.id).or_insert((sent.server, 0));
                assert!(*count == 0 || *at == sent.server, "under way to two servers: {block:?}");
                let oldest = self.open.get(&block.id).and_then(BTreeSet::first);
                assert!(*count > 0 || oldest == Some(&block.operation.0), "the oldest first: {block:?}");
                (*at, *count) = (sent.server, *count + 1);
            }
            assert!(sent.blocks.len() < 4, "one span of the gather list is the header's");
            peer.inbox.push_back(sent);
        }
        self.notices(&happened.rest);
        let under_way: usize = self
            .peers
            .iter()
            .map(|p| p.taken.len() + p.inbox.iter().map(|b| b.blocks.len()).sum::<usize>())
            .sum();
        assert!(under_way <= 2 * 12, "what may be in flight is bounded");
    }

    fn notices(&mut self, commands: &[Command]) {
        for command in commands {
            let (server, notice) = match command {
                Command::Notice { server, notice } => (server, notice),
                Command::Place { .. } => continue,
                other => panic!("{other:?}"),
            };
            let peer = &mut self.peers[server.0 as usize];
            match notice {
                Notice::Want(count) => {
                    assert!(*count > 0);
                    peer.wants = u16::from(*count).min(SLOTS as u16);
                }
                Notice::Returned(grant) => give(peer, *grant),
                Notice::GivenBack(grant) => {
                    let slot = &mut peer.slots[grant.slot as usize];
                    assert_eq!(*slot, (grant.generation, true), "given back once");
                    (slot.1, peer.wants) = (false, 0);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn take(&mut self, server: usize, most: usize) {
        let peer = &mut self.peers[server];
        let Some(batch) = peer.inbox.pop_front() else { return };
        let mut back = Vec::new();
        for (at, block) in batch.blocks.into_iter().enumerate() {
            let last = self.last.entry(block.id).or_default();
            if at < most && has(&self.serving, block.id) != server {
                back.push(reply(&block, Status::Reroute, 0));
                peer.sent_back.insert(block.id);
                continue;
            }
            assert!(
                block.operation.0 <= *last + 1 || peer.sent_back.contains(&block.id),
                "FIFO: {block:?} after {last}"
            );
            let answer =
                if at < most { peer.judge(&block, *last) } else { Some(reply(&block, Status::Retry, 0)) };
            match answer {
                None => {
                    *last = (*last).max(block.operation.0);
                    peer.taken.retain(|taken| taken.token != block.token);
                    peer.taken.push(block);
                }
                Some(answer) => {
                    if matches!(answer.status, Status::Retry | Status::Reroute) {
                        peer.sent_back.insert(block.id);
                    }
                    back.push(answer);
                }
            }
        }
        self.tell(server, &back, false);
    }

    /// Sends results, if the worker's inbox has room; otherwise the blocks stay taken.
    fn tell(&mut self, server: usize, blocks: &[Block], grant: bool) {
        let peer = &mut self.peers[server];
        let Some(slot) = peer.results.pop() else {
            // Without a slot a real server waits; this one keeps the blocks and answers them later.
            let kept = [Status::Retry, Status::Granted, Status::Reroute];
            peer.taken.extend(blocks.iter().filter(|block| kept.contains(&block.status)));
            return;
        };
        let mut credits = Vec::new();
        while grant || peer.wants > 0 {
            let waits = |slot: &usize| peer.inbox.iter().any(|batch| batch.slot.slot as usize == *slot);
            let free = (0..peer.slots.len()).find(|slot| !peer.slots[*slot].1 && !waits(slot));
            let Some(free) = free else { break };
            peer.slots[free] = (peer.slots[free].0.wrapping_add(1), true);
            credits.push(SlotGrant { slot: free as u32, generation: peer.slots[free].0 });
            peer.wants = peer.wants.saturating_sub(1);
            if peer.wants == 0 {
                break;
            }
        }
        for block in blocks {
            if let Some((_, count)) = self.under_way.get_mut(&block.id) {
                *count -= 1;
            }
            if block.status == Status::Done {
                self.open.entry(block.id).or_default().remove(&block.operation.0);
            }
        }
        let header = Rig::header(server as u32);
        let commands = self.rig.deliver(server as u32, slot, &header, blocks, &credits, &[]);
        for command in commands {
            let Command::Done { op, .. } = command else { panic!("{command:?}") };
            assert!(self.ended.insert(op), "ended twice");
        }
    }

    fn answer(&mut self, server: usize, at: usize, grant: bool) {
        let peer = &mut self.peers[server];
        if peer.results.is_empty() {
            return;
        }
        let blocks = if peer.taken.is_empty() {
            Vec::new()
        } else {
            vec![peer.taken.swap_remove(at % peer.taken.len())]
        };
        let answers: Vec<Block> = blocks
            .iter()
            .map(|block| if block.status == Status::None { done(block) } else { *block })
            .collect();
        answers.iter().for_each(|block| peer.answered(block.token));
        self.tell(server, &answers, grant);
    }

    /// A chunk goes to another server: whoever had it answers what it has not published.
    fn give_up(&mut self, id: ChunkId, to: usize) {
        let from = has(&self.serving, id);
        if from == to {
            return;
        }
        self.serving.insert(id, to);
        let peer = &mut self.peers[from];
        peer.gave_up.insert(id);
        peer.sent_back.insert(id);
        peer.buffers.remove(&id);
        peer.placed.retain(|_, (placed, _)| *placed != id);
        let mine = |block: &Block| block.id == id && block.status == Status::None;
        let (taken, others): (Vec<_>, Vec<_>) = std::mem::take(&mut peer.taken).into_iter().partition(mine);
        peer.taken = others;
        let back: Vec<Block> = taken.iter().map(|block| reply(block, Status::Reroute, 0)).collect();
        if !back.is_empty() {
            self.tell(from, &back, false);
        }
        self.unheard.push_back((id, Rank(to as u32)));
    }

    fn learn(&mut self) {
        if let Some(news) = self.unheard.pop_front() {
            self.rig.engine.remap(&[news]);
        }
    }

    fn die(&mut self, server: usize) {
        let of_keys = (1..6).flat_map(|key| [ChunkId::new(key, 0), ChunkId::new(key, 1)]);
        let mine: Vec<_> = of_keys.filter(|id| has(&self.serving, *id) == server).collect();
        // What it was to answer nobody hears.
        self.peers[server] = Peer::default();
        self.under_way.retain(|_, (there, _)| *there != server as u32);
        self.rig.engine.server_down(Rank(server as u32));
        mine.into_iter().for_each(|id| self.give_up(id, 1 - server));
        self.unheard.drain(..).for_each(|news| self.rig.engine.remap(&[news]));
        self.connect(server);
    }

    fn play(&mut self, action: &Action) {
        match action {
            Action::Submit { key, kind, priority, placement } => {
                self.submit(*key, *kind, *priority, *placement);
            }
            Action::Flush { batches } => self.flush(*batches),
            Action::Take { server, most } => self.take(*server, *most),
            Action::Answer { server, at, grant } => self.answer(*server, at.index(1 << 16), *grant),
            Action::Break { server } => {
                self.rig.engine.server_down(Rank(*server as u32));
                self.connect(*server);
            }
            Action::Move { id, server } => self.give_up(*id, *server),
            Action::Learn => self.learn(),
            Action::Die { server } => self.die(*server),
            Action::Pass { ms } => {
                let commands = self.rig.tick(*ms);
                self.notices(&commands);
            }
        }
    }

    fn finish(&mut self) {
        for turn in 0.. {
            if self.rig.engine.in_flight() == 0 {
                break;
            }
            assert!(
                turn < 2_000,
                "not ended: {:?} {:?}",
                self.rig.engine.oldest(self.rig.now_ms),
                self.peers
            );
            self.rig.now_ms += 3;
            self.learn();
            self.flush(usize::MAX);
            for server in 0..2 {
                self.take(server, usize::MAX);
                self.answer(server, 0, false);
            }
        }
        for _ in 0..3 {
            let commands = self.rig.tick(1_000);
            self.notices(&commands);
            self.flush(usize::MAX);
        }
    }
}

/// Who has a chunk.
fn has(serving: &BTreeMap<ChunkId, usize>, id: ChunkId) -> usize {
    serving.get(&id).copied().unwrap_or(id.chunk.0 as usize)
}

/// A slot of the worker's inbox comes back to the server.
fn give(peer: &mut Peer, grant: SlotGrant) {
    assert!(peer.results.iter().all(|free| free.slot != grant.slot), "returned twice: {grant:?}");
    peer.results.push(grant);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn every_operation_ends_once_and_every_credit_comes_back(actions in actions()) {
        let mut world = World::new();
        for action in &actions {
            world.play(action);
        }
        world.finish();
        prop_assert_eq!(world.ended.len(), world.rig.next_op as usize);
        for peer in &world.peers {
            prop_assert!(peer.slots.iter().all(|(_, granted)| !granted), "an idle worker holds none: {:?}", peer.slots);
        }
        for (id, last) in &world.last {
            prop_assert_eq!(Some(last), world.numbers.get(&id.key.0), "all of a key's operations, in order");
        }
    }
}
