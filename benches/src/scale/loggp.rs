//! LogGP's parameters and what they make of a message: how long a CPU and a link are busy with it. Pure arithmetic in
//! nanoseconds; what happens when is in `world`.
//!
//! After Alexandrov et al., "LogGP: Incorporating Long Messages into the LogP Model", SPAA 1995: L, o, g and G. Things are
//! added that show on sockets: a message costs CPU time for each byte at either end, and a process that sleeps takes its
//! time, and its CPU's, to wake.

use serde::{Deserialize, Serialize};

/// What work costs: nanoseconds of CPU time for one of each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Prices {
    /// To sleep and to wake.
    pub(crate) wake: f64,
    /// o: a message, at its sender and again at its receiver.
    pub(crate) message: f64,
    /// A block of a batch, at either end: engine and block table.
    pub(crate) block: f64,
    /// A byte at its sender.
    pub(crate) sent_byte: f64,
    /// A byte at its receiver.
    pub(crate) taken_byte: f64,
    /// A byte that a server's data thread folds or updates.
    pub(crate) reduced_byte: f64,
    /// A byte that it copies aside, because others come first.
    pub(crate) spilled_byte: f64,
}

/// How many kinds of work there are.
pub(super) const KINDS: usize = 7;

impl Prices {
    pub(super) fn to_array(self) -> [f64; KINDS] {
        let Self { wake, message, block, sent_byte, taken_byte, reduced_byte, spilled_byte } = self;
        [wake, message, block, sent_byte, taken_byte, reduced_byte, spilled_byte]
    }

    pub(super) fn from_array(all: [f64; KINDS]) -> Self {
        let [wake, message, block, sent_byte, taken_byte, reduced_byte, spilled_byte] = all;
        Self { wake, message, block, sent_byte, taken_byte, reduced_byte, spilled_byte }
    }
}

/// Work that was done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Worked {
    pub(super) wakes: u64,
    pub(super) messages: u64,
    pub(super) blocks: u64,
    pub(super) sent_bytes: u64,
    pub(super) taken_bytes: u64,
    pub(super) reduced_bytes: u64,
    pub(super) spilled_bytes: u64,
}

impl Worked {
    /// In the order of [`Prices::to_array`].
    pub(super) fn to_array(self) -> [f64; KINDS] {
        let all = [
            self.wakes,
            self.messages,
            self.blocks,
            self.sent_bytes,
            self.taken_bytes,
            self.reduced_bytes,
            self.spilled_bytes,
        ];
        all.map(|count| count as f64)
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.wakes += other.wakes;
        self.messages += other.messages;
        self.blocks += other.blocks;
        self.sent_bytes += other.sent_bytes;
        self.taken_bytes += other.taken_bytes;
        self.reduced_bytes += other.reduced_bytes;
        self.spilled_bytes += other.spilled_bytes;
    }

    /// CPU time of it.
    pub(super) fn cost_ns(self, prices: &Prices) -> f64 {
        self.to_array().iter().zip(prices.to_array()).map(|(count, price)| count * price).sum()
    }
}

/// The model's parameters, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct LogGp {
    /// CPU time of everything that processes do.
    pub(crate) prices: Prices,
    /// L on one host: until a process that sleeps runs once something came.
    pub(crate) wake_ns: f64,
    /// What L is more between hosts.
    pub(crate) wire_ns: f64,
    /// g: a link takes the next message so much later at the earliest.
    pub(crate) gap_ns: f64,
    /// G: a link is busy so long with a byte, in each direction by itself.
    pub(crate) link_ns_per_byte: f64,
    /// Messages cost up to this share more of o, drawn for each.
    pub(crate) jitter: f64,
}

impl LogGp {
    /// How long a link is busy with a message of so many bytes.
    pub(crate) fn link_ns(&self, bytes: u64) -> u64 {
        whole(self.gap_ns.max(self.link_ns_per_byte * bytes as f64))
    }
}

/// To the nearest nanosecond; nothing below zero.
pub(crate) fn whole(ns: f64) -> u64 {
    ns.max(0.0).round() as u64
}

/// One direction of a host's link: what is on it follows what was on it before.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Link {
    free_ns: u64,
}

impl Link {
    /// Takes a message at `now_ns` that keeps it busy for `busy_ns`; when its first and its last byte are through.
    pub(crate) fn take(&mut self, now_ns: u64, busy_ns: u64) -> (u64, u64) {
        let first_ns = now_ns.max(self.free_ns);
        self.free_ns = first_ns + busy_ns;
        (first_ns, self.free_ns)
    }
}

#[cfg(test)]
impl LogGp {
    /// Round numbers, so that tests can count.
    pub(crate) fn round_numbers() -> Self {
        Self {
            prices: Prices { message: 1_000.0, ..Prices::default() },
            wake_ns: 10_000.0,
            wire_ns: 5_000.0,
            gap_ns: 100.0,
            link_ns_per_byte: 1.0,
            jitter: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_busy_for_the_gap_or_the_bytes_and_takes_turns() {
        let model = LogGp::round_numbers();
        assert_eq!((model.link_ns(0), model.link_ns(99), model.link_ns(101)), (100, 100, 101));
        let mut link = Link::default();
        assert_eq!(link.take(50, 100), (50, 150));
        assert_eq!(link.take(60, 100), (150, 250), "what comes meanwhile waits");
        assert_eq!(link.take(400, 100), (400, 500));
        assert_eq!(whole(-1.0), 0);
    }

    #[test]
    fn work_costs_what_its_kinds_cost() {
        let prices = Prices::from_array([1.0, 10.0, 100.0, 0.5, 0.25, 2.0, 3.0]);
        assert_eq!(Prices::from_array(prices.to_array()), prices);
        let mut worked = Worked { wakes: 1, messages: 2, blocks: 3, ..Worked::default() };
        worked.add(&Worked { sent_bytes: 8, taken_bytes: 16, reduced_bytes: 1, ..Worked::default() });
        worked.add(&Worked { spilled_bytes: 2, ..Worked::default() });
        assert_eq!(worked.cost_ns(&prices), 1.0 + 20.0 + 300.0 + 4.0 + 4.0 + 2.0 + 6.0);
    }
}
