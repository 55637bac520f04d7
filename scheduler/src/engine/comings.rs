//! Workers that join between rounds. Each server reports, for each tensor, the first round to which such a worker can contribute. The
//! highest report of each tensor is sent to all servers. Owns the answers. It must not know what a round is.
//!
//! ```text
//!   nobody ──ask──▶ asked ──the last server answers, or is gone──▶ known, for servers that come later
//!     ▲              │                                              │
//!     └──────────────┴── forget: the worker is gone, or was due ────┘
//! ```

use proto_common::ids::{Incarnation, Key, Rank};
use proto_common::message::{FromScheduler, RoundsPart, RoundsSoFar};
use std::collections::BTreeMap;

#[derive(Debug)]
struct Asked {
    incarnation: Incarnation,
    /// Servers that have not answered, and as far as they have.
    servers: BTreeMap<Rank, RoundsSoFar>,
    /// When the servers must have answered. `None` for a worker that contributes already: nothing waits for it.
    deadline_ms: Option<u64>,
    rounds: BTreeMap<Key, u64>,
}

impl Asked {
    /// When the answers are due that have not come.
    fn due_ms(&self) -> Option<u64> {
        self.deadline_ms.filter(|_| !self.servers.is_empty())
    }
}

/// See the module. By the worker's rank.
#[derive(Debug, Default)]
pub(super) struct Comings(BTreeMap<Rank, Asked>);

impl Comings {
    /// These servers are asked for a worker's first rounds.
    pub(super) fn ask(
        &mut self,
        worker: Rank,
        incarnation: Incarnation,
        servers: impl IntoIterator<Item = Rank>,
        deadline_ms: Option<u64>,
    ) {
        let servers = servers.into_iter().map(|server| (server, RoundsSoFar::default())).collect();
        self.0.insert(worker, Asked { incarnation, servers, deadline_ms, rounds: BTreeMap::new() });
    }

    /// A server's answer, or a part of it. True if it was the last part.
    pub(super) fn answer(
        &mut self,
        server: Rank,
        (worker, incarnation): (Rank, Incarnation),
        part: RoundsPart,
    ) -> bool {
        let asked = self.0.get_mut(&worker).filter(|asked| asked.incarnation == incarnation);
        let Some(asked) = asked else { return false };
        let so_far = asked.servers.get_mut(&server);
        let Some(rounds) = so_far.and_then(|so_far| so_far.take(part)) else { return false };
        asked.servers.remove(&server);
        for (key, round) in rounds {
            let first = asked.rounds.entry(key).or_default();
            *first = round.max(*first);
        }
        true
    }

    /// A server is gone: its answer is not waited for. What it served has its rounds from the copy. Returns the workers that it had
    /// not answered for.
    pub(super) fn without(&mut self, server: Rank) -> Vec<Rank> {
        let waiting = self.0.iter_mut();
        waiting.filter_map(|(worker, asked)| asked.servers.remove(&server).map(|_| *worker)).collect()
    }

    /// A worker is gone, or another process has its place.
    pub(super) fn forget(&mut self, worker: Rank) {
        self.0.remove(&worker);
    }

    /// Once all have answered: from which rounds on a worker counts, in as many messages as it takes.
    pub(super) fn known(&self, worker: Rank) -> Option<impl Iterator<Item = FromScheduler> + use<>> {
        let asked = self.0.get(&worker).filter(|asked| asked.servers.is_empty())?;
        let rounds: Vec<(Key, u64)> = asked.rounds.iter().map(|(key, round)| (*key, *round)).collect();
        let incarnation = asked.incarnation;
        let told = move |rounds| FromScheduler::CountFrom { rank: worker, incarnation, rounds };
        Some(RoundsPart::cut(&rounds).into_iter().map(told))
    }

    /// The same of all workers.
    pub(super) fn all_known(&self) -> impl Iterator<Item = FromScheduler> {
        self.0.keys().filter_map(|worker| self.known(*worker)).flatten()
    }

    /// Workers whose time is over, each with the servers that have not answered.
    pub(super) fn due(&self, now_ms: u64) -> Vec<(Rank, Vec<Rank>)> {
        let due = self.0.iter().filter(|(_, asked)| asked.due_ms().is_some_and(|due_ms| due_ms <= now_ms));
        due.map(|(worker, asked)| (*worker, asked.servers.keys().copied().collect())).collect()
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.0.values().filter_map(Asked::due_ms).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: Rank = Rank(3);
    const LIFE: Incarnation = Incarnation(9);

    fn said(comings: &mut Comings, server: u32, rounds: &[(u64, u64)]) -> bool {
        let rounds: Vec<(Key, u64)> = rounds.iter().map(|(key, round)| (Key(*key), *round)).collect();
        let parts = RoundsPart::cut(&rounds).into_iter();
        parts.map(|part| comings.answer(Rank(server), (WORKER, LIFE), part)).fold(false, |_, last| last)
    }

    #[test]
    fn the_highest_round_of_each_tensor_counts_once_all_have_answered() {
        let mut comings = Comings::default();
        comings.ask(WORKER, LIFE, [Rank(0), Rank(1), Rank(2)], Some(50));
        assert!(said(&mut comings, 0, &[(1, 4), (2, 9)]));
        assert!(!said(&mut comings, 0, &[(1, 40)]), "once is enough");
        assert!(said(&mut comings, 1, &[(1, 6)]) && comings.known(WORKER).is_none());
        assert_eq!((comings.next_deadline_ms(), comings.due(49).len()), (Some(50), 0));
        assert_eq!(comings.due(50), [(WORKER, vec![Rank(2)])]);
        assert_eq!(comings.without(Rank(2)), [WORKER]);
        assert_eq!((comings.next_deadline_ms(), comings.due(50).len()), (None, 0));
        let told: Vec<FromScheduler> = comings.all_known().collect();
        let [FromScheduler::CountFrom { rank: WORKER, incarnation: LIFE, .. }] = &told[..] else {
            panic!("{told:?}")
        };
        comings.forget(WORKER);
        assert!(comings.known(WORKER).is_none());
    }

    #[test]
    fn an_answer_for_an_earlier_process_is_not_heard() {
        let mut comings = Comings::default();
        comings.ask(WORKER, Incarnation(10), [Rank(0)], None);
        assert!(!said(&mut comings, 0, &[(1, 4)]));
        assert_eq!((comings.known(WORKER).is_none(), comings.next_deadline_ms()), (true, None));
    }
}
