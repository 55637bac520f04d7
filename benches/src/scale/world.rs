//! The event-driven model: processes that take turns on a core, and messages that take turns on a link.
//! Same seed and same shape: the same run, event by event. It reads no clock and starts no thread.

use super::loggp::{Link, LogGp, Worked, whole};
use super::message::{Message, Payload, Sent};
use super::roster::{self, StartUp};
use super::server::{self, Server};
use super::shape::{Hosts, Shape};
use super::turn::{ModelError, Turn};
use super::worker::{self, Worker};
use fabric::sim::Rng;
use proto_common::ids::Rank;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// A data thread that sleeps looks around after so long: `SLEEP` of the runtimes.
const SLEEP_NS: u64 = 100_000_000;
const NS_PER_MS: u64 = 1_000_000;

enum Actor {
    Server(Box<Server>),
    Worker(Box<Worker>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Asleep,
    /// Wakes, waits for a core, or has one.
    Up,
}

struct Process {
    actor: Actor,
    state: State,
    host: u32,
    inbox: VecDeque<Message>,
    /// The one wake-up by time that counts.
    alarm_ns: u64,
    /// It slept before its next turn.
    woken: bool,
    cpu_ns: u64,
    worked: Worked,
}

/// One core, for all data threads that are there, and a link.
#[derive(Clone, Default)]
struct Host {
    is_busy: bool,
    waiting: VecDeque<u32>,
    out: Link,
    incoming: Link,
}

enum Event {
    /// The first byte of a message reaches a host's link.
    Reaches(Message),
    /// The last one is there.
    Arrives(Message),
    /// A process is awake.
    Awake(u32),
    /// A process sleeps no longer than this.
    Alarm(u32),
    /// A process is through with its turn.
    Ends(u32),
}

/// When, and in which order of those at one time.
type Due = Reverse<(u64, u64, usize)>;

/// See the module.
pub(crate) struct World {
    shape: Shape,
    model: LogGp,
    rng: Rng,
    processes: Vec<Process>,
    hosts: Vec<Host>,
    queue: BinaryHeap<Due>,
    /// By the third number of the queue; places are used again.
    events: Vec<Option<Event>>,
    places: Vec<usize>,
    order: u64,
    now_ns: u64,
    /// Workers that are not through.
    waiting: usize,
    sent: Vec<(u64, Message)>,
    trace: u64,
    steps: u64,
    start_up: StartUp,
}

impl World {
    /// A cluster that is connected and has declared its tensors. The seed decides what is drawn.
    pub(crate) fn new(shape: &Shape, model: LogGp, seed: u64) -> Result<Self, ModelError> {
        let (map, start_up) = roster::start(shape)?;
        let mut servers: Vec<Server> =
            (0..shape.servers).map(|rank| Server::new(shape, &map, rank)).collect();
        let mut workers: Vec<Worker> =
            (0..shape.workers).map(|rank| Worker::new(shape, &map, rank)).collect();
        for (server_rank, server) in (0..).zip(&mut servers) {
            for (worker_rank, worker) in (0..).zip(&mut workers) {
                let inbox = worker.inbox_of(Rank(server_rank));
                let credits = server.connect(Rank(worker_rank), worker::life(worker_rank), &inbox);
                worker.connect(Rank(server_rank), server::life(server_rank), shape.chunk_bytes, &credits);
            }
        }
        let actors = servers.into_iter().map(|server| Actor::Server(Box::new(server)));
        let actors = actors.chain(workers.into_iter().map(|worker| Actor::Worker(Box::new(worker))));
        let host_of = |number: u32| match shape.hosts {
            Hosts::Own => number,
            Hosts::Pinned { cores } => u32::from(cores > 1 && number >= shape.servers),
        };
        let processes: Vec<Process> =
            (0..).zip(actors).map(|(number, actor)| Process::new(actor, host_of(number))).collect();
        let hosts = if shape.hosts == Hosts::Own { processes.len() } else { 2 };
        let mut world = Self {
            shape: *shape,
            model,
            rng: Rng::new(seed),
            processes,
            hosts: vec![Host::default(); hosts],
            queue: BinaryHeap::new(),
            events: Vec::new(),
            places: Vec::new(),
            order: 0,
            now_ns: 0,
            waiting: shape.workers as usize,
            sent: Vec::new(),
            trace: 0xCBF2_9CE4_8422_2325,
            steps: 0,
            start_up,
        };
        // Nobody begins at the same time as another, and not in the order of ranks.
        for number in shape.servers..shape.servers + shape.workers {
            let at_ns = world.rng.below(whole(world.model.wake_ns) + 1);
            world.processes[number as usize].alarm_ns = at_ns;
            world.at(at_ns, Event::Alarm(number));
        }
        Ok(world)
    }

