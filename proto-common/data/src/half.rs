//! f16 (IEEE 754 binary16) and bf16 as bits, converted to and from f32. Conversions have no branches, so that loops
//! over them are vectorised, and give the same bits with every vector unit.

/// The largest finite f16.
pub const F16_MAX: f32 = 65504.0;
/// The largest finite bf16.
pub const BF16_MAX: f32 = f32::from_bits(0x7f7f_0000);

/// An f16 as f32, exactly.
#[inline(always)]
#[must_use]
pub fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let magnitude = u32::from(half & 0x7fff);
    // As an f32 with the same fields it is too small by the difference of the exponents' biases; the product is
    // exact, for numbers below the smallest normal one, too.
    let scaled = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
    let special = if magnitude >= 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(scaled.to_bits() | special | sign)
}

/// The f16 nearest to an f32; ties go to the even one.
#[inline(always)]
#[must_use]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let (sign, magnitude) = ((bits >> 16) & 0x8000, bits & 0x7fff_ffff);
    // Below the smallest normal number: the addition of 0.5 rounds at the place of the last bit.
    let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < 0x3880_0000 { small } else { normal };
    let half = if magnitude >= 0x4780_0000 { special } else { finite };
    (half | sign) as u16
}

/// A bf16 as f32, exactly.
#[inline(always)]
#[must_use]
pub fn bf16_to_f32(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// The bf16 nearest to an f32; ties go to the even one.
#[inline(always)]
#[must_use]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // A NaN stays one, and quiet.
    let half = if bits & 0x7fff_ffff > 0x7f80_0000 { (bits >> 16) | 0x40 } else { rounded };
    half as u16
}
