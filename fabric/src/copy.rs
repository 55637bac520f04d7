//! Owns the copy kernels: three ways to move bytes between two buffers of this process.
//!
//! Which one is fastest depends on the machine (glibc may believe in a far larger cache than a core has and
//! never leave the cached path), so the choice belongs to a calibration and not to this file. It must not
//! choose, measure, allocate or know what the bytes mean.

/// Copies below this many bytes take the cached path: the alignment head, the tail and the fence cost more
/// than non-temporal stores can win there.
#[cfg(any(target_arch = "x86_64", test))]
const STREAMING_MIN_BYTES: usize = 512;

/// The bytes both buffers have room for. Equal lengths are the caller's duty; a difference is a bug that a
/// debug build reports and a release build survives by copying the common prefix.
fn common_len(dst: &[u8], src: &[u8]) -> usize {
    debug_assert_eq!(dst.len(), src.len(), "copy kernels take buffers of equal length");
    dst.len().min(src.len())
}

/// Copies `src` to `dst` with the C library's `memcpy`.
///
/// Both must have the same length; otherwise the common prefix is copied.
pub fn memcpy(dst: &mut [u8], src: &[u8]) {
    let bytes = common_len(dst, src);
    dst[..bytes].copy_from_slice(&src[..bytes]);
}

/// Copies `src` to `dst` with non-temporal stores, which do not read `dst` into the cache first.
///
/// The widest vector unit found at run time is used (AVX-512, AVX, SSE2). The stores are fenced before this
/// returns, so a notice written afterwards is never seen before the bytes. Other processors than x86-64
/// take [`memcpy`]. Both must have the same length; otherwise the common prefix is copied.
pub fn streaming(dst: &mut [u8], src: &[u8]) {
    let bytes = common_len(dst, src);
    // SAFETY: both pointers come from slices of at least `bytes` bytes, and a `&mut` slice overlaps no other.
    unsafe { streaming_raw(dst.as_mut_ptr(), src.as_ptr(), bytes) }
}

/// Copies `src` to `dst` with the processor's string instruction `rep movsb`.
///
/// Other processors than x86-64 take [`memcpy`]. Both must have the same length; otherwise the common prefix
/// is copied.
pub fn rep_movsb(dst: &mut [u8], src: &[u8]) {
    let bytes = common_len(dst, src);
    // SAFETY: both pointers come from slices of at least `bytes` bytes, and a `&mut` slice overlaps no other.
    unsafe { rep_movsb_raw(dst.as_mut_ptr(), src.as_ptr(), bytes) }
}

/// The same as [`streaming`] for memory that must not be seen as a slice, such as a peer's mapped region.
///
/// # Safety
/// `src` must be readable and `dst` writable for `bytes` bytes, and the two must not overlap. Another process
/// may change the bytes meanwhile: the copy then holds some mixture, which the caller has to validate.
pub(crate) unsafe fn streaming_raw(dst: *mut u8, src: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if bytes >= STREAMING_MIN_BYTES {
        // SAFETY: the caller's promise is passed on; each variant runs only where its vector unit was detected
        // (SSE2 is part of x86-64).
        unsafe {
            if std::arch::is_x86_feature_detected!("avx512f") {
                x86::stream_avx512(dst, src, bytes);
            } else if std::arch::is_x86_feature_detected!("avx") {
                x86::stream_avx(dst, src, bytes);
            } else {
                x86::stream_sse2(dst, src, bytes);
            }
        }
        return;
    }
    // SAFETY: the caller promises readable, writable, non-overlapping memory; bytes need no alignment.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, bytes) }
}

/// The same as [`rep_movsb`] for memory that must not be seen as a slice, such as a peer's mapped region.
///
/// # Safety
/// As for [`streaming_raw`].
pub(crate) unsafe fn rep_movsb_raw(dst: *mut u8, src: *const u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller promises readable, writable, non-overlapping memory of `bytes` bytes, and that is all
    // the instruction touches; the direction flag is clear at the start of every asm block by Rust's rules.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rdi") dst => _,
            inout("rsi") src => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller promises readable, writable, non-overlapping memory; bytes need no alignment.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, bytes);
    }
}

