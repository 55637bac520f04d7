//! Journals of handlers over connections: to the server that keeps this one's, from servers whose journals this one keeps, and, in a
//! process that has taken the place of a failed one, from all that may have kept something. What is written and kept is `journal`'s to
//! decide.

use super::bootstrap::Reception;
use crate::engine::member::Peers;
use crate::journal::{Books, Desk, Log, Past, Record};
use daemon::control::{Connection, FrameError, ReadHalf, WriteHalf};
use daemon::reach;
use daemon::seldom::Seldom;
use proto_common::ids::{Epoch, Incarnation, Rank};
use proto_common::message::{FromKeeper, JournalReader, ToKeeper, ToServer, journal_frames};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Between two tries to reach a keeper, at first and at most.
const AGAIN_FIRST: Duration = Duration::from_millis(20);
const AGAIN_MOST: Duration = Duration::from_secs(1);

/// The journals that this server keeps.
pub(super) type Shelf = Arc<Mutex<Books>>;

fn lock(books: &Shelf) -> MutexGuard<'_, Books> {
    // Nothing that can panic runs while the lock is held.
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Another server, as the newest roster has it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Other {
    rank: Rank,
    life: Incarnation,
    address: String,
    epoch: Epoch,
}

/// All other servers, in the order in which they are asked to keep something: the next rank first.
fn others(peers: Option<&Peers>, own: Rank) -> Vec<Other> {
    let Some(peers) = peers else { return Vec::new() };
    let all = peers.servers.iter().filter_map(|(rank, life)| {
        let address = peers.addresses.get(rank)?.clone();
        Some(Other { rank: *rank, life: *life, address, epoch: peers.epoch })
    });
    let mut all: Vec<Other> = all.collect();
    all.sort_by_key(|other| (other.rank < own, other.rank));
    all
}

fn is_there(peers: Option<&Peers>, (rank, life): (Rank, Incarnation)) -> bool {
    peers.is_some_and(|peers| peers.servers.get(&rank) == Some(&life))
}

/// Resolves when a server is in the roster no more, or this one ends.
async fn leaves(reception: &Reception, of: (Rank, Incarnation)) {
    let mut peers = reception.peers.clone();
    let _ = peers.wait_for(|peers| !is_there(peers.as_ref(), of)).await;
}

async fn dial(reception: &Reception, to: &Other) -> Result<Connection, String> {
    let fix = "check that the server runs, and that its node.advertise names an address that servers reach";
    let hello = ToServer::Journal(reception.hello(to.life, to.epoch, &reception.offer));
    let (us, limit) = ((&reception.security, reception.job), reception.handshake);
    let greeted = reach::greet(us, &to.address, &hello, (limit, limit), fix).await;
    let mut link = greeted.map_err(|failed| failed.reason)?;
    link.admit();
    Ok(link)
}

/// Begins the journals of a job that has replicas. `comes_again`: this process has taken the place of a failed one, so what others have
/// kept is read first. Then the journals of this server's handlers are written until it ends.
pub(super) async fn begin(reception: Arc<Reception>, desk: Desk, comes_again: bool) {
    // It ends with the server.
    let mut known = reception.peers.clone();
    if known.wait_for(Option::is_some).await.is_err() {
        return;
    }
    let found = if comes_again { Some(read_all(&reception).await) } else { None };
    let mut logs: mpsc::UnboundedReceiver<Arc<Log>> = desk.open(reception.rank, found);
    let mut writers = tokio::task::JoinSet::new();
    while let Some(log) = logs.recv().await {
        writers.spawn(write(reception.clone(), log));
    }
}

/// The journals of this server's earlier process, from all that may have them: of each handler the newest.
async fn read_all(reception: &Arc<Reception>) -> BTreeMap<u32, Past> {
    let mut reading = tokio::task::JoinSet::new();
    let all = others(reception.peers.borrow().as_ref(), reception.rank);
    for other in all {
        let reception = reception.clone();
        reading.spawn(async move { read_from(&reception, other).await });
    }
    let mut found: BTreeMap<u32, Past> = BTreeMap::new();
    while let Some(read) = reading.join_next().await {
        for (app, past) in read.unwrap_or_default() {
            let known = found.entry(app).or_default();
            if known.keeper.is_none() || (past.generation, past.last) > (known.generation, known.last) {
                *known = past;
            }
        }
    }
    found
}

