//! The journals that this server keeps for the handlers of others. Owns their records, who may write which, and how much memory all of
//! them take. It must not know what a request means.
//!
//! ```text
//!   write ──▶ lines, replies: coming ──state──▶ whole ──request──▶ whole
//!                                                 │
//!                        read: earlier processes may write no more
//! ```
//!
//! A new state replaces the one before only when it is complete. Otherwise a server that fails while it sends one would leave nothing.

use super::log::Record;
use proto_common::ids::{Incarnation, Rank};
use proto_common::message::JournalRecord;
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;

/// Handlers of one server whose journals are kept.
const HANDLERS_MAX: usize = 4096;

/// A record that is not kept.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum BookError {
    /// Its sender has done something wrong, or another process of that rank, or another connection, writes now.
    #[error("{0}")]
    Order(&'static str),
    /// There is no memory for it.
    #[error(
        "server {server} keeps journals of {bytes} bytes, and may keep {most_bytes}, half of its memory; save smaller states, or add \
         memory or servers"
    )]
    Full {
        /// This server.
        server: Rank,
        /// Bytes kept.
        bytes: u64,
        /// Bytes that may be.
        most_bytes: u64,
    },
}

#[derive(Debug)]
struct Book {
    life: Incarnation,
    generation: u64,
    next: u64,
    records: Vec<Arc<Record>>,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Shelf {
    /// The process and the connection that write, and which process it is.
    writer: Option<(Incarnation, u64, u64)>,
    /// No process has answered a call to the handler, as of this one.
    new: Option<u64>,
    whole: Option<Book>,
    /// A state that is not complete, with the number of its next record.
    coming: Option<(u64, Vec<Arc<Record>>, u64)>,
}

impl Shelf {
    fn bytes(&self) -> u64 {
        self.whole.as_ref().map_or(0, |book| book.bytes)
            + self.coming.as_ref().map_or(0, |(_, _, bytes)| *bytes)
    }
}

/// A journal as it is read.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) app: u32,
    pub(crate) generation: u64,
    /// The number of the first record.
    pub(crate) first: u64,
    pub(crate) records: Vec<Arc<Record>>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Books {
    own: Rank,
    shelves: BTreeMap<(Rank, u32), Shelf>,
    /// The process that has read last what is kept for its rank.
    readers: BTreeMap<Rank, Incarnation>,
    tickets: u64,
    most_bytes: u64,
}

impl Books {
    /// Books of this server, of at most so many bytes.
    pub(crate) fn new(own: Rank, most_bytes: u64) -> Self {
        Self { own, shelves: BTreeMap::new(), readers: BTreeMap::new(), tickets: 0, most_bytes }
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.shelves.values().map(Shelf::bytes).sum()
    }

    /// Bytes that one record may have.
    pub(crate) fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    /// This process writes this handler's journal from now on, over one connection: only the newest may. Returns the connection's
    /// ticket, and the number of the record that is next; 0: a state.
    pub(crate) fn write(
        &mut self,
        (server, life): (Rank, Incarnation),
        app: u32,
        generation: u64,
        is_new: bool,
    ) -> Result<(u64, u64), BookError> {
        if self.readers.get(&server).is_some_and(|reader| *reader != life) {
            return Err(BookError::Order("another process has taken its place"));
        }
        let count = self.shelves.range((server, 0)..=(server, u32::MAX)).count();
        if count >= HANDLERS_MAX && !self.shelves.contains_key(&(server, app)) {
            return Err(BookError::Order("it has more handlers than a server may have"));
        }
        self.tickets += 1;
        let shelf = self.shelves.entry((server, app)).or_default();
        shelf.writer = Some((life, self.tickets, generation));
        shelf.coming = None;
        shelf.new = is_new.then_some(generation);
        let next = shelf.whole.as_ref().filter(|book| book.life == life).map_or(0, |book| book.next);
        Ok((self.tickets, next))
    }

