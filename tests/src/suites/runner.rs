//! Builds, runs the chosen suites one after the other and reports. Everything goes through `out`, so that
//! only the program decides where lines go.

use super::build::{Built, build};
use super::count::{Count, count};
use super::failures::{SuiteFailures, details};
use super::manifest::{Command, Manifest, Suite, Tier};
use super::needs::lacking;
use super::process::{Ending, Stop, run};
use super::verdict::{Outcome, Verdict, closing_line, judge, not_run};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process;
use std::time::{Duration, Instant};

/// Lines of a failed suite's log that are shown at once.
const TAIL_LINES: usize = 60;
/// Settings of a user's own cluster must not reach the suites.
const FOREIGN_PREFIXES: [&str; 3] = ["GRADWIRE_", "DMLC_", "PS_"];

/// What to run, and how strictly.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The slow tier too.
    pub all: bool,
    /// Only these suites, whatever their tier; empty: all of the tiers.
    pub only: Vec<String>,
    /// CI: a fast suite that does not run is a failure, and `Cargo.lock` must not change.
    pub is_strict: bool,
}

impl Choice {
    fn takes(&self, suite: &Suite) -> bool {
        if self.only.is_empty() {
            self.all || suite.tier == Tier::Fast
        } else {
            self.only.contains(&suite.name)
        }
    }

    fn check(&self, manifest: &Manifest) -> Result<()> {
        let known = |name: &String| manifest.suites.iter().any(|suite| suite.name == *name);
        let unknown: Vec<_> = self.only.iter().filter(|name| !known(name)).collect();
        ensure!(unknown.is_empty(), "no such suite: {unknown:?}; `suites --list` names them");
        Ok(())
    }
}

/// Runs the suites of the repository at `root`; true if nothing failed.
pub fn run_suites(
    root: &Path,
    manifest: &Manifest,
    choice: &Choice,
    stop: &Stop,
    out: &mut dyn Write,
) -> Result<bool> {
    choice.check(manifest)?;
    let logs = root.join("target/suites");
    std::fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    let chosen: Vec<_> = manifest.suites.iter().filter(|suite| choice.takes(suite)).collect();
    let mut session = Session { root, logs, choice, stop, out, failures: Vec::new() };

    let (built, build_fault) = session.build(&chosen)?;
    let mut verdicts = Vec::from_iter(build_fault);
    for suite in chosen {
        if stop.is_asked() {
            break;
        }
        let outcome = session.suite(suite, &built)?;
        verdicts.push(Verdict { name: suite.name.clone(), outcome });
    }
    session.report(&verdicts)
}

struct Session<'a> {
    root: &'a Path,
    logs: PathBuf,
    choice: &'a Choice,
    stop: &'a Stop,
    out: &'a mut dyn Write,
    /// What the suites that failed said, for the end.
    failures: Vec<SuiteFailures>,
}

