//! Raw channels of the fabric between two processes: writes into memory that the peer lends, and a small write back and
//! forth. Also how they are connected and closed again and again.
//!
//! It must not know of batches or clusters. Both ends poll and never sleep, as perftest's do.

use crate::child::cpus;
use crate::child::{self, Child, stay_on};
use crate::measure::{Sample, Subject};
use crate::workload::WorkSpec;
use anyhow::Context as _;
use clap::Args;
use fabric::{
    Access, ChannelId, Completion, CompletionKind, CompletionQueue as _, Device as _, Devices, DevicesConfig,
    Driver, LaneQueue, PeerWritable, PostError, RemoteKey, RemoteSpan, VerbsConfig, VerbsDevice, Write,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::io::BufRead as _;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// Writes under way, as many as `ib_write_bw` is given.
const DEPTH: usize = 64;
/// How long one step of connecting, or one write, may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the peer's answer to a whole run may take.
const REPLY_DEADLINE: Duration = Duration::from_secs(130);
/// Polls between two looks at the clock.
const POLLS_PER_LOOK: u32 = 1024;

/// Arguments of the hidden subcommand.
#[derive(Debug, Args)]
pub(crate) struct PeerArgs {
    /// Bytes that it lends.
    #[arg(long)]
    bytes: usize,
}

/// What the peer is told, a line each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ToPeer {
    /// To connect a channel, and to lend its memory to it.
    Offer,
    /// To send back so many small writes, each as it comes.
    Echo { count: u64 },
    /// To close the channel.
    Close,
}

/// What the peer answers, a line each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FromPeer {
    Offered { offer: Vec<u8> },
    Echoed,
    Closed { registered_bytes: u64 },
    Failed { error: String },
}

/// One process's side: a device, a queue, at most one channel, and memory that it lends.
struct End {
    devices: Devices,
    queue: LaneQueue,
    channel: Option<(ChannelId, RemoteKey)>,
    memory: PeerWritable,
    inbox: Vec<Completion>,
}

impl End {
    fn open(bytes: usize) -> anyhow::Result<Self> {
        let address = Ipv4Addr::LOCALHOST;
        let config = DevicesConfig {
            bind: IpAddr::V4(address),
            advertise: address.to_string(),
            unix_sockets: false,
            encrypt: false,
            wanted: vec![Driver::Verbs],
            verbs: VerbsConfig::default(),
        };
        let (devices, missing) = Devices::open(&config);
        missing
            .into_iter()
            .try_for_each(|(_, error)| Err(error))
            .context("this benchmark needs an RDMA device")?;
        let queue = devices.lane(DEPTH)?;
        Ok(Self {
            devices,
            queue,
            channel: None,
            memory: PeerWritable::allocate(bytes, "gradwire-bench")?,
            inbox: Vec::with_capacity(2 * DEPTH),
        })
    }

    fn device(&self) -> anyhow::Result<&VerbsDevice> {
        self.devices.verbs().context("there is no RDMA device")
    }

    /// Polls until a completion is there.
    fn next(&mut self) -> anyhow::Result<CompletionKind> {
        let mut polls = 0_u32;
        let mut since = None;
        while self.inbox.is_empty() {
            self.queue.poll(&mut self.inbox);
            polls += 1;
            if polls.is_multiple_of(POLLS_PER_LOOK) {
                let waited = since.get_or_insert_with(Instant::now).elapsed();
                anyhow::ensure!(waited < PATIENCE, "the device said nothing for {} s", PATIENCE.as_secs());
            }
        }
        Ok(self.inbox.remove(0).kind)
    }

    /// Makes a connected channel this end's, and tells the peer under which name our memory can be written. It is heard
    /// as a notice.
    fn take(&mut self, setup: fabric::ChannelSetup) -> anyhow::Result<()> {
        let channel = self.queue.attach(setup)?;
        let name = self.queue.expose(channel, &self.memory)?;
        self.queue.lend(channel, &self.memory.all(), Access::ReadWrite, 0)?;
        self.queue.post_write(channel, &notice(u32::try_from(name.0)?))?;
        self.queue.flush();
        // Both, as ours does not leave before the peer is ready, and only while this end polls.
        let (mut theirs, mut is_told) = (None, false);
        while theirs.is_none() || !is_told {
            match self.next()? {
                CompletionKind::Received { immediate } => theirs = Some(RemoteKey(u64::from(immediate))),
                CompletionKind::WriteDone { .. } => is_told = true,
                other => anyhow::bail!("the peer's memory is not known: {other:?}"),
            }
        }
        let theirs = theirs.context("the peer's memory is not known")?;
        self.channel = Some((channel, theirs));
        Ok(())
    }