    /// The next record. True where it, and all before it, are kept as a whole now.
    pub(crate) fn record(
        &mut self,
        (server, app): (Rank, u32),
        ticket: u64,
        number: u64,
        record: Record,
    ) -> Result<bool, BookError> {
        let (all, most_bytes, own) = (self.bytes(), self.most_bytes, self.own);
        let bytes = record.bytes();
        let Some(shelf) = self.shelves.get_mut(&(server, app)) else {
            return Err(BookError::Order("nobody writes this journal"));
        };
        let Some((life, _, generation)) = shelf.writer.filter(|(_, newest, _)| *newest == ticket) else {
            return Err(BookError::Order("this journal is written over another connection now"));
        };
        if all.saturating_add(bytes) > most_bytes {
            return Err(BookError::Full { server: own, bytes: all, most_bytes });
        }
        let known = shelf.whole.as_mut().filter(|book| book.life == life);
        if let JournalRecord::Request { .. } = record.record {
            let Some(book) = known.filter(|book| book.next == number && shelf.coming.is_none()) else {
                return Err(BookError::Order("a request of its journal is out of order"));
            };
            (book.next, book.bytes) = (number + 1, book.bytes + bytes);
            book.records.push(Arc::new(record));
            return Ok(true);
        }
        let first = known.map_or(1, |book| book.next);
        let (next, mut records, before) = shelf.coming.take().unwrap_or((number.max(first), Vec::new(), 0));
        if number != next {
            return Err(BookError::Order("a state of its journal is out of order"));
        }
        let is_whole = record.record == JournalRecord::State;
        records.push(Arc::new(record));
        let (next, bytes) = (number.saturating_add(1), before + bytes);
        if is_whole {
            (shelf.whole, shelf.new) = (Some(Book { life, generation, next, records, bytes }), None);
        } else {
            shelf.coming = Some((next, records, bytes));
        }
        Ok(is_whole)
    }

