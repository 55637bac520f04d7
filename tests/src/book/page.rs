//! A page's commands run as they stand: in order, in one shell, in a fresh directory, on a host of their own (network, mounts
//! and processes), with the built programs in the path. What follows a failure is not run.

use super::blocks::{self, Block};
use super::shown;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Seconds that a page may take on a machine that is busy with other things; on a free one it is done in a tenth of that.
const LIMIT_S: u32 = 120;
/// What a page finds of the repository where it runs.
const BESIDE: [&str; 2] = ["examples", "deploy"];

/// Runs the page's blocks that are to be run. Tells what went otherwise than the page says.
///
/// # Errors
///
/// Where it could not be run at all.
pub fn run(text: &str, programs: &Path, repository: &Path) -> std::io::Result<Result<(), String>> {
    let all = blocks::of(text);
    let place = tempfile::tempdir()?;
    let (work, notes) = (place.path().join("work"), place.path().join("notes"));
    for directory in [&work, &notes] {
        fs::create_dir(directory)?;
    }
    for name in BESIDE {
        symlink(repository.join(name), work.join(name))?;
    }
    for (index, block) in all.iter().enumerate().filter(|(_, block)| block.runs()) {
        fs::write(notes.join(format!("{index}.sh")), &block.text)?;
    }
    fs::write(notes.join("all.sh"), script(&all, &notes))?;
    let status = host(&work, &notes, programs).status()?;
    let told = judged(&all, &notes);
    Ok(match (told, status.success()) {
        (Ok(()), false) => {
            Err(format!("the page's shell ended with {status}: at most {LIMIT_S} s are allowed"))
        }
        (told, _) => told,
    })
}

/// A host of its own; whoever is left when the shell ends, or the time is over, ends with it.
fn host(work: &Path, notes: &Path, programs: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", &LIMIT_S.to_string()]);
    command.args(["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.arg("bash").arg(notes.join("all.sh"));
    let path = std::env::var("PATH").unwrap_or_default();
    // Nothing of whoever runs the tests: neither settings nor variables of other systems.
    command.env_clear().env("PATH", format!("{}:{path}:/usr/sbin:/sbin", programs.display()));
    command.env("HOME", work).env("LC_ALL", "C.UTF-8").env("TERM", "dumb");
    command.current_dir(work).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    command.process_group(0);
    command
}

fn script(all: &[Block], notes: &Path) -> String {
    let notes = notes.display();
    let mut script = "ip link set lo up || exit 125\n".to_owned();
    for (index, block) in all.iter().enumerate().filter(|(_, block)| block.runs()) {
        let at = format!("{notes}/{index}");
        // A command that fails in the middle is a fault of the page, unless the block says how it ends.
        let trap = match block.exit() {
            0 => format!("trap 'echo \"$BASH_COMMAND\" >> {at}.failed' ERR"),
            _ => "trap - ERR".to_owned(),
        };
        let _ = writeln!(script, "{trap}\n{{ . {at}.sh; }} > {at}.out 2>&1");
        let _ = writeln!(script, "code=$?; trap - ERR; cp {at}.out {at}.shown; echo $code > {at}.code");
        let _ = writeln!(script, "[ $code = {} ] && [ ! -e {at}.failed ] || exit 0", block.exit());
    }
    script
}

/// Holds what was printed against what is shown.
fn judged(all: &[Block], notes: &Path) -> Result<(), String> {
    for (index, block) in all.iter().enumerate().filter(|(_, block)| block.runs()) {
        let read = |what: &str| fs::read_to_string(notes.join(format!("{index}.{what}"))).ok();
        let line = block.line;
        let Some(code) = read("code") else {
            let so_far = read("out").unwrap_or_default();
            return Err(format!(
                "line {line}: these commands did not end:\n{}\nprinted so far:\n{so_far}",
                block.text
            ));
        };
        let printed = read("shown").unwrap_or_default();
        let failed = read("failed").unwrap_or_default();
        if code.trim() != block.exit().to_string() || !failed.is_empty() {
            let (wanted, code) = (block.exit(), code.trim());
            return Err(format!(
                "line {line}: ended with {code} and not {wanted}; failed: {failed:?}; commands:\n{}\nprinted:\n{printed}",
                block.text
            ));
        }
        let Some(output) = all.get(index + 1).filter(|next| next.is("output")) else { continue };
        if let Some(misfit) = shown::misfit(&output.text, &printed) {
            let line = output.line;
            return Err(format!("line {line}: nothing printed fits {misfit:?}; printed:\n{printed}"));
        }
    }
    Ok(())
}
