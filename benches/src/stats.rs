//! Medians, quantiles and spread. Pure arithmetic: it must not measure or print.

/// The quantile `q` (0 to 1) of values sorted in ascending order, linearly interpolated; `None` of nothing.
pub(crate) fn quantile_sorted(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = q.clamp(0.0, 1.0) * last as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64))
}

/// `values` in ascending order, whatever order they came in.
pub(crate) fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The median; `None` of nothing.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    quantile_sorted(&sorted(values), 0.5)
}

/// The interquartile range divided by the median; `None` of nothing or of a median of zero.
pub(crate) fn spread(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let values = sorted(values);
    let median = quantile_sorted(&values, 0.5).filter(|median| *median != 0.0)?;
    Some((quantile_sorted(&values, 0.75)? - quantile_sorted(&values, 0.25)?) / median)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_and_keep_to_the_ends() {
        let values = sorted([4.0, 1.0, 3.0, 2.0]);
        assert_eq!(quantile_sorted(&values, 0.0), Some(1.0));
        assert_eq!(quantile_sorted(&values, 0.5), Some(2.5));
        assert_eq!(quantile_sorted(&values, 1.0), Some(4.0));
        assert_eq!(quantile_sorted(&values, 7.0), Some(4.0));
        assert_eq!(quantile_sorted(&[], 0.5), None);
    }

    #[test]
    fn spread_is_the_interquartile_range_over_the_median() {
        assert_eq!(spread([1.0, 2.0, 3.0, 4.0, 5.0]), Some(2.0 / 3.0));
        assert_eq!(spread([2.0]), Some(0.0));
        assert_eq!(spread([0.0, 0.0]), None);
        assert_eq!(median([]), None);
    }
}
