//! The processes of one cluster: starts them, strikes them, and notices their ends. It decides nothing; what a process says
//! goes to a file of its own, one life after the other.

use super::args::{ChaosArgs, Expect};
use super::net::Net;
use super::schedule::Kind;
use crate::find;
use anyhow::Context as _;
use daemon::exit::{Failure, WithCode as _};
use daemon::process::DIE_WITH_PARENT;
use proto_common::error::ExitCode;
use proto_common::ids::{MemberId, Rank, Role};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::process::{Child, Command};

/// Layers of the demo, unless the command line names others: tensors of 0.2 to 6.6 chunks of 4 KiB.
const LAYERS: [&str; 4] = ["--layers", "64,105,33,10", "--batch", "8"];
/// Ports that the system gives to nobody by itself, so that a scheduler finds its own again.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// What the log of a seat has before each life.
const LIFE: &str = "--- a life of ";
/// Follows it where all begin.
const BEGUN: &str = ", as all others begin";

/// A place in the cluster. A server's is the one that it is started for: as a spare it may get another rank.
pub(super) type Seat = MemberId;

pub(super) const SCHEDULER: Seat = MemberId { role: Role::Scheduler, rank: Rank(0) };

/// One life in a seat.
#[derive(Debug)]
pub(super) struct Life {
    child: Child,
    pub(super) pid: u32,
    /// Stopped, or cut off: it does not answer.
    pub(super) is_mute: bool,
    /// Killed by us.
    is_killed: bool,
}

/// How a life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) seat: Seat,
    /// As a shell says it: a signal counts 128 more.
    pub(super) code: i32,
    pub(super) was_killed: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Cluster<'a> {
    args: &'a ChaosArgs,
    directory: PathBuf,
    programs: PathBuf,
    net: Option<Net>,
    control: String,
    /// The scheduler's HTTP address, the same in all its lives.
    pub(super) http: String,
    pub(super) lives: BTreeMap<Seat, Life>,
    /// Servers of the first assembly ask for their ranks; those that come later take what is free.
    is_assembled: bool,
    is_disturbed: bool,
}

