//! The plain worker's process: the main thread sends whole tensors, a thread a server receives what comes back.
//!
//! With one operation in flight nothing can come back while something is sent, and the main thread receives itself:
//! a latency has no hand-over between threads in it.

use super::CHUNK_BYTES;
use super::wire;
use crate::child;
use crate::cluster::{FromChild, ToWorker};
use crate::laps::{Laps, Times};
use crate::store::{Declare, Head, Kind};
use crate::workload::{Op, WorkSpec};
use anyhow::Context as _;
use fabric::allocations;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long an answer may take.
const ANSWER_DEADLINE: Duration = Duration::from_secs(120);

/// Runs the process.
///
/// # Errors
/// The parent said what cannot be read. What fails in a run is told to the parent.
pub(crate) fn main() -> anyhow::Result<()> {
    child::die_with_parent()?;
    let mut servers = Vec::new();
    let mut work: Option<Work> = None;
    for line in std::io::stdin().lock().lines() {
        let message = serde_json::from_str(&line?).context("the parent said something unknown")?;
        let answer = obey(message, &mut servers, &mut work);
        child::say(&answer.unwrap_or_else(|error| FromChild::Failed { error: format!("{error:#}") }))?;
    }
    Ok(())
}

fn obey(
    message: ToWorker,
    known: &mut Vec<SocketAddr>,
    work: &mut Option<Work>,
) -> anyhow::Result<FromChild> {
    match message {
        ToWorker::Connect { servers } => *known = servers,
        ToWorker::Declare { session, rank, spec } => {
            // The old connections end before the new ones begin.
            *work = None;
            *work = Some(Work::open(known, session, rank, spec)?);
        }
        ToWorker::Run { rounds } => {
            return work.as_mut().context("a run before its declaration")?.run(rounds);
        }
        // What brings weights back is verified by the run itself.
        ToWorker::Verify => {}
    }
    Ok(FromChild::Ready)
}

/// What answers land in; shared with the threads that receive.
type Weights = Arc<Vec<Mutex<Vec<u8>>>>;

/// Where answers come from.
enum Inbound {
    /// Read here, by whose turn it is.
    Here(Vec<BufReader<TcpStream>>),
    /// Told by the threads that have received them.
    Told(Receiver<u32>),
}

/// The connections of one declared work.
struct Work {
    spec: WorkSpec,
    kind: Kind,
    laps: Laps,
    out: Vec<TcpStream>,
    inbound: Inbound,
    gradients: Vec<Vec<u8>>,
    weights: Weights,
    /// Since when an operation on a tensor is under way.
    started: Vec<Option<Instant>>,
    outstanding: u32,
    last_key: usize,
}

impl Work {
    fn open(servers: &[SocketAddr], session: u64, rank: u32, spec: WorkSpec) -> anyhow::Result<Self> {
        let gradient = WorkSpec::gradient_value(rank).to_le_bytes();
        let declared = Declare::new(session, rank, &spec, CHUNK_BYTES);
        let mut out = Vec::new();
        for (server, address) in (0..).zip(servers) {
            let stream = TcpStream::connect(address).context("cannot connect to the plain server")?;
            let mut stream = wire::tuned(stream)?;
            let declared = Declare { server, ..declared.clone() };
            wire::send_declaration(&mut stream, &serde_json::to_vec(&declared)?)?;
            stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
            let head = wire::receive_head(&mut stream)?.context("the server did not take the declaration")?;
            anyhow::ensure!(head.kind == Kind::Declare, "the server answered a declaration with {head:?}");
            out.push(stream);
        }
        let weights = spec.tensors.iter().map(|bytes| Mutex::new(vec![0xFF; *bytes as usize]));
        let weights: Weights = Arc::new(weights.collect());
        Ok(Self {
            kind: spec.op.into(),
            laps: Laps::new(&spec, rank),
            inbound: Inbound::open(&out, &spec, &weights)?,
            out,
            gradients: spec.tensors.iter().map(|bytes| gradient.repeat(*bytes as usize / 4)).collect(),
            weights,
            started: vec![None; spec.tensors.len()],
            outstanding: 0,
            last_key: 0,
            spec,
        })
    }

    /// Does so many rounds.
    fn run(&mut self, rounds: u64) -> anyhow::Result<FromChild> {
        let mut times = Times::new(rounds * self.laps.len() as u64);
        let (start, allocated) = (Instant::now(), allocations::of_process());
        for _ in 0..rounds {
            // Sleep: being late is what is measured.
            std::thread::sleep(self.laps.late());
            for place in 0..self.laps.len() {
                let key = self.laps.tensor(place);
                while self.outstanding == self.spec.inflight || self.started[key].is_some() {
                    times.note(self.take_answer()?);
                }
                self.start(key)?;
            }
        }
        while self.outstanding > 0 {
            times.note(self.take_answer()?);
        }
        let seconds = start.elapsed().as_secs_f64();
        let allocations = allocations::of_process() - allocated;
        self.laps.done(rounds);
        self.verify()?;
        Ok(FromChild::Done { seconds, latencies_ns: times.kept(), allocations })
    }

