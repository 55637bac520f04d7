//! One server as the lane sees it: the queue of parts for it, and the slots of both inboxes. Owns the credits: slots of the server's
//! inbox that we may write, and slots of ours that it may write. It must not know what a part is for.
//!
//! ```text
//!  the server's inbox:   want            results bring grants        send: a batch
//!     none ────────────────────▶ asked ──────────────────────▶ held ────────────────────▶ none
//!       ▲                                                       │
//!       └──────────────── idle: given back ─────────────────────┘
//!
//!  ours:         results in it were read          a batch or a notice carries it
//!     granted ──────────────────────────▶ owed ──────────────────────────────────▶ granted, next generation
//! ```
//!
//! If results with an old generation were read, they could be half written: the server may be writing the next ones there.

use super::command::{Command, Commands, PartBlock};
use super::part::Place;
use super::placement::KeyBuffers;
use super::shown_by::Farewell;
use proto_common::batch::{BatchRoom, Notice, SlotGrant};
use proto_common::ids::{Incarnation, Rank};
use proto_common::limits::{GRANTS_PER_BATCH_MAX, INBOX_SLOTS_MAX};
use std::collections::{BinaryHeap, VecDeque};

/// After this long without use, credits are given back. So an idle worker holds none; neither does a worker that waits for other workers,
/// which may need them.
const IDLE_MS: u64 = 200;

/// See the module. A new one is down.
#[derive(Debug, Default)]
pub(super) struct Link {
    up: bool,
    /// The server's process has failed or left, and no channel leads to another one.
    exited: bool,
    incarnation: Incarnation,
    slot_bytes: u64,
    credits: Vec<SlotGrant>,
    /// Credits that were requested and not granted yet.
    asked: u16,
    queue: BinaryHeap<Place>,
    /// Key buffers that the server granted for payloads outside its slots.
    pub(super) buffers: KeyBuffers,
    /// The slots of our inbox, each with the generation that the server must use next.
    inbox: Vec<SlotGrant>,
    /// Slots that were read and granted again, and that the server does not know of yet.
    owed: Vec<SlotGrant>,
    /// Reports about views of chunks that it served before.
    farewells: VecDeque<Farewell>,
    sent_parts: usize,
    sequence: u64,
    last_use_ms: u64,
}

impl Link {
    /// Its channel is up: slots of its inbox that we may write, and slots of ours that it may write.
    pub(super) fn open(
        &mut self,
        (incarnation, slot_bytes): (Incarnation, u64),
        credits: &[SlotGrant],
        inbox: &[SlotGrant],
        now_ms: u64,
    ) {
        (self.up, self.exited, self.incarnation, self.slot_bytes) = (true, false, incarnation, slot_bytes);
        (self.credits, self.inbox, self.last_use_ms) = (credits.to_vec(), inbox.to_vec(), now_ms);
    }

    /// Its channel has ended, and with it everything that belonged to it.
    pub(super) fn close(&mut self) {
        *self = Self { exited: self.exited, ..Self::default() };
    }

    /// The server's process has failed or left.
    pub(super) fn exit(&mut self) {
        self.exited = true;
    }

    /// Is no process of the server known?
    pub(super) fn has_exited(&self) -> bool {
        self.exited
    }

    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    /// The incarnation of the server's process; zero while the channel is down.
    pub(super) fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    pub(super) fn has_credits(&self) -> bool {
        !self.credits.is_empty()
    }

    /// Queues a part, which waits for its turn and for a credit.
    pub(super) fn push(&mut self, place: Place) {
        self.queue.push(place);
    }

    /// The part that is sent next.
    pub(super) fn peek(&self) -> Option<u32> {
        self.queue.peek().map(|place| place.part)
    }

    /// Removes it, because it is sent or must not be sent.
    pub(super) fn pop(&mut self) {
        self.queue.pop();
    }

    /// Keeps only these parts in the queue.
    pub(super) fn retain(&mut self, stays: impl Fn(u32) -> bool) {
        self.queue.retain(|place| stays(place.part));
    }

    /// A part was sent.
    pub(super) fn sent(&mut self) {
        self.sent_parts += 1;
    }

