//! Parses node lists of Slurm, such as `rack[1-3,7]n[01-02],login`. Must not ask Slurm.

use proto_common::limits::WORKERS_MAX;
use thiserror::Error;

/// Largest number of names in a list: more than a cluster can have members.
const NAMES_MAX: usize = 4 * WORKERS_MAX as usize;

/// An invalid list.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("invalid node list {list:?}: {reason}; the form is node[1-3,7]")]
pub(super) struct NodeListError {
    list: String,
    reason: &'static str,
}

/// The names, in the list's order.
pub(super) fn expand(list: &str) -> Result<Vec<String>, NodeListError> {
    let wrong = |reason| NodeListError { list: list.to_owned(), reason };
    let mut names = Vec::new();
    for part in split(list).map_err(wrong)? {
        names.extend(expand_part(part).map_err(wrong)?);
        if names.len() > NAMES_MAX {
            return Err(wrong("it names too many nodes"));
        }
    }
    if names.is_empty() { Err(wrong("it is empty")) } else { Ok(names) }
}

/// Splits at commas outside brackets.
fn split(list: &str) -> Result<Vec<&str>, &'static str> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if inside => return Err("brackets are nested"),
            b']' if !inside => return Err("a closing bracket has no opening bracket"),
            b'[' => inside = true,
            b']' => inside = false,
            b',' if !inside => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err("a bracket is not closed");
    }
    parts.push(&list[start..]);
    Ok(parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect())
}

/// One name with any number of brackets; the first varies slowest.
fn expand_part(part: &str) -> Result<Vec<String>, &'static str> {
    let mut names = vec![String::new()];
    let mut rest = part;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, behind) = after.split_once(']').ok_or("a bracket is not closed")?;
        let numbers = numbers(ranges)?;
        if names.len().saturating_mul(numbers.len()) > NAMES_MAX {
            return Err("it names too many nodes");
        }
        names = names
            .iter()
            .flat_map(|name| numbers.iter().map(move |number| format!("{name}{before}{number}")))
            .collect();
        rest = behind;
    }
    names.iter_mut().for_each(|name| name.push_str(rest));
    Ok(names)
}

/// `1-3,07`: numbers keep the width of the range's beginning.
fn numbers(ranges: &str) -> Result<Vec<String>, &'static str> {
    const WRONG: &str = "brackets may contain numbers and ranges only";
    let is_number =
        |text: &str| !text.is_empty() && text.len() <= 9 && text.bytes().all(|byte| byte.is_ascii_digit());
    let mut all = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if !is_number(first) || !is_number(last) {
            return Err(WRONG);
        }
        let (from, to): (u32, u32) = (first.parse().map_err(|_| WRONG)?, last.parse().map_err(|_| WRONG)?);
        if to < from {
            return Err("the end of a range is smaller than its beginning");
        }
        if (to - from) as usize >= NAMES_MAX {
            return Err("it names too many nodes");
        }
        all.extend((from..=to).map(|number| format!("{number:0width$}", width = first.len())));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> String {
        expand(list).unwrap().join(" ")
    }

    #[test]
    fn every_form_of_a_list() {
        assert_eq!(names("n1"), "n1");
        assert_eq!(names("n1,m2"), "n1 m2");
        assert_eq!(names("n[1-3,7]"), "n1 n2 n3 n7");
        assert_eq!(names("n[08-11]"), "n08 n09 n10 n11");
        assert_eq!(names("r[1-2]n[1-2]x,login"), "r1n1x r1n2x r2n1x r2n2x login");
        assert_eq!(names("a-b[1],c-d"), "a-b1 c-d");
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for (list, reason) in [
            ("", "empty"),
            ("n[1", "not closed"),
            ("n1]", "no opening bracket"),
            ("n[[1]]", "nested"),
            ("n[a-b]", "numbers"),
            ("n[]", "numbers"),
            ("n[-1]", "numbers"),
            ("n[3-1]", "smaller than its beginning"),
            ("n[0-999999999]", "too many"),
            ("n[1-999]m[1-999]", "too many"),
            ("n[9999999999]", "numbers"),
        ] {
            let error = expand(list).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("node[1-3,7]"), "{list}: {error}");
        }
    }
}
