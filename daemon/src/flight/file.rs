//! Files of what a process recorded: where it panics, fails, or is asked to by SIGUSR1. Nothing that is there is written over or
//! followed, and nothing that goes wrong here ends a process that goes on.

use super::{Dump, Flight};
use crate::exit::describe;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::TryLockError;
use std::sync::atomic::Ordering;
use tokio::signal::unix::{SignalKind, signal};

/// Files of one process, by their number.
const FILES_MAX: u32 = 9;
/// What is said where there is no directory.
const UNSET: &str =
    "set log.dump_directory to a directory to which flight recorder dumps are written (docs/timeline.md)";

impl Flight {
    /// From now on a panic of any thread leaves a file, once; what else is done about panics is done first. For `main` only: it
    /// is of the whole process.
    pub fn on_panic(&self) {
        let (flight, before) = (self.clone(), std::panic::take_hook());
        std::panic::set_hook(Box::new(move |info| {
            before(info);
            flight.failed(&info.to_string());
        }));
    }

    /// From now on SIGUSR1 leaves a file. Needs a tokio runtime.
    pub fn on_signal(&self) -> io::Result<()> {
        let (flight, mut signals) = (self.clone(), signal(SignalKind::user_defined1())?);
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                let flight = flight.clone();
                // A disk may be slow; and whoever has the lock goes on, so it can be waited for here.
                let keep = move || flight.keep("SIGUSR1", || Some(flight.dump("SIGUSR1")));
                drop(tokio::task::spawn_blocking(keep));
            }
        });
        Ok(())
    }

    /// How the process ends: an error leaves a file, unless a panic has, or it never had a part in a job.
    pub fn ended<T>(&self, how: &anyhow::Result<T>) {
        if let Err(error) = how
            && self.0.identity.rank().is_some()
        {
            self.failed(&describe(error));
        }
    }

    /// The process has failed: the first word counts.
    pub fn failed(&self, reason: &str) {
        if !self.0.crashed.swap(true, Ordering::SeqCst) {
            self.keep(reason, || self.without_waiting(reason));
        }
    }

    /// Writes what there is to a file, and logs where.
    fn keep(&self, reason: &str, dump: impl FnOnce() -> Option<Dump>) {
        if self.0.directory.is_none() {
            tracing::info!("{UNSET}");
            return;
        }
        let dump = dump().ok_or_else(|| io::Error::other("it is being changed"));
        match dump.and_then(|dump| self.write(&dump)) {
            Ok(path) => tracing::info!(file = %path.display(), reason, "wrote a dump of the flight recorder"),
            Err(error) => tracing::warn!(%error, "cannot write a dump of the flight recorder"),
        }
    }

    /// A file of this.
    fn write(&self, dump: &Dump) -> io::Result<PathBuf> {
        let directory = self.0.directory.as_deref().ok_or_else(|| io::Error::other(UNSET))?;
        let text = serde_json::to_vec(dump)?;
        let role = dump.role.to_string();
        let rank = dump.rank.map_or_else(|| "none".to_owned(), |rank| rank.to_string());
        for number in 1..=FILES_MAX {
            let number = if number == 1 { String::new() } else { format!("-{number}") };
            let path = directory.join(format!("gradwire-{role}-{rank}-{}{number}.flight.json", dump.pid));
            // A new one: whatever lies there, a link included, is left alone.
            let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            match file {
                Ok(mut file) => return file.write_all(&text).map(|()| path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    let text = format!("{}: {error}; make log.dump_directory writable", path.display());
                    return Err(io::Error::new(error.kind(), text));
                }
            }
        }
        Err(io::Error::other(format!(
            "this process has already written {} dump files, the maximum",
            FILES_MAX
        )))
    }

    /// The thread that panics may be the one that has the lock.
    fn without_waiting(&self, reason: &str) -> Option<Dump> {
        let shared = match self.0.shared.try_lock() {
            Ok(shared) => shared.clone(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().clone(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(self.dump_of(reason, shared))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::FORMAT;
    use proto_common::config::Settings;
    use proto_common::ids::{Rank, Role};
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn flight(directory: &Path) -> Flight {
        let mut settings = Settings::default();
        settings.log.dump_directory = directory.display().to_string();
        Flight::embedded(Role::Server, &settings)
    }

    fn written(flight: &Flight) -> io::Result<PathBuf> {
        flight.write(&flight.dump("x"))
    }

    fn files(directory: &Path) -> Vec<String> {
        let names = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_first_failure_leaves_a_file_that_reads_back() {
        let directory = tempfile::tempdir().unwrap();
        let flight = flight(directory.path());
        flight.set_rank(Rank(2));
        flight.ended(&anyhow::Ok(()));
        assert!(files(directory.path()).is_empty());
        flight.failed("a bug");
        flight.ended::<()>(&Err(anyhow::anyhow!("what followed from it")));
        let name = format!("gradwire-server-2-{}.flight.json", std::process::id());
        assert_eq!(files(directory.path()), std::slice::from_ref(&name));
        let path = directory.path().join(name);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let dump: Dump = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!((&dump.format[..], &dump.reason[..]), (FORMAT, "a bug"));
    }

    #[test]
    fn a_panic_leaves_a_file_though_it_is_caught() {
        let directory = tempfile::tempdir().unwrap();
        flight(directory.path()).on_panic();
        assert!(std::thread::spawn(|| panic!("on purpose")).join().is_err());
        let name = format!("gradwire-server-none-{}.flight.json", std::process::id());
        let text = std::fs::read_to_string(directory.path().join(name)).unwrap();
        assert!(text.contains("panicked at") && text.contains("on purpose"), "{text}");
    }

    #[test]
    fn nothing_is_written_over_or_followed_and_there_is_an_end_to_it() {
        let directory = tempfile::tempdir().unwrap();
        let flight = flight(directory.path());
        let (first, elsewhere) = (written(&flight).unwrap(), directory.path().join("elsewhere"));
        let second = PathBuf::from(first.display().to_string().replace(".flight", "-2.flight"));
        std::os::unix::fs::symlink(&elsewhere, &second).unwrap();
        let third = written(&flight).unwrap();
        assert!(third.display().to_string().ends_with("-3.flight.json") && !elsewhere.exists());
        (4..=FILES_MAX).for_each(|_| drop(written(&flight).unwrap()));
        assert!(written(&flight).unwrap_err().to_string().contains("the maximum"));
        let error = written(&self::flight(Path::new("/nonexistent"))).unwrap_err().to_string();
        assert!(error.contains("log.dump_directory"), "{error}");
    }
    #[tokio::test]
    async fn a_signal_waits_for_whoever_has_the_lock_for_a_moment() {
        let directory = tempfile::tempdir().unwrap();
        let flight = flight(directory.path());
        flight.on_signal().unwrap();
        let ((has_it, locked), (let_go, held)) = (channel(), channel::<()>());
        let whoever = flight.clone();
        let holder = std::thread::spawn(move || {
            let _lock = whoever.0.shared.lock().unwrap();
            has_it.send(()).unwrap();
            held.recv().is_err()
        });
        locked.recv_timeout(PATIENCE).unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR1).unwrap();
        // Whoever does not wait has given up by then.
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(files(directory.path()).is_empty());
        drop(let_go);
        assert!(holder.join().unwrap());
        tokio::time::timeout(PATIENCE, async {
            while files(directory.path()).is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("the file comes");
    }
}
