//! Which of each worker's pushes a table's rows at a home have had: what a worker that came again repeats of them counts once.
//! It must not know what is pushed.

use proto_common::limits::WORKERS_MAX;
use proto_common::table::PushStep;
use zerocopy::FromBytes;

/// Bytes of one as it is sent to copies.
const STEP_BYTES: usize = 24;

/// A worker's last push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    which: PushStep,
    /// Was something of its step left out? A worker that repeats the step gets the same answer again.
    lacks: bool,
}

/// What came of a push when it was here before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    Applied,
    LeftOut,
}

/// The last one of each worker that says which they are, by rank: at most one a worker.
#[derive(Debug, Default)]
pub(super) struct Steps(Vec<Last>);

impl Steps {
    fn place(&self, rank: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&rank, |last| last.which.rank)
    }

    /// What came of it, where it, or a later one of its worker, was here.
    pub(super) fn before(&self, which: PushStep) -> Option<Before> {
        let Last { which: last, lacks } = self.0.get(self.place(which.rank).ok()?)?;
        let was_here = (which.step, which.nth) <= (last.step, last.nth);
        let lacks = *lacks && which.step == last.step;
        was_here.then_some(if lacks { Before::LeftOut } else { Before::Applied })
    }

    /// It comes for the first time.
    pub(super) fn note(&mut self, which: PushStep) {
        match self.place(which.rank) {
            Ok(at) => {
                let lacks = self.0[at].lacks && self.0[at].which.step == which.step;
                self.0[at] = Last { which, lacks };
            }
            Err(at) => self.0.insert(at, Last { which, lacks: false }),
        }
    }

    /// Something of the one that was noted last of this worker was left out.
    pub(super) fn leave_out(&mut self, rank: u32) {
        if let Ok(at) = self.place(rank) {
            self.0[at].lacks = true;
        }
    }

    /// Writes them behind what is in `out`.
    pub(super) fn save(&self, out: &mut Vec<u8>) {
        out.extend((self.0.len() as u64).to_le_bytes());
        for Last { which: PushStep { rank, step, nth }, lacks } in &self.0 {
            out.extend(rank.to_le_bytes());
            out.extend(nth.to_le_bytes());
            out.extend(step.to_le_bytes());
            out.extend(u64::from(*lacks).to_le_bytes());
        }
    }

    /// Takes them off the beginning. None of what is cut short, or could not have been written.
    pub(super) fn read(bytes: &mut &[u8]) -> Option<Self> {
        let (count, rest) = u64::read_from_prefix(bytes).ok()?;
        let count = usize::try_from(count).ok().filter(|count| *count <= WORKERS_MAX as usize)?;
        let (all, rest) = rest.split_at_checked(count * STEP_BYTES)?;
        *bytes = rest;
        let one = |bytes: &[u8]| {
            let ([rank, nth], rest) = <[u32; 2]>::read_from_prefix(bytes).ok()?;
            let [step, lacks] = <[u64; 2]>::read_from_bytes(rest).ok()?;
            (lacks <= 1).then_some(Last { which: PushStep { rank, nth, step }, lacks: lacks == 1 })
        };
        let all: Vec<Last> = all.chunks_exact(STEP_BYTES).map(one).collect::<Option<_>>()?;
        let in_order = all.is_sorted_by(|one, next| one.which.rank < next.which.rank);
        let are_workers = all.last().is_none_or(|last| last.which.rank < WORKERS_MAX);
        (in_order && are_workers).then_some(Self(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn which(rank: u32, step: u64, nth: u32) -> PushStep {
        PushStep { rank, step, nth }
    }

    #[test]
    fn what_is_repeated_is_known_and_what_comes_later_is_not() {
        let mut steps = Steps::default();
        assert_eq!(steps.before(which(3, 0, 0)), None);
        for one in [which(3, 7, 1), which(1, 9, 0)] {
            steps.note(one);
        }
        for (one, is_known) in [
            (which(3, 7, 1), true),
            (which(3, 7, 0), true),
            (which(3, 6, 5), true),
            (which(3, 7, 2), false),
            (which(3, 8, 0), false),
            (which(1, 8, 9), true),
            (which(2, 0, 0), false),
        ] {
            assert_eq!(steps.before(one), is_known.then_some(Before::Applied), "{one:?}");
        }
    }

    #[test]
    fn a_step_of_which_something_was_left_out_is_known_as_that_until_the_next_one() {
        let mut steps = Steps::default();
        steps.leave_out(3);
        steps.note(which(3, 7, 0));
        steps.leave_out(3);
        steps.note(which(3, 7, 1));
        for (one, expected) in [
            (which(3, 7, 0), Some(Before::LeftOut)),
            (which(3, 7, 1), Some(Before::LeftOut)),
            (which(3, 6, 9), Some(Before::Applied)),
            (which(3, 7, 2), None),
        ] {
            assert_eq!(steps.before(one), expected, "{one:?}");
        }
        steps.note(which(3, 8, 0));
        assert_eq!(steps.before(which(3, 8, 0)), Some(Before::Applied));
    }

    #[test]
    fn they_come_back_as_they_were_and_nonsense_does_not() {
        let mut steps = Steps::default();
        (0..5).for_each(|rank| steps.note(which(rank * 2, u64::MAX, rank)));
        steps.leave_out(4);
        let mut bytes = Vec::new();
        steps.save(&mut bytes);
        bytes.push(9);
        let mut rest = &bytes[..];
        assert_eq!(Steps::read(&mut rest).unwrap().0, steps.0);
        assert_eq!(rest, [9]);
        for cut in 0..bytes.len() - 1 {
            assert!(Steps::read(&mut &bytes[..cut]).is_none());
        }
        let mut neither = bytes.clone();
        neither[8 + 16] = 2;
        assert!(Steps::read(&mut &neither[..]).is_none(), "neither left out nor not");
        let mut twice = bytes.clone();
        twice.copy_within(8..12, 8 + STEP_BYTES);
        assert!(Steps::read(&mut &twice[..]).is_none(), "one rank twice");
        bytes[8 + 4 * STEP_BYTES..][..4].copy_from_slice(&WORKERS_MAX.to_le_bytes());
        assert!(Steps::read(&mut &bytes[..]).is_none(), "nobody has that rank");
    }
}
