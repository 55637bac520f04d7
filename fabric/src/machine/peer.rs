//! A peer as this machine reached it: the set-up connection to its endpoint, and the channels opened over that. One
//! question at a time; whatever breaks is made anew with the next use.

use super::copy::RemoteRegion;
use super::inner::Inner;
use super::poller::{Attached, Order};
use super::words::{Answer, Question, VERSION, choose, left, receive, send, tune};
use crate::error::FabricError;
use crate::work::RemoteKey;
use drivers::{Choice, Driver};
use std::collections::HashMap;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub(super) struct Peer {
    endpoint: SocketAddr,
    link: Option<(TcpStream, Choice)>,
    /// By queue pair: the polling thread's number and the channel.
    channels: HashMap<u16, (usize, Attached)>,
}

impl Peer {
    pub(super) fn new(endpoint: SocketAddr) -> Self {
        Self { endpoint, link: None, channels: HashMap::new() }
    }

    /// The driver to it and why, connecting first where that has not been done.
    pub(super) fn choice(&mut self, inner: &Inner, deadline: Instant) -> Result<Choice, FabricError> {
        if let Some((_, choice)) = &self.link {
            return Ok(choice.clone());
        }
        let endpoint = self.endpoint;
        let started = Instant::now();
        let stream =
            TcpStream::connect_timeout(&endpoint, left(deadline)).map_err(|error| match error.kind() {
                std::io::ErrorKind::TimedOut => {
                    let what =
                        format!("machine {endpoint} to be connected to (does a firewall drop that port?)");
                    FabricError::late(what, started)
                }
                _ => FabricError::os(format!("connecting to machine {endpoint} (does it run?)"), error),
            })?;
        tune(&stream)?;
        let (secret, means) = (inner.config.secret.as_str().to_owned(), inner.means.clone());
        send(&stream, &Question::Hello { version: VERSION, secret, means }, deadline)?;
        let theirs = match next(&stream, deadline)? {
            Answer::Hello { version: VERSION, means } => means,
            other => return Err(unexpected(other)),
        };
        let choice = choose(&inner.means, &theirs)
            .map_err(|why| FabricError::Misuse(format!("no driver reaches machine {endpoint}: {why}")))?;
        tracing::info!(%endpoint, driver = %choice.driver, why = choice.why, "machine reached");
        self.link = Some((stream, choice.clone()));
        Ok(choice)
    }

    /// The channel of a queue pair, connected where it is not.
    pub(super) fn channel(
        &mut self,
        inner: &Inner,
        index: u16,
        deadline: Instant,
    ) -> Result<(usize, Attached), FabricError> {
        if let Some((at, attached)) = self.channels.get(&index).filter(|(_, a)| a.ended.get().is_none()) {
            return Ok((*at, attached.clone()));
        }
        let question = |driver| Question::Channel { index, driver };
        let (driver, offer) = match self.ask(inner, question, deadline)? {
            (driver, Answer::Offer(offer)) => (driver, offer),
            (_, other) => return Err(unexpected(other)),
        };
        let opened = self.connect(inner, &offer, driver, deadline);
        // Its answer, when it comes, would be taken for that to another question.
        if opened.is_err() {
            self.hang_up(inner);
        }
        let opened = opened?;
        self.channels.insert(index, opened.clone());
        Ok(opened)
    }

    fn connect(
        &self,
        inner: &Inner,
        offer: &[u8],
        driver: Driver,
        deadline: Instant,
    ) -> Result<(usize, Attached), FabricError> {
        let at = inner.next_poller();
        let poller = &inner.pollers[at];
        let setup = inner.device(driver)?.connect(offer, 0, &poller.handle, deadline)?;
        let left = deadline.saturating_duration_since(Instant::now());
        let attached = poller.attach(setup, Vec::new(), left)?;
        let answer = match &self.link {
            Some((stream, _)) => {
                send(stream, &Question::Attached, deadline).and_then(|()| next(stream, deadline))
            }
            None => Err(FabricError::Internal("a connection was closed while in use".into())),
        };
        match answer {
            Ok(Answer::Connected) => Ok((at, attached)),
            other => {
                poller.orders.send(Order::Close(attached.id));
                Err(other.map_or_else(|error| error, unexpected))
            }
        }
    }

    /// Where a region of this name lies; `None` while nobody has published it.
    pub(super) fn look_up(
        &mut self,
        inner: &Inner,
        name: &str,
        wait: Duration,
        deadline: Instant,
    ) -> Result<Option<RemoteRegion>, FabricError> {
        let wait_ms = wait.as_millis() as u64;
        let question = |_| Question::Lookup { name: name.to_owned(), wait_ms };
        match self.ask(inner, question, deadline + wait)?.1 {
            Answer::Region { key, bytes } => {
                Ok(Some(RemoteRegion { endpoint: self.endpoint, key: RemoteKey(key), bytes }))
            }
            Answer::Unknown => Ok(None),
            other => Err(unexpected(other)),
        }
    }

    /// Asks over the connection there is, or a new one: who was reached before may have ended since, and be back.
    fn ask(
        &mut self,
        inner: &Inner,
        question: impl Fn(Driver) -> Question,
        deadline: Instant,
    ) -> Result<(Driver, Answer), FabricError> {
        let is_new = self.link.is_none();
        let driver = self.choice(inner, deadline)?.driver;
        match self.ask_once(inner, &question(driver), deadline) {
            Ok(answer) => Ok((driver, answer)),
            Err(error) if is_new || matches!(error, FabricError::Deadline { .. }) => Err(error),
            Err(_) => {
                let driver = self.choice(inner, deadline)?.driver;
                Ok((driver, self.ask_once(inner, &question(driver), deadline)?))
            }
        }
    }

    /// A connection that answers too late or nonsense is of no use any more, and neither is what was opened over it.
    fn ask_once(
        &mut self,
        inner: &Inner,
        question: &Question,
        deadline: Instant,
    ) -> Result<Answer, FabricError> {
        let answer = match &self.link {
            Some((stream, _)) => send(stream, question, deadline).and_then(|()| next(stream, deadline)),
            None => Err(FabricError::Internal("a request was sent before the greeting".into())),
        };
        if answer.is_err() {
            self.hang_up(inner);
        }
        answer
    }

    fn hang_up(&mut self, inner: &Inner) {
        self.link = None;
        for (_, (at, attached)) in self.channels.drain() {
            inner.pollers[at].orders.send(Order::Close(attached.id));
        }
    }
}

fn next(stream: &TcpStream, deadline: Instant) -> Result<Answer, FabricError> {
    receive(stream, Some(deadline), left(deadline))?.ok_or_else(|| {
        FabricError::Peer("it closed the set-up connection (it ended, or has too many peers)".into())
    })
}

fn unexpected(answer: Answer) -> FabricError {
    FabricError::Peer(match answer {
        Answer::Refused(why) => format!("it refuses: {why}"),
        _ => "it answered out of order".into(),
    })
}
