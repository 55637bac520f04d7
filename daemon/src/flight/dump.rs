//! What a process's recorder has, as one document: the body of `/trace`, and what a crash leaves behind. Data only; it is made in
//! `mod` and read by the command line.

use super::event::{Event, Kind, Timed};
use proto_common::ids::Role;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// What documents of this release say they are.
pub const FORMAT: &str = "gradwire-flight-1";

/// One moment, by each of a process's clocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Processes that say the same here have the same monotonic clock: one host since its boot, one time namespace.
    pub clock: String,
    /// That clock.
    pub monotonic_ns: u64,
    /// The time of day, since 1970.
    pub wall_ns: u64,
    /// Since the process's recorder began, which is what events have.
    pub recorder_ns: u64,
}

impl Stamp {
    /// This moment for who has no recorder: its time is 0.
    #[must_use]
    pub fn here() -> Self {
        Self { clock: clock(), monotonic_ns: monotonic_ns(), wall_ns: wall_ns(), recorder_ns: 0 }
    }
}

/// The kernel's monotonic clock.
pub(super) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

pub(super) fn clock() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}

/// The time of day.
pub(super) fn wall_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// A data thread's events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadDump {
    /// What it is called: `lane 0`.
    pub name: String,
    /// Events that it has recorded since it began; those that are not here were overwritten, or have no room.
    pub written: u64,
    /// Events that were overwritten while they were read.
    pub overwritten: u64,
    /// Oldest end first: kind, start, duration, key, chunk, peer, round, bytes, extra.
    pub events: Vec<[u64; 9]>,
}

/// Something that happened to the process beside its data threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// When, in nanoseconds since its recorder began.
    pub at_ns: u64,
    /// In a word: `epoch`.
    pub what: String,
    /// In full.
    pub text: String,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// [`FORMAT`].
    pub format: String,
    /// Whose.
    pub role: Role,
    /// Its rank, where it had one.
    pub rank: Option<u32>,
    /// Its job.
    pub job: u64,
    /// Its process id.
    pub pid: u32,
    /// Its release.
    pub build: String,
    /// Why it was made.
    pub reason: String,
    /// When.
    pub stamp: Stamp,
    /// Tensors' names, by key.
    pub names: BTreeMap<u64, String>,
    /// Events of data threads.
    pub threads: Vec<ThreadDump>,
    /// Everything else.
    pub notes: Vec<Note>,
}

impl Timed {
    /// As documents have it.
    #[must_use]
    pub fn row(&self) -> [u64; 9] {
        let Event { kind, key, chunk, peer, round, bytes, extra } = self.event;
        let (chunk, peer) = (u64::from(chunk), u64::from(peer));
        [kind as u64, self.start_ns, self.took_ns, key, chunk, peer, round, bytes, extra]
    }

    /// What a row says; `None` where a later release wrote it, or nobody of ours did.
    #[must_use]
    pub fn from_row(row: &[u64; 9]) -> Option<Self> {
        let [kind, start_ns, took_ns, key, chunk, peer, round, bytes, extra] = *row;
        let kind = Kind::from_number(kind)?;
        let (chunk, peer) = (u32::try_from(chunk).ok()?, u32::try_from(peer).ok()?);
        Some(Self { start_ns, took_ns, event: Event { kind, key, chunk, peer, round, bytes, extra } })
    }
}