    /// Sends a tensor's next operation.
    fn start(&mut self, key: usize) -> anyhow::Result<()> {
        self.started[key] = Some(Instant::now());
        self.outstanding += 1;
        self.last_key = key;
        let payload: &[u8] = if self.spec.op.pushes() { &self.gradients[key] } else { &[] };
        let servers = self.out.len();
        let head = Head { kind: self.kind, key: key as u32, chunk: 0 };
        wire::send(&mut self.out[key % servers], head, payload).context("the server takes nothing more")
    }

    /// Waits for the end of some operation; gives its time.
    fn take_answer(&mut self) -> anyhow::Result<Duration> {
        let key = match &mut self.inbound {
            Inbound::Here(streams) => {
                let servers = streams.len();
                receive(&mut streams[self.last_key % servers], self.spec.op, &self.weights)?
            }
            Inbound::Told(told) => {
                told.recv_timeout(ANSWER_DEADLINE).context("the server does not answer")?
            }
        };
        let started = self.started.get_mut(key as usize).and_then(Option::take);
        self.outstanding -= 1;
        Ok(started.context("an answer that nothing asked for")?.elapsed())
    }

    fn verify(&self) -> anyhow::Result<()> {
        let pulled = self.weights.iter().enumerate().filter(|_| self.spec.op.pulls());
        pulled.into_iter().try_for_each(|(key, weights)| {
            let weights = weights.lock().unwrap_or_else(PoisonError::into_inner);
            self.laps.verify(key, &weights, |times| self.spec.expected_weight(times))
        })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        for stream in &self.out {
            // Ends the threads that read from it; an error means that it is closed already.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Inbound {
    fn open(out: &[TcpStream], spec: &WorkSpec, weights: &Weights) -> anyhow::Result<Self> {
        let reader = |stream: &TcpStream| -> anyhow::Result<BufReader<TcpStream>> {
            Ok(BufReader::with_capacity(wire::read_ahead(&spec.tensors), stream.try_clone()?))
        };
        if spec.inflight == 1 {
            return Ok(Self::Here(out.iter().map(reader).collect::<anyhow::Result<_>>()?));
        }
        let (tell, told) = sync_channel(spec.tensors.len());
        for stream in out {
            let mut stream = reader(stream)?;
            // It waits for as long as the work lasts; whoever waits for it has a deadline.
            stream.get_ref().set_read_timeout(None)?;
            let (tell, op, weights) = (tell.clone(), spec.op, Arc::clone(weights));
            // Ends when the connection does; nobody listening any more is the same.
            std::thread::spawn(move || {
                while receive(&mut stream, op, &weights).is_ok_and(|key| tell.send(key).is_ok()) {}
            });
        }
        Ok(Self::Told(told))
    }
}

/// Receives one answer to where it belongs; gives its tensor.
fn receive(stream: &mut BufReader<TcpStream>, op: Op, weights: &Weights) -> anyhow::Result<u32> {
    let head = wire::receive_head(stream)?.context("the server closed the connection")?;
    let place = weights.get(head.key as usize).context("an answer for an unknown tensor")?;
    if op.pulls() {
        stream.read_exact(&mut place.lock().unwrap_or_else(PoisonError::into_inner))?;
    }
    Ok(head.key)
}

#[cfg(test)]
mod tests {
    use super::super::Duty;
    use super::super::server::tests::start;
    use super::*;
    use crate::workload::Order;

    fn run(duty: Duty, spec: &WorkSpec) {
        let servers: Vec<SocketAddr> =
            (0..spec.servers).map(|_| start(duty, spec.workers as usize)).collect();
        let workers: Vec<_> = (0..spec.workers)
            .map(|rank| {
                let (servers, spec) = (servers.clone(), spec.clone());
                std::thread::spawn(move || {
                    let mut work = Work::open(&servers, 1, rank, spec).expect("opens");
                    for rounds in [2, 3] {
                        work.run(rounds).expect("the weights are right");
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
    }

    #[test]
    fn weights_come_back_right_for_every_shape_of_work() {
        let uneven = WorkSpec::of_tensors("test", Op::PushPull, vec![400_000, 4, 1 << 20, 64]);
        run(Duty::Forward, &uneven);
        run(Duty::Forward, &WorkSpec { inflight: 1, ..uneven.clone() });
        run(Duty::Forward, &WorkSpec { workers: 3, servers: 2, ..uneven.clone() });
        run(Duty::Forward, &WorkSpec { op: Op::Pull, ..uneven.clone() });
        run(Duty::Forward, &WorkSpec { op: Op::Push, workers: 2, ..uneven });
        let order = Order::Zipf { draws: 64 };
        run(
            Duty::Forward,
            &WorkSpec { order, inflight: 8, workers: 2, ..WorkSpec::alike("test", Op::PushPull, 256, 32) },
        );
    }

    #[test]
    fn the_plain_receiver_takes_pushes() {
        run(Duty::Receive, &WorkSpec::alike("test", Op::Push, 1 << 20, 4));
    }
}
