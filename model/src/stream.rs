//! Streams between a primary and its copies.

use crate::state::{Place, Record, State, Stream};
use crate::{Broken, Protocol};

impl Protocol {
    /// Can a stream be connected (again)?
    pub(crate) fn connects(&self, state: &State, from: Place, to: Place) -> bool {
        let (primary, copy) = (&state.servers[usize::from(from)], &state.servers[usize::from(to)]);
        let known = |map: &crate::Map| {
            map.lives[usize::from(from)] == primary.life && map.lives[usize::from(to)] == copy.life
        };
        // A copy from before the decision that it is to be one is given up when its server hears of what came in between.
        let seeding = primary.map.seeding.filter(|(place, _)| *place == to);
        let heard = seeding.is_none_or(|(_, since)| copy.map.epoch >= since);
        !state.streams.contains_key(&(from, to))
            && heard
            && primary.leads(from)
            && primary.map.copies(to)
            && copy.copy_of(to) == Some(from)
            && known(&primary.map)
            && known(&copy.map)
    }

    /// The copy begins by saying how far it is; so the chunk is in the stream at once, or all of it goes.
    pub(crate) fn connect(&self, state: &mut State, from: Place, to: Place) {
        let (theirs, ours) = {
            let (primary, copy) = (&state.servers[usize::from(from)], &state.servers[usize::from(to)]);
            let ours = copy.source.is_some_and(|(place, life, since)| {
                let is_this_time = since == primary.map.since(to) || self.lacks(Broken::OldCopy);
                (place, life) == (from, primary.life) && is_this_time
            });
            let ours = ours || self.lacks(Broken::AnyonesRound);
            (copy.version, ours)
        };
        let server = &mut state.servers[usize::from(from)];
        let mut stream = Stream::default();
        let ahead = ours && server.pending.is_some() && theirs == server.version + 1;
        if ahead {
            if let Some(pending) = &mut server.pending {
                pending.confirmed.insert(to);
            }
            server.filled.insert(to);
        } else {
            if ours && theirs == server.version {
                server.filled.insert(to);
            } else {
                server.filled.remove(&to);
                stream.records.push(Record::State { version: server.version, applied: server.applied });
            }
            if let Some(pending) = &server.pending {
                let update = Record::Update { version: server.version + 1, entries: pending.entries.clone() };
                stream.records.push(update);
            }
        }
        server.streamed.insert(to);
        state.streams.insert((from, to), stream);
        self.tell_seeded(state, from);
        self.publish(state, from);
    }

    /// A copy takes the next record of a stream, and confirms it.
    pub(crate) fn take_record(&self, state: &mut State, from: Place, to: Place) {
        let (life, since) = {
            let primary = &state.servers[usize::from(from)];
            (primary.life, primary.map.since(to))
        };
        let Some(stream) = state.streams.get_mut(&(from, to)) else { return };
        let record = stream.records.remove(0);
        let copy = &mut state.servers[usize::from(to)];
        match record {
            Record::State { version, applied } => (copy.version, copy.applied) = (version, applied),
            Record::Update { version, .. } if version != copy.version + 1 => return,
            Record::Update { version, entries } => copy.apply(version, &entries),
        }
        copy.source = Some((from, life, since));
        stream.acked.push(copy.version);
    }

    /// The primary hears that a record was confirmed.
    pub(crate) fn take_ack(&self, state: &mut State, from: Place, to: Place) {
        let Some(stream) = state.streams.get_mut(&(from, to)) else { return };
        let version = stream.acked.remove(0);
        let server = &mut state.servers[usize::from(from)];
        server.filled.insert(to);
        if version == server.version + 1
            && let Some(pending) = &mut server.pending
        {
            pending.confirmed.insert(to);
        }
        self.tell_seeded(state, from);
        self.publish(state, from);
    }

    /// A stream breaks: what is under way in it is lost.
    pub(crate) fn break_stream(&self, state: &mut State, from: Place, to: Place) {
        state.streams.remove(&(from, to));
        if self.lacks(Broken::SeededForgotten) {
            let server = &mut state.servers[usize::from(from)];
            if server.map.backup != Some(to) {
                server.streamed.remove(&to);
                self.publish(state, from);
            }
        }
    }
}
