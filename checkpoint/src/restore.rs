//! A complete checkpoint, read chunk by chunk whoever wrote which: any number of servers and lanes reads what any other wrote.

use crate::entry::What;
use crate::error::CheckpointError;
use crate::manifest::{MANIFEST_BYTES_MAX, Manifest, PartRecord, TensorRecord, is_plain};
use crate::reader::Part;
use crate::store::{MANIFEST, Store};
use crate::writer::RowsPiece;
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Key};
use proto_common::table::TableSpec;
use proto_common::tensor::{ChunkSpan, TensorSpec, label};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A stretch of what a part has: where it ends, and where in the part it is.
#[derive(Clone, Debug)]
struct Place {
    end: u64,
    offset: u64,
    dtype: String,
}

/// A part that was opened, and where it has what.
#[derive(Debug)]
struct Opened {
    part: Part,
    places: BTreeMap<(Key, What, u64), Place>,
    marks: BTreeMap<ChunkId, Vec<u8>>,
}

impl Opened {
    fn new(store: &Arc<dyn Store>, name: &str, record: &PartRecord) -> Result<Self, CheckpointError> {
        let part = Part::open(store.clone(), name, record)?;
        let mut places = BTreeMap::new();
        for (key, what, (first, end), entry) in part.tensors()? {
            let (offset, dtype) = (entry.data_offsets[0], entry.dtype.clone());
            places.insert((key, what, first), Place { end, offset, dtype });
        }
        let marks = part.marks()?;
        Ok(Self { part, places, marks })
    }
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

/// See the module. Any number of threads may read from it.
#[derive(Debug)]
pub struct Checkpoint {
    store: Arc<dyn Store>,
    manifest: Manifest,
    /// Where the manifest has each tensor and each table. Without it, each of 100,000 tensors would be looked for among all.
    tensors: BTreeMap<Key, usize>,
    tables: BTreeMap<u32, usize>,
    /// Parts that were needed. A part is opened once: whoever else needs it waits.
    opened: Vec<Mutex<Option<Arc<Opened>>>>,
    /// The part of each run of chunks, by its first chunk, with the number of chunks.
    runs: BTreeMap<ChunkId, (u32, usize)>,
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
    /// Opens a complete checkpoint. Its parts are opened when they are needed, unless the manifest does not say what they have.
    pub fn open(store: &Arc<dyn Store>, name: &str) -> Result<Self, CheckpointError> {
        let missing = || CheckpointError::Missing { name: name.into(), place: store.place() };
        let manifest = manifest(&**store, name)?.ok_or_else(missing)?;
        let tensors = manifest.tensors.iter().map(|tensor| tensor.spec.key).zip(0..).collect();
        let tables = manifest.tables.iter().map(|table| table.spec.key).zip(0..).collect();
        let opened = manifest.parts.iter().map(|_| Mutex::default()).collect();
        let mut checkpoint =
            Self { store: store.clone(), manifest, tensors, tables, opened, runs: BTreeMap::new() };
        checkpoint.runs = checkpoint.find_runs()?;
        Ok(checkpoint)
    }

    fn find_runs(&self) -> Result<BTreeMap<ChunkId, (u32, usize)>, CheckpointError> {
        let mut runs = BTreeMap::new();
        for at in 0..self.manifest.parts.len() {
            match self.manifest.contents.get(at) {
                Some(contents) => {
                    for run in contents.runs() {
                        let foreign = |why| CheckpointError::foreign(&self.manifest.name, why);
                        let (first, count) = run.map_err(foreign)?;
                        runs.insert(first, (count, at));
                    }
                }
                None => runs.extend(self.part(at)?.marks.keys().map(|chunk| (*chunk, (1, at)))),
            }
        }
        Ok(runs)
    }

    /// Opens all parts: everything that they say of themselves is read and checked.
    pub fn check_parts(&self) -> Result<(), CheckpointError> {
        (0..self.opened.len()).try_for_each(|at| self.part(at).map(drop))
    }

    fn part(&self, at: usize) -> Result<Arc<Opened>, CheckpointError> {
        let mut opened = self.opened[at].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = &*opened {
            return Ok(opened.clone());
        }
        let part = Arc::new(Opened::new(&self.store, &self.manifest.name, &self.manifest.parts[at])?);
        *opened = Some(part.clone());
        Ok(part)
    }

    /// The part that has a chunk.
    fn part_of(&self, id: ChunkId) -> Result<Option<Arc<Opened>>, CheckpointError> {
        let run = self.runs.range(..=id).next_back();
        let has = |(first, (count, _)): &(&ChunkId, &(u32, usize))| {
            first.key == id.key && id.chunk.0 - first.chunk.0 < *count
        };
        run.filter(has).map(|(_, (_, at))| self.part(*at)).transpose()
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
        let sums = spec.dtype.of_sums();
        let lacks = |what: &str| {
            let name = &self.manifest.name;
            let place = format!("{}/{name}", self.store.place());
            let why =
                format!("no part of {name} has the {what} of {} from element {}", spec.label(), range.0);
            CheckpointError::corrupt(&place, why)
        };
        let part = self.part_of(span.id)?.ok_or_else(|| lacks("chunk"))?;
        let stretch = |what, dtype| self.stretch(&part, (spec.key, what), range, dtype);
        let weights = stretch(What::Weights, spec.dtype)?.ok_or_else(|| lacks("weights"))?;
        let marks = part.marks.get(&span.id).cloned().ok_or_else(|| lacks("marks"))?;
        let master = stretch(What::Master, sums)?;
        let mut state = Vec::new();
        for number in 0..2 {
            match stretch(What::State(number), sums)? {
                Some(array) => state.push(array),
                None => break,
            }
        }
        Ok(ChunkState { weights, master, state, marks })
    }

    fn label(&self, key: Key) -> String {
        self.tensor(key).map_or_else(|| label(key, ""), |tensor| tensor.spec.label())
    }

    /// Elements of a tensor, from whatever entries of the part have them; `None` where the first is not there.
    fn stretch(
        &self,
        Opened { part, places, .. }: &Opened,
        (key, what): (Key, What),
        (first, end): (u64, u64),
        dtype: Dtype,
    ) -> Result<Option<Vec<u8>>, CheckpointError> {
        let size = dtype.bytes() as u64;
        let mut bytes = vec![0; ((end - first) * size) as usize];
        let mut at = first;
        while at < end {
            let place = places.range((key, what, 0)..=(key, what, at)).next_back();
            let Some((&(_, _, begin), place)) = place.filter(|(_, place)| place.end > at) else {
                if at == first {
                    return Ok(None);
                }
                let why = format!("{} has a gap before element {at}", self.label(key));
                return Err(CheckpointError::corrupt(&part.path(), why));
            };
            if !place.dtype.eq_ignore_ascii_case(dtype.name()) {
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
        for at in 0..self.opened.len() {
            if self.manifest.contents.get(at).is_some_and(|contents| !contents.has_table(key)) {
                continue;
            }
            let opened = self.part(at)?;
            let part = &opened.part;
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
