//! Every type of elements and every rule, through real servers: several workers, chunks on two servers, a few rounds,
//! against the rule's formula in f64.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::Cluster;
use gradwire_tests::rigs::job::{declare, join};
use gradwire_worker::{Client, ClientError, Element, OpError};
use half::{bf16, f16};
use proto_common::optimizer::{Decay, Moments, Optimizer, Rule, Schedule};
use proto_common::tensor::TensorSpec;

const WORKERS: u32 = 3;
const ROUNDS: u64 = 4;
/// Several chunks of every type, the last of them partial.
const COUNT: usize = 5003;
const SMALL: Moments = Moments { beta1: 0.9, beta2: 0.99, epsilon: 1e-6 };

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
    let scheduled = Optimizer { schedule, weight_decay: 0.125, ..Optimizer::mean(Rule::AdamW(SMALL), 0.5) };
    vec![
        Optimizer::sum(),
        Optimizer::assign(),
        Optimizer::sgd(0.5, 0.5, 0.125),
        Optimizer::mean(Rule::Sgd { momentum: 0.5, nesterov: true }, 0.5),
        Optimizer::mean(Rule::AdaGrad { epsilon: 1e-6 }, 0.5),
        Optimizer::mean(Rule::RmsProp { decay: 0.5, epsilon: 1e-6 }, 0.5),
        Optimizer::mean(Rule::Adam(SMALL), 0.5),
        scheduled,
        Optimizer { weight_decay: 0.125, ..Optimizer::mean(Rule::Lamb(SMALL), 0.125) },
        Optimizer::mean(Rule::Ftrl { beta: 1.0, l1: 0.25, l2: 0.5 }, 0.5),
    ]
}

/// Of these every type has exact values.
fn initial(at: usize) -> f64 {
    (at % 16) as f64 / 16.0 - 0.5
}

fn gradient(at: usize, rank: u32, round: u64) -> f64 {
    let parts = (at * 7 + rank as usize * 3 + round as usize) % 32;
    parts as f64 / 32.0 - 0.25
}

/// The weight of one element after all rounds.
fn one_by_one(optimizer: &Optimizer, at: usize) -> f64 {
    let (mut w, mut a, mut b) = (initial(at), 0.0, 0.0);
    for round in 1..=ROUNDS {
        let sum: f64 = (0..WORKERS).map(|rank| gradient(at, rank, round)).sum();
        let step = optimizer.step(round, WORKERS);
        let (lr, g) = (step.rate, sum * step.scale);
        let d = g + step.decay * w;
        let of = f64::from;
        let mut adam = |m: Moments, d: f64| {
            a = of(m.beta1) * a + (1.0 - of(m.beta1)) * d;
            b = of(m.beta2) * b + (1.0 - of(m.beta2)) * d * d;
            lr * (a / step.bias1) / ((b / step.bias2).sqrt() + of(m.epsilon))
        };
        match optimizer.rule {
            Rule::Sum => w += g,
            Rule::Assign => w = g,
            Rule::Sgd { momentum, nesterov } => {
                a = of(momentum) * a + d;
                w -= lr * if nesterov { d + of(momentum) * a } else { a };
            }
            Rule::AdaGrad { epsilon } => {
                a += d * d;
                w -= lr * d / (a.sqrt() + of(epsilon));
            }
            Rule::RmsProp { decay, epsilon } => {
                a = of(decay) * a + (1.0 - of(decay)) * d * d;
                w -= lr * d / (a.sqrt() + of(epsilon));
            }
            Rule::Adam(moments) => w -= adam(moments, d),
            Rule::AdamW(moments) => w -= lr * step.decay * w + adam(moments, g),
            Rule::Ftrl { beta, l1, l2 } => {
                let (before, after) = (b.sqrt(), (b + d * d).sqrt());
                a += d - (after - before) / lr * w;
                b += d * d;
                let below = (of(beta) + after) / lr + of(l2);
                w = if a.abs() <= of(l1) { 0.0 } else { -(a - a.signum() * of(l1)) / below };
            }
            Rule::Lamb(_) | Rule::Exchange { .. } => unreachable!("not a rule for elements by themselves"),
        }
    }
    w
}

/// All weights of a tensor after all rounds.
fn expected(optimizer: &Optimizer) -> Vec<f64> {
    let Rule::Lamb(moments) = optimizer.rule else {
        return (0..COUNT).map(|at| one_by_one(optimizer, at)).collect();
    };
    let (b1, b2) = (f64::from(moments.beta1), f64::from(moments.beta2));
    let mut w: Vec<f64> = (0..COUNT).map(initial).collect();
    let (mut m, mut v) = (vec![0.0; COUNT], vec![0.0; COUNT]);
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    for round in 1..=ROUNDS {
        let step = optimizer.step(round, WORKERS);
        let mut u = vec![0.0; COUNT];
        for at in 0..COUNT {
            let g = (0..WORKERS).map(|rank| gradient(at, rank, round)).sum::<f64>() * step.scale;
            m[at] = b1 * m[at] + (1.0 - b1) * g;
            v[at] = b2 * v[at] + (1.0 - b2) * g * g;
            let below = (v[at] / step.bias2).sqrt() + f64::from(moments.epsilon);
            u[at] = m[at] / step.bias1 / below + step.decay * w[at];
        }
        let rate = step.rate * norm(&w) / norm(&u);
        w.iter_mut().zip(&u).for_each(|(w, u)| *w -= rate * u);
    }
    w
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
