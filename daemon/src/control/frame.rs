//! Frames: a little-endian u32 length and that many bytes of one encoded message. A length is checked
//! against the bound before anything is allocated for it, and memory grows only with bytes that came.

use crate::security::Fault;
use proto_common::limits::{CONTROL_FRAME_BYTES_MAX, FIRST_FRAME_BYTES_MAX, PROTOCOL_VERSION};
use proto_common::message::{Build, CodecError, Message, decode, encode, speaker_of};
use std::io;
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Bytes of a frame's length field.
pub const LENGTH_BYTES: usize = 4;
/// Bytes of a frame whose message is decoded on another thread, and how many are at once: each is in memory twice.
const BESIDE_BYTES_MIN: usize = FIRST_FRAME_BYTES_MAX;
static DECODERS: Semaphore = Semaphore::const_new(4);
/// Bytes read at once.
const STEP_BYTES: usize = 16 << 10;

/// A frame that cannot be sent or received. After any of these the connection is of no use.
#[derive(Debug, Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum FrameError {
    /// The peer announces more than a frame may have: it is hostile, or speaks another protocol.
    #[error(
        "the peer announced a frame of {announced} bytes, the limit is {limit}; is it a Gradwire process?"
    )]
    TooLong { announced: u32, limit: usize },
    /// An answer of a web server.
    #[error(
        "the peer is an HTTP service, not a control port: use the control address (scheduler.host and scheduler.port), not the HTTP address"
    )]
    HttpService,
    /// A request of a web client.
    #[error(
        "the peer sent an HTTP request to a control port: HTTP endpoints are at the address in node.http"
    )]
    HttpClient,
    /// The connection ended within a frame.
    #[error("the connection closed in the middle of a frame, after {got} bytes")]
    Cut { got: usize },
    /// The message cannot be written or read.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// Nothing came, or nothing could be sent, in time.
    #[error("the control connection made no progress for {waited_ms} ms")]
    Deadline { waited_ms: u64 },
    /// The other side is not to be trusted, or does not trust this one.
    #[error(transparent)]
    Security(#[from] Fault),
    /// The network's error.
    #[error("control connection: {0}")]
    Io(io::Error),
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        match Fault::within(&error) {
            Some(fault) => Self::Security(fault),
            None => Self::Io(error),
        }
    }
}

/// One message as a whole frame.
pub fn frame_of<T: Message>(message: &T) -> Result<Vec<u8>, CodecError> {
    let body = encode(message)?;
    // `encode` bounds the body far below 4 GiB.
    let length = body.len() as u32;
    let mut frame = Vec::with_capacity(LENGTH_BYTES + body.len());
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(&body);
    Ok(frame)
}

/// Reads frames. They may have [`FIRST_FRAME_BYTES_MAX`] bytes, since their sender is a stranger, until whoever reads knows it
/// ([`FrameReader::admit`]): from then on [`CONTROL_FRAME_BYTES_MAX`] holds. That a message decodes makes nobody known.
#[derive(Debug)]
pub struct FrameReader<R> {
    inner: R,
    buffer: Vec<u8>,
    step: Box<[u8]>,
    limit: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads frames from `inner`.
    pub fn new(inner: R) -> Self {
        let step = vec![0; STEP_BYTES].into_boxed_slice();
        Self { inner, buffer: Vec::new(), step, limit: FIRST_FRAME_BYTES_MAX }
    }

    /// The sender is no stranger any more: its frames may be as long as any.
    pub fn admit(&mut self) {
        self.limit = CONTROL_FRAME_BYTES_MAX;
    }

    /// The next message, or `None` when the peer closed between frames. Cancel-safe: bytes that came before
    /// a cancelled call are kept for the next one.
    pub async fn receive<T: Message>(&mut self) -> Result<Option<T>, FrameError> {
        let Some(end) = self.whole().await? else { return Ok(None) };
        let message = decode(&self.buffer[LENGTH_BYTES..end])?;
        self.buffer.drain(..end);
        self.shrink();
        Ok(Some(message))
    }

