//! Workers of one host whose servers are on another: they add their contributions and send one sum. What they learn has the same bits
//! as without, whoever leaves or fails, and the network carries a part of the bytes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::netns::Net;
use gradwire_tests::rigs::training::{hash_in, reference_by};
use proto_common::error::ExitCode;
use rustix::process::Signal;
use std::time::Duration;

/// Beyond loopback nothing is authenticated yet: it takes this word.
const OPEN: [&str; 2] = ["--set", "security.mode=off"];
/// Tensors of 128 KiB and smaller ones.
const LAYERS: [&str; 2] = ["--layers", "64,512,10"];
const WORKERS: u32 = 4;
const SAID: &str = "contributions are added to those of other workers of this host";
/// Each server that is killed leaves a copy of its shards.
const COPIES: [&str; 4] = ["--set", "cluster.replicas=1", "--set", "deadlines.silence_ms=2000"];

/// Scheduler and servers on the hub, workers on host 1.
fn cluster(net: &Net, servers: u32, scheduler: &[&str]) -> Cluster {
    let mut cluster = Cluster::at(&net.place(0), Net::HUB, servers, WORKERS, &[&OPEN, scheduler].concat());
    cluster.place = net.place(0);
    cluster.add_servers(servers, &[&OPEN[..], &["--bind", Net::HUB]].concat());
    cluster.place = net.place(1);
    cluster
}

fn train(cluster: &mut Cluster, epochs: [&str; WORKERS as usize], more: &[&str]) {
    for epochs in epochs {
        cluster.add_trainer(&[&LAYERS[..], &["--batch", "16", "--epochs", epochs], &OPEN, more].concat());
    }
}

/// Waits for the end of all, and returns what rank 0 has learnt.
fn hash(cluster: &mut Cluster) -> String {
    for worker in &mut cluster.workers {
        assert_eq!(worker.expect_end(PATIENCE), 0, "{}", worker.name());
    }
    hash_in(&cluster.workers[0].log().text())
}

/// Do the workers add their contributions?
fn are_merged(cluster: &Cluster) -> bool {
    let said: Vec<bool> = cluster.workers.iter().map(|worker| worker.log().text().contains(SAID)).collect();
    assert!(said.iter().all(|each| *each == said[0]), "{said:?}");
    said[0]
}

#[test]
fn one_sum_crosses_the_network_and_the_weights_have_the_same_bits() {
    let moved = [true, false].map(|merge| {
        let net = Net::new(1);
        let mut cluster = cluster(&net, 1, &[]);
        let before = net.moved_bytes(1);
        train(&mut cluster, ["2"; 4], &["--set", &format!("transport.merge={merge}")]);
        let learnt = hash(&mut cluster);
        assert_eq!(are_merged(&cluster), merge);
        let train = [&LAYERS[..], &["--batch", "16", "--epochs", "2"]].concat();
        assert_eq!(learnt, reference_by(WORKERS, &train));
        let after = net.moved_bytes(1);
        [after[0] - before[0], after[1] - before[1]]
    });
    // The beginning, where everybody has a copy of the weights, and what tells that others are part of a sum cross the network, too.
    for (merged, alone) in moved[0].into_iter().zip(moved[1]) {
        let share = merged as f64 / alone as f64;
        assert!((0.25..0.28).contains(&share), "{merged} bytes of {alone}");
    }
}

#[test]
fn a_server_that_is_killed_takes_nothing_with_it() {
    let net = Net::new(1);
    let mut cluster = cluster(&net, 2, &COPIES);
    train(&mut cluster, ["4"; 4], &[]);
    cluster.workers[0].expect_line("epoch 2/", PATIENCE);
    cluster.servers[1].signal(Signal::KILL);
    let learnt = hash(&mut cluster);
    assert!(are_merged(&cluster));
    assert_eq!(learnt, reference_by(WORKERS, &[&LAYERS[..], &["--batch", "16", "--epochs", "4"]].concat()));
}

#[test]
fn who_leaves_early_changes_no_bit_of_what_the_others_learn() {
    for early in [["3", "1", "3", "2"], ["2", "3", "3", "3"]] {
        let [merged, alone] = [true, false].map(|merge| {
            let net = Net::new(1);
            let mut cluster = cluster(&net, 1, &[]);
            train(&mut cluster, early, &["--set", &format!("transport.merge={merge}")]);
            let learnt = hash(&mut cluster);
            assert_eq!(are_merged(&cluster), merge);
            learnt
        });
        assert_eq!(merged, alone, "{early:?}");
    }
}

#[test]
fn a_worker_that_is_killed_is_named_by_the_others_and_one_that_stands_still_is_waited_for() {
    for victim in [0, 2] {
        let net = Net::new(1);
        let mut cluster = cluster(&net, 1, &["--set", "deadlines.silence_ms=60000"]);
        train(&mut cluster, ["1000000"; 4], &[]);
        cluster.workers[0].expect_line("epoch       3/", PATIENCE);
        // The others send their own contributions meanwhile, and the server waits for this one.
        cluster.workers[victim].signal(Signal::STOP);
        std::thread::sleep(Duration::from_secs(2));
        cluster.workers[victim].signal(Signal::CONT);
        cluster.workers[0].expect_line("epoch       6/", PATIENCE);
        cluster.workers[victim].kill();
        let name = format!("worker {victim} failed");
        for (rank, worker) in cluster.workers.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
            assert_eq!(worker.expect_end(PATIENCE), ExitCode::MemberDied as i32, "worker {rank}");
            assert!(worker.log().text().contains(&name), "worker {rank} names {name}");
        }
    }
}