    /// A part is answered or returned.
    pub(super) fn answered(&mut self) {
        self.sent_parts = self.sent_parts.saturating_sub(1);
    }

    /// May the queue wait for more parts? Yes if it has fewer than this many, and the server still has something to answer.
    pub(super) fn may_wait(&self, parts: usize) -> bool {
        self.sent_parts > 0 && self.queue.len() < parts
    }

    /// Queues a report that views have ended. False while the channel is down.
    pub(super) fn say(&mut self, farewell: Farewell) -> bool {
        if self.up {
            self.farewells.push_back(farewell);
        }
        self.up
    }

    /// Puts queued reports into a batch, while there is room.
    pub(super) fn take_farewells(&mut self, room: &mut BatchRoom, most: usize, out: &mut Vec<PartBlock>) {
        for _ in 0..most {
            let Some(part) = self.farewells.front().map(|farewell| farewell.block()) else { return };
            if !room.take(part.inline_bytes()) {
                return;
            }
            self.farewells.pop_front();
            out.push(part);
        }
    }

    /// The bytes that a batch can have, and its number of parts; `None` if nothing can be sent.
    pub(super) fn room(&self, in_flight_max: usize) -> Option<(BatchRoom, usize)> {
        let parts = in_flight_max.saturating_sub(self.sent_parts);
        let can_send = self.up && self.to_send() > 0 && self.has_credits() && parts > 0;
        can_send.then(|| (BatchRoom::new(self.slot_bytes), parts))
    }

    /// Sends the parts from `first` on as a batch, which also returns slots that were read. False without a credit.
    pub(super) fn send(&mut self, server: Rank, first: usize, now_ms: u64, out: &mut Commands) -> bool {
        let Some(slot) = self.credits.pop() else { return false };
        let (parts, first_grant) = (first..out.parts.len(), out.grants.len());
        out.grants.extend(self.owed.drain(..self.owed.len().min(GRANTS_PER_BATCH_MAX)));
        self.sequence += 1;
        (self.last_use_ms, self.asked) = (now_ms, self.wanted());
        let (grants, wanted, sequence) = (first_grant..out.grants.len(), self.asked, self.sequence);
        out.list.push(Command::Send { server, slot, parts, grants, wanted, sequence });
        true
    }

    /// Requests credits if there are none, and returns slots that were read if no batch has returned them. True if a part waits for a
    /// credit.
    pub(super) fn settle_credits(&mut self, server: Rank, in_flight_max: usize, out: &mut Commands) -> bool {
        if !self.up {
            return false;
        }
        let waits = self.to_send() > 0 && self.credits.is_empty() && self.sent_parts < in_flight_max;
        if waits && self.asked == 0 {
            self.asked = self.wanted();
            let count = u8::try_from(self.asked).unwrap_or(u8::MAX).max(1);
            out.list.push(Command::Notice { server, notice: Notice::Want(count) });
        }
        if 2 * self.owed.len() >= self.inbox.len().max(1) {
            let returned = self.owed.drain(..).map(Notice::Returned);
            out.list.extend(returned.map(|notice| Command::Notice { server, notice }));
        }
        waits
    }

    /// Does it hold no credits? They are given back after some time.
    pub(super) fn is_idle(&self) -> bool {
        self.credits.is_empty()
    }

    /// Gives back credits that were not used for a long time.
    pub(super) fn give_back(&mut self, server: Rank, now_ms: u64, out: &mut Commands) {
        if self.up && now_ms >= self.last_use_ms + IDLE_MS && !self.credits.is_empty() {
            // With these, the server also forgets earlier requests for credits.
            self.asked = 0;
            let given = self.credits.drain(..).map(Notice::GivenBack);
            out.list.extend(given.map(|notice| Command::Notice { server, notice }));
        }
    }

