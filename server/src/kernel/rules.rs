//! The update rules over chunks. What they make of one element is in `proto_common`, or in the server's program.

use super::{Element, Operand, Weights, check, set};
use crate::own::Applied;
use fabric::simd::{Pass, widest};
use proto_common::optimizer::elements::{Block, Whole};
use proto_common::optimizer::{Real, Step};

/// What a round makes of a chunk.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// By a rule of the registry.
    Listed(&'a Step),
    /// By a rule of the server's program.
    Own(Applied<'a>),
}

impl<'a> From<&'a Step> for Change<'a> {
    fn from(step: &'a Step) -> Self {
        Self::Listed(step)
    }
}

/// The update rule of one round over part of a chunk.
///
/// `sum` holds the contributions' sum, `state` the arrays that the rule keeps, as many as
/// `Optimizer::state_arrays` says, the others empty. All have one length. A rule with norms goes two ways: see `direction`,
/// then this with `Step::along`.
///
/// # Panics
/// They differ in length.
pub fn update<'a, E: Element>(
    change: impl Into<Change<'a>>,
    sum: impl Operand<E::Sum>,
    weights: Weights<'_, E>,
    state: [&mut [E::Sum]; 2],
) {
    let (change, chunk) = (change.into(), AtOnce { weights, sum });
    let left = match change {
        Change::Listed(step) => step.at_once(chunk),
        Change::Own(_) => Some(chunk),
    };
    if let Some(AtOnce { weights, sum }) = left {
        in_blocks(change, sum, weights, state);
    }
}

/// A whole chunk, for rules without state.
struct AtOnce<'a, E: Element, S> {
    weights: Weights<'a, E>,
    sum: S,
}

impl<E: Element, S: Operand<E::Sum>> Whole<E::Sum> for AtOnce<'_, E, S> {
    fn stateless(self, rule: impl Fn(E::Sum, E::Sum) -> E::Sum) {
        self.weights.apply(self.sum, rule);
    }
}

/// Elements of a block: with its arrays it stays in the first-level cache.
const BLOCK: usize = 1024;

/// Runs a rule block by block: each block's sum is computed first, then the rule goes over it in place. So a rule is compiled once per type
/// of sums, and not for each of its 24 combinations with kinds of operands and of weights; memory is passed over once all the same.
fn in_blocks<E: Element>(
    change: Change<'_>,
    operand: impl Operand<E::Sum>,
    mut weights: Weights<'_, E>,
    [first, second]: [&mut [E::Sum]; 2],
) {
    let count = weights.count();
    check(count, operand.count());
    match &weights {
        Weights::InPlace(_) => {}
        Weights::OutOfPlace { old, .. } => check(count, old.len()),
        Weights::Rounded { master, .. } => check(count, master.len()),
    }
    [&*first, &*second]
        .into_iter()
        .filter(|array| !array.is_empty())
        .for_each(|array| check(count, array.len()));
    // A program's rule is given the gradient, which is not the sum.
    if let (Change::Listed(_), Some(sum), Weights::InPlace(weights)) = (change, operand.slice(), &mut weights)
    {
        return apply(change, Block { weights, sum, state: [first, second] });
    }
    let mut sums = [E::Sum::default(); BLOCK];
    for start in (0..count).step_by(BLOCK) {
        let block = start..count.min(start + BLOCK);
        let sum = &mut sums[..block.len()];
        set(sum, operand.part(block.clone()));
        if let Change::Own(Applied { scale, .. }) = change {
            let scale = E::Sum::of(scale);
            sum.iter_mut().for_each(|sum| *sum = *sum * scale);
        }
        let state = [&mut *first, &mut *second].map(|array| match array.is_empty() {
            true => array,
            false => &mut array[block.clone()],
        });
        match &mut weights {
            Weights::InPlace(weights) => {
                apply(change, Block { weights: &mut weights[block], sum, state });
            }
            Weights::OutOfPlace { old, new } => {
                let weights = &mut new[block.clone()];
                weights.copy_from_slice(&old[block]);
                apply(change, Block { weights, sum, state });
            }
            Weights::Rounded { master, new } => {
                let weights = &mut master[block.clone()];
                apply(change, Block { weights: &mut *weights, sum, state });
                widest(Round::<E> { exact: weights, rounded: &mut new[block] });
            }
        }
    }
}

fn apply<T: Real + Element>(change: Change<'_>, block: Block<'_, T>) {
    match change {
        Change::Listed(step) => widest(Update { step, block }),
        Change::Own(rule) => T::own(rule, block),
    }
}

struct Round<'a, E: Element> {
    exact: &'a [E::Sum],
    rounded: &'a mut [E],
}

impl<E: Element> Pass for Round<'_, E> {
    #[inline(always)]
    fn run(self) {
        for (rounded, exact) in self.rounded.iter_mut().zip(self.exact) {
            *rounded = E::round(*exact);
        }
    }
}

/// A rule over weights in place.
struct Update<'a, T> {
    step: &'a Step,
    block: Block<'a, T>,
}

impl<T: Real> Pass for Update<'_, T> {
    #[inline(always)]
    fn run(self) {
        self.step.update(self.block);
    }
}
