//! The trainer's errors, sorted by whose fault they are; each says cause and fix. Nothing here exits.

use gradwire_worker::ClientError;
use proto_common::error::ExitCode;
use std::io;
use std::path::{Path, PathBuf};

/// Everything that ends training or evaluation early.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say what fields are")]
pub enum TrainError {
    /// One field of one line of a text file is wrong.
    #[error("{}:{line}, column {column}: {cause}; fix: {fix}", file.display())]
    Row {
        file: PathBuf,
        /// Line number, from 1.
        line: u64,
        /// Field number in the line, from 1.
        column: u64,
        cause: String,
        fix: String,
    },
    /// A data file as a whole is wrong.
    #[error("{}: {cause}; fix: {fix}", file.display())]
    File { file: PathBuf, cause: String, fix: String },
    /// An input file cannot be opened.
    #[error("cannot open {}: {source}; fix: give the path of a readable file", file.display())]
    Open { file: PathBuf, source: io::Error },
    /// An opened input file cannot be read to its end.
    #[error("cannot read {}: {source}; fix: check the disk or file system and run again", file.display())]
    Read { file: PathBuf, source: io::Error },
    /// A result cannot be written.
    #[error("cannot write {}: {source}; fix: check that the directory exists, is writable and has room", file.display())]
    Write { file: PathBuf, source: io::Error },
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}; fix: keep the reading end open")]
    Stdout(io::Error),
    /// A flag's value is out of range or does not fit the others.
    #[error("{flag}: {cause}; fix: {fix}")]
    Setting { flag: &'static str, cause: String, fix: String },
    /// The loss is no longer a number.
    #[error("the loss became {loss} in epoch {epoch}, step {step}; fix: lower --lr or check --scale")]
    Diverged {
        /// Epoch, from 1.
        epoch: u32,
        /// Step in the epoch, from 1.
        step: u64,
        /// The loss seen.
        loss: f64,
    },
    /// The exchange failed; the cause says how.
    #[error("{0:#}")]
    Exchange(anyhow::Error),
}

impl TrainError {
    /// What the process exits with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Exchange(error) => match error.downcast_ref::<ClientError>() {
                Some(error) => error.exit_code(),
                None => daemon::exit::code_of(error),
            },
            Self::Setting { .. } => ExitCode::Usage,
            Self::Row { .. } | Self::File { .. } | Self::Open { .. } | Self::Read { .. } => ExitCode::BadData,
            Self::Write { .. } | Self::Stdout(_) => ExitCode::Io,
            Self::Diverged { .. } => ExitCode::Failure,
        }
    }

    /// A file that is wrong as a whole.
    pub(crate) fn file(file: &Path, cause: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::File { file: file.to_owned(), cause: cause.into(), fix: fix.into() }
    }

    /// A setting that cannot be honoured.
    pub(crate) fn setting(flag: &'static str, cause: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Setting { flag, cause: cause.into(), fix: fix.into() }
    }
}
