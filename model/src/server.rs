//! Servers: what contributions, answers of copies and decisions do to a chunk.

use crate::state::{Answer, Applied, Map, Pending, Place, Record, Request, Seeded, Server, State};
use crate::{Broken, Mode, Protocol, ROUNDS_MAX, WORKERS};

impl Server {
    pub(crate) fn leads(&self, at: Place) -> bool {
        self.up && self.map.primary == at && self.map.lives[usize::from(at)] == self.life
    }

    /// Whose copy it has.
    pub(crate) fn copy_of(&self, at: Place) -> Option<Place> {
        let here = self.map.lives[usize::from(at)] == self.life;
        (self.up && here && self.map.primary != at && self.map.copies(at)).then_some(self.map.primary)
    }

    pub(crate) fn blank(map: Map, life: u8) -> Self {
        Self {
            up: true,
            life,
            map,
            version: 0,
            applied: Applied::default(),
            source: None,
            collected: Vec::new(),
            pending: None,
            streamed: Default::default(),
            filled: Default::default(),
            told: None,
        }
    }

    pub(crate) fn apply(&mut self, version: u8, entries: &[(u8, u8)]) {
        self.version = version;
        for (worker, round) in entries {
            let count = &mut self.applied[usize::from(*worker)][usize::from(*round) - 1];
            *count = (*count + 1).min(2);
        }
    }
}

impl Protocol {
    /// Rounds of a worker that a server has applied.
    fn done(&self, server: &Server, worker: u8) -> u8 {
        match self.mode {
            Mode::Sync => server.version,
            Mode::Async => {
                let counts = &server.applied[usize::from(worker)];
                (0..ROUNDS_MAX).filter(|round| counts[*round] > 0).count() as u8
            }
        }
    }

    /// Can a request be taken now? One that is not due is held.
    pub(crate) fn takes(&self, state: &State, request: &Request) -> bool {
        let server = &state.servers[usize::from(request.to)];
        if !server.up || server.life != request.life || !server.leads(request.to) {
            return server.up;
        }
        let behind = server.map.backup.is_some_and(|copy| !server.filled.contains(&copy));
        if behind && !self.lacks(Broken::AnswerUnfilled) {
            return false;
        }
        let done = self.done(server, request.worker);
        request.round <= done || (request.round == done + 1 && server.pending.is_none())
    }

    /// A contribution comes to a server.
    pub(crate) fn take_request(&self, state: &mut State, request: &Request) {
        state.requests.remove(request);
        let place = request.to;
        let server = &mut state.servers[usize::from(place)];
        if server.life != request.life {
            return;
        }
        let Request { worker, round, .. } = *request;
        let epoch = server.map.epoch;
        let had = (server.version, server.applied);
        let answer = |done: bool| Answer { from: place, worker, round, epoch, done: done.then_some(had) };
        if !server.leads(place) {
            state.answers.insert(answer(false));
            return;
        }
        if round <= self.done(server, worker) {
            let folds_again = self.lacks(Broken::NoDedupe) && server.pending.is_none();
            if !folds_again || server.collected.contains(&(worker, round)) {
                state.answers.insert(answer(true));
                return;
            }
        }
        let server = &mut state.servers[usize::from(place)];
        if !server.collected.iter().any(|(other, _)| *other == worker) {
            server.collected.push((worker, round));
            server.collected.sort_unstable();
        }
        let needed = if self.mode == Mode::Sync { WORKERS } else { 1 };
        if server.collected.len() == needed {
            self.complete(state, place);
        }
    }

    /// The last contribution of a round is there: its sum goes to the copies.
    fn complete(&self, state: &mut State, place: Place) {
        let server = &mut state.servers[usize::from(place)];
        let entries = std::mem::take(&mut server.collected);
        let version = server.version + 1;
        for copy in &server.streamed {
            if let Some(stream) = state.streams.get_mut(&(place, *copy)) {
                stream.records.push(Record::Update { version, entries: entries.clone() });
            }
        }
        server.pending = Some(Pending { entries, confirmed: Default::default() });
        self.publish(state, place);
    }

    /// Publishes what every copy has confirmed that the chunk is kept up at.
    pub(crate) fn publish(&self, state: &mut State, place: Place) {
        let server = &mut state.servers[usize::from(place)];
        let Some(pending) = &server.pending else { return };
        let map = &server.map;
        let seeding = map.seeding.map(|(copy, _)| copy).filter(|copy| server.streamed.contains(copy));
        let needs: Vec<Place> = map.backup.into_iter().chain(seeding).collect();
        if !self.lacks(Broken::AnswerFirst) && needs.iter().any(|copy| !pending.confirmed.contains(copy)) {
            return;
        }
        let entries = pending.entries.clone();
        server.pending = None;
        server.apply(server.version + 1, &entries);
        let (done, epoch) = (Some((server.version, server.applied)), server.map.epoch);
        for (worker, round) in entries {
            state.answers.insert(Answer { from: place, worker, round, epoch, done });
        }
    }

    /// A decision comes to a server.
    pub(crate) fn server_hears(&self, state: &mut State, at: Place) {
        let map = state.to_servers[usize::from(at)].remove(0);
        if self.obeys(&map, state.servers[usize::from(at)].map.epoch) {
            self.enter(state, at, map);
        }
    }

    /// A server's part in the chunk becomes what a decision says. Streams that have no place in it end first.
    pub(crate) fn enter(&self, state: &mut State, at: Place, map: Map) {
        let server = &mut state.servers[usize::from(at)];
        let led = server.leads(at);
        let before = std::mem::replace(&mut server.map, map);
        let (leads, of) = (server.leads(at), server.copy_of(at));
        let map = server.map.clone();
        let same = |place: Place| before.lives[usize::from(place)] == map.lives[usize::from(place)];
        state.streams.retain(|(from, to), _| {
            if *to == at {
                self.lacks(Broken::NoFence) || (of == Some(*from) && same(*from))
            } else {
                *from != at || (leads && map.copies(*to) && same(*to))
            }
        });
        let keeps = |copy: &Place| leads && led && map.copies(*copy) && same(*copy);
        server.streamed.retain(keeps);
        server.filled.retain(keeps);
        if !leads {
            server.told = None;
            let pending = server.pending.take().map_or(Vec::new(), |pending| pending.entries);
            let collected = std::mem::take(&mut server.collected);
            for (worker, round) in pending.into_iter().chain(collected) {
                state.answers.insert(Answer { from: at, worker, round, epoch: map.epoch, done: None });
            }
        }
        if (leads && !led) || (!leads && of.is_none()) {
            // What it has is its own now, or was given up.
            server.source = None;
        }
        self.tell_seeded(state, at);
        self.publish(state, at);
    }

    /// The scheduler is told once that a copy being made is complete.
    pub(crate) fn tell_seeded(&self, state: &mut State, at: Place) {
        let server = &mut state.servers[usize::from(at)];
        let Some((to, since)) = server.map.seeding else { return };
        let due = server.leads(at) && server.filled.contains(&to) && server.told != Some(since);
        if due {
            server.told = Some(since);
            state.seeded.insert(Seeded { from: at, to, since, term: server.map.epoch.term });
        }
    }
}
