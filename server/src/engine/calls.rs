//! Calls of workers to handlers: which are taken, in which order handlers get them, what is answered and how long that is
//! kept. Per worker and handler they are first in, first out, and each is handed over once: a replay after a broken channel
//! is told what the call was told. Owns the lines of workers to handlers and the bytes that are kept for them. Bytes and handlers'
//! threads are the runtime's business.
//!
//! ```text
//!  take ─▶ Fetching ──arrived──▶ Ready ──those before it are whole──▶ Delivered ──answered──▶ Answered ──acknowledged──▶ over
//!             │  ▲                 │                                    │   │                    │   ▲
//!             │  │                 │                                    │   └── tick: deadline ──┤   │
//!             ├──┼─────────────────┴──── failed, or tick: deadline ─────┼────────────────────────┘   │
//!             │  │                                                      │                            │
//!             │  └───── a replay of a reply that was not kept ──────────┼────────────────────────────┘
//!             └──── peer_down, returned: its worker sends it again ◀────┘
//! ```
//!
//! If a call behind one that is still being read were delivered first, a handler would see a worker's calls out of order.

mod lines;
mod restored;

use super::command::{Command, Commands, ResultBlock, Source};
use super::inputs::BatchContext;
use super::peers::Peers;
use super::stats::LaneStats;
use super::waiting::{CallWaits, Waiting};
pub use lines::CallAnswer;
pub(super) use lines::Calls;
use lines::{Entry, Stage};
use proto_common::batch::{Block, BlockData, Count, Landing, OpKind, Status};
use proto_common::call::{CALLS_IN_FLIGHT_MAX, called};
use proto_common::element::Dtype;
use proto_common::ids::{Incarnation, Operation, Rank};
use proto_common::message::WaitCause;
use proto_common::table::table_of;
pub use restored::RestoredLine;

/// A worker whose reply waits for room asks again when it has room, before the call's deadline, or says that it gives up. Where it
/// does neither, its reply is kept so long, and at least until that deadline.
const ROOM_WITHIN_MS: u64 = 30_000;

/// What the rest of the lane lends for one input: the results of workers, the counters and the commands.
#[derive(Debug)]
pub(super) struct Desk<'a> {
    pub(super) peers: &'a mut Peers,
    pub(super) stats: &'a mut LaneStats,
    pub(super) out: &'a mut Commands,
}

impl Desk<'_> {
    /// The call must be sent again.
    fn retry(&mut self, peer: Rank, block: &Block) {
        self.stats.retries += 1;
        self.peers.send_back(peer, block, Status::Retry, Vec::new());
    }
}

impl Calls {
    /// Bytes of requests and replies that this lane keeps at most.
    pub(super) fn limit(&mut self, bytes: u64) {
        self.most_bytes = bytes;
    }

    /// Calls in progress or kept.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Bytes of calls that are kept.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A handler came or went: the error of calls whose deadline passes says so.
    pub(super) fn set_handler(&mut self, app: u32, is_there: bool) {
        if is_there {
            self.handlers.insert(app);
        } else {
            self.handlers.remove(&app);
        }
    }

    /// A call in a batch. False when the worker is to be expelled for it.
    pub(super) fn take(
        &mut self,
        batch: &BatchContext<'_>,
        block: &Block,
        now_ms: u64,
        desk: &mut Desk<'_>,
    ) -> bool {
        let peer = batch.peer;
        let mut expel = |reason: &str| {
            desk.out.expel(peer, reason);
            false
        };
        let (Some((app, _)), BlockData::Inline { offset }) = (called(block.id), block.data) else {
            return expel("its call names no handler, or is not in its batch");
        };
        let operation = block.operation.0;
        let is_known = matches!(block.status, Status::None | Status::Corrupt | Status::Again);
        if block.view || operation == 0 || !is_known {
            return expel("its call has invalid fields");
        }
        if !self.may_begin(app) {
            Self::turn_away(peer, block, desk);
            return true;
        }
        if self.line(peer, app).is_none() {
            desk.peers.send_back(peer, block, Status::Refused, Vec::new());
            return true;
        }
        if !self.acknowledge(peer, app, block.first_open.0) {
            return expel("it acknowledged a call that was not answered");
        }
        let Some(line) = self.line(peer, app) else { return true };
        if operation < line.acked || operation >= line.acked.saturating_add(CALLS_IN_FLIGHT_MAX) {
            return expel("it has more calls in flight than allowed");
        }
        let slot = batch.slot.slot;
        let from = Source::Slot { slot, offset: batch.header.payload_offset.saturating_add(offset) };
        if operation < line.next {
            self.repeated_call(peer, app, block, from, now_ms, desk);
        } else if operation > line.next {
            desk.retry(peer, block);
        } else {
            self.fresh_call(peer, app, block, from, now_ms, desk);
        }
        true
    }

