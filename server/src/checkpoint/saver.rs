//! The thread that writes this server's parts behind training, and how lanes reach it. A lane hands over what it has copied and
//! goes on; what waits here is bounded by the budget.

use super::budget::Budget;
use super::part::{Begin, Copied, CopiedRows, LanePart, file_of};
use checkpoint::{CheckpointError, Store};
use proto_common::config::CheckpointSettings;
use proto_common::ids::{Incarnation, Key, Rank};
use proto_common::message::CheckpointNews;
use proto_common::tensor::TensorSpec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What the thread is told.
#[derive(Debug)]
enum Letter {
    Tensors(Vec<TensorSpec>),
    Begin(u16, Begin),
    Chunk(u16, Copied),
    Rows(u16, CopiedRows),
    Drop(u64),
    Stop,
}

/// How a lane reaches it.
#[derive(Clone, Debug)]
pub(crate) struct LaneSaver {
    lane: u16,
    letters: Sender<Letter>,
    news: UnboundedSender<CheckpointNews>,
    budget: Budget,
    pub(crate) every_rounds: u64,
}

impl LaneSaver {
    /// A checkpoint begins on the lane.
    pub(crate) fn begin(&self, begin: Begin) {
        // A thread that is gone has said why.
        let _ = self.letters.send(Letter::Begin(self.lane, begin));
    }

    /// Room for an image, if there is.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        self.budget.take(bytes)
    }

    /// Gives back room that was not needed.
    pub(crate) fn give(&self, bytes: u64) {
        self.budget.give(bytes);
    }

    /// A chunk is copied, for which room was taken: as many bytes as the image has.
    pub(crate) fn write(&self, copied: Copied) {
        let _ = self.letters.send(Letter::Chunk(self.lane, copied));
    }

    /// Rows are copied, for which room was taken.
    pub(crate) fn write_rows(&self, copied: CopiedRows) {
        let _ = self.letters.send(Letter::Rows(self.lane, copied));
    }

    /// Bytes of what is copied and not written, of all lanes.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.budget.used_bytes()
    }

    /// For the scheduler.
    pub(crate) fn tell(&self, news: CheckpointNews) {
        let _ = self.news.send(news);
    }
}

/// What the control side has of it.
#[derive(Debug)]
pub(crate) struct Saver {
    letters: Sender<Letter>,
    told: UnboundedSender<CheckpointNews>,
    news: UnboundedReceiver<CheckpointNews>,
    budget: Budget,
    every_rounds: u64,
    thread: Option<JoinHandle<()>>,
}

struct Writer {
    store: Option<Arc<dyn Store>>,
    rank: Rank,
    life: u64,
    chunk_bytes: u64,
    tensors: BTreeMap<Key, TensorSpec>,
    parts: BTreeMap<u16, LanePart>,
    /// Parts that were begun.
    begun: u64,
    budget: Budget,
    news: UnboundedSender<CheckpointNews>,
    /// Wakes lanes that wait for room.
    has_room: Box<dyn Fn() + Send>,
}

impl Saver {
    /// Starts the thread. `has_room` wakes the lanes.
    pub(crate) fn start(
        settings: &CheckpointSettings,
        (rank, life, chunk_bytes): (Rank, Incarnation, u64),
        has_room: impl Fn() + Send + 'static,
    ) -> Result<Self, std::io::Error> {
        let ((letters, received), (told, news)) = (channel(), unbounded_channel());
        let budget = Budget::new(settings.memory_bytes);
        let directory = &settings.directory;
        let store = if directory.is_empty() { None } else { checkpoint::open(directory).ok() };
        let mut writer = Writer {
            store,
            rank,
            life: life.0,
            chunk_bytes,
            tensors: BTreeMap::new(),
            parts: BTreeMap::new(),
            begun: 0,
            budget: budget.clone(),
            news: told.clone(),
            has_room: Box::new(has_room),
        };
        let thread = std::thread::Builder::new().name("gradwire-save".into()).spawn(move || {
            daemon::process::stand_back();
            writer.run(&received);
        })?;
        Ok(Self { letters, told, news, budget, every_rounds: settings.every_rounds, thread: Some(thread) })
    }

