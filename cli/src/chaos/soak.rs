//! What each process uses over time: resident memory, open files, bytes registered with a device. It samples, writes CSV, and
//! says whether that stayed flat: in each life that was long enough to tell, and in each seat, whoever sat there. It must not
//! disturb whom it looks at.

use super::cluster::{Cluster, Seat};
use super::watch::Watch;
use crate::status::{Whose, get};
use proto_common::ids::Role;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Samples kept; beyond that every second one is dropped, and they come half as often.
const SAMPLES_MAX: usize = 40_000;
/// Milliseconds that metrics may take.
const METRICS_MS: u64 = 200;
/// What may grow from the second quarter of a time to the last: a share, and so much whatever the share.
const GROWTH: f64 = 1.10;
const SLACK: [f64; 3] = [(1 << 20) as f64, 8.0, (1 << 20) as f64];
/// As the columns are called.
const NAMES: [&str; 3] = ["rss_bytes", "open_files", "registered_bytes"];
const MIB: f64 = 1_048_576.0;
/// A life is judged that had so many seconds: pools find their size in the first quarter.
const JUDGED_S: f64 = 60.0;
/// A seat with so many lives is judged by one number for each life. Some lives take 2 MiB more than others from their first
/// second; one such life that lasts long would otherwise be most of a quarter of the time.
const LIVES: usize = 8;

/// One process at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) seconds: f64,
    pub(super) seat: Seat,
    pub(super) pid: u32,
    /// In the order of the columns; not a number where it could not be asked.
    pub(super) values: [f64; 3],
}

/// Is one quantity flat, in one life or one seat?
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Flat {
    pub(super) seat: String,
    /// Which life; none: the seat, over all its lives.
    pub(super) pid: Option<u32>,
    pub(super) seconds: f64,
    pub(super) what: &'static str,
    /// Medians of the second and of the last quarter, of the time or of the lives; none where it could never be read in one
    /// of them.
    pub(super) second: Option<f64>,
    pub(super) last: Option<f64>,
    pub(super) is_flat: bool,
}

/// All samples.
#[derive(Debug)]
pub(super) struct Soak {
    started: Instant,
    pub(super) samples: Vec<Sample>,
    /// When faults came, and to whom.
    pub(super) faults: Vec<(f64, Role)>,
    /// Every so many looks count.
    every: usize,
    looks: usize,
}

impl Soak {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), samples: Vec::new(), faults: Vec::new(), every: 1, looks: 0 }
    }

    /// A fault came.
    pub(super) fn strike(&mut self, at: Instant, role: Role) {
        self.faults.push((at.saturating_duration_since(self.started).as_secs_f64(), role));
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
                (Role::Scheduler, ..) => 0.0,
                (Role::Server | Role::Worker, false, Some(http)) => registered(http).await,
                _ => f64::NAN,
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
        for Sample { seconds, seat, pid, values } in &self.samples {
            let values =
                values.map(|value| if value.is_finite() { value.to_string() } else { String::new() });
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{seconds:.1},{seat},{pid},{}", values.join(","));
        }
        text
    }

    /// The samples of each life, in order; lives of a seat are counted, because the system uses process ids again.
    pub(super) fn lives(&self) -> BTreeMap<(Seat, u32), Vec<&Sample>> {
        let mut lives: BTreeMap<(Seat, u32), Vec<&Sample>> = BTreeMap::new();
        let mut now: BTreeMap<Seat, (u32, u32)> = BTreeMap::new();
        for sample in &self.samples {
            let (life, pid) = now.entry(sample.seat).or_insert((0, sample.pid));
            if *pid != sample.pid {
                (*life, *pid) = (*life + 1, sample.pid);
            }
            lives.entry((sample.seat, *life)).or_default().push(sample);
        }
        lives
    }

    /// Of each life that is long enough, and of each seat.
    pub(super) fn verdicts(&self) -> Vec<Flat> {
        let mut verdicts = Vec::new();
        let mut seats: BTreeMap<Seat, Vec<Vec<&Sample>>> = BTreeMap::new();
        for ((seat, _), samples) in self.lives() {
            let pid = samples.first().map(|sample| sample.pid);
            judge(seat, pid, &samples, &mut verdicts, |column| by_time(&samples, column));
            seats.entry(seat).or_default().push(samples);
        }
        for (seat, lives) in seats {
            let samples = lives.concat();
            judge(seat, None, &samples, &mut verdicts, |column| match lives.len() {
                ..LIVES => by_time(&samples, column),
                _ => by_life(&lives, column),
            });
        }
        verdicts
    }
}

/// Of the second and of the last quarter; none where nothing could be read.
type Quarters = [Option<f64>; 2];

/// The middle of what could be read; the lower one of two.
fn middle(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

fn column_of<'a>(samples: &'a [&Sample], column: usize) -> impl Iterator<Item = f64> + 'a {
    samples.iter().filter_map(move |sample| sample.values.get(column).copied())
}