    /// Until every worker has done its rounds.
    pub(crate) fn run(mut self) -> Result<Outcome, ModelError> {
        while self.waiting > 0 {
            let Some(Reverse((at_ns, _, place))) = self.queue.pop() else {
                return Err(ModelError::Stuck { waiting: self.waiting });
            };
            self.now_ns = at_ns;
            self.places.push(place);
            if let Some(event) = self.events[place].take() {
                self.happen(event)?;
            }
        }
        Ok(Outcome::of(&self))
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        let place = self.places.pop().unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[place] = Some(event);
        self.order += 1;
        self.queue.push(Reverse((at_ns, self.order, place)));
    }

    fn happen(&mut self, event: Event) -> Result<(), ModelError> {
        match event {
            Event::Reaches(message) => {
                let busy_ns = self.model.link_ns(message.bytes);
                let host = self.processes[message.to as usize].host as usize;
                let (_, last_ns) = self.hosts[host].incoming.take(self.now_ns, busy_ns);
                self.at(last_ns, Event::Arrives(message));
            }
            Event::Arrives(message) => {
                let to = message.to;
                self.processes[to as usize].inbox.push_back(message);
                self.wake(to);
            }
            Event::Alarm(number) => {
                let process = &mut self.processes[number as usize];
                if process.alarm_ns == self.now_ns {
                    process.alarm_ns = u64::MAX;
                    self.wake(number);
                }
            }
            Event::Awake(number) => return self.queue_up(number),
            Event::Ends(number) => return self.end_turn(number),
        }
        Ok(())
    }

    fn wake(&mut self, number: u32) {
        let process = &mut self.processes[number as usize];
        if process.state == State::Asleep {
            (process.state, process.woken) = (State::Up, true);
            self.at(self.now_ns + whole(self.model.wake_ns), Event::Awake(number));
        }
    }

    fn queue_up(&mut self, number: u32) -> Result<(), ModelError> {
        let host = self.processes[number as usize].host;
        self.hosts[host as usize].waiting.push_back(number);
        self.dispatch(host)
    }

    /// The core goes to processes in the order in which they came.
    fn dispatch(&mut self, host: u32) -> Result<(), ModelError> {
        let place = &mut self.hosts[host as usize];
        if place.is_busy {
            return Ok(());
        }
        let Some(number) = place.waiting.pop_front() else { return Ok(()) };
        place.is_busy = true;
        self.begin_turn(number)
    }

    fn begin_turn(&mut self, number: u32) -> Result<(), ModelError> {
        let Self { model, rng, processes, sent, .. } = self;
        let process = &mut processes[number as usize];
        let taken = process.inbox.len();
        let mut turn = Turn::new(model, rng, number, self.now_ns, sent);
        if std::mem::take(&mut process.woken) {
            turn.wake();
        }
        match &mut process.actor {
            Actor::Server(server) => server.step(&mut process.inbox, &mut turn)?,
            Actor::Worker(worker) => {
                let was_done = worker.is_done();
                worker.step(&mut process.inbox, &mut turn)?;
                self.waiting -= usize::from(worker.is_done() && !was_done);
            }
        }
        let end_ns = turn.now_ns();
        process.worked.add(&turn.worked());
        process.cpu_ns += end_ns - self.now_ns;
        self.steps += 1;
        let taken = taken - process.inbox.len();
        self.note(u64::from(number) << 32 | taken as u64);
        self.at(end_ns, Event::Ends(number));
        self.carry();
        Ok(())
    }

    /// What was sent goes on its way.
    fn carry(&mut self) {
        let mut sent = std::mem::take(&mut self.sent);
        for (at_ns, message) in sent.drain(..) {
            self.note(at_ns ^ u64::from(message.to) << 48 ^ message.bytes << 8 ^ kind(&message));
            if self.shape.hosts != Hosts::Own {
                self.at(at_ns, Event::Arrives(message));
                continue;
            }
            let from = self.processes[message.from as usize].host;
            let busy_ns = self.model.link_ns(message.bytes);
            let (first_ns, _) = self.hosts[from as usize].out.take(at_ns, busy_ns);
            self.at(first_ns + whole(self.model.wire_ns), Event::Reaches(message));
        }
        self.sent = sent;
    }

