//! The roster: which processes are members, on which connections, which have failed, and which workers may come again. It must not
//! decide what a failure means.
//!
//! ```text
//!            seat                abandon
//!   free ───────────▶ present ─────────────▶ away: it looks for another scheduler
//!    ▲                   │                     │
//!    │                   └────────┬────────────┘
//!    │ fail, dismiss              ▼ close
//!    └───────────────────────── gone ──────▶ left, if it has said goodbye before: `seat` may replace it
//! ```
//!
//! A process that has failed or was dismissed is remembered. If it came back under its rank, two processes could believe that they
//! have the same chunks.

use super::member::{ConnectionId, Member};
use super::shards::Servers;
use daemon::status::FailedStatus;
use proto_common::error::Death;
use proto_common::ids::{Incarnation, MemberId, Rank, Role};
use proto_common::message::{self, MemberReport};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Processes that were declared failed and are remembered: they may still be on their way back.
const DEAD_MAX: usize = 4096;

/// Processes that status lists as failed.
const FAILED_LISTED_MAX: usize = 64;

/// A worker that failed and may come again.
#[derive(Clone, Debug)]
struct Awaited {
    deadline_ms: u64,
    death: Death,
}

/// What has happened to the membership, for status and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) rosters: u64,
    pub(super) lost: u64,
    /// The newest of those, the last one last.
    pub(super) failed: Vec<FailedStatus>,
    pub(super) joined: u64,
    pub(super) rebuilt: u64,
    /// From the last sign of life of the server that failed last to the decision who takes over.
    pub(super) promotion_ms: u64,
    /// Servers that the job is to have: those of its start, with those that came and without those that were sent away. One that
    /// failed counts until another one has its place.
    pub(super) servers: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Members {
    all: BTreeMap<MemberId, Member>,
    /// Connections of members that have not closed.
    connections: BTreeMap<ConnectionId, MemberId>,
    awaited: BTreeMap<Rank, Awaited>,
    /// Processes that have failed or were dismissed, the oldest first.
    dead: BTreeSet<Incarnation>,
    dead_in_order: VecDeque<Incarnation>,
    changes: Changes,
}

impl Members {
    pub(super) fn new(servers: u32) -> Self {
        Self { changes: Changes { servers, ..Changes::default() }, ..Self::default() }
    }

    /// All members have to register again: nobody is there, and the past stays known.
    pub(super) fn begin_again(&mut self) -> Self {
        let Self { dead, dead_in_order, changes, .. } = std::mem::take(self);
        Self { dead, dead_in_order, changes, ..Self::default() }
    }

