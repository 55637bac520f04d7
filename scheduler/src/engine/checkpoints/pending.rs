//! A checkpoint under way: which parts have arrived, which are missing, and whether they are a whole checkpoint.

use super::super::member::ConnectionId;
use proto_common::error::ExitCode;
use proto_common::ids::{Epoch, Key, Rank};
use proto_common::message::{Cover, PartWritten, SaveProgress, WAITING_LISTED_MAX, Waiting, Waits};
use proto_common::table::TableSpec;
use proto_common::tensor::TensorSpec;
use std::collections::BTreeMap;

/// What the engine must know about checkpoints.
#[derive(Clone, Debug, Default)]
pub struct CheckpointConfig {
    /// Is there a place for them?
    pub has_place: bool,
    /// The one that tensors begin from.
    pub restore: Option<String>,
    /// The newest complete one.
    pub last: Option<String>,
    /// Why a fresh job cannot begin from what it is to begin from. Members of one that runs know what that was.
    pub unusable: Option<Unusable>,
}

/// A checkpoint that cannot be begun from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// What the scheduler ends with.
    pub code: ExitCode,
    /// What is wrong, and what to do.
    pub reason: String,
}

/// A checkpoint whose parts are all there.
#[derive(Clone, Debug, PartialEq)]
pub struct Completed {
    /// Its round.
    pub round: u64,
    /// Its tensors, with the least and the newest version of their chunks.
    pub tensors: Vec<(TensorSpec, u64, u64)>,
    /// Its tables, with their rows.
    pub tables: Vec<(TableSpec, u64)>,
    /// Its parts, with what they cover.
    pub parts: Vec<PartWritten>,
    /// The checkpoint that the job began from: it is not written over, and stays.
    pub restore: Option<String>,
}

/// What is to be cleared away of checkpoints that are not complete. `restore` is the one that the job began from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clearing {
    /// Of one that was given up: these files lie there, and nobody writes to them any more.
    GivenUp {
        /// Its round.
        round: u64,
        /// Parts that servers have said to be there.
        files: Vec<String>,
        /// See above.
        restore: Option<String>,
    },
    /// One begins: whatever earlier rounds have left is to make room.
    Before {
        /// Its round.
        round: u64,
        /// Those that are not over.
        writing: Vec<u64>,
        /// See above.
        restore: Option<String>,
    },
}

impl Clearing {
    /// Is the engine to hear what came of it?
    #[must_use]
    pub fn is_told(&self) -> bool {
        matches!(self, Self::GivenUp { .. })
    }
}

/// What a checkpoint is to have.
pub(in super::super) struct Wanted<'a> {
    /// Tensors that servers hold, each with the epoch that it was placed in.
    pub(in super::super) tensors: Vec<(&'a TensorSpec, Epoch)>,
    pub(in super::super) servers: Vec<ConnectionId>,
    pub(in super::super) lanes: u16,
    pub(in super::super) chunk_bytes: u64,
    /// The checkpoint that the job began from.
    pub(in super::super) restore: Option<&'a str>,
}

/// Somebody who waits for one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) connection: ConnectionId,
    /// It is no member: with its answer its connection has served.
    pub(super) is_operator: bool,
    pub(super) request: u64,
    pub(super) since_ms: u64,
    pub(super) deadline_ms: u64,
}

/// One under way.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) begun: Epoch,
    /// What the job began from then.
    pub(super) restore: Option<String>,
    pub(super) parts: BTreeMap<(Rank, u16), PartWritten>,
    pub(super) askers: Vec<Asker>,
    /// An operator asked for it.
    pub(super) is_ordered: bool,
    /// A worker asked for it, as of the moment.
    pub(super) is_now: bool,
    pub(super) is_passed: bool,
    /// What lanes said that it waits for.
    pub(super) waits: BTreeMap<(Rank, u16), Waits>,
    /// Its manifest is being written.
    pub(super) is_complete: bool,
    /// It has all tensors there are, each at exactly its round.
    pub(super) is_exact: bool,
    /// Since when nothing has come of it; none where something has since the last tick.
    pub(super) stalled_since_ms: Option<u64>,
}

impl Pending {
    /// A lane says what it waits for: nothing where all its chunks are copied.
    pub(super) fn hear(&mut self, from: (Rank, u16), waits: Option<Waits>) {
        if self.parts.contains_key(&from) {
            return;
        }
        let before = match waits {
            Some(waits) => self.waits.insert(from, waits),
            None => self.waits.remove(&from),
        };
        if before.is_some_and(|before| waits.is_none_or(|now| now.left < before.left)) {
            self.stalled_since_ms = None;
        }
    }

