//! All checkpoints of a place: which are complete, which is the newest, what may go.

use crate::error::CheckpointError;
use crate::manifest::{Manifest, is_plain};
use crate::reader::Part;
use crate::restore;
use crate::store::{MANIFEST, STAGED, Store};
use std::sync::Arc;

/// What names begin with.
const ROUND: &str = "round-";
/// What the name of a second one of a round ends with.
const AGAIN: &str = "-again";
/// What parts begin and end with.
const PART: (&str, &str) = ("part-", ".safetensors");

/// The name of a round's checkpoint.
#[must_use]
pub fn round_name(round: u64) -> String {
    format!("{ROUND}{round:09}")
}

/// The name of a round's checkpoint in a job that began from `restore`: that one is still read, also where training has not gone
/// on from it, so nothing is written over it.
#[must_use]
pub fn name_beside(round: u64, restore: Option<&str>) -> String {
    let name = round_name(round);
    if restore == Some(name.as_str()) { format!("{name}{AGAIN}") } else { name }
}

/// The round in a checkpoint's name; none where it is no name of ours, letter by letter: others may have directories beside.
fn round_of(name: &str) -> Option<u64> {
    let first = name.strip_suffix(AGAIN).unwrap_or(name);
    let round = first.strip_prefix(ROUND)?.parse().ok()?;
    (round_name(round) == first).then_some(round)
}

/// Is this what a checkpoint is called?
#[must_use]
pub fn is_name(name: &str) -> bool {
    round_of(name).is_some()
}

/// Is this a file that servers or the scheduler write, whole or half?
fn is_ours(file: &str) -> bool {
    let file = file.strip_prefix(STAGED).unwrap_or(file);
    let is_part =
        file.len() >= PART.0.len() + PART.1.len() && file.starts_with(PART.0) && file.ends_with(PART.1);
    is_plain(file) && (file == MANIFEST || is_part)
}

/// A checkpoint of a place.
#[derive(Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Bytes of all its files, whether or not they belong to it.
    pub bytes: u64,
    /// Its manifest; none where it is not complete, an error where it cannot be read.
    pub manifest: Result<Option<Manifest>, CheckpointError>,
}

impl Listed {
    /// Is it complete, as far as its manifest says?
    #[must_use]
    pub fn complete(&self) -> Option<&Manifest> {
        self.manifest.as_ref().ok().and_then(Option::as_ref)
    }
}

/// All checkpoints, in the order in which they were complete: those of an earlier training may be of later rounds.
pub fn list(store: &dyn Store) -> Result<Vec<Listed>, CheckpointError> {
    let mut all = Vec::new();
    for name in store.names()?.into_iter().filter(|name| round_of(name).is_some()) {
        let bytes = store.files(&name)?.iter().map(|(_, bytes)| bytes).sum();
        let manifest = restore::manifest(store, &name);
        all.push(Listed { name, bytes, manifest });
    }
    all.sort_by_key(|listed| listed.complete().map_or((0, 0), |manifest| (manifest.unix_ms, manifest.round)));
    Ok(all)
}

/// The complete one that was written last. One that cannot be read may be that one: it is an error.
pub fn newest(store: &dyn Store) -> Result<Option<Manifest>, CheckpointError> {
    let mut newest = None;
    for Listed { name, manifest, .. } in list(store)? {
        let unclear = |why| CheckpointError::Unclear { name, place: store.place(), why: Box::new(why) };
        newest = manifest.map_err(unclear)?.or(newest);
    }
    Ok(newest)
}

/// The complete one that was written last, of those that can be read.
pub fn newest_readable(store: &dyn Store) -> Result<Option<Manifest>, CheckpointError> {
    Ok(list(store)?.into_iter().rev().find_map(|listed| listed.manifest.ok().flatten()))
}

/// Complete ones of later rounds than this one's: where training goes on from it, they are of a branch that is left.
pub fn left_behind(store: &dyn Store, from: &Manifest) -> Result<Vec<String>, CheckpointError> {
    let all = list(store)?;
    let later = all.iter().filter_map(Listed::complete).filter(|manifest| manifest.round > from.round);
    Ok(later.map(|manifest| manifest.name.clone()).collect())
}