    fn channel(&self) -> anyhow::Result<(ChannelId, RemoteSpan)> {
        let (channel, key) = self.channel.context("there is no channel yet")?;
        Ok((channel, RemoteSpan { key, offset: 0 }))
    }

    fn close(&mut self) {
        if let Some((channel, _)) = self.channel.take() {
            self.queue.close(channel);
        }
        self.inbox.clear();
    }

    /// So many writes of so many bytes each, as many at a time as there is room for; waits for the last of them.
    fn writes(&mut self, count: u64, bytes: u64) -> anyhow::Result<Duration> {
        let (channel, remote) = self.channel()?;
        let gather = [self.memory.span(0, bytes)?];
        let started = Instant::now();
        let (mut posted, mut done) = (0, 0);
        while done < count {
            while posted < count {
                let write = Write { id: posted, gather: &gather, remote, immediate: None, signaled: true };
                match self.queue.post_write(channel, &write) {
                    Ok(()) => posted += 1,
                    Err(PostError::Full) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            self.queue.flush();
            // All that is there, so that as many are posted together.
            loop {
                match self.next()? {
                    CompletionKind::WriteDone { .. } => done += 1,
                    other => anyhow::bail!("a write ended with {other:?}"),
                }
                if self.inbox.is_empty() {
                    break;
                }
            }
        }
        Ok(started.elapsed())
    }

    /// Sends a small write with a notice.
    fn ping(&mut self) -> anyhow::Result<()> {
        let (channel, remote) = self.channel()?;
        let gather = [self.memory.span(0, super::PING_BYTES)?];
        let write = Write { id: 0, gather: &gather, remote, immediate: Some(0), signaled: false };
        self.queue.post_write(channel, &write)?;
        self.queue.flush();
        Ok(())
    }

    /// Waits for the peer's.
    fn pong(&mut self) -> anyhow::Result<()> {
        match self.next()? {
            CompletionKind::Received { .. } => Ok(()),
            other => anyhow::bail!("where a notice was expected: {other:?}"),
        }
    }
}

fn notice(immediate: u32) -> Write<'static> {
    let remote = RemoteSpan { key: RemoteKey(0), offset: 0 };
    Write { id: 0, gather: &[], remote, immediate: Some(immediate), signaled: true }
}

/// Lets the calling thread run everywhere again.
fn roam() -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    sched_setaffinity(None, &set).context("cannot leave one CPU")
}

/// The peer's process: does what it is told until its input ends.
pub(crate) fn peer(args: &PeerArgs) -> anyhow::Result<()> {
    child::die_with_parent()?;
    stay_on(cpus().1)?;
    let mut end = End::open(args.bytes)?;
    for line in std::io::stdin().lock().lines() {
        let answer = obey(&mut end, &line?);
        child::say(&answer.unwrap_or_else(|error| FromPeer::Failed { error: format!("{error:#}") }))?;
    }
    Ok(())
}

fn obey(end: &mut End, line: &str) -> anyhow::Result<FromPeer> {
    match serde_json::from_str(line)? {
        ToPeer::Offer => {
            let (offer, pending) = end.device()?.offer(&[end.queue.handle()])?;
            // Said before it is taken up, so the answer to this message is the offer.
            child::say(&FromPeer::Offered { offer })?;
            let setup = pending.accept(Instant::now() + PATIENCE)?.pop().context("no channel")?;
            end.take(setup)?;
            Ok(FromPeer::Echoed)
        }
        ToPeer::Echo { count } => {
            for _ in 0..count {
                end.pong()?;
                end.ping()?;
            }
            Ok(FromPeer::Echoed)
        }
        ToPeer::Close => {
            end.close();
            Ok(FromPeer::Closed { registered_bytes: end.devices.registered_bytes() })
        }
    }
}

/// Both ends: ours, and the peer in a process of its own.
pub(super) struct Pair {
    end: End,
    peer: Child,
}

impl Pair {
    /// Starts the peer; `bytes` are lent, and written from.
    pub(super) fn start(bytes: usize) -> anyhow::Result<Self> {
        let args = ["rdma-peer".to_owned(), "--bytes".to_owned(), bytes.to_string()];
        let peer = Child::spawn_self("the peer of a raw channel", &args, Vec::new())?;
        Ok(Self { end: End::open(bytes)?, peer })
    }

