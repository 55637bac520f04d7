//! Baselines over plain blocking TCP sockets, without a library: a parameter server that stores and forwards (it
//! receives a whole tensor to memory, then reduces it, then sends it back), and one that receives to memory and does
//! nothing else.
//!
//! This file owns their processes; [`server`] and [`worker`] are what they run, [`wire`] what is between them.

pub(crate) mod server;
mod wire;
pub(crate) mod worker;

use crate::child::Child;
use crate::cluster::{Cluster, FromChild, REPLY_DEADLINE, ToWorker};
use crate::counters::Counted;
use crate::measure::{Sample, Subject};
use crate::workload::WorkSpec;
use clap::{Args, ValueEnum};

/// A whole tensor is one message.
const CHUNK_BYTES: u32 = u32::MAX - 3;

/// What the server does with what it has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Duty {
    /// Reduces it, and sends weights back: a parameter server.
    Forward,
    /// Nothing: says that it is there.
    Receive,
}

impl Duty {
    fn argument(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Receive => "receive",
        }
    }
}

/// Arguments of the hidden subcommands.
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    #[arg(long, value_enum, default_value = "forward")]
    duty: Duty,
}

/// Such a baseline as a subject of the suite.
pub(crate) struct PlainSubject {
    name: &'static str,
    duty: Duty,
    cluster: Option<Cluster>,
}

impl PlainSubject {
    /// No process runs yet.
    pub(crate) fn new(name: &'static str, duty: Duty) -> Self {
        Self { name, duty, cluster: None }
    }

    fn start(&self, spec: &WorkSpec) -> anyhow::Result<Cluster> {
        let mut servers = Vec::new();
        let mut addresses = Vec::new();
        for rank in 0..spec.servers {
            let args = ["plain-server", "--duty", self.duty.argument()].map(str::to_owned);
            let mut server = Child::spawn_self(&format!("plain server {rank}"), &args, Vec::new())?;
            match server.recv(REPLY_DEADLINE)? {
                FromChild::Listening { address } => addresses.push(address),
                other => anyhow::bail!("plain server {rank} began with {other:?}"),
            }
            servers.push(server);
        }
        let mut workers = Vec::new();
        for rank in 0..spec.workers {
            let args = ["plain-worker".to_owned()];
            workers.push(Child::spawn_self(&format!("plain worker {rank}"), &args, Vec::new())?);
        }
        let mut cluster = Cluster::new("plain TCP", spec, servers, workers);
        cluster.ask(|_| ToWorker::Connect { servers: addresses.clone() })?;
        Ok(cluster)
    }
}

impl Subject for PlainSubject {
    fn name(&self) -> &str {
        self.name
    }

    fn run(&mut self, spec: &WorkSpec) -> anyhow::Result<Sample> {
        // Taken out: after an error its processes may be anywhere, and end with it.
        let mut cluster = match self.cluster.take().filter(|cluster| cluster.fits(spec)) {
            Some(cluster) => cluster,
            None => self.start(spec)?,
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
