//! Hundreds of thousands of rounds: no process's memory grows with them. Release programs, because what counts
//! is many rounds; minutes long, so for the slow tier.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]
#![allow(clippy::print_stdout, reason = "figures, shown when asked for")]

use gradwire_tests::rigs::cluster::{Cluster, Place};
use gradwire_tests::rigs::gauge::resident_bytes;
use gradwire_tests::rigs::programs::build_release;
use std::time::{Duration, Instant};

const ROUNDS: u64 = 300_000;
/// Pools, queues and allocators have found their size by then.
const WARM_ROUNDS: u64 = 50_000;
/// Rounds between two looks; the worker says so.
const STEP: u64 = 10_000;
/// Growth that is allowed in so many rounds.
const SLOPE_MAX: f64 = (1u64 << 20) as f64 / 100_000.0;
/// For the whole of the rounds.
const LIMIT: Duration = Duration::from_secs(1200);

fn soak(transport: &str) {
    let place = Place { programs: Some(build_release()), prefix: Vec::new() };
    let mut cluster = Cluster::at(&place, "127.0.0.1", 2, 2, &["--log", "warn"]);
    cluster.add_servers(2, &["--transport", transport]);
    let variable = format!("GRADWIRE_TRANSPORT__{}", transport.to_uppercase());
    let count = ROUNDS.to_string();
    (0..2).for_each(|_| cluster.add_test_worker(&["rounds", &count], &[(&variable, "require")]));
    let started = Instant::now();
    let mut samples: Vec<(f64, Vec<u64>)> = Vec::new();
    for round in (STEP..ROUNDS).step_by(STEP as usize) {
        cluster.workers[0].expect_line(&format!("round {round}"), LIMIT.saturating_sub(started.elapsed()));
        if round >= WARM_ROUNDS {
            let resident = cluster.everyone().map(|process| resident_bytes(process)).collect();
            samples.push((round as f64, resident));
        }
    }
    let names: Vec<String> = cluster.everyone().map(|process| process.name().to_owned()).collect();
    for (index, name) in names.iter().enumerate() {
        let points: Vec<(f64, f64)> =
            samples.iter().map(|(round, all)| (*round, all[index] as f64)).collect();
        let slope = slope(&points);
        let last = points.last().unwrap().1 / f64::from(1 << 20);
        println!("{transport}, {name}: {last:.1} MiB, {:.0} bytes in 100,000 rounds", slope * 100_000.0);
        assert!(slope <= SLOPE_MAX, "{transport}: {name} grows by {slope:.2} bytes a round: {points:?}");
    }
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(LIMIT.saturating_sub(started.elapsed())), 0, "{}", process.name());
    }
    println!("{transport}: {ROUNDS} rounds of 3 tensors in {:.1} s", started.elapsed().as_secs_f64());
    cluster.assert_no_panic();
}

/// Least squares.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (mean_x, mean_y) = (mean(|p| p.0), mean(|p| p.1));
    let covariance: f64 = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum();
    let variance: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    covariance / variance
}

#[test]
#[ignore = "slow tier: minutes"]
fn memory_does_not_grow_over_shm() {
    soak("shm");
}

#[test]
#[ignore = "slow tier: minutes"]
fn memory_does_not_grow_over_tcp() {
    soak("tcp");
}
