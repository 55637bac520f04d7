//! Codecs against their promises: what is encoded and what is left, what is refused, frozen bytes, ranges.

use super::*;
use proptest::prelude::*;

/// One of each kind, some with several numbers.
fn codecs() -> Vec<Codec> {
    let (top, random) = (|share| Codec::TopK { share }, |share| Codec::RandomK { share });
    let mut all =
        vec![Codec::Plain, Codec::F16, Codec::Bf16, Codec::OneBit, Codec::TwoBit { threshold: 0.5 }];
    all.extend([top(0.01), top(0.5), random(0.01), random(0.5)]);
    all.extend([2, 4, 8].map(|bits| Codec::Dither { bits }));
    all
}

/// Encodes and decodes; what came out, what is left, and the bytes.
fn round_trip(codec: &Codec, seed: u64, given: &[f32]) -> (Vec<f32>, Vec<f32>, Vec<u8>) {
    let (mut left, mut bytes) = (given.to_vec(), vec![0xa5; codec.encoded_bytes(given.len())]);
    codec.encode(seed, &mut left, &mut bytes);
    let mut decoded = vec![f32::NAN; given.len()];
    codec.decode(&bytes, &mut decoded);
    (decoded, left, bytes)
}

/// The largest difference between a value and its code, of values as large as `largest`.
fn bound(codec: &Codec, value: f32, largest: f32) -> f32 {
    let up = 1.0 + 1e-5;
    match *codec {
        Codec::Plain => 0.0,
        Codec::F16 => value.abs() / 2048.0 + 2f32.powi(-25),
        Codec::Bf16 => value.abs() / 256.0 + f32::MIN_POSITIVE,
        Codec::OneBit => largest * up,
        Codec::TwoBit { threshold } => (value.abs() - threshold).abs().max(threshold) * up,
        Codec::TopK { .. } | Codec::RandomK { .. } => value.abs(),
        Codec::Dither { bits } => largest / ((1 << (bits - 1)) - 1) as f32 * up + f32::MIN_POSITIVE,
    }
}

fn values() -> impl Strategy<Value = Vec<f32>> {
    let one = prop_oneof![
        8 => -2.0f32..2.0,
        1 => Just(0.0f32),
        1 => Just(-0.0f32),
        1 => -60000.0f32..60000.0,
        1 => any::<i16>().prop_map(|n| f32::from(n) * 1e-30),
    ];
    prop::collection::vec(one, 0..400)
}

proptest! {
    #[test]
    fn what_is_encoded_and_what_is_left_make_what_was_given(given in values(), seed: u64) {
        let largest = given.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        for codec in codecs() {
            let (decoded, left, bytes) = round_trip(&codec, seed, &given);
            prop_assert_eq!(codec.check(given.len(), &bytes), Ok(()), "{}", codec);
            for ((given, decoded), left) in given.iter().zip(&decoded).zip(&left) {
                prop_assert_eq!(left.to_bits() << 1, (given - decoded).to_bits() << 1, "{} of {}", codec, given);
                let error = (given - decoded).abs();
                prop_assert!(error <= bound(&codec, *given, largest), "{}: {} became {}", codec, given, decoded);
            }
        }
    }

    /// Whatever bytes come, there is no panic.
    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), elements in 0usize..300) {
        for codec in codecs() {
            let sized: Vec<u8> = bytes.iter().copied().cycle().take(codec.encoded_bytes(elements)).collect();
            for bytes in [&bytes, &sized] {
                codec.decode(bytes, &mut vec![0.0; elements]);
                let is_sound = codec.check(elements, bytes).is_ok();
                prop_assert!(!is_sound || bytes.len() == codec.encoded_bytes(elements), "{}", codec);
            }
        }
    }

    #[test]
    fn a_share_is_the_largest_of_them(given in values(), share in 0.001f32..0.5) {
        let codec = Codec::TopK { share };
        let (_, left, _) = round_trip(&codec, 0, &given);
        let count = ((given.len() as f64 * f64::from(share)).round() as usize).max(1);
        let mut sorted: Vec<f32> = given.iter().map(|value| value.abs()).collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let least = sorted.get(count.wrapping_sub(1)).copied().unwrap_or(f32::INFINITY);
        let sent = given.iter().zip(&left).filter(|(given, left)| given.to_bits() != left.to_bits()).count();
        prop_assert!(sent <= count);
        prop_assert!(left.iter().all(|left| left.abs() <= least));
    }
}