    /// May this slot hold results that were not read yet? False if it is a duplicate or late. The error is what the server did wrong.
    pub(super) fn check(&self, grant: SlotGrant) -> Result<bool, &'static str> {
        let held = self.inbox.iter().find(|held| held.slot == grant.slot);
        match held.map(|held| held.generation.wrapping_sub(grant.generation)) {
            Some(0) => Ok(true),
            Some(1..128) => Ok(false),
            _ => Err("it used a slot that was never granted"),
        }
    }

    /// Takes the new credits that came with results in a slot, and grants the slot again. Checks the slot as [`Link::check`] does.
    pub(super) fn received(
        &mut self,
        grant: SlotGrant,
        credits: &[SlotGrant],
        now_ms: u64,
    ) -> Result<bool, &'static str> {
        if !self.check(grant)? {
            return Ok(false);
        }
        if let Some(held) = self.inbox.iter_mut().find(|held| held.slot == grant.slot) {
            held.generation = held.generation.wrapping_add(1);
            self.owed.push(*held);
        }
        self.last_use_ms = now_ms;
        self.asked = self.asked.saturating_sub(credits.len() as u16);
        if self.credits.len() + credits.len() > INBOX_SLOTS_MAX {
            return Err("it granted more slots than an inbox can have");
        }
        self.credits.extend_from_slice(credits);
        Ok(true)
    }

    /// The number of blocks that could be sent to it.
    fn to_send(&self) -> usize {
        self.queue.len() + self.farewells.len()
    }

    /// The number of credits that the queue could use in addition: at most one batch per part. The server decides how many a worker
    /// may keep in reserve, because it knows how many workers share its slots.
    fn wanted(&self) -> u16 {
        u16::try_from(self.to_send().saturating_sub(self.credits.len())).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{grants, life};
    use super::*;
    use std::cmp::Reverse;

    const SERVER: Rank = Rank(0);

    /// With two slots of our inbox, and a part that waits.
    fn link(credits: u32) -> Link {
        let mut link = Link::default();
        link.open((life(0), 4096), &grants(0..credits), &grants(0..2), 0);
        link.push(Place { priority: 0, order: Reverse(1), part: 7 });
        link
    }

    fn notices(what: impl FnOnce(&mut Commands)) -> Vec<Notice> {
        let mut out = Commands::default();
        what(&mut out);
        let notice = |command| match command {
            Command::Notice { notice, .. } => notice,
            other => panic!("{other:?}"),
        };
        out.list.into_iter().map(notice).collect()
    }

    #[test]
    fn a_credit_is_asked_for_once_and_used_once() {
        let mut link = link(0);
        assert!(link.room(8).is_none());
        for notice in [vec![Notice::Want(1)], vec![]] {
            assert_eq!(notices(|out| assert!(link.settle_credits(SERVER, 8, out))), notice);
        }
        assert_eq!(link.received(grants(0..1)[0], &grants(0..1), 1), Ok(true));
        assert_eq!(link.room(8).map(|(_, parts)| parts), Some(8));
        let mut out = Commands::default();
        assert_eq!([link.send(SERVER, 0, 1, &mut out), link.send(SERVER, 0, 1, &mut out)], [true, false]);
        let (slot, wanted) = (grants(0..1)[0], 1);
        let batch = Command::Send { server: SERVER, slot, parts: 0..0, grants: 0..1, wanted, sequence: 1 };
        assert_eq!(out.list, [batch]);
    }

    #[test]
    fn idle_credits_go_back_and_the_server_forgets_what_was_asked_for() {
        let mut link = link(1);
        assert_eq!(notices(|out| link.give_back(SERVER, IDLE_MS - 1, out)), []);
        assert_eq!(notices(|out| link.give_back(SERVER, IDLE_MS, out)), [Notice::GivenBack(grants(0..1)[0])]);
        assert_eq!(notices(|out| assert!(link.settle_credits(SERVER, 8, out))), [Notice::Want(1)]);
    }

    #[test]
    fn a_slot_of_ours_is_used_once_with_each_generation() {
        let (mut link, slot) = (link(0), grants(0..1)[0]);
        assert_eq!((link.received(slot, &[], 1), link.received(slot, &[], 1)), (Ok(true), Ok(false)));
        let next = SlotGrant { generation: 2, ..slot };
        assert_eq!((link.check(slot), link.check(next)), (Ok(false), Ok(true)));
        for (slot, generation) in [(0, 3), (5, 1)] {
            link.check(SlotGrant { slot, generation }).unwrap_err();
        }
        link.received(next, &grants(0..INBOX_SLOTS_MAX as u32 + 1), 1).unwrap_err();
    }
}
