//! Builds, runs the chosen suites, independent ones side by side, and reports. Everything goes through `out`, so that
//! only the program decides where lines go.

use super::build::{Built, build};
use super::count::{Count, count};
use super::failures::{SuiteFailures, details};
use super::manifest::{Command, Manifest, Suite, Tier};
use super::needs::{is_preparable, lacking};
use super::process::{Ending, Stop, run};
use super::schedule::Schedule;
use super::timings::{slowest, timings};
use super::verdict::{Outcome, Verdict, closing_line, judge, not_run};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Lines of a failed suite's log that are shown at once.
const TAIL_LINES: usize = 60;
/// Installing programs that takes longer hangs.
const PREPARE_DEADLINE: Duration = Duration::from_secs(30 * 60);
/// Slow tests that the end of a run names.
const SLOWEST: usize = 10;
/// Settings of a user's own cluster must not reach the suites.
const FOREIGN_PREFIXES: [&str; 3] = ["GRADWIRE_", "DMLC_", "PS_"];
/// libtest prints how long each test took only for those who may use unstable options, which this variable allows when it runs.
const REPORT_TIME: [&str; 2] = ["-Zunstable-options", "--report-time"];
const ALLOW_UNSTABLE: (&str, &str) = ("RUSTC_BOOTSTRAP", "1");

/// What to run, and how strictly.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The slow tier too.
    pub all: bool,
    /// The quick suites instead of the tiers.
    pub quick: bool,
    /// Only these suites, whatever their tier; empty: all of the tiers.
    pub only: Vec<String>,
    /// How many suites run side by side.
    pub slots: u64,
    /// CI: a fast suite that does not run is a failure, and `Cargo.lock` must not change.
    pub is_strict: bool,
}

impl Choice {
    fn takes(&self, suite: &Suite) -> bool {
        if !self.only.is_empty() {
            return self.only.contains(&suite.name);
        }
        match suite.tier {
            Tier::Quick => self.quick,
            _ if self.quick => suite.quick,
            Tier::Fast => true,
            Tier::Slow => self.all,
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
    let hall = Hall { root, logs, choice, stop };
    let mut session = Session { hall: &hall, out, failures: Vec::new(), timings: Vec::new() };
    let prepare = if choice.quick { &[][..] } else { &manifest.prepare[..] };
    let (built, build_fault) = session.build(prepare, &chosen)?;
    let verdicts = session.suites(&chosen, &built)?;
    session.report(build_fault.into_iter().chain(verdicts).collect())
}

/// Where suites run: what all of them share, on whatever thread.
struct Hall<'a> {
    root: &'a Path,
    logs: PathBuf,
    choice: &'a Choice,
    stop: &'a Stop,
}

/// A suite that has run.
struct Ran {
    outcome: Outcome,
    log_file: PathBuf,
    log: String,
}

impl Hall<'_> {
    /// Runs a suite's commands one after the other, within its deadline.
    fn run(&self, suite: &Suite, built: &Built) -> Result<Ran> {
        let log_file = self.logs.join(format!("{}.log", suite.name));
        let log = File::create(&log_file)?;
        let start = Instant::now();
        let mut endings = Vec::new();
        for mut command in self.commands(suite, built) {
            writeln!(&log, "$ {}", command.get_program().display())?;
            command.envs(&suite.env);
            let left = suite.deadline().saturating_sub(start.elapsed());
            let ending = run(&mut command, &log, left, self.stop)?;
            endings.push(ending);
            if matches!(ending, Ending::Deadline | Ending::Stopped) {
                break;
            }
        }
        let log = read(&log_file)?;
        let mut outcome = judge(suite, count(&log), &endings, start.elapsed());
        if let (Outcome::Ran { fault, .. }, true) = (&mut outcome, endings.is_empty()) {
            let why = "its test executables do not exist: did they compile, is the target's name right?";
            *fault = Some(why.into());
        }
        Ok(Ran { outcome, log_file, log })
    }

