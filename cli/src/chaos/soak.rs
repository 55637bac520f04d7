//! What each process uses over time: resident memory, open files, bytes registered with a device. It samples, writes CSV, and
//! says whether that stayed flat; it must not disturb whom it looks at.

use super::cluster::{Cluster, Seat};
use super::report::median;
use super::watch::Watch;
use crate::status::get;
use proto_common::ids::Role;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Samples kept; beyond that every second one is dropped, and they come half as often.
const SAMPLES_MAX: usize = 40_000;
/// Milliseconds that metrics may take.
const METRICS_MS: u64 = 200;
/// What may grow from the second quarter to the last: a share, and so much whatever the share.
const GROWTH: f64 = 1.10;
const SLACK: [f64; 3] = [(4 << 20) as f64, 8.0, (1 << 20) as f64];
/// As the columns are called.
const NAMES: [&str; 3] = ["rss_bytes", "open_files", "registered_bytes"];

/// One process at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) seconds: f64,
    pub(super) seat: Seat,
    pid: u32,
    /// In the order of the columns.
    pub(super) values: [f64; 3],
}

/// Is one quantity of one seat flat?
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Flat {
    pub(super) seat: String,
    pub(super) what: &'static str,
    /// Medians of the second and of the last quarter of the time.
    pub(super) second: f64,
    pub(super) last: f64,
    pub(super) is_flat: bool,
}

/// All samples.
#[derive(Debug)]
pub(super) struct Soak {
    started: Instant,
    pub(super) samples: Vec<Sample>,
    /// Every so many looks count.
    every: usize,
    looks: usize,
}

impl Soak {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), samples: Vec::new(), every: 1, looks: 0 }
    }

    /// Looks at everybody.
    pub(super) async fn sample(&mut self, cluster: &Cluster<'_>, watch: &Watch) {
        self.looks += 1;
        if !self.looks.is_multiple_of(self.every) {
            return;
        }
        let seconds = self.started.elapsed().as_secs_f64();
        for (seat, life) in &cluster.lives {
            let Some((rss, files)) = used(life.pid) else { continue };
            let registered = match (seat.role, life.is_mute, watch.http_of(life.pid)) {
                (Role::Server | Role::Worker, false, Some(http)) => registered(http).await,
                _ => 0.0,
            };
            self.samples.push(Sample {
                seconds,
                seat: *seat,
                pid: life.pid,
                values: [rss, files, registered],
            });
        }
        if self.samples.len() > SAMPLES_MAX {
            let mut keep = false;
            let mut of = f64::NAN;
            // All of one moment stay or go.
            self.samples.retain(|sample| {
                if sample.seconds != of {
                    (of, keep) = (sample.seconds, !keep);
                }
                keep
            });
            self.every *= 2;
        }
    }

    pub(super) fn csv(&self) -> String {
        let mut text = format!("seconds,member,pid,{}\n", NAMES.join(","));
        for Sample { seconds, seat, pid, values: [rss, files, registered] } in &self.samples {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{seconds:.1},{seat},{pid},{rss},{files},{registered}");
        }
        text
    }

    pub(super) fn seats(&self) -> Vec<Seat> {
        self.samples.iter().map(|sample| sample.seat).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Compares the last quarter of the time with the second: the first is for pools that find their size.
    pub(super) fn verdicts(&self) -> Vec<Flat> {
        let end = self.samples.last().map_or(0.0, |sample| sample.seconds);
        let begin = self.samples.first().map_or(0.0, |sample| sample.seconds);
        let quarter = (end - begin) / 4.0;
        let mut verdicts = Vec::new();
        for seat in self.seats() {
            for (column, what) in NAMES.into_iter().enumerate() {
                let within = |from: f64, to: f64| {
                    let of =
                        self.samples.iter().filter(|s| s.seat == seat && (from..=to).contains(&s.seconds));
                    let mut values: Vec<f64> = of.filter_map(|s| s.values.get(column).copied()).collect();
                    values.sort_by(f64::total_cmp);
                    median(&values)
                };
                let second = within(begin + quarter, begin + 2.0 * quarter);
                let last = within(begin + 3.0 * quarter, end);
                let bound = second * GROWTH + SLACK.get(column).copied().unwrap_or(0.0);
                verdicts.push(Flat { seat: seat.to_string(), what, second, last, is_flat: last <= bound });
            }
        }
        verdicts
    }
}

/// Resident bytes and open files.
fn used(pid: u32) -> Option<(f64, f64)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    Some((resident(&status)?, files as f64))
}

fn resident(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some((kib << 10) as f64)
}

async fn registered(http: &str) -> f64 {
    let answer = timeout(Duration::from_millis(METRICS_MS), get(http, "/metrics")).await;
    let text = answer.ok().and_then(Result::ok).unwrap_or_default();
    metric(&String::from_utf8_lossy(&text), "gradwire_registered_bytes ")
}

fn metric(text: &str, name: &str) -> f64 {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::ids::{MemberId, Rank};

    fn soak(rss: impl Fn(f64) -> f64) -> Soak {
        let mut soak = Soak::new();
        let seat = MemberId { role: Role::Server, rank: Rank(1) };
        for second in 0..100 {
            let seconds = f64::from(second);
            soak.samples.push(Sample { seconds, seat, pid: 7, values: [rss(seconds), 12.0, 0.0] });
        }
        soak
    }

    #[test]
    fn growth_is_told_and_warming_up_is_none() {
        let mib = f64::from(1 << 20);
        let rss = |soak: &Soak| soak.verdicts().into_iter().find(|flat| flat.what == "rss_bytes").unwrap();
        assert!(!rss(&soak(|second| (100.0 + second) * mib)).is_flat);
        let warm = soak(|second| second.min(20.0) * mib);
        assert!(rss(&warm).is_flat, "{:?}", rss(&warm));
        assert_eq!(warm.verdicts().len(), 3);
        assert!(warm.verdicts().iter().all(|flat| flat.is_flat));
        assert!(Soak::new().verdicts().is_empty());
    }

    #[test]
    fn files_of_the_kernel_and_metrics_are_read() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t    12 kB\n"), Some(12288.0));
        assert_eq!(resident("Name:\tx\n"), None);
        let text = "# HELP a b\ngradwire_registered_bytes 4096\ngradwire_registered_bytes_x 1\n";
        assert_eq!(metric(text, "gradwire_registered_bytes "), 4096.0);
        assert_eq!(metric("", "x "), 0.0);
        assert!(used(std::process::id()).is_some_and(|(rss, files)| rss > 0.0 && files > 0.0));
    }

    #[test]
    fn a_row_a_sample() {
        let csv = soak(|_| 5.0).csv();
        assert_eq!(csv.lines().count(), 101);
        assert!(csv.starts_with(
            "seconds,member,pid,rss_bytes,open_files,registered_bytes\n0.0,server 1,7,5,12,0\n"
        ));
    }
}
