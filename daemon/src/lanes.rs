//! What a role's data threads told of themselves last, for heartbeats, scrapes and `/status`. One that is late is not waited for:
//! what it told before counts until it answers, because zeros in its place would look like another life. It must not know what
//! a lane tells.

use fabric::oneshot;
use proto_common::message::{Wait, WaitCause};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A lane that has not answered for so long is told of.
const LATE_MS: u64 = 500;

/// See the module. Whoever looks while another one does waits for that: for as long as one look may take.
#[derive(Debug)]
pub struct Reports<R> {
    lanes: Mutex<Vec<Lane<R>>>,
    within: Duration,
}

#[derive(Debug)]
struct Lane<R> {
    told: Option<R>,
    /// Where the answer comes to what it was asked. Nothing else is asked until then, so that one question at most waits at a
    /// thread that is stuck.
    answer: Option<oneshot::Receiver<R>>,
    /// The oldest question that was not answered.
    asked_at: Option<Instant>,
}

/// A lane as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known<R> {
    /// What it told last; none where it never did.
    pub told: Option<R>,
    /// For how long it has not answered; 0: that is of this moment.
    pub late_ms: u64,
}

impl<R: Clone> Reports<R> {
    /// A look takes so long at most, for all lanes together.
    #[must_use]
    pub fn new(within: Duration) -> Self {
        Self { lanes: Mutex::default(), within }
    }

    /// Asks these lanes, always the same ones; `ask` hands a question over.
    pub fn of<L>(&self, lanes: &[L], ask: impl Fn(&L, oneshot::Sender<R>)) -> Vec<Known<R>> {
        // Each change of it is whole.
        let mut known = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        known.resize_with(lanes.len(), || Lane { told: None, answer: None, asked_at: None });
        let now = Instant::now();
        for (lane, whom) in known.iter_mut().zip(lanes) {
            // What has come since the last look is older than what it would tell now.
            lane.take(Duration::ZERO);
            if lane.answer.is_none() {
                let (reply, answer) = oneshot::channel();
                ask(whom, reply);
                lane.answer = Some(answer);
                lane.asked_at.get_or_insert(now);
            }
        }
        let until = now + self.within;
        let look = |lane: &mut Lane<R>| {
            lane.take(until.saturating_duration_since(Instant::now()));
            let late = lane.asked_at.map_or(Duration::ZERO, |at| at.elapsed());
            Known { told: lane.told.clone(), late_ms: late.as_millis() as u64 }
        };
        known.iter_mut().map(look).collect()
    }
}

impl<R> Lane<R> {
    fn take(&mut self, within: Duration) {
        let Some(answer) = &self.answer else { return };
        match answer.recv_timeout(within) {
            Ok(told) => *self = Self { told: Some(told), answer: None, asked_at: None },
            Err(RecvTimeoutError::Timeout) => {}
            // It has ended, or had no time to: it is asked again.
            Err(RecvTimeoutError::Disconnected) => self.answer = None,
        }
    }
}

/// The lanes that have not answered for long, as waits of their process: whatever was to be done by them waits.
pub fn late<R>(lanes: &[Known<R>]) -> impl Iterator<Item = Wait> {
    let late = lanes.iter().enumerate().filter(|(_, lane)| lane.late_ms >= LATE_MS);
    late.map(|(index, lane)| Wait {
        what: format!("lane {index} did not answer"),
        of: None,
        waited_ms: lane.late_ms,
        cause: WaitCause::Lane,
        on: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Question = oneshot::Sender<u32>;

    const WITHIN: Duration = Duration::from_millis(20);
    const PATIENCE: Duration = Duration::from_secs(10);

    /// Asks one lane that answers at once, and one that keeps its questions.
    fn look(reports: &Reports<u32>, kept: &Mutex<Vec<Question>>) -> Vec<Known<u32>> {
        reports.of(&[0, 1], |lane, reply| match lane {
            0 => reply.send(7),
            _ => kept.lock().unwrap().push(reply),
        })
    }

    #[test]
    fn a_late_lane_counts_with_what_it_told_last_and_is_asked_once() {
        let (reports, kept) = (Reports::new(WITHIN), Mutex::default());
        let known = look(&reports, &kept);
        assert_eq!(known[0], Known { told: Some(7), late_ms: 0 });
        assert_eq!(known[1].told, None, "it has told nothing yet");
        // It comes to the question after the look: that answer is not of the next one.
        kept.lock().unwrap().remove(0).send(8);
        assert_eq!(look(&reports, &kept)[1].told, Some(8));
        let late_ms = look(&reports, &kept)[1].late_ms;
        assert!(late_ms >= WITHIN.as_millis() as u64, "{late_ms}");
        assert!(look(&reports, &kept)[1].late_ms > late_ms);
        assert_eq!(kept.lock().unwrap().len(), 1, "one question at most waits");
        kept.lock().unwrap().remove(0).send(9);
        let known = look(&reports, &kept);
        assert_eq!(known[1].told, Some(9), "asked anew");
        assert_eq!(kept.lock().unwrap().len(), 1);
        // Its thread has ended.
        kept.lock().unwrap().clear();
        assert_eq!(look(&reports, &kept)[1].told, Some(9));
    }

    #[test]
    fn an_answer_within_the_look_is_of_this_moment() {
        let reports = Reports::new(PATIENCE);
        let known = reports.of(&[()], |(), reply: Question| {
            drop(std::thread::spawn(move || reply.send(3)));
        });
        assert_eq!(known, [Known { told: Some(3), late_ms: 0 }]);
    }

    #[test]
    fn lanes_that_are_late_for_long_are_told_of() {
        let known = [LATE_MS - 1, LATE_MS, 0].map(|late_ms| Known { told: Some(0), late_ms });
        let waits: Vec<Wait> = late(&known).collect();
        assert_eq!((waits.len(), &waits[0].what[..]), (1, "lane 1 did not answer"));
        assert_eq!((waits[0].cause, waits[0].waited_ms), (WaitCause::Lane, LATE_MS));
    }
}
