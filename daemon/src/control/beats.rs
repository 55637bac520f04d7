//! When a member sends heartbeats: every `heartbeat_ms` while its reports change, and more rarely once they do not, because a cluster that
//! waits for work is not to take processor time. It must not know what a report means, beyond the memory that changes by itself.

use proto_common::message::{ClusterShape, MemberReport};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// After so many heartbeats with the same report, they become rare. If they became rare between two steps of a training, workers that
/// servers seldom wait for would count as stragglers: waits are counted in heartbeats.
const SAME_MAX: u32 = 20;

/// See the module.
#[derive(Debug)]
pub(super) struct Beats {
    usual: Duration,
    rare: Duration,
    due: Instant,
    told: MemberReport,
    same: u32,
}

impl Beats {
    /// The first one is due at once.
    pub(super) fn new(shape: &ClusterShape) -> Self {
        let [usual, rare] = [shape.heartbeat_ms, shape.rare_heartbeat_ms()];
        let [usual, rare] = [usual, rare].map(|ms| Duration::from_millis(ms.max(1)));
        Self { usual, rare, due: Instant::now(), told: MemberReport::default(), same: 0 }
    }

    /// A heartbeat is due. Whoever stops waiting misses none.
    pub(super) async fn due(&self) {
        sleep_until(self.due).await;
    }

    /// It carries this report.
    pub(super) fn tell(&mut self, report: &MemberReport) {
        self.told.resident_bytes = report.resident_bytes;
        if *report == self.told {
            self.same = self.same.saturating_add(1);
        } else {
            (self.told, self.same) = (report.clone(), 0);
        }
        self.due = Instant::now() + if self.same < SAME_MAX { self.usual } else { self.rare };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::config::Settings;

    #[tokio::test(start_paused = true)]
    async fn heartbeats_become_rare_while_a_member_has_nothing_to_tell() {
        let mut beats = Beats::new(&Settings::default().shape());
        let start = Instant::now();
        let mut beat = async |round, resident_bytes| {
            beats.due().await;
            beats.tell(&MemberReport { round, resident_bytes, ..MemberReport::default() });
            start.elapsed().as_millis()
        };
        for turn in 0..=20 {
            assert_eq!(beat(7, turn).await, u128::from(500 * turn), "memory counts as nothing new");
        }
        assert_eq!(beat(7, 0).await, 12_000, "a fifth of the 10 s of silence");
        assert_eq!(beat(8, 0).await, 14_000);
        assert_eq!(beat(8, 0).await, 14_500, "there was news");
    }
}
