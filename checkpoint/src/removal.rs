//! What may go of a place of checkpoints, and what stays whoever asks. It must not know who writes there.

use crate::catalog::{Listed, list, round_of};
use crate::error::CheckpointError;
use crate::manifest::{Manifest, is_plain};
use crate::restore;
use crate::store::{MANIFEST, STAGED, Store};

/// What parts begin and end with.
const PART: (&str, &str) = ("part-", ".safetensors");

/// Is this a file that servers or the scheduler write, whole or half?
fn is_ours(file: &str) -> bool {
    let file = file.strip_prefix(STAGED).unwrap_or(file);
    let is_part =
        file.len() >= PART.0.len() + PART.1.len() && file.starts_with(PART.0) && file.ends_with(PART.1);
    is_plain(file) && (file == MANIFEST || is_part)
}

/// Removes a checkpoint: first it is complete no more, then its files go. False: files of others are there, and stay.
pub fn remove(store: &dyn Store, name: &str) -> Result<bool, CheckpointError> {
    if round_of(name).is_none() {
        return Err(CheckpointError::BadName { name: name.into() });
    }
    store.remove(name, MANIFEST)?;
    remove_ours(store, name, &store.files(name)?)
}

/// Removes those of these files that are ours, and the directory where nothing is left in it then.
fn remove_ours(store: &dyn Store, name: &str, files: &[(String, u64)]) -> Result<bool, CheckpointError> {
    for (file, _) in files.iter().filter(|(file, _)| is_ours(file)) {
        store.remove(name, file)?;
    }
    store.forget(name)
}

/// Removes what a complete checkpoint's directory has beside it: leftovers of writers that ended before.
pub fn clean(store: &dyn Store, manifest: &Manifest) -> Result<(), CheckpointError> {
    for (file, _) in store.files(&manifest.name)? {
        if is_ours(&file) && file != MANIFEST && !manifest.parts.iter().any(|part| part.file == file) {
            store.remove(&manifest.name, &file)?;
        }
    }
    Ok(())
}

/// Removes parts that came of a checkpoint which was given up. Those of a complete one stay, and so does all beside one whose
/// manifest cannot be read.
pub fn discard(store: &dyn Store, name: &str, files: &[String]) -> Result<(), CheckpointError> {
    let complete = restore::manifest(store, name)?;
    let is_needed =
        |file: &String| complete.iter().flat_map(|manifest| &manifest.parts).any(|part| part.file == *file);
    for file in files.iter().filter(|file| is_ours(file) && !is_needed(file)) {
        store.remove(name, file)?;
    }
    // Somebody may still write beside them.
    if complete.is_none() { store.forget(name).map(drop) } else { Ok(()) }
}

/// What was removed, and what was not.
#[derive(Debug, Default)]
pub struct Removed {
    /// These went.
    pub gone: Vec<String>,
    /// These have files of others, which stay.
    pub left: Vec<String>,
    /// Why the first one that did not go did not.
    pub failed: Option<CheckpointError>,
}

impl Removed {
    /// Records whether one was removed. If one cannot be removed, the others are all the same.
    fn add(&mut self, name: &str, removed: Result<Option<bool>, CheckpointError>) {
        match removed {
            Ok(Some(true)) => self.gone.push(name.into()),
            Ok(Some(false)) => self.left.push(name.into()),
            Ok(None) => {}
            Err(error) => self.failed = self.failed.take().or(Some(error)),
        }
    }

    /// Incomplete ones of earlier rounds. Where nothing is ours, nothing is said.
    fn add_incomplete(
        &mut self,
        store: &dyn Store,
        all: &[Listed],
        before: u64,
        stays: impl Fn(&str) -> bool,
    ) {
        let incomplete = all.iter().filter(|listed| matches!(listed.manifest, Ok(None)));
        for name in incomplete.map(|listed| &listed.name) {
            if round_of(name).is_none_or(|round| round >= before) {
                continue;
            }
            self.add(name, remove_incomplete(store, name, &stays));
        }
    }
}

/// Removes what is there of one that was incomplete, unless it has been begun again since, or is complete by now. Its files are
/// listed before `stays` is asked: who begins after that writes others. False: files of others stay; none where nothing is ours.
fn remove_incomplete(
    store: &dyn Store,
    name: &str,
    stays: impl Fn(&str) -> bool,
) -> Result<Option<bool>, CheckpointError> {
    let files = store.files(name)?;
    let is_complete = files.iter().any(|(file, _)| file == MANIFEST);
    if stays(name) || is_complete {
        return Ok(None);
    }
    if !files.is_empty() && !files.iter().any(|(file, _)| is_ours(file)) {
        return Ok(None);
    }
    let is_gone = remove_ours(store, name, &files)?;
    Ok(Some(is_gone).filter(|is_gone| *is_gone || !files.is_empty()))
}

/// Before one of a round is written: removes what earlier rounds left incomplete, so that they do not keep the disk full. What
/// `is_needed` says stays: it is being written, or will be by the time that its turn has come, when it is asked.
pub fn sweep(
    store: &dyn Store,
    before: u64,
    is_needed: impl Fn(&str) -> bool,
) -> Result<Removed, CheckpointError> {
    let mut removed = Removed::default();
    removed.add_incomplete(store, &list(store)?, before, is_needed);
    Ok(removed)
}

/// After `newest` is complete: keeps so many complete ones (0: all), those written last, and removes what older rounds left
/// incomplete. Those whose manifest cannot be read stay: somebody is to look at them. So do those that are newer still, and
/// what is needed, because a job that began from it still reads it, and what is being written. Says which went.
pub fn retain(
    store: &dyn Store,
    newest: &Manifest,
    keep: u32,
    is_needed: impl Fn(&str) -> bool,
    is_written: impl Fn(&str) -> bool,
) -> Result<Removed, CheckpointError> {
    let all = list(store)?;
    let complete: Vec<&Manifest> =
        all.iter().filter_map(Listed::complete).filter(|manifest| !is_needed(&manifest.name)).collect();
    let too_many = if keep == 0 { 0 } else { complete.len().saturating_sub(keep as usize) };
    let is_older = |manifest: &&&Manifest| manifest.name != newest.name && manifest.unix_ms <= newest.unix_ms;
    let mut removed = Removed::default();
    let too_old = complete.iter().filter(is_older).take(too_many);
    for old in too_old.filter(|manifest| !is_written(&manifest.name)) {
        removed.add(&old.name, remove(store, &old.name).map(Some));
    }
    removed.add_incomplete(store, &all, newest.round, |name| is_needed(name) || is_written(name));
    clean(store, newest)?;
    Ok(removed)
}
