//! What happened, for failure reports and for proving that a run repeats: a ring of the last events and a
//! hash over all of them. Owns no behaviour of the network.

use std::collections::VecDeque;

/// Kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum What {
    Connect,
    Expose,
    Write,
    Read,
    Full,
    Land,
    Received,
    Again,
    Served,
    Done,
    Lost,
    Dropped,
    Refused,
    Closed,
    Disconnected,
    Partition,
    Heal,
    Crash,
    Break,
    Late,
    Passed,
}

impl What {
    /// Name of the subject, of the event and of its two figures.
    fn words(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Self::Connect => ("channel", "connect", "peer", "node"),
            Self::Expose => ("channel", "expose", "bytes", ""),
            Self::Write => ("channel", "write", "bytes", "id"),
            Self::Read => ("channel", "read", "bytes", "id"),
            Self::Full => ("channel", "full", "unfinished", "notices"),
            Self::Land => ("channel", "land", "offset", "bytes"),
            Self::Received => ("channel", "received", "immediate", ""),
            Self::Again => ("channel", "duplicate received", "immediate", "bytes"),
            Self::Served => ("channel", "read served", "offset", "bytes"),
            Self::Done => ("channel", "done", "id", ""),
            Self::Lost => ("channel", "lost", "attempt", "partitioned"),
            Self::Dropped => ("channel", "dropped", "bytes", ""),
            Self::Refused => ("channel", "refused", "offset", "bytes"),
            Self::Closed => ("channel", "closed", "still under way", ""),
            Self::Disconnected => ("channel", "disconnected", "reason", ""),
            Self::Partition => ("node", "partition", "node", ""),
            Self::Heal => ("node", "heal", "node", ""),
            Self::Crash => ("node", "crash", "", ""),
            Self::Break => ("node", "break", "node", ""),
            Self::Late => ("channel", "late copy after its close", "offset", "bytes"),
            Self::Passed => ("channel", "passed the gate", "immediate", ""),
        }
    }
}

#[derive(Debug)]
enum Entry {
    Event { at_us: u64, what: What, subject: u32, a: u64, b: u64 },
    Note { at_us: u64, text: String },
}

/// Longest note kept.
const NOTE_BYTES_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Trace {
    last: VecDeque<Entry>,
    keep: usize,
    hash: u64,
    events: u64,
}

impl Trace {
    pub(super) fn new(keep: usize) -> Self {
        Self {
            last: VecDeque::with_capacity(keep.min(1 << 16)),
            keep,
            hash: 0xCBF2_9CE4_8422_2325,
            events: 0,
        }
    }

    fn mix(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
    }

    fn keep(&mut self, entry: Entry) {
        self.events += 1;
        if self.keep == 0 {
            return;
        }
        if self.last.len() >= self.keep {
            self.last.pop_front();
        }
        self.last.push_back(entry);
    }

    pub(super) fn event(&mut self, at_us: u64, what: What, subject: u32, a: u64, b: u64) {
        self.mix(at_us);
        self.mix(u64::from(what as u8) << 32 | u64::from(subject));
        self.mix(a);
        self.mix(b);
        self.keep(Entry::Event { at_us, what, subject, a, b });
    }

    pub(super) fn note(&mut self, at_us: u64, text: &str) {
        self.mix(at_us);
        self.mix(text.len() as u64);
        text.bytes().for_each(|byte| self.mix(u64::from(byte)));
        let text = text.chars().take(NOTE_BYTES_MAX).collect();
        self.keep(Entry::Note { at_us, text });
    }

    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn events(&self) -> u64 {
        self.events
    }

    /// The last events as text, oldest first; `label` names a channel.
    pub(super) fn lines(&self, label: impl Fn(u32) -> String, node: impl Fn(u32) -> String) -> Vec<String> {
        let line = |entry: &Entry| match entry {
            Entry::Note { at_us, text } => format!("{at_us:>10} us  note: {text}"),
            Entry::Event { at_us, what, subject, a, b } => {
                let (kind, name, first, second) = what.words();
                let subject = if kind == "node" { node(*subject) } else { label(*subject) };
                let mut line = format!("{at_us:>10} us  {subject}: {name}");
                for (word, figure) in
                    [(first, a), (second, b)].into_iter().filter(|(word, _)| !word.is_empty())
                {
                    line.push_str(&format!(" {word}={figure}"));
                }
                line
            }
        };
        self.last.iter().map(line).collect()
    }
}
