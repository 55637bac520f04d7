//! Rules of the program in storage: what they compute, that it does not depend on how a tensor is cut, and that images carry
//! their state.

use super::*;
use crate::engine::ChunkState;
use crate::own::{Block, OwnRule};
use proto_common::half::f32_to_f16;
use proto_common::ids::ChunkId;
use proto_common::mode::Mode;
use proto_common::optimizer::{Own, OwnKind, Range as Allowed};

/// More than two blocks of a rule's loop.
const ELEMENTS: usize = 3000;
const SLOT_BYTES: u64 = 16 << 10;
const MU: f32 = 0.25;

/// Momentum with weight decay, which counts its rounds in the second array.
struct Heavy;

impl OwnRule for Heavy {
    fn kind(&self) -> OwnKind {
        OwnKind::new("heavy").parameter("mu", Allowed::Share, 0.5).keeps(2)
    }

    fn update(&self, step: &OwnStep<'_>, block: Block<'_, f32>) {
        let [mu] = *step.parameters else { panic!("it has one parameter") };
        let (rate, decay) = (step.rate, step.decay);
        block.with_two(|w, g, [m, count]| {
            let m = mu * m + g;
            (w - rate * (m + decay * w), [m, count + 1.0])
        });
    }
}

struct Broken;

impl OwnRule for Broken {
    fn kind(&self) -> OwnKind {
        OwnKind::new("broken")
    }

    fn update(&self, step: &OwnStep<'_>, _: Block<'_, f32>) {
        assert!(step.round < 2, "round {} is too much", step.round);
    }
}

fn rules() -> Rules {
    let mut rules = Rules::default();
    rules.register(Heavy).unwrap();
    rules.register(Broken).unwrap();
    rules
}

fn optimizer(name: &str, parameters: &[(&str, f32)]) -> Optimizer {
    let own = Own::new(name, parameters).unwrap().settled(&rules().kinds()).unwrap();
    Optimizer { weight_decay: 0.125, ..Optimizer::mean(own, 0.5) }
}

fn spec(dtype: Dtype, elements: usize, optimizer: Optimizer) -> ChunkSpec {
    ChunkSpec {
        id: ChunkId::new(1, 0),
        bytes: (elements * dtype.bytes()) as u64,
        dynamic: false,
        dtype,
        codec: Codec::Plain,
        optimizer,
        mode: Mode::Sync,
        backup_workers: 0,
    }
}

/// A storage with chunks of so many elements.
fn storage(dtype: Dtype, cut: &[usize]) -> Storage {
    let cells = || Cells::allocate(2, SLOT_BYTES, "own-test").unwrap();
    let mut storage = Storage::new(cells(), cells()).unwrap();
    storage.set_rules(rules());
    for elements in cut {
        storage.add(&spec(dtype, *elements, optimizer("heavy", &[("mu", MU)]))).unwrap();
    }
    storage
}

/// What a worker contributes; exact in all types.
fn value(at: usize, round: u64, worker: u64) -> f32 {
    ((at * 7 + (3 * round + worker) as usize) % 29) as f32 - 14.0
}

fn bytes_of(dtype: Dtype, value: f32) -> Vec<u8> {
    match dtype {
        Dtype::F16 => f32_to_f16(value).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    }
}

/// A round of all chunks, each of two contributions.
fn round(
    storage: &mut Storage,
    (dtype, cut): (Dtype, &[usize]),
    number: u64,
    (old, into): (u8, u8),
) -> Result<(), StorageError> {
    let mut start = 0;
    for (chunk, elements) in (0u32..).zip(cut) {
        for worker in 0..2 {
            let values = (start..start + elements).flat_map(|at| bytes_of(dtype, value(at, number, worker)));
            let values: Vec<u8> = values.collect();
            storage.areas.inbox.memory().write(worker * SLOT_BYTES, &values)?;
        }
        let slot = |slot| Source::Slot { slot, offset: 0 };
        storage.reduce(chunk, Addend { from: slot(0), onto: Onto::Nothing }, &[None, None])?;
        let last = Some(Addend { from: slot(1), onto: Onto::Sum });
        storage.finish(chunk, &Round { number, last, old, into, contributors: 2 }, &[None, None])?;
        start += elements;
    }
    Ok(())
}

/// Buffer, exact weights and state of all chunks, one behind the other.
fn bits(storage: &Storage, chunks: u32, buffer: usize) -> [Vec<u8>; 4] {
    let mut all: [Vec<u8>; 4] = Default::default();
    for chunk in 0..chunks {
        let stored = storage.stored(chunk).unwrap();
        let [first, second, master] = stored.numbers.kept();
        for (all, part) in all.iter_mut().zip([&stored.weights[buffer][..], first, second, master]) {
            all.extend_from_slice(part);
        }
    }
    all
}

