//! Workers of one host that meet and pass operations, with their threads and their shared memory. Lanes and servers are played.

use super::{Coming, Host, Listening, Met, Own, Passing};
use crate::error::OpError;
use crate::runtime::Answering;
use fabric::{Exclusive, Pool, View};
use proto_common::ids::{Incarnation, JobId, Key, Rank};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

/// What befalls an operation.
#[derive(Debug, PartialEq)]
enum Event {
    Alone,
    Merged,
    /// The first elements of the other gradients.
    Sum(Vec<f32>),
    Landed(f32),
    Refused,
    Ended(bool),
    /// Also without an end.
    Dropped,
}

/// An operation that tells what befalls it, and panics at its end if asked to.
struct Told(Sender<Event>, bool);

fn first(view: &View) -> f32 {
    let mut bytes = [0; 4];
    view.read(0, &mut bytes).unwrap();
    f32::from_ne_bytes(bytes)
}

impl Told {
    fn tell(&self, event: Event) {
        let _ = self.0.send(event);
    }
}

impl Passing for Told {
    fn key(&self) -> Key {
        Key(7)
    }

    fn open_alone(&mut self) {
        self.tell(Event::Alone);
    }

    fn open_merged(&mut self) {
        self.tell(Event::Merged);
    }

    fn open_sum(&mut self, others: &[View]) {
        self.tell(Event::Sum(others.iter().map(first).collect()));
    }

    fn land(&mut self, weights: &View) {
        self.tell(Event::Landed(first(weights)));
    }

    fn refuse(&mut self, _error: &OpError) {
        self.tell(Event::Refused);
    }

    fn end(self, failure: Option<OpError>) {
        self.tell(Event::Ended(failure.is_none()));
        assert!(!self.1, "a callback panics");
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _ = self.0.send(Event::Dropped);
    }
}

struct Worker {
    host: Host<Told>,
    /// Its gradient, and then the weights.
    memory: Exclusive,
    _pool: Pool,
}

impl Worker {
    fn submit(&self, round: u64, panics: bool) -> Receiver<Event> {
        let (sender, events) = channel();
        let offset = self.memory.span().offset();
        let weights = Some(offset + 4);
        let coming =
            Coming { op: round, key: 7, round, bytes: 4, offset, weights, sums: self.host.is_head() };
        self.host.submit(coming, Told(sender, panics));
        events
    }

    /// The servers have answered an operation.
    fn answered(&self, round: u64) {
        let Answering(answering) = self.host.answering();
        answering(round, true);
    }
}

