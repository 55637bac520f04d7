//! How the server stands with the scheduler and with the servers that have its copies, for `/readyz` and `/status`. Nothing is
//! decided by it.

use proto_common::ids::Rank;
use proto_common::transport::Choice;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How far a stream is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StreamState {
    Connecting,
    Up,
    Down,
}

/// One stream, to a server that has copies or is to have some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct StreamStatus {
    pub(super) to: u32,
    pub(super) state: StreamState,
    /// The driver in use.
    pub(super) driver: Option<String>,
    /// Why that one; or why there is none.
    pub(super) why: String,
    #[serde(skip)]
    number: u64,
}

/// What all share who ask.
#[derive(Clone, Debug, Default)]
pub(super) struct Standing(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    away: Option<Instant>,
    /// As many as there are servers.
    streams: BTreeMap<Rank, StreamStatus>,
    /// Streams that were connected.
    connected: u64,
    /// Streams that ended, and dials that failed.
    broken: u64,
}

impl Standing {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Each change is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when there is no scheduler.
    pub(super) fn set_away(&self, since: Option<Instant>) {
        self.lock().away = since;
    }

    /// Milliseconds without a scheduler, where there is none.
    pub(super) fn away_ms(&self) -> Option<u64> {
        self.lock().away.map(|since| since.elapsed().as_millis() as u64)
    }

    pub(super) fn dialling(&self, to: Rank, number: u64) {
        let mut inner = self.lock();
        let why = inner.streams.remove(&to).map_or_else(String::new, |before| before.why);
        let state = StreamState::Connecting;
        inner.streams.insert(to, StreamStatus { to: to.0, state, driver: None, why, number });
    }

    pub(super) fn dialled(&self, to: Rank, number: u64, result: Result<Choice, String>) {
        let mut inner = self.lock();
        let Inner { streams, connected, broken, .. } = &mut *inner;
        let Some(stream) = streams.get_mut(&to).filter(|stream| stream.number == number) else { return };
        match result {
            Ok(choice) => {
                *connected += 1;
                stream.state = StreamState::Up;
                (stream.driver, stream.why) = (Some(choice.driver.to_string()), choice.why);
            }
            Err(reason) => {
                *broken += 1;
                (stream.state, stream.why) = (StreamState::Down, reason);
            }
        }
    }

    pub(super) fn stream_down(&self, to: Rank, number: u64) {
        let mut inner = self.lock();
        let Inner { streams, broken, .. } = &mut *inner;
        let up = |stream: &&mut StreamStatus| stream.number == number && stream.state == StreamState::Up;
        if let Some(stream) = streams.get_mut(&to).filter(up) {
            *broken += 1;
            (stream.state, stream.driver) = (StreamState::Down, None);
            stream.why = "it has ended".into();
        }
    }

    /// It is not wanted any more.
    pub(super) fn hang_up(&self, to: Rank) {
        self.lock().streams.remove(&to);
    }

    /// All streams; how many were connected, and how often one ended or could not be.
    pub(super) fn streams(&self) -> (Vec<StreamStatus>, u64, u64) {
        let inner = self.lock();
        (inner.streams.values().cloned().collect(), inner.connected, inner.broken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::transport::Driver;

    #[test]
    fn a_stream_is_shown_as_its_newest_dial_went() {
        let standing = Standing::default();
        let shown = |standing: &Standing| {
            let (streams, connected, broken) = standing.streams();
            (streams.first().map(|stream| (stream.state, stream.why.clone())), connected, broken)
        };
        standing.dialling(Rank(1), 4);
        standing.dialled(Rank(1), 3, Err("of an earlier one".into()));
        assert_eq!(shown(&standing), (Some((StreamState::Connecting, String::new())), 0, 0));
        standing.dialled(Rank(1), 4, Err("refused".into()));
        assert_eq!(shown(&standing), (Some((StreamState::Down, "refused".into())), 0, 1));
        standing.dialling(Rank(1), 5);
        assert_eq!(shown(&standing), (Some((StreamState::Connecting, "refused".into())), 0, 1), "why again");
        standing.dialled(Rank(1), 5, Ok(Choice { driver: Driver::Shm, why: "one host".into() }));
        standing.stream_down(Rank(1), 4);
        assert_eq!(shown(&standing), (Some((StreamState::Up, "one host".into())), 1, 1));
        standing.stream_down(Rank(1), 5);
        assert_eq!(shown(&standing), (Some((StreamState::Down, "it has ended".into())), 1, 2));
        standing.hang_up(Rank(1));
        assert_eq!(shown(&standing), (None, 1, 2));
    }

    #[test]
    fn time_without_a_scheduler_is_told_while_there_is_none() {
        let standing = Standing::default();
        assert_eq!(standing.away_ms(), None);
        standing.set_away(Some(Instant::now()));
        assert!(standing.away_ms().is_some());
        standing.set_away(None);
        assert_eq!(standing.away_ms(), None);
    }
}
