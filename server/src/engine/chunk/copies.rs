//! A chunk and its copies at other servers: what rounds wait for, and what a copy has promised. It must not know how records
//! travel.

use super::{Chunk, Stage};
use crate::engine::keep::{At, Keep};
use proto_common::ids::{Epoch, Rank};

impl Chunk {
    /// Does a round of this chunk wait for copies?
    pub(in crate::engine) fn has_copies(&self) -> bool {
        self.copies.iter().flatten().any(Keep::blocks)
    }

    /// Since which decision that copy is one.
    pub(in crate::engine) fn since_of(&self, id: u64) -> Epoch {
        let keep = self.copies.iter().flatten().find(|keep| keep.id == id);
        keep.map_or(Epoch::default(), |keep| keep.since)
    }

    pub(in crate::engine) fn keep_of(&mut self, id: u64) -> Option<&mut Keep> {
        self.copies.iter_mut().flatten().find(|keep| keep.id == id)
    }

    /// Copies that a complete round waits for.
    pub(in crate::engine) fn unconfirmed_copies(&self) -> impl Iterator<Item = &Keep> {
        let round = self.round();
        self.copies.iter().flatten().filter(move |keep| keep.blocks() && keep.confirmed < round)
    }

    pub(in crate::engine) fn has_initial_everywhere(&self) -> bool {
        self.copies.iter().flatten().all(|keep| !keep.blocks() || (keep.has_initial && keep.at == At::In))
    }

    /// Servers whose confirmation a change of the rule waits for.
    pub(in crate::engine) fn lacking_rules(&self) -> impl Iterator<Item = Rank> + '_ {
        let lacks = |keep: &&Keep| keep.blocks() && keep.rules.1 < self.rules;
        self.copies.iter().flatten().filter(lacks).map(|keep| keep.to)
    }

    /// Servers whose confirmation the complete round, or the initial value, waits for.
    pub(in crate::engine) fn unconfirmed(&self) -> impl Iterator<Item = Rank> + '_ {
        let (round, is_sent) = (self.round(), self.stage == Stage::Copies);
        let lacks = move |keep: &&Keep| {
            let lacks_all = self.init_pending && !(keep.has_initial && keep.at == At::In);
            keep.blocks() && ((is_sent && keep.confirmed < round) || lacks_all)
        };
        self.copies.iter().flatten().filter(lacks).map(|keep| keep.to)
    }

    /// Is a round under way that copies are not asked about any more?
    pub(in crate::engine) fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Norms | Stage::Buffer | Stage::Verdict { .. })
    }

    /// Is such a round one that this server has not confirmed?
    pub(in crate::engine) fn ends_without(&self, to: Rank) -> bool {
        let has = |keep: &Keep| keep.to == to && keep.confirmed >= self.round();
        self.is_ending() && !self.copies.iter().flatten().any(has)
    }

    /// The version that a copy has, or will have of what it has confirmed.
    pub(in crate::engine) fn promised(&self) -> u64 {
        self.version + u64::from(self.is_complete())
    }
}
