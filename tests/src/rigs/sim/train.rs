//! A worker's program: initialise, then rounds over all tensors in a random order, then the final weights.

use super::cluster::Cluster;
use super::ops::{Kind, OpId};
use fabric::sim::Rng;
use std::collections::VecDeque;

/// How a trainer uses its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// `push_pull` of every tensor, and all of a round are waited for before the next.
    Waited,
    /// Pushes, pulls and `push_pull`s as they come, a few rounds ahead of their answers.
    Pipelined,
}

pub(super) struct Trainer {
    style: Style,
    rounds: u64,
    rng: Rng,
    /// What is to be submitted next, in order.
    todo: VecDeque<(usize, Kind)>,
    round: u64,
    /// Contributions that have not ended, oldest first.
    pending: VecDeque<OpId>,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Init,
    Rounds,
    Last,
    Over,
}

impl Cluster {
    /// Gives every worker its program: initialise all tensors, `rounds` rounds, pull everything.
    pub fn train(&mut self, style: Style, rounds: u64) {
        // A dynamic tensor is empty until its first round.
        let fixed = |tensor: &usize| !self.shape.tensors[*tensor].dynamic;
        let fixed: Vec<usize> = (0..self.shape.tensors.len()).filter(fixed).collect();
        fixed.iter().for_each(|tensor| self.oracle.initialise(*tensor));
        for rank in 0..self.workers.len() {
            let todo = fixed.iter().map(|tensor| (*tensor, Kind::Init)).collect();
            let rng = self.rng.fork();
            let (pending, stage) = (VecDeque::new(), Stage::Init);
            let trainer = Trainer { style, rounds, rng, todo, round: 0, pending, stage };
            self.workers[rank].trainer = Some(trainer);
        }
    }

    /// Have all living workers gone through their programs?
    #[must_use]
    pub fn trained(&self) -> bool {
        let over = |trainer: &Trainer| trainer.stage == Stage::Over;
        self.workers.iter().all(|worker| worker.crashed || worker.trainer.as_ref().is_none_or(over))
    }

    /// Lets a worker's program go on as far as it can.
    pub(super) fn advance_trainer(&mut self, rank: usize) {
        let Some(mut trainer) = self.workers[rank].trainer.take() else { return };
        while self.advance_once(rank, &mut trainer) {}
        self.workers[rank].trainer = Some(trainer);
    }

    fn advance_once(&mut self, rank: usize, trainer: &mut Trainer) -> bool {
        while trainer.pending.front().is_some_and(|op| self.ended(*op).is_some()) {
            trainer.pending.pop_front();
        }
        // At least all tensors of a round: two workers that wait for each other's other tensor wait for ever. Where rounds
        // go on without a worker, its tensors are at several rounds at once.
        let in_step = self.shape.tensors.iter().all(|tensor| tensor.settled_backup() == 0);
        let window = match (trainer.stage, trainer.style) {
            (Stage::Rounds, Style::Pipelined) if in_step => self.shape.tensors.len() * 2,
            _ => usize::MAX,
        };
        if let Some((tensor, kind)) = trainer.todo.front().copied() {
            if trainer.pending.len() >= window {
                return false;
            }
            trainer.todo.pop_front();
            let contributes = matches!(kind, Kind::Push | Kind::PushPull);
            if contributes && self.workers[rank].numbers[tensor].1 >= trainer.rounds {
                // Its last round went on without this worker meanwhile.
                return true;
            }
            let op = self.submit(rank as u32, tensor, kind);
            trainer.pending.push_back(op);
            return true;
        }
        let ahead = trainer.stage == Stage::Rounds
            && trainer.style == Style::Pipelined
            && !self.has_contributed(trainer, rank);
        if !trainer.pending.is_empty() && !ahead {
            return false;
        }
        self.next_round(trainer, rank)
    }

    /// Is there no round left of any tensor to contribute to?
    fn has_contributed(&self, trainer: &Trainer, rank: usize) -> bool {
        self.workers[rank].numbers.iter().all(|(_, rounds)| *rounds >= trainer.rounds)
    }

    fn next_round(&self, trainer: &mut Trainer, rank: usize) -> bool {
        let mut tensors: Vec<usize> = (0..self.shape.tensors.len()).collect();
        for at in (1..tensors.len()).rev() {
            tensors.swap(at, trainer.rng.below(at as u64 + 1) as usize);
        }
        trainer.stage = match trainer.stage {
            Stage::Init => Stage::Rounds,
            Stage::Rounds if self.has_contributed(trainer, rank) => Stage::Last,
            Stage::Rounds => {
                trainer.round += 1;
                // Rounds may have gone on without this worker.
                tensors.retain(|tensor| self.workers[rank].numbers[*tensor].1 < trainer.rounds);
                for tensor in tensors {
                    let dynamic = self.shape.tensors[tensor].dynamic;
                    let kinds: &[Kind] = match (trainer.style, trainer.rng.below(3)) {
                        (Style::Waited, _) | (_, 0) if dynamic => &[Kind::Push, Kind::Pull],
                        (Style::Waited, _) | (_, 0) => &[Kind::PushPull],
                        (_, 1) => &[Kind::Push],
                        _ => &[Kind::Push, Kind::Pull],
                    };
                    trainer.todo.extend(kinds.iter().map(|kind| (tensor, *kind)));
                }
                return true;
            }
            Stage::Last | Stage::Over => Stage::Over,
        };
        if trainer.stage == Stage::Last {
            trainer.todo.extend(tensors.into_iter().map(|tensor| (tensor, Kind::Pull)));
        }
        trainer.stage != Stage::Over
    }
}
