//! The output of processes: forwards lines from pipes to stdout, stderr and log files. One thread writes, so that a blocked terminal
//! never blocks the supervision. A bounded queue then stops the reading of the pipes.

use super::lines::{End, Lines};
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
use tokio::time::{Instant, sleep_until, timeout};

/// Lines in the queue to the writing thread.
const LINES_MAX: usize = 1024;
/// Time limit for the last output to a blocked terminal, in milliseconds.
const FLUSH_MS: u64 = 2_000;

/// The exit code of a job that was ended, and why it is to end.
pub(super) type EndWord = (u8, &'static str);

/// The exit code if nobody reads the output any more, that of a program which SIGPIPE ends.
const UNREAD_CODE: u8 = 141;

/// Where lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Stdout,
    Stderr,
}

impl Target {
    fn unread(self) -> &'static str {
        match self {
            Self::Stdout => "nobody reads the launcher's stdout any more",
            Self::Stderr => "nobody reads the launcher's stderr any more",
        }
    }
}

#[derive(Debug)]
struct Line {
    target: Target,
    bytes: Vec<u8>,
}

/// Number of last lines that are shown after a failure.
const TAIL_LINES: usize = 5;
/// Bytes of each of these lines.
const TAIL_BYTES: usize = 512;

/// A log file of one process, shared by its two pipes.
pub(super) type LogFile = Arc<Mutex<File>>;

/// The last lines of a process, shared by its two pipes.
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
    /// Precedes each line.
    pub(super) prefix: String,
    pub(super) target: Target,
    pub(super) log: Option<LogFile>,
    pub(super) tail: Tail,
    /// Carriage returns pass unchanged: the launcher on the other side of ssh shows the progress.
    pub(super) is_raw: bool,
    /// Set when `attend` reports that its program has started. That line is not shown.
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
    /// `end` hears once that nobody reads the output any more.
    pub(super) fn start(end: Option<mpsc::Sender<EndWord>>) -> io::Result<(Self, PrinterThread)> {
        let (lines, mut queue) = mpsc::channel::<Line>(LINES_MAX);
        let mut end = end;
        let (finished, done) = oneshot::channel();
        thread::Builder::new().name("output".into()).spawn(move || {
            while let Some(line) = queue.blocking_recv() {
                let written = match line.target {
                    Target::Stdout => write_out(&mut io::stdout().lock(), &line.bytes),
                    Target::Stderr => write_out(&mut io::stderr().lock(), &line.bytes),
                };
                // Other errors, such as a full disk, must not end the job.
                let is_unread = written.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
                if let Some(end) = end.take_if(|_| is_unread) {
                    // If the queue is full, the job is ending already.
                    let _ = end.try_send((UNREAD_CODE, line.target.unread()));
                }
            }
            let _ = finished.send(());
        })?;
        Ok((Self { lines }, PrinterThread { done }))
    }

    /// Prints a message of the launcher.
    pub(super) async fn say(&self, text: &str) {
        self.line(Target::Stderr, format!("[launch] {text}\n").into_bytes()).await;
    }

    /// Prints a line to stderr unchanged.
    pub(super) async fn pass(&self, line: Vec<u8>) {
        self.line(Target::Stderr, line).await;
    }

    async fn line(&self, target: Target, bytes: Vec<u8>) {
        // The thread runs as long as a printer exists.
        let _ = self.lines.send(Line { target, bytes }).await;
    }
}

impl PrinterThread {
    /// Waits until everything is written, at most `FLUSH_MS`: the reader may have stopped reading.
    pub(super) async fn finish(self) {
        let _ = timeout(Duration::from_millis(FLUSH_MS), self.done).await;
    }
}

fn write_out(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
}

/// Forwards a pipe line by line until it ends, and the latest frame of a progress bar about once a second.
pub(super) async fn forward(pipe: impl AsyncRead + Unpin, mut way: Way, printer: Printer) {
    let mut reader = BufReader::new(pipe);
    let mut lines = Lines::default();
    loop {
        let due = lines.due().filter(|_| !way.is_raw);
        let read = tokio::select! {
            read = reader.fill_buf() => read,
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                way.line(&lines.show(Instant::now()), &printer).await;
                continue;
            }
        };
        let bytes = read.unwrap_or_default();
        if bytes.is_empty() {
            if !lines.is_empty() {
                way.end(&mut lines, &printer).await;
            }
            return;
        }
        let (used, end) = lines.take(bytes, Instant::now());
        reader.consume(used);
        match end {
            End::Line => way.end(&mut lines, &printer).await,
            End::Frame => {
                if way.is_raw {
                    printer.line(way.target, [&lines.pass()[..], b"\r"].concat()).await;
                }
                lines.next_frame();
            }
            End::Open if way.is_raw && lines.is_progress() => printer.line(way.target, lines.pass()).await,
            End::Open => {}
        }
    }
}

impl Way {
    async fn end(&mut self, lines: &mut Lines, printer: &Printer) {
        let rest = lines.pass();
        let was_progress = lines.is_progress();
        let (text, is_shown) = lines.finish();
        if self
            .started
            .take_if(|_| text == STARTED_LINE)
            .inspect(|s| s.store(true, Ordering::Release))
            .is_some()
        {
            return;
        }
        if !text.is_empty() {
            self.tail.push(&text);
        }
        match (self.is_raw && was_progress, is_shown) {
            (true, _) => {
                self.keep(&text);
                printer.line(self.target, [&rest[..], b"\n"].concat()).await;
            }
            (false, false) => self.line(&text, printer).await,
            (false, true) => {}
        }
    }

    /// Shows a line, and writes it to the log file.
    async fn line(&self, text: &[u8], printer: &Printer) {
        self.keep(text);
        printer.line(self.target, [self.prefix.as_bytes(), text, b"\n"].concat()).await;
    }

    fn keep(&self, text: &[u8]) {
        let Some(log) = self.log.as_ref().filter(|_| !text.is_empty()) else { return };
        let mut file = log.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = file.write_all(&[text, b"\n"].concat());
    }
}
