//! The baseline's worker process: one stream to each server, one operation outstanding per tensor.
//!
//! It obeys its parent line by line, and ends when the parent closes its standard input. Gradients are
//! prepared once (a trainer's own work is no transport's); pulled weights are copied to the tensor's own
//! memory, because a trainer needs them there.

use super::codec::FrameCodec;
use super::tuning::{self, Tuning};
use super::{ChildArgs, EXCHANGE_PATH, RUN_DEADLINE};
use crate::child;
use crate::cluster::{FromChild, ToWorker};
use crate::laps::{Laps, Times};
use crate::store::{Declare, Frame, Head, Kind};
use crate::workload::WorkSpec;
use anyhow::Context as _;
use bytes::Bytes;
use fabric::allocations;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::Stream as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};

/// How long connecting may take on loopback.
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// Runs the process.
///
/// # Errors
/// No runtime, or the parent said what cannot be read. What fails in a run is told to the parent.
pub(crate) fn main(args: &ChildArgs) -> anyhow::Result<()> {
    child::die_with_parent()?;
    let tuning = args.tuning()?;
    let runtime = tuning::runtime(tuning.worker_threads)?;
    let mut channels = Vec::new();
    let mut exchange: Option<Exchange> = None;
    let mut line = String::new();
    while std::io::stdin().read_line(&mut line).context("cannot read from the parent")? > 0 {
        let message: ToWorker = serde_json::from_str(&line).context("the parent said something unknown")?;
        line.clear();
        let answer = runtime.block_on(async {
            let obeyed = obey(message, tuning, &mut channels, &mut exchange);
            tokio::time::timeout(RUN_DEADLINE, obeyed)
                .await
                .unwrap_or_else(|_| Err(anyhow::anyhow!("no end after {} s", RUN_DEADLINE.as_secs())))
        });
        child::say(&answer.unwrap_or_else(|error| FromChild::Failed { error: format!("{error:#}") }))?;
    }
    Ok(())
}

async fn obey(
    message: ToWorker,
    tuning: Tuning,
    channels: &mut Vec<Channel>,
    exchange: &mut Option<Exchange>,
) -> anyhow::Result<FromChild> {
    match message {
        ToWorker::Connect { servers } => {
            channels.clear();
            for server in servers {
                channels.push(connect(server, tuning).await?);
            }
            Ok(FromChild::Ready)
        }
        ToWorker::Declare { session, rank, spec } => {
            // The old streams end before the new ones begin.
            *exchange = None;
            *exchange = Some(Exchange::open(channels, tuning, session, rank, spec).await?);
            Ok(FromChild::Ready)
        }
        ToWorker::Run { rounds } => {
            exchange.as_mut().context("a run before its declaration")?.run(rounds).await
        }
        // It has no pull beside its pushes: what brings weights back is verified by the run itself.
        ToWorker::Verify => Ok(FromChild::Ready),
    }
}

async fn connect(server: SocketAddr, tuning: Tuning) -> anyhow::Result<Channel> {
    Endpoint::from_shared(format!("http://{server}"))?
        .connect_timeout(CONNECT_DEADLINE)
        .tcp_nodelay(true)
        .initial_stream_window_size(tuning.stream_window_bytes)
        .initial_connection_window_size(tuning.connection_window_bytes)
        .max_frame_size(tuning.max_frame_bytes)
        .connect()
        .await
        .with_context(|| format!("cannot connect to the gRPC server at {server}"))
}

/// One tensor's memory and the state of its operation.
struct Tensor {
    gradient: Bytes,
    weights: Vec<u8>,
    chunks_missing: u32,
    started: Instant,
}

/// The streams of one declared work.
struct Exchange {
    spec: WorkSpec,
    declared: Declare,
    first_chunks: Vec<u64>,
    kind: Kind,
    out: Vec<mpsc::Sender<Frame>>,
    inbound: Vec<Streaming<Frame>>,
    next_inbound: usize,
    tensors: Vec<Tensor>,
    laps: Laps,
    outstanding: u32,
}

impl Exchange {
    async fn open(
        channels: &[Channel],
        tuning: Tuning,
        session: u64,
        rank: u32,
        spec: WorkSpec,
    ) -> anyhow::Result<Self> {
        let gradient = WorkSpec::gradient_value(rank).to_le_bytes();
        let now = Instant::now();
        let tensor = |bytes: &u64| Tensor {
            gradient: gradient.repeat(*bytes as usize / gradient.len()).into(),
            weights: vec![0xFF; *bytes as usize],
            chunks_missing: 0,
            started: now,
        };
        let declared = Declare::new(session, rank, &spec, tuning.chunk_bytes);
        let mut exchange = Self {
            tensors: spec.tensors.iter().map(tensor).collect(),
            kind: spec.op.into(),
            out: Vec::new(),
            inbound: Vec::new(),
            next_inbound: 0,
            laps: Laps::new(&spec, rank),
            outstanding: 0,
            first_chunks: declared.first_chunks(),
            declared: declared.clone(),
            spec,
        };
        for (server, channel) in channels.iter().enumerate() {
            let declared = Declare { server: server as u32, ..declared.clone() };
            let (out, inbound) = open_stream(channel.clone(), tuning, &declared).await?;
            exchange.out.push(out);
            exchange.inbound.push(inbound);
        }
        Ok(exchange)
    }

