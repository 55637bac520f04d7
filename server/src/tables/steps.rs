//! Which of each worker's pushes a table's rows at a home have had: what a worker that came again repeats of them counts once.
//! It must not know what is pushed.

use proto_common::limits::WORKERS_MAX;
use proto_common::table::PushStep;
use zerocopy::FromBytes;

/// Bytes of one as it is sent to copies.
const STEP_BYTES: usize = 16;

/// The last one of each worker that says which they are, by rank: at most one a worker.
#[derive(Debug, Default)]
pub(super) struct Steps(Vec<PushStep>);

impl Steps {
    fn place(&self, rank: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&rank, |last| last.rank)
    }

    /// Was it, or a later one of its worker, here?
    pub(super) fn has(&self, which: PushStep) -> bool {
        let last = self.place(which.rank).ok().and_then(|at| self.0.get(at));
        last.is_some_and(|last| (which.step, which.nth) <= (last.step, last.nth))
    }

    pub(super) fn note(&mut self, which: PushStep) {
        match self.place(which.rank) {
            Ok(at) => self.0[at] = which,
            Err(at) => self.0.insert(at, which),
        }
    }

    /// Writes them behind what is in `out`.
    pub(super) fn save(&self, out: &mut Vec<u8>) {
        out.extend((self.0.len() as u64).to_le_bytes());
        for PushStep { rank, step, nth } in &self.0 {
            out.extend(rank.to_le_bytes());
            out.extend(nth.to_le_bytes());
            out.extend(step.to_le_bytes());
        }
    }

    /// Takes them off the beginning. None of what is cut short, or could not have been written.
    pub(super) fn read(bytes: &mut &[u8]) -> Option<Self> {
        let (count, rest) = u64::read_from_prefix(bytes).ok()?;
        let count = usize::try_from(count).ok().filter(|count| *count <= WORKERS_MAX as usize)?;
        let (all, rest) = rest.split_at_checked(count * STEP_BYTES)?;
        *bytes = rest;
        let one = |bytes: &[u8]| {
            let ([rank, nth], step) = <[u32; 2]>::read_from_prefix(bytes).ok()?;
            Some(PushStep { rank, nth, step: u64::read_from_bytes(step).ok()? })
        };
        let all: Vec<PushStep> = all.chunks_exact(STEP_BYTES).map(one).collect::<Option<_>>()?;
        let in_order = all.is_sorted_by(|one, next| one.rank < next.rank);
        let are_workers = all.last().is_none_or(|last| last.rank < WORKERS_MAX);
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
        assert!(!steps.has(which(3, 0, 0)));
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
            assert_eq!(steps.has(one), is_known, "{one:?}");
        }
    }

    #[test]
    fn they_come_back_as_they_were_and_nonsense_does_not() {
        let mut steps = Steps::default();
        (0..5).for_each(|rank| steps.note(which(rank * 2, u64::MAX, rank)));
        let mut bytes = Vec::new();
        steps.save(&mut bytes);
        bytes.push(9);
        let mut rest = &bytes[..];
        assert_eq!(Steps::read(&mut rest).unwrap().0, steps.0);
        assert_eq!(rest, [9]);
        for cut in 0..bytes.len() - 1 {
            assert!(Steps::read(&mut &bytes[..cut]).is_none());
        }
        let mut twice = bytes.clone();
        twice.copy_within(8..12, 8 + STEP_BYTES);
        assert!(Steps::read(&mut &twice[..]).is_none(), "one rank twice");
        bytes[8 + 4 * STEP_BYTES..][..4].copy_from_slice(&WORKERS_MAX.to_le_bytes());
        assert!(Steps::read(&mut &bytes[..]).is_none(), "nobody has that rank");
    }
}
