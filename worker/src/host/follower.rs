//! What a follower decides. It must not do I/O.
//!
//! ```text
//!            few are offered           Taken, and it lands              Result
//!  waiting ─────────────────▶ offered ─────────────────────▶ taken ─────────────▶ ended: copied
//!                                │ Alone                       │ Failed
//!                                ▼                             ▼
//!                          ended: alone                  ended: failed
//! ```

use super::command::{Asked, Command, GATE_MS, OFFERED_MAX};
use super::letter::{Letter, Part};
use proto_common::ids::Rank;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The head has not answered. `asks`: it was asked to hurry.
    Offered { since_ms: u64, asks: bool },
    /// The head will say where the weights are.
    Taken,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    asked: Asked,
    stage: Stage,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Follower {
    head: Rank,
    /// From now on everything goes alone.
    is_off: bool,
    entries: FxHashMap<Part, Entry>,
    /// In the order of their submission.
    waiting: VecDeque<Asked>,
}

impl Follower {
    pub(super) fn new(head: Rank) -> Self {
        Self { head, is_off: false, entries: FxHashMap::default(), waiting: VecDeque::new() }
    }

    fn tell(&self, letter: Letter, out: &mut Vec<Command>) {
        out.push(Command::Send { to: self.head, letter });
    }

    /// An operation has come to its gate.
    pub(super) fn submitted(&mut self, asked: Asked, now_ms: u64, out: &mut Vec<Command>) {
        if self.is_off {
            return alone(asked.op, out);
        }
        self.waiting.push_back(asked);
        self.offer(now_ms, out);
    }

    /// Offers what waits, as far as there is room.
    fn offer(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        while self.entries.len() < OFFERED_MAX {
            let Some(asked) = self.waiting.pop_front() else { return };
            let Asked { part, bytes, offset, lands, .. } = asked;
            let stage = Stage::Offered { since_ms: now_ms, asks: false };
            self.entries.insert(part, Entry { asked, stage });
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
                out.push(Command::OpenMerged { op: entry.asked.op });
                if entry.asked.lands {
                    entry.stage = Stage::Taken;
                } else {
                    self.end(part, out, |op| Command::End { op });
                }
            }
            Letter::Alone { part } => {
                let op = self.offered(part)?.asked.op;
                out.push(Command::OpenAlone { op });
                self.end(part, out, |op| Command::End { op });
            }
            Letter::Result { part, offset, bytes } => {
                let Asked { op, bytes: wanted, .. } = self.taken(part)?;
                if bytes != wanted {
                    return Err("it returned weights of another length");
                }
                out.push(Command::Land { op, from: self.head, offset });
                self.tell(Letter::Copied { part }, out);
                self.end(part, out, |op| Command::End { op });
            }
            Letter::Failed { part } => {
                self.taken(part)?;
                self.end(part, out, |op| Command::Fail { op });
            }
            Letter::Leave => self.leave_alone(out),
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

    fn taken(&self, part: Part) -> Result<Asked, &'static str> {
        let entry = self.entries.get(&part).filter(|entry| entry.stage == Stage::Taken);
        entry.map(|entry| entry.asked).ok_or("it returned weights that nobody waits for")
    }

    fn end(&mut self, part: Part, out: &mut Vec<Command>, how: impl FnOnce(u64) -> Command) {
        out.extend(self.entries.remove(&part).map(|entry| how(entry.asked.op)));
    }

    /// The head has left in good order. What it did not take is in no sum.
    fn leave_alone(&mut self, out: &mut Vec<Command>) {
        self.is_off = true;
        let mut left: Vec<Entry> = self.entries.drain().map(|(_, entry)| entry).collect();
        left.sort_unstable_by_key(|entry| entry.asked.op);
        for Entry { asked, stage } in left {
            match stage {
                Stage::Offered { .. } => alone(asked.op, out),
                Stage::Taken => out.push(Command::Fail { op: asked.op }),
            }
        }
        self.waiting.drain(..).for_each(|asked| alone(asked.op, out));
    }

    /// The channel to the head has ended without a word. Its process has failed, and the job with it: what the head may have taken
    /// stays here until the job's end is known.
    pub(super) fn gone(&mut self, out: &mut Vec<Command>) {
        self.is_off = true;
        self.waiting.drain(..).for_each(|asked| alone(asked.op, out));
    }

    /// This worker is about to leave. What the head may be reading it asks back.
    pub(super) fn leave(&mut self, out: &mut Vec<Command>) {
        if !self.is_off {
            self.ask_back(u64::MAX, out);
        }
        self.gone(out);
    }

    /// May it go? Not while the head may read its memory.
    pub(super) fn may_go(&self) -> bool {
        self.entries.values().all(|entry| entry.stage == Stage::Taken)
    }

    /// It goes.
    pub(super) fn say_goodbye(&self, out: &mut Vec<Command>) {
        self.tell(Letter::Leave, out);
    }

    /// Time passes.
    pub(super) fn tick(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        if let Some(until_ms) = now_ms.checked_sub(GATE_MS).filter(|_| !self.is_off) {
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
        self.entries.is_empty()
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
        Asked { op, part: (7, op), bytes: 8, offset: 64 * op, weights: 0, lands }
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
    fn what_is_taken_goes_merged_and_lands_from_the_head() {
        let part = (7, 1);
        let (follower, out) = after(false, &[Letter::Taken { part }]);
        assert_eq!(out, [Command::OpenMerged { op: 1 }, Command::End { op: 1 }]);
        assert!(follower.is_idle());
        let (follower, out) =
            after(true, &[Letter::Taken { part }, Letter::Result { part, offset: 9, bytes: 8 }]);
        let land = Command::Land { op: 1, from: HEAD, offset: 9 };
        let copied = send(Letter::Copied { part });
        assert_eq!(out, [Command::OpenMerged { op: 1 }, land, copied, Command::End { op: 1 }]);
        assert!(follower.is_idle());
        let (_, out) = after(true, &[Letter::Taken { part }, Letter::Failed { part }]);
        assert_eq!(out[1..], [Command::Fail { op: 1 }]);
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
        let (_, out) = after(true, &[Letter::Taken { part: (7, 1) }, Letter::Leave]);
        assert_eq!(out[1..], [Command::Fail { op: 1 }]);
    }

    #[test]
    fn what_a_head_that_is_gone_may_have_taken_is_not_sent_again() {
        let (mut follower, mut out) = after(true, &[]);
        follower.gone(&mut out);
        assert_eq!((&out[..], follower.is_idle()), (&[][..], false));
    }

    #[test]
    fn so_many_are_offered_and_the_next_ones_wait_in_order() {
        let (mut follower, mut out) = (Follower::new(HEAD), Vec::new());
        let all = OFFERED_MAX as u64 + 2;
        (1..=all).for_each(|op| follower.submitted(asked(op, false), 0, &mut out));
        assert_eq!(out.len(), OFFERED_MAX);
        out.clear();
        assert_eq!(follower.letter(Letter::Taken { part: (7, 1) }, 0, &mut out), Ok(()));
        assert_eq!(out.last(), Some(&offer(all - 1, false)));
        follower.leave(&mut out);
        assert_eq!(out.last(), Some(&Command::End { op: all }), "it was not offered");
        assert!(out.contains(&send(Letter::Withdraw { part: (7, 2) })) && !follower.may_go());
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
        for letter in wrong {
            let (mut follower, mut out) = after(true, &[]);
            assert!(follower.letter(letter, 0, &mut out).is_err(), "{letter:?}");
            assert_eq!(out, []);
        }
    }
}
