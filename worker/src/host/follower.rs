//! What a follower decides. It must not do I/O.
//!
//! ```text
//!            few are known               Taken            Result, if it lands; its lanes are done
//!  waiting ───────────────▶ offered ────────────────▶ merged ────────────────────────────────────▶ ended
//!     │ a second has passed    │ Alone                  │ Failed
//!     └──────────┬─────────────┘                        ▼
//!                ▼                                ended: failed
//!          ended: alone
//! ```
//!
//! If a worker left while a merged block of its own was on its way, its gradient would be in the sum, and the server would not count it.

use super::command::{Asked, Command, GATE_MS, OFFERED_MAX};
use super::letter::{Letter, Part};
use proto_common::ids::Rank;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The head has not answered. `asks`: it was asked to hurry.
    Offered { since_ms: u64, asks: bool },
    /// The head has it in the sum. It ends when its lanes are done, and has its weights by then.
    Merged { is_answered: bool, has_landed: bool },
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    asked: Asked,
    stage: Stage,
    /// Its failure has been reported.
    has_failed: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Follower {
    head: Rank,
    /// From now on everything goes alone.
    is_off: bool,
    entries: FxHashMap<Part, Entry>,
    /// In the order of their submission, and since when.
    waiting: VecDeque<(Asked, u64)>,
    /// Since when the head is gone.
    gone_ms: Option<u64>,
}

impl Follower {
    pub(super) fn new(head: Rank) -> Self {
        Self { head, is_off: false, entries: FxHashMap::default(), waiting: VecDeque::new(), gone_ms: None }
    }

    fn tell(&self, letter: Letter, out: &mut Vec<Command>) {
        out.push(Command::Send { to: self.head, letter });
    }

    /// An operation has come to its gate.
    pub(super) fn submitted(&mut self, asked: Asked, now_ms: u64, out: &mut Vec<Command>) {
        if self.is_off {
            return alone(asked.op, out);
        }
        self.waiting.push_back((asked, now_ms));
        self.offer(now_ms, out);
    }

    /// Offers what waits, as far as there is room.
    fn offer(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        while self.entries.len() < OFFERED_MAX {
            let Some((asked, _)) = self.waiting.pop_front() else { return };
            let Asked { part, bytes, offset, lands, .. } = asked;
            let stage = Stage::Offered { since_ms: now_ms, asks: false };
            self.entries.insert(part, Entry { asked, stage, has_failed: false });
            self.tell(Letter::Offer { part, offset, bytes, lands }, out);
        }
    }

