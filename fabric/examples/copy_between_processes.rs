//! The remote machine as a device (Xue et al., section 3.1): one process lends memory, another copies into it, and
//! back out of it, without the first one doing anything.
//!
//! ```sh
//! copy_between_processes lend ADDRESS 65536                # prints an offer, then waits until the other has gone
//! copy_between_processes copy ADDRESS OFFER 65536 1000     # copies 65536 bytes 1000 times, each way
//! ```
//!
//! ADDRESS is where this process can be reached over TCP. The paper's `CreateRdmaDevice` is `VerbsDevice::open` and a
//! queue, `AllocateMemRegion` is `Region::allocate`, `GetChannel` is `connect` or `accept`, and `Memcpy` is a write
//! or a read with its completion.

#![allow(clippy::print_stdout, reason = "what it prints is what it is for")]

use fabric::{
    ChannelId, Completion, CompletionKind, CompletionQueue, Device, PostError, Read, Region, RemoteKey,
    RemoteSpan, VerbsConfig, VerbsDevice, VerbsQueue, Write,
};
use std::error::Error;
use std::net::IpAddr;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

const DEPTH: usize = 64;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["lend", address, bytes] => lend(&open(address)?, bytes.parse()?),
        ["copy", address, offer, bytes, count] => {
            copy(&open(address)?, &from_hex(offer)?, bytes.parse()?, count.parse()?)
        }
        _ => Err("usage: copy_between_processes lend ADDRESS BYTES | copy ADDRESS OFFER BYTES COUNT".into()),
    }
}

fn open(address: &str) -> Outcome<VerbsDevice> {
    let ip: IpAddr = address.parse()?;
    Ok(VerbsDevice::open(&VerbsConfig::default(), ip, address.to_owned())?)
}

fn from_hex(text: &str) -> Outcome<Vec<u8>> {
    let (pairs, _) = text.as_bytes().as_chunks::<2>();
    pairs.iter().map(|pair| Ok(u8::from_str_radix(str::from_utf8(pair)?, 16)?)).collect()
}

fn lend(device: &VerbsDevice, bytes: usize) -> Outcome<()> {
    let mut queue = device.queue(DEPTH)?;
    let memory = Region::allocate(bytes, "lent")?;
    let (offer, pending) = device.offer(&[queue.handle()])?;
    println!("{}", offer.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let setup = pending.accept(Instant::now() + PATIENCE)?.pop().ok_or("no channel")?;
    let channel = queue.attach(setup)?;
    let name = queue.expose(channel, &memory)?;
    // The notice says under which name the memory can be addressed.
    let to = RemoteSpan { key: RemoteKey(0), offset: 0 };
    let immediate = Some(u32::try_from(name.0)?);
    queue.post_write(channel, &Write { id: 0, gather: &[], remote: to, immediate, signaled: false })?;
    let mut peer = Peer { queue, channel, inbox: Vec::new() };
    match peer.next()? {
        CompletionKind::Disconnected(_) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

struct Peer {
    queue: VerbsQueue,
    channel: ChannelId,
    inbox: Vec<Completion>,
}

impl Peer {
    /// The next completion, slept for.
    fn next(&mut self) -> Outcome<CompletionKind> {
        let until = Instant::now() + PATIENCE;
        while self.inbox.is_empty() {
            if Instant::now() > until {
                return Err("the peer said nothing for a minute".into());
            }
            self.queue.poll(&mut self.inbox);
            if self.inbox.is_empty() {
                self.queue.wait(Duration::from_secs(1));
            }
        }
        Ok(self.inbox.remove(0).kind)
    }

    /// Posts `count` requests, as many at a time as there is room for, and waits for the last of them.
    fn all(
        &mut self,
        count: u64,
        mut post: impl FnMut(&mut VerbsQueue, ChannelId, u64) -> Result<(), PostError>,
    ) -> Outcome<Duration> {
        let started = Instant::now();
        let (mut posted, mut done) = (0, 0);
        while done < count {
            while posted < count {
                match post(&mut self.queue, self.channel, posted) {
                    Ok(()) => posted += 1,
                    Err(PostError::Full) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            self.queue.flush();
            match self.next()? {
                CompletionKind::WriteDone { .. } | CompletionKind::ReadDone { .. } => done += 1,
                other => return Err(format!("{other:?}").into()),
            }
        }
        Ok(started.elapsed())
    }
}

fn copy(device: &VerbsDevice, offer: &[u8], bytes: usize, count: u64) -> Outcome<()> {
    let mut queue = device.queue(DEPTH)?;
    let channel = queue.attach(device.connect(offer, 0, &queue.handle(), Instant::now() + PATIENCE)?)?;
    let mut peer = Peer { queue, channel, inbox: Vec::new() };
    let CompletionKind::Received { immediate } = peer.next()? else {
        return Err("no memory was lent".into());
    };
    let remote = RemoteSpan { key: RemoteKey(u64::from(immediate)), offset: 0 };
    let ours = Region::allocate(bytes, "ours")?;
    let sent: Vec<u8> = (0..bytes).map(|i| i as u8).collect();
    ours.write(0, &sent)?;
    let span = ours.span(0, bytes as u64)?;

    let gather = [span.clone()];
    let written = peer.all(count, |queue, channel, id| {
        queue.post_write(channel, &Write { id, gather: &gather, remote, immediate: None, signaled: true })
    })?;
    ours.write(0, &vec![0; bytes])?;
    let read =
        peer.all(count, |queue, channel, id| queue.post_read(channel, &Read { id, local: &span, remote }))?;
    let mut back = vec![0; bytes];
    ours.read(0, &mut back)?;
    if back != sent {
        return Err("what came back is not what was sent".into());
    }
    let rate = |time: Duration| (bytes as u64 * count) as f64 / time.as_secs_f64() / 1e6;
    println!("{bytes} bytes, {count} times: write {:.1} MB/s, read {:.1} MB/s", rate(written), rate(read));
    Ok(())
}
