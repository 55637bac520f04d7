//! What several commands share: they print texts, parse the name of a role, and ignore `DMLC_ROLE`.

use daemon::security::role_of;
use proto_common::ids::Role;
use std::io::{self, Write as _};

/// A role that a flag names.
pub(crate) fn role(word: &str) -> Result<Role, String> {
    role_of(word).ok_or_else(|| "use scheduler, server or worker".into())
}

/// The environment for a command that has no role of its own that settings could be checked against.
pub(crate) fn environment_of_no_role() -> Vec<(String, String)> {
    let mut env = daemon::process::environment();
    env.retain(|(name, _)| name != "DMLC_ROLE");
    env
}

/// Prints a text. Whoever has closed the pipe wants no more of it.
pub(crate) fn print(text: &str) -> io::Result<()> {
    unless_closed(writeln!(io::stdout().lock(), "{}", text.trim_end()))
}

/// No error if whoever reads the output has closed it.
pub(crate) fn unless_closed(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
