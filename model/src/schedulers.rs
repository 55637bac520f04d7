//! Two schedulers and a divided network: who may decide about the roster. It owns rosters, terms and acknowledgements only; what servers do
//! under a roster is the other model's ([`crate::Protocol`]).
//!
//! A scheduler appends decisions to a log, one at a time. Members store a decision, acknowledge it, and follow it when they hear that it
//! is decided. Whoever is on the other side of the network is a member that does not take the next step: every order of steps is tried, so
//! every partition is.

use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet};

/// Members by number, as bits.
type Set = u8;

/// Which rule is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unruly {
    /// A restarted scheduler continues with whoever has come.
    NoQuorum,
    /// A decision is followed as soon as a member hears of it.
    AtOnce,
    /// A connection that was closed counts as the exit of its process, also if the member has given that scheduler up.
    CloseIsExit,
}

/// An instance: so many members, and how often each thing may happen.
#[derive(Clone, Debug)]
pub struct Schedulers {
    /// Members of the first roster, at most 8.
    pub members: u8,
    /// Schedulers that are started while others may run.
    pub starts: u8,
    /// Members that a scheduler drops because they are silent, whether they are partitioned or gone.
    pub drops: u8,
    /// Members whose process exits.
    pub exits: u8,
    /// Which rule is left out.
    pub unruly: Option<Unruly>,
}

/// A decision about the roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Entry {
    term: u8,
    roster: Set,
}

/// Decisions since the first roster, in their order, and how many of them are known to be in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Log {
    entries: Vec<Entry>,
    decided: usize,
}

