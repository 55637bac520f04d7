//! Reaching a peer that may not be up yet: retried with a capped backoff until a deadline.

use std::io;
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout_at};

/// One attempt to connect.
const ATTEMPT_MS: u64 = 2_000;
/// Milliseconds between the first two attempts; doubles up to [`BACKOFF_MAX_MS`].
pub(super) const BACKOFF_FIRST_MS: u64 = 10;
/// Milliseconds between attempts at most.
pub(super) const BACKOFF_MAX_MS: u64 = 500;

/// The peer could not be reached.
#[derive(Debug, Error)]
#[error("cannot connect to {host}:{port} within {waited_ms} ms ({cause}); {fix}")]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub struct ConnectError {
    pub host: String,
    pub port: u16,
    pub waited_ms: u64,
    pub cause: io::Error,
    pub fix: String,
}

/// Connects to `host:port`, trying again until `deadline_ms` have passed. `fix` ends the error's sentence:
/// what the user should check.
pub async fn connect_with_retry(
    host: &str,
    port: u16,
    deadline_ms: u64,
    fix: &str,
) -> Result<TcpStream, ConnectError> {
    let start = Instant::now();
    let deadline = start + Duration::from_millis(deadline_ms);
    let mut backoff = Duration::from_millis(BACKOFF_FIRST_MS);
    let mut cause = io::Error::from(io::ErrorKind::TimedOut);
    loop {
        // The system waits ever longer between its own attempts, past the moment when the peer is there.
        let attempt = deadline.min(Instant::now() + Duration::from_millis(ATTEMPT_MS));
        match timeout_at(attempt, TcpStream::connect((host, port))).await {
            Ok(Ok(stream)) if !connected_to_itself(&stream) => return Ok(stream),
            Ok(Ok(_)) => cause = io::Error::from(io::ErrorKind::ConnectionRefused),
            Ok(Err(error)) => cause = error,
            Err(_) => {}
        }
        let next = Instant::now() + backoff;
        if next >= deadline || cause.kind() == io::ErrorKind::InvalidInput {
            let waited_ms = start.elapsed().as_millis() as u64;
            return Err(ConnectError { host: host.to_owned(), port, waited_ms, cause, fix: fix.to_owned() });
        }
        // Nothing tells when a listener appears on another machine.
        sleep_until(next).await;
        backoff = (backoff * 2).min(Duration::from_millis(BACKOFF_MAX_MS));
    }
}

/// Trying a local port of the ephemeral range again and again may meet itself: TCP allows it.
fn connected_to_itself(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn an_absent_peer_is_named_with_a_fix() {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let error = connect_with_retry("127.0.0.1", port, 100, "start it").await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("127.0.0.1:{port}")) && text.ends_with("; start it"), "{text}");
        assert!(error.waited_ms <= 200, "{}", error.waited_ms);
    }

    #[tokio::test]
    async fn a_late_peer_is_reached() {
        let reserved = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = reserved.local_addr().unwrap();
        drop(reserved);
        let late = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let listener = TcpListener::bind(address).await.unwrap();
            listener.accept().await.unwrap()
        };
        let (stream, _) = tokio::join!(connect_with_retry("127.0.0.1", address.port(), 5_000, ""), late);
        assert_eq!(stream.unwrap().peer_addr().unwrap(), address);
    }
}
