//! `suites [--all | --quick] [--only NAME]… [--slots N] [--list]`: runs the suites of `tests/suites.toml`. Owns the command line,
//! the environment variable `CI`, signals and the exit code; everything else is in `gradwire_tests::suites`.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use gradwire_tests::repository;
use gradwire_tests::suites::manifest::{self, Manifest};
use gradwire_tests::suites::process::Stop;
use gradwire_tests::suites::runner::{Choice, run_suites};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{Write, stdout};
use std::process::ExitCode;

const HELP: &str = "\
Runs the suites of tests/suites.toml: the fast tier, or what is asked for.

  --all          the slow tier too
  --quick        the inner loop: no root, no emulated machine, no cluster software
  --only NAME    this suite, whatever its tier; may be given again
  --slots N      run that many suites side by side; without it, one for each processor, from 2 to 4
  --list         name the suites and run none

With CI=true in the environment, a fast suite that cannot run here is a failure.
Logs: target/suites/NAME.log. A suite over its budget is a warning. At the end stand the slowest tests and what the failed
tests said; the last line is `N passed, N failed`.
";

fn main() -> ExitCode {
    match try_main() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Also a runner that cannot start ends with the closing line that its readers wait for.
            drop(writeln!(stdout(), "suites: {error:#}\n0 passed, 1 failed"));
            ExitCode::FAILURE
        }
    }
}

fn try_main() -> Result<bool> {
    let root = repository::root()?;
    let manifest = manifest::load(&root)?;
    let is_strict = std::env::var("CI").is_ok_and(|value| value == "true" || value == "1");
    let mut choice = Choice { all: false, quick: false, only: Vec::new(), slots: slots(), is_strict };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--all" => choice.all = true,
            "--quick" => choice.quick = true,
            "--slots" => choice.slots = arguments.next().context("--slots needs a number")?.parse()?,
            "--only" => choice.only.push(arguments.next().context("--only needs the name of a suite")?),
            "--list" => return list(&manifest).map(|()| true),
            "--help" | "-h" => return Ok(write!(stdout(), "{HELP}").map(|()| true)?),
            other => bail!("unknown argument {other:?}; --help names them"),
        }
    }
    let stop = Stop::default();
    stop_on_signals(&stop)?;
    run_suites(&root, &manifest, &choice, &stop, &mut stdout())
}

/// Suites often wait, so that two of them fit on one processor, too; many at once would disturb each other's deadlines. Two suites
/// keep two processors busy: a third one made nothing quicker.
fn slots() -> u64 {
    std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4) as u64)
}

fn stop_on_signals(stop: &Stop) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let stop = stop.clone();
    std::thread::spawn(move || signals.forever().for_each(|_| stop.stop()));
    Ok(())
}

fn list(manifest: &Manifest) -> Result<()> {
    for suite in &manifest.suites {
        let tier = format!("{:?}", suite.tier).to_lowercase();
        writeln!(
            stdout(),
            "{:<18} {tier:<5} {:>4} s  {}",
            suite.name,
            suite.budget().as_secs(),
            suite.covers
        )?;
    }
    Ok(())
}