    /// Does so many rounds.
    async fn run(&mut self, rounds: u64) -> anyhow::Result<FromChild> {
        let mut times = Times::new(rounds * self.laps.len() as u64);
        let (start, allocated) = (Instant::now(), allocations::of_process());
        for _ in 0..rounds {
            if !self.laps.late().is_zero() {
                tokio::time::sleep(self.laps.late()).await;
            }
            for place in 0..self.laps.len() {
                let key = self.laps.tensor(place);
                while self.outstanding == self.spec.inflight || self.tensors[key].chunks_missing > 0 {
                    self.take_answer(&mut times).await?;
                }
                self.start(key)?;
            }
        }
        while self.outstanding > 0 {
            self.take_answer(&mut times).await?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let allocations = allocations::of_process() - allocated;
        self.laps.done(rounds);
        self.verify()?;
        Ok(FromChild::Done { seconds, latencies_ns: times.kept(), allocations })
    }

    async fn take_answer(&mut self, times: &mut Times) -> anyhow::Result<()> {
        let frame = self.next_answer().await?;
        if let Some(took) = self.land(&frame)? {
            times.note(took);
            self.outstanding -= 1;
        }
        Ok(())
    }

    /// Sends a tensor's next operation.
    fn start(&mut self, key: usize) -> anyhow::Result<()> {
        let chunks = self.declared.chunks_of(key as u32);
        let tensor = &mut self.tensors[key];
        tensor.chunks_missing = chunks;
        tensor.started = Instant::now();
        for chunk in 0..chunks {
            let start = chunk as usize * self.declared.chunk_bytes as usize;
            let end = start + self.declared.chunk_len(key as u32, chunk);
            let payload =
                if self.spec.op.pushes() { tensor.gradient.slice(start..end) } else { Bytes::new() };
            let frame = Frame { head: Head { kind: self.kind, key: key as u32, chunk }, payload };
            let number = self.first_chunks[key] + u64::from(chunk);
            let server = &self.out[(number % self.out.len() as u64) as usize];
            // The queue holds every chunk of every tensor: full can only mean closed.
            server.try_send(frame).ok().context("the server's stream has ended")?;
        }
        self.outstanding += 1;
        Ok(())
    }

    /// The next answer of any server, in fair turns.
    async fn next_answer(&mut self) -> anyhow::Result<Frame> {
        let answer = poll_fn(|context: &mut Context<'_>| {
            for _ in 0..self.inbound.len() {
                let place = self.next_inbound % self.inbound.len();
                self.next_inbound = place + 1;
                if let Poll::Ready(answer) = Pin::new(&mut self.inbound[place]).poll_next(context) {
                    return Poll::Ready(answer);
                }
            }
            Poll::Pending
        });
        Ok(answer.await.context("the server ended its stream")??)
    }

    /// Puts an answer's weights in place; gives the operation's time when it was the last chunk.
    fn land(&mut self, frame: &Frame) -> anyhow::Result<Option<Duration>> {
        let Head { kind, key, chunk } = frame.head;
        let tensor = self.tensors.get_mut(key as usize).context("an answer for an unknown tensor")?;
        anyhow::ensure!(
            kind == self.kind && chunk < self.declared.chunks_of(key) && tensor.chunks_missing > 0,
            "an answer that nothing asked for"
        );
        if self.spec.op.pulls() {
            let start = chunk as usize * self.declared.chunk_bytes as usize;
            let place = &mut tensor.weights[start..start + self.declared.chunk_len(key, chunk)];
            anyhow::ensure!(frame.payload.len() == place.len(), "weights of another length than their chunk");
            place.copy_from_slice(&frame.payload);
        }
        tensor.chunks_missing -= 1;
        Ok((tensor.chunks_missing == 0).then(|| tensor.started.elapsed()))
    }

    fn verify(&self) -> anyhow::Result<()> {
        let pulled = self.tensors.iter().enumerate().filter(|_| self.spec.op.pulls());
        pulled.into_iter().try_for_each(|(key, tensor)| {
            self.laps.verify(key, &tensor.weights, |times| self.spec.expected_weight(times))
        })
    }
}

/// Opens one stream and waits until the server has taken the declaration.
async fn open_stream(
    channel: Channel,
    tuning: Tuning,
    declared: &Declare,
) -> anyhow::Result<(mpsc::Sender<Frame>, Streaming<Frame>)> {
    let (out, outbound) = mpsc::channel(declared.answers_in_flight());
    let payload = serde_json::to_vec(declared)?.into();
    let first = Frame { head: Head { kind: Kind::Declare, key: 0, chunk: 0 }, payload };
    out.try_send(first).ok().context("no room for the declaration")?;
    let mut grpc = tonic::client::Grpc::new(channel)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX);
    grpc.ready().await.context("the gRPC connection is gone")?;
    let codec = FrameCodec::new(tuning.chunk_bytes, tuning.yield_bytes);
    let request = Request::new(ReceiverStream::new(outbound));
    let answer = grpc.streaming(request, PathAndQuery::from_static(EXCHANGE_PATH), codec).await?;
    let mut inbound = answer.into_inner();
    let first = inbound.message().await?.context("the server ended the stream at once")?;
    anyhow::ensure!(first.head.kind == Kind::Declare, "the server did not take the declaration");
    Ok((out, inbound))
}
