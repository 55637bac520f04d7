//! What strangers can make a process say again and again is said once a second, with how often it was left out. It must not
//! decide what is said.

use std::sync::Mutex;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When the current second began.
    since: Option<Instant>,
    said: u32,
    left_out: u64,
}

impl Seldom {
    /// May it be said now? Then how often it was not, since it was last.
    pub fn may_speak(&self) -> Option<u64> {
        self.may_speak_at(Instant::now(), 1)
    }

    /// The same of what may be said so many times a second.
    pub(crate) fn may_speak_at(&self, now: Instant, times: u32) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if state.since.is_none_or(|since| now.saturating_duration_since(since) >= EVERY) {
            (state.since, state.said) = (Some(now), 0);
        }
        if state.said == times {
            state.left_out += 1;
            return None;
        }
        state.said += 1;
        Some(std::mem::take(&mut state.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_a_second_and_the_rest_is_counted() {
        let (seldom, begin) = (Seldom::default(), Instant::now());
        let said: Vec<_> = [0, 10, 999, 1_000, 1_001, 2_500]
            .map(|ms| seldom.may_speak_at(begin + Duration::from_millis(ms), 1))
            .into_iter()
            .collect();
        assert_eq!(said, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
