//! What the suites share that launch a cluster by way of others' programs: a directory of their own, launches, and what these are to
//! end with.

use super::cluster::{PATIENCE, Place};
use super::process::Process;
use super::programs::program;
use super::training::{TRAIN, hash_in, reference};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Runs a command that has to end well, and returns what it said.
pub fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Waits for what others' programs do.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        // Sleep: other people's programs, which say nothing when they are ready.
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A directory that is gone when its holder is.
#[derive(Debug)]
pub struct Bed {
    directory: TempDir,
}

impl Default for Bed {
    fn default() -> Self {
        Self { directory: TempDir::new().unwrap() }
    }
}

impl Bed {
    /// The directory itself.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A file's place in it.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file in it.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Processes whose command line names this bed.
    pub fn assert_nobody_left(&self) {
        let own = self.directory.path().to_str().unwrap();
        until("everyone to be gone", || {
            let commands = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
                entry.file_name().to_str()?.parse::<u32>().ok()?;
                std::fs::read(entry.path().join("cmdline")).ok()
            });
            let naps = format!("{own}/nap").into_bytes();
            !commands.into_iter().any(|command| command.windows(naps.len()).any(|part| part == naps))
        });
    }
}

/// A launch with real daemons and what it ended with.
#[must_use]
pub fn launch(env: &[(&str, &str)], flags: &[&str], worker: &[&str]) -> (i32, String) {
    let mut command = Place::default().command("gradwire");
    command.arg("launch").args(flags).arg("--").args(worker).envs(env.iter().copied());
    let mut process = Process::start("launch", &mut command);
    let code = process.expect_end(PATIENCE);
    (code, process.log().text())
}

/// The trainer of the demo, whose result is compared with the reference's.
#[must_use]
pub fn trainer() -> Vec<String> {
    let path = program("gradwire-worker").to_str().unwrap().to_owned();
    [vec![path, "train".into()], TRAIN.map(str::to_owned).to_vec()].concat()
}

/// Trains, and returns what was said, with each worker's place on its host in it.
pub fn trains(env: &[(&str, &str)], flags: &[&str], workers: u32) -> String {
    let trainer = telling_trainer();
    let words: Vec<&str> = trainer.iter().map(String::as_str).collect();
    let (code, text) = launch(env, flags, &words);
    assert_eq!(code, 0, "{text}");
    assert_eq!(hash_in(&text), reference(workers), "{text}");
    text
}

/// The trainer, by way of a shell that says its place first.
#[must_use]
pub fn telling_trainer() -> Vec<String> {
    let script =
        "echo \"worker $DMLC_WORKER_ID is $BYTEPS_LOCAL_RANK/$BYTEPS_LOCAL_SIZE\"; exec \"$0\" \"$@\"";
    [vec!["sh".into(), "-c".into(), script.into()], trainer()].concat()
}

/// The trainer, through a shell that first shows the worker's host, the scheduler's host and the security settings, of which
/// the certificate may be a file's name or its text.
#[must_use]
pub fn showing_trainer() -> Vec<String> {
    let script = r#"cut -c1-64 <<END
worker $DMLC_WORKER_ID on $(hostname) meets $DMLC_PS_ROOT_URI
worker $DMLC_WORKER_ID has $GRADWIRE_SECURITY__CERTIFICATE
worker $DMLC_WORKER_ID mode ${GRADWIRE_SECURITY__MODE-unset} rest ${GRADWIRE_LAUNCH_TRUST-unset}
END
exec "$0" "$@""#;
    [vec!["sh".into(), "-c".into(), script.into()], trainer()].concat()
}

/// Each worker of [`showing_trainer`], in order, ran on this host, met the scheduler on `n1`, had this certificate and no
/// other setting of security.
pub fn assert_certificates(text: &str, hosts: &[&str], certificate: &str) {
    for (rank, host) in hosts.iter().enumerate() {
        for shown in
            [format!("on {host} meets n1"), format!("has {certificate}"), "mode unset rest unset".into()]
        {
            assert!(text.contains(&format!("worker {rank} {shown}\n")), "worker {rank}, {shown}: {text}");
        }
    }
    assert!(!text.contains("security.mode"), "nobody trains unauthenticated: {text}");
}

/// Certificates of a user, for all roles, in a bed: the variables that name them.
#[must_use]
pub fn own_certificates(bed: &Bed) -> [(String, String); 3] {
    let at = |name: &str| bed.path(name).display().to_string();
    let certs = |words: &[&str]| done(Command::new(program("gradwire")).arg("certs").args(words));
    certs(&["init", "--ca", &at("ca")]);
    certs(&["issue", "--ca", &at("ca"), "--role", "any", "--out", &at("tls")]);
    [("CA", "ca"), ("CERTIFICATE", "certificate"), ("KEY", "key")]
        .map(|(name, file)| (format!("GRADWIRE_SECURITY__{name}"), at(&format!("tls/{file}.pem"))))
}

/// The first line of a certificate as text.
pub const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

/// Each worker, in order, took its number among the workers of its host.
pub fn assert_places(text: &str, places: &[&str]) {
    for (rank, place) in places.iter().enumerate() {
        assert!(
            text.contains(&format!("worker {rank} is {place}\n")),
            "worker {rank} is not {place}: {text}"
        );
    }
}

/// One worker fails before anything else, one waits for ever; the first one's code counts.
pub fn fails(bed: &Bed, env: &[(&str, &str)], flags: &[&str]) -> String {
    let nap = bed.path("nap");
    let _ = std::os::unix::fs::symlink("/bin/sleep", &nap);
    let script =
        format!("[ $DMLC_WORKER_ID = 1 ] && {{ echo no data; exit 65; }}; {} 1000 & wait", nap.display());
    let (code, text) = launch(env, flags, &["sh", "-c", &script]);
    assert_eq!(code, 65, "{text}");
    assert!(text.contains("exit code 65 (a data, model or checkpoint file is missing or damaged)"), "{text}");
    assert!(text.contains("worker 1 said last: no data"), "{text}");
    bed.assert_nobody_left();
    text
}

/// A file's text; nothing where there is none.
#[must_use]
pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// How many processes are this program.
#[must_use]
pub fn names(path: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let commands = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    commands.filter(|command| command.starts_with(path.as_bytes())).count()
}