/// Non-temporal copies, one for each vector width.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128, _mm256_loadu_si256,
        _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    /// A cache line: whole lines are stored, so that write combining never sends half of one.
    const LINE_BYTES: usize = 64;

    /// Writes one kernel: a cached head up to the next line of `dst`, whole lines streamed, a cached tail.
    macro_rules! stream_kernel {
        ($name:ident, $feature:literal, $vector:ty, $load:ident, $store:ident) => {
            /// Copies `bytes` bytes with non-temporal stores and fences them.
            ///
            /// # Safety
            /// `src` must be readable and `dst` writable for `bytes` bytes, without overlap; the processor
            /// must have the vector unit this kernel is named for.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name(dst: *mut u8, src: *const u8, bytes: usize) {
                const LANES: usize = LINE_BYTES / size_of::<$vector>();
                let head = dst.align_offset(LINE_BYTES).min(bytes);
                let lines = (bytes - head) / LINE_BYTES;
                let tail = head + lines * LINE_BYTES;
                // SAFETY: head + lines + tail cover exactly `bytes` bytes of both buffers, which the caller
                // promises to be valid and apart; after the head `dst` is aligned to a line, which is all that
                // the non-temporal stores ask; loads are the unaligned kind.
                unsafe {
                    std::ptr::copy_nonoverlapping(src, dst, head);
                    for line in 0..lines {
                        let at = head + line * LINE_BYTES;
                        let from = src.add(at).cast::<$vector>();
                        let to = dst.add(at).cast::<$vector>();
                        // Gathered first, so that the stores of one line are back to back.
                        let mut vectors = [$load(from); LANES];
                        for (lane, vector) in vectors.iter_mut().enumerate() {
                            *vector = $load(from.add(lane));
                        }
                        for (lane, vector) in vectors.into_iter().enumerate() {
                            $store(to.add(lane), vector);
                        }
                    }
                    std::ptr::copy_nonoverlapping(src.add(tail), dst.add(tail), bytes - tail);
                    // Non-temporal stores are weakly ordered even on x86: a later notice must not overtake them.
                    _mm_sfence();
                }
            }
        };
    }

    stream_kernel!(stream_sse2, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128);
    stream_kernel!(stream_avx, "avx", __m256i, _mm256_loadu_si256, _mm256_stream_si256);
    stream_kernel!(stream_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes around a copy that must stay as they were.
    const GUARD: usize = 80;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8)) as u8).collect()
    }

    fn check(copy: &dyn Fn(&mut [u8], &[u8]), bytes: usize, dst_offset: usize, src_offset: usize) {
        let src = pattern(src_offset + bytes);
        let mut dst = vec![0xEE_u8; dst_offset + bytes + GUARD];
        copy(&mut dst[dst_offset..dst_offset + bytes], &src[src_offset..]);
        assert!(dst[..dst_offset].iter().all(|&b| b == 0xEE), "wrote before the start ({bytes} bytes)");
        assert_eq!(&dst[dst_offset..dst_offset + bytes], &src[src_offset..], "{bytes} bytes at {dst_offset}");
        assert!(dst[dst_offset + bytes..].iter().all(|&b| b == 0xEE), "wrote past the end ({bytes} bytes)");
    }

    fn check_everywhere(copy: &dyn Fn(&mut [u8], &[u8])) {
        let min = STREAMING_MIN_BYTES;
        let lengths =
            [0, 1, 2, 15, 16, 63, 64, 65, min - 1, min, min + 1, min + 63, min + 65, 4096, 4099, 70_001];
        for bytes in lengths {
            for (dst_offset, src_offset) in [(0, 0), (1, 0), (0, 1), (7, 3), (32, 16), (63, 61), (64, 64)] {
                check(copy, bytes, dst_offset, src_offset);
            }
        }
    }

    #[test]
    fn memcpy_copies_every_length_and_offset() {
        check_everywhere(&memcpy);
    }

    #[test]
    fn streaming_copies_every_length_and_offset() {
        check_everywhere(&streaming);
    }

    #[test]
    fn rep_movsb_copies_every_length_and_offset() {
        check_everywhere(&rep_movsb);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn every_vector_width_of_this_processor_copies_the_same() {
        type Raw = unsafe fn(*mut u8, *const u8, usize);
        let variants: [(bool, Raw); 3] = [
            (true, x86::stream_sse2),
            (std::arch::is_x86_feature_detected!("avx"), x86::stream_avx),
            (std::arch::is_x86_feature_detected!("avx512f"), x86::stream_avx512),
        ];
        for (_, raw) in variants.into_iter().filter(|(detected, _)| *detected) {
            check_everywhere(&|dst, src| {
                // SAFETY: both slices have the same length, do not overlap, and the vector unit was detected.
                unsafe { raw(dst.as_mut_ptr(), src.as_ptr(), src.len()) }
            });
        }
    }

    #[test]
    #[cfg(not(debug_assertions))]
    fn a_difference_in_length_copies_the_common_prefix() {
        for copy in [memcpy, streaming, rep_movsb] {
            let mut dst = [0_u8; 3];
            copy(&mut dst, &[1, 2, 3, 4]);
            assert_eq!(dst, [1, 2, 3]);
            copy(&mut dst, &[9, 9]);
            assert_eq!(dst, [9, 9, 3]);
        }
    }
}
