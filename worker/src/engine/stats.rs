//! What a lane counts. Plain numbers; whoever asks adds lanes up and publishes them.

proto_common::counts! {
    /// Counts for metrics.
    pub struct LaneStats {
        /// Batches sent.
        batches,
        /// Parts sent, repeats included.
        parts,
        /// Payload bytes sent.
        sent_bytes,
        /// What they were before they were encoded.
        plain_bytes,
        /// Parts whose payload was written straight into a key buffer of a server.
        placed,
        /// Parts whose payload a server was to read.
        referenced,
        /// Payload bytes that landed.
        landed_bytes,
        /// Bytes of weights that were shown where servers have them, and did not land.
        shown_bytes,
        /// Operations done.
        done,
        /// Highest round of a tensor that an operation has ended with.
        round: max,
        /// Operations failed.
        failed,
        /// Parts sent again because the server could not take them.
        retries,
        /// Parts sent again because the server did not have their chunk.
        reroutes,
        /// Parts sent again because their channel had ended before they were answered.
        replays,
        /// The longest that a contribution took from its submission to its last answer.
        longest_ms: max,
        /// Times a batch had to wait for a credit.
        credit_waits,
        /// Stale or repeated results ignored.
        duplicates,
    }
}

proto_common::counts! {
    /// Payload bytes to and from one server, over all channels that there have been to it.
    pub struct Traffic {
        /// Bytes sent; those that the server was to read count.
        sent_bytes,
        /// Bytes that landed.
        landed_bytes,
    }
}

impl LaneStats {
    /// A part's weights have landed, or are shown.
    pub(super) fn arrived(&mut self, shown: bool, bytes: u64) {
        *(if shown { &mut self.shown_bytes } else { &mut self.landed_bytes }) += bytes;
    }

    /// An operation has ended; `version` is the least among its parts, and that of a call is none.
    pub(super) fn ended(&mut self, is_call: bool, failed: bool, version: u64) {
        self.done += u64::from(!failed);
        if !is_call && !failed && version != u64::MAX {
            self.round = self.round.max(version);
        }
    }
}
