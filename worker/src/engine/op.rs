//! Operations in progress on a lane. Owns how many parts an operation waits for, and what is reported of it. It must not know where its
//! parts are.
//!
//! ```text
//!             end_part, each with its version           the last one
//!  submit ──▶ remaining: 1.. ───────────────────────▶ remaining: 0 ──▶ end: Landed, Late, Done
//!                   │ fail: the first failure is reported               ▲
//!                   └── failed: it still waits for its parts            │
//!                            └── end_early: no server has its buffers ──┘
//! ```
//!
//! If a failed operation ended before its parts had, its buffers would be used for something else while a server may still read or
//! write them.

use super::command::{Command, Commands};
use super::part::Submit;
use super::stats::LaneStats;
use crate::call_fault::CallFault;
use crate::error::OpError;
use crate::subject::Subject;
use proto_common::batch::OpKind;
use proto_common::call::called;
use proto_common::ids::{ChunkId, Key, Rank};

/// A server answers at the operation's deadline; it is given this long to do so.
pub(super) const GRACE_MS: u64 = 1_000;

/// The last reason that a server has given why it could not take a part yet.
#[derive(Clone, Debug)]
pub(super) enum Told {
    /// It waits for these ranks: at most [`proto_common::limits::RANKS_LISTED_MAX`].
    Waits { chunk: ChunkId, missing: Vec<Rank> },
    /// It does not have the chunk.
    Elsewhere { chunk: ChunkId, server: Rank },
}

/// Who owes an operation answers.
#[derive(Debug)]
pub(super) struct Owing {
    pub(super) key: Key,
    pub(super) servers: Vec<Rank>,
    /// Those that have no channel.
    pub(super) down: Vec<Rank>,
    /// The servers of all parts have recently reported why they wait.
    pub(super) all_told: bool,
    /// Of a call that waits for the next process of its server: its handler and that server.
    pub(super) next_process: Option<(u32, Rank)>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Op {
    pub(super) submit: Submit,
    pub(super) since_ms: u64,
    /// Since when it has its present time, and that time.
    period: (u64, u64),
    remaining: u32,
    /// The least among its parts.
    version: u64,
    /// Parts that came too late for their round.
    late: u32,
    /// Bytes that landed and the newest version, where servers say how many: of dynamic tensors.
    landed: Option<(u64, u64)>,
    failed: bool,
    /// Its end has been reported.
    over: bool,
    /// Why a server could not take a part. Boxed, because most operations have none.
    told: Option<Box<Told>>,
}

impl Op {
    pub(super) fn new(submit: Submit, parts: u32, now_ms: u64) -> Self {
        let (version, since_ms, remaining) = (u64::MAX, now_ms, parts);
        let period = (now_ms, u64::from(submit.timeout_ms));
        Self {
            submit,
            since_ms,
            period,
            remaining,
            version,
            late: 0,
            landed: None,
            failed: false,
            over: false,
            told: None,
        }
    }

    pub(super) fn is_call(&self) -> bool {
        self.submit.kind == OpKind::Call
    }

    /// Has it an initial value?
    pub(super) fn sets(&self) -> bool {
        self.submit.kind == OpKind::Init
    }

    pub(super) fn waited_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.since_ms)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Has its end been reported? Its caller has its buffers back.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Reports the operation's first failure; later ones are not reported.
    pub(super) fn fail(&mut self, error: OpError, stats: &mut LaneStats, out: &mut Commands) {
        if !std::mem::replace(&mut self.failed, true) {
            stats.failed += 1;
            out.list.push(Command::Failed { op: self.submit.op, error });
        }
    }

    /// A server said why it cannot take a part.
    pub(super) fn tell(&mut self, told: Told) {
        self.told = Some(Box::new(told));
    }

    /// A part came too late for its round.
    pub(super) fn was_late(&mut self) {
        self.late += 1;
    }

    /// So many bytes of a part landed, of this version.
    pub(super) fn landed(&mut self, bytes: u64, version: u64) {
        let (before, newest) = self.landed.unwrap_or_default();
        self.landed = Some((before.saturating_add(bytes), newest.max(version)));
    }

    /// A part has ended. True if it was the last one.
    pub(super) fn end_part(&mut self, version: u64) -> bool {
        self.remaining -= 1;
        self.version = self.version.min(version);
        self.remaining == 0
    }

    /// It has failed, and no server uses its buffers: it ends before its parts. What remains of them are numbers (`lane/kept.rs`).
    pub(super) fn end_early(&mut self, now_ms: u64, stats: &mut LaneStats, out: &mut Commands) {
        self.version = 0;
        self.end(now_ms, stats, out);
    }

