//! The server's side of connecting a worker, or a server whose chunks it has copies of: hello checked against the roster,
//! choice of driver, channels, inboxes and first credits. Grants go only to members of the roster. Design, section 5.

use super::link::WorkerInbox;
use super::message::LaneMessage;
use crate::engine::member::Peers;
use crate::journal::Books;
use daemon::control::Connection;
use daemon::security::Security;
use fabric::{ChannelSetup, CqHandle, Devices, Mailbox, oneshot};
use proto_common::batch::SlotGrant;
use proto_common::ids::{Epoch, Incarnation, JobId, MemberId, Rank, Role};
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::{
    Build, FromKeeper, FromServer, Hello, InboxGrant, LaneEndpoint, ServerOffer, ToServer,
};
use proto_common::transport::{Driver, Offer, choose};
use std::collections::HashMap;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// What taking any peer's connection needs, and reaching another server's.
pub(super) struct Reception {
    pub(super) job: JobId,
    pub(super) rank: Rank,
    pub(super) incarnation: Incarnation,
    pub(super) security: Security,
    pub(super) offer: Offer,
    pub(super) lanes: Vec<(Mailbox<LaneMessage>, CqHandle)>,
    pub(super) devices: Devices,
    /// Who may connect. It is held while lanes are sent a channel, so that no channel comes after its peer's end.
    pub(super) peers: watch::Receiver<Option<Peers>>,
    pub(super) handshake: Duration,
    pub(super) connect: Duration,
    pub(super) tries: Tries,
    /// The journals that this server keeps for others.
    pub(super) books: Arc<Mutex<Books>>,
}

impl Reception {
    /// Sends a message to all lanes.
    pub(super) fn send_to_all(&self, message: impl Fn() -> LaneMessage) {
        for (lane, _) in &self.lanes {
            lane.send(message());
        }
    }

    /// What this server says first to another one, which is this process in the roster of this epoch.
    pub(super) fn hello(&self, server_incarnation: Incarnation, epoch: Epoch, offer: &Offer) -> Hello {
        Hello {
            protocol: PROTOCOL_VERSION,
            job: self.job,
            rank: self.rank,
            incarnation: self.incarnation,
            server_incarnation,
            epoch,
            offer: offer.clone(),
        }
    }

    /// Asks all lanes, by their index.
    pub(super) fn ask<T>(
        &self,
        message: impl Fn(usize, oneshot::Sender<T>) -> LaneMessage,
    ) -> Vec<oneshot::Receiver<T>> {
        let ask = |(index, (lane, _)): (usize, &(Mailbox<LaneMessage>, CqHandle))| {
            let (reply, answer) = oneshot::channel();
            lane.send(message(index, reply));
            answer
        };
        self.lanes.iter().enumerate().map(ask).collect()
    }
}

/// How often each peer has asked to be connected: where a try over one driver is given up and one over another
/// follows, lanes that still have the earlier one before them must not end up with it.
#[derive(Debug, Default)]
pub(super) struct Tries(Mutex<HashMap<MemberId, u64>>);

impl Tries {
    fn begin(&self, peer: MemberId) -> u64 {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(peer).or_default();
        *count += 1;
        *count
    }

    fn is_last(&self, peer: MemberId, number: u64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&peer) == Some(&number)
    }
}

/// What a connection is for.
pub(super) enum Received {
    /// A data path, which is ready: whose, its driver, and what carries the channels.
    Channels(MemberId, Driver, String),
    /// Journals of another server's handlers.
    Journals(Connection, Rank, Incarnation),
}

