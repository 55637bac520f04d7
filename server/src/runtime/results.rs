//! Encodes result batches, and fills in keys and offsets of the memory that they name, which the channel knows. It must not decide what
//! they contain.

use super::error::LaneError;
use super::lane::DataLane;
use super::link::Post;
use crate::engine::{Place, ResultBlock};
use fabric::{Access, CompletionQueue, PostError};
use proto_common::batch::{
    BatchHeader, BatchKind, BatchWriter, Block, BlockData, Landing, SlotGrant, Status,
};
use proto_common::ids::{Incarnation, Rank};
use proto_common::limits::RESULT_SLOT_BYTES;

impl<Q: CompletionQueue> DataLane<Q> {
    pub(super) fn send_results(
        &mut self,
        peer: Rank,
        slot: SlotGrant,
        results: &[ResultBlock],
        grants: &[SlotGrant],
        sequence: u64,
    ) -> Result<(), LaneError> {
        // The engine knows how many blocks are free. If it sends more results nevertheless, the channel ends; otherwise they would be
        // lost silently.
        let Some(block) = self.blocks.take() else {
            self.expel(peer, "too many results to it are in flight");
            return Ok(());
        };
        let header = self.header(BatchKind::Result, self.engine.peer_incarnation(peer), sequence);
        let grants_buffers = results.iter().any(|result| result.block.status == Status::Granted);
        let key = if grants_buffers { self.lend_spill(peer, results) } else { None };
        let shows = results.iter().any(|result| result.block.view);
        let granted = self.lend_slots(peer, grants);
        let granted = granted.and_then(|()| if shows { self.show_weights(peer).map(Some) } else { Ok(None) });
        let weights_key = match granted {
            Ok(key) => key,
            // This concerns only this worker: the other workers continue.
            Err(error) => {
                let reason =
                    format!("it cannot be granted what its results name: {}", self.queue.explain(error));
                self.blocks.give(block);
                self.expel(peer, &reason);
                return Ok(());
            }
        };
        let storage = &self.storage;
        // The engine names a block or a buffer; its region and offset are filled in here. Without a key the worker gets no buffer now;
        // the engine's grant remains, for the worker's next request.
        let place = |result: &ResultBlock| {
            let landing = result.block.landing?;
            let (region, offset) = match result.place {
                None => return Some(landing),
                Some(Place::Carried { .. }) => return None,
                Some(Place::Weights { chunk, buffer }) => {
                    (weights_key?, storage.weights(chunk, buffer).ok()?.offset())
                }
                Some(Place::Spill(block)) => (key?, storage.spill_cells().start(block)),
            };
            Some(Landing { region, offset, ..landing })
        };
        let calls = &self.calls;
        let is_kept = |call| calls.reply_prefix(call).is_some();
        let bytes = encode_results(&mut self.prefix, header, (results, is_kept), grants, place);
        self.blocks.write(block, 0, &self.prefix[..bytes])?;
        let mut end = bytes as u64;
        for result in results {
            match (result.place, result.call) {
                (Some(Place::Carried { chunk, buffer }), _) => {
                    let weights = self.storage.weights(chunk, buffer)?.slice(0, result.inline_bytes())?;
                    self.blocks.copy(block, end, &weights)?;
                }
                (_, Some(call)) => self.write_reply(block, end, call, result.block.bytes)?,
                (_, None) => {
                    for (at, rank) in (end..).step_by(4).zip(&result.missing) {
                        self.blocks.write(block, at, &rank.0.to_le_bytes())?;
                    }
                }
            }
            end += result.inline_bytes();
        }
        self.post(peer, Post::Results { slot, block, bytes: end })
    }

