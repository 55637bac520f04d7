//! The protocol of `docs/recovery.md` as a state machine for a model checker: which steps are possible (`step`), what they do
//! to servers, workers and the scheduler, and what must hold in every state (`properties`).
//!
//! It is written from that page and shares no code with the engines: it finds mistakes of the protocol, `tests/tests/sim/lab.rs`
//! finds mistakes of the code. One chunk is enough, because chunks share nothing but epochs. Time does not exist: whatever
//! may be late is as late as possible, and a deadline is a step that may happen.
#![forbid(unsafe_code)]

mod memory;
mod properties;
mod scheduler;
pub mod schedulers;
mod server;
mod state;
mod step;
mod stream;
mod worker;

pub use state::{Budget, Channel, Epoch, Map, Member, ROUNDS_MAX, State, WORKERS};
pub use step::Step;

/// How contributions become versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A version is a round of everybody.
    Sync,
    /// Each contribution is a version.
    Async,
}

/// What the protocol is broken by, to see that the properties notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A promoted copy goes on taking what the deposed primary sends.
    NoFence,
    /// A primary publishes before its copies have confirmed.
    AnswerFirst,
    /// The scheduler promotes a copy that is being made.
    PromoteUnfilled,
    /// A contribution to a round that is there already is folded again.
    NoDedupe,
    /// A member obeys a scheduler that is not the newest it knows.
    LowerTerm,
    /// A copy's round more counts as a confirmation whoever it had the round from.
    AnyonesRound,
    /// What a copy had before it was given up counts when it is to be one again, though others may have served in between.
    OldCopy,
    /// A restarted scheduler decides although neither all workers nor all servers have come to it.
    NoWorkerShown,
    /// A worker counts an answer of an epoch that it has not heard of.
    AnswerAhead,
    /// A new primary answers before its backup has what it has.
    AnswerUnfilled,
    /// A primary drops a copy that it called complete, when the stream to it breaks.
    SeededForgotten,
    /// Memory is granted again as soon as its channel has ended, though a copy into it may be under way.
    FenceSkipped,
}

/// An instance of the protocol, small enough to be searched through.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// How contributions become versions.
    pub mode: Mode,
    /// Servers.
    pub servers: usize,
    /// Rounds each worker contributes to.
    pub rounds: u8,
    /// How often each thing may go wrong.
    pub budget: Budget,
    /// Which rule is left out.
    pub broken: Option<Broken>,
}

impl Protocol {
    /// Is the rule left out that this names?
    pub(crate) fn lacks(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }
}
