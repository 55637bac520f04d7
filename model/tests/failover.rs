//! Searches small instances of the protocol through, and sees that each rule left out is noticed.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code; it says what it has searched")]

use gradwire_model::{Broken, Budget, Mode, Protocol};
use stateright::{Checker, HasDiscoveries, Model};
use std::time::Instant;

const NONE: Budget =
    Budget { crashes: 0, deposed: 0, schedulers: 0, breaks: 0, joins: 0, moves: 0, workers: 0, stops: 0 };

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
const REUSED: &str = "no late write lands in reused memory";
const KEPT_UP: &str = "only a copy that is kept up is promoted";

/// How a channel ends whose peer may be in the middle of a copy.
const ENDS: [(&str, Budget); 3] = [
    ("a worker again", Budget { workers: 1, ..NONE }),
    ("a broken stream", Budget { breaks: 1, ..NONE }),
    ("a deposed one", Budget { deposed: 1, ..NONE }),
];

#[test]
fn small_instances_hold() {
    let faults = Budget { crashes: 1, deposed: 1, ..NONE };
    search("sync; a crash, a deposed one", small(Mode::Sync, faults));
    search("async; a crash, a deposed one", small(Mode::Async, faults));
    let rough = Budget { crashes: 1, breaks: 1, workers: 1, ..NONE };
    search(
        "sync, two rounds; a crash, a broken stream, a worker again",
        Protocol { rounds: 2, ..small(Mode::Sync, rough) },
    );
    search(
        "sync; a crash, another scheduler",
        small(Mode::Sync, Budget { crashes: 1, schedulers: 1, ..NONE }),
    );
    search(
        "sync; a deposed one, another scheduler",
        small(Mode::Sync, Budget { deposed: 1, schedulers: 1, ..NONE }),
    );
    let late = Budget { deposed: 1, breaks: 1, workers: 1, stops: 1, ..NONE };
    search("sync; a deposed one, a broken stream, a worker again, a stopped copy", small(Mode::Sync, late));
}

#[test]
#[ignore = "minutes: make test-all"]
fn larger_instances_hold() {
    let three = |mode, budget| Protocol { servers: 3, ..small(mode, budget) };
    let two_rounds = |mode, budget| Protocol { rounds: 2, ..small(mode, budget) };
    let moves = Budget { crashes: 1, moves: 1, ..NONE };
    search("sync, three servers; a crash, a move", three(Mode::Sync, moves));
    // Both of them at once are too many but for one round in mode sync.
    for (name, gone) in
        [("a crash", Budget { crashes: 1, ..NONE }), ("a deposed one", Budget { deposed: 1, ..NONE })]
    {
        let restarts = Budget { schedulers: 1, ..gone };
        search(&format!("sync, two rounds; {name}, another scheduler"), two_rounds(Mode::Sync, restarts));
        search(&format!("async; {name}, another scheduler"), small(Mode::Async, restarts));
    }
    let restarts = Budget { crashes: 1, deposed: 1, schedulers: 1, ..NONE };
    search("sync; a crash, a deposed one, another scheduler", small(Mode::Sync, restarts));
    let again = Budget { crashes: 1, deposed: 1, breaks: 1, joins: 1, ..NONE };
    search("sync; a crash, a deposed one, a broken stream, a server that comes", small(Mode::Sync, again));
    let moved = Budget { deposed: 1, moves: 1, ..NONE };
    search("async, three servers; a deposed one, a move", three(Mode::Async, moved));
}

#[test]
#[ignore = "a minute: make test-all"]
fn larger_instances_with_stopped_copies_hold() {
    let late = Budget { deposed: 1, stops: 2, ..NONE };
    search(
        "sync, two rounds; a deposed one, two stopped copies",
        Protocol { rounds: 2, ..small(Mode::Sync, late) },
    );
    let late = Budget { crashes: 1, deposed: 1, workers: 1, stops: 1, ..NONE };
    search("sync; a crash, a deposed one, a worker again, a stopped copy", small(Mode::Sync, late));
    let late = Budget { deposed: 1, joins: 1, stops: 1, ..NONE };
    search("sync; a deposed one, a server that comes, a stopped copy", small(Mode::Sync, late));
}

#[test]
fn every_rule_is_needed() {
    let crash = Budget { crashes: 1, ..NONE };
    let deposed = Budget { deposed: 1, ..NONE };
    let two_rounds = |budget| Protocol { rounds: 2, ..small(Mode::Sync, budget) };
    let lost = [LOST, KEPT_UP];
    refuted(Broken::NoFence, two_rounds(deposed), &[TWICE]);
    refuted(Broken::AnswerFirst, small(Mode::Sync, crash), &lost);
    refuted(Broken::NoDedupe, two_rounds(crash), &[TWICE]);
    let seeded = Budget { crashes: 1, deposed: 1, joins: 1, ..NONE };
    refuted(Broken::PromoteUnfilled, small(Mode::Sync, seeded), &lost);
    let restart = Budget { deposed: 2, schedulers: 1, ..NONE };
    refuted(Broken::LowerTerm, two_rounds(restart), &lost);
    let both = Budget { crashes: 1, deposed: 1, schedulers: 1, ..NONE };
    refuted(Broken::NoWorkerShown, small(Mode::Sync, both), &lost);
    refuted(Broken::AnswerAhead, small(Mode::Sync, both), &lost);
    let moved = Budget { crashes: 1, moves: 1, ..NONE };
    for (_, ends) in ENDS {
        refuted(Broken::FenceSkipped, small(Mode::Sync, Budget { stops: 1, ..ends }), &[REUSED]);
    }
    refuted(Broken::AnswerUnfilled, Protocol { servers: 3, ..small(Mode::Sync, moved) }, &lost);
}

#[test]
#[ignore = "a minute: make test-all"]
fn rules_of_rare_cases_are_needed() {
    let again = Budget { crashes: 1, deposed: 1, joins: 1, breaks: 1, ..NONE };
    refuted(Broken::SeededForgotten, small(Mode::Sync, again), &[LOST, KEPT_UP]);
    let moved = Budget { deposed: 1, moves: 1, ..NONE };
    let three = Protocol { servers: 3, ..small(Mode::Async, moved) };
    refuted(Broken::AnyonesRound, three.clone(), &[LOST, TWICE, FORKED, KEPT_UP]);
    refuted(Broken::OldCopy, three, &[LOST, TWICE, FORKED, KEPT_UP]);
}
