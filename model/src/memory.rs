//! Memory that members grant to their peers, and copies into it. A peer can be stopped in the middle of a copy, and its channel can end
//! meanwhile: then the copy is late. Owns which cell of whose memory is granted over which channel; knows nothing of payloads.
//!
//! Three kinds of channels have memory: a server's slots for each worker, the slots of a replica for its primary, and a worker's buffer
//! for the answer of the server that it has sent the open round to.

use crate::state::{Channel, Copy, Member, State, WORKERS};
use crate::{Broken, Protocol, Step};

impl State {
    fn channels(&self) -> Vec<Channel> {
        let servers = (0..).zip(&self.servers).filter(|(_, server)| server.up).map(|(place, _)| place);
        let slots = servers.flat_map(|place| {
            (0..WORKERS as u8)
                .map(move |worker| Channel { writer: Member::Worker(worker), owner: Member::Server(place) })
        });
        let streams = self.streams.keys();
        let streams =
            streams.map(|(from, to)| Channel { writer: Member::Server(*from), owner: Member::Server(*to) });
        let buffers = (0..).zip(&self.workers).filter_map(|(rank, worker)| {
            Some(Channel { writer: Member::Server(worker.sent?), owner: Member::Worker(rank) })
        });
        slots.chain(streams).chain(buffers).collect()
    }

    /// Is no copy over this channel stopped? Notices come after their bytes.
    pub(crate) fn delivers(&self, writer: Member, owner: Member) -> bool {
        !self.copies.iter().any(|copy| !copy.is_late && copy.channel == Channel { writer, owner })
    }

    /// A channel ends. What was granted over it is not granted any more; a copy that is under way is late from here on.
    fn end(&mut self, channel: Channel) {
        self.grants.retain(|(owner, _), writer| (*writer, *owner) != (channel.writer, channel.owner));
        let late = |mut copy: Copy| {
            copy.is_late |= copy.channel == channel;
            copy
        };
        self.copies = std::mem::take(&mut self.copies).into_iter().map(late).collect();
    }
}

impl Protocol {
    /// Grants follow channels, after each step. Without stopped peers nothing can be late, and memory does not matter.
    pub(crate) fn settle_grants(&self, state: &mut State) {
        if self.budget.stops == 0 {
            return;
        }
        let open = state.channels();
        let granted =
            state.grants.iter().map(|((owner, _), writer)| Channel { writer: *writer, owner: *owner });
        let ended: Vec<_> = granted.filter(|channel| !open.contains(channel)).collect();
        ended.into_iter().for_each(|channel| state.end(channel));
        for Channel { writer, owner } in open {
            if state.grants.iter().any(|((of, _), to)| (*of, *to) == (owner, writer)) {
                continue;
            }
            let cell = (0..).find(|cell| self.is_free(state, owner, *cell));
            state.grants.extend(cell.map(|cell| ((owner, cell), writer)));
        }
    }

    /// May the owner grant this cell? Not while it is granted, nor while its last writer may still be in the middle of a copy:
    /// that is its fence.
    fn is_free(&self, state: &State, owner: Member, cell: u8) -> bool {
        let is_fenced = !state.copies.iter().any(|copy| (copy.channel.owner, copy.cell) == (owner, cell));
        (is_fenced || self.lacks(Broken::FenceSkipped)) && !state.grants.contains_key(&(owner, cell))
    }

    /// Which peers can be stopped: those that have something under way.
    pub(crate) fn stops(&self, state: &State, steps: &mut Vec<Step>) {
        if state.left.stops == 0 {
            return;
        }
        let requests = state.requests.iter().filter(|request| {
            let worker = &state.workers[usize::from(request.worker)];
            worker.sent == Some(request.to) && request.round == worker.acked + 1
        });
        let requests = requests.map(|request| (Member::Worker(request.worker), Member::Server(request.to)));
        let streams = state.streams.iter().filter(|(_, stream)| !stream.records.is_empty());
        let streams = streams.map(|((from, to), _)| (Member::Server(*from), Member::Server(*to)));
        let answers = state.answers.iter().filter(|answer| {
            let worker = &state.workers[usize::from(answer.worker)];
            worker.sent == Some(answer.from) && answer.round == worker.acked + 1 && answer.done.is_some()
        });
        let answers = answers.map(|answer| (Member::Server(answer.from), Member::Worker(answer.worker)));
        let runs = |member: Member| match member {
            Member::Server(place) => state.servers[usize::from(place)].up,
            Member::Worker(_) => true,
        };
        for (writer, owner) in requests.chain(streams).chain(answers) {
            if runs(writer) && runs(owner) && state.delivers(writer, owner) {
                steps.push(Step::Stop(Channel { writer, owner }));
            }
        }
    }

    pub(crate) fn stop(&self, state: &mut State, channel: Channel) {
        state.left.stops -= 1;
        let mut grants = state.grants.iter();
        let cell = grants.find(|((of, _), to)| (*of, **to) == (channel.owner, channel.writer));
        let copy = cell.map(|((_, cell), _)| Copy { channel, cell: *cell, is_late: false });
        state.copies.extend(copy);
    }

    /// A stopped peer continues, and its bytes land.
    pub(crate) fn copy_ends(&self, state: &mut State, at: usize) {
        let Some(copy) = state.copies.iter().nth(at).cloned() else { return };
        state.overwritten |= copy.is_late && state.grants.contains_key(&(copy.channel.owner, copy.cell));
        state.copies.remove(&copy);
    }

    /// A process is over: its copies end with it, and its memory is nobody's.
    pub(crate) fn member_gone(&self, state: &mut State, gone: Member) {
        state.copies.retain(|copy| copy.channel.writer != gone);
        self.memory_gone(state, gone);
    }

    /// A worker's process is replaced. The old one may still be stopped in the middle of a copy, but what it was copying never counts.
    pub(crate) fn worker_replaced(&self, state: &mut State, worker: u8) {
        let writer = Member::Worker(worker);
        let stopped: Vec<_> = state.copies.iter().map(|copy| copy.channel).collect();
        state.requests.retain(|request| {
            let owner = Member::Server(request.to);
            request.worker != worker || !stopped.contains(&Channel { writer, owner })
        });
        let slots: Vec<_> =
            state.grants.iter().filter(|(_, to)| **to == writer).map(|(at, _)| at.0).collect();
        slots.into_iter().for_each(|owner| state.end(Channel { writer, owner }));
        self.memory_gone(state, writer);
    }

    /// A member begins with memory of its own.
    pub(crate) fn memory_gone(&self, state: &mut State, owner: Member) {
        state.copies.retain(|copy| copy.channel.owner != owner);
        state.grants.retain(|(of, _), _| *of != owner);
    }
}