    /// As [`Self::receive`]; a large message is decoded on another thread, because this one has others to serve. Cancel-safe but for
    /// such a message, which is lost.
    pub async fn receive_beside<T: Message + Send + 'static>(&mut self) -> Result<Option<T>, FrameError> {
        match self.whole().await? {
            Some(end) if end > BESIDE_BYTES_MIN => {
                // It is never closed.
                let place = DECODERS.acquire().await;
                let frame: Vec<u8> = self.buffer.drain(..end).collect();
                self.shrink();
                let decoded = spawn_blocking(move || {
                    let _place = place;
                    decode(&frame[LENGTH_BYTES..])
                });
                Ok(Some(decoded.await.map_err(io::Error::other)??))
            }
            _ => self.receive().await,
        }
    }

    /// Waits until the next frame is in the buffer as a whole, and says where it ends; `None` when the peer closed between frames.
    async fn whole(&mut self) -> Result<Option<usize>, FrameError> {
        loop {
            if let Some(end) = self.complete()? {
                return Ok(Some(end));
            }
            let got = match self.inner.read(&mut self.step).await {
                // A peer that crashes ends its TLS session without a word. The frame itself shows whether something is missing.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
                got => got?,
            };
            if got == 0 {
                return match self.buffer.len() {
                    0 => Ok(None),
                    got => Err(FrameError::Cut { got }),
                };
            }
            self.buffer.extend_from_slice(&self.step[..got]);
        }
    }

    /// As [`Self::receive`], within `limit`.
    pub async fn receive_within<T: Message>(&mut self, limit: Duration) -> Result<Option<T>, FrameError> {
        match timeout(limit, self.receive()).await {
            Ok(result) => result,
            Err(_) => Err(FrameError::Deadline { waited_ms: limit.as_millis() as u64 }),
        }
    }

    /// Takes what still comes until the peer closes, and throws it away as bytes: nothing of it is kept or decoded.
    pub async fn drain(&mut self) {
        self.buffer = Vec::new();
        while matches!(self.inner.read(&mut self.step).await, Ok(1..)) {}
    }

    /// Whose message could not be read, where it is a registration of another protocol version.
    #[must_use]
    pub fn other_version(&self) -> Option<Build> {
        let end = self.complete().ok()??;
        speaker_of(&self.buffer[LENGTH_BYTES..end]).filter(|speaker| speaker.protocol != PROTOCOL_VERSION)
    }

    /// Where the first frame in the buffer ends, if it is there as a whole.
    fn complete(&self) -> Result<Option<usize>, FrameError> {
        let Some(length) = self.buffer.first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let announced = u32::from_le_bytes(*length);
        if announced as usize > self.limit {
            return Err(match length {
                // So begins a record of TLS.
                [0x14..=0x17, 3, ..] => Fault::Tls.into(),
                b"HTTP" => FrameError::HttpService,
                b"GET " => FrameError::HttpClient,
                _ => FrameError::TooLong { announced, limit: self.limit },
            });
        }
        let end = LENGTH_BYTES + announced as usize;
        Ok((self.buffer.len() >= end).then_some(end))
    }

    /// A single large message must not keep its memory for the connection's life.
    fn shrink(&mut self) {
        if self.buffer.capacity() > 8 * STEP_BYTES && self.buffer.len() < STEP_BYTES {
            self.buffer.shrink_to(STEP_BYTES);
        }
    }
}

/// Writes frames.
#[derive(Debug)]
pub struct FrameWriter<W> {
    inner: W,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// Writes frames to `inner`.
    pub fn new(inner: W) -> Self {
        Self { inner }
    }

    /// Sends a message, within `limit`.
    pub async fn send_within<T: Message>(&mut self, message: &T, limit: Duration) -> Result<(), FrameError> {
        let frame = frame_of(message)?;
        self.write_within(&frame, limit).await
    }