    /// The head says something. An error if it cannot say that.
    pub(super) fn letter(
        &mut self,
        letter: Letter,
        now_ms: u64,
        out: &mut Vec<Command>,
    ) -> Result<(), &'static str> {
        match letter {
            Letter::Taken { part } => {
                let entry = self.offered(part)?;
                entry.stage = Stage::Merged { is_answered: false, has_landed: !entry.asked.lands };
                out.push(Command::OpenMerged { op: entry.asked.op });
            }
            Letter::Alone { part } => {
                let op = self.offered(part)?.asked.op;
                out.push(Command::OpenAlone { op });
                self.end(part, out);
            }
            Letter::Result { part, offset, bytes } => {
                let from = self.head;
                let (asked, has_landed, is_answered) = self.lands(part)?;
                if bytes != asked.bytes {
                    return Err("it returned weights of another length");
                }
                *has_landed = true;
                let is_over = is_answered;
                out.push(Command::Land { op: asked.op, from, offset });
                self.tell(Letter::Copied { part }, out);
                if is_over {
                    self.end(part, out);
                }
            }
            Letter::Failed { part } => {
                let (asked, has_landed, is_answered) = self.lands(part)?;
                // It fails, and yet stays until its lanes are done: the sum may count.
                *has_landed = true;
                out.push(Command::Fail { op: asked.op });
                if is_answered {
                    self.entries.remove(&part);
                } else if let Some(entry) = self.entries.get_mut(&part) {
                    entry.has_failed = true;
                }
            }
            Letter::Leave => self.head_left(out),
            Letter::Offer { .. } | Letter::Withdraw { .. } | Letter::Copied { .. } => {
                return Err("it sent a letter that only followers send");
            }
        }
        self.offer(now_ms, out);
        Ok(())
    }

    fn offered(&mut self, part: Part) -> Result<&mut Entry, &'static str> {
        let entry = self.entries.get_mut(&part).filter(|entry| matches!(entry.stage, Stage::Offered { .. }));
        entry.ok_or("it answered an offer that was not made")
    }

    /// A merged operation that waits for its weights: whether it has them, and whether its lanes are done.
    fn lands(&mut self, part: Part) -> Result<(Asked, &mut bool, bool), &'static str> {
        match self.entries.get_mut(&part) {
            Some(Entry { asked, stage: Stage::Merged { is_answered, has_landed }, .. }) if !*has_landed => {
                Ok((*asked, has_landed, *is_answered))
            }
            _ => Err("it returned weights that nobody waits for"),
        }
    }

    /// The lanes are done with an operation.
    pub(super) fn answered(&mut self, op: u64, now_ms: u64, out: &mut Vec<Command>) {
        let Some((part, entry)) = self.entries.iter_mut().find(|(_, entry)| entry.asked.op == op) else {
            return;
        };
        let Stage::Merged { is_answered, has_landed } = &mut entry.stage else { return };
        *is_answered = true;
        if *has_landed {
            let part = *part;
            self.end(part, out);
            self.offer(now_ms, out);
        }
    }

    fn end(&mut self, part: Part, out: &mut Vec<Command>) {
        let ended = self.entries.remove(&part).filter(|entry| !entry.has_failed);
        out.extend(ended.map(|entry| Command::End { op: entry.asked.op }));
    }

    /// The head has left in good order. What it did not take is in no sum, and it has returned what it took.
    fn head_left(&mut self, out: &mut Vec<Command>) {
        self.is_off = true;
        let offered = |entry: &Entry| matches!(entry.stage, Stage::Offered { .. });
        let mut left: Vec<u64> =
            self.entries.values().filter(|entry| offered(entry)).map(|entry| entry.asked.op).collect();
        self.entries.retain(|_, entry| !offered(entry));
        // Operations of one tensor go in their order.
        left.sort_unstable();
        left.into_iter().for_each(|op| alone(op, out));
        self.all_alone(out);
    }

    /// What the head does not know goes alone.
    fn all_alone(&mut self, out: &mut Vec<Command>) {
        self.is_off = true;
        self.waiting.drain(..).for_each(|(asked, _)| alone(asked.op, out));
    }

    /// The channel to the head has ended without a word. What the head may have taken is not sent again: it would count twice.
    pub(super) fn gone(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        self.gone_ms.get_or_insert(now_ms);
        self.all_alone(out);
    }

    /// This worker is about to leave. It asks the head for all that the head may be reading.
    pub(super) fn leave(&mut self, out: &mut Vec<Command>) {
        if !self.is_off {
            self.ask_back(u64::MAX, out);
        }
        self.all_alone(out);
    }

    /// May it go? Not while the head may read its memory, or has its gradient in a sum that is not answered.
    pub(super) fn may_go(&self) -> bool {
        self.entries.is_empty()
    }

    /// It goes.
    pub(super) fn say_goodbye(&self, out: &mut Vec<Command>) {
        self.tell(Letter::Leave, out);
    }

    /// Time passes.
    pub(super) fn tick(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let Some(until_ms) = now_ms.checked_sub(GATE_MS) else { return };
        if self.gone_ms.is_some_and(|gone_ms| gone_ms <= until_ms) {
            // Usually the end of the job has been reported by now. If not, only the head's thread has failed.
            let lost = self.entries.drain().filter(|(_, entry)| !entry.has_failed);
            let mut lost: Vec<u64> = lost.map(|(_, entry)| entry.asked.op).collect();
            lost.sort_unstable();
            out.extend(lost.into_iter().map(|op| Command::Fail { op }));
        }
        let late = self.waiting.iter().take_while(|(_, since_ms)| *since_ms <= until_ms).count();
        self.waiting.drain(..late).for_each(|(asked, _)| alone(asked.op, out));
        if !self.is_off {
            self.ask_back(until_ms, out);
        }
    }

    /// Asks the head for what was offered at this time or before.
    fn ask_back(&mut self, until_ms: u64, out: &mut Vec<Command>) {
        let Self { entries, head, .. } = self;
        for (part, entry) in entries {
            if let Stage::Offered { since_ms, asks } = &mut entry.stage
                && !*asks
                && *since_ms <= until_ms
            {
                *asks = true;
                out.push(Command::Send { to: *head, letter: Letter::Withdraw { part: *part } });
            }
        }
    }

    /// Is there nothing to wait for?
    pub(super) fn is_idle(&self) -> bool {
        self.entries.is_empty() && self.waiting.is_empty()
    }
}

