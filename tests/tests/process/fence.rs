//! Servers that are stopped in the middle of what they do with a trainer's memory, and continue when that memory has been used for
//! something else: nothing of it changes, and nobody gets weights that are made of it. Trainers fill every buffer that an
//! operation has returned with a pattern, and look whether the pattern is intact.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::over_each;
use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::job::{declare, join, only};
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::status;
use gradwire_worker::{Client, ClientError, Handle, OpError, Tensor, TensorBuffer};
use proto_common::element::Dtype;
use proto_common::ids::{Key, Rank};
use proto_common::optimizer::Optimizer;
use proto_common::shard_map::assign;
use proto_common::tensor::TensorSpec;
use proto_common::transport::Driver;
use rustix::process::Signal;
use std::collections::VecDeque;
use std::fs::File;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

over_each!(a_server_that_is_stopped_inside_a_landing_changes_no_buffer_that_was_returned);

const KEY: u64 = 1;
/// What lands, in a few large chunks; and what all workers contribute to, meanwhile.
const LARGE: u64 = 2;
const CHUNK_BYTES: u64 = 16 << 20;
const CHUNKS: u64 = 4;
const LARGE_BYTES: u64 = CHUNKS * CHUNK_BYTES;
const SMALL_BYTES: u64 = 64 << 10;
const WORKERS: u32 = 2;
/// Both servers serve chunks; this one is stopped.
const VICTIM: usize = 1;
/// What is in the large tensor, again and again.
const PIECE: i32 = 1 << 16;
/// That a stop falls into a landing is a matter of luck: so many tries.
const TRIES_MAX: u64 = 50;
/// Rounds with the server stopped, and after it has continued.
const ROUNDS_AFTER: u64 = 4;
/// No gradient or weight has these bits.
const POISON: i32 = -1;

/// This process's memory, as others see it: operations own it.
struct Memory(File);

impl Memory {
    fn word(&self, address: u64) -> i32 {
        let mut bytes = [0; 4];
        self.0.read_exact_at(&mut bytes, address).unwrap();
        i32::from_ne_bytes(bytes)
    }
}

/// Buffers that are poisoned while no operation has them. There are more than one operation needs, so that some stay so for long.
struct Poisoned {
    free: VecDeque<TensorBuffer>,
    pattern: Vec<i32>,
}

impl Poisoned {
    fn new(client: &Client, count: usize, bytes: u64) -> Self {
        let mut poisoned = Self { free: VecDeque::new(), pattern: vec![POISON; bytes as usize / 4] };
        (0..count).for_each(|_| poisoned.put(client.allocate(bytes).unwrap()));
        poisoned
    }

    fn assert_intact(&self) {
        let mut intact = self.free.iter().map(|buffer| buffer.as_slice::<i32>() == self.pattern);
        assert!(intact.all(|is_intact| is_intact), "somebody wrote into a buffer that was returned");
    }

    fn take(&mut self) -> TensorBuffer {
        self.assert_intact();
        self.free.pop_front().unwrap()
    }

    fn put(&mut self, mut buffer: TensorBuffer) {
        buffer.as_mut_slice::<i32>().copy_from_slice(&self.pattern);
        self.free.push_back(buffer);
    }
}

struct Trainer {
    client: Client,
    small: Tensor,
    buffers: Poisoned,
    weights: Vec<f32>,
}

impl Trainer {
    fn new(client: Client) -> Self {
        let (small, buffers) = (client.tensor(KEY).unwrap(), Poisoned::new(&client, 4, SMALL_BYTES));
        Self { client, small, buffers, weights: Vec::new() }
    }

    fn begin(&mut self, round: u64) -> Handle {
        let (mut gradient, weights) = (self.buffers.take(), self.buffers.take());
        let first = 31 * round + 7 * u64::from(self.client.rank());
        for (at, number) in (first..).zip(gradient.as_f32_mut()) {
            *number = (at % 251) as f32 - 125.0;
        }
        self.client.push_pull(&self.small, gradient, weights, 0).unwrap()
    }

    fn end(&mut self, handle: Handle) {
        let ended = handle.wait().unwrap();
        let (gradient, weights) = (ended.source.unwrap(), ended.target.unwrap());
        self.weights = weights.as_f32().to_vec();
        self.buffers.put(gradient);
        self.buffers.put(weights);
    }
}

/// Two servers with copies of each other's chunks, and workers in this process. The first worker also gets the large tensor.
struct Job {
    cluster: Cluster,
    trainers: Vec<Trainer>,
    large: Tensor,
    values: Vec<i32>,
    /// Where the victim's chunks begin.
    chunks: Vec<u64>,
    buffers: Poisoned,
    memory: Memory,
    round: u64,
}

