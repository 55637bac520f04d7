//! The engine of one lane: owns the machines that decide, each with state of its own, and brings each input to them. What one of them
//! returns is another one's input; the files below `lane/` say which. It must not keep state of its own, but for what all of
//! them look at: the table of chunks, the configuration and the epoch.
//!
//! ```text
//!   batch, notice ──▶ Peers (credits, results) ──▶ block ──┬─▶ Calls
//!                                                          └─▶ Rounds, with Roster ──▶ Waiters, Deadlines: answers
//!                                                                │   ▲
//!        Placement (spill blocks, key buffers) ◀── a payload ────┤   │ a round may end now
//!        Groups (norms), Relief and Weights (readers) ◀ its end ─┤   │
//!        Streams (to copies), Copies (of others) ◀── complete ───┼───┤
//!        Savings (checkpoints) ◀── published ────────────────────┴───┘
//!   peer_down ──▶ Quarantine ──fenced──▶ Peers, Placement
//!   roles ──▶ Places (indices), Streams
//! ```

mod answers;
mod batches;
mod calls;
mod channels;
mod copies;
mod placed;
mod roles;
mod rounds;
mod saving;
pub(super) mod waiting;
mod workers;

use super::calls::Calls;
use super::chunk::Chunk;
use super::copies::Copies;
use super::inputs::EngineConfig;
use super::norms::Groups;
use super::peers::Peers;
use super::placed::Placement;
use super::places::Places;
use super::quarantine::Quarantine;
use super::relief::Relief;
use super::roster::Roster;
use super::sabotage::BrokenRule;
use super::saving::Savings;
use super::spec::ChunkSpec;
use super::stats::LaneStats;
use super::streams::Streams;
use super::waiters::Deadlines;
use proto_common::ids::{ChunkId, Epoch, Version};
use std::collections::HashMap;

/// See the module.
#[derive(Debug)]
pub struct LaneEngine {
    config: EngineConfig,
    epoch: Epoch,
    /// Roles were given: whoever asks for a chunk that is not here has another map.
    has_roles: bool,
    chunks: Vec<Chunk>,
    index: HashMap<ChunkId, u32>,
    peers: Peers,
    quarantine: Quarantine,
    placement: Placement,
    places: Places,
    groups: Groups,
    /// Chunks that finished with another of their tensor: to be settled. Empty between calls.
    ripe: Vec<u32>,
    relief: Relief,
    deadlines: Deadlines,
    calls: Calls,
    savings: Savings,
    streams: Streams,
    copies: Copies,
    roster: Roster,
    stats: LaneStats,
    #[cfg(feature = "sabotage")]
    broken: Option<BrokenRule>,
}

impl LaneEngine {
    /// An engine without chunks or peers.
    #[must_use]
    pub fn new(config: EngineConfig) -> Self {
        Self {
            epoch: Epoch::default(),
            has_roles: false,
            chunks: Vec::new(),
            index: HashMap::new(),
            peers: Peers::new(config.workers, config.inbox_slots),
            quarantine: Quarantine::default(),
            placement: Placement::new(config.spill_blocks),
            places: Places::default(),
            groups: Groups::default(),
            ripe: Vec::new(),
            relief: Relief::default(),
            deadlines: Deadlines::default(),
            calls: Calls::default(),
            savings: Savings::new(config.workers),
            streams: Streams::default(),
            copies: Copies::default(),
            roster: Roster::new(config.workers, config.worker_loss),
            stats: LaneStats::default(),
            #[cfg(feature = "sabotage")]
            broken: None,
            config,
        }
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> LaneStats {
        self.stats
    }

    /// The index under which storage has a chunk.
    #[must_use]
    pub fn index_of(&self, id: ChunkId) -> Option<u32> {
        self.index.get(&id).copied()
    }

    /// Published version of a chunk.
    #[must_use]
    pub fn version(&self, id: ChunkId) -> Option<Version> {
        self.index.get(&id).map(|chunk| Version(self.chunks[*chunk as usize].rounds.version()))
    }

    #[cfg(test)]
    pub(super) fn chunk_mut(&mut self, index: u32) -> &mut Chunk {
        &mut self.chunks[index as usize]
    }

    /// Adds chunks; their indices continue from those there are, in the given order. A chunk that is there
    /// already keeps its index and state, and is not counted.
    pub fn assign(&mut self, epoch: Epoch, specs: &[ChunkSpec]) -> Vec<ChunkSpec> {
        self.epoch = self.epoch.max(epoch);
        let mut added = Vec::new();
        for spec in specs {
            if !self.index.contains_key(&spec.id) {
                self.index.insert(spec.id, self.chunks.len() as u32);
                self.chunks.push(Chunk::new(*spec, &self.config));
                if spec.optimizer.needs_norms() {
                    self.join_group(self.chunks.len() as u32 - 1);
                }
                self.cover(self.chunks.len() as u32 - 1);
                added.push(*spec);
            }
        }
        added
    }

    /// A chunk of a tensor with norms is new: it joins the chunks before it.
    fn join_group(&mut self, index: u32) {
        let key = self.chunks[index as usize].spec.id.key;
        let before = index.checked_sub(1).map(|before| &self.chunks[before as usize]);
        let group = before
            .filter(|before| before.spec.id.key == key && before.role.is_some())
            .and_then(|before| before.group);
        self.chunks[index as usize].group = Some(self.groups.join(index, group));
    }

    /// Breaks a rule from now on.
    #[cfg(feature = "sabotage")]
    pub fn sabotage(&mut self, rule: BrokenRule) {
        self.broken = Some(rule);
    }

    /// Is this rule broken?
    #[cfg(feature = "sabotage")]
    pub(crate) fn breaks(&self, rule: BrokenRule) -> bool {
        self.broken == Some(rule)
    }

    /// Is this rule broken? Never, but in tests.
    #[cfg(not(feature = "sabotage"))]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(crate) const fn breaks(&self, _: BrokenRule) -> bool {
        false
    }
}
