//! Spans that overlap on rows of their own: a viewer shows only spans on one row that lie within one another. It must not know
//! what they are.

/// Rows of one kind beside each other: what does not fit is shown otherwise.
pub(super) const ROWS_MAX: usize = 64;

/// Rows of one kind on one thread, by when each is free again.
#[derive(Debug, Default)]
pub(super) struct Rows(Vec<i128>);

impl Rows {
    /// The first row that is free then; none where all are taken. Spans come by their beginning.
    pub(super) fn place(&mut self, start_ns: i128, end_ns: i128) -> Option<usize> {
        if let Some(row) = self.0.iter().position(|free_ns| *free_ns <= start_ns) {
            self.0[row] = end_ns;
            return Some(row);
        }
        if self.0.len() == ROWS_MAX {
            return None;
        }
        self.0.push(end_ns);
        Some(self.0.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_lies_on_different_rows() {
        let mut rows = Rows::default();
        let placed = [(0, 10), (5, 8), (9, 20), (10, 11), (12, 13)].map(|(from, to)| rows.place(from, to));
        assert_eq!(placed, [Some(0), Some(1), Some(1), Some(0), Some(0)]);
        let mut rows = Rows::default();
        assert!((0..ROWS_MAX).all(|row| rows.place(0, 9) == Some(row)));
        assert_eq!((rows.place(8, 9), rows.place(9, 10)), (None, Some(0)), "both sides of the bound");
    }
}
