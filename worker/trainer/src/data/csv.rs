//! Comma-separated rows: finite numbers, one column of them the class. Blank lines are skipped. `csv-core`, the parser of the
//! crate `csv`, splits each line; lines come one by one, so that their bound and their numbers in errors are exact.

use std::io::BufRead;
use std::path::Path;

use super::dataset::{Dataset, Shape, too_many_rows};
use super::lines::{Lines, class_error, number, row_error};
use crate::error::TrainError;

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
    let mut fields = Fields::new(columns);
    let mut row = Vec::with_capacity(shape.features);
    while let Some((line, text)) = lines.next_line()? {
        if !data.has_room() {
            return Err(too_many_rows(file));
        }
        row.clear();
        fields.split(text);
        let label = parse(file, line, &fields, label_at, shape, &mut row)?;
        data.push(row.iter().copied(), label);
    }
    Ok(data)
}

/// The fields of one line, without quotes.
struct Fields {
    parser: csv_core::Reader,
    text: Vec<u8>,
    /// Where each field ends in `text`: the first ones only, if a line has too many.
    ends: Vec<usize>,
    found: usize,
}

impl Fields {
    /// For lines that have `columns` fields.
    fn new(columns: usize) -> Self {
        Self { parser: csv_core::Reader::new(), text: Vec::new(), ends: vec![0; columns], found: 0 }
    }

    fn split(&mut self, line: &str) {
        self.parser.reset();
        self.found = 0;
        if self.text.len() < line.len() {
            self.text.resize(line.len(), 0);
        }
        let (mut input, mut written, mut surplus) = (line.as_bytes(), 0, [0; 64]);
        loop {
            let ends = match self.ends.get_mut(self.found..) {
                Some(ends) if !ends.is_empty() => ends,
                _ => &mut surplus[..],
            };
            let output = &mut self.text[written..];
            let (result, bytes_read, bytes_written, ended) = self.parser.read_record(input, output, ends);
            // An empty input is the end of the line.
            input = &input[bytes_read..];
            written += bytes_written;
            self.found += ended;
            if matches!(result, csv_core::ReadRecordResult::Record | csv_core::ReadRecordResult::End) {
                return;
            }
        }
    }

    /// The fields with their columns, from 1.
    fn iter(&self) -> impl Iterator<Item = (usize, &str)> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        // Valid text that is cut at commas and quotes is valid text.
        let field =
            |(start, end): (usize, &usize)| std::str::from_utf8(&self.text[start..*end]).unwrap_or_default();
        (1..).zip(starts.zip(&self.ends).map(field)).take(self.found)
    }
}

/// Fills `row` with the features of one line and returns its class.
fn parse(
    file: &Path,
    line: u64,
    fields: &Fields,
    label_at: usize,
    shape: Shape,
    row: &mut Vec<f32>,
) -> Result<u32, TrainError> {
    let found = fields.found;
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
    for (column, field) in fields.iter() {
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
    fn quotes_are_taken_off_and_an_open_one_ends_with_its_line() {
        let quoted = rows("\"1\",2,\"3\",\"0\"\n4,5,6,1\n", &Options::default()).unwrap();
        assert_eq!((quoted.len(), quoted.features(0), quoted.label(1)), (2, &[1.0, 2.0, 3.0][..], 1));
        assert!(error("1,2,3,0\n\"1,2,3,0\n4,5,6,1\n").contains("d.csv:2, column 1: 1 columns"));
        assert!(error("\"1,2\",2,3,0\n").contains("column 1: `1,2` is not a finite number"));
        assert!(error("1,\"\",3,0\n").contains("column 2"));
    }

    #[test]
    fn far_too_many_columns_are_counted_and_the_next_line_is_whole() {
        let wide = format!("1,2,3{}\n", ",0".repeat(1000));
        assert!(error(&wide).contains("d.csv:1, column 4: 1003 columns"), "{}", error(&wide));
        let mut fields = Fields::new(4);
        fields.split(wide.trim());
        fields.split("5,6,7,1");
        assert_eq!(fields.iter().collect::<Vec<_>>(), [(1, "5"), (2, "6"), (3, "7"), (4, "1")]);
        fields.split(",");
        assert_eq!(fields.iter().collect::<Vec<_>>(), [(1, ""), (2, "")]);
    }

    #[test]
    fn a_label_column_out_of_range_is_refused() {
        for column in [0, 5] {
            let options = Options { header: false, label_column: Some(column) };
            assert!(matches!(rows("1,2,3,0\n", &options), Err(TrainError::Setting { .. })));
        }
    }
}
