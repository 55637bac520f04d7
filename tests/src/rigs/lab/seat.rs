//! Seats and the processes on them: one life after the other. A process has a node of its own, a clock that runs at its own
//! rate, a link to the scheduler, and, once it is registered, the engines of its role.

use super::server::Server;
use super::wire::WireId;
use super::worker::Worker;
use daemon::control::Undecided;
use fabric::sim::{NodeId, Rng};
use proto_common::ids::{Incarnation, Role};
use proto_common::message::{Resume, ToScheduler};

/// A place for processes.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) role: Role,
    pub(super) clock: Clock,
    pub(super) process: Option<Process>,
    /// Lives so far.
    pub(super) lives: u64,
    /// When the next life begins, if one is to.
    pub(super) start_us: Option<u64>,
    /// It does nothing before.
    pub(super) paused_until_us: u64,
    /// It takes its time with everything before.
    pub(super) slow_until_us: u64,
    /// Its control messages take longer before.
    pub(super) late_until_us: u64,
    /// Its program is through.
    pub(super) is_done: bool,
}

/// A clock that runs at its own rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// How fast it is, in millionths of the true rate.
    pub(super) rate_ppm: u64,
    /// What it showed at time zero.
    pub(super) offset_ms: u64,
}

impl Clock {
    /// At most so much fast or slow, and anything at the beginning.
    pub(super) fn drawn(rng: &mut Rng, skew_ppm: u64) -> Self {
        let rate_ppm = 1_000_000 - skew_ppm + rng.within(0, 2 * skew_ppm);
        Self { rate_ppm, offset_ms: rng.below(10_000_000) }
    }

    /// What it shows.
    pub(super) fn clock_ms(&self, now_us: u64) -> u64 {
        let ticks = u128::from(now_us) * u128::from(self.rate_ppm) / 1_000_000;
        self.offset_ms + (ticks / 1_000) as u64
    }

    /// When it shows this, in true time.
    pub(super) fn true_us(&self, clock_ms: u64) -> u64 {
        let ticks = u128::from(clock_ms.saturating_sub(self.offset_ms)) * 1_000;
        (ticks * 1_000_000).div_ceil(u128::from(self.rate_ppm)) as u64
    }
}

/// One life.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) node: NodeId,
    pub(super) life: Incarnation,
    pub(super) link: Link,
    /// When the scheduler was heard last.
    pub(super) heard_us: u64,
    /// When the next heartbeat is due.
    pub(super) beat_us: u64,
    /// It was cut off, or stopped, for longer than makes it dead: the scheduler may know it no more.
    pub(super) is_doubtful: bool,
    /// The scheduler has taken its goodbye.
    pub(super) is_dismissed: bool,
    /// Its map, of which the scheduler has the digest.
    pub(super) announced: Option<Resume>,
    /// Handed over while there was no scheduler.
    pub(super) unsaid: Vec<ToScheduler>,
    /// Decisions that are not in force yet.
    pub(super) undecided: Undecided,
    /// The highest term that it has voted for or obeyed.
    pub(super) term: u32,
    pub(super) body: Body,
}

/// How it stands with the scheduler.
#[derive(Clone, Copy, Debug)]
pub(super) enum Link {
    Seeking { since_us: u64, next_us: u64 },
    Greeting(WireId),
    Up(WireId),
}

/// What its role made of it.
#[derive(Debug)]
pub(super) enum Body {
    /// Not registered yet.
    Nobody,
    Server(Box<Server>),
    Worker(Box<Worker>),
}
