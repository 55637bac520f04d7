//! A worker for tests that measure a whole process: it idles, runs many small rounds, or moves one huge
//! tensor. Settings come from `GRADWIRE_*` variables as everywhere; what to do stands on the command line.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "what it says is what the test waits for")]

use anyhow::{Context as _, bail, ensure};
use gradwire_worker::{Client, TensorBuffer};
use proto_common::ids::Role;
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;

/// Rounds between two lines of progress.
const REPORT_ROUNDS: u64 = 10_000;

fn main() -> std::process::ExitCode {
    daemon::exit::run_main("test_worker", || {
        let env = daemon::process::environment();
        daemon::process::die_with_parent(&env)?;
        let loaded = daemon::settings::load_settings(Role::Worker, &env, None, &[])?;
        let client = Client::connect(loaded.settings)?;
        let words: Vec<String> = std::env::args().skip(1).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["idle"] => idle(&client),
            ["rounds", count] => rounds(&client, count.parse()?),
            ["big", key, elements] => big(&client, key.parse()?, elements.parse()?),
            _ => bail!("usage: test_worker idle | rounds COUNT | big KEY ELEMENTS"),
        }
    })
}

/// Works once, so that everything is set up, and then does nothing until it is killed.
fn idle(client: &Client) -> anyhow::Result<()> {
    let tensors = client.declare(&[summed(1, 1000), summed(2, 100_000)])?;
    for tensor in &tensors {
        let elements = tensor.spec().elements as usize;
        client.push_slice(tensor, &vec![1.0f32; elements])?;
    }
    println!("idle");
    loop {
        std::thread::park();
    }
}

/// Rounds of a few small tensors in flight together.
fn rounds(client: &Client, count: u64) -> anyhow::Result<()> {
    let tensors = client.declare(&[summed(1, 4), summed(2, 300), summed(3, 1000)])?;
    let allocate = |bytes| -> anyhow::Result<(TensorBuffer, TensorBuffer)> {
        Ok((client.allocate(bytes)?, client.allocate(bytes)?))
    };
    let mut buffers = tensors.iter().map(|t| allocate(t.bytes()).map(Some)).collect::<Result<Vec<_>, _>>()?;
    let workers = client.workers() as f32;
    for round in 1..=count {
        let value = (round % 1000) as f32;
        let mut handles = Vec::with_capacity(tensors.len());
        for (tensor, buffers) in tensors.iter().zip(&mut buffers) {
            let (mut gradient, weights) = buffers.take().context("buffers are back")?;
            gradient.as_f32_mut().fill(value);
            handles.push(client.push_pull(tensor, gradient, weights, 0)?);
        }
        for (handle, buffers) in handles.into_iter().zip(&mut buffers) {
            let ended = handle.wait()?;
            *buffers = ended.source.zip(ended.target);
            let weights = buffers.as_ref().map_or(&[][..], |(_, weights)| weights.as_f32());
            ensure!(weights.iter().all(|w| *w == value * workers), "round {round}: {:?}", &weights[..4]);
        }
        if round % REPORT_ROUNDS == 0 {
            println!("round {round}");
        }
    }
    Ok(())
}

/// Pushes a tensor whose every element says where it is, and pulls it back into the same memory.
fn big(client: &Client, key: u64, elements: u64) -> anyhow::Result<()> {
    let tensor = client.declare(&[summed(key, elements)])?.remove(0);
    let mut buffer = client.allocate(tensor.bytes())?;
    for (index, element) in buffer.as_f32_mut().iter_mut().enumerate() {
        *element = value_at(index as u64);
    }
    println!("filled {} bytes", tensor.bytes());
    let ended = client.push(&tensor, buffer)?.wait()?;
    println!("pushed, version {}", ended.version);
    let mut buffer = ended.source.context("the gradient's buffer comes back")?;
    buffer.fill(0xFF);
    let ended = client.pull(&tensor, buffer)?.wait()?;
    println!("pulled, version {}", ended.version);
    let buffer = ended.target.context("the weights' buffer comes back")?;
    let wrong = buffer.as_f32().iter().enumerate().find(|(index, w)| **w != value_at(*index as u64));
    if let Some((index, value)) = wrong {
        bail!("element {index} is {value}, not {}", value_at(index as u64));
    }
    println!("every element is where it belongs");
    Ok(())
}

/// Differs between neighbours and between places 4 GiB apart; exact in f32.
fn value_at(index: u64) -> f32 {
    (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 41) as f32
}

fn summed(key: u64, elements: u64) -> TensorSpec {
    TensorSpec::f32(key, elements, Optimizer::assign())
}
