//! Members' ends of the control connections: registration, heartbeats, loss, and the way back to the next scheduler, as
//! `daemon::control` does it.

use super::Lab;
use super::brain::JOB;
use super::seat::{Body, Link, Process};
use super::wire::{Parcel, WireId};
use daemon::control::Undecided;
use proto_common::ids::{Epoch, Incarnation, Role};
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::{FromScheduler, MemberReport, Register, Resume, ToScheduler, Welcome};
use proto_common::transport::{Offer, Policies};

/// The longest way of a control message of a member whose messages take longer.
const LATE_US: u64 = 60_000;
/// Between two tries to reach a scheduler.
const SEEK_US: u64 = 50_000;
/// How long a process looks for a first scheduler.
const FIRST_US: u64 = 20_000_000;

impl Lab {
    pub(super) fn step_links(&mut self) {
        for seat in 0..self.seats.len() {
            self.between();
            if self.seats[seat].start_us.is_some_and(|at_us| at_us <= self.now_us()) {
                self.start_process(seat);
            }
            self.step_link(seat);
        }
    }

    fn start_process(&mut self, at: usize) {
        let (now_us, is_over) = (self.now_us(), self.is_over());
        let seat = &mut self.seats[at];
        seat.start_us = None;
        if is_over {
            return;
        }
        seat.lives += 1;
        // A pause, and what is slow, is the process's.
        (seat.paused_until_us, seat.slow_until_us) = (0, 0);
        let life = Incarnation(seat.lives * 1_000 + at as u64);
        let node = self.net.node(&format!("{}-{at}.{}", seat.role, seat.lives));
        self.nodes.push(node);
        seat.process = Some(Process {
            node,
            life,
            link: Link::Seeking { since_us: now_us, next_us: now_us },
            heard_us: now_us,
            beat_us: now_us,
            is_doubtful: false,
            is_dismissed: false,
            announced: None,
            unsaid: Vec::new(),
            undecided: Undecided::default(),
            term: 0,
            body: Body::Nobody,
        });
        self.cut_from_others(at);
    }

    /// A process ends because it cannot go on. Whoever has started it starts it again.
    pub(super) fn give_up(&mut self, at: usize, why: &str) {
        self.end_process(at, why);
        if !self.is_over() {
            let again_us = self.now_us() + self.rng.within(10_000, 200_000);
            let seat = &mut self.seats[at];
            (seat.start_us, seat.is_done) = (Some(again_us), false);
            self.count("restart");
        }
    }

    /// Of what a process has said to the scheduler last some has not left it.
    pub(super) fn lose_last_words(&mut self, at: usize) {
        let rng = &mut self.rng;
        self.wires.lose_last_words(at, &mut |said| rng.below(said as u64 + 1) as usize);
    }

    /// When a control message comes that is sent now.
    pub(super) fn soon_us(&mut self, at: Option<usize>) -> u64 {
        let now_us = self.now_us();
        let is_late = at.is_some_and(|at| self.seats[at].late_until_us > now_us);
        let most_us = if is_late { LATE_US } else { self.shape.control_us };
        now_us + self.rng.within(0, most_us)
    }

    /// How long ago something was, by a member's clock.
    fn ago_ms(&self, at: usize, then_us: u64) -> u64 {
        self.clock_ms(at).saturating_sub(self.seats[at].clock.clock_ms(then_us))
    }

    /// A process ends, however: all its channels and connections do.
    pub(super) fn end_process(&mut self, at: usize, why: &str) {
        let now_us = self.now_us();
        let Some(process) = self.seats[at].process.take() else { return };
        self.note(&format!("seat {at} ends: {why}"));
        self.net.crash(process.node);
        if let Link::Greeting(wire) | Link::Up(wire) = process.link {
            let at_us = now_us + self.rng.within(0, self.shape.control_us);
            self.wires.close_up(wire, at_us);
            self.wires.leave(wire);
        }
        self.retire(at, process);
    }

    fn step_link(&mut self, at: usize) {
        let now_us = self.now_us();
        if self.is_paused(at) {
            return;
        }
        let Some(process) = &self.seats[at].process else { return };
        match process.link {
            Link::Seeking { since_us, next_us } if next_us <= now_us => self.seek(at, since_us),
            Link::Seeking { .. } => {}
            Link::Greeting(wire) | Link::Up(wire) => self.listen(at, wire),
        }
        let next_us = self.later_us(at, self.shape.cluster().rare_heartbeat_ms());
        let Some(process) = &mut self.seats[at].process else { return };
        if let Link::Up(wire) = process.link
            && process.beat_us <= now_us
        {
            process.beat_us = next_us;
            let at_us = self.soon_us(Some(at));
            self.wires.say_up(wire, at_us, ToScheduler::Heartbeat(MemberReport::default()));
        }
    }