/// Quarters of the time.
fn by_time(samples: &[&Sample], column: usize) -> Quarters {
    let (Some(first), Some(end)) = (samples.first(), samples.last()) else { return [None; 2] };
    let (begin, end) = (first.seconds, end.seconds);
    let quarter = (end - begin) / 4.0;
    [(begin + quarter, begin + 2.0 * quarter), (begin + 3.0 * quarter, end)].map(|(from, to)| {
        let within = |sample: &Sample| (from..=to).contains(&sample.seconds);
        let of: Vec<&Sample> = samples.iter().copied().filter(|sample| within(sample)).collect();
        middle(column_of(&of, column))
    })
}

/// Quarters of the lives, each by what it used in the later half of its time.
fn by_life(lives: &[Vec<&Sample>], column: usize) -> Quarters {
    let settled = |life: &Vec<&Sample>| middle(column_of(life.split_at(life.len() / 2).1, column));
    let count = lives.len();
    [count / 4..count / 2, count - count / 4..count].map(|quarter| {
        let of = lives.get(quarter).unwrap_or_default();
        middle(of.iter().filter_map(settled))
    })
}

/// Compares the last quarter with the second: the first is for pools that find their size.
fn judge(
    seat: Seat,
    pid: Option<u32>,
    samples: &[&Sample],
    verdicts: &mut Vec<Flat>,
    quarters: impl Fn(usize) -> Quarters,
) {
    let (Some(first), Some(end)) = (samples.first(), samples.last()) else { return };
    let seconds = end.seconds - first.seconds;
    if seconds < JUDGED_S {
        return;
    }
    for ((column, what), slack) in NAMES.into_iter().enumerate().zip(SLACK) {
        let [second, last] = quarters(column);
        let is_flat = second.zip(last).is_some_and(|(second, last)| last <= second * GROWTH + slack);
        verdicts.push(Flat { seat: seat.to_string(), pid, seconds, what, second, last, is_flat });
    }
}

/// Has somebody lived long enough to be judged, and did nothing grow?
pub(super) fn is_flat(verdicts: &[Flat]) -> bool {
    verdicts.iter().any(|flat| flat.pid.is_some()) && verdicts.iter().all(|flat| flat.is_flat)
}

/// What a soak has shown, for people.
pub(super) fn told(verdicts: &[Flat]) -> String {
    let mut text = String::new();
    for flat in verdicts.iter().filter(|flat| !flat.is_flat) {
        let Flat { seat, pid, seconds, what, second, last, .. } = flat;
        let who = pid.map_or("from life to life".to_owned(), |pid| format!("in one life (process {pid})"));
        // Writing to a String cannot fail.
        let _ = match second.zip(*last) {
            Some((second, last)) => {
                writeln!(text, "{seat}: {what} grew {who} from {second:.0} to {last:.0} in {seconds:.0} s")
            }
            None => writeln!(text, "{seat}: {what} could not be read {who} in {seconds:.0} s"),
        };
    }
    let has_grown = !text.is_empty();
    for seat in verdicts.iter().filter(|flat| flat.pid.is_none() && flat.what == NAMES[0]) {
        let last = |what| {
            let mut of = verdicts.iter().filter(|flat| flat.pid.is_none() && flat.seat == seat.seat);
            of.find(|flat| flat.what == what).and_then(|flat| flat.last).unwrap_or(f64::NAN)
        };
        let [rss, files, registered] = NAMES.map(last);
        let (rss, registered) = (rss / MIB, registered / MIB);
        let _ = writeln!(
            text,
            "{:<12} {rss:>7.1} MiB resident, {files:>3.0} open files, {registered:>7.1} MiB registered",
            seat.seat
        );
    }
    let lives: BTreeSet<_> = verdicts.iter().filter_map(|flat| Some((&flat.seat, flat.pid?))).collect();
    let longest = verdicts.iter().filter(|flat| flat.pid.is_some()).map(|flat| flat.seconds);
    let (count, longest) = (lives.len(), longest.fold(0.0, f64::max));
    if count == 0 {
        let why = "so nothing can be said of growth; raise --minutes";
        let _ = writeln!(text, "nobody was seen to live for {JUDGED_S:.0} s, {why}");
        return text;
    }
    let how = if !has_grown {
        "memory, open files and registered bytes stayed flat"
    } else {
        "something grew, or could not be read"
    };
    let _ =
        writeln!(text, "{how}: {count} lives of {JUDGED_S:.0} to {longest:.0} s were judged, and each seat");
    text
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
    let answer = timeout(Duration::from_millis(METRICS_MS), get(Whose::Member, http, "/metrics")).await;
    let text = answer.ok().and_then(Result::ok).unwrap_or_default();
    metric(&String::from_utf8_lossy(&text), "gradwire_registered_bytes ")
}

