//! What a lane records of its operations, and what it says of those that were slow. It must not change what the lane does.

use super::op::Submission;
use crate::engine::PartBlock;
use crate::subject::{ranks, waited};
use daemon::flight::{Event, Flight, Kind, NOBODY, Recorder, Slow};
use proto_common::batch::{Block, OpKind};
use proto_common::ids::{ChunkId, Rank};
use proto_common::message::WaitCause;
use std::cell::Cell;
use std::fmt;
use std::io::Write as _;
use std::time::Instant;

/// The record of an operation that has ended. Times are the recorder's.
#[derive(Clone, Debug)]
pub(super) struct About {
    kind: OpKind,
    first: ChunkId,
    round: u64,
    bytes: u64,
    began_ns: u64,
    /// When a part of it left last.
    sent_ns: Cell<u64>,
    /// What the lane had waited for credits by then.
    credit_ns: u64,
}

/// See the module. The default one records nothing, and finds nothing slow.
#[derive(Debug, Default)]
pub(super) struct LaneFlight {
    recorder: Recorder,
    slow: Slow,
    /// For tensors' names.
    flight: Option<Flight>,
    lane: u16,
    /// Since when each server is asked for credits; 0: it is not.
    wants: Vec<u64>,
    /// For how long, all in all.
    credit_ns: u64,
    /// Who answered last.
    answered: u32,
}

impl LaneFlight {
    pub(super) fn new(flight: &Flight, lane: u16, servers: usize) -> Self {
        Self {
            recorder: flight.thread(format!("lane {lane}")),
            slow: flight.slow().clone(),
            flight: Some(flight.clone()),
            lane,
            wants: vec![0; servers],
            credit_ns: 0,
            answered: NOBODY,
        }
    }

    #[inline]
    pub(super) fn saw(&mut self, now: Instant) {
        self.recorder.saw(now);
    }

    /// Something has come: what follows from it is of this moment.
    #[inline]
    pub(super) fn look(&mut self) {
        self.recorder.look();
    }

    /// An operation begins.
    pub(super) fn begin(&self, submission: &Submission) -> About {
        About {
            kind: submission.submit.kind,
            first: submission.parts.first().map_or_else(ChunkId::default, |part| part.id),
            round: submission.submit.count.round(),
            bytes: submission.parts.iter().map(|part| part.bytes).sum(),
            began_ns: self.recorder.now_ns(),
            sent_ns: Cell::new(0),
            credit_ns: self.credit_ns,
        }
    }

    /// A part of it leaves.
    #[inline]
    pub(super) fn part_sent(&self, about: &About) {
        about.sent_ns.set(self.recorder.now_ns());
    }

    /// A batch leaves.
    pub(super) fn sent(&mut self, server: Rank, parts: &[PartBlock]) {
        if let Some(since) =
            self.wants.get_mut(server.0 as usize).map(std::mem::take).filter(|since| *since > 0)
        {
            self.credit_ns += self.recorder.now_ns().saturating_sub(since);
            self.recorder.since(since, Event { peer: server.0, ..Event::of(Kind::CreditWait) });
        }
        let first = parts.first().map(|part| part.block);
        let bytes = parts.iter().map(|part| part.block.bytes).sum();
        self.recorder.note(Event {
            kind: Kind::BatchSent,
            key: first.map_or(0, |block| block.id.key.0),
            chunk: first.map_or(0, |block| block.id.chunk.0),
            peer: server.0,
            round: first.map_or(0, |block| block.count.round()),
            bytes,
            extra: parts.len() as u64,
        });
    }

    /// A server is asked for credits, because there is something to send and none is left.
    pub(super) fn wants(&mut self, server: Rank) {
        let now_ns = self.recorder.now_ns().max(1);
        if let Some(since) = self.wants.get_mut(server.0 as usize).filter(|since| **since == 0) {
            *since = now_ns;
        }
    }

    /// Results have come.
    pub(super) fn answered(&mut self, server: Rank, blocks: &[Block]) {
        self.answered = server.0;
        let first = blocks.first();
        self.recorder.note(Event {
            key: first.map_or(0, |block| block.id.key.0),
            chunk: first.map_or(0, |block| block.id.chunk.0),
            peer: server.0,
            extra: blocks.len() as u64,
            ..Event::of(Kind::Answered)
        });
    }

    /// A channel has ended, and so many operations are under way.
    pub(super) fn peer(&mut self, kind: Kind, server: Rank, operations: usize) {
        self.recorder.note(Event { peer: server.0, extra: operations as u64, ..Event::of(kind) });
    }

    /// An operation has ended, well or badly.
    pub(super) fn done(&mut self, about: &About, failed: bool) {
        if self.flight.is_none() {
            return;
        }
        let took_ns = self.recorder.now_ns().saturating_sub(about.began_ns);
        let until_sent_ns = match about.sent_ns.get() {
            0 => took_ns,
            sent_ns => sent_ns.saturating_sub(about.began_ns),
        };
        let event = Event {
            kind: Kind::Operation,
            key: about.first.key.0,
            chunk: u32::try_from(until_sent_ns / 1_000).unwrap_or(u32::MAX),
            // Whoever answered last answered something else.
            peer: if failed { NOBODY } else { self.answered },
            round: about.round,
            bytes: about.bytes,
            extra: about.kind as u64,
        };
        self.recorder.since(about.began_ns, event);
        if self.slow.is_slow(took_ns / 1_000_000) {
            self.say_slow(about, failed, (took_ns, until_sent_ns));
        }
    }

