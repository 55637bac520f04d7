//! Chunks that go to copies whole: when an image is taken, which copies are begun anew, and when all that was to be copied is there.
//! It must not know how records are judged: that is the module above.

use super::whole::{can_begin, keep_together};
use super::{Item, Streams};
use crate::engine::chunk::Chunk;
use crate::engine::command::{Command, Commands};
use crate::engine::keep::{At, Keep};
use crate::engine::norms::Groups;
use proto_common::batch::OpKind;
use proto_common::ids::{Epoch, Rank};

impl Streams {
    /// The image that was asked for has so many bytes.
    pub(in crate::engine) fn captured(&mut self, to: Rank, chunk: u32, bytes: u64) {
        let Some(stream) = self.stream(to) else { return };
        let is_it = |item: &&mut Item| (item.op, item.chunk) == (OpKind::CopyState, chunk) && item.total == 0;
        if let Some(item) = stream.queue.iter_mut().find(is_it) {
            item.total = bytes;
        }
    }

    /// Once nothing waits to be written in one of the streams: the next chunk that a copy needs whole is taken, or all are there.
    /// True where an image was asked for.
    pub(in crate::engine) fn begin_next(
        &mut self,
        at: usize,
        epoch: Epoch,
        chunks: &mut [Chunk],
        groups: &Groups,
        out: &mut Commands,
    ) -> bool {
        if !self.all[at].queue.is_empty() {
            return false;
        }
        let begun = self.begin_state(at, chunks, groups, out);
        self.report_seeded(at, epoch, chunks, out);
        begun
    }

    /// The next chunk that a copy needs whole: its image is taken now, and goes out behind what is queued.
    fn begin_state(&mut self, at: usize, chunks: &mut [Chunk], groups: &Groups, out: &mut Commands) -> bool {
        let stream = &mut self.all[at];
        if stream.image.is_some() {
            return false;
        }
        let to = stream.to;
        // A tensor with norms whose copies there cannot be begun now: of its chunks one is looked at.
        let mut later = None;
        for _ in 0..stream.wanted.len() {
            let Some(index) = stream.wanted.pop_front() else { return false };
            let group = chunks.get(index as usize).and_then(|chunk| chunk.group);
            let is_later = group.is_some() && group == later;
            let can_begin = !is_later && can_begin(chunks, groups, index, to);
            let Some(chunk) = chunks.get_mut(index as usize) else { continue };
            let (is_whole, is_ending) = (can_begin && chunk.is_whole(), chunk.rounds.is_ending());
            let (version, initialised) = (chunk.rounds.version(), chunk.rounds.is_initialised());
            let (state, rules, live) = (chunk.state(true), chunk.rules, chunk.weights.buffer());
            let pending = chunk.pending();
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
            out.push(Command::Capture { to, chunk: index, state: Box::new(state), live });
            if let Some(update) = pending {
                self.push_update(index, keep, update);
            }
            keep_together(index, to, chunks, groups);
            return true;
        }
        false
    }

    /// Says, once an epoch, that all that was to be copied to a server is kept up there.
    fn report_seeded(&mut self, at: usize, epoch: Epoch, chunks: &[Chunk], out: &mut Commands) {
        let stream = &mut self.all[at];
        if stream.seeded == Some(epoch) || !stream.wanted.is_empty() || stream.image.is_some() {
            return;
        }
        let to = stream.to;
        let keeps = chunks.iter().flat_map(|chunk| chunk.copies.iter().flatten());
        let mut seeding = keeps.filter(|keep| keep.to == to && !keep.is_backup).peekable();
        let has_some = seeding.peek().is_some();
        if !seeding.all(Keep::is_kept_up) {
            return;
        }
        // Where nothing is copied there is nothing to say, nor to look for again before roles change.
        stream.seeded = Some(epoch);
        if has_some {
            out.push(Command::Seeded { to, epoch });
        }
    }

    /// A round that was under way to copies is thrown away: what they have of it, or say of it from now on, counts for nothing,
    /// and they get the chunk whole. So do those of chunks that end rounds with it.
    pub(in crate::engine) fn restart_copies(&mut self, index: u32, chunks: &mut [Chunk], groups: &Groups) {
        let is_anew = |keep: &Keep| keep.whole_only && !keep.is_in_stream();
        let chunk = &chunks[index as usize];
        if chunk.copies.iter().flatten().all(is_anew) {
            return;
        }
        for other in groups.with(index, chunk.group) {
            for place in 0..2 {
                self.restart_copy(other, place, &mut chunks[other as usize]);
            }
        }
    }

    fn restart_copy(&mut self, index: u32, place: usize, chunk: &mut Chunk) {
        let Some(keep) = &mut chunk.copies[place] else { return };
        self.forget(keep);
        (keep.id, keep.confirmed, keep.whole_only) = (self.next_id(), 0, true);
        let to = keep.to;
        match keep.at {
            At::Sent | At::In => self.want(index, keep),
            At::Checking => self.check(index, chunk, to),
            At::Wanted | At::Out | At::Later => {}
        }
    }
}
