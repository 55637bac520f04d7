//! What processes did last: a timeline of a whole job with the cause of its slowness on it, lines about slow rounds that name the
//! worker, and what those leave behind that fail.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::status;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const RECORD: [&str; 2] = ["--set", "log.recorder_events=16384"];
const FOREVER: [&str; 8] = ["--layers", "64,64,10", "--epochs", "1000000", "--batch", "64", "--seed", "7"];

/// A job in which worker 1 begins each of its operations late, by up to so many microseconds.
fn with_slow_worker(late_us: &str, workers: u32, flags: &[&str]) -> Cluster {
    let flags = &[&RECORD[..], flags].concat()[..];
    let mut cluster = Cluster::new(2, workers, flags);
    cluster.add_servers(2, flags);
    for rank in 0..workers {
        let late: &[&str] = if rank == 1 { &["--jitter-us", late_us] } else { &[] };
        cluster.add_trainer(&[&FOREVER[..], flags, late].concat());
    }
    cluster
}

/// Runs `gradwire trace`, and gives the document with what was said.
fn trace(cluster: &Cluster, words: &[&str]) -> (Value, String) {
    let out = cluster.directory().join(format!("trace{}.json", words.len()));
    let mut command = cluster.place.command("gradwire");
    command.arg("trace").args(words).arg("--out").arg(&out);
    let mut process = Process::start("trace", &mut command);
    let code = process.expect_end(PATIENCE);
    let said = process.log().text();
    assert_eq!(code, 0, "{said}");
    (serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap(), said)
}

/// Every event has what the format asks for, and lies where viewers expect it. Returns them with their process's name.
fn events(document: &Value) -> Vec<(String, Value)> {
    let all = document["traceEvents"].as_array().unwrap();
    let (mut names, mut last, mut open) = (BTreeMap::new(), BTreeMap::new(), 0i64);
    let mut found = Vec::new();
    for event in all {
        let number = |name: &str| event[name].as_u64().unwrap_or_else(|| panic!("no {name}: {event}"));
        let (pid, tid, ts) = (number("pid"), number("tid"), event["ts"].as_f64().unwrap());
        match event["ph"].as_str().unwrap() {
            "M" => {
                if event["name"] == "process_name" {
                    names.insert(pid, event["args"]["name"].as_str().unwrap().to_owned());
                }
                continue;
            }
            "X" => assert!(event["dur"].as_f64().unwrap() >= 0.0, "{event}"),
            "b" => open += 1,
            "e" => open -= 1,
            "i" | "s" | "f" => {}
            other => panic!("{other}: {event}"),
        }
        assert!(ts >= last.insert((pid, tid), ts).unwrap_or(0.0), "sorted on each thread: {event}");
        found.push((names[&pid].clone(), event.clone()));
    }
    assert_eq!(open, 0, "what begins ends");
    found
}

/// Spans of a category at these processes: how long each was, in ms, and the event.
fn spans<'a>(events: &'a [(String, Value)], process: &str, category: &str) -> Vec<(f64, &'a Value)> {
    let those = events
        .iter()
        .filter(|(name, event)| name.starts_with(process) && event["cat"] == category && event["ph"] == "X");
    those.map(|(_, event)| (event["dur"].as_f64().unwrap() / 1e3, event)).collect()
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

#[test]
fn a_timeline_of_all_roles_shows_who_was_slow() {
    let cluster = with_slow_worker("150000", 3, &[]);
    cluster.workers[0].expect_line("epoch       1/", PATIENCE);
    let (document, said) = trace(&cluster, &["--scheduler-http", &cluster.http]);
    let everyone = ["scheduler 0", "server 0", "server 1", "worker 0", "worker 1", "worker 2"];
    for name in everyone {
        assert!(said.contains(name), "{name}: {said}");
    }
    assert!(said.contains("exact") && !said.contains("left out"), "{said}");
    let events = events(&document);
    for name in everyone {
        assert!(events.iter().any(|(process, _)| process == name), "{name} has no events");
    }
    // The cause: worker 1 came last in most rounds, and milliseconds after the first.
    let rounds = spans(&events, "server", "rounds");
    let by_it: Vec<&Value> =
        rounds.iter().map(|(_, event)| *event).filter(|event| event["args"]["last_worker"] == 1).collect();
    assert!(rounds.len() > 20 && 10 * by_it.len() > 6 * rounds.len(), "{} of {}", by_it.len(), rounds.len());
    let late_ms = mean(by_it.iter().map(|event| event["args"]["came_after_ms"].as_f64().unwrap()));
    assert!(late_ms > 20.0, "it was late by {late_ms} ms on average");
    // The effect: the others' operations wait, and its own do not.
    let wait = |rank: u32| mean(spans(&events, &format!("worker {rank}"), "operations").iter().map(|s| s.0));
    let (slow, quick) = (wait(1), wait(0).min(wait(2)));
    assert!(quick > slow + 10.0, "others waited {quick} ms, it {slow} ms");
    let named =
        rounds.iter().filter(|(_, event)| event["args"]["tensor"].as_str().unwrap().contains("weight"));
    assert!(named.count() > 0, "tensors have their names");
    let arrows = |ph: &str| events.iter().filter(|(_, event)| event["ph"] == ph).count();
    assert!(arrows("s") > 0 && arrows("s") == arrows("f"));
}

#[test]
fn who_cannot_be_asked_is_named_and_what_is_there_is_not_written_over() {
    let mut cluster = Cluster::new(1, 1, &[]);
    cluster.add_servers(1, &["--set", "node.http="]);
    cluster.add_trainer(&[FOREVER.as_slice(), &RECORD].concat());
    cluster.workers[0].expect_line("epoch       1/", PATIENCE);
    let words = ["--scheduler-http", &cluster.http];
    let (document, said) = trace(&cluster, &words);
    assert!(said.contains("left out: server 0: its HTTP endpoints are off"), "{said}");
    assert!(document["otherData"]["left_out"][0].as_str().unwrap().starts_with("server 0"));
    assert!(events(&document).iter().any(|(process, _)| process == "worker 0"));
    let mut command = cluster.place.command("gradwire");
    command.arg("trace").args(words).arg("--out").arg(cluster.directory().join("trace2.json"));
    let mut again = Process::start("trace", &mut command);
    assert_eq!(again.expect_end(PATIENCE), 74);
    assert!(again.log().text().contains("name a new file with --out"));
}

#[test]
fn slow_rounds_and_operations_are_logged_with_whom_they_waited_for() {
    let mut cluster = with_slow_worker("900000", 2, &["--set", "log.slow_ms=200"]);
    let line = cluster.servers[0].expect_line("a round was slow: waited", PATIENCE);
    assert!(
        line.contains("for worker 1;") && line.contains("tensor=") && line.contains("took_ms="),
        "{line}"
    );
    assert!(line.contains(" WARN server "), "log lines have the rank: {line}");
    let line = cluster.workers[0].expect_line("an operation was slow: a push_pull waited", PATIENCE);
    assert!(line.contains(" WARN worker 0 ") && line.contains("for credits"), "{line}");
    let members = cluster.status().members;
    let slow = members.iter().filter_map(|member| {
        let page = status::get(member.http_address.as_deref()?, "/metrics").unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix("gradwire_slow_operations_total "));
        line.unwrap().parse::<u64>().ok()
    });
    assert!(slow.sum::<u64>() > 1);
    cluster.assert_no_panic();
}