    fn fresh_call(
        &mut self,
        peer: Rank,
        app: u32,
        block: &Block,
        from: Source,
        now_ms: u64,
        desk: &mut Desk<'_>,
    ) {
        let total = block.count.body_bytes();
        let refused = match block.status {
            // Given up by its worker, whose number it uses up.
            Status::Corrupt => Some(Status::Refused),
            _ if total > self.most_bytes => Some(Status::WrongShape),
            _ => self.refuses(app, block),
        };
        let bytes = self.needed(block);
        if refused.is_none() && !self.has_room(bytes, peer, block, desk) {
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        let entry = Entry {
            id,
            named: block.id,
            operation: block.operation.0,
            stage: Stage::Fetching,
            bytes: if refused.is_none() { bytes } else { 0 },
            token: block.token,
            landing: block.landing,
            since_ms: now_ms,
            deadline_ms: now_ms.saturating_add(u64::from(block.timeout_ms)),
            is_landing: false,
            awaits_room: false,
            room_until_ms: None,
            runs_again: false,
            is_asked: true,
        };
        let Some(line) = self.line(peer, app) else { return };
        line.next += 1;
        line.entries.push_back(entry);
        self.bytes = self.bytes.saturating_add(entry.bytes);
        self.by_id.insert(id, (peer, app, entry.operation));
        match refused {
            Some(status) => self.end(id, CallAnswer::failed(status), desk),
            None => {
                desk.stats.calls += 1;
                desk.out.push(self.taken(id, peer, app, from, block));
            }
        }
    }

    /// Is there room for a call, or was it returned to the worker?
    fn has_room(&mut self, bytes: u64, peer: Rank, block: &Block, desk: &mut Desk<'_>) -> bool {
        let fits = block.count.body_bytes() <= self.most_bytes && self.make_room(bytes, desk.peers);
        if !fits {
            desk.stats.retries += 1;
            desk.peers.send_back(peer, block, Status::CallRoom, Vec::new());
        }
        fits
    }

    /// The same call again: over a new channel, with room for its reply, or because its worker has given it up.
    fn repeated_call(
        &mut self,
        peer: Rank,
        app: u32,
        block: &Block,
        from: Source,
        now_ms: u64,
        desk: &mut Desk<'_>,
    ) {
        desk.stats.duplicates += 1;
        let entry = self.lines.get_mut(&(peer, app)).and_then(|line| line.find(block.operation.0));
        let Some(entry) = entry else {
            desk.peers.send_back(peer, block, Status::NoReply, Vec::new());
            return;
        };
        (entry.token, entry.landing) = (block.token, block.landing);
        entry.deadline_ms = now_ms.saturating_add(u64::from(block.timeout_ms));
        let (id, stage, is_landing) = (entry.id, entry.stage, entry.is_landing);
        let was_asked = std::mem::replace(&mut entry.is_asked, true);
        match stage {
            Stage::Answered(_) if is_landing => desk.peers.uncount_operations(peer, 1),
            Stage::Answered(_) if block.status == Status::Corrupt => {
                self.let_go(id, Status::Refused, desk);
                self.send_result(id, desk);
            }
            Stage::Answered(_) if entry.runs_again => self.run_again(id, peer, app, block, from, desk),
            Stage::Answered(_) => self.send_result(id, desk),
            // It replaces itself; or it is the first of this process, of a call that an earlier one had.
            _ => desk.peers.uncount_operations(peer, usize::from(was_asked)),
        }
    }

    /// A call whose reply was not kept is sent again. It needs its room as a new one does.
    fn run_again(&mut self, id: u64, peer: Rank, app: u32, block: &Block, from: Source, desk: &mut Desk<'_>) {
        let bytes = self.needed(block);
        let Some((_, _, entry)) = self.entry(id) else { return };
        let before = std::mem::take(&mut entry.bytes);
        self.bytes = self.bytes.saturating_sub(before);
        if !self.has_room(bytes, peer, block, desk) {
            return;
        }
        self.bytes += bytes;
        if let Some((_, _, entry)) = self.entry(id) {
            (entry.stage, entry.bytes) = (Stage::Fetching, bytes);
        }
        desk.out.push(self.taken(id, peer, app, from, block));
    }

    /// A call's body is whole: the answer to `Command::CallTake`.
    pub(super) fn arrived(&mut self, id: u64, desk: &mut Desk<'_>) {
        let Some((rank, app, entry)) = self.entry(id) else { return };
        if entry.stage == Stage::Fetching {
            entry.stage = Stage::Ready;
        }
        self.deliver(rank, app, desk.out);
    }

    /// A handler has answered a call, or let go of it.
    pub(super) fn answered(&mut self, id: u64, answer: CallAnswer, desk: &mut Desk<'_>) {
        self.end_delivered(id, answer, false, desk);
    }

    /// As [`Calls::answered`], of a reply whose body was written to its landing already. It is not kept, and the
    /// call changes nothing: a replay runs it again, and then sees what later calls have changed.
    pub(super) fn placed(&mut self, id: u64, answer: CallAnswer, desk: &mut Desk<'_>) {
        self.end_delivered(id, answer, true, desk);
    }

    fn end_delivered(&mut self, id: u64, answer: CallAnswer, is_placed: bool, desk: &mut Desk<'_>) {
        match self.entry(id) {
            Some((_, _, entry)) if entry.stage == Stage::Delivered => {
                let has_place = entry.landing.is_some_and(|landing| landing.bytes >= answer.body_bytes);
                entry.runs_again = is_placed && has_place;
                self.end(id, answer, desk);
            }
            // Too late: its worker was told something else, or has gone.
            _ => desk.out.push(Command::CallDrop { call: id }),
        }
    }

    /// Where a delivered call's reply may be written.
    pub(super) fn landing(&mut self, id: u64) -> Option<Landing> {
        let (_, _, entry) = self.entry(id)?;
        entry.landing.filter(|_| entry.stage == Stage::Delivered)
    }

    /// A delivered call's body can be read no more, because its channel has ended, and nothing was done: the worker sends it
    /// again, with those after it.
    pub(super) fn returned(&mut self, id: u64) {
        let Some((rank, app, entry)) = self.entry(id) else { return };
        if entry.stage != Stage::Delivered || entry.put_back() {
            return;
        }
        let operation = entry.operation;
        let Some(line) = self.lines.get_mut(&(rank, app)) else { return };
        let at = line.entries.partition_point(|entry| entry.operation < operation);
        line.next = operation;
        let returned: Vec<Entry> = line.entries.drain(at..).collect();
        returned.iter().for_each(|entry| self.forget(entry));
    }

    fn end(&mut self, id: u64, answer: CallAnswer, desk: &mut Desk<'_>) {
        let Some((_, _, entry)) = self.entry(id) else { return };
        let (before, is_kept) = (std::mem::take(&mut entry.bytes), !entry.runs_again);
        self.bytes = self.bytes.saturating_sub(before);
        // The reply is there already, so to refuse it would free nothing. Older ones make way, as far as their workers have them.
        let kept = if is_kept { answer.kept_bytes() } else { 0 };
        self.make_room(kept, desk.peers);
        let Some((_, _, entry)) = self.entry(id) else { return };
        (entry.stage, entry.bytes) = (Stage::Answered(answer), kept);
        self.bytes = self.bytes.saturating_add(kept);
        if kept > 0 {
            self.keep(id);
        }
        desk.stats.answers += 1;
        self.send_result(id, desk);
    }

    /// A reply that nobody will take any more: its call is answered with this from now on.
    fn let_go(&mut self, id: u64, status: Status, desk: &mut Desk<'_>) {
        let Some((_, _, entry)) = self.entry(id) else { return };
        let bytes = std::mem::take(&mut entry.bytes);
        entry.stage = Stage::Answered(CallAnswer::failed(status));
        (entry.is_landing, entry.awaits_room) = (false, false);
        self.bytes = self.bytes.saturating_sub(bytes);
        desk.out.push(Command::CallDrop { call: id });
    }

    /// Says how a call ended, when its reply is where it has a place.
    fn send_result(&mut self, id: u64, desk: &mut Desk<'_>) {
        let Some((peer, _, entry)) = self.entry(id).filter(|(.., entry)| entry.is_asked) else { return };
        let Stage::Answered(answer) = entry.stage else { return };
        let room = entry.landing.filter(|landing| landing.bytes >= answer.body_bytes);
        let is_placed = entry.runs_again;
        let landing = if answer.is_inline() && !is_placed { None } else { room };
        entry.awaits_room = answer.status == Status::Done && !answer.is_inline() && landing.is_none();
        match landing {
            Some(landing) if !is_placed => {
                entry.is_landing = true;
                let landing = Landing { bytes: answer.body_bytes, ..landing };
                desk.out.push(Command::CallLand { peer, call: id, landing });
            }
            landing => self.push(id, landing, desk),
        }
    }

    /// All of a reply is on its way to where it has room, or cannot be sent: the answer to `Command::CallLand`.
    pub(super) fn landed(&mut self, id: u64, is_sent: bool, desk: &mut Desk<'_>) {
        let Some((_, _, entry)) = self.entry(id).filter(|(.., entry)| entry.is_landing) else { return };
        entry.is_landing = false;
        let landing = entry.landing;
        match is_sent {
            true => self.push(id, landing, desk),
            false => {
                self.let_go(id, Status::NoMemory, desk);
                self.push(id, None, desk);
            }
        }
    }

    /// A call's body cannot be had, because there is no memory for it here.
    pub(super) fn failed(&mut self, id: u64, desk: &mut Desk<'_>) {
        let Some((rank, app, entry)) = self.entry(id) else { return };
        if entry.stage == Stage::Fetching {
            self.end(id, CallAnswer::failed(Status::NoMemory), desk);
            desk.out.push(Command::CallDrop { call: id });
            self.deliver(rank, app, desk.out);
        }
    }

    fn push(&mut self, id: u64, landing: Option<Landing>, desk: &mut Desk<'_>) {
        let Some((peer, _, entry)) = self.entry(id) else { return };
        let Stage::Answered(answer) = entry.stage else { return };
        let status = if entry.awaits_room { Status::ReplyRoom } else { answer.status };
        let bytes = match (status, landing) {
            (Status::Done, None) => answer.prefix_bytes() + answer.body_bytes,
            (Status::Done, Some(_)) => answer.prefix_bytes(),
            _ => 0,
        };
        let block = Block {
            status,
            count: Count::Body(answer.body_bytes),
            bytes,
            landing: landing.map(|_| Landing { region: 0, offset: 0, bytes: answer.body_bytes }),
            token: entry.token,
            ..Block::bare(entry.named, OpKind::Call, Dtype::F32, Operation(entry.operation))
        };
        let result = ResultBlock { block, place: None, missing: Vec::new(), call: (bytes > 0).then_some(id) };
        desk.peers.push(peer, result);
    }

    /// Calls that were taken and are not answered, with whose they are and for which handler.
    fn unanswered(&self) -> impl Iterator<Item = (Rank, u32, &Entry)> {
        let lines = self.lines.iter();
        let all = lines.flat_map(|((rank, app), line)| line.entries.iter().map(|entry| (*rank, *app, entry)));
        all.filter(|(.., entry)| !matches!(entry.stage, Stage::Answered(_)))
    }

    pub(super) fn open(&self) -> usize {
        self.unanswered().count()
    }

    /// The call that waits longest, for people.
    pub(super) fn oldest(&self, now_ms: u64) -> Option<Waiting> {
        let (rank, app, entry) = self.unanswered().min_by_key(|(.., entry)| entry.since_ms)?;
        let call = match entry.stage {
            Stage::Fetching => CallWaits::Body,
            Stage::Ready => CallWaits::Turn,
            _ if self.handlers.contains(&app) || table_of(app).is_some() => CallWaits::Answer,
            _ => CallWaits::Handler,
        };
        let waited_ms = now_ms.saturating_sub(entry.since_ms);
        Some(Waiting {
            chunk: entry.named,
            rank,
            round: 0,
            waited_ms,
            cause: WaitCause::Handler,
            on: Vec::new(),
            call: Some(call),
        })
    }

    /// Calls whose deadline is over are answered.
    pub(super) fn tick(&mut self, now_ms: u64, desk: &mut Desk<'_>) {
        let lines = self.lines.iter().flat_map(|((_, app), line)| line.entries.iter().map(|e| (*app, e)));
        let late = lines
            .filter(|(_, entry)| entry.deadline_ms <= now_ms && !matches!(entry.stage, Stage::Answered(_)));
        let late: Vec<_> = late.map(|(app, entry)| (app, entry.id, entry.stage)).collect();
        let mut ended = Vec::new();
        for (app, id, stage) in late {
            desk.stats.deadlines += 1;
            let has_handler = self.handlers.contains(&app) || table_of(app).is_some();
            let status = if has_handler { Status::DeadlineWaiting } else { Status::NoHandler };
            match stage {
                Stage::Delivered => desk.out.push(Command::CallCancel { call: id }),
                // Its body is counted no more, so it is let go of.
                _ => desk.out.push(Command::CallDrop { call: id }),
            }
            if let Some((_, _, entry)) = self.entry(id) {
                entry.runs_again = false;
            }
            self.end(id, CallAnswer::failed(status), desk);
            ended.extend(self.by_id.get(&id).map(|(rank, app, _)| (*rank, *app)));
        }
        // They may be what others waited for, whose deadline is not over.
        ended.into_iter().for_each(|(rank, app)| self.deliver(rank, app, desk.out));
        self.tick_rooms(now_ms, desk);
    }

    /// Replies that their workers should have asked for long ago are kept no longer.
    fn tick_rooms(&mut self, now_ms: u64, desk: &mut Desk<'_>) {
        let mut late = Vec::new();
        let entries = self.lines.values_mut().flat_map(|line| &mut line.entries);
        for entry in entries.filter(|entry| entry.awaits_room) {
            let until_ms = now_ms.saturating_add(ROOM_WITHIN_MS).max(entry.deadline_ms);
            if *entry.room_until_ms.get_or_insert(until_ms) <= now_ms {
                late.push(entry.id);
            }
        }
        late.into_iter().for_each(|id| self.let_go(id, Status::NoReply, desk));
    }

    /// A worker's channel is closed: calls that no handler has will be sent again.
    pub(super) fn peer_down(&mut self, rank: Rank) {
        let mut dropped = Vec::new();
        for (_, line) in self.lines.iter_mut().filter(|((of, _), _)| *of == rank) {
            line.entries.iter_mut().for_each(|entry| _ = entry.put_back());
            let undelivered = |entry: &Entry| matches!(entry.stage, Stage::Fetching | Stage::Ready);
            // Handlers get them in order: these are the last ones, but for some that a deadline ended.
            let Some(at) = line.entries.iter().position(undelivered) else { continue };
            line.next = line.entries[at].operation;
            dropped.extend(line.entries.drain(at..));
        }
        let lines = self.lines.iter_mut().filter(|((of, _), _)| *of == rank);
        lines.for_each(|(_, line)| {
            // The next channel counts what is asked over it.
            line.entries.iter_mut().for_each(|entry| (entry.is_landing, entry.is_asked) = (false, false));
        });
        dropped.iter().for_each(|entry| self.forget(entry));
    }

    /// A worker's channel is up. Of another life of it nothing is kept.
    pub(super) fn peer_up(&mut self, rank: Rank, incarnation: Incarnation) {
        let (life, _) = self.lives.entry(rank).or_default();
        if *life == incarnation {
            return;
        }
        self.lives.insert(rank, (incarnation, 0));
        let mut dropped = Vec::new();
        self.lines.retain(|(of, _), line| {
            if *of == rank {
                dropped.extend(line.entries.drain(..));
            }
            *of != rank
        });
        dropped.iter().for_each(|entry| self.forget(entry));
    }

    /// The runtime hears which calls are over.
    pub(super) fn report_gone(&mut self, out: &mut Commands) {
        out.list.extend(self.gone.drain(..).map(|call| Command::CallDrop { call }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::batch::{BatchHeader, BatchKind, SlotGrant};
    use proto_common::call::call_id;
    use proto_common::ids::{Epoch, JobId, Lane};

    #[derive(Debug)]
    struct Rig {
        calls: Calls,
        peers: Peers,
        stats: LaneStats,
    }

    impl Rig {
        fn new() -> Self {
            let (calls, mut peers) = (Calls::default(), Peers::new(1, 4));
            peers.up(Rank(0), Incarnation(1), &[SlotGrant { slot: 0, generation: 1 }], false);
            Self { calls, peers, stats: LaneStats::default() }
        }

        /// What an input makes the machine want, and how it answers.
        fn with<T>(&mut self, input: impl FnOnce(&mut Calls, &mut Desk<'_>) -> T) -> (T, Vec<Command>) {
            let mut out = Commands::default();
            let mut desk = Desk { peers: &mut self.peers, stats: &mut self.stats, out: &mut out };
            let answer = input(&mut self.calls, &mut desk);
            (answer, out.list)
        }

        fn call(&mut self, operation: u64) -> (bool, Vec<Command>) {
            let header = BatchHeader {
                kind: BatchKind::Request,
                lane: Lane(0),
                wanted: 0,
                sender: Rank(0),
                job: JobId(1),
                epoch: Epoch::default(),
                sender_incarnation: Incarnation(1),
                receiver_incarnation: Incarnation(2),
                sequence: 1,
                payload_offset: 0,
                payload_bytes: 0,
                payload_checksum: None,
            };
            let bare = Block::bare(call_id(5, Rank(0)), OpKind::Call, Dtype::F32, Operation(operation));
            let block =
                Block { count: Count::Body(8), bytes: 8, timeout_ms: 100, first_open: Operation(1), ..bare };
            let slot = SlotGrant { slot: 0, generation: 1 };
            let batch = BatchContext { peer: Rank(0), slot, header: &header, blocks: &[], grants: &[] };
            self.with(|calls, desk| calls.take(&batch, &block, 0, desk))
        }
    }

    #[test]
    fn a_handler_gets_calls_in_order_and_a_deadline_lets_those_behind_go() {
        let mut rig = Rig::new();
        for operation in [1, 2, 3] {
            assert!(
                matches!(rig.call(operation), (true, taken) if matches!(taken[..], [Command::CallTake(_)]))
            );
        }
        let deliver = |call| Command::CallDeliver { call };
        assert_eq!(rig.with(|calls, desk| calls.arrived(2, desk)).1, [], "the first one is being read");
        assert_eq!(rig.with(|calls, desk| calls.arrived(1, desk)).1, [deliver(1), deliver(2)]);
        assert_eq!((rig.calls.len(), rig.calls.open()), (3, 3));
        let answer = CallAnswer { status: Status::Done, head_bytes: 0, body_bytes: 4 };
        assert_eq!(rig.with(|calls, desk| calls.answered(1, answer, desk)).1, []);
        assert!(rig.peers.has_unsent(Rank(0), 1), "its worker is told");
        assert_eq!(
            rig.with(|calls, desk| calls.answered(1, answer, desk)).1,
            [Command::CallDrop { call: 1 }]
        );
        let late = rig.with(|calls, desk| calls.tick(100, desk)).1;
        assert_eq!(late.len(), 2, "one that the handler has, and one whose body is being read: {late:?}");
        assert_eq!((rig.calls.open(), rig.stats.deadlines), (0, 2));
    }

    #[test]
    fn what_no_handler_has_comes_again_over_a_new_channel_and_another_process_begins_anew() {
        let mut rig = Rig::new();
        rig.calls.peer_up(Rank(0), Incarnation(1));
        (1..=2).for_each(|operation| assert!(rig.call(operation).0));
        rig.with(|calls, desk| calls.arrived(1, desk));
        rig.calls.peer_down(Rank(0));
        let gone = rig.with(|calls, desk| calls.report_gone(desk.out)).1;
        assert_eq!(gone, [Command::CallDrop { call: 2 }], "the handler has the first one");
        assert!(matches!(rig.call(2).1[..], [Command::CallTake(_)]));
        rig.calls.peer_up(Rank(0), Incarnation(9));
        assert_eq!((rig.calls.len(), rig.calls.bytes()), (0, 0));
    }
}
