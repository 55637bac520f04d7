//! Which scheduler owns a job's checkpoints: the one with the newest term. Each term is a file that only one process can create,
//! `owner/term-N.json`. This module must not decide whether an owner still runs; its caller compares the records.
//!
//! If two schedulers of one job wrote and removed files at once, the manifest of one could name parts that the other has removed.

use crate::error::CheckpointError;
use crate::store::Store;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The directory of the records, beside a job's checkpoints.
const OWNERS: &str = "owner";
/// The most bytes that are read of a record.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// The record of a scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its incarnation: a random number that no other scheduler has.
    pub id: u64,
    /// Its host name.
    pub host: String,
    /// The boot id of its kernel and its PID namespace. A process with the same value can use `pid` to find out whether the owner runs.
    pub machine: String,
    /// Its process id.
    pub pid: u32,
    /// When the process started, in the kernel's clock ticks.
    pub started_ticks: u64,
    /// The address at which members reach it.
    pub address: String,
    /// When it became the owner, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// How often it has updated this record since then, to show that it runs.
    pub beats: u64,
    /// It has exited, and no longer owns the checkpoints.
    pub has_ended: bool,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, pid, since_unix_ms, .. } = self;
        write!(f, "process {pid} on host {host:?}, owner since {}", utc(*since_unix_ms))
    }
}

/// The newest term of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Its number.
    pub number: u64,
    /// Its owner; `None` if the record cannot be parsed, for example because it is being written.
    pub owner: Option<Owner>,
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.owner {
            Some(owner) => owner.fmt(f),
            None => write!(f, "a process whose record {OWNERS}/{} cannot be read", file_of(self.number)),
        }
    }
}

fn file_of(term: u64) -> String {
    format!("term-{term}.json")
}

fn term_of(file: &str) -> Option<u64> {
    let term = file.strip_prefix("term-")?.strip_suffix(".json")?.parse().ok()?;
    (file_of(term) == file).then_some(term)
}

fn terms(store: &dyn Store) -> Result<Vec<u64>, CheckpointError> {
    Ok(store.files(OWNERS)?.iter().filter_map(|(file, _)| term_of(file)).collect())
}

/// The newest term; `None` if the job's checkpoints have had no owner yet.
pub fn newest_term(store: &dyn Store) -> Result<Option<Term>, CheckpointError> {
    let Some(number) = terms(store)?.into_iter().max() else { return Ok(None) };
    let file = file_of(number);
    // The file may be removed at this moment, if a third scheduler becomes the owner.
    let bytes = store.bytes(OWNERS, &file)?.unwrap_or(0).min(RECORD_BYTES_MAX);
    let mut record = vec![0; bytes as usize];
    let owner =
        store.read(OWNERS, &file, 0, &mut record).ok().and_then(|()| serde_json::from_slice(&record).ok());
    Ok(Some(Term { number, owner }))
}

/// Becomes the owner with the term after `after`. Returns `None` if another scheduler was quicker.
pub fn claim(
    store: Arc<dyn Store>,
    after: Option<&Term>,
    owner: Owner,
) -> Result<Option<Ownership>, CheckpointError> {
    let term = after.map_or(0, |term| term.number) + 1;
    let is_made = store.put_new(OWNERS, &file_of(term), &bytes_of(&owner)?)?;
    let newest = newest_term(&*store)?;
    let is_ours = newest.is_some_and(|newest| {
        // An object store's answer may be lost and the request repeated. Then the file exists already, and has our id.
        newest.number == term && newest.owner.map_or(is_made, |there| there.id == owner.id)
    });
    if !is_ours {
        return Ok(None);
    }
    for old in terms(&*store)?.into_iter().filter(|old| *old < term) {
        // An old file that cannot be removed, because another user owns it, is harmless: this term is newer.
        let _ = store.remove(OWNERS, &file_of(old));
    }
    Ok(Some(Ownership { store, term, owner: Mutex::new(owner) }))
}

fn bytes_of(owner: &Owner) -> Result<Vec<u8>, CheckpointError> {
    serde_json::to_vec_pretty(owner).map_err(|error| CheckpointError::Plan(error.to_string()))
}

/// The ownership of a term by this process.
#[derive(Debug)]
pub struct Ownership {
    store: Arc<dyn Store>,
    term: u64,
    owner: Mutex<Owner>,
}

impl Ownership {
    fn owner(&self) -> MutexGuard<'_, Owner> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its number.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Called before files are written or removed: an error if another scheduler has become the owner, or [`Self::end`] was called.
    pub fn check(&self) -> Result<(), CheckpointError> {
        if self.owner().has_ended {
            return Err(CheckpointError::Plan("this scheduler has given up the job's checkpoints".into()));
        }
        match newest_term(&*self.store)? {
            Some(newest) if newest.number > self.term => {
                Err(CheckpointError::Deposed { place: self.store.place(), by: newest.to_string() })
            }
            _ => Ok(()),
        }
    }

    /// Updates the record, which shows other schedulers that this process runs.
    pub fn beat(&self) -> Result<(), CheckpointError> {
        self.check()?;
        let mut owner = self.owner();
        owner.beats += 1;
        self.store.put_bytes(OWNERS, &file_of(self.term), &bytes_of(&owner)?)
    }

    /// Gives up the ownership, so the next scheduler need not wait.
    pub fn end(&self) -> Result<(), CheckpointError> {
        self.check()?;
        let mut owner = self.owner();
        owner.has_ended = true;
        self.store.put_bytes(OWNERS, &file_of(self.term), &bytes_of(&owner)?)
    }
}

/// A time in UTC, for people.
#[must_use]
pub fn utc(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    // Proleptic Gregorian calendar: it repeats every 400 years. Years begin in March here, so the leap day is the last day of a year.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let (day, month) =
        (day_of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = 400 * era + year + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
#[path = "owner_tests.rs"]
mod tests;
