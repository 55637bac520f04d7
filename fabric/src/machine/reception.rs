//! The side of a machine that others connect to: a thread that takes set-up connections, and one for each of them that
//! answers its questions. What a connection has brought about, its channels, ends with it.

use super::copy::check_name;
use super::inner::Inner;
use super::poller::{Attached, Order, ask_poller};
use super::words::{Answer, Question, VERSION, choose, receive, send, tune};
use crate::device::ChannelSetup;
use crate::error::{FabricError, PostError};
use crate::memory::Region;
use drivers::Driver;
use std::collections::HashMap;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Regions that one peer may look up.
const LOOKED_UP_MAX: usize = 1024;

/// Takes connections until the listener is shut down.
pub(super) fn serve(inner: &Arc<Inner>, listener: &TcpListener) {
    loop {
        let accepted = listener.accept();
        if inner.is_closing() {
            return;
        }
        match accepted {
            Ok((stream, _)) => welcome(inner, stream),
            Err(error) => {
                // A shortage, mostly of open files: it passes when a peer goes, of which nothing tells here.
                tracing::warn!(%error, "cannot accept a connection");
                // Sleep: the shortage would else be met again at once.
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn welcome(inner: &Arc<Inner>, stream: TcpStream) {
    let Some((number, guest)) = inner.enrol(&stream) else { return };
    let shared = Arc::clone(inner);
    let spawned = std::thread::Builder::new().name("gradwire-machine".into()).spawn(move || {
        let mut visit =
            Visit { inner: &shared, stream, channels: HashMap::new(), looked_up: Vec::new(), greeted: None };
        if let Err(error) = visit.answer_all() {
            tracing::debug!(%error, "a machine's set-up connection ended");
        }
        visit.end();
        shared.dismiss(number);
    });
    if spawned.is_err() {
        let _ = guest.shutdown(Shutdown::Both);
        inner.dismiss(number);
    }
}

/// One peer's connection.
struct Visit<'a> {
    inner: &'a Inner,
    stream: TcpStream,
    /// By the peer's index: the polling thread's number and the channel.
    channels: HashMap<u16, (usize, Attached)>,
    looked_up: Vec<Region>,
    /// The driver, once both have said what they can.
    greeted: Option<Driver>,
}

impl Visit<'_> {
    fn answer_all(&mut self) -> Result<(), FabricError> {
        let step = self.inner.config.step;
        tune(&self.stream)?;
        let mut begun_by = Some(Instant::now() + step);
        while let Some(question) = receive(&self.stream, begun_by, step)? {
            // After the first word a peer may be silent for as long as it lives.
            begun_by = None;
            let answer = match self.answer(question) {
                Ok(answer) => answer,
                Err(error) => Answer::Refused(error.to_string()),
            };
            send(&self.stream, &answer, Instant::now() + step)?;
            // No second guess at the secret, and no question of one who has not said it.
            if self.greeted.is_none() {
                return Err(FabricError::Peer("it was refused".into()));
            }
        }
        Ok(())
    }

    fn answer(&mut self, question: Question) -> Result<Answer, FabricError> {
        match question {
            Question::Hello { version: VERSION, secret, means } => {
                if !self.inner.config.secret.is(&secret) {
                    tracing::warn!("rejected a peer with a wrong secret at this machine's endpoint");
                    return Err(FabricError::Peer(
                        "its secret is not this machine's secret (set the same secret at both)".into(),
                    ));
                }
                let ours = self.inner.means.clone();
                // Where nothing fits the peer says so; its next question is refused here.
                self.greeted = choose(&ours, &means).ok().map(|choice| choice.driver);
                Ok(Answer::Hello { version: VERSION, means: ours })
            }
            Question::Hello { version, .. } => {
                Err(FabricError::Peer(format!("version {version} of the set-up is not {VERSION}")))
            }
            _ if self.greeted.is_none() => Err(FabricError::Peer("it has not greeted".into())),
            Question::Channel { index, driver } => self.open(index, driver).map(|()| Answer::Connected),
            Question::Attached => Err(FabricError::Peer("it has not asked for a channel".into())),
            Question::Lookup { name, wait_ms } => self.look_up(&name, Duration::from_millis(wait_ms)),
        }
    }

    fn open(&mut self, index: u16, driver: Driver) -> Result<(), FabricError> {
        let inner = self.inner;
        if self.greeted != Some(driver) {
            return Err(FabricError::Peer(format!("{driver} was not agreed on")));
        }
        if index >= inner.config.num_qps_per_peer {
            let most = inner.config.num_qps_per_peer;
            return Err(FabricError::Misuse(format!("queue pair {index}: the machine has {most} a peer")));
        }
        let at = inner.next_poller();
        let (offer, pending) =
            inner.device(driver)?.offer(std::slice::from_ref(&inner.pollers[at].handle))?;
        let deadline = Instant::now() + inner.config.step;
        send(&self.stream, &Answer::Offer(offer), deadline)?;
        let setup = pending.accept(deadline)?.pop();
        let setup = setup.ok_or_else(|| FabricError::Internal("an offer of no channel".into()))?;
        // The keys of what it looked up go over the channel: they would be lost on a peer that is not there yet.
        match receive(&self.stream, Some(deadline), inner.config.step)? {
            Some(Question::Attached) => self.attach(index, at, setup),
            _ => Err(FabricError::Peer("it did not attach the channel that it asked for".into())),
        }
    }

    fn attach(&mut self, index: u16, at: usize, setup: ChannelSetup) -> Result<(), FabricError> {
        let exposed = self.looked_up.clone();
        let poller = &self.inner.pollers[at];
        let attached = poller.attach(setup, exposed, self.inner.config.step)?;
        if let Some((old, before)) = self.channels.insert(index, (at, attached)) {
            self.inner.pollers[old].orders.send(Order::Close(before.id));
        }
        Ok(())
    }

    /// Lets the peer reach a published region, by all its channels and those to come.
    fn look_up(&mut self, name: &str, wait: Duration) -> Result<Answer, FabricError> {
        check_name(name)?;
        let Some(region) = self.inner.published.wait_for(name, wait.min(self.inner.config.step)) else {
            return Ok(Answer::Unknown);
        };
        let (key, bytes) = (region.id(), region.len() as u64);
        if self.looked_up.iter().any(|known| known.id() == key) {
            return Ok(Answer::Region { key, bytes });
        }
        if self.looked_up.len() == LOOKED_UP_MAX {
            return Err(FabricError::Peer(format!("it looked up more than {LOOKED_UP_MAX} regions")));
        }
        for (at, attached) in self.channels.values().filter(|(_, attached)| attached.ended.get().is_none()) {
            let order = |reply| Order::Expose(attached.id, region.clone(), reply);
            let exposed = ask_poller(&self.inner.pollers[*at], self.inner.config.step, order)?;
            match exposed {
                Ok(named) => debug_assert_eq!(named.0, key, "every driver names a region by its id"),
                // It has ended meanwhile: what is left of it cannot use the region.
                Err(PostError::Closed) => {}
                Err(error) => return Err(FabricError::Misuse(error.to_string())),
            }
        }
        self.looked_up.push(region);
        Ok(Answer::Region { key, bytes })
    }

    fn end(self) {
        for (at, attached) in self.channels.into_values() {
            self.inner.pollers[at].orders.send(Order::Close(attached.id));
        }
    }
}