    /// An operation waits for workers that have not done something.
    pub(super) fn waits(&self, about: &About, waited_ms: u64, cause: WaitCause, on: &[Rank]) {
        let Some(flight) = &self.flight else { return };
        let Some(left_out) = flight.waits().may_speak() else { return };
        let why = match cause {
            WaitCause::Readers => "to read older weights to the end",
            WaitCause::Bound => "to catch up",
            _ => "to contribute",
        };
        let operation = format!("{} of {}", name_of(about.kind), flight.label(about.first.key));
        warn(&waiting(&operation, waited_ms, &ranks("worker", on, "other workers"), why, left_out));
    }

    fn say_slow(&self, about: &About, failed: bool, (took_ns, until_sent_ns): (u64, u64)) {
        let Some(left_out) = self.slow.count() else { return };
        let called = |flight: &Flight| flight.called(about.first.key);
        let tensor = self.flight.as_ref().map_or_else(String::new, called);
        let in_ms = |ns: u64| ns / 1_000_000;
        let took_ms = in_ms(took_ns);
        let waited = Waited {
            what: name_of(about.kind),
            took_ms,
            sent_ms: (about.sent_ns.get() != 0 || !failed).then(|| in_ms(until_sent_ns)),
            credit_ms: in_ms((self.credit_ns - about.credit_ns).min(until_sent_ns)),
            last: Some(self.answered).filter(|last| !failed && *last != NOBODY),
            failed,
        };
        let (lane, round, bytes) = (self.lane, about.round, about.bytes);
        tracing::warn!(tensor, lane, round, bytes, took_ms, left_out, "an operation was slow: {waited}");
    }
}

/// What a slow operation waited for.
#[derive(Clone, Copy, Debug)]
struct Waited {
    what: &'static str,
    took_ms: u64,
    /// Until it was sent; none where it never was.
    sent_ms: Option<u64>,
    credit_ms: u64,
    /// Who answered last.
    last: Option<u32>,
    failed: bool,
}

impl fmt::Display for Waited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, took_ms, sent_ms, credit_ms, last, failed } = *self;
        let Some(sent_ms) = sent_ms else {
            return write!(f, "{what} was not sent for {took_ms} ms ({credit_ms} ms for credits); it failed");
        };
        let (answer_ms, until) =
            (took_ms - sent_ms, if failed { "it was last sent" } else { "all of it was sent" });
        write!(
            f,
            "{what} waited {sent_ms} ms until {until} ({credit_ms} ms for credits), and {answer_ms} ms for the answer"
        )?;
        match last {
            _ if failed => f.write_str("; it failed"),
            Some(last) => {
                write!(
                    f,
                    "; server {last} answered last, and its log names the worker or server that it waited for"
                )
            }
            None => Ok(()),
        }
    }
}

fn name_of(kind: OpKind) -> &'static str {
    match kind {
        OpKind::Push => "a push",
        OpKind::Pull => "a pull",
        OpKind::PushPull => "a push_pull",
        OpKind::Init => "an initial value",
        OpKind::Call => "a call",
        _ => "an operation",
    }
}

/// The warning's text. `left_out` is how many other waits it stands for.
pub(crate) fn waiting(operation: &str, waited_ms: u64, on: &str, why: &str, left_out: u64) -> String {
    let others = match left_out {
        0 => String::new(),
        1 => " (as does one other operation)".into(),
        many => format!(" (as do {many} other operations)"),
    };
    format!(
        "{operation} has waited {} for {on} {why}{others}. Members that are alive are waited for (deadlines.busy_ms)",
        waited(waited_ms)
    )
}

/// Logs a warning. A program without logging, such as most scripts in Python, gets it on stderr.
pub(crate) fn warn(text: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::warn!("{text}");
    } else {
        // There is nobody to report a failure to.
        let _ = writeln!(std::io::stderr(), "gradwire: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_server_is_named_for_what_failed() {
        let went = Waited {
            what: "a push",
            took_ms: 900,
            sent_ms: Some(200),
            credit_ms: 150,
            last: Some(3),
            failed: false,
        };
        let words = "a push waited 200 ms until all of it was sent (150 ms for credits), and 700 ms for the answer; \
                     server 3 answered last, and its log names the worker or server that it waited for";
        assert_eq!(went.to_string(), words);
        let failed = Waited { last: None, failed: true, ..went };
        let words = "a push waited 200 ms until it was last sent (150 ms for credits), and 700 ms for the answer; it failed";
        assert_eq!(failed.to_string(), words);
        let unsent = Waited { sent_ms: None, ..failed };
        assert_eq!(unsent.to_string(), "a push was not sent for 900 ms (150 ms for credits); it failed");
        let unknown = Waited { last: None, ..went };
        assert!(unknown.to_string().ends_with("700 ms for the answer"), "{unknown}");
    }

    #[test]
    fn it_names_operation_members_and_setting() {
        let text =
            |left_out| waiting("a push of tensor \"w\"", 30_000, "workers 0, 2", "to contribute", left_out);
        assert_eq!(
            text(0),
            "a push of tensor \"w\" has waited 30 s for workers 0, 2 to contribute. Members that are alive are waited for (deadlines.busy_ms)"
        );
        assert!(text(1).contains("to contribute (as does one other operation). "));
        assert!(text(7).contains("to contribute (as do 7 other operations). "));
    }
}
