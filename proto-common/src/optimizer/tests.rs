//! Constants from both sides of their bounds, and schedules at the rounds where they turn.

use super::*;

#[test]
fn bad_constants_are_refused() {
    let moments = Moments::default();
    let good = [
        Optimizer::sum(),
        Optimizer::assign(),
        Optimizer::sgd(0.1, 0.9, 0.0),
        Optimizer::mean(Rule::Sgd { momentum: 0.9, nesterov: true }, 0.1),
        Optimizer::mean(Rule::AdaGrad { epsilon: 1e-10 }, 0.1),
        Optimizer::mean(Rule::RmsProp { decay: 0.99, epsilon: 1e-8 }, 0.1),
        Optimizer::mean(Rule::Adam(moments), 0.1),
        Optimizer::mean(Rule::AdamW(moments), 0.1),
        Optimizer::mean(Rule::Lamb(moments), 0.1),
        Optimizer::mean(Rule::Ftrl { beta: 1.0, l1: 0.0, l2: 0.0 }, 0.1),
    ];
    for optimizer in good {
        assert_eq!(optimizer.validate(), Ok(()), "{optimizer:?}");
    }
    let falling = Schedule { warmup_rounds: 0, decay: Decay::Linear { rounds: 3, last: 0.0 } };
    let ftrl =
        Optimizer { schedule: falling, ..Optimizer::mean(Rule::Ftrl { beta: 1.0, l1: 0.0, l2: 0.0 }, 0.1) };
    assert_eq!(ftrl.validate(), Err(OptimizerError::Scheduled("ftrl")));
    let scheduled =
        |decay| Optimizer { schedule: Schedule { warmup_rounds: 0, decay }, ..Optimizer::sgd(0.1, 0.0, 0.0) };
    let bad = [
        (Optimizer::sgd(f32::NAN, 0.0, 0.0), "learning_rate"),
        (Optimizer::sgd(0.1, 1.0, 0.0), "momentum"),
        (Optimizer::sgd(0.1, 0.0, -1.0), "weight_decay"),
        (Optimizer { rescale: 0.0, ..Optimizer::sum() }, "rescale"),
        (Optimizer { rescale: f32::NAN, ..Optimizer::sum() }, "rescale"),
        (Optimizer::mean(Rule::AdaGrad { epsilon: 0.0 }, 0.1), "epsilon"),
        (Optimizer::mean(Rule::RmsProp { decay: 1.0, epsilon: 1e-8 }, 0.1), "decay"),
        (Optimizer::mean(Rule::Adam(Moments { beta1: 1.0, ..moments }), 0.1), "beta1"),
        (Optimizer::mean(Rule::AdamW(Moments { beta2: -0.1, ..moments }), 0.1), "beta2"),
        (Optimizer::mean(Rule::Lamb(Moments { epsilon: 0.0, ..moments }), 0.1), "epsilon"),
        (Optimizer::mean(Rule::Ftrl { beta: 1.0, l1: 0.0, l2: 0.0 }, 0.0), "learning_rate"),
        (Optimizer::mean(Rule::AdaGrad { epsilon: 1e-40 }, 0.1), "epsilon"),
        (Optimizer::mean(Rule::Ftrl { beta: 1.0, l1: f32::INFINITY, l2: 0.0 }, 0.1), "l1"),
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
    let adam = Optimizer::mean(Rule::Adam(Moments { beta1: 0.5, beta2: 0.75, epsilon: 1e-8 }), 0.1);
    let step = adam.step(2, 4);
    assert_eq!((step.rate as f32, step.scale, step.bias1, step.bias2), (0.1, 0.25, 0.75, 0.4375));
    let sum = Optimizer::sum().step(7, 4);
    assert_eq!((sum.scale, sum.bias1, sum.bias2), (1.0, 1.0, 1.0));
}

#[test]
fn rules_keep_their_place_on_the_wire() {
    let rules = [
        Rule::Sum,
        Rule::Assign,
        Rule::Sgd { momentum: 0.0, nesterov: false },
        Rule::AdaGrad { epsilon: 0.0 },
        Rule::RmsProp { decay: 0.0, epsilon: 0.0 },
        Rule::Adam(Moments::default()),
        Rule::AdamW(Moments::default()),
        Rule::Lamb(Moments::default()),
        Rule::Ftrl { beta: 0.0, l1: 0.0, l2: 0.0 },
    ];
    for (place, rule) in rules.into_iter().enumerate() {
        let bytes = bincode::serde::encode_to_vec(rule, bincode::config::legacy()).expect("encodes");
        assert_eq!(bytes[..4], (place as u32).to_le_bytes(), "{rule:?}");
    }
}

#[test]
fn arrays_are_kept_by_rules_that_keep_the_same() {
    let moments = Moments::default();
    let momentum = |momentum, nesterov| Optimizer::mean(Rule::Sgd { momentum, nesterov }, 0.1);
    let kinds = [
        vec![Optimizer::sum(), Optimizer::assign(), momentum(0.0, true)],
        vec![momentum(0.9, false), momentum(0.5, true)],
        vec![Optimizer::mean(Rule::AdaGrad { epsilon: 1e-6 }, 0.1)],
        vec![Optimizer::mean(Rule::RmsProp { decay: 0.9, epsilon: 1e-6 }, 0.1)],
        vec![Optimizer::mean(Rule::Adam(moments), 0.1), Optimizer::mean(Rule::AdamW(moments), 0.2)],
        vec![Optimizer::mean(Rule::Ftrl { beta: 1.0, l1: 0.0, l2: 0.0 }, 0.1)],
    ];
    for (at, kind) in kinds.iter().enumerate() {
        for (other_at, other) in kinds.iter().enumerate() {
            assert!(kind.iter().all(|a| other.iter().all(|b| a.continues(b) == (at == other_at))));
        }
        assert!(kind.iter().all(|a| a.state_arrays() == kind[0].state_arrays()));
    }
    let adam = Optimizer { schedule: Schedule { warmup_rounds: 8, ..Schedule::CONSTANT }, ..kinds[4][0] };
    let (late, first) = (adam.step_since(3, 4, 2), adam.step(1, 2));
    assert_eq!((late.bias1, late.bias2), (first.bias1, first.bias2), "moments that begin anew are as young");
    assert_eq!(late.rate, adam.step(4, 2).rate, "and the schedule goes on");
}
