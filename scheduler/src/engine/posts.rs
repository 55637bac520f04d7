//! Messages between members' programs: who is to answer what, until when. Each member has bounds of what it has asked and of
//! what it owes; what is beyond them is refused to its sender at once.

use super::barriers::Arrival;
use super::{Command, ConnectionId, Engine, Phase, deadline_ms, send, send_to};
use proto_common::ids::{MemberId, Rank, Role};
use proto_common::message::{
    FromScheduler, POST_BODY_BYTES_MAX, POSTS_ASKED_MAX, POSTS_OWED_BYTES_MAX, POSTS_OWED_MAX, PostError,
    PostMessage, PostReply, PostTo, ToScheduler,
};
use std::collections::BTreeMap;

/// The scheduler's own program, as if it were connected.
pub const LOCAL: ConnectionId = ConnectionId(u64::MAX);
pub(super) const SCHEDULER: MemberId = MemberId { role: Role::Scheduler, rank: Rank(0) };

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
}

#[derive(Clone, Copy, Debug, Default)]
struct Load {
    asked: usize,
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
}

impl Posts {
    /// Messages of this term have numbers of their own: a late reply to one of before is nobody's answer.
    pub(super) fn begin(&mut self, term: u32) {
        self.next = self.next.max(u64::from(term) << 32);
    }

    fn load(&self, connection: ConnectionId) -> Load {
        self.loads.get(&connection).copied().unwrap_or_default()
    }

    /// True where the receiver may be asked this, too.
    fn has_room(&self, owes: ConnectionId, bytes: usize) -> bool {
        let load = self.load(owes);
        load.owed < POSTS_OWED_MAX && load.owed_bytes + bytes <= POSTS_OWED_BYTES_MAX
    }

    fn add(&mut self, number: u64, pending: Pending) {
        self.pending.insert((number, pending.owes), pending);
        self.loads.entry(pending.asker).or_default().asked += 1;
        let owes = self.loads.entry(pending.owes).or_default();
        owes.owed += 1;
        owes.owed_bytes += pending.bytes;
    }

    fn take(&mut self, ticket: Ticket) -> Option<Pending> {
        let pending = self.pending.remove(&ticket)?;
        if let Some(load) = self.loads.get_mut(&pending.asker) {
            load.asked = load.asked.saturating_sub(1);
        }
        if let Some(load) = self.loads.get_mut(&pending.owes) {
            load.owed = load.owed.saturating_sub(1);
            load.owed_bytes = load.owed_bytes.saturating_sub(pending.bytes);
        }
        Some(pending)
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.pending.values().map(|pending| pending.deadline_ms).min()
    }

    fn answers(&mut self, tickets: &[Ticket], error: impl Fn(&Pending) -> PostError, out: &mut Vec<Command>) {
        for pending in tickets.iter().filter_map(|ticket| self.take(*ticket)) {
            let result = Err(error(&pending));
            out.push(answered(&pending, result));
        }
    }

    /// Deadlines that have passed.
    pub(super) fn expire(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let due = self.pending.iter().filter(|(_, pending)| pending.deadline_ms <= now_ms);
        let due: Vec<Ticket> = due.map(|(ticket, _)| *ticket).collect();
        let error = |pending: &Pending| PostError::Deadline {
            member: pending.to,
            waited_ms: now_ms.saturating_sub(pending.since_ms),
        };
        self.answers(&due, error, out);
    }

    /// A receiver has no room for it.
    pub(super) fn refuse(&mut self, ticket: Ticket, out: &mut Vec<Command>) {
        self.answers(&[ticket], |_| PostError::Busy, out);
    }

    /// A connection is of no more use: what it owes is answered for it, what it asked is not answered.
    pub(super) fn forget(&mut self, connection: ConnectionId, out: &mut Vec<Command>) {
        let asked = self.pending.iter().filter(|(_, pending)| pending.asker == connection);
        let asked: Vec<Ticket> = asked.map(|(ticket, _)| *ticket).collect();
        for ticket in asked {
            self.take(ticket);
        }
        let owed = self.pending.iter().filter(|(_, pending)| pending.owes == connection);
        let owed: Vec<Ticket> = owed.map(|(ticket, _)| *ticket).collect();
        self.answers(&owed, |pending| PostError::Gone { member: pending.to }, out);
        self.loads.remove(&connection);
    }
}

