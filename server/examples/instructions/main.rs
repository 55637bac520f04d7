//! A gate on the hot kernels' instruction counts, by callgrind: the same on a busy machine as on a quiet one.
//!
//!     cargo run --release -p gradwire-server --example instructions            # compares with the accepted counts
//!     cargo run --release -p gradwire-server --example instructions accept     # accepts what there is
//!
//! Owns counting and judging; what is counted is in `kernels.rs`. Counts are of the code that valgrind's processor takes:
//! it knows AVX2, and no AVX-512. It must not measure time.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

mod kernels;

use kernels::KERNELS;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use thiserror::Error;

/// How far a count may be from the accepted one.
const TOLERANCE: f64 = 0.03;
/// Rounds of the two runs whose difference is counted: what a process does besides falls out.
const ROUNDS: [u32; 2] = [2, 12];
const ACCEPT: &str = "cargo run --release -p gradwire-server --example instructions accept";

/// What was accepted, and of which compiler: another one may emit other instructions.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Accepted {
    compiler: String,
    /// Instructions for each element, byte or block, by kernel.
    counts: BTreeMap<String, f64>,
}

/// Why nothing can be said of the counts.
#[derive(Debug, Error)]
enum CountError {
    #[error("no kernel {name:?}; there are: {there_are}")]
    NoKernel { name: String, there_are: String },
    #[error("cannot run {program}: {error}; install it (deploy/bootstrap.sh test does)")]
    Program { program: &'static str, error: std::io::Error },
    #[error("callgrind said nothing of {kernel}, and ended with: {said}")]
    Silent { kernel: &'static str, said: String },
    #[error("{path}: {error}; restore the file, or make it anew: {ACCEPT}")]
    File { path: String, error: std::io::Error },
    #[error("{path} is not what this program writes: {error}; make it anew: {ACCEPT}")]
    Content { path: String, error: serde_json::Error },
    #[error("usage: instructions [accept | run KERNEL ROUNDS]")]
    Usage,
    #[error("a kernel failed: {0}")]
    Kernel(#[from] anyhow::Error),
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        [] => check(),
        ["accept"] => accept(),
        ["run", kernel, rounds] => run(kernel, rounds),
        _ => Err(CountError::Usage),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::from(2)
        }
    }
}

/// What callgrind looks at.
fn run(kernel: &str, rounds: &str) -> Result<ExitCode, CountError> {
    let found = KERNELS.iter().find(|other| other.name == kernel);
    let all = || KERNELS.iter().map(|kernel| kernel.name).collect::<Vec<_>>().join(", ");
    let found = found.ok_or_else(|| CountError::NoKernel { name: kernel.to_owned(), there_are: all() })?;
    (found.run)(rounds.parse().map_err(|_| CountError::Usage)?)?;
    Ok(ExitCode::SUCCESS)
}

fn accept() -> Result<ExitCode, CountError> {
    let accepted = Accepted { compiler: compiler()?, counts: count_all()? };
    let (path, text) = (file(), serde_json::to_string_pretty(&accepted));
    let shown = path.display().to_string();
    let text = text.map_err(|error| CountError::Content { path: shown.clone(), error })? + "\n";
    std::fs::write(&path, text).map_err(|error| CountError::File { path: shown.clone(), error })?;
    println!("accepted {} counts in {shown}", accepted.counts.len());
    Ok(ExitCode::SUCCESS)
}

fn check() -> Result<ExitCode, CountError> {
    let path = file().display().to_string();
    let text =
        std::fs::read_to_string(file()).map_err(|error| CountError::File { path: path.clone(), error })?;
    let accepted: Accepted =
        serde_json::from_str(&text).map_err(|error| CountError::Content { path, error })?;
    let (counts, compiler) = (count_all()?, compiler()?);
    let (text, failed) = judge(&accepted, &counts, &compiler);
    println!("{text}");
    println!("{} passed, {failed} failed", counts.len() - failed.min(counts.len()));
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A line for each kernel, and how many of them are wrong.
fn judge(accepted: &Accepted, counts: &BTreeMap<String, f64>, compiler: &str) -> (String, usize) {
    let (mut text, mut wrong) = (String::new(), 0);
    // Formatting into a string cannot fail.
    let mut say = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    for (name, now) in counts {
        let Some(before) = accepted.counts.get(name) else {
            wrong += 1;
            say(format!("{name}: {now:.3} instructions each, none accepted yet"));
            continue;
        };
        let change = now / before - 1.0;
        let percent = 100.0 * change;
        if change.abs() > TOLERANCE {
            wrong += 1;
            say(format!(
                "CHANGED {name}: {now:.3} instructions each, {before:.3} accepted ({percent:+.1} %)"
            ));
        } else {
            say(format!("{name}: {now:.3} instructions each ({percent:+.1} %)"));
        }
    }
    for name in accepted.counts.keys().filter(|name| !counts.contains_key(*name)) {
        wrong += 1;
        say(format!("{name} is accepted and not counted any more"));
    }
    if accepted.compiler != compiler {
        say(format!("not judged: the counts were accepted with {}, this is {compiler}", accepted.compiler));
        wrong = 0;
    } else if wrong > 0 {
        let percent = 100.0 * TOLERANCE;
        say(format!("more than {percent} % off: mend the kernel, or, where the change is meant: {ACCEPT}"));
    }
    (text, wrong)
}

fn count_all() -> Result<BTreeMap<String, f64>, CountError> {
    let count = |kernel: &kernels::Kernel| {
        let [few, many] = ROUNDS;
        let (few, many) = (callgrind(kernel.name, few)?, callgrind(kernel.name, many)?);
        let each = many.saturating_sub(few) as f64 / (f64::from(ROUNDS[1] - ROUNDS[0]) * kernel.units as f64);
        Ok((kernel.name.to_owned(), (each * 1000.0).round() / 1000.0))
    };
    KERNELS.iter().map(count).collect()
}

/// Instructions of one run, all in all.
fn callgrind(kernel: &'static str, rounds: u32) -> Result<u64, CountError> {
    let program = "valgrind";
    let own =
        std::env::current_exe().map_err(|error| CountError::Program { program: "this program", error })?;
    let mut command = Command::new(program);
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    command.arg(own).args(["run", kernel, &rounds.to_string()]);
    let said = command.output().map_err(|error| CountError::Program { program, error })?;
    let text = String::from_utf8_lossy(&said.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    collected.filter(|_| said.status.success()).ok_or_else(|| {
        let last = text.lines().rev().take(3).collect::<Vec<_>>();
        CountError::Silent { kernel, said: last.into_iter().rev().collect::<Vec<_>>().join(" | ") }
    })
}

fn compiler() -> Result<String, CountError> {
    let program = "rustc";
    let said = Command::new(program).arg("--version").output();
    let said = said.map_err(|error| CountError::Program { program, error })?;
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("examples/instructions/accepted.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(of: &[(&str, f64)]) -> BTreeMap<String, f64> {
        of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn a_count_that_is_off_is_named_with_the_way_out() {
        let accepted = Accepted { compiler: "rustc 1".into(), counts: counts(&[("a", 1.0), ("b", 2.0)]) };
        let (text, wrong) = judge(&accepted, &counts(&[("a", 1.029), ("b", 1.95)]), "rustc 1");
        assert_eq!(wrong, 0, "{text}");
        for off in [1.031, 0.969] {
            let (text, wrong) = judge(&accepted, &counts(&[("a", off), ("b", 2.0)]), "rustc 1");
            assert!(wrong == 1 && text.contains("CHANGED a") && text.contains(ACCEPT), "{text}");
        }
        let (text, wrong) = judge(&accepted, &counts(&[("a", 1.0), ("c", 2.0)]), "rustc 1");
        assert_eq!(wrong, 2, "one is new, one is gone: {text}");
        let (text, wrong) = judge(&accepted, &counts(&[("a", 9.0), ("b", 2.0)]), "rustc 2");
        assert!(wrong == 0 && text.contains("not judged"), "{text}");
    }

    #[test]
    fn every_kernel_runs() {
        for kernel in KERNELS {
            assert!((kernel.run)(1).is_ok(), "{}", kernel.name);
        }
    }
}
