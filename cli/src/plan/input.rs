//! What `gradwire plan` reads: tensors with their shapes, traces, and numbers of bytes. Errors name line and fix.

use proto_common::ids::Key;
use proto_common::plan::{Dim, Subject, Trace};
use std::collections::HashMap;

/// Bytes of an element: f32 is what servers hold.
const ELEMENT_BYTES: u64 = 4;

/// One line of the list.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) shape: String,
    pub(super) subject: Subject,
}

/// The list of tensors; keys are line numbers of a kind.
pub(super) fn tensors(text: &str) -> Result<Vec<Listed>, String> {
    let mut listed: Vec<Listed> = Vec::new();
    let mut seen = HashMap::new();
    for (number, words) in lines(text) {
        let [name, shape] = words[..] else {
            return Err(format!("line {number}: write a name and a shape, such as fc6.weight 4096x25088"));
        };
        if let Some(first) = seen.insert(name, number) {
            return Err(format!("line {number}: {name} is already on line {first}; give it another name"));
        }
        let dims = dims(shape).map_err(|error| format!("line {number}: {error}"))?;
        if !is_countable(&dims) {
            return Err(format!(
                "line {number}: {shape} has more bytes than can be counted; correct the shape"
            ));
        }
        let key = Key(listed.len() as u64);
        // The list names no rules; that of a tensor that stays whole is not the usual one.
        let (element_bytes, coded, whole) = (ELEMENT_BYTES, false, false);
        let subject = Subject { key, dims, element_bytes, coded, whole, trace: None };
        listed.push(Listed { name: name.to_owned(), shape: shape.to_owned(), subject });
    }
    if listed.is_empty() { Err("the list contains no tensors".into()) } else { Ok(listed) }
}

/// Lines with something on them, as words, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let numbered = text.lines().enumerate().map(|(at, line)| (at + 1, words(line)));
    numbered.filter(|(_, words)| !words.is_empty())
}

/// What stands before a #.
fn words(line: &str) -> Vec<&str> {
    line.split('#').next().unwrap_or_default().split_whitespace().collect()
}

fn dims(shape: &str) -> Result<Vec<Dim>, String> {
    let dim = |word: &str| match word {
        "?" => Ok(Dim::Dynamic { max: None }),
        _ => match word.strip_prefix("?<=") {
            Some(max) => length(max).map(|max| Dim::Dynamic { max: Some(max) }),
            None => length(word).map(Dim::Fixed),
        },
    };
    shape.split('x').map(dim).collect()
}

/// Do the known lengths come to a number of bytes at all?
fn is_countable(dims: &[Dim]) -> bool {
    let known = dims.iter().filter_map(|dim| match dim {
        Dim::Fixed(length) | Dim::Dynamic { max: Some(length) } => Some(*length),
        Dim::Dynamic { max: None } => None,
    });
    known.into_iter().try_fold(ELEMENT_BYTES, u64::checked_mul).is_some()
}

fn length(word: &str) -> Result<u64, String> {
    let length = word.parse().ok().filter(|length| *length > 0);
    length.ok_or_else(|| {
        format!("invalid dimension {word:?}: write a length of at least 1, ? or ?<=LENGTH, separated by x")
    })
}

/// Gives listed tensors what the first iteration has shown of them.
pub(super) fn add_traces(listed: &mut [Listed], text: &str) -> Result<(), String> {
    for (number, words) in lines(text) {
        let usage = || {
            format!(
                "line {number}: write a name, contributions, least and most bytes, such as fc6.weight 1 64 64, and `single` where one worker only contributes"
            )
        };
        let (name, rest) = words.split_first().ok_or_else(usage)?;
        let (numbers, single_writer) = match rest {
            [numbers @ .., "single"] => (numbers, true),
            numbers => (numbers, false),
        };
        let numbers: Vec<u64> = numbers.iter().map_while(|word| word.parse().ok()).collect();
        let [contributions, bytes_min, bytes_max] = numbers[..] else { return Err(usage()) };
        if bytes_min > bytes_max {
            return Err(format!(
                "line {number}: {bytes_min} bytes at least are more than {bytes_max} at most; write the least first"
            ));
        }
        let found = listed.iter_mut().find(|listed| listed.name == *name);
        let found = found.ok_or_else(|| format!("line {number}: no tensor is called {name}"))?;
        found.subject.trace = Some(Trace { contributions, bytes_min, bytes_max, single_writer });
    }
    Ok(())
}

