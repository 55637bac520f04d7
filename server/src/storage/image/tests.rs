//! Images: a chunk that goes on from one makes the same bits; what is no image is refused and harms nothing.

use super::*;
use crate::engine::{Addend, ChunkSpec, Onto, Source};
use crate::storage::{Cells, Round};
use proptest::prelude::*;
use proto_common::codec::Codec;
use proto_common::ids::ChunkId;
use proto_common::mode::Mode;
use proto_common::optimizer::{Adam, KINDS, Optimizer, Sgd};

const ELEMENTS: usize = 96;

fn spec(dtype: Dtype, optimizer: Optimizer) -> ChunkSpec {
    ChunkSpec {
        id: ChunkId::new(1, 0),
        bytes: (ELEMENTS * dtype.bytes()) as u64,
        dynamic: false,
        dtype,
        codec: Codec::Plain,
        optimizer,
        mode: Mode::Sync,
        backup_workers: 0,
    }
}

fn storage(spec: &ChunkSpec) -> Storage {
    let cells = || Cells::allocate(2, 1 << 10, "image-test").unwrap();
    let mut storage = Storage::new(cells(), cells()).unwrap();
    storage.add(spec).unwrap();
    storage
}

/// Rounds from `first` to `last`, each of two contributions, written into the same buffer.
fn rounds(storage: &mut Storage, first: u64, last: u64, norms: bool) {
    let slot = |slot| Source::Slot { slot, offset: 0 };
    for number in first..=last {
        for at in 0..2u64 {
            let values: Vec<u8> = (0..1 << 10).map(|i| ((i * 7 + at + 3 * number) % 29) as u8).collect();
            storage.areas.inbox.memory().write(at << 10, &values).unwrap();
        }
        let one = Addend { from: slot(0), onto: Onto::Nothing };
        storage.reduce(0, one, &[None, None]).unwrap();
        let other = Some(Addend { from: slot(1), onto: Onto::Sum });
        let mut round = Round { number, last: other, old: 0, into: 0, contributors: 2 };
        if norms {
            storage.prepare(0, &round, &[None, None]).unwrap();
            storage.norms(0..1);
            round.last = None;
        }
        storage.finish(0, &round, &[None, None]).unwrap();
    }
}

fn state(version: u64) -> ChunkState {
    ChunkState { version, versions: (version, version), initialised: true, ..ChunkState::default() }
}

fn image_of(storage: &Storage, version: u64) -> Vec<u8> {
    let mut out = Vec::new();
    storage.save_image(0, &state(version), 0, &mut out).unwrap();
    out
}

fn rules(dtype: Dtype) -> Vec<Optimizer> {
    if dtype.is_integer() {
        return vec![Optimizer::sum(), Optimizer::assign()];
    }
    let usual = KINDS.iter().filter(|kind| !kind.is_internal).map(|kind| Optimizer::usual(kind.usual()));
    let mut all: Vec<_> = usual.map(|rule| Optimizer { learning_rate: 0.25, ..rule }).collect();
    all.extend([Optimizer::sgd(0.5, 0.9, 0.1), Optimizer::mean(Sgd { momentum: 0.5, nesterov: true }, 0.25)]);
    all
}

#[test]
fn a_chunk_that_goes_on_from_an_image_makes_the_same_bits() {
    for dtype in Dtype::ALL {
        for rule in rules(dtype) {
            let spec = spec(dtype, rule);
            let norms = rule.needs_norms();
            let mut first = storage(&spec);
            first.areas.inbox.memory().write(0, &[1; 1 << 10]).unwrap();
            first.init(0, Source::Slot { slot: 0, offset: 0 }, None, 0).unwrap();
            rounds(&mut first, 1, 3, norms);
            let bytes = image_of(&first, 3);
            assert!(bytes.len() <= first.image_bytes_max(0).unwrap());
            let mut other = storage(&spec);
            let image = Image::read(&bytes).unwrap();
            assert_eq!(image.state, state(3));
            other.load_image(0, &image, 0, true).unwrap();
            assert!(image_of(&other, 3) == bytes, "{dtype} {rule:?}");
            rounds(&mut first, 4, 6, norms);
            rounds(&mut other, 4, 6, norms);
            assert!(image_of(&first, 6) == image_of(&other, 6), "{dtype} {rule:?}");
            assert!(image_of(&first, 6)[200..] != bytes[200..], "rounds change something");
        }
    }
}

