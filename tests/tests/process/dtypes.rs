//! Every type of elements and every rule, through real servers: several workers, chunks on two servers, a few rounds,
//! against the rule in one place and in f64.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::Cluster;
use gradwire_tests::rigs::job::{declare, join};
use gradwire_worker::{Client, ClientError, Element, OpError};
use half::{bf16, f16};
use proto_common::optimizer::elements::{Block, SquareSums, Steps};
use proto_common::optimizer::{AdamW, Decay, KINDS, Optimizer, Schedule, Sgd};
use proto_common::tensor::TensorSpec;

const WORKERS: u32 = 3;
const ROUNDS: u64 = 4;
/// Several chunks of every type, the last of them partial.
const COUNT: usize = 5003;

/// A number between a type of elements and f64.
trait Value: Element {
    fn of(value: f64) -> Self;
    fn exact(self) -> f64;
    /// The relative error of one rounding.
    const ERROR: f64;
}

macro_rules! values {
    ($($value:ty: $of:expr, $exact:expr, $error:expr;)*) => {
        $(impl Value for $value {
            const ERROR: f64 = $error;
            fn of(value: f64) -> Self {
                ($of)(value)
            }
            fn exact(self) -> f64 {
                ($exact)(self)
            }
        })*
    };
}

values! {
    f32: |value| value as f32, f64::from, 1e-6;
    f64: |value| value, |value| value, 1e-13;
    f16: f16::from_f64, f64::from, 1e-3;
    bf16: bf16::from_f64, f64::from, 8e-3;
}

fn rules() -> Vec<Optimizer> {
    let schedule = Schedule { warmup_rounds: 2, decay: Decay::Cosine { rounds: 4, last: 0.1 } };
    let shown = KINDS.iter().filter(|kind| !kind.is_internal);
    let mut rules: Vec<Optimizer> = shown.map(|kind| Optimizer::usual(kind.usual())).collect();
    for rule in rules.iter_mut().filter(|rule| rule.rule.kind().steps) {
        (rule.learning_rate, rule.weight_decay) = (0.125, 0.125);
    }
    rules.extend([
        Optimizer::sgd(0.5, 0.5, 0.125),
        Optimizer::mean(Sgd { momentum: 0.5, nesterov: true }, 0.5),
        Optimizer { schedule, weight_decay: 0.125, ..Optimizer::mean(AdamW::default(), 0.5) },
    ]);
    rules
}

/// Of these every type has exact values.
fn initial(at: usize) -> f64 {
    (at % 16) as f64 / 16.0 - 0.5
}

fn gradient(at: usize, rank: u32, round: u64) -> f64 {
    let parts = (at * 7 + rank as usize * 3 + round as usize) % 32;
    parts as f64 / 32.0 - 0.25
}

/// All weights of a tensor after all rounds: in one place, and in f64.
fn expected(optimizer: &Optimizer) -> Vec<f64> {
    let mut weights: Vec<f64> = (0..COUNT).map(initial).collect();
    let mut state = [0, 1].map(|array| vec![0.0; if array < optimizer.state_arrays() { COUNT } else { 0 }]);
    for round in 1..=ROUNDS {
        let sum = |at| (0..WORKERS).map(|rank| gradient(at, rank, round)).sum();
        let mut sum: Vec<f64> = (0..COUNT).map(sum).collect();
        let mut step = optimizer.step(round, WORKERS);
        if optimizer.needs_norms() {
            let ([first, second], mut squares) = (&mut state, SquareSums::default());
            let state = [&mut first[..], &mut second[..]];
            step.direction(Steps { sum: &mut sum, weights: &weights, state, squares: &mut squares });
            let [of_weights, of_steps] = squares.totals();
            step = step.along((of_weights / of_steps).sqrt());
        }
        let [first, second] = &mut state;
        step.update(Block { weights: &mut weights, sum: &sum, state: [first, second] });
    }
    weights
}

/// All rounds of one tensor for each rule, by this worker.
fn train<T: Value>(client: &Client, first_key: u64) {
    for (key, optimizer) in (first_key..).zip(rules()) {
        let tensor = client.tensor(key).unwrap();
        let start: Vec<T> = (0..COUNT).map(|at| T::of(initial(at))).collect();
        client.init(&tensor, &start).unwrap();
        let mut weights = vec![T::of(0.0); COUNT];
        for round in 1..=ROUNDS {
            let gradient: Vec<T> = (0..COUNT).map(|at| T::of(gradient(at, client.rank(), round))).collect();
            let version = client.push_pull_slice(&tensor, &gradient, &mut weights).unwrap();
            assert_eq!(version.0, round);
        }
        for (at, (found, expected)) in weights.iter().zip(expected(&optimizer)).enumerate() {
            let found = found.exact();
            let error = (found - expected).abs();
            assert!(error <= T::ERROR * (1.0 + expected.abs()), "{optimizer:?} {at}: {found} {expected}");
        }
    }
}

