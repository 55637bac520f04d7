//! The house rules over every file of the repository: one test a rule. The rules and their own tests are in
//! `gradwire_tests::tidy`; a finding names file, line and fix.
//!
//! Must not change files: `make fix` does what can be done mechanically.
#![allow(clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::repository;
use gradwire_tests::tidy::{
    Finding, Repo, architecture, book, circles, documents, errors, inventory, listed, metrics, shape, suites,
    watch,
};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::LazyLock;

static REPO: LazyLock<Repo> = LazyLock::new(|| Repo::load().expect("the repository can be read"));

fn holds(rule: fn(&Repo) -> Vec<Finding>) {
    let findings = rule(&REPO);
    assert!(findings.is_empty(), "{} finding(s):{}", findings.len(), listed(&findings));
}

#[test]
fn every_file_says_what_it_owns() {
    holds(shape::heads);
}

#[test]
fn no_file_is_too_long() {
    holds(shape::file_lengths);
}

#[test]
fn the_median_file_of_each_crate_is_short() {
    let (findings, table) = shape::file_medians(&REPO);
    print!("{table}");
    assert!(findings.is_empty(), "{}", listed(&findings));
}

#[test]
fn no_function_is_too_long() {
    holds(shape::function_lengths);
}

#[test]
fn no_notes_to_self() {
    holds(shape::notes_to_self);
}

/// A figure, no failure: `pub(crate)` should outnumber `pub` in the role crates.
#[test]
fn surface_of_the_role_crates() {
    print!("{}", shape::surface(&REPO));
}

#[test]
fn every_page_is_a_chapter_of_the_book() {
    holds(book::chapters);
}

#[test]
fn every_command_of_the_book_is_run_or_says_why_not() {
    holds(book::blocks_are_marked);
}

#[test]
fn the_front_page_is_short_and_shows_what_is_tested() {
    holds(documents::front);
}

#[test]
fn links_lead_somewhere() {
    holds(book::links_lead_somewhere);
}

#[test]
fn unsafe_code_stands_in_few_crates() {
    holds(errors::unsafe_places);
}

#[test]
fn whatever_can_panic_states_its_invariant() {
    holds(errors::panics);
}

#[test]
fn whoever_sleeps_says_why() {
    holds(errors::sleeps);
}

#[test]
fn roles_do_not_know_each_other() {
    holds(architecture::strangers);
}

#[test]
fn no_files_of_a_crate_take_names_from_each_other() {
    holds(circles::none);
}

#[test]
fn nothing_that_is_shipped_breaks_rules() {
    holds(architecture::broken_rules);
}

#[test]
fn transports_are_told_apart_in_their_tables_only() {
    holds(architecture::transports);
}

#[test]
fn all_packages_share_one_lint_table() {
    holds(architecture::lint_table);
}

#[test]
fn engines_are_pure() {
    holds(architecture::pure_engines);
}

#[test]
fn documents_name_paths_that_exist() {
    holds(documents::paths);
}

#[test]
fn metrics_are_documented() {
    holds(metrics::documented);
}

#[test]
fn rules_and_panels_read_metrics_that_exist() {
    holds(watch::known);
}

#[test]
fn every_metric_is_on_a_panel() {
    holds(watch::shown);
}

#[test]
fn every_rule_is_tested_and_every_alert_explained() {
    holds(watch::explained);
}

#[test]
fn inventory_rows_are_proven() {
    holds(inventory::proven);
}

#[test]
fn inventory_has_a_row_for_each_entry() {
    holds(inventory::whole);
}

#[test]
fn every_test_belongs_to_a_suite() {
    holds(suites::complete);
}

/// Pages and pictures that scripts write from sources. Needs python3.
#[test]
fn generated_pages_are_what_their_scripts_write() {
    let run = |script: &str, words: &[&str]| {
        let root = repository::root().unwrap();
        let output = std::process::Command::new("python3").arg(root.join(script)).args(words).output();
        output.expect("python3 can be started")
    };
    let reference = run("bindings/reference.py", &["--check"]);
    assert!(reference.status.success(), "{}", String::from_utf8_lossy(&reference.stderr));
    let chart = run("benches/chart.py", &[]);
    assert!(chart.status.success(), "{}", String::from_utf8_lossy(&chart.stderr));
    let committed = include_bytes!("../../docs/figures/benchmarks.svg");
    assert!(chart.stdout == committed, "run: benches/chart.py > docs/figures/benchmarks.svg");
}

/// The demo, the libraries for C, and the wheel take their crates from one release build. If two of these builds enabled different
/// features of one crate, cargo would compile that crate, and everything above it, twice.
#[test]
fn demo_bindings_and_packages_share_one_build() {
    let demo = features(&["--no-default-features"]);
    assert!(demo.len() > 100, "{demo:?}");
    for more in [&["--no-default-features", "-p", "gradwire-c"][..], &["-p", "gradwire-python"][..]] {
        let other = features(more);
        // The command itself has `top` and `chaos` only in packages.
        let of_demo = demo.iter().filter(|(name, _)| !name.starts_with("gradwire-cli v"));
        let differ: Vec<_> = of_demo.filter(|(name, of)| other.get(*name) != Some(*of)).collect();
        assert!(
            differ.is_empty(),
            "{more:?} enables other features of {differ:?}; name the union in Cargo.toml or in daemon/Cargo.toml"
        );
    }
}

/// The fuzzer's workspace has a lock file of its own, which `make check` and `make fuzz` hold to.
#[test]
fn the_lock_file_of_fuzz_fits_the_manifests() {
    let mut metadata = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    metadata.args(["metadata", "--locked", "--format-version=1"]);
    let fuzz = repository::root().unwrap().join("fuzz");
    let output = metadata.current_dir(fuzz).output().expect("cargo can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "run `cargo update --workspace` in fuzz/: {said}");
}

/// Features by crate and version, of the programs and whatever else is selected.
fn features(more: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let mut tree = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    tree.args(["tree", "--locked", "--edges", "normal,build", "--prefix", "none", "--format", "{p}|{f}"]);
    for package in ["gradwire-cli", "gradwire-scheduler", "gradwire-server", "gradwire-trainer"] {
        tree.args(["-p", package]);
    }
    let output = tree.args(more).output().expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut all = BTreeMap::<_, BTreeSet<_>>::new();
    let text = String::from_utf8_lossy(&output.stdout);
    for (package, features) in text.lines().filter_map(|line| line.trim_end_matches(" (*)").split_once('|')) {
        let package = package.split(" (").next().unwrap_or(package).to_owned();
        // A crate may be built with two lists of features: for the target, and for what runs while it builds.
        all.entry(package).or_default().insert(features.to_owned());
    }
    all
}
