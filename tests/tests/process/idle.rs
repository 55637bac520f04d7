//! A cluster that has nothing to do uses next to no processor time, over either driver: data threads sleep,
//! nothing polls.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]
#![allow(clippy::print_stdout, reason = "figures, shown when asked for")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::gauge::{cpu_time, sleeps};
use gradwire_tests::rigs::process::Process;
use std::time::{Duration, Instant};

/// Of one core, summed over all processes. A thread that spins takes a whole core, so that this bound finds it. Debug programs on a
/// slow or noisy machine used 3.5 % with nothing wrong: the bound of wakes below, which does not depend on the machine, is the strict one.
const SHARE_MAX: f64 = 0.10;
/// Wakes a second, all processes together, by heartbeats and by the data threads' longest sleeps. It depends on no machine's speed, and
/// something that polls passes it at once. After ten seconds in which nothing changes, heartbeats are rare.
fn wakes_per_s_max(lanes: u32, period: Duration) -> f64 {
    if period >= A_MINUTE { 50.0 } else { 50.0 + 50.0 * f64::from(lanes) }
}

const A_MINUTE: Duration = Duration::from_secs(60);

/// One scheduler, two servers, two workers: connected, warmed up, and then left alone for a while.
fn idles(transport: &str, lanes: u32, period: Duration) {
    let mut cluster = Cluster::new(2, 2, &["--set", &format!("cluster.lanes={lanes}")]);
    cluster.add_servers(2, &["--transport", transport]);
    let variable = format!("GRADWIRE_TRANSPORT__{}", transport.to_uppercase());
    (0..2).for_each(|_| cluster.add_test_worker(&["idle"], &[(&variable, "require")]));
    for worker in &cluster.workers {
        worker.expect_line("idle", PATIENCE);
    }
    let used = |cluster: &mut Cluster| -> Vec<(String, Duration, u64)> {
        let of = |process: &mut Process| (process.name().to_owned(), cpu_time(process), sleeps(process));
        cluster.everyone().map(of).collect()
    };
    let (before, started) = (used(&mut cluster), Instant::now());
    // Doing nothing for a while is what is measured.
    std::thread::sleep(period);
    let (after, wall) = (used(&mut cluster), started.elapsed());
    let each: Vec<_> = after
        .into_iter()
        .zip(before)
        .map(|((name, time, wakes), (_, old_time, old_wakes))| (name, time - old_time, wakes - old_wakes))
        .collect();
    let total: Duration = each.iter().map(|(_, used, _)| *used).sum();
    let share = total.as_secs_f64() / wall.as_secs_f64();
    let wakes_per_s = each.iter().map(|(_, _, wakes)| *wakes).sum::<u64>() as f64 / wall.as_secs_f64();
    let text = format!("{:.3} % of a core, {wakes_per_s:.0} wakes a second: {each:?}", share * 100.0);
    println!("idle over {transport}, {lanes} lanes: {text}");
    assert!(share < SHARE_MAX && wakes_per_s < wakes_per_s_max(lanes, period), "{text}");
    cluster.assert_no_panic();
}

#[test]
fn an_idle_cluster_over_shm() {
    idles("shm", 1, Duration::from_secs(10));
}

#[test]
fn an_idle_cluster_over_tcp_with_two_lanes() {
    idles("tcp", 2, Duration::from_secs(10));
}

#[test]
#[ignore = "slow tier: a minute"]
fn an_idle_cluster_for_a_minute() {
    idles("shm", 1, A_MINUTE);
}
