//! Calls in a process that has taken the place of a failed one. Its workers send again what the earlier process had: what a handler's
//! journal has of that is not new, and what no journal has may have been handled.

use super::super::command::Command;
use super::Desk;
use super::lines::{CallAnswer, Calls, Entry, Fate, Line, Stage, TakenOver};
use proto_common::batch::{Block, Status};
use proto_common::ids::{ChunkId, Incarnation, Rank};
use proto_common::table::table_of;

/// The calls of one worker to one handler, as the handler's journal has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredLine {
    /// The worker.
    pub worker: Rank,
    /// Its process.
    pub life: Incarnation,
    /// As the worker names handler and server.
    pub named: ChunkId,
    /// The next call.
    pub next: u64,
    /// Calls before this one are known to be answered.
    pub acked: u64,
    /// In order: calls that are answered, and (none) those that the handler is given again.
    pub calls: Vec<(u64, Option<CallAnswer>)>,
}

impl Calls {
    /// This process has taken the place of a failed one. Calls to a handler wait at their workers until the handler is there: if they
    /// were taken before, a call that its journal has would be handled twice.
    pub(in crate::engine) fn take_over(&mut self) {
        self.taken_over = Some(TakenOver::default());
    }

    /// May calls to this handler be taken?
    pub(super) fn may_begin(&self, app: u32) -> bool {
        let Some(TakenOver(fates)) = &self.taken_over else { return true };
        self.handlers.contains(&app) || fates.contains_key(&app) || table_of(app).is_some()
    }

    /// Why a call that is new here must not be handled.
    pub(super) fn refuses(&self, app: u32, block: &Block) -> Option<Status> {
        let fate = self.taken_over.as_ref().and_then(|TakenOver(fates)| fates.get(&app));
        match (fate, block.status) {
            (Some(Fate::Lost), _) => Some(Status::StateLost),
            // Its journal would have it if it had been handled, unless the worker has kept nothing of it but its number.
            (Some(Fate::Restored), _) if block.bytes > 0 => None,
            (None, Status::None) => None,
            _ => Some(Status::NoReply),
        }
    }

    /// The state of a handler is lost: calls to it are refused, and those that were to be handled again have ended.
    pub(in crate::engine) fn lose(&mut self, app: u32, desk: &mut Desk<'_>) {
        self.taken_over.get_or_insert_default().0.insert(app, Fate::Lost);
        let lines = self.lines.iter().filter(|((_, of), _)| *of == app);
        let open = lines.flat_map(|(_, line)| &line.entries).filter(|entry| entry.stage == Stage::Delivered);
        let open: Vec<u64> = open.map(|entry| entry.id).collect();
        for id in open {
            desk.out.push(Command::CallCancel { call: id });
            self.end(id, CallAnswer::failed(Status::StateLost), desk);
        }
    }

    /// A call to a handler that is not there yet. It waits at its worker; at its deadline it ends, and its number is not used up.
    pub(super) fn turn_away(peer: Rank, block: &Block, desk: &mut Desk<'_>) {
        match block.timeout_ms {
            0 => desk.peers.send_back(peer, block, Status::NoHandler, Vec::new()),
            _ => desk.retry(peer, block),
        }
    }

    /// What a handler's journal has of its calls. Returns the numbers of each line's calls here, in their order; none of a line whose
    /// worker is another process by now.
    pub(in crate::engine) fn restore(
        &mut self,
        app: u32,
        lines: &[RestoredLine],
        now_ms: u64,
    ) -> Vec<Vec<u64>> {
        self.taken_over.get_or_insert_default().0.insert(app, Fate::Restored);
        lines.iter().map(|line| self.restore_line(app, line, now_ms)).collect()
    }

    fn restore_line(&mut self, app: u32, line: &RestoredLine, now_ms: u64) -> Vec<u64> {
        let RestoredLine { worker, life, named, next, acked, ref calls } = *line;
        let (of, _) = self.lives.entry(worker).or_insert((life, 0));
        let key = (worker, app);
        if *of != life || self.lines.contains_key(&key) || self.line(worker, app).is_none() {
            return Vec::new();
        }
        let mut entries = Line { next, acked, ..Line::default() };
        let mut ids = Vec::with_capacity(calls.len());
        for &(operation, answer) in calls {
            let id = self.next_id;
            self.next_id += 1;
            let bytes = answer.map_or(0, |answer| answer.kept_bytes());
            entries.entries.push_back(Entry {
                id,
                named,
                operation,
                stage: answer.map_or(Stage::Delivered, Stage::Answered),
                bytes,
                token: 0,
                landing: None,
                since_ms: now_ms,
                // Its worker says until when it waits.
                deadline_ms: u64::MAX,
                is_landing: false,
                awaits_room: false,
                room_until_ms: None,
                runs_again: false,
                is_asked: false,
            });
            self.bytes = self.bytes.saturating_add(bytes);
            self.by_id.insert(id, (worker, app, operation));
            if bytes > 0 {
                self.keep(id);
            }
            ids.push(id);
        }
        self.lines.insert(key, entries);
        ids
    }
}
