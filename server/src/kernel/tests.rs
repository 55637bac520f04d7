//! Rules against their formulas in f64, over several rounds, and the same bits in place as out of place and in blocks of
//! any length.

use super::*;
use proptest::prelude::*;
use proto_common::optimizer::{Decay, Form, Moments, Optimizer, Rule, Schedule};

const MOMENTS: Moments = Moments { beta1: 0.8, beta2: 0.95, epsilon: 1e-6 };

/// Every rule, each once with weight decay.
fn rules() -> Vec<Optimizer> {
    let of = [
        Rule::Sgd { momentum: 0.0, nesterov: false },
        Rule::Sgd { momentum: 0.9, nesterov: false },
        Rule::Sgd { momentum: 0.9, nesterov: true },
        Rule::AdaGrad { epsilon: 1e-6 },
        Rule::RmsProp { decay: 0.9, epsilon: 1e-6 },
        Rule::Adam(MOMENTS),
        Rule::AdamW(MOMENTS),
        Rule::Ftrl { beta: 1.0, l1: 0.1, l2: 0.01 },
    ];
    let schedule = Schedule { warmup_rounds: 2, decay: Decay::Exponential { factor: 0.9 } };
    let with_decay = |rule| {
        let constant = Optimizer::mean(rule, 0.1);
        let plain =
            if matches!(rule, Rule::Ftrl { .. }) { constant } else { Optimizer { schedule, ..constant } };
        [plain, Optimizer { weight_decay: 0.01, ..plain }]
    };
    let mut all: Vec<Optimizer> = of.into_iter().flat_map(with_decay).collect();
    let as_mxnet = |optimizer: &Optimizer| Optimizer { form: Form::Mxnet, rescale: 0.25, ..*optimizer };
    all.extend(all.iter().map(as_mxnet).collect::<Vec<_>>());
    all.extend([Optimizer::sum(), Optimizer::assign(), Optimizer { average: true, ..Optimizer::assign() }]);
    all
}

/// One element, in f64: weight, and the arrays that the rule keeps.
struct Reference {
    optimizer: Optimizer,
    w: f64,
    state: [f64; 2],
}

impl Reference {
    fn step(&mut self, round: u64, contributors: u32, sum: f32) {
        let Optimizer { rule, learning_rate, schedule, weight_decay, average, rescale, form } =
            self.optimizer;
        let mxnets = form == Form::Mxnet;
        let lr = f64::from(learning_rate) * schedule.factor(round);
        let g = f64::from(sum) * f64::from(rescale) / if average { f64::from(contributors) } else { 1.0 };
        let decay = f64::from(weight_decay);
        let d = g + decay * self.w;
        let [a, b] = &mut self.state;
        let mut adam = |moments: Moments, d: f64| {
            let (b1, b2) = (f64::from(moments.beta1), f64::from(moments.beta2));
            *a = b1 * *a + (1.0 - b1) * d;
            *b = b2 * *b + (1.0 - b2) * d * d;
            let (c1, c2) = (1.0 - b1.powi(round as i32), 1.0 - b2.powi(round as i32));
            let epsilon = f64::from(moments.epsilon);
            match mxnets {
                true => lr * c2.sqrt() / c1 * *a / (b.sqrt() + epsilon),
                false => lr * (*a / c1) / ((*b / c2).sqrt() + epsilon),
            }
        };
        match rule {
            Rule::Sum => self.w += g,
            Rule::Assign => self.w = g,
            Rule::Sgd { momentum, nesterov } if mxnets => {
                let mu = f64::from(momentum);
                *a = mu * *a - lr * d;
                self.w += if nesterov { mu * *a - lr * d } else { *a };
            }
            Rule::Sgd { momentum, nesterov } => {
                let mu = f64::from(momentum);
                *a = mu * *a + d;
                self.w -= lr * if nesterov { d + mu * *a } else { *a };
            }
            Rule::AdaGrad { epsilon } if mxnets => {
                *a += g * g;
                self.w -= lr * (g / (*a + f64::from(epsilon)).sqrt() + decay * self.w);
            }
            Rule::AdaGrad { epsilon } => {
                *a += d * d;
                self.w -= lr * d / (a.sqrt() + f64::from(epsilon));
            }
            Rule::RmsProp { decay, epsilon } => {
                *a = f64::from(decay) * *a + (1.0 - f64::from(decay)) * d * d;
                let epsilon = f64::from(epsilon);
                self.w -= lr * d / if mxnets { (*a + epsilon).sqrt() } else { a.sqrt() + epsilon };
            }
            Rule::Adam(moments) => self.w -= adam(moments, d),
            Rule::AdamW(moments) => {
                let c = |beta: f32| 1.0 - f64::from(beta).powi(round as i32);
                let corrected = if mxnets { c(moments.beta2).sqrt() / c(moments.beta1) } else { 1.0 };
                self.w -= lr * corrected * decay * self.w + adam(moments, g);
            }
            Rule::Ftrl { beta, l1, l2 } => {
                let (l1, n) = (f64::from(l1), *b + d * d);
                *a += d - (n.sqrt() - b.sqrt()) / lr * self.w;
                *b = n;
                let below = (f64::from(beta) + n.sqrt()) / lr + f64::from(l2);
                self.w = if a.abs() <= l1 { 0.0 } else { -(*a - a.signum() * l1) / below };
            }
            Rule::Lamb(_) | Rule::Exchange { .. } => unreachable!("see lamb, and below"),
        }
    }
}

