//! One build of all test executables and daemons, and the list of what it made. One build for all suites,
//! because building package by package picks other features of shared dependencies and compiles them again.

use super::manifest::matches_target;
use super::process::{Ending, Stop, run_reading};
use anyhow::Result;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A build that takes longer hangs.
pub const DEADLINE: Duration = Duration::from_secs(30 * 60);

/// A built test executable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestExecutable {
    /// Package it belongs to.
    pub package: String,
    /// Name of the integration test; `None`: unit tests of a library or program.
    pub target: Option<String>,
    /// The file.
    pub file: PathBuf,
    /// Directory of its package: what cargo runs it in.
    pub directory: PathBuf,
}

impl TestExecutable {
    /// Whether a suite's `test:PACKAGE[/TARGET]` means it.
    #[must_use]
    pub fn matches(&self, package: &str, target: Option<&str>) -> bool {
        self.package == package
            && match (target, &self.target) {
                (None, None) => true,
                (Some(pattern), Some(name)) => matches_target(pattern, name),
                _ => false,
            }
    }
}

/// What the build made.
#[derive(Debug)]
pub struct Built {
    /// All test executables that compiled.
    pub tests: Vec<TestExecutable>,
    /// How it ended.
    pub ending: Ending,
}

/// Builds the workspace at `root`, also the libraries that other languages link; `locked` refuses to change `Cargo.lock`.
pub fn build(root: &Path, log: &File, locked: bool, stop: &Stop) -> Result<Built> {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["build", "--workspace", "--lib", "--bins", "--tests", "--keep-going"]);
    command.arg("--message-format=json-render-diagnostics");
    if locked {
        command.arg("--locked");
    }
    let (ending, tests) = run_reading(&mut command, log, DEADLINE, stop, |output| executables(output))?;
    Ok(Built { tests: tests.unwrap_or_default(), ending })
}

/// One line of cargo's output; lines of other kinds lack most of it.
#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    package_id: String,
    #[serde(default)]
    manifest_path: PathBuf,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

fn executables(output: &mut dyn Read) -> Vec<TestExecutable> {
    BufReader::new(output).lines().map_while(Result::ok).filter_map(|line| executable(&line)).collect()
}

fn executable(line: &str) -> Option<TestExecutable> {
    let message: Message = serde_json::from_str(line).ok()?;
    if message.reason != "compiler-artifact" || !message.profile?.test {
        return None;
    }
    let target = message.target?;
    let integration = target.kind.iter().any(|kind| kind == "test");
    Some(TestExecutable {
        package: package_name(&message.package_id)?.to_owned(),
        target: integration.then_some(target.name),
        file: message.executable?,
        directory: message.manifest_path.parent()?.to_owned(),
    })
}

/// `path+file:///a/fabric#gradwire-fabric@0.1.0` and `path+file:///a/gradwire-fabric#0.1.0` are one package.
fn package_name(id: &str) -> Option<&str> {
    let (url, fragment) = id.split_once('#')?;
    match fragment.split_once('@') {
        Some((name, _)) => Some(name),
        None => url.rsplit('/').next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(kind: &str, name: &str, test: bool, executable: &str) -> String {
        serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": "path+file:///a/fabric#gradwire-fabric@0.1.0",
            "manifest_path": "/a/fabric/Cargo.toml",
            "target": { "kind": [kind], "name": name, "src_path": "/a/x.rs" },
            "profile": { "test": test, "opt_level": "0" },
            "executable": (!executable.is_empty()).then_some(executable),
        })
        .to_string()
    }

    #[test]
    fn finds_test_executables_among_cargos_lines() {
        let lines = [
            r#"{"reason":"build-script-executed","package_id":"x"}"#.to_owned(),
            artifact("lib", "fabric", true, "/t/fabric-1"),
            artifact("lib", "fabric", false, ""),
            artifact("bin", "gradwire", false, "/t/gradwire"),
            artifact("test", "sim_loss", true, "/t/sim_loss-1"),
            "not json".to_owned(),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let found = executables(&mut lines.join("\n").as_bytes());
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].directory, Path::new("/a/fabric"));
        assert!(found[0].matches("gradwire-fabric", None));
        assert!(!found[0].matches("gradwire-fabric", Some("*")));
        assert!(found[1].matches("gradwire-fabric", Some("sim_*")));
        assert!(!found[1].matches("gradwire-fabric", Some("sim")));
        assert!(!found[1].matches("gradwire-server", Some("sim_loss")));
    }

    #[test]
    fn knows_both_forms_of_a_package_id() {
        assert_eq!(package_name("path+file:///a/fabric#gradwire-fabric@0.1.0"), Some("gradwire-fabric"));
        assert_eq!(package_name("path+file:///a/gradwire-fabric#0.1.0"), Some("gradwire-fabric"));
        assert_eq!(package_name("odd"), None);
    }
}