impl Job {
    fn new(driver: Driver) -> Self {
        let chunk = format!("cluster.chunk_bytes={CHUNK_BYTES}");
        let settings =
            ["cluster.replicas=1", &chunk, "deadlines.silence_ms=3000", "deadlines.heartbeat_ms=100"];
        let words: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
        let mut cluster = Cluster::new(2, WORKERS, &words);
        cluster.add_servers(2, &[]);
        let clients = join(&cluster, WORKERS, |settings| {
            settings.transport = only(driver);
            settings.memory.pool_bytes = 1 << 30;
        });
        let small = TensorSpec::f32(KEY, SMALL_BYTES / 4, Optimizer::sgd(0.05, 0.9, 0.0));
        let specs = [small, TensorSpec::of(Dtype::I32, LARGE, LARGE_BYTES / 4, Optimizer::assign())];
        declare(&clients, &specs);
        // As the scheduler places them.
        let ranges = assign(&specs, &[0; 2], CHUNK_BYTES).into_iter();
        let of_victim =
            ranges.filter(|range| range.first.key == Key(LARGE) && range.server == Rank(VICTIM as u32));
        let chunks = of_victim.flat_map(|range| range.first.chunk.0..range.first.chunk.0 + range.chunks);
        let chunks: Vec<u64> = chunks.map(|chunk| u64::from(chunk) * CHUNK_BYTES).collect();
        assert_eq!(chunks.len(), CHUNKS as usize / 2);
        let large = clients[0].tensor(LARGE).unwrap();
        let values = (0..PIECE).collect::<Vec<i32>>().repeat(LARGE_BYTES as usize / 4 / PIECE as usize);
        std::thread::scope(|scope| {
            for client in &clients {
                let values = &values;
                scope.spawn(move || client.init(&client.tensor(LARGE).unwrap(), values).unwrap());
            }
        });
        let buffers = Poisoned::new(&clients[0], 3, LARGE_BYTES);
        let trainers = clients.into_iter().map(Trainer::new).collect();
        let memory = Memory(File::open("/proc/self/mem").unwrap());
        Self { cluster, trainers, large, values, chunks, buffers, memory, round: 0 }
    }

    fn victim(&self) -> &Process {
        &self.cluster.servers[VICTIM]
    }

    /// Asks for the large tensor, and says where it lands.
    fn pull(&mut self) -> (Handle, u64) {
        let weights = self.buffers.take();
        let address = weights.as_f32().as_ptr() as u64;
        (self.trainers[0].client.pull(&self.large, weights).unwrap(), address)
    }

    fn pulled(&mut self, handle: Handle) {
        let weights = handle.wait().unwrap().target.unwrap();
        assert!(weights.as_slice::<i32>() == self.values, "other weights than it has landed");
        self.buffers.put(weights);
    }

    /// A round of everybody.
    fn round(&mut self) {
        self.round += 1;
        let round = self.round;
        let handles: Vec<_> = self.trainers.iter_mut().map(|trainer| trainer.begin(round)).collect();
        self.trainers.iter_mut().zip(handles).for_each(|(trainer, handle)| trainer.end(handle));
        assert!(self.trainers[0].weights == self.trainers[1].weights, "workers got different weights");
    }

    /// Rounds with whoever serves now, and the large tensor once more.
    fn go_on(&mut self) {
        let (handle, _) = self.pull();
        (0..ROUNDS_AFTER).for_each(|_| self.round());
        self.pulled(handle);
    }

    fn assert_intact(&self) {
        self.buffers.assert_intact();
        self.trainers.iter().for_each(|trainer| trainer.buffers.assert_intact());
    }

    /// Stops the victim when one of its chunks has begun to land, and has not landed whole. False where the pull ended before.
    fn stop_inside_a_landing(&self, place: u64, handle: &Handle) -> bool {
        while !handle.is_done() {
            let begun = self.chunks.iter().find(|chunk| self.memory.word(place + **chunk) != POISON);
            let Some(chunk) = begun else { continue };
            self.victim().signal(Signal::STOP);
            let is_inside = self.memory.word(place + chunk + CHUNK_BYTES - 4) == POISON;
            stop(self.victim());
            return is_inside;
        }
        false
    }

    /// The other server has what the victim had.
    fn is_taken_over(&self) -> bool {
        let line = format!("server process has ended: closed its channels server={VICTIM}");
        self.cluster.servers[1 - VICTIM].log().wait(&line, Duration::ZERO).is_some()
    }
}

/// Waits until something is so.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
    }
}

/// Returns when it has stopped.
fn stop(process: &Process) {
    process.signal(Signal::STOP);
    let path = format!("/proc/{}/stat", process.pid());
    until("it stops", || std::fs::read_to_string(&path).unwrap().contains(") T "));
}