    pub(super) fn get(&self, id: MemberId) -> Option<&Member> {
        self.all.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (MemberId, &Member)> {
        self.all.iter().map(|(id, member)| (*id, member))
    }

    /// Members whose connection has not closed.
    pub(super) fn there(&self) -> impl Iterator<Item = (MemberId, &Member)> {
        self.iter().filter(|(_, member)| !member.gone)
    }

    pub(super) fn there_as(&self, role: Role) -> impl Iterator<Item = (Rank, &Member)> {
        self.there().filter(move |(id, _)| id.role == role).map(|(id, member)| (id.rank, member))
    }

    /// Connections of the members that are there and that `wanted` picks.
    pub(super) fn connections(&self, wanted: impl Fn(MemberId) -> bool) -> Vec<ConnectionId> {
        self.there().filter(|(id, _)| wanted(*id)).map(|(_, member)| member.connection).collect()
    }

    pub(super) fn on(&self, connection: ConnectionId) -> Option<MemberId> {
        self.connections.get(&connection).copied()
    }

    /// Is this process a member that is there?
    pub(super) fn is_there(&self, life: Incarnation) -> bool {
        self.there().any(|(_, member)| member.incarnation == life)
    }

    pub(super) fn servers(&self) -> Servers {
        let draining = self.there_as(Role::Server).filter(|(_, member)| member.draining);
        Servers {
            draining: draining.map(|(rank, _)| rank).collect(),
            there: self.there_as(Role::Server).map(|(rank, _)| rank).collect(),
        }
    }

    /// Workers that have left in good order.
    pub(super) fn left(&self) -> Vec<Rank> {
        let left = self.iter().filter(|(id, member)| id.role == Role::Worker && member.left);
        left.map(|(id, _)| id.rank).collect()
    }

    /// Has every worker left in good order?
    pub(super) fn workers_left(&self) -> bool {
        let mut workers = self.iter().filter(|(id, _)| id.role == Role::Worker);
        workers.all(|(_, member)| member.left) && self.awaited.is_empty()
    }

    /// What all are told of each other, counted.
    pub(super) fn roster(&mut self) -> Vec<message::Member> {
        self.changes.rosters += 1;
        self.there().map(|(id, member)| member.entry(id)).collect()
    }

    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    /// A process gets a place.
    pub(super) fn seat(&mut self, id: MemberId, member: Member) {
        self.connections.insert(member.connection, id);
        self.all.insert(id, member);
    }

    /// A member of the job that has not registered with this scheduler.
    pub(super) fn seat_absent(&mut self, entry: &message::Member, now_ms: u64) {
        self.all.insert(entry.id, Member::absent(entry, now_ms));
    }

    /// A worker that had left before this scheduler came.
    pub(super) fn seat_departed(&mut self, rank: Rank, now_ms: u64) {
        let id = MemberId { role: Role::Worker, rank };
        self.all.entry(id).or_insert_with(|| Member::departed(now_ms));
    }

    /// A member has come into a job that runs.
    pub(super) fn join(&mut self, id: MemberId) {
        self.changes.joined += 1;
        match id.role {
            Role::Server => {
                let there = self.there_as(Role::Server).count() as u32;
                self.changes.servers = self.changes.servers.max(there);
            }
            _ => _ = self.awaited.remove(&id.rank),
        }
    }

    /// A job of so many servers continues under this scheduler.
    pub(super) fn rebuilt(&mut self, servers: u32) {
        self.changes.rebuilt += 1;
        self.changes.servers = servers;
    }

    /// Nobody is a member any more: returns those that were there.
    pub(super) fn take_all(&mut self) -> Vec<(MemberId, Member)> {
        self.connections.clear();
        std::mem::take(&mut self.all).into_iter().filter(|(_, member)| !member.gone).collect()
    }

    /// A member has said something. False if it is none.
    pub(super) fn heard(&mut self, id: MemberId, now_ms: u64) -> bool {
        self.all.get_mut(&id).map(|member| member.heard_ms = now_ms).is_some()
    }

    pub(super) fn take_report(&mut self, id: MemberId, now_ms: u64, report: MemberReport) {
        self.edit(id, |member| member.take_report(now_ms, report));
    }

    pub(super) fn links_ready(&mut self, id: MemberId) {
        self.edit(id, |member| member.links_ready = true);
    }

    /// A server wishes to go.
    pub(super) fn drain(&mut self, id: MemberId) {
        self.edit(id, |member| member.draining = true);
    }

    /// A member looks for another scheduler. It is treated like a silent member.
    pub(super) fn abandon(&mut self, id: MemberId) {
        self.edit(id, |member| member.is_away = true);
    }

    /// A member has said goodbye. Its connection is closed next.
    pub(super) fn leave(&mut self, id: MemberId) {
        self.edit(id, |member| member.left = true);
    }

    fn edit(&mut self, id: MemberId, change: impl FnOnce(&mut Member)) {
        if let Some(member) = self.all.get_mut(&id) {
            change(member);
        }
    }

    /// A member's connection is of no more use.
    pub(super) fn close(&mut self, id: MemberId) -> Option<ConnectionId> {
        let member = self.all.get_mut(&id)?;
        member.gone = true;
        self.connections.remove(&member.connection);
        Some(member.connection)
    }

    /// A member has failed: its place is free. False if it was none.
    pub(super) fn fail(&mut self, id: MemberId, now_ms: u64) -> bool {
        let Some(member) = self.remove(id) else { return false };
        let changes = &mut self.changes;
        if id.role == Role::Server {
            changes.promotion_ms = now_ms.saturating_sub(member.heard_ms);
        }
        changes.lost += 1;
        if changes.failed.len() == FAILED_LISTED_MAX {
            changes.failed.remove(0);
        }
        let Member { pid, host_identity, .. } = member;
        changes.failed.push(FailedStatus { member: id, pid, host_identity });
        true
    }

    /// A server that nothing needs has gone: the job is to have one less.
    pub(super) fn dismiss(&mut self, id: MemberId) {
        self.remove(id);
        self.changes.servers = self.changes.servers.saturating_sub(1);
    }

    fn remove(&mut self, id: MemberId) -> Option<Member> {
        let member = self.all.remove(&id)?;
        self.bury(member.incarnation);
        Some(member)
    }

    /// This process is refused from now on.
    pub(super) fn bury(&mut self, life: Incarnation) {
        if self.dead.insert(life) {
            self.dead_in_order.push_back(life);
        }
        if self.dead_in_order.len() > DEAD_MAX {
            self.dead_in_order.pop_front().map(|oldest| self.dead.remove(&oldest));
        }
    }

    pub(super) fn is_dead(&self, life: Incarnation) -> bool {
        self.dead.contains(&life)
    }

    /// A worker has failed and is waited for until then.
    pub(super) fn await_again(&mut self, deadline_ms: u64, death: Death) {
        self.awaited.insert(death.member.rank, Awaited { deadline_ms, death });
    }

    /// No worker is waited for any more.
    pub(super) fn await_none(&mut self) {
        self.awaited.clear();
    }

    pub(super) fn awaited(&self) -> impl ExactSizeIterator<Item = Rank> {
        self.awaited.keys().copied()
    }

    /// The failure of a worker that has not come again in time.
    pub(super) fn late(&self, now_ms: u64) -> Option<Death> {
        let late = self.awaited.values().find(|awaited| awaited.deadline_ms <= now_ms);
        late.map(|awaited| awaited.death.clone())
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.awaited.values().map(|awaited| awaited.deadline_ms).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::error::DeathCause;

    fn server(rank: u32) -> MemberId {
        MemberId { role: Role::Server, rank: Rank(rank) }
    }

    fn seated(members: &mut Members, id: MemberId, life: u64) {
        let connection = ConnectionId(life);
        let mut member = Member::departed(0);
        (member.connection, member.incarnation) = (connection, Incarnation(life));
        (member.gone, member.left) = (false, false);
        members.seat(id, member);
    }

    #[test]
    fn a_connection_is_a_members_until_it_closes() {
        let mut members = Members::new(1);
        seated(&mut members, server(0), 7);
        assert_eq!(members.on(ConnectionId(7)), Some(server(0)));
        assert_eq!(members.close(server(0)), Some(ConnectionId(7)));
        assert_eq!((members.on(ConnectionId(7)), members.there().count()), (None, 0));
        assert!(members.get(server(0)).is_some(), "what its failure means is not decided yet");
        assert!(members.fail(server(0), 5) && !members.fail(server(0), 5));
        assert!(members.is_dead(Incarnation(7)));
        assert_eq!((members.changes().lost, members.changes().servers), (1, 1));
    }

    #[test]
    fn the_newest_failures_are_listed() {
        let mut members = Members::new(1);
        for rank in 0..=FAILED_LISTED_MAX as u32 {
            seated(&mut members, server(rank), u64::from(rank));
            members.fail(server(rank), 0);
        }
        let (failed, lost) = (&members.changes().failed, members.changes().lost);
        assert_eq!((failed.len(), failed[0].member), (FAILED_LISTED_MAX, server(1)));
        assert_eq!((lost, failed.last().map(|last| last.member)), (65, Some(server(64))));
    }

    #[test]
    fn the_dead_are_remembered_up_to_a_bound() {
        let mut members = Members::new(1);
        (0..=DEAD_MAX as u64).for_each(|life| members.bury(Incarnation(life)));
        assert!(!members.is_dead(Incarnation(0)) && members.is_dead(Incarnation(1)));
        assert_eq!(members.dead.len(), DEAD_MAX);
    }

    #[test]
    fn a_worker_that_joins_is_not_awaited_any_more() {
        let mut members = Members::new(1);
        let id = MemberId { role: Role::Worker, rank: Rank(2) };
        members.await_again(9, Death { member: id, cause: DeathCause::ConnectionLost });
        assert_eq!((members.late(8), members.late(9).map(|death| death.member)), (None, Some(id)));
        assert!(!members.workers_left());
        members.join(id);
        assert_eq!((members.next_deadline_ms(), members.workers_left()), (None, true));
    }

    #[test]
    fn all_that_begins_again_is_who_has_failed() {
        let mut members = Members::new(2);
        (0..2).for_each(|rank| seated(&mut members, server(rank), u64::from(rank)));
        members.dismiss(server(1));
        let after = members.begin_again();
        assert_eq!((after.there().count(), after.on(ConnectionId(0))), (0, None));
        assert!(after.is_dead(Incarnation(1)) && after.changes().servers == 1);
    }
}
