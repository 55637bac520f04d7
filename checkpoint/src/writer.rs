//! Writes a part: room for the header, the weights at places that are known before, everything else behind them as it
//! comes; then the header. It must not know when what is written is copied.

use crate::entry::{BLOCKS, MARKS, WORD_BYTES_MAX, What, base_of, base_of_table, name_of};
use crate::error::CheckpointError;
use crate::header::{Entry, HEADER_BYTES_MAX, Header, LENGTH_BYTES};
use crate::manifest::PartRecord;
use crate::store::{Staged, Store};
use proto_common::element::Dtype;
use proto_common::ids::Key;
use proto_common::table::TableSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

/// Bytes that one checksum of a part is of.
pub(crate) const BLOCK_BYTES: u64 = 256 << 10;
/// The part's word for tensors' names.
pub(crate) const KEYS: &str = "gradwire.keys";
pub(crate) const TABLES: &str = "gradwire.tables";
/// Headers end at a multiple of it.
const ALIGN_BYTES: u64 = 4096;
/// Bytes of an entry's description besides its name, at most.
const ENTRY_BYTES: u64 = 160;

/// Elements of a tensor that a part is to have, next to one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Which tensor.
    pub key: Key,
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// First element, and the one behind the last.
    pub range: (u64, u64),
    /// Elements of all of the tensor.
    pub elements: u64,
    /// In how many chunks they come.
    pub chunks: u64,
    /// Arrays that are kept beside the weights of each chunk: the rule's, and exact weights.
    pub arrays: u64,
}

/// Arrays beside the weights of a chunk, at most.
const ARRAYS_MAX: u64 = 3;

impl Planned {
    /// Bytes of a header that its entries need, under names that begin with `base`, with so many arrays of each chunk; and its name
    /// in the table of keys.
    fn header_bytes(&self, base: &str, arrays: u64) -> u64 {
        (base.len() as u64 + WORD_BYTES_MAX as u64 + 48 + ENTRY_BYTES) * (2 + arrays * self.chunks)
    }
}

/// What a part is to have.
#[derive(Clone, Debug, Default)]
pub struct PartPlan {
    /// Stretches of tensors.
    pub tensors: Vec<Planned>,
    /// Tables, with the most stretches that their rows come in.
    pub tables: Vec<(TableSpec, u64)>,
}

/// Rows of a table.
#[derive(Clone, Debug)]
pub struct RowsPiece {
    /// Which table.
    pub key: u32,
    /// Their ids.
    pub ids: Vec<u64>,
    /// How many pushes each had.
    pub pushes: Vec<u64>,
    /// Their numbers, with what the rule keeps, row by row.
    pub numbers: Vec<f32>,
}

/// See the module.
#[derive(Debug)]
pub struct PartWriter {
    store: Arc<dyn Store>,
    name: String,
    file: String,
    staged: Staged,
    header: Header,
    header_bytes: u64,
    bases: BTreeMap<Key, String>,
    /// Where each planned stretch begins: by key and first element.
    places: BTreeMap<(Key, u64), (u64, u64, u64)>,
    end: u64,
    marks: Vec<u8>,
    /// Rows of each table so far.
    rows: BTreeMap<u32, u64>,
}

