//! When a copy of a chunk can be begun beside rounds that are being ended, and which copies have to be begun anew. Nothing
//! asks copies about a round any more once it waits for norms, readers or storage's verdict: a copy that begins then would
//! never get it. It must not know how records travel: that is the module above.

use super::super::chunk::{Chunk, Stage};
use super::super::command::{Command, Commands};
use super::super::keep::{At, Keep};
use super::super::lane::LaneEngine;
use super::super::norms::Group;
use super::super::role::Role;
use super::{Item, push_update, want};
use proto_common::batch::OpKind;
use proto_common::ids::Rank;

impl Chunk {
    /// Is a round under way that copies are not asked about any more?
    fn is_ending(&self) -> bool {
        matches!(self.stage, Stage::Norms | Stage::Buffer | Stage::Verdict { .. })
    }

    /// Is such a round one that this server has not confirmed?
    fn ends_without(&self, to: Rank) -> bool {
        let has = |keep: &Keep| keep.to == to && keep.confirmed >= self.round();
        self.is_ending() && !self.copies.iter().flatten().any(has)
    }
}

/// Does a tensor with norms end a round now that this server has not all of? Copies of its chunks begin there after it: half
/// of such a round could never be ended.
fn ends_without(chunks: &[Chunk], group: &Group, to: Rank) -> bool {
    let range = group.chunks.start as usize..group.chunks.end as usize;
    chunks.get(range).is_some_and(|chunks| chunks.iter().any(|chunk| chunk.ends_without(to)))
}

/// Can a copy of this chunk be begun at that server, so that it gets every round from now on?
pub(super) fn can_begin(chunks: &[Chunk], groups: &[Group], index: u32, to: Rank) -> bool {
    let Some(chunk) = chunks.get(index as usize) else { return false };
    let group = chunk.group.and_then(|group| groups.get(group as usize));
    !chunk.is_ending() && !group.is_some_and(|group| ends_without(chunks, group, to))
}

impl LaneEngine {
    /// Is the complete round of a chunk confirmed wherever it has to be? Where a copy cannot be begun before that round of its
    /// tensor has ended, the round ends without it; and nobody is told of it before the copies are there, whole.
    pub(in super::super) fn is_confirmed(&mut self, index: u32) -> bool {
        let chunk = &self.chunks[index as usize];
        if chunk.stage != Stage::Copies {
            return false;
        }
        let group = chunk.group.and_then(|group| self.groups.get(group as usize));
        if chunk.unconfirmed_copies().next().is_none() {
            return true;
        }
        let Some(group) = group else { return false };
        let passes = |keep: &Keep| !keep.is_in_stream() && ends_without(&self.chunks, group, keep.to);
        if !chunk.unconfirmed_copies().all(passes) {
            return false;
        }
        for other in group.chunks.clone() {
            self.chunks[other as usize].init_pending = true;
        }
        true
    }

    /// A round that was under way to copies is thrown away: what they have of it, or say of it from now on, counts for nothing,
    /// and they get the chunk whole. So do those of chunks that end rounds with it.
    pub(in super::super) fn begin_copies_anew(&mut self, index: u32) {
        let is_anew = |keep: &Keep| keep.whole_only && !keep.is_in_stream();
        let chunk = &self.chunks[index as usize];
        if chunk.copies.iter().flatten().all(is_anew) {
            return;
        }
        let group = chunk.group.and_then(|group| self.groups.get(group as usize));
        let all = group.map_or(index..index + 1, |group| group.chunks.clone());
        for other in all {
            for place in 0..2 {
                self.begin_anew(other, place);
            }
        }
    }

