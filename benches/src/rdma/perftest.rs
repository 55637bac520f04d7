//! perftest (`ib_write_bw`, `ib_write_lat`) as subjects: both its ends as child processes on one device, and what it
//! prints, in bytes per second and nanoseconds.
//!
//! It must not compute ratios. Each of its ends has a CPU of its own, as ours have.

use crate::child::cpus;
use crate::measure::{Sample, Subject};
use crate::report;
use crate::workload::WorkSpec;
use anyhow::Context as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// perftest's own name for a way to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    /// Throughput of writes: 64 under way, a completion for each.
    WriteBandwidth,
    /// Half a round trip of a write, waited for in memory.
    WriteLatency,
}

impl Tool {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::WriteBandwidth => "ib_write_bw",
            Self::WriteLatency => "ib_write_lat",
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::WriteBandwidth => &["-Q", "1", "-t", "64"],
            Self::WriteLatency => &["-U"],
        }
    }
}

/// perftest between two processes of this host.
pub(super) struct Perftest {
    pub(super) tool: Tool,
    /// Where its server listens for the client.
    pub(super) address: String,
}

/// How long one run may take: emulated devices on busy machines are slow.
const DEADLINE: Duration = Duration::from_secs(120);
/// How long its server may take to listen.
const LISTEN_DEADLINE: Duration = Duration::from_secs(20);

impl Perftest {
    fn command(&self, cpu: usize, port: u16, bytes: u64, count: u64) -> Command {
        // perftest has no option for the CPU that it runs on.
        let mut command = Command::new("taskset");
        command.args([&format!("{:x}", 1 << cpu), self.tool.name(), "-F"]).args(self.tool.arguments());
        command.args(["-p", &port.to_string(), "-s", &bytes.to_string(), "-n", &count.to_string()]);
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).stdout(Stdio::null());
        command
    }

    /// Runs both ends; gives what the client prints.
    fn output(&self, bytes: u64, count: u64) -> anyhow::Result<String> {
        static NEXT_PORT: AtomicU16 = AtomicU16::new(18_515);
        // One of its own for each run, as the last one's may linger.
        let port = NEXT_PORT.fetch_add(1, Ordering::Relaxed);
        let name = self.tool.name();
        let (ours, theirs) = cpus();
        let start = |mut command: Command| {
            command.spawn().map(Running).with_context(|| format!("cannot start {name} by taskset"))
        };
        let mut server = start(self.command(theirs, port, bytes, count))?;
        wait_until_listening(port)?;
        // A file, as it holds whatever is printed while nobody reads.
        let path = std::env::temp_dir().join(format!("gradwire-bench-{}-{port}", std::process::id()));
        let mut client = self.command(ours, port, bytes, count);
        client.arg(&self.address).stdout(std::fs::File::create(&path)?);
        let ended = start(client)?.wait(DEADLINE).and_then(|()| server.wait(DEADLINE));
        let text = std::fs::read_to_string(&path)?;
        std::fs::remove_file(&path)?;
        ended.with_context(|| format!("{name} printed:\n{text}"))?;
        Ok(text)
    }

    fn sample(&self, spec: &WorkSpec) -> anyhow::Result<Sample> {
        let (seconds, payload_bytes, latencies_ns) = match self.tool {
            Tool::WriteBandwidth => {
                let count = super::writes_within(spec);
                let bytes_per_s = bandwidth(&self.output(spec.tensor_bytes(), count)?)?;
                ((spec.tensor_bytes() * count) as f64 / bytes_per_s, spec.tensor_bytes() * count, Vec::new())
            }
            Tool::WriteLatency => {
                let count = super::round_trips_within(spec);
                let latencies_ns = latencies(&self.output(super::PING_BYTES, count)?)?;
                let seconds = latencies_ns.iter().sum::<u64>() as f64 * 2e-9;
                (seconds, super::PING_BYTES * 2 * count, latencies_ns)
            }
        };
        Ok(Sample {
            seconds,
            payload_bytes,
            latencies_ns,
            cpu_seconds: f64::NAN,
            rounds: 0,
            told_us: None,
            allocations_per_round: None,
        })
    }
}

/// perftest divides counts of the CPU's clock by its frequency, which it measures at each start. Where it cannot, which
/// happens on a busy machine, it prints infinities, or zeros.
#[derive(Debug, thiserror::Error)]
#[error("perftest could not tell the frequency of the CPU's clock")]
struct NoClock;

/// So often a run is tried where that happens.
const ATTEMPTS: u32 = 5;

/// A process that does not outlive its handle.
struct Running(Child);

impl Running {
    fn wait(&mut self, within: Duration) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                anyhow::ensure!(status.success(), "perftest ended with {status}");
                return Ok(());
            }
            anyhow::ensure!(start.elapsed() < within, "perftest did not end within {} s", within.as_secs());
            // Sleep: the end of one given process is an event only for whoever has no deadline.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error here means that it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until_listening(port: u16) -> anyhow::Result<()> {
    let start = Instant::now();
    while start.elapsed() < LISTEN_DEADLINE {
        let tables =
            ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
        if tables.iter().any(|table| is_listening(table, port)) {
            return Ok(());
        }
        // Sleep: perftest says nothing through a pipe before it ends, and the kernel's table has no event.
        std::thread::sleep(Duration::from_millis(5));
    }
    anyhow::bail!("perftest's server did not listen on port {port}; its own messages are above")
}

/// Of a table such as `/proc/net/tcp`.
fn is_listening(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&suffix)) && fields.nth(1) == Some("0A")
    })
}

