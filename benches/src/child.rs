//! Child processes of a benchmark: started from this very executable or another program, spoken to in lines
//! of JSON, and killed when their handle goes, however that happens.
//!
//! It must not know what is said. Every wait has a deadline.

use anyhow::Context as _;
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

/// The longest line taken from a child: a run's latencies fit many times over.
const MAX_LINE_BYTES: u64 = 16 << 20;

/// Lines a child may be ahead of its reader.
const MAX_LINES_AHEAD: usize = 16;

/// A running child; dropping it kills and reaps it.
#[derive(Debug)]
pub(crate) struct Child {
    name: String,
    process: std::process::Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Child {
    /// Starts this executable again with other arguments and some more environment.
    pub(crate) fn spawn_self(
        name: &str,
        args: &[String],
        environment: Vec<(String, String)>,
    ) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this executable")?;
        let mut command = Command::new(program);
        command.args(args).envs(environment);
        Self::spawn(name, command)
    }

    /// Starts a command whose standard input and output carry JSON lines.
    pub(crate) fn spawn(name: &str, mut command: Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().with_context(|| format!("cannot start {name}"))?;
        let (Some(stdin), Some(stdout)) = (process.stdin.take(), process.stdout.take()) else {
            let _ = process.kill();
            let _ = process.wait();
            anyhow::bail!("{name} was started without pipes");
        };
        let (sender, lines) = sync_channel(MAX_LINES_AHEAD);
        // Ends with the child's output; a plain read has no deadline, a channel has.
        std::thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            loop {
                let mut line = String::new();
                match reader.by_ref().take(MAX_LINE_BYTES).read_line(&mut line) {
                    Ok(1..) if line.ends_with('\n') && sender.send(line).is_ok() => {}
                    _ => return,
                }
            }
        });
        Ok(Self { name: name.to_owned(), process, stdin, lines })
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Has it not ended?
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => anyhow::bail!("{} ended ({status}); its own messages are above", self.name),
        }
    }

    /// Ends it, without waiting for its end.
    pub(crate) fn kill(&mut self) {
        // An error here means that it is gone already.
        let _ = self.process.kill();
    }

    /// Says something to the child.
    pub(crate) fn send(&mut self, message: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let sent = self.stdin.write_all(&line).and_then(|()| self.stdin.flush());
        sent.with_context(|| format!("{} does not listen any more", self.name))
    }

    /// Waits for the child's next line.
    pub(crate) fn recv<T: DeserializeOwned>(&mut self, deadline: Duration) -> anyhow::Result<T> {
        match self.lines.recv_timeout(deadline) {
            Ok(line) => serde_json::from_str(&line)
                .with_context(|| format!("{} said something unexpected: {}", self.name, line.trim_end())),
            Err(RecvTimeoutError::Timeout) => {
                anyhow::bail!("{} said nothing for {} s", self.name, deadline.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => {
                // Its output is closed, so it has ended or is about to.
                let _ = self.process.kill();
                let status = self.process.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
                anyhow::bail!("{} ended unexpectedly ({status}); its own messages are above", self.name)
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
        let _ = self.process.wait();
    }
}

/// To be called first in a child: it dies with its parent, even when that is killed.
pub(crate) fn die_with_parent() -> anyhow::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .context("cannot ask the kernel to be ended with the parent")
}

/// Holds the calling thread, and those that it will start, to one CPU.
pub(crate) fn stay_on(cpu: usize) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).context("cannot stay on one CPU")
}

/// The CPUs that two ends which are to have one each stay on: ours and the peer's.
pub(crate) fn cpus() -> (usize, usize) {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (1 % count.max(1), 0)
}

/// To be called in a child: says something to the parent.
pub(crate) fn say(message: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&line).and_then(|()| stdout.flush()).context("the parent does not listen any more")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn an_echo_comes_back_and_silence_ends_at_the_deadline() {
        let mut cat = Child::spawn("cat", Command::new("cat")).expect("cat starts");
        cat.send(&vec![1, 2, 3]).expect("cat listens");
        assert_eq!(cat.recv::<Vec<u32>>(Duration::from_secs(5)).expect("an echo"), [1, 2, 3]);
        let start = Instant::now();
        assert!(cat.recv::<u32>(Duration::from_millis(20)).is_err());
        assert!(start.elapsed() < Duration::from_secs(5));
        let pid = cat.pid();
        drop(cat);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "killed and reaped");
    }

    #[test]
    fn a_child_that_ends_is_an_error_with_its_status() {
        let mut gone = Child::spawn("true", Command::new("true")).expect("true starts");
        let error = gone.recv::<u32>(Duration::from_secs(5)).expect_err("it says nothing");
        assert!(error.to_string().contains("ended unexpectedly"), "{error}");
    }
}
