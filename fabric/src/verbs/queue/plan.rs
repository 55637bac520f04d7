//! How large a lane's queues are and what its queue pairs may ask for: what is wished for, within what the device says
//! that it can. Pure.

use crate::error::FabricError;
use crate::verbs::sys::Limits;

/// Receives posted for all channels of a lane: notices and messages that may be under way to it.
pub(in crate::verbs) const RECEIVES_MAX: usize = 1024;
/// Fewer would make peers wait for one another.
const RECEIVES_MIN: usize = 16;
/// Unfinished requests one channel may have at most.
const SEND_DEPTH_MAX: usize = 256;
/// More than this is no wish but a mistake.
const SEND_DEPTH_ASKED_MAX: usize = 1 << 16;
/// Channels of a lane at most.
const CHANNELS_MAX: usize = 1024;
/// Channels that there is room for at first.
const CHANNELS_AT_FIRST: usize = 64;
/// Places of one request.
const GATHER_MAX: usize = 8;
/// Requests of our own (extents told) beside those of the channel's user.
pub(in crate::verbs) const OWN_REQUESTS: usize = 64;

/// Reads that one side may have under way.
const READS_MAX: u8 = 16;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct Plan {
    /// Unfinished requests of a channel's user.
    pub(in crate::verbs) depth: usize,
    /// Requests of a queue pair, our own among them.
    pub(in crate::verbs) requests: usize,
    pub(in crate::verbs) receives: usize,
    pub(in crate::verbs) gather_max: usize,
    /// Reads under way that we ask for, and that we answer.
    pub(in crate::verbs) reads: u8,
    pub(in crate::verbs) reads_answered: u8,
    pub(in crate::verbs) channels_max: usize,
    entries_max: usize,
}

impl Plan {
    pub(in crate::verbs) fn new(limits: &Limits, send_depth: usize) -> Result<Self, FabricError> {
        if send_depth == 0 || send_depth > SEND_DEPTH_ASKED_MAX {
            return Err(FabricError::Misuse(format!(
                "send_depth must be 1 to {SEND_DEPTH_ASKED_MAX}, not {send_depth}"
            )));
        }
        let lacks = |what: &str, has: usize, needs: usize| {
            FabricError::Misuse(format!(
                "the RDMA device has room for {has} {what} and {needs} are needed: use another device, or tcp"
            ))
        };
        if limits.requests <= OWN_REQUESTS {
            return Err(lacks("requests of a queue pair", limits.requests, OWN_REQUESTS + 1));
        }
        if limits.receives < RECEIVES_MIN {
            return Err(lacks("shared receives", limits.receives, RECEIVES_MIN));
        }
        if limits.gather == 0 || limits.reads == 0 || limits.reads_answered == 0 {
            let has = limits.gather.min(limits.reads).min(limits.reads_answered);
            return Err(lacks("places or reads of a request", has, 1));
        }
        let depth = send_depth.min(SEND_DEPTH_MAX).min(limits.requests - OWN_REQUESTS);
        let (requests, receives) = (depth + OWN_REQUESTS, RECEIVES_MAX.min(limits.receives));
        let channels_max = (limits.entries.saturating_sub(receives) / requests).min(CHANNELS_MAX);
        if channels_max == 0 {
            return Err(lacks("completions of a queue", limits.entries, receives + requests));
        }
        let reads = |most: usize| u8::try_from(most).unwrap_or(u8::MAX).min(READS_MAX);
        Ok(Self {
            depth,
            requests,
            receives,
            gather_max: GATHER_MAX.min(limits.gather),
            reads: reads(limits.reads),
            reads_answered: reads(limits.reads_answered),
            channels_max,
            entries_max: limits.entries,
        })
    }

    /// Completions that there must be room for: every request of a queue pair that fails is told of, and every receive.
    pub(in crate::verbs) fn entries(&self, channels: usize) -> usize {
        (self.receives + channels * self.requests).min(self.entries_max)
    }

    pub(in crate::verbs) fn entries_at_first(&self) -> usize {
        self.entries(CHANNELS_AT_FIRST.min(self.channels_max))
    }

    /// What a queue that is too small for so many channels is made: twice as large, so that it is rarely done.
    pub(in crate::verbs) fn entries_grown(&self, channels: usize) -> usize {
        self.entries((2 * channels).min(self.channels_max).max(channels))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: Limits = Limits {
        requests: 1 << 15,
        receives: 1 << 15,
        gather: 30,
        reads: 128,
        reads_answered: 16,
        entries: 1 << 22,
    };

    #[test]
    fn a_large_device_gives_what_is_wished_for() {
        let plan = Plan::new(&LARGE, 64).unwrap();
        assert_eq!((plan.depth, plan.requests, plan.receives), (64, 128, 1024));
        assert_eq!((plan.gather_max, plan.reads, plan.reads_answered, plan.channels_max), (8, 16, 16, 1024));
        assert_eq!(plan.entries_at_first(), 1024 + 64 * 128);
        assert_eq!(plan.entries_grown(65), 1024 + 130 * 128);
        assert_eq!(plan.entries_grown(1024), plan.entries(1024));
        assert_eq!(Plan::new(&LARGE, 1000).unwrap().depth, SEND_DEPTH_MAX);
    }

    #[test]
    fn a_small_device_gives_what_it_has() {
        let small =
            Limits { requests: 80, receives: 100, gather: 3, reads: 4, reads_answered: 1, entries: 300 };
        let plan = Plan::new(&small, 64).unwrap();
        assert_eq!((plan.depth, plan.receives, plan.gather_max), (16, 100, 3));
        assert_eq!((plan.reads, plan.reads_answered, plan.channels_max), (4, 1, 2));
        assert!(plan.entries_at_first() <= 300 && plan.entries_grown(2) <= 300);
    }

    #[test]
    fn each_bound_from_both_sides() {
        let is_good = |edit: fn(&mut Limits)| {
            let mut limits = LARGE;
            edit(&mut limits);
            Plan::new(&limits, 1).is_ok()
        };
        assert!(is_good(|l| l.requests = OWN_REQUESTS + 1) && !is_good(|l| l.requests = OWN_REQUESTS));
        assert!(is_good(|l| l.receives = RECEIVES_MIN) && !is_good(|l| l.receives = RECEIVES_MIN - 1));
        assert!(is_good(|l| l.entries = 1089) && !is_good(|l| l.entries = 1088));
        assert!(
            !is_good(|l| l.gather = 0) && !is_good(|l| l.reads = 0) && !is_good(|l| l.reads_answered = 0)
        );
        for depth in [0, SEND_DEPTH_ASKED_MAX + 1] {
            assert!(Plan::new(&LARGE, depth).is_err(), "{depth}");
        }
    }
}
