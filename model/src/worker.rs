//! Workers: they contribute to one round after the other, and replay what was not answered.

use crate::state::{Answer, Epoch, Map, Request, State};
use crate::{Broken, Protocol};

impl Protocol {
    /// The open round goes where the map says.
    pub(crate) fn send(&self, state: &mut State, at: u8) {
        let worker = &mut state.workers[usize::from(at)];
        let to = worker.map.primary;
        worker.sent = Some(to);
        let life = worker.map.lives[usize::from(to)];
        state.requests.insert(Request { worker: at, round: worker.acked + 1, to, life });
    }

    /// Can an answer be taken? One of an epoch that the worker has not heard of waits for it: what was published in an epoch is
    /// so known to somebody who knows that epoch.
    pub(crate) fn takes_answer(&self, state: &State, answer: &Answer) -> bool {
        let worker = &state.workers[usize::from(answer.worker)];
        let stale = worker.sent != Some(answer.from) || answer.round != worker.acked + 1;
        stale || answer.epoch <= worker.map.epoch || self.lacks(Broken::AnswerAhead)
    }

    /// An answer comes. One from a channel that was ended counts for nothing.
    pub(crate) fn take_answer(&self, state: &mut State, answer: &Answer) {
        state.answers.remove(answer);
        let worker = &mut state.workers[usize::from(answer.worker)];
        if worker.sent != Some(answer.from) || answer.round != worker.acked + 1 {
            return;
        }
        worker.sent = None;
        if let Some((version, applied)) = answer.done {
            worker.acked = answer.round;
            worker.acked_ever = worker.acked_ever.max(worker.acked);
            let before = *state.published.entry(version).or_insert(applied);
            state.forked |= before != applied;
        }
    }

    /// A decision comes. The channel to a life that is gone is ended; to one that lives it stays, until it answers.
    pub(crate) fn worker_hears(&self, state: &mut State, at: u8) {
        let map = state.to_workers[usize::from(at)].remove(0);
        if self.obeys(&map, state.workers[usize::from(at)].map.epoch) {
            self.follow(state, at, map);
        }
    }

    pub(crate) fn follow(&self, state: &mut State, at: u8, map: Map) {
        let worker = &mut state.workers[usize::from(at)];
        let ended = |place: &u8| worker.map.lives[usize::from(*place)] != map.lives[usize::from(*place)];
        if let Some(place) = worker.sent.filter(ended) {
            worker.sent = None;
            state.answers.retain(|answer| answer.worker != at || answer.from != place);
        }
        worker.map = map;
    }

    /// A worker dies and comes again: it repeats the round before.
    pub(crate) fn come_again(&self, state: &mut State, at: u8) {
        self.worker_replaced(state, at);
        let worker = &mut state.workers[usize::from(at)];
        worker.acked = worker.acked.saturating_sub(1);
        worker.sent = None;
        state.answers.retain(|answer| answer.worker != at);
    }

    /// Does a member that knows `epoch` apply this?
    pub(crate) fn obeys(&self, map: &Map, epoch: Epoch) -> bool {
        map.epoch > epoch || (self.lacks(Broken::LowerTerm) && map.epoch.term < epoch.term)
    }
}