fn metric(text: &str, name: &str) -> f64 {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::ids::{MemberId, Rank};

    /// A seat whose process is another one every so many seconds.
    fn soak(life_s: u32, rss: impl Fn(f64, f64) -> f64) -> Soak {
        let mut soak = Soak::new();
        let seat = MemberId { role: Role::Server, rank: Rank(1) };
        for second in 0..400 {
            let (seconds, age) = (f64::from(second), f64::from(second % life_s));
            let values = [rss(seconds, age), 12.0, if second % 3 == 0 { f64::NAN } else { 5.0 }];
            soak.samples.push(Sample { seconds, seat, pid: 7 + second / life_s, values });
        }
        soak
    }

    fn grown(soak: &Soak) -> Vec<Option<u32>> {
        let verdicts = soak.verdicts().into_iter();
        verdicts.filter(|flat| !flat.is_flat).map(|flat| flat.pid).collect()
    }

    #[test]
    fn growth_is_told_and_warming_up_is_none() {
        assert_eq!(grown(&soak(400, |second, _| (100.0 + second) * MIB)), [Some(7), None]);
        let warm = soak(400, |second, _| second.min(80.0) * MIB);
        assert_eq!(grown(&warm), []);
        let text = told(&warm.verdicts());
        assert!(text.contains("80.0 MiB resident,  12 open files,     0.0 MiB registered"), "{text}");
        assert!(text.contains("stayed flat: 1 lives"), "{text}");
        assert_eq!(warm.verdicts().len(), 6);
        assert!(is_flat(&warm.verdicts()) && !is_flat(&soak(400, |second, _| second * MIB).verdicts()));
    }

    /// Too short, or whoever runs it may not read what processes use.
    #[test]
    fn where_nobody_could_be_judged_nothing_is_flat() {
        for soak in [Soak::new(), soak(30, |_, _| MIB)] {
            let verdicts = soak.verdicts();
            assert!(verdicts.iter().all(|flat| flat.is_flat) && !is_flat(&verdicts));
            let text = told(&verdicts);
            assert!(text.contains("raise --minutes") && !text.contains("stayed flat"), "{text}");
        }
    }

    #[test]
    fn a_process_id_that_comes_again_is_another_life() {
        let mut soak = soak(50, |_, _| 10.0 * MIB);
        for sample in &mut soak.samples {
            sample.pid = if sample.seconds < 50.0 || sample.seconds >= 350.0 { 7 } else { sample.pid + 10 };
        }
        assert_eq!(grown(&soak), []);
        assert_eq!(soak.lives().len(), 8);
    }

    #[test]
    fn what_was_never_read_is_not_flat() {
        let mut soak = soak(400, |_, _| 10.0 * MIB);
        soak.samples.iter_mut().filter(|one| one.seconds >= 300.0).for_each(|one| one.values[2] = f64::NAN);
        assert_eq!(grown(&soak), [Some(7), None]);
        let text = told(&soak.verdicts());
        assert!(text.contains("server 1: registered_bytes could not be read in one life"), "{text}");
    }

    #[test]
    fn growth_with_age_shows_where_seats_look_flat() {
        let leak = soak(100, |_, age| (10.0 + age / 10.0) * MIB);
        assert_eq!(grown(&leak), [7, 8, 9, 10].map(Some));
        let text = told(&leak.verdicts());
        assert!(text.contains("server 1: rss_bytes grew in one life (process 8)"), "{text}");
        assert!(text.contains("something grew, or could not be read: 4 lives of 60 to 99 s"), "{text}");
        assert_eq!(grown(&soak(30, |_, age| (10.0 + age / 10.0) * MIB)), [], "too short to tell");
        let handed_on = soak(30, |second, _| (10.0 + second / 50.0) * MIB);
        assert_eq!(grown(&handed_on), [None], "what one life hands to the next");
        let last_is_larger = |second: f64, _| if second < 330.0 { 10.0 * MIB } else { 20.0 * MIB };
        assert_eq!(grown(&soak(30, last_is_larger)), [None], "three lives of the last quarter");
        let one_is_larger = |second: f64, _| if second < 390.0 { 10.0 * MIB } else { 20.0 * MIB };
        assert_eq!(grown(&soak(30, one_is_larger)), [], "lives differ by more than a leak would");
        let mut long = soak(30, |_, _| 10.0 * MIB);
        for second in 400..600 {
            let (seconds, seat) = (f64::from(second), long.samples[0].seat);
            long.samples.push(Sample { seconds, seat, pid: 99, values: [13.0 * MIB, 12.0, 5.0] });
        }
        assert_eq!(grown(&long), [], "one long life is most of the last quarter of the time");
    }

    #[test]
    fn files_of_the_kernel_and_metrics_are_read() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t    12 kB\n"), Some(12288.0));
        assert_eq!(resident("Name:\tx\n"), None);
        let text = "# HELP a b\ngradwire_registered_bytes 4096\ngradwire_registered_bytes_x 1\n";
        assert_eq!(metric(text, "gradwire_registered_bytes "), 4096.0);
        assert!(metric("", "x ").is_nan());
        assert!(used(std::process::id()).is_some_and(|(rss, files)| rss > 0.0 && files > 0.0));
    }

    #[test]
    fn a_row_a_sample() {
        let csv = soak(400, |_, _| 5.0).csv();
        assert_eq!(csv.lines().count(), 401);
        let begin = "seconds,member,pid,rss_bytes,open_files,registered_bytes\n0.0,server 1,7,5,12,\n1.0,server 1,7,5,12,5\n";
        assert!(csv.starts_with(begin), "{csv}");
    }
}
