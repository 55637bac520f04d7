//! `tests/suites.toml`: its form and its checks. Must not run anything.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// No suite may run longer than this, whatever its file says.
const DEADLINE_S_MAX: u64 = 6 * 3600;
/// Marks a command that runs test executables of the common build: `test:PACKAGE` or `test:PACKAGE/TARGET`.
const TEST_PREFIX: &str = "test:";

/// All suites.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// What installs the programs that suites need. It runs beside the common build, except for `make quick`.
    #[serde(default)]
    pub prepare: Vec<String>,
    /// In the order of the file.
    #[serde(rename = "suite")]
    pub suites: Vec<Suite>,
}

/// When a suite runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// With every `make test`.
    Fast,
    /// With `make test-all` only.
    Slow,
    /// With `make quick` only: a choice from a fast suite.
    Quick,
}

/// One suite.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// Its name, also that of its log.
    pub name: String,
    /// When it runs.
    pub tier: Tier,
    /// What runs: a program with its arguments, or `test:PACKAGE[/TARGET]` with arguments for the test
    /// executables of the common build.
    pub command: Vec<String>,
    /// Fewer tests than this are a failure.
    pub minimum: u64,
    /// Seconds that it may take on a machine with two cores; more is a warning. Without it: its deadline.
    pub budget_s: Option<u64>,
    /// Seconds after which it is killed.
    pub deadline_s: u64,
    /// What it covers, for people.
    pub covers: String,
    /// What the machine must have: see [`super::needs`].
    #[serde(default)]
    pub needs: Vec<String>,
    /// Whether `make quick` runs it, too.
    #[serde(default)]
    pub quick: bool,
    /// Whether nothing may run beside it, because it depends on time.
    #[serde(default)]
    pub alone: bool,
    /// How many of the runner's slots it takes; none where it mostly waits.
    #[serde(default = "one")]
    pub slots: u64,
    /// What runs beside the common build already, such as a download. It may fail: the suite itself judges.
    #[serde(default)]
    pub prepare: Vec<String>,
    /// Additional environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

fn one() -> u64 {
    1
}

/// What a suite's command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Test executables of the common build.
    Tests {
        /// Package they belong to.
        package: &'a str,
        /// Name of the integration test, `*` allowed at its end; `None`: the package's unit tests.
        target: Option<&'a str>,
        /// Arguments for each executable.
        args: &'a [String],
    },
    /// A program of its own.
    Program(&'a [String]),
}

impl Suite {
    /// What to run.
    #[must_use]
    pub fn command(&self) -> Command<'_> {
        let tests = self.command.split_first().and_then(|(first, args)| {
            let spec = first.strip_prefix(TEST_PREFIX)?;
            let (package, target) = match spec.split_once('/') {
                Some((package, target)) => (package, Some(target)),
                None => (spec, None),
            };
            Some(Command::Tests { package, target, args })
        });
        tests.unwrap_or(Command::Program(&self.command))
    }

    /// How long it may take without a warning.
    #[must_use]
    pub fn budget(&self) -> Duration {
        Duration::from_secs(self.budget_s.unwrap_or(self.deadline_s))
    }

    /// When it is killed, counted from its start.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline_s)
    }

    /// Whether it runs the integration test `target` of `package`.
    #[must_use]
    pub fn runs(&self, package: &str, target: &str) -> bool {
        match self.command() {
            Command::Tests { package: of, target: Some(pattern), .. } => {
                of == package && matches_target(pattern, target)
            }
            _ => false,
        }
    }

    /// Whether it runs tests of one module of the integration test `target`: what libtest's filters among its arguments let through.
    #[must_use]
    pub fn runs_module(&self, package: &str, target: &str, module: &str) -> bool {
        let Command::Tests { args, .. } = self.command() else { return false };
        let module = format!("{module}::");
        let mut filters = args.iter().filter(|arg| !arg.starts_with("--")).peekable();
        let is_skipped =
            args.iter().filter_map(|arg| arg.strip_prefix("--skip=")).any(|skip| module.contains(skip));
        let is_taken = filters.peek().is_none()
            || filters.any(|filter| module.contains(filter.as_str()) || filter.starts_with(&module));
        self.runs(package, target) && is_taken && !is_skipped
    }

    fn check(&self) -> Result<()> {
        let name_is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        ensure!(
            !self.name.is_empty() && self.name.chars().all(name_is_plain),
            "name {:?}: use lower case letters, digits and dashes, it names a log file",
            self.name
        );
        ensure!(!self.command.is_empty(), "command is empty: name what to run");
        ensure!(self.minimum >= 1, "minimum is 0: a suite that may run nothing tests nothing");
        ensure!(
            (1..=DEADLINE_S_MAX).contains(&self.deadline_s),
            "deadline_s = {}: use 1 to {DEADLINE_S_MAX}",
            self.deadline_s
        );
        ensure!(
            (1..=self.deadline_s).contains(&self.budget().as_secs()),
            "budget_s = {}: use 1 to deadline_s, which is {}",
            self.budget().as_secs(),
            self.deadline_s
        );
        for need in &self.needs {
            super::needs::parse(need)?;
        }
        Ok(())
    }
}

