//! Finding Gradwire's programs beside this one, and users' programs where a shell would.

use anyhow::Context as _;
use daemon::exit::{Failure, WithCode as _};
use proto_common::error::ExitCode;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const BENCH: &str = "gradwire-bench";

/// The directory of Gradwire's programs: `given`, or that of this program.
pub(crate) fn bin_dir(given: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(directory) = given {
        return Ok(directory.to_path_buf());
    }
    let own = std::env::current_exe().context("cannot find the gradwire program; use --bin-dir");
    let own = own.code(ExitCode::Io)?;
    Ok(own.parent().unwrap_or(Path::new(".")).to_path_buf())
}

/// One of Gradwire's programs.
pub(crate) fn ours(directory: &Path, name: &str) -> Result<PathBuf, Failure> {
    let path = directory.join(name);
    if is_program(&path) {
        return Ok(path);
    }
    let text = format!(
        "{name} is not in {}; build it (cargo build --release), or name its directory with --bin-dir",
        directory.display()
    );
    Err(Failure::message(ExitCode::Usage, text))
}

/// A user's program: a path as it is; a bare name beside ours first, then on `path` (the variable PATH).
pub(crate) fn program(directory: &Path, name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Failure> {
    let named = Path::new(name);
    let bare = named.components().count() == 1 && !name.as_encoded_bytes().contains(&b'/');
    let candidates = match bare {
        false => vec![named.to_path_buf()],
        true => std::iter::once(directory.to_path_buf())
            .chain(path.into_iter().flat_map(std::env::split_paths))
            .map(|place| place.join(named))
            .collect(),
    };
    candidates.into_iter().find(|path| is_program(path)).ok_or_else(|| {
        let text = format!("cannot find the program {}; {}", named.display(), fix(&named.to_string_lossy()));
        Failure::message(ExitCode::Usage, text)
    })
}

/// What to do about a program that is not there.
fn fix(name: &str) -> String {
    let is_variable = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    match name.split_once('=') {
        Some((variable, _)) if is_variable(variable) => {
            format!(
                "a variable is set with --env {}, before the program",
                name.split(' ').next().unwrap_or(name)
            )
        }
        _ if name.contains(char::is_whitespace) => {
            "pass the program and its arguments as separate words (-- python3 train.py), or use sh -c '...'"
                .into()
        }
        _ => "give its path, or put it on PATH".into(),
    }
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Becomes the benchmarks' program; returns only if that fails.
pub(crate) fn exec_bench(args: &[OsString]) -> anyhow::Error {
    become_it(bin_dir(None).and_then(|directory| bench(&directory)), args)
}

/// Becomes the server of the Python package; returns only if that fails.
pub(crate) fn exec_serve(args: &[OsString]) -> anyhow::Error {
    let python =
        |directory: PathBuf| program(&directory, OsStr::new("python3"), std::env::var_os("PATH").as_deref());
    let module = ["-m", "gradwire.serve"].map(OsString::from);
    become_it(bin_dir(None).and_then(python), &[&module, args].concat())
}

fn become_it(path: Result<PathBuf, Failure>, args: &[OsString]) -> anyhow::Error {
    let path = match path {
        Ok(path) => path,
        Err(error) => return error.into(),
    };
    let error = Command::new(&path).args(args).exec();
    anyhow::Error::from(error).context(format!("cannot start {}", path.display()))
}

/// It is for those who build: its baselines are of no use to a cluster, and no package has it.
fn bench(directory: &Path) -> Result<PathBuf, Failure> {
    let path = directory.join(BENCH);
    if is_program(&path) {
        return Ok(path);
    }
    let text = format!(
        "{BENCH} is not in {}: packages do not have it; in the source tree of this release `make bench` builds and runs it \
         (`cargo build --release -p gradwire-benches` only builds it, into target/release)",
        directory.display()
    );
    Err(Failure::message(ExitCode::Usage, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path, mode: u32) {
        std::fs::write(path, "").unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn beside_first_then_path_and_only_programs() {
        let (beside, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = Some(other.path().as_os_str());
        touch(&other.path().join("x"), 0o755);
        let find = |name: &str| program(beside.path(), OsStr::new(name), path);
        assert_eq!(find("x").unwrap(), other.path().join("x"));
        touch(&beside.path().join("x"), 0o755);
        assert_eq!(find("x").unwrap(), beside.path().join("x"));
        touch(&beside.path().join("data"), 0o644);
        assert_eq!(find("data").unwrap_err().code(), ExitCode::Usage);
        assert_eq!(find("/bin/sh").unwrap(), Path::new("/bin/sh"));
        assert!(find("./x").is_err(), "a path is not looked for elsewhere");
        let told = |name: &str| find(name).unwrap_err().to_string();
        assert!(told("python3 -c 'print(1)'").contains("sh -c"), "one quoted word");
        assert!(told("A=1").contains("--env A=1") && told("A=1 x").contains("--env A=1,"));
        assert!(ours(beside.path(), "gradwire-server").unwrap_err().to_string().contains("--bin-dir"));
    }

    #[test]
    fn the_benchmarks_are_to_be_built() {
        let beside = tempfile::tempdir().unwrap();
        let told = bench(beside.path()).unwrap_err().to_string();
        assert!(told.contains("packages do not have it") && !told.contains("--bin-dir"), "{told}");
        touch(&beside.path().join(BENCH), 0o755);
        assert_eq!(bench(beside.path()).unwrap(), beside.path().join(BENCH));
    }
}