/// Workers that meet, if they do: each with its rank as the gradient, and ten more as the weights.
fn workers(ranks: &[u32], in_order: bool) -> Vec<Option<Worker>> {
    static JOBS: AtomicU64 = AtomicU64::new(0);
    let number = JOBS.fetch_add(1, Ordering::Relaxed);
    let job = JobId(u64::from(std::process::id()) << 16 | number);
    let all: Vec<(Rank, Incarnation)> =
        ranks.iter().map(|rank| (Rank(*rank), Incarnation(u64::from(*rank) + 1))).collect();
    let listening: Vec<Listening> =
        all.iter().map(|(_, life)| Listening::start(job, *life).unwrap()).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = all
            .iter()
            .zip(listening)
            .map(|((rank, _), listening)| {
                let all = &all;
                scope.spawn(move || {
                    let pool = Pool::new(4096, "worker").unwrap();
                    let mut memory = pool.allocate(8).unwrap();
                    memory[..4].copy_from_slice(&(rank.0 as f32).to_ne_bytes());
                    memory[4..].copy_from_slice(&(rank.0 as f32 + 10.0).to_ne_bytes());
                    let own = Own { job, rank: *rank, memory: pool.region(), in_order };
                    let met = Met::new(listening, &own, all)?;
                    let host = Host::start(met, Duration::from_micros(20)).unwrap();
                    Some(Worker { host, memory, _pool: pool })
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn next(events: &Receiver<Event>) -> Event {
    events.recv_timeout(SOON).unwrap()
}

#[test]
fn the_head_adds_what_the_others_have_and_they_copy_what_it_receives() {
    let all: Vec<Worker> = workers(&[0, 1, 2], true).into_iter().flatten().collect();
    assert_eq!(all.iter().map(|worker| worker.host.is_head()).collect::<Vec<_>>(), [true, false, false]);
    for round in 1..200 {
        let events: Vec<_> = all.iter().rev().map(|worker| worker.submit(round, false)).collect();
        let [second, first, head] = &events[..] else { unreachable!() };
        assert_eq!(next(head), Event::Sum(vec![1.0, 2.0]));
        for follower in [first, second] {
            assert_eq!(next(follower), Event::Merged);
        }
        all.iter().for_each(|worker| worker.answered(round));
        for follower in [first, second] {
            assert_eq!((next(follower), next(follower)), (Event::Landed(10.0), Event::Ended(true)));
        }
        assert_eq!(next(head), Event::Ended(true));
    }
    assert!(all.iter().all(|worker| worker.host.leave()));
    assert_eq!(next(&all[0].submit(200, false)), Event::Dropped, "an operation of a client fails then");
}

#[test]
fn when_one_has_left_the_others_go_alone_and_who_owes_something_does_not_leave_cleanly() {
    let all: Vec<Worker> = workers(&[0, 1, 2], true).into_iter().flatten().collect();
    let lost = [all[1].submit(1, false), all[2].submit(1, false)];
    let head = all[0].submit(1, false);
    assert_eq!(next(&head), Event::Sum(vec![1.0, 2.0]));
    assert_eq!(lost.each_ref().map(next), [Event::Merged, Event::Merged]);
    assert!(!all[1].host.leave(), "its gradient is in a sum that is not answered");
    assert_eq!((next(&lost[0]), next(&lost[0])), (Event::Refused, Event::Ended(false)));
    let alone = [all[0].submit(2, false), all[2].submit(2, false)];
    for events in &alone {
        assert_eq!((next(events), next(events)), (Event::Alone, Event::Ended(true)));
    }
    all[0].answered(1);
    assert_eq!(next(&lost[1]), Event::Landed(10.0));
    all[2].answered(1);
    assert_eq!((next(&lost[1]), next(&head)), (Event::Ended(true), Event::Ended(true)));
    assert!(all[0].host.leave() && all[2].host.leave());
}

#[test]
fn who_does_not_come_to_a_round_is_not_waited_for_longer_than_a_second() {
    let all: Vec<Worker> = workers(&[0, 1], true).into_iter().flatten().collect();
    for early in [0, 1] {
        let events = all[early].submit(early as u64 + 1, false);
        assert_eq!((next(&events), next(&events)), (Event::Alone, Event::Ended(true)));
        let late = all[1 - early].submit(early as u64 + 1, false);
        assert_eq!((next(&late), next(&late)), (Event::Alone, Event::Ended(true)));
    }
}

#[test]
fn a_callback_that_panics_ends_the_sharing_and_nothing_else() {
    let all: Vec<Worker> = workers(&[0, 1], true).into_iter().flatten().collect();
    let (head, follower) = (all[0].submit(1, true), all[1].submit(1, false));
    assert_eq!((next(&head), next(&follower)), (Event::Sum(vec![1.0]), Event::Merged));
    all.iter().for_each(|worker| worker.answered(1));
    assert_eq!((next(&follower), next(&follower)), (Event::Landed(10.0), Event::Ended(true)));
    assert_eq!(next(&head), Event::Ended(true));
    // The head's thread has ended, and with it the channel.
    let events = all[1].submit(2, false);
    let ended = (next(&events), next(&events));
    let alone = (Event::Alone, Event::Ended(true));
    assert!(ended == alone || ended == (Event::Refused, Event::Ended(false)), "{ended:?}");
    assert_eq!(next(&all[0].submit(2, false)), Event::Dropped);
}

#[test]
fn in_rank_order_only_the_first_ranks_meet() {
    let met =
        |ranks: &[u32], in_order| workers(ranks, in_order).iter().map(Option::is_some).collect::<Vec<bool>>();
    assert_eq!((met(&[0, 2], true), met(&[1, 2], true)), (vec![false; 2], vec![false; 2]));
    assert_eq!((met(&[1, 3], false), met(&[4], false)), (vec![true; 2], vec![false]));
}