/// Takes one connection from hello to ready. `handshake` is how long it may say nothing before its hello. The error is for the log: the
/// peer was told what concerns it.
pub(super) async fn receive(
    reception: Arc<Reception>,
    stream: TcpStream,
    handshake: Duration,
) -> Result<Received, String> {
    let accepted = reception.security.accept(stream, handshake).await;
    let mut link = accepted.map_err(|error| error.to_string())?;
    let (id, wants, hello) = greet(&reception, &mut link, handshake).await?;
    link.admit();
    if wants == Wants::Journal {
        return Ok(Received::Journals(link, hello.rank, hello.incarnation));
    }
    let number = reception.tries.begin(id);
    let choice = match choose(&hello.offer, &reception.offer) {
        Ok(choice) => choice,
        Err(error) => {
            let text = error.to_string();
            let _ = link.send_within(&FromServer::NoTransport(error), reception.handshake).await;
            return Err(format!("{id}: {text}"));
        }
    };
    let driver = choice.driver;
    let (blob, pending) = invite(&reception, driver).map_err(|error| format!("{id}: {error}"))?;
    let lanes = reception.lanes.len() as u16;
    let offer = ServerOffer { choice, endpoint: LaneEndpoint { blob }, lanes };
    link.send_within(&FromServer::Offer(offer), reception.handshake)
        .await
        .map_err(|error| error.to_string())?;
    let deadline = Instant::now() + reception.connect;
    let accepted = blocking(move || pending.accept(deadline).map_err(|error| error.to_string())).await;
    let setups = match accepted {
        Ok(setups) => setups,
        Err(reason) => return refuse(&mut link, &reception, id, reason).await,
    };
    let carriers = ChannelSetup::carriers(&setups);
    let theirs = match link.receive_within::<ToServer>(reception.connect).await {
        Ok(Some(ToServer::Inboxes(inboxes))) => inboxes,
        Ok(_) => return Err(format!("{id}: it did not send its inboxes")),
        Err(error) => return Err(format!("{id}: {error}")),
    };
    let (life, shared) = (hello.incarnation, reception.clone());
    let ours = match attach(&shared, (id, life, number), setups, theirs) {
        Ok(answers) => blocking(move || granted(answers, shared.connect)).await,
        Err(reason) => Err(reason),
    };
    let ours = match ours {
        Ok(ours) => ours,
        Err(reason) => return refuse(&mut link, &reception, id, reason).await,
    };
    link.send_within(&FromServer::Inboxes(ours), reception.handshake)
        .await
        .map_err(|error| error.to_string())?;
    Ok(Received::Channels(id, driver, carriers))
}

/// Hears a hello, and checks it.
async fn greet(
    reception: &Reception,
    link: &mut Connection,
    handshake: Duration,
) -> Result<(MemberId, Wants, Hello), String> {
    let (wants, hello) = match link.receive_within::<ToServer>(handshake).await {
        Ok(Some(ToServer::Hello(hello))) => (Wants::Worker, hello),
        Ok(Some(ToServer::Replica(hello))) => (Wants::Replica, hello),
        Ok(Some(ToServer::Journal(hello))) => (Wants::Journal, hello),
        Ok(Some(ToServer::Inboxes(_))) => return Err("its first message is not a hello".into()),
        Ok(None) => return Err("it closed the connection before its hello".into()),
        Err(error) => return Err(error.to_string()),
    };
    let id = MemberId { role: wants.role(), rank: hello.rank };
    let judged = match link.permits(hello.job, id.role) {
        Ok(()) => check(reception, wants, &hello).await,
        Err(fault) => Err(fault.to_string()),
    };
    match judged {
        Ok(()) => Ok((id, wants, hello)),
        Err(reason) if wants == Wants::Journal => {
            let refused = FromKeeper::Refused { reason: reason.clone() };
            let _ = link.send_within(&refused, reception.handshake).await;
            Err(format!("{id}: {reason}"))
        }
        Err(reason) => refuse(link, reception, id, reason).await,
    }
}

/// What a connection is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wants {
    Worker,
    Replica,
    Journal,
}

impl Wants {
    fn role(self) -> Role {
        if self == Self::Worker { Role::Worker } else { Role::Server }
    }
}