/// A chunk of weights with the arrays of its rule.
#[derive(Clone, Debug, PartialEq)]
struct Chunk {
    optimizer: Optimizer,
    weights: Vec<f32>,
    state: [Vec<f32>; 2],
}

impl Chunk {
    fn new(optimizer: Optimizer, weights: Vec<f32>) -> Self {
        let arrays = optimizer.state_arrays();
        let array = |index| if index < arrays { vec![0.0; weights.len()] } else { Vec::new() };
        Self { optimizer, state: [array(0), array(1)], weights }
    }

    fn in_place(&mut self, round: u64, contributors: u32, sum: &[f32]) {
        let step = self.optimizer.step(round, contributors);
        let [first, second] = &mut self.state;
        update(&step, sum, Weights::<f32>::InPlace(&mut self.weights), [first, second]);
    }

    fn out_of_place(&mut self, round: u64, contributors: u32, sum: &[f32]) {
        let step = self.optimizer.step(round, contributors);
        let [first, second] = &mut self.state;
        let old = std::mem::replace(&mut self.weights, vec![f32::NAN; sum.len()]);
        let weights: Weights<'_, f32> = Weights::OutOfPlace { old: &old, new: &mut self.weights };
        update(&step, sum, weights, [first, second]);
    }

    /// Every element by itself: loops without vectors, and another place in their blocks.
    fn one_by_one(&mut self, round: u64, contributors: u32, sum: &[f32]) {
        let step = self.optimizer.step(round, contributors);
        let [first, second] = &mut self.state;
        for at in 0..sum.len() {
            let one = |array: &'_ mut Vec<f32>| if array.is_empty() { 0..0 } else { at..at + 1 };
            let (of_first, of_second) = (one(first), one(second));
            let state = [&mut first[of_first], &mut second[of_second]];
            update(&step, &sum[at..=at], Weights::<f32>::InPlace(&mut self.weights[at..=at]), state);
        }
    }
}

fn bits(chunk: &Chunk) -> Vec<u32> {
    chunk.weights.iter().chain(chunk.state.iter().flatten()).map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn rules_agree_with_f64_and_have_the_same_bits_in_any_form(
        start in prop::collection::vec(-2f32..2.0, 1..70),
        rounds in prop::collection::vec((1u32..9, -3f32..3.0), 1..6),
    ) {
        for optimizer in rules() {
            let mut chunk = Chunk::new(optimizer, start.clone());
            let (mut other, mut single) = (chunk.clone(), chunk.clone());
            let mut references: Vec<Reference> = start
                .iter()
                .map(|w| Reference { optimizer, w: f64::from(*w), state: [0.0; 2] })
                .collect();
            for (number, (contributors, scale)) in rounds.iter().enumerate() {
                let (round, count) = (number as u64 + 1, start.len());
                let sum: Vec<f32> = (0..count).map(|i| scale * (0.5 + i as f32 / count as f32)).collect();
                chunk.in_place(round, *contributors, &sum);
                other.out_of_place(round, *contributors, &sum);
                single.one_by_one(round, *contributors, &sum);
                for (reference, sum) in references.iter_mut().zip(&sum) {
                    reference.step(round, *contributors, *sum);
                }
            }
            prop_assert_eq!(bits(&chunk), bits(&other), "out of place, {:?}", optimizer);
            prop_assert_eq!(bits(&chunk), bits(&single), "one by one, {:?}", optimizer);
            for (found, reference) in chunk.weights.iter().zip(&references) {
                let error = (f64::from(*found) - reference.w).abs();
                prop_assert!(error < 1e-4 * (1.0 + reference.w.abs()), "{found} {} {optimizer:?}", reference.w);
            }
        }
    }
}

