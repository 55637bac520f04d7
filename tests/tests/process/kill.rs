//! Deaths in mid-training: whoever is killed or stops dead, everyone else says who it was and ends with the
//! documented code within five seconds. And the orderly ends: signals to all, and to the launcher.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use daemon::status::{ClusterStatus, MemberStatus};
use gradwire_tests::rigs::cluster::{Cluster, PATIENCE, Place};
use gradwire_tests::rigs::hostile::Rogue;
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::programs;
use gradwire_tests::rigs::status::get;
use proto_common::error::ExitCode;
use proto_common::ids::{Rank, Role};
use proto_common::transport::Driver;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

/// Everyone else must have reported a death and ended by then.
const BOUND: Duration = Duration::from_secs(5);
/// Training that does not end by itself.
const ENDLESS: [&str; 6] = ["--layers", "64,128,10", "--epochs", "1000000", "--batch", "16"];

/// Two servers and two workers in mid-training. Nobody looks for another scheduler.
fn training(transport: &str, scheduler: &[&str]) -> Cluster {
    let mut cluster = Cluster::new(2, 2, &[&["--set", "deadlines.scheduler_ms=0"], scheduler].concat());
    cluster.add_servers(2, &["--transport", transport]);
    cluster.add_trainers(2, &[&ENDLESS[..], &["--transport", transport]].concat());
    cluster.workers[0].expect_line("epoch       3/", PATIENCE);
    cluster
}

/// What befalls the process, and what the others say about it.
struct Blow {
    signal: Signal,
    cause: &'static str,
    bound: Duration,
}

const KILL: Blow =
    Blow { signal: Signal::KILL, cause: "its control connection closed unexpectedly", bound: BOUND };

/// Deals the blow to the process with this name; all others must name it.
fn strike(cluster: &mut Cluster, victim: &str, blow: &Blow) {
    let struck = Instant::now();
    let mut found = false;
    for process in cluster.everyone().filter(|process| process.name() == victim) {
        process.signal(blow.signal);
        found = true;
    }
    assert!(found, "there is no {victim}");
    for process in cluster.everyone().filter(|process| process.name() != victim) {
        let left = (struck + blow.bound).saturating_duration_since(Instant::now());
        let code = process.expect_end(left);
        let (wanted, words) = match victim {
            "scheduler" => (ExitCode::SchedulerUnreachable, "lost the scheduler".to_owned()),
            member => (ExitCode::MemberDied, format!("{member} failed: {}", blow.cause)),
        };
        assert_eq!(code, wanted as i32, "{} after the end of {victim}", process.name());
        let text = process.log().text();
        let last = text.lines().rfind(|line| line.contains("error: "));
        let last = last.unwrap_or_else(|| panic!("{} ended without a word", process.name()));
        assert!(last.contains(&words), "{} says {last:?}, not {words:?}", process.name());
    }
    cluster.assert_no_panic();
}

fn kill_each(transport: &str) {
    for victim in ["scheduler", "server 1", "worker 0", "worker 1"] {
        strike(&mut training(transport, &[]), victim, &KILL);
    }
}

#[test]
fn any_one_killed_over_shm() {
    kill_each("shm");
}

#[test]
fn any_one_killed_over_tcp() {
    kill_each("tcp");
}

/// A stopped process keeps its connections: only its silence tells.
#[test]
fn any_one_stopped_is_named_as_silent() {
    let deadlines = ["--set", "deadlines.heartbeat_ms=100", "--set", "deadlines.silence_ms=1500"];
    let blow = Blow { signal: Signal::STOP, cause: "no heartbeat for ", bound: BOUND };
    for (victim, transport) in
        [("scheduler", "shm"), ("server 0", "tcp"), ("server 1", "shm"), ("worker 1", "tcp")]
    {
        strike(&mut training(transport, &deadlines), victim, &blow);
    }
}

/// Killed before the cluster is complete: the others must not wait for the assembly's deadline.
#[test]
fn a_death_while_assembling_ends_it_at_once() {
    let mut cluster = Cluster::new(1, 2, &[]);
    cluster.add_servers(1, &[]);
    cluster.add_trainers(1, &ENDLESS);
    cluster.servers[0].expect_line("server registered", PATIENCE);
    cluster.scheduler.expect_line("worker 0 registered", PATIENCE);
    strike(&mut cluster, "server 0", &KILL);
}

/// While workers connect their data paths, a death must not have to wait for that to fail.
#[test]
fn a_death_while_connecting_ends_it_at_once() {
    for victim in ["server 0", "worker 1"] {
        let mut cluster = Cluster::new(2, 2, &[]);
        cluster.add_servers(2, &[]);
        for server in &cluster.servers {
            server.expect_line("server registered", PATIENCE);
        }
        // A server that stands still keeps the workers connecting.
        cluster.servers[0].signal(Signal::STOP);
        cluster.add_trainers(2, &ENDLESS);
        cluster.scheduler.expect_line("new roster", PATIENCE);
        for process in cluster.everyone().filter(|process| process.name() == victim) {
            process.kill();
        }
        assert_eq!(cluster.workers[0].expect_end(BOUND), ExitCode::MemberDied as i32);
        // The server has its say, too, once it goes on.
        cluster.servers[0].signal(Signal::CONT);
        strike(&mut cluster, victim, &KILL);
    }
}

