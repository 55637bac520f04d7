//! What the control side and handlers tell a lane's thread, and what it tells them. It must not know what a lane does with it.

use super::calls::Lent;
use super::link::WorkerInbox;
use crate::app::{Answer, Handling, ReplyMemory};
use crate::engine::{ChunkSpec, LaneStats, RestoredLine, Role, Waiting};
use crate::tables::TableStats;
use fabric::{ChannelSetup, Mailbox, oneshot};
use proto_common::ids::{Epoch, Incarnation, Key, Rank};
use proto_common::message::{CheckpointOrder, InboxGrant, NotTaken};
use proto_common::tensor::RuleChange;
use std::sync::Arc;

/// A message to a lane's thread.
pub(super) enum LaneMessage {
    Attach {
        rank: Rank,
        incarnation: Incarnation,
        setup: ChannelSetup,
        inbox: WorkerInbox,
        reply: oneshot::Sender<Result<InboxGrant, String>>,
    },
    Assign {
        epoch: Epoch,
        specs: Vec<ChunkSpec>,
        reply: oneshot::Sender<Result<(), NotTaken>>,
    },
    ChangeRule {
        change: RuleChange,
        reply: oneshot::Sender<Result<(), NotTaken>>,
    },
    /// Workers that are there, and those that have left in good order. Channels of every other incarnation end, and rounds continue
    /// without it as the cluster's settings say. Comes before a channel of one of these incarnations is attached.
    Workers {
        epoch: Epoch,
        present: Arc<[(Rank, Incarnation)]>,
        left: Arc<[Rank]>,
    },
    /// A worker is to count: the first round of each tensor here in which it could.
    AskRounds {
        rank: Rank,
        incarnation: Incarnation,
        reply: oneshot::Sender<Vec<(Key, u64)>>,
    },
    /// From these rounds on a worker counts.
    CountFrom {
        rank: Rank,
        incarnation: Incarnation,
        rounds: Arc<[(Key, u64)]>,
    },
    /// A handler has answered a call, or let go of it.
    Answer {
        call: u64,
        answer: Option<Answer>,
    },
    /// A handler's journal has these calls over this lane.
    RestoreCalls {
        app: u32,
        lines: Vec<(RestoredLine, Vec<Answer>)>,
        reply: oneshot::Sender<Restored>,
    },
    /// The journal of a handler is lost, and with it its state.
    LoseCalls {
        app: u32,
    },
    /// A handler came or went.
    Handler {
        app: u32,
        handling: Handling,
    },
    /// All chunks of this lane that the server has a part in from this epoch on; others are given up. New ones are made as
    /// zeros (or, a copy, filled by its stream).
    Roles {
        epoch: Epoch,
        chunks: Vec<(ChunkSpec, Role)>,
        reply: oneshot::Sender<Result<(), NotTaken>>,
    },
    /// The channel to the same lane of a server that has copies of ours; `inbox` is what it granted.
    AttachStream {
        to: Rank,
        incarnation: Incarnation,
        /// Of the dial: what the lane says of this channel's end names it.
        number: u64,
        setup: ChannelSetup,
        inbox: InboxGrant,
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// The channel from the same lane of a server whose chunks we have copies of. Answered with our slots for it.
    AttachCopy {
        from: Rank,
        incarnation: Incarnation,
        setup: ChannelSetup,
        reply: oneshot::Sender<Result<InboxGrant, String>>,
    },
    /// Nobody wants the channel to that server's copies any more.
    EndStream {
        to: Rank,
    },
    /// That incarnation of a server has ended: its channels, both ways, are closed and fenced.
    EndServer {
        rank: Rank,
    },
    /// What the scheduler says of a checkpoint.
    Checkpoint(CheckpointOrder),
    /// There is room for copies of chunks again: it need only wake.
    SaveRoom,
    Report(oneshot::Sender<LaneReport>),
    /// Is this thread alive?
    Beat(oneshot::Sender<()>),
    Stop,
}

/// What a lane tells the control side without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "a name that says it all needs no sentence")]
pub enum LaneNews {
    /// All chunks that were being copied to a server, as of this epoch, are kept up there.
    Seeded { lane: u16, to: Rank, epoch: Epoch },
    /// The stream that the dial of this number had connected has ended.
    StreamDown { lane: u16, to: Rank, number: u64 },
}

/// What a lane tells about itself.
#[derive(Clone, Debug, Default)]
pub(super) struct LaneReport {
    pub(super) stats: LaneStats,
    /// Operations taken and not answered.
    pub(super) under_way: u64,
    pub(super) waits: Vec<Waiting>,
    pub(super) credits: (usize, usize),
    pub(super) spills: (usize, usize),
    pub(super) key_buffers: u32,
    /// Bytes of slots and spill blocks in quarantine, and workers that they wait for.
    pub(super) quarantined: (u64, Vec<Rank>),
    pub(super) stored_bytes: u64,
    pub(super) expelled: u64,
    /// Calls in progress or kept, and the bytes of their bodies.
    pub(super) calls: (u64, u64),
    pub(super) lent: Lent,
    pub(super) tables: TableStats,
    /// Chunks that a checkpoint under way waits for here, and the bytes of copies that all lanes have to write.
    pub(super) saving: (u64, u64),
}

/// The way back to a lane, for answers.
#[derive(Clone)]
pub(crate) struct Answers(pub(super) Mailbox<LaneMessage>);

impl std::fmt::Debug for Answers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Answers")
    }
}

impl Answers {
    /// False when the lane has ended.
    pub(crate) fn send(&self, call: u64, answer: Option<Answer>) -> bool {
        self.0.send(LaneMessage::Answer { call, answer })
    }
}

/// A lane's answer to the calls of a journal.
pub(crate) struct Restored {
    /// Each line's calls, as the lane numbers them; none of a line whose worker is another process by now.
    pub(crate) calls: Vec<Vec<u64>>,
    /// The way back.
    pub(crate) answers: Answers,
    /// Where replies are made.
    pub(crate) memory: ReplyMemory,
}

/// Sends a lane the news of handlers.
#[derive(Clone)]
pub(crate) struct HandlerNews(pub(super) Mailbox<LaneMessage>);

impl HandlerNews {
    pub(crate) fn send(&self, app: u32, handling: Handling) {
        // A lane that has ended need not know.
        let _ = self.0.send(LaneMessage::Handler { app, handling });
    }

    /// What the handler's journal has of calls over this lane. The answer does not come where the lane has ended.
    pub(crate) fn restore(
        &self,
        app: u32,
        lines: Vec<(RestoredLine, Vec<Answer>)>,
    ) -> oneshot::Receiver<Restored> {
        let (reply, restored) = oneshot::channel();
        let _ = self.0.send(LaneMessage::RestoreCalls { app, lines, reply });
        restored
    }

    /// The handler's journal is lost.
    pub(crate) fn lose(&self, app: u32) {
        let _ = self.0.send(LaneMessage::LoseCalls { app });
    }
}
