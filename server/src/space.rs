//! Shares the address space that this process may reserve (`ulimit -v`) among the pools of its lanes, which reserve far more than
//! they use. It must not reserve any itself.

use fabric::{FabricError, address_space};

/// What a pool of weights, or of copies, reserves without a limit; memory is taken at first touch.
const POOL_BYTES: u64 = 1 << 40;
/// A lane's pools with less are of no use.
const POOLS_BYTES_MIN: u64 = 64 << 20;

/// What the pools of one lane reserve.
#[derive(Clone, Copy, Debug, Default)]
pub struct Space {
    /// Of all of them together; none where there is no limit.
    limit_bytes: Option<u64>,
}

impl Space {
    /// Of each of so many lanes, which take `fixed_bytes` besides. Under a limit the pools get half of what is left: accumulators, what
    /// rules keep, and memory of peers on this host have to lie in the same address space.
    pub fn of_each(lanes: u16, fixed_bytes: u64) -> Result<Self, FabricError> {
        let left = address_space::left_bytes();
        let limit_bytes = share(left, lanes, fixed_bytes).map_err(|needed_bytes| {
            address_space::too_little(format!("the memory of {lanes} lanes"), needed_bytes)
        })?;
        if let Some(pools_bytes) = limit_bytes {
            tracing::warn!(
                lanes,
                pools_bytes,
                "`ulimit -v` limits the address space: each lane reserves less for weights than without a limit"
            );
        }
        Ok(Self { limit_bytes })
    }

    /// Of the pool of weights.
    #[must_use]
    pub(crate) fn weights_bytes(self) -> u64 {
        self.limit_bytes.map_or(POOL_BYTES, |limit| POOL_BYTES.min(limit / 2))
    }

    /// Of the pool of sums that are sent to other servers.
    #[must_use]
    pub(crate) fn copies_bytes(self) -> u64 {
        self.limit_bytes.map_or(POOL_BYTES, |limit| POOL_BYTES.min(limit / 4))
    }

    /// Of the pool of calls, which takes so much without a limit.
    #[must_use]
    pub(crate) fn calls_bytes(self, wanted_bytes: u64) -> u64 {
        self.limit_bytes.map_or(wanted_bytes, |limit| wanted_bytes.min(limit / 4))
    }
}

/// What one of so many lanes gets for its pools. The error is what all lanes need at least.
fn share(left: Option<u64>, lanes: u16, fixed_bytes: u64) -> Result<Option<u64>, u64> {
    let Some(left) = left else { return Ok(None) };
    let lanes = u64::from(lanes.max(1));
    let pools = (left / lanes).saturating_sub(fixed_bytes) / 2;
    if pools < POOLS_BYTES_MIN {
        return Err(fixed_bytes.saturating_add(2 * POOLS_BYTES_MIN).saturating_mul(lanes));
    }
    Ok(Some(pools))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_limit_pools_reserve_what_they_want() {
        assert_eq!(share(None, 4, 1 << 30), Ok(None));
        let space = Space::default();
        assert_eq!((space.weights_bytes(), space.copies_bytes()), (POOL_BYTES, POOL_BYTES));
        assert_eq!(space.calls_bytes(5), 5);
    }

    #[test]
    fn both_sides_of_the_least_that_does() {
        let (lanes, fixed) = (4, 320 << 20);
        let least = 4 * (fixed + 2 * POOLS_BYTES_MIN);
        assert_eq!(share(Some(least), lanes, fixed), Ok(Some(POOLS_BYTES_MIN)));
        assert_eq!(share(Some(least - 4), lanes, fixed), Err(least));
        assert_eq!(share(Some(0), lanes, u64::MAX), Err(u64::MAX));
    }

    #[test]
    fn all_pools_fit_their_share_and_none_is_larger_than_without_a_limit() {
        for limit in [POOLS_BYTES_MIN, 1 << 50] {
            let space = Space { limit_bytes: Some(limit) };
            let all = space.weights_bytes() + space.copies_bytes() + space.calls_bytes(u64::MAX);
            assert!(all <= limit && space.weights_bytes() <= POOL_BYTES);
        }
    }
}
