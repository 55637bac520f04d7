//! A lane's part in checkpoints: copies chunks that the engine says are due, as far as there is room, and takes over what a
//! checkpoint has of new ones. It must not write files.

use super::error::LaneError;
use super::lane::DataLane;
use crate::checkpoint::{Begin, Copied, LanePart, LaneSaver, Piece, Restorer, file_of};
use crate::engine::{ChunkSpec, EngineConfig, SavingNews};
use crate::storage::Image;
use checkpoint::{CheckpointError, Store};
use fabric::CompletionQueue;
use proto_common::message::{CheckpointNews, CheckpointOrder, PartWritten, Waits};
use proto_common::tensor::TensorSpec;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Chunks that are copied in one turn of a lane: training continues in between.
const PER_TURN: usize = 2;

impl<Q: CompletionQueue> DataLane<Q> {
    /// Who writes what is copied, and what new chunks begin with.
    pub(crate) fn set_checkpoints(&mut self, saver: LaneSaver, restorer: Option<Restorer>) {
        self.engine.savings().begin_every(saver.every_rounds);
        self.saves.saver = Some(saver);
        self.saves.restorer = restorer;
    }

    /// New chunks begin from this checkpoint, and none is written: of a lane without a thread that writes.
    pub fn restore_from(&mut self, place: &str, name: &str, lanes: u16) -> Result<(), CheckpointError> {
        self.saves.restorer = Some(Restorer::open(place, name, lanes)?);
        Ok(())
    }

    /// Writes these chunks into a part of a checkpoint, at once, while nothing changes them. The tensors give the part their names.
    pub fn write_part(
        &self,
        store: Arc<dyn Store>,
        (name, round): (&str, u64),
        tensors: &[TensorSpec],
        chunks: Vec<ChunkSpec>,
    ) -> Result<PartWritten, LaneError> {
        let tensors = tensors.iter().map(|spec| (spec.key, spec.clone())).collect();
        let EngineConfig { lane, incarnation, .. } = self.config.engine;
        let file = file_of(self.config.rank.0, lane.0, incarnation.0, 0);
        let begin = Begin { round, chunks: chunks.clone(), tables: Vec::new() };
        let mut part =
            LanePart::begin(store, (lane.0, name, &file), self.config.chunk_bytes, &tensors, begin)?;
        for id in chunks.into_iter().map(|chunk| chunk.id) {
            let known = self.engine.index_of(id);
            let Some((index, (state, live))) =
                known.and_then(|index| Some((index, self.engine.state(index, false)?)))
            else {
                return Err(CheckpointError::Plan(format!(
                    "chunk {id:?} is not here, or in the middle of a round"
                ))
                .into());
            };
            let mut image = Vec::new();
            self.storage.save_image(index, &state, live, &mut image)?;
            part.write(&Piece::Chunk(id, image))?;
        }
        Ok(part.finish()?)
    }

    /// What the scheduler says of a checkpoint.
    pub(super) fn checkpoint_order(&mut self, order: &CheckpointOrder) -> Result<(), LaneError> {
        match order {
            CheckpointOrder::Save { round, now } => match self.engine.is_past(*round) {
                Some(newest) if !now => self.report_save(CheckpointNews::Past { round: *round, newest }),
                _ => self.begin_save(*round, *now),
            },
            CheckpointOrder::Where => {
                let waits = self.engine.save_waits();
                let waits = waits.map(|(round, left, chunk, version)| Waits { round, left, chunk, version });
                let (lane, newest) = (self.config.engine.lane.0, self.engine.newest_version());
                self.report_save(CheckpointNews::At { lane, newest, waits });
            }
            CheckpointOrder::Passed { round } => self.engine.pass_save(*round),
            CheckpointOrder::Drop { round } => self.drop_save(*round),
            CheckpointOrder::Reset => {
                let copying = self.engine.saving().map(|(round, _)| round);
                if let Some(round) = copying.or(self.saves.begun.map(|(round, _)| round)) {
                    self.drop_save(round);
                }
            }
        }
        self.save()?;
        self.execute();
        Ok(())
    }

    /// The scheduler would wait for what this lane has no part in.
    fn begin_save(&mut self, round: u64, now: bool) {
        let begins = self.engine.begin_save(round, now, &mut self.commands);
        let copies = self.engine.saving().is_some_and(|(current, _)| current == round);
        if !begins && !copies && self.saves.begun.is_none_or(|(begun, _)| begun != round) {
            let reason = format!("lane {} had given it up when it heard of it", self.config.engine.lane.0);
            self.report_save(CheckpointNews::Failed { round, reason });
        }
    }

    fn drop_save(&mut self, round: u64) {
        if self.saves.begun.is_some_and(|(begun, _)| begun == round) {
            self.forget_save();
        }
        self.engine.drop_save(round, &mut self.commands);
    }

