//! Turns each post to a worker into a write or a read on its channel. It must not decide what is posted, or when.

use super::calls::CallMemory;
use super::error::LaneError;
use super::lane::DataLane;
use super::link::{Fetch, Link, Post, Posted};
use crate::storage::Storage;
use fabric::{Blocks, CompletionQueue, PostError, Read, RemoteKey, RemoteSpan, Write};
use proto_common::batch::Notice;
use proto_common::ids::Rank;

/// If so many posts wait for a worker, a further notice ends its channel. The engine bounds all other posts.
const BACKLOG_MAX: usize = 1024;

impl<Q: CompletionQueue> DataLane<Q> {
    /// Posts, or queues the post after those that wait already.
    pub(super) fn post(&mut self, peer: Rank, post: Post) -> Result<(), LaneError> {
        let Some(Some(link)) = self.links.get_mut(peer.0 as usize) else {
            self.dropped(peer, post);
            return Ok(());
        };
        if matches!(post, Post::Notice(_)) && link.backlog.len() >= BACKLOG_MAX {
            self.expel(peer, "it sends operations, but accepts no answers");
            return Ok(());
        }
        link.backlog.push_back(post);
        if link.backlog.len() == 1 { self.drain(peer) } else { Ok(()) }
    }

    pub(super) fn retry_backlogs(&mut self) -> Result<(), LaneError> {
        for rank in 0..self.links.len() {
            if self.links[rank].as_ref().is_some_and(|link| !link.backlog.is_empty()) {
                self.drain(Rank(rank as u32))?;
            }
        }
        Ok(())
    }

    fn drain(&mut self, peer: Rank) -> Result<(), LaneError> {
        let Self { queue, links, storage, blocks, calls, .. } = self;
        let Some(Some(link)) = links.get_mut(peer.0 as usize) else { return Ok(()) };
        let mut failure = None;
        while let Some(post) = link.backlog.front().copied() {
            match start(queue, link, (storage, blocks, calls), post)? {
                Ok(()) => drop(link.backlog.pop_front()),
                // A closed channel is reported with the next completions. The worker has done nothing wrong.
                Err(PostError::Full | PostError::Closed) => break,
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        match failure {
            // This server cannot register memory, and no worker can continue without it: the lane fails, and reports the reason.
            Some(error @ PostError::Unregistered) => {
                return Err(LaneError::Unregistered(self.queue.explain(error)));
            }
            Some(error) => self.expel(peer, &format!("memory that it granted cannot be accessed: {error}")),
            None => {}
        }
        Ok(())
    }

    /// Frees what a post holds, because its channel has ended.
    pub(super) fn dropped(&mut self, rank: Rank, post: Post) {
        match post {
            Post::Land { chunk, buffer, .. } => self.completed(rank, Posted::Land { chunk, buffer }),
            Post::Results { block, .. } => self.completed(rank, Posted::Block(block)),
            Post::CallLand { call, .. } => self.completed(rank, Posted::Reply(call)),
            Post::CallRead { call, .. } => self.calls.unread(call),
            Post::Notice(_) | Post::Fetch { .. } => {}
        }
    }

    pub(super) fn completed(&mut self, rank: Rank, posted: Posted) {
        match posted {
            Posted::Land { chunk, buffer } => self.engine.landed(rank, chunk, buffer, &mut self.commands),
            Posted::Block(block) => self.blocks.give(block),
            Posted::Reply(call) => self.calls.landed(call),
        }
    }
}

/// Starts one post, and records what its completion belongs to. The outer error is this server's, the inner one the channel's.
fn start<Q: CompletionQueue>(
    queue: &mut Q,
    link: &mut Link,
    (storage, blocks, calls): (&Storage, &Blocks, &CallMemory),
    post: Post,
) -> Result<Result<(), PostError>, LaneError> {
    let (gather, gather_reply);
    let (spans, remote, immediate, posted) = match post {
        Post::Land { chunk, buffer, bytes, landing, moved } => {
            gather = match moved {
                Some(block) => [storage.spill_span(block, bytes)?],
                None => [storage.weights(chunk, buffer)?.slice(0, bytes)?],
            };
            let remote = RemoteSpan { key: RemoteKey(landing.region), offset: landing.offset };
            (&gather[..], remote, None, Some(Posted::Land { chunk, buffer }))
        }
        Post::Results { slot, block, bytes } => {
            gather = [blocks.span(block, bytes)?];
            (&gather[..], link.slot(slot), Some(Notice::Batch(slot).to_wire()), Some(Posted::Block(block)))
        }
        Post::Notice(immediate) => (&[][..], link.nowhere(), Some(immediate), None),
        Post::Fetch { chunk, block, bytes, from } => {
            let local = storage.spill_span(block, bytes)?;
            let read = Read { id: u64::from(block), local: &local, remote: from };
            let result = queue.post_read(link.channel, &read);
            if result.is_ok() {
                link.fetches.push_back(Fetch::Chunk { chunk, block });
            }
            return Ok(result);
        }
        Post::CallRead { call, at, bytes, from } => {
            let Some(local) = calls.body_span(call, at, bytes) else { return Ok(Ok(())) };
            let result = queue.post_read(link.channel, &Read { id: call, local: &local?, remote: from });
            if result.is_ok() {
                link.fetches.push_back(Fetch::Call { call, bytes });
            }
            return Ok(result);
        }
        Post::CallLand { call, at, landing } => {
            gather_reply = match calls.reply_span(call) {
                Some(span) => Some(span.slice(at, landing.bytes)?),
                None => None,
            };
            let remote = RemoteSpan { key: RemoteKey(landing.region), offset: landing.offset };
            (gather_reply.as_slice(), remote, None, Some(Posted::Reply(call)))
        }
    };
    let (id, signaled) = (posted.map_or(0, Posted::to_id), posted.is_some());
    let write = Write { id, gather: spans, remote, immediate, signaled };
    let result = match post {
        // Over shared memory the worker copies them, so that no server writes into a trainer's memory.
        Post::Land { .. } => queue.post_landing(link.channel, &write),
        _ => queue.post_write(link.channel, &write),
    };
    if result.is_ok() {
        link.posted.extend(posted);
    }
    Ok(result)
}
