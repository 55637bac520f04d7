//! Which fault comes next: seeded, and nothing else. No clock and no process; it says "after so many rounds", and whoever
//! strikes looks at what the cluster says.

use clap::ValueEnum;
use fabric::rng::Rng;
use proto_common::ids::Role;
use serde::Serialize;

/// Rounds that everybody finishes between two faults, at most.
const CALM_ROUNDS_MAX: u64 = 8;
/// Microseconds into a round, at most: as long as a round takes with the usual jitter.
const INTO_ROUND_US_MAX: u64 = 12_000;

/// Milliseconds between the two of a double fault, at most.
const SECOND_MS_MAX: u64 = 400;

/// So often another fault is drawn where one would strike somebody spared.
const DRAWS_MAX: u32 = 1_000;

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Killed, and started again as a new life.
    Kill,
    /// Stopped (SIGSTOP) and continued.
    Stop,
    /// Cut off from all others, and joined again.
    Partition,
    /// A server told to go (SIGTERM), which others take over from first; then one that comes in its place.
    Drain,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Strike {
    pub(super) kind: Kind,
    pub(super) role: Role,
    /// Which one of the role's seats.
    pub(super) seat: u32,
    /// Comes when everybody has finished so many rounds since the last recovery,
    pub(super) after_rounds: u64,
    /// and then so much later.
    pub(super) delay_us: u64,
    /// Until it comes again, goes on, or is joined again.
    pub(super) away_ms: u64,
    /// The others take it for dead meanwhile.
    pub(super) is_death: bool,
    /// Who is killed beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) second: Option<Second>,
}

/// A second process that is killed, before anybody has got over the first fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Second {
    pub(super) role: Role,
    pub(super) seat: u32,
    /// So much later than the first.
    pub(super) after_ms: u64,
    /// Until it comes again.
    pub(super) away_ms: u64,
}

/// What may happen to whom.
#[derive(Clone, Debug)]
pub(super) struct Menu {
    pub(super) faults: Vec<Kind>,
    pub(super) roles: Vec<Role>,
    pub(super) away_ms: u64,
    pub(super) silence_ms: u64,
    pub(super) servers: u32,
    pub(super) workers: u32,
    /// Faults are of two processes.
    pub(super) is_double: bool,
}

impl Menu {
    /// Everything that may come; empty where nothing can.
    fn dishes(&self) -> Vec<(Kind, Role)> {
        let pairs = self.faults.iter().flat_map(|kind| self.roles.iter().map(move |role| (*kind, *role)));
        pairs
            .filter(|pair| match pair {
                // The scheduler's host is the hub that all cables lead to.
                (Kind::Partition, role) => *role != Role::Scheduler,
                (Kind::Drain, role) => *role == Role::Server,
                _ => true,
            })
            .collect()
    }

    /// Is there anything that may come?
    pub(super) fn is_empty(&self) -> bool {
        self.dishes().is_empty()
    }
}

/// The faults of one run, without end. Each fault and role of the menu comes once before one comes again.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    menu: Menu,
    rng: Rng,
    /// What has not come in this turn.
    bag: Vec<(Kind, Role)>,
    /// Whom nothing strikes.
    spared: Vec<(Role, u32)>,
}

impl Schedule {
    pub(super) fn new(menu: Menu, seed: u64) -> Self {
        Self { menu, rng: Rng::new(seed), bag: Vec::new(), spared: Vec::new() }
    }

    /// From now on nothing strikes these, unless there is nobody else.
    pub(super) fn spare(&mut self, seats: &[(Role, u32)]) {
        let is_left = |role: &Role| (0..self.seats(*role)).any(|seat| !seats.contains(&(*role, seat)));
        if self.menu.dishes().iter().any(|(_, role)| is_left(role)) {
            self.spared = seats.to_vec();
        }
    }

    fn seats(&self, role: Role) -> u32 {
        match role {
            Role::Scheduler => 1,
            Role::Server => self.menu.servers,
            Role::Worker => self.menu.workers,
        }
    }

