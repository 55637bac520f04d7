//! The scheduler's hands for checkpoints: finds the one to begin from, writes manifests, and removes what is too old. It must
//! not decide what is complete.

use crate::engine::{CheckpointConfig, Clearing, Completed, Unusable};
use checkpoint::{CheckpointError, Manifest, PartRecord, Removed, Shape, Store, TableRecord, TensorRecord};
use proto_common::config::Settings;
use std::future::Future;
use std::mem::replace;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::task::spawn_blocking;

/// What there is to do at the place of checkpoints.
#[derive(Debug)]
pub(super) enum Task {
    Write(Box<Completed>),
    Clear(Clearing),
}

impl Task {
    /// What is told where it ends without a word.
    fn lost(&self) -> impl FnOnce(String) -> Option<Done> + Send + use<> {
        let (round, clearing) = match self {
            Self::Write(completed) => (Some(completed.round), None),
            Self::Clear(clearing) => (None, Some(clearing.clone()).filter(Clearing::is_told)),
        };
        move |error| {
            let written = round.map(|round| Done::Written(round, Err(error.clone())));
            written.or_else(|| clearing.map(|clearing| Done::Cleared(clearing, Err(error))))
        }
    }
}

/// What came of a task.
#[derive(Debug, PartialEq)]
pub(super) enum Done {
    /// A round, and the name under which it is complete now, or why it is not.
    Written(u64, Result<String, String>),
    /// What was left of one that was given up is gone, or why it is not.
    Cleared(Clearing, Result<(), String>),
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Keeper {
    store: Arc<dyn Store>,
    job: u64,
    shape: Shape,
    keep: u32,
    /// When the newest one was complete.
    last_unix_ms: Arc<AtomicU64>,
    /// Names of what is under way since the newest one was begun.
    writing: Arc<Mutex<Vec<String>>>,
    manifests: Line,
    clearing: Line,
}

/// Tasks one after another.
#[derive(Clone, Debug)]
struct Line(Arc<Mutex<Receiver<()>>>);

impl Default for Line {
    fn default() -> Self {
        // Its sender is gone: nothing is before the first task.
        Self(Arc::new(Mutex::new(channel().1)))
    }
}

impl Line {
    /// A place behind all that came before: what tells that those are over, whatever came of them, and what tells the next one.
    fn join(&self) -> (Receiver<()>, Sender<()>) {
        let (over, next) = channel();
        (replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), next), over)
    }
}

/// Looks at the place of checkpoints, if there is one, and at what the job is to begin from. Members of a job that is resumed
/// will say what that was.
pub(super) fn open(
    settings: &Settings,
    resume: bool,
) -> Result<(Option<Keeper>, CheckpointConfig), CheckpointError> {
    let wanted = &settings.checkpoint;
    if wanted.directory.is_empty() {
        return Ok((None, CheckpointConfig::default()));
    }
    let store = checkpoint::open(&wanted.directory)?;
    let (mut last, mut last_unix_ms) = (None, 0);
    let found = checkpoint::newest_readable(&*store).and_then(|newest| {
        last_unix_ms = newest.as_ref().map_or(0, |manifest| manifest.unix_ms);
        last = newest.map(|manifest| manifest.name);
        if resume { Ok(None) } else { begin_from(&store, settings, last.as_deref()) }
    });
    let (restore, unusable) = match found {
        Ok(restore) => (restore, None),
        Err(error) => {
            let what = "checkpoint.directory cannot be used: a new job does not start; a running job continues if its members rejoin";
            tracing::error!(%error, what);
            let unusable = Unusable { code: error.exit_code(), reason: error.to_string() };
            (None, Some(unusable).filter(|_| !resume))
        }
    };
    let cluster = &settings.cluster;
    let shape = Shape {
        workers: cluster.workers,
        servers: cluster.servers,
        lanes: cluster.lanes,
        chunk_bytes: cluster.chunk_bytes,
        deterministic: cluster.deterministic,
    };
    let (job, keep) = (settings.job.0, wanted.keep);
    let last_unix_ms = Arc::new(AtomicU64::new(last_unix_ms));
    let (writing, manifests, clearing) = Default::default();
    let keeper = Keeper { store, job, shape, keep, last_unix_ms, writing, manifests, clearing };
    // Who went back to one has left what is newer behind: the next one to begin from is the same, until another is written.
    let last = restore.clone().or(last);
    Ok((Some(keeper), CheckpointConfig { has_place: true, restore, last, unusable }))
}

/// What a fresh job begins from, whole as far as its headers tell; `last` is the newest that can be read.
fn begin_from(
    store: &Arc<dyn Store>,
    settings: &Settings,
    last: Option<&str>,
) -> Result<Option<String>, CheckpointError> {
    let wanted = &settings.checkpoint;
    let name = match wanted.restore.as_str() {
        "none" => return Ok(None),
        "latest" => checkpoint::newest(&**store)?.map(|manifest| manifest.name),
        name => Some(name.to_owned()),
    };
    let Some(name) = name else {
        tracing::info!(
            directory = wanted.directory,
            "no checkpoint found; training starts from initial values"
        );
        return Ok(None);
    };
    let found = checkpoint::Checkpoint::open(store, &name)?;
    let (theirs, ours) = (found.manifest().shape.chunk_bytes, settings.cluster.chunk_bytes);
    if theirs != ours {
        return Err(CheckpointError::ChunkBytes { name, theirs, ours });
    }
    tracing::info!(checkpoint = name, round = found.manifest().round, "restoring tensors from a checkpoint");
    let left = checkpoint::left_behind(&**store, found.manifest())?;
    if last != Some(name.as_str()) && !left.is_empty() {
        let what = "the directory has checkpoints of later rounds from another branch of training; they count as older as soon as this job writes its own";
        tracing::warn!(checkpoint = name, others = ?left, what);
    }
    Ok(Some(name))
}

