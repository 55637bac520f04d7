//! The channels between servers, of one lane. It writes the records of this server's streams (`streams` in the engine), and reads those of
//! other servers' streams to this one (`copies` in the engine). `ours` is true for a stream from this server. The engine decides what is
//! sent and what a record means.

use super::error::LaneError;
use super::lane::DataLane;
use super::message::LaneNews;
use super::records::{CopyLink, PREFIX_BYTES, RecordPost, Replicas};
use super::slots::read_prefix;
use crate::engine::{ChunkState, Payload, RecordContext, Source};
use crate::storage::Image;
use fabric::{Completion, CompletionKind, CompletionQueue, PostError, RemoteKey, RemoteSpan, Span, Write};
use proto_common::batch::{BatchKind, BatchWriter, Block, BlockData, Notice, OpKind, RECORD_LEFT, SlotGrant};
use proto_common::ids::{Epoch, Operation, Rank};
use proto_common::message::{decode, encode};
use proto_common::optimizer::Optimizer;

/// Notices that may wait for a server that accepts none: more than it can have slots in use.
const BACKLOG_MAX: usize = 1024;

/// A home's image, and what is behind it: how long it is stands last.
fn without_rows(bytes: &[u8]) -> (&[u8], &[u8]) {
    let split = bytes.split_last_chunk().and_then(|(bytes, image_bytes)| {
        bytes.split_at_checked(usize::try_from(u64::from_le_bytes(*image_bytes)).ok()?)
    });
    split.unwrap_or_default()
}

impl<Q: CompletionQueue> DataLane<Q> {
    /// The next event for the control side.
    pub fn next_news(&mut self) -> Option<LaneNews> {
        self.replicas.news.pop_front()
    }

    pub(super) fn close_stream(&mut self, to: Rank) {
        let Some(at) = self.replicas.streams.iter().position(|link| link.to == to) else { return };
        let link = self.replicas.streams.swap_remove(at);
        self.queue.close(link.channel);
        self.replicas.channels.remove(&link.channel);
        self.engine.stream_down(to, &mut self.commands);
    }

    pub(super) fn close_copy(&mut self, from: Rank) {
        let Some(at) = self.replicas.copies.iter().position(|link| link.from == from) else { return };
        let link = self.replicas.copies.swap_remove(at);
        self.queue.close(link.channel);
        self.replicas.channels.remove(&link.channel);
        self.engine.copy_down(from);
        self.storage.set_records(from, None);
    }

    /// A channel between servers has ended, or has to end. The control side connects again, unless the scheduler reports that the other
    /// server has failed.
    pub(super) fn end_stream(&mut self, peer: Rank, ours: bool) {
        if !ours {
            // Commands that are not executed yet still read its slots: an update that was confirmed must be applied.
            let of_it = self.replicas.copies.iter_mut().filter(|link| link.from == peer);
            of_it.for_each(|link| link.is_over = true);
            return self.replicas.some_over = true;
        }
        let lane = self.config.engine.lane.0;
        let number = self.replicas.streams.iter().find(|link| link.to == peer).map(|link| link.number);
        let ended = number.map(|number| LaneNews::StreamDown { lane, to: peer, number });
        self.replicas.news.extend(ended);
        self.close_stream(peer);
    }

    /// Closes the streams to this server that have to end, after all commands about them were executed.
    pub(super) fn close_over(&mut self) {
        if !std::mem::take(&mut self.replicas.some_over) {
            return;
        }
        let over = |link: &&CopyLink| link.is_over;
        while let Some(from) = self.replicas.copies.iter().find(over).map(|link| link.from) {
            self.close_copy(from);
        }
    }

    pub(super) fn say_seeded(&mut self, to: Rank, epoch: Epoch) {
        let lane = self.config.engine.lane.0;
        self.replicas.news.push_back(LaneNews::Seeded { lane, to, epoch });
    }

    /// Frees images that are sent completely: they may be large.
    pub(super) fn free_images(&mut self) {
        let Self { replicas, engine, .. } = self;
        let sent = replicas.streams.iter_mut().filter(|link| !engine.sends_image(link.to));
        sent.for_each(|link| link.image = None);
    }

    /// Is there an image to be sent?
    #[cfg(test)]
    pub(super) fn sends_from_memory(&self) -> bool {
        self.replicas.streams.iter().any(|link| link.image.is_some())
    }

