//! The fault laboratory: seeded faults of every kind in whole simulated clusters, the oracle's bits in the end.
#![allow(clippy::print_stdout, reason = "how many seeds a second")]

use gradwire_tests::rigs::lab::{Lab, LabShape, Plan};
use gradwire_tests::rigs::sim::seeds;

const FILE: &str = "lab";

/// Trains through a plan with each seed.
fn runs(name: &str, seeds: u64, plan: Plan) {
    seeds::for_each(FILE, name, seeds, |seed| Lab::new(seed, LabShape::with(seed, plan)).train());
}

const NOTHING: Plan = Plan::NOTHING;
/// What hurts, and kills nobody.
const ROUGH: Plan = Plan { breaks: 3, partitions: 2, silences: 3, pauses: 3, slow: 2, ..NOTHING };

#[test]
fn nothing_goes_wrong() {
    seeds::for_each(FILE, "nothing_goes_wrong", 20, |seed| {
        let one = LabShape { replicas: (seed % 2) as u32, ..LabShape::with(seed, NOTHING) };
        let mut lab = Lab::new(seed, one.clone());
        lab.train();
        let trace = lab.trace();
        drop(lab);
        let mut again = Lab::new(seed, one);
        again.train();
        assert_eq!(again.trace(), trace, "a seed is one run");
    });
}

#[test]
fn slow_is_not_dead() {
    runs("slow_is_not_dead", 20, ROUGH);
}

#[test]
fn servers_die() {
    runs("servers_die", 40, Plan { server_crashes: 2, ..NOTHING });
}

#[test]
fn servers_are_deposed_and_live() {
    runs("servers_are_deposed_and_live", 40, Plan { deposed: 2, ..NOTHING });
}

#[test]
fn workers_die_and_come_again() {
    runs("workers_die_and_come_again", 40, Plan { worker_crashes: 2, ..NOTHING });
}

#[test]
fn schedulers_die() {
    runs("schedulers_die", 40, Plan { scheduler_crashes: 2, ..NOTHING });
}

#[test]
fn servers_come_and_go() {
    runs("servers_come_and_go", 40, Plan { joins: 1, drains: 1, ..NOTHING });
}

#[test]
fn everything_goes_wrong() {
    seeds::for_each(FILE, "everything_goes_wrong", 60, |seed| {
        Lab::new(seed, LabShape::everything(seed)).train();
    });
}

/// `make lab SEEDS=N`.
#[test]
#[ignore = "as long as it is told: make lab SEEDS=5000"]
fn thousands_of_seeds() {
    let (started, mut count) = (std::time::Instant::now(), 0_u32);
    seeds::for_each(FILE, "thousands_of_seeds", 5_000, |seed| {
        Lab::new(seed, LabShape::everything(seed)).train();
        count += 1;
    });
    let took_s = started.elapsed().as_secs_f64();
    println!("{count} seeds in {took_s:.0} s: {:.1} a second, no violation", f64::from(count) / took_s);
}
