//! When contributions came to a round that ends, for people. It decides nothing.

use super::Chunk;
use crate::engine::command::{Arrival, Commands, NOW_MS};
use proto_common::ids::Rank;

impl Chunk {
    /// Says when contributions came to the round that is about to end, where somebody wants to know. Whose completes it does not
    /// wait for anything yet: it came now.
    pub(in crate::engine) fn tell_arrivals(&self, index: u32, out: &mut Commands) {
        let (round, before_ms) = (self.round(), out.told_before_ms);
        if before_ms == 0 {
            return;
        }
        let those = self.waiters.iter().filter(|waiter| waiter.version == round && waiter.op.contributes());
        if before_ms != NOW_MS && !those.clone().any(|waiter| waiter.since_ms <= before_ms) {
            return;
        }
        let came = |rank, since_ms| Arrival { chunk: index, round, rank, since_ms };
        let before = out.arrivals.len();
        out.arrivals.extend(those.map(|waiter| came(waiter.rank, waiter.since_ms)));
        let told = &out.arrivals[before..];
        if told.len() + 1 == self.contributed.len() as usize {
            // All ranks' sum less that of those who wait: the one who is left.
            let sum =
                |ranks: &mut dyn Iterator<Item = Rank>| ranks.map(|rank| u64::from(rank.0)).sum::<u64>();
            let all = sum(&mut self.contributed.ranks());
            let left = all.saturating_sub(sum(&mut told.iter().map(|came| came.rank)));
            out.arrivals.push(came(Rank(left as u32), NOW_MS));
        }
    }
}
