//! The baseline's worker process: one stream to each server, one operation outstanding per tensor.
//!
//! It obeys its parent line by line, and ends when the parent closes its standard input. Gradients are
//! prepared once (a trainer's own work is no transport's); pulled weights are copied to the tensor's own
//! memory, because a trainer needs them there.

use super::codec::{Frame, FrameCodec, Kind};
use super::store::Declare;
use super::tuning::{self, Tuning};
use super::{ChildArgs, EXCHANGE_PATH, RUN_DEADLINE};
use crate::child;
use crate::cluster::{FromChild, ToWorker};
use crate::workload::{LEARNING_RATE, Op, WorkSpec};
use anyhow::Context as _;
use bytes::Bytes;
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

/// Operation times reported from one run; of more, every n-th is kept.
const MAX_LATENCIES: u64 = 20_000;

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
    chunks_missing: u64,
    started: Instant,
    rounds_left: u64,
}

/// The streams of one declared work.
struct Exchange {
    spec: WorkSpec,
    declared: Declare,
    kind: Kind,
    out: Vec<mpsc::Sender<Frame>>,
    inbound: Vec<Streaming<Frame>>,
    next_inbound: usize,
    tensors: Vec<Tensor>,
    rounds_done: u64,
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
        let tensor = || Tensor {
            gradient: gradient.repeat(spec.bytes as usize / gradient.len()).into(),
            weights: vec![0xFF; spec.bytes as usize],
            chunks_missing: 0,
            started: now,
            rounds_left: 0,
        };
        let declared = Declare {
            session,
            rank,
            workers: spec.workers,
            keys: spec.inflight,
            key_bytes: spec.bytes,
            chunk_bytes: tuning.chunk_bytes,
            server: 0,
            servers: spec.servers,
            learning_rate: LEARNING_RATE,
        };
        let mut exchange = Self {
            tensors: (0..spec.inflight).map(|_| tensor()).collect(),
            kind: match spec.op {
                Op::Push => Kind::Push,
                Op::Pull => Kind::Pull,
                Op::PushPull => Kind::PushPull,
            },
            out: Vec::new(),
            inbound: Vec::new(),
            next_inbound: 0,
            rounds_done: 0,
            declared,
            spec,
        };
        for (server, channel) in channels.iter().enumerate() {
            let declared = Declare { server: server as u32, ..declared };
            let (out, inbound) = open_stream(channel.clone(), tuning, &declared).await?;
            exchange.out.push(out);
            exchange.inbound.push(inbound);
        }
        Ok(exchange)
    }

    /// Does so many rounds on every tensor, each tensor at its own pace.
    async fn run(&mut self, rounds: u64) -> anyhow::Result<FromChild> {
        let operations = rounds * self.tensors.len() as u64;
        let stride = operations.div_ceil(MAX_LATENCIES).max(1);
        let mut latencies_ns = Vec::with_capacity(operations.min(MAX_LATENCIES) as usize);
        let start = Instant::now();
        for key in 0..self.tensors.len() {
            self.tensors[key].rounds_left = rounds;
            self.start(key)?;
        }
        let mut done = 0;
        while done < operations {
            let frame = self.next_answer().await?;
            let Some(took) = self.land(&frame)? else { continue };
            if done % stride == 0 {
                latencies_ns.push(took.as_nanos() as u64);
            }
            done += 1;
            self.start(frame.key as usize)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        self.rounds_done += rounds;
        self.verify()?;
        Ok(FromChild::Done { seconds, latencies_ns })
    }

    /// Sends a tensor's next operation, if any is left.
    fn start(&mut self, key: usize) -> anyhow::Result<()> {
        let tensor = &mut self.tensors[key];
        if tensor.rounds_left == 0 {
            return Ok(());
        }
        tensor.rounds_left -= 1;
        tensor.chunks_missing = self.declared.chunks_per_key();
        tensor.started = Instant::now();
        for chunk in 0..self.declared.chunks_per_key() {
            let start = chunk as usize * self.declared.chunk_bytes as usize;
            let end = start + self.declared.chunk_len(chunk);
            let payload =
                if self.spec.op.pushes() { tensor.gradient.slice(start..end) } else { Bytes::new() };
            let frame = Frame { kind: self.kind, key: key as u32, chunk: chunk as u32, payload };
            let server = &self.out[chunk as usize % self.out.len()];
            // The queue holds every chunk of every tensor: full can only mean closed.
            server.try_send(frame).ok().context("the server's stream has ended")?;
        }
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
        let chunk = u64::from(frame.chunk);
        let tensor = self.tensors.get_mut(frame.key as usize).context("an answer for an unknown tensor")?;
        anyhow::ensure!(
            frame.kind == self.kind && chunk < self.declared.chunks_per_key() && tensor.chunks_missing > 0,
            "an answer that nothing asked for"
        );
        if self.spec.op.pulls() {
            let start = chunk as usize * self.declared.chunk_bytes as usize;
            let place = &mut tensor.weights[start..start + self.declared.chunk_len(chunk)];
            anyhow::ensure!(frame.payload.len() == place.len(), "weights of another length than their chunk");
            place.copy_from_slice(&frame.payload);
        }
        tensor.chunks_missing -= 1;
        Ok((tensor.chunks_missing == 0).then(|| tensor.started.elapsed()))
    }

    /// The first and the last weight of every tensor must be what the rounds so far make of them.
    fn verify(&self) -> anyhow::Result<()> {
        let (expected, tolerance) = self.spec.expected_weight(self.rounds_done);
        for (key, tensor) in self.tensors.iter().enumerate().filter(|_| self.spec.op.pulls()) {
            let (values, _) = tensor.weights.as_chunks::<4>();
            for value in [values.first(), values.last()].into_iter().flatten() {
                let found = f64::from(f32::from_le_bytes(*value));
                anyhow::ensure!(
                    (found - expected).abs() <= tolerance,
                    "tensor {key} holds {found} after {} rounds, not {expected}",
                    self.rounds_done
                );
            }
        }
        Ok(())
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
    let first = Frame { kind: Kind::Declare, key: 0, chunk: 0, payload };
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
    anyhow::ensure!(first.kind == Kind::Declare, "the server did not take the declaration");
    Ok((out, inbound))
}
