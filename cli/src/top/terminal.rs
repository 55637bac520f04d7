//! The terminal: taken over while there is a [`Screen`], and given back as it was on every way out, a panic's included.

use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal;
use ratatui::layout::Rect;
use std::io;
use tokio::sync::mpsc;

/// Keys that wait to be read.
const EVENTS_MAX: usize = 64;

/// Dropping it gives the terminal back.
pub(super) struct Screen(ratatui::DefaultTerminal);

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        // It also has panics give the terminal back before they say anything.
        ratatui::try_init().map(Self).inspect_err(|_| {
            let _ = ratatui::try_restore();
        })
    }

    pub(super) fn draw(&mut self, draw: impl FnOnce(Rect, &mut Buffer)) -> io::Result<()> {
        self.0.draw(|frame| draw(frame.area(), frame.buffer_mut()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = ratatui::try_restore();
        let _ = self.0.show_cursor();
    }
}

/// Columns, where the terminal says.
pub(super) fn width() -> Option<u16> {
    terminal::size().ok().map(|(columns, _)| columns)
}

/// Keys and changes of size, read by a thread of its own, which ends with the process.
pub(super) fn input() -> mpsc::Receiver<io::Result<Event>> {
    let (tell, events) = mpsc::channel(EVENTS_MAX);
    std::thread::spawn(move || {
        loop {
            let event = event::read();
            let is_over = event.is_err();
            if tell.blocking_send(event).is_err() || is_over {
                return;
            }
        }
    });
    events
}
