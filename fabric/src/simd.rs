//! Runs a pass over numbers with the widest vector unit that this machine has. The loops are the caller's, plain
//! and safe; the compiler vectorises them once per unit. It never changes results: lanes are computed as one
//! element would be, and nothing is fused or reordered.

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
            // SAFETY: the unit was just detected, which is all that the call asks for.
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