#[test]
fn log_lines_have_the_rank_in_both_forms() {
    let json = ["--set", "log.json=true"];
    let mut cluster = Cluster::new(1, 1, &json);
    cluster.add_server(&json);
    cluster.add_trainer(&[&FOREVER[..], &["--set", "log.json=false"]].concat());
    cluster.workers[0].expect_line("epoch       1/", PATIENCE);
    for process in [&cluster.scheduler, &cluster.servers[0]] {
        let line = process.log().text().lines().rfind(|line| line.contains("\"fields\"")).unwrap().to_owned();
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["rank"], 0, "{}: {line}", process.name());
    }
    assert!(cluster.workers[0].log().text().contains(" INFO worker 0 "));
}

fn left_in(directory: &Path, whose: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with(whose)).collect()
}

#[test]
fn who_fails_leaves_what_it_did_last_and_who_is_killed_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let setting = format!("log.dump_directory={}", directory.path().display());
    let flags = ["--set", &setting, RECORD[0], RECORD[1]];
    let mut cluster = Cluster::new(1, 2, &flags);
    cluster.add_server(&flags);
    cluster.add_trainers(2, &[&FOREVER[..], &flags].concat());
    cluster.workers[0].expect_line("epoch       1/", PATIENCE);
    // Asked to, it goes on.
    cluster.servers[0].signal(Signal::USR1);
    cluster.servers[0].expect_line("wrote a dump of the flight recorder", PATIENCE);
    assert_eq!(left_in(directory.path(), "gradwire-server-0").len(), 1);
    cluster.workers[1].kill();
    for process in [&mut cluster.servers[0], &mut cluster.workers[0], &mut cluster.scheduler] {
        assert_eq!(process.expect_end(PATIENCE), 71, "{}", process.name());
    }
    assert_eq!(left_in(directory.path(), "gradwire-server-0").len(), 2, "one more, of its end");
    assert!(left_in(directory.path(), "gradwire-worker-1").is_empty(), "a kill leaves no time");
    let files = ["gradwire-scheduler-0", "gradwire-server-0", "gradwire-worker-0"]
        .map(|whose| left_in(directory.path(), whose).pop().unwrap().display().to_string());
    let words: Vec<&str> = files.iter().map(String::as_str).collect();
    let (document, said) = trace(&cluster, &words);
    assert!(said.contains("exact"), "{said}");
    let events = events(&document);
    assert!(
        !spans(&events, "server 0", "rounds").is_empty()
            && !spans(&events, "worker 0", "operations").is_empty()
    );
    let lost = events.iter().any(|(process, event)| process == "scheduler 0" && event["name"] == "lost");
    assert!(lost, "the scheduler noted the death");
}

#[test]
fn without_a_directory_the_log_says_how_to_have_one_and_without_events_there_are_none() {
    let mut cluster = Cluster::new(1, 1, &[]);
    cluster.add_server(&[]);
    cluster.add_trainer(&[FOREVER.as_slice(), &RECORD].concat());
    cluster.workers[0].expect_line("epoch       1/", PATIENCE);
    let (document, _) = trace(&cluster, &["--scheduler-http", &cluster.http]);
    let events = events(&document);
    // Notes are always kept, of what the scheduler says.
    let notes =
        |process: &str| events.iter().filter(|(name, _)| name == process).all(|(_, event)| event["s"] == "p");
    assert!(notes("server 0") && !notes("worker 0"));
    cluster.workers[0].signal(Signal::USR1);
    cluster.workers[0].expect_line("set log.dump_directory", PATIENCE);
    assert!(cluster.everyone().all(Process::is_running));
}