    /// What suites would otherwise wait for: downloads and such, one after the other, while the common build runs. What fails
    /// here is tried again by the suite.
    fn prepare(&self, first: &[String], chosen: &[&Suite]) -> Result<()> {
        let log = File::create(self.logs.join("prepare.log"))?;
        if let Some((program, args)) = first.split_first() {
            writeln!(&log, "$ {program} {}", args.join(" "))?;
            // With the user's own settings, which say where tools lie.
            let mut command = process::Command::new(program);
            run(command.args(args).current_dir(self.root), &log, PREPARE_DEADLINE, self.stop)?;
        }
        for suite in chosen.iter().filter(|suite| is_preparable(&suite.needs)) {
            if let Some((program, args)) = suite.prepare.split_first() {
                writeln!(&log, "$ {program} {}", args.join(" "))?;
                let mut command = self.command(Path::new(program), self.root);
                run(command.args(args), &log, suite.deadline(), self.stop)?;
            }
        }
        Ok(())
    }

    fn commands(&self, suite: &Suite, built: &Built) -> Vec<process::Command> {
        match suite.command() {
            Command::Program(argv) => {
                let mut command = self.command(Path::new(&argv[0]), self.root);
                command.args(&argv[1..]);
                vec![command]
            }
            Command::Tests { package, target, args } => {
                let tests = built.tests.iter().filter(|test| test.matches(package, target));
                tests
                    .map(|test| {
                        let mut command = self.command(&test.file, &test.directory);
                        command.args(args).args(REPORT_TIME).env(ALLOW_UNSTABLE.0, ALLOW_UNSTABLE.1);
                        command.env("CARGO_MANIFEST_DIR", &test.directory);
                        command
                    })
                    .collect()
            }
        }
    }

    fn command(&self, program: &Path, directory: &Path) -> process::Command {
        let mut command = process::Command::new(program);
        command.current_dir(directory).env("CARGO_TERM_COLOR", "never");
        for (name, _) in std::env::vars_os() {
            if FOREIGN_PREFIXES.iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
                command.env_remove(name);
            }
        }
        command
    }

    fn shown<'p>(&self, path: &'p Path) -> std::path::Display<'p> {
        path.strip_prefix(self.root).unwrap_or(path).display()
    }
}

fn read(log_file: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&std::fs::read(log_file)?).into_owned())
}

struct Session<'a> {
    hall: &'a Hall<'a>,
    out: &'a mut dyn Write,
    /// What the suites that failed said, for the end.
    failures: Vec<SuiteFailures>,
    /// Tests with the time that they took, by suite.
    timings: Vec<super::timings::Timing>,
}

