//! Real daemons over a real RDMA device (in the guest of `tests/guest`, whose device is software): the same weights as
//! over any other driver, deaths noticed, and what happens where there is no device or no right to pin memory.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE, Place};
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::status;
use gradwire_tests::rigs::training::{
    BRIEF, Carrier, SHM, TRAIN, UNIX, VERBS, hash_in, reference, reference_by, trained, trained_on,
    trained_with,
};
use proto_common::error::ExitCode;
use rustix::process::Signal;
use std::process::Command;
use std::time::{Duration, Instant};

/// Longer than silence takes to tell; a closed connection tells at once.
const BOUND: Duration = Duration::from_secs(8);
const ENDLESS: [&str; 8] =
    ["--layers", "64,128,10", "--epochs", "1000000", "--batch", "16", "--transport", "verbs"];

#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn the_same_weights_as_over_every_other_driver() {
    let expected = reference(4);
    assert_eq!(trained(SHM, 2, 4, &[]), expected, "shm");
    assert_eq!(trained(UNIX, 2, 4, &[]), expected, "tcp");
    for servers in 1..=2 {
        assert_eq!(trained(VERBS, servers, 4, &[]), expected, "verbs, {servers} servers");
    }
}

/// A lane is a completion queue with its thread, and a queue pair to each peer.
#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn several_queues_and_queue_pairs_and_small_chunks() {
    let lanes = ["--set", "cluster.lanes=3", "--set", "cluster.chunk_bytes=4096"];
    assert_eq!(trained_on(&BRIEF, VERBS, 2, 3, &lanes), reference_by(3, &BRIEF));
}

#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn a_device_is_chosen_where_memory_cannot_be_shared_and_it_is_said_why() {
    let no_shm = Carrier(&["--set", "transport.shm=off"], "no shm (turned off in the worker's settings)");
    assert_eq!(trained(no_shm, 1, 2, &[]), reference(2));
}

/// Notices by polled flags, and what that is good for: static placement.
#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn notices_by_flags_bring_the_same_weights() {
    let flags = ["--transport", "verbs", "--set", "verbs.tail_flags=true", "--placement", "static"];
    assert_eq!(trained_with(&flags, "transport=verbs", 1, 2, &[]), reference(2));
}

/// As little as the doctor says is enough.
#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn a_small_budget_of_registered_memory_is_enough_for_a_small_model() {
    let small = ["--transport", "verbs", "--set", "memory.registered_bytes=8388608"];
    assert_eq!(trained_with(&small, "transport=verbs", 1, 2, &[]), reference(2));
}

/// More is needed in mid-run than the server may register: it says so, and everyone says it after it.
#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn a_budget_that_runs_out_is_named_with_its_fix_by_everyone() {
    let verbs = ["--transport", "verbs"];
    let mut cluster = Cluster::new(1, 2, &[]);
    cluster.add_servers(1, &[&verbs[..], &["--set", "memory.registered_bytes=9437184"]].concat());
    let large =
        ["--layers", "64,7300,10", "--epochs", "1", "--batch", "64", "--placement", "rendezvous-read"];
    cluster.add_trainers(2, &[&large[..], &verbs].concat());
    for process in cluster.everyone() {
        let end = process.expect_end(PATIENCE);
        let text = process.log().text();
        let code = if process.name() == "server 0" { ExitCode::Transport } else { ExitCode::MemberDied };
        assert_eq!(end, code as i32, "{}: {text}", process.name());
        assert!(text.contains("raise memory.registered_bytes"), "{}: {text}", process.name());
    }
    cluster.assert_no_panic();
}

#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn whoever_is_killed_is_named_by_all_others() {
    for victim in ["server 1", "worker 0"] {
        let mut cluster = Cluster::new(2, 2, &[]);
        cluster.add_servers(2, &["--transport", "verbs"]);
        cluster.add_trainers(2, &ENDLESS);
        cluster.workers[0].expect_line("epoch       2/", PATIENCE);
        let struck = Instant::now();
        cluster.everyone().filter(|p| p.name() == victim).for_each(|p| p.signal(Signal::KILL));
        for process in cluster.everyone().filter(|p| p.name() != victim) {
            let left = (struck + BOUND).saturating_duration_since(Instant::now());
            assert_eq!(process.expect_end(left), ExitCode::MemberDied as i32, "{}", process.name());
            let text = process.log().text();
            assert!(text.contains(&format!("{victim} failed")), "{}: {text}", process.name());
        }
        println!("fault: {victim} killed over verbs: all others had ended after {:?}", struck.elapsed());
        cluster.assert_no_panic();
    }
}

