//! A cluster of real processes on ports of the system's choice, in a directory of its own. Starts what a
//! test asks for, knows where everyone is, and leaves nobody behind.

use super::process::{Process, becomes_readable};
use super::programs;
use daemon::process::DIE_WITH_PARENT;
use daemon::status::ClusterStatus;
use proto_common::config::Settings;
use rustix::fs::inotify;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than anything of a healthy cluster takes on a busy machine: what takes longer hangs.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Where a process runs: its program's directory, and what starts it (a network namespace).
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// Programs lie here; beside the test where `None`.
    pub programs: Option<PathBuf>,
    /// Words before the program's own command line.
    pub prefix: Vec<String>,
}

impl Place {
    /// A command that runs one of our programs there, which dies with this thread.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let path = match &self.programs {
            Some(directory) => programs::in_directory(directory, program),
            None => programs::program(program),
        };
        let mut command = match self.prefix.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(path);
                command
            }
            None => Command::new(path),
        };
        // What the machine's environment says about Gradwire is not part of the test.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().into_owned();
            if text.starts_with("GRADWIRE_") || text.starts_with("DMLC_") {
                command.env_remove(name);
            }
        }
        command.env(DIE_WITH_PARENT, std::process::id().to_string());
        command.current_dir(programs::repository());
        command
    }
}

/// A scheduler with the members a test adds. Fields are dropped in order: members first, files last.
#[derive(Debug)]
pub struct Cluster {
    /// Trainers, in the order they were started.
    pub workers: Vec<Process>,
    /// Servers, in the order they were started.
    pub servers: Vec<Process>,
    /// The scheduler.
    pub scheduler: Process,
    /// `HOST:PORT` of the scheduler's control port.
    pub control: String,
    /// `HOST:PORT` of its HTTP endpoints.
    pub http: String,
    /// Where members run.
    pub place: Place,
    directory: TempDir,
}

impl Cluster {
    /// A scheduler for so many members; `args` are further words of its command line.
    #[must_use]
    pub fn new(servers: u32, workers: u32, args: &[&str]) -> Self {
        Self::at(&Place::default(), "127.0.0.1", servers, workers, args)
    }

    /// As [`Cluster::new`], with the scheduler at a place and an address.
    #[must_use]
    pub fn at(place: &Place, host: &str, servers: u32, workers: u32, args: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let port_file = directory.path().join("ports");
        let appears = Appears::watch(directory.path());
        let mut command = place.command("gradwire-scheduler");
        command.args(["--servers", &servers.to_string(), "--workers", &workers.to_string()]);
        command.args(["--scheduler", &format!("{host}:0")]).arg("--port-file").arg(&port_file).args(args);
        let mut scheduler = Process::start("scheduler", &mut command);
        let text = appears.wait(&port_file, &mut scheduler);
        let address = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in {text:?}")).to_owned()
        };
        Self {
            workers: Vec::new(),
            servers: Vec::new(),
            scheduler,
            control: address("control="),
            http: address("http="),
            place: place.clone(),
            directory,
        }
    }

    /// A directory for the test's files.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The command line of a member's program.
    #[must_use]
    pub fn member(&self, program: &str, words: &[&str], rank: Option<usize>, args: &[&str]) -> Command {
        let mut command = self.place.command(program);
        command.args(words).args(["--scheduler", &self.control]);
        if let Some(rank) = rank {
            command.args(["--rank", &rank.to_string()]);
        }
        command.args(args);
        command
    }

    /// Starts the next server.
    pub fn add_server(&mut self, args: &[&str]) {
        let rank = self.servers.len();
        let mut command = self.member("gradwire-server", &[], Some(rank), args);
        self.servers.push(Process::start(format!("server {rank}"), &mut command));
    }

    /// Starts this many more servers.
    pub fn add_servers(&mut self, count: u32, args: &[&str]) {
        (0..count).for_each(|_| self.add_server(args));
    }

    /// Starts the next worker, training on the digits.
    pub fn add_trainer(&mut self, args: &[&str]) {
        let rank = self.workers.len();
        let mut command = self.member("gradwire-worker", &["train"], Some(rank), args);
        self.workers.push(Process::start(format!("worker {rank}"), &mut command));
    }

    /// Starts this many more trainers.
    pub fn add_trainers(&mut self, count: u32, args: &[&str]) {
        (0..count).for_each(|_| self.add_trainer(args));
    }

    /// Starts the next worker with the test's own program: `words` say what it does.
    pub fn add_test_worker(&mut self, words: &[&str], settings: &[(&str, &str)]) {
        let rank = self.workers.len();
        let mut command = self.place.command("test_worker");
        let (host, port) = self.control.rsplit_once(':').expect("HOST:PORT");
        command.env("GRADWIRE_SCHEDULER__HOST", host).env("GRADWIRE_SCHEDULER__PORT", port);
        command.env("GRADWIRE_NODE__RANK", rank.to_string()).envs(settings.iter().copied()).args(words);
        self.workers.push(Process::start(format!("worker {rank}"), &mut command));
    }

    /// Everyone of the cluster.
    pub fn everyone(&mut self) -> impl Iterator<Item = &mut Process> {
        std::iter::once(&mut self.scheduler).chain(&mut self.servers).chain(&mut self.workers)
    }

    /// Settings of a client in this process.
    #[must_use]
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        let (host, port) = self.control.rsplit_once(':').expect("HOST:PORT");
        settings.scheduler.host = host.to_owned();
        settings.scheduler.port = port.parse().expect("a port");
        settings
    }

    /// What the scheduler's `/status` says.
    #[must_use]
    pub fn status(&self) -> ClusterStatus {
        let body = super::status::get(&self.http, "/status").expect("the scheduler answers /status");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("/status: {error}: {body}"))
    }

    /// Nobody has panicked or reported a bug of its own.
    pub fn assert_no_panic(&mut self) {
        for process in self.everyone() {
            let text = process.log().text();
            let bug = text.lines().find(|line| line.contains("panicked") || line.contains("internal error"));
            assert!(bug.is_none(), "{}: {}", process.name(), bug.unwrap_or_default());
        }
    }
}

/// Notices files that appear in a directory.
struct Appears(std::os::fd::OwnedFd);

impl Appears {
    fn watch(directory: &Path) -> Self {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let watch = inotify::init(flags).expect("inotify");
        inotify::add_watch(&watch, directory, inotify::WatchFlags::MOVED_TO).expect("inotify watch");
        Self(watch)
    }

    /// The file's text, once it is there whole; fails the test when its writer ends before.
    fn wait(&self, file: &Path, writer: &mut Process) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Ok(text) = std::fs::read_to_string(file) {
                return text;
            }
            assert!(Instant::now() < deadline, "{} wrote no {}", writer.name(), file.display());
            // A writer that fails is noticed within this time.
            if !becomes_readable(self.0.as_fd(), Instant::now() + Duration::from_millis(250)) {
                assert!(writer.is_running(), "{} ended before it wrote its ports", writer.name());
            }
        }
    }
}
