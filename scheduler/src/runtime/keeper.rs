//! File operations of the scheduler for checkpoints: finds the checkpoint to begin from, writes manifests, and removes old
//! checkpoints. It must not decide which checkpoints are complete.

use super::ownership::{self, SILENCE, Standing, now_unix_ms};
use crate::engine::{CheckpointConfig, Clearing, Completed, Unusable};
use checkpoint::{
    CheckpointError, Contents, Manifest, Owner, Ownership, PartRecord, Removed, Shape, Store, TableRecord,
    TensorRecord, Term,
};
use daemon::shutdown::Shutdown;
use proto_common::config::Settings;
use proto_common::ids::Incarnation;
use proto_common::message::PartWritten;
use std::future::Future;
use std::mem::replace;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::task::spawn_blocking;

/// A task in the job's checkpoint directory.
#[derive(Debug)]
pub(super) enum Task {
    Write(Box<Completed>),
    Clear(Clearing),
    /// Shows other schedulers of this job that this scheduler runs.
    Beat,
}

impl Task {
    /// What to report if the task panics or is cancelled.
    fn lost(&self) -> impl FnOnce(String) -> Option<Done> + Send + use<> {
        let (round, clearing) = match self {
            Self::Write(completed) => (Some(completed.round), None),
            Self::Clear(clearing) => (None, Some(clearing.clone()).filter(Clearing::is_told)),
            Self::Beat => (None, None),
        };
        move |error| {
            let written = round.map(|round| Done::Written(round, Err(error.clone())));
            written.or_else(|| clearing.map(|clearing| Done::Cleared(clearing, Err(error))))
        }
    }
}

/// The result of a task.
#[derive(Debug, PartialEq)]
pub(super) enum Done {
    /// A round, and the name of its complete checkpoint, or why the manifest was not written.
    Written(u64, Result<String, String>),
    /// The remains of an abandoned checkpoint were removed, or why they were not.
    Cleared(Clearing, Result<(), String>),
    /// Another scheduler has taken over the job's checkpoints. The text names it.
    Deposed(String),
}

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Keeper {
    /// The directory of this job's checkpoints.
    store: Arc<dyn Store>,
    /// The record of this scheduler.
    own: Owner,
    owned: Arc<Mutex<Option<Arc<Ownership>>>>,
    /// The scheduler was started with `--resume`. It replaces any recorded owner before it first writes or removes files: by then a
    /// majority of the members has elected it. If it did so earlier, a scheduler that is never elected would end the one that the
    /// members obey.
    resume: bool,
    /// An owner that may run, and since when its record has not changed.
    unclear: Arc<Mutex<Option<(Term, Instant)>>>,
    /// An owner whose record has not changed for this long is replaced.
    silence: Duration,
    is_beating: Arc<AtomicBool>,
    job: u64,
    shape: Shape,
    keep: u32,
    /// When the newest checkpoint was completed.
    last_unix_ms: Arc<AtomicU64>,
    /// Names of the checkpoints that were in progress when the newest one began.
    writing: Arc<Mutex<Vec<String>>>,
    manifests: Line,
    clearing: Line,
}

/// The result of an attempt to own the job's checkpoints.
#[derive(Debug, PartialEq)]
enum Claim {
    Owned,
    /// It is unknown whether their owner runs.
    Unclear(Term),
}

/// A queue: each task begins when the previous one is done.
#[derive(Clone, Debug)]
struct Line(Arc<Mutex<Receiver<()>>>);

impl Default for Line {
    fn default() -> Self {
        // The sender is dropped, so the first task waits for nothing.
        Self(Arc::new(Mutex::new(channel().1)))
    }
}

impl Line {
    /// A place at the end of the queue: the receiver completes when all earlier tasks are over, and the sender's drop lets the next task
    /// begin.
    fn join(&self) -> (Receiver<()>, Sender<()>) {
        let (over, next) = channel();
        (replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), next), over)
    }
}

/// Like [`open`]. Then this scheduler, which members reach at this port, owns the job's checkpoints.
pub(super) async fn start(
    settings: &Settings,
    resume: bool,
    (incarnation, port): (Incarnation, u16),
    mut shutdown: Shutdown,
) -> Result<(Option<Keeper>, CheckpointConfig), CheckpointError> {
    let (keeper, config) = open(settings, resume)?;
    let Some(mut keeper) = keeper else { return Ok((None, config)) };
    (keeper.own.id, keeper.own.address) = (incarnation.0, format!("{}:{port}", settings.scheduler.host));
    if !resume {
        keeper.become_owner(&mut shutdown).await?;
    }
    Ok((Some(keeper), config))
}