#[test]
fn changes_of_a_rule_that_are_to_come_are_in_the_image() {
    let spec = spec(Dtype::F32, Optimizer::sgd(0.5, 0.9, 0.0));
    let (mut first, mut other) = (storage(&spec), storage(&spec));
    rounds(&mut first, 1, 2, false);
    first.change_rule(&[(0, 4)], Optimizer::mean(Adam::default(), 0.1)).unwrap();
    let bytes = image_of(&first, 2);
    other.load_image(0, &Image::read(&bytes).unwrap(), 0, true).unwrap();
    rounds(&mut first, 3, 6, false);
    rounds(&mut other, 3, 6, false);
    let bytes = image_of(&first, 6);
    assert!(bytes == image_of(&other, 6));
    // And an image of a chunk whose rule keeps other arrays than when it was made.
    let mut third = storage(&spec);
    third.load_image(0, &Image::read(&bytes).unwrap(), 0, true).unwrap();
    assert!(bytes == image_of(&third, 6));
}

#[test]
fn weights_before_those_in_force_come_along() {
    let spec = spec(Dtype::F32, Optimizer::sum());
    let (mut first, mut other) = (storage(&spec), storage(&spec));
    first.stored_mut(0).unwrap().weights[1].fill(7);
    rounds(&mut first, 1, 1, false);
    let state = ChunkState { previous: Some((0, 0)), ..state(1) };
    let mut bytes = Vec::new();
    first.save_image(0, &state, 0, &mut bytes).unwrap();
    let image = Image::read(&bytes).unwrap();
    assert_eq!(image.previous, Some(&[7; 4 * ELEMENTS][..]));
    let weights = image.weights.to_vec();
    assert_eq!(other.load_image(0, &image, 1, false).unwrap(), (1, true));
    assert_eq!(other.stored(0).unwrap().weights[0][..], [7; 4 * ELEMENTS]);
    other.stored_mut(0).unwrap().weights[0].fill(9);
    assert_eq!(other.load_image(0, &image, 1, true).unwrap(), (1, false));
    assert_eq!(other.stored(0).unwrap().weights[0][..], [9; 4 * ELEMENTS], "somebody reads it");
    // Somebody reads these weights, and a restarted worker may ask for those before.
    assert_eq!(other.load_image(0, &image, 0, true).unwrap(), (1, true));
    let stored = other.stored(0).unwrap();
    assert_eq!((&stored.weights[0][..], &stored.weights[1][..]), (&[7; 4 * ELEMENTS][..], &weights[..]));
}

#[test]
fn an_image_of_another_chunk_is_refused_and_changes_nothing() {
    let f32s = spec(Dtype::F32, Optimizer::sgd(0.5, 0.9, 0.0));
    let mut own = storage(&f32s);
    let before = image_of(&own, 0);
    let strangers = [
        spec(Dtype::F64, Optimizer::sum()),
        spec(Dtype::I32, Optimizer::sum()),
        ChunkSpec { bytes: 64, ..f32s },
    ];
    for stranger in strangers {
        let bytes = image_of(&storage(&stranger), 0);
        let refused = own.load_image(0, &Image::read(&bytes).unwrap(), 0, true);
        assert!(matches!(refused, Err(StorageError::Image(ImageError::Shape { .. }))), "{refused:?}");
    }
    assert!(image_of(&own, 0) == before);
    // Integers take exact rules only.
    let mut integers = storage(&spec(Dtype::I32, Optimizer::sum()));
    integers.stored_mut(0).unwrap().rule = CurrentRule::new(Optimizer::sgd(1.0, 0.0, 0.0));
    let bytes = image_of(&integers, 0);
    let refused = integers.load_image(0, &Image::read(&bytes).unwrap(), 0, true);
    assert!(matches!(refused, Err(StorageError::Image(ImageError::Rule))));
}

proptest! {
    #[test]
    fn whatever_the_bytes_are_reading_them_harms_nothing(
        cut in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
        whole: bool,
    ) {
        let spec = spec(Dtype::Bf16, Optimizer::mean(Adam::default(), 0.1));
        let mut own = storage(&spec);
        let mut bytes = image_of(&own, 2);
        // Most of an image is numbers, any of which will do: heads are what can be wrong.
        let place = at.index(400);
        bytes[place] ^= flip;
        if !whole {
            bytes.truncate(cut.index(bytes.len()));
            prop_assert!(Image::read(&bytes).is_err());
        } else if let Ok(image) = Image::read(&bytes) {
            let _ = own.load_image(0, &image, 0, false);
        }
    }
}
