//! Searches small instances of the protocol through, and sees that each rule left out is noticed.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code; it says what it has searched")]

use gradwire_model::{Broken, Budget, Mode, Protocol};
use stateright::{Checker, HasDiscoveries, Model};
use std::time::Instant;

const NONE: Budget =
    Budget { crashes: 0, deposed: 0, schedulers: 0, breaks: 0, joins: 0, moves: 0, workers: 0 };

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

fn small(mode: Mode, budget: Budget) -> Protocol {
    Protocol { mode, servers: 2, rounds: 1, budget, broken: None }
}

/// Leaves a rule out, and expects to be shown how that ends in one of these.
fn refuted(rule: Broken, protocol: Protocol, by: &[&'static str]) {
    let protocol = Protocol { broken: Some(rule), ..protocol };
    let checker = protocol
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AnyOf(by.iter().copied().collect()))
        .spawn_bfs()
        .join();
    let found = checker.discoveries();
    let shown = by.iter().find_map(|name| found.get_key_value(name));
    let Some((name, path)) = shown else { panic!("{rule:?} is not noticed: {:?}", found.keys()) };
    let steps: Vec<_> = path.clone().into_actions();
    println!(
        "{rule:?} after {} states: not \"{name}\", in {} steps",
        checker.unique_state_count(),
        steps.len()
    );
    steps.iter().for_each(|step| println!("    {step:?}"));
}

const LOST: &str = "no acknowledged contribution is lost";
const TWICE: &str = "no contribution is applied twice";
const FORKED: &str = "a published version is the same wherever it is published";
const KEPT_UP: &str = "only a copy that is kept up is promoted";

#[test]
fn small_instances_hold() {
    let faults = Budget { crashes: 1, deposed: 1, ..NONE };
    search("sync, a crash, a deposed one", small(Mode::Sync, faults));
    search("async, a crash, a deposed one", small(Mode::Async, faults));
    search(
        "sync, two rounds, a crash, a broken stream, a worker again",
        Protocol { rounds: 2, ..small(Mode::Sync, Budget { crashes: 1, breaks: 1, workers: 1, ..NONE }) },
    );
}

#[test]
#[ignore = "minutes; make test-all"]
fn larger_instances_hold() {
    search(
        "sync, a crash, a deposed one, two schedulers",
        small(Mode::Sync, Budget { crashes: 1, deposed: 1, schedulers: 1, ..NONE }),
    );
}

#[test]
fn every_rule_is_needed() {
    let crash = Budget { crashes: 1, deposed: 1, ..NONE };
    refuted(Broken::NoFence, small(Mode::Sync, crash), &[LOST, TWICE, FORKED]);
    refuted(Broken::AnswerFirst, small(Mode::Sync, crash), &[LOST, KEPT_UP]);
    refuted(Broken::NoDedupe, small(Mode::Sync, crash), &[TWICE]);
}

#[test]
#[ignore]
fn explore() {
    let n = |k: &str| std::env::var(k).ok().and_then(|v| v.parse().ok()).unwrap_or(0u8);
    let budget = Budget {
        crashes: n("C"),
        deposed: n("D"),
        schedulers: n("S"),
        breaks: n("B"),
        joins: n("J"),
        moves: n("M"),
        workers: n("W"),
    };
    let mode = if n("A") == 1 { Mode::Async } else { Mode::Sync };
    let p =
        Protocol { mode, servers: usize::from(n("N").max(2)), rounds: n("R").max(1), budget, broken: None };
    let rules = [
        Broken::NoFence,
        Broken::AnswerFirst,
        Broken::PromoteUnfilled,
        Broken::NoDedupe,
        Broken::LowerTerm,
        Broken::AnyonesRound,
        Broken::NoWorkerShown,
        Broken::AnswerAhead,
        Broken::SeededForgotten,
        Broken::AnswerUnfilled,
    ];
    match n("X") {
        0 => search("explore", p),
        x => refuted(
            rules[usize::from(x) - 1],
            p,
            &[
                LOST,
                TWICE,
                FORKED,
                KEPT_UP,
                "nobody waits for nothing",
                "one server for the chunk in each epoch",
            ],
        ),
    }
}