/// Tells the peer why, as far as it still listens.
async fn refuse<T>(
    link: &mut Connection,
    reception: &Reception,
    id: MemberId,
    reason: String,
) -> Result<T, String> {
    let refused = FromServer::Refused { reason: reason.clone() };
    let _ = link.send_within(&refused, reception.handshake).await;
    Err(format!("{id}: {reason}"))
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?
}

/// Is it a member of this job that expects this life of ours?
async fn check(reception: &Reception, wants: Wants, caller: &Hello) -> Result<(), String> {
    if caller.protocol != PROTOCOL_VERSION {
        return Err(format!(
            "protocol version {} does not match version {} of this server; run the same release in all processes of a job (docs/upgrading.md)",
            caller.protocol,
            Build::own()
        ));
    }
    if caller.job != reception.job {
        return Err(format!("job {} is not this server's job {}", caller.job, reception.job));
    }
    if caller.server_incarnation != reception.incarnation {
        return Err(
            "it wants to connect to an earlier process of this server; it must use the newest roster".into(),
        );
    }
    // What the scheduler decided may reach the peer a little earlier than us.
    let mut known = reception.peers.clone();
    let is_decided =
        |peers: &Option<Peers>| peers.as_ref().is_some_and(|peers| is_decided(peers, wants, caller));
    // Without it what is known has to do.
    let _ = tokio::time::timeout(reception.handshake, known.wait_for(is_decided)).await;
    match reception.peers.borrow().as_ref() {
        Some(peers) => admits(peers, wants, caller),
        None => Err("the scheduler has not announced the roster to this server yet".into()),
    }
}

/// Has the scheduler told us enough to judge this caller?
fn is_decided(peers: &Peers, wants: Wants, caller: &Hello) -> bool {
    let is_known = wants == Wants::Worker || peers.epoch >= caller.epoch;
    peers.epoch > caller.epoch || is_known && admits(peers, wants, caller).is_ok()
}

/// May it connect, as the roster and the map say?
fn admits(peers: &Peers, wants: Wants, caller: &Hello) -> Result<(), String> {
    let id = MemberId { role: wants.role(), rank: caller.rank };
    is_in_roster(peers, id, caller.incarnation)?;
    if id.role == Role::Server {
        if caller.epoch.term < peers.epoch.term {
            let (theirs, ours) = (caller.epoch, peers.epoch);
            return Err(format!("{id} follows a deposed scheduler: its epoch is {theirs}, ours is {ours}"));
        }
        if wants == Wants::Replica && !peers.copies_of.contains(&id.rank) {
            return Err(format!(
                "by the shard map of epoch {} this server has no replica of {id}",
                peers.epoch
            ));
        }
    }
    Ok(())
}

fn is_in_roster(peers: &Peers, id: MemberId, incarnation: Incarnation) -> Result<(), String> {
    let all = if id.role == Role::Worker { &peers.workers } else { &peers.servers };
    match all.get(&id.rank) {
        Some(life) if *life == incarnation => Ok(()),
        Some(_) => Err(format!("{id} in the roster is another process")),
        None => Err(format!("{id} is not in the roster")),
    }
}

fn invite(reception: &Reception, driver: Driver) -> Result<(Vec<u8>, Box<dyn fabric::PendingOffer>), String> {
    let queues: Vec<CqHandle> = reception.lanes.iter().map(|(_, queue)| queue.clone()).collect();
    daemon::devices::of(&reception.devices, driver)?.offer(&queues).map_err(|error| error.to_string())
}

/// A lane's answer to a channel.
type Granted = oneshot::Receiver<Result<InboxGrant, String>>;