    /// Writes the part of a reply that travels with its result. If the reply is no longer kept, nobody waits for it, and its place is left
    /// empty.
    fn write_reply(&self, block: u32, at: u64, call: u64, bytes: u64) -> Result<(), LaneError> {
        let Some((head, body)) = self.calls.reply_prefix(call) else {
            return Ok(self.blocks.write(block, at, &vec![0; bytes as usize])?);
        };
        let body = if bytes > (2 + head.len()) as u64 { body } else { &[] };
        self.blocks.write(block, at, &(head.len() as u16).to_le_bytes())?;
        self.blocks.write(block, at + 2, head)?;
        Ok(self.blocks.write(block, at + 2 + head.len() as u64, body)?)
    }

    /// The key under which a worker writes into the spill blocks that are granted to it; none while its channel cannot send it.
    fn lend_spill(&mut self, peer: Rank, results: &[ResultBlock]) -> Option<u64> {
        let link = self.links.get_mut(peer.0 as usize)?.as_mut()?;
        let spill = self.storage.spill_cells();
        if link.spill_key.is_none() {
            link.spill_key = self.queue.expose(link.channel, spill.memory()).ok().map(|key| key.0);
        }
        for result in results {
            if let (Some(Place::Spill(block)), Some(landing)) = (result.place, result.block.landing) {
                let block = spill.memory().span(spill.start(block), landing.bytes).ok()?;
                self.queue.lend(link.channel, &block, Access::ReadWrite, 0).ok()?;
            }
        }
        link.spill_key
    }

    /// Ends the grants of spill blocks whose content was reduced or is no longer needed.
    pub(super) fn take_key_buffers(&mut self) -> Result<(), LaneError> {
        for (rank, block) in self.engine.taken_buffers() {
            if let Some(link) = self.links.get(rank.0 as usize).and_then(Option::as_ref) {
                self.queue.take_back(link.channel, &self.storage.spill_cells().span(block)?, 0);
            }
        }
        Ok(())
    }

    /// The key under which a worker reads views of weights.
    fn show_weights(&mut self, peer: Rank) -> Result<u64, PostError> {
        let Some(Some(link)) = self.links.get_mut(peer.0 as usize) else { return Err(PostError::Closed) };
        match link.weights_key {
            Some(key) => Ok(key),
            None => {
                let key = self.queue.expose(link.channel, self.storage.weights_region())?.0;
                link.weights_key = Some(key);
                Ok(key)
            }
        }
    }

    pub(super) fn header(
        &self,
        kind: BatchKind,
        receiver_incarnation: Incarnation,
        sequence: u64,
    ) -> BatchHeader {
        BatchHeader {
            kind,
            lane: self.config.engine.lane,
            wanted: 0,
            sender: self.config.rank,
            job: self.config.engine.job,
            epoch: self.epoch,
            sender_incarnation: self.config.engine.incarnation,
            receiver_incarnation,
            sequence,
            payload_offset: 0,
            payload_bytes: 0,
            payload_checksum: None,
        }
    }
}

fn encode_results(
    prefix: &mut [u8],
    header: BatchHeader,
    (results, is_kept): (&[ResultBlock], impl Fn(u64) -> bool),
    grants: &[SlotGrant],
    place: impl Fn(&ResultBlock) -> Option<Landing>,
) -> usize {
    // The engine packed with the same room; the writer cannot refuse what fitted there.
    let Ok(mut writer) = BatchWriter::new(prefix, RESULT_SLOT_BYTES) else { return 0 };
    for result in results {
        let bytes = result.inline_bytes();
        let landing = place(result);
        // If the reply is no longer kept, the call ends without it.
        let is_gone = result.call.is_some_and(|call| !is_kept(call));
        let status = if is_gone { Status::NoReply } else { result.block.status };
        let block = Block { status, bytes, data: BlockData::Inline { offset: 0 }, landing, ..result.block };
        let fitted = writer.push(block);
        debug_assert!(fitted, "packed with the same room");
    }
    for grant in grants {
        let fitted = writer.grant(*grant);
        debug_assert!(fitted, "packed with the same bound");
    }
    writer.finish(header)
}