/// What would decode to another number, or to none, does not pass.
#[test]
fn what_no_encoder_makes_is_refused() {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let (nan, infinite, below, half) =
        (f32::NAN.to_bits(), f32::INFINITY.to_bits(), (-1f32).to_bits(), 0.5f32.to_bits());
    let (top, random) = (Codec::TopK { share: 0.5 }, Codec::RandomK { share: 0.5 });
    let (two, dither) = (Codec::TwoBit { threshold: 1.0 }, Codec::Dither { bits: 4 });
    let cases = [
        (Codec::F16, 3, words(&[0x3c00_3c00, 0x3c00]), Ok(())),
        (Codec::F16, 3, words(&[0x7c00_3c00, 0x3c00]), Ok(())),
        (Codec::F16, 3, words(&[0x3c00_3c00, 0x0001_3c00]), Err(Malformed::Tail)),
        (Codec::F16, 3, words(&[0x3c00_3c00]), Err(Malformed::Length { have: 4, want: 8 })),
        (Codec::Bf16, 2, words(&[0x3f80_ff80]), Ok(())),
        (Codec::OneBit, 3, words(&[half, 0b101]), Ok(())),
        (Codec::OneBit, 3, words(&[half, 0b1000]), Err(Malformed::Tail)),
        (Codec::OneBit, 3, words(&[nan, 0]), Ok(())),
        (Codec::OneBit, 3, words(&[below, 0]), Err(Malformed::Scale)),
        (two, 17, words(&[0x6666_6666, 0b10]), Ok(())),
        (two, 17, words(&[0x6666_6666, 0b11]), Ok(())),
        (two, 17, words(&[0, 0b100]), Err(Malformed::Tail)),
        (top, 4, words(&[0, 3, half, half]), Ok(())),
        (top, 4, words(&[0, 4, half, half]), Err(Malformed::Place { at: 1 })),
        (top, 4, words(&[1, 1, half, half]), Err(Malformed::Place { at: 1 })),
        (top, 4, words(&[2, 1, half, half]), Err(Malformed::Place { at: 1 })),
        (top, 4, words(&[0, u32::MAX, half, half]), Err(Malformed::Place { at: 1 })),
        (top, 4, words(&[0, 3, half, infinite]), Ok(())),
        (random, 4, words(&[7, 8, half, half]), Ok(())),
        (random, 4, words(&[7, 8, nan, half]), Ok(())),
        (dither, 9, words(&[half, u32::MAX, 0xf]), Ok(())),
        (dither, 9, words(&[half, 0, 0x10]), Err(Malformed::Tail)),
        (dither, 9, words(&[infinite, 0, 0]), Err(Malformed::Scale)),
    ];
    for (codec, elements, bytes, expected) in cases {
        assert_eq!(codec.check(elements, &bytes), expected, "{codec} {bytes:?}");
    }
}

/// Wire bytes never change.
#[test]
fn the_bytes_of_each_codec_are_frozen() {
    let given = [1.5f32, -0.25, 0.0, -3.0, 0.125];
    let hex = |codec: Codec| {
        let (_, _, bytes) = round_trip(&codec, 0x0123_4567_89ab_cdef, &given);
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    assert_eq!(hex(Codec::F16), "003e00b4000000c200300000");
    assert_eq!(hex(Codec::Bf16), "c03f80be000040c0003e0000");
    assert_eq!(hex(Codec::OneBit), "9a99793f0a000000");
    assert_eq!(hex(Codec::TwoBit { threshold: 0.25 }), "89000000");
    assert_eq!(hex(Codec::TopK { share: 0.4 }), "00000000030000000000c03f000040c0");
    assert_eq!(hex(Codec::RandomK { share: 0.4 }), "efcdab89674523010000c03f000040c0");
    assert_eq!(hex(Codec::Dither { bits: 4 }), "b76ddb3e93f00100");
}

#[test]
fn an_encoded_chunk_fits_where_a_plain_one_does() {
    for codec in codecs() {
        for elements in (1..5000).chain([1024 * 1023, 1024 * 1024, 4 << 20]) {
            let bytes = codec.encoded_bytes(elements);
            assert!(bytes <= 4 * elements.next_multiple_of(1024), "{codec} of {elements}: {bytes}");
            assert!(bytes.is_multiple_of(4));
        }
    }
}

#[test]
fn what_is_not_finite_decodes_to_what_is_not_finite() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for elements in [1, 3, 16, 17, 100] {
            let mut given = vec![1.0; elements];
            given[elements / 2] = bad;
            for codec in codecs() {
                let (mut bytes, mut decoded) = (vec![7; codec.encoded_bytes(elements)], vec![0.0; elements]);
                codec.encode_not_finite(&given, &mut bytes);
                assert_eq!(codec.check(elements, &bytes), Ok(()), "{codec} of {elements}");
                codec.decode(&bytes, &mut decoded);
                assert!(decoded.iter().any(|value| !value.is_finite()), "{codec} of {elements}");
                if matches!(codec, Codec::Plain | Codec::F16 | Codec::Bf16) {
                    let bits =
                        |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(&decoded), bits(&given), "{codec}");
                }
            }
        }
    }
}

