//! A control connection over a plain socket, for peers that do as they like: good frames, bad frames, silence.

use proto_common::message::{Message, decode, encode};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(20);

/// One end of a control connection.
#[derive(Debug)]
pub struct ControlPeer(TcpStream);

impl ControlPeer {
    /// Connects to `HOST:PORT`.
    #[must_use]
    pub fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        stream.set_nodelay(true).expect("a socket option");
        stream.set_write_timeout(Some(ANSWER)).expect("a socket option");
        Self(stream)
    }

    /// One message as a frame's bytes.
    pub fn frame(message: &impl Message) -> Vec<u8> {
        let body = encode(message).expect("a message of ours");
        let length = u32::try_from(body.len()).expect("a small message");
        [&length.to_le_bytes()[..], &body].concat()
    }

    /// Sends a message.
    pub fn send(&mut self, message: &impl Message) {
        self.0.write_all(&Self::frame(message)).expect("the peer takes it");
    }

    /// Sends whatever bytes; the peer may have closed already.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    /// The next message; `None` when the peer has closed.
    pub fn receive<T: Message>(&mut self) -> Option<T> {
        self.0.set_read_timeout(Some(ANSWER)).expect("a socket option");
        let mut length = [0; 4];
        match self.0.read_exact(&mut length) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no answer within {ANSWER:?}"),
            Err(_) => return None,
        }
        let mut body = vec![0; u32::from_le_bytes(length) as usize];
        self.0.read_exact(&mut body).expect("the rest of a frame");
        Some(decode(&body).expect("a message of theirs"))
    }

    /// Reads and throws away until the peer closes; false where it does not in time.
    pub fn is_closed_within(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let mut bytes = [0; 4096];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            self.0.set_read_timeout(Some(left)).expect("a socket option");
            match self.0.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(_) => return true,
            }
        }
    }
}
