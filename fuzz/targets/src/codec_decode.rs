//! Encoded chunks: any bytes are refused or decoded, and what is encoded passes its own check.

use proto_common::codec::Codec;

/// More than a row of every codec's words, and a last one that is not full.
const ELEMENTS_MAX: usize = 300;

crate::target!(|data: &[u8]| {
    let Some((head, bytes)) = data.split_first_chunk::<4>() else { return };
    let elements = usize::from(u16::from_le_bytes([head[1], head[2]])) % ELEMENTS_MAX;
    let share = f32::from(head[3] % 128 + 1) / 256.0;
    let codec = match head[0] % 9 {
        0 => Codec::F16,
        1 => Codec::Bf16,
        2 => Codec::OneBit,
        3 => Codec::TwoBit { threshold: share },
        4 => Codec::TopK { share },
        5 => Codec::RandomK { share },
        other => Codec::Dither { bits: [2, 4, 8][usize::from(other) - 6] },
    };
    let mut decoded = vec![0.0; elements];
    codec.decode(bytes, &mut decoded);
    let is_sound = codec.check(elements, bytes).is_ok();
    assert!(!is_sound || bytes.len() == codec.encoded_bytes(elements), "{codec}");
    let words = bytes.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    let given: Vec<f32> = words.take(ELEMENTS_MAX).collect();
    if given.iter().any(|value| !value.is_finite()) {
        let (mut encoded, mut decoded) = (vec![0xff; codec.encoded_bytes(given.len())], vec![0.0; given.len()]);
        codec.encode_not_finite(&given, &mut encoded);
        assert_eq!(codec.check(given.len(), &encoded), Ok(()), "{codec}: {given:?}");
        codec.decode(&encoded, &mut decoded);
        assert!(decoded.iter().any(|value| !value.is_finite()), "{codec}: {given:?}");
        return;
    }
    let (mut left, mut encoded) = (given.clone(), vec![0xff; codec.encoded_bytes(given.len())]);
    codec.encode(u64::from(head[3]), &mut left, &mut encoded);
    assert_eq!(codec.check(given.len(), &encoded), Ok(()), "{codec}: {given:?}");
    assert!(left.iter().all(|value| value.is_finite()), "{codec}: {left:?}");
});
