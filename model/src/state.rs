//! What a state of the model consists of. It must not decide anything.

use std::collections::{BTreeMap, BTreeSet};

/// Workers of every instance: two, so that a round can be half collected.
pub const WORKERS: usize = 2;

/// Rounds that a worker contributes to, at most.
pub const ROUNDS_MAX: usize = 3;

/// How often each contribution was applied to a chunk: by worker, then round.
pub(crate) type Applied = [[u8; ROUNDS_MAX]; WORKERS];

/// A contribution: worker and round (from 1).
pub(crate) type Entry = (u8, u8);

/// A server by its place.
pub(crate) type Place = u8;

/// Which decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch {
    /// Of which life of the scheduler.
    pub term: u8,
    /// Its how many-th.
    pub counter: u8,
}

/// What a decision says: roster and map in one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Map {
    /// Which one.
    pub epoch: Epoch,
    /// Serves the chunk.
    pub primary: Place,
    /// Has a copy that is kept up.
    pub backup: Option<Place>,
    /// Has a copy made, and since which epoch.
    pub seeding: Option<(Place, Epoch)>,
    /// The copy being made is to become the server.
    pub moving: bool,
    /// Life of the server at each place; 0: nobody.
    pub lives: Vec<u8>,
}

impl Map {
    /// The decision that there is to be a copy at `place`; the first one where it has been a backup for long.
    pub(crate) fn since(&self, place: Place) -> Epoch {
        self.seeding.filter(|(at, _)| *at == place).map_or_else(Epoch::default, |(_, since)| since)
    }

    /// Has `place` a copy, or one being made?
    pub(crate) fn copies(&self, place: Place) -> bool {
        self.backup == Some(place) || self.seeding.is_some_and(|(at, _)| at == place)
    }
}

/// A round whose sum is complete and not published.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pending {
    pub(crate) entries: Vec<Entry>,
    pub(crate) confirmed: BTreeSet<Place>,
}

/// A server's process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(crate) up: bool,
    pub(crate) life: u8,
    pub(crate) map: Map,
    pub(crate) version: u8,
    pub(crate) applied: Applied,
    /// Whose stream the last record came by: place, life, and the decision since which that one means it to be a copy.
    pub(crate) source: Option<(Place, u8, Epoch)>,
    pub(crate) collected: Vec<Entry>,
    pub(crate) pending: Option<Pending>,
    /// Copies that the chunk is in the stream of.
    pub(crate) streamed: BTreeSet<Place>,
    /// Copies that have confirmed all of it once.
    pub(crate) filled: BTreeSet<Place>,
    /// The scheduler was told that the copy being made since this epoch is complete.
    pub(crate) told: Option<Epoch>,
}

/// One record of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Record {
    State { version: u8, applied: Applied },
    Update { version: u8, entries: Vec<Entry> },
}

/// A channel between servers: what is under way, both ways.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    pub(crate) records: Vec<Record>,
    pub(crate) acked: Vec<u8>,
}

/// A worker's process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Worker {
    pub(crate) map: Map,
    /// Rounds that it was answered.
    pub(crate) acked: u8,
    /// The most of them in any life of it.
    pub(crate) acked_ever: u8,
    /// The server that it has sent the open round to.
    pub(crate) sent: Option<Place>,
}

/// A contribution under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Request {
    pub(crate) worker: u8,
    pub(crate) round: u8,
    pub(crate) to: Place,
    pub(crate) life: u8,
}

/// An answer under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Answer {
    pub(crate) from: Place,
    pub(crate) worker: u8,
    pub(crate) round: u8,
    pub(crate) epoch: Epoch,
    /// Which version it is in, and what that is; nothing: it is to go elsewhere.
    pub(crate) done: Option<(u8, Applied)>,
}

/// Who has come to a restarted scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Rebuild {
    pub(crate) servers: BTreeSet<Place>,
    pub(crate) workers: BTreeSet<u8>,
    pub(crate) shown: Option<Map>,
}

/// The scheduler's process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scheduler {
    Decides(Map),
    Down {
        term: u8,
    },
    Rebuilds {
        term: u8,
        rebuild: Rebuild,
    },
    /// The job has ended with an error: nothing has the data.
    Over,
}

/// What a server tells the scheduler.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Seeded {
    pub(crate) from: Place,
    pub(crate) to: Place,
    pub(crate) since: Epoch,
    pub(crate) term: u8,
}

/// How often each thing may still go wrong (or happen).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Servers that crash.
    pub crashes: u8,
    /// Servers that are declared dead and live.
    pub deposed: u8,
    /// Lives of the scheduler that end.
    pub schedulers: u8,
    /// Streams that break for no reason.
    pub breaks: u8,
    /// Servers that come.
    pub joins: u8,
    /// Moves of the chunk.
    pub moves: u8,
    /// Workers that come again, and repeat a round.
    pub workers: u8,
    /// Peers that are stopped in the middle of a copy.
    pub stops: u8,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub(crate) servers: Vec<Server>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) scheduler: Scheduler,
    /// Decisions under way: to servers, then to workers. Each in order.
    pub(crate) to_servers: Vec<Vec<Map>>,
    pub(crate) to_workers: Vec<Vec<Map>>,
    pub(crate) seeded: BTreeSet<Seeded>,
    pub(crate) streams: BTreeMap<(Place, Place), Stream>,
    pub(crate) requests: BTreeSet<Request>,
    pub(crate) answers: BTreeSet<Answer>,
    /// What each version was when a worker first took an answer of it.
    pub(crate) published: BTreeMap<u8, Applied>,
    /// Somebody was answered with another version of the same number.
    pub(crate) forked: bool,
    /// Who was made the server of each epoch that was decided.
    pub(crate) decided: BTreeMap<Epoch, Place>,
    /// An epoch was decided twice.
    pub(crate) torn: bool,
    /// The member that each granted cell is granted to, by the cell's owner and number.
    pub(crate) grants: BTreeMap<(Member, u8), Member>,
    pub(crate) copies: BTreeSet<Copy>,
    /// A late copy landed in memory that was granted again.
    pub(crate) overwritten: bool,
    pub(crate) left: Budget,
}

/// A process in its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Member {
    /// The server at this place.
    Server(Place),
    /// The worker with this rank.
    Worker(u8),
}

/// A channel as the memory sees it: whoever copies, and whose memory it copies into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Channel {
    /// It copies.
    pub writer: Member,
    /// It grants.
    pub owner: Member,
}

/// A copy whose writer is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Copy {
    pub(crate) channel: Channel,
    pub(crate) cell: u8,
    /// The channel has ended: nothing of it counts, but its bytes still land.
    pub(crate) is_late: bool,
}
