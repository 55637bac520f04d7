//! Where the repository is. It is found when a program runs and not when it is compiled: a build that two checkouts share would
//! otherwise test the one that it was compiled in, whichever the other one holds.

use anyhow::{Context, Result};
use std::path::PathBuf;

/// What only the root of the repository has.
const MARK: &str = "tests/suites.toml";

/// The root of the repository that contains the current directory. `cargo test` and the runner of the suites start tests in their
/// package's directory.
pub fn root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("the current directory")?;
    let root = here.ancestors().find(|directory| directory.join(MARK).is_file());
    let root =
        root.with_context(|| format!("no {MARK} in {} or above; start in the repository", here.display()))?;
    Ok(root.to_path_buf())
}
