//! The network: fully connected layers with ReLU between them, softmax cross-entropy at the end.
//!
//! Owns activations and their derivatives; weights and gradients stay in the exchange's memory and are only
//! borrowed. Single-threaded products in a fixed order: the same inputs give the same bits (on one kind of
//! CPU; the matrix kernel is chosen by the CPU's features).

use anyhow::Context;
use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, Axis};

use crate::data::Dataset;
use crate::exchange::Exchange;
use crate::layers::Layers;

/// Rows evaluated at once.
const EVAL_ROWS: usize = 256;

/// A network with working space for batches of one size.
#[derive(Debug)]
pub struct Mlp {
    layers: Layers,
    /// `activations[0]` is the input, `activations[l + 1]` the output of layer l (logits at the end).
    activations: Vec<Array2<f32>>,
    /// `deltas[l]` is the derivative of the loss by layer l's output before ReLU.
    deltas: Vec<Array2<f32>>,
    labels: Vec<u32>,
}

impl Mlp {
    /// Space for batches of `batch` rows.
    pub fn new(layers: &Layers, batch: usize) -> Self {
        let space = |l: usize| Array2::zeros((batch, layers.layer(l).1));
        let outputs = (0..layers.depth()).map(space);
        let input = Array2::zeros((batch, layers.inputs()));
        Self {
            layers: layers.clone(),
            activations: std::iter::once(input).chain(outputs.clone()).collect(),
            deltas: outputs.collect(),
            labels: vec![0; batch],
        }
    }

    /// One worker's part of one step: computes the gradient of the mean loss over `rows` (exactly a batch)
    /// and starts each tensor's exchange as soon as it is complete. Returns the sum of the rows' losses.
    pub fn step(
        &mut self,
        data: &Dataset,
        rows: impl Iterator<Item = u32>,
        exchange: &mut dyn Exchange,
    ) -> anyhow::Result<f64> {
        self.load(data, rows);
        for l in 0..self.layers.depth() {
            // Waits for the previous step's update only now: this layer could not be computed earlier, the
            // layers before it could.
            exchange.finish(2 * l)?;
            exchange.finish(2 * l + 1)?;
            self.forward_layer(l, exchange.weights(2 * l), exchange.weights(2 * l + 1))?;
        }
        let loss = self.loss();
        for l in (0..self.layers.depth()).rev() {
            self.backward_layer(l, exchange)?;
        }
        Ok(loss)
    }

    fn load(&mut self, data: &Dataset, rows: impl Iterator<Item = u32>) {
        let inputs = self.activations[0].rows_mut().into_iter();
        for ((mut input, label), row) in inputs.zip(&mut self.labels).zip(rows) {
            input.iter_mut().zip(data.features(row)).for_each(|(to, from)| *to = *from);
            *label = data.label(row);
        }
    }

    /// out = in · Wᵀ + b, then ReLU unless it is the last layer.
    fn forward_layer(&mut self, l: usize, weight: &[f32], bias: &[f32]) -> anyhow::Result<()> {
        let (before, after) = self.activations.split_at_mut(l + 1);
        let (input, output) = (&before[l], &mut after[0]);
        for mut row in output.rows_mut() {
            row.iter_mut().zip(bias).for_each(|(o, b)| *o = *b);
        }
        let weight = matrix(weight, self.layers.layer(l))?;
        general_mat_mul(1.0, input, &weight.t(), 1.0, output);
        if l + 1 < self.layers.depth() {
            output.mapv_inplace(|x| x.max(0.0));
        }
        Ok(())
    }

    /// Sum of the rows' losses; leaves the derivative of their mean in the last delta.
    fn loss(&mut self) -> f64 {
        let last = self.layers.depth() - 1;
        let share = 1.0 / self.labels.len() as f32;
        let mut total = 0.0;
        let rows = self.activations[last + 1].rows().into_iter().zip(self.deltas[last].rows_mut());
        for ((logits, mut delta), &label) in rows.zip(&self.labels) {
            let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0.0f32;
            for (d, z) in delta.iter_mut().zip(logits) {
                *d = (z - highest).exp();
                sum += *d;
            }
            total += f64::from(sum.ln() - (logits[label as usize] - highest));
            delta.iter_mut().for_each(|d| *d = *d / sum * share);
            delta[label as usize] -= share;
        }
        total
    }