/// What one server has. It is asked again until it answers, is out of the roster, or `deadlines.connect_ms` are over.
async fn read_from(reception: &Reception, other: Other) -> BTreeMap<u32, Past> {
    let until = Instant::now() + reception.connect;
    let mut again = AGAIN_FIRST;
    loop {
        let reason = match read_once(reception, &other).await {
            Ok(found) => return found,
            Err(reason) => reason,
        };
        let is_over = Instant::now() + again >= until;
        if is_over || !is_there(reception.peers.borrow().as_ref(), (other.rank, other.life)) {
            let server = other.rank.0;
            tracing::error!(
                server,
                reason,
                "cannot read the journals of this server's handlers that another one may have"
            );
            return BTreeMap::new();
        }
        pause(&mut again).await;
    }
}

async fn read_once(reception: &Reception, other: &Other) -> Result<BTreeMap<u32, Past>, String> {
    let text = |error: FrameError| error.to_string();
    let mut link = dial(reception, other).await?;
    link.send_within(&ToKeeper::Read, reception.handshake).await.map_err(text)?;
    let (mut found, mut app) = (BTreeMap::new(), None);
    let mut reader = JournalReader::new(u64::MAX);
    loop {
        let heard = link.receive_within::<FromKeeper>(reception.connect).await.map_err(text)?;
        match heard {
            Some(FromKeeper::Journal { app: next, generation }) => {
                app = Some(next);
                let keeper = Some((other.rank, other.life));
                found.insert(next, Past { generation, keeper, ..Past::default() });
            }
            Some(FromKeeper::Frame(frame)) => {
                let past = app.and_then(|app| found.get_mut(&app)).ok_or("it sent a record of no journal")?;
                if let Some((number, record, body)) = reader.take(frame)? {
                    past.last = number;
                    past.records.push(Record { record, body });
                }
            }
            Some(FromKeeper::End) => return Ok(found),
            Some(FromKeeper::Refused { reason }) => return Err(reason),
            Some(FromKeeper::Ready { .. } | FromKeeper::Kept { .. }) => {
                return Err("it answered out of order".to_owned());
            }
            None => return Err("it closed the connection".to_owned()),
        }
    }
}

async fn pause(again: &mut Duration) {
    // Sleep: there is no event for when the other side can be reached.
    tokio::time::sleep(*again).await;
    *again = (*again * 2).min(AGAIN_MOST);
}

/// Writes the journal of one handler, to one server after the other as they fail.
async fn write(reception: Arc<Reception>, log: Arc<Log>) {
    let (mut peers, refused, mut again) = (reception.peers.clone(), Seldom::default(), AGAIN_FIRST);
    let mut keeper = log.keeper;
    loop {
        let all = others(peers.borrow_and_update().as_ref(), reception.rank);
        // The same as before while it is there: another one would need the whole state.
        let same = all.iter().position(|other| Some((other.rank, other.life)) == keeper);
        let Some(other) = all.into_iter().nth(same.unwrap_or(0)) else {
            tracing::warn!(
                app = log.app,
                "no other server is there to keep the handler's journal: its state has no copy"
            );
            (keeper, again) = (None, AGAIN_FIRST);
            log.alone();
            if peers.changed().await.is_err() {
                return;
            }
            continue;
        };
        let of = (other.rank, other.life);
        if keeper != Some(of) {
            (keeper, again) = (Some(of), AGAIN_FIRST);
        }
        let ended = tokio::select! {
            ended = write_to(&reception, &log, &other) => ended,
            () = leaves(&reception, of) => continue,
        };
        if let Err(reason) = ended
            && let Some(others) = refused.may_speak()
        {
            let server = other.rank.0;
            tracing::warn!(
                app = log.app,
                server,
                reason,
                others,
                "the handler's journal is interrupted; its answers wait"
            );
        }
        pause(&mut again).await;
    }
}

async fn write_to(reception: &Arc<Reception>, log: &Arc<Log>, to: &Other) -> Result<(), String> {
    let text = |error: FrameError| error.to_string();
    let mut link = dial(reception, to).await?;
    let (app, generation, is_new) = (log.app, log.generation, log.is_new());
    let write = ToKeeper::Write { app, generation, is_new };
    link.send_within(&write, reception.handshake).await.map_err(text)?;
    // It may first have to wait until the scheduler has sent it the roster with this process.
    match link.receive_within::<FromKeeper>(2 * reception.handshake).await.map_err(text)? {
        Some(FromKeeper::Ready { next }) => log.connected(next),
        Some(FromKeeper::Refused { reason }) => return Err(reason),
        Some(_) => return Err("it answered out of order".to_owned()),
        None => return Err("it closed the connection".to_owned()),
    }
    tracing::info!(app, server = to.rank.0, "another server keeps the handler's journal");
    let (reader, writer) = link.into_split();
    let (limit, sent) = (reception.connect, AtomicU64::new(0));
    tokio::select! {
        ended = send(log, writer, (limit, &sent)) => ended,
        ended = hear(log, reader, (limit, &sent)) => ended,
    }
}

