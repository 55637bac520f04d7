//! Which steps are possible in a state, and the model's face to the checker.

use crate::properties;
use crate::state::{
    Answer, Budget, Channel, Epoch, Map, Member, Place, Rebuild, Request, Scheduler, Server, State, Worker,
};
use crate::{Broken, Protocol, WORKERS};
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet};

/// What may happen next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is one sentence already")]
pub enum Step {
    Send { worker: u8 },
    TakeRequest { request: String, at: usize },
    TakeAnswer { answer: String, at: usize },
    WorkerHears { worker: u8 },
    ServerHears { server: Place },
    Connect { from: Place, to: Place },
    TakeRecord { from: Place, to: Place },
    TakeAck { from: Place, to: Place },
    HearSeeded { at: usize },
    SeedAt { server: Place },
    MoveTo { server: Place },
    DeclareDead { server: Place },
    Join { server: Place },
    SchedulerStarts,
    ServerResumes { server: Place },
    WorkerResumes { worker: u8 },
    SchedulerGoesOn,
    Crash { server: Place },
    SchedulerCrashes,
    Break { from: Place, to: Place },
    WorkerComesAgain { worker: u8 },
    Stop(Channel),
    CopyEnds { copy: String, at: usize },
}

impl Step {
    /// Is it one that need not happen?
    fn is_fault(&self, state: &State) -> bool {
        match self {
            Step::Crash { .. } | Step::SchedulerCrashes | Step::WorkerComesAgain { .. } => true,
            Step::Join { .. } | Step::MoveTo { .. } | Step::Stop(_) => true,
            // Nobody may have to wait for a process that was declared dead.
            Step::CopyEnds { at, .. } => state.copies.iter().nth(*at).is_some_and(|copy| copy.is_late),
            Step::DeclareDead { server } => state.servers[usize::from(*server)].up,
            Step::Break { from, to } => [from, to].iter().all(|at| state.servers[usize::from(**at)].up),
            _ => false,
        }
    }
}

impl Protocol {
    fn first(&self) -> State {
        let epoch = Epoch { term: 1, counter: 1 };
        let backup = (self.servers > 1).then_some(1);
        let map =
            Map { epoch, primary: 0, backup, seeding: None, moving: false, lives: vec![1; self.servers] };
        let mut servers: Vec<_> = (0..self.servers).map(|_| Server::blank(map.clone(), 1)).collect();
        servers.iter_mut().skip(1).take(1).for_each(|server| server.source = Some((0, 1, Epoch::default())));
        let worker = Worker { map: map.clone(), acked: 0, acked_ever: 0, sent: None };
        State {
            to_servers: vec![Vec::new(); self.servers],
            to_workers: vec![Vec::new(); WORKERS],
            servers,
            workers: vec![worker; WORKERS],
            decided: BTreeMap::from([(epoch, 0)]),
            scheduler: Scheduler::Decides(map),
            seeded: BTreeSet::new(),
            streams: BTreeMap::new(),
            requests: BTreeSet::new(),
            answers: BTreeSet::new(),
            published: BTreeMap::new(),
            forked: false,
            torn: false,
            grants: BTreeMap::new(),
            copies: BTreeSet::new(),
            overwritten: false,
            left: self.budget,
        }
    }

    fn member_steps(&self, state: &State, steps: &mut Vec<Step>) {
        for (at, worker) in state.workers.iter().enumerate() {
            let at = at as u8;
            if worker.sent.is_none() && worker.acked < self.rounds {
                steps.push(Step::Send { worker: at });
            }
            if !state.to_workers[usize::from(at)].is_empty() {
                steps.push(Step::WorkerHears { worker: at });
            }
        }
        for (at, request) in state.requests.iter().enumerate() {
            let (writer, owner) = (Member::Worker(request.worker), Member::Server(request.to));
            if self.takes(state, request) && state.delivers(writer, owner) {
                steps.push(Step::TakeRequest { request: format!("{request:?}"), at });
            }
        }
        for (at, answer) in state.answers.iter().enumerate() {
            let (writer, owner) = (Member::Server(answer.from), Member::Worker(answer.worker));
            if self.takes_answer(state, answer) && state.delivers(writer, owner) {
                steps.push(Step::TakeAnswer { answer: format!("{answer:?}"), at });
            }
        }
        for from in 0..self.servers as Place {
            if state.servers[usize::from(from)].up && !state.to_servers[usize::from(from)].is_empty() {
                steps.push(Step::ServerHears { server: from });
            }
            for to in 0..self.servers as Place {
                if from != to && self.connects(state, from, to) {
                    steps.push(Step::Connect { from, to });
                }
            }
        }
        for ((from, to), stream) in &state.streams {
            let (from, to) = (*from, *to);
            let up = |at: Place| state.servers[usize::from(at)].up;
            let delivers = state.delivers(Member::Server(from), Member::Server(to));
            if !stream.records.is_empty() && up(to) && delivers {
                steps.push(Step::TakeRecord { from, to });
            }
            if !stream.acked.is_empty() && up(from) {
                steps.push(Step::TakeAck { from, to });
            }
            if !up(from) || !up(to) || state.left.breaks > 0 {
                steps.push(Step::Break { from, to });
            }
        }
    }

