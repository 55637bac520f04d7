//! Runs a simulation test over its seeds. `GRADWIRE_SEED=N` runs that one, `GRADWIRE_SEEDS=N` as many as
//! that, from `GRADWIRE_FIRST_SEED=N` on; a seed that fails is named with the command that replays it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number; give a seed or a count of seeds")),
    )
}

/// Calls `test` with each seed: `count` of them from 0 on, or what the environment says. `file` is the module
/// of `tests/tests/sim`, `name` the test in it, for the command that is printed.
pub fn for_each(file: &str, name: &str, count: u64, mut test: impl FnMut(u64)) {
    let seeds = match number("GRADWIRE_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("GRADWIRE_FIRST_SEED").unwrap_or(0);
            first..first.saturating_add(number("GRADWIRE_SEEDS").unwrap_or(count))
        }
    };
    for seed in seeds {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| test(seed))) {
            eprintln!("\nseed {seed} failed; to replay it:");
            eprintln!(
                "    GRADWIRE_SEED={seed} cargo test -p gradwire-tests --test sim -- --exact {file}::{name}\n"
            );
            resume_unwind(panic);
        }
    }
}
