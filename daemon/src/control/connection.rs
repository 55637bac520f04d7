//! A control connection over TCP, and its two halves for two tasks.

use super::frame::{FrameError, FrameReader, FrameWriter};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// The reading half.
pub type ReadHalf = FrameReader<OwnedReadHalf>;
/// The writing half.
pub type WriteHalf = FrameWriter<OwnedWriteHalf>;

/// A control connection.
#[derive(Debug)]
pub struct Connection {
    reader: ReadHalf,
    writer: WriteHalf,
    peer: SocketAddr,
}

impl Connection {
    /// Takes a connected socket.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        // Small messages, each of them waited for.
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?;
        let (read, write) = stream.into_split();
        Ok(Self { reader: FrameReader::new(read), writer: FrameWriter::new(write), peer })
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Sends a message, within `limit`.
    pub async fn send_within<T: Serialize>(
        &mut self,
        message: &T,
        limit: Duration,
    ) -> Result<(), FrameError> {
        self.writer.send_within(message, limit).await
    }

    /// The next message within `limit`, or `None` when the peer closed.
    pub async fn receive_within<T: DeserializeOwned>(
        &mut self,
        limit: Duration,
    ) -> Result<Option<T>, FrameError> {
        self.reader.receive_within(limit).await
    }

    /// The two halves.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.reader, self.writer)
    }
}