    /// A turn is over: its core is free, and the process goes to the end of the queue if it has more to do.
    fn end_turn(&mut self, number: u32) -> Result<(), ModelError> {
        let now_ns = self.now_ns;
        let process = &mut self.processes[number as usize];
        let host = process.host;
        self.hosts[host as usize].is_busy = false;
        let (has_work, due_ms) = match &process.actor {
            Actor::Server(server) => (server.has_work(), None),
            Actor::Worker(worker) => (worker.has_work(), worker.due_ms()),
        };
        if has_work || !process.inbox.is_empty() {
            self.hosts[host as usize].waiting.push_back(number);
            return self.dispatch(host);
        }
        process.state = State::Asleep;
        let due_ns = due_ms.map_or(u64::MAX, |due_ms| due_ms * NS_PER_MS).max(now_ns);
        process.alarm_ns = due_ns.min(now_ns + SLEEP_NS);
        let alarm_ns = process.alarm_ns;
        self.at(alarm_ns, Event::Alarm(number));
        self.dispatch(host)
    }

    /// Into the hash of all that happened (FNV-1a).
    fn note(&mut self, what: u64) {
        for byte in (self.now_ns ^ what.rotate_left(17)).to_le_bytes() {
            self.trace = (self.trace ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
}

fn kind(message: &Message) -> u64 {
    match message.payload {
        Payload::Batch(_) => 1,
        Payload::Landing => 2,
        Payload::Notice(_) => 3,
    }
}

impl Process {
    fn new(actor: Actor, host: u32) -> Self {
        Self {
            actor,
            state: State::Asleep,
            host,
            inbox: VecDeque::new(),
            alarm_ns: u64::MAX,
            woken: false,
            cpu_ns: 0,
            worked: Worked::default(),
        }
    }
}

/// What came out of a run. Times are simulated.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    /// The mean of the rounds that count, from the end of the one before, over all workers.
    pub(crate) round_ns: f64,
    /// A round's messages of one worker, and of one server: the means.
    pub(crate) worker_sent: f64,
    pub(crate) server_sent: f64,
    /// All that workers sent in the rounds that count.
    pub(crate) workers_sent: Sent,
    /// All that servers sent in all rounds.
    pub(crate) servers_sent: Sent,
    /// Share of the time in which a server's data thread was busy: the mean.
    pub(crate) server_busy: f64,
    /// Of a worker's.
    pub(crate) worker_busy: f64,
    /// Contributions that came before their turn and were copied, of all.
    pub(crate) spilled: f64,
    /// Operations that were sent back to be tried again, for each that was answered.
    pub(crate) retried: f64,
    /// What all servers did, and all workers, in all rounds.
    pub(crate) servers_worked: Worked,
    pub(crate) workers_worked: Worked,
    pub(crate) start_up: StartUp,
    /// Turns that processes had.
    pub(crate) steps: u64,
    /// A hash of everything that happened, in its order.
    pub(crate) trace: u64,
}

impl Outcome {
    fn of(world: &World) -> Self {
        let shape = &world.shape;
        let (mut spilled, mut retried, mut contributions, mut answers) = (0, 0, 0, 0);
        let (mut servers_sent, mut workers_sent) = (Sent::default(), Sent::default());
        let (mut server_ns, mut worker_ns) = (0, 0);
        let (mut servers_worked, mut workers_worked) = (Worked::default(), Worked::default());
        let (mut first_ns, mut last_ns) = (0, 0);
        for process in &world.processes {
            match &process.actor {
                Actor::Server(server) => {
                    let stats = server.stats();
                    spilled += stats.spills;
                    retried += stats.retries;
                    contributions += stats.contributions;
                    answers += stats.answers;
                    servers_sent = servers_sent.plus(&server.sent);
                    server_ns += process.cpu_ns;
                    servers_worked.add(&process.worked);
                }
                Actor::Worker(worker) => {
                    workers_sent = workers_sent.plus(&worker.sent.since(&worker.warm));
                    worker_ns += process.cpu_ns;
                    workers_worked.add(&process.worked);
                    first_ns = first_ns.max(worker.ended_ns.first().copied().unwrap_or(0));
                    last_ns = last_ns.max(worker.ended_ns.last().copied().unwrap_or(0));
                }
            }
        }
        let counted = shape.rounds.saturating_sub(1).max(1) as f64;
        let share = |ns: u64, processes: u32| ns as f64 / (world.now_ns.max(1) as f64 * f64::from(processes));
        Self {
            round_ns: (last_ns - first_ns) as f64 / counted,
            worker_sent: workers_sent.messages() as f64 / counted / f64::from(shape.workers),
            server_sent: servers_sent.messages() as f64 / shape.rounds as f64 / f64::from(shape.servers),
            workers_sent,
            servers_sent,
            server_busy: share(server_ns, shape.servers),
            worker_busy: share(worker_ns, shape.workers),
            spilled: spilled as f64 / contributions.max(1) as f64,
            retried: retried as f64 / answers.max(1) as f64,
            servers_worked,
            workers_worked,
            start_up: world.start_up,
            steps: world.steps,
            trace: world.trace,
        }
    }
}