#[test]
fn the_last_contribution_and_the_sum_are_added_in_the_same_pass() {
    let (last, sum) = ([1.0f32, 2.0, 3.0], [10.0f32, 20.0, 30.0]);
    let mut weights = [0.5f32; 3];
    let step = Optimizer::sum().step(1, 2);
    update(&step, Both(&last[..], &sum[..]), Weights::<f32>::InPlace(&mut weights), [&mut [], &mut []]);
    assert_eq!(weights, [11.5, 22.5, 33.5]);
    let mut sum = sum;
    add(&mut sum, &last[..]);
    assert_eq!(sum, [11.0, 22.0, 33.0]);
}

#[test]
fn ftrl_s_weights_are_zero_below_l1() {
    let optimizer = Optimizer::mean(Rule::Ftrl { beta: 1.0, l1: 1.0, l2: 0.0 }, 0.1);
    let mut chunk = Chunk::new(optimizer, vec![0.0; 2]);
    chunk.in_place(1, 1, &[0.5, -3.0]);
    assert_eq!(chunk.weights[0], 0.0);
    assert!(chunk.weights[1] > 0.0);
}

#[test]
fn f64_rules_are_computed_in_f64() {
    let optimizer = Optimizer::mean(Rule::Adam(MOMENTS), 0.1);
    let (mut weights, mut first, mut second) = (vec![1.0f64; 5], vec![0.0f64; 5], vec![0.0f64; 5]);
    let mut reference = Reference { optimizer, w: 1.0, state: [0.0; 2] };
    for round in 1..20 {
        let sum = 0.25 * round as f32;
        let step = optimizer.step(round, 3);
        let weights = Weights::<f64>::InPlace(&mut weights);
        update(&step, &[f64::from(sum); 5][..], weights, [&mut first, &mut second]);
        reference.step(round, 3, sum);
    }
    assert!((weights[4] - reference.w).abs() < 1e-14, "{} {}", weights[4], reference.w);
}

#[test]
fn halves_are_summed_in_f32_and_published_rounded() {
    let region = fabric::PeerWritable::allocate(64, "halves").unwrap();
    // Each step is too small for a half of weight 1: it shows only because the weights are kept as f32.
    let step = Optimizer::sum().step(1, 1);
    region.write(6, &[F16::round(0.0001).0; 3].map(u16::to_ne_bytes).concat()).unwrap();
    let contribution = Contribution::<F16>(region.numbers(6, 3).unwrap());
    let (mut master, mut new) = (vec![1.0f32; 3], vec![F16(0); 3]);
    for _ in 0..100 {
        update(
            &step,
            contribution,
            Weights::Rounded { master: &mut master, new: &mut new },
            [&mut [], &mut []],
        );
    }
    assert!((master[0] - 1.01).abs() < 1e-4, "{}", master[0]);
    assert_eq!(new, vec![F16::round(master[0]); 3]);
    let contribution = Contribution::<Bf16>(region.numbers(6, 3).unwrap());
    set(&mut master, contribution);
    assert_eq!(master, [Bf16(F16::round(0.0001).0).widen(); 3], "the same bits as another type");
}

#[test]
fn an_exchange_done_twice_changes_nothing() {
    let adam = Optimizer::mean(Rule::Adam(MOMENTS), 0.1);
    let mut chunk = Chunk::new(adam, vec![1.0, -2.0, 3.0]);
    chunk.in_place(1, 1, &[0.5, 0.25, -1.0]);
    let before = chunk.clone();
    for array in [0, 1, 2] {
        chunk.optimizer.rule = Rule::Exchange { array };
        chunk.in_place(2, 1, &[9.0; 3]);
        let there = usize::from(array) < 2;
        let seen = if there { &before.state[usize::from(array)] } else { &before.weights };
        assert_eq!(&chunk.weights, seen);
        chunk.out_of_place(3, 1, &[9.0; 3]);
        assert_eq!((&chunk.weights, &chunk.state), (&before.weights, &before.state));
    }
}
