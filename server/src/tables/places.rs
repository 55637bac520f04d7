//! Where a request's ids and values lie, and where its rows are to go: in this process, or in the worker's memory, which is
//! read and written in place. Its worker may change it meanwhile: that makes other numbers, and nothing worse.

use fabric::View;
use zerocopy::{FromBytes, IntoBytes};

const ELEMENT_BYTES: usize = size_of::<f32>();

/// Values of a push, row by row. Their length was checked before: what lies beyond is read as zeros.
pub trait Values {
    /// Copies a row's values out.
    fn read(&self, row: usize, into: &mut [f32]);
}

impl Values for &[u8] {
    #[inline]
    fn read(&self, row: usize, into: &mut [f32]) {
        let bytes = into.len() * ELEMENT_BYTES;
        match self.get(row * bytes..(row + 1) * bytes) {
            Some(from) => into.as_mut_bytes().copy_from_slice(from),
            None => into.fill(0.0),
        }
    }
}

impl Values for View {
    #[inline]
    fn read(&self, row: usize, into: &mut [f32]) {
        let offset = (row * size_of_val(into)) as u64;
        if View::read(self, offset, into.as_mut_bytes()).is_err() {
            into.fill(0.0);
        }
    }
}

/// Where pulled rows go. Its length was checked before: what does not fit is left out.
pub trait Sink {
    /// The row at this place of the request.
    fn put(&mut self, at: usize, row: &[f32]);
}

/// In this process, with how many numbers a row has.
#[derive(Debug)]
pub struct RowsHere<'a>(pub &'a mut [f32], pub usize);

impl<'a> RowsHere<'a> {
    /// Over bytes, which are to lie where numbers may.
    pub(super) fn of_bytes(bytes: &'a mut [u8], width: usize) -> Self {
        Self(<[f32]>::mut_from_bytes(bytes).unwrap_or_default(), width)
    }
}

impl Sink for RowsHere<'_> {
    #[inline]
    fn put(&mut self, at: usize, row: &[f32]) {
        if let Some(to) = self.0.get_mut(at * self.1..(at + 1) * self.1) {
            to.copy_from_slice(row);
        }
    }
}

impl Sink for View {
    #[inline]
    fn put(&mut self, at: usize, row: &[f32]) {
        // Within what was checked.
        let _ = self.write((at * size_of_val(row)) as u64, row.as_bytes());
    }
}

/// A request's body.
#[derive(Debug)]
pub enum Asked<'a> {
    /// Copied, or read, into this process.
    Here(&'a [u8]),
    /// In its worker's memory.
    There(View),
}

impl Asked<'_> {
    /// Bytes of it.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Here(bytes) => bytes.len() as u64,
            Self::There(view) => view.len(),
        }
    }

    /// Copies the ids at its start out, before any of them is looked at. False where they are cut short.
    pub(super) fn ids(&self, count: usize, ids: &mut Vec<u64>) -> bool {
        let bytes = count.saturating_mul(size_of::<u64>());
        if bytes as u64 > self.len() {
            return false;
        }
        ids.resize(count, 0);
        match self {
            Self::Here(body) => ids.as_mut_bytes().copy_from_slice(&body[..bytes]),
            Self::There(view) if view.read(0, ids.as_mut_bytes()).is_err() => return false,
            Self::There(_) => {}
        }
        ids.iter_mut().for_each(|id| *id = u64::from_le(*id));
        true
    }
}
