//! Processes of `gradwire launch` that are stopped and declared failed: the launcher ends its own servers, if it is asked to, and
//! nobody else.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use daemon::status::ClusterStatus;
use gradwire_tests::rigs::cluster::{PATIENCE, Place};
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::status::get;
use gradwire_tests::rigs::training::{hash_in, reference_by};
use proto_common::ids::Role;
use rustix::process::{Pid, Signal, kill_process};
use std::time::Instant;

const TRAIN: [&str; 8] = ["--layers", "64,105,33,10", "--epochs", "6", "--batch", "8", "--seed", "7"];
/// Some 90 steps an epoch then take 0.5 s on any machine. A process is stopped in the third epoch; training waits until it is declared
/// failed. The three epochs that are left take longer than the launcher waits before it ends a process.
const JITTER: [&str; 2] = ["--jitter-us", "8000"];
const FLAGS: [&str; 13] = [
    "launch",
    "--servers=2",
    "--workers=2",
    "--transport=shm",
    "--grace-ms=300",
    "--set",
    "cluster.replicas=1",
    "--set",
    "deadlines.heartbeat_ms=100",
    "--set",
    "deadlines.silence_ms=1000",
    "--set",
    "cluster.worker_loss=continue",
];
const ENDED: &str = "was declared failed and still runs; ending it with SIGKILL (--end-failed)";

/// A launch in mid-training whose server 1 or worker 1 is stopped.
struct Stopped {
    launcher: Process,
    http: String,
    pid: u32,
}

impl Stopped {
    fn new(role: Role, more: &[&str]) -> Self {
        let mut command = Place::default().command("gradwire");
        command.args(FLAGS).args(more).args(["--", "gradwire-worker", "train"]).args(TRAIN);
        let launcher = Process::start("gradwire launch", command.args(JITTER));
        let line = launcher.expect_line("status at http://", PATIENCE);
        let (_, http) = line.split_once("http://").unwrap();
        let http = http.trim_end().trim_end_matches("/status").to_owned();
        launcher.expect_line("epoch 2/", PATIENCE);
        let members = status(&http).members;
        let pid = members.iter().find(|one| one.role == role && one.rank.0 == 1).unwrap().pid;
        let stopped = Self { launcher, http, pid };
        stopped.signal(Signal::STOP);
        stopped
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid.cast_signed()).unwrap(), signal).unwrap();
    }

    /// Waits until the scheduler has declared it failed.
    fn await_failure(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !status(&self.http).recovery.failed.iter().any(|failed| failed.pid == self.pid) {
            assert!(Instant::now() < deadline, "nobody noticed that process {} was stopped", self.pid);
        }
    }

    /// At the end of the training it is still stopped. Ends it.
    fn outlasts_the_training(mut self) -> String {
        self.await_failure();
        self.launcher.expect_line("weights_sha256=", PATIENCE);
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap();
        assert!(stat.contains(") T "), "{stat}");
        self.signal(Signal::KILL);
        self.launcher.wait(PATIENCE).expect("the launcher ends");
        let text = self.launcher.log().text();
        assert!(!text.contains(ENDED), "{text}");
        text
    }
}

fn status(http: &str) -> ClusterStatus {
    serde_json::from_str(&get(http, "/status").unwrap()).unwrap()
}

#[test]
fn a_server_that_is_stopped_is_ended_where_that_is_asked_for() {
    let mut stopped = Stopped::new(Role::Server, &["--end-failed"]);
    let line = stopped.launcher.expect_line(ENDED, PATIENCE);
    assert!(line.contains(&format!("server 1 (process {})", stopped.pid)), "{line}");
    stopped
        .launcher
        .expect_line("server 1 ended: killed by signal 9; the job continues without it", PATIENCE);
    let held = |status: ClusterStatus| -> u64 {
        status.members.iter().filter_map(|member| Some(member.load?.quarantined_bytes)).sum()
    };
    assert_eq!(held(status(&stopped.http)), 0, "nobody can write there any more");
    assert_eq!(stopped.launcher.expect_end(PATIENCE), 0);
    let text = stopped.launcher.log().text();
    assert_eq!(hash_in(&text), reference_by(2, &TRAIN), "{text}");
    assert_eq!(text.matches(ENDED).count(), 1, "{text}");
}

#[test]
fn by_default_a_server_that_is_stopped_stays() {
    let text = Stopped::new(Role::Server, &[]).outlasts_the_training();
    assert_eq!(hash_in(&text), reference_by(2, &TRAIN), "{text}");
}

/// It embeds the client, in a program that may be the user's.
#[test]
fn a_worker_that_is_stopped_stays() {
    Stopped::new(Role::Worker, &["--end-failed"]).outlasts_the_training();
}
