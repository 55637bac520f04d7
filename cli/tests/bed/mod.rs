//! A directory with small shell programs in the roles, and a launcher over them; nobody may be left behind.
#![allow(dead_code, clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) const GRADWIRE: &str = env!("CARGO_BIN_EXE_gradwire");

/// A scheduler that writes its port file and waits for its end.
pub(crate) const SCHEDULER: &str = r#"
while [ $# -gt 0 ]; do
  if [ "$1" = --port-file ]; then
    printf 'control=127.0.0.1:1\nhttp=127.0.0.1:2\n' > "$2.new"; mv "$2.new" "$2"
  fi
  shift
done
"#;
/// Waits for its end with a child of its own, whose command line names the test bed.
pub(crate) const WAIT: &str = "trap 'exit 0' TERM\n$BED/nap 1000 &\nwait\n";

pub(crate) struct Bed {
    pub(crate) directory: tempfile::TempDir,
}

impl Bed {
    pub(crate) fn new() -> Self {
        let bed = Self { directory: tempfile::tempdir().unwrap() };
        std::os::unix::fs::symlink("/bin/sleep", bed.path("nap")).unwrap();
        bed.program("gradwire-scheduler", &format!("{SCHEDULER}{WAIT}"));
        bed.program("gradwire-server", WAIT);
        bed
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A shell program; each process notes its id and its child's, so that the test can look for them.
    pub(crate) fn program(&self, name: &str, body: &str) {
        let pids = self.path("pids");
        let bed = self.directory.path().display();
        let text = format!("#!/bin/sh\nBED={bed}\necho $$ >> {}\n{body}", pids.display());
        std::fs::write(self.path(name), text).unwrap();
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn launch(&self, flags: &[&str], program: &[&str]) -> Command {
        let mut command = Command::new(GRADWIRE);
        command.arg("launch").arg("--bin-dir").arg(self.directory.path()).args(["--grace-ms", "300"]);
        command.args(flags).arg("--").args(program);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, flags: &[&str], program: &[&str]) -> (Output, Duration) {
        let start = Instant::now();
        let output = self.launch(flags, program).output().unwrap();
        (output, start.elapsed())
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        let text = std::fs::read_to_string(self.path("pids")).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// Waits until `count` processes have started.
    pub(crate) fn wait_for(&self, count: usize) {
        wait(&format!("{count} processes"), || self.pids().len() >= count);
    }

    /// Nothing that the programs started is alive, their own children included: they share the group, or
    /// name the bed on their command line.
    pub(crate) fn assert_nobody_left(&self) {
        let groups = self.pids();
        let bed = self.directory.path().to_str().unwrap();
        wait("everyone to be gone", || {
            let ours = |(pid, group): &(u32, u32)| {
                let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                groups.contains(pid) || groups.contains(group) || text(&command).contains(bed)
            };
            !living().iter().any(ours)
        });
    }
}

pub(crate) fn wait(what: &str, mut until: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !until() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Process ids and groups of everyone alive and no zombie.
fn living() -> Vec<(u32, u32)> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = entries.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // After the name in parentheses: state, parent, group.
        let mut rest = stat.rsplit_once(')')?.1.split_whitespace();
        let state = rest.next()?;
        let group = rest.nth(1)?.parse().ok()?;
        (state != "Z").then_some((pid, group))
    });
    stats.collect()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}
