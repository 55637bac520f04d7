//! What machines say to each other over a set-up connection, a question and an answer at a time: the paper's plain RPC,
//! by which addresses of memory are told. Bounded frames with deadlines; nothing of a copy's bytes travels here.

use crate::error::FabricError;
use drivers::{Choice, Driver, Side};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Bytes of a frame.
const FRAME_BYTES_MAX: usize = 64 << 10;
/// Bytes of a region's name.
pub(super) const NAME_BYTES_MAX: usize = 256;
/// A silent connection is asked whether its other end is there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// Of this protocol; peers of another one are refused. 1: the first. 2: who connects says the secret. 3: each driver that is missing
/// is told with its reason, not verbs alone.
pub(super) const VERSION: u32 = 3;

/// The capabilities of a machine, as sent to its peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Means {
    pub(super) host: String,
    pub(super) uid: u32,
    /// Only this driver, if set.
    pub(super) required: Option<Driver>,
    /// The drivers that it has not, and why.
    pub(super) missing: Vec<(Driver, String)>,
}

/// A machine's means, with what reasons call it.
struct Having<'a>(&'static str, &'a Means);

impl Side for Having<'_> {
    fn name(&self) -> &str {
        self.0
    }

    fn place(&self) -> (&str, u32) {
        (&self.1.host, self.1.uid)
    }

    fn required(&self) -> Option<Driver> {
        self.1.required
    }

    fn obstacle(&self, driver: Driver) -> Option<String> {
        let missing = self.1.missing.iter().find(|(missing, _)| *missing == driver);
        missing.map(|(_, why)| format!("{}: {why}", self.0))
    }
}

/// Chooses the driver. The error has the reason for each that is excluded.
pub(super) fn choose(ours: &Means, theirs: &Means) -> Result<Choice, String> {
    drivers::choose(&Having("this side", ours), &Having("the peer", theirs))
}

/// A question, by the machine that connected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Question {
    /// First of all, with the secret of the machine that is asked.
    Hello { version: u32, secret: String, means: Means },
    /// A channel, by its index among those of this connection.
    Channel { index: u16, driver: Driver },
    /// It is connected and attached here: from now on it can take what comes.
    Attached,
    /// Where is the region of this name? Waits so long for it to be published.
    Lookup { name: String, wait_ms: u64 },
}

/// The answer to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    Hello {
        version: u32,
        means: Means,
    },
    /// Connect to this, and say [`Question::Attached`].
    Offer(Vec<u8>),
    /// To that.
    Connected,
    Region {
        key: u64,
        bytes: u64,
    },
    /// Nobody has published it yet.
    Unknown,
    Refused(String),
}

/// Makes a connection tell of a host that is gone without a word.
pub(super) fn tune(stream: &TcpStream) -> Result<(), FabricError> {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4).with_retries(4);
    let set = stream.set_nodelay(true).and_then(|()| SockRef::from(stream).set_tcp_keepalive(&keepalive));
    set.map_err(|e| FabricError::os("setting up a connection", e))
}