    /// Copies what is due and has room. True where something was copied.
    pub(super) fn save(&mut self) -> Result<bool, LaneError> {
        if self.saves.saver.as_ref().is_some_and(LaneSaver::has_rounds) {
            self.engine.savings().count_rounds();
        }
        self.report_savings();
        if self.engine.saving().is_none() && self.saves.rows.is_empty() {
            return Ok(false);
        }
        let Some(saver) = self.saves.saver.clone() else { return Ok(false) };
        let Some((round, left)) = self.engine.saving() else { return Ok(self.save_rows(&saver)) };
        let begun = Some((round, self.engine.savings().number()));
        if self.saves.begun != begun {
            self.saves.begun = begun;
            let chunks: Vec<ChunkSpec> = self.engine.saved_chunks().map(|(_, spec)| spec).collect();
            let Self { tables, engine, .. } = &*self;
            let (rows, tables) = tables.to_save(|home| engine.serves_home(home));
            self.engine.savings().note_rows_left(!rows.is_empty());
            self.saves.rows = rows;
            saver.begin(Begin { round, chunks, tables });
            if left == 0 {
                self.engine.drop_save(round, &mut self.commands);
            }
        }
        let mut copied = 0;
        while copied < PER_TURN
            && let Some((index, state, buffer)) = self.engine.next_to_save()
        {
            let bytes = self.storage.image_bytes_max(index)?;
            if !saver.take(bytes as u64) {
                break;
            }
            let mut image = Vec::with_capacity(bytes);
            let begun = self.flight.begin(index, &self.storage);
            self.storage.save_image(index, &state, buffer, &mut image)?;
            self.flight.save(begun, (index, (&self.engine, &self.storage)), round);
            // Heads are short as a rule.
            image.shrink_to_fit();
            saver.give((bytes - image.len()) as u64);
            let id = self.engine.chunk_id(index).unwrap_or_default();
            let bytes = image.len() as u64;
            saver.write(Copied { round, what: Piece::Chunk(id, image), bytes });
            self.engine.saved(index, &mut self.commands);
            copied += 1;
        }
        if copied > 0 {
            self.execute();
            self.report_savings();
        }
        // Chunks hold rounds up, and rows do not.
        Ok(copied > 0 || self.save_rows(&saver))
    }

    /// Copies some rows of tables, if there is room. True where some were copied.
    fn save_rows(&mut self, saver: &LaneSaver) -> bool {
        let Some(bytes) = self.tables.next_piece_bytes(&self.saves.rows) else { return false };
        let Some((round, _)) = self.saves.begun.filter(|_| saver.take(bytes)) else { return false };
        let Some(piece) = self.tables.next_piece(&mut self.saves.rows) else {
            saver.give(bytes);
            return false;
        };
        saver.write(Copied { round, what: Piece::Rows(piece), bytes });
        self.engine.savings().note_rows_left(!self.saves.rows.is_empty());
        true
    }

    fn forget_save(&mut self) {
        self.saves.begun = None;
        self.saves.rows.clear();
        self.engine.savings().note_rows_left(false);
    }

    /// A checkpoint ends where chunks that it is to have went elsewhere: their new server knows nothing of it.
    pub(super) fn give_up_save(&mut self) {
        // The home itself may be written, and some of its rows not.
        let is_torn = self.saves.rows.is_torn(|home| self.engine.serves_home(home));
        let with_rows = self.saves.begun.filter(|_| is_torn).map(|(round, _)| round);
        let Some(round) = self.engine.torn_save().or(with_rows) else { return };
        self.engine.drop_save(round, &mut self.commands);
        self.forget_save();
        let reason = "shards were moved while it was written".into();
        self.report_save(CheckpointNews::Failed { round, reason });
    }

    /// Chunks that a checkpoint under way waits for, and the bytes of copies that all lanes have to write.
    pub(super) fn saving_report(&self) -> (u64, u64) {
        let left = self.engine.saving().map_or(0, |(_, left)| u64::from(left));
        (left, self.saves.saver.as_ref().map_or(0, LaneSaver::used_bytes))
    }

    fn report_savings(&mut self) {
        while let Some(news) = self.engine.savings().next_news() {
            self.report_save(match news {
                SavingNews::Begun(round) => CheckpointNews::Begun { round },
                SavingNews::Passed(round) => CheckpointNews::Passed { round },
            });
        }
    }

    fn report_save(&self, news: CheckpointNews) {
        if let Some(saver) = &self.saves.saver {
            saver.report(news);
        }
    }

    /// New ones of these chunks begin from the checkpoint that the job continues from, as far as that has them. After an error
    /// those that are left are tried when they are named again.
    pub(super) fn begin_from_checkpoint<'a>(
        &mut self,
        chunks: impl Iterator<Item = &'a ChunkSpec>,
    ) -> Result<(), LaneError> {
        // A copy is filled by its stream; one that serves before it was is named then.
        let Self { saves, engine, .. } = self;
        saves.unread.retain(|index| engine.is_served(*index));
        let Some(restorer) = self.saves.restorer.clone() else { return Ok(()) };
        let (mut unread, mut named) = (BTreeSet::new(), Vec::new());
        for chunk in chunks {
            let index = self.engine.index_of(chunk.id).filter(|index| self.saves.unread.remove(index));
            // Tables are read when they are declared; who contributed what was of another job.
            if let Some(index) = index.filter(|_| !chunk.has_rows()) {
                unread.insert(index);
                named.push(chunk);
            }
        }
        let begun = restorer.images(&named, self.config.chunk_bytes, |at, image| {
            let chunk = named[at];
            if let Some(index) = self.engine.index_of(chunk.id) {
                image.map_or(Ok(()), |image| self.begin_one(chunk, index, &image))?;
                unread.remove(&index);
            }
            Ok(())
        });
        // Nobody is to continue with zeros instead.
        self.engine.unmade(&unread.into_iter().collect::<Vec<_>>(), &mut self.commands);
        begun
    }

    fn begin_one(&mut self, chunk: &ChunkSpec, index: u32, image: &[u8]) -> Result<(), LaneError> {
        let wrong = |why: String| CheckpointError::Corrupt { file: format!("chunk {:?}", chunk.id), why };
        let image = Image::read(image).map_err(|error| wrong(error.to_string()))?;
        self.engine.check_state(index, &image.state).map_err(wrong)?;
        // Nobody reads a chunk that has served nothing yet.
        self.storage.load_image(index, &image, 0, false).map_err(|error| wrong(error.to_string()))?;
        Ok(self.engine.restore(index, &image.state, 0).map_err(wrong)?)
    }
}