    /// Handles an event of a channel between servers. False if the channel is another one.
    pub(super) fn handle_server(&mut self, completion: &Completion) -> Result<bool, LaneError> {
        let Some((peer, ours)) = self.replicas.channels.get(&completion.channel).copied() else {
            return Ok(false);
        };
        match &completion.kind {
            CompletionKind::Received { immediate } => match (Notice::from_wire(*immediate), ours) {
                (Some(notice), true) => {
                    self.engine.stream_notice(peer, notice, &mut self.commands);
                    self.free_images();
                }
                (Some(Notice::Batch(slot)), false) => self.take_record(peer, slot)?,
                (Some(Notice::Probe | Notice::ProbeReply), false) => {}
                _ => {
                    tracing::warn!(
                        server = peer.0,
                        "closing the channel of a server that broke the protocol"
                    );
                    self.end_stream(peer, ours);
                }
            },
            CompletionKind::WriteDone { .. } | CompletionKind::ReadDone { .. } => {}
            CompletionKind::Disconnected(reason) => {
                tracing::info!(server = peer.0, ours, ?reason, "a channel between servers ended");
                self.end_stream(peer, ours);
            }
        }
        Ok(true)
    }

    /// Copies a record's prefix out of its slot, checks it, and lets the engine decide.
    fn take_record(&mut self, from: Rank, slot: SlotGrant) -> Result<(), LaneError> {
        if !self.engine.record_notified(from, slot, &mut self.commands) {
            return Ok(());
        }
        let Some(link) = self.replicas.copies.iter().find(|link| link.from == from) else { return Ok(()) };
        let header = match read_prefix(&link.cells, slot.slot, &mut self.prefix, &mut self.reader)? {
            Ok(header) => header,
            Err(error) => {
                tracing::warn!(server = from.0, %error, "malformed record in the replication stream of a server");
                self.end_stream(from, false);
                return Ok(());
            }
        };
        self.replicas.words.clear();
        if let Some(Block { data: BlockData::Inline { offset }, bytes, .. }) = self.reader.blocks.get(1) {
            let words = (*bytes / 8).min(PREFIX_BYTES / 8);
            let start = link.cells.start(slot.slot);
            for at in 0..words {
                let mut word = [0; 8];
                // The reader has checked that the block lies within its slot.
                link.cells.memory().read(start + header.payload_offset + offset + 8 * at, &mut word)?;
                self.replicas.words.push(u64::from_le_bytes(word));
            }
        }
        let (blocks, contributors) = (&self.reader.blocks, &self.replicas.words);
        let record = RecordContext { from, slot, header: &header, blocks, contributors };
        self.engine.record(&record, &mut self.commands);
        Ok(())
    }

    /// Takes a chunk's image, to be sent.
    pub(super) fn capture(
        &mut self,
        to: Rank,
        chunk: u32,
        state: &ChunkState,
        live: u8,
    ) -> Result<(), LaneError> {
        let Self { replicas, storage, queue, engine, commands, tables, .. } = self;
        let Replicas { streams, captured, .. } = replicas;
        let Some(link) = streams.iter_mut().find(|link| link.to == to) else { return Ok(()) };
        storage.save_image(chunk, state, live, captured)?;
        if let Some(home) = engine.home(chunk) {
            let image_bytes = captured.len() as u64;
            tables.save_home(home, captured).map_err(LaneError::Unregistered)?;
            captured.extend(image_bytes.to_le_bytes());
        }
        if link.image.as_ref().is_none_or(|image| image.len() < captured.len()) {
            let image = storage.sent_buffer(captured.len() as u64);
            let image = image.map_err(|error| error.to_string()).and_then(|image| {
                queue.prepare(&image.span()).map_err(|error| error.to_string())?;
                Ok(image)
            });
            match image {
                Ok(image) => link.image = Some(image),
                Err(error) => {
                    tracing::warn!(
                        server = to.0,
                        error,
                        "no memory to send the whole copy of a chunk; retrying"
                    );
                    self.end_stream(to, true);
                    return Ok(());
                }
            }
        }
        if let Some(image) = &mut link.image {
            image.copy_in(captured);
        }
        let bytes = captured.len() as u64;
        if engine.home(chunk).is_some() {
            // All rows of a home are no length that is kept for others.
            *captured = Vec::new();
        }
        engine.captured(to, chunk, bytes, commands);
        Ok(())
    }

