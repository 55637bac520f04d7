//! Errors for C programs: a code for the program, and a message for people, stored per thread.

use gradwire_worker::{CallFault, ClientError, OpError};
use proto_common::message::{DeclareError, WaitError};
use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of every function that can fail. The numbers never change; new ones may be added.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradwireCode {
    /// Success.
    Ok = 0,
    /// A required pointer is null.
    NullArgument = 1,
    /// Another argument is invalid: a length, a key, a number out of range, text that is not UTF-8.
    BadArgument = 2,
    /// The handle was waited for before. Each handle returns its result once.
    AlreadyWaited = 3,
    /// The buffer belongs to an operation in flight, or to a failed one.
    BufferInUse = 4,
    /// The time limit of the wait has passed. The operation continues: wait again.
    NotDone = 5,
    /// A setting is invalid or missing.
    Setting = 6,
    /// The scheduler or a server cannot be reached, has refused this process, or a connection to it broke.
    Unreachable = 7,
    /// A member did not arrive or answer before the deadline. The message names it.
    Deadline = 8,
    /// A member of the cluster failed. The message names it.
    MemberDied = 9,
    /// The cluster refused the declaration or the operation. The message has the reason.
    Refused = 10,
    /// A round's value does not fit the tensor's type, or a codec cannot encode a value.
    Value = 11,
    /// The client is closed, or the job has ended.
    Closed = 12,
    /// There is not enough memory or registered memory, or too much was requested.
    Memory = 13,
    /// No transport that the settings require is available.
    Transport = 14,
    /// The receiver of a call dropped it without an answer, or has no handler for it.
    NoReply = 15,
    /// A bug in the library. Please report the message.
    Internal = 99,
}

/// An error that is returned to C.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: GradwireCode,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(code: GradwireCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(crate) fn null(name: &str) -> Self {
        Self::new(GradwireCode::NullArgument, format!("{name} is null; pass a valid pointer"))
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(GradwireCode::BadArgument, text)
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Stores the message for [`gradwire_last_error`].
pub(crate) fn remember(failure: &Failure) {
    let text: Vec<u8> = failure.text.bytes().filter(|byte| *byte != 0).collect();
    let text = CString::new(text).unwrap_or_default();
    // A thread that is ending has no place for it any more.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// Runs a function's body for C. Its error, or a panic, becomes a code.
pub(crate) fn guard(work: impl FnOnce() -> Result<(), Failure>) -> GradwireCode {
    // What a panic leaves half done is behind locks that are passed on poisoned and looked at as they are.
    let result = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(&*panic)));
    match result {
        Ok(()) => GradwireCode::Ok,
        Err(failure) => {
            remember(&failure);
            failure.code
        }
    }
}

/// As [`guard`], for functions that return a value, with this value on failure.
pub(crate) fn guard_or<T>(otherwise: T, work: impl FnOnce() -> Result<T, Failure>) -> T {
    let mut value = None;
    let code = guard(|| {
        value = Some(work()?);
        Ok(())
    });
    value.filter(|_| code == GradwireCode::Ok).unwrap_or(otherwise)
}

/// Drops an object that C had.
pub(crate) fn free<T>(object: Option<Box<T>>) {
    guard(|| {
        drop(object);
        Ok(())
    });
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    Failure::new(GradwireCode::Internal, format!("internal error: {text}"))
}

/// The reason of the last failure on this thread, with its cause and a fix. Never null; empty if there was no failure.
/// Valid until the next failure on this thread. Do not free it.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"the thread is ending".as_ptr())
}

/// The name of a code for logs, such as "deadline". Never null; "unknown" for an unknown number. The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_code_name(code: i32) -> *const c_char {
    let name = match code {
        0 => c"ok",
        1 => c"null argument",
        2 => c"bad argument",
        3 => c"already waited",
        4 => c"buffer in use",
        5 => c"not done",
        6 => c"setting",
        7 => c"unreachable",
        8 => c"deadline",
        9 => c"member died",
        10 => c"refused",
        11 => c"value",
        12 => c"closed",
        13 => c"memory",
        14 => c"transport",
        15 => c"no reply",
        99 => c"internal",
        _ => c"unknown",
    };
    name.as_ptr()
}

