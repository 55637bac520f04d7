//! Where the daemons' programs are. It must not look further than beside the tests: a stale copy elsewhere
//! would be tested in their place.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A daemon's program, from the profile this test was built with.
#[must_use]
pub fn program(name: &str) -> PathBuf {
    in_directory(&debug_directory(), name)
}

/// The programs of the release profile, built now if they are not up to date. Returns their directory.
#[must_use]
pub fn build_release() -> PathBuf {
    let directory = debug_directory().parent().expect("target/debug has a parent").to_path_buf();
    let mut cargo = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    cargo.current_dir(repository()).args(["build", "--quiet", "--release", "--locked", "--bins"]);
    // The suite runner sets this variable for tests alone: with it, cargo would build some crates anew.
    cargo.env_remove("RUSTC_BOOTSTRAP");
    for package in ["gradwire-scheduler", "gradwire-server", "gradwire-trainer", "gradwire-tests"] {
        cargo.args(["-p", package]);
    }
    let status = cargo.arg("--target-dir").arg(&directory).status().expect("cargo can be started");
    assert!(status.success(), "the release build failed");
    directory.join("release")
}

/// A program in a directory; fails with what to do where it is missing.
#[must_use]
pub fn in_directory(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    assert!(path.is_file(), "{} is not there; run: cargo build --workspace --bins", path.display());
    path
}

/// The repository's root. A guest has only some of its files, at the paths that they had when the tests were compiled.
#[must_use]
pub fn repository() -> PathBuf {
    let compiled = || {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the repository").to_path_buf()
    };
    crate::repository::root().unwrap_or_else(|_| compiled())
}

/// Test executables lie in `deps` below the programs.
fn debug_directory() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own file");
    let beside = test.parent().expect("a file has a directory");
    match beside.ends_with("deps") {
        true => beside.parent().expect("deps lies in the profile's directory").to_path_buf(),
        false => beside.to_path_buf(),
    }
}