impl Subject for Perftest {
    fn name(&self) -> &str {
        self.tool.name()
    }

    fn run(&mut self, spec: &WorkSpec) -> anyhow::Result<Sample> {
        for _ in 1..ATTEMPTS {
            match self.sample(spec) {
                Err(error) if error.is::<NoClock>() => report::progress(&format!("once more: {error}")),
                sample => return sample,
            }
        }
        self.sample(spec)
    }

    fn stop(&mut self) {}
}

/// The average that `ib_write_bw` prints, in bytes per second.
fn bandwidth(text: &str) -> anyhow::Result<f64> {
    let mut lines = text.lines().map(str::trim).skip_while(|line| !line.starts_with("#bytes"));
    let (heading, values) =
        lines.next().zip(lines.next()).with_context(|| format!("there is no table in it:\n{text}"))?;
    let unit = heading.split_once("BW average[").and_then(|(_, rest)| rest.split_once(']'));
    let bytes_per_unit = match unit.map(|(unit, _)| unit) {
        // Both words stand for 2^20 bytes, in perftest.
        Some("MB/sec" | "MiB/sec") => f64::from(1 << 20),
        Some("Gb/sec") => 1e9 / 8.0,
        other => anyhow::bail!("the unit {other:?} is not known"),
    };
    let values: Vec<f64> = values.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    let [bytes, _count, _peak, average, mega_writes_per_s] = values[..] else {
        anyhow::bail!("{} numbers where five are expected", values.len())
    };
    let bytes_per_s = average * bytes_per_unit;
    anyhow::ensure!(bytes_per_s.is_finite() && bytes_per_s > 0.0 && mega_writes_per_s.is_finite(), NoClock);
    // The rate of writes says the same in another unit: were ours misunderstood, it would be 5 % off or more.
    let by_rate = mega_writes_per_s * 1e6 * bytes;
    let resolution = 0.5e-6 / mega_writes_per_s + 0.01 / average;
    anyhow::ensure!(
        (by_rate / bytes_per_s - 1.0).abs() < 0.01 + resolution,
        "{by_rate} bytes/s by its rate of writes, and {bytes_per_s} by its average"
    );
    Ok(bytes_per_s)
}

/// Every half round trip that `ib_write_lat -U` prints, in nanoseconds.
fn latencies(text: &str) -> anyhow::Result<Vec<u64>> {
    let lines = text.lines().skip_while(|line| line.trim() != "#, usec").skip(1);
    let parsed = lines.map_while(|line| {
        let (number, us) = line.split_once(',')?;
        number.trim().parse::<u64>().ok()?;
        us.trim().parse::<f64>().ok()
    });
    let all: Vec<f64> = parsed.collect();
    anyhow::ensure!(!all.is_empty(), "ib_write_lat printed no times:\n{text}");
    anyhow::ensure!(all.iter().all(|us| us.is_finite() && *us >= 0.0), NoClock);
    Ok(all.into_iter().map(|us| (us * 1e3) as u64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As printed by perftest 4.5 in the guest.
    const MIB: &str = "---\n                    RDMA_Write BW Test\n ibv_wr* API     : OFF\n---\n
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      1000             60.10              41.03  \t\t   0.000656
---\n";
    const GIGABITS: &str = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      1000             0.51               0.18   \t\t   0.000346\n";
    const LATENCIES: &str =
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]
#, usec\n1, 4195.03\n2, 9.01996\n3, 14.011\n---\n #bytes #iterations\n 64      2000          8.87\n";

    #[test]
    fn mebibytes_and_gigabits_become_bytes_per_second() {
        assert_eq!(bandwidth(MIB).expect("a table"), 41.03 * 1_048_576.0);
        assert_eq!(bandwidth(GIGABITS).expect("a table"), 22_500_000.0);
        assert_eq!(bandwidth(&MIB.replace("MB/sec", "MiB/sec")).expect("a table"), 41.03 * 1_048_576.0);
    }

    #[test]
    fn units_that_are_unknown_or_contradicted_are_errors() {
        let error = |text: &str| bandwidth(text).expect_err("refused").to_string();
        assert!(error(&MIB.replace("[MB/sec]", "[KB/sec]")).contains("unit"));
        // As if they were decimal megabytes.
        assert!(error(&MIB.replace("0.000656", "0.000626")).contains("by its rate"));
        assert!(error("nothing").contains("no table"));
        assert!(error(&MIB.replace("41.03", "-nan")).contains("frequency"));
        assert!(error(&MIB.replace("41.03", "0.00").replace("0.000656", "0.000000")).contains("frequency"));
        assert!(error(&MIB.replace("41.03", "")).contains("numbers"));
    }

    #[test]
    fn every_half_round_trip_is_taken_and_nothing_else() {
        assert_eq!(latencies(LATENCIES).expect("times"), [4_195_030, 9_019, 14_011]);
        assert!(latencies(MIB).is_err());
        let error = latencies(&LATENCIES.replace("14.011", "inf")).expect_err("no time");
        assert!(error.is::<NoClock>(), "{error}");
    }

    #[test]
    fn only_a_listening_socket_of_the_port_counts() {
        let table = "  sl  local_address rem_address   st\n   0: 0100090A:4853 0100090A:BC72 06 0\n   1: 00000000:4854 00000000:0000 0A 0\n";
        assert!(is_listening(table, 0x4854) && !is_listening(table, 0x4853) && !is_listening(table, 0x4855));
    }
}
