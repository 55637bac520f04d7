//! Control messages: all messages on TCP control connections, one family per file, and the one codec that turns them
//! into bytes. No payload travels here.

mod bootstrap;
mod checkpoint;
mod codec;
mod digest;
mod from_scheduler;
mod journal;
mod post;
mod resume;
mod rounds;
mod to_scheduler;
mod version;
mod wait;

pub use crate::config::ClusterShape;
pub use bootstrap::{FromServer, Hello, InboxGrant, LaneEndpoint, ServerOffer, ToServer};
pub use checkpoint::{
    CheckpointNews, CheckpointOrder, Cover, PartWritten, SaveError, SaveProgress, WAITING_LISTED_MAX,
    Waiting, Waits,
};
pub use codec::{CodecError, Message, decode, encode, from_bytes, to_bytes};
pub use digest::MapDigest;
pub use from_scheduler::{Coming, DeclareError, FromScheduler, Member, RefusalReason, WaitError, Welcome};
pub use journal::{
    FromKeeper, JOURNAL_PIECE_BYTES, JournalFrame, JournalLine, JournalReader, JournalRecord, ToKeeper,
    journal_frames,
};
pub use post::{
    NodeGroup, POST_BODY_BYTES_MAX, POSTS_ASKED_MAX, POSTS_OWED_BYTES_MAX, POSTS_OWED_MAX, PostError,
    PostMessage, PostReply, PostTo,
};
pub use resume::Resume;
pub use rounds::{ROUNDS_PART_MAX, RoundsPart, RoundsSoFar};
pub use to_scheduler::{LinkReport, MemberReport, NotTaken, PortReport, Register, ServerLoad, ToScheduler};
pub use version::{Build, opening_of, speaker_of};
pub use wait::{Wait, WaitCause};

crate::control_messages!(
    FromKeeper,
    FromScheduler,
    FromServer,
    ToKeeper,
    ToScheduler,
    ToServer,
    crate::table::TableSpec,
    version::Opening
);
// Not messages, but in the same bytes: a chunk's changes of rule, which one server copies to another.
crate::control_messages!(Vec<(u64, crate::optimizer::Optimizer)>);

#[cfg(test)]
mod tests;
