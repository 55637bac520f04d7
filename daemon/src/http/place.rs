//! Connections that are served at once, and how long a client keeps the place of its own while it does nothing: less where places
//! run short, so that a few clients that sit still do not keep all others out. It must not know what is served.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Connections served at once; more wait in the listener's backlog.
pub(super) const PLACES: usize = 64;
/// With fewer free ones than this, clients that do nothing lose theirs.
const FEW: usize = PLACES / 2;
/// After so long.
const IDLE: Duration = Duration::from_millis(500);

/// All of them. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Places(Arc<Semaphore>);

impl Places {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(PLACES)))
    }

    /// The next one that is free.
    pub(super) async fn next(&self) -> Option<Place> {
        // The semaphore is never closed, so there is always one at some time.
        let permit = Arc::clone(&self.0).acquire_owned().await.ok()?;
        Some(Place { places: self.clone(), client: Client::new(), _permit: permit })
    }

    fn are_few(&self) -> bool {
        self.0.available_permits() < FEW
    }
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    client: Client,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Until its client has done nothing for too long, while others may want the place.
    pub(super) async fn lost(&self) {
        loop {
            // That nothing is done is no event.
            tokio::time::sleep(IDLE / 2).await;
            if self.places.are_few() && self.client.idle() >= IDLE {
                return;
            }
        }
    }
}

/// What a connection's client does. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Client(Arc<Doings>);

#[derive(Debug)]
struct Doings {
    since: Instant,
    /// When bytes went either way last, after that.
    moved_ms: AtomicU64,
    /// Requests that this process has to answer.
    asked: AtomicU32,
}

impl Client {
    fn new() -> Self {
        Self(Arc::new(Doings {
            since: Instant::now(),
            moved_ms: AtomicU64::new(0),
            asked: AtomicU32::new(0),
        }))
    }

    /// For how long it has neither sent nor taken anything, though it was its turn.
    fn idle(&self) -> Duration {
        if self.0.asked.load(Ordering::Acquire) > 0 {
            return Duration::ZERO;
        }
        let moved = Duration::from_millis(self.0.moved_ms.load(Ordering::Acquire));
        self.0.since.elapsed().saturating_sub(moved)
    }

    fn moved(&self) {
        self.0.moved_ms.store(self.0.since.elapsed().as_millis() as u64, Ordering::Release);
    }

    /// It has asked for something: until this is dropped it waits, and not we for it.
    pub(super) fn asks(&self) -> Asks {
        self.0.asked.fetch_add(1, Ordering::AcqRel);
        Asks(self.clone())
    }

    /// Its connection, watched.
    pub(super) fn watched(&self, stream: TcpStream) -> Watched {
        // It may have waited in the backlog.
        self.moved();
        Watched { stream, client: self.clone() }
    }
}

/// See [`Client::asks`].
#[derive(Debug)]
pub(super) struct Asks(Client);

impl Drop for Asks {
    fn drop(&mut self) {
        self.0.moved();
        self.0.0.asked.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A connection that says when bytes go over it.
#[derive(Debug)]
pub(super) struct Watched {
    stream: TcpStream,
    client: Client,
}

impl Watched {
    fn note(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if matches!(polled, Poll::Ready(Ok(1..))) {
            self.client.moved();
        }
        polled
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, into);
        if into.filled().len() > before {
            self.client.moved();
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.note(polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Does it lose its place within this time?
    async fn is_lost(place: &Place, within: Duration) -> bool {
        tokio::time::timeout(within, place.lost()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_does_nothing_loses_its_place_where_there_are_few() {
        let places = Places::new();
        let mine = places.next().await.unwrap();
        let mut others = Vec::new();
        while others.len() + 1 < PLACES - FEW {
            others.push(places.next().await.unwrap());
        }
        assert!(!is_lost(&mine, LONG).await, "half of them are free");
        others.push(places.next().await.unwrap());
        mine.client().moved();
        assert!(!is_lost(&mine, IDLE - Duration::from_millis(1)).await);
        assert!(is_lost(&mine, IDLE).await);
        others.pop();
        assert!(!is_lost(&mine, LONG).await, "others have gone");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_being_answered_keeps_its_place() {
        let places = Places::new();
        let mine = places.next().await.unwrap();
        let mut others = Vec::new();
        while others.len() + 1 < PLACES {
            others.push(places.next().await.unwrap());
        }
        let asks = mine.client().asks();
        assert!(!is_lost(&mine, LONG).await);
        drop(asks);
        assert!(!is_lost(&mine, IDLE - Duration::from_millis(1)).await, "from the answer on");
        assert!(is_lost(&mine, IDLE).await);
    }
}
