//! `gradwire top` in a program that was built without the feature `top`: it says how to get it. The real one is in `top/`.

use clap::Args;

/// Not in this build: it was built without the feature `top`. `gradwire status` shows the same figures once.
#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Whatever is given.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _rest: Vec<String>,
}

pub(crate) fn run(_args: &TopArgs) -> Result<(), anyhow::Error> {
    anyhow::bail!(
        "gradwire top is not in this build: it was built without the feature `top`. Use `gradwire status`, install a package, or \
         build with `cargo build --release -p gradwire-cli`"
    )
}