    /// For a lane.
    pub(crate) fn lane(&self, lane: u16) -> LaneSaver {
        let (letters, news, budget) = (self.letters.clone(), self.told.clone(), self.budget.clone());
        LaneSaver { lane, letters, news, budget, every_rounds: self.every_rounds }
    }

    /// Tensors that are declared, for their names.
    pub(crate) fn tensors(&self, tensors: Vec<TensorSpec>) {
        let _ = self.letters.send(Letter::Tensors(tensors));
    }

    /// What a checkpoint's writing has come to is given up.
    pub(crate) fn drop_part(&self, round: u64) {
        let _ = self.letters.send(Letter::Drop(round));
    }

    /// What the scheduler is to hear.
    pub(crate) async fn news(&mut self) -> Option<CheckpointNews> {
        self.news.recv().await
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        let _ = self.letters.send(Letter::Stop);
        // What it is writing is no part of a complete checkpoint, or whole already.
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes checkpoints panicked");
        }
    }
}

impl Writer {
    fn run(&mut self, letters: &Receiver<Letter>) {
        while let Ok(letter) = letters.recv() {
            match letter {
                Letter::Stop => return,
                Letter::Tensors(tensors) => {
                    self.tensors.extend(tensors.into_iter().map(|spec| (spec.key, spec)));
                }
                Letter::Begin(lane, begin) => {
                    let round = begin.round;
                    if let Err(error) = self.begin(lane, begin) {
                        self.fail(lane, round, &error);
                    }
                }
                Letter::Chunk(lane, copied) => {
                    let (round, bytes) = (copied.round, copied.image.len() as u64);
                    if let Err(error) = self.chunk(lane, &copied) {
                        self.fail(lane, round, &error);
                    }
                    drop(copied);
                    if self.budget.give(bytes) {
                        (self.has_room)();
                    }
                }
                Letter::Rows(lane, copied) => {
                    let (round, bytes) = (copied.round, copied.bytes);
                    if let Err(error) = self.rows(lane, &copied) {
                        self.fail(lane, round, &error);
                    }
                    drop(copied);
                    if self.budget.give(bytes) {
                        (self.has_room)();
                    }
                }
                Letter::Drop(round) => self.parts.retain(|_, part| part.round != round),
            }
        }
    }

    fn begin(&mut self, lane: u16, begin: Begin) -> Result<(), CheckpointError> {
        let Some(store) = self.store.clone() else {
            let why =
                "checkpoint.directory is not set at this server, or cannot be used; set it for all processes";
            return Err(CheckpointError::BadPlace { place: String::new(), why: why.into() });
        };
        self.begun += 1;
        let file = file_of(self.rank.0, lane, self.life, self.begun);
        let part = LanePart::begin(store, (lane, &file), self.chunk_bytes, &self.tensors, begin)?;
        if part.is_empty() {
            return self.finish(part);
        }
        self.parts.insert(lane, part);
        Ok(())
    }

    fn chunk(&mut self, lane: u16, copied: &Copied) -> Result<(), CheckpointError> {
        // Of one that was given up.
        let Some(part) = self.parts.get_mut(&lane).filter(|part| part.round == copied.round) else {
            return Ok(());
        };
        if part.write(copied.id, &copied.image)?
            && let Some(part) = self.parts.remove(&lane)
        {
            self.finish(part)?;
        }
        Ok(())
    }

    fn rows(&mut self, lane: u16, copied: &CopiedRows) -> Result<(), CheckpointError> {
        let Some(part) = self.parts.get_mut(&lane).filter(|part| part.round == copied.round) else {
            return Ok(());
        };
        if part.write_rows(&copied.piece)?
            && let Some(part) = self.parts.remove(&lane)
        {
            self.finish(part)?;
        }
        Ok(())
    }

    fn finish(&self, part: LanePart) -> Result<(), CheckpointError> {
        let written = part.finish()?;
        tracing::debug!(
            round = written.round,
            lane = written.lane,
            bytes = written.bytes,
            "a checkpoint's part is written"
        );
        let _ = self.news.send(CheckpointNews::Part(written));
        Ok(())
    }

    fn fail(&mut self, lane: u16, round: u64, error: &CheckpointError) {
        tracing::warn!(round, lane, %error, "a checkpoint cannot be written");
        self.parts.remove(&lane);
        let _ = self.news.send(CheckpointNews::Failed { round, reason: error.to_string() });
    }
}
