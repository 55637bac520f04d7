//! Commands that this build lacks, because the feature of the same name is off: they say how to get them. `make demo` builds without
//! them, because they take long to compile.

use clap::Args;

/// Not in this build: it was built without the feature of this name.
#[derive(Args, Debug)]
pub(crate) struct AbsentArgs {
    /// Ignored.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _rest: Vec<String>,
}

pub(crate) fn run(command: &str) -> Result<u8, anyhow::Error> {
    anyhow::bail!(
        "gradwire {command} is not in this build: it was built without the feature `{command}`. Install a package, or build with \
         `cargo build --release -p gradwire-cli`"
    )
}