    /// Writes a frame made by [`frame_of`], within `limit`. Not cancel-safe.
    pub async fn write_within(&mut self, frame: &[u8], limit: Duration) -> Result<(), FrameError> {
        let written = async {
            self.inner.write_all(frame).await?;
            // What encrypts keeps back what a full socket did not take.
            self.inner.flush().await
        };
        match timeout(limit, written).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(FrameError::Deadline { waited_ms: limit.as_millis() as u64 }),
        }
    }

    /// Says that nothing more will come; the peer reads to the end and then sees the close.
    pub async fn close(&mut self) -> io::Result<()> {
        self.inner.shutdown().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::message::ToScheduler;

    fn goodbye() -> Vec<u8> {
        frame_of(&ToScheduler::Goodbye).unwrap()
    }

    async fn read(bytes: &[u8]) -> Result<Option<ToScheduler>, FrameError> {
        FrameReader::new(bytes).receive().await
    }

    #[tokio::test]
    async fn frames_come_back_whole_and_in_order() {
        let (near, far) = tokio::io::duplex(7);
        let mut writer = FrameWriter::new(near);
        let mut reader = FrameReader::new(far);
        reader.admit();
        let failing = ToScheduler::Failing { reason: "x".repeat(100_000) };
        let send = async {
            for message in [&ToScheduler::LinksReady, &failing, &ToScheduler::Goodbye] {
                writer.send_within(message, Duration::from_secs(5)).await.unwrap();
            }
            writer.close().await.unwrap();
        };
        let receive = async {
            let mut got = Vec::new();
            // The second one on another thread.
            while let Some(message) = reader.receive_beside::<ToScheduler>().await.unwrap() {
                got.push(message);
            }
            got
        };
        let ((), got) = tokio::join!(send, receive);
        assert_eq!(got, [ToScheduler::LinksReady, failing, ToScheduler::Goodbye]);
    }

    #[tokio::test]
    async fn a_length_is_judged_before_its_bytes_come() {
        let first = FIRST_FRAME_BYTES_MAX as u32;
        let over = (first + 1).to_le_bytes();
        assert!(matches!(read(&over).await, Err(FrameError::TooLong { limit: FIRST_FRAME_BYTES_MAX, .. })));
        assert!(matches!(read(&first.to_le_bytes()).await, Err(FrameError::Cut { got: 4 })), "at the bound");
        let after_the_first = async |is_admitted: bool, length: u32| {
            let bytes = [goodbye(), length.to_le_bytes().to_vec()].concat();
            let mut reader = FrameReader::new(&bytes[..]);
            assert_eq!(reader.receive().await.unwrap(), Some(ToScheduler::Goodbye));
            if is_admitted {
                reader.admit();
            }
            reader.receive::<ToScheduler>().await.unwrap_err()
        };
        let error = after_the_first(false, first + 1).await;
        assert!(
            matches!(error, FrameError::TooLong { limit: FIRST_FRAME_BYTES_MAX, .. }),
            "a stranger still: {error}"
        );
        let most = CONTROL_FRAME_BYTES_MAX as u32;
        let error = after_the_first(true, most).await;
        assert!(matches!(error, FrameError::Cut { got: 4 }), "at the bound: {error}");
        let error = after_the_first(true, most + 1).await;
        assert!(matches!(error, FrameError::TooLong { limit: CONTROL_FRAME_BYTES_MAX, .. }), "{error}");
    }

    #[tokio::test]
    async fn http_is_told_by_its_name() {
        let told = async |bytes: &[u8]| read(bytes).await.unwrap_err().to_string();
        let service = told(b"HTTP/1.1 400 Bad Request\r\n").await;
        assert!(service.contains("an HTTP service, not a control port"), "{service}");
        let client = told(b"GET / HTTP/1.1\r\n").await;
        assert!(client.contains("sent an HTTP request to a control port"), "{client}");
        let other = told(b"SSH-2.0-OpenSSH\r\n").await;
        assert!(other.contains("is it a Gradwire process?"), "{other}");
    }

    #[tokio::test]
    async fn what_is_drained_is_neither_kept_nor_decoded() {
        let frame = [&(1u32 << 20).to_le_bytes()[..], &vec![0xA5; 1 << 20], &[1, 0, 0, 0, 9]].concat();
        let mut reader = FrameReader::new(&frame[..]);
        reader.admit();
        reader.drain().await;
        assert_eq!(reader.buffer.capacity(), 0);
        assert!(reader.inner.is_empty(), "all of it was taken");
    }

    #[tokio::test]
    async fn ends_and_garbage_are_told_apart() {
        assert!(matches!(read(&[]).await, Ok(None)));
        assert!(matches!(read(&goodbye()[..6]).await, Err(FrameError::Cut { got: 6 })));
        assert!(matches!(read(&[1, 0, 0, 0, 9]).await, Err(FrameError::Codec(_))));
        assert!(
            matches!(read(&[0, 0, 0, 0]).await, Err(FrameError::Codec(_))),
            "an empty frame is no message"
        );
    }

    #[tokio::test]
    async fn a_registration_of_another_version_is_known() {
        let framed = |body: Vec<u8>| [&(body.len() as u32).to_le_bytes()[..], &body].concat();
        let other = Build { protocol: PROTOCOL_VERSION + 1, version: "9.9".into() };
        for (speaker, known) in [(other.clone(), Some(other)), (Build::own(), None)] {
            let bytes = framed(proto_common::message::opening_of(&speaker));
            let mut reader = FrameReader::new(&bytes[..]);
            assert!(matches!(reader.receive::<ToScheduler>().await, Err(FrameError::Codec(_))));
            assert_eq!(reader.other_version(), known);
        }
    }

    #[tokio::test]
    async fn a_cancelled_read_loses_nothing() {
        let (mut near, far) = tokio::io::duplex(64);
        let mut reader = FrameReader::new(far);
        let frame = goodbye();
        near.write_all(&frame[..5]).await.unwrap();
        let soon = Duration::from_millis(20);
        let error = reader.receive_within::<ToScheduler>(soon).await.unwrap_err();
        assert!(matches!(error, FrameError::Deadline { waited_ms: 20 }), "{error}");
        near.write_all(&frame[5..]).await.unwrap();
        assert_eq!(reader.receive().await.unwrap(), Some(ToScheduler::Goodbye));
    }

    #[tokio::test]
    async fn a_peer_that_stops_reading_is_noticed() {
        let (near, _far) = tokio::io::duplex(8);
        let mut writer = FrameWriter::new(near);
        let message = ToScheduler::Failing { reason: "x".repeat(64) };
        let error = writer.send_within(&message, Duration::from_millis(20)).await.unwrap_err();
        assert!(matches!(error, FrameError::Deadline { .. }), "{error}");
    }
}
