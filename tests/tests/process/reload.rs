//! SIGHUP to daemons that run: what may change is taken, the rest is named, and what is wrong changes nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::process::Process;
use rustix::process::Signal;

#[test]
fn settings_are_read_again_and_training_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("gradwire.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("[log]\nfilter = \"warn\"\n");
    let config = ["--config", file.to_str().unwrap()];
    let mut cluster = Cluster::new(1, 1, &config);
    cluster.add_servers(1, &config);
    cluster.add_trainers(1, &[&config[..], &["--layers", "64,32,10", "--epochs", "1000000"]].concat());
    cluster.workers[0].expect_line("epoch       2/", PATIENCE);
    let hang_up = |cluster: &mut Cluster, expected: &str| {
        for process in cluster.everyone() {
            process.signal(Signal::HUP);
            process.expect_line(expected, PATIENCE);
        }
    };
    write("[log]\nfilter = \"info\"\n[cluster]\nlanes = 2\n");
    hang_up(&mut cluster, "SIGHUP: cluster.lanes remains \"1\": restart this process to apply \"2\"");
    for process in cluster.everyone() {
        // Said at a level that was not logged before.
        process.expect_line("SIGHUP: applied the new value of log.filter", PATIENCE);
    }
    write("[log]\nfilter = \"info\"\n");
    hang_up(&mut cluster, "SIGHUP: no setting has changed");
    write("[cluster]\nlane = 2\n");
    hang_up(&mut cluster, "did you mean cluster.lanes?");
    assert!(cluster.everyone().all(Process::is_running));
    cluster.assert_no_panic();
}
