//! The fault laboratory: seeded faults of every kind in whole simulated clusters, the oracle's bits in the end.

use gradwire_tests::rigs::lab::{Lab, LabShape, Plan};
use gradwire_tests::rigs::sim::seeds;

const FILE: &str = "lab";

#[test]
fn nothing_goes_wrong() {
    seeds::for_each(FILE, "nothing_goes_wrong", 30, |seed| {
        Lab::new(seed, LabShape::drawn(seed)).train();
    });
}

/// What hurts, and kills nobody.
fn rough(seed: u64) -> LabShape {
    let plan =
        Plan { horizon_us: 300_000, breaks: 3, partitions: 2, silences: 3, pauses: 3, ..Plan::default() };
    LabShape { plan, ..LabShape::drawn(seed) }
}

#[test]
fn slow_is_not_dead() {
    seeds::for_each(FILE, "slow_is_not_dead", 30, |seed| Lab::new(seed, rough(seed)).train());
}

fn with_copies(seed: u64, plan: Plan) -> LabShape {
    LabShape { replicas: 1, plan, ..LabShape::drawn(seed) }
}

#[test]
fn copies_and_nothing_goes_wrong() {
    seeds::for_each(FILE, "copies_and_nothing_goes_wrong", 30, |seed| {
        Lab::new(seed, with_copies(seed, Plan::default())).train();
    });
}

#[test]
fn servers_die() {
    let plan = Plan { horizon_us: 300_000, server_crashes: 2, ..Plan::default() };
    seeds::for_each(FILE, "servers_die", 30, |seed| Lab::new(seed, with_copies(seed, plan)).train());
}

#[test]
fn servers_are_deposed_and_live() {
    let plan = Plan { horizon_us: 300_000, deposed: 2, ..Plan::default() };
    seeds::for_each(FILE, "servers_are_deposed_and_live", 30, |seed| {
        Lab::new(seed, with_copies(seed, plan)).train();
    });
}

#[test]
fn schedulers_die() {
    let plan = Plan { horizon_us: 300_000, scheduler_crashes: 2, ..Plan::default() };
    seeds::for_each(FILE, "schedulers_die", 30, |seed| Lab::new(seed, with_copies(seed, plan)).train());
}

#[test]
fn servers_come_and_go() {
    let plan = Plan { horizon_us: 300_000, joins: 1, drains: 1, ..Plan::default() };
    seeds::for_each(FILE, "servers_come_and_go", 30, |seed| {
        let shape = with_copies(seed, plan);
        Lab::new(seed, LabShape { places: shape.servers + 1, ..shape }).train();
    });
}
