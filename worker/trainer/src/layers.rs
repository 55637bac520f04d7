//! The shape of a network: layer widths, the tensors they need and their initial values.
//!
//! Layer l has tensor 2l, its weight of shape [out, in] (the layout of PyTorch's `nn.Linear`), and tensor
//! 2l + 1, its bias. No arithmetic of training lives here.

use std::fmt;
use std::str::FromStr;

use crate::exchange::NamedTensor;
use crate::rng::{Rng, STREAM_INIT};

/// Most widths that `--layers` may name.
pub const MAX_LAYERS: usize = 64;
/// Widest layer.
pub const MAX_WIDTH: usize = 1 << 20;
/// Most parameters of a network: 4 GiB of f32.
pub const MAX_PARAMETERS: usize = 1 << 30;

/// Layer widths from input to output: at least two, none zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layers(Vec<usize>);

impl Layers {
    /// Checks widths against the bounds; the error says what is wrong.
    pub fn new(widths: Vec<usize>) -> Result<Self, String> {
        if !(2..=MAX_LAYERS).contains(&widths.len()) {
            return Err(format!(
                "{} widths given; give 2 to {MAX_LAYERS}, input first, classes last",
                widths.len()
            ));
        }
        if let Some(width) = widths.iter().find(|w| !(1..=MAX_WIDTH).contains(*w)) {
            return Err(format!("width {width} is out of range; widths are 1 to {MAX_WIDTH}"));
        }
        // No overflow: 63 products of at most 2^40 each.
        let parameters: usize = widths.windows(2).map(|w| w[0] * w[1] + w[1]).sum();
        if parameters > MAX_PARAMETERS {
            return Err(format!("{parameters} parameters are too many; the limit is {MAX_PARAMETERS}"));
        }
        Ok(Self(widths))
    }

    /// Number of weight layers.
    pub fn depth(&self) -> usize {
        self.0.len() - 1
    }

    /// Number of tensors: a weight and a bias per layer.
    pub fn tensors(&self) -> usize {
        2 * self.depth()
    }

    /// Width of the input.
    pub fn inputs(&self) -> usize {
        self.0[0]
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.0[self.0.len() - 1]
    }

    /// (in, out) of weight layer `l`.
    pub fn layer(&self, l: usize) -> (usize, usize) {
        (self.0[l], self.0[l + 1])
    }

    /// Name and shape of tensor `i`.
    pub fn tensor(&self, i: usize) -> (String, Vec<usize>) {
        let (fan_in, fan_out) = self.layer(i / 2);
        if i.is_multiple_of(2) {
            (format!("layers.{}.weight", i / 2), vec![fan_out, fan_in])
        } else {
            (format!("layers.{}.bias", i / 2), vec![fan_out])
        }
    }

    /// He initialisation, uniform in ±sqrt(6 / in); biases are 0. It uses only operations that IEEE 754
    /// rounds exactly (no logarithm, no cosine), so a seed gives the same bits on every machine.
    pub fn initial(&self, seed: u64) -> Vec<NamedTensor> {
        let mut rng = Rng::new(seed, STREAM_INIT);
        let tensor = |i| {
            let (name, shape) = self.tensor(i);
            let len = shape.iter().product();
            let limit = (6.0f32 / self.layer(i / 2).0 as f32).sqrt();
            let values = if i.is_multiple_of(2) {
                (0..len).map(|_| rng.symmetric() * limit).collect()
            } else {
                vec![0.0; len]
            };
            NamedTensor { name, shape, values }
        };
        (0..self.tensors()).map(tensor).collect()
    }
}

impl FromStr for Layers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let width = |part: &str| {
            part.trim()
                .parse::<usize>()
                .map_err(|e| format!("`{part}` is not a width ({e}); write 64,256,256,10"))
        };
        Self::new(text.split(',').map(width).collect::<Result<_, _>>()?)
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&widths.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips_and_names_tensors() {
        let layers: Layers = "64, 256,10".parse().unwrap();
        assert_eq!(layers.to_string(), "64,256,10");
        assert_eq!(layers.tensors(), 4);
        assert_eq!(layers.tensor(2), ("layers.1.weight".into(), vec![10, 256]));
        assert_eq!(layers.tensor(3), ("layers.1.bias".into(), vec![10]));
    }

    #[test]
    fn bounds_hold_on_both_sides() {
        assert!(Layers::new(vec![1, 1]).is_ok());
        assert!(Layers::new(vec![1]).is_err());
        assert!(Layers::new(vec![1; MAX_LAYERS]).is_ok());
        assert!(Layers::new(vec![1; MAX_LAYERS + 1]).is_err());
        assert!(Layers::new(vec![1, MAX_WIDTH]).is_ok());
        assert!(Layers::new(vec![1, MAX_WIDTH + 1]).is_err());
        assert!(Layers::new(vec![0, 1]).is_err());
        assert!(Layers::new(vec![MAX_WIDTH, 1 << 11]).is_err());
        assert!("64,x".parse::<Layers>().is_err());
    }

    #[test]
    fn initial_values_repeat_and_stay_within_the_limit() {
        let layers: Layers = "6,50,3".parse().unwrap();
        let a = layers.initial(1);
        assert_eq!(a, layers.initial(1));
        assert_ne!(a, layers.initial(2));
        assert!(a[0].values.iter().all(|v| v.abs() <= 1.0));
        assert!(a[1].values.iter().all(|v| *v == 0.0));
        let mean_square = a[0].values.iter().map(|v| v * v).sum::<f32>() / 300.0;
        assert!((mean_square - 2.0 / 6.0).abs() < 0.06, "variance near 2 / in, was {mean_square}");
    }
}