impl From<OpError> for Failure {
    fn from(error: OpError) -> Self {
        Self::new(code_of_op(&error), error.to_string())
    }
}

fn code_of_op(error: &OpError) -> GradwireCode {
    match error {
        OpError::Deadline { .. }
        | OpError::Behind { .. }
        | OpError::StillRead { .. }
        | OpError::Uncopied { .. }
        | OpError::Unsaved { .. }
        | OpError::Elsewhere { .. }
        | OpError::Unconnected { .. }
        | OpError::NoAnswer { .. } => GradwireCode::Deadline,
        OpError::Held { cause: Some(cause), .. } => code_of_op(cause),
        OpError::Died(_) | OpError::Deposed { .. } | OpError::Torn { .. } => GradwireCode::MemberDied,
        OpError::Broken { .. } | OpError::Unshared { .. } | OpError::Held { .. } => GradwireCode::Unreachable,
        OpError::Unregistered(_) => GradwireCode::Transport,
        OpError::BadValue { .. } => GradwireCode::Value,
        OpError::Refused { .. } | OpError::VersionGone { .. } => GradwireCode::Refused,
        OpError::Call { fault, .. } => match fault {
            CallFault::Deadline | CallFault::NoAnswer | CallFault::LineFull => GradwireCode::Deadline,
            CallFault::NoHandler | CallFault::NoReply => GradwireCode::NoReply,
            CallFault::ServerDied | CallFault::StateLost => GradwireCode::MemberDied,
            CallFault::TooLong { .. }
            | CallFault::NoRoom { .. }
            | CallFault::Crowded
            | CallFault::PoolFull { .. }
            | CallFault::NoMemory => GradwireCode::Memory,
            CallFault::Refused(_) => GradwireCode::Refused,
        },
        OpError::Closed(_) => GradwireCode::Closed,
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Op(op) => code_of_op(op),
            ClientError::Setting(_) | ClientError::Settings(_) | ClientError::Security(_) => {
                GradwireCode::Setting
            }
            ClientError::Declare(DeclareError::Deadline { .. })
            | ClientError::Wait(WaitError::Deadline { .. })
            | ClientError::Assemble { .. } => GradwireCode::Deadline,
            ClientError::Declare(_) | ClientError::Wait(_) => GradwireCode::Refused,
            ClientError::Scheduler(..) | ClientError::Server { .. } | ClientError::Fabric(_) => {
                GradwireCode::Unreachable
            }
            ClientError::Lacking(_) => GradwireCode::Transport,
            ClientError::Memory(_) => GradwireCode::Memory,
            ClientError::Died(_) => GradwireCode::MemberDied,
            ClientError::Internal(_) => GradwireCode::Internal,
            _ => GradwireCode::BadArgument,
        };
        Self::new(code, error.to_string())
    }
}

impl From<daemon::settings::SettingsError> for Failure {
    fn from(error: daemon::settings::SettingsError) -> Self {
        Self::new(GradwireCode::Setting, chain(&error))
    }
}

/// An error with its causes.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn last() -> String {
        // SAFETY: the pointer is never null, ends with a nul, and no other function is called on this thread meanwhile.
        unsafe { CStr::from_ptr(gradwire_last_error()) }.to_str().expect("UTF-8").to_owned()
    }

    #[test]
    fn a_panic_becomes_a_code() {
        assert_eq!(guard(|| panic!("nobody {}", "expected it")), GradwireCode::Internal);
        assert!(last().contains("nobody expected it"), "{}", last());
        assert_eq!(guard_or(7, || panic!("again")), 7);
    }

    #[test]
    fn messages_are_of_their_thread_and_stay() {
        assert_eq!(guard(|| Err(Failure::null("client"))), GradwireCode::NullArgument);
        let other = std::thread::spawn(last).join().expect("no panic");
        assert_eq!((other.as_str(), last().as_str()), ("", "client is null; pass a valid pointer"));
        assert_eq!(guard(|| Ok(())), GradwireCode::Ok);
        assert!(last().starts_with("client"), "a success does not hide why something failed before");
    }

    #[test]
    fn text_with_a_nul_arrives_without_it() {
        assert_eq!(guard(|| Err(Failure::argument("a\0b"))), GradwireCode::BadArgument);
        assert_eq!(last(), "ab");
    }
}
