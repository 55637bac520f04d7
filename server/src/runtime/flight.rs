//! What a lane records of its work, and what it says of rounds that were slow. Everything is told after the fact, from what the
//! engine knows anyway; it must not change what the lane does.

use crate::engine::{Arrival, LaneEngine, ResultBlock, Source, Waiting};
use crate::storage::Storage;
use daemon::flight::{Event, Flight, Kind, NOBODY, OWN_EVENT_BYTES, Recorder, Slow};
use proto_common::batch::{Block, BlockData};
use proto_common::ids::{Key, Lane, Rank, Role};
use std::fmt;
use std::time::Instant;

/// Ranks that a line about a slow round names.
const NAMED_MAX: usize = 8;
/// An oldest operation that has waited for so long is recorded whenever somebody asks for it.
const WAITS_MS: u64 = 100;

/// Who knows what an event says of a chunk.
pub(super) type Of<'a> = (&'a LaneEngine, &'a Storage);

/// Where a slow round's time went. What was not timed is in the rest.
#[derive(Clone, Debug, Default, PartialEq)]
struct Went {
    took_ms: u64,
    /// From its first contribution to its last, and who came in the second half of that.
    late_ms: u64,
    late: Vec<Rank>,
    /// For its copy, at a server.
    copy_ns: u64,
    copy_at: u32,
    /// In sums and the update, where those are timed: while the recorder is on, and of what is not small.
    work_ns: Option<u64>,
}

impl fmt::Display for Went {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { took_ms, late_ms, late, copy_ns, copy_at, work_ns } = self;
        let in_ms = |ns: u64| ns as f64 / 1e6;
        if *late_ms > 0 {
            let late: Vec<String> = late.iter().map(Rank::to_string).collect();
            write!(f, "waited {late_ms} ms for worker {}; ", late.join(", "))?;
        }
        if *copy_ns > 0 {
            write!(f, "{:.1} ms for the copy at server {copy_at}; ", in_ms(*copy_ns))?;
        }
        if let Some(work_ns) = work_ns {
            write!(f, "{:.1} ms for sums and update; ", in_ms(*work_ns))?;
        }
        let known_ms = in_ms(copy_ns + work_ns.unwrap_or(0));
        let rest_ms = (took_ms.saturating_sub(*late_ms) as f64 - known_ms).max(0.0);
        write!(f, "{rest_ms:.1} ms for the rest")
    }
}

/// What a chunk's round has cost so far, as far as it is timed.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    reduce_ns: u64,
    /// When its sum left for its copy, and to whom; 0: it has not.
    sent_ns: u64,
    sent_to: u32,
}

/// See the module. The default one records nothing, and finds nothing slow.
#[derive(Debug, Default)]
pub(super) struct LaneFlight {
    recorder: Recorder,
    slow: Slow,
    /// The tensor and the round that the last line was about.
    said: Option<(u64, u64)>,
    /// For tensors' names.
    flight: Option<Flight>,
    lane: Lane,
    now_ms: u64,
    /// By chunk index; only of chunks that are timed or have copies.
    spent: Vec<Spent>,
    /// Of the rounds that the commands under way end, in their order; and how many of them are told.
    arrivals: Vec<Arrival>,
    told: usize,
}

impl LaneFlight {
    fn is_on(&self) -> bool {
        self.flight.is_some()
    }

    fn spent(&mut self, chunk: u32) -> &mut Spent {
        let at = chunk as usize;
        if at >= self.spent.len() {
            self.spent.resize(at + 1, Spent::default());
        }
        &mut self.spent[at]
    }

    /// Of which rounds it has to know the arrivals: as [`Commands::told_before_ms`](crate::engine::Commands::told_before_ms).
    pub(super) fn told_before_ms(&self) -> u64 {
        match self.recorder.is_on() {
            true => u64::MAX,
            false => self.now_ms.saturating_sub(self.slow.limit_ms()),
        }
    }

    /// Commands are about to be executed, whose rounds had these contributions. Their memory comes back with the next.
    pub(super) fn arrive(&mut self, arrivals: &mut Vec<Arrival>) {
        std::mem::swap(&mut self.arrivals, arrivals);
        arrivals.clear();
        self.told = 0;
        for arrival in &mut self.arrivals {
            arrival.since_ms = arrival.since_ms.min(self.now_ms);
        }
    }

    /// Those of a round, once.
    fn came_to(&mut self, chunk: u32, round: u64) -> std::ops::Range<usize> {
        let first = self.told;
        let left = self.arrivals.get(first..).unwrap_or_default();
        self.told += left.iter().take_while(|came| (came.chunk, came.round) == (chunk, round)).count();
        first..self.told
    }

    /// An event that is about nothing but a peer.
    pub(super) fn peer(&mut self, kind: Kind, peer: Rank) {
        self.recorder.note(Event { peer: peer.0, ..Event::of(kind) });
    }