fn alone(op: u64, out: &mut Vec<Command>) {
    out.extend([Command::OpenAlone { op }, Command::End { op }]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Rank = Rank(0);

    fn asked(op: u64, lands: bool) -> Asked {
        Asked { op, part: (7, op), bytes: 8, offset: 64 * op, weights: 0, lands, sums: true }
    }

    fn send(letter: Letter) -> Command {
        Command::Send { to: HEAD, letter }
    }

    fn offer(op: u64, lands: bool) -> Command {
        send(Letter::Offer { part: (7, op), offset: 64 * op, bytes: 8, lands })
    }

    /// What a follower does that has offered operation 1, when its head says this.
    fn after(lands: bool, letters: &[Letter]) -> (Follower, Vec<Command>) {
        let (mut follower, mut out) = (Follower::new(HEAD), Vec::new());
        follower.submitted(asked(1, lands), 5, &mut out);
        assert_eq!(out, [offer(1, lands)]);
        out.clear();
        for letter in letters {
            assert_eq!(follower.letter(*letter, 0, &mut out), Ok(()));
        }
        (follower, out)
    }

    #[test]
    fn what_is_taken_goes_merged_and_ends_when_its_lanes_are_done_and_it_has_its_weights() {
        let part = (7, 1);
        let (mut follower, mut out) = after(false, &[Letter::Taken { part }]);
        assert_eq!((&out[..], follower.may_go()), (&[Command::OpenMerged { op: 1 }][..], false));
        follower.answered(1, 0, &mut out);
        assert_eq!((&out[1..], follower.is_idle()), (&[Command::End { op: 1 }][..], true));
        let result = Letter::Result { part, offset: 9, bytes: 8 };
        let landed = [Command::Land { op: 1, from: HEAD, offset: 9 }, send(Letter::Copied { part })];
        let end = [Command::End { op: 1 }];
        let (mut follower, mut out) = after(true, &[Letter::Taken { part }, result]);
        assert_eq!(out[1..], landed, "its lanes are not done");
        follower.answered(1, 0, &mut out);
        assert_eq!(out[3..], end);
        let (mut follower, mut out) = after(true, &[Letter::Taken { part }]);
        follower.answered(1, 0, &mut out);
        assert_eq!((out.len(), follower.letter(result, 0, &mut out)), (1, Ok(())));
        assert_eq!((&out[1..3], &out[3..]), (&landed[..], &end[..]));
        let (mut follower, mut out) = after(true, &[Letter::Taken { part }, Letter::Failed { part }]);
        assert_eq!((&out[1..], follower.may_go()), (&[Command::Fail { op: 1 }][..], false));
        follower.answered(1, 0, &mut out);
        assert_eq!((out.len(), follower.may_go()), (2, true));
        let (_, out) = after(true, &[Letter::Alone { part }]);
        assert_eq!(out, [Command::OpenAlone { op: 1 }, Command::End { op: 1 }]);
    }

    #[test]
    fn a_head_that_leaves_has_taken_what_it_said_and_nothing_else() {
        let (mut follower, out) = after(true, &[Letter::Leave]);
        assert_eq!(out, [Command::OpenAlone { op: 1 }, Command::End { op: 1 }]);
        let mut out = Vec::new();
        follower.submitted(asked(2, true), 0, &mut out);
        assert_eq!(out, [Command::OpenAlone { op: 2 }, Command::End { op: 2 }], "it goes alone from now on");
    }

    #[test]
    fn what_a_head_that_is_gone_may_have_taken_is_not_sent_again() {
        for letters in [&[][..], &[Letter::Taken { part: (7, 1) }]] {
            let (mut follower, mut out) = after(true, letters);
            out.clear();
            follower.gone(5, &mut out);
            follower.tick(4 + GATE_MS, &mut out);
            assert_eq!((&out[..], follower.is_idle()), (&[][..], false), "the job's end may be reported yet");
            follower.tick(5 + GATE_MS, &mut out);
            assert_eq!((&out[..], follower.is_idle()), (&[Command::Fail { op: 1 }][..], true));
        }
    }

    #[test]
    fn so_many_are_known_to_the_head_and_the_next_ones_wait_in_order_but_not_for_long() {
        let (mut follower, mut out) = (Follower::new(HEAD), Vec::new());
        let all = OFFERED_MAX as u64 + 2;
        (1..=all).for_each(|op| follower.submitted(asked(op, false), 5, &mut out));
        assert_eq!(out.len(), OFFERED_MAX);
        assert_eq!(follower.letter(Letter::Taken { part: (7, 1) }, 0, &mut out), Ok(()));
        out.clear();
        follower.answered(1, 5, &mut out);
        assert_eq!(out, [Command::End { op: 1 }, offer(all - 1, false)]);
        out.clear();
        follower.tick(5 + GATE_MS, &mut out);
        assert_eq!(out[..2], [Command::OpenAlone { op: all }, Command::End { op: all }]);
        follower.leave(&mut out);
        (2..all)
            .for_each(|op| assert_eq!(follower.letter(Letter::Alone { part: (7, op) }, 0, &mut out), Ok(())));
        assert!(follower.may_go());
        follower.say_goodbye(&mut out);
        assert_eq!(out.last(), Some(&send(Letter::Leave)));
    }

    #[test]
    fn it_asks_once_to_go_alone_and_waits_for_the_answer() {
        let (mut follower, mut out) = after(true, &[]);
        follower.tick(4 + GATE_MS, &mut out);
        assert_eq!(out, []);
        follower.tick(5 + GATE_MS, &mut out);
        follower.tick(2 * GATE_MS, &mut out);
        assert_eq!(out, [send(Letter::Withdraw { part: (7, 1) })]);
        assert_eq!(follower.letter(Letter::Taken { part: (7, 1) }, 0, &mut out), Ok(()), "it was too late");
    }

    #[test]
    fn answers_to_nothing_are_refused() {
        let part = (7, 2);
        let wrong = [
            Letter::Taken { part },
            Letter::Alone { part },
            Letter::Result { part: (7, 1), offset: 0, bytes: 8 },
            Letter::Failed { part },
            Letter::Copied { part },
            Letter::Withdraw { part },
            Letter::Offer { part, offset: 0, bytes: 8, lands: false },
        ];
        let (mut follower, mut out) = after(true, &[Letter::Taken { part: (7, 1) }]);
        assert!(follower.letter(Letter::Result { part: (7, 1), offset: 0, bytes: 9 }, 0, &mut out).is_err());
        for letter in wrong {
            let (mut follower, mut out) = after(true, &[]);
            assert!(follower.letter(letter, 0, &mut out).is_err(), "{letter:?}");
            assert_eq!(out, []);
        }
    }
}
