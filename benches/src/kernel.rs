//! The baseline's reduction kernels: f32 in wire order (little-endian, no alignment), summed in f32.
//!
//! Plain loops over four-byte groups, compiled for the widest vector unit of the machine as Gradwire's are. The
//! optimizer is fused with the last contribution, as in Gradwire's server, so that the baseline pays no pass that
//! Gradwire does not pay, but for one: the pass over the first of several contributions, which Gradwire takes together with
//! the second where it reads both in the workers' memory. No I/O, no allocation; lengths are checked by the caller
//! ([`crate::grpc`]'s store).

use fabric::simd::{Pass, widest};

/// Bytes of one element.
pub(crate) const ELEMENT_BYTES: usize = 4;

type Element = [u8; ELEMENT_BYTES];

fn elements(bytes: &[u8]) -> &[Element] {
    bytes.as_chunks::<ELEMENT_BYTES>().0
}

fn elements_mut(bytes: &mut [u8]) -> &mut [Element] {
    bytes.as_chunks_mut::<ELEMENT_BYTES>().0
}

/// Starts a sum: `sum = gradient`.
pub(crate) fn reduce_set(sum: &mut [f32], gradient: &[u8]) {
    for (sum, gradient) in sum.iter_mut().zip(elements(gradient)) {
        *sum = f32::from_le_bytes(*gradient);
    }
}

/// Adds a contribution: `sum += gradient`.
pub(crate) fn reduce_add(sum: &mut [f32], gradient: &[u8]) {
    widest(Add { sum, gradient: elements(gradient) });
}

struct Add<'a> {
    sum: &'a mut [f32],
    gradient: &'a [Element],
}

impl Pass for Add<'_> {
    #[inline(always)]
    fn run(self) {
        for (sum, gradient) in self.sum.iter_mut().zip(self.gradient) {
            *sum += f32::from_le_bytes(*gradient);
        }
    }
}

/// The last of several contributions with plain SGD, out of place: `new = old - rate * (sum + gradient)`.
///
/// `rate` is the learning rate divided by the number of contributions.
pub(crate) fn sgd_last(new: &mut [u8], old: &[u8], sum: &[f32], gradient: &[u8], rate: f32) {
    let (new, old, gradient) = (elements_mut(new), elements(old), elements(gradient));
    widest(SgdLast { new, old, sum, gradient, rate });
}

struct SgdLast<'a> {
    new: &'a mut [Element],
    old: &'a [Element],
    sum: &'a [f32],
    gradient: &'a [Element],
    rate: f32,
}

impl Pass for SgdLast<'_> {
    #[inline(always)]
    fn run(self) {
        let places = self.new.iter_mut().zip(self.old).zip(self.sum).zip(self.gradient);
        for (((new, old), sum), gradient) in places {
            let gradient = sum + f32::from_le_bytes(*gradient);
            *new = (f32::from_le_bytes(*old) - self.rate * gradient).to_le_bytes();
        }
    }
}

/// The only contribution with plain SGD, out of place: `new = old - rate * gradient`.
pub(crate) fn sgd_only(new: &mut [u8], old: &[u8], gradient: &[u8], rate: f32) {
    widest(SgdOnly { new: elements_mut(new), old: elements(old), gradient: elements(gradient), rate });
}

struct SgdOnly<'a> {
    new: &'a mut [Element],
    old: &'a [Element],
    gradient: &'a [Element],
    rate: f32,
}

impl Pass for SgdOnly<'_> {
    #[inline(always)]
    fn run(self) {
        for ((new, old), gradient) in self.new.iter_mut().zip(self.old).zip(self.gradient) {
            let gradient = f32::from_le_bytes(*gradient);
            *new = (f32::from_le_bytes(*old) - self.rate * gradient).to_le_bytes();
        }
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
