//! What a cluster can bear: whose death leaves every chunk with somebody who has it whole, and somebody who knows. What lies
//! beyond is not drawn, but for the loss of both copies, after which the job must end with that error.

use super::Lab;
use super::seat::{Body, Seat};
use super::server::Server;
use gradwire_scheduler::engine::Engine;
use proto_common::ids::{Incarnation, Rank, Role};
use proto_common::shard_map::{KeyRange, ShardMap};
use std::collections::BTreeMap;

impl Lab {
    fn servers(&self) -> impl Iterator<Item = &Server> {
        self.seats.iter().filter_map(Seat::server_ref)
    }

    fn newest_map(&self) -> Option<&ShardMap> {
        self.servers().map(|server| server.member.map()).max_by_key(|map| map.epoch())
    }

    /// Workers that a scheduler can learn from.
    fn workers_that_know(&self) -> usize {
        self.knowing_workers().len()
    }

    fn knowing_workers(&self) -> Vec<usize> {
        let is_doubtful = |seat: &Seat| seat.process.as_ref().is_none_or(|process| process.is_doubtful);
        let knows = |seat: &&Seat| {
            let worker = seat.worker_ref().filter(|_| !is_doubtful(seat));
            worker.is_some_and(|worker| worker.member.resume().is_some())
        };
        (0..self.seats.len()).filter(|at| knows(&&self.seats[*at])).collect()
    }

    fn is_settled(&self) -> bool {
        self.trouble_us.is_none_or(|trouble_us| self.brain.decided_us > trouble_us)
    }

    /// Is a death not decided about yet, by a scheduler that is there, or by the next one?
    pub(super) fn is_undecided(&self) -> bool {
        let is_before = |trouble_us| self.brain.decided_us < trouble_us;
        let is_decided_about = self.brain.is_running(self.now_us()) || self.can_follow();
        self.trouble_us.is_some_and(is_before) && is_decided_about
    }

    /// Is nobody there to decide, and can the next scheduler without some server? It has to be shown by a worker what was
    /// decided last; here by any of them, because all but one may go before it asks.
    fn can_follow(&self) -> bool {
        let worker = |at: &usize| self.seats[*at].worker_ref().map(|worker| worker.member.epoch());
        let knowing = self.knowing_workers();
        let server = |server: &Server| server.member.peers().map(|peers| peers.epoch);
        let newest = self.servers().filter_map(server).chain(knowing.iter().filter_map(worker)).max();
        self.brain.engine.is_none() && !knowing.is_empty() && knowing.iter().all(|at| worker(at) == newest)
    }

    /// Has everything been decided that is to be, and do all servers know of it? Then a scheduler needs no worker to learn
    /// from.
    fn all_servers_know(&self) -> bool {
        let Some(newest) = self.newest_map().map(ShardMap::epoch) else { return false };
        let told_us = self.brain.decided_us + 2 * self.shape.control_us;
        let scheduler = self.brain.engine.as_ref();
        let living = self.living(Some(Role::Server));
        let lives: BTreeMap<Rank, Incarnation> = living
            .iter()
            .filter_map(|at| {
                Some((self.seats[*at].server_ref()?.rank, self.seats[*at].process.as_ref()?.life))
            })
            .collect();
        let knows = |at: &usize| {
            self.seats[*at].server_ref().is_some_and(|server| {
                let is_newest = server.member.map().epoch() == newest;
                let mut others = lives.clone();
                others.remove(&server.rank);
                is_newest && server.member.peers().is_some_and(|peers| peers.servers == others)
            })
        };
        self.is_settled()
            && told_us.max(self.cut_off_us) < self.now_us()
            && scheduler.is_none_or(|engine| engine.epoch() == newest)
            && living.iter().all(knows)
    }

    /// Can the scheduler be away? Where a worker is there that the next one can learn from, or all servers know all.
    /// Who has no roster yet ends with it.
    pub(super) fn can_lose_scheduler(&self) -> bool {
        let has_roster =
            |at: &usize| self.seats[*at].server_ref().is_some_and(|server| server.member.has_roster());
        self.living(Some(Role::Server)).iter().all(has_roster)
            && self.can_tell()
            && self.leaves_majority(None)
    }

    /// Can a scheduler that begins again learn from its members what was decided?
    pub(super) fn can_tell(&self) -> bool {
        // A worker that has said goodbye is let go, and asked nothing.
        let stays = |at: &usize| !self.seats[*at].is_done;
        self.knowing_workers().iter().any(stays) || self.all_servers_know()
    }

    /// Those of a role that may be gone, as far as the scheduler can see.
    pub(super) fn can_go_of(&self, role: Role) -> Vec<usize> {
        let may = if role == Role::Server { self.servers_that_can_go() } else { self.workers_that_can_go() };
        may.into_iter().filter(|at| self.leaves_majority(Some(*at))).collect()
    }

