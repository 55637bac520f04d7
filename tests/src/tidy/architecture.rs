//! Who may know whom: dependencies between the workspace's crates, the one lint table, pure engines.

use super::source::words;
use super::{Finding, Repo};
use std::collections::BTreeSet;

/// Pairs of directories whose crates must not know each other, in either direction.
const STRANGERS: [(&str, &str); 5] = [
    ("scheduler", "server"),
    ("scheduler", "worker"),
    ("server", "worker"),
    ("proto-common", "fabric"),
    ("proto-common/data", "fabric"),
];
/// What every pure module says at its top.
const PURE: &str = "#![deny(clippy::disallowed_methods, clippy::disallowed_types)]";
/// The only manifests that name the feature that breaks the server's rules.
const KNOWS_SABOTAGE: [&str; 2] = ["server/Cargo.toml", "tests/Cargo.toml"];
/// Crates that may be depended on by no shipped crate: they see everything.
const SEE_ALL: [&str; 2] = ["tests", "benches"];

/// What may tell transports apart: the table of their names, and that of how they are opened.
const TRANSPORT_TABLES: [&str; 2] = ["fabric/drivers/src/lib.rs", "fabric/src/devices.rs"];

/// No other code has a branch for each transport. If it had, a new transport would have to be added there, too.
#[must_use]
pub fn transports(repo: &Repo) -> Vec<Finding> {
    let is_branch = |code: &str, at: usize| {
        let Some(variant) = code[at..].strip_prefix("Driver::") else { return false };
        let length = variant.find(|c: char| !c.is_alphanumeric()).unwrap_or(variant.len());
        let is_variant =
            variant.starts_with(|c: char| c.is_uppercase()) && !variant[length..].starts_with('(');
        let rest = variant[length..].trim_start_matches(')').trim_start();
        is_variant
            && ["=>", "|", "if "].iter().any(|after| rest.starts_with(after) && !rest.starts_with("||"))
    };
    let others = repo.sources.iter().filter(|source| !TRANSPORT_TABLES.contains(&source.path.as_str()));
    let mut findings = Vec::new();
    for source in others {
        for (line, code) in source.production() {
            if words(code, "Driver").any(|at| is_branch(code, at)) {
                findings.push(Finding {
                    path: source.path.clone(),
                    line: line + 1,
                    what: "a branch for one transport".into(),
                    fix: "ask the driver (`shares_memory`, `is_device`, `uses_sockets`), or add a fact to its table",
                });
            }
        }
    }
    findings
}

/// Roles never use one another; what they share lies in crates below them.
#[must_use]
pub fn strangers(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (one, other) in STRANGERS {
        findings.extend(knows(repo, one, other));
        findings.extend(knows(repo, other, one));
    }
    for member in repo.members() {
        findings.extend(SEE_ALL.iter().filter_map(|tool| knows(repo, member, tool)));
    }
    findings
}

/// Rules of the server can be broken in tests that ask for it (the feature `sabotage`), and in nothing that is shipped: no other
/// manifest, script or image names the feature, and it is nobody's default.
#[must_use]
pub fn broken_rules(repo: &Repo) -> Vec<Finding> {
    let builds = |path: &str| {
        let is_manifest = path.ends_with("Cargo.toml") && !KNOWS_SABOTAGE.contains(&path);
        is_manifest || path.starts_with("deploy/") || path.starts_with(".ci/")
    };
    let fix = "leave the feature `sabotage` to gradwire-tests, which asks for it where it is wanted";
    let finding = |path: &str, what: &str| Finding { path: path.into(), line: 1, what: what.into(), fix };
    let named = repo.texts.iter().filter(|(path, text)| builds(path) && text.contains("sabotage"));
    let mut findings: Vec<Finding> =
        named.map(|(path, _)| finding(path, "names a feature that breaks rules")).collect();
    for path in KNOWS_SABOTAGE {
        let Some(manifest) = repo.manifests.get(path) else { continue };
        let default = manifest.get("features").and_then(|features| features.get("default"));
        let asks = ["dependencies", "dev-dependencies"].iter().filter_map(|kind| manifest.get(*kind));
        if default.into_iter().chain(asks).any(|table| table.to_string().contains("sabotage")) {
            findings.push(finding(path, "breaks rules without being asked to"));
        }
    }
    findings
}

/// Every package takes its lints from the one table.
#[must_use]
pub fn lint_table(repo: &Repo) -> Vec<Finding> {
    let shares = |member: &&str| {
        let manifest = repo.manifests.get(&manifest_path(member));
        let flag = manifest.and_then(|table| table.get("lints")?.get("workspace")?.as_bool());
        flag == Some(true)
    };
    let finding = |member| {
        let fix = "add `[lints] workspace = true`";
        Finding { path: manifest_path(member), line: 1, what: "has lints of its own".into(), fix }
    };
    repo.members().into_iter().filter(|member| !shares(member)).map(finding).collect()
}

