//! An outside program as a subject: a parameter server that is built and run by whoever measures, and of which nothing
//! is in this repository. `benches/README.md` has the contract.
//!
//! It is never trusted: it has a deadline, what it prints is bounded and checked, and when it fails the others go on.

use crate::measure::{Sample, Subject};
use crate::workload::{Op, WorkSpec};
use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::Deserialize;
use std::fmt::Write as _;
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

/// How long it may take to start its processes, and to end them.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// How many times the seconds it was asked for it may measure beside that.
const SECONDS_TIMES: f64 = 10.0;
/// How long what it printed may take to arrive once it has ended.
const OUTPUT_DEADLINE: Duration = Duration::from_secs(2);
/// More than the memory of any host moves.
const GB_PER_S_MAX: f64 = 10_000.0;
/// Most bytes kept of what it prints: the last ones.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// An outside program.
pub(crate) struct Peer {
    name: &'static str,
    command: String,
    start_deadline: Duration,
}

/// What it tells, a line of JSON.
#[derive(Debug, Deserialize, PartialEq)]
struct Told {
    gb_per_s: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Peer {
    /// `command` is what a shell is to run.
    pub(crate) fn new(name: &'static str, command: &str) -> Self {
        Self { name, command: command.to_owned(), start_deadline: START_DEADLINE }
    }

    fn tell(&self, spec: &WorkSpec) -> anyhow::Result<Told> {
        let files = Files::write(spec)?;
        let mut command = Command::new("sh");
        command.args(["-c", &self.command]).envs(environment(spec, &files));
        // A group of its own, with which all that it starts and leaves in it ends.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let deadline = self.start_deadline + Duration::from_secs_f64(spec.seconds * SECONDS_TIMES);
        let (status, out, err) = run(command, deadline)?;
        let said =
            || if err.is_empty() { "it said nothing on standard error".to_owned() } else { err.clone() };
        let status =
            status.with_context(|| format!("no end within {:.0} s; {}", deadline.as_secs_f64(), said()))?;
        anyhow::ensure!(status.success(), "it ended with {status}; {}", said());
        told(&out).with_context(said)
    }
}

impl Subject for Peer {
    fn name(&self) -> &str {
        self.name
    }

    fn run(&mut self, spec: &WorkSpec) -> anyhow::Result<Sample> {
        let Told { gb_per_s, p50_us, p99_us } = self.tell(spec)?;
        Ok(Sample {
            seconds: 1.0,
            payload_bytes: (gb_per_s * 1e9) as u64,
            latencies_ns: Vec::new(),
            cpu_seconds: f64::NAN,
            rounds: 0,
            told_us: Some((p50_us, p99_us)),
            allocations_per_round: None,
        })
    }

    fn buffers(&self, _spec: &WorkSpec) -> Option<String> {
        Some("its own".to_owned())
    }

    fn is_guest(&self) -> bool {
        true
    }

    fn stop(&mut self) {}
}

/// The last line that is what the contract says, if its figures can be.
fn told(out: &str) -> anyhow::Result<Told> {
    let told: Told = out
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok())
        .context("no line {\"gb_per_s\": …, \"p50_us\": …, \"p99_us\": …} on its standard output")?;
    let can_be = |value: f64| value.is_finite() && value > 0.0 && value < 1e9;
    anyhow::ensure!(
        can_be(told.gb_per_s)
            && told.gb_per_s <= GB_PER_S_MAX
            && can_be(told.p50_us)
            && told.p99_us >= told.p50_us
            && can_be(told.p99_us),
        "figures that cannot be: {told:?}"
    );
    Ok(told)
}

/// What it is told, by name.
fn environment(spec: &WorkSpec, files: &Files) -> Vec<(&'static str, String)> {
    let op = match spec.op {
        Op::Push => "push",
        Op::Pull => "pull",
        Op::PushPull => "push_pull",
    };
    vec![
        ("GRADWIRE_BENCH_WORKLOAD", spec.name.clone()),
        ("GRADWIRE_BENCH_TENSORS", files.path("tensors").display().to_string()),
        ("GRADWIRE_BENCH_ORDER", files.path("order").display().to_string()),
        ("GRADWIRE_BENCH_OP", op.to_owned()),
        ("GRADWIRE_BENCH_INFLIGHT", spec.inflight.to_string()),
        ("GRADWIRE_BENCH_WORKERS", spec.workers.to_string()),
        ("GRADWIRE_BENCH_SERVERS", spec.servers.to_string()),
        ("GRADWIRE_BENCH_SECONDS", spec.seconds.to_string()),
    ]
}

/// The lists of a work, a number a line; removed when they go.
struct Files(PathBuf);

impl Files {
    fn write(spec: &WorkSpec) -> anyhow::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("gradwire-bench-peer-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let files = Self(folder);
        std::fs::write(files.path("tensors"), lines(&spec.tensors))?;
        std::fs::write(files.path("order"), lines(&spec.lap()))?;
        Ok(files)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // Left behind where even that fails.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn lines(numbers: &[impl std::fmt::Display]) -> String {
    numbers.iter().fold(String::new(), |mut text, number| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{number}");
        text
    })
}

