//! The standard `process_*` series, read from `/proc/self` at each scrape. They are written here because the collector of the crate
//! `prometheus` brings a parser of all of `/proc` with it, which costs more to compile than the rest of that crate ten times over.
//! Nothing here may fail a scrape: a value that cannot be read keeps the value of the scrape before.

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Counter, Gauge};
use std::fs;

/// Fields of `/proc/PID/stat` after the program's name, counted from the state as number 0 (proc(5) counts it as 3).
const USER_TICKS: usize = 11;
const SYSTEM_TICKS: usize = 12;
const THREADS: usize = 17;
const STARTED_TICKS: usize = 19;
const VIRTUAL_BYTES: usize = 20;
const RESIDENT_PAGES: usize = 21;

/// The process's own series.
pub(crate) struct ProcessMetrics {
    cpu_seconds: Counter,
    /// Open descriptors, their limit, virtual and resident bytes, the start, threads.
    gauges: [Gauge; 6],
    /// When the machine started, in seconds since 1970; none where `/proc/stat` does not say.
    boot_seconds: Option<f64>,
}

/// What one line of `/proc/self/stat` says.
#[derive(Debug, PartialEq)]
struct Stat {
    cpu_ticks: f64,
    threads: f64,
    started_ticks: f64,
    virtual_bytes: f64,
    resident_pages: f64,
}

impl Stat {
    /// The program's name may contain spaces and parentheses: the fields start after the last one.
    fn parse(line: &str) -> Option<Self> {
        let (_, fields) = line.rsplit_once(')')?;
        let fields: Vec<f64> =
            fields.split_ascii_whitespace().map(|field| field.parse().unwrap_or(0.0)).collect();
        let field = |index: usize| fields.get(index).copied();
        Some(Self {
            cpu_ticks: field(USER_TICKS)? + field(SYSTEM_TICKS)?,
            threads: field(THREADS)?,
            started_ticks: field(STARTED_TICKS)?,
            virtual_bytes: field(VIRTUAL_BYTES)?,
            resident_pages: field(RESIDENT_PAGES)?,
        })
    }
}

fn boot_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

impl ProcessMetrics {
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let gauges = [
            Gauge::new("process_open_fds", "Number of open file descriptors.")?,
            Gauge::new("process_max_fds", "Maximum number of open file descriptors.")?,
            Gauge::new("process_virtual_memory_bytes", "Virtual memory size in bytes.")?,
            Gauge::new("process_resident_memory_bytes", "Resident memory size in bytes.")?,
            Gauge::new(
                "process_start_time_seconds",
                "Start time of the process since unix epoch in seconds.",
            )?,
            Gauge::new("process_threads", "Number of OS threads in the process.")?,
        ];
        let cpu_seconds =
            Counter::new("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.")?;
        Ok(Self { cpu_seconds, gauges, boot_seconds: boot_seconds() })
    }

    fn read(&self) {
        let [open_fds, max_fds, virtual_bytes, resident_bytes, start_seconds, threads] = &self.gauges;
        if let Ok(entries) = fs::read_dir("/proc/self/fd") {
            // One of them is the directory that is being read.
            open_fds.set(entries.count().saturating_sub(1) as f64);
        }
        if let Some(limit) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
            max_fds.set(limit as f64);
        }
        let Some(stat) = fs::read_to_string("/proc/self/stat").ok().as_deref().and_then(Stat::parse) else {
            return;
        };
        let ticks_per_second = rustix::param::clock_ticks_per_second() as f64;
        // Saturating, because a counter must not fall.
        self.cpu_seconds.inc_by((stat.cpu_ticks / ticks_per_second - self.cpu_seconds.get()).max(0.0));
        threads.set(stat.threads);
        virtual_bytes.set(stat.virtual_bytes);
        resident_bytes.set(stat.resident_pages * rustix::param::page_size() as f64);
        if let Some(boot_seconds) = self.boot_seconds {
            start_seconds.set(boot_seconds + stat.started_ticks / ticks_per_second);
        }
    }
}

impl Collector for ProcessMetrics {
    fn desc(&self) -> Vec<&Desc> {
        let gauges = self.gauges.iter().flat_map(Collector::desc);
        self.cpu_seconds.desc().into_iter().chain(gauges).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.read();
        let gauges = self.gauges.iter().flat_map(Collector::collect);
        self.cpu_seconds.collect().into_iter().chain(gauges).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let line = "7 (a) (b c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 12345 1048576 256 18446744073709551615";
        let wanted = Stat {
            cpu_ticks: 300.0,
            threads: 9.0,
            started_ticks: 12345.0,
            virtual_bytes: 1_048_576.0,
            resident_pages: 256.0,
        };
        assert_eq!(Stat::parse(line), Some(wanted));
        assert_eq!(Stat::parse("7 (a) S 1 2"), None);
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn this_process_has_plausible_values() {
        let metrics = ProcessMetrics::new().unwrap();
        let families = metrics.collect();
        assert_eq!((families.len(), metrics.desc().len()), (7, 7));
        let [open_fds, max_fds, virtual_bytes, resident_bytes, start, threads] =
            metrics.gauges.each_ref().map(Gauge::get);
        assert!(open_fds >= 3.0 && open_fds <= max_fds);
        assert!(threads >= 2.0);
        assert!(resident_bytes > 1e5 && virtual_bytes >= resident_bytes);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - start;
        assert!((-2.0..3600.0).contains(&age), "{age}");
    }

    #[test]
    fn processor_time_grows_and_never_falls() {
        let metrics = ProcessMetrics::new().unwrap();
        metrics.read();
        let before = metrics.cpu_seconds.get();
        let mut value = 1u64;
        while metrics.cpu_seconds.get() < before + 0.02 {
            value = (0..1_000_000)
                .fold(value, |sum, n| std::hint::black_box(sum.wrapping_mul(31).wrapping_add(n)));
            metrics.read();
        }
        assert!(metrics.cpu_seconds.get() > before);
    }
}
