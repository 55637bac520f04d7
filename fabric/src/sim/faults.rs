//! What the simulated network is like: its timing, its limits and its faults. Plain numbers; owns no state.

use crate::device::Order;

/// Timing, limits and fault rates of a simulated network. Rates are per 10,000 messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimFaults {
    /// Time of flight of every message.
    pub latency_us: u64,
    /// Up to this much more, drawn for each message. Channels overtake each other by it, so it is what
    /// reorders arrivals across channels, and within a channel where `order` keeps none.
    pub jitter_us: u64,
    /// The order of what is posted on one channel. With [`Order::Any`] a driver's gate hands over a notice only after all writes
    /// that were posted before it have arrived.
    pub order: Order,
    /// There is no such gate: notices are believed as they arrive. No correct driver does that.
    pub is_ungated: bool,
    /// Bandwidth of one direction of one channel (1,000 is 1 GB/s).
    pub bytes_per_us: u64,
    /// Messages delayed by a spike.
    pub spike_per_10k: u32,
    /// The longest spike.
    pub spike_us: u64,
    /// Messages and acknowledgements lost; each loss costs a retransmission.
    pub loss_per_10k: u32,
    /// The first retransmission's delay; each further one of a message waits twice as long.
    pub retransmit_us: u64,
    /// Losses in a row of one message that a channel survives.
    pub retry_max: u32,
    /// Delivered writes with immediate that arrive a second time, bytes and notice, while the channel is up.
    /// No reliable transport does that; a receiver that has reused the memory by then loses what is in it.
    pub duplicate_per_10k: u32,
    /// Delivered immediates that arrive a second time without their bytes.
    pub duplicate_notice_per_10k: u32,
    /// The longest time from a delivery to its duplicate.
    pub duplicate_within_us: u64,
    /// Writes whose bytes land in pieces, in any order, before their immediate.
    pub torn_per_10k: u32,
    /// The longest time from the first piece to the immediate.
    pub torn_us: u64,
    /// Channels that are closed while the peer is in the middle of a copy into this side's memory, of those where something of the
    /// peer's is under way: it lands although the channel is closed, and the fence is pending until then. Landings are none of
    /// those ([`CompletionQueue::post_landing`](crate::CompletionQueue::post_landing)).
    pub late_copy_per_10k: u32,
    /// The longest time from the close to the end of such a copy.
    pub late_copy_us: u64,
    /// Soonest that a channel's other side hears of a crash or a break.
    pub detect_min_us: u64,
    /// Latest that it does.
    pub detect_max_us: u64,
    /// Posts refused with [`PostError::Full`](crate::PostError::Full) although there is room,
    /// on channels that have unfinished requests.
    pub spurious_full_per_10k: u32,
    /// Unfinished requests one channel may have.
    pub send_depth: usize,
    /// Spans one write may gather.
    pub gather_max: usize,
    /// Notices of one channel direction that may be under way or not polled yet.
    pub notice_ring: usize,
    /// What peers exposed can be read where it lies, as on shared memory: at once, and of what the peer writes
    /// meanwhile whatever is there.
    pub reads_in_place: bool,
    /// Last events kept for reports.
    pub trace_events: usize,
}

impl SimFaults {
    /// No faults and no jitter: a quick, orderly network.
    #[must_use]
    pub fn calm() -> Self {
        Self {
            latency_us: 5,
            jitter_us: 0,
            order: Order::Posted,
            is_ungated: false,
            bytes_per_us: 1_000,
            spike_per_10k: 0,
            spike_us: 0,
            loss_per_10k: 0,
            retransmit_us: 100,
            retry_max: 7,
            duplicate_per_10k: 0,
            duplicate_notice_per_10k: 0,
            duplicate_within_us: 200,
            torn_per_10k: 0,
            torn_us: 0,
            late_copy_per_10k: 0,
            late_copy_us: 0,
            detect_min_us: 100,
            detect_max_us: 1_000,
            spurious_full_per_10k: 0,
            send_depth: 256,
            gather_max: 16,
            notice_ring: 1_024,
            reads_in_place: false,
            trace_events: 4_096,
        }
    }

    /// What a healthy, correct transport may do: strong reordering across channels, torn arrival, spikes,
    /// now and then a loss (never a break in practice), spurious `Full`. No duplicates.
    #[must_use]
    pub fn rough() -> Self {
        Self {
            jitter_us: 200,
            spike_per_10k: 100,
            spike_us: 5_000,
            loss_per_10k: 200,
            torn_per_10k: 5_000,
            torn_us: 50,
            spurious_full_per_10k: 200,
            ..Self::calm()
        }
    }

    /// [`SimFaults::rough`] with duplicated notices: what a receiver of one-sided writes must survive.
    #[must_use]
    pub fn hostile() -> Self {
        Self { loss_per_10k: 1_000, duplicate_notice_per_10k: 1_000, ..Self::rough() }
    }

    /// Time from a message's first loss to the break of its channel when nothing gets through any more.
    #[must_use]
    pub fn retry_budget_us(&self) -> u64 {
        (1..=self.retry_max).fold(0, |sum: u64, attempt| sum.saturating_add(self.backoff_us(attempt)))
    }

    /// Delay of the retransmission after the `attempt`-th loss in a row.
    pub(super) fn backoff_us(&self, attempt: u32) -> u64 {
        // A week of virtual time at most: the doubling is bounded whatever `retry_max` is.
        self.retransmit_us.saturating_mul(1 << (attempt.saturating_sub(1)).min(20)).min(7 * 86_400_000_000)
    }
}

impl Default for SimFaults {
    fn default() -> Self {
        Self::calm()
    }
}
