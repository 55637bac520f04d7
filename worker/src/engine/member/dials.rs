//! The connections to servers: to which incarnation, whether they are up, and when to try again. Which servers there are is in the
//! roster. It must not connect by itself.

use proto_common::ids::{Incarnation, Rank};
use proto_common::message::Member as Entry;
use std::collections::BTreeMap;

/// Milliseconds before the first try after a break; doubles with each that fails, up to [`RETRY_MAX_MS`].
const RETRY_FIRST_MS: u64 = 20;
/// Milliseconds between tries at most.
const RETRY_MAX_MS: u64 = 1_000;
/// A connection that held for so long, or for as long as there had been none, counts as one that works: its next break begins
/// anew.
const STEADY_MS: u64 = 5_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Under way. A lane's channel may have ended again before all lanes have theirs.
    Dialling {
        ended: bool,
    },
    Up {
        since_ms: u64,
    },
    Down,
}

#[derive(Debug)]
struct Dial {
    incarnation: Incarnation,
    /// Of the newest connection.
    number: u64,
    state: State,
    /// Tries since a connection was last steady, since when, and the last reason.
    failures: u32,
    down_since_ms: Option<u64>,
    reason: String,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Dials {
    to: BTreeMap<Rank, Dial>,
    next: u64,
    reach_ms: u64,
}

impl Dials {
    pub(super) fn new(reach_ms: u64) -> Self {
        Self { to: BTreeMap::new(), next: 0, reach_ms }
    }

    pub(super) fn is_up(&self, server: Rank) -> bool {
        self.to.get(&server).is_some_and(|dial| matches!(dial.state, State::Up { .. }))
    }

    /// Begins a connection to a server process that has none yet, and returns its number.
    pub(super) fn begin(&mut self, server: &Entry) -> Option<u64> {
        if self.to.contains_key(&server.id.rank) {
            return None;
        }
        self.next += 1;
        let dial = Dial {
            incarnation: server.incarnation,
            number: self.next,
            state: State::Dialling { ended: false },
            failures: 0,
            down_since_ms: None,
            reason: String::new(),
        };
        self.to.insert(server.id.rank, dial);
        Some(self.next)
    }

    /// How a connection went: whose it is, and whether it is up or to be made again. None of one that was given up.
    pub(super) fn answered(
        &mut self,
        number: u64,
        result: Result<(), String>,
        now_ms: u64,
    ) -> Option<(Rank, bool)> {
        let (server, dial) = self.to.iter_mut().find(|(_, dial)| dial.number == number)?;
        match (dial.state, result) {
            (State::Dialling { ended: false }, Ok(())) => dial.state = State::Up { since_ms: now_ms },
            (State::Dialling { .. }, Err(reason)) => dial.fail(reason, now_ms),
            (State::Dialling { ended: true }, Ok(())) => dial.fail(dial.reason.clone(), now_ms),
            (State::Up { .. } | State::Down, _) => return None,
        }
        Some((*server, dial.state != State::Down))
    }

    /// A channel of this connection has ended. True where it is to be made again.
    pub(super) fn broke(&mut self, server: Rank, number: u64, reason: String, now_ms: u64) -> bool {
        let Some(dial) = self.to.get_mut(&server).filter(|dial| dial.number == number) else { return false };
        match dial.state {
            State::Dialling { .. } => {
                (dial.state, dial.reason) = (State::Dialling { ended: true }, reason);
                false
            }
            State::Up { since_ms } => {
                let down_ms = since_ms.saturating_sub(dial.down_since_ms.unwrap_or(since_ms));
                let held_ms = now_ms.saturating_sub(since_ms);
                if held_ms >= down_ms.clamp(RETRY_FIRST_MS, STEADY_MS) {
                    (dial.failures, dial.down_since_ms) = (0, None);
                }
                dial.fail(reason, now_ms);
                true
            }
            State::Down => false,
        }
    }

    /// The next try's number, and after how many milliseconds; or why there is none.
    pub(super) fn again(&mut self, server: Rank, now_ms: u64) -> Result<(u64, u64), String> {
        let Some(dial) = self.to.get_mut(&server) else { return Err("it is not in the roster".into()) };
        let down_ms = now_ms.saturating_sub(dial.down_since_ms.unwrap_or(now_ms));
        if down_ms >= self.reach_ms {
            let reason = &dial.reason;
            return Err(format!("{reason}; no lasting connection to it for {down_ms} ms"));
        }
        self.next += 1;
        (dial.number, dial.state) = (self.next, State::Dialling { ended: false });
        Ok((self.next, RETRY_MAX_MS.min(RETRY_FIRST_MS << (dial.failures.saturating_sub(1)).min(16))))
    }

    /// Only these server processes are members from now on. Returns the ranks whose process has left or failed.
    pub(super) fn keep(&mut self, servers: &[Entry]) -> Vec<Rank> {
        let is_there = |rank: Rank, dial: &Dial| {
            servers.iter().any(|one| one.id.rank == rank && one.incarnation == dial.incarnation)
        };
        let over: Vec<Rank> =
            self.to.iter().filter(|(rank, dial)| !is_there(**rank, dial)).map(|(rank, _)| *rank).collect();
        over.iter().for_each(|rank| drop(self.to.remove(rank)));
        over
    }

    /// A server's process has failed. True if there was a connection to it.
    pub(super) fn end(&mut self, server: Rank) -> bool {
        self.to.remove(&server).is_some()
    }
}

impl Dial {
    fn fail(&mut self, reason: String, now_ms: u64) {
        self.state = State::Down;
        self.failures = self.failures.saturating_add(1);
        self.down_since_ms.get_or_insert(now_ms);
        self.reason = reason;
    }
}
