//! Copies that are being made of this server's chunks: which lanes have said that theirs are kept up. Lanes say it once for
//! what they have; what is added later is waited for anew.

use super::super::role::Role;
use super::super::spec::ChunkSpec;
use proto_common::ids::{ChunkId, Epoch, Rank};
use std::collections::{BTreeMap, BTreeSet};

/// What a lane copies to one server.
#[derive(Debug, Default)]
struct Part {
    chunks: BTreeSet<ChunkId>,
    /// Since when none was added.
    since: Epoch,
    is_done: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Seeding {
    to: BTreeMap<Rank, BTreeMap<u16, Part>>,
}

impl Seeding {
    /// All that is to be copied from now on, by lane.
    pub(super) fn want(&mut self, epoch: Epoch, lanes: &[Vec<(ChunkSpec, Role)>]) {
        let mut had = std::mem::take(&mut self.to);
        for (lane, chunks) in (0u16..).zip(lanes) {
            for (spec, role) in chunks {
                let Role::Primary { seeding: Some(to), .. } = role else { continue };
                self.to.entry(*to).or_default().entry(lane).or_default().chunks.insert(spec.id);
            }
        }
        for (to, parts) in &mut self.to {
            for (lane, part) in parts {
                let before = had.get_mut(to).and_then(|parts| parts.remove(lane));
                match before.filter(|before| part.chunks.is_subset(&before.chunks)) {
                    Some(before) => (part.since, part.is_done) = (before.since, before.is_done),
                    None => part.since = epoch,
                }
            }
        }
    }

    /// A lane has said so. True where it is the last one that was waited for.
    pub(super) fn done(&mut self, lane: u16, to: Rank, epoch: Epoch) -> bool {
        let Some(parts) = self.to.get_mut(&to) else { return false };
        let Some(part) = parts.get_mut(&lane).filter(|part| !part.is_done && epoch >= part.since) else {
            return false;
        };
        part.is_done = true;
        parts.values().all(|part| part.is_done)
    }

    /// To whom everything is there that is copied to it.
    pub(super) fn complete(&self) -> impl Iterator<Item = Rank> + '_ {
        let is_complete = |parts: &BTreeMap<u16, Part>| parts.values().all(|part| part.is_done);
        self.to.iter().filter(move |(_, parts)| is_complete(parts)).map(|(to, _)| *to)
    }

    /// That incarnation of a server has ended, with all that it had.
    pub(super) fn end(&mut self, to: Rank) {
        self.to.get_mut(&to).into_iter().flatten().for_each(|(_, part)| part.is_done = false);
    }
}