impl Session<'_> {
    /// The common build, and beside it what suites prepare. Where the build fails, what compiled still runs, and the failure is a
    /// verdict.
    fn build(&mut self, prepare: &[String], chosen: &[&Suite]) -> Result<(Built, Option<Verdict>)> {
        let hall = self.hall;
        let log_file = hall.logs.join("build.log");
        writeln!(self.out, "build: all tests and daemons, log in {}", hall.shown(&log_file))?;
        let log = File::create(&log_file)?;
        let start = Instant::now();
        let (built, took) = thread::scope(|scope| {
            let preparing = scope.spawn(|| hall.prepare(prepare, chosen));
            let built = build(hall.root, &log, hall.choice.is_strict, hall.stop);
            let took = start.elapsed();
            preparing.join().ok();
            built.map(|built| (built, took))
        })?;
        if built.ending == (Ending::Exited { code: 0 }) {
            let (seconds, ready) = (took.as_secs_f64(), start.elapsed().as_secs_f64());
            let tests = built.tests.len();
            writeln!(
                self.out,
                "build: done in {seconds:.1} s, {tests} test executables; suites start after {ready:.1} s"
            )?;
            return Ok((built, None));
        }
        let fault = Some(format!("the build did not succeed; see {}", hall.shown(&log_file)));
        let outcome = Outcome::Ran { count: Count::default(), took, budget: Duration::MAX, fault };
        self.failed("build", &outcome, &log_file)?;
        Ok((built, Some(Verdict { name: "build".into(), outcome })))
    }

    /// Runs suites side by side as far as slots allow; the verdicts come in the order of `chosen`.
    fn suites(&mut self, chosen: &[&Suite], built: &Built) -> Result<Vec<Verdict>> {
        let hall = self.hall;
        let mut verdicts = Vec::new();
        let (lacked, able): (Vec<_>, Vec<_>) = chosen
            .iter()
            .map(|suite| (*suite, lacking(&suite.needs)))
            .partition(|(_, reason)| reason.is_some());
        for (suite, reason) in lacked {
            let reason = reason.unwrap_or_default();
            writeln!(self.out, "{}: not run: {reason}", suite.name)?;
            verdicts.push((suite, not_run(suite, reason, hall.choice.is_strict)));
        }
        let able = able.into_iter().map(|(suite, _)| suite).collect();
        let mut schedule = Schedule::new(able, hall.choice.slots);
        let (sender, receiver) = mpsc::channel();
        thread::scope(|scope| {
            while !schedule.is_over() {
                if hall.stop.is_asked() {
                    schedule.clear();
                }
                while let Some(suite) = schedule.start() {
                    let sender = sender.clone();
                    scope.spawn(move || sender.send((suite, hall.run(suite, built))).ok());
                }
                // A sender lives here, so that this waits for a suite that runs.
                let Ok((suite, ran)) = receiver.recv() else { break };
                schedule.ended(suite);
                let ran = ran?;
                self.ended(suite, &ran)?;
                verdicts.push((suite, ran.outcome));
            }
            Ok::<_, anyhow::Error>(())
        })?;
        verdicts.sort_by_key(|(suite, _)| chosen.iter().position(|one| one.name == suite.name));
        let named = |(suite, outcome): (&Suite, _)| Verdict { name: suite.name.clone(), outcome };
        Ok(verdicts.into_iter().map(named).collect())
    }

    /// One line for a suite that has ended, or the end of its log.
    fn ended(&mut self, suite: &Suite, ran: &Ran) -> Result<()> {
        let verdict = Verdict { name: suite.name.clone(), outcome: ran.outcome.clone() };
        writeln!(self.out, "{verdict}")?;
        self.out.flush()?;
        self.timings.extend(timings(&ran.log).into_iter().map(|mut timing| {
            timing.test = format!("{}: {}", suite.name, timing.test);
            timing
        }));
        if ran.outcome.total().failed > 0 {
            self.failed(&suite.name, &ran.outcome, &ran.log_file)?;
        }
        Ok(())
    }

    /// Shows the log's last lines now, and keeps for the end what failed.
    fn failed(&mut self, suite: &str, outcome: &Outcome, log_file: &Path) -> Result<()> {
        let text = read(log_file)?;
        let fault = match outcome {
            Outcome::Ran { fault, .. } => fault.as_deref(),
            Outcome::NotRun { .. } => None,
        };
        let shown = self.hall.shown(log_file).to_string();
        let lines: Vec<_> = text.lines().collect();
        let from = lines.len().saturating_sub(TAIL_LINES);
        writeln!(self.out, "---- the last lines of {shown}")?;
        for line in &lines[from..] {
            writeln!(self.out, "    {line}")?;
        }
        writeln!(self.out, "----")?;
        self.failures.push(SuiteFailures::find(suite, shown, &text, fault));
        Ok(())
    }

    fn report(&mut self, verdicts: Vec<Verdict>) -> Result<bool> {
        let mut total = Count::default();
        writeln!(
            self.out,
            "\nsuites, in the order of tests/suites.toml, with the time that each took and its budget:"
        )?;
        for verdict in verdicts {
            writeln!(self.out, "{verdict}")?;
            total += verdict.outcome.total();
        }
        let slow = slowest(std::mem::take(&mut self.timings), SLOWEST);
        if !slow.is_empty() {
            writeln!(self.out, "\nthe slowest tests:")?;
        }
        for timing in slow {
            writeln!(self.out, "{:>8.1} s  {}", timing.took.as_secs_f64(), timing.test)?;
        }
        if self.hall.stop.is_asked() {
            writeln!(self.out, "stopped from outside: the suites not named above did not run")?;
            total.failed = total.failed.max(1);
        }
        self.tell_failures()?;
        writeln!(self.out, "{}", closing_line(total))?;
        Ok(total.failed == 0)
    }

    /// The last lines of a run say what failed: the words of each test first, the names last.
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suites::manifest;

    fn manifest() -> Manifest {
        let suite = |name: &str, tier: &str| {
            format!(
                "[[suite]]\nname = \"{name}\"\ntier = \"{tier}\"\ncommand = [\"true\"]\n\
                 minimum = 1\nbudget_s = 1\ndeadline_s = 1\ncovers = \"x\"\n"
            )
        };
        manifest::parse(&(suite("quick", "fast") + &suite("long", "slow") + &suite("inner", "quick")))
            .unwrap()
    }

    #[test]
    fn the_last_lines_say_what_failed() {
        let root = tempfile::tempdir().unwrap();
        let said = "test slow_start ... FAILED\n---- slow_start stdout ----\n\n\
                    thread 'slow_start' (1) panicked at tests/a.rs:2:3:\nit took 9 s\n\n\
                    test result: FAILED. 1 passed; 1 failed; 0 ignored\n";
        std::fs::write(root.path().join("said"), said).unwrap();
        let mut out = Vec::new();
        let command = ["sh", "-c", "cat said; exit 101"].map(str::to_owned).to_vec();
        let suite = Suite { command, budget_s: Some(50), deadline_s: 60, ..manifest().suites.remove(0) };
        assert!(!run_these(root.path(), &[suite], &mut out));
        let text = String::from_utf8(out).unwrap();
        let (_, end) = text.rsplit_once("----\n").unwrap();
        let end: Vec<_> = end.lines().filter(|line| !line.is_empty()).skip(2).collect();
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

    /// Runs suites as a session does, after a build that made nothing.
    fn run_these(root: &Path, suites: &[Suite], out: &mut Vec<u8>) -> bool {
        let stop = Stop::default();
        let hall = Hall { root, logs: root.to_owned(), choice: &choice(false, &[]), stop: &stop };
        let mut session = Session { hall: &hall, out, failures: Vec::new(), timings: Vec::new() };
        let built = Built { tests: Vec::new(), ending: Ending::Exited { code: 0 } };
        let verdicts = session.suites(&suites.iter().collect::<Vec<_>>(), &built).unwrap();
        session.report(verdicts).unwrap()
    }

    fn shell(name: &str, script: &str) -> Suite {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        Suite { name: name.into(), command, deadline_s: 60, ..manifest().suites.remove(0) }
    }

    #[test]
    fn independent_suites_run_side_by_side() {
        let root = tempfile::tempdir().unwrap();
        // Each waits for the other: one after the other they would never end.
        let meet = |own: &str, other: &str| {
            format!("mkfifo {own} {other} 2>/dev/null; echo > {own} & cat {other}; wait")
        };
        let suites = [shell("one", &meet("a", "b")), shell("two", &meet("b", "a"))];
        let mut out = Vec::new();
        assert!(run_these(root.path(), &suites, &mut out));
        assert!(String::from_utf8(out).unwrap().ends_with("\n2 passed, 0 failed\n"));
    }

    #[test]
    fn the_slowest_tests_are_named_and_the_table_keeps_the_files_order() {
        let root = tempfile::tempdir().unwrap();
        let said = |name: &str, seconds: &str| {
            let result = "test result: ok. 1 passed; 0 failed; 0 ignored";
            shell(name, &format!("echo 'test t ... ok <{seconds}s>'; echo '{result}'"))
        };
        let mut out = Vec::new();
        assert!(run_these(root.path(), &[said("a", "1.25"), said("b", "9.5"), said("c", "0.1")], &mut out));
        let text = String::from_utf8(out).unwrap();
        let (_, end) = text.split_once("budget:\n").unwrap();
        let first_words: Vec<_> = end.lines().filter_map(|line| line.split(' ').next()).take(3).collect();
        assert_eq!(first_words, ["a", "b", "c"]);
        assert!(
            end.contains("the slowest tests:\n     9.5 s  b: t\n     1.2 s  a: t\n     0.1 s  c: t\n"),
            "{end}"
        );
    }

    fn choice(all: bool, only: &[&str]) -> Choice {
        let only = only.iter().map(|&name| name.to_owned()).collect();
        Choice { all, quick: false, only, slots: 2, is_strict: false }
    }

    fn chosen(choice: &Choice) -> Vec<String> {
        let manifest = manifest();
        manifest.suites.iter().filter(|suite| choice.takes(suite)).map(|suite| suite.name.clone()).collect()
    }

    #[test]
    fn tiers_and_names_choose() {
        assert_eq!(chosen(&choice(false, &[])), ["quick"]);
        assert_eq!(chosen(&choice(true, &[])), ["quick", "long"]);
        assert_eq!(chosen(&Choice { quick: true, ..choice(false, &[]) }), ["inner"]);
        assert_eq!(chosen(&choice(false, &["long"])), ["long"]);
        assert!(choice(false, &["long"]).check(&manifest()).is_ok());
        let error = choice(false, &["lnog"]).check(&manifest()).unwrap_err().to_string();
        assert!(error.contains("lnog") && error.contains("--list"), "{error}");
    }
}
