//! What others' records bring: images of chunks, part by part, and changes of their rules. It must not decide whether they are
//! taken: the engine has.

use super::super::lane::{DataLane, LaneError};
use super::PREFIX_BYTES;
use crate::engine::Source;
use crate::storage::Image;
use fabric::CompletionQueue;
use proto_common::batch::SlotGrant;
use proto_common::ids::Rank;
use proto_common::message::decode;
use proto_common::optimizer::Optimizer;

/// A home's image, and what is behind it: how long it is stands last.
fn without_rows(bytes: &[u8]) -> (&[u8], &[u8]) {
    let split = bytes.split_last_chunk().and_then(|(bytes, image_bytes)| {
        bytes.split_at_checked(usize::try_from(u64::from_le_bytes(*image_bytes)).ok()?)
    });
    split.unwrap_or_default()
}

impl<Q: CompletionQueue> DataLane<Q> {
    /// Part of an image of a copy has come.
    pub(in super::super) fn take_part(
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
    pub(in super::super) fn load(
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
                loaded.map(|()| {
                    let mut state = image.state;
                    if keeps_other {
                        (state.previous, state.previous_bytes) = (None, 0);
                    }
                    state
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
        engine.loaded((from, slot), chunk, state.as_ref().map(|state| (state, into)), commands);
        Ok(())
    }

    /// Changes of a copy's rule have come.
    pub(in super::super) fn take_rules(
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
