//! Counts the system calls and context switches of running processes, with `perf stat` attached: in runs of their own,
//! since counting costs a little on each call.
//!
//! It must not decide what is counted. Where perf or the right to use it is missing, nothing is told.

use anyhow::Context as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

/// What is counted, by perf's names.
const SYSCALLS: &str = "raw_syscalls:sys_enter";
const SWITCHES: &str = "context-switches";

/// What processes did meanwhile, on all their threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) syscalls: u64,
    pub(crate) switches: u64,
}

/// What a subject asked of the kernel in some rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counted {
    /// System calls and context switches of all its processes.
    pub(crate) counts: Counts,
    /// Operations of all workers meanwhile.
    pub(crate) operations: u64,
    /// Their payload, of both directions.
    pub(crate) payload_bytes: u64,
}

/// perf, attached to some processes and counting.
struct Perf(Child);

impl Drop for Perf {
    fn drop(&mut self) {
        // An error means that it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Counts what the processes do during `work`.
///
/// # Errors
/// perf is not there or not allowed to, or the work fails.
pub(crate) fn during<T>(
    pids: &[u32],
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<(Counts, T)> {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    let mut command = Command::new("perf");
    // Told when to begin, as attaching takes a while: commands on its standard input, answers on its output.
    command.args(["stat", "--delay=-1", "--control=fd:0,1", "-x", ",", "-e"]);
    command.arg(format!("{SYSCALLS},{SWITCHES}")).args(["-p", &pids.join(",")]).env("LC_ALL", "C");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut perf = Perf(command.spawn().context("cannot start perf")?);
    let mut orders = perf.0.stdin.take().context("perf without an input")?;
    let mut answers = BufReader::new(perf.0.stdout.take().context("perf without an output")?);
    let mut tell = |order: &str| -> anyhow::Result<()> {
        let mut answer = String::new();
        // perf ends at once where it may not count, and so the answer's end comes.
        let told = orders.write_all(order.as_bytes()).and_then(|()| answers.read_line(&mut answer));
        anyhow::ensure!(told.is_ok() && answer.contains("ack"), "perf does not count");
        Ok(())
    };
    tell("enable\n")?;
    let done = work()?;
    tell("disable\n")?;
    let mut printed = perf.0.stderr.take().context("perf without messages")?;
    let pid = i32::try_from(perf.0.id()).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.context("a process without an id")?, rustix::process::Signal::INT)?;
    let mut text = String::new();
    std::io::Read::read_to_string(&mut printed, &mut text)?;
    Ok((parsed(&text).with_context(|| format!("perf does not count: {}", text.trim()))?, done))
}

/// Of the table that `perf stat -x ,` prints.
fn parsed(text: &str) -> Option<Counts> {
    let of = |event: &str| {
        let line = text.lines().find(|line| line.split(',').nth(2) == Some(event))?;
        line.split(',').next()?.parse().ok()
    };
    Some(Counts { syscalls: of(SYSCALLS)?, switches: of(SWITCHES)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_and_what_was_not_counted_is_no_zero() {
        let text = "Events enabled\n144,,raw_syscalls:sys_enter,3000,100.00,,\n7,,context-switches,3000,100.00,1.0,K/sec\n";
        assert_eq!(parsed(text), Some(Counts { syscalls: 144, switches: 7 }));
        assert_eq!(
            parsed("<not counted>,,raw_syscalls:sys_enter,0,0.00,,\n7,,context-switches,1,100.00,,\n"),
            None
        );
        assert_eq!(parsed("event syntax error"), None);
    }

    #[test]
    fn a_process_without_calls_makes_none_and_nobody_is_no_process() {
        // Where perf may not count there is nothing to test.
        let Ok((idle, ())) = during(&[std::process::id()], || Ok(())) else { return };
        let many = || {
            (0..500).for_each(|_| std::thread::yield_now());
            Ok(())
        };
        let (busy, ()) = during(&[std::process::id()], many).expect("it did before");
        assert!(busy.syscalls >= idle.syscalls.min(500) && busy.syscalls >= 500, "{idle:?} {busy:?}");
        assert!(during(&[u32::MAX / 2], || Ok(())).is_err());
    }
}