/// Runs a command with all that it starts; gives how it ended, unless the time was over, and the ends of what it
/// printed to standard output and to standard error.
fn run(mut command: Command, within: Duration) -> anyhow::Result<(Option<ExitStatus>, String, String)> {
    let mut process = command.spawn().context("cannot start a shell")?;
    let (out, err) = (kept(process.stdout.take()), kept(process.stderr.take()));
    let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw).context("a process without an id")?;
    let ended = has_ended(pid, within);
    // Before it is reaped, as its id may be another's afterwards. An error means that nobody is left.
    let _ = kill_process_group(pid, Signal::KILL);
    let status = process.wait()?;
    let text = |output: Receiver<String>| output.recv_timeout(OUTPUT_DEADLINE).unwrap_or_default();
    Ok((ended?.then_some(status), text(out), text(err)))
}

fn has_ended(pid: Pid, within: Duration) -> anyhow::Result<bool> {
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("cannot wait for the outside program")?;
    let timeout = Timespec { tv_sec: within.as_secs().try_into()?, tv_nsec: within.subsec_nanos().into() };
    loop {
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// What arrives of an output until it is closed: its last bytes.
fn kept(output: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = sync_channel(1);
    if let Some(mut output) = output {
        std::thread::spawn(move || {
            let mut kept: Vec<u8> = Vec::new();
            let mut block = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut block) {
                kept.extend_from_slice(&block[..count]);
                kept.drain(..kept.len().saturating_sub(OUTPUT_BYTES_MAX));
            }
            // Nobody waits any more where its time was over.
            let _ = sender.send(String::from_utf8_lossy(&kept).trim().to_owned());
        });
    }
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Order;
    use std::time::Instant;

    fn spec() -> WorkSpec {
        let order = Order::Zipf { draws: 6 };
        let tensors = WorkSpec::of_tensors("test", Op::PushPull, vec![8, 16, 4]);
        WorkSpec { workers: 2, order, inflight: 2, seconds: 0.25, ..tensors }
    }

    fn tell(script: &str) -> anyhow::Result<Told> {
        Peer::new("peer", script).tell(&spec())
    }

    #[test]
    fn a_program_is_told_its_work_and_tells_its_figures() {
        let script = r#"
            set -eu
            test "$GRADWIRE_BENCH_WORKLOAD $GRADWIRE_BENCH_OP" = "test push_pull"
            test "$GRADWIRE_BENCH_INFLIGHT $GRADWIRE_BENCH_WORKERS $GRADWIRE_BENCH_SERVERS" = "2 2 1"
            test "$GRADWIRE_BENCH_SECONDS" = 0.25
            test "$(tr '\n' ' ' < "$GRADWIRE_BENCH_TENSORS")" = "8 16 4 "
            test "$(wc -l < "$GRADWIRE_BENCH_ORDER")" -ge 3
            echo a line of its own
            echo '{"gb_per_s": 2.5, "p50_us": 10, "p99_us": 20.5, "more": "is left out"}'
        "#;
        assert_eq!(tell(script).expect("figures"), Told { gb_per_s: 2.5, p50_us: 10.0, p99_us: 20.5 });
        let sample = Peer::new("peer", script).run(&spec()).expect("a sample");
        assert_eq!((sample.payload_bytes, sample.told_us), (2_500_000_000, Some((10.0, 20.5))));
    }

    #[test]
    fn what_it_says_on_standard_error_is_shown_when_it_fails() {
        for script in ["echo no such van >&2; exit 3", "echo no such van >&2; echo hello"] {
            let error = format!("{:#}", tell(script).expect_err("it failed"));
            assert!(error.contains("no such van"), "{error}");
        }
    }

    #[test]
    fn figures_that_cannot_be_are_refused() {
        for figures in
            ["-1, 1, 1", "0, 1, 1", "1, 2, 1", "1, 1, 1e400", "1e12, 1, 1", "10001, 1, 1", "1, \"a\", 1"]
        {
            let fields: Vec<&str> = figures.split(", ").collect();
            let line =
                format!(r#"{{"gb_per_s":{},"p50_us":{},"p99_us":{}}}"#, fields[0], fields[1], fields[2]);
            assert!(tell(&format!("echo '{line}'")).is_err(), "{line}");
        }
    }

    #[test]
    fn one_that_does_not_end_is_ended_with_all_that_it_started() {
        let marker = std::env::temp_dir().join(format!("gradwire-bench-peer-pid-{}", std::process::id()));
        let script = format!("sleep 600 & echo $! > {}; wait", marker.display());
        let mut peer = Peer::new("peer", &script);
        peer.start_deadline = Duration::from_millis(500);
        let start = Instant::now();
        let error = format!("{:#}", peer.tell(&spec()).expect_err("no figures"));
        assert!(error.contains("no end within") && start.elapsed() < Duration::from_secs(30), "{error}");
        let pid = std::fs::read_to_string(&marker).expect("it was started");
        std::fs::remove_file(&marker).expect("removes");
        let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        assert!(
            state.is_ok_and(|stat| stat.contains(") Z "))
                || !std::path::Path::new(&format!("/proc/{}", pid.trim())).exists()
        );
    }

    #[test]
    fn endless_output_is_bounded() {
        let script = "head -c 3000000 /dev/zero | tr '\\0' x; echo; \
                      echo '{\"gb_per_s\":1,\"p50_us\":1,\"p99_us\":1}'; head -c 3000000 /dev/zero >&2";
        assert_eq!(tell(script).expect("the last line counts").gb_per_s, 1.0);
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 3000000 /dev/zero | tr '\\0' x"]).process_group(0);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (status, out, err) = run(command, Duration::from_secs(20)).expect("runs");
        assert!(status.is_some_and(|status| status.success()));
        assert_eq!((out.len(), err.len()), (OUTPUT_BYTES_MAX, 0));
    }
}