impl<'a> Cluster<'a> {
    /// Nobody yet. Logs and checkpoints go to `directory`; an undisturbed cluster delays nothing.
    pub(super) fn new(args: &'a ChaosArgs, directory: &Path, is_disturbed: bool) -> Result<Self, Failure> {
        let programs = find::bin_dir(args.bin_dir.as_deref())?;
        for name in ["gradwire-scheduler", "gradwire-server", "gradwire-worker"] {
            find::ours(&programs, name)?;
        }
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))
            .code(ExitCode::Io)?;
        let net = args.inside.as_deref().map(Net::of);
        let host = if net.is_some() { Net::HUB } else { "127.0.0.1" };
        let (control, http) = (free_port(host, 0)?, free_port(host, 1)?);
        Ok(Self {
            args,
            directory: directory.to_path_buf(),
            programs,
            net,
            control: format!("{host}:{control}"),
            http: format!("{host}:{http}"),
            lives: BTreeMap::new(),
            is_assembled: false,
            is_disturbed,
        })
    }

    /// Everybody who belongs to it.
    pub(super) fn seats(&self) -> Vec<Seat> {
        let of = |role, count| (0..count).map(move |rank| MemberId { role, rank: Rank(rank) });
        let members = of(Role::Server, self.args.servers).chain(of(Role::Worker, self.args.workers));
        of(Role::Scheduler, 1).chain(members).collect()
    }

    pub(super) fn start_all(&mut self) -> Result<(), Failure> {
        self.is_assembled = false;
        for seat in self.seats() {
            self.start(seat)?;
        }
        self.is_assembled = true;
        Ok(())
    }

    /// A new life in a seat.
    pub(super) fn start(&mut self, seat: Seat) -> Result<(), Failure> {
        let program = find::ours(&self.programs, &format!("gradwire-{}", seat.role))?;
        let prefix = self.net.as_ref().map(|net| net.prefix(self.host_of(seat))).unwrap_or_default();
        let mut command = match prefix.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        let log = self.log_of(seat).code(ExitCode::Io)?;
        own_environment(&mut command);
        command.args(self.words(seat));
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone().code(ExitCode::Io)?)
            .stderr(log)
            .kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("cannot start {seat}")).code(ExitCode::Io)?;
        let pid = child.id().unwrap_or_default();
        self.lives.insert(seat, Life { child, pid, is_mute: false, is_killed: false });
        Ok(())
    }

    fn words(&self, seat: Seat) -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        if seat.role == Role::Worker {
            words.push("train".into());
        }
        words.extend(["--scheduler".into(), self.control.clone()]);
        words.extend(self.settings(seat.role).into_iter().flat_map(|pair| ["--set".into(), pair]));
        let http = if self.net.is_some() { self.address_of(seat) } else { "127.0.0.1".into() };
        match seat.role {
            Role::Scheduler => words.extend(["--http".into(), self.http.clone()]),
            _ => words.extend(["--http".into(), format!("{http}:0"), "--bind".into(), http]),
        }
        let ranked = seat.role == Role::Worker || (seat.role == Role::Server && !self.is_assembled);
        if ranked {
            words.extend(["--rank".into(), seat.rank.to_string()]);
        }
        if seat.role == Role::Worker {
            words.extend(self.training());
            words.push("--poison".into());
        }
        words
    }

    /// The hash of the weights that one process alone comes to, which computes what all workers would.
    pub(super) async fn reference(&self) -> Result<String, Failure> {
        let program = find::ours(&self.programs, "gradwire-worker")?;
        let mut words = vec!["train".into()];
        words.extend(self.training());
        words.extend(["--reference".into(), "--workers".into(), self.args.workers.to_string()]);
        let mut command = Command::new(program);
        own_environment(&mut command);
        command.args(words).stdin(Stdio::null()).kill_on_drop(true);
        let said = command.output().await.context("cannot start the reference").code(ExitCode::Io)?;
        hash_in(&String::from_utf8_lossy(&said.stdout)).ok_or_else(|| {
            let text = String::from_utf8_lossy(&said.stderr).trim().to_owned();
            Failure::message(ExitCode::Failure, format!("the reference failed: {text}"))
        })
    }

    fn training(&self) -> Vec<String> {
        let own: Vec<String> =
            self.args.train.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let mut words = if own.iter().any(|word| word.starts_with("--layers")) {
            Vec::new()
        } else {
            LAYERS.map(str::to_owned).to_vec()
        };
        words.extend(["--epochs".into(), self.args.epochs().to_string()]);
        if self.is_disturbed {
            words.extend(["--jitter-us".into(), self.args.jitter_us.to_string()]);
        }
        words.extend(own);
        words
    }

    fn settings(&self, role: Role) -> Vec<String> {
        let args = self.args;
        let mut pairs: Vec<String> = vec![
            format!("cluster.workers={}", args.workers),
            format!("cluster.servers={}", args.servers),
            format!("cluster.replicas={}", args.replicas),
            "cluster.chunk_bytes=4096".into(),
            format!("deadlines.silence_ms={}", args.silence_ms),
            format!("deadlines.heartbeat_ms={}", args.silence_ms / 10),
        ];
        if args.expect == Expect::End {
            pairs.push("deadlines.scheduler_ms=0".into());
        } else {
            pairs.push("cluster.worker_loss=wait".into());
        }
        if self.has_checkpoints() {
            pairs.push(format!("checkpoint.directory={}", self.directory.join("checkpoints").display()));
            pairs.push(format!("checkpoint.every_rounds={}", args.checkpoint_rounds));
            pairs.push("checkpoint.restore=latest".into());
        }
        if self.net.is_some() {
            pairs.push("security.mode=off".into());
        }
        pairs.extend(args.transport.settings().into_iter().map(|(name, word)| format!("{name}={word}")));
        pairs.extend(args.set.iter().cloned());
        match role {
            Role::Scheduler => {}
            Role::Server => pairs.extend(args.set_server.iter().cloned()),
            Role::Worker => pairs.extend(args.set_worker.iter().cloned()),
        }
        pairs
    }

    fn has_checkpoints(&self) -> bool {
        self.is_disturbed && self.args.expect == Expect::Same && self.args.is_end(Role::Server)
    }

    /// Strikes the life in a seat; false where there is none any more.
    pub(super) fn strike(&mut self, seat: Seat, kind: Kind) -> Result<bool, Failure> {
        let host = self.host_of(seat);
        let Some(life) = self.lives.get_mut(&seat) else { return Ok(false) };
        match kind {
            Kind::Kill => {
                life.is_killed = true;
                life.child.start_kill().code(ExitCode::Io)?;
            }
            Kind::Stop => signal(life, Signal::STOP),
            Kind::Partition => Net::plug(host, false)?,
            Kind::Drain => signal(life, Signal::TERM),
        }
        // Who is told to go works on meanwhile.
        life.is_mute = kind != Kind::Drain;
        Ok(true)
    }

    /// The end of a fault: a new life after an end; else the old one goes on, or is joined again.
    pub(super) fn heal(&mut self, seat: Seat, kind: Kind) -> Result<(), Failure> {
        match (kind, self.lives.get_mut(&seat)) {
            (Kind::Kill | Kind::Drain, _) => return self.start(seat),
            (Kind::Stop, Some(life)) => signal(life, Signal::CONT),
            (Kind::Stop, None) => {}
            (Kind::Partition, _) => Net::plug(self.host_of(seat), true)?,
        }
        if let Some(life) = self.lives.get_mut(&seat) {
            life.is_mute = false;
        }
        Ok(())
    }

    /// Who has ended since the last look.
    pub(super) fn ended(&mut self) -> Result<Vec<Ended>, Failure> {
        let mut ended = Vec::new();
        for (seat, life) in &mut self.lives {
            if let Some(status) = life.child.try_wait().code(ExitCode::Io)? {
                let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
                ended.push(Ended { seat: *seat, code, was_killed: life.is_killed });
            }
        }
        ended.iter().for_each(|end| drop(self.lives.remove(&end.seat)));
        Ok(ended)
    }

    /// Ends whoever is left, hard, and waits for it.
    pub(super) async fn end_all(&mut self) {
        for life in self.lives.values_mut() {
            // A process that was killed ends, stopped or not.
            let _ = life.child.kill().await;
        }
        self.lives.clear();
    }

    /// What a seat's lives said.
    pub(super) fn said(&self, seat: Seat) -> String {
        std::fs::read(self.log_path(seat))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Keeps something that a member said beside its log.
    pub(super) fn keep(&self, seat: Seat, name: &str, text: &[u8]) {
        // What is wrong already is told without it, too.
        let _ = std::fs::write(self.log_path(seat).with_extension(name), text);
    }

    fn log_path(&self, seat: Seat) -> PathBuf {
        self.directory.join(format!("{}.log", seat.to_string().replace(' ', "-")))
    }

    fn log_of(&self, seat: Seat) -> std::io::Result<File> {
        let mut log = OpenOptions::new().create(true).append(true).open(self.log_path(seat))?;
        writeln!(log, "{LIFE}{seat}{}", if self.is_assembled { "" } else { BEGUN })?;
        Ok(log)
    }

    fn host_of(&self, seat: Seat) -> u32 {
        match seat.role {
            Role::Scheduler => 0,
            Role::Server => 1 + seat.rank.0,
            Role::Worker => 1 + self.args.servers + seat.rank.0,
        }
    }

    fn address_of(&self, seat: Seat) -> String {
        match self.host_of(seat) {
            0 => Net::HUB.into(),
            host => Net::address(host),
        }
    }
}

