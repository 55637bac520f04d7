//! Tensors whose rule needs norms over all of them (LAMB): their chunks are on one lane, and finish a round together. It
//! must not know how the norms are computed.

use super::chunk::Stage;
use super::command::{Addend, Command, Commands};
use super::lane::LaneEngine;
use std::ops::Range;

/// The chunks of one such tensor, in order.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) chunks: Range<u32>,
    /// Those whose norms are known.
    ready: u32,
}

impl Group {
    pub(super) fn new(chunks: Range<u32>) -> Self {
        Self { chunks, ready: 0 }
    }

    /// One that was ready is not.
    pub(super) fn one_less(&mut self) {
        self.ready = self.ready.saturating_sub(1);
    }
}

impl LaneEngine {
    /// A chunk of a tensor with norms is new: it joins the chunks before it.
    pub(super) fn join_group(&mut self, index: u32) {
        let key = self.chunks[index as usize].spec.id.key;
        let before = index.checked_sub(1).map(|before| &self.chunks[before as usize]);
        let group = before
            .filter(|before| before.spec.id.key == key && before.role.is_some())
            .and_then(|before| before.group);
        let group = group.unwrap_or_else(|| {
            self.groups.push(Group { chunks: index..index, ready: 0 });
            self.groups.len() as u32 - 1
        });
        self.groups[group as usize].chunks.end = index + 1;
        self.chunks[index as usize].group = Some(group);
    }

    /// All have contributed to a chunk of such a tensor: its step and its share of the norms are computed, and the last
    /// chunk finishes all of them.
    pub(super) fn prepare(&mut self, index: u32, group: u32, last: Option<Addend>, out: &mut Commands) {
        let chunk = &mut self.chunks[index as usize];
        let (round, old, contributors) = (chunk.round(), chunk.buffer, chunk.contributed.len());
        out.push(Command::Prepare { chunk: index, round, last, old, contributors });
        chunk.stage = Stage::Norms;
        let group = &mut self.groups[group as usize];
        group.ready += 1;
        if group.ready < group.chunks.len() as u32 {
            return;
        }
        group.ready = 0;
        let chunks = group.chunks.clone();
        out.push(Command::Norms { chunks: chunks.clone() });
        for other in chunks {
            let chunk = &mut self.chunks[other as usize];
            chunk.stage = Stage::Buffer;
            if let Some(into) = chunk.writable() {
                self.finish(other, None, into, out);
                self.ripe.push(other);
            }
        }
    }
}
