//! Tests of the network: gradients against finite differences of an independent f64 forward pass, the order
//! of `finish` and `start`, repeatable bits.

use super::*;
use crate::data::{Shape, csv};
use crate::exchange::{How, NamedTensor, Traffic};
use crate::reference::Reference;
use proto_common::optimizer::Optimizer;

const SHAPE: Shape = Shape { features: 5, classes: 3 };

fn data() -> Dataset {
    let text: String = (0..7)
        .map(|r| {
            let field = |c: i32| f64::from((r * 7 + c * 3) % 11) / 11.0 - 0.4;
            let fields: Vec<String> = (0..5).map(|c| field(c).to_string()).collect();
            format!("{},{}\n", fields.join(","), r % 3)
        })
        .collect();
    csv::read(std::path::Path::new("t"), text.as_bytes(), SHAPE, &csv::Options::default()).unwrap()
}

/// Mean loss computed naively in f64.
fn naive_loss(layers: &Layers, weights: &[NamedTensor], data: &Dataset, rows: &[u32]) -> f64 {
    let mut total = 0.0;
    for &row in rows {
        let mut a: Vec<f64> = data.features(row).iter().map(|v| f64::from(*v)).collect();
        for l in 0..layers.depth() {
            let (fan_in, fan_out) = layers.layer(l);
            let z = |o: usize| {
                let products = (0..fan_in).map(|i| f64::from(weights[2 * l].values[o * fan_in + i]) * a[i]);
                products.sum::<f64>() + f64::from(weights[2 * l + 1].values[o])
            };
            let relu = |x: f64| if l + 1 < layers.depth() { x.max(0.0) } else { x };
            a = (0..fan_out).map(|o| relu(z(o))).collect();
        }
        let sum: f64 = a.iter().map(|z| z.exp()).sum();
        total += sum.ln() - a[data.label(row) as usize];
    }
    total / rows.len() as f64
}

/// Keeps weights still and records the order of calls.
struct Still {
    inner: Reference,
    gradients: Vec<Vec<f32>>,
    calls: Vec<String>,
}

impl Still {
    fn new(weights: &[NamedTensor]) -> Self {
        let mut inner = Reference::new(1);
        inner.init(weights, &How::by(Optimizer::sgd(0.0, 0.0, 0.0))).unwrap();
        Self { inner, gradients: vec![Vec::new(); weights.len()], calls: Vec::new() }
    }
}

impl Exchange for Still {
    fn rank(&self) -> u32 {
        0
    }
    fn workers(&self) -> u32 {
        1
    }
    fn init(&mut self, _: &[NamedTensor], _: &How) -> anyhow::Result<u64> {
        Ok(0)
    }
    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }
    fn weights(&self, i: usize) -> &[f32] {
        assert!(self.gradients[i].is_empty(), "weights {i} read after its start");
        self.inner.weights(i)
    }
    fn gradient_mut(&mut self, i: usize) -> &mut [f32] {
        self.inner.gradient_mut(i)
    }
    fn start(&mut self, i: usize) -> anyhow::Result<()> {
        self.calls.push(format!("start {i}"));
        self.gradients[i] = self.inner.gradient_mut(i).to_vec();
        Ok(())
    }
    fn finish(&mut self, i: usize) -> anyhow::Result<()> {
        self.calls.push(format!("finish {i}"));
        Ok(())
    }
    fn leave(self: Box<Self>) -> anyhow::Result<()> {
        Ok(())
    }
    fn transport(&self) -> String {
        "still".into()
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let layers: Layers = "5,8,6,3".parse().unwrap();
    let mut weights = layers.initial(3);
    for (k, bias) in
        weights.iter_mut().filter(|t| t.name.ends_with("bias")).flat_map(|t| &mut t.values).enumerate()
    {
        *bias = 0.05 * (k % 5) as f32 - 0.1;
    }
    let data = data();
    let rows: Vec<u32> = (0..7).collect();
    let mut still = Still::new(&weights);
    let loss = Mlp::new(&layers, 7).step(&data, rows.iter().copied(), &mut still).unwrap() / 7.0;
    assert!((loss - naive_loss(&layers, &weights, &data, &rows)).abs() < 1e-5);

    let step = 1.0f32 / 4096.0;
    for i in 0..weights.len() {
        for k in 0..weights[i].values.len() {
            let mut at = |offset: f32| {
                let kept = weights[i].values[k];
                weights[i].values[k] = kept + offset;
                let result = (naive_loss(&layers, &weights, &data, &rows), f64::from(weights[i].values[k]));
                weights[i].values[k] = kept;
                result
            };
            let ((up, w_up), (down, w_down)) = (at(step), at(-step));
            let wanted = (up - down) / (w_up - w_down);
            let got = f64::from(still.gradients[i][k]);
            assert!((wanted - got).abs() < 1e-4, "tensor {i}, element {k}: {got} instead of {wanted}");
        }
    }
}

#[test]
fn layers_are_awaited_first_to_last_and_sent_last_to_first() {
    let layers: Layers = "5,4,3".parse().unwrap();
    let mut still = Still::new(&layers.initial(1));
    Mlp::new(&layers, 2).step(&data(), [0, 1].into_iter(), &mut still).unwrap();
    let wanted = ["finish 0", "finish 1", "finish 2", "finish 3", "start 2", "start 3", "start 0", "start 1"];
    assert_eq!(still.calls, wanted);
}

#[test]
fn a_tensor_of_the_wrong_length_is_an_error() {
    let layers: Layers = "5,4,3".parse().unwrap();
    let mut weights = layers.initial(1);
    weights[0].values.pop();
    let error =
        Mlp::new(&layers, 2).step(&data(), [0, 1].into_iter(), &mut Still::new(&weights)).unwrap_err();
    assert!(error.to_string().contains("4 x 5 values has 19"), "{error}");
}

#[test]
fn evaluation_agrees_with_the_naive_forward_pass() {
    let layers: Layers = "5,8,3".parse().unwrap();
    let (weights, data) = (layers.initial(2), data());
    let values: Vec<&[f32]> = weights.iter().map(|t| t.values.as_slice()).collect();
    let rows: Vec<u32> = (0..7).collect();
    let score = evaluate(&layers, &values, &data, &rows).unwrap();
    assert!((score.loss - naive_loss(&layers, &weights, &data, &rows)).abs() < 1e-5);
    assert_eq!(highest([1.0, 3.0, 3.0, f32::NAN].iter()), 1);
}
