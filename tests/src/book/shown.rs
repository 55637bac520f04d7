//! What a page shows of a command's output, held against what the command printed: `…` stands for any characters
//! of a line, and a line of nothing else for any number of lines.

/// Stands for what differs from run to run.
const ANY: char = '…';

/// The first line of `shown` that `printed` has no match for; `None` where all fits.
#[must_use]
pub fn misfit(shown: &str, printed: &str) -> Option<String> {
    let shown: Vec<&str> = shown.trim_end().lines().map(str::trim_end).collect();
    let printed: Vec<&str> = printed.trim_end().lines().map(str::trim_end).collect();
    // Where lines of the page so far can end among those that were printed.
    let mut ends = vec![false; printed.len() + 1];
    ends[0] = true;
    for line in shown {
        let mut next = vec![false; printed.len() + 1];
        for (at, _) in ends.iter().enumerate().filter(|(_, end)| **end) {
            if line.trim() == "…" {
                next[at..].fill(true);
            } else if printed.get(at).is_some_and(|printed| fits(line, printed)) {
                next[at + 1] = true;
            }
        }
        if !next.contains(&true) {
            return Some(line.to_owned());
        }
        ends = next;
    }
    (!ends[printed.len()]).then(|| "(the end: more was printed than is shown)".to_owned())
}

/// Is `line` what `pattern` says, with anything in the place of each `…`?
fn fits(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split(ANY);
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, between)) = parts.split_last() else { return rest.is_empty() };
    for part in between {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_with_anything_in_a_gap() {
        assert!(fits("a … c", "a b c") && fits("…", "") && fits("a…a", "aba") && fits("abc", "abc"));
        assert!(!fits("a…a", "a") && !fits("abc", "abcd") && !fits("… c", "c d"));
    }

    #[test]
    fn gaps_of_lines_are_of_any_length() {
        assert_eq!(misfit("a\n…\nd\n", "a\nb\nc\nd\n"), None);
        assert_eq!(misfit("a\n…\nb\n", "a\nb\n\n"), None);
        assert_eq!(misfit("…\nb\n…\n", "a\nb\nb\nc\n"), None);
        assert_eq!(misfit("a\n", "a\nb\n").as_deref(), Some("(the end: more was printed than is shown)"));
        assert_eq!(misfit("a\nx\n", "a\nb\n").as_deref(), Some("x"));
        assert_eq!(misfit("", "a\n").as_deref(), Some("(the end: more was printed than is shown)"));
    }
}
