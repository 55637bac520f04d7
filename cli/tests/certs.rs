//! `gradwire certs` as people use it: an authority, certificates, renewals, and what it refuses.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::{Command, Output};
use tempfile::TempDir;

fn certs(directory: &TempDir, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
    command.arg("certs").args(words).current_dir(directory.path()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn good(directory: &TempDir, words: &[&str]) -> String {
    let output = certs(directory, words);
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    said(&output)
}

fn refused(directory: &TempDir, words: &[&str], code: i32, expected: &str) {
    let output = certs(directory, words);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", said(&output));
    assert!(said(&output).contains(expected), "{words:?}: {}", said(&output));
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn an_authority_issues_and_what_it_issued_says_what_it_is_for() {
    let directory = tempfile::tempdir().unwrap();
    let text = good(&directory, &["init"]);
    assert!(text.contains("gradwire certs issue"), "{text}");
    let at = |name: &str| directory.path().join(name);
    assert_eq!((mode(&at("gradwire-ca")), mode(&at("gradwire-ca/ca.key"))), (0o700, 0o600));
    let text = good(&directory, &["issue", "--role", "worker", "--job", "7", "--out", "tls/worker"]);
    assert!(text.contains("gradwire://7/worker") && text.contains("[security]"), "{text}");
    assert_eq!((mode(&at("tls/worker/key.pem")), mode(&at("tls/worker/certificate.pem"))), (0o600, 0o644));
    let text = good(&directory, &["show", "tls/worker/certificate.pem", "tls/worker/ca.pem"]);
    assert!(text.contains("gradwire://7/worker") && text.contains(" days left"), "{text}");
    assert!(text.contains("an authority"), "{text}");
    let shown = good(&directory, &["show", "--json", "tls/worker/certificate.pem"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!((&shown[0]["for"], &shown[0]["authority"]), (&"gradwire://7/worker".into(), &false.into()));
    // What is printed is a settings file as it stands.
    let text = good(&directory, &["issue", "--role", "any", "--out", "tls/any"]);
    let file = at("any.toml");
    std::fs::write(&file, text.split_once("\n\n").unwrap().1).unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_gradwire"));
    let checked = check.args(["config", "check"]).arg(&file).output().unwrap();
    assert!(checked.status.success(), "{}", said(&checked));
}

#[test]
fn nothing_is_overwritten_unasked_and_a_renewal_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    good(&directory, &["init", "--ca", "ca"]);
    refused(&directory, &["init", "--ca", "ca"], 74, "already exists");
    let issue = ["issue", "--ca", "ca", "--role", "server", "--out", "tls"];
    good(&directory, &issue);
    let read = |name: &str| std::fs::read_to_string(directory.path().join("tls").join(name)).unwrap();
    let before = (read("certificate.pem"), read("key.pem"));
    refused(&directory, &issue, 74, "--replace");
    assert_eq!(before, (read("certificate.pem"), read("key.pem")));
    good(&directory, &[&issue[..], &["--replace"]].concat());
    assert!(before.0 != read("certificate.pem") && before.1 != read("key.pem"));
    let left = std::fs::read_dir(directory.path().join("tls")).unwrap().count();
    assert_eq!(left, 3, "no file that was half written");
}

/// What alerts and pages say to do.
#[test]
fn a_renewal_is_for_what_the_one_before_was_for_unless_said() {
    let directory = tempfile::tempdir().unwrap();
    let init = good(&directory, &["init", "--ca", "ca"]);
    assert!(init.contains("--job JOB"), "{init}");
    let issue =
        |words: &[&str]| good(&directory, &[&["issue", "--ca", "ca", "--out", "tls"], words].concat());
    let held = || {
        let shown = good(&directory, &["show", "--json", "tls/certificate.pem"]);
        serde_json::from_str::<serde_json::Value>(&shown).unwrap()[0]["for"].as_str().unwrap().to_owned()
    };
    refused(&directory, &["issue", "--ca", "ca", "--out", "tls"], 2, "--role");
    refused(
        &directory,
        &["issue", "--ca", "ca", "--out", "tls", "--replace"],
        2,
        "there is no certificate.pem",
    );
    issue(&["--role", "worker", "--job", "2"]);
    for (words, expected) in [
        (&["--replace"][..], "gradwire://2/worker"),
        (&["--role", "worker", "--replace"], "gradwire://2/worker"),
        (&["--role", "server", "--replace"], "gradwire://2/server"),
        (&["--job", "3", "--replace"], "gradwire://3/server"),
        (&["--role", "any", "--job", "4", "--replace"], "gradwire://4/any"),
    ] {
        let text = issue(words);
        assert!(text.starts_with(&format!("{expected}, good for 365 days.")), "{text}");
        assert_eq!(held(), expected, "{words:?}");
    }
    let text = issue(&["--job", "any", "--replace"]);
    assert!(text.starts_with("gradwire://any/any, good for every job and 365 days."), "{text}");
    // An authority is for nobody: what is there says nothing.
    std::fs::copy(directory.path().join("ca/ca.pem"), directory.path().join("tls/certificate.pem")).unwrap();
    refused(&directory, &["issue", "--ca", "ca", "--out", "tls", "--replace"], 2, "--role and --job");
    std::fs::write(directory.path().join("tls/certificate.pem"), "nothing").unwrap();
    refused(&directory, &["issue", "--ca", "ca", "--out", "tls", "--replace"], 65, "--role and --job");
    issue(&["--role", "worker", "--job", "2", "--replace"]);
    assert_eq!(held(), "gradwire://2/worker");
}

/// The daemons of a package run as a user of their own, and read the key by its group.
#[test]
fn whoever_could_read_a_key_can_read_the_renewed_one() {
    let directory = tempfile::tempdir().unwrap();
    good(&directory, &["init", "--ca", "ca"]);
    let issue = ["issue", "--ca", "ca", "--role", "server", "--out", "tls"];
    good(&directory, &issue);
    let key = directory.path().join("tls/key.pem");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    // Giving files away is root's.
    if rustix::process::geteuid().is_root() {
        chown(&key, Some(1), Some(2)).unwrap();
    }
    let of = |path: &Path| {
        let metadata = std::fs::metadata(path).unwrap();
        (metadata.uid(), metadata.gid(), mode(path))
    };
    let before = (of(&key), std::fs::read(&key).unwrap());
    good(&directory, &[&issue[..], &["--replace"]].concat());
    assert_eq!(of(&key), before.0);
    assert_ne!(std::fs::read(&key).unwrap(), before.1);
}

/// While one authority takes the place of another, processes trust both.
#[test]
fn a_renewal_keeps_the_other_authorities_that_are_trusted() {
    let directory = tempfile::tempdir().unwrap();
    good(&directory, &["init", "--ca", "old"]);
    good(&directory, &["init", "--ca", "new"]);
    let issue =
        |ca: &str| good(&directory, &["issue", "--ca", ca, "--role", "any", "--out", "tls", "--replace"]);
    let trusted = || {
        let shown = good(&directory, &["show", "--json", "tls/ca.pem"]);
        serde_json::from_str::<Vec<serde_json::Value>>(&shown).unwrap().len()
    };
    assert!(!issue("old").contains("trusts"));
    assert!(!issue("old").contains("trusts"));
    assert_eq!(trusted(), 1);
    let text = issue("new");
    assert!(text.contains("ca.pem trusts this authority and those that were there"), "{text}");
    assert_eq!(trusted(), 2);
    for known in ["old", "new"] {
        assert!(!issue(known).contains("trusts"));
        assert_eq!(trusted(), 2, "{known}");
    }
    std::fs::write(directory.path().join("tls/ca.pem"), "nothing").unwrap();
    let words = ["issue", "--ca", "new", "--role", "any", "--out", "tls", "--replace"];
    refused(&directory, &words, 65, "is no list of authorities; remove it");
}

#[test]
fn what_cannot_be_is_refused_with_the_fix() {
    let directory = tempfile::tempdir().unwrap();
    refused(&directory, &["issue", "--role", "any", "--out", "x"], 74, "gradwire certs init");
    refused(&directory, &["issue", "--role", "boss", "--out", "x"], 2, "scheduler, server, worker or any");
    refused(&directory, &["issue", "--role", "any", "--job", "mine", "--out", "x"], 2, "number");
    refused(&directory, &["issue", "--role", "any", "--days", "0", "--out", "x"], 2, "--days");
    refused(&directory, &["show", "nothing.pem"], 74, "nothing.pem");
    good(&directory, &["init", "--ca", "ca"]);
    std::fs::write(directory.path().join("no.pem"), "nothing").unwrap();
    refused(&directory, &["show", "no.pem"], 65, "not a certificate");
    std::fs::write(directory.path().join("ca/ca.key"), "nothing").unwrap();
    refused(&directory, &["issue", "--ca", "ca", "--role", "any", "--out", "x"], 65, "private key");
    assert!(!directory.path().join("x").exists(), "nothing is left of what was refused");
    refused(&directory, &["show", "/dev/zero"], 74, "not a regular file");
}
