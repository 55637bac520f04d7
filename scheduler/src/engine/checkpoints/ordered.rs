//! Checkpoints that operators request. Servers report their rounds, and a round is chosen that none of them has reached. If a server
//! reaches that round before it receives the order, a later round is chosen. It must not know how parts become a checkpoint.

use super::{ASKERS_MAX, Asker, Checkpoints, Command, Wanted, answer, order};
use crate::engine::command::{deadline_ms, send_to};
use crate::engine::member::ConnectionId;
use proto_common::ids::{Epoch, Rank};
use proto_common::message::{CheckpointOrder, FromScheduler, SaveError, SaveProgress, Waits};
use std::collections::BTreeMap;

const AHEAD_MAX: u64 = 1 << 20;
/// Operators that wait for one. Each keeps a connection that members could have: fewer than there are places for strangers.
pub(in super::super) const OPERATORS_MAX: usize = 64;

impl Checkpoints {
    /// An operator asks for one. `not_now` says why the job takes no order.
    pub(in super::super) fn order(
        &mut self,
        from: ConnectionId,
        (now_ms, timeout_ms): (u64, u64),
        not_now: Option<&str>,
        out: &mut Vec<Command>,
    ) {
        let deadline_ms = deadline_ms(now_ms, timeout_ms);
        let asker = Asker { connection: from, is_operator: true, request: 0, since_ms: now_ms, deadline_ms };
        let is_full = || self.askers() >= ASKERS_MAX || self.operators().count() >= OPERATORS_MAX;
        let refused = match not_now {
            _ if !self.has_place => SaveError::NoPlace,
            Some(why) => SaveError::NotNow(why.into()),
            None if is_full() => {
                SaveError::NotNow("too many clients wait for checkpoints; retry later".into())
            }
            None => {
                self.ordered.askers.push(asker);
                self.ordered.told = SaveProgress::default();
                return;
            }
        };
        answer(&[asker], &Err(refused), out);
    }

    /// Begins what is to be begun, as soon as it can be.
    pub(in super::super) fn go_on(&mut self, epoch: Epoch, wanted: &Wanted<'_>, out: &mut Vec<Command>) {
        self.begin_queued(epoch, wanted, out);
        self.ask_servers(wanted, out);
    }

    /// Asks servers how far they are, where somebody waits for that and nothing else is being written.
    fn ask_servers(&mut self, wanted: &Wanted<'_>, out: &mut Vec<Command>) {
        let is_idle = self.ordered.asked.is_none() && self.pending.is_empty() && self.queued.is_empty();
        if is_idle && !self.ordered.askers.is_empty() {
            self.ordered.asked = Some(BTreeMap::new());
            order(&wanted.servers, CheckpointOrder::Where, out);
        }
    }

    /// A lane says how far it is.
    pub(super) fn at(
        &mut self,
        from: Rank,
        (lane, newest, waits): (u16, u64, Option<Waits>),
        epoch: Epoch,
        wanted: &Wanted<'_>,
        out: &mut Vec<Command>,
    ) {
        if lane >= wanted.lanes {
            return;
        }
        self.ordered.newest = self.ordered.newest.max(newest);
        for (round, pending) in self.pending.iter_mut().filter(|(_, pending)| !pending.is_complete) {
            pending.hear((from, lane), waits.filter(|waits| waits.round == *round));
        }
        let Some(asked) = &mut self.ordered.asked else { return };
        asked.insert((from, lane), newest);
        if asked.len() < wanted.servers.len() * usize::from(wanted.lanes) {
            return;
        }
        let newest = asked.values().max().copied().unwrap_or(0);
        self.ordered.asked = None;
        // One that began by itself meanwhile is waited for.
        if self.ordered.askers.is_empty() || !self.pending.is_empty() {
            return;
        }
        let round = newest.saturating_add(self.ordered.ahead);
        let askers = std::mem::take(&mut self.ordered.askers);
        if self.is_stopped(round, &askers, out) {
            return;
        }
        self.begin(round, false, epoch, wanted, out);
        let pending = self.pending.entry(round).or_default();
        (pending.askers, pending.is_ordered) = (askers, true);
    }

