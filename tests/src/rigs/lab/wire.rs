//! Control connections between members and the scheduler: messages in order, each after a delay; closes that come behind
//! them; directions that are silent for some time. It must not know what messages mean.

use proto_common::message::{FromScheduler, ToScheduler};
use std::collections::{BTreeMap, VecDeque};

/// A control connection; never reused.
pub(super) type WireId = u64;

/// What comes out of a connection's end.
#[derive(Clone, Debug)]
pub(super) enum Parcel<T> {
    Message(T),
    Closed,
}

#[derive(Debug)]
struct Lane<T> {
    parcels: VecDeque<(u64, Parcel<T>)>,
    last_us: u64,
    /// Nothing comes out before.
    silent_until_us: u64,
}

impl<T> Lane<T> {
    fn new(silent_until_us: u64) -> Self {
        Self { parcels: VecDeque::new(), last_us: 0, silent_until_us }
    }

    fn push(&mut self, at_us: u64, parcel: Parcel<T>) {
        self.last_us = self.last_us.max(at_us);
        self.parcels.push_back((self.last_us, parcel));
    }

    fn due_us(&self) -> Option<u64> {
        self.parcels.front().map(|(at_us, _)| (*at_us).max(self.silent_until_us))
    }

    /// What was said last, and came out at no end yet, is lost but for so many.
    fn keep(&mut self, count: usize) {
        self.parcels.truncate(count);
    }

