//! Work requests and completions: what goes into a channel and what comes out of a completion queue.

use crate::memory::Span;
use std::fmt;

/// A channel of one completion queue (one queue pair on verbs). Ids are not reused within a queue's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelId(pub u32);

/// The key under which a peer addresses a region of ours (an rkey, or its like).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u64);

/// A place in a peer's region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSpan {
    /// The region's key, from a grant.
    pub key: RemoteKey,
    /// Bytes from the region's start.
    pub offset: u64,
}

/// A one-sided write: gathers spans of our memory into one stretch of the peer's.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// Sources, in order. May be empty when only the notice counts.
    pub gather: &'a [Span],
    /// Where the bytes go.
    pub remote: RemoteSpan,
    /// Tell the peer with these 32 bits once all bytes are there.
    pub immediate: Option<u32>,
    /// Ask for a completion of our own when the sources may be reused.
    pub signaled: bool,
}

/// A one-sided read into a stretch of our memory.
#[derive(Clone, Copy, Debug)]
pub struct Read<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// Where the bytes go; its length is what is read.
    pub local: &'a Span,
    /// Where they come from.
    pub remote: RemoteSpan,
}

/// Why a channel ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DisconnectReason {
    /// The peer closed it, or its process died.
    PeerClosed,
    /// The peer broke the protocol (what it did).
    PeerMisbehaved(String),
    /// The system reported an error.
    Failed(String),
}

impl fmt::Display for DisconnectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerClosed => f.write_str("the peer closed it or failed"),
            Self::PeerMisbehaved(what) => write!(f, "the peer misbehaved: {what}"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

/// What a completion is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletionKind {
    /// Our write: its sources may be reused. (Arrival is what the peer says, not this.)
    WriteDone {
        /// The request's id.
        id: u64,
    },
    /// Our read: its bytes are in place.
    ReadDone {
        /// The request's id.
        id: u64,
    },
    /// A peer's write with immediate: all its bytes are in our memory.
    Received {
        /// The 32 bits.
        immediate: u32,
    },
    /// The channel ended; nothing of it comes after this, and its unfinished requests are dropped.
    Disconnected(DisconnectReason),
}

/// One event of a completion queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The channel.
    pub channel: ChannelId,
    /// What happened.
    pub kind: CompletionKind,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_channel_ended_is_said_for_people() {
        let misbehaved = DisconnectReason::PeerMisbehaved("it talked".into());
        assert_eq!(misbehaved.to_string(), "the peer misbehaved: it talked");
        assert_eq!(DisconnectReason::PeerClosed.to_string(), "the peer closed it or failed");
        assert_eq!(DisconnectReason::Failed("no answer".into()).to_string(), "no answer");
    }
}