/// Rounds in place, and into the other buffer.
const BUFFERS: [(u8, u8); 4] = [(0, 0), (0, 1), (1, 0), (0, 1)];

#[test]
fn it_is_the_formula_wherever_the_tensor_is_cut() {
    for dtype in [Dtype::F32, Dtype::F16] {
        let mut expected = vec![[0f32; 3]; ELEMENTS];
        for (number, at) in (1..=4).flat_map(|number| (0..ELEMENTS).map(move |at| (number, at))) {
            let [w, m, count] = expected[at];
            let g = (value(at, number, 0) + value(at, number, 1)) * 0.5;
            let m = MU * m + g;
            expected[at] = [w - 0.5 * (m + 0.125 * w), m, count + 1.0];
        }
        for cut in [&[ELEMENTS][..], &[1, 1023, 1976], &[1500, 1500]] {
            let mut storage = storage(dtype, cut);
            for (number, buffers) in (1..).zip(BUFFERS) {
                round(&mut storage, (dtype, cut), number, buffers).unwrap();
            }
            let [weights, first, second, master] = bits(&storage, cut.len() as u32, 1);
            let column = |of: usize| expected.iter().flat_map(|e| e[of].to_ne_bytes()).collect::<Vec<u8>>();
            assert_eq!((first, second), (column(1), column(2)), "{dtype} {cut:?}");
            let published: Vec<u8> = expected.iter().flat_map(|[w, ..]| bytes_of(dtype, *w)).collect();
            assert_eq!(weights, published, "{dtype} {cut:?}");
            assert_eq!(master, if dtype == Dtype::F16 { column(0) } else { Vec::new() });
        }
    }
}

#[test]
fn a_chunk_continues_from_its_image_where_the_program_has_its_rule() {
    for dtype in [Dtype::F32, Dtype::F16] {
        let cut = &[ELEMENTS][..];
        let (mut whole, mut next) = (storage(dtype, cut), storage(dtype, cut));
        for number in 1..=2 {
            round(&mut whole, (dtype, cut), number, (0, 0)).unwrap();
        }
        let state = ChunkState { version: 2, versions: (2, 2), initialised: true, ..ChunkState::default() };
        let mut bytes = Vec::new();
        whole.save_image(0, &state, 0, &mut bytes).unwrap();
        let image = Image::read(&bytes).unwrap();
        next.load_image(0, &image, 0, false).unwrap();
        for storage in [&mut whole, &mut next] {
            round(storage, (dtype, cut), 3, (0, 0)).unwrap();
        }
        assert_eq!(bits(&whole, 1, 0), bits(&next, 1, 0));
        next.set_rules(Rules::default());
        let error = next.load_image(0, &image, 0, false).unwrap_err().to_string();
        assert!(error.contains("no update rule heavy") && error.contains("register it"), "{error}");
    }
}

#[test]
fn a_chunk_cannot_have_a_rule_that_the_program_does_not_have() {
    let mut storage = storage(Dtype::F32, &[8]);
    let heavy = optimizer("heavy", &[]);
    storage.change_rule(&[(0, 2)], heavy).unwrap();
    let alien = |own: Own| Optimizer { rule: own.into(), ..heavy };
    let other = alien(Own::new("other", &[]).unwrap());
    let fewer = alien(Own { arrays: 2, ..Own::new("heavy", &[]).unwrap() });
    for (optimizer, what) in [(other, "no update rule other"), (fewer, "update rule heavy of this server")] {
        let added = storage.add_at(1, &spec(Dtype::F32, 8, optimizer)).unwrap_err().to_string();
        let changed = storage.change_rule(&[(0, 3)], optimizer).unwrap_err().to_string();
        let taken = storage.take_rule_changes(0, &[(4, optimizer)], 0).unwrap_err().to_string();
        for text in [added, changed, taken] {
            assert!(text.contains(what), "{text}");
        }
    }
}

#[test]
fn a_panic_is_an_error_that_names_the_rule() {
    let mut storage = storage(Dtype::F32, &[8]);
    storage.change_rule(&[(0, 1)], optimizer("broken", &[])).unwrap();
    round(&mut storage, (Dtype::F32, &[8]), 1, (0, 0)).unwrap();
    let error = round(&mut storage, (Dtype::F32, &[8]), 2, (0, 0)).unwrap_err().to_string();
    assert_eq!(error, "update rule broken of this server's program panicked: round 2 is too much");
}

#[test]
fn a_rule_is_registered_once() {
    let mut rules = rules();
    assert!(rules.register(Heavy).unwrap_err().to_string().contains("registered twice"));
    assert_eq!(rules.kinds().len(), 2);
}
