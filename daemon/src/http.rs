//! The HTTP endpoints of every daemon: `/metrics`, `/healthz`, `/readyz`, `/status`. Bounded in connections
//! and time. It must not change anything: every endpoint is a GET that looks.

use crate::exit::Failure;
use crate::metrics;
use crate::shutdown::Shutdown;
use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus::Registry;
use proto_common::error::ExitCode;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Connections served at once; more wait in the listener's backlog.
const CONNECTIONS_MAX: usize = 64;
/// Milliseconds a client has to send its request head.
const HEADER_MS: u64 = 5_000;
/// Milliseconds a connection may live, whatever it does; scrapers reconnect.
const CONNECTION_MS: u64 = 60_000;

type Ready = dyn Fn() -> Result<(), String> + Send + Sync;
type Status = dyn Fn() -> serde_json::Value + Send + Sync;

/// What the endpoints show.
#[derive(Clone)]
pub struct HttpState {
    registry: Registry,
    ready: Arc<Ready>,
    status: Arc<Status>,
}

impl HttpState {
    /// `ready` says whether the process can serve, or why not yet; `status` is the body of `/status`.
    /// Both are called for each request and must return at once.
    pub fn new(
        registry: Registry,
        ready: impl Fn() -> Result<(), String> + Send + Sync + 'static,
        status: impl Fn() -> serde_json::Value + Send + Sync + 'static,
    ) -> Self {
        Self { registry, ready: Arc::new(ready), status: Arc::new(status) }
    }
}

/// Binds the setting `node.http`; `None` where it is empty, which turns the endpoints off.
pub async fn bind(address: &str) -> Result<Option<TcpListener>, Failure> {
    if address.is_empty() {
        return Ok(None);
    }
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot bind the HTTP endpoints to {address}; set node.http to a free address and port, or to \"\" to turn them off"))
        .map_err(|error| Failure::new(ExitCode::Io, error))?;
    Ok(Some(listener))
}

/// The bound address as text, for `Register.http_address`.
#[must_use]
pub fn address_of(listener: Option<&TcpListener>) -> Option<String> {
    listener.and_then(|listener| listener.local_addr().ok()).map(|address: SocketAddr| address.to_string())
}

/// Serves until the shutdown token fires. Needs a tokio runtime.
pub fn spawn(listener: TcpListener, state: HttpState, mut shutdown: Shutdown) -> JoinHandle<()> {
    let router = Router::new()
        .route("/metrics", get(show_metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(show_ready))
        .route("/status", get(show_status))
        .with_state(state);
    tokio::spawn(async move {
        tokio::select! {
            () = accept(listener, router) => {}
            _ = shutdown.wait() => {}
        }
    })
}

async fn accept(listener: TcpListener, router: Router) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // The semaphore is never closed, so acquiring cannot fail.
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                tokio::spawn(async move {
                    serve(stream, router).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                // Out of file descriptors: no event tells when there are some again.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, router: Router) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(HEADER_MS))
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let limit = Duration::from_millis(CONNECTION_MS);
    if let Ok(Err(error)) = tokio::time::timeout(limit, connection).await {
        tracing::debug!(%error, "HTTP connection ended");
    }
}

async fn show_metrics(State(state): State<HttpState>) -> Response {
    match metrics::render(&state.registry) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn show_ready(State(state): State<HttpState>) -> Response {
    match (state.ready)() {
        Ok(()) => "ready\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn show_status(State(state): State<HttpState>) -> Response {
    let body = (state.status)().to_string();
    ([(header::CONTENT_TYPE, "application/json")], body + "\n").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::ids::Role;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_four_endpoints() {
        let listener = bind("127.0.0.1:0").await.unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let registry = metrics::registry(Role::Scheduler).unwrap();
        let state = HttpState::new(registry, || Err("not yet".into()), || json!({"rounds": 3}));
        let (trigger, shutdown) = crate::shutdown::channel();
        let task = spawn(listener, state, shutdown);
        let metrics = get(address, "/metrics").await;
        assert!(metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{metrics}");
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let ready = get(address, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 503") && ready.ends_with("not yet\n"), "{ready}");
        assert!(get(address, "/status").await.ends_with("{\"rounds\":3}\n"));
        trigger.fire("test over");
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_port_in_use_says_cause_and_fix() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let error = bind(&taken.local_addr().unwrap().to_string()).await.unwrap_err();
        assert_eq!(error.code(), ExitCode::Io);
        assert!(error.to_string().contains("node.http"), "{error}");
        assert!(bind("").await.unwrap().is_none());
    }
}
