//! The baseline: a parameter server over gRPC (tonic), doing the same work as Gradwire in the same number of
//! processes, tuned as well as tonic lets it be.
//!
//! This file owns its processes and what is said to them; [`server`] and [`worker`] are what they run,
//! [`tuning`] the committed settings.

mod codec;
pub(crate) mod server;
pub(crate) mod tune;
mod tuning;
pub(crate) mod worker;

pub(crate) use tuning::Tuning;

use crate::child::Child;
use crate::cluster::{Cluster, FromChild, REPLY_DEADLINE, ToWorker};
use crate::counters::Counted;
use crate::measure::{Sample, Subject};
use crate::workload::WorkSpec;
use anyhow::Context as _;
use clap::Args;
use std::time::Duration;

/// The one method that is served.
const EXCHANGE_PATH: &str = "/gradwire.bench.ParameterServer/Exchange";

/// How long one run may take at the very most.
const RUN_DEADLINE: Duration = Duration::from_secs(120);

/// Arguments of the hidden subcommands.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    /// The settings, as JSON.
    #[arg(long)]
    tuning: String,
}

impl ChildArgs {
    fn tuning(&self) -> anyhow::Result<Tuning> {
        serde_json::from_str(&self.tuning).context("bad settings from the parent")
    }
}

/// Starts the baseline's processes for a cluster shape.
fn start(tuning: &Tuning, spec: &WorkSpec) -> anyhow::Result<Cluster> {
    let spawn = |name: &str, role: &str| {
        let args = [role.to_owned(), "--tuning".to_owned(), serde_json::to_string(tuning)?];
        Child::spawn_self(name, &args, tuning.environment())
    };
    let mut servers = Vec::new();
    let mut addresses = Vec::new();
    for rank in 0..spec.servers {
        let mut server = spawn(&format!("gRPC server {rank}"), "grpc-server")?;
        match server.recv(REPLY_DEADLINE)? {
            FromChild::Listening { address } => addresses.push(address),
            other => anyhow::bail!("gRPC server {rank} began with {other:?}"),
        }
        servers.push(server);
    }
    let mut workers = Vec::new();
    for rank in 0..spec.workers {
        workers.push(spawn(&format!("gRPC worker {rank}"), "grpc-worker")?);
    }
    let mut cluster = Cluster::new("gRPC", spec, servers, workers);
    cluster.ask(|_| ToWorker::Connect { servers: addresses.clone() })?;
    Ok(cluster)
}

/// The baseline as a subject of the suite.
pub(crate) struct GrpcSubject {
    name: String,
    tuning: Tuning,
    cluster: Option<Cluster>,
}

impl GrpcSubject {
    /// A baseline with these settings, called `grpc`; no process runs yet.
    pub(crate) fn new(tuning: Tuning) -> Self {
        Self::named("grpc".to_owned(), tuning)
    }

    /// A baseline under another name, so that settings can be compared with each other.
    pub(crate) fn named(name: String, tuning: Tuning) -> Self {
        Self { name, tuning, cluster: None }
    }
}

impl Subject for GrpcSubject {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&mut self, spec: &WorkSpec) -> anyhow::Result<Sample> {
        // Taken out: after an error its processes may be anywhere, and end with it.
        let mut cluster = match self.cluster.take().filter(|cluster| cluster.fits(spec)) {
            Some(cluster) => cluster,
            None => start(&self.tuning, spec)?,
        };
        let sample = cluster.sample(spec)?;
        self.cluster = Some(cluster);
        Ok(sample)
    }

    fn count(&mut self, spec: &WorkSpec) -> anyhow::Result<Option<Counted>> {
        self.cluster.as_mut().map(|cluster| cluster.count(spec)).transpose()
    }

    fn buffers(&self, _spec: &WorkSpec) -> Option<String> {
        Some("plain".to_owned())
    }

    fn stop(&mut self) {
        self.cluster = None;
    }
}
