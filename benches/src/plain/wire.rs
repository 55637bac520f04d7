//! Messages over a plain blocking socket: a head of fixed size and raw payload. It must not know what they mean.

use crate::store::{Head, Kind};
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;

/// Bytes of a message before its payload.
const HEAD_BYTES: usize = 12;

/// The longest declaration that is taken: 4,096 tensors fit many times over.
const DECLARATION_BYTES_MAX: u32 = 1 << 20;

/// A socket as both sides use it: what is written goes at once, and loopback is not paced (the system's BBR halves it;
/// Gradwire's own sockets ask for the same).
pub(super) fn tuned(stream: TcpStream) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    // A kernel without it keeps its own.
    let _ = rustix::net::sockopt::set_tcp_congestion(&stream, "reno");
    Ok(stream)
}

/// Where messages are shorter, many are read at once.
const SMALL_BYTES: u64 = 64 << 10;

/// How far ahead a receiver of these tensors reads: large payloads go straight to their place, small messages are taken
/// many at a time.
pub(super) fn read_ahead(tensors: &[u64]) -> usize {
    let is_small = tensors.iter().all(|bytes| *bytes < SMALL_BYTES);
    if is_small { SMALL_BYTES as usize } else { HEAD_BYTES }
}

/// Writes a message in as few system calls as the socket takes it.
pub(super) fn send(stream: &mut impl Write, head: Head, payload: &[u8]) -> io::Result<()> {
    let mut bytes = [0; HEAD_BYTES];
    let fields = [head.kind.code(), head.key, head.chunk];
    for (place, field) in bytes.chunks_exact_mut(size_of::<u32>()).zip(fields) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    let mut sent = 0;
    while sent < HEAD_BYTES {
        sent += written(stream.write_vectored(&[IoSlice::new(&bytes[sent..]), IoSlice::new(payload)]))?;
    }
    stream.write_all(&payload[sent - HEAD_BYTES..])
}

fn written(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Ok(0) => Err(ErrorKind::WriteZero.into()),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
        other => other,
    }
}

/// Reads the next message's head; `None` where the other side has closed.
pub(super) fn receive_head(stream: &mut impl Read) -> io::Result<Option<Head>> {
    let mut bytes = [0; HEAD_BYTES];
    match stream.read_exact(&mut bytes) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    }
    let mut fields = bytes.as_chunks::<4>().0.iter().map(|field| u32::from_le_bytes(*field));
    let mut next = || fields.next().unwrap_or(0);
    let (code, key, chunk) = (next(), next(), next());
    let kind = Kind::from_code(code)
        .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, format!("unknown kind of message {code}")))?;
    Ok(Some(Head { kind, key, chunk }))
}

/// Writes a declaration, its length first.
pub(super) fn send_declaration(stream: &mut impl Write, json: &[u8]) -> io::Result<()> {
    stream.write_all(&(json.len() as u32).to_le_bytes())?;
    stream.write_all(json)
}

/// Reads a declaration.
pub(super) fn receive_declaration(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > DECLARATION_BYTES_MAX {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("a declaration of {length} bytes")));
    }
    let mut json = vec![0; length as usize];
    stream.read_exact(&mut json)?;
    Ok(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes a few bytes at a time.
    struct Slow(Vec<u8>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(5);
            self.0.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_message_comes_out_as_it_went_in_however_little_the_socket_takes() {
        let head = Head { kind: Kind::PushPull, key: 7, chunk: 0 };
        for payload in [&b""[..], b"payload", &[9; 100]] {
            let mut slow = Slow(Vec::new());
            send(&mut slow, head, payload).expect("sends");
            let mut bytes = &slow.0[..];
            assert_eq!(receive_head(&mut bytes).expect("a head"), Some(head));
            assert_eq!(bytes, payload);
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        assert!(receive_head(&mut &[9_u8; HEAD_BYTES][..]).is_err());
        assert_eq!(receive_head(&mut &[][..]).expect("closed"), None);
        let mut sent = Vec::new();
        send_declaration(&mut sent, b"{}").expect("sends");
        assert_eq!(receive_declaration(&mut &sent[..]).expect("a declaration"), b"{}");
        let long = (DECLARATION_BYTES_MAX + 1).to_le_bytes();
        assert!(receive_declaration(&mut &long[..]).is_err());
        assert!(receive_declaration(&mut &sent[..5]).is_err(), "cut");
    }
}
