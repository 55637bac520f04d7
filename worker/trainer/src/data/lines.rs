//! Bounded reading of text files line by line, and the number fields both text formats share.

use std::io::{BufRead, Read};
use std::path::Path;

use super::dataset::read_failed;
use crate::error::TrainError;

/// Longest line in bytes: room for the widest layer at 16 characters a value.
pub(super) const MAX_LINE_BYTES: u64 = 16 << 20;

/// Lines with their numbers; blank lines are skipped but counted.
pub(super) struct Lines<'a, R> {
    file: &'a Path,
    reader: R,
    buffer: Vec<u8>,
    number: u64,
}

impl<'a, R: BufRead> Lines<'a, R> {
    pub(super) fn new(file: &'a Path, reader: R) -> Self {
        Self { file, reader, buffer: Vec::new(), number: 0 }
    }

    /// The next line that is not blank, trimmed, with its number from 1.
    pub(super) fn next_line(&mut self) -> Result<Option<(u64, &str)>, TrainError> {
        loop {
            self.buffer.clear();
            let mut bounded = self.reader.by_ref().take(MAX_LINE_BYTES + 1);
            let bytes = bounded.read_until(b'\n', &mut self.buffer).map_err(|e| read_failed(self.file, e))?;
            if bytes == 0 {
                return Ok(None);
            }
            self.number += 1;
            if bytes as u64 > MAX_LINE_BYTES {
                let cause = format!("the line is longer than {MAX_LINE_BYTES} bytes");
                return Err(row_error(self.file, self.number, 1, cause, "write one row a line"));
            }
            if !self.buffer.trim_ascii().is_empty() {
                break;
            }
        }
        match std::str::from_utf8(&self.buffer) {
            Ok(line) => Ok(Some((self.number, line.trim()))),
            Err(e) => {
                let cause = format!("the line is not text ({e})");
                Err(row_error(self.file, self.number, 1, cause, "check --format, and decompress the file"))
            }
        }
    }
}

/// One finite number.
pub(super) fn number(file: &Path, line: u64, column: u64, text: &str) -> Result<f32, TrainError> {
    match text.trim().parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => {
            let cause = format!("`{}` is not a finite number", shown(text));
            let mut fix = "correct or remove this row".to_owned();
            if line == 1 {
                fix.push_str(" (where line 1 of a CSV file names the columns, pass --csv-header)");
            }
            Err(row_error(file, line, column, cause, &fix))
        }
    }
}

/// At most 40 characters of a bad field: errors stay readable whatever the file holds.
pub(super) fn shown(text: &str) -> String {
    let mut short: String = text.trim().chars().take(40).flat_map(char::escape_debug).collect();
    if text.trim().chars().nth(40).is_some() {
        short.push('…');
    }
    short
}

pub(super) fn row_error(
    file: &Path,
    line: u64,
    column: u64,
    cause: impl Into<String>,
    fix: &str,
) -> TrainError {
    TrainError::Row { file: file.to_owned(), line, column, cause: cause.into(), fix: fix.to_owned() }
}

/// A label that the network has no class for.
pub(super) fn class_error(file: &Path, line: u64, column: u64, text: &str, classes: usize) -> TrainError {
    let cause = format!("the class `{}` is not a whole number from 0 to {}", shown(text), classes - 1);
    let fix =
        "correct this row, name the class column, or give --layers as many outputs as there are classes";
    row_error(file, line, column, cause, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_lines_are_skipped_but_counted_and_carriage_returns_trimmed() {
        let mut lines = Lines::new(Path::new("f"), &b"a\r\n\n \nb"[..]);
        assert_eq!(lines.next_line().unwrap(), Some((1, "a")));
        assert_eq!(lines.next_line().unwrap(), Some((4, "b")));
        assert_eq!(lines.next_line().unwrap(), None);
    }

    #[test]
    fn the_line_bound_holds_on_both_sides() {
        let fits = vec![b'x'; MAX_LINE_BYTES as usize];
        assert!(Lines::new(Path::new("f"), &fits[..]).next_line().is_ok());
        let long = vec![b'x'; MAX_LINE_BYTES as usize + 1];
        assert!(
            Lines::new(Path::new("f"), &long[..]).next_line().unwrap_err().to_string().contains("longer")
        );
        assert!(Lines::new(Path::new("f"), &[0xff, 0xfe][..]).next_line().is_err());
    }

    #[test]
    fn long_fields_are_shortened_in_errors() {
        let error = number(Path::new("f"), 2, 3, &"y".repeat(1000)).unwrap_err().to_string();
        assert!(error.len() < 200 && error.starts_with("f:2, column 3: "), "{error}");
        assert!(number(Path::new("f"), 1, 1, "inf").is_err());
        assert_eq!(number(Path::new("f"), 1, 1, " -2.5 ").unwrap(), -2.5);
    }
}
