//! Gradwire as a subject of the suite: the real daemons, and worker processes over the client library.

pub(crate) mod worker;

use crate::child::Child;
use crate::cluster::{Cluster, FromChild, REPLY_DEADLINE};
use crate::counters::Counted;
use crate::measure::{Sample, Subject};
use crate::workload::WorkSpec;
use anyhow::Context as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use worker::{Variant, driver_of};

/// How long a daemon may take to say where it listens.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// Gradwire over one transport.
pub(crate) struct GradwireSubject {
    label: &'static str,
    transport: &'static str,
    variant: Variant,
    placement: &'static str,
    /// Settings, as `key=value`, of all its processes.
    settings: Vec<String>,
    /// The CPUs that workers and servers stay on.
    cpus: Option<(usize, usize)>,
    cluster: Option<Cluster>,
}

impl GradwireSubject {
    /// Gradwire over `shm`, `verbs`, or over sockets: `unix` is the tcp driver as it chooses for processes of one host,
    /// `tcp` the same driver held to TCP, as between hosts. No process runs yet.
    pub(crate) fn new(transport: &'static str) -> Self {
        Self {
            label: transport,
            transport,
            variant: Variant::default(),
            placement: "auto",
            settings: Vec::new(),
            cpus: None,
            cluster: None,
        }
    }

    /// The same with workers that push by another rule or from other memory, under a name of its own.
    pub(crate) fn with_variant(self, label: &'static str, variant: Variant) -> Self {
        Self { label, variant, ..self }
    }

    /// The same with settings, as `key=value`, of all its processes.
    pub(crate) fn with_settings(mut self, settings: &[String]) -> Self {
        self.settings.extend_from_slice(settings);
        self
    }

    /// The same with all workers on the first of these CPUs, and all servers on the second.
    pub(crate) fn with_cpus(self, cpus: (usize, usize)) -> Self {
        Self { cpus: Some(cpus), ..self }
    }

    /// The same with another placement, which names it.
    pub(crate) fn with_placement(self, placement: &'static str) -> Self {
        let setting = format!("transport.placement={placement}");
        Self { label: placement, placement, ..self.with_settings(&[setting]) }
    }

    /// Does the work once, and then nothing for some time: the share of one CPU that its processes take meanwhile, in
    /// percent.
    pub(crate) fn idle_cpu_percent(&mut self, spec: &WorkSpec, time: Duration) -> anyhow::Result<f64> {
        self.run(spec)?;
        self.cluster.as_ref().context("a cluster that has ended")?.idle_cpu_percent(time)
    }

    fn start(&self, spec: &WorkSpec) -> anyhow::Result<Cluster> {
        let Daemons { children, scheduler } =
            start_daemons(self.transport, (spec.servers, spec.workers), &self.settings, "off", self.cpus)?;
        let mut workers = Vec::new();
        for rank in 0..spec.workers {
            let args =
                ["gradwire-worker", "--scheduler", &scheduler, "--transport", self.transport, "--rank"];
            let mut args: Vec<String> = args.iter().map(ToString::to_string).collect();
            args.push(rank.to_string());
            args.extend(self.variant.arguments());
            args.extend(self.cpus.iter().flat_map(|cpus| ["--cpu".to_owned(), cpus.0.to_string()]));
            args.extend(self.settings.iter().flat_map(|setting| ["--set".to_owned(), setting.clone()]));
            workers.push(Child::spawn_self(&format!("gradwire worker {rank}"), &args, Vec::new())?);
        }
        for (rank, worker) in workers.iter_mut().enumerate() {
            match worker.recv(REPLY_DEADLINE)? {
                FromChild::Ready => {}
                other => anyhow::bail!("gradwire worker {rank} began with {other:?}"),
            }
        }
        Ok(Cluster::new("gradwire", spec, children, workers))
    }
}

/// A scheduler and its servers; they end when this goes.
pub(crate) struct Daemons {
    children: Vec<Child>,
    /// Where the scheduler listens.
    pub(crate) scheduler: String,
}

impl Daemons {
    /// Process ids of the servers.
    pub(crate) fn servers(&self) -> Vec<u32> {
        self.children.iter().skip(1).map(Child::pid).collect()
    }
}