    fn seek(&mut self, at: usize, since_us: u64) {
        let now_us = self.now_us();
        let limit_us =
            if self.is_in_roster(at) { self.shape.cluster().scheduler_ms * 1_000 } else { FIRST_US };
        if now_us > since_us + limit_us {
            return self.give_up(at, "no scheduler");
        }
        let brain = if self.finds_rival(at) { &self.rival } else { &self.brain };
        let (life, is_down) = (brain.life, brain.engine.is_none());
        let Some(process) = &mut self.seats[at].process else { return };
        if is_down {
            process.link = Link::Seeking { since_us, next_us: now_us + SEEK_US };
            return;
        }
        let wire = self.wires.open(at, life);
        (process.link, process.heard_us) = (Link::Greeting(wire), now_us);
        let (resume, map) = match self.resume_of(at) {
            // As if its map were large: others with the same one send it, or its digest as well.
            Some(resume) if at.is_multiple_of(2) => {
                let (resume, map) = resume.announced();
                (Some(resume), Some(map))
            }
            resume => (resume, None),
        };
        let register = self.register(at, resume.as_ref());
        if let Some(process) = &mut self.seats[at].process {
            process.announced = map;
        }
        let at_us = self.soon_us(Some(at));
        self.wires.say_up(wire, at_us, ToScheduler::Register(register));
        self.report(at, wire, resume);
    }

    /// Sends what a member knows, in parts.
    fn report(&mut self, at: usize, wire: WireId, known: Option<Resume>) {
        let parts = known.map(Resume::parts).unwrap_or_default();
        let count = parts.len();
        for (index, part) in parts.into_iter().enumerate() {
            let at_us = self.soon_us(Some(at));
            self.wires.say_up(wire, at_us, ToScheduler::Resuming { part, last: index + 1 == count });
        }
    }

    fn register(&self, at: usize, resume: Option<&Resume>) -> Register {
        let seat = &self.seats[at];
        let life = seat.process.as_ref().map_or(Incarnation(0), |process| process.life);
        let wanted = match seat.role {
            Role::Worker => Some(proto_common::ids::Rank((at - self.shape.places as usize) as u32)),
            _ => None,
        };
        let wanted_rank = resume.map(|resume| resume.rank).or(wanted);
        let offer = Offer { host: "lab".into(), uid: 1, policies: Policies::default(), missing: Vec::new() };
        Register {
            protocol: PROTOCOL_VERSION,
            build: "lab".into(),
            job: JOB,
            role: seat.role,
            incarnation: life,
            wanted_rank,
            data_address: (seat.role == Role::Server).then(|| at.to_string()),
            http_address: None,
            host: None,
            pid: 1,
            offer,
            rules: Vec::new(),
            resume: resume.map(Resume::head),
        }
    }

    fn resume_of(&mut self, at: usize) -> Option<Resume> {
        let shape = Some(self.shape.cluster());
        let known = match &mut self.seats[at].process.as_mut()?.body {
            Body::Nobody => None,
            Body::Server(server) if !server.member.has_roster() => None,
            Body::Server(server) => Some(server.member.resume()),
            Body::Worker(worker) => worker.member.resume(),
        };
        let process = self.seats[at].process.as_ref()?;
        known.map(|resume| {
            process.undecided.show(Resume { shape, term: process.term.max(resume.term), ..resume })
        })
    }

    /// Has it something to come back to?
    fn is_in_roster(&self, at: usize) -> bool {
        match self.seats[at].process.as_ref().map(|process| &process.body) {
            Some(Body::Server(server)) => server.member.has_roster(),
            Some(Body::Worker(worker)) => worker.member.resume().is_some(),
            _ => false,
        }
    }