    fn pop(&mut self, now_us: u64) -> Option<Parcel<T>> {
        if self.due_us()? > now_us {
            return None;
        }
        self.parcels.pop_front().map(|(_, parcel)| parcel)
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Wire {
    /// The seat that opened it.
    pub(super) seat: usize,
    /// Which life of the scheduler it is to.
    pub(super) scheduler: u64,
    /// The member's end is read.
    is_read: bool,
    /// It is broken: nothing is said on it any more.
    is_torn: bool,
    up: Lane<ToScheduler>,
    down: Lane<FromScheduler>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Wires {
    all: BTreeMap<WireId, Wire>,
    next: WireId,
    /// By seat: until when nothing comes from it, and to it.
    silent: BTreeMap<usize, (u64, u64)>,
}

impl Wires {
    pub(super) fn open(&mut self, seat: usize, scheduler: u64) -> WireId {
        self.next += 1;
        let (up_us, down_us) = self.silent.get(&seat).copied().unwrap_or_default();
        let wire = Wire {
            seat,
            scheduler,
            is_read: true,
            is_torn: false,
            up: Lane::new(up_us),
            down: Lane::new(down_us),
        };
        self.all.insert(self.next, wire);
        self.next
    }

    pub(super) fn say_up(&mut self, id: WireId, at_us: u64, message: ToScheduler) {
        if let Some(wire) = self.all.get_mut(&id).filter(|wire| !wire.is_torn) {
            wire.up.push(at_us, Parcel::Message(message));
        }
    }

    pub(super) fn say_down(&mut self, id: WireId, at_us: u64, message: FromScheduler) {
        if let Some(wire) = self.all.get_mut(&id).filter(|wire| !wire.is_torn) {
            wire.down.push(at_us, Parcel::Message(message));
        }
    }

    /// The scheduler's end closes: the member hears of it behind all that was said.
    pub(super) fn close_down(&mut self, id: WireId, at_us: u64) {
        if let Some(wire) = self.all.get_mut(&id).filter(|wire| !wire.is_torn) {
            wire.down.push(at_us, Parcel::Closed);
        }
    }

    /// The member's end closes.
    pub(super) fn close_up(&mut self, id: WireId, at_us: u64) {
        if let Some(wire) = self.all.get_mut(&id).filter(|wire| !wire.is_torn) {
            wire.up.push(at_us, Parcel::Closed);
        }
    }

    /// The scheduler does not listen to it any more.
    pub(super) fn deafen(&mut self, id: WireId) {
        if let Some(wire) = self.all.get_mut(&id) {
            wire.scheduler = 0;
        }
    }

    /// The member does not read it any more.
    pub(super) fn leave(&mut self, id: WireId) {
        if let Some(wire) = self.all.get_mut(&id) {
            wire.is_read = false;
        }
    }

    /// Nothing of it is of interest any more.
    pub(super) fn forget(&mut self, id: WireId) {
        self.all.remove(&id);
    }

    /// Nothing comes from a seat, or to it, before these times.
    pub(super) fn silence(&mut self, seat: usize, up_us: u64, down_us: u64) {
        let silent = self.silent.entry(seat).or_default();
        *silent = (silent.0.max(up_us), silent.1.max(down_us));
        let (up_us, down_us) = *silent;
        for wire in self.all.values_mut().filter(|wire| wire.seat == seat) {
            wire.down.silent_until_us = down_us;
            if !wire.is_torn {
                wire.up.silent_until_us = up_us;
            }
        }
    }

    /// Nothing goes over the connections that a seat has, before this time.
    pub(super) fn cut_off(&mut self, seat: usize, until_us: u64) {
        for wire in self.all.values_mut().filter(|wire| wire.seat == seat) {
            (wire.up.silent_until_us, wire.down.silent_until_us) = (until_us, until_us);
        }
    }

    /// A seat's connections break: the scheduler hears of it now, and nothing else of it; the member at another time.
    pub(super) fn tear(&mut self, seat: usize, up_us: u64, down_us: u64) {
        for wire in self.all.values_mut().filter(|wire| wire.seat == seat) {
            wire.up.keep(0);
            wire.up.last_us = up_us;
            wire.up.push(up_us, Parcel::Closed);
            wire.down.push(down_us, Parcel::Closed);
            // What is said from now on goes nowhere.
            wire.is_torn = true;
        }
    }

    /// Of what a seat has said last some may be lost with its process, however little the network loses.
    pub(super) fn lose_last_words(&mut self, seat: usize, keep: &mut dyn FnMut(usize) -> usize) {
        for wire in self.all.values_mut().filter(|wire| wire.seat == seat && !wire.is_torn) {
            wire.up.keep(keep(wire.up.parcels.len()));
        }
    }

    /// The same of a scheduler.
    pub(super) fn lose_last_decisions(&mut self, scheduler: u64, keep: &mut dyn FnMut(usize) -> usize) {
        for wire in self.all.values_mut().filter(|wire| wire.scheduler == scheduler && !wire.is_torn) {
            wire.down.keep(keep(wire.down.parcels.len()));
        }
    }

    /// Whose connection it is.
    pub(super) fn seat_of(&self, id: WireId) -> Option<usize> {
        self.all.get(&id).map(|wire| wire.seat)
    }

    fn ids_to(&self, scheduler: u64) -> Vec<WireId> {
        self.all.iter().filter(|(_, wire)| wire.scheduler == scheduler).map(|(id, _)| *id).collect()
    }

    /// When something comes out of an end that is read: the scheduler's, if it is one of these lives', or a member's.
    pub(super) fn next_us(
        &self,
        schedulers: &[Option<u64>],
        is_paused: impl Fn(usize) -> bool,
    ) -> Option<u64> {
        let up = self.all.values().filter(|wire| schedulers.contains(&Some(wire.scheduler)));
        let down = self.all.values().filter(|wire| wire.is_read && !is_paused(wire.seat));
        up.filter_map(|wire| wire.up.due_us()).chain(down.filter_map(|wire| wire.down.due_us())).min()
    }

    /// The next parcel for the scheduler of this life.
    pub(super) fn next_up(&mut self, scheduler: u64, now_us: u64) -> Option<(WireId, Parcel<ToScheduler>)> {
        let mine = self.all.iter_mut().filter(|(_, wire)| wire.scheduler == scheduler);
        let due = mine.filter_map(|(id, wire)| Some((wire.up.due_us()?, *id))).min()?;
        let parcel = self.all.get_mut(&due.1)?.up.pop(now_us)?;
        Some((due.1, parcel))
    }

    /// The next parcel for a seat's end of a connection.
    pub(super) fn next_down(&mut self, id: WireId, now_us: u64) -> Option<Parcel<FromScheduler>> {
        self.all.get_mut(&id)?.down.pop(now_us)
    }

    /// What the dead had under way is over, but for what is already in the network.
    pub(super) fn drop_scheduler(&mut self, scheduler: u64, at_us: u64) {
        for id in self.ids_to(scheduler) {
            self.close_down(id, at_us);
        }
    }
}
