//! When a copy of a chunk can be begun beside rounds that are being ended, and which rounds copies have confirmed. Nothing
//! asks copies about a round any more once it waits for norms, readers or storage's verdict: a copy that begins then would
//! never get it. It must not know how records travel: that is the module above.

use crate::engine::chunk::Chunk;
use crate::engine::keep::Keep;
use crate::engine::norms::Groups;
use crate::engine::rounds::Stage;
use proto_common::ids::Rank;
use std::ops::Range;

fn part(chunks: Range<u32>) -> Range<usize> {
    chunks.start as usize..chunks.end as usize
}

/// Does a tensor with norms end a round now that this server has not all of? Copies of its chunks begin there after it: half
/// of such a round could never be ended.
fn ends_without(chunks: &[Chunk], group: Range<u32>, to: Rank) -> bool {
    chunks.get(part(group)).is_some_and(|chunks| chunks.iter().any(|chunk| chunk.ends_without(to)))
}

/// Can a copy of this chunk be begun at that server, so that it gets every round from now on?
pub(super) fn can_begin(chunks: &[Chunk], groups: &Groups, index: u32, to: Rank) -> bool {
    let Some(chunk) = chunks.get(index as usize) else { return false };
    !chunk.rounds.is_ending()
        && !chunk.group.is_some_and(|group| ends_without(chunks, groups.chunks(group), to))
}

/// Is the complete round of a chunk confirmed wherever it has to be? Where a copy cannot be begun before that round of its
/// tensor has ended, the round ends without it; and no worker is answered before the copies have all of it.
pub(in crate::engine) fn is_confirmed(index: u32, chunks: &mut [Chunk], groups: &Groups) -> bool {
    let chunk = &chunks[index as usize];
    if chunk.rounds.stage() != Stage::Copies {
        return false;
    }
    if chunk.unconfirmed_copies().next().is_none() {
        return true;
    }
    let Some(group) = chunk.group.map(|group| groups.chunks(group)) else { return false };
    let passes = |keep: &Keep| !keep.is_in_stream() && ends_without(chunks, group.clone(), keep.to);
    if !chunk.unconfirmed_copies().all(passes) {
        return false;
    }
    chunks[part(group)].iter_mut().for_each(|other| other.init_pending = true);
    true
}

/// Chunks of a tensor with norms end their rounds together, also where they are copied: once one of them is in a stream,
/// rounds of all wait for it.
pub(super) fn keep_together(index: u32, to: Rank, chunks: &mut [Chunk], groups: &Groups) {
    let Some(group) = chunks[index as usize].group else { return };
    let chunks = &mut chunks[part(groups.chunks(group))];
    let keeps = chunks.iter_mut().flat_map(|chunk| chunk.copies.iter_mut().flatten());
    keeps.filter(|keep| keep.to == to).for_each(|keep| keep.kept = true);
}