    fn listen(&mut self, at: usize, wire: WireId) {
        while let Some(parcel) = self.wires.next_down(wire, self.now_us()) {
            match parcel {
                Parcel::Closed => {
                    self.wires.forget(wire);
                    return self.lost(at);
                }
                Parcel::Message(message) => self.heard(at, wire, message),
            }
        }
        // A scheduler that says nothing is lost as well; one that waits for others before it answers is not.
        let silence_ms = self.shape.cluster().silence_ms;
        let Some(process) = &self.seats[at].process else { return };
        if matches!(process.link, Link::Up(_)) && self.ago_ms(at, process.heard_us) > silence_ms {
            let at_us = self.now_us();
            self.wires.say_up(wire, at_us, ToScheduler::Abandons);
            self.wires.close_up(wire, at_us);
            self.wires.leave(wire);
            self.lost(at);
        }
    }

    fn lost(&mut self, at: usize) {
        let now_us = self.now_us();
        let may_seek = self.shape.cluster().scheduler_ms > 0 && self.is_in_roster(at);
        let is_over = self.is_over();
        let Some(process) = &mut self.seats[at].process else { return };
        process.undecided.lost();
        // A goodbye that nobody has heard is said to the next one.
        if is_over || process.is_dismissed {
            return self.end_process(at, "done");
        }
        match (&process.body, process.link) {
            (Body::Nobody, _) => {
                process.link = Link::Seeking { since_us: now_us, next_us: now_us + SEEK_US };
            }
            _ if may_seek => {
                process.link = Link::Seeking { since_us: now_us, next_us: now_us + SEEK_US };
                self.note(&format!("seat {at} has lost the scheduler"));
            }
            _ => self.give_up(at, "the scheduler is lost"),
        }
    }

    fn heard(&mut self, at: usize, wire: WireId, message: FromScheduler) {
        let now_us = self.now_us();
        let Some(process) = &mut self.seats[at].process else { return };
        process.heard_us = now_us;
        match message {
            FromScheduler::HeartbeatAck => {}
            FromScheduler::Candidate { term } => {
                if term > process.term {
                    process.term = term;
                    let epoch = Epoch { term, counter: 0 };
                    let at_us = self.soon_us(Some(at));
                    self.wires.say_up(wire, at_us, ToScheduler::Heard { epoch });
                }
            }
            message => {
                let mut now = Vec::new();
                match process.undecided.take(message, &mut now) {
                    Ok(Some(answer)) => self.say(at, answer),
                    Ok(None) => {}
                    Err(overflow) => panic!("{overflow:?}"),
                }
                now.into_iter().for_each(|message| self.obey(at, wire, message));
            }
        }
    }

    /// What the scheduler says is in force, or is no decision.
    fn obey(&mut self, at: usize, wire: WireId, message: FromScheduler) {
        let Some(process) = &mut self.seats[at].process else { return };
        match message {
            FromScheduler::GoodbyeAck => process.is_dismissed = true,
            FromScheduler::SendMap => {
                let map = process.announced.take();
                self.report(at, wire, map);
            }
            FromScheduler::Welcome(welcome) => self.welcomed(at, wire, &welcome),
            FromScheduler::Refused(reason) => {
                let at_us = self.soon_us(Some(at));
                self.wires.say_up(wire, at_us, ToScheduler::Goodbye);
                self.give_up(at, &format!("refused: {reason}"));
            }
            message => match &process.body {
                Body::Nobody => {}
                Body::Server(_) => self.server_heard(at, message),
                Body::Worker(_) => self.worker_heard(at, message),
            },
        }
    }

    fn welcomed(&mut self, at: usize, wire: WireId, welcome: &Welcome) {
        let Some(process) = &mut self.seats[at].process else { return };
        if welcome.epoch.term < process.term {
            return self.give_up(at, "a scheduler of a lower term");
        }
        process.term = welcome.epoch.term;
        (process.link, process.beat_us) = (Link::Up(wire), 0);
        let unsaid = std::mem::take(&mut process.unsaid);
        let is_new = matches!(process.body, Body::Nobody);
        match (self.seats[at].role, is_new) {
            (Role::Server, true) => self.become_server(at, welcome),
            (_, true) => self.become_worker(at, welcome),
            (Role::Server, false) => self.server_back(at),
            (_, false) => self.worker_back(at),
        }
        unsaid.into_iter().for_each(|message| self.say(at, message));
    }

    /// A member says something to the scheduler, or will when there is one.
    pub(super) fn say(&mut self, at: usize, message: ToScheduler) {
        let at_us = self.soon_us(Some(at));
        let Some(process) = &mut self.seats[at].process else { return };
        match process.link {
            Link::Up(wire) => self.wires.say_up(wire, at_us, message),
            _ => process.unsaid.push(message),
        }
    }
}