    /// Are those of the newest roster a majority that live and are in no doubt, without this one? What is cut off shows nobody that
    /// it has not gone to another scheduler.
    fn leaves_majority(&self, without: Option<usize>) -> bool {
        let peers = |at: usize| Some((self.seats[at].server_ref()?.member.peers()?, at));
        let newest = self.living(Some(Role::Server)).into_iter().filter_map(peers);
        let Some((peers, at)) = newest.max_by_key(|(peers, _)| peers.epoch) else { return true };
        let own = self.seats[at].process.as_ref().map(|process| process.life);
        let lives: Vec<Incarnation> =
            peers.servers.values().chain(peers.workers.values()).copied().chain(own).collect();
        let is_sure = |at: &usize| {
            let process = self.seats[*at].process.as_ref();
            let is_known = |life: &Incarnation| lives.contains(life);
            without != Some(*at)
                && process.is_some_and(|process| !process.is_doubtful && is_known(&process.life))
        };
        2 * self.living(None).iter().filter(|at| is_sure(at)).count() > lives.len()
    }

    /// A scheduler that is there sees that a process has exited; the next one does not know of it. A scheduler that has just taken over
    /// needs a majority of the roster before it, in which processes count that have failed unseen.
    fn can_exit(&self, at: usize) -> bool {
        let is_deciding = self.brain.engine.as_ref().is_some_and(Engine::has_undecided);
        match self.brain.is_running(self.now_us()) {
            true => !is_deciding,
            false => self.leaves_majority(Some(at)),
        }
    }

    pub(super) fn servers_that_can_go(&self) -> Vec<usize> {
        let may = |at: &usize| self.can_go(*at) && self.can_exit(*at);
        self.living(Some(Role::Server)).into_iter().filter(may).collect()
    }

    /// Any worker; the last one only where a scheduler that takes over has servers to learn from.
    pub(super) fn workers_that_can_go(&self) -> Vec<usize> {
        let is_borne =
            self.workers_that_know() > 1 || self.brain.is_running(self.now_us()) || self.all_servers_know();
        let living = self.living(Some(Role::Worker));
        let may = |at: &usize| {
            let seat = &self.seats[*at];
            !seat.is_done
                && matches!(seat.process.as_ref().map(|process| &process.body), Some(Body::Worker(_)))
        };
        let knowing = self.knowing_workers();
        // Where rounds go on without the dead somebody has to be left. And nobody else sets initial values than rank 0: where it
        // dies before, the others wait for them until their deadline, as it counts from the second round on when it comes.
        let is_initial = |at: &usize| self.seats[*at].worker_ref().is_none_or(|one| one.rank == Rank(0));
        let has_begun = (0..self.tensors.len()).all(|tensor| self.watch.begun(tensor, Rank(0)) > 0);
        let others = |at: &usize| knowing.iter().any(|other| other != at);
        let is_left = |at: &usize| !self.shape.continues || others(at) && (has_begun || !is_initial(at));
        let may_exit = |at: &usize| is_borne && may(at) && is_left(at) && self.can_exit(*at);
        living.into_iter().filter(may_exit).collect()
    }

    /// Has somebody else all that a server has, by every map that is known, and is nobody else in trouble?
    fn can_go(&self, at: usize) -> bool {
        let Some(server) = self.seats[at].server_ref() else { return false };
        let now_us = self.now_us();
        let told_us = self.brain.decided_us + 2 * self.shape.control_us;
        // One death is decided about before the next.
        let is_led = self.brain.engine.is_some()
            && (self.workers_that_know() > 0 || self.brain.is_running(now_us))
            && self.brain.paused_until_us <= now_us;
        if !is_led && !self.can_follow() || !self.is_settled() || self.cut_off_us.max(told_us) > now_us {
            return false;
        }
        let map = server.member.map();
        let is_there = |rank: Rank| {
            self.servers().any(|other| other.rank == rank && other.member.map().epoch() == map.epoch())
        };
        let is_whole = |range: &KeyRange| is_there(range.server) && range.backup.is_some_and(is_there);
        let newest = self.newest_map().map(ShardMap::epoch);
        Some(map.epoch()) == newest && !map.is_empty() && map.ranges().all(is_whole)
    }

    /// Servers that may die before the death of another one is decided about, because they share no chunk with it; and those
    /// with which something of it is lost.
    pub(super) fn second_servers(&self, first: Rank) -> (Vec<usize>, Vec<usize>) {
        let Some(map) = self.newest_map() else { return Default::default() };
        let shares = |rank: Rank| {
            let of_both = |range: &KeyRange| {
                let has = |rank| range.server == rank || range.backup == Some(rank);
                has(first) && has(rank)
            };
            map.ranges().any(of_both)
        };
        let rank = |at: &usize| self.seats[*at].server_ref().map(|server| server.rank);
        let others = self.living(Some(Role::Server)).into_iter().filter(|at| rank(at).is_some());
        let (bound, apart): (Vec<usize>, Vec<usize>) = others.partition(|at| rank(at).is_some_and(shares));
        let apart = apart.into_iter().filter(|at| self.can_exit(*at)).collect();
        (apart, bound)
    }
}