    fn scheduler_steps(&self, state: &State, steps: &mut Vec<Step>) {
        match &state.scheduler {
            Scheduler::Decides(map) => self.decisions(state, map, steps),
            Scheduler::Down { .. } => steps.push(Step::SchedulerStarts),
            Scheduler::Rebuilds { rebuild, .. } => {
                for (place, server) in state.servers.iter().enumerate() {
                    let member = server.up && server.map.lives[place] == server.life;
                    if member && !rebuild.servers.contains(&(place as Place)) {
                        steps.push(Step::ServerResumes { server: place as Place });
                    }
                }
                for worker in (0..WORKERS as u8).filter(|worker| !rebuild.workers.contains(worker)) {
                    steps.push(Step::WorkerResumes { worker });
                }
                if self.may_decide(state, rebuild) && self.missed(state, rebuild) <= state.left.deposed {
                    steps.push(Step::SchedulerGoesOn);
                }
            }
            Scheduler::Over => {}
        }
        if state.left.schedulers > 0 && matches!(state.scheduler, Scheduler::Decides(_)) {
            steps.push(Step::SchedulerCrashes);
        }
    }

    fn decisions(&self, state: &State, map: &Map, steps: &mut Vec<Step>) {
        for at in 0..state.seeded.len() {
            steps.push(Step::HearSeeded { at });
        }
        for (place, server) in state.servers.iter().enumerate() {
            let at = place as Place;
            let there = map.lives[place] != 0;
            if there && (!server.up || server.life != map.lives[place] || state.left.deposed > 0) {
                steps.push(Step::DeclareDead { server: at });
            }
            if !there && state.left.joins > 0 {
                steps.push(Step::Join { server: at });
            }
            let free = there && server.up && map.primary != at && !map.copies(at) && map.seeding.is_none();
            if free && map.backup.is_none() {
                steps.push(Step::SeedAt { server: at });
            } else if free && state.left.moves > 0 {
                steps.push(Step::MoveTo { server: at });
            }
        }
    }

    fn faults(&self, state: &State, steps: &mut Vec<Step>) {
        for (place, server) in state.servers.iter().enumerate() {
            if server.up && state.left.crashes > 0 {
                steps.push(Step::Crash { server: place as Place });
            }
        }
        if state.left.workers > 0 {
            steps.extend((0..WORKERS as u8).map(|worker| Step::WorkerComesAgain { worker }));
        }
        self.stops(state, steps);
        let copies = state.copies.iter().enumerate();
        steps.extend(copies.map(|(at, copy)| Step::CopyEnds { copy: format!("{copy:?}"), at }));
    }

    fn crash(&self, state: &mut State, place: Place) {
        let server = &mut state.servers[usize::from(place)];
        let life = server.life;
        *server = Server { up: false, ..Server::blank(server.map.clone(), life) };
        state.to_servers[usize::from(place)].clear();
        self.member_gone(state, Member::Server(place));
    }

