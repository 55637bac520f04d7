//! The fault laboratory: seeded faults of every kind in whole simulated clusters, the oracle's bits in the end.
#![allow(clippy::print_stdout, reason = "how many seeds a second")]

use gradwire_tests::rigs::lab::{Lab, LabShape, Plan};
use gradwire_tests::rigs::sim::seeds;
use std::collections::BTreeMap;

const FILE: &str = "lab";

/// What seeds had: how many there were, and of each kind of fault how often it struck and in how many of them.
#[derive(Debug, Default)]
struct Tried {
    seeds: u64,
    struck: BTreeMap<&'static str, (u64, u64)>,
}

impl Tried {
    fn count(&mut self, lab: &Lab) {
        self.seeds += 1;
        for (kind, times) in lab.tally() {
            let (struck, seeds) = self.struck.entry(kind).or_default();
            (*struck, *seeds) = (*struck + times, *seeds + 1);
        }
    }

    /// Each kind must have struck, where there were enough seeds. What cannot be borne is put off, and dropped at last: a test
    /// without a fault would pass like any other.
    fn had(&self, enough: u64, kinds: impl IntoIterator<Item = &'static str>) {
        for kind in kinds.into_iter().filter(|_| self.seeds >= enough) {
            assert!(self.struck.contains_key(kind), "{kind}: none of the seeds had it: {self:?}");
        }
    }
}

/// Trains in the shape of each seed.
fn train(name: &str, seeds: u64, shape: impl Fn(u64) -> LabShape) -> Tried {
    train_each(name, seeds, |seed| Lab::new(seed, shape(seed)))
}

fn train_each(name: &str, seeds: u64, lab: impl Fn(u64) -> Lab) -> Tried {
    let mut tried = Tried::default();
    seeds::for_each(FILE, name, seeds, |seed| {
        let mut lab = lab(seed);
        lab.train();
        tried.count(&lab);
    });
    tried
}

/// Trains through a plan with each seed.
fn runs(name: &str, seeds: u64, plan: Plan) {
    train(name, seeds, |seed| LabShape::with(seed, plan)).had(seeds, plan.kinds());
}

const NOTHING: Plan = Plan::NOTHING;
/// What hurts, and kills nobody.
const ROUGH: Plan =
    Plan { breaks: 3, partitions: 2, flaps: 2, silences: 3, lags: 2, pauses: 3, slow: 2, ..NOTHING };

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
    runs("servers_die", 30, Plan { server_crashes: 2, ..NOTHING });
}

#[test]
fn servers_are_deposed_and_live() {
    runs("servers_are_deposed_and_live", 30, Plan { deposed: 2, ..NOTHING });
}

#[test]
fn workers_die_and_come_again() {
    runs("workers_die_and_come_again", 30, Plan { worker_crashes: 2, ..NOTHING });
}

#[test]
fn workers_are_deposed_and_live() {
    runs("workers_are_deposed_and_live", 40, Plan { deposed_workers: 2, ..NOTHING });
}

#[test]
fn late_writes_are_fenced() {
    let kinds = ["deposed: worker", "data: flapping link", "slow node"];
    train("late_writes_are_fenced", 20, LabShape::crowded).had(20, kinds);
}

#[test]
fn schedulers_die() {
    runs("schedulers_die", 30, Plan { scheduler_crashes: 2, ..NOTHING });
}

#[test]
fn workers_die_while_the_scheduler_is_away() {
    let plan = Plan { scheduler_crashes: 2, worker_crashes: 3, ..NOTHING };
    runs("workers_die_while_the_scheduler_is_away", 40, plan);
}

#[test]
fn processes_stop_and_go_on() {
    runs("processes_stop_and_go_on", 40, Plan { sleeps: 2, ..NOTHING });
}

#[test]
fn a_second_server_dies_before_the_first_death_is_decided() {
    let plan = Plan { server_crashes: 2, second: true, ..NOTHING };
    runs("a_second_server_dies_before_the_first_death_is_decided", 20, plan);
}

