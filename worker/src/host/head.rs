//! What the head of a host decides. It must not do I/O.
//!
//! ```text
//!  a round:   its own and all offers are there              the servers have answered      all have copied
//!  gathering ────────────────────────────────────▶ sent ──────────────────────────▶ read ───────────────▶ ended
//!      │ somebody is late, withdraws, has left, or asks for something else
//!      └──▶ everybody goes alone
//! ```

use super::command::{Asked, Command, GATE_MS, OFFERED_MAX};
use super::letter::{Letter, Part};
use proto_common::ids::Rank;
use rustc_hash::FxHashMap;

/// A follower's contribution.
#[derive(Clone, Copy, Debug)]
struct Offer {
    from: Rank,
    offset: u64,
    bytes: u64,
    lands: bool,
}

/// A round that is not sent.
#[derive(Debug, Default)]
struct Round {
    /// Its own operation, and since when.
    own: Option<(Asked, u64)>,
    /// In rank order.
    offers: Vec<Offer>,
    /// Somebody goes alone, so everybody does.
    is_alone: bool,
}

/// A sum that the servers have.
#[derive(Debug)]
struct Sent {
    asked: Asked,
    /// Followers that ask for the weights, or still copy them.
    readers: Vec<Rank>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Head {
    followers: Vec<Rank>,
    /// From now on everybody goes alone.
    is_off: bool,
    rounds: FxHashMap<Part, Round>,
    /// By key, the last round whose operation has gone. Contributions to it that come later were not waited for.
    gone: FxHashMap<u64, u64>,
    sent: FxHashMap<u64, Sent>,
    /// Operations whose weights followers copy.
    read: FxHashMap<Part, (u64, Vec<Rank>)>,
}

impl Head {
    /// `followers` in rank order.
    pub(super) fn new(followers: Vec<Rank>) -> Self {
        Self {
            followers,
            is_off: false,
            rounds: FxHashMap::default(),
            gone: FxHashMap::default(),
            sent: FxHashMap::default(),
            read: FxHashMap::default(),
        }
    }

    /// Its own operation has come to its gate.
    pub(super) fn submitted(&mut self, asked: Asked, now_ms: u64, out: &mut Vec<Command>) {
        if self.is_off {
            return self.go_alone(asked, out);
        }
        self.rounds.entry(asked.part).or_default().own = Some((asked, now_ms));
        if self.is_over(asked.part) {
            // A later round of the tensor has gone, and offers for this one are answered.
            return self.dissolve(asked.part, out);
        }
        self.settle(asked.part, out);
    }

    /// Sends a round on its way if it is known how it goes.
    fn settle(&mut self, part: Part, out: &mut Vec<Command>) {
        let Some(round) = self.rounds.get(&part) else { return };
        let Some((asked, _)) = round.own else { return };
        let is_full = round.offers.len() == self.followers.len();
        let fits = |offer: &Offer| offer.bytes == asked.bytes && (asked.lands || !offer.lands);
        if round.is_alone || !asked.sums || (is_full && !round.offers.iter().all(fits)) {
            self.dissolve(part, out);
        } else if is_full {
            self.send(part, asked, out);
        }
    }

    fn send(&mut self, part: Part, asked: Asked, out: &mut Vec<Command>) {
        let Some(Round { offers, .. }) = self.rounds.remove(&part) else { return };
        self.has_gone(part);
        let from = offers.iter().map(|offer| (offer.from, offer.offset)).collect();
        out.push(Command::OpenSum { op: asked.op, from });
        for offer in &offers {
            out.push(Command::Send { to: offer.from, letter: Letter::Taken { part } });
        }
        let readers = offers.iter().filter(|offer| offer.lands).map(|offer| offer.from).collect();
        self.sent.insert(asked.op, Sent { asked, readers });
    }

    /// Everybody who contributes to this round goes alone, those that come later, too.
    fn dissolve(&mut self, part: Part, out: &mut Vec<Command>) {
        let Some(round) = self.rounds.get_mut(&part) else { return };
        round.is_alone = true;
        for offer in round.offers.drain(..) {
            out.push(Command::Send { to: offer.from, letter: Letter::Alone { part } });
        }
        if let Some((asked, _)) = round.own {
            self.rounds.remove(&part);
            self.go_alone(asked, out);
        }
    }

    fn is_over(&self, (key, round): Part) -> bool {
        self.gone.get(&key).is_some_and(|gone| round <= *gone)
    }

