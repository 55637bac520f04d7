//! The encoder from round to round: what is kept, momentum, the same bytes with every vector unit.

use super::*;
use proto_common::optimizer::Optimizer;

const CHUNK_BYTES: u64 = 4096;
/// Two whole chunks, and a part of one.
const COUNT: usize = 2 * 1024 + 333;

fn codecs() -> Vec<Codec> {
    let words = "f16 bf16 onebit twobit:0.25 topk:0.05 randomk:0.1 dither:2 dither:4 dither:8";
    words.split(' ').map(|word| word.parse().unwrap()).collect()
}

fn encoder(compression: Compression, rank: u32) -> Encoder {
    let spec = TensorSpec::f32(7, COUNT as u64, Optimizer::sum()).compressed(compression);
    Encoder::new(&spec, CHUNK_BYTES, Rank(rank)).unwrap()
}

fn gradient(round: u64) -> Vec<f32> {
    (0..COUNT).map(|at| ((at as u64 * 31 + round * 17) % 97) as f32 / 48.0 - 1.0).collect()
}

/// What the server makes of a round.
fn decoded(encoder: &Encoder, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; COUNT];
    for (index, chunk) in values.chunks_mut(CHUNK_BYTES as usize / 4).enumerate() {
        let encoded = &bytes[encoder.place(ChunkIndex(index as u32))];
        assert_eq!(encoder.compression.codec.check(chunk.len(), encoded), Ok(()));
        encoder.compression.codec.decode(encoded, chunk);
    }
    values
}

#[test]
fn what_is_sent_and_what_is_kept_make_the_gradients() {
    for codec in codecs() {
        let mut encoder = encoder(Compression::of(codec), 0);
        let mut bytes = vec![0; encoder.bytes()];
        let (mut given, mut sent) = (vec![0.0f64; COUNT], vec![0.0f64; COUNT]);
        for round in 1..=10 {
            let gradient = gradient(round);
            encoder.encode(&gradient, round, &mut bytes);
            for (at, value) in decoded(&encoder, &bytes).into_iter().enumerate() {
                (given[at], sent[at]) = (given[at] + f64::from(gradient[at]), sent[at] + f64::from(value));
                let left = f64::from(encoder.left[at]);
                assert!((given[at] - sent[at] - left).abs() < 1e-4, "{codec}, round {round}, element {at}");
            }
        }
    }
}

#[test]
fn without_feedback_a_round_knows_nothing_of_the_one_before() {
    for codec in codecs() {
        let alone = Compression { feedback: false, ..Compression::of(codec) };
        let (mut fresh, mut used) = (encoder(alone, 0), encoder(alone, 0));
        let (mut first, mut second) = (vec![0; fresh.bytes()], vec![0; fresh.bytes()]);
        used.encode(&gradient(1), 1, &mut second);
        used.encode(&gradient(2), 2, &mut second);
        fresh.encode(&gradient(2), 2, &mut first);
        assert!(first == second, "{codec}");
    }
}

#[test]
fn momentum_comes_before_the_codec() {
    let compression = Compression { momentum: 0.5, ..Compression::of(Codec::Bf16) };
    let mut encoder = encoder(compression, 0);
    let mut bytes = vec![0; encoder.bytes()];
    // m = 1, 1 + m / 2; then m = 1.5, 1 + m / 2; all of them exact.
    for (round, expected) in [(1, 1.5), (2, 1.75), (3, 1.875)] {
        encoder.encode(&[1.0; COUNT], round, &mut bytes);
        assert!(decoded(&encoder, &bytes).iter().all(|value| *value == expected), "round {round}");
    }
}

/// The bytes are a function of gradients, key, chunk, round and rank, and of nothing else.
#[test]
fn every_vector_unit_and_run_makes_the_same_bytes_and_ranks_make_others() {
    for codec in codecs() {
        let rounds = |rank: u32| {
            let mut encoder = encoder(Compression { momentum: 0.9, ..Compression::of(codec) }, rank);
            let mut bytes = vec![0; encoder.bytes()];
            (1..=3).for_each(|round| encoder.encode(&gradient(round), round, &mut bytes));
            (bytes, encoder.left)
        };
        // As `encode`, with code for every processor of the architecture only.
        let plain = || {
            let mut encoder = encoder(Compression { momentum: 0.9, ..Compression::of(codec) }, 0);
            let mut bytes = vec![0; encoder.bytes()];
            let (elements, full_bytes) = (encoder.chunk_elements, encoder.full_bytes());
            for round in 1..=3 {
                let (gradient, left) = (gradient(round), encoder.left.chunks_mut(elements));
                let parts = gradient.chunks(elements).zip(encoder.velocity.chunks_mut(elements)).zip(left);
                for (chunk, (((gradient, velocity), left), into)) in
                    parts.zip(bytes.chunks_mut(full_bytes)).enumerate()
                {
                    let seed = codec::seed(ChunkId::new(7, chunk as u32), round, Rank(0));
                    Encode { compression: encoder.compression, seed, gradient, velocity, left, into }.run();
                }
            }
            (bytes, encoder.left)
        };
        assert!(rounds(0) == rounds(0) && rounds(0) == plain(), "{codec}");
        let random = matches!(codec, Codec::RandomK { .. } | Codec::Dither { .. });
        assert_eq!(rounds(0) != rounds(1), random, "{codec}");
    }
}

#[test]
fn a_tensor_without_codec_has_no_encoder_and_chunks_tile_the_bytes() {
    let plain = TensorSpec::f32(7, COUNT as u64, Optimizer::sum());
    assert!(Encoder::new(&plain, CHUNK_BYTES, Rank(0)).is_none());
    for codec in codecs() {
        let encoder = encoder(Compression::of(codec), 0);
        let places: Vec<_> = (0..3).map(|chunk| encoder.place(ChunkIndex(chunk))).collect();
        assert_eq!((places[0].start, places[2].end), (0, encoder.bytes()), "{codec}");
        assert!(places.windows(2).all(|pair| pair[0].end == pair[1].start), "{codec}");
        assert_eq!(places[2].len(), codec.encoded_bytes(333), "{codec}");
    }
}

#[test]
fn a_chunk_that_is_not_finite_is_seen_and_leaves_what_was_kept_as_it_was() {
    for codec in codecs() {
        let compression = Compression { momentum: 0.9, ..Compression::of(codec) };
        let (mut disturbed, mut undisturbed) = (encoder(compression, 0), encoder(compression, 0));
        let mut bytes = vec![0; disturbed.bytes()];
        let mut encode = |encoder: &mut Encoder, gradient: &[f32], round| {
            encoder.encode(gradient, round, &mut bytes);
            bytes.clone()
        };
        assert_eq!(encode(&mut disturbed, &gradient(1), 1), encode(&mut undisturbed, &gradient(1), 1));
        let mut bad = gradient(2);
        bad[7] = f32::INFINITY;
        let seen = encode(&mut disturbed, &bad, 2);
        let first = &seen[disturbed.place(ChunkIndex(0))];
        let mut decoded = vec![0.0; disturbed.chunk_elements];
        assert_eq!(codec.check(decoded.len(), first), Ok(()), "{codec}");
        codec.decode(first, &mut decoded);
        assert!(decoded.iter().any(|value| !value.is_finite()), "{codec}");
        let first = |encoder: &Encoder| encoder.left[..encoder.chunk_elements].to_vec();
        assert_eq!(first(&disturbed), first(&undisturbed), "{codec}");
    }
}
