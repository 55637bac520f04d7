//! Two schedulers in a divided network: every order of a few members' steps, and what each rule is for.
#![allow(clippy::print_stdout, reason = "it says what it has searched")]

use gradwire_model::schedulers::{Schedulers, Unruly};
use stateright::{Checker, HasDiscoveries, Model};

const ONE_HISTORY: &str = "decisions that members follow are one history";

fn search(name: &str, model: Schedulers) {
    let checker = model.checker().threads(2).spawn_bfs().join();
    println!("{name}: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

fn small(members: u8, starts: u8, drops: u8, exits: u8) -> Schedulers {
    Schedulers { members, starts, drops, exits, unruly: None }
}

#[test]
fn a_second_scheduler_and_a_divided_network_have_one_history() {
    search("three members, a drop, a second scheduler", small(3, 1, 1, 0));
    search("four members, a second scheduler", small(4, 1, 0, 0));
    search("two members, a drop, a second scheduler, an exit", small(2, 1, 1, 1));
    search("three members, two more schedulers", small(3, 2, 0, 0));
}

#[test]
#[ignore = "minutes: make test-all"]
fn larger_clusters_have_one_history() {
    search("three members, a drop, a second scheduler, an exit", small(3, 1, 1, 1));
    search("three members, a drop, two more schedulers", small(3, 2, 1, 0));
    search("four members, a drop, a second scheduler", small(4, 1, 1, 0));
}

/// Leaves a rule out, and expects to be shown two histories.
fn refuted(rule: Unruly, model: Schedulers) {
    let model = Schedulers { unruly: Some(rule), ..model };
    let names = [ONE_HISTORY].into_iter().collect();
    let checker = model.checker().threads(2).finish_when(HasDiscoveries::AnyOf(names)).spawn_bfs().join();
    let found = checker.discoveries();
    let Some(path) = found.get(ONE_HISTORY) else { panic!("{rule:?} is not noticed") };
    let turns = path.clone().into_actions();
    println!("{rule:?} after {} states, in {} steps: {turns:?}", checker.unique_state_count(), turns.len());
}

#[test]
fn every_rule_of_the_quorum_is_needed() {
    refuted(Unruly::NoQuorum, small(2, 1, 1, 0));
    refuted(Unruly::AtOnce, small(3, 1, 1, 0));
    refuted(Unruly::CloseIsExit, small(3, 1, 1, 0));
}
