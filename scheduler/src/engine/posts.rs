//! Messages between members' programs: who is to answer what, until when. Each member has bounds of what it has asked and of
//! what it owes. A message for a member that owes too much is held until that member has answered others; what is beyond the bounds of
//! its sender is refused at once. It must not know who is a member.
//!
//! ```text
//!   post ──▶ held ──▶ pending, one per receiver ──┬─ reply ────────────────────▶ its answer
//!     │       └──────── the same ends ──┐         ├─ expire ───────────────────▶ Deadline
//!     │                                 └─────────┼─ refuse: its queue is full ▶ Busy
//!     │                                           ├─ forget(the receiver) ─────▶ Gone
//!     └─▶ Gone, Busy                              └─ forget(the sender): no answer
//! ```

use super::command::{Command, deadline_ms, send, send_to};
use super::member::{ConnectionId, SCHEDULER};
use proto_common::ids::MemberId;
use proto_common::message::{
    FromScheduler, POST_BODY_BYTES_MAX, POSTS_ASKED_MAX, POSTS_OWED_BYTES_MAX, POSTS_OWED_MAX, PostError,
    PostMessage, PostReply,
};
use std::collections::{BTreeMap, BTreeSet};

/// A message that a member's program sends.
pub(super) struct Post {
    pub(super) asker: ConnectionId,
    pub(super) sender: MemberId,
    pub(super) request: u64,
    pub(super) message: PostMessage,
    pub(super) timeout_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    asker: ConnectionId,
    request: u64,
    of: u32,
    to: MemberId,
    owes: ConnectionId,
    bytes: usize,
    since_ms: u64,
    deadline_ms: u64,
    is_held: bool,
}

/// A message for a receiver that has no room yet. It is sent when the receiver has answered others.
#[derive(Debug)]
struct Held {
    from: MemberId,
    message: PostMessage,
    timeout_ms: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    asked: usize,
    /// Of what it asked, what is held.
    held_bytes: usize,
    owed: usize,
    owed_bytes: usize,
}

/// A message's number, and one of its receivers: all of them are told the same, so that it is encoded once.
pub(super) type Ticket = (u64, ConnectionId);

/// Messages that are not answered.
#[derive(Debug, Default)]
pub(super) struct Posts {
    pending: BTreeMap<Ticket, Pending>,
    next: u64,
    loads: BTreeMap<ConnectionId, Load>,
    /// By receiver, in the order in which they came.
    held: BTreeMap<(ConnectionId, u64), Held>,
}

impl Posts {
    /// Messages of this term have numbers of their own: a late reply to one of before is nobody's answer.
    pub(super) fn begin(&mut self, term: u32) {
        self.next = self.next.max(u64::from(term) << 32);
    }

    fn load(&self, connection: ConnectionId) -> Load {
        self.loads.get(&connection).copied().unwrap_or_default()
    }

    /// Passes a message on to `receivers`, each with its connection, if it is there. `not_now` says why nothing is passed on.
    pub(super) fn post(
        &mut self,
        now_ms: u64,
        post: Post,
        receivers: &[(MemberId, Option<ConnectionId>)],
        not_now: Option<&str>,
        out: &mut Vec<Command>,
    ) {
        let Post { asker, sender, request, message, timeout_ms } = post;
        let (of, bytes) = (receivers.len() as u32, message.body.len());
        let refused = |from, of, error| {
            let result = Err(error);
            send(asker, FromScheduler::PostAnswered { request, from, of, result })
        };
        let refusal = if receivers.is_empty() {
            Some(PostError::Nobody)
        } else if bytes > POST_BODY_BYTES_MAX {
            Some(PostError::TooLong { bytes: bytes as u64 })
        } else if let Some(why) = not_now {
            Some(PostError::NotNow(why.into()))
        } else {
            (self.load(asker).asked + receivers.len() > POSTS_ASKED_MAX).then_some(PostError::Busy)
        };
        if let Some(error) = refusal {
            return out.push(refused(SCHEDULER, 1, error));
        }
        self.next += 1;
        let (ticket, mut told) = (self.next, Vec::new());
        for (to, owes) in receivers.iter().copied() {
            match owes {
                None => out.push(refused(to, of, PostError::Gone { member: to })),
                Some(owes) => {
                    let deadline_ms = deadline_ms(now_ms, timeout_ms);
                    let (since_ms, is_held) = (now_ms, self.holds(owes) || !self.has_room(owes, bytes));
                    let pending =
                        Pending { asker, request, of, to, owes, bytes, since_ms, deadline_ms, is_held };
                    if !is_held {
                        told.push(owes);
                    } else if self.load(asker).held_bytes + bytes <= POSTS_OWED_BYTES_MAX {
                        let held = Held { from: sender, message: message.clone(), timeout_ms };
                        self.held.insert((owes, ticket), held);
                    } else {
                        out.push(refused(to, of, PostError::Busy));
                        continue;
                    }
                    self.add(ticket, pending);
                }
            }
        }
        if !told.is_empty() {
            let message = FromScheduler::Posted { ticket, from: sender, message, timeout_ms };
            out.push(send_to(told, message));
        }
    }

