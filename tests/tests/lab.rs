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
