//! Splits the bytes of a pipe into lines. A progress bar repaints its line after a carriage return. Each repaint is a frame, and the
//! latest frame is due about once a second. Must not read a pipe or a clock: bytes and time are arguments.

use std::time::Duration;
use tokio::time::Instant;

/// Bytes of a line; longer ones are cut into several.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;
/// Time between two frames that are shown.
const FRAME_PAUSE: Duration = Duration::from_secs(1);

/// The line that is being read.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// Bytes since the last line feed or carriage return.
    frame: Vec<u8>,
    /// The last frame that a carriage return has ended.
    before: Vec<u8>,
    /// How many bytes of `frame` have been passed on as they are.
    passed: usize,
    shown: Option<Vec<u8>>,
    /// Set while the line has a carriage return: when its latest frame is due.
    due: Option<Instant>,
}

/// What a piece of input has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    Line,
    /// A frame of progress.
    Frame,
    /// Nothing yet.
    Open,
}

impl Lines {
    /// Takes bytes up to the next end of a line or frame; returns how many, and what they have ended.
    pub(super) fn take(&mut self, bytes: &[u8], now: Instant) -> (usize, End) {
        let room = LINE_BYTES_MAX.saturating_sub(self.frame.len());
        let visible = &bytes[..bytes.len().min(room)];
        let (taken, used, end) = match visible.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            Some(at) => (at, at + 1, if visible[at] == b'\n' { End::Line } else { End::Frame }),
            None => (visible.len(), visible.len(), if visible.len() == room { End::Line } else { End::Open }),
        };
        self.frame.extend_from_slice(&visible[..taken]);
        if end == End::Frame {
            self.due.get_or_insert(now + FRAME_PAUSE);
        }
        (used, end)
    }

    /// After [`End::Frame`]: the next byte begins another frame.
    pub(super) fn next_frame(&mut self) {
        if !self.frame.is_empty() {
            self.before = std::mem::take(&mut self.frame);
        }
        self.passed = 0;
    }

    /// After [`End::Line`] or the end of the pipe: the line's text, which is its last frame. Whether that has been shown
    /// already comes with it.
    pub(super) fn finish(&mut self) -> (Vec<u8>, bool) {
        let line = std::mem::take(self);
        let text = if line.frame.is_empty() { line.before } else { line.frame };
        let is_shown = line.shown.is_some_and(|shown| shown == text);
        (text, is_shown)
    }

    /// Has anything of a line been read?
    pub(super) fn is_empty(&self) -> bool {
        self.frame.is_empty() && self.before.is_empty()
    }

    /// Bytes of the frame that have not been passed on.
    pub(super) fn pass(&mut self) -> Vec<u8> {
        let rest = self.frame[self.passed..].to_vec();
        self.passed = self.frame.len();
        rest
    }

    /// Is the line one of progress?
    pub(super) fn is_progress(&self) -> bool {
        self.due.is_some()
    }

    /// When the latest frame is to be shown, if there is a new one.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.is_empty() && self.shown.as_ref() != Some(self.latest()))
    }

    /// The latest frame, which is shown now.
    pub(super) fn show(&mut self, now: Instant) -> Vec<u8> {
        let latest = self.latest().clone();
        self.shown = Some(latest.clone());
        self.due = Some(now + FRAME_PAUSE);
        latest
    }

    fn latest(&self) -> &Vec<u8> {
        if self.frame.is_empty() { &self.before } else { &self.frame }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a text that comes in pieces of this size.
    fn lines(text: &[u8], piece: usize) -> Vec<Vec<u8>> {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for mut piece in text.chunks(piece) {
            while !piece.is_empty() {
                let (used, end) = lines.take(piece, Instant::now());
                piece = &piece[used..];
                match end {
                    End::Line => found.push(lines.finish().0),
                    End::Frame => lines.next_frame(),
                    End::Open => {}
                }
            }
        }
        if !lines.is_empty() {
            found.push(lines.finish().0);
        }
        found
    }

    #[test]
    fn lines_are_whole_and_bounded() {
        for piece in [1, 7, 100] {
            assert_eq!(
                lines(b"one\n\ntwo and more\nrest", piece),
                [&b"one"[..], b"", b"two and more", b"rest"]
            );
            assert_eq!(lines(b"one\r\ntwo\r\n", piece), [&b"one"[..], b"two"], "lines of other systems");
            assert_eq!(lines(b"\r0/2\r1/2\r2/2\nnext\n", piece), [&b"2/2"[..], b"next"], "the last frame");
            assert_eq!(lines(b"0/2\r1/2\r", piece), [b"1/2"], "frames may end with the return");
        }
        let long = vec![b'x'; LINE_BYTES_MAX + 3];
        let cut = lines(&long, long.len());
        assert_eq!(cut.iter().map(Vec::len).collect::<Vec<_>>(), [LINE_BYTES_MAX, 3]);
    }

    #[test]
    fn a_frame_is_due_once_a_second_if_it_is_new() {
        let (mut lines, start) = (Lines::default(), Instant::now());
        let feed = |lines: &mut Lines, text: &[u8]| {
            assert_eq!(lines.take(text, start), (1, End::Frame));
            lines.next_frame();
            assert_eq!(lines.take(&text[1..], start), (text.len() - 1, End::Open));
        };
        assert_eq!(lines.due(), None);
        feed(&mut lines, b"\r1%");
        assert_eq!(lines.due(), Some(start + FRAME_PAUSE));
        feed(&mut lines, b"\r2%");
        assert_eq!(lines.show(start + FRAME_PAUSE), b"2%");
        assert_eq!(lines.due(), None, "nothing is new");
        feed(&mut lines, b"\r3%");
        assert_eq!(lines.due(), Some(start + 2 * FRAME_PAUSE));
        assert_eq!(lines.finish(), (b"3%".to_vec(), false));
        assert_eq!((lines.due(), lines.is_empty()), (None, true));
    }

    #[test]
    fn bytes_that_are_passed_on_are_passed_once() {
        let mut lines = Lines::default();
        assert_eq!(lines.take(b"ab", Instant::now()), (2, End::Open));
        assert_eq!(lines.pass(), b"ab");
        assert_eq!(lines.take(b"c\r", Instant::now()), (2, End::Frame));
        assert_eq!(lines.pass(), b"c");
        lines.next_frame();
        assert!(lines.is_progress() && lines.pass().is_empty());
    }
}
