//! LibSVM's sparse text: `class index:value index:value …`, indices ascending, absent ones 0, `#` a comment.
//!
//! Indices begin at 0 or 1. Unless told, the file is taken to begin at 0 when index 0 occurs anywhere in it,
//! and at 1 otherwise. Classes are whole numbers; a file whose classes are only -1 and +1 has classes 0 and 1.

use std::io::BufRead;
use std::path::Path;

use super::dataset::{Dataset, MAX_ROWS, MAX_VALUES, Shape, too_many_rows};
use super::lines::{Lines, class_error, number, row_error, shown};
use crate::error::TrainError;

/// Rows as they stand in the file; dense only once the base is known.
#[derive(Default)]
struct Sparse {
    /// Row r owns `entries[ends[r - 1]..ends[r]]`.
    entries: Vec<(u32, f32)>,
    ends: Vec<usize>,
    classes: Vec<i64>,
    lines: Vec<u64>,
}

/// Reads all rows; indices beyond `shape.features` are refused.
pub fn read(
    file: &Path,
    reader: impl BufRead,
    shape: Shape,
    base: Option<u32>,
) -> Result<Dataset, TrainError> {
    let mut lines = Lines::new(file, reader);
    let mut sparse = Sparse::default();
    while let Some((line, text)) = lines.next_line()? {
        let text = text.split('#').next().unwrap_or_default().trim();
        if !text.is_empty() {
            sparse.parse(file, line, text)?;
        }
        if sparse.ends.len() > MAX_ROWS.min(MAX_VALUES / shape.features) || sparse.entries.len() > MAX_VALUES
        {
            return Err(too_many_rows(file));
        }
    }
    let base = base.unwrap_or_else(|| u32::from(!sparse.entries.iter().any(|(index, _)| *index == 0)));
    sparse.dense(file, shape, base)
}

impl Sparse {
    fn parse(&mut self, file: &Path, line: u64, text: &str) -> Result<(), TrainError> {
        let mut fields = (1u64..).zip(text.split_ascii_whitespace());
        let class = fields.next().map_or("", |(_, class)| class);
        // Some writers give classes as floats: 3.0 is 3.
        let value = class.parse::<f64>().ok().filter(|v| v.fract() == 0.0 && v.abs() < 1e9);
        let Some(value) = value else {
            let cause = format!("the class `{}` is not a whole number", shown(class));
            return Err(row_error(file, line, 1, cause, "begin each line with its class"));
        };
        let mut previous = None;
        for (column, field) in fields {
            let (index, value) = field.split_once(':').unwrap_or((field, ""));
            let index: u32 = index.parse().map_err(|_| {
                let cause = format!("`{}` is not index:value", shown(field));
                row_error(file, line, column, cause, "write each feature as index:value (no qid)")
            })?;
            if previous.is_some_and(|p| index <= p) {
                let cause = format!("index {index} does not ascend");
                return Err(row_error(file, line, column, cause, "sort the row's indices, each once"));
            }
            previous = Some(index);
            self.entries.push((index, number(file, line, column, value)?));
        }
        self.ends.push(self.entries.len());
        self.classes.push(value as i64);
        self.lines.push(line);
        Ok(())
    }

    fn dense(&self, file: &Path, shape: Shape, base: u32) -> Result<Dataset, TrainError> {
        let signed = self.classes.iter().all(|c| matches!(c, -1 | 1)) && self.classes.contains(&-1);
        let mut data = Dataset::new(shape);
        let mut row = vec![0.0f32; shape.features];
        let mut start = 0;
        for ((&end, &class), &line) in self.ends.iter().zip(&self.classes).zip(&self.lines) {
            row.fill(0.0);
            for (column, &(index, value)) in (2u64..).zip(&self.entries[start..end]) {
                let place = index.checked_sub(base).and_then(|at| row.get_mut(at as usize));
                *place.ok_or_else(|| out_of_range(file, line, column, index, base, shape))? = value;
            }
            start = end;
            let class = if signed { (class + 1) / 2 } else { class };
            let label = u32::try_from(class).ok().filter(|c| (*c as usize) < shape.classes);
            let label = label.ok_or_else(|| class_error(file, line, 1, &class.to_string(), shape.classes))?;
            data.push(row.iter().copied(), label);
        }
        Ok(data)
    }
}

fn out_of_range(file: &Path, line: u64, column: u64, index: u32, base: u32, shape: Shape) -> TrainError {
    let last = shape.features as u64 + u64::from(base) - 1;
    let cause = format!("index {index} is not from {base} to {last}");
    let fix = "make the first number of --layers the number of features, or give --libsvm-base";
    row_error(file, line, column, cause, fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { features: 3, classes: 3 };

    fn rows(text: &str, base: Option<u32>) -> Result<Dataset, TrainError> {
        read(Path::new("d.svm"), text.as_bytes(), SHAPE, base)
    }

    fn error(text: &str) -> String {
        rows(text, None).unwrap_err().to_string()
    }

    #[test]
    fn the_base_is_detected_or_given() {
        assert_eq!(rows("1 1:5 3:7\n", None).unwrap().features(0), [5.0, 0.0, 7.0]);
        assert_eq!(rows("1 1:5\n2.0 0:4 # note\n", None).unwrap().features(0), [0.0, 5.0, 0.0]);
        assert_eq!(rows("1 1:5\n", Some(0)).unwrap().features(0), [0.0, 5.0, 0.0]);
        assert!(rows("1 0:5\n", Some(1)).is_err());
    }

    #[test]
    fn signed_classes_become_0_and_1_only_where_there_are_no_others() {
        let data = rows("-1 1:1\n+1 1:1\n", None).unwrap();
        assert_eq!((data.label(0), data.label(1)), (0, 1));
        assert_eq!(rows("1 1:1\n1 1:1\n", None).unwrap().label(0), 1);
        assert!(error("-1 1:1\n2 1:1\n").contains("d.svm:1, column 1: the class `-1`"));
    }

    #[test]
    fn bad_rows_name_line_and_column() {
        assert!(error("1 1:1\n1 1:1 4:1\n").contains("d.svm:2, column 3: index 4 is not from 1 to 3"));
        assert!(error("1 2:1 2:1\n").contains("does not ascend"));
        assert!(error("1 qid:3 2:1\n").contains("column 2: `qid:3` is not index:value"));
        assert!(error("1 2\n").contains("finite number"));
        assert!(error("x 1:1\n").contains("class"));
        assert!(error("1.5 1:1\n").contains("class"));
        assert!(error("3 1:1\n").contains("from 0 to 2"));
    }

    #[test]
    fn rows_without_features_and_comment_lines_are_fine() {
        let data = rows("# a comment\n2\n", None).unwrap();
        assert_eq!((data.len(), data.label(0), data.features(0)), (1, 2, &[0.0; 3][..]));
    }
}