#[test]
fn every_rule_on_every_type() {
    let words = ["--set", "cluster.chunk_bytes=4096"];
    let mut cluster = Cluster::new(2, WORKERS, &words);
    cluster.add_servers(2, &[]);
    let clients = join(&cluster, WORKERS, |_| {});
    let of = |first: u64, dtype| {
        let keys = (first..).zip(rules());
        keys.map(move |(key, rule)| TensorSpec::of(dtype, key, COUNT as u64, rule)).collect::<Vec<_>>()
    };
    let all = [of(100, f32::DTYPE), of(200, f64::DTYPE), of(300, f16::DTYPE), of(400, bf16::DTYPE)];
    declare(&clients, &all.concat());
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                train::<f32>(client, 100);
                train::<f64>(client, 200);
                train::<f16>(client, 300);
                train::<bf16>(client, 400);
            });
        }
    });
    let error = clients[0].push_slice(&clients[0].tensor(200).unwrap(), &[1.0f32; COUNT]).unwrap_err();
    assert!(error.to_string().contains("f64") && error.to_string().contains("f32"), "{error}");
    drop(clients);
    cluster.assert_no_panic();
}

/// An integer, as what it is.
trait Whole: Element + TryFrom<i128> + Into<i128> + PartialEq + std::fmt::Debug {
    const MOST: i128;
    fn of(value: i128) -> Self {
        Self::try_from(value).ok().expect("a small value")
    }
}

macro_rules! wholes {
    ($($whole:ty)*) => {
        $(impl Whole for $whole {
            const MOST: i128 = <$whole>::MAX as i128;
        })*
    };
}

wholes!(i8 u8 i32 i64);

/// Rounds of sums and of values, and between them one of which an element does not fit.
fn count<T: Whole>(client: &Client, first_key: u64) {
    let rank = i128::from(client.rank());
    let values =
        |round: i128| (0..COUNT as i128).map(|at| T::of((at + rank * round) % 7)).collect::<Vec<T>>();
    let all =
        |at: i128, round: i128| (0..i128::from(WORKERS)).map(|rank| (at + rank * round) % 7).sum::<i128>();
    let (sum, assign) = (client.tensor(first_key).unwrap(), client.tensor(first_key + 1).unwrap());
    let mut weights = vec![T::of(0); COUNT];
    let check = |weights: &[T], expected: &dyn Fn(i128) -> i128| {
        let wrong = (0i128..).zip(weights).find(|(at, found)| T::of(expected(*at)) != **found);
        assert!(wrong.is_none(), "{:?}: {wrong:?}", T::DTYPE);
    };
    client.init(&sum, &[T::of(3); COUNT]).unwrap();
    client.push_pull_slice(&sum, &values(1), &mut weights).unwrap();
    check(&weights, &|at| 3 + all(at, 1));
    client.push_pull_slice(&assign, &values(2), &mut weights).unwrap();
    check(&weights, &|at| all(at, 2));

    // The sum fits everywhere but in one element of one chunk, of rank 1.
    let mut large = vec![T::of(0); COUNT];
    if rank == 1 {
        large[COUNT / 2] = T::of(T::MOST);
    } else {
        large[COUNT / 2] = T::of(1);
    }
    for tensor in [&sum, &assign] {
        let error = client.push_pull_slice(tensor, &large, &mut weights).unwrap_err();
        let ClientError::Op(OpError::BadValue { chunk, round: 2, dtype, .. }) = &error else {
            panic!("{error}")
        };
        assert_eq!((chunk.key, *dtype), (tensor.key(), T::DTYPE));
        assert!(error.to_string().contains("wider type"), "{error}");
    }
    // The next round goes on from the weights that were kept.
    let version = client.push_pull_slice(&sum, &values(4), &mut weights).unwrap();
    assert_eq!(version.0, 3);
    check(&weights, &|at| 3 + all(at, 1) + all(at, 4));
    client.push_pull_slice(&assign, &values(5), &mut weights).unwrap();
    check(&weights, &|at| all(at, 5));
}

#[test]
fn integers_are_exact_and_what_does_not_fit_is_told_to_all() {
    let words = ["--set", "cluster.chunk_bytes=4096"];
    let mut cluster = Cluster::new(2, WORKERS, &words);
    cluster.add_servers(2, &[]);
    let clients = join(&cluster, WORKERS, |_| {});
    let of = |key, dtype| {
        let elements = COUNT as u64;
        let sum = TensorSpec::of(dtype, key, elements, Optimizer::sum());
        [sum, TensorSpec::of(dtype, key + 1, elements, Optimizer::assign())]
    };
    declare(
        &clients,
        &[of(10, i8::DTYPE), of(20, u8::DTYPE), of(30, i32::DTYPE), of(40, i64::DTYPE)].concat(),
    );
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| {
                count::<i8>(client, 10);
                count::<u8>(client, 20);
                count::<i32>(client, 30);
                count::<i64>(client, 40);
            });
        }
    });
    drop(clients);
    cluster.assert_no_panic();
}
