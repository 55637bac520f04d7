//! The thread that writes this server's parts in the background, and how lanes reach it. A lane hands over what it has copied and
//! continues. The budget bounds the bytes that wait here.

use super::budget::Budget;
use super::part::{Begin, Copied, LanePart, file_of};
use checkpoint::{CheckpointError, Store};
use fabric::oneshot;
use proto_common::config::CheckpointSettings;
use proto_common::ids::{Incarnation, Key, Rank};
use proto_common::message::CheckpointNews;
use proto_common::tensor::TensorSpec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Rounds whose parts are whole while the scheduler has not said a word of them. Those that come first stay: it hears of them
/// first.
const UNSAID_MAX: usize = 2;
/// Rounds that are remembered as told: as many as can be under way, and more.
const TOLD_MAX: usize = 16;

/// A message to the thread.
#[derive(Debug)]
enum Letter {
    Tensors(Vec<TensorSpec>),
    Begin(u16, Begin),
    Copied(u16, Copied),
    Save(u64),
    Drop(u64),
    /// It need only look whether it is to end.
    Wake,
}

/// How a lane reaches it.
#[derive(Clone, Debug)]
pub(crate) struct LaneSaver {
    lane: u16,
    letters: Sender<Letter>,
    news: UnboundedSender<CheckpointNews>,
    budget: Budget,
    pub(crate) every_rounds: u64,
    has_rounds: Arc<AtomicBool>,
}

impl LaneSaver {
    /// Was any tensor with rounds declared?
    pub(crate) fn has_rounds(&self) -> bool {
        self.has_rounds.load(Ordering::Relaxed)
    }

    /// A checkpoint begins on the lane.
    pub(crate) fn begin(&self, begin: Begin) {
        // Nobody writes any more where the server ends.
        let _ = self.letters.send(Letter::Begin(self.lane, begin));
    }

    /// Room for an image, if there is.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        self.budget.take(bytes)
    }

    /// Gives back room that was not needed.
    pub(crate) fn give(&self, bytes: u64) {
        self.budget.give_rest(bytes);
    }

    /// Something is copied, for which room was taken.
    pub(crate) fn write(&self, copied: Copied) {
        let bytes = copied.bytes;
        // The server ends: nothing is written any more, and nobody is to wait for room.
        if self.letters.send(Letter::Copied(self.lane, copied)).is_err() {
            self.budget.give_rest(bytes);
        }
    }

    /// Bytes of what is copied and not written, of all lanes.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.budget.used_bytes()
    }

    /// Reports to the scheduler.
    pub(crate) fn report(&self, news: CheckpointNews) {
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
    has_rounds: Arc<AtomicBool>,
    /// The thread is to end before it takes another letter.
    is_over: Arc<AtomicBool>,
    /// Ends with the thread.
    ended: oneshot::Receiver<()>,
    /// How long its end is waited for.
    drain: Duration,
    thread: Option<JoinHandle<()>>,
}

struct Writer {
    store: Option<Arc<dyn Store>>,
    rank: Rank,
    life: u64,
    chunk_bytes: u64,
    /// The checkpoint that the job began from.
    restore: Option<String>,
    tensors: BTreeMap<Key, TensorSpec>,
    parts: BTreeMap<u16, LanePart>,
    /// Rounds that the scheduler wants written, the last told last.
    told: VecDeque<u64>,
    /// Parts that are whole, of rounds of which it has not said so yet: a server begins by itself. They have no name before, so
    /// that nothing is left where it does not want them.
    unsaid: Vec<LanePart>,
    /// Parts that were begun.
    begun: u64,
    budget: Budget,
    news: UnboundedSender<CheckpointNews>,
    /// Wakes lanes that wait for room.
    has_room: Box<dyn Fn() + Send>,
    is_over: Arc<AtomicBool>,
}

