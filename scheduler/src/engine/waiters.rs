//! Members that wait for tensors, each until its own deadline. Members that wait for the same tensors are stored together, and get the same
//! answer. Owns the bounds of what waits. It must not know the state of a tensor.
//!
//! ```text
//!   add ──▶ waiting ──┬─ answer: all their tensors are there, or one has failed
//!                     ├─ expire: Deadline
//!                     └─ forget, forget_request: no answer
//! ```

use super::command::deadline_ms;
use super::member::ConnectionId;
use proto_common::ids::{Key, Rank};
use proto_common::message::DeclareError;
use proto_common::shard_map::SharedUpdate;

/// Declarations that may wait for servers at once, over all members.
const WAITERS_MAX: usize = 16_384;
/// Keys that are kept for them: those of declarations of the same tensors once.
pub(super) const WAITING_KEYS_MAX: usize = if cfg!(test) { 1 << 17 } else { 1 << 25 };

/// An answer that is due: to whom, to which request, what.
pub(super) type DueAnswer = (ConnectionId, u64, Result<SharedUpdate, DeclareError>);

/// Who declares, and how long it waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    connection: ConnectionId,
    request: u64,
    since_ms: u64,
    deadline_ms: u64,
}

impl Asker {
    pub(super) fn new(connection: ConnectionId, request: u64, now_ms: u64, timeout_ms: u64) -> Self {
        Self { connection, request, since_ms: now_ms, deadline_ms: deadline_ms(now_ms, timeout_ms) }
    }

    pub(super) fn is_on(&self, connection: ConnectionId) -> bool {
        self.connection == connection
    }

    pub(super) fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }

    pub(super) fn answer(&self, result: Result<SharedUpdate, DeclareError>) -> DueAnswer {
        (self.connection, self.request, result)
    }

    /// Its deadline has passed, and these servers have not answered.
    pub(super) fn too_late(&self, now_ms: u64, servers: Vec<Rank>) -> DueAnswer {
        let waited_ms = now_ms.saturating_sub(self.since_ms);
        self.answer(Err(DeclareError::Deadline { waited_ms, servers }))
    }
}

/// Those who wait for the same tensors.
#[derive(Debug)]
struct Group {
    keys: Vec<Key>,
    askers: Vec<Asker>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Waiters(Vec<Group>);

impl Waiters {
    /// May one more wait for these tensors?
    pub(super) fn has_room(&self, keys: &[Key]) -> bool {
        let waiting: usize = self.0.iter().map(|group| group.askers.len()).sum();
        let kept: usize = self.0.iter().map(|group| group.keys.len()).sum();
        let is_known = || self.0.iter().any(|group| group.keys == keys);
        waiting < WAITERS_MAX && (kept + keys.len() <= WAITING_KEYS_MAX || is_known())
    }

    pub(super) fn add(&mut self, keys: Vec<Key>, who: Asker) {
        match self.0.iter_mut().find(|group| group.keys == keys) {
            Some(group) => group.askers.push(who),
            None => self.0.push(Group { keys, askers: vec![who] }),
        }
    }

    /// A connection is gone.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        self.retain(|asker| asker.connection != connection);
    }

    /// It asks the same again.
    pub(super) fn forget_request(&mut self, who: &Asker) {
        self.retain(|asker| (asker.connection, asker.request) != (who.connection, who.request));
    }

    fn retain(&mut self, mut stays: impl FnMut(&Asker) -> bool) {
        self.0.iter_mut().for_each(|group| group.askers.retain(&mut stays));
        self.0.retain(|group| !group.askers.is_empty());
    }

    /// Answers those whose tensors have an answer.
    pub(super) fn answer(
        &mut self,
        mut answer_for: impl FnMut(&[Key]) -> Option<Result<SharedUpdate, DeclareError>>,
    ) -> Vec<DueAnswer> {
        let mut due = Vec::new();
        self.0.retain(|group| {
            let Some(result) = answer_for(&group.keys) else { return true };
            due.extend(group.askers.iter().map(|who| who.answer(result.clone())));
            false
        });
        due
    }

    /// Answers those whose deadline has passed. `silent` are the servers that have not answered as to these tensors.
    pub(super) fn expire(&mut self, now_ms: u64, silent: impl Fn(&[Key]) -> Vec<Rank>) -> Vec<DueAnswer> {
        let mut due = Vec::new();
        for group in &mut self.0 {
            let late: Vec<Asker> = group.askers.extract_if(.., |asker| asker.deadline_ms <= now_ms).collect();
            let servers = if late.is_empty() { Vec::new() } else { silent(&group.keys) };
            due.extend(late.iter().map(|who| who.too_late(now_ms, servers.clone())));
        }
        self.0.retain(|group| !group.askers.is_empty());
        due
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.0.iter().flat_map(|group| &group.askers).map(Asker::deadline_ms).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(connection: u64, deadline_ms: u64) -> Asker {
        Asker::new(ConnectionId(connection), 1, 0, deadline_ms)
    }

    #[test]
    fn those_who_wait_for_the_same_are_answered_together() {
        let mut waiters = Waiters::default();
        waiters.add(vec![Key(1)], asker(10, 50));
        waiters.add(vec![Key(1), Key(2)], asker(11, 50));
        waiters.add(vec![Key(1)], asker(12, 40));
        assert_eq!(waiters.next_deadline_ms(), Some(40));
        let mut asked = 0;
        let due = waiters.answer(|keys| {
            asked += 1;
            (keys == [Key(1)]).then(|| Ok(SharedUpdate::default()))
        });
        assert_eq!((asked, due.iter().map(|due| due.0.0).collect::<Vec<_>>()), (2, vec![10, 12]));
        let late = waiters.expire(50, |_| vec![Rank(3)]);
        let [(ConnectionId(11), 1, Err(DeclareError::Deadline { waited_ms: 50, servers }))] = &late[..]
        else {
            panic!("{late:?}")
        };
        assert_eq!((&servers[..], waiters.next_deadline_ms()), (&[Rank(3)][..], None));
    }

    #[test]
    fn what_waits_has_a_bound_and_the_same_tensors_take_no_more_room() {
        let mut waiters = Waiters::default();
        let all: Vec<Key> = (0..WAITING_KEYS_MAX as u64).map(Key).collect();
        assert!(waiters.has_room(&all));
        waiters.add(all.clone(), asker(10, 50));
        assert!(waiters.has_room(&all) && !waiters.has_room(&[Key(1)]));
        waiters.forget(ConnectionId(10));
        let one = [Key(1)];
        (0..WAITERS_MAX as u64).for_each(|n| waiters.add(one.to_vec(), asker(10 + n, 50)));
        assert!(!waiters.has_room(&one));
        waiters.forget(ConnectionId(11));
        assert!(waiters.has_room(&one));
    }
}