/// Gives each lane its channel. Does not wait for what they answer.
fn attach(
    reception: &Reception,
    (id, incarnation, number): (MemberId, Incarnation, u64),
    setups: Vec<ChannelSetup>,
    theirs: Vec<InboxGrant>,
) -> Result<Vec<Granted>, String> {
    // A server gets no slots: messages of lanes to it need none.
    let wanted = if id.role == Role::Worker { setups.len() } else { 0 };
    if theirs.len() != wanted || setups.len() != reception.lanes.len() {
        return Err("it sent the wrong number of inboxes".into());
    }
    let inboxes = theirs.into_iter().map(worker_inbox).collect::<Result<Vec<_>, _>>()?;
    let (mut inboxes, mut answers) = (inboxes.into_iter(), Vec::with_capacity(setups.len()));
    // Held until all lanes are told: whoever ends this peer's life tells them after us, or we see that it has ended.
    let peers = reception.peers.borrow();
    is_in_roster(peers.as_ref().ok_or("there is no roster")?, id, incarnation)?;
    // Lanes take messages in order: what a later try sends to this one comes after what this try does.
    if !reception.tries.is_last(id, number) {
        return Err("it has meanwhile requested a new connection".into());
    }
    for (setup, (lane, _)) in setups.into_iter().zip(&reception.lanes) {
        let (reply, answer) = oneshot::channel();
        let rank = id.rank;
        lane.send(match inboxes.next() {
            Some(inbox) => LaneMessage::Attach { rank, incarnation, setup, inbox, reply },
            None => LaneMessage::AttachCopy { from: rank, incarnation, setup, reply },
        });
        answers.push(answer);
    }
    Ok(answers)
}

fn worker_inbox(inbox: InboxGrant) -> Result<WorkerInbox, String> {
    let grants = inbox.grants.iter().map(|wire| SlotGrant::from_wire(*wire)).collect::<Option<Vec<_>>>();
    let InboxGrant { region, offset, slot_bytes, .. } = inbox;
    let grants = grants.ok_or("its first credit grants are malformed")?;
    Ok(WorkerInbox { region, offset, slot_bytes, grants })
}

/// What all lanes answer, within this time.
pub(super) fn answers_of<T>(answers: Vec<oneshot::Receiver<T>>, within: Duration) -> Result<Vec<T>, String> {
    answers_while(answers, within, || 0)
}

/// As [`answers_of`], where lanes may read a checkpoint first: the time begins anew as long as they read on.
pub(super) fn answers_while<T>(
    answers: Vec<oneshot::Receiver<T>>,
    within: Duration,
    read: impl Fn() -> u64,
) -> Result<Vec<T>, String> {
    let before = read();
    let (mut deadline, mut seen) = (Instant::now() + within, before);
    let mut take = |(index, answer): (usize, oneshot::Receiver<T>)| loop {
        match answer.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Timeout) if read() != seen => {
                (deadline, seen) = (Instant::now() + within, read());
            }
            Err(_) if seen > before => {
                let what = "of the checkpoint, and then no more";
                let (chunks, within_ms) = (seen - before, within.as_millis());
                return Err(format!(
                    "lane {index} of this server does not respond: {chunks} chunks were read {what} for {within_ms} ms; check the disk of checkpoint.directory"
                ));
            }
            Err(_) => return Err(format!("lane {index} of this server does not respond")),
        }
    };
    answers.into_iter().enumerate().map(&mut take).collect()
}