impl Log {
    /// What is compared to find the newest.
    fn age(&self) -> (u8, usize) {
        (self.entries.last().map_or(1, |entry| entry.term), self.entries.len())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Member {
    up: bool,
    term: u8,
    /// The scheduler that it is connected to.
    follows: Option<u8>,
    /// The scheduler that it has shown last what it knows, over a connection that it still has. Others may take it for connected, too.
    shown_to: Option<u8>,
    log: Log,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Off,
    /// Members show what they know: the highest term, the newest log, who has come.
    Rebuilding,
    /// It has asked those who came for their votes.
    Voting,
    Running,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scheduler {
    phase: Phase,
    term: u8,
    log: Log,
    came: Set,
    votes: Set,
    /// Members whose process has exited, as it knows.
    gone: Set,
    /// How many entries each member has acknowledged.
    heard: BTreeMap<u8, usize>,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    members: Vec<Member>,
    schedulers: Vec<Scheduler>,
    /// Acknowledgements under way: scheduler, member, entries.
    acks: BTreeSet<(u8, u8, usize)>,
    /// The longest list of decisions that some member has followed.
    followed: Vec<Entry>,
    /// Members have followed decisions that do not belong to one history.
    forked: bool,
    left: (u8, u8, u8),
}

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is one sentence already")]
pub enum Turn {
    Start(u8),
    GiveUp { member: u8 },
    Arrive { member: u8, at: u8 },
    Stand(u8),
    Vote { member: u8, of: u8 },
    Win(u8),
    Drop { by: u8, member: u8 },
    Store { member: u8 },
    Hear { at: usize },
    Decide(u8),
    Follow { member: u8 },
    Exit { member: u8 },
}

fn bit(member: u8) -> Set {
    1 << member
}

impl Schedulers {
    fn lacks(&self, rule: Unruly) -> bool {
        self.unruly == Some(rule)
    }

    fn all(&self) -> Set {
        ((1u16 << self.members) - 1) as Set
    }

    fn roster(&self, log: &Log, entries: usize) -> Set {
        entries.checked_sub(1).map_or(self.all(), |last| log.entries[last].roster)
    }

    /// The rosters that may be in force, by this log.
    fn rosters(&self, log: &Log, upto: usize) -> Vec<Set> {
        (log.decided..=upto).map(|entries| self.roster(log, entries)).collect()
    }

    /// More than half of those who have not exited, or half with the first of them.
    fn is_quorum(&self, roster: Set, gone: Set, there: Set) -> bool {
        let of = roster & !gone;
        let (all, some) = (of.count_ones(), (of & there).count_ones());
        let has_first = of & there & of.wrapping_neg() != 0;
        2 * some > all || 2 * some == all && has_first || self.lacks(Unruly::NoQuorum) && there != 0
    }

    fn has_quorum(&self, scheduler: &Scheduler, upto: usize, there: Set) -> bool {
        let rosters = self.rosters(&scheduler.log, upto);
        rosters.into_iter().all(|roster| self.is_quorum(roster, scheduler.gone, there))
    }

    /// Has the next decision been heard by enough members of each roster that may be in force before it?
    fn may_decide(&self, scheduler: &Scheduler) -> bool {
        let next = scheduler.log.decided;
        if scheduler.phase != Phase::Running || next == scheduler.log.entries.len() {
            return false;
        }
        // Decisions that were found are in force with the first one of this scheduler, which is the last.
        let last = scheduler.log.entries.len();
        let heard = scheduler.heard.iter().filter(|(_, entries)| **entries >= last);
        let heard = heard.fold(0, |set, (member, _)| set | bit(*member));
        self.has_quorum(scheduler, last - 1, heard)
    }

    fn scheduler_turns(&self, state: &State, at: u8, turns: &mut Vec<Turn>) {
        let scheduler = &state.schedulers[usize::from(at)];
        let newest = scheduler.log.entries.len();
        match scheduler.phase {
            Phase::Off if state.left.0 > 0 => turns.push(Turn::Start(at)),
            Phase::Off => {}
            Phase::Rebuilding => {
                if scheduler.came != 0 && self.has_quorum(scheduler, newest, scheduler.came) {
                    turns.push(Turn::Stand(at));
                }
            }
            Phase::Voting => {
                if self.has_quorum(scheduler, newest, scheduler.votes) {
                    turns.push(Turn::Win(at));
                }
            }
            Phase::Running => {
                let roster = self.roster(&scheduler.log, newest);
                let idle = scheduler.log.decided == newest && state.left.1 > 0;
                let dropped = (0..self.members).filter(|member| idle && roster & bit(*member) != 0);
                turns.extend(dropped.map(|member| Turn::Drop { by: at, member }));
                if self.may_decide(scheduler) {
                    turns.push(Turn::Decide(at));
                }
            }
        }
    }

    fn member_turns(&self, state: &State, at: u8, turns: &mut Vec<Turn>) {
        let member = &state.members[usize::from(at)];
        if !member.up {
            return;
        }
        if state.left.2 > 0 {
            turns.push(Turn::Exit { member: at });
        }
        for (number, scheduler) in (0..).zip(&state.schedulers) {
            let is_free = member.follows.is_none();
            let has_come = member.shown_to == Some(number);
            match scheduler.phase {
                Phase::Rebuilding if is_free && !has_come => {
                    turns.push(Turn::Arrive { member: at, at: number });
                }
                Phase::Voting if is_free && has_come => {
                    let may = member.term < scheduler.term;
                    turns.extend(may.then_some(Turn::Vote { member: at, of: number }));
                }
                _ => {}
            }
        }
        let Some(followed) = member.follows else { return };
        // Nobody gives up a scheduler without another one to look for.
        if state.schedulers.iter().any(|scheduler| scheduler.phase == Phase::Rebuilding) {
            turns.push(Turn::GiveUp { member: at });
        }
        let scheduler = &state.schedulers[usize::from(followed)];
        if scheduler.phase == Phase::Running
            && self.roster(&scheduler.log, scheduler.log.entries.len()) & bit(at) != 0
        {
            if member.log.entries != scheduler.log.entries {
                turns.push(Turn::Store { member: at });
            } else if member.log.decided < scheduler.log.decided {
                turns.push(Turn::Follow { member: at });
            }
        }
    }

    fn follow(state: &mut State, log: &Log) {
        let new = &log.entries[..log.decided];
        let common = new.len().min(state.followed.len());
        state.forked |= new[..common] != state.followed[..common];
        if new.len() > state.followed.len() {
            state.followed = new.to_vec();
        }
    }

    fn scheduler_turn(&self, state: &mut State, at: u8, turn: Turn) {
        let scheduler = &mut state.schedulers[usize::from(at)];
        match turn {
            Turn::Start(_) => {
                state.left.0 -= 1;
                scheduler.phase = Phase::Rebuilding;
            }
            Turn::Stand(_) => {
                scheduler.term += 1;
                scheduler.phase = Phase::Voting;
            }
            Turn::Win(_) => {
                // Whoever has not come is gone by its first decision.
                let roster = self.roster(&scheduler.log, scheduler.log.entries.len()) & scheduler.came;
                scheduler.log.entries.push(Entry { term: scheduler.term, roster });
                scheduler.phase = Phase::Running;
            }
            Turn::Drop { member, .. } => {
                state.left.1 -= 1;
                let roster = self.roster(&scheduler.log, scheduler.log.entries.len()) & !bit(member);
                scheduler.log.entries.push(Entry { term: scheduler.term, roster });
            }
            Turn::Decide(_) => scheduler.log.decided = scheduler.log.entries.len(),
            _ => {}
        }
    }

    fn member_turn(&self, state: &mut State, at: u8, turn: Turn) {
        let member = &mut state.members[usize::from(at)];
        match turn {
            Turn::GiveUp { .. } => {
                let followed = member.follows.take();
                if self.lacks(Unruly::CloseIsExit) {
                    followed.into_iter().for_each(|of| state.schedulers[usize::from(of)].gone |= bit(at));
                }
            }
            Turn::Arrive { at: of, .. } => {
                member.shown_to = Some(of);
                let scheduler = &mut state.schedulers[usize::from(of)];
                scheduler.came |= bit(at);
                scheduler.term = scheduler.term.max(member.term);
                if member.log.age() > scheduler.log.age()
                    || member.log.age() == scheduler.log.age() && member.log.decided > scheduler.log.decided
                {
                    scheduler.log = member.log.clone();
                }
            }
            Turn::Vote { of, .. } => {
                let scheduler = &mut state.schedulers[usize::from(of)];
                (member.term, member.follows, member.shown_to) = (scheduler.term, Some(of), None);
                scheduler.votes |= bit(at);
            }
            Turn::Store { .. } => {
                let Some(of) = member.follows else { return };
                let scheduler = &state.schedulers[usize::from(of)];
                let decided = if self.lacks(Unruly::AtOnce) { scheduler.log.entries.len() } else { 0 };
                let decided = decided.max(member.log.decided.min(scheduler.log.decided));
                member.log = Log { entries: scheduler.log.entries.clone(), decided };
                state.acks.insert((of, at, scheduler.log.entries.len()));
                let log = member.log.clone();
                Self::follow(state, &log);
            }
            Turn::Follow { .. } => {
                let Some(of) = member.follows else { return };
                member.log.decided = state.schedulers[usize::from(of)].log.decided;
                let log = member.log.clone();
                Self::follow(state, &log);
            }
            Turn::Exit { .. } => {
                member.up = false;
                state.left.2 -= 1;
                // Its kernel closes the connection to the scheduler that it has not given up.
                let followed = member.follows.take();
                followed.into_iter().for_each(|of| state.schedulers[usize::from(of)].gone |= bit(at));
            }
            _ => {}
        }
    }
}

impl Model for Schedulers {
    type State = State;
    type Action = Turn;

    fn init_states(&self) -> Vec<State> {
        let member = Member { up: true, term: 1, follows: Some(0), shown_to: None, log: Log::default() };
        let off = Scheduler {
            phase: Phase::Off,
            term: 0,
            log: Log::default(),
            came: 0,
            votes: 0,
            gone: 0,
            heard: BTreeMap::new(),
        };
        let first = Scheduler { phase: Phase::Running, term: 1, ..off.clone() };
        let others = std::iter::repeat_n(off, usize::from(self.starts));
        vec![State {
            members: vec![member; usize::from(self.members)],
            schedulers: std::iter::once(first).chain(others).collect(),
            acks: BTreeSet::new(),
            followed: Vec::new(),
            forked: false,
            left: (self.starts, self.drops, self.exits),
        }]
    }

    fn actions(&self, state: &State, turns: &mut Vec<Turn>) {
        for at in 0..state.schedulers.len() as u8 {
            self.scheduler_turns(state, at, turns);
        }
        for at in 0..self.members {
            self.member_turns(state, at, turns);
        }
        turns.extend((0..state.acks.len()).map(|at| Turn::Hear { at }));
    }

    fn next_state(&self, last: &State, turn: Turn) -> Option<State> {
        let mut state = last.clone();
        match turn {
            Turn::Start(at)
            | Turn::Stand(at)
            | Turn::Win(at)
            | Turn::Decide(at)
            | Turn::Drop { by: at, .. } => {
                self.scheduler_turn(&mut state, at, turn);
            }
            Turn::Hear { at } => {
                let ack = state.acks.iter().nth(at).copied()?;
                state.acks.remove(&ack);
                let heard = state.schedulers[usize::from(ack.0)].heard.entry(ack.1).or_default();
                *heard = ack.2.max(*heard);
            }
            Turn::GiveUp { member }
            | Turn::Arrive { member, .. }
            | Turn::Vote { member, .. }
            | Turn::Store { member }
            | Turn::Follow { member }
            | Turn::Exit { member } => self.member_turn(&mut state, member, turn),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("decisions that members follow are one history", |_, state: &State| {
                !state.forked
            }),
            Property::sometimes("a second scheduler decides", |_, state: &State| {
                state.followed.iter().any(|entry| entry.term > 1)
            }),
            Property::sometimes("a first one decides, then a second one", |model: &Self, state: &State| {
                let terms: BTreeSet<u8> = state.followed.iter().map(|entry| entry.term).collect();
                terms.len() > 1 || model.drops == 0
            }),
        ]
    }
}