    /// A receiver answers. One that answers what it was not asked, or not yet, or too late, is not heard.
    pub(super) fn reply(
        &mut self,
        ticket: Ticket,
        result: Result<PostReply, PostError>,
        out: &mut Vec<Command>,
    ) {
        let result = match result {
            Ok(reply) if reply.body.len() > POST_BODY_BYTES_MAX => {
                Err(PostError::TooLong { bytes: reply.body.len() as u64 })
            }
            Ok(reply) => Ok(reply),
            Err(error @ (PostError::TooLong { .. } | PostError::Busy)) => Err(error),
            // Whatever else it says: its words are not passed on.
            Err(_) => Err(PostError::NoReply),
        };
        if self.pending.get(&ticket).is_none_or(|pending| pending.is_held) {
            return;
        }
        let mut result = Some(result);
        self.answers(&[ticket], |_| result.take().unwrap_or(Err(PostError::NoReply)), out);
    }

    /// Is something held for this receiver? Then what comes after it is held, too.
    fn holds(&self, owes: ConnectionId) -> bool {
        self.held.range((owes, 0)..=(owes, u64::MAX)).next().is_some()
    }

    /// Passes on what is held for a receiver, as far as it has room.
    fn pass_on(&mut self, owes: ConnectionId, out: &mut Vec<Command>) {
        while let Some((&at, held)) = self.held.range((owes, 0)..=(owes, u64::MAX)).next() {
            if !self.has_room(owes, held.message.body.len()) {
                return;
            }
            let (Some(held), (_, ticket)) = (self.held.remove(&at), at) else { return };
            let Some(pending) = self.take((ticket, owes)) else { continue };
            self.add(ticket, Pending { is_held: false, ..pending });
            let Held { from, message, timeout_ms } = held;
            out.push(send(owes, FromScheduler::Posted { ticket, from, message, timeout_ms }));
        }
    }

    /// True where the receiver may be asked this, too.
    fn has_room(&self, owes: ConnectionId, bytes: usize) -> bool {
        let load = self.load(owes);
        load.owed < POSTS_OWED_MAX && load.owed_bytes + bytes <= POSTS_OWED_BYTES_MAX
    }

    fn add(&mut self, number: u64, pending: Pending) {
        self.pending.insert((number, pending.owes), pending);
        let asks = self.loads.entry(pending.asker).or_default();
        asks.asked += 1;
        if pending.is_held {
            asks.held_bytes += pending.bytes;
            return;
        }
        let owes = self.loads.entry(pending.owes).or_default();
        owes.owed += 1;
        owes.owed_bytes += pending.bytes;
    }

    fn take(&mut self, ticket: Ticket) -> Option<Pending> {
        let pending = self.pending.remove(&ticket)?;
        let held_bytes = if pending.is_held { pending.bytes } else { 0 };
        if let Some(load) = self.loads.get_mut(&pending.asker) {
            load.asked = load.asked.saturating_sub(1);
            load.held_bytes = load.held_bytes.saturating_sub(held_bytes);
        }
        if pending.is_held {
            self.held.remove(&(pending.owes, ticket.0));
        } else if let Some(load) = self.loads.get_mut(&pending.owes) {
            load.owed = load.owed.saturating_sub(1);
            load.owed_bytes = load.owed_bytes.saturating_sub(pending.bytes);
        }
        Some(pending)
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.pending.values().map(|pending| pending.deadline_ms).min()
    }

    fn answers(
        &mut self,
        tickets: &[Ticket],
        mut result: impl FnMut(&Pending) -> Result<PostReply, PostError>,
        out: &mut Vec<Command>,
    ) {
        let mut freed = BTreeSet::new();
        for pending in tickets.iter().filter_map(|ticket| self.take(*ticket)) {
            let result = result(&pending);
            out.push(answered(&pending, result));
            freed.insert(pending.owes);
        }
        freed.into_iter().for_each(|owes| self.pass_on(owes, out));
    }

    /// Deadlines that have passed.
    pub(super) fn expire(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let due = self.pending.iter().filter(|(_, pending)| pending.deadline_ms <= now_ms);
        let due: Vec<Ticket> = due.map(|(ticket, _)| *ticket).collect();
        let late = |pending: &Pending| {
            let waited_ms = now_ms.saturating_sub(pending.since_ms);
            Err(PostError::Deadline { member: pending.to, waited_ms })
        };
        self.answers(&due, late, out);
    }

    /// A receiver has no room for it.
    pub(super) fn refuse(&mut self, ticket: Ticket, out: &mut Vec<Command>) {
        self.answers(&[ticket], |_| Err(PostError::Busy), out);
    }

    /// A connection is of no more use: what it owes is answered for it, what it asked is not answered.
    pub(super) fn forget(&mut self, connection: ConnectionId, out: &mut Vec<Command>) {
        let asked = self.pending.iter().filter(|(_, pending)| pending.asker == connection);
        let asked: Vec<Ticket> = asked.map(|(ticket, _)| *ticket).collect();
        let freed: BTreeSet<ConnectionId> =
            asked.into_iter().filter_map(|ticket| self.take(ticket)).map(|pending| pending.owes).collect();
        let owed = self.pending.iter().filter(|(_, pending)| pending.owes == connection);
        let owed: Vec<Ticket> = owed.map(|(ticket, _)| *ticket).collect();
        // Nothing is passed on to it: what is held for it is among them.
        self.held.retain(|(owes, _), _| *owes != connection);
        self.answers(&owed, |pending| Err(PostError::Gone { member: pending.to }), out);
        freed.into_iter().for_each(|owes| self.pass_on(owes, out));
        self.loads.remove(&connection);
    }
}

fn answered(pending: &Pending, result: Result<PostReply, PostError>) -> Command {
    let Pending { asker, request, of, to, .. } = *pending;
    send(asker, FromScheduler::PostAnswered { request, from: to, of, result })
}
