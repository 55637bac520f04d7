//! The scheduler's page and `gradwire top` over real daemons: what is served with which headers, what `/status` has for them,
//! and how a terminal is left.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE, Place};
use gradwire_tests::rigs::job::{declare, join, round, summed};
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::programs::program;
use gradwire_worker::ClientError;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_page_and_what_it_needs_are_served_with_their_headers() {
    let cluster = Cluster::new(1, 1, &[]);
    for (path, kind, words) in [
        ("/", "text/html; charset=utf-8", "<title>Gradwire</title>"),
        ("/page.css", "text/css; charset=utf-8", "prefers-color-scheme"),
        ("/page.js", "text/javascript; charset=utf-8", "textContent"),
        ("/words.js", "text/javascript; charset=utf-8", "export"),
        ("/icon.svg", "image/svg+xml", "<svg"),
    ] {
        let answer = ask(&cluster.http, &format!("GET {path}"));
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        assert!(body.contains(words), "{path}: {body}");
        for header in [
            &format!("content-type: {kind}"),
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; ",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-cache",
        ] {
            assert!(head.contains(header), "{path}: {header} is missing in {head}");
        }
        // It is for looking.
        assert!(ask(&cluster.http, &format!("POST {path}")).starts_with("HTTP/1.1 405"));
    }
    assert!(ask(&cluster.http, "GET /page.json").starts_with("HTTP/1.1 404"));
    let status = ask(&cluster.http, "GET /status");
    assert!(status.contains("cache-control: no-store"), "{status}");
}

#[test]
fn what_a_trainer_reports_and_what_servers_have_is_in_status() {
    let mut cluster = Cluster::new(1, 1, &["--set", "deadlines.heartbeat_ms=50"]);
    cluster.add_servers(1, &[]);
    let clients = join(&cluster, 1, |_| {});
    clients[0].report_metric("loss", 0.25).unwrap();
    clients[0].report_metric("loss", 0.125).unwrap();
    let error = clients[0].report_metric("loss", f64::NAN).unwrap_err();
    assert!(matches!(error, ClientError::Metric { .. }), "{error}");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = cluster.status();
        let (server, worker) = (&status.members[0], &status.members[1]);
        if let (Some(load), Some(metric)) = (server.load, worker.metrics.first()) {
            assert!(load.credits > 0 && load.credits_free <= load.credits, "{load:?}");
            assert!(load.spill_blocks > 0 && load.spill_blocks_used <= load.spill_blocks, "{load:?}");
            assert_eq!((metric.name.as_str(), metric.value, worker.metrics.len()), ("loss", 0.125, 1));
            assert!(server.resident_bytes > 1 << 20 && worker.resident_bytes > 1 << 20);
            return;
        }
        assert!(Instant::now() < deadline, "no heartbeat told of it: {status:?}");
    }
}

#[test]
fn each_link_has_its_own_bytes_and_each_member_its_host() {
    let mut cluster = Cluster::new(2, 1, &["--set", "deadlines.heartbeat_ms=50"]);
    cluster.add_servers(2, &[]);
    let clients = join(&cluster, 1, |_| {});
    // It is small, so one server has all of it; over shared memory weights are read where that one has them.
    declare(&clients, &[summed(1, 64)]);
    round(&clients, 1);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = cluster.status();
        let links = status.members.iter().flat_map(|member| &member.links);
        let mut moved: Vec<(u64, u64)> = links.map(|link| (link.sent_bytes, link.received_bytes)).collect();
        moved.sort_unstable();
        let is_idle = status.members.iter().all(|member| member.in_flight == 0);
        if is_idle && moved == [(0, 0), (256, 0)] {
            assert!(status.members.iter().all(|member| member.host.as_deref() == Some(host.trim())));
            return;
        }
        assert!(moved.iter().filter(|one| **one != (0, 0)).count() <= 1, "{moved:?}");
        assert!(Instant::now() < deadline, "no heartbeat told of it: {status:?}");
    }
}

#[test]
fn top_prints_one_frame_where_the_output_is_no_terminal() {
    let mut cluster = Cluster::new(1, 2, &[]);
    cluster.add_servers(1, &[]);
    let mut command = cluster.place.command("gradwire");
    command.args(["top", "--scheduler-http", &cluster.http]);
    let mut top = Process::start("top", &mut command);
    assert_eq!(top.expect_end(PATIENCE), 0);
    let text = top.log().text();
    for words in ["assembling", "Workers", "Servers", "Links", "Barriers", "Processes", "waiting for "] {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
    assert!(!text.contains('\x1b'), "{text:?}");
    // With nobody there it says so, and ends as status does.
    let mut command = Place::default().command("gradwire");
    command.args(["top", "--once", "--scheduler-http", "127.0.0.1:1"]);
    let mut top = Process::start("top", &mut command);
    assert_eq!(top.expect_end(PATIENCE), 69);
    assert!(top.log().text().contains("is the scheduler running"), "{}", top.log().text());
}

/// `gradwire top` in a terminal of its own: what it wrote there until it ended, and its exit code.
fn in_a_terminal(cluster: &Cluster, end: impl FnOnce(&mut std::process::Child)) -> (String, Option<i32>) {
    let gradwire = program("gradwire").display().to_string();
    let inside = format!("stty cols 100 rows 30; exec {gradwire} top --scheduler-http {}", cluster.http);
    // What does not come shall not hold up the suite.
    let mut command = Command::new("timeout");
    command
        .args(["60", "script", "--quiet", "--return", "--command", &inside, "/dev/null"])
        .env("TERM", "xterm");
    let mut script =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut out = script.stdout.take().unwrap();
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    // Its foot is drawn last.
    while !String::from_utf8_lossy(&text).contains("q quit") {
        let count = out.read(&mut buffer).unwrap();
        assert!(count > 0, "it ended too early: {}", String::from_utf8_lossy(&text));
        text.extend(&buffer[..count]);
    }
    end(&mut script);
    out.read_to_end(&mut text).unwrap();
    (String::from_utf8_lossy(&text).into_owned(), script.wait().unwrap().code())
}

#[test]
fn top_gives_the_terminal_back_on_every_way_out() {
    let cluster = Cluster::new(1, 1, &[]);
    for key in [&b"2q"[..], b"\x03"] {
        let (text, code) = in_a_terminal(&cluster, |script| {
            script.stdin.as_mut().unwrap().write_all(key).unwrap();
        });
        assert_eq!(code, Some(0), "{text:?}");
        assert!(text.contains("\x1b[?1049h"), "it takes a screen of its own: {text:?}");
        let after = text.rsplit("\x1b[?1049l").next().unwrap();
        assert!(text.contains("\x1b[?1049l") && !after.contains("Workers"), "it leaves it: {text:?}");
        assert!(text.contains("\x1b[?25h"), "the cursor is there again: {text:?}");
    }
}
