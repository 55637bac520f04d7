//! A complete checkpoint, read chunk by chunk whoever wrote which: any number of servers and lanes reads what any other wrote.

use crate::entry::What;
use crate::error::CheckpointError;
use crate::manifest::{MANIFEST_BYTES_MAX, Manifest, TensorRecord, is_plain};
use crate::reader::Part;
use crate::store::{MANIFEST, Store};
use crate::writer::{RowsPiece, word_of};
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Key};
use proto_common::table::TableSpec;
use proto_common::tensor::{ChunkSpan, TensorSpec, label};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A stretch of what a part has: where it ends, which part, where in it.
#[derive(Clone, Debug)]
struct Place {
    end: u64,
    part: usize,
    offset: u64,
    dtype: String,
}

/// All that a checkpoint has of a chunk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChunkState {
    /// Published weights.
    pub weights: Vec<u8>,
    /// Exact weights, of halves.
    pub master: Option<Vec<u8>>,
    /// What the rule keeps.
    pub state: Vec<Vec<u8>>,
    /// What the server wrote of it besides.
    pub marks: Vec<u8>,
}

/// See the module.
#[derive(Debug)]
pub struct Checkpoint {
    manifest: Manifest,
    /// Where the manifest has each tensor and each table. Without it, each of 100,000 tensors would be looked for among all.
    tensors: BTreeMap<Key, usize>,
    tables: BTreeMap<u32, usize>,
    parts: Vec<Part>,
    places: BTreeMap<(Key, What, u64), Place>,
    marks: BTreeMap<ChunkId, Vec<u8>>,
}

/// Reads a checkpoint's manifest; `None` where it is not complete.
pub(crate) fn manifest(store: &dyn Store, name: &str) -> Result<Option<Manifest>, CheckpointError> {
    if !is_plain(name) {
        return Err(CheckpointError::BadName { name: name.into() });
    }
    let Some(bytes) = store.bytes(name, MANIFEST)? else { return Ok(None) };
    let path = format!("{}/{name}/{MANIFEST}", store.place());
    if bytes > MANIFEST_BYTES_MAX {
        return Err(CheckpointError::foreign(&path, format!("it has {bytes} bytes")));
    }
    let mut text = vec![0; bytes as usize];
    store.read(name, MANIFEST, 0, &mut text)?;
    let manifest = Manifest::parse(&text, &path)?;
    if manifest.name != name {
        return Err(CheckpointError::foreign(&path, format!("it is of checkpoint {}", manifest.name)));
    }
    Ok(Some(manifest))
}

impl Checkpoint {
    /// Opens a complete checkpoint: all that its parts say of themselves is read and checked.
    pub fn open(store: &Arc<dyn Store>, name: &str) -> Result<Self, CheckpointError> {
        let missing = || CheckpointError::Missing { name: name.into(), place: store.place() };
        let manifest = manifest(&**store, name)?.ok_or_else(missing)?;
        let (mut parts, mut places, mut marks) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for record in &manifest.parts {
            let part = Part::open(store.clone(), name, record)?;
            for (key, what, (first, end), entry) in part.tensors()? {
                let (offset, dtype) = (entry.data_offsets[0], entry.dtype.clone());
                places.insert((key, what, first), Place { end, part: parts.len(), offset, dtype });
            }
            marks.append(&mut part.marks()?);
            parts.push(part);
        }
        let tensors = manifest.tensors.iter().map(|tensor| tensor.spec.key).zip(0..).collect();
        let tables = manifest.tables.iter().map(|table| table.spec.key).zip(0..).collect();
        Ok(Self { manifest, tensors, tables, parts, places, marks })
    }

    /// Its manifest.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What the manifest says of a tensor, if the checkpoint has it.
    #[must_use]
    pub fn tensor(&self, key: Key) -> Option<&TensorRecord> {
        self.tensors.get(&key).and_then(|at| self.manifest.tensors.get(*at))
    }

    /// May a tensor that is declared now go on from it? False: it is not in it.
    pub fn has(&self, spec: &TensorSpec, chunk_bytes: u64) -> Result<bool, CheckpointError> {
        let name = || self.manifest.name.clone();
        let theirs = self.manifest.shape.chunk_bytes;
        if theirs != chunk_bytes {
            return Err(CheckpointError::ChunkBytes { name: name(), theirs, ours: chunk_bytes });
        }
        let Some(tensor) = self.tensor(spec.key) else { return Ok(false) };
        let alike = |spec: &TensorSpec| TensorSpec {
            name: String::new(),
            compression: Default::default(),
            ..spec.clone()
        };
        if alike(&tensor.spec) != alike(spec) {
            let words = |spec: &TensorSpec| {
                format!(
                    "{} elements of {} with {:?} in mode {:?}",
                    spec.elements, spec.dtype, spec.optimizer, spec.mode
                )
            };
            let (ours, theirs) = (words(spec), words(&tensor.spec));
            return Err(CheckpointError::OtherSpec { tensor: spec.label(), name: name(), ours, theirs });
        }
        Ok(true)
    }