    /// Writes layer l's gradients, passes the derivative on, then starts the exchange.
    fn backward_layer(&mut self, l: usize, exchange: &mut dyn Exchange) -> anyhow::Result<()> {
        let shape = self.layers.layer(l);
        let (before, after) = self.deltas.split_at_mut(l);
        let delta = &after[0];
        let mut gradient = matrix_mut(exchange.gradient_mut(2 * l), shape)?;
        general_mat_mul(1.0, &delta.t(), &self.activations[l], 0.0, &mut gradient);
        sum_rows(delta, exchange.gradient_mut(2 * l + 1));
        if let Some(previous) = before.last_mut() {
            // Before `start`: from then on the new weights may land in the very memory read here.
            general_mat_mul(1.0, delta, &matrix(exchange.weights(2 * l), shape)?, 0.0, previous);
            let outputs = self.activations[l].iter();
            previous.iter_mut().zip(outputs).for_each(|(d, a)| *d = if *a > 0.0 { *d } else { 0.0 });
        }
        exchange.start(2 * l)?;
        exchange.start(2 * l + 1)
    }
}

/// How a model does on a set of rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// Share of rows classified right.
    pub accuracy: f64,
    /// Mean loss.
    pub loss: f64,
    /// Rows looked at.
    pub rows: usize,
}

/// Classifies `rows` with `weights` (tensor i at index i).
pub fn evaluate<W: AsRef<[f32]>>(
    layers: &Layers,
    weights: &[W],
    data: &Dataset,
    rows: &[u32],
) -> anyhow::Result<Score> {
    let (mut right, mut loss) = (0usize, 0.0);
    for chunk in rows.chunks(EVAL_ROWS) {
        let mut mlp = Mlp::new(layers, chunk.len());
        mlp.load(data, chunk.iter().copied());
        for l in 0..layers.depth() {
            mlp.forward_layer(l, weights[2 * l].as_ref(), weights[2 * l + 1].as_ref())?;
        }
        loss += mlp.loss();
        let logits = mlp.activations[layers.depth()].rows().into_iter();
        right += logits.zip(&mlp.labels).filter(|(z, label)| highest(z.iter()) == **label as usize).count();
    }
    let count = rows.len().max(1) as f64;
    Ok(Score { accuracy: right as f64 / count, loss: loss / count, rows: rows.len() })
}

/// Index of the highest value, the first among equals.
fn highest<'a>(values: impl Iterator<Item = &'a f32>) -> usize {
    values.enumerate().fold((0, f32::NEG_INFINITY), |best, (i, v)| if *v > best.1 { (i, *v) } else { best }).0
}

fn sum_rows(delta: &Array2<f32>, sums: &mut [f32]) {
    sums.fill(0.0);
    for row in delta.axis_iter(Axis(0)) {
        sums.iter_mut().zip(row).for_each(|(s, d)| *s += d);
    }
}

/// The [out, in] matrix in `values`; a wrong length is a broken exchange or model, and an error.
fn matrix(values: &[f32], (fan_in, fan_out): (usize, usize)) -> anyhow::Result<ArrayView2<'_, f32>> {
    let found = values.len();
    ArrayView2::from_shape((fan_out, fan_in), values).with_context(|| wrong_length(found, fan_in, fan_out))
}

fn matrix_mut(
    values: &mut [f32],
    (fan_in, fan_out): (usize, usize),
) -> anyhow::Result<ArrayViewMut2<'_, f32>> {
    let found = values.len();
    ArrayViewMut2::from_shape((fan_out, fan_in), values).with_context(|| wrong_length(found, fan_in, fan_out))
}

fn wrong_length(found: usize, fan_in: usize, fan_out: usize) -> String {
    format!("a tensor declared with {fan_out} x {fan_in} values has {found}")
}

#[cfg(test)]
#[path = "mlp_tests.rs"]
mod tests;
