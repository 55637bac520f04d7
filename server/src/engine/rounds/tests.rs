//! The rounds of one chunk by themselves: what each contribution, and each end of a round, does to them.

use super::*;
use crate::engine::waiters::Waiter;
use proto_common::batch::{Block, OpKind};
use proto_common::config::WorkerLoss;
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Epoch, Incarnation};

const KEY: Key = Key(1);

struct Rig {
    rounds: Rounds,
    roster: Roster,
}

impl Rig {
    fn new(workers: u32, spec: ChunkSpec) -> Self {
        let config = EngineConfig { workers, ..EngineConfig::sample() };
        Self { rounds: Rounds::new(&spec, &config), roster: Roster::new(workers, WorkerLoss::Continue) }
    }

    fn sync(workers: u32) -> Self {
        Self::new(workers, ChunkSpec::sample(1))
    }

    /// In rank order.
    fn turn(&self, rank: u32, round: u64) -> Result<Turn, Status> {
        self.rounds.turn((Rank(rank), round), KEY, &self.roster, true)
    }

    /// What is to be added of a rank's contribution, and whether it is the last one.
    fn fold(&mut self, rank: u32) -> Option<(Onto, bool)> {
        let folded = self.rounds.fold(held(rank, self.rounds.round(), Source::Spill(rank)));
        folded.map(|(addend, is_last)| (addend.onto, is_last))
    }

    fn ending(&self, rank: u32, version: u64) -> Status {
        let block = Block::bare(ChunkId::new(1, 0), OpKind::Push, Dtype::F32, Operation(1));
        self.rounds.ending(&Waiter::new(Rank(rank), &block, version, 0), KEY, &self.roster)
    }
}

fn held(rank: u32, round: u64, from: Source) -> Held {
    Held { rank: Rank(rank), round, operation: Operation(round), bytes: 16, from, arrived: true }
}

fn in_memory(rank: u32) -> Source {
    Source::Worker { peer: Rank(rank), region: 1, offset: 0, bytes: 16 }
}

#[test]
fn contributions_are_reduced_in_rank_order_but_for_the_first_two_which_commute() {
    let mut rig = Rig::sync(3);
    assert_eq!([0, 1, 2].map(|rank| rig.turn(rank, 1)), [Ok(Turn::Now), Ok(Turn::Now), Ok(Turn::Later)]);
    rig.rounds.hold(held(2, 1, Source::Spill(2)));
    assert_eq!((rig.turn(2, 1), rig.rounds.awaited(true)), (Ok(Turn::Repeated), vec![Rank(0), Rank(1)]));
    assert_eq!(rig.fold(1), Some((Onto::Nothing, false)));
    assert!(rig.rounds.take_held(true).is_none(), "it is rank 0's turn");
    assert_eq!((rig.turn(1, 1), rig.fold(0)), (Ok(Turn::Repeated), Some((Onto::Sum, false))));
    assert_eq!(rig.rounds.take_held(true).map(|held| held.rank), Some(Rank(2)));
    assert_eq!(rig.fold(2), Some((Onto::Sum, true)));
    assert_eq!((rig.turn(0, 5), rig.turn(0, 6)), (Ok(Turn::Later), Err(Status::Retry)), "four rounds ahead");
}

#[test]
fn a_first_contribution_waits_in_its_workers_memory_and_comes_again_if_the_channel_ends() {
    let mut rig = Rig::sync(3);
    let first = |rig: &mut Rig| rig.rounds.fold(held(0, 1, in_memory(0))).is_none();
    rig.rounds.order.mark_taken(Rank(0), Operation(1));
    assert!(first(&mut rig));
    let mut dropped = 0;
    rig.rounds.channel_ended(Rank(0), |_| dropped += 1);
    let number = rig.rounds.order.number(Rank(0), Operation(1), Operation(1));
    assert_eq!((dropped, number, rig.rounds.contributed().len()), (1, Number::Fresh, 0));
    assert!(first(&mut rig));
    assert_eq!(rig.fold(1), Some((Onto::First(in_memory(0)), false)), "one pass takes both");
    rig.rounds.channel_ended(Rank(0), |_| dropped += 1);
    assert_eq!((dropped, rig.rounds.contributed().len()), (1, 2), "it is reduced");
}

#[test]
fn a_contribution_leaves_its_workers_memory_for_a_block_unless_it_is_being_read() {
    let mut rig = Rig::sync(2);
    let moved =
        |rig: &mut Rig, to| rig.rounds.move_out((Rank(1), Operation(2)), || to).map(|moved| moved.is_some());
    assert_eq!(moved(&mut rig, Some(7)), Ok(false), "there is none");
    rig.rounds.hold(held(1, 2, in_memory(1)));
    assert_eq!((moved(&mut rig, None), moved(&mut rig, Some(7))), (Err(Blocked), Ok(true)));
    assert_eq!(moved(&mut rig, Some(8)), Ok(false), "it is in a block");
    let mut reading = Rig::sync(2);
    reading.rounds.hold(Held { arrived: false, ..held(1, 2, Source::Spill(3)) });
    assert_eq!(moved(&mut reading, Some(7)), Err(Blocked));
}

