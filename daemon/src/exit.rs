//! From an error to one line on stderr and a documented exit code. The only place that decides either; it
//! must not be called by libraries, which return their errors.

use crate::logging::OneLine;
use proto_common::error::ExitCode;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An error that knows the exit code its process ends with. Displays as the error inside.
#[derive(Debug)]
pub struct Failure {
    code: ExitCode,
    source: anyhow::Error,
}

impl Failure {
    /// An error with its exit code, ready for `?` in a function that returns `anyhow::Error`.
    pub fn new(code: ExitCode, source: impl Into<anyhow::Error>) -> Self {
        Self { code, source: source.into() }
    }

    /// An error that is only a sentence, with its exit code.
    pub fn message(code: ExitCode, text: impl fmt::Display + fmt::Debug + Send + Sync + 'static) -> Self {
        Self { code, source: anyhow::Error::msg(text) }
    }

    /// The exit code.
    #[must_use]
    pub fn code(&self) -> ExitCode {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The inner error is what Display shows; the chain goes on below it.
        self.source.chain().nth(1)
    }
}

/// Puts an exit code on a result's error.
pub trait WithCode<T> {
    /// The error becomes a [`Failure`] with this code.
    fn code(self, code: ExitCode) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> WithCode<T> for Result<T, E> {
    fn code(self, code: ExitCode) -> Result<T, Failure> {
        self.map_err(|error| Failure::new(code, error))
    }
}

/// The exit code of an error: that of the outermost [`Failure`] in its chain, else what its type says.
#[must_use]
pub fn code_of(error: &anyhow::Error) -> ExitCode {
    error.chain().find_map(code_of_link).unwrap_or(ExitCode::Failure)
}

fn code_of_link(link: &(dyn std::error::Error + 'static)) -> Option<ExitCode> {
    if let Some(failure) = link.downcast_ref::<Failure>() {
        return Some(failure.code);
    }
    if link.is::<crate::settings::SettingsError>()
        || link.is::<crate::security::SecurityError>()
        || link.is::<proto_common::config::SettingError>()
    {
        return Some(ExitCode::Config);
    }
    if let Some(error) = link.downcast_ref::<crate::control::LinkError>() {
        return Some(error.exit_code());
    }
    if link.is::<proto_common::transport::NoTransport>() || link.is::<crate::devices::Lacking>() {
        return Some(ExitCode::Transport);
    }
    if let Some(fabric::FabricError::Unregistered { .. } | fabric::FabricError::AddressSpace { .. }) =
        link.downcast_ref()
    {
        return Some(ExitCode::Transport);
    }
    link.is::<std::io::Error>().then_some(ExitCode::Io)
}

/// The whole chain in one line; a link whose words stand in the one before it is left out.
#[must_use]
pub fn describe(error: &anyhow::Error) -> String {
    let mut text = String::new();
    let mut last = String::new();
    for link in error.chain() {
        let words = link.to_string();
        if !text.is_empty() && last.contains(&words) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&words);
        last = words;
    }
    text
}

/// Runs a daemon's body and turns its result into the exit code of the process: success is silent, an error
/// is printed once, `NAME: error: CAUSE: ...`, and a panic (a bug of ours) ends with `ExitCode::Internal`.
pub fn run_main(name: &str, body: impl FnOnce() -> Result<(), anyhow::Error>) -> std::process::ExitCode {
    run_main_with_code(name, || body().map(|()| ExitCode::Ok as u8))
}

/// As [`run_main`], for a process that ends with another process's code where nothing failed in itself.
pub fn run_main_with_code(
    name: &str,
    body: impl FnOnce() -> Result<u8, anyhow::Error>,
) -> std::process::ExitCode {
    std::process::ExitCode::from(run_to_code(name, body))
}

/// As [`run_main_with_code`], for a command inside another program: the code is a number.
pub fn run_to_code(name: &str, body: impl FnOnce() -> Result<u8, anyhow::Error>) -> u8 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            report(name, &describe(&error));
            code_of(&error) as u8
        }
        Err(_) => {
            report(name, "internal error, a bug in Gradwire; the panic message above says where");
            ExitCode::Internal as u8
        }
    }
}

fn report(name: &str, text: &str) {
    // A closed stderr must not turn an orderly exit into a panic.
    let _ = writeln!(std::io::stderr(), "{}", error_line(name, text));
}

/// An error of a process, on one line.
fn error_line(name: &str, text: &str) -> String {
    let mut line = String::new();
    // A string takes everything.
    let _ = write!(OneLine(&mut line), "{name}: error: {text}");
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn the_code_survives_context() {
        let inner: Result<(), std::io::Error> = Err(std::io::Error::other("disk is full"));
        let error = inner.code(ExitCode::Deadline).context("cannot save").unwrap_err();
        assert_eq!(code_of(&error), ExitCode::Deadline);
        assert_eq!(describe(&error), "cannot save: disk is full");
    }

    #[test]
    fn types_without_a_failure_have_their_codes() {
        assert_eq!(code_of(&std::io::Error::other("x").into()), ExitCode::Io);
        assert_eq!(code_of(&anyhow::anyhow!("x")), ExitCode::Failure);
        let error = fabric::FabricError::Unregistered { what: "x".into(), fix: "y" };
        assert_eq!(code_of(&error.into()), ExitCode::Transport);
        let error = fabric::address_space::too_little("x", 1);
        assert_eq!(code_of(&error.into()), ExitCode::Transport);
    }

    #[test]
    fn a_peer_s_text_forges_no_lines() {
        let line = error_line("gradwire-server", "refused: no\ngradwire-server: error: all is lost");
        assert_eq!(line, "gradwire-server: error: refused: no\\ngradwire-server: error: all is lost");
    }

    #[test]
    fn a_repeated_cause_is_said_once() {
        let error = anyhow::anyhow!("port in use").context("cannot bind: port in use");
        assert_eq!(describe(&error), "cannot bind: port in use");
    }
}
