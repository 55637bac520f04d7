//! Loading labelled rows by format, and scaling them. The formats live one a file beside this one. Must not know networks or
//! workers.

pub mod csv;
mod dataset;
pub mod idx;
pub mod libsvm;
mod lines;

pub use dataset::{Dataset, MAX_ROWS, MAX_VALUES, Shape};

use super::error::TrainError;
use dataset::{open, read_failed};
use std::io::Read;
use std::path::PathBuf;

/// How a data file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// By extension (.csv, .libsvm, .svm) and, for IDX, by the first bytes or --labels.
    Auto,
    /// Comma-separated numbers, one row a line, one column the class.
    Csv,
    /// MNIST's pair of binary files: --data the images, --labels the classes.
    Idx,
    /// Sparse text: `class index:value index:value …`.
    Libsvm,
}

/// Where rows come from and how to read them.
#[derive(Debug, Clone)]
pub struct Source {
    /// The data file.
    pub file: PathBuf,
    /// IDX: the file of labels.
    pub labels: Option<PathBuf>,
    /// How it is written.
    pub format: Format,
    /// CSV: line 1 is a header.
    pub csv_header: bool,
    /// CSV: number of the class column, from 1; the last where absent.
    pub label_column: Option<usize>,
    /// LibSVM: the first index, 0 or 1; detected where absent.
    pub libsvm_base: Option<u32>,
    /// Every feature is divided by this.
    pub scale: f32,
}

/// Reads all rows of `source`, each checked against `shape`, and scales them.
pub fn load(source: &Source, shape: Shape) -> Result<Dataset, TrainError> {
    let mut data = match detect(source)? {
        Format::Idx => {
            let labels = source.labels.as_deref().ok_or_else(|| {
                TrainError::setting("--labels", "IDX keeps classes in a second file", "pass --labels FILE")
            })?;
            idx::read(&source.file, labels, shape)?
        }
        Format::Libsvm => libsvm::read(&source.file, open(&source.file)?, shape, source.libsvm_base)?,
        Format::Csv | Format::Auto => {
            let options = csv::Options { header: source.csv_header, label_column: source.label_column };
            csv::read(&source.file, open(&source.file)?, shape, &options)?
        }
    };
    if data.is_empty() {
        return Err(TrainError::file(&source.file, "there are no rows", "give a file with at least one row"));
    }
    data.scale(source.scale);
    Ok(data)
}

fn detect(source: &Source) -> Result<Format, TrainError> {
    if source.format != Format::Auto {
        return Ok(source.format);
    }
    if source.labels.is_some() {
        return Ok(Format::Idx);
    }
    match source.file.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase).as_deref() {
        Some("csv") => return Ok(Format::Csv),
        Some("libsvm" | "svm" | "svmlight") => return Ok(Format::Libsvm),
        _ => {}
    }
    let mut start = Vec::new();
    open(&source.file)?.take(3).read_to_end(&mut start).map_err(|e| read_failed(&source.file, e))?;
    if start == idx::UNSIGNED_BYTES {
        return Ok(Format::Idx);
    }
    let cause = "the format is not clear from the file's name or its first bytes";
    Err(TrainError::file(&source.file, cause, "pass --format csv, idx or libsvm"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const SHAPE: Shape = Shape { features: 2, classes: 3 };

    fn source(file: &Path) -> Source {
        Source {
            file: file.to_owned(),
            labels: None,
            format: Format::Auto,
            csv_header: false,
            label_column: None,
            libsvm_base: None,
            scale: 2.0,
        }
    }

    fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    #[test]
    fn formats_are_detected_and_values_scaled() {
        let (_dir, csv) = file("a.csv", b"4,6,1\n");
        assert_eq!(load(&source(&csv), SHAPE).unwrap().features(0), [2.0, 3.0]);
        let (_dir, svm) = file("a.svm", b"1 1:4 2:6\n");
        assert_eq!(load(&source(&svm), SHAPE).unwrap().features(0), [2.0, 3.0]);
        let (_dir, unknown) = file("a", b"4,6,1\n");
        assert!(load(&source(&unknown), SHAPE).unwrap_err().to_string().contains("--format"));
        let (_dir, image) = file("a-idx", &[0, 0, 8, 3]);
        assert!(load(&source(&image), SHAPE).unwrap_err().to_string().contains("--labels"));
    }

    #[test]
    fn missing_and_empty_files_are_typed_errors() {
        let (_dir, empty) = file("a.csv", b"\n\n");
        assert!(load(&source(&empty), SHAPE).unwrap_err().to_string().contains("no rows"));
        let missing = load(&source(Path::new("/nowhere/x.csv")), SHAPE).unwrap_err();
        assert!(matches!(missing, TrainError::Open { .. }), "{missing}");
    }

    #[test]
    fn the_held_out_rule_takes_rows_0_5_10() {
        let mut data = Dataset::new(SHAPE);
        (0..12).for_each(|i| data.push([i as f32, 0.0], 0));
        let (train, test) = data.split(5);
        assert_eq!(test, [0, 5, 10]);
        assert_eq!(train, [1, 2, 3, 4, 6, 7, 8, 9, 11]);
    }
}
