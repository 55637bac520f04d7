//! The program of the book's page on Rust (`docs/api.md`), as it stands there.
//!
//!     gradwire launch -n 2 target/debug/examples/first

#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use anyhow::{Context, Result};
use gradwire::prelude::*;

const COUNT: u64 = 1_000;

fn main() -> Result<()> {
    let client = Client::from_env()?;
    let tensor = client.declare(&[TensorSpec::f32(1, COUNT, Optimizer::sgd(0.1, 0.9, 0.0))])?.remove(0);
    client.init(&tensor, &[0.0_f32; COUNT as usize])?;
    let (mut gradient, mut weights) = (client.allocate(tensor.bytes())?, client.allocate(tensor.bytes())?);
    for step in 0..10 {
        gradient.as_f32_mut().fill(step as f32);
        let ended = client.push_pull(&tensor, gradient, weights, 0)?.wait()?;
        // The operation returns its buffers when it has ended. Until then they belong to the operation.
        (gradient, weights) = (ended.source.context("a gradient")?, ended.target.context("weights")?);
    }
    println!("worker {} of {}: {}", client.rank(), client.workers(), weights.as_f32()[0]);
    client.close();
    Ok(())
}