impl PartWriter {
    /// Begins a part of a checkpoint under a file's name.
    pub fn begin(
        store: Arc<dyn Store>,
        name: &str,
        file: &str,
        plan: &PartPlan,
    ) -> Result<Self, CheckpointError> {
        let (mut header, mut bases, mut places) = (Header::default(), BTreeMap::new(), BTreeMap::new());
        let (mut taken, mut end) = (BTreeSet::new(), 0);
        // Its rule may change before a chunk is copied, and keep more arrays then: where there is room, that is provided for.
        let (mut header_bytes, mut most_bytes) = (ALIGN_BYTES, ALIGN_BYTES);
        for planned in &plan.tensors {
            let base = bases
                .entry(planned.key)
                .or_insert_with(|| base_of(planned.key, &planned.name, |name| taken.contains(name)));
            taken.insert(base.clone());
            let (first, last) = planned.range;
            let (count, size) = (last.saturating_sub(first), planned.dtype.bytes() as u64);
            let whole = planned.range == (0, planned.elements);
            let entry = Entry {
                dtype: word_of(planned.dtype),
                shape: vec![count],
                data_offsets: [end, end + count * size],
            };
            places.insert((planned.key, first), (last, end, size));
            end = entry.data_offsets[1];
            header.entries.insert(name_of(base, What::Weights, (!whole).then_some(planned.range)), entry);
            header_bytes += planned.header_bytes(base, planned.arrays);
            most_bytes += planned.header_bytes(base, ARRAYS_MAX);
        }
        let plain = |error: serde_json::Error| CheckpointError::Plan(error.to_string());
        let keys: BTreeMap<&String, Key> = bases.iter().map(|(key, base)| (base, *key)).collect();
        header.metadata.insert(KEYS.into(), serde_json::to_string(&keys).map_err(plain)?);
        let tables: Vec<&TableSpec> = plan.tables.iter().map(|(spec, _)| spec).collect();
        let tables = serde_json::to_string(&tables).map_err(plain)?;
        let of_tables =
            plan.tables.iter().map(|(_, pieces)| 3 * (64 + ENTRY_BYTES) * (1 + pieces)).sum::<u64>();
        let [header_bytes, most_bytes] = [header_bytes, most_bytes]
            .map(|bytes| (bytes + of_tables + 2 * tables.len() as u64).next_multiple_of(ALIGN_BYTES));
        let fits = |bytes: &u64| *bytes <= LENGTH_BYTES + HEADER_BYTES_MAX;
        let header_bytes = Some(most_bytes).filter(fits).unwrap_or(header_bytes);
        header.metadata.insert(TABLES.into(), tables);
        // Told before anything is written, and not when all of it was.
        if !fits(&header_bytes) {
            let chunks = plan.tensors.iter().map(|planned| planned.chunks).sum();
            return Err(CheckpointError::TooManyChunks { chunks, header_bytes });
        }
        let staged = store.stage(name, file)?;
        let (name, file, marks, rows) = (name.to_owned(), file.to_owned(), Vec::new(), BTreeMap::new());
        Ok(Self { store, name, file, staged, header, header_bytes, bases, places, end, marks, rows })
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<(), CheckpointError> {
        let written = self.staged.file.write_all_at(bytes, self.header_bytes + at);
        written.map_err(CheckpointError::io("write", self.staged.path.display().to_string()))
    }

    fn append(
        &mut self,
        name: String,
        dtype: &str,
        shape: Vec<u64>,
        bytes: &[u8],
    ) -> Result<(), CheckpointError> {
        if self.header.entries.contains_key(&name) {
            return Err(CheckpointError::Plan(format!("entry {name} came twice")));
        }
        let data_offsets = [self.end, self.end + bytes.len() as u64];
        self.write(bytes, self.end)?;
        self.end = data_offsets[1];
        self.header.entries.insert(name, Entry { dtype: dtype.into(), shape, data_offsets });
        Ok(())
    }

    /// The weights of a chunk that begins at this element.
    pub fn weights(&mut self, key: Key, first: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        let place = self.places.range(..=(key, first)).next_back();
        let Some((&(other, begin), &(last, offset, size))) = place else {
            return Err(CheckpointError::Plan(format!("tensor {key} was not planned")));
        };
        if other != key || first.saturating_sub(begin) * size + bytes.len() as u64 > (last - begin) * size {
            return Err(CheckpointError::Plan(format!("element {first} of tensor {key} was not planned")));
        }
        self.write(bytes, offset + (first - begin) * size)
    }

    /// Something that is kept beside a chunk's weights.
    pub fn beside(
        &mut self,
        key: Key,
        what: What,
        dtype: Dtype,
        first: u64,
        bytes: &[u8],
    ) -> Result<(), CheckpointError> {
        let elements = (bytes.len() / dtype.bytes()) as u64;
        let base = self.bases.get(&key).cloned().unwrap_or_default();
        let name = name_of(&base, what, Some((first, first + elements)));
        self.append(name, &word_of(dtype), vec![elements], bytes)
    }

    /// The marks of a chunk, which only servers understand.
    pub fn marks(&mut self, key: Key, chunk: u32, marks: &[u8]) -> Result<(), CheckpointError> {
        self.marks.extend_from_slice(&key.0.to_le_bytes());
        self.marks.extend_from_slice(&chunk.to_le_bytes());
        self.marks.extend_from_slice(&(marks.len() as u32).to_le_bytes());
        self.marks.extend_from_slice(marks);
        Ok(())
    }

    /// Rows of a table, behind those that came before.
    pub fn rows(&mut self, piece: &RowsPiece) -> Result<(), CheckpointError> {
        let count = piece.ids.len() as u64;
        let width = (piece.numbers.len() as u64).checked_div(count).unwrap_or(0);
        let first = self.rows.entry(piece.key).or_default();
        let range = Some((*first, *first + count));
        *first += count;
        let name = |what| name_of(&base_of_table(piece.key), what, range);
        let longs = |values: &[u64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let numbers: Vec<u8> = piece.numbers.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.append(name(What::Ids), "U64", vec![count], &longs(&piece.ids))?;
        self.append(name(What::Pushes), "U64", vec![count], &longs(&piece.pushes))?;
        self.append(name(What::Rows), "F32", vec![count, width], &numbers)
    }

    /// Everything has come: the part is complete, and lies under its name.
    pub fn finish(mut self) -> Result<PartRecord, CheckpointError> {
        let marks = std::mem::take(&mut self.marks);
        self.append(MARKS.into(), "U8", vec![marks.len() as u64], &marks)?;
        let covered = self.end;
        let blocks = covered.div_ceil(BLOCK_BYTES);
        let table_end = covered + 4 * blocks;
        let entry = Entry { dtype: "U32".into(), shape: vec![blocks], data_offsets: [covered, table_end] };
        self.header.entries.insert(BLOCKS.into(), entry);
        let header = self.header.to_bytes(self.header_bytes)?;
        let failed = || CheckpointError::io("write", self.staged.path.display().to_string());
        self.staged.file.write_all_at(&header, 0).map_err(failed())?;
        // Read as a reader will find it.
        let mut crc = crc32c::crc32c(&header);
        let (mut table, mut block) = (Vec::new(), vec![0; BLOCK_BYTES as usize]);
        for number in 0..blocks {
            let at = number * BLOCK_BYTES;
            let block = &mut block[..BLOCK_BYTES.min(covered - at) as usize];
            self.staged.file.read_exact_at(block, self.header_bytes + at).map_err(failed())?;
            crc = crc32c::crc32c_append(crc, block);
            table.extend_from_slice(&crc32c::crc32c(block).to_le_bytes());
        }
        self.write(&table, covered)?;
        let crc32c = crc32c::crc32c_append(crc, &table);
        let index_crc32c = crc32c::crc32c_append(crc32c::crc32c(&header), &table);
        self.store.put(&self.name, &self.file, self.staged)?;
        let bytes = self.header_bytes + table_end;
        debug_assert!(self.header_bytes > LENGTH_BYTES, "a header has room");
        Ok(PartRecord { file: self.file, bytes, crc32c, index_crc32c })
    }
}

/// The format's word for a type.
fn word_of(dtype: Dtype) -> String {
    dtype.name().to_uppercase()
}
