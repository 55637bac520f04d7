//! The order of a channel's notices where the transport gives none ([`Order::Any`](crate::Order::Any)): every write is counted
//! before its notice is delivered. Such a driver numbers the writes of a channel as they are posted, and each brings its
//! number to the receiver, as immediate data does. The gate of the receiver hands over a notice once all writes with lower
//! numbers have arrived. Without it, a result could be announced before the weights that were posted ahead of it have
//! landed, and a worker would train on half of them. It must not do I/O, and knows nothing of what notices mean.
//!
//! ```text
//! posted           0 data   1 data   2 notice   3 data   4 notice
//! arrives          2        0        4          1        3
//! handed over                                   2        4
//! ```

use std::collections::VecDeque;

/// What is known of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Missing,
    Write,
    Notice(u32),
}

/// The receiver's side of one channel.
#[derive(Debug)]
pub(crate) struct Gate {
    /// The lowest number that has not been counted.
    missing: u64,
    /// What has arrived from there on. At most `window` places.
    places: VecDeque<Place>,
    /// Unfinished requests that the sender may have. It finishes them in their order, so no number is further ahead.
    window: usize,
}

impl Gate {
    pub(crate) fn new(window: usize) -> Self {
        Self { missing: 0, places: VecDeque::new(), window }
    }

    /// A write has arrived, with all its bytes. Follow up with [`Gate::next_notice`] until that returns nothing. A number
    /// that arrives again changes nothing; one that is too far ahead of the first that is missing is refused, as no sender has so
    /// many unfinished writes.
    pub(crate) fn arrived(&mut self, number: u64, notice: Option<u32>) -> Result<(), String> {
        let Some(ahead) = number.checked_sub(self.missing) else { return Ok(()) };
        if ahead >= self.window as u64 {
            let Self { missing, window, .. } = self;
            return Err(format!(
                "write {number} arrived while write {missing} is missing: more than {window} writes are unfinished"
            ));
        }
        let at = ahead as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, Place::Missing);
        }
        if self.places[at] == Place::Missing {
            self.places[at] = notice.map_or(Place::Write, Place::Notice);
        }
        Ok(())
    }

    /// The next notice, if all writes that were posted before it have arrived.
    pub(crate) fn next_notice(&mut self) -> Option<u32> {
        loop {
            let place = *self.places.front().filter(|place| **place != Place::Missing)?;
            self.places.pop_front();
            self.missing += 1;
            if let Place::Notice(notice) = place {
                return Some(notice);
            }
        }
    }

    /// Whether this write, or one that was posted before it, has not been counted.
    pub(crate) fn waits_for(&self, number: u64) -> bool {
        number >= self.missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drain(gate: &mut Gate) -> Vec<u32> {
        std::iter::from_fn(|| gate.next_notice()).collect()
    }

    #[test]
    fn a_notice_waits_for_every_write_before_it() {
        let mut gate = Gate::new(8);
        let mut arrives = |number, notice| {
            gate.arrived(number, notice).unwrap();
            drain(&mut gate)
        };
        assert_eq!(arrives(2, Some(20)), []);
        assert_eq!(arrives(0, None), []);
        assert_eq!(arrives(4, Some(40)), []);
        assert_eq!(arrives(1, None), [20]);
        assert_eq!(arrives(3, None), [40]);
        assert_eq!(arrives(5, Some(50)), [50], "in order there is nothing to wait for");
    }

    #[test]
    fn the_window_is_the_bound() {
        let mut gate = Gate::new(3);
        assert_eq!(gate.arrived(2, Some(2)), Ok(()));
        let beyond = "write 3 arrived while write 0 is missing: more than 3 writes are unfinished";
        assert_eq!(gate.arrived(3, Some(3)).unwrap_err(), beyond);
        assert!(gate.arrived(u64::MAX, None).is_err());
        assert!(gate.places.len() <= 3, "a refused number takes no place");
        gate.arrived(0, None).unwrap();
        assert_eq!(drain(&mut gate), []);
        assert_eq!(gate.arrived(3, Some(3)), Ok(()), "it moves on with what is missing");
        assert!(gate.waits_for(1) && !gate.waits_for(0));
    }

    #[test]
    fn what_arrives_again_is_handed_over_once() {
        let mut gate = Gate::new(4);
        for _ in 0..2 {
            gate.arrived(1, Some(1)).unwrap();
        }
        gate.arrived(1, None).unwrap();
        gate.arrived(0, Some(0)).unwrap();
        assert_eq!(drain(&mut gate), [0, 1]);
        gate.arrived(0, Some(0)).unwrap();
        gate.arrived(1, Some(1)).unwrap();
        assert_eq!(drain(&mut gate), []);
    }

    /// Which writes have a notice, and for each arrival how far the network reaches into what is under way.
    fn arrivals() -> impl Strategy<Value = (usize, Vec<(bool, usize)>)> {
        (1_usize..20, prop::collection::vec((any::<bool>(), 0_usize..20), 0..200))
    }

    proptest! {
        /// A sender with `window` writes unfinished, over a network that takes them in any order and repeats some.
        #[test]
        fn all_notices_come_in_their_order_and_none_early((window, steps) in arrivals()) {
            let notice = |number: usize| steps[number].0.then_some(number as u32);
            let mut gate = Gate::new(window);
            let (mut posted, mut under_way, mut arrived) = (0, Vec::new(), vec![false; steps.len()]);
            let mut handed_over = Vec::new();
            for (repeats, reach) in &steps {
                let first = arrived.iter().position(|there| !there).unwrap_or(steps.len());
                while posted < steps.len() && posted < first + window {
                    under_way.push(posted);
                    posted += 1;
                }
                let number = under_way.swap_remove(reach % under_way.len());
                arrived[number] = true;
                for _ in 0..=usize::from(*repeats) {
                    prop_assert_eq!(gate.arrived(number as u64, notice(number)), Ok(()));
                }
                for early in drain(&mut gate) {
                    prop_assert!(arrived[..=early as usize].iter().all(|there| *there));
                    handed_over.push(early);
                }
                prop_assert!(gate.places.len() <= window);
            }
            let all: Vec<u32> = (0..steps.len()).filter_map(notice).collect();
            prop_assert_eq!(handed_over, all);
        }
    }
}