impl Session<'_> {
    /// The common build; where it fails, what compiled still runs, and the failure is a verdict.
    fn build(&mut self, chosen: &[&Suite]) -> Result<(Built, Option<Verdict>)> {
        let log_file = self.logs.join("build.log");
        writeln!(self.out, "build: all tests and daemons, log in {}", self.shown(&log_file))?;
        let log = File::create(&log_file)?;
        let start = Instant::now();
        let built = build(self.root, &log, self.choice.is_strict, self.stop)?;
        let took = start.elapsed();
        if built.ending == (Ending::Exited { code: 0 }) {
            writeln!(
                self.out,
                "build: done in {:.1} s, {} test executables for {} suites",
                took.as_secs_f64(),
                built.tests.len(),
                chosen.len()
            )?;
            return Ok((built, None));
        }
        let fault = Some(format!("the build did not succeed; see {}", self.shown(&log_file)));
        let outcome = Outcome::Ran { count: Count::default(), took, fault };
        self.failed("build", &outcome, &log_file)?;
        Ok((built, Some(Verdict { name: "build".into(), outcome })))
    }

    fn suite(&mut self, suite: &Suite, built: &Built) -> Result<Outcome> {
        if let Some(reason) = lacking(&suite.needs) {
            writeln!(self.out, "{}: not run: {reason}", suite.name)?;
            return Ok(not_run(suite, reason, self.choice.is_strict));
        }
        let commands = self.commands(suite, built);
        let log_file = self.logs.join(format!("{}.log", suite.name));
        let log = File::create(&log_file)?;
        write!(self.out, "{}: {} … ", suite.name, suite.covers)?;
        self.out.flush()?;

        let start = Instant::now();
        let mut endings = Vec::new();
        for mut command in commands {
            writeln!(&log, "$ {}", command.get_program().display())?;
            command.envs(&suite.env);
            let left = suite.deadline().saturating_sub(start.elapsed());
            let ending = run(&mut command, &log, left, self.stop)?;
            endings.push(ending);
            if matches!(ending, Ending::Deadline | Ending::Stopped) {
                break;
            }
        }
        let text = String::from_utf8_lossy(&std::fs::read(&log_file)?).into_owned();
        let outcome = self.judge(suite, count(&text), &endings, start.elapsed());
        if outcome.total().failed == 0 {
            writeln!(self.out, "{} passed, {:.1} s", outcome.total().passed, start.elapsed().as_secs_f64())?;
        } else {
            writeln!(self.out, "FAILED")?;
            self.failed(&suite.name, &outcome, &log_file)?;
        }
        Ok(outcome)
    }

    fn judge(&self, suite: &Suite, counted: Option<Count>, endings: &[Ending], took: Duration) -> Outcome {
        if endings.is_empty() {
            let fault = "its test executables do not exist: did they compile, is the target's name right?";
            return Outcome::Ran { count: Count::default(), took, fault: Some(fault.into()) };
        }
        judge(suite, counted, endings, took)
    }

    fn commands(&self, suite: &Suite, built: &Built) -> Vec<process::Command> {
        let mut commands = match suite.command() {
            Command::Program(argv) => {
                let mut command = process::Command::new(&argv[0]);
                command.args(&argv[1..]).current_dir(self.root);
                vec![command]
            }
            Command::Tests { package, target, args } => {
                let tests = built.tests.iter().filter(|test| test.matches(package, target));
                tests
                    .map(|test| {
                        let mut command = process::Command::new(&test.file);
                        command.args(args).current_dir(&test.directory);
                        command.env("CARGO_MANIFEST_DIR", &test.directory);
                        command
                    })
                    .collect()
            }
        };
        for command in &mut commands {
            command.env("CARGO_TERM_COLOR", "never");
            for (name, _) in std::env::vars_os() {
                if FOREIGN_PREFIXES.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                    command.env_remove(name);
                }
            }
        }
        commands
    }

    /// Shows the log's last lines now, and keeps for the end what failed.
    fn failed(&mut self, suite: &str, outcome: &Outcome, log_file: &Path) -> Result<()> {
        let text = String::from_utf8_lossy(&std::fs::read(log_file)?).into_owned();
        let fault = match outcome {
            Outcome::Ran { fault, .. } => fault.as_deref(),
            Outcome::NotRun { .. } => None,
        };
        let shown = self.shown(log_file).to_string();
        self.failures.push(SuiteFailures::find(suite, shown, &text, fault));
        let lines: Vec<_> = text.lines().collect();
        let from = lines.len().saturating_sub(TAIL_LINES);
        writeln!(self.out, "---- the last lines of {}", self.shown(log_file))?;
        for line in &lines[from..] {
            writeln!(self.out, "    {line}")?;
        }
        writeln!(self.out, "----")?;
        Ok(())
    }

    fn report(&mut self, verdicts: &[Verdict]) -> Result<bool> {
        let mut total = Count::default();
        writeln!(self.out)?;
        for verdict in verdicts {
            writeln!(self.out, "{verdict}")?;
            total += verdict.outcome.total();
        }
        if self.stop.is_asked() {
            writeln!(self.out, "stopped from outside: the suites not named above did not run")?;
            total.failed = total.failed.max(1);
        }
        self.tell_failures()?;
        writeln!(self.out, "{}", closing_line(total))?;
        Ok(total.failed == 0)
    }

    /// Whoever sees only the end of a run is to know what failed: the words of each test first, the names last.
    fn tell_failures(&mut self) -> Result<()> {
        if self.failures.is_empty() {
            return Ok(());
        }
        writeln!(self.out, "\nwhat the failed tests said:")?;
        for line in details(&self.failures) {
            writeln!(self.out, "{line}")?;
        }
        writeln!(self.out)?;
        for suite in &self.failures {
            writeln!(self.out, "{suite}")?;
        }
        Ok(())
    }

    fn shown<'p>(&self, path: &'p Path) -> std::path::Display<'p> {
        path.strip_prefix(self.root).unwrap_or(path).display()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::manifest;

    fn manifest() -> Manifest {
        let suite = |name: &str, tier: &str| {
            format!(
                "[[suite]]\nname = \"{name}\"\ntier = \"{tier}\"\ncommand = [\"true\"]\n\
                 minimum = 1\ndeadline_s = 1\ncovers = \"x\"\n"
            )
        };
        manifest::parse(&(suite("quick", "fast") + &suite("long", "slow"))).unwrap()
    }

    #[test]
    fn the_last_lines_say_what_failed() {
        let root = tempfile::tempdir().unwrap();
        let said = "test slow_start ... FAILED\n---- slow_start stdout ----\n\n\
                    thread 'slow_start' (1) panicked at tests/a.rs:2:3:\nit took 9 s\n\n\
                    test result: FAILED. 1 passed; 1 failed; 0 ignored\n";
        std::fs::write(root.path().join("said"), said).unwrap();
        let mut out = Vec::new();
        let choice = Choice { all: false, only: Vec::new(), is_strict: false };
        let (logs, stop) = (root.path().to_owned(), Stop::default());
        let mut session = Session {
            root: root.path(),
            logs,
            choice: &choice,
            stop: &stop,
            out: &mut out,
            failures: Vec::new(),
        };
        let command = ["sh", "-c", "cat said; exit 101"].map(str::to_owned).to_vec();
        let suite = Suite { command, deadline_s: 60, ..manifest().suites.remove(0) };
        let built = Built { tests: Vec::new(), ending: Ending::Exited { code: 0 } };
        let outcome = session.suite(&suite, &built).unwrap();
        assert!(!session.report(&[Verdict { name: suite.name, outcome }]).unwrap());
        let text = String::from_utf8(out).unwrap();
        let (_, end) = text.rsplit_once("----\n").unwrap();
        let end: Vec<_> = end.lines().filter(|line| !line.is_empty()).skip(1).collect();
        let wanted = [
            "what the failed tests said:",
            "quick: slow_start",
            "    panicked at tests/a.rs:2:3",
            "    it took 9 s",
            "FAILED in quick: slow_start; log: quick.log",
            "1 passed, 1 failed",
        ];
        assert_eq!(end, wanted);
    }

    fn chosen(choice: &Choice) -> Vec<String> {
        let manifest = manifest();
        manifest.suites.iter().filter(|suite| choice.takes(suite)).map(|suite| suite.name.clone()).collect()
    }

    #[test]
    fn tiers_and_names_choose() {
        let choice = |all, only: &[&str]| Choice {
            all,
            only: only.iter().map(|&name| name.to_owned()).collect(),
            is_strict: false,
        };
        assert_eq!(chosen(&choice(false, &[])), ["quick"]);
        assert_eq!(chosen(&choice(true, &[])), ["quick", "long"]);
        assert_eq!(chosen(&choice(false, &["long"])), ["long"]);
        assert!(choice(false, &["long"]).check(&manifest()).is_ok());
        let error = choice(false, &["lnog"]).check(&manifest()).unwrap_err().to_string();
        assert!(error.contains("lnog") && error.contains("--list"), "{error}");
    }
}