impl Keeper {
    /// Begins a task behind all of its line that were begun before. Who is given up comes behind the manifest that may name the
    /// same files. None waits for what rounds before have left, which may be much: nothing that was begun meanwhile is part of
    /// that.
    pub(super) fn begin(&self, task: Task) -> impl Future<Output = Option<Done>> + Send + use<> {
        let line = match &task {
            Task::Clear(Clearing::Before { writing, restore, .. }) => {
                let name = |round: &u64| checkpoint::name_beside(*round, restore.as_deref());
                *self.writing() = writing.iter().map(name).collect();
                &self.clearing
            }
            _ => &self.manifests,
        };
        let (before, over) = line.join();
        let keeper = self.clone();
        async move {
            // An error is its end, too.
            let _ = before.await;
            let lost = task.lost();
            let kept = spawn_blocking(move || {
                let done = keeper.execute(task);
                drop(over);
                done
            });
            kept.await.unwrap_or_else(|error| lost(error.to_string()))
        }
    }

    /// None where nobody is to hear of it. Blocks.
    fn execute(&self, task: Task) -> Option<Done> {
        match task {
            Task::Write(completed) => {
                let written = self.write(&completed).map_err(|error| error.to_string());
                Some(Done::Written(completed.round, written))
            }
            Task::Clear(clearing) => {
                let cleared = self.clear(&clearing).map_err(|error| error.to_string());
                if let Err(error) = &cleared {
                    tracing::warn!(error, "cannot remove the remains of an abandoned checkpoint");
                }
                clearing.is_told().then_some(Done::Cleared(clearing, cleared))
            }
        }
    }

    fn writing(&self) -> MutexGuard<'_, Vec<String>> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_written(&self, name: &str) -> bool {
        self.writing().iter().any(|written| written == name)
    }

    fn clear(&self, clearing: &Clearing) -> Result<(), CheckpointError> {
        match clearing {
            Clearing::GivenUp { round, files, restore } => {
                let name = checkpoint::name_beside(*round, restore.as_deref());
                checkpoint::discard(&*self.store, &name, files)
            }
            Clearing::Before { round, restore, .. } => {
                let is_needed = |name: &str| Some(name) == restore.as_deref() || self.is_written(name);
                checkpoint::sweep(&*self.store, *round, is_needed).map(tell)
            }
        }
    }

    /// Writes the manifest: from then on the checkpoint is complete. Then what is too old goes. Blocks.
    fn write(&self, completed: &Completed) -> Result<String, CheckpointError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        // Whosever clock goes back: what is written later is newer.
        let later = |last: u64| Some(now_ms.max(last.saturating_add(1)));
        let last = self.last_unix_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        let unix_ms = last.ok().and_then(later).unwrap_or(now_ms);
        let restore = completed.restore.as_deref();
        let name = checkpoint::name_beside(completed.round, restore);
        let mut manifest = Manifest::new(&name, self.job, completed.round, unix_ms, self.shape.clone());
        manifest.tensors = completed.tensors.iter().cloned().map(tensor).collect();
        manifest.tables = completed
            .tables
            .iter()
            .map(|(spec, rows)| TableRecord { spec: spec.clone(), rows: *rows })
            .collect();
        manifest.parts = completed
            .parts
            .iter()
            .map(|part| PartRecord {
                file: part.file.clone(),
                bytes: part.bytes,
                crc32c: part.crc32c,
                index_crc32c: part.index_crc32c,
            })
            .collect();
        checkpoint::commit(&*self.store, &manifest)?;
        tracing::info!(
            checkpoint = name,
            bytes = manifest.bytes(),
            parts = manifest.parts.len(),
            "checkpoint complete"
        );
        let is_needed = |name: &str| Some(name) == restore;
        let is_written = |name: &str| self.is_written(name);
        match checkpoint::retain(&*self.store, &manifest, self.keep, is_needed, is_written) {
            Ok(removed) => tell(removed),
            // The new one is complete all the same.
            Err(error) => tracing::warn!(%error, "cannot remove an old checkpoint"),
        }
        Ok(name)
    }
}

fn tell(Removed { gone, left, failed }: Removed) {
    if !gone.is_empty() {
        tracing::info!(checkpoints = ?gone, "removed old checkpoints");
    }
    if !left.is_empty() {
        tracing::warn!(checkpoints = ?left, "removed old checkpoints, but not their directories, because they contain other files");
    }
    if let Some(error) = failed {
        tracing::warn!(%error, "cannot remove an old checkpoint");
    }
}

fn tensor((spec, version, newest): (proto_common::tensor::TensorSpec, u64, u64)) -> TensorRecord {
    TensorRecord { spec, version, newest }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