/// Opens `checkpoint.directory`, if it is set, and finds the checkpoint that the job begins from. If the job is resumed, its members
/// report that checkpoint later.
pub(super) fn open(
    settings: &Settings,
    resume: bool,
) -> Result<(Option<Keeper>, CheckpointConfig), CheckpointError> {
    let wanted = &settings.checkpoint;
    if wanted.directory.is_empty() {
        return Ok((None, CheckpointConfig::default()));
    }
    let job = settings.job.0;
    let store = checkpoint::open_job(&wanted.directory, job)?;
    let (mut last, mut last_unix_ms) = (None, 0);
    let found = checkpoint::newest_readable(&*store).and_then(|newest| {
        last_unix_ms = newest.as_ref().map_or(0, |manifest| manifest.unix_ms);
        last = newest.map(|manifest| checkpoint::name_of_job(job, &manifest.name));
        if resume { Ok(None) } else { begin_from(&*store, settings, last.as_deref()) }
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
    let (keep, own) = (wanted.keep, ownership::of_this_process());
    let last_unix_ms = Arc::new(AtomicU64::new(last_unix_ms));
    let (owned, unclear, is_beating, writing, manifests, clearing) = Default::default();
    let keeper = Keeper {
        store,
        own,
        owned,
        resume,
        unclear,
        silence: SILENCE,
        is_beating,
        job,
        shape,
        keep,
        last_unix_ms,
        writing,
        manifests,
        clearing,
    };
    // If the job begins from an earlier checkpoint, the newer ones are of another branch. Until this job writes a checkpoint, a restart
    // begins from the same one again.
    let last = restore.clone().or(last);
    Ok((Some(keeper), CheckpointConfig { has_place: true, restore, last, unusable }))
}

/// The checkpoint that a fresh job begins from, after its parts' headers were checked. `last` is the job's newest readable checkpoint.
fn begin_from(
    own: &dyn Store,
    settings: &Settings,
    last: Option<&str>,
) -> Result<Option<String>, CheckpointError> {
    let (wanted, job) = (&settings.checkpoint, settings.job.0);
    let place = &wanted.directory;
    let name = match wanted.restore.as_str() {
        "none" => return Ok(None),
        "latest" => checkpoint::newest_of(place, job)?,
        name => Some(checkpoint::resolve(place, job, name)?),
    };
    let Some(name) = name else {
        tracing::info!(directory = place, "no checkpoint found; training starts from initial values");
        return Ok(None);
    };
    let (store, own_name) = checkpoint::find(place, &name)?;
    let found = checkpoint::Checkpoint::open(&store, &own_name)?;
    found.check_parts()?;
    let (theirs, ours) = (found.manifest().shape.chunk_bytes, settings.cluster.chunk_bytes);
    if theirs != ours {
        return Err(CheckpointError::ChunkBytes { name, theirs, ours });
    }
    tracing::info!(checkpoint = name, round = found.manifest().round, "restoring tensors from a checkpoint");
    if checkpoint::own_name(job, &name).is_none() {
        let (round, this) = (found.manifest().round, job);
        let what = "this job begins from a checkpoint of another job in the same directory; if that is another training, give each training its own checkpoint.directory";
        tracing::warn!(checkpoint = name, job = found.manifest().job, this, round, what);
    }
    let left = checkpoint::left_behind(own, found.manifest())?;
    if last != Some(name.as_str()) && !left.is_empty() {
        let what = "the directory has checkpoints of later rounds from another branch of training; they count as older as soon as this job writes its own";
        tracing::warn!(checkpoint = name, others = ?left, what);
    }
    Ok(Some(name))
}

impl Keeper {
    /// Becomes the owner of the job's checkpoints, if the previous owner has exited. If it is unknown whether that owner runs, this waits
    /// for [`SILENCE`]: a running owner changes its record in that time. An error names the owner. A directory that cannot be
    /// written is no error, because the job may only read it.
    async fn become_owner(&self, shutdown: &mut Shutdown) -> Result<(), CheckpointError> {
        let claimed = match self.try_claim().await {
            Ok(Claim::Unclear(term)) => {
                let (place, owner, waits_s) = (self.store.place(), term.to_string(), self.silence.as_secs());
                let what = "another scheduler of this job owns the checkpoints, and this host cannot determine whether it runs; waiting for the next update of its record";
                tracing::warn!(place, owner, waits_s, what);
                tokio::select! {
                    // Sleep: there is no event for a scheduler that no longer runs.
                    () = tokio::time::sleep(self.silence) => {}
                    _ = shutdown.wait() => return Ok(()),
                }
                self.try_claim().await
            }
            claimed => claimed,
        };
        match claimed {
            Ok(Claim::Owned) => Ok(()),
            Ok(Claim::Unclear(term)) => Err(self.owned_by(&term)),
            Err(CheckpointError::Owned { place, by }) => Err(CheckpointError::Owned { place, by }),
            Err(error) => {
                tracing::warn!(%error, "cannot write to checkpoint.directory; the scheduler tries again before each checkpoint");
                Ok(())
            }
        }
    }

    fn owned_by(&self, by: impl ToString) -> CheckpointError {
        CheckpointError::Owned { place: self.store.place(), by: by.to_string() }
    }

    async fn try_claim(&self) -> Result<Claim, CheckpointError> {
        let keeper = self.clone();
        let claimed = spawn_blocking(move || keeper.claim());
        claimed.await.unwrap_or_else(|error| Err(CheckpointError::Plan(error.to_string())))
    }

    /// Has this record not changed for so long that its owner does not run, or cannot reach the directory?
    fn is_silent(&self, term: &Term) -> bool {
        let mut unclear = self.unclear.lock().unwrap_or_else(PoisonError::into_inner);
        match &*unclear {
            Some((seen, since)) if seen == term => since.elapsed() >= self.silence,
            _ => {
                *unclear = Some((term.clone(), Instant::now()));
                false
            }
        }
    }

    /// Becomes the owner, if the previous owner has exited or is silent, or if this scheduler was started with `--resume`. Blocks.
    fn claim(&self) -> Result<Claim, CheckpointError> {
        // Tasks of two queues may come here at once: without the lock one of them would find the record of the other.
        let mut owned = self.owned();
        if owned.is_some() {
            return Ok(Claim::Owned);
        }
        let newest = checkpoint::newest_term(&*self.store)?;
        if let Some(term) = newest.as_ref().filter(|_| !self.resume) {
            let known = term.owner.as_ref().map(|owner| ownership::standing(owner, &self.own));
            match known.unwrap_or(Standing::Unknown) {
                Standing::Runs => return Err(self.owned_by(term)),
                Standing::Unknown if !self.is_silent(term) => return Ok(Claim::Unclear(term.clone())),
                Standing::Ended | Standing::Unknown => {}
            }
        }
        let own = Owner { since_unix_ms: now_unix_ms(), ..self.own.clone() };
        let Some(ownership) = checkpoint::claim(self.store.clone(), newest.as_ref(), own)? else {
            let by = checkpoint::newest_term(&*self.store)?;
            return Err(
                self.owned_by(by.map_or_else(|| "a process that is exiting".into(), |term| term.to_string()))
            );
        };
        tracing::info!(
            place = self.store.place(),
            term = ownership.term(),
            "this scheduler owns the job's checkpoints"
        );
        *owned = Some(Arc::new(ownership));
        Ok(Claim::Owned)
    }

    fn owned(&self) -> MutexGuard<'_, Option<Arc<Ownership>>> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called before files are written or removed: an error unless this scheduler owns the job's checkpoints. Blocks.
    fn check_owned(&self) -> Result<(), CheckpointError> {
        let owned = self.owned().clone();
        match owned {
            Some(owned) => owned.check(),
            // This scheduler takes over now (`--resume`), or could not write its record at the start.
            None => match self.claim()? {
                Claim::Owned => Ok(()),
                Claim::Unclear(term) => Err(self.owned_by(&term)),
            },
        }
    }

    /// The job has ended: records it, so the next scheduler need not wait. If the disk does not answer in this time, the next scheduler
    /// waits until the record has not changed for [`SILENCE`].
    pub(super) async fn end_within(self, limit: Duration) {
        let _ = tokio::time::timeout(limit, spawn_blocking(move || self.end())).await;
    }

    fn end(&self) {
        let owned = self.owned().clone();
        if let Some(Err(error)) = owned.map(|owned| owned.end()) {
            tracing::debug!(%error, "cannot record that this scheduler has ended");
        }
    }

    /// Returns `None` if there is nothing to report. Blocks.
    fn beat(&self) -> Option<Done> {
        // If the disk is slow, one waiting update is enough.
        if self.is_beating.swap(true, Ordering::Relaxed) {
            return None;
        }
        let owned = self.owned().clone();
        let beat = owned.map_or(Ok(()), |owned| owned.beat());
        self.is_beating.store(false, Ordering::Relaxed);
        match beat {
            Err(CheckpointError::Deposed { place, by }) => {
                Some(Done::Deposed(CheckpointError::Deposed { place, by }.to_string()))
            }
            Err(error) => {
                tracing::debug!(%error, "cannot record that this scheduler runs");
                None
            }
            Ok(()) => None,
        }
    }

    /// The name of a round's checkpoint within the job's directory.
    fn name_of(&self, round: u64, restore: Option<&str>) -> String {
        checkpoint::name_beside(round, restore.and_then(|name| checkpoint::own_name(self.job, name)))
    }

    /// Begins a task after all earlier tasks of its queue. An abandoned checkpoint is removed after earlier manifests are written,
    /// because they may name the same files. Leftovers of earlier rounds have a queue of their own, so no task waits for their
    /// removal, which may be long; they contain no files of checkpoints that began later.
    pub(super) fn begin(&self, task: Task) -> impl Future<Output = Option<Done>> + Send + use<> {
        let line = match &task {
            Task::Clear(Clearing::Before { writing, restore, .. }) => {
                let name = |round: &u64| self.name_of(*round, restore.as_deref());
                *self.writing() = writing.iter().map(name).collect();
                &self.clearing
            }
            Task::Beat => &Line::default(),
            _ => &self.manifests,
        };
        let (before, over) = line.join();
        let keeper = self.clone();
        async move {
            // An error means that the previous task is over, too.
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

    /// Returns `None` if the engine needs no result. Blocks.
    fn execute(&self, task: Task) -> Option<Done> {
        match task {
            Task::Beat => self.beat(),
            Task::Write(completed) => {
                let written = self.check_owned().and_then(|()| self.write(&completed));
                if let Err(error @ CheckpointError::Deposed { .. }) = &written {
                    return Some(Done::Deposed(error.to_string()));
                }
                Some(Done::Written(completed.round, written.map_err(|error| error.to_string())))
            }
            Task::Clear(clearing) => {
                let owned = match self.check_owned() {
                    // Servers of this job have named these files, so they may be removed even if no record can be written.
                    Err(CheckpointError::Io { .. }) if clearing.is_told() => Ok(()),
                    owned => owned,
                };
                let cleared = owned.and_then(|()| self.clear(&clearing));
                if let Err(error @ CheckpointError::Deposed { .. }) = &cleared {
                    return Some(Done::Deposed(error.to_string()));
                }
                let cleared = cleared.map_err(|error| error.to_string());
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
                let name = self.name_of(*round, restore.as_deref());
                checkpoint::discard(&*self.store, &name, files)
            }
            Clearing::Before { round, restore, .. } => {
                let restore = restore.as_deref().and_then(|name| checkpoint::own_name(self.job, name));
                let is_needed = |name: &str| Some(name) == restore || self.is_written(name);
                checkpoint::sweep(&*self.store, *round, is_needed).map(tell)
            }
        }
    }

    /// Writes the manifest: from then on the checkpoint is complete. Then removes old checkpoints. Blocks.
    fn write(&self, completed: &Completed) -> Result<String, CheckpointError> {
        let now_ms = now_unix_ms();
        // A later checkpoint gets a later time, even if the clock goes back.
        let later = |last: u64| Some(now_ms.max(last.saturating_add(1)));
        let last = self.last_unix_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
        let unix_ms = last.ok().and_then(later).unwrap_or(now_ms);
        let restore = completed.restore.as_deref();
        let name = self.name_of(completed.round, restore);
        let restore = restore.and_then(|name| checkpoint::own_name(self.job, name));
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
        manifest.contents = completed.parts.iter().map(contents).collect();
        checkpoint::commit(&*self.store, &manifest)?;
        tracing::info!(
            checkpoint = name,
            bytes = manifest.bytes(),
            parts = manifest.parts.len(),
            "checkpoint complete"
        );
        let is_needed = |name: &str| Some(name) == restore;
        let is_written = |name: &str| self.is_written(name);
        // Checked again: if the disk was slow, another scheduler may be the owner by now, and may be writing the incomplete checkpoints.
        let retained = self
            .check_owned()
            .and_then(|()| checkpoint::retain(&*self.store, &manifest, self.keep, is_needed, is_written));
        match retained {
            Ok(removed) => tell(removed),
            // The new checkpoint is complete nevertheless.
            Err(error) => tracing::warn!(%error, "cannot remove an old checkpoint"),
        }
        Ok(checkpoint::name_of_job(self.job, &name))
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

/// The chunks and tables in this part, for servers that restore the checkpoint.
fn contents(part: &PartWritten) -> Contents {
    let runs = part.covers.iter().map(|cover| (cover.first, cover.chunks));
    Contents::new(runs, part.tables.iter().filter(|(_, rows)| *rows > 0).map(|(spec, _)| spec.key))
}

fn tensor((spec, version, newest): (proto_common::tensor::TensorSpec, u64, u64)) -> TensorRecord {
    TensorRecord { spec, version, newest }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