/// A worker that dies between a server's offer and its own channel: the server must not wait for what will never
/// come.
#[test]
fn a_death_before_its_channel_ends_it_at_once() {
    for driver in [Driver::Shm, Driver::Tcp] {
        let mut cluster = Cluster::new(1, 1, &[]);
        cluster.add_servers(1, &[]);
        let mut worker = Rogue::register(&cluster, 0);
        worker.await_roster();
        let (link, _offer) = worker.ask(driver);
        let died = Instant::now();
        // Its connections close, as when a process is killed.
        drop((worker, link));
        for process in cluster.everyone() {
            let code = process.expect_end(BOUND.saturating_sub(died.elapsed()));
            assert_eq!(code, ExitCode::MemberDied as i32, "{} over {driver}", process.name());
        }
        cluster.assert_no_panic();
    }
}

#[test]
fn sigterm_to_the_scheduler_ends_the_job_in_order() {
    let mut cluster = training("shm", &[]);
    let asked = Instant::now();
    cluster.scheduler.signal(Signal::TERM);
    assert_eq!(cluster.scheduler.expect_end(BOUND), 0);
    for process in &mut cluster.servers {
        assert_eq!(process.expect_end(BOUND), 0, "{}", process.name());
        assert!(process.log().text().contains("the scheduler was stopped: SIGTERM received"));
    }
    for process in &mut cluster.workers {
        // Training was not finished: that is no success, and the reason is said.
        assert_eq!(process.expect_end(BOUND), ExitCode::Failure as i32, "{}", process.name());
        assert!(process.log().text().contains("the scheduler was stopped: SIGTERM received"));
    }
    assert!(asked.elapsed() < BOUND, "{:?}", asked.elapsed());
    cluster.assert_no_panic();
}

/// In whatever order the signals arrive, nobody may take the first who goes for a failure.
#[test]
fn sigterm_to_everyone_at_once_is_an_orderly_end() {
    for (transport, scheduler_first) in [("shm", true), ("tcp", false)] {
        let mut cluster = training(transport, &[]);
        let asked = Instant::now();
        let mut everyone: Vec<_> = cluster.everyone().collect();
        if !scheduler_first {
            everyone.reverse();
        }
        everyone.iter().for_each(|process| process.signal(Signal::TERM));
        for process in everyone {
            let code = process.expect_end(BOUND.saturating_sub(asked.elapsed()));
            // Training was not finished, which is no success; the daemons did all they were asked to.
            let wanted = if process.name().starts_with("worker") { 128 + 15 } else { 0 };
            assert_eq!(code, wanted, "{}", process.name());
        }
        cluster.assert_no_panic();
    }
}

/// One trainer alone is told to stop: to the others that is a death, and it says what ended it.
#[test]
fn sigterm_to_one_trainer_ends_the_job() {
    let mut cluster = training("shm", &[]);
    let blow = Blow { signal: Signal::TERM, ..KILL };
    strike(&mut cluster, "worker 1", &blow);
    assert_eq!(cluster.workers[1].expect_end(BOUND), 128 + 15);
    assert!(cluster.workers[1].log().text().contains("SIGTERM received"));
}

/// Ctrl-C reaches the launcher only; it must leave no process and no doubt.
#[test]
fn ctrl_c_of_the_launcher_leaves_nobody() {
    let place = Place::default();
    let mut command = place.command("gradwire");
    command.args(["launch", "--servers", "2", "--workers", "2", "--grace-ms", "2000", "--"]);
    command.arg("gradwire-worker").arg("train").args(ENDLESS);
    let marker = format!("test-{}", std::process::id());
    command.env("TEST_MARKER", &marker);
    let mut launcher = Process::start("gradwire launch", &mut command);
    launcher.expect_line("epoch       3/", PATIENCE);
    let family = marked(&marker);
    assert!(family.len() >= 6, "launcher, scheduler, 2 servers and 2 workers: {family:?}");
    launcher.signal(Signal::INT);
    assert_eq!(launcher.expect_end(Duration::from_secs(10)), 128 + 2);
    assert_eq!(marked(&marker), [""; 0], "left behind");
}

