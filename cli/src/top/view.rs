//! What `top` knows and where it looks: the last answer, the line of rounds per second, table, order and place. Keys change it;
//! time is an argument; no I/O.

use super::sheet::{Order, Tab};
use daemon::status::ClusterStatus;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::collections::VecDeque;
use std::time::Instant;

/// What the scheduler answered, or why not.
pub(super) type Answer = Result<ClusterStatus, String>;

/// Points of the line of rounds per second: more than terminals are wide.
const POINTS_MAX: usize = 512;

/// See the module.
pub(super) struct View {
    pub(super) status: Option<ClusterStatus>,
    /// When the last answer came, or looking began.
    pub(super) answered: Instant,
    /// Why there was none since.
    pub(super) failure: Option<String>,
    /// Thousandths of rounds per second, the newest last.
    pub(super) pace: VecDeque<u64>,
    pub(super) tab: Tab,
    orders: [Order; Tab::ALL.len()],
    /// The first row that is shown; drawing corrects it where there are not so many.
    pub(super) first: usize,
    /// Rows that fit, as drawn last.
    pub(super) fits: usize,
}

impl View {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            status: None,
            answered: now,
            failure: None,
            pace: VecDeque::new(),
            tab: Tab::Workers,
            orders: Default::default(),
            first: 0,
            fits: 1,
        }
    }

    pub(super) fn answered(&mut self, answer: Answer, now: Instant) {
        match answer {
            Ok(status) => {
                self.pace.push_back((status.rounds_per_second.max(0.0) * 1e3) as u64);
                if self.pace.len() > POINTS_MAX {
                    self.pace.pop_front();
                }
                (self.status, self.answered, self.failure) = (Some(status), now, None);
            }
            Err(failure) => self.failure = Some(failure),
        }
    }

    pub(super) fn order(&self, tab: Tab) -> Order {
        self.orders[tab as usize]
    }

    /// What a key does; false where it is to leave.
    pub(super) fn key(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        match key.code {
            KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('q' | 'Q') => return false,
            KeyCode::Tab | KeyCode::Right => self.turn(1),
            KeyCode::BackTab | KeyCode::Left => self.turn(Tab::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='5') => {
                self.show(Tab::ALL[digit as usize - '1' as usize]);
            }
            KeyCode::Char('s') => self.sort(1),
            KeyCode::Char('S') => self.sort(self.tab.columns().len() - 1),
            KeyCode::Char('r') => {
                let order = &mut self.orders[self.tab as usize];
                order.is_reversed = !order.is_reversed;
            }
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.first = self.first.saturating_add(1),
            KeyCode::PageUp => self.first = self.first.saturating_sub(self.fits),
            KeyCode::PageDown => self.first = self.first.saturating_add(self.fits),
            KeyCode::Home => self.first = 0,
            KeyCode::End => self.first = usize::MAX,
            _ => {}
        }
        true
    }

    fn turn(&mut self, by: usize) {
        self.show(Tab::ALL[(self.tab as usize + by) % Tab::ALL.len()]);
    }

    fn show(&mut self, tab: Tab) {
        (self.tab, self.first) = (tab, 0);
    }

    fn sort(&mut self, by: usize) {
        let order = &mut self.orders[self.tab as usize];
        order.column = (order.column + by) % self.tab.columns().len();
        self.first = 0;
    }
}
