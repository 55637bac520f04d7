//! The manifest: what a checkpoint consists of. It is written last, so where it is the checkpoint is complete; and it is the
//! only thing that says so.

use crate::error::CheckpointError;
use proto_common::ids::ChunkId;
use proto_common::table::TableSpec;
use proto_common::tensor::TensorSpec;
use serde::{Deserialize, Serialize};

/// What every manifest begins with.
const FORMAT: &str = "gradwire-checkpoint";
const VERSION: u32 = 1;
/// What a table's word begins with.
const TABLE: &str = "table.";
/// Bytes of a manifest: as many tensors as a cluster may have fit.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 1 << 30;
/// Its last field. It is found by its words, because it covers all bytes before it.
const CRC_FIELD: &str = ",\n  \"crc32c\": \"";
const CRC_END: &str = "\"\n}\n";

/// The shape of the cluster that wrote a checkpoint. Only the chunks' bytes bind those who read it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// How many workers there were.
    pub workers: u32,
    /// How many servers.
    pub servers: u32,
    /// How many lanes each had.
    pub lanes: u16,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Were contributions reduced in rank order?
    pub deterministic: bool,
}

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorRecord {
    /// As declared.
    pub spec: TensorSpec,
    /// The version that its chunks have; the least of them, outside mode sync.
    pub version: u64,
    /// The newest of them.
    pub newest: u64,
}

/// A sparse table of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableRecord {
    /// As declared.
    pub spec: TableSpec,
    /// Its rows, in all parts.
    pub rows: u64,
}

/// A part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartRecord {
    /// Its file, beside the manifest.
    pub file: String,
    /// Its bytes.
    pub bytes: u64,
    /// The checksum of all of it.
    pub crc32c: u32,
    /// The checksum of its header and its table of blocks: with it, any stretch can be checked without reading the rest.
    pub index_crc32c: u32,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// What the file is.
    format: String,
    format_version: u32,
    /// The checkpoint's name.
    pub name: String,
    /// The job that wrote it.
    pub job: u64,
    /// The round that it is of; outside mode sync the least version of any chunk.
    pub round: u64,
    /// When it was complete, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The cluster's shape.
    pub shape: Shape,
    /// Its tensors.
    pub tensors: Vec<TensorRecord>,
    /// Its sparse tables.
    pub tables: Vec<TableRecord>,
    /// Its parts.
    pub parts: Vec<PartRecord>,
    /// What each of them has, so that a server opens only those that it needs; empty in manifests of release 0.1, which ignores it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contents: Vec<Contents>,
}

/// What a part has, as one word for each run of chunks, `KEY:FIRST+COUNT`, and for each table with rows, `table.KEY`: a manifest
/// may have a million of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Contents(String);

impl Contents {
    /// A part with these chunks, as the first of each run and their number, and rows of these tables.
    #[must_use]
    pub fn new(
        runs: impl IntoIterator<Item = (ChunkId, u32)>,
        tables: impl IntoIterator<Item = u32>,
    ) -> Self {
        let runs =
            runs.into_iter().map(|(first, count)| format!("{}:{}+{count}", first.key.0, first.chunk.0));
        let tables = tables.into_iter().map(|table| format!("{TABLE}{table}"));
        Self(runs.chain(tables).collect::<Vec<_>>().join(" "))
    }

    pub(crate) fn runs(&self) -> impl Iterator<Item = Result<(ChunkId, u32), String>> {
        let run = |word: &str| {
            let (key, rest) = word.split_once(':')?;
            let (first, count) = rest.split_once('+')?;
            let (first, count) = (first.parse::<u32>().ok()?, count.parse::<u32>().ok()?);
            first.checked_add(count)?;
            Some((ChunkId::new(key.parse().ok()?, first), count))
        };
        let words = self.0.split_ascii_whitespace().filter(|word| !word.starts_with(TABLE));
        words.map(move |word| run(word).ok_or_else(|| format!("a part's contents have the word {word:?}")))
    }

    /// May it have rows of this table?
    pub(crate) fn has_table(&self, table: u32) -> bool {
        let table = format!("{TABLE}{table}");
        self.0.split_ascii_whitespace().any(|word| word == table)
    }
}

impl Manifest {
    /// An empty one.
    #[must_use]
    pub fn new(name: &str, job: u64, round: u64, unix_ms: u64, shape: Shape) -> Self {
        Self {
            format: FORMAT.into(),
            format_version: VERSION,
            name: name.into(),
            job,
            round,
            unix_ms,
            shape,
            tensors: Vec::new(),
            tables: Vec::new(),
            parts: Vec::new(),
            contents: Vec::new(),
        }
    }

