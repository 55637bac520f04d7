//! This process's place among others: dying with its parent, and the small tokio runtime of a control plane.

use crate::exit::Failure;
use proto_common::error::ExitCode;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::future::Future;
use std::io;
use thiserror::Error;

/// How far threads stand back that write behind.
const STAND_BACK: i32 = 10;

/// A process that sets this variable to its own process id wants its children to die with it.
pub const DIE_WITH_PARENT: &str = "GRADWIRE_DIE_WITH_PARENT";

/// The parent is gone already, or cannot be watched.
#[derive(Debug, Error)]
pub enum OrphanError {
    /// It died before we could ask the kernel to watch it.
    #[error("the parent process {parent} has exited: restart this process with `gradwire launch`")]
    Gone {
        /// Its process id.
        parent: String,
    },
    /// The kernel refused.
    #[error(
        "cannot arrange to exit together with the parent process: unset {DIE_WITH_PARENT} to run without"
    )]
    Kernel(#[from] io::Error),
}

/// Where the environment sets [`DIE_WITH_PARENT`], asks the kernel to kill this process when its parent dies;
/// an error if the parent is gone already. Does nothing otherwise.
pub fn die_with_parent(env: &[(String, String)]) -> Result<(), Failure> {
    let Some((_, parent)) = env.iter().find(|(name, _)| name == DIE_WITH_PARENT) else {
        return Ok(());
    };
    watch_parent(parent.parse().ok()).map_err(|error| Failure::new(ExitCode::Failure, error))
}

/// Asks the kernel to kill this process when its parent dies. With `expected`, the parent must still be that
/// process: it may have died before the kernel was asked.
pub fn watch_parent(expected: Option<u32>) -> Result<(), OrphanError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)?;
    let Some(expected) = expected else { return Ok(()) };
    let parent = getppid().map(Pid::as_raw_nonzero);
    let is_there = parent.is_some_and(|pid| u32::try_from(pid.get()) == Ok(expected));
    if is_there { Ok(()) } else { Err(OrphanError::Gone { parent: expected.to_string() }) }
}

/// The environment of this process, for `main` to read once. Entries that are not Unicode are left out: no
/// setting can have such a value.
#[must_use]
pub fn environment() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// Resident memory of this process, shared pages included; 0 where the kernel does not say.
#[must_use]
pub fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok()).unwrap_or(0);
    pages.saturating_mul(rustix::param::page_size() as u64)
}

/// The runtime of a control plane: one thread, network and timers.
pub fn control_runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// Drives `body`, all that a process has to do, to its end. Blocking work that is still on its way then ends with
/// the process: a runtime that is dropped waits for it, for as long as a peer that has died does not connect or
/// a name does not resolve.
pub fn run_to_end<T>(body: impl Future<Output = T>) -> io::Result<T> {
    let runtime = control_runtime()?;
    let ended = runtime.block_on(body);
    runtime.shutdown_background();
    Ok(ended)
}

/// The calling thread gives way to all others of this machine that want its core.
pub fn stand_back() {
    // Where that is not allowed it is only less polite.
    let _ = rustix::process::setpriority_process(None, STAND_BACK);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::sync_channel;
    use std::time::Duration;

    #[test]
    fn blocking_work_does_not_hold_up_the_end() {
        let (go_on, blocked) = sync_channel::<()>(0);
        let (started, begun) = tokio::sync::oneshot::channel();
        let (ended, end) = sync_channel(1);
        std::thread::spawn(move || {
            let body = async move {
                tokio::task::spawn_blocking(move || {
                    let _ = started.send(());
                    // Until the sender is dropped.
                    blocked.recv()
                });
                begun.await.is_ok()
            };
            ended.send(run_to_end(body).unwrap()).unwrap();
        });
        assert!(end.recv_timeout(Duration::from_secs(30)).expect("it ends while the work is blocked"));
        drop(go_on);
    }

    #[test]
    fn memory_that_is_touched_is_resident_and_what_is_only_reserved_is_not() {
        let touched = std::hint::black_box(vec![1u8; 64 << 20]);
        let reserved: Vec<u8> = std::hint::black_box(Vec::with_capacity(4 << 30));
        // Other tests of this process allocate and free beside it: a difference over time would be theirs, too.
        let resident = resident_bytes();
        assert!(resident >= touched.len() as u64 && resident < reserved.capacity() as u64 / 2, "{resident}");
    }

    #[test]
    fn a_parent_that_is_another_process_is_noticed() {
        let error = watch_parent(Some(u32::MAX)).unwrap_err();
        assert!(error.to_string().contains("has exited"), "{error}");
        assert!(die_with_parent(&[]).is_ok());
    }
}
