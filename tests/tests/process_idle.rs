//! A cluster that has nothing to do uses next to no processor time, over either driver: data threads sleep,
//! nothing polls.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]
#![allow(clippy::print_stdout, reason = "figures, shown when asked for")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::gauge::cpu_time;
use std::time::{Duration, Instant};

/// Of one core, summed over all processes.
const SHARE_MAX: f64 = 0.01;

/// One scheduler, two servers, two workers: connected, warmed up, and then left alone for a while.
fn idles(transport: &str, lanes: &str, period: Duration) {
    let mut cluster = Cluster::new(2, 2, &["--set", &format!("cluster.lanes={lanes}")]);
    cluster.add_servers(2, &["--transport", transport]);
    let variable = format!("GRADWIRE_TRANSPORT__{}", transport.to_uppercase());
    (0..2).for_each(|_| cluster.add_test_worker(&["idle"], &[(&variable, "require")]));
    for worker in &cluster.workers {
        worker.expect_line("idle", PATIENCE);
    }
    let used = |cluster: &mut Cluster| -> Vec<(String, Duration)> {
        cluster.everyone().map(|process| (process.name().to_owned(), cpu_time(process))).collect()
    };
    let (before, started) = (used(&mut cluster), Instant::now());
    // Doing nothing for a while is what is measured.
    std::thread::sleep(period);
    let (after, wall) = (used(&mut cluster), started.elapsed());
    let each: Vec<(String, Duration)> =
        after.into_iter().zip(before).map(|((name, after), (_, before))| (name, after - before)).collect();
    let total: Duration = each.iter().map(|(_, used)| *used).sum();
    let share = total.as_secs_f64() / wall.as_secs_f64();
    println!("idle over {transport}, {lanes} lanes: {:.3} % of a core: {each:?}", share * 100.0);
    assert!(share < SHARE_MAX, "{:.3} % of a core: {each:?}", share * 100.0);
    cluster.assert_no_panic();
}

#[test]
fn an_idle_cluster_over_shm() {
    idles("shm", "1", Duration::from_secs(10));
}

#[test]
fn an_idle_cluster_over_tcp_with_two_lanes() {
    idles("tcp", "2", Duration::from_secs(10));
}

#[test]
#[ignore = "slow tier: a minute"]
fn an_idle_cluster_for_a_minute() {
    idles("shm", "1", Duration::from_secs(60));
}