    /// A server had gone on past a round before it heard of it.
    pub(super) fn past(
        &mut self,
        from: Rank,
        (round, newest): (u64, u64),
        wanted: &Wanted<'_>,
        out: &mut Vec<Command>,
    ) {
        let Some(pending) = self.pending.get_mut(&round) else { return };
        if pending.is_ordered {
            self.ordered.askers.append(&mut pending.askers);
            self.ordered.ahead = (2 * self.ordered.ahead).min(AHEAD_MAX);
        }
        let why = format!("server {from} was already at round {newest}");
        self.fail(round, &why, &wanted.servers, out);
        self.ask_servers(wanted, out);
    }

    /// Answers those whose checkpoint has not even begun by their deadline.
    pub(super) fn expire_ordered(&mut self, now_ms: u64, all: &[(Rank, u16)], out: &mut Vec<Command>) {
        let (late, left) = self.ordered.askers.drain(..).partition(|asker| asker.deadline_ms <= now_ms);
        self.ordered.askers = left;
        let late: Vec<Asker> = late;
        for asker in late {
            let waited_ms = now_ms.saturating_sub(asker.since_ms);
            let other = self.pending.iter().next();
            let silent = |asked: &BTreeMap<(Rank, u16), u64>| {
                let silent = all.iter().filter(|part| !asked.contains_key(part));
                let mut servers: Vec<String> = silent.map(|(server, _)| server.to_string()).collect();
                servers.dedup();
                servers.truncate(8);
                format!("servers {} have not reported their progress", servers.join(", "))
            };
            let why = match (other, &self.ordered.asked) {
                (Some((round, _)), _) => format!("the checkpoint of round {round} is still being written"),
                (None, Some(asked)) => silent(asked),
                (None, None) => "servers are joining or leaving".into(),
            };
            answer(&[asker], &Err(SaveError::NotBegun { waited_ms, why }), out);
        }
    }

    /// Operators hear how it goes, when it has gone on.
    pub(in super::super) fn tell_progress(&mut self, parts_expected: u64, out: &mut Vec<Command>) {
        let ordered = self.pending.iter().find(|(_, pending)| pending.is_ordered);
        let now = SaveProgress {
            round: ordered.map(|(round, _)| *round),
            newest: self.ordered.newest,
            parts: ordered.map_or(0, |(_, pending)| pending.parts.len() as u64),
            parts_expected,
        };
        let askers = ordered.map_or(&self.ordered.askers, |(_, pending)| &pending.askers);
        if now == self.ordered.told || askers.is_empty() {
            return;
        }
        let mut to: Vec<ConnectionId> = askers.iter().map(|asker| asker.connection).collect();
        to.dedup();
        out.push(send_to(to, FromScheduler::CheckpointGoes(now)));
        self.ordered.told = now;
    }

    /// Connections of operators that wait for one.
    fn operators(&self) -> impl Iterator<Item = ConnectionId> {
        let begun = self.pending.values().flat_map(|pending| &pending.askers);
        let all = self.ordered.askers.iter().chain(begun);
        all.filter(|asker| asker.is_operator).map(|asker| asker.connection)
    }

    /// Is it an operator's that waits for one?
    pub(in super::super) fn is_awaited_by(&self, connection: ConnectionId) -> bool {
        self.operators().any(|operator| operator == connection)
    }

    /// No worker contributes any more: what is under way takes chunks as they are. True where there is something to wait for.
    pub(in super::super) fn pass(&mut self, servers: &[ConnectionId], out: &mut Vec<Command>) -> bool {
        self.refuse_orders("all workers are done", out);
        for (round, _) in self.pending.iter().filter(|(_, pending)| !pending.is_complete) {
            order(servers, CheckpointOrder::Passed { round: *round }, out);
        }
        self.is_writing()
    }

    /// Is anything under way, or to be begun?
    pub(in super::super) fn is_writing(&self) -> bool {
        !self.pending.is_empty()
    }
}
