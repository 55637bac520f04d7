//! The HTTP endpoints of every daemon: `/metrics`, `/healthz`, `/readyz`, `/status`, `/trace` with `/trace/clock`; the scheduler's
//! `/targets`, and documents that are part of the program. Bounded in connections and time. Over loopback only to those who ask for it
//! by its own names. It must not change anything: every endpoint is a GET that looks.

mod local;
mod place;

use crate::exit::Failure;
use crate::flight::Flight;
use crate::metrics;
use crate::shutdown::Shutdown;
use anyhow::Context as _;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use place::{Place, Places};
use prometheus::Registry;
use proto_common::error::ExitCode;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

/// Milliseconds a client has to send its request head.
const HEADER_MS: u64 = 5_000;
/// Milliseconds a connection may live, whatever it does; scrapers reconnect.
const CONNECTION_MS: u64 = 60_000;
/// Documents of what the recorder has that may be on their way at once, each of some 8 MiB: clients may read them slowly.
const TRACES_MAX: usize = 2;

/// Where they are, beside documents.
const ENDPOINTS: [&str; 7] =
    ["/metrics", "/healthz", "/readyz", "/status", "/targets", "/trace", "/trace/clock"];

/// With each document: nothing but what comes from this address is loaded or run, nothing is sent elsewhere, nobody frames it.
const DOCUMENT_HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // The next release may have another one.
    (header::CACHE_CONTROL, "no-cache"),
];

/// A document that is part of the program.
#[derive(Clone, Copy, Debug)]
pub struct Document {
    /// Where it is: `/page.css`.
    pub path: &'static str,
    /// What it is: `text/css; charset=utf-8`.
    pub content_type: &'static str,
    /// Its text.
    pub body: &'static str,
}

type Response = hyper::Response<Full<Bytes>>;
type Ready = dyn Fn() -> Result<(), String> + Send + Sync;
type Status = dyn Fn() -> serde_json::Value + Send + Sync;

/// What the endpoints show.
#[derive(Clone)]
pub struct HttpState {
    registry: Registry,
    ready: Arc<Ready>,
    status: Arc<Status>,
    targets: Option<Arc<Status>>,
    flight: Option<Flight>,
    is_tls: Option<bool>,
    /// A place for each of [`TRACES_MAX`].
    tracing: Arc<Semaphore>,
    documents: &'static [Document],
}

impl HttpState {
    /// `ready` says whether the process can serve, or why not yet; `status` is the body of `/status`.
    /// Both are called for each request and must return at once.
    pub fn new(
        registry: Registry,
        ready: impl Fn() -> Result<(), String> + Send + Sync + 'static,
        status: impl Fn() -> serde_json::Value + Send + Sync + 'static,
    ) -> Self {
        Self {
            registry,
            ready: Arc::new(ready),
            status: Arc::new(status),
            targets: None,
            flight: None,
            is_tls: None,
            tracing: Arc::new(Semaphore::new(TRACES_MAX)),
            documents: &[],
        }
    }

    /// `/status` says, as `control_plane_tls`, whether both sides of this process's control connections show certificates.
    #[must_use]
    pub fn with_tls(self, is_tls: bool) -> Self {
        Self { is_tls: Some(is_tls), ..self }
    }

    /// `/trace` is what this has recorded; it is not found without.
    #[must_use]
    pub fn with_flight(self, flight: Flight) -> Self {
        Self { flight: Some(flight), ..self }
    }

    /// `targets` is the body of `/targets`, which is not found without: whom Prometheus is to scrape.
    #[must_use]
    pub fn with_targets(self, targets: impl Fn() -> serde_json::Value + Send + Sync + 'static) -> Self {
        Self { targets: Some(Arc::new(targets)), ..self }
    }

