//! The baseline's server process: tonic's HTTP/2 server around one [`Store`].
//!
//! One bidirectional stream per worker. The process serves until its parent closes its standard input.

use super::codec::FrameCodec;
use super::tuning::{self, Tuning};
use super::{ChildArgs, EXCHANGE_PATH};
use crate::child;
use crate::cluster::FromChild;
use crate::store::{Declare, Frame, Kind, Refusal, Store};
use anyhow::Context as _;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::{BoxFuture, Service};
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};

type Answers = mpsc::Sender<Result<Frame, Status>>;

/// The parameters and the way back to each worker of the session.
#[derive(Debug, Default)]
struct Shared {
    store: Option<Store>,
    workers: Vec<Option<Answers>>,
    due: Vec<(u32, Frame)>,
}

/// Whose stream it is.
#[derive(Debug, Clone, Copy)]
struct Origin {
    session: u64,
    rank: u32,
}

/// What every connection and stream shares.
#[derive(Debug, Clone)]
struct ParameterServer {
    shared: Arc<Mutex<Shared>>,
    tuning: Tuning,
}

/// Runs the process.
///
/// # Errors
/// No port, no runtime, or the server failed.
pub(crate) fn main(args: &ChildArgs) -> anyhow::Result<()> {
    child::die_with_parent()?;
    let tuning = args.tuning()?;
    let (stop, stopped) = oneshot::channel();
    std::thread::spawn(move || {
        // The parent says nothing more; the end of its line is the end of the work.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = stop.send(());
    });
    tuning::runtime(tuning.server_threads)?.block_on(serve(tuning, stopped))
}

async fn serve(tuning: Tuning, stopped: oneshot::Receiver<()>) -> anyhow::Result<()> {
    let listener = tokio::net::TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .await
        .context("cannot listen on loopback")?;
    child::say(&FromChild::Listening { address: listener.local_addr()? })?;
    let service = ParameterServer { shared: Arc::default(), tuning };
    let served = tonic::transport::Server::builder()
        .initial_stream_window_size(tuning.stream_window_bytes)
        .initial_connection_window_size(tuning.connection_window_bytes)
        .max_frame_size(tuning.max_frame_bytes)
        .serve_with_incoming(service, TcpIncoming::from(listener).with_nodelay(Some(true)));
    tokio::select! {
        ended = served => ended.context("the gRPC server failed"),
        _ = stopped => Ok(()),
    }
}

impl Service<tonic::codegen::http::Request<tonic::body::Body>> for ParameterServer {
    type Response = tonic::codegen::http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: tonic::codegen::http::Request<tonic::body::Body>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            if request.uri().path() != EXCHANGE_PATH {
                return Ok(Status::unimplemented("only the exchange is served").into_http());
            }
            let codec = FrameCodec::new(server.tuning.chunk_bytes, server.tuning.yield_bytes);
            let mut grpc = tonic::server::Grpc::new(codec)
                .max_decoding_message_size(usize::MAX)
                .max_encoding_message_size(usize::MAX);
            Ok(grpc.streaming(Exchange(server), request).await)
        })
    }
}

/// The one method, as tonic wants it.
struct Exchange(ParameterServer);

impl Service<Request<Streaming<Frame>>> for Exchange {
    type Response = Response<ReceiverStream<Result<Frame, Status>>>;
    type Error = Status;
    type Future = BoxFuture<Self::Response, Status>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<Frame>>) -> Self::Future {
        let server = self.0.clone();
        Box::pin(async move {
            let mut inbound = request.into_inner();
            let first = inbound.message().await?.ok_or_else(|| Status::cancelled("an empty stream"))?;
            if first.head.kind != Kind::Declare {
                return Err(Status::failed_precondition("a stream that does not begin with a declaration"));
            }
            let declared: Declare = serde_json::from_slice(&first.payload)
                .map_err(|error| Status::invalid_argument(format!("a bad declaration: {error}")))?;
            declared.check().map_err(refused)?;
            // Room for every answer that can be due, so that giving one never waits.
            let (answers, outbound) = mpsc::channel(declared.answers_in_flight());
            let from = Origin { session: declared.session, rank: declared.rank };
            server.lock().join(declared, answers.clone());
            let _ = answers.try_send(Ok(Frame { payload: bytes::Bytes::new(), ..first }));
            tokio::spawn(async move {
                if let Err(status) = server.obey(from, inbound).await {
                    // Nobody is left to tell when the worker has gone.
                    let _ = answers.try_send(Err(status));
                }
            });
            Ok(Response::new(ReceiverStream::new(outbound)))
        })
    }
}

impl ParameterServer {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        // A panic under the lock has already failed the stream it came from.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Obeys one worker's messages until its stream ends.
    async fn obey(&self, from: Origin, mut inbound: Streaming<Frame>) -> Result<(), Status> {
        while let Some(frame) = inbound.message().await? {
            self.lock().apply(from, &frame)?;
        }
        Ok(())
    }
}

impl Shared {
    /// Adds a worker; the first one of a new session resets the parameters.
    fn join(&mut self, declared: Declare, answers: Answers) {
        let rank = declared.rank as usize;
        if self.store.as_ref().map(Store::session) != Some(declared.session) {
            self.workers = vec![None; declared.workers as usize];
            self.store = Some(Store::new(declared));
        }
        if let Some(place) = self.workers.get_mut(rank) {
            *place = Some(answers);
        }
    }

    fn apply(&mut self, from: Origin, frame: &Frame) -> Result<(), Status> {
        let store = self.store.as_mut().filter(|store| store.session() == from.session);
        let store = store.ok_or_else(|| Status::aborted("another session has begun"))?;
        store.apply(from.rank, frame.head, &frame.payload, &mut self.due).map_err(refused)?;
        for (rank, answer) in self.due.drain(..) {
            let worker = self.workers.get(rank as usize).and_then(Option::as_ref);
            // A full or closed queue is a worker that broke the protocol or went; its own stream tells.
            if worker.is_none_or(|worker| worker.try_send(Ok(answer)).is_err()) {
                return Err(Status::unavailable(format!("worker {rank} takes no answers")));
            }
        }
        Ok(())
    }
}

fn refused(refusal: Refusal) -> Status {
    Status::invalid_argument(refusal.0)
}