/// The others wait for whoever never came; the launcher knows better, and does not wait for its own patience to end.
#[test]
fn a_worker_that_ends_before_it_joins_ends_the_launch_at_once_and_is_named() {
    for (program, code) in [("exit 65", 65), ("exit 0", 1)] {
        let mut command = Place::default().command("gradwire");
        command.args(["launch", "--workers", "2", "--grace-ms", "60000", "--", "sh", "-c"]);
        let worker = programs::program("gradwire-worker");
        let others = format!("exec {} train {}", worker.display(), ENDLESS.join(" "));
        command.arg(format!("[ $GRADWIRE_NODE__RANK = 0 ] || {program}; {others}"));
        let mut launcher = Process::start("gradwire launch", &mut command);
        assert_eq!(launcher.expect_end(Duration::from_secs(20)), code);
        let text = launcher.log().text();
        assert!(
            text.contains("worker 1 failed first: ") && text.contains("before it joined the cluster"),
            "{text}"
        );
    }
}

/// Scripts that are told of it end with codes of their own.
#[test]
fn a_worker_that_is_stopped_is_named_and_not_one_that_ends_because_of_it() {
    let mut command = Place::default().command("gradwire");
    command.args(["launch", "--workers", "2", "--grace-ms", "300", "--set", "deadlines.heartbeat_ms=100"]);
    command.args(["--set", "deadlines.silence_ms=1000", "--", "sh", "-c"]);
    let worker = programs::program("gradwire-worker");
    command.arg(format!("{} train {} || exit 3", worker.display(), ENDLESS.join(" ")));
    let mut launcher = Process::start("gradwire launch", &mut command);
    let line = launcher.expect_line("status at http://", PATIENCE);
    let http = line.trim_end().split_once("http://").unwrap().1.trim_end_matches("/status").to_owned();
    launcher.expect_line("epoch       3/", PATIENCE);
    kill_process(pid_of_worker(&http, 1), Signal::STOP).unwrap();
    assert_eq!(launcher.expect_end(Duration::from_secs(30)), ExitCode::MemberDied as i32);
    let text = launcher.log().text();
    assert!(
        text.contains("worker 1 failed first: no heartbeat for") && text.contains("it still runs"),
        "{text}"
    );
}

/// Its script outlives its worker until the other script has ended.
#[test]
fn a_worker_whose_script_ends_last_is_named_and_not_one_that_ends_because_of_it() {
    let (directory, mut command) = (tempfile::tempdir().unwrap(), Place::default().command("gradwire"));
    command.args(["launch", "--workers", "2", "--grace-ms", "20000", "--", "sh", "-c"]);
    let (lock, worker) = (directory.path().join("lock"), programs::program("gradwire-worker"));
    command.arg(format!(
        "exec 9> {}; [ $GRADWIRE_NODE__RANK = 1 ] || flock 9; {} train {}; flock 9; exit 3",
        lock.display(),
        worker.display(),
        ENDLESS.join(" ")
    ));
    let mut launcher = Process::start("gradwire launch", &mut command);
    let line = launcher.expect_line("status at http://", PATIENCE);
    let http = line.trim_end().split_once("http://").unwrap().1.trim_end_matches("/status").to_owned();
    launcher.expect_line("epoch       3/", PATIENCE);
    kill_process(pid_of_worker(&http, 1), Signal::KILL).unwrap();
    assert_eq!(launcher.expect_end(Duration::from_secs(30)), 3);
    let text = launcher.log().text();
    assert!(text.contains("worker 1 failed first: exit code 3"), "{text}");
}

fn pid_of_worker(http: &str, rank: u32) -> Pid {
    let status: ClusterStatus = serde_json::from_str(&get(http, "/status").unwrap()).unwrap();
    let is_it = |member: &&MemberStatus| (member.role, member.rank) == (Role::Worker, Rank(rank));
    let pid = status.members.iter().find(is_it).unwrap().pid;
    Pid::from_raw(pid.cast_signed()).unwrap()
}

/// A server waits long for a scheduler that is not there yet, but not when it is told to stop.
#[test]
fn sigterm_ends_a_server_that_waits_for_its_scheduler() {
    let mut command = Place::default().command("gradwire-server");
    command.args(["--scheduler", "127.0.0.1:1", "--set", "deadlines.connect_ms=600000"]);
    command.args(["--set", "transport.verbs=prefer", "--set", "verbs.device=nowhere"]);
    let mut server = Process::start("server", &mut command);
    // Said once signals are heard.
    server.expect_line("no RDMA device", PATIENCE);
    server.signal(Signal::TERM);
    assert_eq!(server.expect_end(Duration::from_secs(20)), 0);
    assert!(server.log().text().contains("leaving before the scheduler answered"));
}

/// Command lines of the processes whose environment holds the marker.
fn marked(marker: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let holds = |path: &std::path::Path| {
        let environment = std::fs::read(path.join("environ")).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(marker)
    };
    let marked = entries.map(|entry| entry.path()).filter(|path| holds(path));
    let command =
        |path: std::path::PathBuf| std::fs::read_to_string(path.join("cmdline")).unwrap_or_default();
    marked.map(command).filter(|command| !command.is_empty()).collect()
}
