//! Determinism: four workers (two commute and prove nothing) with jitter, over one, two and three servers,
//! disturbed or not: the same bits, which are those of the oracle. And a run is repeated by its seed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use fabric::Order;
use fabric::sim::{Action, SimFaults};
use gradwire_tests::rigs::sim::{Cluster, Shape, Style, bits_hash, seeds};

const FILE: &str = "determinism";
const ROUNDS: u64 = 4;

fn shape(servers: u32, faults: SimFaults) -> Shape {
    Shape { servers, workers: 4, faults, ..Shape::default() }
}

/// The bits that all workers pulled in the end, by tensor.
fn bits(cluster: &Cluster) -> Vec<u64> {
    (0..cluster.shape().tensors.len())
        .map(|tensor| {
            let pulled: Vec<u64> = (0..cluster.shape().workers)
                .map(|rank| bits_hash(&cluster.last_weights(rank, tensor).expect("pulled in the end")))
                .collect();
            assert!(pulled.windows(2).all(|pair| pair[0] == pair[1]), "workers differ: {pulled:x?}");
            pulled[0]
        })
        .collect()
}

#[test]
fn the_same_bits_whatever_servers_and_arrivals() {
    seeds::for_each(FILE, "the_same_bits_whatever_servers_and_arrivals", 70, |seed| {
        let mut all = Vec::new();
        for servers in 1..=3 {
            // The oracle's values come from the seed of the cluster; arrivals differ by servers and faults.
            let faults = if servers == 2 { SimFaults::hostile() } else { SimFaults::rough() };
            let mut cluster = Cluster::new(seed, shape(servers, faults));
            cluster.run_until_connected();
            cluster.train(if servers == 3 { Style::Waited } else { Style::Pipelined }, ROUNDS);
            if servers == 3 {
                let (server, worker) = (cluster.server_node(0), cluster.worker_node(1));
                cluster.fault(cluster.now_us() + 700, Action::Break(server, worker));
            }
            cluster.finish();
            all.push(bits(&cluster));
            for (tensor, have) in all[0].iter().enumerate() {
                assert_eq!(*have, bits_hash(cluster.oracle().weights(tensor, ROUNDS)), "the oracle's bits");
            }
        }
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "servers differ: {all:x?}");
    });
}

/// The protocol announces what it has written by later notices. Over a transport that keeps no order within a channel they are
/// believed once everything before them has arrived: the same job has the same bits.
#[test]
fn the_same_bits_over_a_transport_without_order() {
    let mut held = 0;
    seeds::for_each(FILE, "the_same_bits_over_a_transport_without_order", 40, |seed| {
        let [ordered, unordered] = [Order::Posted, Order::Any].map(|order| {
            let faults = SimFaults { order, ..SimFaults::hostile() };
            let mut cluster = Cluster::new(seed, Shape { faults, ..Shape::drawn(seed) });
            cluster.run_until_connected();
            cluster.train(if seed % 3 == 0 { Style::Waited } else { Style::Pipelined }, ROUNDS);
            let (server, worker) = (cluster.server_node(0), cluster.worker_node(0));
            cluster.fault(cluster.now_us() + 300 + seed * 13 % 700, Action::Break(server, worker));
            cluster.finish();
            let stats = |node| cluster.net().stats(node);
            let notices: u64 = cluster.nodes().into_iter().map(|node| stats(node).held_notices).sum();
            held += notices;
            assert!(order == Order::Any || notices == 0, "in order nothing waits");
            for (tensor, have) in bits(&cluster).into_iter().enumerate() {
                assert_eq!(have, bits_hash(cluster.oracle().weights(tensor, ROUNDS)), "the oracle's bits");
            }
            bits(&cluster)
        });
        assert_eq!(ordered, unordered);
    });
    assert!(held > 0, "no notice came early: the test tests nothing");
}

/// Without rank order four workers' sums depend on the arrivals: if this never differed, the test above would
/// prove nothing.
#[test]
fn arrivals_would_show() {
    let mut differ = 0;
    seeds::for_each(FILE, "arrivals_would_show", 10, |seed| {
        let shape = Shape { deterministic: false, ..shape(1, SimFaults::rough()) };
        let mut cluster = Cluster::new(seed, shape);
        cluster.do_not_compare();
        cluster.train(Style::Waited, ROUNDS);
        cluster.finish();
        let pulled = cluster.last_weights(0, 1).expect("pulled in the end");
        differ += u64::from(bits_hash(&pulled) != bits_hash(cluster.oracle().weights(1, ROUNDS)));
    });
    assert!(differ > 0 || std::env::var("GRADWIRE_SEED").is_ok());
}

#[test]
fn a_seed_repeats_its_run() {
    seeds::for_each(FILE, "a_seed_repeats_its_run", 30, |seed| {
        let run = || {
            let mut cluster =
                Cluster::new(seed, Shape { faults: SimFaults::hostile(), ..Shape::drawn(seed) });
            cluster.train(Style::Pipelined, 3);
            let (server, worker) = (cluster.server_node(0), cluster.worker_node(0));
            cluster.fault(2_000, Action::Break(server, worker));
            cluster.finish();
            (cluster.net().trace_hash(), cluster.net().trace_events(), cluster.now_us())
        };
        assert_eq!(run(), run());
    });
}
