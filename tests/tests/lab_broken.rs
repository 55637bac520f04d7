//! The fault laboratory notices: servers that break one rule each are caught, by the seeds that the table names, and servers
//! that keep all rules are not.
#![allow(clippy::print_stdout, reason = "which seeds catch a rule")]

use gradwire_server::engine::BrokenRule;
use gradwire_tests::rigs::lab::{Lab, LabShape};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A rule, and a seed of `everything_goes_wrong` that catches who breaks it.
const CAUGHT: [(BrokenRule, u64); 5] = [
    (BrokenRule::Dedupe, 0),
    (BrokenRule::Fencing, 0),
    (BrokenRule::AckAfterReplicate, 0),
    (BrokenRule::EpochCheck, 0),
    (BrokenRule::CreditReturn, 0),
];

/// Why a seed's run failed, if it did.
fn trouble(seed: u64, broken: Option<BrokenRule>) -> Option<String> {
    let shape = LabShape { broken, ..LabShape::everything(seed) };
    let run = AssertUnwindSafe(|| Lab::new(seed, shape).train());
    let panic = catch_unwind(run).err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default())
}

#[test]
fn each_broken_rule_is_caught_by_its_seed() {
    for (rule, seed) in CAUGHT {
        assert_eq!(trouble(seed, None), None, "seed {seed} with all rules kept");
        let caught = trouble(seed, Some(rule));
        println!("{rule:?}: seed {seed}: {}", caught.as_deref().unwrap_or("not caught"));
        assert!(caught.is_some(), "seed {seed} does not notice that {rule:?} is broken");
    }
}

/// For the table, where the laboratory has changed.
#[test]
#[ignore = "a search"]
fn first_seeds() {
    for (rule, _) in CAUGHT {
        let found = (0..2_000).find_map(|seed| Some((seed, trouble(seed, Some(rule))?)));
        println!("{rule:?}: {found:?}");
    }
}