    /// All parts have ended. Reported once.
    pub(super) fn end(&mut self, now_ms: u64, stats: &mut LaneStats, out: &mut Commands) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let op = self.submit.op;
        stats.ended(self.is_call(), self.failed, self.version);
        if self.submit.kind.contributes() {
            stats.longest_ms = stats.longest_ms.max(self.waited_ms(now_ms));
        }
        if let Some((bytes, newest)) = self.landed {
            out.list.push(Command::Landed { op, bytes, newest });
        }
        if self.late > 0 {
            out.list.push(Command::Late { op, chunks: self.late });
        }
        out.list.push(Command::Done { op, version: self.version });
    }

    /// It waits for workers that are busy: it has as much time again, but not after `busy_ms`. False if that has passed.
    pub(super) fn extend(&mut self, now_ms: u64) -> bool {
        let left_ms = self.submit.busy_ms.saturating_sub(self.waited_ms(now_ms));
        let extends = !self.failed && left_ms > 0;
        if extends {
            self.period = (now_ms, left_ms.min(u64::from(self.submit.timeout_ms)));
        }
        extends
    }

    /// The time that it has left, for its servers.
    pub(super) fn left_ms(&self, now_ms: u64) -> u32 {
        let (since_ms, time_ms) = self.period;
        u32::try_from(time_ms.saturating_sub(now_ms.saturating_sub(since_ms))).unwrap_or(u32::MAX)
    }

    /// Workers that its servers wait for before they can take it.
    pub(super) fn awaited(&self) -> Option<Vec<Rank>> {
        match self.told.as_deref() {
            Some(Told::Waits { missing, .. }) if !self.is_call() => Some(missing.clone()),
            _ => None,
        }
    }

    /// Has its deadline passed without an answer?
    pub(super) fn is_overdue(&self, now_ms: u64) -> bool {
        let (since_ms, time_ms) = self.period;
        !self.failed && now_ms >= since_ms + time_ms + GRACE_MS
    }

    /// The error of its deadline: what servers said last, or else the servers that have not answered.
    pub(super) fn overdue(&mut self, owing: Owing, now_ms: u64) -> OpError {
        let Owing { key, servers, down, all_told, next_process } = owing;
        let (subject, waited_ms) = (Subject::default(), self.waited_ms(now_ms));
        if let Some((app, server)) = next_process {
            return OpError::Call { app, server, waited_ms, fault: CallFault::ServerDied };
        }
        match self.told.take().filter(|_| all_told).map(|told| *told) {
            // Its server had no room for it.
            Some(Told::Waits { chunk, .. }) if self.is_call() => {
                let (app, server) = called(chunk).unwrap_or_default();
                OpError::Call { app, server, waited_ms, fault: CallFault::Crowded }
            }
            Some(Told::Waits { chunk, missing }) => {
                OpError::Deadline { subject, chunk, round: self.submit.count.round(), waited_ms, missing }
            }
            Some(Told::Elsewhere { chunk, server }) => {
                OpError::Elsewhere { subject, chunk, server, waited_ms }
            }
            None if !down.is_empty() => OpError::Unconnected { subject, key, servers: down, waited_ms },
            None => OpError::NoAnswer { subject, key, servers, waited_ms },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::submit;
    use super::*;

    #[test]
    fn an_operation_ends_with_its_last_part_and_fails_once() {
        let (mut stats, mut out) = (LaneStats::default(), Commands::default());
        let mut op = Op::new(submit(OpKind::PushPull, 1), 2, 10);
        op.was_late();
        op.landed(8, 3);
        op.landed(4, 2);
        for reason in ["first", "second"] {
            op.fail(OpError::Closed(reason.into()), &mut stats, &mut out);
        }
        assert_eq!([op.end_part(5), op.end_part(4)], [false, true]);
        op.end(30, &mut stats, &mut out);
        let first = OpError::Closed("first".into());
        let commands = [
            Command::Failed { op: 0, error: first },
            Command::Landed { op: 0, bytes: 12, newest: 3 },
            Command::Late { op: 0, chunks: 1 },
            Command::Done { op: 0, version: 4 },
        ];
        assert_eq!((&out.list[..], stats.failed, stats.longest_ms), (&commands[..], 1, 20));
    }

    #[test]
    fn the_error_of_a_deadline_is_what_servers_said_lately_or_else_who_did_not_answer() {
        let error = |all_told, down: Vec<Rank>| {
            let mut op = Op::new(submit(OpKind::Push, 1), 1, 0);
            op.tell(Told::Elsewhere { chunk: ChunkId::new(1, 0), server: Rank(2) });
            let due_ms = u64::from(op.submit.timeout_ms) + GRACE_MS;
            assert!(!op.is_overdue(due_ms - 1) && op.is_overdue(due_ms));
            let (servers, next_process) = (vec![Rank(2)], None);
            op.overdue(Owing { key: Key(1), servers, down, all_told, next_process }, due_ms)
        };
        assert!(matches!(error(true, vec![]), OpError::Elsewhere { server: Rank(2), .. }));
        assert!(matches!(error(false, vec![Rank(2)]), OpError::Unconnected { .. }));
        assert!(matches!(error(false, vec![]), OpError::NoAnswer { .. }));
    }
}