#[test]
fn a_round_that_is_complete_takes_nothing_and_what_copies_have_confirmed_is_not_abandoned() {
    let mut rig = Rig::sync(1);
    assert_eq!(rig.fold(0), Some((Onto::Nothing, true)));
    rig.rounds.wait_for(Stage::Copies);
    assert_eq!((rig.turn(0, 1), rig.rounds.takes_initial()), (Ok(Turn::Repeated), Err(Status::Refused)));
    assert_eq!((rig.rounds.promised(), rig.rounds.is_ending()), (1, false));
    rig.rounds.abandon();
    assert_eq!((rig.turn(0, 1), rig.rounds.promised()), (Ok(Turn::Now), 0));
    rig.fold(0);
    rig.rounds.wait_for(Stage::Norms);
    rig.rounds.abandon();
    assert_eq!((rig.rounds.stage(), rig.rounds.certain()), (Stage::Norms, 0));
    assert!(rig.rounds.leave_norms() && !rig.rounds.leave_norms());
    rig.rounds.wait_for(Stage::Buffer);
    rig.rounds.abandon();
    assert_eq!((rig.rounds.stage(), rig.rounds.certain(), rig.rounds.version()), (Stage::Buffer, 1, 0));
    rig.rounds.give_up();
    assert_eq!((rig.rounds.stage(), rig.rounds.contributed().len()), (Stage::Contributions, 0));
}

#[test]
fn who_contributed_to_a_round_without_new_weights_is_told_so_as_long_as_workers_can_ask() {
    let mut rig = Rig::sync(1);
    for round in 1..=80 {
        rig.fold(0);
        rig.rounds.wait_for(Stage::Verdict { into: 0 });
        assert!(rig.rounds.is_judged());
        rig.rounds.end(round % 2 == 0);
    }
    let told = [80, 79, 17, 16, 15].map(|round| rig.ending(0, round));
    let (bad, done) = (Status::BadValue, Status::Done);
    assert_eq!(told, [done, bad, bad, done, done]);
}

#[test]
fn a_round_with_backup_workers_ends_without_some_whose_contributions_are_late() {
    let mut rig = Rig::new(3, ChunkSpec { backup_workers: 1, ..ChunkSpec::sample(1) });
    assert!(!rig.rounds.are_common());
    rig.rounds.hold(held(2, 1, Source::Spill(2)));
    assert_eq!((rig.fold(0), rig.fold(1)), (Some((Onto::Nothing, false)), Some((Onto::Sum, true))));
    rig.rounds.wait_for(Stage::Buffer);
    assert!(rig.rounds.take_late().is_none(), "its round has not ended");
    rig.rounds.end(true);
    assert_eq!(rig.rounds.take_late().map(|late| late.rank), Some(Rank(2)));
    assert_eq!(
        (rig.turn(2, 1), rig.ending(2, 1), rig.ending(1, 1)),
        (Ok(Turn::Late), Status::Late, Status::Done)
    );
}

#[test]
fn a_round_goes_on_without_a_worker_that_has_left_and_ends_if_nobody_else_is_missing() {
    let mut rig = Rig::sync(2);
    let lives = [(Rank(0), Incarnation(1)), (Rank(1), Incarnation(2))];
    rig.roster.change(Epoch::from_number(1), &lives, &[], |_| {});
    rig.rounds.renew(KEY, &rig.roster);
    assert_eq!((rig.fold(0), rig.rounds.is_short()), (Some((Onto::Nothing, false)), false));
    rig.roster.change(Epoch::from_number(2), &lives[..1], &[Rank(1)], |_| {});
    rig.rounds.renew(KEY, &rig.roster);
    assert!(rig.rounds.is_short() && !rig.rounds.is_vacant(KEY, &rig.roster));
    let (mut present, mut absent) = (RankSet::new(2), RankSet::new(2));
    rig.rounds.add_absent(&mut present, &mut absent);
    assert_eq!(absent.len(), 0);
    // Both have gone, and one that comes counts from round 4 on: the rounds before it are nobody's.
    rig.rounds.end(true);
    let epoch = Epoch::from_number;
    rig.roster.change(epoch(3), &[], &[Rank(0), Rank(1)], |_| {});
    rig.roster.change(epoch(4), &[(Rank(1), Incarnation(3))], &[], |_| {});
    assert_eq!(rig.turn(1, 2), Err(Status::Retry), "nobody has said from which round on it counts");
    rig.roster.count(Rank(1), Incarnation(3), &[(KEY, 4)]);
    for _ in 2..4 {
        rig.rounds.renew(KEY, &rig.roster);
        assert!(rig.rounds.is_vacant(KEY, &rig.roster));
        rig.rounds.end(false);
    }
    rig.rounds.renew(KEY, &rig.roster);
    assert!(!rig.rounds.is_vacant(KEY, &rig.roster) && rig.turn(1, 4) == Ok(Turn::Now));
    assert_eq!(rig.turn(1, 3), Ok(Turn::Late));
}

#[test]
fn contributions_to_one_round_are_of_one_length() {
    let mut rig = Rig::new(3, ChunkSpec { dynamic: true, ..ChunkSpec::sample(1) });
    assert_eq!(rig.rounds.check_length(1, 8), Ok(()));
    rig.fold(0);
    rig.rounds.hold(Held { bytes: 8, ..held(1, 2, Source::Spill(1)) });
    let checked = [(1, 16), (1, 8), (2, 8), (2, 16), (3, 4)]
        .map(|(round, bytes)| rig.rounds.check_length(round, bytes));
    let wrong = Err(Status::WrongShape);
    assert_eq!(checked, [Ok(()), wrong, Ok(()), wrong, Ok(())]);
}
