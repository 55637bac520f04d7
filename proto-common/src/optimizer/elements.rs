//! The loops that rules share: a rule says what becomes of one element, and these run it over all of them. Each loop is
//! compiled into its caller, so that nothing is called per element and the compiler can vectorise it.

use super::real::Real;

/// Part of a chunk in place: weights, the sum of the round's contributions, and the arrays that the rule keeps. Arrays that it
/// does not keep are empty; all others have one length.
#[derive(Debug)]
pub struct Block<'a, T> {
    /// The weights, which change.
    pub weights: &'a mut [T],
    /// The contributions' sum.
    pub sum: &'a [T],
    /// The rule's state, which changes.
    pub state: [&'a mut [T]; 2],
}

impl<T: Real> Block<'_, T> {
    /// weight = rule(weight, sum).
    #[inline(always)]
    pub fn stateless(self, rule: impl Fn(T, T) -> T) {
        each(self.weights, self.sum, (), |w, s, ()| (rule(w, s), ()));
    }

    /// (weight, a) = rule(weight, sum, a), with `a` of the first array.
    #[inline(always)]
    pub fn with_one(self, rule: impl Fn(T, T, T) -> (T, T)) {
        let [first, _] = self.state;
        each(self.weights, self.sum, first, rule);
    }

    /// (weight, [a, b]) = rule(weight, sum, [a, b]), with `a` and `b` of the two arrays.
    #[inline(always)]
    pub fn with_two(self, rule: impl Fn(T, T, [T; 2]) -> (T, [T; 2])) {
        each(self.weights, self.sum, self.state, rule);
    }
}

/// All elements of a chunk, wherever their operands are. A loop over them is compiled for every kind of operands, and so only
/// the shortest rules have one.
pub trait Whole<T> {
    /// weight = rule(weight, sum).
    fn stateless(self, rule: impl Fn(T, T) -> T);
}

/// Squares are summed in this many sums by turns, so that every vector unit adds in the same order.
const SUMS: usize = 8;

/// Sums of squares: of the weights, and of the steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct SquareSums([[f64; SUMS]; 2]);

impl SquareSums {
    /// Of the weights, and of the steps.
    #[must_use]
    #[inline]
    pub fn totals(self) -> [f64; 2] {
        self.0.map(|[a, b, c, d, e, f, g, h]| ((a + b) + (c + d)) + ((e + f) + (g + h)))
    }
}

/// A chunk of a tensor whose rule needs norms: the contributions' sum becomes the chunk's steps.
#[derive(Debug)]
pub struct Steps<'a, T> {
    /// The contributions' sum, then the steps.
    pub sum: &'a mut [T],
    /// The weights.
    pub weights: &'a [T],
    /// The rule's state, which changes.
    pub state: [&'a mut [T]; 2],
    /// The squares of weights and steps are added here.
    pub squares: &'a mut SquareSums,
}

impl<T: Real> Steps<'_, T> {
    /// (step, [a, b]) = rule(weight, sum, [a, b]), with `a` and `b` of the two arrays.
    #[inline(always)]
    pub fn with_two(self, rule: impl Fn(T, T, [T; 2]) -> (T, [T; 2])) {
        let Self { sum, weights, state: [first, second], squares: SquareSums([of_weights, of_steps]) } = self;
        let count = sum.len().min(weights.len()).min(first.len()).min(second.len());
        let mut at = 0;
        while at < count {
            let end = (at + SUMS).min(count);
            for i in at..end {
                let (step, [a, b]) = rule(weights[i], sum[i], [first[i], second[i]]);
                (first[i], second[i], sum[i]) = (a, b, step);
            }
            for i in at..end {
                let (w, u) = (weights[i].exact(), sum[i].exact());
                of_weights[i - at] += w * w;
                of_steps[i - at] += u * u;
            }
            at = end;
        }
    }
}

/// The arrays that a rule keeps from round to round: none, one or two.
trait State {
    /// What they hold at one index.
    type Values;
    /// Panics where one is not of this length.
    fn check(&self, count: usize);
    fn at(&self, index: usize) -> Self::Values;
    fn set(&mut self, index: usize, values: Self::Values);
}

impl State for () {
    type Values = ();
    #[inline(always)]
    fn check(&self, _: usize) {}
    #[inline(always)]
    fn at(&self, _: usize) {}
    #[inline(always)]
    fn set(&mut self, _: usize, (): ()) {}
}

impl<T: Real> State for &mut [T] {
    type Values = T;
    #[inline(always)]
    fn check(&self, count: usize) {
        check(count, self.len());
    }
    #[inline(always)]
    fn at(&self, index: usize) -> T {
        self[index]
    }
    #[inline(always)]
    fn set(&mut self, index: usize, value: T) {
        self[index] = value;
    }
}

impl<T: Real> State for [&mut [T]; 2] {
    type Values = [T; 2];
    #[inline(always)]
    fn check(&self, count: usize) {
        check(count, self[0].len());
        check(count, self[1].len());
    }
    #[inline(always)]
    fn at(&self, index: usize) -> [T; 2] {
        [self[0][index], self[1][index]]
    }
    #[inline(always)]
    fn set(&mut self, index: usize, [first, second]: [T; 2]) {
        self[0][index] = first;
        self[1][index] = second;
    }
}

/// (weight, state) = rule(weight, sum, state), element by element.
#[inline(always)]
fn each<T: Real, S: State>(
    weights: &mut [T],
    sum: &[T],
    mut state: S,
    rule: impl Fn(T, T, S::Values) -> (T, S::Values),
) {
    let count = weights.len();
    check(count, sum.len());
    state.check(count);
    for i in 0..count {
        let (weight, values) = rule(weights[i], sum[i], state.at(i));
        weights[i] = weight;
        state.set(i, values);
    }
}

/// Once per pass, so that the loops need no check of their own.
#[inline(always)]
fn check(count: usize, found: usize) {
    assert_eq!(found, count, "elements of an operand");
}
