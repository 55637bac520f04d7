//! What a part's entries are called, and what the names mean: `NAME` is all of a tensor's weights, `NAME[begin:end]` those
//! elements of it, `NAME#WHAT[begin:end]` something that is kept beside them.

use proto_common::ids::Key;
use std::collections::BTreeMap;

/// The marks of all chunks of a part.
pub(crate) const MARKS: &str = "gradwire#marks";
/// The checksums of all blocks of a part's data before them.
pub(crate) const BLOCKS: &str = "gradwire#blocks";
/// What tables' names in entries begin with.
const TABLE: &str = "table.";
/// Longest word of a [`What`].
pub(crate) const WORD_BYTES_MAX: usize = 16;

/// What an entry has of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum What {
    /// Published weights.
    Weights,
    /// The weights as exact as they are summed, of halves.
    Master,
    /// The arrays that the rule keeps, in its order.
    State(u8),
    /// Of tables: the rows' ids.
    Ids,
    /// Of tables: the rows' weights, and what the rule keeps of each, row by row.
    Rows,
    /// Of tables: how many pushes each row had.
    Pushes,
}

impl What {
    const ALL: [Self; 7] =
        [Self::Weights, Self::Master, Self::State(0), Self::State(1), Self::Ids, Self::Rows, Self::Pushes];

    fn word(self) -> &'static str {
        match self {
            Self::Weights => "",
            Self::Master => "master",
            Self::State(0) => "state0",
            Self::State(_) => "state1",
            Self::Ids => "ids",
            Self::Rows => "rows",
            Self::Pushes => "pushes",
        }
    }
}

/// A tensor's name in entries. Names that would be read as something else give way to the key.
pub(crate) fn base_of(key: Key, name: &str, is_taken: impl FnOnce(&str) -> bool) -> String {
    let is_ours = ["gradwire", "tensor.", TABLE].iter().any(|ours| name.starts_with(ours));
    let is_plain = !name.is_empty() && !name.contains(['#', '[', ']']) && name != "__metadata__";
    if is_plain && !is_ours && !is_taken(name) { name.to_owned() } else { format!("tensor.{key}") }
}

/// A table's name in entries.
pub(crate) fn base_of_table(key: u32) -> String {
    format!("{TABLE}{key}")
}

/// The name of an entry.
pub(crate) fn name_of(base: &str, what: What, range: Option<(u64, u64)>) -> String {
    let word = what.word();
    let mark = if word.is_empty() { "" } else { "#" };
    match range {
        Some((begin, end)) => format!("{base}{mark}{word}[{begin}:{end}]"),
        None => format!("{base}{mark}{word}"),
    }
}

/// What an entry's name says; `length` is its first dimension.
pub(crate) fn parse(
    name: &str,
    length: u64,
    keys: &BTreeMap<String, Key>,
) -> Option<(Key, What, (u64, u64))> {
    if let Some(key) = keys.get(name) {
        return Some((*key, What::Weights, (0, length)));
    }
    let (before, range) = name.strip_suffix(']')?.rsplit_once('[')?;
    let (begin, end) = range.split_once(':')?;
    let (begin, end) = (begin.parse::<u64>().ok()?, end.parse::<u64>().ok()?);
    let (base, word) = before.rsplit_once('#').unwrap_or((before, ""));
    let what = What::ALL.into_iter().find(|what| what.word() == word)?;
    (end.checked_sub(begin)? == length).then_some((*keys.get(base)?, what, (begin, end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_were_made() {
        let keys = BTreeMap::from([("w.1".to_owned(), Key(7))]);
        assert_eq!(parse("w.1", 5, &keys), Some((Key(7), What::Weights, (0, 5))));
        for what in What::ALL {
            let name = name_of("w.1", what, Some((8, 12)));
            assert!(name.len() <= 3 + 2 + WORD_BYTES_MAX + 4);
            assert_eq!(parse(&name, 4, &keys), Some((Key(7), what, (8, 12))), "{name}");
            assert_eq!(parse(&name, 5, &keys), None, "another length");
        }
        for name in ["w.2", "w.1[3:1]", "w.1#x[0:4]", "w.1[a:b]", "]", "[", "w.1[0:4"] {
            assert_eq!(parse(name, 4, &keys), None, "{name}");
        }
    }

    #[test]
    fn names_that_would_mislead_give_way_to_keys() {
        let free = |name: &str| base_of(Key(3), name, |_| false);
        assert_eq!(free("layer.1/weight"), "layer.1/weight");
        for name in ["", "a[0:5]", "a#b", "gradwire", "tensor.4", "table.4", "__metadata__"] {
            assert_eq!(free(name), "tensor.3", "{name}");
        }
        assert_eq!(base_of(Key(3), "a", |_| true), "tensor.3");
    }
}
