//! Gradwire as a subject of the suite: the real daemons, and worker processes over the client library.

pub(crate) mod worker;

use crate::child::Child;
use crate::cluster::{Cluster, FromChild, REPLY_DEADLINE};
use crate::measure::{Sample, Subject};
use crate::workload::WorkSpec;
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long a daemon may take to say where it listens.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// Gradwire over one transport.
pub(crate) struct GradwireSubject {
    transport: &'static str,
    cluster: Option<Cluster>,
}

impl GradwireSubject {
    /// Gradwire over `shm`, or over sockets: `unix` is the tcp driver as it chooses for processes of one host, `tcp`
    /// the same driver held to TCP, as between hosts. No process runs yet.
    pub(crate) fn new(transport: &'static str) -> Self {
        Self { transport, cluster: None }
    }

    fn start(&self, spec: &WorkSpec) -> anyhow::Result<Cluster> {
        let directory =
            std::env::temp_dir().join(format!("gradwire-bench-{}-{}", std::process::id(), self.transport));
        std::fs::create_dir_all(&directory)?;
        let port_file = directory.join("ports");
        let _ = std::fs::remove_file(&port_file);
        let started = self.start_with(spec, &port_file);
        let _ = std::fs::remove_dir_all(&directory);
        started
    }

    fn start_with(&self, spec: &WorkSpec, port_file: &Path) -> anyhow::Result<Cluster> {
        let mut scheduler = daemon("gradwire-scheduler", self.transport)?;
        scheduler.args(["--scheduler", "127.0.0.1:0", "--workers", &spec.workers.to_string()]);
        scheduler.args(["--servers", &spec.servers.to_string()]).arg("--port-file").arg(port_file);
        let mut daemons = vec![Child::spawn("gradwire-scheduler", scheduler)?];
        let address = wait_for_address(port_file)?;
        for rank in 0..spec.servers {
            let mut server = daemon("gradwire-server", self.transport)?;
            server.args(["--scheduler", &address, "--rank", &rank.to_string()]);
            daemons.push(Child::spawn(&format!("gradwire-server {rank}"), server)?);
        }
        let mut workers = Vec::new();
        for rank in 0..spec.workers {
            let args = ["gradwire-worker", "--scheduler", &address, "--transport", self.transport, "--rank"];
            let mut args: Vec<String> = args.iter().map(ToString::to_string).collect();
            args.push(rank.to_string());
            workers.push(Child::spawn_self(&format!("gradwire worker {rank}"), &args, Vec::new())?);
        }
        for (rank, worker) in workers.iter_mut().enumerate() {
            match worker.recv(REPLY_DEADLINE)? {
                FromChild::Ready => {}
                other => anyhow::bail!("gradwire worker {rank} began with {other:?}"),
            }
        }
        Ok(Cluster::new("gradwire", spec, daemons, workers))
    }
}

/// The driver that a subject requires, and whether it may use unix sockets.
fn driver_of(transport: &str) -> (&str, bool) {
    match transport {
        "unix" => ("tcp", true),
        "tcp" => ("tcp", false),
        other => (other, true),
    }
}

/// One of our daemons, found beside this program.
fn daemon(name: &str, transport: &str) -> anyhow::Result<Command> {
    let here = std::env::current_exe().context("cannot find this executable")?;
    let program: PathBuf = here.with_file_name(name);
    anyhow::ensure!(
        program.exists(),
        "{} is not there; build it first: cargo build --release --bins",
        program.display()
    );
    let (driver, unix) = driver_of(transport);
    let mut command = Command::new(program);
    command
        .args(["--transport", driver, "--log", "warn", "--http", "off"])
        .args(["--set", &format!("node.unix_sockets={unix}")])
        .env("GRADWIRE_DIE_WITH_PARENT", std::process::id().to_string());
    Ok(command)
}

/// Reads the scheduler's address once it has written it, which it does in one step.
fn wait_for_address(port_file: &Path) -> anyhow::Result<String> {
    let start = Instant::now();
    while start.elapsed() < START_DEADLINE {
        if let Ok(text) = std::fs::read_to_string(port_file)
            && let Some(address) = text.lines().find_map(|line| line.strip_prefix("control="))
        {
            return Ok(address.to_owned());
        }
        // Sleep: a file's appearance has no event without inotify, and this happens once a cluster.
        std::thread::sleep(Duration::from_millis(5));
    }
    anyhow::bail!("the scheduler did not say where it listens within {} s", START_DEADLINE.as_secs())
}

impl Subject for GradwireSubject {
    fn name(&self) -> &str {
        self.transport
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

    fn placement(&self, _spec: &WorkSpec) -> Option<String> {
        Some("slot".to_owned())
    }

    fn buffers(&self, _spec: &WorkSpec) -> Option<String> {
        Some("library".to_owned())
    }

    fn stop(&mut self) {
        self.cluster = None;
    }
}