/// Engines (and proto-common) deny clocks, sockets, channels and the environment, and the lists of those
/// are in force.
#[must_use]
pub fn pure_engines(repo: &Repo) -> Vec<Finding> {
    let is_engine = |path: &str| {
        path == "proto-common/src/lib.rs"
            || path == "proto-common/data/src/lib.rs"
            || path.ends_with("/src/engine/mod.rs")
            || path.ends_with("/src/engine.rs")
    };
    let mut findings = Vec::from_iter(purity_lists(repo));
    for source in repo.sources.iter().filter(|source| is_engine(&source.path)) {
        if !source.code.iter().any(|code| code.trim() == PURE) {
            findings.push(Finding {
                path: source.path.clone(),
                line: 1,
                what: "an engine that does not deny clocks, sockets and channels".into(),
                fix: "add `#![deny(clippy::disallowed_methods, clippy::disallowed_types)]`",
            });
        }
    }
    findings
}

/// `deny` in an engine means nothing without the lists of `clippy.toml`, and these would hit every crate
/// without `allow` in the lint table.
fn purity_lists(repo: &Repo) -> Option<Finding> {
    let lists = repo.texts.get("clippy.toml").map(String::as_str).unwrap_or_default();
    let lints =
        repo.manifests.get("Cargo.toml").and_then(|root| root.get("workspace")?.get("lints")?.get("clippy"));
    let in_force = ["disallowed-methods", "disallowed-types"].iter().all(|list| {
        let lint = list.replace('-', "_");
        let level = lints.and_then(|table| table.get(&lint)?.as_str());
        lists.contains(&format!("\n{list} = [")) && level == Some("allow")
    });
    (!in_force).then(|| Finding {
        path: "clippy.toml".into(),
        line: 1,
        what: "the lists that keep engines pure are not in force".into(),
        fix: "keep disallowed-methods and -types here, and both lints at \"allow\" in the root Cargo.toml",
    })
}

fn manifest_path(directory: &str) -> String {
    format!("{directory}/Cargo.toml")
}

fn knows(repo: &Repo, one: &str, other: &str) -> Option<Finding> {
    let name = repo.package_name(other)?;
    dependencies(repo, one).contains(name).then(|| Finding {
        path: manifest_path(one),
        line: 1,
        what: format!("depends on {name}"),
        fix: "move what both need into a crate below both (design: the house)",
    })
}

/// Package names of everything a package depends on directly, for builds, tests and any target.
fn dependencies(repo: &Repo, directory: &str) -> BTreeSet<String> {
    let Some(manifest) = repo.manifests.get(&manifest_path(directory)) else { return BTreeSet::new() };
    let targets = manifest.get("target").and_then(toml::Value::as_table).into_iter().flatten();
    let tables = targets.filter_map(|(_, table)| table.as_table()).chain([manifest]);
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    tables
        .flat_map(|table| kinds.iter().filter_map(|kind| table.get(*kind)?.as_table()))
        .flatten()
        .map(|(key, value)| package_of(repo, key, value))
        .collect()
}

