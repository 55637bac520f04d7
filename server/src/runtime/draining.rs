//! How long a server that was asked to leave waits for other servers to take over its chunks: while the number of chunks that are left
//! falls. It must not look at anything but that number; the caller serves meanwhile.

use std::pin::pin;
use std::time::Duration;
use tokio::time::timeout;

/// Looks without progress until the server gives up. At all but the last it warns.
pub(super) const LOOKS_MAX: u32 = 2;

/// Waits for `end`, and looks every `every` at how many chunks are left. None if `LOOKS_MAX` looks in a row have found no
/// fewer chunks than the look before; `warn` is called after each of these but the last.
pub(super) async fn while_chunks_leave<T>(
    end: impl Future<Output = T>,
    every: Duration,
    left: impl Fn() -> u64,
    warn: impl Fn(),
) -> Option<T> {
    let mut end = pin!(end);
    let (mut before, mut idle) = (left(), 0);
    loop {
        if let Ok(end) = timeout(every, end.as_mut()).await {
            return Some(end);
        }
        let now = left();
        idle = if now < before { 0 } else { idle + 1 };
        before = now;
        match idle {
            0 => {}
            LOOKS_MAX.. => return None,
            _ => warn(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use tokio::time::{Instant, sleep};

    const EVERY: Duration = Duration::from_secs(30);

    /// A drain that ends after 100 looks, or gives up: how long it took, whether it ended, and how often it warned. `chunks` is
    /// what is left at a look, by its number.
    async fn drain(chunks: impl Fn(u32) -> u64) -> (Duration, bool, u32) {
        let (began, warned) = (Instant::now(), Cell::new(0));
        let left = || chunks((began.elapsed().as_secs_f64() / EVERY.as_secs_f64()).round() as u32);
        let end = sleep(100 * EVERY - EVERY / 2);
        let ended = while_chunks_leave(end, EVERY, left, || warned.set(warned.get() + 1)).await;
        (began.elapsed(), ended.is_some(), warned.get())
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_that_makes_progress_is_not_ended() {
        let (took, has_ended, warned) = drain(|look| 1_000 - u64::from(look)).await;
        assert!(has_ended && took > 99 * EVERY, "{took:?}");
        assert_eq!(warned, 0);
        // A chunk leaves in every second look only.
        let (_, has_ended, warned) = drain(|look| 1_000 - u64::from(look / 2)).await;
        assert!(has_ended && warned >= 49, "{warned}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_without_progress_ends_after_two_looks() {
        let (took, has_ended, warned) = drain(|_| 7).await;
        assert_eq!((has_ended, warned), (false, 1));
        assert!(took >= 2 * EVERY && took < 3 * EVERY, "{took:?}");
        // It stops after ten looks. A number that rises is no progress.
        let (took, has_ended, _) =
            drain(|look| 1_000 - u64::from(look.min(10)) + u64::from(look.max(11))).await;
        assert!(!has_ended && took >= 12 * EVERY && took < 13 * EVERY, "{took:?}");
    }
}
