//! One lane's part of a checkpoint: what it is to have, and how an image of a chunk becomes its entries.

use crate::engine::ChunkSpec;
use crate::storage::Image;
use checkpoint::{CheckpointError, PartPlan, PartWriter, Planned, RowsPiece, Store, What};
use proto_common::ids::{ChunkId, Key};
use proto_common::message::{Cover, PartWritten};
use proto_common::table::TableSpec;
use proto_common::tensor::TensorSpec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A lane begins a checkpoint with these chunks.
#[derive(Debug)]
pub(crate) struct Begin {
    pub(crate) round: u64,
    pub(crate) chunks: Vec<ChunkSpec>,
    /// Tables, with the pieces that their rows come in.
    pub(crate) tables: Vec<(TableSpec, u64)>,
}

/// Part of a checkpoint, copied.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) round: u64,
    pub(crate) what: Piece,
    /// Bytes that room was taken for.
    pub(crate) bytes: u64,
}

#[derive(Debug)]
pub(crate) enum Piece {
    /// A chunk's image.
    Chunk(ChunkId, Vec<u8>),
    /// Rows of a table.
    Rows(RowsPiece),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LanePart {
    pub(super) round: u64,
    pub(super) lane: u16,
    chunk_bytes: u64,
    writer: PartWriter,
    /// Chunks and pieces of tables.
    left: usize,
    tables: Vec<(TableSpec, u64)>,
    versions: BTreeMap<ChunkId, u64>,
}

/// What identifies a part's file: server, lane, the server's life, and which part of that life's it is. So nothing is ever
/// written over: a round may be written again while its complete checkpoint lies there.
pub(crate) fn file_of(server: u32, lane: u16, life: u64, number: u64) -> String {
    format!("part-s{server:04}-l{lane:02}-{life:016x}-{number:04}.safetensors")
}

impl LanePart {
    pub(crate) fn begin(
        store: Arc<dyn Store>,
        (lane, name, file): (u16, &str, &str),
        chunk_bytes: u64,
        tensors: &BTreeMap<Key, TensorSpec>,
        mut begin: Begin,
    ) -> Result<Self, CheckpointError> {
        begin.chunks.sort_unstable_by_key(|chunk| chunk.id);
        let mut plan = PartPlan::default();
        for chunk in &begin.chunks {
            let size = chunk.dtype.bytes() as u64;
            let first = u64::from(chunk.id.chunk.0) * chunk_bytes / size;
            let range = (first, first + chunk.bytes / size);
            let last = plan.tensors.last_mut();
            if let Some(last) =
                last.filter(|last: &&mut Planned| last.key == chunk.id.key && last.range.1 == range.0)
            {
                last.range.1 = range.1;
                last.chunks += 1;
                continue;
            }
            // Without a declaration at hand, a tensor has no name, and no end that is known.
            let spec = tensors.get(&chunk.id.key);
            plan.tensors.push(Planned {
                key: chunk.id.key,
                name: spec.map_or_else(String::new, |spec| spec.name.clone()),
                dtype: chunk.dtype,
                range,
                elements: spec.map_or(u64::MAX, |spec| spec.elements),
                chunks: 1,
                arrays: chunk.optimizer.state_arrays() as u64 + u64::from(chunk.dtype.is_half()),
            });
        }
        plan.tables = begin.tables;
        let writer = PartWriter::begin(store, name, file, &plan)?;
        let pieces = plan.tables.iter().map(|(_, pieces)| *pieces as usize).sum::<usize>();
        let (round, left, versions) = (begin.round, begin.chunks.len() + pieces, BTreeMap::new());
        let tables = plan.tables.into_iter().map(|(spec, _)| (spec, 0)).collect();
        Ok(Self { round, lane, chunk_bytes, writer, left, tables, versions })
    }

    /// True when nothing is to follow.
    pub(crate) fn write(&mut self, piece: &Piece) -> Result<bool, CheckpointError> {
        match piece {
            Piece::Chunk(id, image) => self.chunk(*id, image)?,
            Piece::Rows(rows) => self.rows(rows)?,
        }
        Ok(self.left == 0)
    }

    fn chunk(&mut self, id: ChunkId, bytes: &[u8]) -> Result<(), CheckpointError> {
        let wrong = |what: String| CheckpointError::Plan(format!("chunk {id:?}: {what}"));
        let image = Image::read(bytes).map_err(|error| wrong(error.to_string()))?;
        let first = u64::from(id.chunk.0) * self.chunk_bytes / image.dtype.bytes() as u64;
        let sums = image.dtype.of_sums();
        self.writer.weights(id.key, first, image.weights)?;
        if !image.master.is_empty() {
            self.writer.beside(id.key, What::Master, sums, first, image.master)?;
        }
        for (number, array) in (0..).zip(image.kept).filter(|(_, array)| !array.is_empty()) {
            self.writer.beside(id.key, What::State(number), sums, first, array)?;
        }
        // What is before the numbers: with them behind it, it is the image again.
        let numbers = image.weights.len()
            + image.master.len()
            + image.kept.iter().map(|kept| kept.len()).sum::<usize>();
        self.writer.marks(id.key, id.chunk.0, &bytes[..bytes.len() - numbers])?;
        if self.versions.insert(id, image.state.version).is_none() {
            self.left = self.left.saturating_sub(1);
        }
        Ok(())
    }

    fn rows(&mut self, piece: &RowsPiece) -> Result<(), CheckpointError> {
        self.writer.rows(piece)?;
        if let Some((_, rows)) = self.tables.iter_mut().find(|(spec, _)| spec.key == piece.key) {
            *rows += piece.ids.len() as u64;
        }
        self.left = self.left.saturating_sub(1);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.left == 0
    }

    pub(crate) fn finish(self) -> Result<PartWritten, CheckpointError> {
        let record = self.writer.finish()?;
        let mut covers: Vec<Cover> = Vec::new();
        for (id, version) in self.versions {
            let next = |last: &&mut Cover| {
                let end = ChunkId::new(last.first.key.0, last.first.chunk.0 + last.chunks);
                last.version == version && end == id
            };
            match covers.last_mut().filter(next) {
                Some(last) => last.chunks += 1,
                None => covers.push(Cover { first: id, chunks: 1, version }),
            }
        }
        let (file, bytes) = (record.file, record.bytes);
        let (crc32c, index_crc32c) = (record.crc32c, record.index_crc32c);
        let (round, lane, tables) = (self.round, self.lane, self.tables);
        Ok(PartWritten { round, lane, file, bytes, crc32c, index_crc32c, covers, tables })
    }
}
