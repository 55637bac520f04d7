//! All checkpoints of a place: which are complete, which is the newest, what may go.

use crate::error::CheckpointError;
use crate::manifest::{Manifest, is_plain};
use crate::reader::Part;
use crate::restore;
use crate::store::{MANIFEST, Store};
use std::sync::Arc;

/// What names begin with.
const ROUND: &str = "round-";
/// What the name of a second one of a round ends with.
const AGAIN: &str = "-again";

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
    for name in store.names()?.into_iter().filter(|name| is_plain(name) && name.starts_with(ROUND)) {
        let bytes = store.files(&name)?.iter().map(|(_, bytes)| bytes).sum();
        let manifest = restore::manifest(store, &name);
        all.push(Listed { name, bytes, manifest });
    }
    all.sort_by_key(|listed| listed.complete().map_or((0, 0), |manifest| (manifest.unix_ms, manifest.round)));
    Ok(all)
}

/// The complete one that was written last.
pub fn newest(store: &dyn Store) -> Result<Option<Manifest>, CheckpointError> {
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

/// Removes a checkpoint: first it is complete no more, then its files go.
pub fn remove(store: &dyn Store, name: &str) -> Result<(), CheckpointError> {
    if !is_plain(name) || !name.starts_with(ROUND) {
        return Err(CheckpointError::BadName { name: name.into() });
    }
    store.remove(name, MANIFEST)?;
    for (file, _) in store.files(name)? {
        store.remove(name, &file)?;
    }
    store.forget(name)
}

/// Removes what a complete checkpoint's directory has beside it: leftovers of writers that ended before.
pub fn clean(store: &dyn Store, manifest: &Manifest) -> Result<(), CheckpointError> {
    for (file, _) in store.files(&manifest.name)? {
        if file != MANIFEST && !manifest.parts.iter().any(|part| part.file == file) {
            store.remove(&manifest.name, &file)?;
        }
    }
    Ok(())
}

/// After `newest` is complete: keeps so many complete ones (0: all), those written last, and removes what older rounds left
/// incomplete. Those whose manifest cannot be read stay: somebody is to look at them. So
/// does `needed`: a job that began from it still reads it. Says which went.
pub fn retain(
    store: &dyn Store,
    newest: &Manifest,
    keep: u32,
    needed: Option<&str>,
) -> Result<Vec<String>, CheckpointError> {
    let all = list(store)?;
    let complete = all.iter().filter_map(Listed::complete);
    let complete: Vec<&Manifest> =
        complete.filter(|manifest| Some(manifest.name.as_str()) != needed).collect();
    let too_many = if keep == 0 { 0 } else { complete.len().saturating_sub(keep as usize) };
    let old = complete.iter().filter(|manifest| manifest.name != newest.name).take(too_many);
    let mut gone: Vec<String> = old.map(|manifest| manifest.name.clone()).collect();
    let incomplete =
        all.iter().filter(|listed| matches!(listed.manifest, Ok(None)) && listed.name < newest.name);
    gone.extend(incomplete.map(|listed| listed.name.clone()));
    for name in &gone {
        remove(store, name)?;
    }
    clean(store, newest)?;
    Ok(gone)
}
