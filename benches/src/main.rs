//! `gradwire-bench`: measures Gradwire and its baselines in one run, on one machine.
//!
//! Owns the command line and the exit code. It must not measure anything itself: [`suite`] decides what runs,
//! [`measure`] how. Hidden subcommands are the baseline's own processes, so that it crosses process borders
//! exactly as Gradwire does.
#![forbid(unsafe_code)]

mod bars;
mod calls;
mod child;
mod cluster;
mod copy;
mod costs;
mod counters;
mod gradwire;
mod grpc;
mod kernel;
mod kernels;
mod laps;
mod measure;
mod models;
mod peer;
mod ping;
mod plain;
mod plot;
mod procfs;
mod rdma;
mod report;
mod results;
mod scale;
mod stats;
mod store;
mod suite;
mod workload;

use clap::{Parser, Subcommand};
use fabric::allocations::Counting;
use std::process::ExitCode;

/// Workers tell how often a round allocates. It costs nothing where none does.
#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Measures Gradwire beside this machine's best copy, a tuned gRPC parameter server and other baselines.
#[derive(Debug, Parser)]
#[command(name = "gradwire-bench", version)]
struct Cli {
    #[command(flatten)]
    suite: suite::SuiteArgs,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// One server process of the gRPC baseline (started by the benchmark itself).
    #[command(hide = true)]
    GrpcServer(grpc::ChildArgs),
    /// One worker process of the gRPC baseline (started by the benchmark itself).
    #[command(hide = true)]
    GrpcWorker(grpc::ChildArgs),
    /// One worker process of Gradwire (started by the benchmark itself).
    #[command(hide = true)]
    GradwireWorker(gradwire::worker::WorkerArgs),
    /// One server process of the baselines over plain sockets (started by the benchmark itself).
    #[command(hide = true)]
    PlainServer(plain::ChildArgs),
    /// One worker process of the baselines over plain sockets (started by the benchmark itself).
    #[command(hide = true)]
    PlainWorker,
    /// The first process of a bare exchange (started by the benchmark itself).
    #[command(hide = true)]
    Ping(ping::PingArgs),
    /// The second process of a bare exchange (started by the first one).
    #[command(hide = true)]
    PingEcho(ping::PingArgs),
    /// Measures an RDMA device beside perftest on the same one: what `make bench-rdma` runs, in a guest.
    Rdma(rdma::RdmaArgs),
    /// Makes files of what such a guest printed: JSON, plots.
    RdmaReport(rdma::ReportArgs),
    /// The peer process of a raw channel (started by the benchmark itself).
    #[command(hide = true)]
    RdmaPeer(rdma::PeerArgs),
    /// Simulates up to 1,000 workers and 100 servers, after measuring what its model needs here.
    Scale(scale::ScaleArgs),
    /// One worker process of a real run that the simulation is compared with (started by the benchmark itself).
    #[command(hide = true)]
    ScaleWorker(scale::WorkerArgs),
    /// Measures the fused reduction beside separate passes, and two data threads beside one, without any peer.
    Kernels(kernels::KernelArgs),
    /// Measures calls to handlers beside pushes, and rows of sparse tables beside a gather of the same rows.
    Calls(calls::CallsArgs),
    /// Measures what a setting costs: copies on other servers (`cluster.replicas`), encryption, the recorder.
    Costs(costs::CostsArgs),
    /// Sweeps the gRPC baseline's settings and prints what each gives: how the committed ones were found.
    TuneGrpc(grpc::tune::TuneArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        None => suite::run(&cli.suite),
        Some(Command::GrpcServer(args)) => grpc::server::main(&args),
        Some(Command::GrpcWorker(args)) => grpc::worker::main(&args),
        Some(Command::GradwireWorker(args)) => gradwire::worker::main(&args),
        Some(Command::PlainServer(args)) => plain::server::main(&args),
        Some(Command::PlainWorker) => plain::worker::main(),
        Some(Command::Ping(args)) => ping::main(&args),
        Some(Command::PingEcho(args)) => ping::echo(&args),
        Some(Command::Rdma(args)) => rdma::run(&args),
        Some(Command::RdmaReport(args)) => rdma::report(&args),
        Some(Command::RdmaPeer(args)) => rdma::peer(&args),
        Some(Command::Scale(args)) => scale::run(&args),
        Some(Command::ScaleWorker(args)) => scale::worker(&args),
        Some(Command::Kernels(args)) => kernels::run(&args),
        Some(Command::Calls(args)) => calls::run(&args),
        Some(Command::Costs(args)) => costs::run(&args),
        Some(Command::TuneGrpc(args)) => grpc::tune::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::progress(&format!("gradwire-bench: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
