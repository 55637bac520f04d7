//! The timeline as a document in Chrome's trace event format, which Perfetto reads, too: a process for each of ours, a row for
//! what each data thread does, rows beside it for what lasts while it does other things.

use super::clocks::Axis;
use super::collect::{Found, Source};
use daemon::flight::{Event, Extent, Kind, NOBODY, Stamp, Timed};
use proto_common::batch::OpKind;
use proto_common::ids::Role;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};

/// Arrows from a worker's operation to the round that it was in.
const ARROWS_MAX: usize = 4096;
/// Threads' numbers: a lane's own row, and rows beside it by what they show.
const TIDS_PER_LANE: u64 = 1_000;
const CONTROL_TID: u64 = 1;

/// Rows of one kind beside each other: what does not fit is shown otherwise.
const ROWS_MAX: usize = 64;

/// The document, and what it has.
#[derive(Debug)]
pub(super) struct Timeline {
    pub(super) text: String,
    pub(super) events: usize,
    pub(super) span_ns: i128,
}

/// Rows of one kind on one thread, by when each is free again. A viewer shows only spans on one row that lie within one another.
#[derive(Debug, Default)]
struct Rows(Vec<i128>);

impl Rows {
    /// The first row that is free then; none where all are taken. Spans come by their beginning.
    fn place(&mut self, start_ns: i128, end_ns: i128) -> Option<usize> {
        if let Some(row) = self.0.iter().position(|free_ns| *free_ns <= start_ns) {
            self.0[row] = end_ns;
            return Some(row);
        }
        if self.0.len() == ROWS_MAX {
            return None;
        }
        self.0.push(end_ns);
        Some(self.0.len() - 1)
    }
}

/// A tensor and a round of it.
type Round = (u64, u64);
/// Where an arrow begins or ends: process, thread, and when.
type Place = (u64, u64, i128);

/// Events before they are sorted, each with when it is.
struct Writer<'a> {
    axis: &'a Axis,
    names: &'a BTreeMap<u64, String>,
    zero_ns: i128,
    events: Vec<(u64, u64, i128, Value)>,
    threads: BTreeMap<(u64, u64), String>,
    /// Ends of rounds at servers, and begins of workers' contributions, by tensor and round.
    rounds: HashMap<Round, Vec<Place>>,
    pushes: Vec<(Round, Place)>,
    async_id: u64,
}

pub(super) fn of(found: &Found, axis: &Axis) -> Timeline {
    let names: BTreeMap<u64, String> =
        found.sources.iter().flat_map(|source| source.dump.names.clone()).collect();
    let (mut first_ns, mut last_ns) = (i128::MAX, i128::MIN);
    for source in &found.sources {
        for (start_ns, end_ns) in times(source, axis) {
            (first_ns, last_ns) = (first_ns.min(start_ns), last_ns.max(end_ns));
        }
    }
    let zero_ns = if first_ns == i128::MAX { 0 } else { first_ns };
    let mut writer = Writer {
        axis,
        names: &names,
        zero_ns,
        events: Vec::new(),
        threads: BTreeMap::new(),
        rounds: HashMap::new(),
        pushes: Vec::new(),
        async_id: 0,
    };
    let mut all = Vec::new();
    for (source, pid) in found.sources.iter().zip(1u64..) {
        writer.source(source, pid);
        all.extend(about_process(source, pid));
    }
    let events = writer.events.len();
    writer.arrows();
    all.extend(writer.threads.iter().flat_map(|((pid, tid), name)| about_thread(*pid, *tid, name)));
    writer.events.sort_by_key(|(pid, tid, start_ns, _)| (*pid, *tid, *start_ns));
    all.extend(writer.events.into_iter().map(|(_, _, _, event)| event));
    let processes: Vec<String> = found.sources.iter().map(Source::name).collect();
    let document = json!({
        "displayTimeUnit": "ms",
        "otherData": {
            "processes": processes,
            "clocks": axis.describe(),
            "begins_unix_ns": axis.wall_ns(zero_ns).to_string(),
            "left_out": found.missing,
            "made_by": concat!("gradwire ", env!("CARGO_PKG_VERSION")),
        },
        "traceEvents": all,
    });
    Timeline { text: document.to_string(), events, span_ns: (last_ns - zero_ns).max(0) }
}