    fn has_gone(&mut self, (key, round): Part) {
        let gone = self.gone.entry(key).or_default();
        *gone = round.max(*gone);
    }

    fn go_alone(&mut self, asked: Asked, out: &mut Vec<Command>) {
        self.has_gone(asked.part);
        out.extend([Command::OpenAlone { op: asked.op }, Command::End { op: asked.op }]);
    }

    /// A follower says something. An error if it cannot say that.
    pub(super) fn letter(
        &mut self,
        from: Rank,
        letter: Letter,
        out: &mut Vec<Command>,
    ) -> Result<(), &'static str> {
        match letter {
            Letter::Offer { part, offset, bytes, lands } => {
                return self.offer(part, Offer { from, offset, bytes, lands }, out);
            }
            Letter::Withdraw { part } => {
                // What is not there was answered before.
                let offered = |round: &Round| round.offers.iter().any(|offer| offer.from == from);
                if self.rounds.get(&part).is_some_and(offered) {
                    self.dissolve(part, out);
                }
            }
            Letter::Copied { part } => self.copied(part, from, out)?,
            Letter::Leave => self.left(from, out),
            Letter::Taken { .. } | Letter::Alone { .. } | Letter::Result { .. } | Letter::Failed { .. } => {
                return Err("it sent a letter that only the head sends");
            }
        }
        Ok(())
    }