#[test]
fn a_job_that_has_lost_both_copies_of_something_ends_and_says_so() {
    let plan = Plan { server_crashes: 1, second: true, fatal: true, ..NOTHING };
    runs("a_job_that_has_lost_both_copies_of_something_ends_and_says_so", 20, plan);
}

/// A job that restores a checkpoint and loses servers, some of them before their copies have received what they restored.
fn restored(seed: u64) -> Lab {
    let plan = Plan {
        server_crashes: 2,
        drains: 1,
        horizon_us: [2_000, 20_000, 300_000][seed as usize % 3],
        ..NOTHING
    };
    Lab::restored(seed, LabShape::with(seed, plan))
}

#[test]
fn servers_that_restored_a_checkpoint_die() {
    train_each("servers_that_restored_a_checkpoint_die", 20, restored).had(20, ["crash: server"]);
}

/// `make lab` runs this one, too.
#[test]
#[ignore = "runs as many seeds as SEEDS says: make lab SEEDS=5000"]
fn thousands_of_restored_jobs() {
    train_each("thousands_of_restored_jobs", 2_000, restored).had(ENOUGH, ["crash: server"]);
}

#[test]
fn servers_come_and_go() {
    runs("servers_come_and_go", 40, Plan { joins: 1, drains: 1, ..NOTHING });
}

/// Trains while the network is divided between two schedulers.
fn divided(name: &str, seeds: u64) -> Tried {
    let mut tried = Tried::default();
    seeds::for_each(FILE, name, seeds, |seed| {
        let mut lab = Lab::new(seed, LabShape::divided(seed));
        lab.train_divided();
        tried.count(&lab);
    });
    tried
}

#[test]
fn two_schedulers_in_a_divided_network_are_not_both_obeyed() {
    let tried = divided("two_schedulers_in_a_divided_network_are_not_both_obeyed", 40);
    tried.had(40, LabShape::divided(0).plan.kinds());
    tried.had(40, ["all workers have trained all rounds"]);
}

/// `make lab` runs this one, too.
#[test]
#[ignore = "runs as many seeds as SEEDS says: make lab SEEDS=5000"]
fn thousands_of_divided_networks() {
    let tried = divided("thousands_of_divided_networks", 5_000);
    println!("{tried:?}");
    tried.had(ENOUGH, LabShape::divided(0).plan.kinds());
}

#[test]
fn everything_goes_wrong() {
    train("everything_goes_wrong", 60, LabShape::everything);
}

/// With so many seeds each kind is to have struck, and with so many the rarest.
const ENOUGH: u64 = 500;
const ENOUGH_OF_ALL: u64 = 4_000;
/// Two servers that share a chunk, the second before the death of the first is decided about.
const RAREST: &str = "crash: chunk and copy";

/// `make lab SEEDS=N`.
#[test]
#[ignore = "runs as many seeds as SEEDS says: make lab SEEDS=5000"]
fn thousands_of_seeds() {
    let started = std::time::Instant::now();
    let tried = train("thousands_of_seeds", 5_000, LabShape::everything);
    let (took_s, count) = (started.elapsed().as_secs_f64(), tried.seeds);
    for (kind, (struck, seeds)) in &tried.struck {
        println!("{kind:<28} in {seeds:>6} seeds, {struck:>9} times");
    }
    println!("{count} seeds in {took_s:.0} s: {:.1} a second, no violation", count as f64 / took_s);
    let planned = (0..ENOUGH).flat_map(|seed| Plan::everything(seed).kinds());
    tried.had(ENOUGH, planned.filter(|kind| *kind != RAREST));
    tried.had(ENOUGH_OF_ALL, [RAREST]);
    let by_itself = [
        "data: loss",
        "data: delay",
        "data: duplicate",
        "data: reorder",
        "data: reorder in a channel",
        "clock: offset and drift",
        "restart",
        "slots of records checked",
    ];
    tried.had(ENOUGH, by_itself);
    let while_away = [
        "crash: server, no scheduler",
        "deposed: server, no scheduler",
        "long pause: server, no scheduler",
        "crash: two servers, no scheduler",
    ];
    tried.had(ENOUGH, while_away);
}

