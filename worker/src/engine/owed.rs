//! Who owes answers to operations in progress: for the errors of late ones, and for people.

use super::lane::{GRACE_MS, LaneEngine};
use super::part::{Part, State};
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
    /// True if, for every unanswered part, its server has said within `GRACE_MS` which ranks it waits for. A server that has not
    /// may be stuck itself.
    pub(super) fn all_told(&self, op: u32) -> bool {
        let lately = |part: &Part| part.told_ms.is_some_and(|told| self.now_ms < told + GRACE_MS);
        self.parts.iter().filter(|(_, part)| part.op == op).all(|(_, part)| lately(part))
    }

    pub(super) fn owing(&self, op: u32) -> (Vec<Rank>, Key) {
        let mut servers: Vec<Rank> = Vec::new();
        let mut key = Key(0);
        for (_, part) in self.parts.iter().filter(|(_, part)| part.op == op) {
            key = part.spec.id.key;
            if !servers.contains(&part.spec.server) {
                servers.push(part.spec.server);
            }
        }
        servers.sort_unstable();
        (servers, key)
    }

    /// Servers that have not answered for all of an operation.
    pub fn servers_of(&self, op: u64) -> Vec<Rank> {
        let index = self.ops.iter().find(|(_, of)| of.submit.op == op).map(|(index, _)| index);
        index.map_or_else(Vec::new, |index| self.owing(index).0)
    }

    /// The operation that waits longest, for people.
    #[must_use]
    pub fn oldest(&self, now_ms: u64) -> Option<OldestOp> {
        let (index, op) = self.ops.iter().min_by_key(|(_, op)| op.since_ms)?;
        let (servers, key) = self.owing(index);
        let what = match op.submit.kind {
            OpKind::Push => "push",
            OpKind::Pull => "pull",
            OpKind::PushPull => "push_pull",
            OpKind::Init => "init",
            OpKind::Release => "release",
            OpKind::Call => "call",
            OpKind::CopyCheck | OpKind::CopyUpdate | OpKind::CopyState | OpKind::CopyRules => "record",
        };
        let cause = self.cause(index, &servers);
        Some(OldestOp { key, what, waited_ms: now_ms.saturating_sub(op.since_ms), servers, cause })
    }

    /// What keeps an operation: a connection that is not there, before slots that are not, before answers.
    fn cause(&self, op: u32, servers: &[Rank]) -> (WaitCause, Vec<Rank>) {
        let link = |server: &Rank| self.links.get(server.0 as usize);
        let lacks_slots = |server: &&Rank| {
            let mut parts =
                self.parts.iter().filter(|(_, part)| part.op == op && part.spec.server == **server);
            link(server).is_some_and(|link| link.credits.is_empty())
                && parts.any(|(_, part)| part.state == State::Queued)
        };
        let is_down = |server: &&Rank| link(server).is_none_or(|link| !link.up);
        let first = |ranks: Vec<Rank>| Some(ranks).filter(|ranks| !ranks.is_empty());
        let few = |ranks: &mut dyn Iterator<Item = &Rank>| ranks.take(RANKS_LISTED_MAX).copied().collect();
        if let Some(down) = first(few(&mut servers.iter().filter(is_down))) {
            return (WaitCause::Links, down);
        }
        if let Some(full) = first(few(&mut servers.iter().filter(lacks_slots))) {
            return (WaitCause::Credits, full);
        }
        (WaitCause::Answers, few(&mut servers.iter()))
    }
}
