//! Barriers over groups of members. A member that has arrived waits until all members of the group have, or until its own deadline. A
//! barrier is identified by its name and its group; after its release it can be entered again. Each member reports how often it has passed
//! the barrier. A member with a lower count than the others passes at once, because the barrier was opened for it before.

use super::command::{Command, deadline_ms, send};
use super::member::places;
use super::member::{ConnectionId, SCHEDULER};
use daemon::status::BarrierStatus;
use proto_common::ids::MemberId;
use proto_common::limits::NAME_BYTES_MAX;
use proto_common::message::{ClusterShape, FromScheduler, NodeGroup, WaitError};
use std::collections::{BTreeMap, BTreeSet};

/// Barriers with someone waiting, at once.
const BARRIERS_MAX: usize = 1024;
/// Barriers that are remembered after they were opened; those opened longest ago make way.
const OPENED_MAX: usize = daemon::passed::BARRIERS_KEPT_MAX;

/// Nobody comes through a barrier more often.
const PASSED_MAX: u64 = 1 << 48;

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
    /// How often it has come through before.
    passed: u64,
    since_ms: u64,
    deadline_ms: u64,
}

impl Arrival {
    pub(super) fn new(
        member: MemberId,
        connection: ConnectionId,
        (request, passed): (u64, u64),
        now_ms: u64,
        timeout_ms: u64,
    ) -> Self {
        let deadline_ms = deadline_ms(now_ms, timeout_ms);
        Self { member, connection, request, passed, since_ms: now_ms, deadline_ms }
    }

    pub(super) fn refused(&self, name: String, reason: &str) -> Answer {
        self.answer(Err(WaitError::Refused { name, reason: reason.to_owned() }))
    }

    fn answer(&self, result: Result<(), WaitError>) -> Answer {
        Answer { to: self.connection, request: self.request, result }
    }
}

/// Its name and its group.
type BarrierKey = (String, NodeGroup);

/// What is wrong with a request, whatever others do.
fn mistake((name, group): &BarrierKey, who: &Arrival) -> Option<String> {
    if name.len() > NAME_BYTES_MAX {
        return Some(format!("the name is too long: at most {NAME_BYTES_MAX} bytes"));
    }
    if who.passed > PASSED_MAX {
        return Some(format!("no member can have passed a barrier {} times", who.passed));
    }
    let member = who.member;
    (!group.holds(member.role))
        .then(|| format!("{member} is not part of the group; use a group that contains it"))
}

/// All barriers with someone waiting.
#[derive(Debug)]
pub(super) struct Barriers {
    /// Who is waited for.
    expected: BTreeSet<MemberId>,
    left: BTreeSet<MemberId>,
    waiting: BTreeMap<BarrierKey, BTreeMap<MemberId, Arrival>>,
    /// How often each was opened, and when last, counted in openings.
    opened: BTreeMap<BarrierKey, (u64, u64)>,
    openings: u64,
}

impl Barriers {
    pub(super) fn new(shape: &ClusterShape) -> Self {
        let (left, waiting, opened) = Default::default();
        Self { expected: places(shape).collect(), left, waiting, opened, openings: 0 }
    }

    /// Someone arrives; the last one opens the barrier for all.
    pub(super) fn enter(&mut self, who: Arrival, name: String, group: NodeGroup) -> Vec<Answer> {
        let key = (name, group);
        if let Some(reason) = mistake(&key, &who) {
            return vec![who.refused(key.0, &reason)];
        }
        // Those who came through it with the others may have left meanwhile.
        if who.passed < self.opened.get(&key).map_or(0, |(times, _)| *times) {
            return vec![who.answer(Ok(()))];
        }
        if let Some(reason) = self.obstacle(&key, &who) {
            return vec![who.refused(key.0, &reason)];
        }
        self.waiting.entry(key.clone()).or_default().insert(who.member, who);
        self.open_if_whole(key)
    }

    fn open_if_whole(&mut self, key: BarrierKey) -> Vec<Answer> {
        let Some(arrived) = self.waiting.get(&key) else { return Vec::new() };
        let (_, group) = key;
        if comers(&self.expected, group).any(|id| !arrived.contains_key(&id)) {
            return Vec::new();
        }
        let passed = arrived.values().map(|arrival| arrival.passed).max().unwrap_or(0);
        let released = self.waiting.remove(&key).unwrap_or_default();
        self.count(key, passed.saturating_add(1));
        released.values().map(|arrival| arrival.answer(Ok(()))).collect()
    }

