//! What a lane counts. Plain numbers; whoever asks adds lanes up and publishes them.

/// Counts for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// Batches sent.
    pub batches: u64,
    /// Parts sent, repeats included.
    pub parts: u64,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// What they were before they were encoded.
    pub plain_bytes: u64,
    /// Parts whose payload was written straight into a key buffer of a server.
    pub placed: u64,
    /// Parts whose payload a server was to read.
    pub referenced: u64,
    /// Payload bytes that landed.
    pub landed_bytes: u64,
    /// Bytes of weights that were shown where servers have them, and did not land.
    pub shown_bytes: u64,
    /// Operations done.
    pub done: u64,
    /// Highest round of a tensor that an operation has ended with.
    pub round: u64,
    /// Operations failed.
    pub failed: u64,
    /// Parts sent again because the server could not take them.
    pub retries: u64,
    /// Parts sent again because the server did not have their chunk.
    pub reroutes: u64,
    /// Parts sent again because their channel had ended before they were answered.
    pub replays: u64,
    /// The longest that a contribution took from its submission to its last answer.
    pub longest_ms: u64,
    /// Times a batch had to wait for a credit.
    pub credit_waits: u64,
    /// Stale or repeated results ignored.
    pub duplicates: u64,
}

/// Payload bytes to and from one server, over all channels that there have been to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent; those that the server was to read count.
    pub sent_bytes: u64,
    /// Bytes that landed.
    pub landed_bytes: u64,
}

impl Traffic {
    /// Both lanes' bytes together.
    #[must_use]
    pub fn plus(self, other: &Self) -> Self {
        let (sent_bytes, landed_bytes) =
            (self.sent_bytes + other.sent_bytes, self.landed_bytes + other.landed_bytes);
        Self { sent_bytes, landed_bytes }
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

    /// Both lanes' counts together.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        self.batches += other.batches;
        self.parts += other.parts;
        self.sent_bytes += other.sent_bytes;
        self.plain_bytes += other.plain_bytes;
        self.placed += other.placed;
        self.referenced += other.referenced;
        self.landed_bytes += other.landed_bytes;
        self.shown_bytes += other.shown_bytes;
        self.done += other.done;
        self.round = self.round.max(other.round);
        self.failed += other.failed;
        self.retries += other.retries;
        self.reroutes += other.reroutes;
        self.replays += other.replays;
        self.longest_ms = self.longest_ms.max(other.longest_ms);
        self.credit_waits += other.credit_waits;
        self.duplicates += other.duplicates;
        self
    }
}
