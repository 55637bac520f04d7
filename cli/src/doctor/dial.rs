//! Reaching a TCP port once, and telling apart why not: a name that does not resolve, a port that refuses, one that says
//! nothing, a network without a way. Waits no longer than it is told to.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;

/// Why a port was not reached.
#[derive(Debug, Error)]
pub(super) enum DialError {
    #[error("cannot resolve {host}: {cause}")]
    Name { host: String, cause: io::Error },
    #[error("{address} refuses connections")]
    Refused { address: SocketAddr },
    #[error("{address} did not answer within {waited_ms} ms")]
    Silent { address: SocketAddr, waited_ms: u64 },
    #[error("no route to {address}: {cause}")]
    NoWay { address: SocketAddr, cause: io::Error },
}

impl DialError {
    /// What to do. `program`: what should listen there.
    pub(super) fn fix(&self, program: &str) -> String {
        match self {
            Self::Name { .. } => "correct the name, or add it to DNS or /etc/hosts".into(),
            Self::Refused { address } => format!(
                "no process listens on TCP port {} there, or a firewall rejects it: start {program}, check address and port",
                address.port()
            ),
            Self::Silent { address, .. } => format!(
                "a firewall drops packets to TCP port {}, or the host is down: open that port between the hosts",
                address.port()
            ),
            Self::NoWay { .. } => {
                "check address, route (`ip route get ADDRESS`) and this host's own firewall".into()
            }
        }
    }

    fn of(address: SocketAddr, cause: io::Error, waited: Duration) -> Self {
        match cause.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused { address },
            io::ErrorKind::TimedOut => Self::Silent { address, waited_ms: waited.as_millis() as u64 },
            _ => Self::NoWay { address, cause },
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Dialled {
    pub(super) stream: TcpStream,
    pub(super) address: SocketAddr,
}

/// The addresses of a name; at least one.
pub(super) async fn resolve(host: &str, port: u16, within: Duration) -> Result<Vec<SocketAddr>, DialError> {
    let found = match timeout(within, lookup_host((host, port))).await {
        Ok(found) => found.map(|all| all.take(ADDRESSES_MAX).collect::<Vec<_>>()),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    };
    let cause = match found {
        Ok(found) if !found.is_empty() => return Ok(found),
        Ok(_) => io::Error::from(io::ErrorKind::NotFound),
        Err(cause) => cause,
    };
    Err(DialError::Name { host: host.to_owned(), cause })
}

/// Connects to the first address of the host that answers; the last one's error where none does.
pub(super) async fn dial(host: &str, port: u16, within: Duration) -> Result<Dialled, DialError> {
    let started = Instant::now();
    let addresses = resolve(host, port, within).await?;
    let mut failure = None;
    for (tried, address) in addresses.iter().enumerate() {
        let left = within.saturating_sub(started.elapsed());
        // Each address gets its part, so that one that swallows packets does not take all the time.
        let share = left / (addresses.len() - tried) as u32;
        let asked = Instant::now();
        let cause = match timeout(share, TcpStream::connect(address)).await {
            // Where nobody listens on a local port, the system may connect the socket to itself.
            Ok(Ok(stream)) if stream.local_addr().ok() == Some(*address) => {
                io::ErrorKind::ConnectionRefused.into()
            }
            Ok(Ok(stream)) => {
                return Ok(Dialled { stream, address: *address });
            }
            Ok(Err(cause)) => cause,
            Err(_) => io::ErrorKind::TimedOut.into(),
        };
        failure = Some(DialError::of(*address, cause, asked.elapsed()));
    }
    Err(failure
        .unwrap_or_else(|| DialError::Name { host: host.to_owned(), cause: io::ErrorKind::NotFound.into() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_closed_port_is_refused_and_a_full_one_is_silent() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(dial("127.0.0.1", port, SOON).await.unwrap().address.port(), port);
        drop(listener);
        let refused = dial("127.0.0.1", port, SOON).await.unwrap_err();
        assert!(matches!(refused, DialError::Refused { .. }), "{refused}");
        assert!(refused.fix("it").contains(&format!("TCP port {port}")), "{}", refused.fix("it"));
        let timed_out = DialError::of("10.0.0.1:7".parse().unwrap(), io::ErrorKind::TimedOut.into(), SOON);
        assert!(matches!(timed_out, DialError::Silent { waited_ms: 30_000, .. }), "{timed_out}");
        assert!(timed_out.fix("it").contains("firewall drops packets to TCP port 7"));
    }

    #[tokio::test]
    async fn a_name_of_nobody_is_told() {
        let error = dial("no-such-host.invalid", 7, SOON).await.unwrap_err();
        assert!(
            matches!(error, DialError::Name { .. }) && error.to_string().contains("no-such-host"),
            "{error}"
        );
    }
}
