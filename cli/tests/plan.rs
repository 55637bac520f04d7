//! `gradwire plan` as a program: the table, JSON, and errors that name the line.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use std::process::{Command, Output};

const TENSORS: &str =
    "fc6.weight 4096x25088\nfc6.bias 4096\nembedding ?<=1000x64\nconv 512x512x3x3 # 9 MiB\n";

fn plan(tensors: &str, flags: &[&str]) -> Output {
    plan_in(&[], tensors, flags)
}

/// With these variables, and no others that are settings.
fn plan_in(env: &[(&str, &str)], tensors: &str, flags: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("tensors");
    std::fs::write(&list, tensors).unwrap();
    let trace = directory.path().join("trace");
    std::fs::write(&trace, "conv 1 9437184 9437184 single\nfc6.bias 2 16384 16384\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().into_owned();
        if text.starts_with("GRADWIRE_") || text.starts_with("DMLC_") {
            command.env_remove(name);
        }
    }
    command.arg("plan").arg(&list).args(flags).envs(env.iter().copied());
    if flags.contains(&"--json") {
        command.arg("--trace").arg(&trace);
    }
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What stands in a tensor's row, as words.
fn row<'a>(table: &'a str, name: &str) -> Vec<&'a str> {
    let line = table.lines().find(|line| line.starts_with(name)).expect(name);
    line.split_whitespace().collect()
}

#[test]
fn the_table_says_placement_and_reason() {
    let output = plan(TENSORS, &["--workers", "2", "--servers", "2", "--budget", "64MiB"]);
    let table = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(row(&table, "fc6.weight")[4], "slot");
    assert!(table.contains("392.0 MiB x 2 workers do not fit"), "{table}");
    assert_eq!(
        row(&table, "fc6.bias")[4..],
        ["slot", "smaller", "than", "a", "chunk", "(16.0", "KiB):", "shares", "batches"]
    );
    assert_eq!(row(&table, "embedding")[4], "rendezvous-read");
    assert_eq!(row(&table, "conv")[1..5], ["512x512x3x3", "9.0", "MiB", "static"]);
    assert!(table.ends_with("9.0 MiB of 64.0 MiB for key buffers at each server over verbs\n"), "{table}");
    let table = text(&plan(TENSORS, &["--driver", "tcp"]).stdout);
    assert_eq!(row(&table, "conv")[4], "slot");
    let table = text(&plan(TENSORS, &["--placement", "rendezvous-write"]).stdout);
    assert_eq!(row(&table, "fc6.bias")[4], "rendezvous-write");
}

#[test]
fn json_has_the_same_and_a_trace_counts() {
    let output = plan(TENSORS, &["--workers", "4", "--budget", "64MiB", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let conv = &json["tensors"][3];
    assert_eq!((&conv["name"], &conv["placement"]), (&"conv".into(), &"slot".into()), "it has one writer");
    assert_eq!(conv["buffer_bytes"], 0);
    assert_eq!((&json["budget_bytes"], &json["used_bytes"]), (&(64 << 20).into(), &0.into()));
    let table = text(&plan(TENSORS, &["--workers", "4", "--budget", "64MiB"]).stdout);
    assert_eq!(row(&table, "conv")[4], "static", "without the trace all four may write: {table}");
}

#[test]
fn static_for_all_is_told_where_it_does_not_fit() {
    let flags = ["--workers", "2", "--placement", "static"];
    let output = plan("fc6.weight 4096x25088\nscale ?\n", &flags);
    let table = text(&output.stdout);
    assert_eq!(row(&table, "fc6.weight")[4], "static");
    assert!(table.contains("392.0 MiB x 2 workers do not fit the remaining 128.0 MiB"), "{table}");
    assert!(table.contains("tensors without room use slots"), "{table}");
    assert!(table.contains("any length x 2 workers") && !table.contains("TiB"), "{table}");
    assert!(table.contains("128.0 MiB of 128.0 MiB for key buffers"), "{table}");
}

#[test]
fn what_no_flag_says_is_from_the_settings() {
    let two = ("GRADWIRE_CLUSTER__WORKERS", "2");
    let budget = |env: &[(&str, &str)], flags: &[&str]| {
        let table = text(&plan_in(env, TENSORS, flags).stdout);
        table.lines().last().unwrap_or_default().to_owned()
    };
    assert!(budget(&[], &[]).contains("of 128.0 MiB for"), "{}", budget(&[], &[]));
    let spill = ("GRADWIRE_MEMORY__SPILL_BYTES", "1073741824");
    assert!(
        budget(&[spill, two], &[]).starts_with("18.0 MiB of 512.0 MiB"),
        "{}",
        budget(&[spill, two], &[])
    );
    let lanes = ("GRADWIRE_CLUSTER__LANES", "2");
    assert!(budget(&[spill, lanes], &[]).contains("of 1.0 GiB"));
    assert!(budget(&[spill, lanes], &["--lanes", "1"]).contains("of 512.0 MiB"), "a flag counts more");
    let chunk = ("GRADWIRE_CLUSTER__CHUNK_BYTES", "4096");
    let table = text(&plan_in(&[chunk, two], TENSORS, &[]).stdout);
    assert_eq!(row(&table, "fc6.bias")[4], "static", "it has four chunks: {table}");
    let placement = ("GRADWIRE_TRANSPORT__PLACEMENT", "rendezvous-write");
    let table = text(&plan_in(&[placement], TENSORS, &[]).stdout);
    assert_eq!(row(&table, "conv")[4], "rendezvous-write");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[memory]\nspill_bytes = 2097152\n").unwrap();
    let path = file.path().to_str().unwrap();
    assert!(budget(&[], &["--config", path]).contains("of 1.0 MiB"));
    let wrong = plan_in(&[("GRADWIRE_CLUSTER__LANES", "0")], TENSORS, &[]);
    assert_eq!(wrong.status.code(), Some(78), "{}", text(&wrong.stderr));
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    for (tensors, flags, code, part) in [
        ("a 4\nb", &[][..], 65, "line 2: write a name and a shape"),
        ("a 4x0\n", &[], 65, "invalid dimension"),
        ("a 4\nb 4294967296x4294967296\n", &[], 65, "line 2: 4294967296x4294967296 has more bytes"),
        ("a 4", &["--budget", "much"], 2, "write a number of bytes"),
        ("a 4", &["--placement", "somewhere"], 2, "rendezvous-read"),
        ("a 4", &["--json"], 65, "no tensor is called conv"),
    ] {
        let output = plan(tensors, flags);
        let error = text(&output.stderr);
        assert!(error.contains(part), "{tensors:?} {flags:?}: {error}");
        assert_eq!(output.status.code(), Some(code), "{error}");
    }
    let trace = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(trace.path(), "a 1 16 16\na 1 17 16\n").unwrap();
    let output = plan("a 4", &["--trace", trace.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(65));
    assert!(text(&output.stderr).contains("line 2: 17 bytes at least are more than 16"));
    let help = text(&plan("", &["--help"]).stdout).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("A job traces for now only how many contributions"), "{help}");
    let output =
        Command::new(env!("CARGO_BIN_EXE_gradwire")).args(["plan", "/nonexistent"]).output().unwrap();
    assert!(text(&output.stderr).contains("cannot read /nonexistent"));
}