/// A number of bytes, with or without a unit.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u32); 8] =
        [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40), ("K", 10), ("M", 20), ("G", 30), ("T", 40)];
    let unit = UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    let number: Option<u64> = number.trim().parse().ok();
    number
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| "write a number of bytes, such as 1048576, 512MiB or 4G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_with_fixed_and_changing_lengths() {
        let listed =
            tensors("a 4096x25088 # weights\n\n# nothing\nb ?<=1000x64\nc ?\n").expect("a good list");
        let dims: Vec<_> = listed.iter().map(|listed| listed.subject.dims.clone()).collect();
        assert_eq!(dims[0], [Dim::Fixed(4096), Dim::Fixed(25088)]);
        assert_eq!(dims[1], [Dim::Dynamic { max: Some(1000) }, Dim::Fixed(64)]);
        assert_eq!(dims[2], [Dim::Dynamic { max: None }]);
        assert_eq!(listed[1].subject.bytes_max(), Some(256_000));
        assert_eq!((&listed[0].name[..], &listed[0].shape[..]), ("a", "4096x25088"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, part) in [
            ("", "no tensors"),
            ("a", "line 1: write a name and a shape"),
            ("a 4 5", "line 1: write a name and a shape"),
            ("a 4\na 5", "line 2: a is already on line 1"),
            ("a 4\nb 4x0", "line 2: invalid dimension \"0\""),
            ("a 4x", "invalid dimension \"\""),
            ("a ?<=x4", "invalid dimension \"\""),
            ("a -1", "invalid dimension \"-1\""),
            ("a 1\nb 4294967296x4294967296", "line 2: 4294967296x4294967296 has more bytes"),
            ("a 4611686018427387904", "line 1: 4611686018427387904 has more bytes"),
            ("a ?x?<=4294967296x4294967296", "line 1: ?x?<=4294967296x4294967296 has more bytes"),
        ] {
            let error = tensors(text).expect_err(text);
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_most_bytes_that_can_be_counted_are_taken() {
        let listed = tensors("a 4611686018427387903").expect("a good list");
        assert_eq!(listed[0].subject.bytes_max(), Some(u64::MAX - 3));
    }

    #[test]
    fn traces_belong_to_listed_tensors() {
        let mut listed = tensors("a 4\nb 5").expect("a good list");
        add_traces(&mut listed, "b 3 8 20 single").expect("a good trace");
        let trace = Trace { contributions: 3, bytes_min: 8, bytes_max: 20, single_writer: true };
        assert_eq!((listed[0].subject.trace, listed[1].subject.trace), (None, Some(trace)));
        add_traces(&mut listed, "a 1 8 8").expect("one length");
        for (text, part) in [
            ("c 1 2 3", "no tensor is called c"),
            ("a 1 2", "line 1: write"),
            ("a 1 2 x", "line 1: write"),
            ("a 1 9 8", "line 1: 9 bytes at least are more than 8 at most"),
        ] {
            let error = add_traces(&mut listed, text).expect_err(text);
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }

    #[test]
    fn bytes_with_and_without_a_unit() {
        for (text, expected) in
            [("0", 0), ("12", 12), ("4K", 4096), ("2MiB", 2 << 20), ("1 GiB", 1 << 30), ("1T", 1 << 40)]
        {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "x", "-1", "1.5G", "99999999999T", "1KB"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
