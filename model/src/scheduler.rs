//! The scheduler: every decision is an epoch, told to all members of the roster in order.

use crate::state::{Epoch, Map, Member, Place, Rebuild, Scheduler, Seeded, Server, State};
use crate::{Broken, Protocol};

impl Protocol {
    /// A decision: it is told to everybody who is in the roster then.
    pub(crate) fn decide(&self, state: &mut State, mut map: Map) {
        map.epoch.counter += 1;
        if let Some((_, since)) = &mut map.seeding
            && *since == Epoch::default()
        {
            *since = map.epoch;
        }
        state.torn |= state.decided.insert(map.epoch, map.primary).is_some();
        for (place, server) in state.servers.iter().enumerate() {
            if map.lives[place] == server.life && server.up {
                state.to_servers[place].push(map.clone());
            }
        }
        state.to_workers.iter_mut().for_each(|queue| queue.push(map.clone()));
        state.scheduler = Scheduler::Decides(map);
    }

    /// The map without a server, or nothing if nobody else has the data.
    pub(crate) fn without(&self, map: &Map, dead: Place) -> Option<Map> {
        let mut map = map.clone();
        map.lives[usize::from(dead)] = 0;
        if map.primary == dead {
            let unfilled =
                map.seeding.filter(|_| self.lacks(Broken::PromoteUnfilled)).map(|(place, _)| place);
            map.primary = map.backup.take().or(unfilled)?;
            (map.seeding, map.moving) = (map.seeding.filter(|(place, _)| *place != map.primary), false);
            // It is made anew, by another.
            map.seeding = map.seeding.map(|(place, _)| (place, Epoch::default()));
        }
        map.backup = map.backup.filter(|place| *place != dead);
        if map.seeding.is_some_and(|(place, _)| place == dead) {
            (map.seeding, map.moving) = (None, false);
        }
        Some(map)
    }

    /// A server is declared dead; whether it is or not.
    pub(crate) fn declare_dead(&self, state: &mut State, dead: Place) {
        let Scheduler::Decides(map) = &state.scheduler else { return };
        state.to_servers[usize::from(dead)].clear();
        match self.without(map, dead) {
            Some(map) => self.decide(state, map),
            None => state.scheduler = Scheduler::Over,
        }
    }

    /// A primary says that a copy is complete.
    pub(crate) fn hear_seeded(&self, state: &mut State, seeded: &Seeded) {
        state.seeded.remove(seeded);
        let Scheduler::Decides(map) = &state.scheduler else { return };
        let meant = map.primary == seeded.from && map.seeding == Some((seeded.to, seeded.since));
        if !meant || seeded.term != map.epoch.term {
            return;
        }
        let mut map = map.clone();
        map.seeding = None;
        if map.moving {
            map.backup = Some(std::mem::replace(&mut map.primary, seeded.to));
            map.moving = false;
        } else {
            map.backup = Some(seeded.to);
        }
        self.decide(state, map);
    }

    /// A copy is to be made at a server that has no part in the chunk; or a move begins.
    pub(crate) fn seed(&self, state: &mut State, to: Place, moving: bool) {
        let Scheduler::Decides(map) = &state.scheduler else { return };
        let mut map = map.clone();
        (map.seeding, map.moving) = (Some((to, Epoch::default())), moving);
        self.decide(state, map);
    }

    /// A process without a past comes as a server; who was declared dead comes so too.
    pub(crate) fn join(&self, state: &mut State, place: Place) {
        let Scheduler::Decides(map) = &state.scheduler else { return };
        let mut map = map.clone();
        let life = state.servers[usize::from(place)].life + 1;
        map.lives[usize::from(place)] = life;
        // What it had, and its channels, ended with the life before.
        let known = Map { epoch: Epoch::default(), lives: vec![0; self.servers], ..map.clone() };
        state.servers[usize::from(place)] = Server::blank(known, life);
        state.streams.retain(|(from, to), _| *from != place && *to != place);
        state.to_servers[usize::from(place)].clear();
        self.memory_gone(state, Member::Server(place));
        self.decide(state, map);
    }

    /// A member comes to a restarted scheduler and shows what it knows.
    pub(crate) fn resume(&self, rebuild: &mut Rebuild, map: &Map) {
        if rebuild.shown.as_ref().is_none_or(|shown| shown.epoch < map.epoch) {
            rebuild.shown = Some(map.clone());
        }
    }

    /// Who of the newest roster has not come, and lives.
    pub(crate) fn missed(&self, state: &State, rebuild: &Rebuild) -> u8 {
        let Some(shown) = &rebuild.shown else { return 0 };
        let lives = |place: &usize| {
            let server = &state.servers[*place];
            server.up && server.life == shown.lives[*place] && !rebuild.servers.contains(&(*place as Place))
        };
        (0..self.servers).filter(lives).count() as u8
    }

    /// Has the restarted scheduler heard enough to decide? Workers must have come: what a server published in an epoch that
    /// no server has come to tell of, those know that were answered. Or all servers of the newest roster: then there is none.
    pub(crate) fn may_decide(&self, state: &State, rebuild: &Rebuild) -> bool {
        let Some(shown) = &rebuild.shown else { return false };
        let came = |place: &usize| shown.lives[*place] == 0 || rebuild.servers.contains(&(*place as Place));
        rebuild.workers.len() == state.workers.len()
            || (0..self.servers).all(|place| came(&place))
            || self.lacks(Broken::NoWorkerShown)
    }

    /// The restarted scheduler goes on: who has not come is dead.
    pub(crate) fn go_on(&self, state: &mut State) {
        let Scheduler::Rebuilds { term, rebuild } = state.scheduler.clone() else { return };
        let Some(shown) = rebuild.shown else { return };
        let mut map = shown.clone();
        let gone = (0..self.servers as Place)
            .filter(|place| shown.lives[usize::from(*place)] != 0 && !rebuild.servers.contains(place));
        for place in gone {
            match self.without(&map, place) {
                Some(next) => map = next,
                None => {
                    state.scheduler = Scheduler::Over;
                    return;
                }
            }
        }
        // A copy that the old one may have been told of is told again.
        map.seeding = map.seeding.map(|(place, _)| (place, Epoch::default()));
        map.epoch = Epoch { term, counter: 0 };
        for worker in 0..state.workers.len() as u8 {
            if !rebuild.workers.contains(&worker) {
                self.come_again(state, worker);
                self.follow(state, worker, shown.clone());
            }
        }
        self.decide(state, map);
    }
}