    fn scheduler_step(&self, state: &mut State, step: Step) {
        match step {
            Step::HearSeeded { at } => {
                if let Some(seeded) = state.seeded.iter().nth(at).cloned() {
                    self.hear_seeded(state, &seeded);
                }
            }
            Step::SeedAt { server } => self.seed(state, server, false),
            Step::MoveTo { server } => {
                state.left.moves -= 1;
                self.seed(state, server, true);
            }
            Step::DeclareDead { server } => {
                let lives = state.servers[usize::from(server)].up;
                state.left.deposed -= u8::from(lives && state.left.deposed > 0);
                self.declare_dead(state, server);
            }
            Step::Join { server } => {
                state.left.joins -= 1;
                self.join(state, server);
            }
            Step::SchedulerStarts => {
                if let Scheduler::Down { term } = state.scheduler {
                    state.scheduler = Scheduler::Rebuilds { term: term + 1, rebuild: Rebuild::default() };
                }
            }
            Step::SchedulerGoesOn => {
                if let Scheduler::Rebuilds { rebuild, .. } = &state.scheduler {
                    state.left.deposed -= self.missed(state, rebuild);
                }
                self.go_on(state);
            }
            Step::SchedulerCrashes => {
                if let Scheduler::Decides(map) = &state.scheduler {
                    state.scheduler = Scheduler::Down { term: map.epoch.term };
                }
                state.left.schedulers -= 1;
            }
            Step::ServerResumes { .. } | Step::WorkerResumes { .. } => self.resumes(state, &step),
            _ => {}
        }
    }

    /// A member comes to a restarted scheduler. From then on it hears nothing of the one before.
    fn resumes(&self, state: &mut State, step: &Step) {
        let keeps = self.lacks(Broken::LowerTerm);
        let Scheduler::Rebuilds { rebuild, .. } = &mut state.scheduler else { return };
        match step {
            Step::ServerResumes { server } => {
                rebuild.servers.insert(*server);
                let at = usize::from(*server);
                if !keeps {
                    state.to_servers[at].clear();
                }
                self.resume(rebuild, &state.servers[at].map);
            }
            Step::WorkerResumes { worker } => {
                rebuild.workers.insert(*worker);
                let at = usize::from(*worker);
                if !keeps {
                    state.to_workers[at].clear();
                }
                self.resume(rebuild, &state.workers[at].map);
            }
            _ => {}
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut first = self.first();
        self.settle_grants(&mut first);
        vec![first]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if matches!(state.scheduler, Scheduler::Over) || state.is_finished(self) {
            return;
        }
        self.member_steps(state, steps);
        self.scheduler_steps(state, steps);
        self.faults(state, steps);
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Send { worker } => self.send(&mut state, worker),
            Step::TakeRequest { at, .. } => {
                let request: Request = state.requests.iter().nth(at)?.clone();
                self.take_request(&mut state, &request);
            }
            Step::TakeAnswer { at, .. } => {
                let answer: Answer = state.answers.iter().nth(at)?.clone();
                self.take_answer(&mut state, &answer);
            }
            Step::WorkerHears { worker } => self.worker_hears(&mut state, worker),
            Step::ServerHears { server } => self.server_hears(&mut state, server),
            Step::Connect { from, to } => self.connect(&mut state, from, to),
            Step::TakeRecord { from, to } => self.take_record(&mut state, from, to),
            Step::TakeAck { from, to } => self.take_ack(&mut state, from, to),
            Step::Crash { server } => {
                state.left.crashes -= 1;
                self.crash(&mut state, server);
            }
            Step::Break { from, to } => {
                state.left.breaks -= u8::from(step.is_fault(&state));
                self.break_stream(&mut state, from, to);
            }
            Step::WorkerComesAgain { worker } => {
                state.left.workers -= 1;
                self.come_again(&mut state, worker);
            }
            Step::Stop(channel) => self.stop(&mut state, channel),
            Step::CopyEnds { at, .. } => self.copy_ends(&mut state, at),
            other => self.scheduler_step(&mut state, other),
        }
        self.settle_grants(&mut state);
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

impl State {
    /// Can anything happen but faults?
    pub(crate) fn goes_on(&self, protocol: &Protocol) -> bool {
        let mut steps = Vec::new();
        protocol.actions(self, &mut steps);
        steps.iter().any(|step| !step.is_fault(self))
    }

    /// Has every worker been answered in its last round?
    pub(crate) fn is_finished(&self, protocol: &Protocol) -> bool {
        self.workers.iter().all(|worker| worker.acked == protocol.rounds)
    }

    pub(crate) fn faultless(&self, budget: &Budget) -> bool {
        self.left == *budget
    }
}
