//! No test is forgotten: everything that has tests is part of a suite of `tests/suites.toml`, and each file beside a
//! `main.rs` of tests is one of its modules.

use super::{Finding, Repo};
use crate::suites::manifest::{self, Command, Manifest};

const FILE: &str = "tests/suites.toml";
/// What the suite `guest` builds and runs.
const GUEST: &str = "tests/guest/run.sh";

/// Every integration test and every package with unit tests belongs to a suite.
#[must_use]
pub fn complete(repo: &Repo) -> Vec<Finding> {
    let text = repo.texts.get(FILE).map(String::as_str).unwrap_or_default();
    let manifest = match manifest::parse(text) {
        Ok(manifest) => manifest,
        Err(error) => return vec![finding(FILE, format!("{error:#}"), "correct it")],
    };
    let mut findings = Vec::new();
    for member in repo.members() {
        let Some(package) = repo.package_name(member) else { continue };
        if has_unit_tests(repo, member) && !runs_units(&manifest, package) {
            let what = format!("the unit tests of {package} are in no suite");
            findings.push(finding(FILE, what, "add a suite with command \"test:PACKAGE\""));
        }
        for path in &repo.paths {
            findings.extend(forgotten(repo, &manifest, path, member, package));
            let Some(target) = integration_test(path, member) else { continue };
            let in_guest = repo.texts.get(GUEST).is_some_and(|script| names(script, target));
            if !in_guest && !manifest.suites.iter().any(|suite| suite.runs(package, target)) {
                let fix = "add a suite with command \"test:PACKAGE/TARGET\" to tests/suites.toml";
                findings.push(finding(path, "is in no suite".into(), fix));
            }
        }
    }
    findings
}

fn finding(path: &str, what: String, fix: &'static str) -> Finding {
    Finding { path: path.into(), line: 1, what, fix }
}

/// `tests/tests/tidy.rs` of member `tests` is `tidy`.
fn integration_test<'a>(path: &'a str, member: &str) -> Option<&'a str> {
    let inside = path.strip_prefix(member)?.strip_prefix("/tests/")?;
    let target = inside.strip_suffix("/main.rs").or_else(|| inside.strip_suffix(".rs"))?;
    (!target.contains('/')).then_some(target)
}

/// `tests/tests/sim/loss.rs` of member `tests` is module `loss` of the integration test `sim`, where that has a `main.rs`.
fn module_of_test<'a>(repo: &Repo, path: &'a str, member: &str) -> Option<(&'a str, &'a str)> {
    let inside = path.strip_prefix(member)?.strip_prefix("/tests/")?;
    let (target, module) = inside.strip_suffix(".rs")?.split_once('/')?;
    let is_module =
        module != "main" && !module.contains('/') && repo.paths.contains(&root_of(member, target));
    is_module.then_some((target, module))
}

fn root_of(member: &str, target: &str) -> String {
    format!("{member}/tests/{target}/main.rs")
}

/// What is wrong with a module of an integration test: nobody declares it, or every suite's filter leaves it out.
fn forgotten(repo: &Repo, manifest: &Manifest, path: &str, member: &str, package: &str) -> Option<Finding> {
    let (target, module) = module_of_test(repo, path, member)?;
    let root = root_of(member, target);
    let declaration = format!("mod {module};");
    let declares = |code: &String| code.trim_end().ends_with(&declaration);
    if !repo.sources.iter().any(|file| file.path == root && file.code.iter().any(declares)) {
        return Some(finding(path, format!("is no module of {root}"), "declare it there: mod NAME;"));
    }
    let runs = manifest.suites.iter().any(|suite| suite.runs_module(package, target, module));
    let fix = "add a suite with command \"test:PACKAGE/TARGET\", \"MODULE::\" to tests/suites.toml";
    (!runs).then(|| finding(path, "is in no suite".into(), fix))
}

/// Is a test among the words of a script?
fn names(script: &str, target: &str) -> bool {
    script.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == target)
}

