//! Errors as Python has them: which class of `gradwire.errors`, a code for programs, a text for people.

pub(crate) use fabric::lock;
use gradwire_worker::{ClientError, OpError};
use proto_common::error::{Blame, ExitCode};
use proto_common::message::{DeclareError, WaitError};
use pyo3::prelude::*;

/// A class of `gradwire.errors`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Setting,
    Connect,
    Declare,
    Input,
    Deadline,
    WaitTimeout,
    Died,
    Closed,
    Operation,
    Memory,
    Fork,
    Internal,
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Self::Setting => "SettingError",
            Self::Connect => "ConnectError",
            Self::Declare => "DeclareError",
            Self::Input => "InputError",
            Self::Deadline => "DeadlineError",
            Self::WaitTimeout => "WaitTimeout",
            Self::Died => "MemberDiedError",
            Self::Closed => "ClosedError",
            Self::Operation => "OperationError",
            Self::Memory => "PoolError",
            Self::Fork => "ForkError",
            Self::Internal => "Error",
        }
    }
}

/// A failure that can be told more than once.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    kind: Kind,
    code: &'static str,
    text: String,
    exit_code: u8,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Failure {
    pub(crate) fn new(kind: Kind, code: &'static str, text: String) -> Self {
        Self { kind, code, text, exit_code: ExitCode::Failure as u8 }
    }

    /// The caller's, of arrays and arguments.
    pub(crate) fn input(code: &'static str, text: impl Into<String>) -> Self {
        Self::new(Kind::Input, code, text.into())
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn internal(text: String) -> Self {
        Self { exit_code: ExitCode::Internal as u8, ..Self::new(Kind::Internal, "internal", text) }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let (kind, code) = class_of(&error);
        Self { kind, code, text: error.to_string(), exit_code: error.exit_code() as u8 }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        Python::attach(|py| match raised(py, &failure) {
            Ok(error) | Err(error) => error,
        })
    }
}

fn raised(py: Python<'_>, failure: &Failure) -> PyResult<PyErr> {
    let class = py.import("gradwire.errors")?.getattr(failure.kind.class())?;
    let error = class.call1((failure.text.as_str(), failure.code, failure.exit_code))?;
    Ok(PyErr::from_value(error))
}

fn class_of(error: &ClientError) -> (Kind, &'static str) {
    match error {
        ClientError::Setting(_) | ClientError::Settings(_) | ClientError::Security(_) => {
            (Kind::Setting, "setting")
        }
        ClientError::Scheduler(..) => (Kind::Connect, "scheduler"),
        ClientError::Server { .. } => (Kind::Connect, "server"),
        ClientError::Lacking(_) => (Kind::Connect, "transport"),
        ClientError::Assemble { .. } => (Kind::Deadline, "assemble"),
        ClientError::Declare(DeclareError::Deadline { .. }) => (Kind::Deadline, "declare_deadline"),
        ClientError::Declare(_) => (Kind::Declare, "declare"),
        ClientError::Wait(WaitError::Deadline { .. }) => (Kind::Deadline, "barrier_deadline"),
        ClientError::Wait(_) => (Kind::Operation, "barrier"),
        ClientError::Op(error) => class_of_op(error),
        ClientError::WrongLength { .. } => (Kind::Input, "wrong_length"),
        ClientError::WrongDtype { .. } => (Kind::Input, "wrong_dtype"),
        ClientError::Dynamic { .. } => (Kind::Input, "dynamic"),
        ClientError::Uneven { .. } => (Kind::Input, "uneven"),
        ClientError::Torn { .. } => (Kind::Operation, "torn"),
        ClientError::Undeclared(_) => (Kind::Input, "undeclared"),
        ClientError::Foreign { .. } => (Kind::Input, "foreign"),
        ClientError::Unsorted { .. } => (Kind::Input, "unsorted"),
        ClientError::Table { .. } => (Kind::Input, "table"),
        ClientError::Metric { .. } => (Kind::Input, "metric"),
        ClientError::BadCall { .. } => (Kind::Input, "call"),
        ClientError::Memory(_) => (Kind::Memory, "pool"),
        ClientError::Fabric(_) => (Kind::Operation, "fabric"),
        ClientError::Died(_) => (Kind::Died, "died"),
        error if error.blame() == Blame::Caller => (Kind::Input, "input"),
        _ => (Kind::Internal, "internal"),
    }
}

fn class_of_op(error: &OpError) -> (Kind, &'static str) {
    match error {
        OpError::Deadline { .. } => (Kind::Deadline, "round_deadline"),
        OpError::StillRead { .. } => (Kind::Deadline, "still_read"),
        OpError::Uncopied { .. } => (Kind::Deadline, "uncopied"),
        OpError::Unsaved { .. } => (Kind::Deadline, "unsaved"),
        OpError::Behind { .. } => (Kind::Deadline, "behind"),
        OpError::NoAnswer { .. } => (Kind::Deadline, "no_answer"),
        OpError::Elsewhere { .. } => (Kind::Deadline, "elsewhere"),
        OpError::Unconnected { .. } => (Kind::Deadline, "unconnected"),
        OpError::Died(_) => (Kind::Died, "died"),
        OpError::Deposed { .. } => (Kind::Died, "deposed"),
        OpError::Broken { .. } => (Kind::Died, "broken"),
        OpError::Unshared { .. } => (Kind::Died, "unshared"),
        OpError::Held { cause: Some(cause), .. } => (class_of_op(cause).0, "held"),
        OpError::Held { .. } => (Kind::Died, "held"),
        OpError::Torn { .. } => (Kind::Died, "torn"),
        OpError::Closed(_) => (Kind::Closed, "closed"),
        OpError::BadValue { .. } => (Kind::Operation, "bad_value"),
        OpError::VersionGone { .. } => (Kind::Operation, "version_gone"),
        OpError::Refused { .. } => (Kind::Operation, "refused"),
        OpError::Call { .. } => (Kind::Operation, "call"),
        OpError::Unregistered(_) => (Kind::Operation, "unregistered"),
    }
}