#[test]
fn extremes_stay_finite() {
    let given = [f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, -1e-45, 0.0, f32::MAX];
    for codec in codecs() {
        let (decoded, left, bytes) = round_trip(&codec, 3, &given);
        assert_eq!(codec.check(given.len(), &bytes), Ok(()), "{codec}");
        assert!(decoded.iter().chain(&left).all(|value| value.is_finite()), "{codec}: {decoded:?} {left:?}");
    }
}

/// The mean over many rounds is the value itself, without error feedback.
#[test]
fn dithering_is_right_in_the_mean() {
    let given: Vec<f32> = (0..64).map(|i| (i as f32 - 31.5) / 32.0).collect();
    let mut means = vec![0.0f64; given.len()];
    const ROUNDS: u64 = 4000;
    for round in 0..ROUNDS {
        let seed = seed(ChunkId::new(1, 2), round, Rank(3));
        let (decoded, _, _) = round_trip(&Codec::Dither { bits: 2 }, seed, &given);
        means.iter_mut().zip(decoded).for_each(|(mean, value)| *mean += f64::from(value) / ROUNDS as f64);
    }
    for (mean, value) in means.iter().zip(given) {
        // Six times the deviation of such a mean.
        assert!((mean - f64::from(value)).abs() < 6.0 * 0.5 / (ROUNDS as f64).sqrt(), "{mean} of {value}");
    }
}

/// Every element is picked now and then, and the seed says which.
#[test]
fn random_places_follow_the_seed_and_reach_everything() {
    let given: Vec<f32> = (1..=50).map(|i| i as f32).collect();
    let codec = Codec::RandomK { share: 0.1 };
    let mut seen = vec![false; given.len()];
    for round in 0..400 {
        let seed = seed(ChunkId::new(9, 0), round, Rank(0));
        let (decoded, _, bytes) = round_trip(&codec, seed, &given);
        assert_eq!(round_trip(&codec, seed, &given).2, bytes);
        assert_eq!(decoded.iter().filter(|value| **value != 0.0).count(), 5);
        seen.iter_mut().zip(decoded).for_each(|(seen, value)| *seen |= value != 0.0);
    }
    assert!(seen.iter().all(|seen| *seen));
}

#[test]
fn seeds_differ_in_every_part() {
    let base = seed(ChunkId::new(1, 2), 3, Rank(4));
    let others = [(2, 2, 3, 4), (1, 3, 3, 4), (1, 2, 4, 4), (1, 2, 3, 5), (2, 1, 3, 4)];
    for (key, chunk, round, rank) in others {
        assert_ne!(seed(ChunkId::new(key, chunk), round, Rank(rank)), base);
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for codec in codecs() {
        assert_eq!(codec.to_string().parse(), Ok(codec));
        assert!(codec.validate().is_ok());
    }
    let ids: Vec<u8> = [0, 1, 2, 3, 4, 5, 7, 9].map(|at| codecs()[at].wire_id()).into();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5, 6, 7]);
    for given in ["", "zip", "onebit:1", "topk", "topk:", "topk:x", "dither:-4", "f16:2"] {
        assert!(given.parse::<Codec>().is_err(), "{given}");
    }
}

#[test]
fn both_sides_of_each_bound() {
    for good in ["topk:0.5", "topk:1e-9", "randomk:0.5", "twobit:1e-30", "dither:8"] {
        assert!(good.parse::<Codec>().is_ok(), "{good}");
    }
    for bad in
        ["topk:0.51", "topk:0", "randomk:nan", "twobit:0", "twobit:inf", "twobit:-1", "dither:3", "dither:16"]
    {
        assert!(matches!(bad.parse::<Codec>(), Err(CodecError::OutOfRange { .. })), "{bad}");
    }
    let good = Compression::of(Codec::OneBit);
    assert!(good.feedback && good.validate().is_ok() && Compression::default().validate().is_ok());
    assert_eq!(Compression::of(Codec::Plain), Compression::default());
    for momentum in [1.0, -0.1, f32::NAN] {
        assert!(Compression { momentum, ..good }.validate().is_err(), "{momentum}");
    }
    assert!(Compression { momentum: 0.9, ..good }.validate().is_ok());
    let idle = Compression { feedback: true, ..Compression::default() };
    assert_eq!(idle.validate(), Err(CodecError::Nothing));
}
