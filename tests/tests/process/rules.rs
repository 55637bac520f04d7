//! A tensor's rule changes between two rounds, through real servers: on every chunk at once, with what the rules keep,
//! against their formulas in f64.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::Cluster;
use gradwire_tests::rigs::job::{declare, join, round, summed};
use gradwire_tests::rigs::training::{SHM, TCP, trained_by};
use gradwire_worker::Client;
use proto_common::optimizer::{Adam, Lamb, Moments, Optimizer, Rule, Sgd};
use proto_common::tensor::TensorSpec;

const WORKERS: u32 = 2;
const KEY: u64 = 3;
/// Several chunks, on both servers.
const COUNT: usize = 5003;
const ROUNDS: u64 = 6;
const MOMENTS: Moments = Moments { beta1: 0.9, beta2: 0.99, epsilon: 1e-6 };

/// The rule of each round.
fn rule(round: u64) -> Optimizer {
    match round {
        1..=2 => Optimizer::sgd(0.5, 0.5, 0.0),
        // Its momentum goes on.
        3 => Optimizer::sgd(0.25, 0.25, 0.0),
        // Its moments begin.
        _ => Optimizer::mean(Adam(MOMENTS), 0.125),
    }
}

fn gradient(at: usize, rank: u32, round: u64) -> f32 {
    ((at * 7 + rank as usize * 3 + round as usize) % 32) as f32 / 32.0 - 0.25
}

fn expected(at: usize) -> f64 {
    let (mut w, mut m, mut v) = (0.0, 0.0, 0.0);
    for round in 1..=ROUNDS {
        let sum: f64 = (0..WORKERS).map(|rank| f64::from(gradient(at, rank, round))).sum();
        let (g, optimizer) = (sum / f64::from(WORKERS), rule(round));
        let rate = f64::from(optimizer.learning_rate);
        match optimizer.rule {
            Rule::Sgd(Sgd { momentum, .. }) => {
                m = f64::from(momentum) * m + g;
                w -= rate * m;
            }
            _ => {
                if round == 4 {
                    m = 0.0;
                }
                let (b1, b2) = (f64::from(MOMENTS.beta1), f64::from(MOMENTS.beta2));
                m = b1 * m + (1.0 - b1) * g;
                v = b2 * v + (1.0 - b2) * g * g;
                let since = round as i32 - 3;
                let (mean, square) = (m / (1.0 - b1.powi(since)), v / (1.0 - b2.powi(since)));
                w -= rate * mean / (square.sqrt() + f64::from(MOMENTS.epsilon));
            }
        }
    }
    w
}

/// One worker's rounds; rank 0 changes the rule, without telling the others.
fn train(client: &Client) {
    let tensor = client.tensor(KEY).unwrap();
    let mut weights = vec![0.0f32; COUNT];
    for round in 1..=ROUNDS {
        if client.rank() == 0 && rule(round) != rule(round.max(2) - 1) {
            assert_eq!(client.change_rule(&tensor, rule(round)).unwrap(), round);
        }
        let gradient: Vec<f32> = (0..COUNT).map(|at| gradient(at, client.rank(), round)).collect();
        assert_eq!(client.push_pull_slice(&tensor, &gradient, &mut weights).unwrap().0, round);
    }
    for (at, found) in weights.iter().enumerate() {
        let (found, expected) = (f64::from(*found), expected(at));
        assert!((found - expected).abs() < 1e-5 * (1.0 + expected.abs()), "{at}: {found} {expected}");
    }
}

#[test]
fn a_new_rule_holds_from_one_round_on_everywhere() {
    let mut cluster = Cluster::new(2, WORKERS, &["--set", "cluster.chunk_bytes=4096"]);
    cluster.add_servers(2, &[]);
    let clients = join(&cluster, WORKERS, |_| {});
    declare(&clients, &[TensorSpec::f32(KEY, COUNT as u64, rule(1))]);
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| train(client));
        }
    });
    let tensor = clients[0].tensor(KEY).unwrap();
    let lamb = Optimizer::mean(Lamb(MOMENTS), 0.1);
    for (wrong, words) in
        [(lamb, "declare another tensor"), (Optimizer::sgd(f32::NAN, 0.0, 0.0), "learning_rate")]
    {
        let error = clients[0].change_rule(&tensor, wrong).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    // As the same worker changes its mind more often than servers keep, the last word counts.
    for rate in 1..40u8 {
        let round = clients[0].change_rule(&tensor, Optimizer::sgd(f32::from(rate), 0.0, 0.0)).unwrap();
        assert_eq!(round, ROUNDS + 1);
    }
    drop(clients);
    cluster.assert_no_panic();
}

/// A worker waits at a barrier, perhaps for long: it is asked and answered other things meanwhile.
#[test]
fn a_change_does_not_wait_behind_a_barrier() {
    let mut cluster = Cluster::new(1, 2, &[]);
    cluster.add_servers(1, &[]);
    let clients = join(&cluster, 2, |_| ());
    declare(&clients, &[summed(KEY, 8)]);
    let tensor = clients[0].tensor(KEY).unwrap();
    std::thread::scope(|scope| {
        let barrier = scope.spawn(|| clients[0].barrier());
        assert_eq!(clients[0].change_rule(&tensor, Optimizer::assign()).unwrap(), 1);
        round(&clients, KEY);
        assert!(!barrier.is_finished(), "the other worker has not come");
        clients[1].barrier().unwrap();
        barrier.join().unwrap().unwrap();
    });
    drop((tensor, clients));
    cluster.assert_no_panic();
}

/// With chunks of one size: norms are summed chunk by chunk.
#[test]
fn the_trainers_rules_give_the_same_bits_on_any_number_of_servers() {
    let chunks = |lanes| ["--set", "cluster.chunk_bytes=4096", "--set", lanes];
    let mut hashes = Vec::new();
    for rule in ["adam-w", "lamb", "ada-grad"] {
        let flags = ["--optimizer", rule, "--lr", "0.01"];
        let one = trained_by(&flags, SHM, 1, 4, &chunks("cluster.lanes=1"));
        assert_eq!(one, trained_by(&flags, TCP, 3, 4, &chunks("cluster.lanes=2")), "{rule}");
        hashes.push(one);
    }
    hashes.dedup();
    assert_eq!(hashes.len(), 3, "rules that differ");
}