/// Sends a message, by then at the latest.
pub(super) fn send<T: Serialize>(
    mut stream: &TcpStream,
    message: &T,
    deadline: Instant,
) -> Result<(), FabricError> {
    let body = bincode::serde::encode_to_vec(message, settings())
        .map_err(|error| FabricError::Internal(error.to_string()))?;
    if body.len() > FRAME_BYTES_MAX {
        return Err(FabricError::Misuse(format!("a message of {} bytes is too long", body.len())));
    }
    let mut frame = (body.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    let started = Instant::now();
    let set = stream.set_write_timeout(Some(left(deadline)));
    set.and_then(|()| stream.write_all(&frame)).map_err(|error| lost(error, started))
}

/// The next message; `None` where the peer closed. Its first byte may take until `begun_by`, then the rest has `step`.
pub(super) fn receive<T: DeserializeOwned>(
    stream: &TcpStream,
    begun_by: Option<Instant>,
    step: Duration,
) -> Result<Option<T>, FabricError> {
    let mut head = [0; 4];
    if fill(stream, &mut head[..1], begun_by)? == 0 {
        return Ok(None);
    }
    let deadline = Some(Instant::now() + step);
    let torn = || FabricError::Peer("it closed a set-up connection within a message".into());
    if fill(stream, &mut head[1..], deadline)? < 3 {
        return Err(torn());
    }
    let bytes = u32::from_le_bytes(head) as usize;
    if bytes > FRAME_BYTES_MAX {
        return Err(FabricError::Peer(format!("it announces a set-up message of {bytes} bytes")));
    }
    let mut body = vec![0; bytes];
    if fill(stream, &mut body, deadline)? < bytes {
        return Err(torn());
    }
    let decoded = bincode::serde::decode_from_slice(&body, settings());
    match decoded {
        Ok((message, used)) if used == bytes => Ok(Some(message)),
        Ok(_) => Err(FabricError::Peer("its set-up message is followed by stray bytes".into())),
        Err(error) => Err(FabricError::Peer(format!("its set-up message is malformed: {error}"))),
    }
}

fn settings() -> impl bincode::config::Config {
    bincode::config::standard().with_little_endian().with_fixed_int_encoding().with_limit::<FRAME_BYTES_MAX>()
}

/// Reads until the buffer is full or the peer closes; says how much there was.
fn fill(mut stream: &TcpStream, buffer: &mut [u8], deadline: Option<Instant>) -> Result<usize, FabricError> {
    let started = Instant::now();
    let mut have = 0;
    while have < buffer.len() {
        let timed = stream.set_read_timeout(deadline.map(left));
        match timed.and_then(|()| stream.read(&mut buffer[have..])) {
            Ok(0) => break,
            Ok(bytes) => have += bytes,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(lost(error, started)),
        }
    }
    Ok(have)
}

/// Never nothing, which would mean for ever.
pub(super) fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

fn lost(error: std::io::Error, started: Instant) -> FabricError {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            FabricError::late("a machine's word over its set-up connection", started)
        }
        _ => FabricError::os("talking to a machine over its set-up connection", error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const SOON: Duration = Duration::from_secs(30);

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    fn soon() -> Instant {
        Instant::now() + SOON
    }

    #[test]
    fn messages_arrive_whole_and_the_end_is_told() {
        let (near, far) = pair();
        let question = Question::Lookup { name: "weights".into(), wait_ms: 7 };
        send(&near, &question, soon()).unwrap();
        send(&near, &question, soon()).unwrap();
        assert_eq!(receive(&far, Some(soon()), SOON).unwrap(), Some(question.clone()));
        assert_eq!(receive(&far, None, SOON).unwrap(), Some(question));
        drop(near);
        assert_eq!(receive::<Question>(&far, Some(soon()), SOON).unwrap(), None);
    }

    #[test]
    fn silence_and_dripping_end_in_a_deadline() {
        let (mut near, far) = pair();
        let soon = Instant::now() + Duration::from_millis(30);
        assert!(matches!(receive::<Question>(&far, Some(soon), SOON), Err(FabricError::Deadline { .. })));
        near.write_all(&[9, 0]).unwrap();
        let step = Duration::from_millis(30);
        assert!(matches!(receive::<Question>(&far, None, step), Err(FabricError::Deadline { .. })));
    }

    #[test]
    fn nonsense_is_the_peer_s_fault() {
        for bytes in [&[0xFF; 8][..], &[1, 0, 0, 0, 0xFF], &[0, 0, 0, 0]] {
            let (mut near, far) = pair();
            near.write_all(bytes).unwrap();
            let result = receive::<Question>(&far, Some(soon()), SOON);
            assert!(matches!(result, Err(FabricError::Peer(_))), "{bytes:?}: {result:?}");
        }
        let (mut near, far) = pair();
        near.write_all(&[9, 0, 0, 0, 1]).unwrap();
        drop(near);
        assert!(matches!(receive::<Question>(&far, Some(soon()), SOON), Err(FabricError::Peer(_))));
    }

    #[test]
    fn a_message_is_bounded_on_both_sides() {
        let (near, far) = pair();
        let of = |bytes: usize| Answer::Refused("x".repeat(bytes));
        // The variant's number and the text's length take 12 bytes.
        let most = of(FRAME_BYTES_MAX - 12);
        assert!(matches!(send(&near, &of(FRAME_BYTES_MAX - 11), soon()), Err(FabricError::Misuse(_))));
        send(&near, &most, soon()).unwrap();
        assert_eq!(receive(&far, Some(soon()), SOON).unwrap(), Some(most));
    }

    #[test]
    fn what_is_missing_is_told_with_its_side() {
        let ours = Means { host: "a".into(), uid: 1, required: None, missing: Vec::new() };
        assert_eq!(choose(&ours, &ours).unwrap().driver, Driver::Shm);
        let theirs =
            Means { host: "b".into(), missing: vec![(Driver::Verbs, "no device".into())], ..ours.clone() };
        let choice = choose(&ours, &theirs).unwrap();
        assert_eq!(choice.driver, Driver::Tcp);
        assert_eq!(choice.why, "tcp: no shm (different hosts); no verbs (the peer: no device)");
        let required = Means { required: Some(Driver::Shm), ..ours };
        let why = choose(&required, &theirs).unwrap_err();
        assert!(why.contains("no tcp (shm is required by this side)"), "{why}");
    }
}