    /// Encodes a record and posts it, behind those that wait.
    pub(super) fn write_record(
        &mut self,
        (to, slot): (Rank, SlotGrant),
        chunk: u32,
        (mut block, payload): (Block, Payload),
        contributors: &[u64],
        sequence: u64,
    ) -> Result<(), LaneError> {
        if payload == Payload::Sum {
            self.flight.copy((chunk, (&self.engine, &self.storage)), to, block.count.round());
        }
        let rules = match payload {
            Payload::Rules => {
                let changes = self.storage.rule_changes(chunk)?.to_vec();
                encode(&changes).map_err(|error| LaneError::Unregistered(error.to_string()))?
            }
            Payload::Nothing | Payload::Sum | Payload::Image => Vec::new(),
        };
        let (at, bytes) = (block.landing.map_or(0, |part| part.offset), block.bytes);
        if payload == Payload::Sum && self.storage.sum_left(chunk)? {
            block.token |= RECORD_LEFT;
        }
        if payload == Payload::Rules {
            block.bytes = rules.len() as u64;
        }
        let header = self.header(BatchKind::Record, self.engine.stream_incarnation(to), sequence);
        let Some(link) = self.replicas.streams.iter_mut().find(|link| link.to == to) else { return Ok(()) };
        let words = Block {
            op: OpKind::CopyUpdate,
            bytes: 8 * contributors.len() as u64,
            operation: Operation(0),
            landing: None,
            token: 0,
            ..block
        };
        let writer = BatchWriter::new(&mut self.prefix, link.inbox.slot_bytes).ok();
        let encoded = writer.and_then(|mut writer| {
            let fits = writer.push(block) && (contributors.is_empty() || writer.push(words));
            fits.then(|| writer.finish(header) as u64)
        });
        let Some(prefix_bytes) = encoded else {
            // Slots that have no room for a part and the largest table were not taken.
            tracing::warn!(
                server = to.0,
                bytes,
                "internal error: a record does not fit into the slots of a server"
            );
            self.end_stream(to, true);
            return Ok(());
        };
        link.prefixes.write(slot.slot, 0, &self.prefix[..prefix_bytes as usize])?;
        let mut end = prefix_bytes;
        for word in contributors {
            link.prefixes.write(slot.slot, end, &word.to_le_bytes())?;
            end += 8;
        }
        link.prefixes.write(slot.slot, end, &rules)?;
        let extra_bytes = end - prefix_bytes + rules.len() as u64;
        link.backlog.push_back(RecordPost { slot, chunk, payload, at, bytes, prefix_bytes, extra_bytes });
        self.post_records(to)
    }

    fn post_records(&mut self, to: Rank) -> Result<(), LaneError> {
        loop {
            let Self { replicas, storage, queue, .. } = self;
            let Some(link) = replicas.streams.iter_mut().find(|link| link.to == to) else { return Ok(()) };
            let Some(post) = link.backlog.front().copied() else { return Ok(()) };
            let RecordPost { slot, chunk, payload, at, bytes, prefix_bytes, extra_bytes } = post;
            let lead = link.prefixes.span(slot.slot, prefix_bytes + extra_bytes)?;
            let part: Option<Span> = match payload {
                // A record that waited for the channel may outlive its chunk.
                Payload::Sum => match storage.sum_part(chunk, at, bytes) {
                    Ok(part) => Some(part),
                    Err(error) => {
                        tracing::info!(server = to.0, %error, "the chunk of a record is no longer here");
                        self.end_stream(to, true);
                        return Ok(());
                    }
                },
                Payload::Image => link.image.as_ref().map(|image| image.slice(at, bytes)).transpose()?,
                Payload::Nothing | Payload::Rules => None,
            };
            let (three, one);
            let gather = match part {
                Some(part) => {
                    three = [lead.slice(0, prefix_bytes)?, part, lead.slice(prefix_bytes, extra_bytes)?];
                    &three[..]
                }
                None => {
                    one = [lead];
                    &one[..]
                }
            };
            // What the other side says of its memory is checked where it is written to.
            let offset = u64::from(slot.slot).saturating_mul(link.inbox.slot_bytes);
            let remote = RemoteSpan {
                key: RemoteKey(link.inbox.region),
                offset: link.inbox.offset.saturating_add(offset),
            };
            let immediate = Some(Notice::Batch(slot).to_wire());
            let write = Write { id: 0, gather, remote, immediate, signaled: false };
            match queue.post_write(link.channel, &write) {
                Ok(()) => drop(link.backlog.pop_front()),
                Err(PostError::Full | PostError::Closed) => return Ok(()),
                // Without memory for copies this server may have what nobody else has: it lives, and tries again.
                Err(error) => {
                    let error = self.queue.explain(error);
                    tracing::warn!(server = to.0, error, "cannot write to the record slots of a server");
                    self.end_stream(to, true);
                    return Ok(());
                }
            }
        }
    }

    /// Tells a server whose chunks we have copies of.
    pub(super) fn notify_primary(&mut self, from: Rank, notice: Notice) -> Result<(), LaneError> {
        let link = self.replicas.copies.iter_mut().find(|link| link.from == from && !link.is_over);
        let Some(link) = link else { return Ok(()) };
        if link.backlog.len() >= BACKLOG_MAX {
            tracing::warn!(server = from.0, "a server streams records, but accepts no answers");
            self.end_stream(from, false);
            return Ok(());
        }
        link.backlog.push_back(notice.to_wire());
        self.post_notices(from)
    }

