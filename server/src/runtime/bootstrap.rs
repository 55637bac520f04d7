//! The server's side of connecting a worker: hello checked against the roster, choice of driver, channels,
//! inboxes and first credits. Grants go only to members of the roster. Design, section 5.

use super::link::WorkerInbox;
use super::thread::LaneMessage;
use daemon::control::Connection;
use fabric::{ChannelSetup, CqHandle, Devices, Mailbox};
use proto_common::batch::SlotGrant;
use proto_common::ids::{Incarnation, JobId, Rank};
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::{FromServer, Hello, InboxGrant, LaneEndpoint, ServerOffer, ToServer};
use proto_common::transport::{Driver, Offer, choose};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Workers of the roster: rank and life.
pub(super) type Workers = HashMap<Rank, Incarnation>;

/// What taking any worker's connection needs.
pub(super) struct Reception {
    pub(super) job: JobId,
    pub(super) incarnation: Incarnation,
    pub(super) offer: Offer,
    pub(super) lanes: Vec<(Mailbox<LaneMessage>, CqHandle)>,
    pub(super) devices: Devices,
    pub(super) workers: watch::Receiver<Option<Workers>>,
    pub(super) handshake: Duration,
    pub(super) connect: Duration,
    pub(super) tries: Tries,
}

/// How often each worker has asked to be connected: where a try over one driver is given up and one over another
/// follows, lanes that still have the earlier one before them must not end up with it.
#[derive(Debug, Default)]
pub(super) struct Tries(Mutex<HashMap<Rank, u64>>);

impl Tries {
    fn begin(&self, rank: Rank) -> u64 {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(rank).or_default();
        *count += 1;
        *count
    }

    fn is_last(&self, rank: Rank, number: u64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&rank) == Some(&number)
    }
}

/// Takes one connection from hello to ready; tells who it is, the driver and what carries the channels. The error
/// is for the log: the peer was told what concerns it.
pub(super) async fn receive(
    reception: Arc<Reception>,
    stream: TcpStream,
) -> Result<(Rank, Driver, String), String> {
    let mut link = Connection::new(stream).map_err(|error| error.to_string())?;
    let hello = match link.receive_within::<ToServer>(reception.handshake).await {
        Ok(Some(ToServer::Hello(hello))) => hello,
        Ok(Some(ToServer::Replica(_) | ToServer::Inboxes(_))) => {
            return Err("it did not say hello first".into());
        }
        Ok(None) => return Err("it closed the connection before saying hello".into()),
        Err(error) => return Err(error.to_string()),
    };
    let rank = hello.rank;
    if let Err(reason) = check(&reception, &hello).await {
        return refuse(&mut link, &reception, rank, reason).await;
    }
    let number = reception.tries.begin(rank);
    let choice = match choose(&hello.offer, &reception.offer) {
        Ok(choice) => choice,
        Err(error) => {
            let text = error.to_string();
            let _ = link.send_within(&FromServer::NoTransport(error), reception.handshake).await;
            return Err(format!("worker {rank}: {text}"));
        }
    };
    let driver = choice.driver;
    let (blob, pending) = invite(&reception, driver).map_err(|error| format!("worker {rank}: {error}"))?;
    let lanes = reception.lanes.len() as u16;
    let offer = ServerOffer { choice, endpoint: LaneEndpoint { blob }, lanes };
    link.send_within(&FromServer::Offer(offer), reception.handshake)
        .await
        .map_err(|error| error.to_string())?;
    let deadline = Instant::now() + reception.connect;
    let accepted = blocking(move || pending.accept(deadline).map_err(|error| error.to_string())).await;
    let setups = match accepted {
        Ok(setups) => setups,
        Err(reason) => return refuse(&mut link, &reception, rank, reason).await,
    };
    let carriers = ChannelSetup::carriers(&setups);
    let theirs = match link.receive_within::<ToServer>(reception.connect).await {
        Ok(Some(ToServer::Inboxes(inboxes))) => inboxes,
        Ok(_) => return Err(format!("worker {rank}: it did not tell its inboxes")),
        Err(error) => return Err(format!("worker {rank}: {error}")),
    };
    let (life, shared) = (hello.incarnation, reception.clone());
    let ours = blocking(move || attach(&shared, (rank, life, number), setups, theirs)).await;
    let ours = match ours {
        Ok(ours) => ours,
        Err(reason) => return refuse(&mut link, &reception, rank, reason).await,
    };
    link.send_within(&FromServer::Inboxes(ours), reception.handshake)
        .await
        .map_err(|error| error.to_string())?;
    Ok((rank, driver, carriers))
}