fn signal(life: &Life, signal: Signal) {
    // It is not waited for yet, so the number is its own still; it may have ended.
    if let Some(pid) = i32::try_from(life.pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// What the last life of a seat said.
pub(super) fn last_life(said: &str) -> &str {
    said.rsplit(LIFE).next().unwrap_or(said)
}

/// What was said since all began, for the last time.
pub(super) fn since_all_began(said: &str) -> &str {
    said.rsplit(BEGUN).next().unwrap_or(said)
}

/// The hash of the weights in what a trainer says.
pub(super) fn hash_in(said: &str) -> Option<String> {
    let hash = said.lines().rev().find_map(|line| line.split("weights_sha256=").nth(1)?.split(' ').next());
    hash.map(str::to_owned)
}

/// A port that nobody has; `turn` keeps those of one cluster apart.
fn free_port(host: &str, turn: u16) -> Result<u16, Failure> {
    // Neighbours by process id begin apart.
    let first = (std::process::id().wrapping_mul(64) % u32::from(PORTS.end - PORTS.start)) as u16;
    let places = PORTS.end - PORTS.start;
    let port = (0..places / 2).map(|step| {
        PORTS.start + (u32::from(first) + u32::from(2 * step + turn)).rem_euclid(u32::from(places)) as u16
    });
    let mut free = port.filter(|port| TcpListener::bind((host, *port)).is_ok());
    free.next().ok_or_else(|| {
        let text = format!("no port from {} to {} of {host} is free", PORTS.start, PORTS.end);
        Failure::message(ExitCode::Io, text)
    })
}

/// What the machine's environment says about Gradwire is not part of a trial, and nothing of it outlives this process.
fn own_environment(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("GRADWIRE_") || text.starts_with("DMLC_") {
            command.env_remove(&name);
        }
    }
    command.env(DIE_WITH_PARENT, std::process::id().to_string());
}
