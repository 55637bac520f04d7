//! Decisions that a member has received and that are not in force yet. The scheduler sends `Decided` when a majority of the members has
//! received them; until then the member holds them and all messages that follow them. A restarted scheduler receives the held
//! decisions, too, because they may be in force at other members. This module must not know what decisions mean, beyond their
//! effect on the roster and the shard map.

use proto_common::ids::{Epoch, Incarnation};
use proto_common::message::{FromScheduler, Resume, ToScheduler};
use proto_common::shard_map::ShardMap;
use std::collections::VecDeque;

/// The most messages that are held. The number stays small, because a scheduler without a majority ends the job after
/// `deadlines.scheduler_ms`.
const HELD_MAX: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub struct Undecided {
    /// The messages of this scheduler, from the first decision on that is not in force.
    held: VecDeque<FromScheduler>,
    /// Proposed decisions of earlier schedulers, which may be in force.
    before: Vec<FromScheduler>,
    /// The rosters of the last proposal.
    rosters: Vec<Vec<Incarnation>>,
}

/// Too many messages wait.
#[derive(Debug, PartialEq, Eq)]
pub struct Overflow;

impl Undecided {
    /// Takes a message of the scheduler. Adds the messages that the member handles now to `now`. Returns the answer to the scheduler.
    ///
    /// # Errors
    ///
    /// [`Overflow`] if too many messages wait for a decision: the link to this scheduler must be closed.
    pub fn take(
        &mut self,
        message: FromScheduler,
        now: &mut Vec<FromScheduler>,
    ) -> Result<Option<ToScheduler>, Overflow> {
        match message {
            FromScheduler::Proposed { epoch, ref rosters } => {
                self.rosters.clone_from(rosters);
                self.hold(message)?;
                return Ok(Some(ToScheduler::Heard { epoch }));
            }
            FromScheduler::Decided { epoch } => self.release(epoch, now),
            FromScheduler::Welcome(_)
            | FromScheduler::Refused(_)
            | FromScheduler::MemberDied(_)
            | FromScheduler::Shutdown { .. }
            | FromScheduler::GoodbyeAck => now.push(message),
            message if self.held.is_empty() && !is_decision(&message) => now.push(message),
            message => self.hold(message)?,
        }
        Ok(None)
    }

    fn hold(&mut self, message: FromScheduler) -> Result<(), Overflow> {
        if self.held.len() >= HELD_MAX {
            return Err(Overflow);
        }
        self.held.push_back(message);
        Ok(())
    }

    /// All decisions up to this one are in force: releases them, and the messages behind them up to the next decision.
    fn release(&mut self, decided: Epoch, now: &mut Vec<FromScheduler>) {
        let is_upto = |message: &FromScheduler| matches!(message, FromScheduler::Proposed { epoch, .. } if *epoch <= decided);
        let Some(last) = self.held.iter().rposition(is_upto) else { return };
        // The decisions of this scheduler include those that this member reported to it.
        self.before.clear();
        let released = self.held.drain(..=last);
        now.extend(released.filter(|message| !matches!(message, FromScheduler::Proposed { .. })));
        while self.held.front().is_some_and(|message| !is_decision(message)) {
            let next = self.held.pop_front();
            now.extend(next.filter(|message| !matches!(message, FromScheduler::Proposed { .. })));
        }
        if self.held.iter().all(|message| !matches!(message, FromScheduler::Proposed { .. })) {
            self.rosters.clear();
        }
    }

    /// The scheduler is lost. Keeps the decisions that it has proposed, which may be in force. A decision that was not proposed is in
    /// force at no member.
    pub fn lost(&mut self) {
        let proposed = |message: &FromScheduler| matches!(message, FromScheduler::Proposed { .. });
        let keep = self.held.iter().rposition(proposed).map_or(0, |last| last + 1);
        let stored = self.held.drain(..).take(keep);
        let is_known =
            |message: &FromScheduler| is_decision(message) || matches!(message, FromScheduler::Assign(_));
        self.before.extend(stored.filter(is_known));
        if self.before.is_empty() {
            self.rosters.clear();
        }
    }

    /// The member's knowledge, with the decisions that may be in force.
    #[must_use]
    pub fn show(&self, known: Resume) -> Resume {
        let Some(shape) = known.shape else { return known };
        let mut known = Resume { rosters: self.rosters.clone(), ..known };
        let mut map = ShardMap::new(shape.chunk_bytes, shape.lanes);
        // The scheduler that sent a change has checked it. A change that cannot be applied has no effect.
        let _ = map.apply(&known.map);
        for message in &self.before {
            let epoch = match message {
                FromScheduler::Roster { epoch, members, left } => {
                    (known.members, known.left) = (members.clone(), left.clone());
                    *epoch
                }
                FromScheduler::Remap { epoch, change } => {
                    let _ = map.change(*epoch, change);
                    *epoch
                }
                FromScheduler::Assign(update) => {
                    let _ = map.apply(update);
                    update.epoch
                }
                _ => continue,
            };
            known.epoch = known.epoch.max(epoch);
        }
        if !self.before.is_empty() {
            known.map = map.whole();
        }
        known
    }
}