/// When each event of a process begins and ends.
fn times(source: &Source, axis: &Axis) -> Vec<(i128, i128)> {
    let stamp = &source.dump.stamp;
    let rows = source.dump.threads.iter().flat_map(|thread| &thread.events).filter_map(Timed::from_row);
    let events = rows.map(|timed| {
        let start_ns = axis.place(stamp, timed.start_ns);
        (start_ns, start_ns + i128::from(timed.took_ns))
    });
    let notes = source.dump.notes.iter().map(|note| axis.place(stamp, note.at_ns)).map(|at| (at, at));
    events.chain(notes).collect()
}

fn about_process(source: &Source, pid: u64) -> [Value; 2] {
    let (dump, name) = (&source.dump, source.name());
    let order = match dump.role {
        Role::Scheduler => 0,
        Role::Server => 1 << 20,
        Role::Worker => 2 << 20,
    } + u64::from(dump.rank.unwrap_or(0));
    let kind = |what: &str, args: Value| json!({ "ph": "M", "ts": 0, "pid": pid, "tid": 0, "name": what, "args": args });
    [
        kind("process_name", json!({ "name": name, "os_pid": dump.pid, "reason": dump.reason })),
        kind("process_sort_index", json!({ "sort_index": order })),
    ]
}

fn about_thread(pid: u64, tid: u64, name: &str) -> [Value; 2] {
    let kind = |what: &str, args: Value| json!({ "ph": "M", "ts": 0, "pid": pid, "tid": tid, "name": what, "args": args });
    [kind("thread_name", json!({ "name": name })), kind("thread_sort_index", json!({ "sort_index": tid }))]
}

