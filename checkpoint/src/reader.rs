//! Reads a part: its header and table of blocks once, then any stretch, checked block by block. It must not trust anything
//! that it reads.

use crate::entry::{self, BLOCKS, MARKS, What};
use crate::error::CheckpointError;
use crate::header::{Entry, Header, LENGTH_BYTES};
use crate::manifest::PartRecord;
use crate::store::Store;
use crate::writer::{BLOCK_BYTES, KEYS, TABLES};
use proto_common::ids::{ChunkId, ChunkIndex, Key};
use proto_common::table::TableSpec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of data that are read at once: an object store needs a request for each, which takes as long as many blocks do.
const RUN_BYTES: u64 = 32 * BLOCK_BYTES;
/// Bytes that a whole part is checked by at once.
const STEP_BYTES: usize = 1 << 20;

/// What an entry has: of which tensor, what, which elements, and where.
pub type Stretch<'a> = (Key, What, (u64, u64), &'a Entry);
/// A table, and the entries of each stretch of its rows: ids, pushes, numbers.
pub type TableRows<'a> = (TableSpec, Vec<[&'a Entry; 3]>);

/// See the module.
#[derive(Debug)]
pub struct Part {
    store: Arc<dyn Store>,
    name: String,
    record: PartRecord,
    header: Header,
    data_at: u64,
    blocks: Vec<u32>,
    /// Bytes that the blocks are of.
    covered: u64,
}