    fn count(&mut self, key: BarrierKey, times: u64) {
        self.openings += 1;
        if self.opened.len() >= OPENED_MAX && !self.opened.contains_key(&key) {
            let oldest = self.opened.iter().min_by_key(|(_, (_, last))| *last);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|key| self.opened.remove(&key));
        }
        let entry = self.opened.entry(key).or_default();
        *entry = (entry.0.max(times), self.openings);
    }

    /// A member says that it came through so often, under a scheduler before this one.
    pub(super) fn was_opened(&mut self, name: String, group: NodeGroup, times: u64) {
        if name.len() <= NAME_BYTES_MAX && times <= PASSED_MAX {
            self.count((name, group), times);
        }
    }

    /// How often each was opened.
    pub(super) fn all_opened(&self) -> Vec<(String, NodeGroup, u64)> {
        self.opened.iter().map(|((name, group), (times, _))| (name.clone(), *group, *times)).collect()
    }

    fn obstacle(&self, key: &BarrierKey, who: &Arrival) -> Option<String> {
        let member = who.member;
        if let Some(left) = self.left.iter().find(|left| key.1.holds(left.role)) {
            return Some(format!("{left} has left the job and cannot come"));
        }
        match self.waiting.get(key).map(|arrived| arrived.get(&member)) {
            // The same wait may be told twice, when a scheduler was lost in between.
            Some(Some(waits)) if (waits.connection, waits.request) != (who.connection, who.request) => {
                Some(format!("{member} already waits at it; wait once at a time, or use another name"))
            }
            None if self.waiting.len() >= BARRIERS_MAX => {
                Some(format!("too many barriers at once: the limit is {BARRIERS_MAX}"))
            }
            _ => None,
        }
    }

    /// Deadlines that have passed. Who waits in a barrier is not missing there, even if its own deadline
    /// passes in the same moment.
    pub(super) fn expire(&mut self, now_ms: u64) -> Vec<Answer> {
        let mut answers = Vec::new();
        for ((name, group), arrived) in &mut self.waiting {
            if arrived.values().all(|arrival| arrival.deadline_ms > now_ms) {
                continue;
            }
            let missing: Vec<MemberId> =
                comers(&self.expected, *group).filter(|id| !arrived.contains_key(id)).collect();
            arrived.retain(|_, arrival| {
                let due = arrival.deadline_ms <= now_ms;
                if due {
                    let (name, missing) = (name.clone(), missing.clone());
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
        self.waiting.retain(|(name, group), arrived| {
            if !group.holds(id.role) {
                return true;
            }
            let reason = format!("{id} has left the job and cannot come");
            answers.extend(arrived.values().map(|arrival| arrival.refused(name.clone(), &reason)));
            false
        });
        answers
    }

    /// A member is not waited for any more, and the others go on without it.
    pub(super) fn without(&mut self, id: MemberId) -> Vec<Answer> {
        self.expected.remove(&id);
        let keys: Vec<BarrierKey> =
            self.waiting.keys().filter(|(_, group)| group.holds(id.role)).cloned().collect();
        keys.into_iter().flat_map(|key| self.open_if_whole(key)).collect()
    }

    /// A member came: it is waited for from now on.
    pub(super) fn join(&mut self, id: MemberId) {
        self.left.remove(&id);
        self.expected.insert(id);
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
        let show = |((name, group), arrived): (&BarrierKey, &BTreeMap<MemberId, Arrival>)| BarrierStatus {
            name: name.clone(),
            arrived: arrived.keys().copied().collect(),
            missing: comers(&self.expected, *group).filter(|id| !arrived.contains_key(id)).collect(),
            waited_ms: arrived.values().map(|a| now_ms.saturating_sub(a.since_ms)).max().unwrap_or(0),
        };
        self.waiting.iter().map(show).collect()
    }

    pub(super) fn has_program(&self) -> bool {
        self.expected.contains(&SCHEDULER)
    }

    /// A program that runs the scheduler is waited for, too.
    pub(super) fn count_program(&mut self) {
        self.expected.insert(SCHEDULER);
    }
}

/// Whom a barrier waits for.
fn comers(expected: &BTreeSet<MemberId>, group: NodeGroup) -> impl Iterator<Item = MemberId> {
    expected.iter().copied().filter(move |id| group.holds(id.role))
}

pub(super) fn release(answers: Vec<Answer>, out: &mut Vec<Command>) {
    for Answer { to, request, result } in answers {
        out.push(send(to, FromScheduler::Released { request, result }));
    }
}
