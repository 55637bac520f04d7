//! Hosts that share no memory: the scheduler and a server on one, a worker on each of two others, with virtual
//! cables between them. TCP is chosen and says why; the weights are the same to the last bit; a cable that is
//! pulled ends in typed errors that name who was lost, not in a hang.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use daemon::status::ClusterStatus;
use gradwire_tests::rigs::cluster::{Cluster, PATIENCE, Place};
use gradwire_tests::rigs::netns::Net;
use gradwire_tests::rigs::process::Process;
use proto_common::error::ExitCode;
use proto_common::transport::Driver;
use std::time::{Duration, Instant};

/// Beyond loopback nothing is authenticated yet: it takes this word.
const OPEN: [&str; 2] = ["--set", "security.mode=off"];
const LAYERS: [&str; 4] = ["--layers", "64,32,10", "--seed", "3"];
/// Deadlines short enough to wait for, long enough for a busy machine.
const SILENCE: Duration = Duration::from_millis(2_000);
const DEADLINES: [&str; 6] = [
    "--set",
    "deadlines.heartbeat_ms=200",
    "--set",
    "deadlines.silence_ms=2000",
    "--set",
    "deadlines.scheduler_ms=0",
];

/// The hub holds scheduler and server, each further host one worker.
fn cluster(net: &Net, scheduler: &[&str], train: &[&str]) -> Cluster {
    let hub = net.place(0);
    let mut cluster = Cluster::at(&hub, Net::HUB, 1, 2, &[&OPEN, scheduler].concat());
    cluster.add_server(&[&OPEN[..], &["--bind", Net::HUB]].concat());
    for host in [1, 2] {
        cluster.place = net.place(host);
        let address = Net::address(host);
        cluster.add_trainer(&[&OPEN[..], &["--bind", &address], &LAYERS, train].concat());
    }
    cluster.place = hub;
    cluster
}

fn hash_in(process: &Process) -> String {
    let text = process.log().text();
    let line = text.lines().rfind(|line| line.contains("weights_sha256=")).expect("a result line");
    line.split("weights_sha256=").nth(1).unwrap().split(' ').next().unwrap().to_owned()
}

/// What `gradwire status` on the hub says.
fn status(cluster: &Cluster) -> ClusterStatus {
    let mut command = cluster.place.command("gradwire");
    command.args(["status", "--json", "--scheduler-http", &cluster.http]);
    let mut process = Process::start("gradwire status", &mut command);
    assert_eq!(process.expect_end(PATIENCE), 0);
    let text = process.log().text();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn training_across_hosts_gives_the_reference_weights_over_tcp() {
    let net = Net::new(2);
    let mut cluster = cluster(&net, &[], &["--epochs", "2"]);
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{}", process.name());
    }
    cluster.assert_no_panic();
    for worker in &cluster.workers {
        let text = worker.log().text();
        let line = text.lines().find(|line| line.contains("data path ready server=0")).expect("a line of it");
        assert!(line.contains("driver=tcp") && line.contains("different hosts"), "{line}");
        // The processes are of one kernel and user, but not of one network namespace.
        assert!(line.contains("; over tcp socket"), "{line}");
        assert!(text.contains("peers beyond loopback are not authenticated"), "the open door is logged");
    }
    assert!(cluster.workers[0].log().text().contains("transport=tcp"));
    let mut command = Place::default().command("gradwire-worker");
    command.arg("train").args(LAYERS).args(["--epochs", "2", "--reference", "--workers", "2"]);
    let mut reference = Process::start("reference", &mut command);
    assert_eq!(reference.expect_end(PATIENCE), 0);
    assert_eq!(hash_in(&cluster.workers[0]), hash_in(&reference));
}