/// As [`answers_of`], where lanes may refuse.
pub(super) fn granted<T>(
    answers: Vec<oneshot::Receiver<Result<T, String>>>,
    within: Duration,
) -> Result<Vec<T>, String> {
    answers_of(answers, within)?.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_that_read_on_are_waited_for_and_those_that_stop_are_not() {
        let within = Duration::from_millis(50);
        let (reply, answer) = oneshot::channel();
        let read = std::cell::Cell::new(0);
        // Looked at once at first, and again whenever the time is over.
        let looked = || {
            read.set(read.get() + 1);
            if read.get() == 5 {
                reply.send(7);
            }
            read.get()
        };
        assert_eq!(answers_while(vec![answer], within, looked), Ok(vec![7]));
        let silent = |looked: &dyn Fn() -> u64| {
            let (_reply, answer) = oneshot::channel::<u32>();
            answers_while(vec![answer], within, looked).unwrap_err()
        };
        let read = std::cell::Cell::new(100);
        let error = silent(&|| {
            read.set((read.get() + 1).min(113));
            read.get()
        });
        assert!(error.contains("lane 0") && error.contains("12 chunks") && error.contains("disk"), "{error}");
        let error = silent(&|| 113);
        assert!(!error.contains("disk"), "what was read before is no reason: {error}");
    }

    fn worker(rank: u32) -> MemberId {
        MemberId { role: Role::Worker, rank: Rank(rank) }
    }

    #[test]
    fn an_earlier_try_is_told_from_the_last_one_of_the_same_peer() {
        let tries = Tries::default();
        let server = MemberId { role: Role::Server, rank: Rank(1) };
        let (first, other) = (tries.begin(worker(1)), tries.begin(server));
        assert!(tries.is_last(worker(1), first));
        let second = tries.begin(worker(1));
        assert!(!tries.is_last(worker(1), first) && tries.is_last(worker(1), second));
        assert!(tries.is_last(server, other) && !tries.is_last(worker(3), 0));
    }

    #[test]
    fn only_lives_of_the_roster_are_admitted_and_servers_where_the_map_wants_copies() {
        let epoch = Epoch { term: 2, counter: 3 };
        let mut peers = Peers { epoch, ..Peers::default() };
        peers.workers.insert(Rank(0), Incarnation(7));
        peers.servers.insert(Rank(1), Incarnation(8));
        let settings = proto_common::config::Settings::default();
        let hello = |rank, life, term| Hello {
            protocol: PROTOCOL_VERSION,
            job: JobId(1),
            rank: Rank(rank),
            incarnation: Incarnation(life),
            server_incarnation: Incarnation(9),
            epoch: Epoch { term, counter: 1 },
            offer: daemon::host::offer(settings.transport, Vec::new()).unwrap(),
        };
        let why = |peers: &Peers, (wants, rank, life, term)| {
            admits(peers, wants, &hello(rank, life, term)).err().unwrap_or_default()
        };
        assert_eq!(why(&peers, (Wants::Worker, 0, 7, 1)), "");
        assert!(why(&peers, (Wants::Worker, 0, 8, 2)).contains("another process"));
        assert!(why(&peers, (Wants::Worker, 1, 8, 2)).contains("not in the roster"));
        assert!(why(&peers, (Wants::Replica, 1, 8, 2)).contains("no replica of"));
        peers.copies_of.insert(Rank(1));
        assert_eq!(why(&peers, (Wants::Replica, 1, 8, 2)), "");
        peers.copies_of.clear();
        assert_eq!(why(&peers, (Wants::Journal, 1, 8, 2)), "", "any server keeps journals");
        assert!(why(&peers, (Wants::Journal, 1, 7, 2)).contains("another process"));
        peers.copies_of.insert(Rank(1));
        assert!(why(&peers, (Wants::Replica, 1, 8, 1)).contains("deposed"));
        assert!(why(&peers, (Wants::Replica, 1, 7, 2)).contains("another process"));
    }

    #[test]
    fn lanes_that_refuse_or_do_not_answer_are_named() {
        let lane = |answer: Option<Result<u32, String>>| {
            let (reply, answers) = oneshot::channel();
            answer.into_iter().for_each(|answer| reply.send(answer));
            answers
        };
        let within = Duration::from_millis(10);
        assert_eq!(granted(vec![lane(Some(Ok(1))), lane(Some(Ok(2)))], within), Ok(vec![1, 2]));
        let refused = granted(vec![lane(Some(Ok(1))), lane(Some(Err("no room".into())))], within);
        assert_eq!(refused, Err("no room".into()));
        let mute = granted(vec![lane(Some(Ok(1))), lane(None)], within).unwrap_err();
        assert!(mute.contains("lane 1"), "{mute}");
    }
}
