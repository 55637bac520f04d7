//! The plain server's process: a thread a connection, which receives a whole tensor to its own memory before anything is
//! done with it.
//!
//! It serves until its parent closes its standard input.

use super::wire;
use super::{ChildArgs, Duty};
use crate::child;
use crate::cluster::FromChild;
use crate::report;
use crate::store::{Declare, Frame, Head, Kind, Refusal, Store};
use anyhow::Context as _;
use bytes::Bytes;
use std::io::{BufReader, Read as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The parameters, and the way back to each worker of the session.
#[derive(Default)]
struct Shared {
    store: Option<Store>,
    workers: Vec<Option<Arc<Mutex<TcpStream>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic under the lock has already ended the connection it came from.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the process.
///
/// # Errors
/// No port.
pub(crate) fn main(args: &ChildArgs) -> anyhow::Result<()> {
    child::die_with_parent()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen on loopback")?;
    child::say(&FromChild::Listening { address: listener.local_addr()? })?;
    let (shared, duty) = (Arc::<Mutex<Shared>>::default(), args.duty);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                if let Err(error) = serve(stream, duty, &shared) {
                    report::progress(&format!("plain server: {error:#}"));
                }
            });
        }
    });
    // The parent says nothing more; the end of its line is the end of the work.
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
    Ok(())
}

/// Serves one worker until it closes.
fn serve(stream: TcpStream, duty: Duty, shared: &Mutex<Shared>) -> anyhow::Result<()> {
    let mut stream = wire::tuned(stream)?;
    let declared: Declare = serde_json::from_slice(&wire::receive_declaration(&mut stream)?)?;
    declared.check().map_err(refused)?;
    let (session, rank) = (declared.session, declared.rank);
    // Memory of its own for each tensor, touched beforehand.
    let mut landing: Vec<Vec<u8>> = declared.tensors.iter().map(|bytes| vec![1; *bytes as usize]).collect();
    let read_ahead = wire::read_ahead(&declared.tensors);
    let back = Arc::new(Mutex::new(stream.try_clone()?));
    lock(shared).join(declared, Arc::clone(&back));
    wire::send(&mut *lock(&back), Head { kind: Kind::Declare, key: 0, chunk: 0 }, &[])?;
    let mut inbound = BufReader::with_capacity(read_ahead, stream);
    let mut due = Vec::new();
    while let Some(head) = wire::receive_head(&mut inbound)? {
        let gradient = landing.get_mut(head.key as usize).context("a tensor that was not declared")?;
        let gradient: &[u8] = if head.kind == Kind::Pull {
            &[]
        } else {
            inbound.read_exact(gradient)?;
            gradient
        };
        match duty {
            Duty::Receive => wire::send(&mut *lock(&back), head, &[])?,
            Duty::Forward => forward(shared, (session, rank), head, gradient, &mut due)?,
        }
    }
    Ok(())
}

/// Reduces what was received, and sends whatever is due then.
fn forward(
    shared: &Mutex<Shared>,
    (session, rank): (u64, u32),
    head: Head,
    gradient: &[u8],
    due: &mut Vec<(u32, Frame)>,
) -> anyhow::Result<()> {
    let mut guard = lock(shared);
    let store = guard.store.as_mut().filter(|store| store.session() == session);
    let store = store.context("another session has begun")?;
    store.apply(rank, head, gradient, due).map_err(refused)?;
    if due.is_empty() {
        return Ok(());
    }
    let workers = guard.workers.clone();
    drop(guard);
    for (rank, Frame { head, payload }) in due.drain(..) {
        let worker = workers.get(rank as usize).and_then(Option::as_ref);
        let worker = worker.with_context(|| format!("worker {rank} is not there"))?;
        send_back(&mut lock(worker), head, &payload)?;
    }
    Ok(())
}

fn send_back(worker: &mut TcpStream, head: Head, weights: &Bytes) -> anyhow::Result<()> {
    wire::send(worker, head, weights).context("a worker takes no answers")
}

fn refused(refusal: Refusal) -> anyhow::Error {
    anyhow::anyhow!("refused: {}", refusal.0)
}

impl Shared {
    /// Adds a worker; the first one of a new session resets the parameters.
    fn join(&mut self, declared: Declare, back: Arc<Mutex<TcpStream>>) {
        let rank = declared.rank as usize;
        if self.store.as_ref().map(Store::session) != Some(declared.session) {
            self.workers = vec![None; declared.workers as usize];
            self.store = Some(Store::new(declared));
        }
        if let Some(place) = self.workers.get_mut(rank) {
            *place = Some(back);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::net::SocketAddr;

    /// A server in this process, which serves so many connections.
    pub(in super::super) fn start(duty: Duty, connections: usize) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::<Mutex<Shared>>::default();
        for _ in 0..connections {
            let (listener, shared) = (listener.try_clone().expect("a clone"), Arc::clone(&shared));
            std::thread::spawn(move || {
                let (stream, _) = listener.accept().expect("a worker");
                serve(stream, duty, &shared)
            });
        }
        address
    }
}