fn answered(pending: &Pending, result: Result<PostReply, PostError>) -> Command {
    let Pending { asker, request, of, to, .. } = *pending;
    send(asker, FromScheduler::PostAnswered { request, from: to, of, result })
}

impl Engine {
    /// What the scheduler's own program says.
    pub(super) fn local(&mut self, now_ms: u64, message: ToScheduler, out: &mut Vec<Command>) {
        match message {
            ToScheduler::Post { request, to, message, timeout_ms } => {
                self.post(now_ms, (LOCAL, SCHEDULER, request), to, message, timeout_ms, out);
            }
            ToScheduler::PostReply { ticket, result } => self.post_reply(LOCAL, ticket, result, out),
            ToScheduler::Barrier { request, name, group, passed, timeout_ms } => {
                let who = Arrival::new(SCHEDULER, LOCAL, (request, passed), now_ms, timeout_ms);
                self.arrive(who, name, group, out);
            }
            // Only messages and barriers come from there.
            ToScheduler::Register(_)
            | ToScheduler::Heartbeat(_)
            | ToScheduler::LinksReady
            | ToScheduler::Declare { .. }
            | ToScheduler::Assigned { .. }
            | ToScheduler::Goodbye
            | ToScheduler::Heard { .. }
            | ToScheduler::Abandons
            | ToScheduler::Failing { .. }
            | ToScheduler::ChangeRule { .. }
            | ToScheduler::Seeded { .. }
            | ToScheduler::Resuming { .. }
            | ToScheduler::Identify
            | ToScheduler::Drain
            | ToScheduler::Rounds { .. }
            | ToScheduler::Checkpoint(_)
            | ToScheduler::SaveCheckpoint { .. }
            | ToScheduler::OrderCheckpoint { .. } => {}
        }
    }

    /// A message is passed on to all that it is for.
    pub(super) fn post(
        &mut self,
        now_ms: u64,
        (asker, sender, request): (ConnectionId, MemberId, u64),
        to: PostTo,
        message: PostMessage,
        timeout_ms: u64,
        out: &mut Vec<Command>,
    ) {
        let receivers: Vec<MemberId> =
            self.known_places().into_iter().chain([SCHEDULER]).filter(|id| to.holds(*id)).collect();
        let bytes = message.body.len();
        let refusal = match self.phase {
            _ if receivers.is_empty() => Some(PostError::Nobody),
            _ if bytes > POST_BODY_BYTES_MAX => Some(PostError::TooLong { bytes: bytes as u64 }),
            Phase::Assembling | Phase::Rebuilding => {
                Some(PostError::NotNow("the cluster is not complete yet".into()))
            }
            Phase::Ending { .. } | Phase::Ended { .. } => Some(PostError::NotNow("the job is ending".into())),
            Phase::Running if self.posts.load(asker).asked + receivers.len() > POSTS_ASKED_MAX => {
                Some(PostError::Busy)
            }
            Phase::Running => None,
        };
        if let Some(error) = refusal {
            let message = FromScheduler::PostAnswered { request, from: SCHEDULER, of: 1, result: Err(error) };
            out.push(send(asker, message));
            return;
        }
        let of = receivers.len() as u32;
        self.posts.next += 1;
        let (ticket, mut told) = (self.posts.next, Vec::new());
        for to in receivers {
            let there = self.members.get(&to).filter(|member| !member.gone).map(|member| member.connection);
            let owes = if to == SCHEDULER { Some(LOCAL) } else { there };
            let error = match owes {
                None => PostError::Gone { member: to },
                Some(owes) if self.posts.has_room(owes, bytes) => {
                    let deadline_ms = deadline_ms(now_ms, timeout_ms);
                    let pending =
                        Pending { asker, request, of, to, owes, bytes, since_ms: now_ms, deadline_ms };
                    self.posts.add(ticket, pending);
                    told.push(owes);
                    continue;
                }
                Some(_) => PostError::Busy,
            };
            out.push(send(asker, FromScheduler::PostAnswered { request, from: to, of, result: Err(error) }));
        }
        if !told.is_empty() {
            let message = FromScheduler::Posted { ticket, from: sender, message, timeout_ms };
            out.push(send_to(told, message));
        }
    }

    /// A receiver answers. One that answers what it was not asked, or too late, is not heard.
    pub(super) fn post_reply(
        &mut self,
        from: ConnectionId,
        ticket: u64,
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
        out.extend(self.posts.take((ticket, from)).map(|pending| answered(&pending, result)));
    }
}