    /// Bytes of all parts.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).fold(0, u64::saturating_add)
    }

    /// As it is written.
    pub fn to_bytes(&self) -> Result<Vec<u8>, CheckpointError> {
        let plan = |error: serde_json::Error| CheckpointError::Plan(error.to_string());
        let text = serde_json::to_string_pretty(self).map_err(plan)?;
        let body = text.trim_end().strip_suffix('}').unwrap_or(&text).trim_end();
        let crc = crc32c::crc32c(body.as_bytes());
        Ok(format!("{body}{CRC_FIELD}{crc:08x}{CRC_END}").into_bytes())
    }

    /// Reads one; `file` is for errors.
    pub fn parse(bytes: &[u8], file: &str) -> Result<Self, CheckpointError> {
        let text =
            std::str::from_utf8(bytes).map_err(|_| CheckpointError::foreign(file, "it is not text"))?;
        if !text.contains(&format!("\"{FORMAT}\"")) {
            return Err(CheckpointError::foreign(file, format!("it does not say {FORMAT}")));
        }
        let cut = || CheckpointError::corrupt(file, "it does not end with its checksum");
        let (body, crc) =
            text.strip_suffix(CRC_END).and_then(|text| text.rsplit_once(CRC_FIELD)).ok_or_else(cut)?;
        let stated = u32::from_str_radix(crc, 16).map_err(|_| cut())?;
        if crc32c::crc32c(body.as_bytes()) != stated {
            return Err(CheckpointError::corrupt(file, "its checksum is another one"));
        }
        let manifest: Self = serde_json::from_str(&format!("{body}\n}}"))
            .map_err(|error| CheckpointError::foreign(file, error.to_string()))?;
        if (manifest.format.as_str(), manifest.format_version) != (FORMAT, VERSION) {
            let why = format!(
                "it is {} {}, and this release reads {FORMAT} {VERSION}",
                manifest.format, manifest.format_version
            );
            return Err(CheckpointError::foreign(file, why));
        }
        if let Some(part) = manifest.parts.iter().find(|part| !is_plain(&part.file)) {
            return Err(CheckpointError::foreign(
                file,
                format!("its part {:?} is no file's name", part.file),
            ));
        }
        if !manifest.contents.is_empty() && manifest.contents.len() != manifest.parts.len() {
            return Err(CheckpointError::foreign(file, "it has contents of more or fewer parts than it has"));
        }
        Ok(manifest)
    }
}

/// Is this the name of a file or checkpoint of ours, and no way out of the directory?
pub(crate) fn is_plain(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty() && name.len() <= 128 && !name.starts_with('.') && name.bytes().all(is_good)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proto_common::optimizer::{Adam, Optimizer};

    fn manifest() -> Manifest {
        let mut manifest = Manifest::new("round-000000120", 7, 120, 1, Shape::default());
        let adam = Optimizer::mean(Adam::default(), 0.1);
        let spec = TensorSpec::f32(u64::MAX, 5, adam);
        manifest.tensors.push(TensorRecord { spec, version: 120, newest: 120 });
        manifest.parts.push(PartRecord {
            file: "part-a.safetensors".into(),
            bytes: 9,
            crc32c: 1,
            index_crc32c: 2,
        });
        manifest
    }

    #[test]
    fn a_manifest_is_json_and_is_read_as_it_was_written() {
        let bytes = manifest().to_bytes().unwrap();
        assert_eq!(Manifest::parse(&bytes, "f").unwrap(), manifest());
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(json["round"], 120);
        assert!(json["crc32c"].is_string());
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_told() {
        let bytes = manifest().to_bytes().unwrap();
        for end in 0..bytes.len() {
            assert!(Manifest::parse(&bytes[..end], "f").is_err(), "{end}");
        }
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(Manifest::parse(&other, "f").is_err(), "{at}");
        }
    }

    #[test]
    fn other_formats_versions_and_paths_are_refused() {
        let mut newer = manifest();
        newer.format_version = 2;
        assert!(matches!(
            Manifest::parse(&newer.to_bytes().unwrap(), "f"),
            Err(CheckpointError::Foreign { .. })
        ));
        let mut outside = manifest();
        outside.parts[0].file = "../x".into();
        assert!(matches!(
            Manifest::parse(&outside.to_bytes().unwrap(), "f"),
            Err(CheckpointError::Foreign { .. })
        ));
        assert!(matches!(Manifest::parse(b"{}", "f"), Err(CheckpointError::Foreign { .. })));
    }

    proptest! {
        #[test]
        fn whatever_bytes_there_are_it_answers(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Manifest::parse(&bytes, "f");
        }
    }
}