    /// Reads a chunk.
    pub fn chunk(&self, spec: &TensorSpec, span: &ChunkSpan) -> Result<ChunkState, CheckpointError> {
        let size = spec.dtype.bytes() as u64;
        let range = (span.offset / size, (span.offset + span.bytes) / size);
        let sums = if spec.dtype == Dtype::F64 { Dtype::F64 } else { Dtype::F32 };
        let lacks = |what: &str| {
            let (place, name) =
                (self.parts.first().map_or_else(String::new, Part::path), &self.manifest.name);
            let why =
                format!("no part of {name} has the {what} of {} from element {}", spec.label(), range.0);
            CheckpointError::corrupt(&place, why)
        };
        let weights =
            self.stretch(spec.key, What::Weights, range, spec.dtype)?.ok_or_else(|| lacks("weights"))?;
        let marks = self.marks.get(&span.id).cloned().ok_or_else(|| lacks("marks"))?;
        let master = self.stretch(spec.key, What::Master, range, sums)?;
        let mut state = Vec::new();
        for number in 0..2 {
            match self.stretch(spec.key, What::State(number), range, sums)? {
                Some(array) => state.push(array),
                None => break,
            }
        }
        Ok(ChunkState { weights, master, state, marks })
    }

    fn label(&self, key: Key) -> String {
        self.tensor(key).map_or_else(|| label(key, ""), |tensor| tensor.spec.label())
    }

    /// Elements of a tensor, from whatever entries have them; `None` where the first is not there.
    fn stretch(
        &self,
        key: Key,
        what: What,
        (first, end): (u64, u64),
        dtype: Dtype,
    ) -> Result<Option<Vec<u8>>, CheckpointError> {
        let size = dtype.bytes() as u64;
        let mut bytes = vec![0; ((end - first) * size) as usize];
        let mut at = first;
        while at < end {
            let place = self.places.range((key, what, 0)..=(key, what, at)).next_back();
            let Some((&(_, _, begin), place)) = place.filter(|(_, place)| place.end > at) else {
                if at == first {
                    return Ok(None);
                }
                let why = format!("{} has a gap before element {at}", self.label(key));
                return Err(CheckpointError::corrupt(&self.manifest.name, why));
            };
            let part = &self.parts[place.part];
            if place.dtype != word_of(dtype) {
                let why = format!(
                    "{} is of {} there, and of {dtype} in the manifest",
                    self.label(key),
                    place.dtype
                );
                return Err(CheckpointError::corrupt(&part.path(), why));
            }
            let until = place.end.min(end);
            let into = &mut bytes[((at - first) * size) as usize..((until - first) * size) as usize];
            part.read(place.offset + (at - begin) * size, into)?;
            at = until;
        }
        Ok(Some(bytes))
    }

    /// The declaration of a table, where the checkpoint has it.
    #[must_use]
    pub fn table(&self, key: u32) -> Option<&TableSpec> {
        self.tables.get(&key).and_then(|at| self.manifest.tables.get(*at)).map(|table| &table.spec)
    }

    /// Hands out the rows of a table, stretch by stretch. Stretches without any row that is wanted are not read; others come
    /// whole.
    pub fn rows(
        &self,
        key: u32,
        wants: impl Fn(u64) -> bool,
        mut take: impl FnMut(&RowsPiece),
    ) -> Result<(), CheckpointError> {
        for part in &self.parts {
            for (_, pieces) in part.tables()?.into_iter().filter(|(spec, _)| spec.key == key) {
                for [ids, pushes, numbers] in pieces {
                    let bytes = |entry: &crate::header::Entry| {
                        let mut bytes = vec![0; entry.bytes() as usize];
                        part.read(entry.data_offsets[0], &mut bytes).map(|()| bytes)
                    };
                    let long = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
                    let float = |bytes: &[u8]| bytes.try_into().map_or(0.0, f32::from_le_bytes);
                    let longs = |bytes: Vec<u8>| bytes.chunks_exact(8).map(long).collect::<Vec<u64>>();
                    let ids = longs(bytes(ids)?);
                    if !ids.iter().any(|id| wants(*id)) {
                        continue;
                    }
                    let pushes = longs(bytes(pushes)?);
                    let numbers: Vec<f32> = bytes(numbers)?.chunks_exact(4).map(float).collect();
                    if ids.len() != pushes.len() || !numbers.len().is_multiple_of(ids.len().max(1)) {
                        return Err(CheckpointError::corrupt(
                            &part.path(),
                            "rows without ids, or ids without rows",
                        ));
                    }
                    take(&RowsPiece { key, ids, pushes, numbers });
                }
            }
        }
        Ok(())
    }
}
