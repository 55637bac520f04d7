//! What lanes tell the control side without being asked: the newest of each kind is kept until it is read, so that no lane ever
//! waits, and nothing grows.

use super::message::LaneNews;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// A board that lanes write to and the control side reads; clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Board(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// By lane, server and kind. As many as there are of these.
    news: Mutex<BTreeMap<(u16, u32, u8), LaneNews>>,
    written: Notify,
}

impl Board {
    /// Writes it down, in place of earlier news of its kind.
    pub(super) fn write(&self, news: LaneNews) {
        let key = match news {
            LaneNews::Seeded { lane, to, .. } => (lane, to.0, 1),
            LaneNews::StreamDown { lane, to, .. } => (lane, to.0, 0),
        };
        self.0.news.lock().unwrap_or_else(PoisonError::into_inner).insert(key, news);
        self.0.written.notify_one();
    }

    /// All that was written since.
    pub(super) fn take(&self) -> Vec<LaneNews> {
        let mut news = self.0.news.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *news).into_values().collect()
    }

    /// Until something may be there. Cancel-safe.
    pub(super) async fn written(&self) {
        self.0.written.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::ids::{Epoch, Rank};

    #[tokio::test]
    async fn the_newest_of_each_kind_is_kept_until_it_is_read() {
        let board = Board::default();
        let seeded = |counter| {
            let epoch = Epoch { term: 1, counter };
            LaneNews::Seeded { lane: 0, to: Rank(1), epoch }
        };
        let down = LaneNews::StreamDown { lane: 0, to: Rank(1), number: 3 };
        board.clone().write(seeded(1));
        board.write(down);
        board.write(seeded(2));
        board.written().await;
        assert_eq!(board.take(), [down, seeded(2)]);
        assert_eq!(board.take(), []);
    }
}