impl Writer<'_> {
    fn source(&mut self, source: &Source, pid: u64) {
        let dump = &source.dump;
        for (thread, number) in dump.threads.iter().zip(1u64..) {
            let tid = number * TIDS_PER_LANE;
            self.threads.insert((pid, tid), thread.name.clone());
            let mut events: Vec<Timed> = thread.events.iter().filter_map(Timed::from_row).collect();
            // Rows are filled by when spans begin, and they are recorded when they end.
            events.sort_by_key(|timed| timed.start_ns);
            let mut rows: BTreeMap<u64, Rows> = BTreeMap::new();
            for timed in &events {
                self.event((pid, tid, &thread.name), (dump.role, &dump.stamp), timed, &mut rows);
            }
        }
        if !dump.notes.is_empty() {
            self.threads.insert((pid, CONTROL_TID), "control".into());
        }
        for note in &dump.notes {
            let at_ns = self.axis.place(&dump.stamp, note.at_ns);
            let args = json!({ "text": note.text });
            self.put(
                (pid, CONTROL_TID),
                at_ns,
                json!({ "ph": "i", "s": "p", "name": note.what, "args": args }),
            );
        }
    }

    fn event(
        &mut self,
        (pid, tid, thread): (u64, u64, &str),
        (role, stamp): (Role, &Stamp),
        timed: &Timed,
        rows: &mut BTreeMap<u64, Rows>,
    ) {
        let (event, start_ns) = (&timed.event, self.axis.place(stamp, timed.start_ns));
        let end_ns = start_ns + i128::from(timed.took_ns);
        let name = self.name_of(event, role);
        let (category, args) = (category_of(event.kind), self.args_of(event, role));
        let took_us = timed.took_ns as f64 / 1e3;
        let span =
            |name: &str| json!({ "ph": "X", "dur": took_us, "name": name, "cat": category, "args": args });
        match event.kind.extent() {
            Extent::Moment => {
                let moment = json!({ "ph": "i", "s": "t", "name": name, "cat": category, "args": args });
                self.put((pid, tid), start_ns, moment);
            }
            Extent::Work => self.put((pid, tid), start_ns, span(&name)),
            Extent::Wait => {
                let own = 100 * (1 + event.kind as u64 % 9);
                match rows.entry(own).or_default().place(start_ns, end_ns) {
                    Some(row) => {
                        let row_tid = tid + own + row as u64;
                        let number = if row == 0 { String::new() } else { format!(" {}", row + 1) };
                        let called = || format!("{thread} {category}{number}");
                        self.threads.entry((pid, row_tid)).or_insert_with(called);
                        self.put((pid, row_tid), start_ns, span(&name));
                        self.note_flow(event, (pid, row_tid), (start_ns, end_ns));
                    }
                    None => self.beside((pid, tid), (start_ns, end_ns), (&name, category, args)),
                }
            }
        }
    }

    /// More at once than there are rows for: a pair of events, which a viewer places by itself.
    fn beside(
        &mut self,
        place: (u64, u64),
        (start_ns, end_ns): (i128, i128),
        (name, category, args): (&str, &str, Value),
    ) {
        self.async_id += 1;
        let id = self.async_id;
        let begin = json!({ "ph": "b", "id": id, "name": name, "cat": category, "args": args });
        self.put(place, start_ns, begin);
        self.put(place, end_ns, json!({ "ph": "e", "id": id, "name": name, "cat": category }));
    }

    fn put(&mut self, (pid, tid): (u64, u64), at_ns: i128, mut event: Value) {
        if let Value::Object(fields) = &mut event {
            fields.insert("pid".into(), pid.into());
            fields.insert("tid".into(), tid.into());
            fields.insert("ts".into(), self.ts(at_ns).into());
        }
        self.events.push((pid, tid, at_ns, event));
    }

    /// Microseconds since the first event.
    fn ts(&self, at_ns: i128) -> f64 {
        (at_ns - self.zero_ns) as f64 / 1e3
    }

    fn note_flow(&mut self, event: &Event, place: (u64, u64), (start_ns, end_ns): (i128, i128)) {
        let of = (event.key, event.round);
        match event.kind {
            Kind::Round => {
                self.rounds.entry(of).or_default().push((place.0, place.1, end_ns));
            }
            Kind::Operation if contributes(event.extra) => {
                self.pushes.push((of, (place.0, place.1, start_ns)));
            }
            _ => {}
        }
    }

    /// From each contribution to the end of the round of its tensor's that ended last.
    fn arrows(&mut self) {
        let pushes = std::mem::take(&mut self.pushes);
        let mut id = 0u64;
        for (of, (pid, tid, start_ns)) in pushes {
            let ends = self.rounds.get(&of).into_iter().flatten();
            let Some(end) = ends.max_by_key(|(.., end_ns)| *end_ns).copied() else { continue };
            if end.2 < start_ns || id == ARROWS_MAX as u64 {
                continue;
            }
            id += 1;
            let arrow = |ph: &str| json!({ "ph": ph, "id": id, "name": "in round", "cat": "round" });
            self.put((pid, tid), start_ns, arrow("s"));
            let mut head = arrow("f");
            head["bp"] = "e".into();
            // Within the round, which viewers look for it.
            self.put((end.0, end.1), (end.2 - 1).max(self.zero_ns), head);
        }
    }

    fn tensor(&self, key: u64) -> String {
        self.names.get(&key).cloned().unwrap_or_else(|| format!("key {key}"))
    }

    fn name_of(&self, event: &Event, role: Role) -> String {
        let peer = |what: &str, of: &str| match event.peer {
            NOBODY => what.to_owned(),
            rank => format!("{what} {of} {rank}"),
        };
        let other = if role == Role::Worker { "server" } else { "worker" };
        match event.kind {
            Kind::Operation => format!("{} {}", operation(event.extra), self.tensor(event.key)),
            Kind::BatchSent => peer("batch to", "server"),
            Kind::Answered => peer("answer of", "server"),
            Kind::CreditWait => peer("waits for credits of", "server"),
            Kind::ChannelDown => peer("channel lost:", other),
            Kind::ChannelUp => peer("channel:", other),
            Kind::BatchTaken => peer("batch of", "worker"),
            Kind::Contribution => peer("contribution of", "worker"),
            Kind::Reduce => "reduce".into(),
            Kind::Finish => "update".into(),
            Kind::Round => format!("{} chunk {} round {}", self.tensor(event.key), event.chunk, event.round),
            Kind::ResultsSent => peer("results to", "worker"),
            Kind::Waits => format!("waits for workers {}", ranks(event)),
            Kind::Spill => "spill".into(),
            Kind::Expel => peer("expelled:", "worker"),
            Kind::CopySent => peer("sum to", "server"),
            Kind::CopyConfirmed => peer("copy at", "server"),
            Kind::CheckpointCopy => "checkpoint copy".into(),
        }
    }

    fn args_of(&self, event: &Event, role: Role) -> Value {
        let mut args = Map::new();
        let mut put = |name: &str, value: Value| drop(args.insert(name.into(), value));
        let about_tensor =
            !matches!(event.kind, Kind::CreditWait | Kind::ChannelDown | Kind::ChannelUp | Kind::Expel);
        if about_tensor {
            put("tensor", self.tensor(event.key).into());
            put("round", event.round.into());
        }
        if about_tensor && event.kind != Kind::Operation {
            put("chunk", event.chunk.into());
        }
        if event.bytes > 0 && event.kind != Kind::Waits {
            put("bytes", event.bytes.into());
        }
        let in_ms = |us: u64| us as f64 / 1e3;
        match event.kind {
            Kind::Operation => {
                put("sent_after_ms", in_ms(event.chunk.into()).into());
                // Of one that failed nobody is the last who answered.
                if event.peer != NOBODY {
                    put("last_server", event.peer.into());
                }
            }
            Kind::Round => {
                put("last_worker", event.peer.into());
                put("came_after_ms", in_ms(event.extra).into());
            }
            Kind::Waits => {
                put("waited_ms", event.bytes.into());
                put("workers", ranks(event).into());
            }
            Kind::Finish => put("contributors", event.extra.into()),
            Kind::BatchSent | Kind::Answered | Kind::BatchTaken | Kind::ResultsSent => {
                put("blocks", event.extra.into());
            }
            Kind::ChannelDown if role == Role::Worker => put("operations_under_way", event.extra.into()),
            _ => {}
        }
        Value::Object(args)
    }
}