    /// What a lane does is recorded from now on.
    pub(super) fn new(flight: &Flight, lane: Lane) -> Self {
        let recorder = flight.thread(format!("lane {}", lane.0));
        Self { recorder, slow: flight.slow().clone(), flight: Some(flight.clone()), lane, ..Self::default() }
    }

    /// The lane's thread has looked at the clock; `now_ms` is what it calls that.
    pub(super) fn saw(&mut self, now: Instant, now_ms: u64) {
        self.recorder.saw(now);
        self.now_ms = now_ms;
    }

    /// A batch was decoded: it, and each large contribution of it.
    pub(super) fn batch(&mut self, rank: Rank, blocks: &[Block]) {
        if !self.recorder.is_on() {
            return;
        }
        let event = |kind, block: &Block, bytes, extra| Event {
            kind,
            key: block.id.key.0,
            chunk: block.id.chunk.0,
            peer: rank.0,
            round: block.count.round(),
            bytes,
            extra,
        };
        let mut total = 0;
        for block in blocks {
            let carries = block.op.contributes() && !matches!(block.data, BlockData::Announced { .. });
            total += if carries { block.bytes } else { 0 };
            if carries && block.bytes >= OWN_EVENT_BYTES {
                self.recorder.note(event(Kind::Contribution, block, block.bytes, 0));
            }
        }
        let Some(first) = blocks.first() else { return };
        self.recorder.note(event(Kind::BatchTaken, first, total, blocks.len() as u64));
    }

    /// Results leave for a worker.
    pub(super) fn results(&mut self, peer: Rank, results: &[ResultBlock]) {
        if !self.recorder.is_on() {
            return;
        }
        let first = results.first().map(|result| result.block);
        self.recorder.note(Event {
            key: first.map_or(0, |block| block.id.key.0),
            chunk: first.map_or(0, |block| block.id.chunk.0),
            peer: peer.0,
            extra: results.len() as u64,
            ..Event::of(Kind::ResultsSent)
        });
    }

    /// Work on a chunk begins, if that is worth timing.
    pub(super) fn begin(&mut self, chunk: u32, storage: &Storage) -> Option<u64> {
        if !self.is_on() {
            return None;
        }
        self.recorder.begin(storage.size_of(chunk).unwrap_or(0))
    }

