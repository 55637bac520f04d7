//! The fault laboratory: seeded faults of every kind in whole simulated clusters, the oracle's bits in the end.

use gradwire_tests::rigs::lab::{Lab, LabShape};
use gradwire_tests::rigs::sim::seeds;

const FILE: &str = "lab";

#[test]
fn nothing_goes_wrong() {
    seeds::for_each(FILE, "nothing_goes_wrong", 30, |seed| {
        Lab::new(seed, LabShape::drawn(seed)).train();
    });
}