impl Part {
    /// Reads what the part says of itself, and checks it against the manifest's record.
    pub fn open(store: Arc<dyn Store>, name: &str, record: &PartRecord) -> Result<Self, CheckpointError> {
        let file = &record.file;
        let path = format!("{}/{name}/{file}", store.place());
        let bytes = store.bytes(name, file)?;
        if bytes != Some(record.bytes) {
            let why = match bytes {
                Some(bytes) => format!("it has {bytes} bytes, and the manifest says {}", record.bytes),
                None => "it is missing".into(),
            };
            return Err(CheckpointError::corrupt(&path, why));
        }
        let mut first = [0; LENGTH_BYTES as usize];
        store.read(name, file, 0, &mut first)?;
        let length = Header::length(first, record.bytes, &path)?;
        let mut json = vec![0; length as usize];
        store.read(name, file, LENGTH_BYTES, &mut json)?;
        let data_at = LENGTH_BYTES + length;
        let header = Header::parse(&json, record.bytes - data_at, &path)?;
        let table = header.entries.get(BLOCKS).filter(|entry| entry.dtype == "U32");
        let covered = table.map(|entry| entry.data_offsets[0]).unwrap_or_default();
        let table = table.filter(|entry| {
            entry.data_offsets[1] == record.bytes - data_at
                && entry.bytes() == 4 * entry.data_offsets[0].div_ceil(BLOCK_BYTES)
        });
        let Some(table) = table else {
            return Err(CheckpointError::foreign(&path, "it has no table of its blocks' checksums"));
        };
        let mut sums = vec![0; table.bytes() as usize];
        store.read(name, file, data_at + covered, &mut sums)?;
        let index =
            [first.as_slice(), &json, &sums].iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
        if index != record.index_crc32c {
            return Err(CheckpointError::corrupt(&path, "the checksum of its header is another one"));
        }
        let blocks = sums
            .chunks_exact(4)
            .map(|sum| sum.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)));
        let (blocks, name, record) = (blocks.collect(), name.to_owned(), record.clone());
        Ok(Self { store, name, record, header, data_at, blocks, covered })
    }

    /// For errors.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}/{}/{}", self.store.place(), self.name, self.record.file)
    }

    /// What it says of itself.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Its entries of tensors: what they have, which elements, and where they lie.
    pub fn tensors(&self) -> Result<Vec<Stretch<'_>>, CheckpointError> {
        let keys: BTreeMap<String, Key> = self.word(KEYS)?;
        let mut ours = Vec::new();
        for (name, entry) in &self.header.entries {
            let length = entry.shape.first().copied().unwrap_or(0);
            let Some((key, what, range)) = entry::parse(name, length, &keys) else { continue };
            // Rows, of a table that is called as a tensor is: names once gave way only to others.
            if matches!(what, What::Ids | What::Rows | What::Pushes) {
                continue;
            }
            // Another shape has other bytes than are looked for there.
            if entry.shape.len() != 1 {
                let why = format!("its entry {name:?} has another shape than its name says");
                return Err(CheckpointError::corrupt(&self.path(), why));
            }
            ours.push((key, what, range, entry));
        }
        Ok(ours)
    }

    /// Its tables, with their rows' entries: ids, pushes, numbers of each stretch.
    pub fn tables(&self) -> Result<Vec<TableRows<'_>>, CheckpointError> {
        let specs: Vec<TableSpec> = self.word(TABLES)?;
        let keys = specs.iter().map(|spec| (entry::base_of_table(spec.key), Key(u64::from(spec.key))));
        let keys: BTreeMap<String, Key> = keys.collect();
        let mut found: BTreeMap<(Key, u64), [Option<&Entry>; 3]> = BTreeMap::new();
        for (name, entry) in &self.header.entries {
            let length = entry.shape.first().copied().unwrap_or(0);
            let Some((key, what, (first, _))) = entry::parse(name, length, &keys) else { continue };
            let (at, dtype) = match what {
                What::Ids => (0, "U64"),
                What::Pushes => (1, "U64"),
                What::Rows => (2, "F32"),
                _ => continue,
            };
            if entry.dtype == dtype {
                found.entry((key, first)).or_default()[at] = Some(entry);
            }
        }
        let mut tables = Vec::new();
        for spec in specs {
            let key = Key(u64::from(spec.key));
            let mut pieces = Vec::new();
            for piece in found.range((key, 0)..=(key, u64::MAX)).map(|(_, piece)| *piece) {
                let [Some(ids), Some(pushes), Some(rows)] = piece else {
                    return Err(CheckpointError::corrupt(
                        &self.path(),
                        "rows without ids, or ids without rows",
                    ));
                };
                pieces.push([ids, pushes, rows]);
            }
            tables.push((spec, pieces));
        }
        Ok(tables)
    }

    fn word<T: serde::de::DeserializeOwned>(&self, word: &str) -> Result<T, CheckpointError> {
        let text = self.header.metadata.get(word).map_or("null", String::as_str);
        serde_json::from_str(text)
            .map_err(|error| CheckpointError::foreign(&self.path(), format!("its word {word}: {error}")))
    }

    /// Reads bytes of its data, checked. Whole blocks are read for it.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), CheckpointError> {
        let end = offset.saturating_add(into.len() as u64);
        if end > self.covered {
            return Err(CheckpointError::corrupt(&self.path(), "an entry lies behind its end"));
        }
        let (mut at, mut done) = (offset - offset % BLOCK_BYTES, 0);
        let behind = end.next_multiple_of(BLOCK_BYTES).min(self.covered);
        let mut run = vec![0; RUN_BYTES.min(behind.saturating_sub(at)) as usize];
        while at < end {
            let run = &mut run[..RUN_BYTES.min(behind - at) as usize];
            self.store.read(&self.name, &self.record.file, self.data_at + at, run)?;
            self.check_blocks(at, run)?;
            let from = offset.saturating_sub(at) as usize;
            let count = (run.len() - from).min(into.len() - done);
            into[done..done + count].copy_from_slice(&run[from..from + count]);
            done += count;
            at += RUN_BYTES;
        }
        Ok(())
    }

    /// Compares blocks of data that begin at this offset with their checksums.
    fn check_blocks(&self, at: u64, run: &[u8]) -> Result<(), CheckpointError> {
        for (at, block) in (at..).step_by(BLOCK_BYTES as usize).zip(run.chunks(BLOCK_BYTES as usize)) {
            if self.blocks.get((at / BLOCK_BYTES) as usize) != Some(&crc32c::crc32c(block)) {
                let (bytes, at) = (block.len(), self.data_at + at);
                let why = format!("the checksum of the {bytes} bytes at {at} is another one");
                return Err(CheckpointError::corrupt(&self.path(), why));
            }
        }
        Ok(())
    }

    /// The marks of its chunks.
    pub fn marks(&self) -> Result<BTreeMap<ChunkId, Vec<u8>>, CheckpointError> {
        let torn = || CheckpointError::corrupt(&self.path(), "its chunks' marks are cut");
        let entry = self.header.entries.get(MARKS).filter(|entry| entry.dtype == "U8").ok_or_else(torn)?;
        let mut bytes = vec![0; entry.bytes() as usize];
        self.read(entry.data_offsets[0], &mut bytes)?;
        let (mut rest, mut marks) = (&bytes[..], BTreeMap::new());
        while !rest.is_empty() {
            let (key, after) = rest.split_first_chunk::<8>().ok_or_else(torn)?;
            let (chunk, after) = after.split_first_chunk::<4>().ok_or_else(torn)?;
            let (length, after) = after.split_first_chunk::<4>().ok_or_else(torn)?;
            let (own, after) =
                after.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(torn)?;
            let id =
                ChunkId { key: Key(u64::from_le_bytes(*key)), chunk: ChunkIndex(u32::from_le_bytes(*chunk)) };
            marks.insert(id, own.to_vec());
            rest = after;
        }
        Ok(marks)
    }

    /// Reads all of it, and says how it goes after each step.
    pub fn verify(&self, mut progress: impl FnMut(u64)) -> Result<(), CheckpointError> {
        let (mut crc, mut at, mut step) = (0, 0, vec![0; STEP_BYTES]);
        while at < self.record.bytes {
            let step = &mut step[..STEP_BYTES.min((self.record.bytes - at) as usize)];
            self.store.read(&self.name, &self.record.file, at, step)?;
            crc = crc32c::crc32c_append(crc, step);
            at += step.len() as u64;
            progress(step.len() as u64);
        }
        if crc == self.record.crc32c {
            Ok(())
        } else {
            Err(CheckpointError::corrupt(&self.path(), "its checksum is not the manifest's"))
        }
    }
}
