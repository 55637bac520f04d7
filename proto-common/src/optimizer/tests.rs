//! Constants from both sides of their bounds, schedules at the rounds where they turn, frozen bytes, and what checks each rule
//! against its formula.

use super::elements::Block;
use super::*;

#[test]
fn bad_constants_are_refused() {
    let moments = Moments::default();
    for kind in KINDS {
        assert_eq!(Optimizer::usual(kind.usual()).validate(), Ok(()), "{kind:?}");
    }
    let falling = Schedule { warmup_rounds: 0, decay: Decay::Linear { rounds: 3, last: 0.0 } };
    let ftrl = Optimizer { schedule: falling, ..Optimizer::mean(Ftrl::default(), 0.1) };
    assert_eq!(ftrl.validate(), Err(OptimizerError::Scheduled("ftrl")));
    let scheduled =
        |decay| Optimizer { schedule: Schedule { warmup_rounds: 0, decay }, ..Optimizer::sgd(0.1, 0.0, 0.0) };
    let bad = [
        (Optimizer::sgd(f32::NAN, 0.0, 0.0), "learning_rate"),
        (Optimizer::sgd(0.1, 1.0, 0.0), "momentum"),
        (Optimizer::sgd(0.1, 0.0, -1.0), "weight_decay"),
        (Optimizer { rescale: 0.0, ..Optimizer::sum() }, "rescale"),
        (Optimizer { rescale: f32::NAN, ..Optimizer::sum() }, "rescale"),
        (Optimizer::mean(AdaGrad { epsilon: 0.0 }, 0.1), "epsilon"),
        (Optimizer::mean(RmsProp { decay: 1.0, epsilon: 1e-8 }, 0.1), "decay"),
        (Optimizer::mean(Adam(Moments { beta1: 1.0, ..moments }), 0.1), "beta1"),
        (Optimizer::mean(AdamW(Moments { beta2: -0.1, ..moments }), 0.1), "beta2"),
        (Optimizer::mean(Lamb(Moments { epsilon: 0.0, ..moments }), 0.1), "epsilon"),
        (Optimizer::mean(Ftrl::default(), 0.0), "learning_rate"),
        (Optimizer::mean(AdaGrad { epsilon: 1e-40 }, 0.1), "epsilon"),
        (Optimizer::mean(Ftrl { l1: f32::INFINITY, ..Ftrl::default() }, 0.1), "l1"),
        (scheduled(Decay::Step { every_rounds: 0, factor: 0.1 }), "every_rounds"),
        (scheduled(Decay::Exponential { factor: 1.5 }), "factor"),
        (scheduled(Decay::Cosine { rounds: 0, last: 0.0 }), "rounds"),
        (scheduled(Decay::Linear { rounds: 1, last: f32::NAN }), "last"),
    ];
    for (optimizer, constant) in bad {
        match optimizer.validate() {
            Err(OptimizerError::OutOfRange { name, .. }) => assert_eq!(name, constant, "{optimizer:?}"),
            other => panic!("{optimizer:?}: {other:?}"),
        }
    }
}

fn factors(schedule: Schedule, rounds: &[u64]) -> Vec<f64> {
    rounds.iter().map(|round| (schedule.factor(*round) * 1e6).round() / 1e6).collect()
}

#[test]
fn schedules_turn_where_they_should() {
    let of = |decay| Schedule { warmup_rounds: 4, decay };
    assert_eq!(factors(of(Decay::Constant), &[1, 2, 4, 5, u64::MAX]), [0.25, 0.5, 1.0, 1.0, 1.0]);
    let step = of(Decay::Step { every_rounds: 3, factor: 0.5 });
    assert_eq!(factors(step, &[4, 5, 7, 8, 11]), [1.0, 1.0, 1.0, 0.5, 0.25]);
    assert_eq!(factors(of(Decay::Exponential { factor: 0.5 }), &[5, 6, 7]), [1.0, 0.5, 0.25]);
    assert_eq!(factors(of(Decay::Linear { rounds: 4, last: 0.2 }), &[5, 7, 9, 99]), [1.0, 0.6, 0.2, 0.2]);
    assert_eq!(factors(of(Decay::Cosine { rounds: 4, last: 0.2 }), &[5, 7, 9, 99]), [1.0, 0.6, 0.2, 0.2]);
    assert_eq!(Schedule::default(), Schedule::CONSTANT);
}

