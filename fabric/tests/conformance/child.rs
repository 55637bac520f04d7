//! Peers in processes of their own, to be stopped and killed: each is this test program again, told by its environment
//! what to do. Must not outlive its test.

use super::rig::{DEPTH, End, Place, Queue, Rig, at, region, soon};
use fabric::{CompletionKind, CompletionQueue, DisconnectReason};
use std::process::{Command, Stdio};

const ROLE: &str = "CONFORMANCE_ROLE";
const OFFER: &str = "CONFORMANCE_OFFER";

/// Bytes of a write that takes long enough to be in its middle.
pub const BIG: usize = 4 << 20;
/// What a child writes.
pub const WRITTEN: u8 = 0xAB;

/// What a child does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Is granted `BIG` bytes and writes them, again and again, each time with a notice.
    Writes,
    /// Grants a page, then sends each notice back; ends with its channel.
    Echoes,
}

/// A child process that is killed when the test is over, however that ends.
pub struct Child(pub std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Child {
    /// Ends it as if its machine had lost it.
    pub fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
    }
}

/// Starts a child, connected to a fresh queue of ours.
pub fn spawn<R: Rig>(role: Role) -> (End<R>, Child) {
    connect_child(R::queue(Place::Near, DEPTH).unwrap(), role)
}

/// Starts a child, connected to this queue.
pub fn connect_child<R: Rig>(mut queue: R::Queue, role: Role) -> (End<R>, Child) {
    let (offer, pending) = R::device(Place::Near).offer(&[queue.handle()]).unwrap();
    let hex: String = offer.iter().map(|byte| format!("{byte:02x}")).collect();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("over_{}::child", R::NAME), "--ignored", "--nocapture"])
        .env(ROLE, format!("{role:?}"))
        .env(OFFER, hex)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let child = Child(child);
    let setup = pending.accept(soon()).unwrap().pop().unwrap();
    let channel = queue.attach(setup).unwrap();
    (End::new(queue, channel), child)
}

/// In the child. Nothing, where the test was started by hand.
pub fn run<R: Rig>() {
    let (Ok(role), Ok(offer)) = (std::env::var(ROLE), std::env::var(OFFER)) else { return };
    let (pairs, _) = offer.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    let offer: Vec<u8> = pairs.iter().map(byte).collect();
    let mut queue = R::queue(Place::Far, DEPTH).unwrap();
    let handle = queue.handle();
    let setup = R::device(Place::Far).connect(&offer, 0, &handle, soon()).unwrap();
    let channel = queue.attach(setup).unwrap();
    let end = End::<R>::new(queue, channel);
    if role == format!("{:?}", Role::Writes) { write(end) } else { echo(end) }
}

fn write<R: Rig>(mut end: End<R>) {
    let key = end.granted();
    let source = region(BIG);
    source.write(0, &vec![WRITTEN; BIG]).unwrap();
    for round in 0.. {
        end.write_patiently(&[source.span(0, BIG as u64).unwrap()], at(key, 0), Some(round), None);
    }
}

fn echo<R: Rig>(mut end: End<R>) {
    end.grant(&region(4096));
    loop {
        match end.next() {
            CompletionKind::Received { immediate } => end.notify(immediate),
            CompletionKind::Disconnected(DisconnectReason::PeerClosed) => return,
            other => panic!("{other:?}"),
        }
    }
}