    /// Serves these, too.
    #[must_use]
    pub fn with_documents(self, documents: &'static [Document]) -> Self {
        Self { documents, ..self }
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
    if let Some(warning) = listener.local_addr().ok().and_then(open_to_others) {
        tracing::warn!("{warning}");
    }
    Ok(Some(listener))
}

/// What is to be known of an address that other hosts may reach.
fn open_to_others(address: SocketAddr) -> Option<String> {
    let text = format!(
        "metrics, status and trace at {address} are readable without authentication: restrict access to your monitoring, or set \
         node.http to a loopback address"
    );
    (!local::is_loopback(address)).then_some(text)
}

/// The bound address as text, for `Register.http_address`.
#[must_use]
pub fn address_of(listener: Option<&TcpListener>) -> Option<String> {
    listener.and_then(|listener| listener.local_addr().ok()).map(|address: SocketAddr| address.to_string())
}

/// Serves until the shutdown token fires. Needs a tokio runtime.
pub fn spawn(listener: TcpListener, state: HttpState, mut shutdown: Shutdown) -> JoinHandle<()> {
    tokio::spawn(async move {
        tokio::select! {
            () = accept(listener, state) => {}
            _ = shutdown.wait() => {}
        }
    })
}

async fn accept(listener: TcpListener, state: HttpState) {
    let places = Places::new();
    while let Some(place) = places.next().await {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(serve(stream, state.clone(), place))),
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                // Out of file descriptors: no event tells when there are some again.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, state: HttpState, place: Place) {
    let client = place.client().clone();
    let is_loopback = stream.local_addr().is_ok_and(local::is_loopback);
    let answer = move |request: Request<Incoming>| {
        let (asks, state) = (client.asks(), state.clone());
        let is_meant = !is_loopback || local::is_meant(request.uri(), request.headers());
        async move {
            let answer = if is_meant {
                answer(state, &request).await
            } else {
                text(StatusCode::FORBIDDEN, local::REFUSAL)
            };
            drop(asks);
            Ok::<_, Infallible>(answer)
        }
    };
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(HEADER_MS))
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(place.client().watched(stream)), service_fn(answer));
    tokio::select! {
        ended = connection => {
            if let Err(error) = ended {
                tracing::debug!(%error, "HTTP connection ended");
            }
        }
        () = place.lost() => tracing::debug!("closed an idle HTTP connection to make room"),
        () = tokio::time::sleep(Duration::from_millis(CONNECTION_MS)) => {}
    }
}

async fn answer<B>(state: HttpState, request: &Request<B>) -> Response {
    let path = request.uri().path();
    let document = state.documents.iter().find(|document| document.path == path);
    if document.is_none() && !ENDPOINTS.contains(&path) {
        return not_found();
    }
    // hyper sends no body to who asks for the head alone.
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed\n");
        return with(answer, [(header::ALLOW, "GET, HEAD")]);
    }
    if let Some(document) = document {
        let answer = whole(document.content_type, document.body);
        return with(answer, DOCUMENT_HEADERS);
    }
    match path {
        "/metrics" => beside(move || metrics_of(&state)).await,
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" => match (state.ready)() {
            Ok(()) => text(StatusCode::OK, "ready\n"),
            Err(reason) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        },
        "/status" => beside(move || status_of(&state)).await,
        "/targets" => match state.targets {
            Some(targets) => beside(move || as_json(targets().to_string() + "\n")).await,
            None => text(StatusCode::NOT_FOUND, "only the scheduler serves /targets\n"),
        },
        "/trace" => trace_of(state).await,
        // Short, so that who asks knows how old the answer is.
        "/trace/clock" => match &state.flight {
            Some(flight) => as_json(serde_json::to_string(&flight.stamp()).unwrap_or_default() + "\n"),
            None => no_flight(),
        },
        _ => not_found(),
    }
}