/// Whether the name of an integration test fits a pattern that may end with `*`.
#[must_use]
pub fn matches_target(pattern: &str, target: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => target.starts_with(prefix),
        None => pattern == target,
    }
}

/// Reads and checks a manifest.
pub fn parse(text: &str) -> Result<Manifest> {
    let manifest: Manifest = toml::from_str(text)?;
    let mut names = BTreeSet::new();
    for suite in &manifest.suites {
        suite.check().with_context(|| format!("suite {:?}", suite.name))?;
        ensure!(names.insert(&suite.name), "suite {:?} is there twice: rename one", suite.name);
    }
    ensure!(!manifest.suites.is_empty(), "no suite: add a [[suite]] section");
    Ok(manifest)
}

/// Reads and checks the manifest of the repository at `root`.
pub fn load(root: &Path) -> Result<Manifest> {
    let path = root.join("tests/suites.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    parse(&text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [[suite]]
        name = "a"
        tier = "fast"
        command = ["test:pkg/sim_*", "--test-threads=1"]
        minimum = 1
        budget_s = 4
        deadline_s = 5
        covers = "x"
        needs = ["root", "program:ip"]
    "#;

    #[test]
    fn reads_a_suite_of_test_executables() {
        let manifest = parse(GOOD).unwrap();
        let suite = &manifest.suites[0];
        let args = ["--test-threads=1".to_owned()];
        assert_eq!(suite.command(), Command::Tests { package: "pkg", target: Some("sim_*"), args: &args });
        assert!(suite.runs("pkg", "sim_loss"));
        assert!(!suite.runs("pkg", "process_kill"));
        assert!(!suite.runs("other", "sim_loss"));
    }

    #[test]
    fn a_package_alone_means_its_unit_tests() {
        let text = GOOD.replace("/sim_*", "");
        let manifest = parse(&text).unwrap();
        assert!(matches!(manifest.suites[0].command(), Command::Tests { target: None, .. }));
        assert!(!manifest.suites[0].runs("pkg", "sim_loss"));
    }

    #[test]
    fn any_other_command_is_a_program() {
        let text = GOOD.replace("test:pkg/sim_*", "cargo");
        let manifest = parse(&text).unwrap();
        assert!(matches!(manifest.suites[0].command(), Command::Program([first, _]) if first == "cargo"));
    }

    #[test]
    fn refuses_what_would_test_nothing_or_never_end() {
        let refused = |from: &str, to: &str, why: &str| {
            let error = format!("{:#}", parse(&GOOD.replace(from, to)).unwrap_err());
            assert!(error.contains(why), "{error}");
        };
        refused("minimum = 1", "minimum = 0", "tests nothing");
        refused("deadline_s = 5", "deadline_s = 0", "deadline_s = 0");
        refused("budget_s = 4", "budget_s = 0", "budget_s = 0");
        refused("budget_s = 4", "budget_s = 6", "budget_s = 6");
        refused("deadline_s = 5", "deadline_s = 21601", "deadline_s = 21601");
        refused("name = \"a\"", "name = \"A b\"", "lower case");
        refused("covers", "cover", "unknown field");
        refused("\"root\"", "\"luck\"", "luck");
        refused(r#""test:pkg/sim_*", "--test-threads=1""#, "", "command is empty");
        let twice = format!("{GOOD}{GOOD}");
        assert!(parse(&twice).unwrap_err().to_string().contains("twice"));
    }

    #[test]
    fn the_longest_deadline_is_allowed() {
        assert!(parse(&GOOD.replace("deadline_s = 5", "deadline_s = 21600")).is_ok());
    }
}