fn a_server_that_is_stopped_inside_a_landing_changes_no_buffer_that_was_returned(driver: Driver) {
    let mut job = Job::new(driver);
    for attempt in 0.. {
        assert!(attempt < TRIES_MAX, "no stop fell into a landing");
        let (handle, place) = job.pull();
        if job.stop_inside_a_landing(place, &handle) {
            // Over shared memory the worker's lane goes on copying from what the server has published.
            until("the other server takes over", || job.is_taken_over());
            job.pulled(handle);
            break;
        }
        job.victim().signal(Signal::CONT);
        job.pulled(handle);
    }
    job.go_on();
    // Whatever it was doing ends before it does.
    job.victim().signal(Signal::CONT);
    job.cluster.servers[VICTIM].expect_end(PATIENCE);
    job.assert_intact();
    job.go_on();
    job.assert_intact();
    job.cluster.assert_no_panic();
    let weights = job.trainers.swap_remove(0).weights;
    drop(job);
    let mut undisturbed = Job::new(driver);
    (0..2 * ROUNDS_AFTER).for_each(|_| undisturbed.round());
    assert!(weights == undisturbed.trainers[0].weights, "the weights are not those of an undisturbed run");
}

/// A worker's way to the scheduler, which can be cut.
struct Way {
    port: u16,
    thread: JoinHandle<(TcpStream, TcpStream)>,
}

impl Way {
    /// For one connection.
    fn to(scheduler: &str) -> Self {
        let (listener, scheduler) = (TcpListener::bind("127.0.0.1:0").unwrap(), scheduler.to_owned());
        let port = listener.local_addr().unwrap().port();
        let thread = std::thread::spawn(move || {
            let (near, far) = (listener.accept().unwrap().0, TcpStream::connect(scheduler).unwrap());
            for (from, to) in [(&near, &far), (&far, &near)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                // It ends when either side is cut.
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
            (near, far)
        });
        Self { port, thread }
    }

    fn cut(self) {
        let (near, far) = self.thread.join().unwrap();
        for end in [near, far] {
            // The other side may have closed it.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// Its client has failed, and the caller has been told: from then on the memory is the trainer's, unless a server reads it.
#[test]
fn what_a_failed_worker_writes_into_a_gradient_that_is_read_in_place_is_published_to_nobody() {
    const ELEMENTS: u64 = 1 << 18;
    let words = [
        "cluster.worker_loss=wait",
        "cluster.chunk_bytes=1048576",
        "deadlines.scheduler_ms=100",
        "deadlines.silence_ms=60000",
    ];
    let words: Vec<&str> = words.iter().flat_map(|setting| ["--set", setting]).collect();
    let mut cluster = Cluster::new(1, 2, &words);
    cluster.add_servers(1, &[]);
    let way = Way::to(&cluster.control);
    let clients = join(&cluster, 2, |settings| {
        settings.transport = only(Driver::Shm);
        if settings.node.rank == Some(0) {
            settings.scheduler.port = way.port;
            // Room for the gradient alone.
            settings.memory.pool_bytes = 4 * ELEMENTS;
        }
    });
    let spec = TensorSpec::f32(KEY, ELEMENTS, Optimizer::assign());
    declare(&clients, std::slice::from_ref(&spec));
    let filled = |client: &Client, with: f32| {
        let mut buffer = client.allocate(4 * ELEMENTS).unwrap();
        buffer.as_f32_mut().fill(with);
        buffer
    };
    let (failing, other) = (&clients[0], &clients[1]);
    let (tensor, others) = (failing.tensor(KEY).unwrap(), other.tensor(KEY).unwrap());
    let pushed = failing.push(&tensor, filled(failing, 1.0)).unwrap();
    let http = cluster.status().members[0].http_address.clone().unwrap();
    until("the server takes the gradient", || status::number(&http, "gradwire_server_batches_total") == 1);
    // It has begun to read it, and does not end that before the other one's has come.
    stop(&cluster.servers[0]);
    let target = other.allocate(4 * ELEMENTS).unwrap();
    let round = other.push_pull(&others, filled(other, 2.0), target, 0).unwrap();
    until("the other one's is sent", || other.stats().referenced == 1);
    way.cut();
    until("it fails", || failing.dead().is_some());
    let told = pushed.wait().expect_err("its client has failed");
    let early = failing.allocate(4 * ELEMENTS).map(|mut buffer| buffer.as_f32_mut().fill(f32::NAN));
    cluster.servers[0].signal(Signal::CONT);
    // Whether the contribution counts is the server's to say.
    let again = join(&cluster, 1, |settings| settings.transport = only(Driver::Shm)).remove(0);
    let tensor = again.declare(std::slice::from_ref(&spec)).unwrap().remove(0);
    if again.resume(std::slice::from_ref(&tensor)).unwrap() == 0 {
        again.push(&tensor, filled(&again, 1.0)).unwrap().wait().unwrap();
    }
    let weights = round.wait().unwrap().target.unwrap();
    let wrong = weights.as_f32().iter().find(|weight| **weight != 3.0);
    assert!(wrong.is_none(), "{wrong:?} was published");
    assert!(early.is_err(), "memory that a server may be reading was returned");
    let ClientError::Op(OpError::Held { servers, .. }) = &told else { panic!("{told}") };
    assert_eq!(servers[..], [Rank(0)], "{told}");
    // The server has closed its channel.
    until("the memory comes back", || failing.allocate(4 * ELEMENTS).is_ok());
    cluster.assert_no_panic();
}
