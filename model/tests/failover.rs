//! Searches small instances of the protocol through, and sees that each rule left out is noticed.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code; it says what it has searched")]

use gradwire_model::{Broken, Budget, Mode, Protocol};
use stateright::{Checker, Model};
use std::time::Instant;

fn search(name: &str, protocol: Protocol) {
    let started = Instant::now();
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    println!(
        "{name}: {} states ({} visited), depth {}, {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth(),
        started.elapsed().as_secs_f64()
    );
    checker.assert_properties();
}

fn few(mode: Mode) -> Protocol {
    let budget = Budget { crashes: 1, deposed: 1, ..Budget::default() };
    Protocol { mode, servers: 2, rounds: 1, budget, broken: None }
}

#[test]
fn two_servers_one_round() {
    search("sync", few(Mode::Sync));
    search("async", few(Mode::Async));
}

#[test]
fn explore() {
    let n = |k: &str| std::env::var(k).ok().and_then(|v| v.parse().ok()).unwrap_or(0u8);
    let budget = Budget { crashes: n("C"), deposed: n("D"), schedulers: n("S"), breaks: n("B"), joins: n("J"), moves: n("M"), workers: n("W") };
    let mode = if n("A") == 1 { Mode::Async } else { Mode::Sync };
    search("explore", Protocol { mode, servers: usize::from(n("N").max(2)), rounds: n("R").max(1), budget, broken: None::<Broken> });
}