    fn offer(&mut self, part: Part, offer: Offer, out: &mut Vec<Command>) -> Result<(), &'static str> {
        if self.is_off || self.is_over(part) {
            out.push(Command::Send { to: offer.from, letter: Letter::Alone { part } });
            self.dissolve(part, out);
            return Ok(());
        }
        let offers = || self.rounds.values().flat_map(|round| &round.offers);
        if offers().filter(|other| other.from == offer.from).count() >= OFFERED_MAX {
            return Err("it offers more contributions than a follower may");
        }
        let round = self.rounds.entry(part).or_default();
        match round.offers.binary_search_by_key(&offer.from, |other| other.from) {
            Ok(_) => return Err("it offers a contribution twice"),
            Err(_) if round.is_alone => {
                out.push(Command::Send { to: offer.from, letter: Letter::Alone { part } });
            }
            Err(at) => round.offers.insert(at, offer),
        }
        self.settle(part, out);
        Ok(())
    }

    /// The servers have answered its operation, which has its weights, or has failed.
    pub(super) fn answered(&mut self, op: u64, is_good: bool, out: &mut Vec<Command>) {
        let Some(Sent { asked, readers }) = self.sent.remove(&op) else { return };
        let Asked { part, weights: offset, bytes, .. } = asked;
        let letter = if is_good { Letter::Result { part, offset, bytes } } else { Letter::Failed { part } };
        out.extend(readers.iter().map(|to| Command::Send { to: *to, letter }));
        if !is_good || readers.is_empty() {
            out.push(Command::End { op });
        } else {
            self.read.insert(part, (op, readers));
        }
    }

    fn copied(&mut self, part: Part, from: Rank, out: &mut Vec<Command>) -> Result<(), &'static str> {
        let is_reader = |(_, readers): &&mut (u64, Vec<Rank>)| readers.contains(&from);
        let read = self.read.get_mut(&part).filter(is_reader);
        let (op, readers) = read.ok_or("it copied weights that were not returned")?;
        readers.retain(|reader| *reader != from);
        if readers.is_empty() {
            out.push(Command::End { op: *op });
            self.read.remove(&part);
        }
        Ok(())
    }

    /// A follower has left, or its channel has ended. It reads and waits for nothing any more.
    pub(super) fn left(&mut self, from: Rank, out: &mut Vec<Command>) {
        self.followers.retain(|rank| *rank != from);
        for sent in self.sent.values_mut() {
            sent.readers.retain(|rank| *rank != from);
        }
        let reads: Vec<Part> =
            self.read.iter().filter(|(_, read)| read.1.contains(&from)).map(|(part, _)| *part).collect();
        for part in reads {
            // It is a reader.
            let _ = self.copied(part, from, out);
        }
        for round in self.rounds.values_mut() {
            round.offers.retain(|offer| offer.from != from);
        }
        self.turn_off(out);
    }

    /// From now on everybody goes alone.
    fn turn_off(&mut self, out: &mut Vec<Command>) {
        self.is_off = true;
        let mut parts: Vec<Part> = self.rounds.keys().copied().collect();
        // Operations of one key go in their order.
        parts.sort_unstable();
        parts.into_iter().for_each(|part| self.dissolve(part, out));
        self.rounds.clear();
    }

    /// This worker is about to leave.
    pub(super) fn leave(&mut self, out: &mut Vec<Command>) {
        self.turn_off(out);
    }

    /// May it go? Not while the servers have not answered a sum, because followers count with it, or while somebody copies out of its
    /// memory.
    pub(super) fn may_go(&self) -> bool {
        self.sent.is_empty() && self.read.is_empty()
    }

    /// It goes.
    pub(super) fn say_goodbye(&self, out: &mut Vec<Command>) {
        for to in &self.followers {
            out.push(Command::Send { to: *to, letter: Letter::Leave });
        }
    }

    /// Time passes.
    pub(super) fn tick(&mut self, now_ms: u64, out: &mut Vec<Command>) {
        let is_late = |round: &Round| round.own.is_some_and(|(_, since_ms)| now_ms >= since_ms + GATE_MS);
        let mut late: Vec<Part> =
            self.rounds.iter().filter(|(_, round)| is_late(round)).map(|(part, _)| *part).collect();
        late.sort_unstable();
        late.into_iter().for_each(|part| self.dissolve(part, out));
    }

    /// Does nothing wait for others?
    pub(super) fn is_idle(&self) -> bool {
        self.rounds.values().all(|round| round.own.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: Part = (7, 1);

    fn head() -> Head {
        Head::new(vec![Rank(1), Rank(2)])
    }

    fn asked(lands: bool) -> Asked {
        Asked { op: 5, part: PART, bytes: 8, offset: 0, weights: 128, lands, sums: true }
    }

    fn offer(lands: bool) -> Letter {
        Letter::Offer { part: PART, offset: 64, bytes: 8, lands }
    }

    fn send(to: u32, letter: Letter) -> Command {
        Command::Send { to: Rank(to), letter }
    }

    fn alone() -> [Command; 2] {
        [Command::OpenAlone { op: 5 }, Command::End { op: 5 }]
    }

    /// A head whose two followers have offered: the second one first.
    fn offered(lands: [bool; 2]) -> (Head, Vec<Command>) {
        let (mut head, mut out) = (head(), Vec::new());
        assert_eq!(head.letter(Rank(2), offer(lands[1]), &mut out), Ok(()));
        assert_eq!(head.letter(Rank(1), offer(lands[0]), &mut out), Ok(()));
        assert_eq!(out, []);
        (head, out)
    }

    #[test]
    fn contributions_are_added_in_rank_order_and_the_weights_are_shared() {
        let (mut head, mut out) = offered([true, true]);
        head.submitted(asked(true), 0, &mut out);
        let sum = Command::OpenSum { op: 5, from: vec![(Rank(1), 64), (Rank(2), 64)] };
        let taken = Letter::Taken { part: PART };
        assert_eq!((&out[..], head.may_go()), (&[sum, send(1, taken), send(2, taken)][..], false));
        out.clear();
        head.answered(5, true, &mut out);
        let result = Letter::Result { part: PART, offset: 128, bytes: 8 };
        assert_eq!((&out[..], head.may_go()), (&[send(1, result), send(2, result)][..], false));
        out.clear();
        let copied = Letter::Copied { part: PART };
        assert_eq!(head.letter(Rank(1), copied, &mut out), Ok(()));
        assert_eq!(out, [], "one still reads them");
        assert_eq!(head.letter(Rank(2), copied, &mut out), Ok(()));
        assert_eq!((&out[..], head.is_idle()), (&[Command::End { op: 5 }][..], true));
        assert!(head.letter(Rank(2), copied, &mut out).is_err(), "twice");
    }

    #[test]
    fn who_asks_for_no_weights_gets_none_and_a_failure_is_told() {
        let (mut head, mut out) = offered([false, true]);
        head.submitted(asked(true), 0, &mut out);
        out.clear();
        head.answered(5, false, &mut out);
        assert_eq!(out, [send(2, Letter::Failed { part: PART }), Command::End { op: 5 }]);
    }

    #[test]
    fn if_they_ask_for_different_things_all_go_alone() {
        let (mut head, mut out) = offered([false, true]);
        head.submitted(asked(false), 0, &mut out);
        let no = Letter::Alone { part: PART };
        assert_eq!(out, [&[send(1, no), send(2, no)][..], &alone()].concat());
        for other in [Asked { bytes: 16, ..asked(true) }, Asked { sums: false, ..asked(true) }] {
            let (mut head, mut out) = offered([true, true]);
            head.submitted(other, 0, &mut out);
            assert_eq!(out[2..], alone());
        }
    }

    #[test]
    fn nobody_waits_for_longer_than_a_moment() {
        let (mut head, mut out) = (head(), Vec::new());
        head.submitted(asked(true), 5, &mut out);
        assert_eq!(head.letter(Rank(1), offer(true), &mut out), Ok(()));
        head.tick(4 + GATE_MS, &mut out);
        assert_eq!(out, []);
        head.tick(5 + GATE_MS, &mut out);
        let no = Letter::Alone { part: PART };
        assert_eq!(out, [&[send(1, no)][..], &alone()].concat());
        out.clear();
        assert_eq!(head.letter(Rank(2), offer(true), &mut out), Ok(()));
        assert_eq!((&out[..], head.is_idle()), (&[send(2, no)][..], true), "the round has gone");
    }

    #[test]
    fn a_follower_that_withdraws_is_in_no_sum_and_so_is_nobody() {
        let (mut head, mut out) = offered([true, true]);
        assert_eq!(head.letter(Rank(1), Letter::Withdraw { part: PART }, &mut out), Ok(()));
        let no = Letter::Alone { part: PART };
        assert_eq!(out, [send(1, no), send(2, no)]);
        out.clear();
        assert_eq!(head.letter(Rank(2), Letter::Withdraw { part: PART }, &mut out), Ok(()));
        assert_eq!(out, [], "it was answered");
        head.submitted(asked(true), 0, &mut out);
        assert_eq!(out, alone());
    }

    #[test]
    fn when_somebody_leaves_all_go_alone_from_then_on() {
        for leave in [true, false] {
            let (mut head, mut out) = offered([true, true]);
            if leave {
                assert_eq!(head.letter(Rank(1), Letter::Leave, &mut out), Ok(()));
            } else {
                head.left(Rank(1), &mut out);
            }
            let no = Letter::Alone { part: PART };
            assert_eq!(out, [send(2, no)]);
            out.clear();
            head.submitted(asked(true), 0, &mut out);
            assert_eq!(out, alone());
            out.clear();
            assert_eq!(
                head.letter(
                    Rank(2),
                    Letter::Offer { part: (7, 2), offset: 0, bytes: 8, lands: true },
                    &mut out
                ),
                Ok(())
            );
            assert_eq!(out, [send(2, Letter::Alone { part: (7, 2) })]);
        }
    }

    #[test]
    fn a_reader_that_has_left_is_not_waited_for() {
        for before in [true, false] {
            let (mut head, mut out) = offered([true, false]);
            head.submitted(asked(true), 0, &mut out);
            if before {
                head.left(Rank(1), &mut out);
            }
            out.clear();
            head.answered(5, true, &mut out);
            if !before {
                head.left(Rank(1), &mut out);
            }
            assert_eq!(out.last(), Some(&Command::End { op: 5 }));
        }
    }

    #[test]
    fn a_head_that_leaves_says_so_after_all_that_waits() {
        let (mut head, mut out) = offered([true, true]);
        head.leave(&mut out);
        head.say_goodbye(&mut out);
        let (no, leave) = (Letter::Alone { part: PART }, Letter::Leave);
        assert_eq!(out, [send(1, no), send(2, no), send(1, leave), send(2, leave)]);
    }

    #[test]
    fn what_a_follower_may_not_say_is_refused() {
        let (mut head, mut out) = offered([true, true]);
        let part = (7, 9);
        let wrong = [
            offer(true),
            Letter::Copied { part },
            Letter::Taken { part },
            Letter::Alone { part },
            Letter::Result { part, offset: 0, bytes: 8 },
            Letter::Failed { part },
        ];
        for letter in wrong {
            assert!(head.letter(Rank(1), letter, &mut out).is_err(), "{letter:?}");
        }
        let more = |round: u64| Letter::Offer { part: (8, round), offset: 0, bytes: 8, lands: false };
        let last =
            (2..).map(|round| head.letter(Rank(1), more(round), &mut out)).position(|said| said.is_err());
        assert_eq!(last, Some(OFFERED_MAX - 1));
    }
}
