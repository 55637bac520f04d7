//! How each thing that is posted to a worker becomes a write or a read of its channel. What is posted, and when, is the
//! lane's.

use super::calls::CallMemory;
use super::lane::LaneError;
use super::link::{Fetch, Link, Post, Posted};
use crate::storage::Storage;
use fabric::{Blocks, CompletionQueue, PostError, Read, RemoteKey, RemoteSpan, Write};
use proto_common::batch::Notice;

/// Posts one thing, and notes what its completion will be of. The outer error is ours, the inner one the channel's.
pub(super) fn start<Q: CompletionQueue>(
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
        // Over shared memory the worker copies them: no server writes into what a trainer computes in.
        Post::Land { .. } => queue.post_landing(link.channel, &write),
        _ => queue.post_write(link.channel, &write),
    };
    if result.is_ok() {
        link.posted.extend(posted);
    }
    Ok(result)
}