#[test]
fn a_pulled_cable_ends_in_errors_that_name_the_lost() {
    let net = Net::new(2);
    let mut cluster = cluster(&net, &DEADLINES, &["--epochs", "1000000"]);
    cluster.workers[0].expect_line("epoch       3/", PATIENCE);
    wait_for_links(&cluster);
    let cut = Instant::now();
    net.cut(2);
    let bound = SILENCE + Duration::from_secs(5);
    for process in cluster.everyone() {
        let code = process.expect_end(bound.saturating_sub(cut.elapsed()));
        let (wanted, words) = match process.name() {
            "worker 1" => (ExitCode::SchedulerUnreachable, "lost the scheduler: no heartbeat for"),
            _ => (ExitCode::MemberDied, "worker 1 failed: no heartbeat for"),
        };
        let text = process.log().text();
        let last = text.lines().rfind(|line| line.contains("error: ")).unwrap_or_default();
        assert!(last.contains(words), "{} says {last:?}, not {words:?}", process.name());
        assert_eq!(code, wanted as i32, "{}", process.name());
    }
    assert!(cut.elapsed() > SILENCE / 2, "the silence was waited for");
    cluster.assert_no_panic();
}

/// Heartbeats carry the links: soon after the first, status shows driver and reason for every worker.
fn wait_for_links(cluster: &Cluster) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = status(cluster);
        let links: Vec<_> = status.members.iter().flat_map(|member| &member.links).collect();
        if links.len() == 2 {
            let fits = |why: &str| why.contains("different hosts");
            assert!(links.iter().all(|link| link.driver == Driver::Tcp && fits(&link.why)), "{links:?}");
            return;
        }
        assert!(Instant::now() < deadline, "no links in {status:?}");
    }
}

#[test]
fn without_the_explicit_word_nothing_binds_beyond_loopback() {
    let net = Net::new(1);
    let fix = "set security.mode = \"off\"";
    let address = format!("{}:0", Net::HUB);
    for (program, args, setting) in [
        ("gradwire-scheduler", ["--scheduler", &address], "scheduler.host"),
        ("gradwire-server", ["--bind", Net::HUB], "node.bind"),
    ] {
        let mut process = Process::start(program, net.place(0).command(program).args(args));
        assert_eq!(process.expect_end(PATIENCE), ExitCode::Config as i32);
        let text = process.log().text();
        assert!(text.contains(setting) && text.contains(fix), "{text}");
    }
}

/// ps-lite's name for "the address of this card".
#[test]
fn dmlc_interface_names_the_cable() {
    let net = Net::new(1);
    let hub = net.place(0);
    let mut cluster = Cluster::at(&hub, Net::HUB, 1, 1, &OPEN);
    let (host, port) = cluster.control.rsplit_once(':').unwrap();
    let mut command = hub.command("gradwire-server");
    command.args(OPEN).envs([("DMLC_ROLE", "server"), ("DMLC_INTERFACE", "to1")]);
    command.envs([("DMLC_PS_ROOT_URI", host), ("DMLC_PS_ROOT_PORT", port)]);
    cluster.servers.push(Process::start("server 0", &mut command));
    cluster.place = net.place(1);
    cluster.add_trainer(&[&OPEN[..], &LAYERS, &["--epochs", "1"]].concat());
    cluster.place = hub;
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{}", process.name());
    }
    assert!(cluster.workers[0].log().text().contains("transport=tcp"));
}

#[test]
fn a_cut_while_assembling_is_bounded_too() {
    let net = Net::new(1);
    let hub = net.place(0);
    let mut cluster = Cluster::at(&hub, Net::HUB, 1, 1, &[&OPEN[..], &DEADLINES].concat());
    net.cut(1);
    cluster.place = net.place(1);
    cluster.add_trainer(&[&OPEN[..], &["--set", "deadlines.connect_ms=500"]].concat());
    let started = Instant::now();
    let code = cluster.workers[0].expect_end(Duration::from_secs(5));
    assert_eq!(code, ExitCode::SchedulerUnreachable as i32);
    assert!(started.elapsed() < Duration::from_secs(5));
    let text = cluster.workers[0].log().text();
    assert!(text.contains(&format!("cannot connect to {}", Net::HUB)), "{text}");
}