    fn post_notices(&mut self, from: Rank) -> Result<(), LaneError> {
        let Self { replicas, queue, .. } = self;
        let link = replicas.copies.iter_mut().find(|link| link.from == from);
        let Some(link) = link else { return Ok(()) };
        while let Some(immediate) = link.backlog.front().copied() {
            // No bytes, so no place either.
            let remote = RemoteSpan { key: RemoteKey(0), offset: 0 };
            let write = Write { id: 0, gather: &[], remote, immediate: Some(immediate), signaled: false };
            match queue.post_write(link.channel, &write) {
                Ok(()) => drop(link.backlog.pop_front()),
                Err(PostError::Full | PostError::Closed) => return Ok(()),
                Err(error) => {
                    tracing::warn!(server = from.0, %error, "cannot answer a server that streams records");
                    self.end_stream(from, false);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// What channels had no room for goes out.
    pub(super) fn retry_servers(&mut self) -> Result<(), LaneError> {
        for at in 0..self.replicas.streams.len() {
            if let Some(to) = self.replicas.streams.get(at).filter(|link| !link.backlog.is_empty()) {
                self.post_records(to.to)?;
            }
        }
        for at in 0..self.replicas.copies.len() {
            if let Some(from) = self.replicas.copies.get(at).filter(|link| !link.backlog.is_empty()) {
                self.post_notices(from.from)?;
            }
        }
        Ok(())
    }

    /// Part of an image of a copy has come.
    pub(super) fn take_part(
        &mut self,
        from: Rank,
        (part, at, bytes): (Source, u64, u64),
        total: u64,
        chunk: u32,
    ) -> Result<(), LaneError> {
        // A home's rows are behind its image: as many as their server has room for.
        let has_rows = self.engine.home(chunk).is_some();
        let most = if has_rows { u64::MAX } else { self.storage.image_bytes_max(chunk)? as u64 };
        let link = self.replicas.copies.iter_mut().find(|link| link.from == from);
        let Some(link) = link else { return Ok(()) };
        if at + bytes > total || total > most {
            tracing::warn!(server = from.0, "the image of a chunk from a server is longer than the chunk");
            self.end_stream(from, false);
            return Ok(());
        }
        // Parts come in order: what it grows by is what has come.
        link.image.resize((at + bytes) as usize, 0);
        Ok(self.storage.read_record(part, &mut link.image[at as usize..])?)
    }

    /// An image is whole: the chunk becomes what it says.
    pub(super) fn load(
        &mut self,
        (from, slot): (Rank, SlotGrant),
        chunk: u32,
        into: u8,
        keeps_other: bool,
    ) -> Result<(), LaneError> {
        let Self { replicas, storage, engine, commands, tables, .. } = self;
        let link = replicas.copies.iter_mut().find(|link| link.from == from);
        let Some(link) = link else { return Ok(()) };
        let home = engine.home(chunk);
        let (image, rows) =
            if home.is_some() { without_rows(&link.image) } else { (&link.image[..], &[][..]) };
        let state = match Image::read(image) {
            Ok(image) => {
                let loaded = home.map_or(Ok(()), |home| tables.load_home(home, rows));
                if let Err(reason) = &loaded {
                    tracing::warn!(server = from.0, reason, "cannot apply rows from a server");
                }
                let sound = loaded.is_ok() && engine.check_state(chunk, &image.state).is_ok();
                let loaded =
                    sound.then(|| storage.load_image(chunk, &image, into, keeps_other).ok()).flatten();
                loaded.map(|(live, has_previous)| {
                    let mut state = image.state;
                    if !has_previous {
                        (state.previous, state.previous_bytes) = (None, 0);
                    }
                    (state, live)
                })
            }
            Err(error) => {
                tracing::warn!(server = from.0, %error, "malformed image of a chunk from a server");
                None
            }
        };
        if home.is_some() {
            link.image = Vec::new();
        }
        engine.loaded((from, slot), chunk, state.as_ref().map(|(state, live)| (state, *live)), commands);
        Ok(())
    }

    /// Changes of a copy's rule have come.
    pub(super) fn take_rules(
        &mut self,
        from: Rank,
        chunk: u32,
        (rules, bytes): (Source, u64),
        after: u64,
    ) -> Result<(), LaneError> {
        let mut encoded = vec![0; bytes.min(PREFIX_BYTES) as usize];
        self.storage.read_record(rules, &mut encoded)?;
        let changes: Option<Vec<(u64, Optimizer)>> = decode(&encoded).ok();
        let sound = |changes: &Vec<(u64, Optimizer)>| changes.iter().all(|(_, rule)| rule.validate().is_ok());
        let taken = match changes.filter(sound) {
            Some(changes) => self.storage.take_rule_changes(chunk, &changes, after).is_ok(),
            None => false,
        };
        if !taken {
            self.end_stream(from, false);
        }
        Ok(())
    }
}