#[test]
fn a_step_has_the_round_s_rate_and_corrections() {
    let adam = Optimizer::mean(Adam(Moments { beta1: 0.5, beta2: 0.75, epsilon: 1e-8 }), 0.1);
    let Factors { rate, scale, bias, .. } = adam.step(2, 4).factors;
    assert_eq!((rate as f32, scale, bias), (0.1, 0.25, [0.75, 0.4375]));
    let sum = Optimizer::sum().step(7, 4).factors;
    assert_eq!((sum.scale, sum.bias), (1.0, [1.0, 1.0]));
}

fn hex(value: impl serde::Serialize) -> String {
    let bytes = bincode::serde::encode_to_vec(value, bincode::config::legacy()).expect("encodes");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Of the rule alone, and with the numbers that all rules have: as binary in messages, and as JSON in declarations and manifests.
#[test]
fn the_bytes_of_each_rule_are_frozen() {
    for Kind { name, frozen, .. } in KINDS {
        let (rule, binary, json) = frozen().unwrap_or_else(|| {
            panic!(
                "rule {name} has no frozen bytes: implement `frozen` of `UpdateRule` in \
                 proto-common/src/optimizer/rules/{name}.rs, as sgd.rs does. Begin with empty strings, run this test \
                 again, and copy the bytes and the JSON that it prints"
            )
        });
        let found = (hex(rule), serde_json::to_string(&rule).expect("encodes"));
        assert_eq!(
            found,
            (binary.into(), json.into()),
            "rule {name}: its bytes and JSON (left) are not those that its `frozen` returns (right)"
        );
        let optimizer = Optimizer { weight_decay: 0.5, form: Form::Mxnet, ..Optimizer::mean(rule, 0.125) };
        let all = format!("{binary}0000003e00000000000000000000003f010000803f01000000");
        assert_eq!(hex(optimizer), all, "{rule:?}");
        let text = format!(
            r#"{{"rule":{json},"learning_rate":0.125,"schedule":{{"warmup_rounds":0,"decay":"constant"}},"weight_decay":0.5,"average":true,"rescale":1.0,"form":"mxnet"}}"#
        );
        assert_eq!(serde_json::to_string(&optimizer).expect("encodes"), text);
        assert_eq!(serde_json::from_str::<Optimizer>(&text).expect("decodes"), optimizer);
    }
    let unknown = serde_json::from_str::<Rule>(r#""other""#).expect_err("no rule");
    assert!(unknown.to_string().contains("`adam_w`"), "{unknown}");
}

#[test]
fn the_registry_has_each_rule_once_in_the_order_of_the_wire() {
    for (place, kind) in KINDS.iter().enumerate() {
        let rule = kind.usual();
        let bytes = bincode::serde::encode_to_vec(rule, bincode::config::legacy()).expect("encodes");
        assert_eq!(bytes[..4], (place as u32).to_le_bytes(), "{kind:?}");
        assert_eq!((rule.kind().name, kind.with(&rule.values())), (kind.name, rule));
        assert!(rule.arrays(Form::Published).len() <= 2, "a chunk has room for two arrays: {kind:?}");
        let same = |other: &&Kind| other.name == kind.name || other.class == kind.class;
        assert_eq!(KINDS.iter().filter(same).count(), 1, "{kind:?}");
    }
}

#[test]
fn arrays_are_kept_by_rules_that_keep_the_same() {
    let momentum = |momentum, nesterov| Optimizer::mean(Sgd { momentum, nesterov }, 0.1);
    let own = |name| Own { arrays: 2, ..Own::new(name, &[]).expect("a name") };
    let kinds = [
        vec![Optimizer::sum(), Optimizer::assign(), momentum(0.0, true)],
        vec![momentum(0.9, false), momentum(0.5, true)],
        vec![Optimizer { form: Form::Mxnet, ..momentum(0.9, false) }],
        vec![Optimizer::mean(AdaGrad { epsilon: 1e-6 }, 0.1)],
        vec![Optimizer::mean(RmsProp { decay: 0.9, epsilon: 1e-6 }, 0.1)],
        vec![Optimizer::mean(Adam::default(), 0.1), Optimizer::mean(AdamW::default(), 0.2)],
        vec![Optimizer::mean(Ftrl::default(), 0.1)],
        vec![Optimizer::mean(own("a"), 0.1), Optimizer::mean(own("a"), 0.2)],
        vec![Optimizer::mean(own("b"), 0.1)],
    ];
    for (at, kind) in kinds.iter().enumerate() {
        for (other_at, other) in kinds.iter().enumerate() {
            assert!(kind.iter().all(|a| other.iter().all(|b| a.continues(b) == (at == other_at))));
        }
        assert!(kind.iter().all(|a| a.state_arrays() == kind[0].state_arrays()));
    }
    let adam = Optimizer { schedule: Schedule { warmup_rounds: 8, ..Schedule::CONSTANT }, ..kinds[5][0] };
    let (late, first) = (adam.step_since(3, 4, 2).factors, adam.step(1, 2).factors);
    assert_eq!(late.bias, first.bias, "moments that begin anew are as young");
    assert_eq!(late.rate, adam.step(4, 2).factors.rate, "and the schedule goes on");
}

/// A round as the formula of a rule sees it, in f64.
pub(super) struct Expected {
    pub(super) number: u64,
    /// The gradient, without weight decay.
    pub(super) g: f64,
    pub(super) rate: f64,
    pub(super) decay: f64,
    pub(super) form: Form,
}

impl Expected {
    /// The gradient of a weight with its decay.
    pub(super) fn decayed(&self, weight: f64) -> f64 {
        self.g + self.decay * weight
    }
}

/// Checks a rule over several rounds against its formula: the new weight from the old one, the arrays and the round. With
/// and without weight decay and a schedule, in both forms, and in both types.
pub(super) fn agrees(
    rule: impl UpdateRule + Into<Rule>,
    mut formula: impl FnMut(f64, &mut [f64; 2], &Expected) -> f64,
) {
    let falling = Schedule { warmup_rounds: 2, decay: Decay::Exponential { factor: 0.9 } };
    for (weight_decay, schedule, form, rescale) in [
        (0.0, Schedule::CONSTANT, Form::Published, 1.0),
        (0.01, falling, Form::Published, 1.0),
        (0.0, falling, Form::Mxnet, 0.25),
        (0.01, Schedule::CONSTANT, Form::Mxnet, 0.25),
    ] {
        let mut optimizer = Optimizer { weight_decay, form, rescale, ..Optimizer::mean(rule, 0.1) };
        if optimizer.rule.kind().takes_schedule {
            optimizer.schedule = schedule;
        }
        for (start, slope) in [(-1.5, 0.5), (0.0, -0.25), (0.25, 2.0)] {
            let mut small = Element::<f32>::new(&optimizer, start as f32);
            let (mut large, mut expected, mut state) = (Element::new(&optimizer, start), start, [0.0; 2]);
            for number in 1..=6 {
                let sum = slope * (number as f64 - 3.5);
                let Step { factors, .. } = optimizer.step(number, 2);
                let g = sum * f64::from(rescale) / 2.0;
                let round = Expected { number, g, rate: factors.rate, decay: factors.decay, form };
                expected = formula(expected, &mut state, &round);
                small.round(&optimizer, number, sum as f32);
                large.round(&optimizer, number, sum);
                let near = |found: f64, share: f64| (found - expected).abs() < share * (1.0 + expected.abs());
                assert!(near(f64::from(small.weight), 1e-4), "{} {expected} {optimizer:?}", small.weight);
                assert!(near(large.weight, 1e-12), "{} {expected} {optimizer:?}", large.weight);
            }
        }
    }
}

/// One weight with the arrays of its rule.
struct Element<T> {
    weight: T,
    state: [Vec<T>; 2],
}

impl<T: Real> Element<T> {
    fn new(optimizer: &Optimizer, weight: T) -> Self {
        let kept = |at| vec![T::default(); usize::from(at < optimizer.state_arrays())];
        Self { weight, state: [kept(0), kept(1)] }
    }

    fn round(&mut self, optimizer: &Optimizer, number: u64, sum: T) {
        let [first, second] = &mut self.state;
        let weights = std::slice::from_mut(&mut self.weight);
        optimizer.step(number, 2).update(Block { weights, sum: &[sum], state: [first, second] });
    }
}

#[test]
fn sums_and_assignments_ignore_rate_and_decay() {
    agrees(Sum {}, |x, _, round| x + round.g);
    agrees(Assign {}, |_, _, round| round.g);
}