/// Starts a scheduler and its servers, which do not have to be ready yet when this returns. `settings`: as
/// `key=value`. `http`: where servers serve it. `cpus`: of which servers stay on the second.
///
/// # Errors
/// A program is not there, or the scheduler does not say where it listens.
pub(crate) fn start_daemons(
    transport: &str,
    shape: (u32, u32),
    settings: &[String],
    http: &str,
    cpus: Option<(usize, usize)>,
) -> anyhow::Result<Daemons> {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    let directory = std::env::temp_dir().join(format!("gradwire-bench-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let started = start_at(&directory.join("ports"), transport, shape, settings, http, cpus);
    let _ = std::fs::remove_dir_all(&directory);
    started
}

fn start_at(
    port_file: &Path,
    transport: &str,
    (servers, workers): (u32, u32),
    settings: &[String],
    http: &str,
    cpus: Option<(usize, usize)>,
) -> anyhow::Result<Daemons> {
    let mut command = daemon("gradwire-scheduler", transport, settings, None)?;
    command.args(["--scheduler", "127.0.0.1:0", "--workers", &workers.to_string(), "--http", "off"]);
    command.args(["--servers", &servers.to_string()]).arg("--port-file").arg(port_file);
    let mut scheduler = Child::spawn("gradwire-scheduler", command)?;
    let address = wait_for_address(&mut scheduler, port_file)?;
    let mut children = vec![scheduler];
    for rank in 0..servers {
        let mut command = daemon("gradwire-server", transport, settings, cpus.map(|cpus| cpus.1))?;
        command.args(["--scheduler", &address, "--rank", &rank.to_string(), "--http", http]);
        children.push(Child::spawn(&format!("gradwire-server {rank}"), command)?);
    }
    Ok(Daemons { children, scheduler: address })
}

/// Where one of our daemons lies: beside this program.
pub(crate) fn program(name: &str) -> anyhow::Result<PathBuf> {
    let here = std::env::current_exe().context("cannot find this executable")?;
    let program = here.with_file_name(name);
    anyhow::ensure!(
        program.exists(),
        "{} is not there; build it first: cargo build --release --bins",
        program.display()
    );
    Ok(program)
}

fn daemon(name: &str, transport: &str, settings: &[String], cpu: Option<usize>) -> anyhow::Result<Command> {
    let (driver, unix) = driver_of(transport);
    let program = program(name)?;
    let mut command = match cpu {
        Some(cpu) => {
            let mut command = Command::new("taskset");
            command.arg(format!("{:x}", 1_u64 << cpu)).arg(program);
            command
        }
        None => Command::new(program),
    };
    command
        .args(["--transport", driver, "--log", "warn"])
        .args(["--set", &format!("node.unix_sockets={unix}")])
        .args(settings.iter().flat_map(|setting| ["--set", setting]))
        .env("GRADWIRE_DIE_WITH_PARENT", std::process::id().to_string());
    Ok(command)
}

/// Reads the scheduler's address once it has written it, which it does in one step.
fn wait_for_address(scheduler: &mut Child, port_file: &Path) -> anyhow::Result<String> {
    let start = Instant::now();
    while start.elapsed() < START_DEADLINE {
        if let Ok(text) = std::fs::read_to_string(port_file)
            && let Some(address) = text.lines().find_map(|line| line.strip_prefix("control="))
        {
            return Ok(address.to_owned());
        }
        scheduler.check()?;
        // Sleep: a file's appearance has no event without inotify, and this happens once a cluster.
        std::thread::sleep(Duration::from_millis(5));
    }
    anyhow::bail!("the scheduler did not say where it listens within {} s", START_DEADLINE.as_secs())
}

impl Subject for GradwireSubject {
    fn name(&self) -> &str {
        self.label
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

    fn placement(&self, _spec: &WorkSpec) -> Option<String> {
        Some(self.placement.to_owned())
    }

    fn buffers(&self, _spec: &WorkSpec) -> Option<String> {
        Some(self.variant.buffers.to_string())
    }

    fn stop(&mut self) {
        self.cluster = None;
    }
}
