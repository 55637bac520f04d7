//! What becomes of a worker's memory and ours when a channel ends, and while a worker does not copy: channels are closed when
//! what was taken of them is read, what was granted comes back when their fences are done, and weights are moved out of the way of
//! rounds. Which memory that is, the engine knows.

use super::error::LaneError;
use super::lane::DataLane;
use super::link::{Gone, Post, Posted};
use crate::engine::BrokenRule;
use fabric::{CompletionQueue, Fence};
use proto_common::ids::Rank;

impl<Q: CompletionQueue> DataLane<Q> {
    /// Closes the channels of workers that are gone: no command names their memory any more. What a worker was copying is
    /// free only now, because it learns from the close that its copy may not be whole.
    pub(super) fn close_gone(&mut self) {
        for Gone { rank, fence, link } in std::mem::take(&mut self.gone) {
            if !self.engine.breaks(BrokenRule::Fencing) {
                // Looked at with the others.
                self.queue.close(link.channel);
            }
            self.fencing.push((link.channel, fence));
            link.posted.into_iter().for_each(|posted| self.completed(rank, posted));
            link.backlog.into_iter().for_each(|post| self.dropped(rank, post));
        }
        self.settle_fences();
    }

    /// What was granted over channels that are closed comes back where their fences are done.
    pub(super) fn settle_fences(&mut self) {
        let Self { fencing, queue, engine, .. } = self;
        fencing.retain(|(channel, fence)| {
            let skipped = engine.breaks(BrokenRule::Fence).then_some(Fence::Done);
            let proof = skipped.unwrap_or_else(|| queue.fence(*channel)).proof();
            let is_pending = proof.is_none();
            proof.into_iter().for_each(|proof| engine.fenced(*fence, proof));
            is_pending
        });
    }

    /// Nothing is in the memory of workers only that have all their answers.
    pub(super) fn end_reads(&mut self) {
        let Self { links, engine, queue, .. } = self;
        for (rank, link) in (0..).map(Rank).zip(links) {
            if let Some(link) = link.as_mut().filter(|link| link.reads && !engine.owes(rank)) {
                queue.end_reads(link.channel);
                link.reads = false;
            }
        }
    }

    /// Lets workers that have not copied the weights in a buffer copy those in a spill block instead, as far as their channels
    /// can: others have them on their way.
    pub(super) fn relieve(&mut self, chunk: u32, buffer: u8, to: u32) -> Result<(), LaneError> {
        let copy = self.storage.copy_weights(chunk, buffer, to)?;
        let (mut moved, id) = (Vec::new(), Posted::Land { chunk, buffer }.to_id());
        for (rank, link) in (0..).map(Rank).zip(&mut self.links) {
            let Some(link) = link else { continue };
            let told = self.queue.move_landings(link.channel, id, &copy);
            moved.extend(std::iter::repeat_n(rank, told));
            for post in &mut link.backlog {
                match post {
                    Post::Land { chunk: of, buffer: from, moved: place, .. }
                        if (*of, *from, *place) == (chunk, buffer, None) =>
                    {
                        *place = Some(to);
                        moved.push(rank);
                    }
                    _ => {}
                }
            }
        }
        self.engine.relieved(chunk, buffer, to, &moved, &mut self.commands);
        Ok(())
    }
}