impl Saver {
    /// Starts the thread. `has_room` wakes the lanes.
    pub(crate) fn start(
        store: Option<Arc<dyn Store>>,
        settings: &CheckpointSettings,
        (rank, life, chunk_bytes): (Rank, Incarnation, u64),
        (drain, restore): (Duration, Option<String>),
        has_room: impl Fn() + Send + 'static,
    ) -> Result<Self, std::io::Error> {
        let ((letters, received), (told, news)) = (channel(), unbounded_channel());
        let budget = Budget::new(settings.memory_bytes);
        let is_over = Arc::new(AtomicBool::new(false));
        let mut writer = Writer {
            store,
            rank,
            life: life.0,
            chunk_bytes,
            restore,
            tensors: BTreeMap::new(),
            parts: BTreeMap::new(),
            told: VecDeque::new(),
            unsaid: Vec::new(),
            begun: 0,
            budget: budget.clone(),
            news: told.clone(),
            has_room: Box::new(has_room),
            is_over: is_over.clone(),
        };
        let (running, ended) = oneshot::channel();
        let thread = std::thread::Builder::new().name("gradwire-save".into()).spawn(move || {
            // It ends with the thread.
            let _running: oneshot::Sender<()> = running;
            daemon::process::stand_back();
            writer.run(&received);
        })?;
        let (every_rounds, thread) = (settings.every_rounds, Some(thread));
        let has_rounds = Arc::default();
        Ok(Self { letters, told, news, budget, every_rounds, has_rounds, is_over, ended, drain, thread })
    }

    pub(crate) fn lane(&self, lane: u16) -> LaneSaver {
        let (letters, news, budget) = (self.letters.clone(), self.told.clone(), self.budget.clone());
        let has_rounds = self.has_rounds.clone();
        LaneSaver { lane, letters, news, budget, every_rounds: self.every_rounds, has_rounds }
    }

    /// Tensors that are declared, for their names.
    pub(crate) fn tensors(&self, tensors: Vec<TensorSpec>) {
        if tensors.iter().any(|spec| spec.settled_mode().has_rounds()) {
            self.has_rounds.store(true, Ordering::Relaxed);
        }
        let _ = self.letters.send(Letter::Tensors(tensors));
    }

    /// The scheduler wants the checkpoint of this round.
    pub(crate) fn save(&self, round: u64) {
        let _ = self.letters.send(Letter::Save(round));
    }

    /// What a checkpoint's writing has come to is given up.
    pub(crate) fn drop_part(&self, round: u64) {
        let _ = self.letters.send(Letter::Drop(round));
    }

    #[cfg(test)]
    pub(crate) fn try_news(&mut self) -> Option<CheckpointNews> {
        self.news.try_recv().ok()
    }

    /// News for the scheduler.
    pub(crate) async fn news(&mut self) -> Option<CheckpointNews> {
        self.news.recv().await
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        // What it is writing is no part of a complete checkpoint, or whole already.
        self.is_over.store(true, Ordering::Release);
        let _ = self.letters.send(Letter::Wake);
        let Some(thread) = self.thread.take() else { return };
        if self.ended.recv_timeout(self.drain) == Err(RecvTimeoutError::Timeout) {
            // A file system that does not answer: the process ends without it.
            let waited_ms = self.drain.as_millis() as u64;
            tracing::error!(waited_ms, "the checkpoint thread still waits for the disk, and is abandoned");
            return;
        }
        if thread.join().is_err() {
            tracing::error!("the thread that writes checkpoints panicked");
        }
    }
}

impl Writer {
    fn run(&mut self, letters: &Receiver<Letter>) {
        while let Ok(letter) = letters.recv() {
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            match letter {
                Letter::Wake => {}
                Letter::Tensors(tensors) => {
                    self.tensors.extend(tensors.into_iter().map(|spec| (spec.key, spec)));
                }
                Letter::Begin(lane, begin) => {
                    self.attempt((lane, begin.round), |writer| writer.begin(lane, begin));
                }
                Letter::Copied(lane, copied) => {
                    self.attempt((lane, copied.round), |writer| writer.write(lane, &copied));
                    self.give(copied.bytes);
                }
                Letter::Save(round) => self.save(round),
                Letter::Drop(round) => self.drop_round(round),
            }
        }
    }

    /// Part of a checkpoint's writing. Where it fails, or panics, that checkpoint is not written, and the next one is tried:
    /// lanes wait for what this thread gives back, so it continues.
    fn attempt(
        &mut self,
        (lane, round): (u16, u64),
        work: impl FnOnce(&mut Self) -> Result<(), CheckpointError>,
    ) {
        // What a panic leaves half done is the lane's part, which is dropped then.
        let panicked = |_| {
            let what = "writing it panicked; please report it with the log lines before";
            Err(CheckpointError::Plan(what.into()))
        };
        if let Err(error) = catch_unwind(AssertUnwindSafe(|| work(self))).unwrap_or_else(panicked) {
            self.fail(lane, round, &error);
        }
    }