    /// What is kept of a server's handlers, for a process that has taken its place. Earlier ones write no more.
    pub(crate) fn read(&mut self, server: Rank, life: Incarnation) -> Vec<Kept> {
        self.readers.insert(server, life);
        let mut all = Vec::new();
        for ((_, app), shelf) in self.shelves.range_mut((server, 0)..=(server, u32::MAX)) {
            shelf.writer = shelf.writer.filter(|(writer, ..)| *writer == life);
            let kept = match (&shelf.whole, shelf.new) {
                (_, Some(generation)) => Kept { app: *app, generation, first: 0, records: Vec::new() },
                (Some(Book { generation, next, records, .. }), None) => {
                    let first = next.saturating_sub(records.len() as u64);
                    Kept { app: *app, generation: *generation, first, records: records.clone() }
                }
                (None, None) => continue,
            };
            all.push(kept);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::log::RECORD_BYTES;
    use super::*;
    use proto_common::message::JournalLine;

    const OWN: Rank = Rank(0);
    const OTHER: Rank = Rank(1);
    const OF: (Rank, u32) = (OTHER, 7);

    fn line() -> JournalLine {
        JournalLine { worker: Rank(0), life: Incarnation(3), lane: 0 }
    }

    fn request(operation: u64) -> Record {
        let record = JournalRecord::Request { line: line(), operation, first_open: 1, head: Vec::new() };
        Record { record, body: vec![1; 10] }
    }

    fn begin() -> Record {
        Record { record: JournalRecord::Line { line: line(), next: 1, first_open: 1 }, body: Vec::new() }
    }

    fn state(byte: u8) -> Record {
        Record { record: JournalRecord::State, body: vec![byte] }
    }

    fn bodies(books: &mut Books, life: u64) -> Vec<(u64, usize, u8)> {
        let all = books.read(OTHER, Incarnation(life)).into_iter();
        let of = |kept: Kept| {
            let state = kept.records.iter().find(|record| record.record == JournalRecord::State);
            (kept.generation, kept.records.len(), state.map_or(0, |record| record.body[0]))
        };
        all.map(of).collect()
    }

    #[test]
    fn a_state_and_what_follows_it_are_kept_and_a_new_one_takes_their_place_when_it_is_whole() {
        let mut books = Books::new(OWN, 10_000);
        let (ticket, next) = books.write((OTHER, Incarnation(5)), 7, 1, false).unwrap();
        assert_eq!(next, 0);
        assert!(books.record(OF, ticket, 1, request(1)).is_err(), "before a state");
        assert_eq!(books.record(OF, ticket, 1, begin()), Ok(false));
        assert_eq!(books.read(OTHER, Incarnation(5)).len(), 0, "it is not complete");
        assert_eq!(books.record(OF, ticket, 2, state(8)), Ok(true));
        assert_eq!(books.record(OF, ticket, 3, request(1)), Ok(true));
        assert!(books.record(OF, ticket, 5, request(2)).is_err(), "one is missing");
        assert_eq!(bodies(&mut books, 5), [(1, 3, 8)]);
        assert_eq!(books.record(OF, ticket, 9, begin()), Ok(false), "a state begins anywhere");
        assert_eq!(bodies(&mut books, 5), [(1, 3, 8)], "the one before is kept until then");
        assert!(books.record(OF, ticket, 10, request(2)).is_err());
        assert_eq!(books.record(OF, ticket, 10, state(9)), Ok(true));
        assert_eq!(bodies(&mut books, 5), [(1, 2, 9)]);
        assert_eq!(books.bytes(), 2 * RECORD_BYTES + 1);
    }

    #[test]
    fn only_the_newest_connection_of_a_process_that_lives_writes() {
        let mut books = Books::new(OWN, 10_000);
        let (old, _) = books.write((OTHER, Incarnation(5)), 7, 1, false).unwrap();
        assert_eq!(books.record(OF, old, 1, state(1)), Ok(true));
        assert_eq!(books.record(OF, old, 2, begin()), Ok(false));
        let (new, next) = books.write((OTHER, Incarnation(5)), 7, 1, false).unwrap();
        assert_eq!(next, 2, "what was not complete comes again");
        assert!(books.record(OF, old, 2, request(1)).is_err());
        assert_eq!(books.record(OF, new, 2, request(1)), Ok(true));
        assert_eq!(bodies(&mut books, 6), [(1, 2, 1)], "another process reads");
        assert!(books.record(OF, new, 3, request(2)).is_err(), "and the one before is over");
        let (ticket, next) = books.write((OTHER, Incarnation(6)), 7, 2, false).unwrap();
        assert_eq!(next, 0);
        assert!(books.record(OF, ticket, 3, request(2)).is_err(), "of a state that was another process's");
        assert_eq!(bodies(&mut books, 6), [(1, 2, 1)]);
        assert_eq!(books.record(OF, ticket, 1, state(4)), Ok(true));
        assert_eq!(bodies(&mut books, 6), [(2, 1, 4)]);
        assert!(books.write((OTHER, Incarnation(5)), 7, 1, false).is_err(), "it was declared failed");
    }

    #[test]
    fn memory_has_a_bound_and_the_error_names_it() {
        let mut books = Books::new(OWN, 400);
        let (ticket, _) = books.write((OTHER, Incarnation(5)), 7, 1, false).unwrap();
        assert_eq!(books.record(OF, ticket, 1, state(1)), Ok(true));
        assert_eq!(books.record(OF, ticket, 2, request(1)), Ok(true));
        let full = books.record(OF, ticket, 3, request(2)).unwrap_err();
        assert!(full.to_string().contains("server 0") && full.to_string().contains("400"), "{full}");
        assert_eq!(bodies(&mut books, 5), [(1, 2, 1)]);
    }

    #[test]
    fn a_handler_that_has_answered_nothing_is_known_and_has_no_records() {
        let mut books = Books::new(OWN, 10_000);
        let (ticket, _) = books.write((OTHER, Incarnation(5)), 7, 1, true).unwrap();
        assert_eq!(books.record(OF, ticket, 1, begin()), Ok(false));
        assert_eq!(bodies(&mut books, 6), [(1, 0, 0)]);
        let (ticket, _) = books.write((OTHER, Incarnation(6)), 7, 2, true).unwrap();
        assert_eq!(books.record(OF, ticket, 1, state(4)), Ok(true));
        assert_eq!(bodies(&mut books, 6), [(2, 1, 4)]);
    }
}
