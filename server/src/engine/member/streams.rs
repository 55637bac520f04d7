//! The streams that a server's chunks need: to whom, how far they are, and when to try again. Who wants them is the map's to say.

use proto_common::ids::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// Milliseconds before the first try after one that failed; doubles up to [`RETRY_MAX_MS`].
const RETRY_FIRST_MS: u64 = 100;
/// Milliseconds between tries at most.
const RETRY_MAX_MS: u64 = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Under way. A lane's may have ended again before all lanes have theirs.
    Dialling {
        ended: bool,
    },
    Up,
    Down,
}

#[derive(Debug)]
struct Stream {
    /// Of the newest dial.
    number: u64,
    state: State,
    /// Dials that have failed since the last one that did not.
    failures: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Streams {
    to: BTreeMap<Rank, Stream>,
}

impl Streams {
    /// A dial under this number is to begin: after how many milliseconds. `None` where there is no need of one.
    pub(super) fn begin(&mut self, to: Rank, number: u64) -> Option<u64> {
        let stream = self.to.entry(to).or_insert(Stream { number, state: State::Down, failures: 0 });
        if stream.state != State::Down {
            return None;
        }
        (stream.number, stream.state) = (number, State::Dialling { ended: false });
        Some(match stream.failures.checked_sub(1) {
            None => 0,
            Some(before) => RETRY_MAX_MS.min(RETRY_FIRST_MS << before.min(16)),
        })
    }

    /// How a dial went.
    pub(super) fn dialled(&mut self, number: u64, is_up: bool) {
        let Some(stream) = self.to.values_mut().find(|stream| stream.number == number) else { return };
        match stream.state {
            State::Dialling { ended: false } if is_up => (stream.state, stream.failures) = (State::Up, 0),
            State::Dialling { .. } => stream.fail(),
            State::Up | State::Down => {}
        }
    }

    /// A lane's stream of this dial has ended.
    pub(super) fn down(&mut self, to: Rank, number: u64) {
        let Some(stream) = self.to.get_mut(&to).filter(|stream| stream.number == number) else { return };
        match stream.state {
            State::Dialling { .. } => stream.state = State::Dialling { ended: true },
            State::Up => stream.fail(),
            State::Down => {}
        }
    }

    /// Only these are wanted from now on. Says which are given up.
    pub(super) fn keep(&mut self, wanted: &BTreeSet<Rank>) -> Vec<Rank> {
        let given_up: Vec<Rank> = self.to.keys().copied().filter(|to| !wanted.contains(to)).collect();
        self.to.retain(|to, _| wanted.contains(to));
        given_up
    }

    /// That incarnation has ended. True where a dial to it is under way.
    pub(super) fn end(&mut self, to: Rank) -> bool {
        self.to.remove(&to).is_some_and(|stream| matches!(stream.state, State::Dialling { .. }))
    }
}

impl Stream {
    fn fail(&mut self) {
        self.state = State::Down;
        self.failures = self.failures.saturating_add(1);
    }
}
