//! Each rule of the registry has the same bits in place as out of place and in blocks of any length; those of `frozen_rules` have
//! the same ones for ever. Formulas are checked in the file of each rule.

use super::*;
use proptest::prelude::*;
use proto_common::optimizer::{
    AdaGrad, Adam, AdamW, Decay, Exchange, Form, Ftrl, KINDS, Moments, Optimizer, RmsProp, Rule, Schedule,
    Sgd,
};

const MOMENTS: Moments = Moments { beta1: 0.8, beta2: 0.95, epsilon: 1e-6 };

/// Rules whose bits are frozen, each once with weight decay. To freeze a further one, add it to the list, run the test below, and
/// insert the hashes that it prints into `FROZEN`, in the same order. LAMB is missing, because it needs norms.
fn frozen_rules() -> Vec<Optimizer> {
    let of: [Rule; 8] = [
        Sgd { momentum: 0.0, nesterov: false }.into(),
        Sgd { momentum: 0.9, nesterov: false }.into(),
        Sgd { momentum: 0.9, nesterov: true }.into(),
        AdaGrad { epsilon: 1e-6 }.into(),
        RmsProp { decay: 0.9, epsilon: 1e-6 }.into(),
        Adam(MOMENTS).into(),
        AdamW(MOMENTS).into(),
        Ftrl { beta: 1.0, l1: 0.1, l2: 0.01 }.into(),
    ];
    let schedule = Schedule { warmup_rounds: 2, decay: Decay::Exponential { factor: 0.9 } };
    let with_decay = |rule: Rule| {
        let constant = Optimizer::mean(rule, 0.1);
        let plain = if rule.kind().takes_schedule { Optimizer { schedule, ..constant } } else { constant };
        [plain, Optimizer { weight_decay: 0.01, ..plain }]
    };
    let mut all: Vec<Optimizer> = of.into_iter().flat_map(with_decay).collect();
    let as_mxnet = |optimizer: &Optimizer| Optimizer { form: Form::Mxnet, rescale: 0.25, ..*optimizer };
    all.extend(all.iter().map(as_mxnet).collect::<Vec<_>>());
    all.extend([Optimizer::sum(), Optimizer::assign(), Optimizer { average: true, ..Optimizer::assign() }]);
    all
}

/// Those, and every rule of the registry with its usual constants.
fn rules() -> impl Iterator<Item = Optimizer> {
    let usual = KINDS.iter().filter(|kind| !kind.is_internal).map(|kind| Optimizer::usual(kind.usual()));
    frozen_rules().into_iter().chain(usual)
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
    fn rules_have_the_same_bits_in_any_form(
        start in prop::collection::vec(-2f32..2.0, 1..70),
        rounds in prop::collection::vec((1u32..9, -3f32..3.0), 1..6),
    ) {
        for optimizer in rules() {
            let mut chunk = Chunk::new(optimizer, start.clone());
            let (mut other, mut single) = (chunk.clone(), chunk.clone());
            for (number, (contributors, scale)) in rounds.iter().enumerate() {
                let (round, count) = (number as u64 + 1, start.len());
                let sum: Vec<f32> = (0..count).map(|i| scale * (0.5 + i as f32 / count as f32)).collect();
                chunk.in_place(round, *contributors, &sum);
                other.out_of_place(round, *contributors, &sum);
                single.one_by_one(round, *contributors, &sum);
            }
            prop_assert_eq!(bits(&chunk), bits(&other), "out of place, {:?}", optimizer);
            prop_assert_eq!(bits(&chunk), bits(&single), "one by one, {:?}", optimizer);
        }
    }
}

/// Of weights and state after five rounds over more than one block.
fn hash(optimizer: Optimizer) -> u64 {
    let start: Vec<f32> = (0..1500).map(|i| ((i * 37) % 101) as f32 / 50.5 - 1.0).collect();
    let mut chunk = Chunk::new(optimizer, start);
    for round in 1..6u64 {
        let sum: Vec<f32> = (0..1500).map(|i| ((i * 53 + round * 7) % 97) as f32 / 31.0 - 1.5).collect();
        chunk.in_place(round, 3, &sum);
    }
    bits(&chunk)
        .into_iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, value| (hash ^ u64::from(value)).wrapping_mul(0x0100_0000_01B3))
}

/// A training that continues on a newer server must end with the weights that it would have had on the older one.
#[test]
fn the_bits_of_frozen_rules_do_not_change() {
    let rules = frozen_rules();
    let found: Vec<u64> = rules.iter().map(|optimizer| hash(*optimizer)).collect();
    assert_eq!(rules.len(), FROZEN.len(), "the hashes of all rules of the list: {found:#018x?}");
    for ((optimizer, found), frozen) in rules.iter().zip(&found).zip(FROZEN) {
        assert_eq!(*found, frozen, "{optimizer:?}");
    }
}

const FROZEN: [u64; 35] = [
    0x3d3a_aafb_0178_f25c,
    0xaa08_46fd_743b_f994,
    0x18be_0ce1_e3c4_1dd2,
    0x7d19_5bbf_41e3_3eb8,
    0x9676_a466_0202_52e0,
    0x9f26_3d08_0765_c780,
    0x2ddc_50a7_a233_4fe9,
    0x0095_fe36_5296_7897,
    0x1588_93ef_38cb_39e7,
    0xf6d0_7100_fcf0_9d6d,
    0xd6f6_a773_3471_a623,
    0x58f1_d5e3_939d_39e4,
    0xd6f6_a773_3471_a623,
    0xd37d_7591_48fa_ab0a,
    0x1d77_3c4d_bb2f_0a7a,
    0x3b97_e62a_45f0_3f11,
    0xe64c_a7e9_5f84_9975,
    0x43c8_00b3_a36b_2ee3,
    0xe088_a205_de5a_7e84,
    0x5100_5f47_71e9_33b5,
    0x48b3_8418_f943_62b6,
    0xa428_e4a8_6af3_4b65,
    0x7404_f32a_fa8a_a391,
    0xa32a_5298_9980_a146,
    0x1457_14ef_d273_2443,
    0x3dba_6a42_b773_0bd9,
    0x7950_3cc7_8aa1_add7,
    0xcc0f_2e91_f5de_1bec,
    0x7950_3cc7_8aa1_add7,
    0x7d85_539f_528a_884d,
    0x10ba_73a2_ede3_99ea,
    0xab70_676e_0e21_5620,
    0xc767_e809_fcad_4f66,
    0xe706_2275_4d12_93e0,
    0xb118_52d8_069b_5d64,
];

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
    let adam = Optimizer::mean(Adam(MOMENTS), 0.1);
    let mut chunk = Chunk::new(adam, vec![1.0, -2.0, 3.0]);
    chunk.in_place(1, 1, &[0.5, 0.25, -1.0]);
    let before = chunk.clone();
    for array in [0, 1, 2] {
        chunk.optimizer.rule = Exchange { array }.into();
        chunk.in_place(2, 1, &[9.0; 3]);
        let there = usize::from(array) < 2;
        let seen = if there { &before.state[usize::from(array)] } else { &before.weights };
        assert_eq!(&chunk.weights, seen);
        chunk.out_of_place(3, 1, &[9.0; 3]);
        assert_eq!((&chunk.weights, &chunk.state), (&before.weights, &before.state));
    }
}
