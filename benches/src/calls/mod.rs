//! `gradwire-bench calls`: calls to a handler beside pushes of the same bytes, and rows of a sparse table beside a prefetched
//! gather of the same rows, all in one run. Scheduler, server and client are threads of this process, over the driver that
//! is asked for: bytes cross it as between processes.

mod rows;

use crate::stats::{quantile_sorted, sorted};
use anyhow::Context;
use clap::Args;
use gradwire_scheduler::runtime::Scheduler;
use gradwire_server::{Apps, Call, Server};
use gradwire_worker::{CallRequest, Client, Piece, TensorBuffer};
use proto_common::config::Settings;
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;
use proto_common::transport::{Driver, Policies};
use std::collections::VecDeque;
use std::time::Instant;

const HANDLER: u32 = 1;
/// Short calls that are timed one by one.
const SHORT: usize = 5_000;
/// Bytes moved for each figure of throughput, twice: the first time warms up.
const TOTAL_BYTES: usize = 1 << 30;
const DEPTH: usize = 4;
const SIZES: [usize; 4] = [64 << 10, 1 << 20, 16 << 20, 64 << 20];

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct CallsArgs {
    /// Drivers, one after the other.
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp")]
    transport: Vec<String>,
    /// Rows of the sparse table.
    #[arg(long, default_value_t = 1 << 20)]
    rows: usize,
    /// Leave out calls: rows only.
    #[arg(long)]
    rows_only: bool,
}

/// Measures, and prints a line for each figure.
pub(crate) fn run(args: &CallsArgs) -> anyhow::Result<()> {
    for name in &args.transport {
        let driver = Driver::ALL.into_iter().find(|driver| driver.to_string() == *name);
        let driver = driver.with_context(|| format!("no driver is called {name}; use shm or tcp"))?;
        let bed = Bed::new(driver)?;
        if !args.rows_only {
            short(&bed, name)?;
            for bytes in SIZES {
                long(&bed, name, bytes)?;
            }
        }
        rows::measure(&bed.client, name, args.rows)?;
        bed.end()?;
    }
    Ok(())
}

struct Bed {
    client: Client,
    server: Server,
    scheduler: Scheduler,
}

impl Bed {
    fn new(driver: Driver) -> anyhow::Result<Self> {
        let mut settings = Settings::default();
        settings.scheduler.port = 0;
        settings.transport = Policies::only(driver);
        let scheduler = Scheduler::start(settings.clone())?;
        settings.scheduler.port = scheduler.address().port();
        let apps = Apps::default();
        // What fails there, the caller is told.
        apps.register(HANDLER, |call: Call| drop(call.reply.send(&[], Vec::new())))?;
        let server = Server::start_with(settings.clone(), apps)?;
        let client = Client::connect(settings)?;
        Ok(Self { client, server, scheduler })
    }

    fn end(self) -> anyhow::Result<()> {
        self.client.close();
        self.server.join()?;
        self.scheduler.join()
    }

    fn tensor(&self, bytes: usize) -> anyhow::Result<gradwire_worker::Tensor> {
        let spec = TensorSpec::f32(bytes as u64, bytes as u64 / 4, Optimizer::assign());
        Ok(self.client.declare(&[spec])?.remove(0))
    }
}

fn tell_latency(name: &str, what: &str, took_us: Vec<f64>) {
    let sorted = sorted(took_us);
    let at = |q| quantile_sorted(&sorted, q).unwrap_or(f64::NAN);
    crate::report::progress(&format!("{name:4} {what:24} p50 {:7.1} us, p99 {:7.1} us", at(0.5), at(0.99)));
}

/// One at a time, 16 bytes.
fn short(bed: &Bed, name: &str) -> anyhow::Result<()> {
    let tensor = bed.tensor(16)?;
    let mut took_us = Vec::with_capacity(SHORT);
    for _ in 0..SHORT {
        let began = Instant::now();
        bed.client.push_slice(&tensor, &[1f32; 4])?;
        took_us.push(began.elapsed().as_secs_f64() * 1e6);
    }
    tell_latency(name, "push of 4 floats", std::mem::take(&mut took_us));
    for _ in 0..SHORT {
        let began = Instant::now();
        let body = vec![Piece::Bytes(vec![0; 16])];
        bed.client.call(HANDLER, 0, CallRequest { body, ..CallRequest::default() })?.wait()?;
        took_us.push(began.elapsed().as_secs_f64() * 1e6);
    }
    tell_latency(name, "call of 4 floats", took_us);
    Ok(())
}

/// Several in flight, from registered memory.
fn long(bed: &Bed, name: &str, bytes: usize) -> anyhow::Result<()> {
    let count = TOTAL_BYTES / bytes;
    let tensor = bed.tensor(bytes)?;
    let push = |buffer: TensorBuffer| Ok(bed.client.push(&tensor, buffer)?);
    let back =
        |handle: gradwire_worker::Handle| handle.wait()?.source.context("a push gives its buffer back");
    let pushed = throughput(bed, (bytes, count), push, back)?;
    let call = |buffer: TensorBuffer| {
        let body = vec![Piece::Buffer(buffer)];
        Ok(bed.client.call(HANDLER, 0, CallRequest { body, ..CallRequest::default() })?)
    };
    let back = |handle: gradwire_worker::CallHandle| match handle.wait()?.request.pop() {
        Some(Piece::Buffer(buffer)) => Ok(buffer),
        _ => anyhow::bail!("a call gives its pieces back"),
    };
    let called = throughput(bed, (bytes, count), call, back)?;
    let kib = bytes >> 10;
    crate::report::progress(&format!(
        "{name:4} {kib:6} KiB, {DEPTH} in flight: push {pushed:6.2} GB/s, call {called:6.2} GB/s ({:.2} x)",
        called / pushed
    ));
    Ok(())
}

fn throughput<H>(
    bed: &Bed,
    (bytes, count): (usize, usize),
    start: impl Fn(TensorBuffer) -> anyhow::Result<H>,
    back: impl Fn(H) -> anyhow::Result<TensorBuffer>,
) -> anyhow::Result<f64> {
    let mut free = Vec::new();
    for _ in 0..DEPTH {
        let mut buffer = bed.client.allocate(bytes as u64)?;
        buffer.fill(1);
        free.push(buffer);
    }
    let mut gb_per_s = 0.0;
    for _ in 0..2 {
        let (began, mut flying) = (Instant::now(), VecDeque::new());
        for _ in 0..count {
            if free.is_empty() {
                free.extend(flying.pop_front().map(&back).transpose()?);
            }
            let buffer = free.pop().context("one has come back")?;
            flying.push_back(start(buffer)?);
        }
        for handle in flying {
            free.push(back(handle)?);
        }
        gb_per_s = (count * bytes) as f64 / began.elapsed().as_secs_f64() / 1e9;
    }
    Ok(gb_per_s)
}
