//! The header of a safetensors file: read with bounds, and written. The format is that of the `safetensors` project: eight
//! bytes of length, JSON, then the tensors' bytes without a gap. It must not know what the entries mean.

use crate::error::CheckpointError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Bytes of a header, as other readers bound it, too.
pub(crate) const HEADER_BYTES_MAX: u64 = 100 << 20;
/// Bytes before it.
pub(crate) const LENGTH_BYTES: u64 = 8;
/// Dimensions of an entry.
const DIMENSIONS_MAX: usize = 8;

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its elements' type, in the format's words.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<u64>,
    /// First byte, and the one behind the last, counted from the header's end.
    pub data_offsets: [u64; 2],
}

/// The header of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Words for people and programs.
    #[serde(rename = "__metadata__", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Tensors by name.
    #[serde(flatten)]
    pub entries: BTreeMap<String, Entry>,
}

/// Bytes of an element of a type of the format; `None` for those that are not known here.
pub(crate) fn element_bytes(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F64" | "I64" | "U64" => 8,
        "F32" | "I32" | "U32" => 4,
        "F16" | "BF16" | "I16" | "U16" => 2,
        "I8" | "U8" | "BOOL" => 1,
        _ => return None,
    })
}

impl Entry {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.data_offsets[1].saturating_sub(self.data_offsets[0])
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.shape.len() > DIMENSIONS_MAX {
            return Err("has too many dimensions");
        }
        let size = element_bytes(&self.dtype).ok_or("is of an unknown type")?;
        let bytes = self.shape.iter().try_fold(size, |bytes, length| bytes.checked_mul(*length));
        let [begin, end] = self.data_offsets;
        match (end.checked_sub(begin), bytes) {
            (Some(there), Some(needed)) if there == needed => Ok(()),
            _ => Err("does not have as many bytes as its shape needs"),
        }
    }
}

impl Header {
    /// Reads the length before a header, in a file of so many bytes.
    pub fn length(first: [u8; 8], file_bytes: u64, file: &str) -> Result<u64, CheckpointError> {
        let bytes = u64::from_le_bytes(first);
        if bytes > HEADER_BYTES_MAX || bytes.saturating_add(LENGTH_BYTES) > file_bytes {
            let why = format!("its first bytes say {bytes} bytes of header, and it has {file_bytes} in all");
            return Err(CheckpointError::corrupt(file, why));
        }
        Ok(bytes)
    }

    /// Reads a header, before so many bytes of data, which its entries are to cover without a gap.
    pub fn parse(json: &[u8], data_bytes: u64, file: &str) -> Result<Self, CheckpointError> {
        let header: Self = serde_json::from_slice(json)
            .map_err(|error| CheckpointError::corrupt(file, format!("its header cannot be read: {error}")))?;
        let mut places = Vec::with_capacity(header.entries.len());
        for (name, entry) in &header.entries {
            if let Err(why) = entry.check() {
                return Err(CheckpointError::corrupt(file, format!("its entry {name:?} {why}")));
            }
            places.push(entry.data_offsets);
        }
        places.sort_unstable();
        let end = places.iter().try_fold(0, |end, [begin, next]| (*begin == end).then_some(*next));
        if end != Some(data_bytes) {
            let why = format!("its entries do not cover its {data_bytes} bytes of data");
            return Err(CheckpointError::corrupt(file, why));
        }
        Ok(header)
    }

    /// The length and the header, filled up with spaces to so many bytes in all.
    pub(crate) fn to_bytes(&self, bytes: u64) -> Result<Vec<u8>, CheckpointError> {
        let plan = |why: String| CheckpointError::Plan(why);
        let mut json = serde_json::to_vec(self).map_err(|error| plan(error.to_string()))?;
        let room = bytes.saturating_sub(LENGTH_BYTES);
        if json.len() as u64 > room || room > HEADER_BYTES_MAX {
            return Err(plan(format!("a header of {} bytes where {room} were kept", json.len())));
        }
        json.resize(room as usize, b' ');
        let mut out = room.to_le_bytes().to_vec();
        out.append(&mut json);
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(dtype: &str, shape: &[u64], data_offsets: [u64; 2]) -> Entry {
        Entry { dtype: dtype.into(), shape: shape.to_vec(), data_offsets }
    }

    fn header(entries: &[(&str, Entry)]) -> Header {
        let entries = entries.iter().map(|(name, entry)| ((*name).to_owned(), entry.clone())).collect();
        Header { metadata: BTreeMap::from([("a".into(), "b".into())]), entries }
    }

    #[test]
    fn a_header_is_read_as_it_was_written_also_by_the_formats_own_reader() {
        let header = header(&[("w", entry("F32", &[2, 2], [0, 16])), ("m", entry("U8", &[3], [16, 19]))]);
        let mut file = header.to_bytes(512).unwrap();
        assert_eq!(file.len(), 512);
        assert_eq!(Header::length(file[..8].try_into().unwrap(), 531, "f").unwrap(), 504);
        assert_eq!(Header::parse(&file[8..], 19, "f").unwrap(), header);
        file.extend([7; 19]);
        let theirs = safetensors::SafeTensors::deserialize(&file).unwrap();
        assert_eq!(theirs.tensor("m").unwrap().data(), [7; 3]);
    }

    #[test]
    fn entries_cover_the_data_exactly() {
        let refused = |entries: &[(&str, Entry)], bytes| {
            let written = header(entries).to_bytes(512).unwrap();
            assert!(Header::parse(&written[8..], bytes, "f").is_err(), "{entries:?} {bytes}");
        };
        let eight = || entry("U8", &[8], [0, 8]);
        refused(&[("a", eight())], 9);
        refused(&[("a", eight())], 7);
        refused(&[("a", eight()), ("b", entry("U8", &[8], [4, 12]))], 12);
        refused(&[("a", eight()), ("b", entry("U8", &[1], [9, 10]))], 10);
        refused(&[("a", entry("F32", &[3], [0, 8]))], 8);
        refused(&[("a", entry("F32", &[u64::MAX, u64::MAX], [0, 8]))], 8);
        refused(&[("a", entry("U8", &[8], [8, 0]))], 8);
        refused(&[("a", entry("X9", &[8], [0, 8]))], 8);
        refused(&[("a", entry("U8", &[1; 9], [0, 1]))], 1);
    }

    #[test]
    fn lengths_have_bounds() {
        let length = |bytes: u64, file| Header::length(bytes.to_le_bytes(), file, "f").is_ok();
        assert!(length(92, 100) && !length(93, 100) && !length(u64::MAX, u64::MAX));
        assert!(length(HEADER_BYTES_MAX, 1 << 40) && !length(HEADER_BYTES_MAX + 1, 1 << 40));
    }

    proptest! {
        #[test]
        fn whatever_bytes_there_are_it_answers(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Header::parse(&bytes, 100, "f");
        }
    }
}