    /// Parts that have not come, and what is known of the first of them.
    pub(super) fn missing(&self, all: &[(Rank, u16)]) -> (u64, Vec<Waiting>) {
        let missing = || all.iter().filter(|part| !self.parts.contains_key(part));
        let waits = |part: &(Rank, u16)| self.waits.get(part).copied();
        let waiting = missing().take(WAITING_LISTED_MAX);
        let waiting = waiting.map(|part| Waiting { server: part.0, lane: part.1, waits: waits(part) });
        (missing().count() as u64, waiting.collect())
    }

    /// How long nothing has come of it.
    pub(super) fn stalled_ms(&mut self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(*self.stalled_since_ms.get_or_insert(now_ms))
    }
}

/// Puts the parts together; an error where a chunk is missing or stands twice, or a synchronous tensor has several versions.
/// Tensors that were declared since it was begun are left out.
pub(super) fn complete(round: u64, pending: &Pending, wanted: &Wanted<'_>) -> Result<Completed, String> {
    let mut covers: BTreeMap<Key, Vec<Cover>> = BTreeMap::new();
    let mut rows: BTreeMap<u32, (TableSpec, u64)> = BTreeMap::new();
    for part in pending.parts.values() {
        for cover in &part.covers {
            covers.entry(cover.first.key).or_default().push(*cover);
        }
        for (spec, count) in &part.tables {
            let sum = &mut rows.entry(spec.key).or_insert_with(|| (spec.clone(), 0)).1;
            *sum = sum.saturating_add(*count);
        }
    }
    let mut tensors = Vec::new();
    for (spec, epoch) in &wanted.tensors {
        let mut own = covers.remove(&spec.key).unwrap_or_default();
        if own.is_empty() && *epoch > pending.begun {
            continue;
        }
        own.sort_unstable_by_key(|cover| cover.first.chunk);
        let end = own.iter().try_fold(0u64, |end, cover| {
            (u64::from(cover.first.chunk.0) == end).then_some(end + u64::from(cover.chunks))
        });
        let chunks = spec.chunk_count(wanted.chunk_bytes);
        if end != Some(chunks) {
            let what = "shards were moved while it was written";
            let label = spec.label();
            return Err(format!("its parts do not have the {chunks} chunks of {label} once each: {what}"));
        }
        let versions = || own.iter().map(|cover| cover.version);
        let (least, newest) = (versions().min().unwrap_or(0), versions().max().unwrap_or(0));
        if spec.settled_mode().has_rounds() && (least != newest || newest > round) {
            let label = spec.label();
            return Err(format!("{label} was at rounds {least} to {newest}: ask for it between rounds"));
        }
        tensors.push(((*spec).clone(), least, newest));
    }
    let with_rounds = tensors.iter().filter(|(spec, ..)| spec.settled_mode().has_rounds());
    if !pending.is_now && with_rounds.map(|(_, _, newest)| *newest).max().is_some_and(|newest| newest < round)
    {
        return Err("training ended before any tensor came to that round".into());
    }
    let parts = pending.parts.values().cloned().collect();
    let restore = wanted.restore.map(str::to_owned);
    Ok(Completed { round, tensors, tables: rows.into_values().collect(), parts, restore })
}

/// One that is complete, and of which nothing can be different as long as nobody trains.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) round: u64,
    pub(super) begun: Epoch,
    pub(super) name: String,
}

/// Checkpoints that operators have asked for.
#[derive(Debug)]
pub(super) struct Ordered {
    pub(super) askers: Vec<Asker>,
    /// Servers were asked how far they are: what each lane has said.
    pub(super) asked: Option<BTreeMap<(Rank, u16), u64>>,
    pub(super) ahead: u64,
    /// What was told last.
    pub(super) told: SaveProgress,
    pub(super) newest: u64,
}

impl Default for Ordered {
    fn default() -> Self {
        let (askers, told) = (Vec::new(), SaveProgress::default());
        Self { askers, asked: None, ahead: AHEAD, told, newest: 0 }
    }
}

/// Rounds between what servers said and the one that is named, at first; twice as many each time that one was past it.
const AHEAD: u64 = 2;

impl Ordered {
    /// What servers said does not count any more.
    pub(super) fn ask_anew(&mut self) {
        self.asked = None;
    }
}