    fn give(&self, bytes: u64) {
        if self.budget.give(bytes) {
            (self.has_room)();
        }
    }

    fn begin(&mut self, lane: u16, begin: Begin) -> Result<(), CheckpointError> {
        let Some(store) = self.store.clone() else {
            let why =
                "checkpoint.directory is not set at this server, or cannot be used; set it for all processes";
            return Err(CheckpointError::BadPlace { place: String::new(), why: why.into() });
        };
        let round = begin.round;
        self.begun += 1;
        let file = file_of(self.rank.0, lane, self.life, self.begun);
        let name = checkpoint::name_beside(round, self.restore.as_deref());
        let part = LanePart::begin(store, (lane, &name, &file), self.chunk_bytes, &self.tensors, begin)?;
        if part.is_empty() {
            return self.finish(part);
        }
        // Of one that was given up before it was heard of here.
        let before = self.parts.insert(lane, part).map(|before| before.round);
        if let Some(before) = before.filter(|before| *before != round) {
            self.forget(before);
        }
        Ok(())
    }

    fn write(&mut self, lane: u16, copied: &Copied) -> Result<(), CheckpointError> {
        // Of one that was given up.
        let Some(part) = self.parts.get_mut(&lane).filter(|part| part.round == copied.round) else {
            return Ok(());
        };
        if part.write(&copied.what)?
            && let Some(part) = self.parts.remove(&lane)
        {
            self.finish(part)?;
        }
        Ok(())
    }

    fn save(&mut self, round: u64) {
        self.told.retain(|told| *told != round);
        self.told.push_back(round);
        self.told.drain(..self.told.len().saturating_sub(TOLD_MAX));
        // Beside a later one it wants no earlier one, of which it may never have heard.
        let stale: BTreeSet<u64> =
            self.unsaid.iter().map(|part| part.round).filter(|other| *other < round).collect();
        stale.into_iter().for_each(|round| self.drop_round(round));
        let whole: Vec<LanePart> = self.unsaid.extract_if(.., |part| part.round == round).collect();
        for part in whole {
            self.attempt((part.lane, round), |writer| writer.finish(part));
        }
    }

    /// Nothing comes of a round's: what is there of it goes.
    fn drop_round(&mut self, round: u64) {
        let count = self.parts.len() + self.unsaid.len();
        self.told.retain(|told| *told != round);
        self.parts.retain(|_, part| part.round != round);
        self.unsaid.retain(|part| part.round != round);
        if self.parts.len() + self.unsaid.len() < count {
            self.forget(round);
        }
    }

    /// The directory of a round goes, where nothing is in it.
    fn forget(&self, round: u64) {
        let Some(store) = &self.store else { return };
        let name = checkpoint::name_beside(round, self.restore.as_deref());
        if let Err(error) = store.forget(&name) {
            tracing::debug!(round, %error, "cannot remove the directory of an abandoned checkpoint");
        }
    }

    /// A part is whole. It is given its name, and told, as soon as the scheduler wants it.
    fn finish(&mut self, part: LanePart) -> Result<(), CheckpointError> {
        if !self.told.contains(&part.round) {
            let round = part.round;
            self.unsaid.push(part);
            let rounds: BTreeSet<u64> = self.unsaid.iter().map(|part| part.round).collect();
            if rounds.len() > UNSAID_MAX {
                self.drop_round(round);
                let reason =
                    "it was whole, and the scheduler has said a word neither of it nor of those before it"
                        .into();
                let _ = self.news.send(CheckpointNews::Failed { round, reason });
            }
            return Ok(());
        }
        let written = part.finish()?;
        tracing::debug!(
            round = written.round,
            lane = written.lane,
            bytes = written.bytes,
            "wrote a part of a checkpoint"
        );
        let _ = self.news.send(CheckpointNews::Part(written));
        Ok(())
    }

    fn fail(&mut self, lane: u16, round: u64, error: &CheckpointError) {
        tracing::warn!(round, lane, %error, "cannot write a checkpoint");
        // It may write another one's part by now, which nobody would miss.
        if self.parts.get(&lane).is_some_and(|part| part.round == round) {
            self.parts.remove(&lane);
        }
        let _ = self.news.send(CheckpointNews::Failed { round, reason: error.to_string() });
    }
}

#[cfg(test)]
#[path = "saver_tests.rs"]
mod tests;
