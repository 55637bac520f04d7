//! Who owes answers to operations in progress: for the errors of late ones, and for people.

use super::LaneEngine;
use crate::engine::link::Link;
use crate::engine::op::{GRACE_MS, Owing};
use crate::engine::part::{Part, State};
use proto_common::batch::OpKind;
use proto_common::ids::{Key, Rank};
use proto_common::limits::RANKS_LISTED_MAX;
use proto_common::message::WaitCause;

/// The operation that waits longest, for `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldestOp {
    /// Its tensor.
    pub key: Key,
    /// What it does, for people.
    pub what: &'static str,
    /// Milliseconds it waits.
    pub waited_ms: u64,
    /// Servers that owe an answer.
    pub servers: Vec<Rank>,
    /// Why it waits, and for which of them.
    pub cause: (WaitCause, Vec<Rank>),
}

impl LaneEngine {
    /// Who owes an operation answers. A server that has not said within [`GRACE_MS`] which ranks it waits for may be stuck itself.
    pub(super) fn owing(&self, op: u32) -> Owing {
        let mut owing =
            Owing { key: Key(0), servers: Vec::new(), down: Vec::new(), all_told: true, next_process: None };
        for (_, part) in self.parts.iter().filter(|(_, part)| part.op == op) {
            owing.key = part.spec.id.key;
            owing.next_process = self.next_process(part);
            owing.all_told &= part.told_ms.is_some_and(|told| self.now_ms < told + GRACE_MS);
            if !owing.servers.contains(&part.spec.server) {
                owing.servers.push(part.spec.server);
            }
        }
        owing.servers.sort_unstable();
        let is_up = |server: &Rank| self.links.get(server.0 as usize).is_some_and(Link::is_up);
        owing.down = owing.servers.iter().copied().filter(|server| !is_up(server)).collect();
        owing
    }

    /// Servers that have not answered for all of an operation.
    pub fn servers_of(&self, op: u64) -> Vec<Rank> {
        let index = self.ops.iter().find(|(_, of)| of.submit.op == op).map(|(index, _)| index);
        index.map_or_else(Vec::new, |index| self.owing(index).servers)
    }

    /// The operation that waits longest, for people.
    #[must_use]
    pub fn oldest(&self, now_ms: u64) -> Option<OldestOp> {
        let (index, op) =
            self.ops.iter().filter(|(_, op)| !op.is_over()).min_by_key(|(_, op)| op.since_ms)?;
        let Owing { key, servers, down, .. } = self.owing(index);
        let what = match op.submit.kind {
            OpKind::Push => "push",
            OpKind::Pull => "pull",
            OpKind::PushPull => "push_pull",
            OpKind::Init => "init",
            OpKind::Release => "release",
            OpKind::Call => "call",
            OpKind::CopyCheck | OpKind::CopyUpdate | OpKind::CopyState | OpKind::CopyRules => "record",
        };
        let cause = self.cause(index, &servers, down);
        Some(OldestOp { key, what, waited_ms: op.waited_ms(now_ms), servers, cause })
    }

    /// What keeps an operation: a connection that is not there, before slots that are not, before answers.
    fn cause(&self, op: u32, servers: &[Rank], mut down: Vec<Rank>) -> (WaitCause, Vec<Rank>) {
        if !down.is_empty() {
            down.truncate(RANKS_LISTED_MAX);
            return (WaitCause::Links, down);
        }
        let has_credits = |server: &Rank| self.links.get(server.0 as usize).is_none_or(Link::has_credits);
        let waits =
            |part: &Part, server| part.op == op && part.spec.server == server && part.state == State::Queued;
        let lacks_slots =
            |server: &&Rank| !has_credits(server) && self.parts.iter().any(|(_, part)| waits(part, **server));
        let few = |ranks: &mut dyn Iterator<Item = &Rank>| ranks.take(RANKS_LISTED_MAX).copied().collect();
        let full: Vec<Rank> = few(&mut servers.iter().filter(lacks_slots));
        match full.is_empty() {
            true => (WaitCause::Answers, few(&mut servers.iter())),
            false => (WaitCause::Credits, full),
        }
    }
}
