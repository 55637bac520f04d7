//! What the shared-memory tests share: connected pairs, waiting with a deadline, child processes.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

use fabric::{
    ChannelId, Completion, CompletionKind, CompletionQueue, Device, DisconnectReason, LaneQueue,
    PeerWritable, PostError, Region, RemoteKey, RemoteSpan, ShmDevice, Span, Write,
};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const DEPTH: usize = 64;

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// One end of a channel with the lane it is on.
pub struct Side {
    pub queue: LaneQueue,
    pub channel: ChannelId,
    pub inbox: Vec<Completion>,
}

impl Side {
    pub fn new(queue: LaneQueue, channel: ChannelId) -> Self {
        Self { queue, channel, inbox: Vec::new() }
    }

    /// The next completion, sleeping for it.
    pub fn next(&mut self) -> CompletionKind {
        let deadline = soon();
        loop {
            if !self.inbox.is_empty() {
                let completion = self.inbox.remove(0);
                assert_eq!(completion.channel, self.channel);
                return completion.kind;
            }
            assert!(Instant::now() < deadline, "nothing came");
            self.queue.poll(&mut self.inbox);
            if self.inbox.is_empty() {
                self.queue.wait(Duration::from_secs(10));
            }
        }
    }

    pub fn next_immediate(&mut self) -> u32 {
        match self.next() {
            CompletionKind::Received { immediate } => immediate,
            other => panic!("{other:?}"),
        }
    }

    pub fn next_end(&mut self) -> DisconnectReason {
        match self.next() {
            CompletionKind::Disconnected(reason) => reason,
            other => panic!("{other:?}"),
        }
    }

    pub fn notify(&mut self, immediate: u32) -> Result<(), PostError> {
        self.write(&[], RemoteSpan { key: RemoteKey(0), offset: 0 }, Some(immediate), false)
    }

    pub fn write(
        &mut self,
        gather: &[Span],
        remote: RemoteSpan,
        immediate: Option<u32>,
        signaled: bool,
    ) -> Result<(), PostError> {
        self.queue.post_write(self.channel, &Write { id: 7, gather, remote, immediate, signaled })
    }

    pub fn expose(&mut self, region: &Region) -> RemoteKey {
        self.queue.expose(self.channel, region).unwrap()
    }
}

/// Two connected lanes in this process.
pub fn pair() -> (Side, Side) {
    let (mut left, mut right) = (LaneQueue::new(DEPTH).unwrap(), LaneQueue::new(DEPTH).unwrap());
    let (offer, pending) = ShmDevice::new().offer(&[left.handle()]).unwrap();
    let handle = right.handle();
    let connecting =
        std::thread::spawn(move || ShmDevice::new().connect(&offer, 0, &handle, soon()).unwrap());
    let accepted = pending.accept(soon()).unwrap().pop().unwrap();
    let connected = connecting.join().unwrap();
    let (a, b) = (left.attach(accepted).unwrap(), right.attach(connected).unwrap());
    (Side::new(left, a), Side::new(right, b))
}

pub fn region(bytes: usize) -> PeerWritable {
    PeerWritable::allocate(bytes, "test").unwrap()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// A child process that is killed when the test is over, however that ends.
pub struct Kid(pub Child);

impl Drop for Kid {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Kid {
    pub fn finish(mut self) {
        let deadline = soon();
        loop {
            match self.0.try_wait().unwrap() {
                Some(status) => return assert!(status.success(), "{status}"),
                None => assert!(Instant::now() < deadline, "the child does not end"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

const OFFER_VARIABLE: &str = "SHM_TEST_OFFER";

/// Runs the ignored test `role` of this binary as a process of its own, connected to ours by one channel.
pub fn with_child(role: &str, depth: usize) -> (Side, Kid) {
    let mut queue = LaneQueue::new(depth).unwrap();
    let (offer, pending) = ShmDevice::new().offer(&[queue.handle()]).unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", role, "--ignored", "--nocapture"])
        .env(OFFER_VARIABLE, hex(&offer))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let kid = Kid(child);
    let setup = pending.accept(soon()).unwrap().pop().unwrap();
    let channel = queue.attach(setup).unwrap();
    (Side::new(queue, channel), kid)
}

/// The child's end; `None` when the test was started by hand.
pub fn to_parent(depth: usize) -> Option<Side> {
    let offer = unhex(&std::env::var(OFFER_VARIABLE).ok()?);
    let mut queue = LaneQueue::new(depth).unwrap();
    let setup = ShmDevice::new().connect(&offer, 0, &queue.handle(), soon()).unwrap();
    let channel = queue.attach(setup).unwrap();
    Some(Side::new(queue, channel))
}
