//! What daemons tell the service manager that has started them: in which order, and when they are alive. The manager is the test; the
//! suite `systemd` has a real one.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE, Place};
use gradwire_tests::rigs::training::TRAIN;
use rustix::process::Signal;
use std::os::unix::net::UnixDatagram;
use std::time::Instant;
use tempfile::TempDir;

/// The socket of a service manager.
struct Manager {
    socket: UnixDatagram,
    directory: TempDir,
}

impl Manager {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        Self { socket, directory }
    }

    /// Where processes run that it has started.
    fn place(&self) -> Place {
        let socket = format!("NOTIFY_SOCKET={}", self.directory.path().join("notify").display());
        Place {
            prefix: ["env", &socket, "WATCHDOG_USEC=400000"].map(str::to_owned).to_vec(),
            ..Place::default()
        }
    }

    /// All that is said until a word that holds these, which is the last.
    fn until(&self, words: &str) -> Vec<String> {
        let deadline = Instant::now() + PATIENCE;
        let mut said = Vec::new();
        while said.last().is_none_or(|word: &String| !word.contains(words)) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{words:?} was not said within {PATIENCE:?}: {said:?}");
            self.socket.set_read_timeout(Some(left)).unwrap();
            let mut bytes = [0; 1024];
            if let Ok(length) = self.socket.recv(&mut bytes) {
                said.push(String::from_utf8(bytes[..length].to_vec()).unwrap());
            }
        }
        said
    }
}

#[test]
fn readiness_state_life_and_stop_are_told() {
    let [scheduler, server, worker] = [(); 3].map(|()| Manager::new());
    let mut cluster = Cluster::at(&scheduler.place(), "127.0.0.1", 1, 2, &[]);
    let said = scheduler.until("STATUS=waiting for members: 0 of 1 servers, 0 of 2 workers");
    assert_eq!(said[0], "READY=1", "it takes members: {said:?}");
    cluster.place = server.place();
    cluster.add_servers(1, &[]);
    let said = server.until("STATUS=registered as server 0");
    assert!(said[0].starts_with("STATUS=looking for the scheduler at 127.0.0.1:"), "{said:?}");
    assert_eq!(said[1..], ["READY=1", "STATUS=registered as server 0"], "there is no worker yet");
    cluster.place = worker.place();
    let train = ["--epochs", "100000", "--jitter-us", "500"];
    cluster.add_trainers(1, &train);
    let said = worker.until("STATUS=worker 0: waiting for the other members");
    assert!(said.contains(&"READY=1".to_owned()), "registered, and one is missing: {said:?}");
    cluster.place = Place::default();
    cluster.add_trainers(1, &train);
    for (manager, state) in [
        (&scheduler, "STATUS=running: 1 of 1 servers, 2 of 2 workers, round "),
        (&server, "STATUS=server 0: "),
        (&worker, "STATUS=worker 0: round "),
    ] {
        manager.until(state);
        assert!(manager.until("WATCHDOG=1").len() < 100);
    }
    // All at once, as a manager stops a group.
    cluster.everyone().for_each(|process| process.signal(Signal::TERM));
    for manager in [&scheduler, &server, &worker] {
        let said = manager.until("STOPPING=1");
        assert!(said.last().unwrap().ends_with("STATUS=stopping: SIGTERM received"), "{said:?}");
    }
    assert_eq!(cluster.scheduler.expect_end(PATIENCE), 0);
    assert_eq!(cluster.servers[0].expect_end(PATIENCE), 0);
    cluster.workers.iter_mut().for_each(|worker| assert_eq!(worker.expect_end(PATIENCE), 128 + 15));
}

#[test]
fn a_trainer_that_has_left_the_cluster_is_not_watched_any_more() {
    let manager = Manager::new();
    let mut cluster = Cluster::new(1, 1, &[]);
    cluster.add_servers(1, &[]);
    cluster.place = manager.place();
    cluster.add_trainers(1, &TRAIN);
    let said = manager.until("STATUS=left the cluster");
    assert_eq!(said[said.len() - 2], "WATCHDOG_USEC=0", "{said:?}");
    cluster.everyone().for_each(|process| assert_eq!(process.expect_end(PATIENCE), 0));
}