/// Each process tells what the port did since it opened the device.
#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn what_the_port_counts_is_among_the_metrics() {
    let mut cluster = Cluster::new(1, 1, &[]);
    cluster.add_servers(1, &["--transport", "verbs"]);
    cluster.add_trainers(1, &ENDLESS);
    cluster.workers[0].expect_line("epoch       2/", PATIENCE);
    for member in cluster.status().members {
        let page = status::get(member.http_address.as_deref().unwrap(), "/metrics").unwrap();
        let mut of_port = page.lines().filter(|line| line.starts_with("gradwire_rdma_port_total{"));
        let sent = of_port.find(|line| line.contains("counter=\"sent_pkts\""));
        let sent = sent.unwrap_or_else(|| panic!("{page}"));
        assert!(sent.contains("port=\"1\"") && sent.contains("device=\"rxe"), "{sent}");
        assert!(sent.rsplit(' ').next().unwrap().parse::<u64>().unwrap() > 0, "{sent}");
    }
    cluster.assert_no_panic();
}

/// A server alone, with these settings, from this place; the scheduler waits for more.
fn server(place: Place, args: &[&str]) -> (Cluster, Process) {
    let mut cluster = Cluster::new(1, 1, &[]);
    cluster.place = place;
    let mut command = cluster.member("gradwire-server", &[], None, args);
    let server = Process::start("server", &mut command);
    (cluster, server)
}

/// One server and two workers whose ways to each other over a device are closed.
fn closed(servers: &[&str], workers: &[&str]) -> Cluster {
    let mut cluster = Cluster::new(1, 2, &[]);
    cluster.add_servers(1, servers);
    cluster.add_trainers(2, &[&TRAIN[..], workers].concat());
    cluster
}

/// Another driver carries the data, each worker says why, and the weights are the same.
fn falls_back(mut cluster: Cluster, why: &str) {
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{} failed: {}", process.name(), process.log().text());
    }
    cluster.assert_no_panic();
    for worker in &cluster.workers {
        let text = worker.log().text();
        assert!(
            text.contains("no verbs (between this worker and this server: ") && text.contains(why),
            "{text}"
        );
    }
    let text = cluster.workers[0].log().text();
    assert!(text.contains("transport=tcp"), "{text}");
    assert_eq!(hash_in(&text), reference(2));
}

/// A driver that is required is not replaced, and the error says what to do.
fn is_refused(mut cluster: Cluster, why: &str) {
    // One of them is the first, and the others may hear of that before they have tried.
    let ends: Vec<i32> = cluster.workers.iter_mut().map(|worker| worker.expect_end(PATIENCE)).collect();
    let first = ends.iter().position(|end| *end == ExitCode::Transport as i32);
    let first = first.unwrap_or_else(|| panic!("{ends:?}: {}", cluster.workers[0].log().text()));
    let text = cluster.workers[first].log().text();
    assert!(text.contains(why) && text.contains("fix the cause"), "{text}");
}

/// The first address of a device is its link's own, of IPv6; by default that of IPv4 is taken.
#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn addresses_of_two_kinds_are_no_way_and_it_is_said() {
    let (no_shm, other) = (["--set", "transport.shm=off"], ["--set", "verbs.gid_index=0"]);
    falls_back(closed(&no_shm, &[no_shm, other].concat()), "verbs.gid_index");
    let required = ["--transport", "verbs"];
    is_refused(closed(&no_shm, &[&required[..], &other].concat()), "verbs.gid_index");
}

/// Where a wire lies between two devices (`tests/guest/netem-train.sh`).
mod two_devices {
    use super::*;

    /// Lets nothing through, like a firewall that knows nothing of RDMA, until it is dropped.
    struct Blocked;

    impl Blocked {
        fn new() -> Self {
            let this = Self;
            for end in ["v0", "v1"] {
                let how = ["qdisc", "replace", "dev", end, "root", "netem", "loss", "100%"];
                assert!(Command::new("tc").args(how).status().unwrap().success());
            }
            this
        }
    }