/// All parts are there: with the manifest the checkpoint is complete. It is not where a part has gone meanwhile.
pub fn commit(store: &dyn Store, manifest: &Manifest) -> Result<(), CheckpointError> {
    for part in &manifest.parts {
        let there = store.bytes(&manifest.name, &part.file)?;
        if there != Some(part.bytes) {
            let why = match there {
                Some(bytes) => {
                    format!("it was {} bytes long when it was written, and is {bytes}", part.bytes)
                }
                None => "it was written, and is not there any more".into(),
            };
            let path = format!("{}/{}/{}", store.place(), manifest.name, part.file);
            return Err(CheckpointError::corrupt(&path, why));
        }
    }
    store.put_bytes(&manifest.name, MANIFEST, &manifest.to_bytes()?)
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Parts read.
    pub parts: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Reads all of a checkpoint, and checks what can be: every byte's checksum, and that every chunk is there. `progress` is told
/// how many bytes were read, and of how many.
pub fn verify(
    store: &Arc<dyn Store>,
    name: &str,
    mut progress: impl FnMut(u64, u64),
) -> Result<Verified, CheckpointError> {
    let checkpoint = restore::Checkpoint::open(store, name)?;
    let manifest = checkpoint.manifest();
    let (total, mut done) = (manifest.bytes(), 0);
    for record in &manifest.parts {
        Part::open(store.clone(), name, record)?.verify(|bytes| {
            done += bytes;
            progress(done, total);
        })?;
    }
    for tensor in &manifest.tensors {
        for span in tensor.spec.chunks(manifest.shape.chunk_bytes) {
            checkpoint.chunk(&tensor.spec, &span)?;
        }
    }
    Ok(Verified { parts: manifest.parts.len(), bytes: total })
}

/// Removes a checkpoint: first it is complete no more, then its files go. False: files of others are there, and stay.
pub fn remove(store: &dyn Store, name: &str) -> Result<bool, CheckpointError> {
    if round_of(name).is_none() {
        return Err(CheckpointError::BadName { name: name.into() });
    }
    store.remove(name, MANIFEST)?;
    for (file, _) in store.files(name)?.into_iter().filter(|(file, _)| is_ours(file)) {
        store.remove(name, &file)?;
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
    /// Removes it. One that cannot go keeps no other from it.
    fn add(&mut self, store: &dyn Store, name: &str) {
        match remove(store, name) {
            Ok(true) => self.gone.push(name.into()),
            Ok(false) => self.left.push(name.into()),
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
    ) -> Result<(), CheckpointError> {
        for listed in all.iter().filter(|listed| matches!(listed.manifest, Ok(None))) {
            if stays(&listed.name) || round_of(&listed.name).is_none_or(|round| round >= before) {
                continue;
            }
            let files = store.files(&listed.name)?;
            if files.iter().any(|(file, _)| is_ours(file)) {
                self.add(store, &listed.name);
            } else if files.is_empty() && store.forget(&listed.name)? {
                self.gone.push(listed.name.clone());
            }
        }
        Ok(())
    }
}

/// Before one of a round is written: removes what earlier rounds left incomplete, so that they do not keep the disk full. What
/// `is_needed` says stays: it is being written.
pub fn sweep(
    store: &dyn Store,
    before: u64,
    is_needed: impl Fn(&str) -> bool,
) -> Result<Removed, CheckpointError> {
    let mut removed = Removed::default();
    removed.add_incomplete(store, &list(store)?, before, is_needed)?;
    Ok(removed)
}

/// After `newest` is complete: keeps so many complete ones (0: all), those written last, and removes what older rounds left
/// incomplete. Those whose manifest cannot be read stay: somebody is to look at them. So do those that are newer still, and
/// what is needed: a job that began from it still reads it, or it is being written. Says which went.
pub fn retain(
    store: &dyn Store,
    newest: &Manifest,
    keep: u32,
    is_needed: impl Fn(&str) -> bool,
) -> Result<Removed, CheckpointError> {
    let all = list(store)?;
    let complete: Vec<&Manifest> =
        all.iter().filter_map(Listed::complete).filter(|manifest| !is_needed(&manifest.name)).collect();
    let too_many = if keep == 0 { 0 } else { complete.len().saturating_sub(keep as usize) };
    let is_older = |manifest: &&&Manifest| manifest.name != newest.name && manifest.unix_ms <= newest.unix_ms;
    let mut removed = Removed::default();
    for old in complete.iter().filter(is_older).take(too_many) {
        removed.add(store, &old.name);
    }
    removed.add_incomplete(store, &all, newest.round, is_needed)?;
    clean(store, newest)?;
    Ok(removed)
}
