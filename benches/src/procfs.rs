//! Reads what the kernel says about processes, pressure and the machine. It must not write or decide.

use anyhow::Context as _;
use std::collections::HashMap;
use std::fs;

/// CPU seconds used so far by the given processes and everything below them, reaped children included.
///
/// The kernel counts in clock ticks (10 ms as a rule): differences over a tenth of a second say little.
///
/// # Errors
/// `/proc` cannot be listed. A process that is gone counts nothing.
pub(crate) fn cpu_seconds(roots: &[u32]) -> anyhow::Result<f64> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut ticks_of: HashMap<u32, u64> = HashMap::new();
    for entry in fs::read_dir("/proc").context("cannot list /proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process may end between listing and reading.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        if let Some((parent, ticks)) = parse_stat(&stat) {
            children.entry(parent).or_default().push(pid);
            ticks_of.insert(pid, ticks);
        }
    }
    let mut todo = roots.to_vec();
    let mut ticks = 0;
    while let Some(pid) = todo.pop() {
        // Removed when counted, so that a root below another root counts once.
        ticks += ticks_of.remove(&pid).unwrap_or(0);
        todo.extend(children.remove(&pid).unwrap_or_default());
    }
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// The parent, and utime + stime + cutime + cstime, of one `/proc/PID/stat` line.
fn parse_stat(stat: &str) -> Option<(u32, u64)> {
    // The command name in brackets may hold anything, brackets and blanks included: the last one closes it.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let parent = fields.get(1)?.parse().ok()?;
    let mut ticks = 0_u64;
    for field in fields.get(11..15)? {
        ticks += u64::try_from(field.parse::<i64>().ok()?).ok()?;
    }
    Some((parent, ticks))
}

/// How much the machine's processes waited for a CPU (`/proc/pressure/cpu`, the `some` line).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CpuPressure {
    /// Share of the last ten seconds in which somebody waited, in percent.
    pub(crate) avg10_percent: f64,
    /// Time since boot in which somebody waited, in microseconds.
    pub(crate) total_us: u64,
}

/// The CPU pressure now; `None` where the kernel does not tell.
pub(crate) fn cpu_pressure() -> Option<CpuPressure> {
    parse_pressure(&fs::read_to_string("/proc/pressure/cpu").ok()?)
}

fn parse_pressure(text: &str) -> Option<CpuPressure> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let value = |name: &str| line.split_ascii_whitespace().find_map(|field| field.strip_prefix(name));
    Some(CpuPressure {
        avg10_percent: value("avg10=")?.parse().ok()?,
        total_us: value("total=")?.parse().ok()?,
    })
}

/// One line that describes this machine; what cannot be read is left out.
pub(crate) fn describe_machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory_kib = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let pressure = cpu_pressure()
        .map_or_else(|| "not told".to_owned(), |now| format!("{:.2} % of 10 s", now.avg10_percent));
    format!(
        "{}, {cores} cores, {:.1} GiB memory, Linux {}, CPU pressure {pressure}",
        model.map_or("unknown CPU", |(_, name)| name.trim()),
        memory_kib.unwrap_or(0) as f64 / f64::from(1 << 20),
        kernel.trim(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_behind_a_hostile_command_name() {
        let line = "12 (a) R b) S 7 12 12 0 -1 4194560 100 0 0 0 5 6 7 8 20 0 1 0 100 0 0";
        assert_eq!(parse_stat(line), Some((7, 26)));
        assert_eq!(parse_stat("12 (cut"), None);
        assert_eq!(parse_stat("12 (short) S 7 1"), None);
    }

    #[test]
    fn pressure_is_the_some_line() {
        let text = "some avg10=1.50 avg60=0.09 avg300=0.46 total=6832432\nfull avg10=0.00 total=0\n";
        assert_eq!(parse_pressure(text), Some(CpuPressure { avg10_percent: 1.5, total_us: 6_832_432 }));
        assert_eq!(parse_pressure("full avg10=0.00 total=0"), None);
    }

    #[test]
    fn own_cpu_time_grows_with_work_and_counts_once() {
        let me = std::process::id();
        let before = cpu_seconds(&[me]).expect("/proc is readable");
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 100 {
            std::hint::black_box(before);
        }
        let after = cpu_seconds(&[me, me]).expect("/proc is readable");
        assert!(after > before && after < before + 60.0, "{before} then {after}");
    }
}
