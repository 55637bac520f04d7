//! The baseline's reduction kernels: f32 in wire order (little-endian, no alignment), summed in f32.
//!
//! Written as plain loops over four-byte groups, which the compiler vectorises. The optimizer is fused with
//! the last contribution, as in Gradwire's server, so that the baseline pays no pass that Gradwire does not.
//! No I/O, no allocation; lengths are checked by the caller ([`crate::grpc`]'s store).

/// Bytes of one element.
pub(crate) const ELEMENT_BYTES: usize = 4;

/// Starts a sum: `sum = gradient`.
pub(crate) fn reduce_set(sum: &mut [f32], gradient: &[u8]) {
    for (sum, gradient) in sum.iter_mut().zip(gradient.as_chunks::<ELEMENT_BYTES>().0) {
        *sum = f32::from_le_bytes(*gradient);
    }
}

/// Adds a contribution: `sum += gradient`.
pub(crate) fn reduce_add(sum: &mut [f32], gradient: &[u8]) {
    for (sum, gradient) in sum.iter_mut().zip(gradient.as_chunks::<ELEMENT_BYTES>().0) {
        *sum += f32::from_le_bytes(*gradient);
    }
}

/// The last of several contributions with plain SGD, out of place: `new = old - rate * (sum + gradient)`.
///
/// `rate` is the learning rate divided by the number of contributions.
pub(crate) fn sgd_last(new: &mut [u8], old: &[u8], sum: &[f32], gradient: &[u8], rate: f32) {
    let new = new.as_chunks_mut::<ELEMENT_BYTES>().0.iter_mut();
    let old = old.as_chunks::<ELEMENT_BYTES>().0;
    let gradient = gradient.as_chunks::<ELEMENT_BYTES>().0;
    for (((new, old), sum), gradient) in new.zip(old).zip(sum).zip(gradient) {
        *new = (f32::from_le_bytes(*old) - rate * (sum + f32::from_le_bytes(*gradient))).to_le_bytes();
    }
}

/// The only contribution with plain SGD, out of place: `new = old - rate * gradient`.
pub(crate) fn sgd_only(new: &mut [u8], old: &[u8], gradient: &[u8], rate: f32) {
    let new = new.as_chunks_mut::<ELEMENT_BYTES>().0.iter_mut();
    let old = old.as_chunks::<ELEMENT_BYTES>().0;
    let gradient = gradient.as_chunks::<ELEMENT_BYTES>().0;
    for ((new, old), gradient) in new.zip(old).zip(gradient) {
        *new = (f32::from_le_bytes(*old) - rate * f32::from_le_bytes(*gradient)).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    #[test]
    fn three_contributions_give_the_averaged_step() {
        let n = 37;
        let gradients: Vec<Vec<f32>> = (0..3).map(|w| (0..n).map(|i| (w * n + i) as f32).collect()).collect();
        let old: Vec<f32> = (0..n).map(|i| i as f32 * 2.0).collect();
        let mut sum = vec![7.0; n];
        let mut new = vec![0_u8; n * ELEMENT_BYTES];
        reduce_set(&mut sum, &wire(&gradients[0]));
        reduce_add(&mut sum, &wire(&gradients[1]));
        sgd_last(&mut new, &wire(&old), &sum, &wire(&gradients[2]), 0.25);
        let expected: Vec<f32> =
            (0..n).map(|i| old[i] - 0.25 * (gradients[0][i] + gradients[1][i] + gradients[2][i])).collect();
        assert_eq!(new, wire(&expected));
    }

    #[test]
    fn a_single_contribution_needs_no_sum_and_no_alignment() {
        let old = wire(&[1.0, 2.0, 3.0]);
        let mut shifted = vec![0_u8];
        shifted.extend(wire(&[4.0, 8.0, 12.0]));
        let mut new = vec![0_u8; old.len()];
        sgd_only(&mut new, &old, &shifted[1..], 0.5);
        assert_eq!(new, wire(&[-1.0, -2.0, -3.0]));
    }
}
