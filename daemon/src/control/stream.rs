//! The two halves of a control connection's stream: plain TCP, or TLS over it. It knows nothing of frames.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::TlsStream;

/// What is read.
#[derive(Debug)]
pub enum Reading {
    /// As it comes.
    Plain(OwnedReadHalf),
    /// Decrypted.
    Secure(tokio::io::ReadHalf<TlsStream<TcpStream>>),
}

/// What is written.
#[derive(Debug)]
pub enum Writing {
    /// As it is.
    Plain(OwnedWriteHalf),
    /// Encrypted.
    Secure(tokio::io::WriteHalf<TlsStream<TcpStream>>),
}

impl AsyncRead for Reading {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(half) => Pin::new(half).poll_read(cx, into),
            Self::Secure(half) => match Pin::new(half).poll_read(cx, into) {
                // A process that dies says no goodbye: frames tell whether something is cut off.
                Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Poll::Ready(Ok(()))
                }
                other => other,
            },
        }
    }
}

impl AsyncWrite for Writing {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(half) => Pin::new(half).poll_write(cx, bytes),
            Self::Secure(half) => Pin::new(half).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(half) => Pin::new(half).poll_flush(cx),
            Self::Secure(half) => Pin::new(half).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(half) => Pin::new(half).poll_shutdown(cx),
            Self::Secure(half) => Pin::new(half).poll_shutdown(cx),
        }
    }
}
