//! `gradwire doctor` between hosts that share no memory: which driver it finds, and how it tells a port that refuses
//! from a firewall that drops, for its own port and for those of data connections.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::PATIENCE;
use gradwire_tests::rigs::netns::Net;
use gradwire_tests::rigs::process::Process;
use proto_common::error::ExitCode;

/// Beyond loopback nothing is authenticated yet: it takes this word.
const OPEN: [&str; 2] = ["--set", "security.mode=off"];
/// Short enough to wait for, long enough for a busy machine.
const STEP: [&str; 2] = ["--set", "deadlines.handshake_ms=2000"];

/// A doctor that listens on the hub, and where.
fn listening(net: &Net, args: &[&str]) -> (Process, String) {
    let mut command = net.place(0).command("gradwire");
    command.args(["doctor", "--listen", &format!("{}:0", Net::HUB)]).args(OPEN).args(STEP).args(args);
    let process = Process::start("listening doctor", &mut command);
    let line = process.expect_line("listening on ", PATIENCE);
    let address = line.rsplit(' ').next().unwrap().to_owned();
    (process, address)
}

/// The code and the words of a doctor on a host, which visits that.
fn visit(net: &Net, host: usize, peer: &str) -> (i32, String) {
    let mut command = net.place(host).command("gradwire");
    let mut process = Process::start("visiting doctor", command.args(["doctor", "--peer", peer]).args(STEP));
    (process.expect_end(PATIENCE), process.log().text())
}

fn line_of<'a>(text: &'a str, start: &str) -> &'a str {
    text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("no {start:?} in {text}"))
}

#[test]
fn between_hosts_tcp_works_and_the_reasons_are_told() {
    let net = Net::new(1);
    let (_listening, address) = listening(&net, &[]);
    let (code, text) = visit(&net, 1, &address);
    assert_eq!(code, 0, "{text}");
    let head = line_of(&text, "peer ");
    assert!(head.contains("would use tcp") && head.contains("no shm (different hosts)"), "{head}");
    assert!(line_of(&text, "  shm ").ends_with("different hosts"), "{text}");
    assert!(line_of(&text, "  tcp (unix) ").ends_with("different hosts"), "{text}");
    assert!(line_of(&text, "  tcp  ").contains("yes"), "{text}");
}

#[test]
fn a_firewall_that_drops_and_a_port_that_refuses_are_told_apart() {
    let net = Net::new(2);
    let (listening, address) = listening(&net, &[]);
    let port = address.rsplit(':').next().unwrap().to_owned();
    net.swallow(0, &Net::address(2));
    let (code, text) = visit(&net, 2, &address);
    assert_eq!(code, ExitCode::Deadline as i32, "{text}");
    assert!(text.contains(&format!("a firewall drops packets to TCP port {port}")), "{text}");
    // It answers others all the while.
    assert_eq!(visit(&net, 1, &address).0, 0);
    drop(listening);
    let (code, text) = visit(&net, 1, &address);
    assert_eq!(code, ExitCode::Io as i32, "{text}");
    assert!(text.contains(&format!("no process listens on TCP port {port}")), "{text}");
}

#[test]
fn dropped_data_connections_are_named_with_their_ports() {
    let net = Net::new(1);
    // Only data connections go there, and nothing comes back.
    let elsewhere = "10.99.0.1";
    net.swallow(0, elsewhere);
    let (_listening, address) = listening(&net, &["--advertise", elsewhere]);
    let (code, text) = visit(&net, 1, &address);
    assert_eq!(code, ExitCode::Transport as i32, "{text}");
    let line = line_of(&text, "  tcp  ");
    assert!(line.contains("NO") && line.contains(&format!("to {elsewhere}:")), "{line}");
    assert!(line.contains("a firewall drops packets") && line.contains("ip_local_port_range"), "{line}");
}
