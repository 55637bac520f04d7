//! Who may speak on control connections. On loopback everybody; elsewhere, or where certificates are set, both sides show one
//! that the cluster's authority has signed for the job and the role that they claim. It decides nothing about members: the
//! roster does. Design, section 9.

#[cfg(any(test, feature = "authority"))]
pub mod authority;
mod certificate;
mod fault;
mod files;
mod identity;
#[cfg(test)]
pub(crate) mod rig;
mod tls;

pub use certificate::{Certificate, NotACertificate};
pub use fault::Fault;
pub use files::SecurityError;
pub use identity::{Identity, Name, NotAName, NotOfJob, NotPermitted, role_of};

use crate::Later;
use crate::control::{Connection, FrameError};
use crate::seldom::Seldom;
use files::{Files, Loaded};
use proto_common::config::Settings;
use proto_common::ids::{JobId, Role};
use rustls::pki_types::ServerName;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// Milliseconds for which a refused connection's input is still read and thrown away.
const LINGER_MS: u64 = 500;

/// What a process shows to its peers and asks of them. Cheap to clone.
#[derive(Clone)]
pub struct Security(Option<Arc<Keys>>);

impl fmt::Debug for Security {
    /// Keys stay out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Security(mutual TLS)" } else { "Security(off)" })
    }
}

struct Keys {
    files: Files,
    loaded: Mutex<Arc<Loaded>>,
    complaints: Seldom,
}

impl Keys {
    /// What is in the files. Files that cannot be used leave what was read before in force.
    fn current(&self) -> Arc<Loaded> {
        // Nothing that can panic runs while the lock is held.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if self.files.are_as(&loaded) {
            return loaded.clone();
        }
        match self.files.load() {
            Ok(next) => {
                tracing::info!(
                    subject = next.own.subject,
                    serial = next.own.serial,
                    "certificates read again"
                );
                *loaded = Arc::new(next);
            }
            Err(error) => {
                if let Some(others) = self.complaints.may_speak() {
                    tracing::error!(%error, others, "the certificates have changed and cannot be used; the ones before stay in force");
                }
            }
        }
        loaded.clone()
    }
}

impl Security {
    /// Nobody is asked: control connections are plain TCP.
    #[must_use]
    pub const fn off() -> Self {
        Self(None)
    }

    /// As the settings say, for a process of this role; tools have none. Reads the files, and says in the log what of them
    /// should be known.
    pub fn open(settings: &Settings, role: Option<Role>) -> Result<Self, SecurityError> {
        if !settings.security.is_tls() {
            return Ok(Self::off());
        }
        let files = Files::new(&settings.security, role.map(|role| (settings.job, role)));
        let loaded = files.load()?;
        files.warnings(&loaded).iter().for_each(|warning| tracing::warn!("{warning}"));
        let (loaded, complaints) = (Mutex::new(Arc::new(loaded)), Seldom::default());
        Ok(Self(Some(Arc::new(Keys { files, loaded, complaints }))))
    }

    /// Do both sides show certificates?
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// When this process's certificate expires, in seconds since 1970.
    #[must_use]
    pub fn expires_s(&self) -> Option<i64> {
        self.0.as_ref().map(|keys| keys.current().own.not_after_s)
    }

    /// Takes an accepted socket; what its peer may claim is asked of the connection ([`Connection::permits`]).
    pub fn accept(&self, stream: TcpStream, limit: Duration) -> Later<'_, Result<Connection, FrameError>> {
        Box::pin(self.accept_within(stream, limit))
    }

    async fn accept_within(&self, stream: TcpStream, limit: Duration) -> Result<Connection, FrameError> {
        let Some(keys) = &self.0 else { return Ok(Connection::new(stream)?) };
        let acceptor = TlsAcceptor::from(keys.current().ends.accepting.clone());
        shaken(limit, stream, async |stream| {
            acceptor.accept(stream).into_fallible().await.map(TlsStream::from)
        })
        .await
    }

    /// Takes a connected socket. Its other end must be this role of this job, or, where nobody is named, anybody whom the
    /// authority vouches for.
    pub fn dial(
        &self,
        stream: TcpStream,
        whom: Option<(JobId, Role)>,
        limit: Duration,
    ) -> Later<'_, Result<Connection, FrameError>> {
        Box::pin(self.dial_within(stream, whom, limit))
    }

    async fn dial_within(
        &self,
        stream: TcpStream,
        whom: Option<(JobId, Role)>,
        limit: Duration,
    ) -> Result<Connection, FrameError> {
        let Some(keys) = &self.0 else { return Ok(Connection::new(stream)?) };
        let connector = TlsConnector::from(keys.current().ends.dialling.clone());
        // Not compared, and not sent.
        let name = ServerName::from(IpAddr::from(Ipv4Addr::LOCALHOST));
        let connection = shaken(limit, stream, async |stream| {
            connector.connect(name, stream).into_fallible().await.map(TlsStream::from)
        })
        .await?;
        if let Some((job, role)) = whom {
            connection.permits(job, role)?;
        }
        Ok(connection)
    }
}

/// Shakes hands within `limit`, and takes what the other side has shown.
async fn shaken(
    limit: Duration,
    stream: TcpStream,
    shake: impl AsyncFnOnce(TcpStream) -> Result<TlsStream<TcpStream>, (io::Error, TcpStream)>,
) -> Result<Connection, FrameError> {
    stream.set_nodelay(true)?;
    let peer = stream.peer_addr()?;
    let stream = match timeout(limit, shake(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err((error, _))) if is_end(&error) => return Err(Fault::Closed.into()),
        Ok(Err((error, stream))) => {
            linger(stream).await;
            return Err(error.into());
        }
        Err(_) => return Err(FrameError::Deadline { waited_ms: limit.as_millis() as u64 }),
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    // Both ends require one, so there is one.
    let Some(shown) = shown else { return Err(Fault::Theirs("it showed none".into()).into()) };
    let shown = Certificate::of(shown).map_err(|error| Fault::Theirs(error.to_string()))?;
    Ok(Connection::secured(stream, peer, shown.identity))
}

/// Lets the peer read why it is refused: closing a socket with unread input would destroy that.
async fn linger(mut stream: TcpStream) {
    let drained = async {
        let mut read = [0; 1024];
        stream.shutdown().await?;
        while stream.read(&mut read).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    let _ = timeout(Duration::from_millis(LINGER_MS), drained).await;
}

fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

#[cfg(test)]
mod tests;
