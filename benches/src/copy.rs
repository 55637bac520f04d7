//! Calibrates this machine's best single-thread copy, the yardstick of every ratio in the report.
//!
//! Kernels come in as a table of functions: they need unsafe code and live in `fabric`. This file only times
//! them, over buffers that are touched beforehand and that no cache holds.

use crate::stats;
use std::time::Instant;

/// A named way to copy between two slices of equal length.
pub(crate) type Kernel = (&'static str, fn(&mut [u8], &[u8]));

/// The candidates of this machine.
pub(crate) const KERNELS: &[Kernel] = &[
    ("memcpy", fabric::copy::memcpy),
    ("streaming", fabric::copy::streaming),
    ("rep_movsb", fabric::copy::rep_movsb),
];

/// Bytes of each buffer: no cache of this class of machine holds two of them.
pub(crate) const COPY_BYTES: usize = 256 << 20;

/// The name of two copies at the same time.
const TWO_AT_ONCE: &str = "two_at_once";

/// Timed passes of each kernel.
const PASSES: usize = 7;

/// What one kernel reached.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CopySpeed {
    /// The kernel's name.
    pub(crate) kernel: &'static str,
    /// Bytes copied (not bytes moved on the bus, which are two to three times that) per second, decimal.
    pub(crate) gb_per_s: f64,
    /// Interquartile range over the median of the passes.
    pub(crate) spread: f64,
}

/// The speeds of all kernels, the fastest first.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Calibration {
    /// One entry a kernel, fastest first; never empty.
    pub(crate) speeds: Vec<CopySpeed>,
    /// Bytes of each buffer.
    pub(crate) bytes: usize,
    /// What two threads reach together that copy at the same time, each with the fastest kernel and buffers of its own.
    pub(crate) two: CopySpeed,
}

impl Calibration {
    /// The speed that ratios divide by.
    pub(crate) fn best_gb_per_s(&self) -> f64 {
        self.speeds.first().map_or(f64::NAN, |best| best.gb_per_s)
    }
}

/// Times each kernel over two prefaulted buffers of `bytes` bytes; passes of the kernels are interleaved, so
/// that a disturbance of the machine meets all of them.
///
/// # Errors
/// A kernel that does not copy, or an empty table.
pub(crate) fn calibrate(kernels: &[Kernel], bytes: usize) -> anyhow::Result<Calibration> {
    anyhow::ensure!(!kernels.is_empty() && bytes > 0, "no copy kernel to calibrate");
    let src: Vec<u8> = (0..bytes).map(|i| (i >> 3) as u8 | 1).collect();
    let mut dst = vec![0xFF_u8; bytes];
    let mut seconds = vec![Vec::with_capacity(PASSES); kernels.len()];
    for pass in 0..=PASSES {
        for ((name, copy), seconds) in kernels.iter().zip(&mut seconds) {
            let start = Instant::now();
            copy(&mut dst, &src);
            let elapsed = start.elapsed().as_secs_f64();
            // Pass 0 warms up: its time is not kept, its result is checked.
            if pass == 0 {
                anyhow::ensure!(dst == src, "copy kernel {name} does not copy: remove it from the table");
                dst.fill(0);
            } else {
                seconds.push(elapsed);
            }
        }
    }
    let mut speeds: Vec<CopySpeed> = kernels
        .iter()
        .zip(&seconds)
        .map(|((kernel, _), seconds)| {
            let speeds = || seconds.iter().map(|s| bytes as f64 / s / 1e9);
            CopySpeed {
                kernel,
                gb_per_s: stats::median(speeds()).unwrap_or(f64::NAN),
                spread: stats::spread(speeds()).unwrap_or(f64::NAN),
            }
        })
        .collect();
    speeds.sort_by(|a, b| b.gb_per_s.total_cmp(&a.gb_per_s));
    let best = kernels.iter().find(|(kernel, _)| speeds.first().is_some_and(|speed| speed.kernel == *kernel));
    let two = two_at_once(best.map_or(kernels[0].1, |(_, copy)| *copy), (&src, dst));
    Ok(Calibration { speeds, bytes, two })
}

/// Times two threads that copy at the same time.
fn two_at_once(copy: fn(&mut [u8], &[u8]), (src, mut dst): (&[u8], Vec<u8>)) -> CopySpeed {
    let (other_src, mut other_dst) = (src.to_vec(), dst.clone());
    let mut pass = || {
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| copy(&mut other_dst, &other_src));
            copy(&mut dst, src);
        });
        2.0 * src.len() as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    let speeds: Vec<f64> = (0..=PASSES).map(|_| pass()).skip(1).collect();
    CopySpeed {
        kernel: TWO_AT_ONCE,
        gb_per_s: stats::median(speeds.iter().copied()).unwrap_or(f64::NAN),
        spread: stats::spread(speeds.iter().copied()).unwrap_or(f64::NAN),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_timed_and_the_fastest_is_first() {
        let slow: fn(&mut [u8], &[u8]) = |dst, src| {
            for _ in 0..50 {
                dst.copy_from_slice(std::hint::black_box(src));
            }
        };
        let found =
            calibrate(&[("slow", slow), ("memcpy", fabric::copy::memcpy)], 1 << 20).expect("calibrates");
        assert_eq!(found.speeds.len(), 2);
        assert_eq!(found.speeds[0].kernel, "memcpy");
        assert!(found.best_gb_per_s() > found.speeds[1].gb_per_s);
    }

    #[test]
    fn a_kernel_that_copies_nothing_is_found_out() {
        assert!(calibrate(&[("lazy", |_, _| ())], 4096).is_err());
        assert!(calibrate(&[], 4096).is_err());
    }
}
