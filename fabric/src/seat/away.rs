//! Owns how long the lane thread stays out of the callers' way. It must not decide who wakes it: see `seat`.

use super::platform::{Platform, Word};
use super::{Driven, SUMMONED, Seat, is_driven, is_waited_for};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long it stays out of the way of callers before it looks whether they still drive: longer and longer, as
/// each look interrupts somebody on a busy machine.
const PARK_MIN: Duration = Duration::from_micros(500);
/// So long, at most, lies what the last driving caller left undone.
const PARK_MAX: Duration = Duration::from_millis(2);

/// A caller that comes to wait has this long to take the core. Short, because work must not wait for callers that only
/// pass by.
const GIVE_WAY: Duration = Duration::from_micros(100);

/// What the lane thread has seen of callers since it last drove.
#[derive(Debug, Default)]
pub struct Away {
    drives: u32,
    visits: u32,
    /// The last park, where callers drove.
    park: Option<Duration>,
    gave_way: bool,
}

impl Away {
    /// How long to stay out of the callers' way; `None`: it is for the lane thread to drive.
    fn look<T: Driven, P: Platform>(&mut self, seat: &Seat<T, P>) -> Option<Duration> {
        let (word, drives, visits) = (seat.word.load(), seat.drives.load(Ordering::Relaxed), seat.visits());
        let (drove, came) = (drives != self.drives, visits != self.visits);
        (self.drives, self.visits) = (drives, visits);
        let park = if word & SUMMONED != 0 {
            None
        } else if is_driven(word) {
            Some(self.park.map_or(PARK_MIN, |park| (park * 2).min(PARK_MAX)))
        } else if is_waited_for(word) || self.gave_way {
            // It gives way once: callers that drive for moments only leave others' transfers to it.
            None
        } else if drove {
            Some(PARK_MIN)
        } else if came {
            Some(GIVE_WAY)
        } else {
            None
        };
        self.gave_way = park.is_some() && !is_driven(word);
        self.park = park.filter(|_| is_driven(word));
        park
    }
}

impl<T: Driven, P: Platform> Seat<T, P> {
    /// The lane thread stays out of the callers' way for a moment, and looks again afterwards. False: it is for it to
    /// drive.
    pub fn stay_away(&self, away: &mut Away) -> bool {
        let Some(time) = away.look(self) else { return false };
        self.park(time);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::Left;
    use super::*;
    use crate::LaneQueue;

    struct Idle;

    impl Driven for Idle {
        fn take(&mut self) {}
        fn settle(&mut self) -> Left {
            Left::Nothing
        }
        fn lie_down(&mut self) {}
    }

    /// Two callers: one drives for moments, again and again; the transfer of the other, which does not wait for it, is
    /// the lane thread's work.
    #[test]
    fn callers_that_drive_for_moments_do_not_keep_the_lane_thread_away() {
        let seat: Seat<Idle> = Seat::new(Idle, LaneQueue::new(4).unwrap().waker());
        let drive = || assert!(seat.announce().core().is_some());
        let mut away = Away::default();
        assert_eq!(away.look(&seat), None);
        for _ in 0..3 {
            drive();
            assert_eq!(away.look(&seat), Some(PARK_MIN), "the caller may come back");
            drive();
            assert_eq!(away.look(&seat), None, "it came back, and left again");
        }
        seat.visit();
        assert_eq!(away.look(&seat), Some(GIVE_WAY));
        seat.visit();
        assert_eq!(away.look(&seat), None);
    }

    #[test]
    fn parks_beside_a_caller_that_drives_grow_up_to_their_bound() {
        let seat: Seat<Idle> = Seat::new(Idle, LaneQueue::new(4).unwrap().waker());
        let mut away = Away::default();
        let caller = seat.announce();
        let parks: Vec<_> = (0..4).filter_map(|_| away.look(&seat)).collect();
        assert_eq!(parks, [PARK_MIN, PARK_MIN * 2, PARK_MAX, PARK_MAX]);
        seat.block();
        assert!(away.look(&seat).is_some(), "the blocked caller is served by the other one");
        drop(caller);
        assert_eq!(away.look(&seat), None);
        seat.unblock();
    }
}
