//! Labelled rows in memory, with their bounds, and the held-out rule. It must not know a format.

use crate::error::TrainError;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// Most feature values a data set may hold in memory: 2 GiB of f32.
pub const MAX_VALUES: usize = 1 << 29;

/// Most rows; row numbers are u32.
pub const MAX_ROWS: usize = 1 << 30;

/// What the network takes: rows that do not fit are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Features of a row.
    pub features: usize,
    /// Classes; labels are 0 to `classes - 1`.
    pub classes: usize,
}

/// Dense labelled rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    shape: Shape,
    values: Vec<f32>,
    labels: Vec<u32>,
}

impl Dataset {
    /// An empty set for rows of `shape`.
    pub fn new(shape: Shape) -> Self {
        Self { shape, values: Vec::new(), labels: Vec::new() }
    }

    /// What each row looks like.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Features of row `row`.
    pub fn features(&self, row: u32) -> &[f32] {
        let start = row as usize * self.shape.features;
        &self.values[start..start + self.shape.features]
    }

    /// Class of row `row`, below `shape().classes`.
    pub fn label(&self, row: u32) -> u32 {
        self.labels[row as usize]
    }

    /// Whether one more row stays within the bounds.
    pub(super) fn has_room(&self) -> bool {
        self.len() < MAX_ROWS && self.values.len() + self.shape.features <= MAX_VALUES
    }

    /// Adds a row; the readers have checked its length and class.
    pub(super) fn push(&mut self, features: impl IntoIterator<Item = f32>, label: u32) {
        self.values.extend(features);
        self.labels.push(label);
        debug_assert_eq!(self.values.len(), self.labels.len() * self.shape.features);
    }

    /// Divides every feature by this.
    pub(super) fn scale(&mut self, by: f32) {
        self.values.iter_mut().for_each(|value| *value /= by);
    }

    /// The held-out rule: rows 0, `test_every`, 2 `test_every`, … are for testing, the others for training.
    pub fn split(&self, test_every: u32) -> (Vec<u32>, Vec<u32>) {
        // At most MAX_ROWS rows: numbers fit u32.
        (0..self.len() as u32).partition(|row| !row.is_multiple_of(test_every.max(1)))
    }
}

pub(super) fn open(file: &Path) -> Result<BufReader<File>, TrainError> {
    let opened = File::open(file).map_err(|source| TrainError::Open { file: file.to_owned(), source })?;
    Ok(BufReader::with_capacity(1 << 16, opened))
}

pub(super) fn read_failed(file: &Path, source: std::io::Error) -> TrainError {
    TrainError::Read { file: file.to_owned(), source }
}

pub(super) fn too_many_rows(file: &Path) -> TrainError {
    let cause = format!("more than {MAX_ROWS} rows or {MAX_VALUES} feature values");
    TrainError::file(file, cause, "train on a part of the file")
}
