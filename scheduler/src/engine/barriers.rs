//! Barriers over node groups: those who arrived wait until everyone in the group is there, each to its own
//! deadline. A barrier is its name and its group; after release the same one can be entered again.

use super::member::places;
use super::{ConnectionId, SCHEDULER, deadline_ms};
use daemon::status::BarrierStatus;
use proto_common::ids::{MemberId, Role};
use proto_common::limits::NAME_BYTES_MAX;
use proto_common::message::{ClusterShape, NodeGroup, WaitError};
use std::collections::{BTreeMap, BTreeSet};

/// Barriers with someone waiting, at once.
const BARRIERS_MAX: usize = 1024;

/// The answer to one barrier request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) to: ConnectionId,
    pub(super) request: u64,
    pub(super) result: Result<(), WaitError>,
}

/// Someone who waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    member: MemberId,
    connection: ConnectionId,
    request: u64,
    since_ms: u64,
    deadline_ms: u64,
}

impl Arrival {
    pub(super) fn new(
        member: MemberId,
        connection: ConnectionId,
        request: u64,
        now_ms: u64,
        timeout_ms: u64,
    ) -> Self {
        let deadline_ms = deadline_ms(now_ms, timeout_ms);
        Self { member, connection, request, since_ms: now_ms, deadline_ms }
    }

    pub(super) fn refused(&self, name: String, reason: &str) -> Answer {
        self.answer(Err(WaitError::Refused { name, reason: reason.to_owned() }))
    }

    fn answer(&self, result: Result<(), WaitError>) -> Answer {
        Answer { to: self.connection, request: self.request, result }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BarrierKey {
    name: String,
    scheduler: bool,
    servers: bool,
    workers: bool,
}

impl BarrierKey {
    fn holds(&self, id: MemberId) -> bool {
        match id.role {
            Role::Server => self.servers,
            Role::Worker => self.workers,
            Role::Scheduler => self.scheduler,
        }
    }
}

/// All barriers with someone waiting.
#[derive(Debug)]
pub(super) struct Barriers {
    shape: ClusterShape,
    /// A program runs the scheduler, and may come to barriers.
    has_program: bool,
    left: BTreeSet<MemberId>,
    waiting: BTreeMap<BarrierKey, BTreeMap<MemberId, Arrival>>,
}

impl Barriers {
    pub(super) fn new(shape: &ClusterShape) -> Self {
        Self { shape: *shape, has_program: false, left: BTreeSet::new(), waiting: BTreeMap::new() }
    }

    /// Someone arrives; the last one opens the barrier for all.
    pub(super) fn enter(&mut self, who: Arrival, name: String, group: NodeGroup) -> Vec<Answer> {
        let NodeGroup { scheduler, servers, workers } = group;
        let key = BarrierKey { name, scheduler, servers, workers };
        if let Some(reason) = self.obstacle(&key, who.member) {
            return vec![who.refused(key.name, &reason)];
        }
        let expected = self.expected(&key).count();
        let arrived = self.waiting.entry(key.clone()).or_default();
        arrived.insert(who.member, who);
        if arrived.len() < expected {
            return Vec::new();
        }
        let released = self.waiting.remove(&key).unwrap_or_default();
        released.values().map(|arrival| arrival.answer(Ok(()))).collect()
    }

    fn obstacle(&self, key: &BarrierKey, member: MemberId) -> Option<String> {
        if key.name.len() > NAME_BYTES_MAX {
            return Some(format!("a barrier's name may have {NAME_BYTES_MAX} bytes"));
        }
        if !key.holds(member) {
            return Some(format!("{member} is not part of the group; enter with a group that holds it"));
        }
        if let Some(left) = self.left.iter().find(|left| key.holds(**left)) {
            return Some(format!("{left} has left the job and cannot come"));
        }
        match self.waiting.get(key) {
            Some(arrived) if arrived.contains_key(&member) => {
                Some(format!("{member} waits there already; one wait at a time, or another name"))
            }
            None if self.waiting.len() >= BARRIERS_MAX => {
                Some(format!("more than {BARRIERS_MAX} barriers are waited for at once"))
            }
            _ => None,
        }
    }

    /// Deadlines that have passed. Who waits in a barrier is not missing there, even if its own deadline
    /// passes in the same moment.
    pub(super) fn expire(&mut self, now_ms: u64) -> Vec<Answer> {
        let mut answers = Vec::new();
        for (key, arrived) in &mut self.waiting {
            if arrived.values().all(|arrival| arrival.deadline_ms > now_ms) {
                continue;
            }
            let missing: Vec<MemberId> =
                comers(&self.shape, self.has_program, key).filter(|id| !arrived.contains_key(id)).collect();
            arrived.retain(|_, arrival| {
                let due = arrival.deadline_ms <= now_ms;
                if due {
                    let (name, missing) = (key.name.clone(), missing.clone());
                    let waited_ms = now_ms.saturating_sub(arrival.since_ms);
                    answers.push(arrival.answer(Err(WaitError::Deadline { name, waited_ms, missing })));
                }
                !due
            });
        }
        self.waiting.retain(|_, arrived| !arrived.is_empty());
        answers
    }

    /// A member left: whoever waits for it, waits in vain.
    pub(super) fn leave(&mut self, id: MemberId) -> Vec<Answer> {
        self.left.insert(id);
        let mut answers = Vec::new();
        self.waiting.retain(|key, arrived| {
            if !key.holds(id) {
                return true;
            }
            let reason = format!("{id} has left the job and cannot come");
            answers.extend(arrived.values().map(|arrival| arrival.refused(key.name.clone(), &reason)));
            false
        });
        answers
    }

    /// A member is gone: what it waited for is not answered.
    pub(super) fn forget(&mut self, id: MemberId) {
        self.waiting.retain(|_, arrived| {
            arrived.remove(&id);
            !arrived.is_empty()
        });
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.waiting.values().flat_map(|arrived| arrived.values().map(|a| a.deadline_ms)).min()
    }

    pub(super) fn status(&self, now_ms: u64) -> Vec<BarrierStatus> {
        let show = |(key, arrived): (&BarrierKey, &BTreeMap<MemberId, Arrival>)| BarrierStatus {
            name: key.name.clone(),
            arrived: arrived.keys().copied().collect(),
            missing: self.expected(key).filter(|id| !arrived.contains_key(id)).collect(),
            waited_ms: arrived.values().map(|a| now_ms.saturating_sub(a.since_ms)).max().unwrap_or(0),
        };
        self.waiting.iter().map(show).collect()
    }

    fn expected<'a>(&self, key: &'a BarrierKey) -> impl Iterator<Item = MemberId> + use<'a> {
        comers(&self.shape, self.has_program, key)
    }

    /// A program that runs the scheduler is waited for, too.
    pub(super) fn count_program(&mut self) {
        self.has_program = true;
    }
}

/// Whom a barrier waits for.
fn comers<'a>(
    shape: &ClusterShape,
    has_program: bool,
    key: &'a BarrierKey,
) -> impl Iterator<Item = MemberId> + use<'a> {
    places(shape).chain(has_program.then_some(SCHEDULER)).filter(|id| key.holds(*id))
}
