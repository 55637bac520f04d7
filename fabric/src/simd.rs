//! Runs a pass over numbers with the widest vector unit that this machine has. The loops are the caller's, plain
//! and safe; the compiler vectorises them once per unit. Results are the same to the last bit, as nothing is fused
//! or reordered; only which of two NaNs an operation hands on is the compiler's choice.

/// Asks for the cache line of a place that will be read soon. A hint: nothing is read by it.
#[inline(always)]
pub fn prefetch<T>(at: &T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch never faults, whatever the address, and this one is a reference's. Needed because there is
        // no safe way to say it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// As [`prefetch`], for all lines of a row of numbers.
#[inline(always)]
pub fn prefetch_row(row: &[f32]) {
    const LINE: usize = 64 / size_of::<f32>();
    row.iter().step_by(LINE).for_each(prefetch);
}

/// A loop over elements.
pub trait Pass {
    /// Runs it. Mark it, and what its loops call, `#[inline(always)]`: it becomes part of a function that is compiled
    /// for a vector unit.
    fn run(self);
}

/// Runs `pass` (AVX-512, AVX2, or what every processor of the architecture has).
pub fn widest(pass: impl Pass) {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("avx512vl") {
            // SAFETY: the unit was just detected, which is all that the call asks for. Needed because only code
            // compiled for the unit may call this otherwise.
            return unsafe { avx512(pass) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { avx2(pass) };
        }
    }
    pass.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl")]
fn avx512(pass: impl Pass) {
    pass.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(pass: impl Pass) {
    pass.run();
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Step<'a> {
        weights: &'a mut [f32],
        gradient: &'a [f32],
    }

    impl Pass for Step<'_> {
        #[inline(always)]
        fn run(self) {
            for (w, g) in self.weights.iter_mut().zip(self.gradient) {
                *w -= 0.1 * (*g * 0.3);
            }
        }
    }

    /// The bits after a pass over odd numbers of elements, so that all of a loop's parts run.
    fn bits(pass: impl Fn(Step<'_>)) -> Vec<u32> {
        let gradient: Vec<f32> = (0..67).map(|i| 1.0 / (i as f32 - 31.5)).collect();
        let mut weights: Vec<f32> = gradient.iter().map(|g| g.abs().sqrt() + 0.7).collect();
        pass(Step { weights: &mut weights, gradient: &gradient });
        weights.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn every_unit_computes_the_same_bits() {
        let plain = bits(|step| step.run());
        assert_eq!(bits(|step| widest(step)), plain);
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the unit was just detected. Needed as in `widest`.
            assert_eq!(bits(|step| unsafe { avx2(step) }), plain);
        }
    }
}
