//! All checkpoints of a place: which are complete, which is the newest, in which order they were written.

use crate::error::CheckpointError;
use crate::manifest::Manifest;
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

/// The round in a checkpoint's name; none where it is no name of ours, letter by letter: others may have directories beside.
pub(crate) fn round_of(name: &str) -> Option<u64> {
    let first = name.strip_suffix(AGAIN).unwrap_or(name);
    let round = first.strip_prefix(ROUND)?.parse().ok()?;
    (round_name(round) == first).then_some(round)
}

/// Is this what a checkpoint is called?
#[must_use]
pub fn is_name(name: &str) -> bool {
    round_of(name).is_some()
}

/// A checkpoint of a place.
#[derive(Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Bytes of all its files, whether or not they belong to it; 0 where they cannot be listed.
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
        // One that cannot be looked at keeps nobody from the others.
        let (bytes, manifest) = match store.files(&name) {
            Ok(files) => (files.iter().map(|(_, bytes)| bytes).sum(), restore::manifest(store, &name)),
            Err(why) => (0, Err(why)),
        };
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