    /// Anybody else, but never two servers: what both had would be lost, with copies as well.
    fn second(&mut self, role: Role, seat: u32) -> Option<Second> {
        let roles = self.menu.roles.clone().into_iter();
        let others = roles.filter(|other| *other != role || *other == Role::Worker && self.menu.workers > 1);
        let others: Vec<Role> = others.collect();
        let other = *others.get(self.rng.below(others.len().max(1) as u64) as usize)?;
        let mut place = self.rng.below(u64::from(self.seats(other))) as u32;
        if (other, place) == (role, seat) {
            place = (place + 1) % self.seats(other);
        }
        let after_ms = self.rng.within(0, SECOND_MS_MAX);
        Some(Second { role: other, seat: place, after_ms, away_ms: self.rng.within(0, self.menu.away_ms) })
    }

    fn length(&mut self, kind: Kind) -> (u64, bool) {
        let silence = self.menu.silence_ms;
        match kind {
            Kind::Kill => (self.rng.within(0, self.menu.away_ms), true),
            Kind::Drain => (self.rng.within(0, self.menu.away_ms), false),
            // Neither is near the bound, so that which one it is does not hang on the machine's load.
            Kind::Stop | Kind::Partition if self.rng.chance(5_000) => {
                (self.rng.within(silence / 20, silence / 3), false)
            }
            Kind::Stop | Kind::Partition => (self.rng.within(silence * 3 / 2, silence * 2), true),
        }
    }
}

impl Iterator for Schedule {
    type Item = Strike;

    fn next(&mut self) -> Option<Strike> {
        for _ in 0..DRAWS_MAX {
            let strike = self.draw()?;
            let second = strike.second.map(|second| (second.role, second.seat));
            let is_spared = |victim| self.spared.contains(&victim);
            if !is_spared((strike.role, strike.seat)) && !second.is_some_and(is_spared) {
                return Some(strike);
            }
        }
        // Two at once may need one of those.
        self.draw()
    }
}