    /// It is done.
    pub(super) fn end(&mut self, begun: Option<u64>, kind: Kind, (chunk, of): (u32, Of<'_>), from: Source) {
        let Some(began_ns) = begun else { return };
        let peer = match from {
            Source::Worker { peer, .. } => peer.0,
            _ => NOBODY,
        };
        let event = Event { peer, ..about(kind, chunk, of) };
        self.recorder.end(begun, event);
        let took_ns = self.recorder.now_ns().saturating_sub(began_ns);
        self.spent(chunk).reduce_ns += took_ns;
    }

    /// A chunk's sum leaves for a server that has its copy, in one record or several.
    pub(super) fn copy(&mut self, (chunk, of): (u32, Of<'_>), to: Rank, round: u64) {
        if !self.is_on() {
            return;
        }
        let now_ns = self.recorder.now_ns();
        let spent = self.spent(chunk);
        if spent.sent_ns == 0 {
            (spent.sent_ns, spent.sent_to) = (now_ns.max(1), to.0);
        }
        let event = Event { peer: to.0, round, ..about(Kind::CopySent, chunk, of) };
        self.recorder.note(event);
    }

    /// A chunk was copied for a checkpoint.
    pub(super) fn save(&mut self, begun: Option<u64>, (chunk, of): (u32, Of<'_>), round: u64) {
        if begun.is_some() {
            let event = Event { round, ..about(Kind::CheckpointCopy, chunk, of) };
            self.recorder.end(begun, event);
        }
    }

    /// A round's weights are made: what it was, and what it took, where that was long.
    pub(super) fn round(
        &mut self,
        begun: Option<u64>,
        (chunk, of): (u32, Of<'_>),
        (round, contributors): (u64, u32),
    ) {
        if !self.is_on() {
            return;
        }
        let came = self.came_to(chunk, round);
        let about = Event { round, extra: u64::from(contributors), ..about(Kind::Finish, chunk, of) };
        self.recorder.end(begun, about);
        let now_ns = self.recorder.now_ns();
        let finish_ns = begun.map_or(0, |began_ns| now_ns.saturating_sub(began_ns));
        let spent = self.spent.get_mut(chunk as usize).map(std::mem::take).unwrap_or_default();
        if spent.sent_ns != 0 {
            let event = Event { kind: Kind::CopyConfirmed, peer: spent.sent_to, ..about };
            self.recorder.since(spent.sent_ns, event);
        }
        let (mut first_ms, mut last_ms, mut last) = (u64::MAX, 0, NOBODY);
        for arrival in &self.arrivals[came.clone()] {
            first_ms = first_ms.min(arrival.since_ms);
            if arrival.since_ms >= last_ms {
                (last_ms, last) = (arrival.since_ms, arrival.rank.0);
            }
        }
        if last == NOBODY {
            return;
        }
        let took_ms = self.now_ms.saturating_sub(first_ms);
        let late_us = last_ms.saturating_sub(first_ms) * 1_000;
        let start_ns = now_ns.saturating_sub(took_ms * 1_000_000 + finish_ns);
        let event = Event { kind: Kind::Round, peer: last, extra: late_us, ..about };
        self.recorder.since(start_ns, event);
        if self.slow.is_slow(took_ms) {
            let arrivals = std::mem::take(&mut self.arrivals);
            self.say_slow(&about, (&arrivals[came], first_ms, last_ms), (spent, finish_ns));
            self.arrivals = arrivals;
        }
    }

    /// In one line: where a round's time went, and who came late. A round of a tensor has one line, although it may have thousands of
    /// chunks, which are slow together.
    fn say_slow(
        &mut self,
        about: &Event,
        (came, first_ms, last_ms): (&[Arrival], u64, u64),
        (spent, finish_ns): (Spent, u64),
    ) {
        let Self { slow, said, flight, recorder, lane, now_ms, .. } = self;
        let now_ms = *now_ms;
        if said.replace((about.key, about.round)) == Some((about.key, about.round)) {
            return slow.count_silently();
        }
        let Some(left_out) = slow.count() else { return };
        let tensor = flight.as_ref().map_or_else(String::new, |flight| flight.called(Key(about.key)));
        let late_ms = last_ms - first_ms;
        // Those that came in the second half of the wait are who was waited for.
        let late = came.iter().filter(|came| 2 * (came.since_ms - first_ms) > late_ms);
        let copy_ns = match spent.sent_ns {
            0 => 0,
            sent_ns => recorder.now_ns().saturating_sub(finish_ns).saturating_sub(sent_ns),
        };
        let took_ms = now_ms - first_ms;
        let why = Went {
            took_ms,
            late_ms,
            late: late.map(|came| came.rank).take(NAMED_MAX).collect(),
            copy_ns,
            copy_at: spent.sent_to,
            work_ns: (recorder.is_on() && about.bytes >= OWN_EVENT_BYTES)
                .then_some(spent.reduce_ns + finish_ns),
        };
        let (lane, round, bytes) = (lane.0, about.round, about.bytes);
        tracing::warn!(
            tensor,
            chunk = about.chunk,
            lane,
            round,
            bytes,
            took_ms,
            left_out,
            "a round was slow: {why}"
        );
    }

    /// What waits longest, where that is long: recorded when somebody asks, which heartbeats do.
    pub(super) fn oldest(&mut self, oldest: Option<&Waiting>) {
        let Some(oldest) = oldest.filter(|oldest| oldest.waited_ms >= WAITS_MS && oldest.call.is_none())
        else {
            return;
        };
        // Whom it waits for are workers, or nobody: a timeline has no other arrows.
        let of_workers = oldest.cause.role() == Some(Role::Worker);
        let workers = if of_workers { &oldest.on[..] } else { &[] };
        let set = workers.iter().filter(|rank| rank.0 < 64);
        let event = Event {
            kind: Kind::Waits,
            key: oldest.chunk.key.0,
            chunk: oldest.chunk.chunk.0,
            peer: workers.first().map_or(NOBODY, |rank| rank.0),
            round: oldest.round,
            bytes: oldest.waited_ms,
            extra: set.fold(0, |set, rank| set | 1 << rank.0),
        };
        self.recorder.look();
        self.recorder.note(event);
    }
}

/// What an event says of a chunk.
fn about(kind: Kind, chunk: u32, (engine, storage): Of<'_>) -> Event {
    let id = engine.chunk_id(chunk).unwrap_or_default();
    let bytes = storage.size_of(chunk).unwrap_or(0);
    Event { key: id.key.0, chunk: id.chunk.0, bytes, ..Event::of(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_timed_is_not_said() {
        let late = vec![Rank(1), Rank(3)];
        let went = Went { took_ms: 900, late_ms: 500, late, ..Went::default() };
        assert_eq!(went.to_string(), "waited 500 ms for worker 1, 3; 400.0 ms for the rest");
        let timed = Went { work_ns: Some(150_000_000), copy_ns: 50_000_000, copy_at: 2, ..went };
        let words = "waited 500 ms for worker 1, 3; 50.0 ms for the copy at server 2; 150.0 ms for sums and update; \
                     200.0 ms for the rest";
        assert_eq!(timed.to_string(), words);
        let alone = Went { took_ms: 1_200, work_ns: Some(2_000_000_000), ..Went::default() };
        assert_eq!(alone.to_string(), "2000.0 ms for sums and update; 0.0 ms for the rest", "clocks differ");
    }
}