/// The ranks that are waited for, as far as an event has room for them.
fn ranks(event: &Event) -> String {
    let ranks: Vec<String> =
        (0..64).filter(|rank| event.extra >> rank & 1 == 1).map(|rank| rank.to_string()).collect();
    match (ranks.is_empty(), event.peer) {
        (true, NOBODY) => "none".into(),
        (true, rank) => format!("{rank} and others perhaps"),
        (false, _) => ranks.join(", "),
    }
}

fn contributes(op: u64) -> bool {
    u8::try_from(op).ok().and_then(OpKind::from_wire).is_some_and(OpKind::contributes)
}

fn operation(op: u64) -> &'static str {
    match u8::try_from(op).ok().and_then(OpKind::from_wire) {
        Some(OpKind::Push) => "push",
        Some(OpKind::Pull) => "pull",
        Some(OpKind::PushPull) => "push_pull",
        Some(OpKind::Init) => "init",
        Some(OpKind::Release) => "release",
        Some(OpKind::Call) => "call",
        _ => "operation",
    }
}

/// What rows beside a thread's own are called, too.
fn category_of(kind: Kind) -> &'static str {
    match kind {
        Kind::Operation => "operations",
        Kind::CreditWait => "credits",
        Kind::Round => "rounds",
        Kind::CopySent | Kind::CopyConfirmed => "copies",
        Kind::Reduce | Kind::Finish | Kind::Spill => "work",
        Kind::CheckpointCopy => "checkpoint",
        Kind::BatchSent | Kind::Answered | Kind::BatchTaken | Kind::Contribution | Kind::ResultsSent => {
            "traffic"
        }
        Kind::Waits => "waits",
        Kind::ChannelDown | Kind::ChannelUp | Kind::Expel => "channels",
    }
}

#[cfg(test)]
mod tests;