/// A dependency's real name: `fabric.workspace = true` may be `package = "gradwire-fabric"` at the root.
fn package_of(repo: &Repo, key: &str, value: &toml::Value) -> String {
    let renamed = |value: &toml::Value| value.get("package").and_then(toml::Value::as_str).map(str::to_owned);
    let at_root = || {
        let root = repo.manifests.get("Cargo.toml")?;
        renamed(root.get("workspace")?.get("dependencies")?.get(key)?)
    };
    renamed(value).or_else(at_root).unwrap_or_else(|| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::repo::fake;
    use super::*;

    const ROOT: &str = "[workspace]\nmembers = [\"fabric\", \"proto-common\", \"server\", \"worker\", \"tests\"]\n\
        [workspace.dependencies]\nfabric = { package = \"gradwire-fabric\", path = \"fabric\" }\n\
        gradwire-server = { path = \"server\" }\n";

    fn house(worker: &str, proto: &str) -> Repo {
        let package = |name: &str, rest: &str| format!("[package]\nname = \"{name}\"\n{rest}");
        fake(&[
            ("Cargo.toml", ROOT),
            ("fabric/Cargo.toml", &package("gradwire-fabric", "[lints]\nworkspace = true\n")),
            ("proto-common/Cargo.toml", &package("gradwire-proto-common", proto)),
            ("server/Cargo.toml", &package("gradwire-server", "[lints]\nworkspace = true\n")),
            ("worker/Cargo.toml", &package("gradwire-worker", worker)),
            ("tests/Cargo.toml", &package("gradwire-tests", "[lints]\nworkspace = false\n")),
        ])
    }

    fn paths(findings: Vec<Finding>) -> Vec<String> {
        findings.into_iter().map(|finding| finding.path).collect()
    }

    #[test]
    fn roles_may_use_the_fabric_and_not_each_other() {
        assert!(strangers(&house("[dependencies]\nfabric.workspace = true\n", "")).is_empty());
        for worker in [
            "[dependencies]\ngradwire-server.workspace = true\n",
            "[dev-dependencies]\ngradwire-server = { path = \"../server\" }\n",
            "[dependencies]\ns = { package = \"gradwire-server\", path = \"../server\" }\n",
            "[target.'cfg(unix)'.dependencies]\ngradwire-server.workspace = true\n",
            "[dependencies]\ngradwire-tests = { path = \"../tests\" }\n",
        ] {
            assert_eq!(paths(strangers(&house(worker, ""))), ["worker/Cargo.toml"], "{worker}");
        }
    }

    #[test]
    fn a_renamed_workspace_dependency_is_recognised() {
        let findings = strangers(&house("", "[dependencies]\nfabric.workspace = true\n"));
        assert_eq!(paths(findings), ["proto-common/Cargo.toml"]);
    }

    #[test]
    fn transports_are_told_apart_in_their_tables_only() {
        let found = |path: &str, text: &str| transports(&fake(&[(path, text)])).len();
        for branch in [
            "match d { Driver::Shm => 1 }",
            "match d { Some(Driver::Shm) => 1 }",
            "matches!(d, Driver::Shm | Driver::Tcp)",
            "match d { Driver::Shm if a => 1 }",
        ] {
            assert_eq!(found("worker/src/a.rs", branch), 1, "{branch}");
            assert_eq!(found("fabric/src/devices.rs", branch), 0);
            assert_eq!(found("worker/tests/a.rs", branch), 0);
        }
        for other in [
            "d == Driver::Shm || a",
            "LaneDriver::New => 1",
            "match d { Driver::New(a) => 1 }",
            "Driver::new(); match a { _ => 1 }",
            "let x = [Driver::Shm, Driver::Tcp];",
        ] {
            assert_eq!(found("worker/src/a.rs", other), 0, "{other}");
        }
    }

    #[test]
    fn packages_without_the_lint_table_are_found() {
        let found = paths(lint_table(&house("[lints]\nworkspace = true\n", "")));
        assert_eq!(found, ["proto-common/Cargo.toml", "tests/Cargo.toml"]);
    }

    #[test]
    fn rules_are_broken_by_who_asks_only() {
        let found = |path: &str, text: &str| broken_rules(&fake(&[("Cargo.toml", ROOT), (path, text)])).len();
        let asks = "[features]\ndefault = [\"rigs\"]\nsabotage = [\"gradwire-server/sabotage\"]\n";
        assert_eq!(found("tests/Cargo.toml", asks), 0);
        assert_eq!(found("tests/Cargo.toml", "[features]\ndefault = [\"sabotage\"]\n"), 1);
        let dependency =
            "[dependencies]\ngradwire-server = { path = \"../server\", features = [\"sabotage\"] }\n";
        assert_eq!(found("tests/Cargo.toml", dependency), 1);
        assert_eq!(found("worker/Cargo.toml", dependency), 1);
        assert_eq!(found("deploy/build.sh", "cargo build --features sabotage\n"), 1);
    }

    #[test]
    fn engines_must_deny() {
        let root = "[workspace.lints.clippy]\ndisallowed_methods = \"allow\"\ndisallowed_types = \"allow\"\n";
        let repo = fake(&[
            ("Cargo.toml", root),
            ("clippy.toml", "\ndisallowed-methods = []\ndisallowed-types = []\n"),
            (
                "server/src/engine/mod.rs",
                "//! X.\n#![deny(clippy::disallowed_methods, clippy::disallowed_types)]\n",
            ),
            (
                "worker/src/engine/mod.rs",
                "//! X.\n// #![deny(clippy::disallowed_methods, clippy::disallowed_types)]\n",
            ),
            ("worker/src/engine/credit.rs", "//! X.\n"),
        ]);
        assert_eq!(paths(pure_engines(&repo)), ["worker/src/engine/mod.rs"]);
    }

    #[test]
    fn purity_needs_lists_and_levels() {
        let both = "\ndisallowed-methods = []\ndisallowed-types = []\n";
        let allow =
            "[workspace.lints.clippy]\ndisallowed_methods = \"allow\"\ndisallowed_types = \"allow\"\n";
        let found = |root: &str, lists: &str| {
            pure_engines(&fake(&[("Cargo.toml", root), ("clippy.toml", lists)])).len()
        };
        assert_eq!(found(allow, both), 0);
        assert_eq!(found(allow, "\ndisallowed-methods = []\n"), 1);
        assert_eq!(found("", both), 1);
    }
}
