//! What processes say: lines from pipes to this process's stdout, stderr and log files. One thread writes,
//! so that a blocked terminal never blocks supervision; a bounded queue holds the pipes back instead.

use super::remote::STARTED_LINE;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Lines that wait for the terminal.
const LINES_MAX: usize = 1024;
/// Bytes of a line; longer ones are cut into several.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Milliseconds that a blocked terminal gets at the end.
const FLUSH_MS: u64 = 2_000;

/// Where lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Stdout,
    Stderr,
}

#[derive(Debug)]
struct Line {
    target: Target,
    bytes: Vec<u8>,
}

/// Last lines of a process that are told when it has failed.
const TAIL_LINES: usize = 5;
/// Bytes of each.
const TAIL_BYTES: usize = 512;

/// A log file of one process, shared by its two pipes.
pub(super) type LogFile = Arc<Mutex<File>>;

/// What a process said last, shared by its two pipes.
#[derive(Clone, Debug, Default)]
pub(super) struct Tail {
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl Tail {
    fn push(&self, line: &[u8]) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        lines.push_back(String::from_utf8_lossy(&line[..line.len().min(TAIL_BYTES)]).into_owned());
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// How the lines of one pipe are forwarded.
#[derive(Debug)]
pub(super) struct Way {
    /// In front of each line.
    pub(super) prefix: String,
    pub(super) target: Target,
    pub(super) log: Option<LogFile>,
    pub(super) tail: Tail,
    /// Set when another host says that the program there has started; that line is not shown.
    pub(super) started: Option<Arc<AtomicBool>>,
}

/// Hands lines to the writing thread.
#[derive(Clone, Debug)]
pub(super) struct Printer {
    lines: mpsc::Sender<Line>,
}

/// The writing thread.
#[derive(Debug)]
pub(super) struct PrinterThread {
    done: oneshot::Receiver<()>,
}

impl Printer {
    pub(super) fn start() -> io::Result<(Self, PrinterThread)> {
        let (lines, mut queue) = mpsc::channel::<Line>(LINES_MAX);
        let (finished, done) = oneshot::channel();
        thread::Builder::new().name("output".into()).spawn(move || {
            while let Some(line) = queue.blocking_recv() {
                // A closed stdout or stderr must not end the job.
                let _ = match line.target {
                    Target::Stdout => write_out(&mut io::stdout().lock(), &line.bytes),
                    Target::Stderr => write_out(&mut io::stderr().lock(), &line.bytes),
                };
            }
            let _ = finished.send(());
        })?;
        Ok((Self { lines }, PrinterThread { done }))
    }

    /// The launcher's own words.
    pub(super) async fn say(&self, text: &str) {
        self.line(Target::Stderr, format!("[launch] {text}\n").into_bytes()).await;
    }

    /// A line of stderr as it is.
    pub(super) async fn pass(&self, line: Vec<u8>) {
        self.line(Target::Stderr, line).await;
    }

    async fn line(&self, target: Target, bytes: Vec<u8>) {
        // The thread lives as long as there is a printer.
        let _ = self.lines.send(Line { target, bytes }).await;
    }
}

impl PrinterThread {
    /// Waits until everything is written, but not for ever: the reader may have stopped reading.
    pub(super) async fn finish(self) {
        let _ = timeout(Duration::from_millis(FLUSH_MS), self.done).await;
    }
}

fn write_out(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
}

/// Forwards a pipe line by line until it ends.
pub(super) async fn forward(pipe: impl AsyncRead + Unpin, mut way: Way, printer: Printer) {
    let mut reader = BufReader::new(pipe);
    let mut line = Vec::new();
    while let Ok(more) = read_line(&mut reader, &mut line).await {
        if let Some(started) = way.started.take_if(|_| line == STARTED_LINE) {
            started.store(true, Ordering::Release);
            line.clear();
        } else if !line.is_empty() {
            let bytes = [way.prefix.as_bytes(), &line, b"\n"].concat();
            way.tail.push(&line);
            if let Some(log) = &way.log {
                let mut file = log.lock().unwrap_or_else(PoisonError::into_inner);
                let _ = file.write_all(&bytes[way.prefix.len()..]);
            }
            line.clear();
            printer.line(way.target, bytes).await;
        } else if more {
            printer.line(way.target, [way.prefix.as_bytes(), b"\n"].concat()).await;
        }
        if !more {
            return;
        }
    }
}

/// Reads a line without its end into `line`; false at the end of the pipe.
async fn read_line(reader: &mut BufReader<impl AsyncRead + Unpin>, line: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        let buffer = reader.fill_buf().await?;
        if buffer.is_empty() {
            return Ok(false);
        }
        let room = LINE_BYTES_MAX.saturating_sub(line.len());
        let visible = &buffer[..buffer.len().min(room)];
        let (taken, used, whole) = match visible.iter().position(|byte| *byte == b'\n') {
            Some(end) => (end, end + 1, true),
            None => (visible.len(), visible.len(), visible.len() == room),
        };
        line.extend_from_slice(&visible[..taken]);
        reader.consume(used);
        if whole {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(text: &[u8]) -> Vec<Vec<u8>> {
        let mut reader = BufReader::with_capacity(7, text);
        let mut lines = Vec::new();
        loop {
            let mut line = Vec::new();
            let more = read_line(&mut reader, &mut line).await.unwrap();
            if !more && line.is_empty() {
                return lines;
            }
            lines.push(line);
        }
    }

    #[tokio::test]
    async fn lines_are_whole_and_bounded() {
        assert_eq!(lines(b"one\n\ntwo and more\nrest").await, [&b"one"[..], b"", b"two and more", b"rest"]);
        let long = vec![b'x'; LINE_BYTES_MAX + 3];
        let cut = lines(&long).await;
        assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [LINE_BYTES_MAX, 3]);
    }
}
