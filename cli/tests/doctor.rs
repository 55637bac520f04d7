//! `gradwire doctor` as a program: local checks, two of them against each other on loopback, and peers that refuse, are
//! silent or hostile. Exit codes are what scripts rely on.
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn doctor(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradwire"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().into_owned();
        if text.starts_with("GRADWIRE_") || text.starts_with("DMLC_") {
            command.env_remove(name);
        }
    }
    command.arg("doctor").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(args: &[&str]) -> (i32, String) {
    let Output { status, stdout, stderr } = doctor(args).output().unwrap();
    let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    (status.code().unwrap_or(-1), text)
}

/// A listening doctor; killed when dropped.
struct Listening {
    child: Child,
    out: BufReader<ChildStdout>,
    address: String,
}

impl Listening {
    fn start(args: &[&str]) -> Self {
        let mut child = doctor(&[&["--listen", "127.0.0.1:0"], args].concat()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("listening on ") {
            line.clear();
            assert!(out.read_line(&mut line).unwrap() > 0, "it ended before it listened");
        }
        let address = line.split(' ').nth(2).unwrap().trim_end_matches(';').to_owned();
        Self { child, out, address }
    }

    /// The code it ends with, and what it said since it listens.
    fn end(mut self) -> (i32, String) {
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        (self.child.wait().unwrap().code().unwrap_or(-1), text)
    }

    /// The next line it says.
    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.out.read_line(&mut line).unwrap() > 0, "it ended");
        line
    }

    fn terminate(self) -> (i32, String) {
        let status = Command::new("kill").args(["-s", "TERM", &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
        self.end()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The trials of the only peer that work.
fn working(page: &Value) -> Vec<&str> {
    let trials = page["peers"][0]["trials"].as_array().unwrap();
    let works = trials.iter().filter(|trial| trial["works"] == true);
    works.map(|trial| trial["trial"].as_str().unwrap()).collect()
}

fn json_of(args: &[&str]) -> (i32, Value) {
    let (code, text) = run(&[args, &["--json"]].concat());
    (code, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

#[test]
fn alone_it_checks_this_host() {
    let (code, text) = run(&["--set", "transport.verbs=off"]);
    assert_eq!(code, 0, "{text}");
    for what in
        ["settings", "shared memory", "verbs", "transport", "memlock", "open files", "bind", "advertise"]
    {
        assert!(text.lines().any(|line| line.starts_with(&format!("ok    {what}"))), "{what}: {text}");
    }
    let (code, page) = json_of(&["--set", "transport.verbs=off"]);
    assert_eq!((code, &page["code"]), (0, &0.into()));
    assert!(page["checks"].as_array().unwrap().iter().all(|check| check["level"] == "ok"), "{page}");
}

/// It carries no payload, and nobody is to be told of devices.
#[test]
fn as_a_scheduler_it_checks_what_a_scheduler_needs() {
    let words = ["--role", "scheduler", "--set", "scheduler.port=0"];
    let (code, text) = run(&words);
    assert_eq!(code, 0, "{text}");
    let whats: Vec<_> = text.lines().map(|line| line[6..].split("  ").next().unwrap_or_default()).collect();
    assert_eq!(whats, ["settings", "open files", "bind", "bind"], "{text}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("scheduler.port={}", taken.local_addr().unwrap().port());
    let (code, text) = run(&["--role", "scheduler", "--set", &port]);
    assert_eq!(code, 74, "{text}");
    assert!(text.contains("a process listens there already: stop it, or set scheduler.port"), "{text}");
    let (code, text) = run(&["--role", "boss"]);
    assert!(code == 2 && text.contains("scheduler, server or worker"), "{text}");
}

#[test]
fn what_is_wrong_has_a_code_and_a_fix() {
    // Not one that the system gives to another process's listener meanwhile.
    let closed = "127.0.0.1:1".to_owned();
    let cases: [(&[&str], i32, &str); 7] = [
        (&["--scheduler", &closed], 69, "start gradwire-scheduler"),
        (&["--peer", &closed], 74, "refuses connections"),
        (&["--peer", "nonsense"], 78, "write HOST:PORT"),
        (&["--advertise", "no-such-host.invalid"], 74, "node.advertise"),
        (&["--set", "security.mode=off", "--bind", "0.0.0.0"], 78, "--advertise"),
        (&["--set", "security.mode=off", "--bind", "192.0.2.1"], 74, "address of this host"),
        (&["--transport", "verbs", "--set", "verbs.device=no-such-device"], 75, "FAIL  verbs"),
    ];
    for (args, expected, words) in cases {
        let (code, text) = run(args);
        assert_eq!(code, expected, "{args:?}: {text}");
        assert!(text.contains(words), "{args:?}: {text}");
    }
}

#[test]
fn settings_that_leave_no_transport_fail() {
    let off = ["--set", "transport.shm=off", "--set", "transport.tcp=off"];
    let (code, text) = run(&[&off[..], &["--set", "transport.verbs=off"]].concat());
    assert_eq!(code, 75, "{text}");
    assert!(text.contains("all off; set transport.tcp"), "{text}");
    assert!(
        text.lines().any(|line| line.starts_with("ok    shared memory") && line.contains("off by")),
        "{text}"
    );
    let (code, text) = run(&[&off[..], &["--set", "verbs.device=no-such-device"]].concat());
    assert_eq!(code, 75, "{text}");
    assert!(text.contains("FAIL  verbs"), "{text}");
    let (code, text) = run(&["--set", "verbs.device=no-such-device"]);
    assert_eq!(code, 0, "a job runs over the others: {text}");
}

/// Answers every connection as a web server does that does not understand.
fn web_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    address
}

#[test]
fn a_web_server_is_no_scheduler() {
    let (code, text) = run(&["--scheduler", &web_server()]);
    assert_eq!(code, 69, "{text}");
    assert!(text.contains("FAIL  scheduler") && text.contains("not its HTTP address"), "{text}");
}

#[test]
fn a_web_server_is_no_doctor_of_this_release() {
    let (code, text) = run(&["--peer", &web_server()]);
    assert_eq!(code, 73, "{text}");
    assert!(text.contains("gradwire doctor --listen"), "{text}");
}

#[test]
fn each_peer_that_is_not_tried_is_told() {
    let lacking = ["--transport", "verbs", "--set", "verbs.device=no-such-device"];
    let peers = ["--peer", "127.0.0.1:1", "--peer", "127.0.0.1:2"];
    let (code, text) = run(&[&lacking[..], &peers].concat());
    assert_eq!(code, 75, "{text}");
    for peer in ["127.0.0.1:1", "127.0.0.1:2"] {
        let told = format!("peer {peer}: FAIL: not tried: transport.verbs is required");
        assert!(text.lines().any(|line| line.starts_with(&told)), "{peer}: {text}");
    }
    let (code, page) = json_of(&[&lacking[..], &peers].concat());
    assert_eq!((code, page["peers"].as_array().unwrap().len()), (75, 2), "{page}");
    let (code, text) = run(&[&lacking[..], &["--listen", "127.0.0.1:0"]].concat());
    assert!(code == 75 && text.contains("not listening"), "{text}");
}

#[test]
fn beyond_loopback_it_listens_with_the_explicit_word_only() {
    let (code, text) = run(&["--listen", "0.0.0.0:0"]);
    assert_eq!(code, 78, "{text}");
    assert!(text.contains("security.mode = \"off\""), "{text}");
}

#[test]
fn two_on_one_host_find_shared_memory_and_both_kinds_of_sockets() {
    let listening = Listening::start(&["--once"]);
    let (code, page) = json_of(&["--peer", &listening.address]);
    assert_eq!(code, 0, "{page}");
    assert_eq!(page["peers"][0]["chosen"], "shm");
    assert_eq!(working(&page), ["shm", "tcp (unix)", "tcp"]);
    for trial in page["peers"][0]["trials"].as_array().unwrap().iter().filter(|trial| trial["works"] == true)
    {
        assert!(trial["round_trip_us"].as_f64() > Some(0.0), "{trial}");
        assert!(trial["megabytes_per_s"].as_f64() > Some(1.0), "{trial}");
    }
    let (code, said) = listening.end();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("shm works; tcp (unix) works; tcp works"), "{said}");
}

#[test]
fn settings_decide_what_is_tried_and_a_requirement_that_is_not_met_fails() {
    let mut listening = Listening::start(&["--transport", "tcp"]);
    let (code, page) = json_of(&["--peer", &listening.address, "--set", "node.unix_sockets=false"]);
    assert_eq!((code, working(&page)), (0, vec!["tcp"]), "{page}");
    assert_eq!(page["peers"][0]["chosen"], "tcp");
    let (code, text) = run(&["--peer", &listening.address, "--transport", "shm"]);
    assert_eq!(code, 75, "{text}");
    assert!(text.contains("no transport satisfies both sides"), "{text}");
    // A visitor may know the end of its visit before the listener has said it.
    let visits = [listening.line(), listening.line()];
    assert!(visits.iter().all(|line| line.starts_with("visit of ")), "{visits:?}");
    assert_eq!(listening.terminate(), (0, String::new()));
}

#[test]
fn a_unix_socket_that_is_not_offered_is_told_and_tcp_works() {
    let listening = Listening::start(&["--set", "node.unix_sockets=false"]);
    let (code, text) = run(&["--peer", &listening.address]);
    assert_eq!(code, 0, "{text}");
    let line = text.lines().find(|line| line.contains("tcp (unix)")).unwrap();
    assert!(line.contains("node.unix_sockets"), "{line}");
}

#[test]
fn a_silent_peer_ends_in_a_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let started = Instant::now();
    let (code, text) = run(&["--peer", &address, "--set", "deadlines.handshake_ms=300"]);
    assert_eq!(code, 72, "{text}");
    assert!(text.contains("gradwire doctor --listen"), "{text}");
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn strangers_neither_end_nor_hold_up_a_listener() {
    let listening = Listening::start(&["--once", "--set", "deadlines.handshake_ms=500"]);
    let connect = || std::net::TcpStream::connect(&listening.address).unwrap();
    // More than it takes at once; each says nothing, or nonsense.
    let silent: Vec<_> = (0..12).map(|_| connect()).collect();
    let mut garbage = connect();
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    assert!(matches!(garbage.read_to_string(&mut text), Ok(0) | Err(_)), "{text}");
    let (code, text) = run(&["--peer", &listening.address, "--set", "deadlines.handshake_ms=10000"]);
    assert_eq!(code, 0, "{text}");
    drop(silent);
    let (code, said) = listening.end();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("dropped ") && said.contains("sent an HTTP request"), "{said}");
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (code, text) = run(&["--listen", &address]);
    assert_eq!(code, 74, "{text}");
    assert!(text.contains(&address) && text.contains("--listen"), "{text}");
}

#[test]
fn help_documents_the_exit_codes() {
    let (code, text) = run(&["--help"]);
    assert_eq!(code, 0);
    for words in ["transfers and compares a pattern", "72 a peer did not answer", "75 a transport"] {
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(words), "{words:?} is missing in {text}");
    }
}