fn has_unit_tests(repo: &Repo, member: &str) -> bool {
    let source = format!("{member}/src/");
    let inside = repo.sources.iter().filter(|file| file.path.starts_with(&source));
    inside.flat_map(|file| &file.code).any(|code| code.trim_start().starts_with("#[test]"))
}

fn runs_units(manifest: &Manifest, package: &str) -> bool {
    let is_it =
        |command| matches!(command, Command::Tests { package: of, target: None, .. } if of == package);
    manifest.suites.iter().any(|suite| is_it(suite.command()))
}

#[cfg(test)]
mod tests {
    use super::super::repo::fake;
    use super::*;

    fn found(command: &str) -> Vec<String> {
        let suites = format!(
            "[[suite]]\nname = \"a\"\ntier = \"fast\"\ncommand = [\"{command}\"]\nminimum = 1\n\
             deadline_s = 1\ncovers = \"x\"\n"
        );
        let repo = fake(&[
            ("Cargo.toml", "[workspace]\nmembers = [\"server\", \"tests\"]"),
            ("server/Cargo.toml", "[package]\nname = \"gradwire-server\""),
            ("server/src/lib.rs", "#[cfg(test)]\nmod tests {\n    #[test]\n    fn a() {}\n}"),
            ("tests/Cargo.toml", "[package]\nname = \"gradwire-tests\""),
            ("tests/src/lib.rs", ""),
            ("tests/tests/sim_loss.rs", "#[test]\nfn a() {}"),
            ("tests/tests/common/mod.rs", ""),
            (FILE, &suites),
        ]);
        complete(&repo).into_iter().map(|finding| format!("{}: {}", finding.path, finding.what)).collect()
    }

    #[test]
    fn forgotten_tests_are_named() {
        let units = "tests/suites.toml: the unit tests of gradwire-server are in no suite";
        let integration = "tests/tests/sim_loss.rs: is in no suite";
        assert_eq!(found("true"), [units, integration]);
        assert_eq!(found("test:gradwire-server"), [integration]);
        assert_eq!(found("test:gradwire-tests/sim_*"), [units]);
    }

    #[test]
    fn modules_that_nobody_declares_or_runs_are_named() {
        let found = |args: &str| {
            let suites = format!(
                "[[suite]]\nname = \"a\"\ntier = \"fast\"\ncommand = [\"test:gradwire-tests/sim\"{args}]\n\
                 minimum = 1\ndeadline_s = 1\ncovers = \"x\"\n"
            );
            let repo = fake(&[
                ("Cargo.toml", "[workspace]\nmembers = [\"tests\"]"),
                ("tests/Cargo.toml", "[package]\nname = \"gradwire-tests\""),
                ("tests/tests/sim/main.rs", "mod loss;\nmod rows;\n"),
                ("tests/tests/sim/loss.rs", ""),
                ("tests/tests/sim/order.rs", ""),
                ("tests/tests/sim/rows.rs", ""),
                ("tests/tests/common/mod.rs", ""),
                (FILE, &suites),
            ]);
            let findings = complete(&repo).into_iter();
            findings.map(|finding| format!("{}: {}", finding.path, finding.what)).collect::<Vec<_>>()
        };
        let undeclared = "tests/tests/sim/order.rs: is no module of tests/tests/sim/main.rs";
        let rows = "tests/tests/sim/rows.rs: is in no suite";
        assert_eq!(found(""), [undeclared]);
        assert_eq!(found(", \"loss::\""), [undeclared, rows]);
        assert_eq!(found(", \"--skip=rows::\", \"--ignored\""), [undeclared, rows]);
        assert_eq!(found(", \"loss::\", \"rows::one_test\""), [undeclared]);
    }

    #[test]
    fn a_script_names_whole_words() {
        assert!(names("build.sh drivers rdma_train)", "rdma_train"));
        assert!(!names("build.sh rdma_training", "rdma_train"));
    }

    #[test]
    fn a_wrong_manifest_is_a_finding() {
        assert!(found("\", 1, \"")[0].starts_with("tests/suites.toml: "));
    }
}
