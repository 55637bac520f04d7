//! The pace of a member, and the members that it waits for, over its last heartbeats. Plain data and arithmetic. One heartbeat alone is not
//! enough, because the next one may arrive in the middle of a round.

use proto_common::ids::{Rank, Role};
use proto_common::message::MemberReport;
use std::collections::VecDeque;

/// Heartbeats of so long ago no longer count.
const WINDOW_MS: u64 = 5_000;
/// Heartbeats that are kept: more than a window has with the usual period.
const LOOKS_MAX: usize = 16;
/// What is kept spans so much at least: a rate over less is noise.
const SPAN_MIN_MS: u64 = 1_000;
/// Heartbeats that come sooner after one another, as they do after a pause of this process, count as one: what the newest says.
const APART_MIN_MS: u64 = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Look {
    at_ms: u64,
    round: u64,
    /// It had nothing to do, and had done nothing since the look before.
    is_idle: bool,
    waits_for: Vec<Rank>,
}

/// A member's last heartbeats, as far as they tell of its pace.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    looks: VecDeque<Look>,
}

impl Pace {
    pub(super) fn see(&mut self, now_ms: u64, report: &MemberReport) {
        // Another life of its trainer begins anew.
        if self.looks.back().is_some_and(|last| report.round < last.round) {
            self.looks.clear();
        }
        let waits_for = waited_for(report);
        let was_there = self.looks.back().is_some_and(|last| last.round == report.round);
        let is_idle = was_there && report.in_flight == 0;
        match self.looks.back_mut() {
            Some(last) if now_ms < last.at_ms + APART_MIN_MS => {
                *last = Look { at_ms: last.at_ms, round: report.round, is_idle, waits_for };
            }
            _ => self.looks.push_back(Look { at_ms: now_ms, round: report.round, is_idle, waits_for }),
        }
        // The second one is to be old enough: it would be the first.
        let spans = |second: &Look| second.at_ms + SPAN_MIN_MS <= now_ms;
        while self.looks.len() > LOOKS_MAX
            || self.looks.front().is_some_and(|first| first.at_ms + WINDOW_MS < now_ms)
                && self.looks.get(1).is_some_and(spans)
        {
            self.looks.pop_front();
        }
    }

    /// Rounds per second, to a thousandth; 0 while one heartbeat only has come.
    pub(super) fn rounds_per_second(&self) -> f64 {
        let (Some(first), Some(last)) = (self.looks.front(), self.looks.back()) else { return 0.0 };
        let passed_ms = last.at_ms.saturating_sub(first.at_ms);
        if passed_ms == 0 {
            return 0.0;
        }
        thousandths((last.round - first.round) as f64 * 1e3 / passed_ms as f64)
    }

    /// The newest heartbeat's time and round.
    pub(super) fn newest(&self) -> Option<(u64, u64)> {
        self.looks.back().map(|look| (look.at_ms, look.round))
    }

    /// When and in which round it was idle, if it was in its newest heartbeat.
    pub(super) fn idle(&self) -> Option<(u64, u64)> {
        self.looks.back().filter(|look| look.is_idle).map(|look| (look.at_ms, look.round))
    }

    /// The round that its last heartbeat until then told, or the first one that is known.
    pub(super) fn round_at(&self, at_ms: u64) -> u64 {
        let until = self.looks.iter().take_while(|look| look.at_ms <= at_ms).last();
        until.or(self.looks.front()).map_or(0, |look| look.round)
    }

    /// Heartbeats that count, and how many of them waited for this worker.
    pub(super) fn waits_for(&self, worker: Rank) -> (usize, usize) {
        (self.looks.len(), self.looks.iter().filter(|look| look.waits_for.contains(&worker)).count())
    }
}

/// Workers that a server's oldest operation waits for, whatever they are to do.
fn waited_for(report: &MemberReport) -> Vec<Rank> {
    let oldest = report.waits.first().filter(|oldest| oldest.cause.role() == Some(Role::Worker));
    oldest.map(|oldest| oldest.on.clone()).unwrap_or_default()
}

/// Enough for people.
pub(super) fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::message::{Wait, WaitCause};

    fn report(round: u64, waits_for: &[u32]) -> MemberReport {
        let on = waits_for.iter().copied().map(Rank).collect();
        let cause = WaitCause::Contributions;
        let waits = vec![Wait { what: String::new(), of: None, waited_ms: 1, cause, on }];
        MemberReport { round, waits, ..MemberReport::default() }
    }

    #[test]
    fn a_rate_is_over_the_window() {
        let mut pace = Pace::default();
        assert_eq!(pace.rounds_per_second(), 0.0);
        pace.see(0, &report(0, &[]));
        assert_eq!(pace.rounds_per_second(), 0.0, "one heartbeat is no rate");
        for second in 1..=4 {
            pace.see(second * 1_000, &report(second * 10, &[]));
        }
        assert_eq!(pace.rounds_per_second(), 10.0);
        // It stands still: within a window the rate is 0.
        for second in 5..=10 {
            pace.see(second * 1_000, &report(40, &[]));
        }
        assert_eq!((pace.rounds_per_second(), pace.newest()), (0.0, Some((10_000, 40))));
        pace.see(10_300, &report(1, &[]));
        assert_eq!(pace.rounds_per_second(), 0.0, "another life");
        pace.see(10_600, &report(2, &[]));
        assert_eq!(pace.rounds_per_second(), 3.333);
    }

    #[test]
    fn slow_heartbeats_are_kept_and_many_are_not() {
        let mut pace = Pace::default();
        pace.see(0, &report(0, &[]));
        pace.see(60_000, &report(60, &[]));
        assert_eq!(pace.rounds_per_second(), 1.0);
        for look in 1..100 {
            pace.see(60_000 + 100 * look, &report(60, &[1]));
        }
        assert_eq!(pace.waits_for(Rank(1)), (LOOKS_MAX, LOOKS_MAX));
        assert_eq!(pace.waits_for(Rank(0)), (LOOKS_MAX, 0));
    }

    #[test]
    fn heartbeats_that_a_pause_held_up_are_no_rate() {
        let mut pace = Pace::default();
        for look in 0..4 {
            pace.see(500 * look, &report(5 * look, &[]));
        }
        // Asleep for a minute; then what had been on its way comes at once, and then the next ones.
        for (later_ms, round) in [(0, 20), (1, 600), (2, 605), (500, 610), (1_000, 615), (1_500, 620)] {
            pace.see(61_500 + later_ms, &report(round, &[]));
            assert!(pace.rounds_per_second() < 11.0, "{}", pace.rounds_per_second());
        }
        assert_eq!(pace.rounds_per_second(), 10.0);
    }
}