    fn ask(&mut self, message: &ToPeer) -> anyhow::Result<()> {
        self.peer.send(message)
    }

    fn answer(&mut self) -> anyhow::Result<FromPeer> {
        match self.peer.recv(REPLY_DEADLINE)? {
            FromPeer::Failed { error } => anyhow::bail!("the peer of a raw channel: {error}"),
            answer => Ok(answer),
        }
    }

    /// Connects a channel.
    pub(super) fn connect(&mut self) -> anyhow::Result<()> {
        self.ask(&ToPeer::Offer)?;
        let FromPeer::Offered { offer } = self.answer()? else { anyhow::bail!("the peer offered nothing") };
        let (deadline, handle) = (Instant::now() + PATIENCE, self.end.queue.handle());
        let setup = self.end.device()?.connect(&offer, 0, &handle, deadline)?;
        self.end.take(setup)?;
        self.answer().map(drop)
    }

    /// Closes it; gives the bytes that both ends have registered with the device then, ours first.
    pub(super) fn close(&mut self) -> anyhow::Result<(u64, u64)> {
        self.end.close();
        self.ask(&ToPeer::Close)?;
        match self.answer()? {
            FromPeer::Closed { registered_bytes } => {
                Ok((self.end.devices.registered_bytes(), registered_bytes))
            }
            other => anyhow::bail!("the peer answered {other:?}"),
        }
    }

    /// One write over the channel, and its completion.
    pub(super) fn write_once(&mut self) -> anyhow::Result<()> {
        self.end.writes(1, super::PING_BYTES).map(drop)
    }
}

/// Which way a raw channel is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Writes, many under way.
    Writes,
    /// One small write back and forth.
    PingPong,
}

/// A raw channel as a subject.
pub(super) struct RawChannel {
    way: Way,
    bytes: usize,
    pair: Option<Pair>,
}

impl RawChannel {
    /// `bytes`: the largest write. No process runs yet.
    pub(super) fn new(way: Way, bytes: usize) -> Self {
        Self { way, bytes, pair: None }
    }

    fn sample(&self, pair: &mut Pair, spec: &WorkSpec) -> anyhow::Result<Sample> {
        match self.way {
            Way::Writes => {
                let count = super::writes_within(spec);
                pair.end.writes(count.min(DEPTH as u64), spec.tensor_bytes())?;
                let seconds = pair.end.writes(count, spec.tensor_bytes())?.as_secs_f64();
                let payload_bytes = spec.tensor_bytes() * count;
                Ok(Sample {
                    seconds,
                    payload_bytes,
                    latencies_ns: Vec::new(),
                    cpu_seconds: f64::NAN,
                    rounds: 0,
                    told_us: None,
                    allocations_per_round: None,
                })
            }
            Way::PingPong => {
                let count = super::round_trips_within(spec);
                pair.ask(&ToPeer::Echo { count })?;
                let mut latencies_ns = Vec::with_capacity(count as usize);
                let started = Instant::now();
                for _ in 0..count {
                    let sent = Instant::now();
                    pair.end.ping()?;
                    pair.end.pong()?;
                    latencies_ns.push(sent.elapsed().as_nanos() as u64 / 2);
                }
                let seconds = started.elapsed().as_secs_f64();
                pair.answer()?;
                let payload_bytes = super::PING_BYTES * 2 * count;
                Ok(Sample {
                    seconds,
                    payload_bytes,
                    latencies_ns,
                    cpu_seconds: f64::NAN,
                    rounds: 0,
                    told_us: None,
                    allocations_per_round: None,
                })
            }
        }
    }
}

impl Subject for RawChannel {
    fn name(&self) -> &str {
        match self.way {
            Way::Writes => "raw_write",
            Way::PingPong => "raw_ping_pong",
        }
    }

    fn run(&mut self, spec: &WorkSpec) -> anyhow::Result<Sample> {
        // Taken out: after an error its peer may be anywhere, and ends with it.
        let mut pair = match self.pair.take() {
            Some(pair) => pair,
            None => {
                let mut pair = Pair::start(self.bytes)?;
                pair.connect()?;
                pair
            }
        };
        stay_on(cpus().0)?;
        let sample = self.sample(&mut pair, spec);
        roam()?;
        self.pair = Some(pair);
        sample
    }

    fn stop(&mut self) {
        self.pair = None;
    }
}