/// Whoever breaks a rule is caught, and clusters that keep all rules are not.
#[cfg(feature = "sabotage")]
mod broken {
    use fabric::Order;
    use fabric::sim::SimFaults;
    use gradwire_server::engine::BrokenRule;
    use gradwire_tests::rigs::lab::{Lab, LabShape};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[derive(Clone, Copy, Debug)]
    enum Rule {
        /// Of the server's engine.
        Server(BrokenRule),
        /// Where the transport keeps no order, a notice is believed after all writes before it have arrived.
        Gate,
        /// A second scheduler asks for no majority.
        Quorum,
    }

    /// A rule, and a seed that catches who breaks it: of `everything_goes_wrong`, or of `late_writes_are_fenced`.
    const CAUGHT: [(Rule, u64); 8] = [
        (Rule::Server(BrokenRule::Fence), 2246),
        (Rule::Server(BrokenRule::Fencing), 540),
        (Rule::Server(BrokenRule::CreditReturn), 0),
        (Rule::Server(BrokenRule::Dedupe), 1),
        (Rule::Server(BrokenRule::EpochCheck), 79),
        (Rule::Server(BrokenRule::AckAfterReplicate), 29),
        (Rule::Gate, 0),
        (Rule::Quorum, 1),
    ];

    fn shape(seed: u64, rule: Rule, is_broken: bool) -> LabShape {
        match rule {
            Rule::Server(rule) => {
                let is_crowd = matches!(rule, BrokenRule::Fencing | BrokenRule::Fence);
                let shape = if is_crowd { LabShape::crowded(seed) } else { LabShape::everything(seed) };
                LabShape { broken: is_broken.then_some(rule), ..shape }
            }
            Rule::Quorum => LabShape { forced: is_broken, ..LabShape::divided(seed) },
            Rule::Gate => {
                let shape = LabShape::everything(seed);
                let faults = SimFaults { order: Order::Any, is_ungated: is_broken, ..shape.faults };
                LabShape { faults, ..shape }
            }
        }
    }

    /// Why a seed's run failed, if it did.
    fn trouble(seed: u64, rule: Rule, is_broken: bool) -> Option<String> {
        let shape = shape(seed, rule, is_broken);
        let run = AssertUnwindSafe(|| {
            let mut lab = Lab::new(seed, shape);
            if matches!(rule, Rule::Quorum) { lab.train_divided() } else { lab.train() }
        });
        let panic = catch_unwind(run).err()?;
        let text = panic.downcast_ref::<String>().cloned();
        Some(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
    }

    #[test]
    fn each_broken_rule_is_caught_by_its_seed() {
        for (rule, seed) in CAUGHT {
            assert_eq!(trouble(seed, rule, false), None, "seed {seed} with all rules kept");
            let caught = trouble(seed, rule, true);
            println!("{rule:?}: seed {seed}: {}", caught.as_deref().unwrap_or("not caught"));
            assert!(caught.is_some(), "seed {seed} does not notice that {rule:?} is broken");
        }
    }

    /// For the table, where the laboratory has changed.
    #[test]
    #[ignore = "a search"]
    fn first_seeds() {
        let wanted = std::env::var("GRADWIRE_RULE").unwrap_or_default();
        for (rule, _) in CAUGHT.into_iter().filter(|(rule, _)| format!("{rule:?}").contains(&wanted)) {
            let from =
                |name, least| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(least);
            let first: u64 = from("GRADWIRE_FIRST_SEED", 0);
            let found = (first..first + from("GRADWIRE_SEEDS", 2_000)).find_map(|seed| {
                let trouble = |is_broken| trouble(seed, rule, is_broken);
                trouble(true).filter(|_| trouble(false).is_none()).map(|caught| (seed, caught))
            });
            println!("{rule:?}: {found:?}");
        }
    }
}