/// Sends records as they come.
async fn send(log: &Log, mut writer: WriteHalf, (limit, sent): (Duration, &AtomicU64)) -> Result<(), String> {
    loop {
        while let Some((number, record)) = log.to_send() {
            for frame in journal_frames(number, &record.record, &record.body) {
                writer
                    .send_within(&ToKeeper::Frame(frame), limit)
                    .await
                    .map_err(|error| error.to_string())?;
                sent.fetch_add(1, Relaxed);
            }
        }
        log.news().await;
    }
}

/// Hears what is kept. Without requests nothing is owed; while something is, either bytes go out or a confirmation comes in each
/// `deadlines.connect_ms`. Otherwise the connection is of no use, whatever the roster has.
async fn hear(log: &Log, mut reader: ReadHalf, (limit, sent): (Duration, &AtomicU64)) -> Result<(), String> {
    let mut before = (None, 0);
    loop {
        match tokio::time::timeout(limit, reader.receive::<FromKeeper>()).await {
            Ok(heard) => match heard.map_err(|error| error.to_string())? {
                Some(FromKeeper::Kept { number }) => log.kept(number),
                Some(FromKeeper::Refused { reason }) => return Err(reason),
                Some(_) => return Err("it answered out of order".to_owned()),
                None => return Err("it closed the connection".to_owned()),
            },
            Err(_) => {
                let now = (log.oldest(), sent.load(Relaxed));
                if now.0.is_some() && now == before {
                    return Err(format!("it has not confirmed a record within {} ms", limit.as_millis()));
                }
                before = now;
            }
        }
    }
}

/// Keeps journals for a server, until it closes the connection or is out of the roster.
pub(super) async fn keep(reception: &Reception, link: Connection, of: (Rank, Incarnation)) {
    let ended = tokio::select! {
        ended = keep_for(reception, link, of) => ended,
        () = leaves(reception, of) => return,
    };
    if let Err(reason) = ended {
        tracing::warn!(server = of.0.0, reason, "stopped keeping journals of a server over one connection");
    }
}

async fn keep_for(
    reception: &Reception,
    link: Connection,
    (server, life): (Rank, Incarnation),
) -> Result<(), String> {
    let text = |error: FrameError| error.to_string();
    let (books, limit) = (&reception.books, reception.connect);
    let mut reader = JournalReader::new(lock(books).most_bytes());
    let (mut receive, mut send) = link.into_split();
    let mut writes = None;
    while let Some(heard) = receive.receive::<ToKeeper>().await.map_err(text)? {
        let kept = match heard {
            ToKeeper::Write { app, generation, is_new } => {
                let begun = lock(books).write((server, life), app, generation, is_new);
                begun.map(|(ticket, next)| {
                    writes = Some((app, ticket));
                    Some(FromKeeper::Ready { next })
                })
            }
            ToKeeper::Frame(frame) => match (reader.take(frame)?, writes) {
                (None, _) => Ok(None),
                (Some((number, record, body)), Some((app, ticket))) => {
                    let record = Record { record, body };
                    let is_kept = lock(books).record((server, app), ticket, number, record);
                    is_kept.map(|is_kept| is_kept.then_some(FromKeeper::Kept { number }))
                }
                (Some(_), None) => return Err("it sent a record of no journal".to_owned()),
            },
            ToKeeper::Read => {
                let kept = lock(books).read(server, life);
                for journal in kept {
                    let (app, generation) = (journal.app, journal.generation);
                    send.send_within(&FromKeeper::Journal { app, generation }, limit).await.map_err(text)?;
                    for (number, record) in (journal.first..).zip(&journal.records) {
                        for frame in journal_frames(number, &record.record, &record.body) {
                            send.send_within(&FromKeeper::Frame(frame), limit).await.map_err(text)?;
                        }
                    }
                }
                Ok(Some(FromKeeper::End))
            }
        };
        match kept {
            Ok(None) => {}
            Ok(Some(answer)) => send.send_within(&answer, limit).await.map_err(text)?,
            Err(error) => {
                let reason = error.to_string();
                let refused = FromKeeper::Refused { reason: reason.clone() };
                send.send_within(&refused, limit).await.map_err(text)?;
                return Err(reason);
            }
        }
    }
    Ok(())
}