/// An answer that takes time to make: this thread has heartbeats to send.
async fn beside(make: impl FnOnce() -> Response + Send + 'static) -> Response {
    let made = tokio::task::spawn_blocking(make).await;
    made.unwrap_or_else(|_| {
        text(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be made; see the log\n")
    })
}

fn metrics_of(state: &HttpState) -> Response {
    match metrics::render(&state.registry) {
        Ok(text) => whole(metrics::CONTENT_TYPE, text),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")),
    }
}

fn status_of(state: &HttpState) -> Response {
    let mut status = (state.status)();
    if let (Some(is_tls), Some(fields)) = (state.is_tls, status.as_object_mut()) {
        fields.insert("control_plane_tls".into(), is_tls.into());
    }
    as_json(status.to_string() + "\n")
}

async fn trace_of(state: HttpState) -> Response {
    let Some(flight) = state.flight else { return no_flight() };
    let Ok(place) = state.tracing.try_acquire_owned() else {
        return text(StatusCode::SERVICE_UNAVAILABLE, "busy: other clients are reading this; retry\n");
    };
    // This thread has heartbeats to send.
    let made = tokio::task::spawn_blocking(move || serde_json::to_string(&flight.dump("asked")));
    match made.await {
        Ok(Ok(text)) => as_json(Bytes::from_owner(Trace { text: text + "\n", _place: place })),
        _ => text(StatusCode::INTERNAL_SERVER_ERROR, "internal error: cannot render this\n"),
    }
}

/// A document that has its place until all of it is sent, or its connection has ended.
struct Trace {
    text: String,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Trace {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

fn not_found() -> Response {
    text(StatusCode::NOT_FOUND, "not found\n")
}

fn no_flight() -> Response {
    text(StatusCode::NOT_FOUND, "this process has no flight recorder; set log.recorder_events\n")
}

fn as_json(body: impl Into<Bytes>) -> Response {
    with(whole("application/json", body), [(header::CACHE_CONTROL, "no-store")])
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response {
    let mut answer = whole("text/plain; charset=utf-8", body);
    *answer.status_mut() = status;
    answer
}

fn whole(content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let answer = Response::new(Full::new(body.into()));
    with(answer, [(header::CONTENT_TYPE, content_type)])
}

fn with<const N: usize>(mut answer: Response, headers: [(HeaderName, &'static str); N]) -> Response {
    for (name, value) in headers {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::{Event, Kind};
    use proto_common::ids::Role;
    use serde_json::json;
    use std::time::Instant;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn get(address: SocketAddr, path: &str) -> String {
        get_of(address, path, "Host: localhost\r\n").await
    }

    async fn get_of(address: SocketAddr, path: &str, host: &str) -> String {
        ask(address, "GET", path, host).await
    }

    async fn ask(address: SocketAddr, method: &str, path: &str, host: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("{method} {path} HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn endpoints_and_documents() {
        let listener = bind("127.0.0.1:0").await.unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let registry = metrics::registry(Role::Scheduler).unwrap();
        const DOCUMENT: Document = Document { path: "/x.css", content_type: "text/css", body: "a{}" };
        let state = HttpState::new(registry, || Err("not yet".into()), || json!({"rounds": 3}))
            .with_flight(Flight::embedded(Role::Scheduler, &Default::default()))
            .with_tls(false)
            .with_documents(&[DOCUMENT]);
        let tracing = state.tracing.clone();
        let (trigger, shutdown) = crate::shutdown::channel();
        let task = spawn(listener, state, shutdown);
        let metrics = get(address, "/metrics").await;
        assert!(metrics.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{metrics}");
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let ready = get(address, "/readyz").await;
        assert!(ready.starts_with("HTTP/1.1 503") && ready.ends_with("not yet\n"), "{ready}");
        assert!(get(address, "/status").await.ends_with("{\"control_plane_tls\":false,\"rounds\":3}\n"));
        assert!(get(address, "/targets").await.starts_with("HTTP/1.1 404"));
        let stamp = get(address, "/trace/clock").await;
        assert!(stamp.contains("\"wall_ns\":"), "{stamp}");
        let trace = get(address, "/trace").await;
        assert!(trace.starts_with("HTTP/1.1 200") && trace.contains("\"threads\":[]"), "{trace}");
        let _places = tracing.try_acquire_many(TRACES_MAX as u32).expect("it was sent");
        assert!(get(address, "/trace").await.starts_with("HTTP/1.1 503"), "so many at a time");
        let document = get(address, "/x.css").await;
        assert!(document.starts_with("HTTP/1.1 200") && document.ends_with("\r\na{}"), "{document}");
        for header in ["content-type: text/css\r", "content-security-policy: default-src 'none';", "nosniff"]
        {
            assert!(document.contains(header), "{header} is missing in {document}");
        }
        assert!(get(address, "/y.css").await.starts_with("HTTP/1.1 404"));
        for (method, said) in [("HEAD", "HTTP/1.1 200"), ("POST", "HTTP/1.1 405"), ("DELETE", "HTTP/1.1 405")]
        {
            let answer = ask(address, method, "/status", "Host: localhost\r\n").await;
            assert!(answer.starts_with(said) && !answer.contains("rounds"), "{method}: {answer}");
            assert_eq!(answer.contains("allow: GET, HEAD\r"), method != "HEAD", "{answer}");
        }
        trigger.fire("test over");
        task.await.unwrap();
    }

    #[tokio::test]
    async fn a_trace_has_its_place_until_it_is_read() {
        let mut settings = proto_common::config::Settings::default();
        settings.log.recorder_events = 1 << 17;
        let flight = Flight::embedded(Role::Server, &settings);
        let mut recorder = flight.thread("lane 0".into());
        // More than what sockets take.
        let most = u64::MAX;
        let event = Event { key: most, round: most, bytes: most, extra: most, ..Event::of(Kind::Reduce) };
        (0..1 << 17).for_each(|_| recorder.note(event));
        let listener = bind("127.0.0.1:0").await.unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let registry = metrics::registry(Role::Server).unwrap();
        let state = HttpState::new(registry, || Ok(()), || json!({})).with_flight(flight);
        let (_trigger, shutdown) = crate::shutdown::channel();
        spawn(listener, state, shutdown);
        let mut slow = Vec::new();
        for _ in 0..TRACES_MAX {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream
                .write_all(b"GET /trace HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                .await
                .unwrap();
            assert_eq!(stream.read_u8().await.unwrap(), b'H', "it is made, and being sent");
            slow.push(stream);
        }
        assert!(get(address, "/trace").await.starts_with("HTTP/1.1 503"), "nobody has read one yet");
        let mut rest = String::new();
        slow.pop().unwrap().read_to_string(&mut rest).await.unwrap();
        assert!(rest.starts_with("TTP/1.1 200") && rest.ends_with("}\n"));
        assert!(get(address, "/trace").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn clients_that_say_nothing_do_not_keep_others_out() {
        let listener = bind("127.0.0.1:0").await.unwrap().unwrap();
        let address = listener.local_addr().unwrap();
        let registry = metrics::registry(Role::Server).unwrap();
        let (_trigger, shutdown) = crate::shutdown::channel();
        spawn(listener, HttpState::new(registry, || Ok(()), || json!({})), shutdown);
        let mut silent = Vec::new();
        for _ in 0..place::PLACES {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let begun = Instant::now();
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(begun.elapsed() < Duration::from_millis(HEADER_MS - 1_000), "{:?}", begun.elapsed());
    }

    /// A page whose name leads to loopback would read what is shown there.
    #[tokio::test]
    async fn over_loopback_nothing_is_shown_to_who_asks_for_another_host() {
        let served = async |address: &str| {
            let listener = bind(address).await.unwrap().unwrap();
            let address = listener.local_addr().unwrap();
            let (trigger, shutdown) = crate::shutdown::channel();
            let state = HttpState::new(metrics::registry(Role::Server).unwrap(), || Ok(()), || json!({}));
            drop(spawn(listener, state, shutdown));
            (address, trigger)
        };
        let (address, _trigger) = served("127.0.0.1:0").await;
        for path in ["/status", "/metrics", "/trace", "/healthz", "/nothing"] {
            let answer = get_of(address, path, "Host: rebound.example:9095\r\n").await;
            assert!(answer.starts_with("HTTP/1.1 403") && answer.ends_with("own name\n"), "{answer}");
        }
        for host in ["", "Host: localhost:1\r\n", "Host: 127.0.0.1\r\n", "Host: [::1]:9095\r\n"] {
            let answer = get_of(address, "/status", host).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
        }
        // Whoever monitors other hosts has names of its own for them.
        let Ok(own) = host_address() else { return };
        let (address, _trigger) = served(&format!("{own}:0")).await;
        let answer = get_of(address, "/status", "Host: server-1.example:9095\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    /// An address of this host that is none of loopback, where there is one. Nothing is sent.
    fn host_address() -> std::io::Result<std::net::IpAddr> {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
        socket.connect("192.0.2.1:9")?;
        Ok(socket.local_addr()?.ip())
    }

    #[test]
    fn addresses_that_others_reach_are_remarked_on() {
        for address in ["0.0.0.0:9095", "[::]:9095", "10.0.0.1:9095", "[2001:db8::1]:9095"] {
            let warning = open_to_others(address.parse().unwrap()).unwrap();
            assert!(
                warning.starts_with(&format!("metrics, status and trace at {address} are readable")),
                "{warning}"
            );
        }
        for address in ["127.0.0.1:9095", "127.1.2.3:9095", "[::1]:9095", "[::ffff:127.0.0.1]:9095"] {
            assert_eq!(open_to_others(address.parse().unwrap()), None, "{address}");
        }
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