    impl Drop for Blocked {
        fn drop(&mut self) {
            for end in ["v0", "v1"] {
                let _ = Command::new("tc").args(["qdisc", "del", "dev", end, "root"]).status();
            }
        }
    }

    #[test]
    #[ignore = "needs an RDMA device: tests/guest/run.sh"]
    fn a_way_that_is_blocked_is_found_before_it_is_used_and_another_is_taken() {
        let near = ["--set", "transport.shm=off", "--set", "verbs.device=rxe0"];
        let far = ["--set", "transport.shm=off", "--set", "verbs.device=rxe1"];
        {
            let cluster = closed(&near, &far);
            let text = cluster.workers[0].expect_line("data path ready", PATIENCE);
            assert!(text.contains("driver=verbs"), "not blocked yet: {text}");
        }
        let _blocked = Blocked::new();
        falls_back(closed(&near, &far), "UDP port 4791");
        let required = ["--transport", "verbs", "--set", "verbs.device=rxe1"];
        is_refused(closed(&near, &required), "UDP port 4791");
    }
}

#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn without_a_device_others_are_used_and_what_is_required_ends_it_with_the_reason() {
    let nowhere = ["--set", "verbs.device=nowhere"];
    let (_cluster, server_of_any) = server(Place::default(), &nowhere);
    let line = server_of_any.expect_line("no verbs; using other transports", PATIENCE);
    assert!(line.contains("nowhere"), "{line}");
    let (_cluster, mut strict) =
        server(Place::default(), &[&nowhere[..], &["--set", "transport.verbs=require"]].concat());
    assert_eq!(strict.expect_end(PATIENCE), ExitCode::Transport as i32);
    assert!(strict.log().text().contains("transport.verbs = \"require\""), "{}", strict.log().text());
}

/// Without the right to pin memory, as an ordinary user has it who may pin `kib`.
fn pinning(kib: u32) -> Place {
    let limit = format!("ulimit -l {kib}; exec \"$@\"");
    let words = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "sh", "-c", &limit, "sh"];
    Place { programs: None, prefix: words.map(str::to_owned).to_vec() }
}

/// Some model fits neither at the server, nor in the worker's buffers.
#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn a_model_too_large_to_pin_ends_it_with_both_fixes() {
    let (no_shm, model) = (["--set", "transport.shm=off"], ["--layers", "64,20000,10", "--epochs", "1"]);
    for is_server_small in [true, false] {
        let mut cluster = Cluster::new(1, 1, &[]);
        let small = |is_small| if is_small { pinning(8192) } else { Place::default() };
        cluster.place = small(is_server_small);
        cluster.add_servers(1, &no_shm);
        cluster.place = small(!is_server_small);
        cluster.add_trainers(1, &[&model[..], &no_shm].concat());
        let end = cluster.workers[0].expect_end(PATIENCE);
        let text = cluster.workers[0].log().text();
        assert_eq!(end, ExitCode::Transport as i32, "{text}");
        for word in ["8192 KiB", "ulimit -l", "LimitMEMLOCK", "transport.verbs"] {
            assert!(text.contains(word), "no {word}: {text}");
        }
        cluster.assert_no_panic();
    }
}

#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn a_link_that_has_no_room_says_the_reason_itself() {
    let no_shm = ["--set", "transport.shm=off"];
    let little = ["--set", "memory.registered_bytes=98304"];
    falls_back(closed(&no_shm, &[no_shm, little].concat()), "raise memory.registered_bytes");
}

#[test]
#[ignore = "needs an RDMA device: tests/guest/run.sh"]
fn a_limit_of_pinned_memory_is_named_with_its_fix() {
    let verbs = ["--set", "transport.verbs=require"];
    let (_cluster, mut strict) = server(pinning(16), &verbs);
    assert_eq!(strict.expect_end(PATIENCE), ExitCode::Transport as i32);
    let text = strict.log().text();
    assert!(text.contains("16 KiB") && text.contains("ulimit -l"), "{text}");
    let (_cluster, small) = server(pinning(8192), &verbs);
    let line = small.expect_line("memory.inbox_slots", PATIENCE);
    assert!(line.contains("8192 KiB") && line.contains("ulimit -l"), "{line}");
}
