//! The book as its reader uses it: the commands of each page are run as they stand, with the programs of this build, and print
//! what the page shows; every command line, flag and setting that a page names exists.
//!
//! A page runs on a host of its own (namespaces), so ports are free and mounts harm nobody: needs root.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::book::usage::{self, Usage};
use gradwire_tests::book::{blocks, page};
use gradwire_tests::rigs::programs::{program, repository};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

fn programs() -> std::path::PathBuf {
    let one = usage::PROGRAMS.map(program);
    one[0].parent().expect("programs lie in a directory").to_path_buf()
}

/// Every page of the book, and the README, by name.
fn pages() -> BTreeMap<String, String> {
    let root = repository();
    let listed = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let files = listed.filter(|path| path.extension().is_some_and(|ending| ending == "md"));
    let named = files.chain([root.join("README.md")]);
    named
        .map(|path| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read_to_string(path).unwrap())
        })
        .collect()
}

fn told(text: &str) -> Result<(), String> {
    page::run(text, &programs(), &repository()).expect("a page can be run")
}

fn runs(name: &str) {
    if let Err(what) = told(&pages()[name]) {
        panic!("docs/{name}: {what}");
    }
}

/// One test for each page with commands that are run.
macro_rules! pages_that_run {
    ($($test:ident: $page:literal,)*) => {
        const RUN: &[&str] = &[$($page),*];
        $(#[test] fn $test() { runs($page); })*
    };
}

pages_that_run! {
    the_quick_start: "quickstart.md",
    operating: "operating.md",
    tuning: "tuning.md",
    troubleshooting: "troubleshooting.md",
    when_processes_die: "troubleshooting-deaths.md",
    security: "security.md",
    checkpoints: "checkpoints.md",
    from_ps_lite: "from-ps-lite.md",
    from_byteps: "from-byteps.md",
    from_mxnet: "from-mxnet.md",
}

#[test]
fn every_page_with_commands_has_its_test() {
    let with: BTreeSet<String> = pages()
        .into_iter()
        .filter(|(_, text)| blocks::of(text).iter().any(blocks::Block::runs))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(with, RUN.iter().map(|name| (*name).to_owned()).collect());
}

/// One page that is right, and each way to be wrong.
#[test]
fn a_page_that_is_wrong_is_told() {
    let right = "```sh,run\na=1; echo $a b\n```\n```text,output\n1 …\n```\n```sh,run,exit=3\n(exit 3)\n```\n";
    assert_eq!(told(right), Ok(()));
    let wrong = |page: &str, words: &str| {
        let told = told(page).expect_err(page);
        assert!(told.contains(words), "{told}");
    };
    wrong("```sh,run\nfalse\ntrue\n```\n", "failed: \"false");
    wrong("```sh,run,exit=4\n(exit 3)\n```\n", "ended with 3 and not 4");
    wrong("```sh,run\necho a\n```\n```text,output\nb\n```\n", "nothing printed fits \"b\"");
    wrong("```sh,run\nexit 0\n```\n```sh,run\ntrue\n```\n", "did not end");
}

/// Asks each program and subcommand for its help once.
fn helps() -> impl FnMut(&[&str]) -> Usage {
    let mut known: BTreeMap<String, Usage> = BTreeMap::new();
    move |path| {
        let of = || {
            let output =
                Command::new(program(path[0])).args(&path[1..]).arg("--help").output().expect("it starts");
            Usage::of(&String::from_utf8_lossy(&output.stdout))
        };
        known.entry(path.join(" ")).or_insert_with(of).clone()
    }
}

#[test]
fn every_command_line_of_the_pages_exists() {
    let mut help = helps();
    let mut wrong = Vec::new();
    let mut count = 0;
    for (name, text) in pages() {
        for line in usage::command_lines(&text) {
            count += 1;
            let fault = usage::fault(&line.words, &mut help);
            wrong.extend(
                fault.map(|fault| format!("{name}:{}: {fault}: {}", line.line, line.words.join(" "))),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "only {count} command lines were found");
}

#[test]
fn every_setting_of_the_pages_exists() {
    let listed = Command::new(program("gradwire")).arg("env").output().expect("it starts");
    let listed = String::from_utf8(listed.stdout).unwrap();
    // The first table; an empty line ends it.
    let rows = listed.lines().skip(1).take_while(|line| !line.is_empty());
    let known: BTreeSet<&str> = rows.filter_map(|row| row.split_whitespace().next()).collect();
    assert!(known.len() > 50, "{known:?}");
    let sections: BTreeSet<&str> =
        known.iter().filter_map(|key| key.split_once('.')).map(|(section, _)| section).collect();
    let mut wrong = Vec::new();
    for (name, text) in pages() {
        for (line, setting) in usage::settings(&text, &sections) {
            if !known.contains(setting.as_str()) {
                wrong.push(format!("{name}:{line}: {setting} is no setting"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