impl Schedule {
    fn draw(&mut self) -> Option<Strike> {
        if self.bag.is_empty() {
            self.bag = self.menu.dishes();
        }
        if self.bag.is_empty() {
            return None;
        }
        let (kind, role) = self.bag.swap_remove(self.rng.below(self.bag.len() as u64) as usize);
        let seat = self.rng.below(u64::from(self.seats(role))) as u32;
        let (away_ms, is_death) = self.length(kind);
        let (after_rounds, delay_us) =
            (self.rng.within(1, CALM_ROUNDS_MAX), self.rng.below(INTO_ROUND_US_MAX));
        let second = if self.menu.is_double { self.second(role, seat) } else { None };
        Some(Strike { kind, role, seat, after_rounds, delay_us, away_ms, is_death, second })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn menu(faults: &[Kind], roles: &[Role]) -> Menu {
        let (faults, roles) = (faults.to_vec(), roles.to_vec());
        Menu { faults, roles, away_ms: 700, silence_ms: 3_000, servers: 3, workers: 4, is_double: false }
    }

    const ALL: [Role; 3] = [Role::Scheduler, Role::Server, Role::Worker];

    #[test]
    fn a_seed_decides_everything() {
        let strikes = |seed| {
            let schedule = Schedule::new(menu(&[Kind::Kill, Kind::Stop], &ALL), seed);
            schedule.take(50).collect::<Vec<_>>()
        };
        assert_eq!(strikes(7), strikes(7));
        assert_ne!(strikes(7), strikes(8));
    }

    #[test]
    fn every_fault_meets_every_role_before_one_comes_again() {
        let faults = [Kind::Kill, Kind::Stop, Kind::Partition];
        let mut schedule = Schedule::new(menu(&faults, &ALL), 1);
        for _ in 0..20 {
            let mut turn: Vec<String> =
                schedule.by_ref().take(8).map(|s| format!("{:?} {}", s.kind, s.role)).collect();
            turn.sort();
            turn.dedup();
            assert_eq!(turn.len(), 8, "nine pairs, without the scheduler's partition: {turn:?}");
        }
    }

    #[test]
    fn strikes_stay_within_their_bounds_and_reach_every_seat() {
        let strikes: Vec<Strike> =
            Schedule::new(menu(&[Kind::Kill, Kind::Stop], &ALL), 3).take(2_000).collect();
        for strike in &strikes {
            let (low, high) = match (strike.kind, strike.is_death) {
                (Kind::Kill, _) => (0, 700),
                (_, false) => (150, 1_000),
                (_, true) => (4_500, 6_000),
            };
            assert!((low..=high).contains(&strike.away_ms), "{strike:?}");
            assert!((1..=CALM_ROUNDS_MAX).contains(&strike.after_rounds), "{strike:?}");
            assert!(strike.delay_us < INTO_ROUND_US_MAX);
        }
        for (role, count) in [(Role::Server, 3), (Role::Worker, 4), (Role::Scheduler, 1)] {
            let mut seats: Vec<u32> = strikes.iter().filter(|s| s.role == role).map(|s| s.seat).collect();
            seats.sort_unstable();
            seats.dedup();
            assert_eq!(seats, (0..count).collect::<Vec<u32>>(), "{role}");
        }
    }

    #[test]
    fn the_second_of_two_is_never_the_first_nor_another_server() {
        let double = Menu { is_double: true, ..menu(&[Kind::Kill], &ALL) };
        let strikes: Vec<Strike> = Schedule::new(double, 4).take(500).collect();
        for Strike { role, seat, second, .. } in &strikes {
            let second = second.unwrap();
            assert_ne!((*role, *seat), (second.role, second.seat));
            assert!(second.role != *role || *role == Role::Worker, "{role} {second:?}");
            assert!(second.after_ms <= SECOND_MS_MAX && second.away_ms <= 700);
        }
        let lone = Menu { is_double: true, ..menu(&[Kind::Kill], &[Role::Server]) };
        assert!(Schedule::new(lone, 4).take(9).all(|strike| strike.second.is_none()));
    }

    #[test]
    fn servers_only_are_told_to_go() {
        let schedule = Schedule::new(menu(&[Kind::Drain, Kind::Kill], &ALL), 2);
        let drains: Vec<Strike> = schedule.take(40).filter(|strike| strike.kind == Kind::Drain).collect();
        assert_eq!(drains.len(), 10, "one of four in each turn");
        assert!(drains.iter().all(|strike| strike.role == Role::Server && !strike.is_death));
    }

    #[test]
    fn who_is_spared_is_not_struck_and_others_are() {
        let double = Menu { is_double: true, ..menu(&[Kind::Kill], &ALL) };
        let spared = [(Role::Scheduler, 0), (Role::Server, 2), (Role::Worker, 3)];
        let mut schedule = Schedule::new(double, 6);
        schedule.spare(&spared);
        let strikes: Vec<Strike> = schedule.take(300).collect();
        let firsts = strikes.iter().map(|strike| (strike.role, strike.seat));
        let seconds = strikes.iter().filter_map(|strike| strike.second).map(|one| (one.role, one.seat));
        let mut struck: Vec<(Role, u32)> = firsts.chain(seconds).collect();
        struck.sort_unstable();
        struck.dedup();
        let others =
            [(Role::Server, 0), (Role::Server, 1), (Role::Worker, 0), (Role::Worker, 1), (Role::Worker, 2)];
        assert_eq!(struck, others);
        let mut alone = Schedule::new(menu(&[Kind::Kill], &[Role::Scheduler]), 6);
        alone.spare(&spared);
        assert_eq!(alone.next().map(|strike| strike.role), Some(Role::Scheduler), "there is nobody else");
    }

    #[test]
    fn a_menu_of_nothing_ends() {
        let nothing = menu(&[Kind::Partition], &[Role::Scheduler]);
        assert!(nothing.is_empty());
        assert_eq!(Schedule::new(nothing, 1).next(), None);
    }
}
