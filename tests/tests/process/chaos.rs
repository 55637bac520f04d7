//! `gradwire chaos` as a program: faults on real processes, and weights of the undisturbed run. The fast tests are a few faults;
//! the slow ones ten of each role over each transport, stops, partitions, and restarts from checkpoints.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]
#![allow(clippy::print_stdout, reason = "figures, shown when asked for")]

use gradwire_tests::rigs::cluster::Place;
use gradwire_tests::rigs::process::Process;
use std::time::Duration;

/// Everything of one call, and its exit code.
fn chaos(words: &[&str], within: Duration) -> (i32, String) {
    let out = tempfile::tempdir().unwrap();
    let mut command = Place::default().command("gradwire");
    command.arg("chaos").arg("--out").arg(out.path()).args(words);
    let mut process = Process::start("gradwire chaos", &mut command);
    let code = process.expect_end(within);
    let report = std::fs::read_to_string(out.path().join("chaos.json")).unwrap_or_default();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap_or_default();
    if code == 0 {
        let made: usize = report["report"]["runs"].as_array().unwrap().iter().map(faults_of).sum();
        match words.windows(2).find(|pair| pair[0] == "--kills") {
            Some(wanted) => assert_eq!(made.to_string(), wanted[1], "as many faults as asked for"),
            None => assert!(made >= FAULTS_A_MINUTE_MIN, "{made} faults"),
        }
        for file in ["recovery.svg", "soak.csv", "soak.svg"] {
            assert!(out.path().join(file).exists(), "{file}");
        }
    }
    (code, process.log().text())
}

fn faults_of(run: &serde_json::Value) -> usize {
    run["recoveries"].as_array().unwrap().len()
}

fn survives(words: &[&str], within: Duration) {
    let (code, text) = chaos(words, within);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("the same hash"), "{text}");
    println!("{text}");
}

/// Of a soak of a minute and more.
const FAULTS_A_MINUTE_MIN: usize = 10;

const SOON: Duration = Duration::from_secs(120);
const LONG: Duration = Duration::from_secs(900);

#[test]
fn a_death_of_each_role_leaves_the_weights_as_they_were() {
    survives(&["--kills", "3", "--epochs", "4", "--jitter-us", "1000", "--away-ms", "300"], SOON);
}

/// Without copies, and with a loss of a worker as the end, every death ends everybody with a documented code.
#[test]
fn where_deaths_are_ends_everybody_ends_in_time() {
    let (code, text) = chaos(&["--expect", "end", "--replicas", "0", "--kills", "3"], SOON);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("everybody ended in time"), "{text}");
}

/// No training's hash.
const WRONG: &str = "0000000000000000000000000000000000000000000000000000000000000000";

#[test]
fn another_hash_is_a_failure_with_the_command_that_repeats_it() {
    let words = [
        "--hash",
        WRONG,
        "--roles",
        "scheduler",
        "--kills",
        "1",
        "--seed",
        "5",
        "--epochs",
        "2",
        "--jitter-us",
        "500",
    ];
    let (code, text) = chaos(&words, SOON);
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains(&format!("not {WRONG}")) && text.contains("again: gradwire chaos --seed 5 --kills 1"),
        "{text}"
    );
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    for (words, fix) in [
        (&["--faults", "partition"][..], "needs --transport tcp"),
        (&["--servers", "1"], "--servers of 2"),
        (&["--faults", "partition", "--roles", "scheduler", "--transport", "tcp"], "use other --faults"),
    ] {
        let (code, text) = chaos(words, SOON);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains(fix), "{text}");
    }
}

#[test]
#[ignore = "slow tier: minutes"]
fn ten_kills_over_shm() {
    survives(&["--kills", "10"], LONG);
}

#[test]
#[ignore = "slow tier: minutes"]
fn ten_kills_over_tcp() {
    survives(&["--kills", "10", "--transport", "tcp"], LONG);
}

#[test]
#[ignore = "slow tier: minutes"]
fn ten_kills_without_copies_from_checkpoints() {
    survives(&["--kills", "10", "--replicas", "0"], LONG);
}

#[test]
#[ignore = "slow tier: minutes"]
fn stops_shorter_and_longer_than_silence() {
    survives(&["--kills", "9", "--faults", "stop"], LONG);
}

#[test]
#[ignore = "slow tier: minutes"]
fn partitions_between_network_namespaces() {
    survives(&["--kills", "8", "--faults", "partition,kill", "--transport", "tcp"], LONG);
}

#[test]
#[ignore = "slow tier: minutes"]
fn a_short_soak_judges_lives_and_draws_faults_to_its_end() {
    let (code, text) = chaos(&["--minutes", "2", "--away-ms", "500"], LONG);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("the same hash") && text.contains("stayed flat"), "{text}");
    println!("{text}");
}