    /// Records of a round that is thrown away may not have left yet, and would be read from memory that another round is
    /// summed in: what their channels have not sent by now they are not to send. If another server serves the chunk from now
    /// on, its own channel stays: before it sends rounds that are summed up there, it stops taking any from here.
    pub(in super::super) fn end_streams_of_sum(&mut self, index: u32, role: Role, out: &mut Commands) {
        let Self { chunks, copying, .. } = self;
        let copies = chunks[index as usize].copies.iter().flatten();
        for keep in copies.filter(|keep| role != Role::Copy { of: keep.to }) {
            let stream = copying.streams.iter().find(|stream| stream.to == keep.to);
            if stream.is_some_and(|stream| stream.reads_sum(index)) {
                let reason = "a round that is under way to it is collected anew".to_owned();
                out.push(Command::EndStream { peer: keep.to, ours: true, reason });
            }
        }
    }

    fn begin_anew(&mut self, index: u32, place: usize) {
        let Self { chunks, copying, .. } = self;
        let Some(keep) = &mut chunks[index as usize].copies[place] else { return };
        copying.forget(keep);
        copying.ids += 1;
        (keep.id, keep.confirmed, keep.whole_only) = (copying.ids, 0, true);
        let to = keep.to;
        match keep.at {
            At::Sent | At::In => want(copying, index, keep),
            At::Checking => self.check(index, to),
            At::Wanted | At::Out | At::Later => {}
        }
    }

    /// The next chunk that a copy needs whole: its image is taken now, and goes out behind what is queued.
    pub(super) fn begin_state(&mut self, at: usize, out: &mut Commands) {
        let Self { chunks, groups, copying, stats, .. } = self;
        let stream = &mut copying.streams[at];
        if stream.image.is_some() {
            return;
        }
        let to = stream.to;
        // A tensor with norms whose copies there cannot be begun now: of its chunks one is looked at.
        let mut later = None;
        for _ in 0..stream.wanted.len() {
            let Some(index) = stream.wanted.pop_front() else { return };
            let group = chunks.get(index as usize).and_then(|chunk| chunk.group);
            let is_later = group.is_some() && group == later;
            let can_begin = !is_later && can_begin(chunks, groups, index, to);
            let Some(chunk) = chunks.get_mut(index as usize) else { continue };
            let (is_whole, is_ending) = (can_begin && chunk.is_whole(), chunk.is_ending());
            let (version, initialised, live) = (chunk.version, chunk.initialised, chunk.buffer);
            let (state, rules) = (chunk.state(true), chunk.rules);
            let pending = (chunk.stage == Stage::Copies)
                .then(|| (chunk.round(), chunk.spec.sum_bytes(chunk.round_bytes())));
            let mut keeps = chunk.copies.iter_mut().flatten();
            let Some(keep) = keeps.find(|keep| keep.to == to && keep.at == At::Wanted) else { continue };
            if !is_whole {
                if !can_begin && !is_ending {
                    later = group;
                }
                stream.wanted.push_back(index);
                continue;
            }
            (keep.at, keep.asked, keep.rules.0) = (At::Sent, (version, initialised), rules);
            let op = OpKind::CopyState;
            keep.queued += 1;
            stream.image = Some((keep.id, None));
            stream.queue.push_back(Item { chunk: index, keep: keep.id, op, round: version, at: 0, total: 0 });
            stats.states += 1;
            out.push(Command::Capture { to, chunk: index, state: Box::new(state), live });
            if let Some(update) = pending {
                push_update(copying, index, keep, update);
            }
            return self.keep_together(index, to);
        }
    }

    /// Chunks of a tensor with norms end their rounds together, also where they are copied: once one of them is in a stream,
    /// rounds of all wait for it.
    pub(super) fn keep_together(&mut self, index: u32, to: Rank) {
        let Some(group) = self.chunks[index as usize].group else { return };
        let range = self.groups[group as usize].chunks.clone();
        let chunks = &mut self.chunks[range.start as usize..range.end as usize];
        let keeps = chunks.iter_mut().flat_map(|chunk| chunk.copies.iter_mut().flatten());
        keeps.filter(|keep| keep.to == to).for_each(|keep| keep.kept = true);
    }
}