/// Tells the worker why, as far as it still listens.
async fn refuse<T>(
    link: &mut Connection,
    reception: &Reception,
    rank: Rank,
    reason: String,
) -> Result<T, String> {
    let refused = FromServer::Refused { reason: reason.clone() };
    let _ = link.send_within(&refused, reception.handshake).await;
    Err(format!("worker {rank}: {reason}"))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}

/// Is it a member of this job that expects this life of ours?
async fn check(reception: &Reception, hello: &Hello) -> Result<(), String> {
    if hello.protocol != PROTOCOL_VERSION {
        return Err(format!(
            "protocol version {} does not match this server's {PROTOCOL_VERSION}; run the same release everywhere",
            hello.protocol
        ));
    }
    if hello.job != reception.job {
        return Err(format!("job {} is not this server's job {}", hello.job, reception.job));
    }
    if hello.server_incarnation != reception.incarnation {
        return Err("it looks for an earlier life of this server; restart the job".into());
    }
    // The roster may reach the worker a little earlier than us.
    let mut workers = reception.workers.clone();
    let known = tokio::time::timeout(reception.handshake, workers.wait_for(Option::is_some)).await;
    let expected = match known {
        Ok(Ok(workers)) => workers.as_ref().and_then(|workers| workers.get(&hello.rank).copied()),
        _ => return Err("the scheduler has not announced the roster to this server yet".into()),
    };
    match expected {
        Some(life) if life == hello.incarnation => Ok(()),
        Some(_) => Err(format!("worker {} of the roster is another process", hello.rank)),
        None => Err(format!("worker {} is not in the roster", hello.rank)),
    }
}

fn invite(reception: &Reception, driver: Driver) -> Result<(Vec<u8>, Box<dyn fabric::PendingOffer>), String> {
    let queues: Vec<CqHandle> = reception.lanes.iter().map(|(_, queue)| queue.clone()).collect();
    daemon::devices::of(&reception.devices, driver)?.offer(&queues).map_err(|error| error.to_string())
}

fn attach(
    reception: &Reception,
    (rank, incarnation, number): (Rank, Incarnation, u64),
    setups: Vec<ChannelSetup>,
    theirs: Vec<InboxGrant>,
) -> Result<Vec<InboxGrant>, String> {
    if theirs.len() != setups.len() || setups.len() != reception.lanes.len() {
        return Err("it told the wrong number of inboxes".into());
    }
    let mut ours = Vec::with_capacity(setups.len());
    for (index, ((setup, inbox), (lane, _))) in
        setups.into_iter().zip(theirs).zip(&reception.lanes).enumerate()
    {
        let grants = inbox.grants.iter().map(|wire| SlotGrant::from_wire(*wire)).collect::<Option<Vec<_>>>();
        let inbox = WorkerInbox {
            region: inbox.region,
            offset: inbox.offset,
            slot_bytes: inbox.slot_bytes,
            grants: grants.ok_or("its first grants are malformed")?,
        };
        // Lanes take messages in order: what a later try sends to this one comes after what this try does.
        if !reception.tries.is_last(rank, number) {
            return Err("it has asked to be connected again meanwhile".into());
        }
        let message = |reply| LaneMessage::Attach { rank, incarnation, setup, inbox, reply };
        let answer = lane.ask(reception.connect, message);
        ours.push(answer.ok_or_else(|| format!("lane {index} of this server does not answer"))??);
    }
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_try_is_told_from_the_last_one_of_the_same_worker() {
        let tries = Tries::default();
        let (first, other) = (tries.begin(Rank(1)), tries.begin(Rank(2)));
        assert!(tries.is_last(Rank(1), first));
        let second = tries.begin(Rank(1));
        assert!(!tries.is_last(Rank(1), first) && tries.is_last(Rank(1), second));
        assert!(tries.is_last(Rank(2), other) && !tries.is_last(Rank(3), 0));
    }
}
