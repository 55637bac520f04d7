//! A control connection over TCP, and its two halves for two tasks.

use super::frame::{FrameError, FrameReader, FrameWriter};
use crate::security::{Fault, Identity};
use proto_common::ids::{JobId, Role};
use proto_common::message::Message;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

/// The reading half.
pub type ReadHalf = FrameReader<Box<dyn AsyncRead + Send + Sync + Unpin>>;
/// The writing half.
pub type WriteHalf = FrameWriter<Box<dyn AsyncWrite + Send + Sync + Unpin>>;

/// A control connection.
pub struct Connection {
    reader: ReadHalf,
    writer: WriteHalf,
    peer: SocketAddr,
    identity: Option<Identity>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Connection {
    /// Takes a connected socket, of which nothing is asked: see [`crate::security::Security`].
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        // Small messages, each of them waited for.
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?;
        Ok(Self::of(stream.into_split(), peer, None))
    }

    /// Takes a stream whose peer has shown a certificate for this identity.
    pub(crate) fn secured(stream: TlsStream<TcpStream>, peer: SocketAddr, identity: Identity) -> Self {
        Self::of(tokio::io::split(stream), peer, Some(identity))
    }

    fn of<R, W>((read, write): (R, W), peer: SocketAddr, identity: Option<Identity>) -> Self
    where
        R: AsyncRead + Send + Sync + Unpin + 'static,
        W: AsyncWrite + Send + Sync + Unpin + 'static,
    {
        let (reader, writer) =
            (FrameReader::new(Box::new(read) as _), FrameWriter::new(Box::new(write) as _));
        Self { reader, writer, peer, identity }
    }

    /// May the peer be this role of this job? On a plain connection it may.
    pub fn permits(&self, job: JobId, role: Role) -> Result<(), Fault> {
        self.identity.as_ref().map_or(Ok(()), |identity| Ok(identity.permits(job, role)?))
    }

    /// What the peer's certificate says, on a secure connection.
    #[must_use]
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// The peer is no stranger any more: its frames may be as long as any.
    pub fn admit(&mut self) {
        self.reader.admit();
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Sends a message, within `limit`.
    pub async fn send_within<T: Message>(&mut self, message: &T, limit: Duration) -> Result<(), FrameError> {
        self.writer.send_within(message, limit).await
    }

    /// The next message within `limit`, or `None` when the peer closed.
    pub async fn receive_within<T: Message>(&mut self, limit: Duration) -> Result<Option<T>, FrameError> {
        self.reader.receive_within(limit).await
    }

    /// The two halves.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.reader, self.writer)
    }
}
