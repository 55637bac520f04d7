//! A worker that times rounds of push_pull of one tensor, from and into registered memory: what a binding's speed is
//! held against (`bindings/python/bench.py`). For each line on standard input it does so many rounds, and prints their
//! seconds, one a line, then an empty one.
//!
//!     GRADWIRE_SCHEDULER__PORT=… cargo run --release -p gradwire-worker --example push_pull_speed -- ELEMENTS

#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use anyhow::{Context, Result};
use daemon::settings::load_settings;
use gradwire_worker::Client;
use proto_common::ids::Role;
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;
use std::io::Write;
use std::time::Instant;

const KEY: u64 = 1;

fn main() -> Result<()> {
    let elements: u64 = std::env::args().nth(1).context("how many elements?")?.parse()?;
    let loaded = load_settings(Role::Worker, &daemon::process::environment(), None, &[])?;
    let client = Client::connect(loaded.settings)?;
    let tensor = client.declare(&[TensorSpec::f32(KEY, elements, Optimizer::assign())])?.remove(0);
    let mut buffers = (client.allocate(tensor.bytes())?, client.allocate(tensor.bytes())?);
    buffers.0.as_f32_mut().fill(1.0);
    buffers.1.as_f32_mut().fill(0.0);
    for line in std::io::stdin().lines() {
        let rounds: usize = line?.trim().parse()?;
        for _ in 0..rounds {
            let began = Instant::now();
            let ended = client.push_pull(&tensor, buffers.0, buffers.1, 0)?.wait()?;
            let seconds = began.elapsed().as_secs_f64();
            let (source, target) =
                (ended.source.context("no gradient")?, ended.target.context("no weights")?);
            buffers = (source, target);
            println!("{seconds}");
        }
        println!();
        std::io::stdout().flush()?;
    }
    client.close();
    Ok(())
}
