//! What a lane's engine costs while nothing happens: `cargo run --release -p gradwire-server --example idle -- CHUNKS WORKERS`.
//! All workers are connected. It prints resident bytes per chunk, and the processor time of one second: its ticks, and two
//! reports for heartbeats. It measures, and must not check anything.
#![allow(clippy::print_stdout, reason = "it prints a table")]

use gradwire_server::engine::{ChunkSpec, Commands, EngineConfig, LaneEngine};
use proto_common::codec::Codec;
use proto_common::config::WorkerLoss;
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Epoch, Incarnation, JobId, Lane, Rank};
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;
use std::time::Duration;

/// A lane ticks so often a second, and is asked for a report so often.
const TICKS: u64 = 20;
const REPORTS: u64 = 2;
const SECONDS: u64 = 50;

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u32>().unwrap_or(1000));
    let (chunks, workers) = (args.next().unwrap_or(400_000), args.next().unwrap_or(1024));
    let before = resident_bytes();
    let mut engine = LaneEngine::new(EngineConfig {
        job: JobId(1),
        incarnation: Incarnation(1),
        lane: Lane(0),
        workers,
        deterministic: false,
        inbox_slots: 4096,
        spill_blocks: 64,
        carried_bytes_max: 0,
        worker_loss: WorkerLoss::Stop,
    });
    let specs: Vec<ChunkSpec> = (0..chunks)
        .map(|at| ChunkSpec {
            id: ChunkId::new(u64::from(1 + at / 100), at % 100),
            bytes: 256 << 10,
            dynamic: false,
            dtype: Dtype::F32,
            codec: Codec::default(),
            optimizer: Optimizer::sum(),
            mode: Mode::Sync,
            backup_workers: 0,
        })
        .collect();
    engine.assign(Epoch::from_number(1), &specs);
    drop(specs);
    let mut out = Commands::default();
    for rank in 0..workers {
        engine.peer_up(Rank(rank), Incarnation(u64::from(rank) + 2), &[], false, &mut out);
    }
    let bytes = resident_bytes().saturating_sub(before);
    let started = processor_time();
    for tick in 0..TICKS * SECONDS {
        engine.tick(tick * 1000 / TICKS, &mut out);
        if tick.is_multiple_of(TICKS / REPORTS) {
            std::hint::black_box((engine.under_way(), engine.waits(tick)));
        }
    }
    let second = (processor_time() - started) / SECONDS as u32;
    println!(
        "{chunks} chunks, {workers} workers: {} bytes a chunk, {second:?} of processor time a second",
        bytes / u64::from(chunks)
    );
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) << 10
}

/// Of this thread, which is the only one.
fn processor_time() -> Duration {
    let times = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    Duration::from_nanos(times.split(' ').next().and_then(|time| time.parse().ok()).unwrap_or(0))
}
