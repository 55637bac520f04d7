//! Comma-separated rows: finite numbers, one column of them the class. No quoting, blank lines skipped.

use std::io::BufRead;
use std::path::Path;

use crate::error::TrainError;
use super::lines::{Lines, class_error, number, row_error};
use super::{Dataset, Shape, too_many_rows};

/// How this CSV file is laid out.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Line 1 names the columns and is skipped.
    pub header: bool,
    /// Number of the class column, from 1; the last where absent.
    pub label_column: Option<usize>,
}

/// Reads all rows; each must have `shape.features` numbers and a class.
pub fn read(
    file: &Path,
    reader: impl BufRead,
    shape: Shape,
    options: &Options,
) -> Result<Dataset, TrainError> {
    let columns = shape.features + 1;
    let label_at = options.label_column.unwrap_or(columns);
    if !(1..=columns).contains(&label_at) {
        let cause = format!("there is no column {label_at} in rows of {columns}");
        return Err(TrainError::setting("--label-column", cause, format!("give 1 to {columns}")));
    }
    let mut lines = Lines::new(file, reader);
    if options.header {
        lines.next_line()?;
    }
    let mut data = Dataset::new(shape);
    let mut row = Vec::with_capacity(shape.features);
    while let Some((line, text)) = lines.next_line()? {
        if !data.has_room() {
            return Err(too_many_rows(file));
        }
        row.clear();
        let label = parse(file, line, text, label_at, shape, &mut row)?;
        data.push(row.iter().copied(), label);
    }
    Ok(data)
}

/// Fills `row` with the features of one line and returns its class.
fn parse(
    file: &Path,
    line: u64,
    text: &str,
    label_at: usize,
    shape: Shape,
    row: &mut Vec<f32>,
) -> Result<u32, TrainError> {
    let found = text.split(',').count();
    if found != shape.features + 1 {
        let cause = format!(
            "{found} columns, but {} features and a class make {}",
            shape.features,
            shape.features + 1
        );
        let fix = "correct this row, or make the first number of --layers the number of features";
        return Err(row_error(file, line, found.min(shape.features + 1) as u64, cause, fix));
    }
    let mut label = 0;
    for (column, field) in (1..).zip(text.split(',')) {
        if column == label_at {
            let class = field.trim().parse::<u32>().ok().filter(|c| (*c as usize) < shape.classes);
            label = class.ok_or_else(|| class_error(file, line, column as u64, field, shape.classes))?;
        } else {
            row.push(number(file, line, column as u64, field)?);
        }
    }
    Ok(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { features: 3, classes: 2 };

    fn rows(text: &str, options: &Options) -> Result<Dataset, TrainError> {
        read(Path::new("d.csv"), text.as_bytes(), SHAPE, options)
    }

    fn error(text: &str) -> String {
        rows(text, &Options::default()).unwrap_err().to_string()
    }

    #[test]
    fn good_rows_with_header_and_label_column() {
        let plain = rows("1,2,3,0\n4,5,6.5,1\n", &Options::default()).unwrap();
        assert_eq!((plain.len(), plain.label(1)), (2, 1));
        assert_eq!(plain.features(1), [4.0, 5.0, 6.5]);
        let options = Options { header: true, label_column: Some(1) };
        let first = rows("class,a,b,c\r\n1, 2, 3, 4\r\n", &options).unwrap();
        assert_eq!((first.label(0), first.features(0)), (1, &[2.0, 3.0, 4.0][..]));
    }

    #[test]
    fn bad_rows_name_line_column_cause_and_fix() {
        let text = error("1,2,3,0\n1,oops,3,0\n");
        assert!(
            text.contains("d.csv:2, column 2") && text.contains("oops") && text.contains("fix:"),
            "{text}"
        );
        assert!(error("1,2,3,0\n1,2,0\n").contains("d.csv:2, column 3: 3 columns"));
        assert!(error("1,2,3,4,0\n").contains("5 columns"));
        assert!(error("1,2,3,2\n").contains("column 4: the class `2` is not a whole number from 0 to 1"));
        assert!(error("1,2,3,-1\n").contains("class"));
        assert!(error("1,2,3,0.5\n").contains("class"));
        assert!(error("1,nan,3,0\n").contains("finite"));
        assert!(error("a,b,c,d\n").contains("--csv-header"));
    }

    #[test]
    fn a_label_column_out_of_range_is_refused() {
        for column in [0, 5] {
            let options = Options { header: false, label_column: Some(column) };
            assert!(matches!(rows("1,2,3,0\n", &options), Err(TrainError::Setting { .. })));
        }
    }
}