/// Is this message a decision, which members hold until it is in force?
fn is_decision(message: &FromScheduler) -> bool {
    matches!(message, FromScheduler::Roster { .. } | FromScheduler::Remap { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::config::Settings;
    use proto_common::ids::{MemberId, Rank, Role};
    use proto_common::message::Member;

    fn epoch(counter: u32) -> Epoch {
        Epoch { term: 1, counter }
    }

    fn roster(counter: u32, workers: u32) -> FromScheduler {
        let of = |rank| MemberId { role: Role::Worker, rank: Rank(rank) };
        let member = |rank| Member {
            id: of(rank),
            incarnation: Incarnation(u64::from(rank)),
            data_address: None,
            http_address: None,
        };
        FromScheduler::Roster {
            epoch: epoch(counter),
            members: (0..workers).map(member).collect(),
            left: Vec::new(),
        }
    }

    fn proposed(counter: u32) -> FromScheduler {
        FromScheduler::Proposed { epoch: epoch(counter), rosters: vec![vec![Incarnation(7)]] }
    }

    fn released(request: u64) -> FromScheduler {
        FromScheduler::Released { request, result: Ok(()) }
    }

    fn take(undecided: &mut Undecided, message: FromScheduler) -> (Vec<FromScheduler>, Option<ToScheduler>) {
        let mut now = Vec::new();
        let answer = undecided.take(message, &mut now).unwrap();
        (now, answer)
    }

    #[test]
    fn a_decision_and_what_follows_it_wait_until_it_is_in_force() {
        let mut undecided = Undecided::default();
        assert_eq!(take(&mut undecided, released(1)), (vec![released(1)], None));
        assert_eq!(take(&mut undecided, roster(1, 2)), (vec![], None));
        assert_eq!(take(&mut undecided, released(2)), (vec![], None));
        let heard = Some(ToScheduler::Heard { epoch: epoch(1) });
        assert_eq!(take(&mut undecided, proposed(1)), (vec![], heard));
        assert_eq!(take(&mut undecided, released(3)), (vec![], None));
        assert_eq!(take(&mut undecided, roster(2, 1)), (vec![], None));
        let end = FromScheduler::Shutdown { reason: "over".into() };
        assert_eq!(take(&mut undecided, end.clone()), (vec![end], None), "the end overtakes");
        let early = FromScheduler::Decided { epoch: epoch(0) };
        assert_eq!(take(&mut undecided, early), (vec![], None));
        let decided = FromScheduler::Decided { epoch: epoch(1) };
        assert_eq!(take(&mut undecided, decided), (vec![roster(1, 2), released(2), released(3)], None));
        take(&mut undecided, proposed(2));
        let decided = FromScheduler::Decided { epoch: epoch(2) };
        assert_eq!(take(&mut undecided, decided), (vec![roster(2, 1)], None));
    }

    #[test]
    fn the_next_scheduler_is_shown_what_was_proposed_and_nothing_else() {
        let mut undecided = Undecided::default();
        let known = Resume { shape: Some(Settings::default().shape()), epoch: epoch(1), ..Resume::default() };
        assert_eq!(undecided.show(known.clone()), known);
        for message in [roster(2, 3), proposed(2), roster(3, 1)] {
            take(&mut undecided, message);
        }
        undecided.lost();
        let shown = undecided.show(known.clone());
        assert_eq!((shown.members.len(), shown.epoch), (3, epoch(2)));
        assert_eq!(shown.rosters, [[Incarnation(7)]]);
        // The first decision of the next scheduler contains all of this, and is lost before it is in force.
        take(&mut undecided, roster(4, 2));
        undecided.lost();
        assert_eq!(undecided.show(known.clone()), shown, "it was never proposed");
        take(&mut undecided, roster(5, 2));
        take(&mut undecided, proposed(5));
        take(&mut undecided, FromScheduler::Decided { epoch: epoch(5) });
        undecided.lost();
        assert_eq!(undecided.show(known.clone()), known, "the member itself knows what is in force");
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut undecided = Undecided::default();
        for _ in 0..HELD_MAX {
            take(&mut undecided, roster(1, 0));
        }
        assert_eq!(undecided.take(released(1), &mut Vec::new()), Err(Overflow));
    }
}
