//! Update rules that the program of a server registers, and declarations that name one. The server and the scheduler check them.

use crate::border::{slice, text};
use crate::error::Failure;
use gradwire_server::{Block, OwnKind, OwnRule, OwnStep, Range, Rules};
use proto_common::optimizer::Own;
use std::ffi::{c_char, c_void};
use std::ptr;

/// A declaration's choice of a rule that the servers' program has registered.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradwireOwn {
    /// The rule's name.
    pub name: *const c_char,
    /// Parameters, in any order. Those that are missing have their usual values.
    pub parameters: *const GradwireParameter,
    /// The number of parameters given.
    pub parameter_count: u64,
}

/// A parameter's value.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradwireParameter {
    /// Its name.
    pub name: *const c_char,
    /// Its value.
    pub value: f32,
}

impl GradwireOwn {
    pub(crate) fn typed(&self) -> Result<Own, Failure> {
        let parameters = slice(self.parameters, self.parameter_count, "own->parameters")?;
        let parameters: Vec<(&str, f32)> = parameters
            .iter()
            .map(|given| Ok((text(given.name, "own->parameters->name")?, given.value)))
            .collect::<Result<_, Failure>>()?;
        Own::new(text(self.name, "own->name")?, &parameters)
            .map_err(|error| Failure::argument(error.to_string()))
    }
}

/// The allowed values of a parameter. All are finite.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradwireRange {
    /// Every finite number.
    Any = 0,
    /// At least 0.
    NotNegative = 1,
    /// Above 0.
    Positive = 2,
    /// From 0 to below 1.
    Share = 3,
    /// From 0 to 1.
    UpToOne = 4,
}

/// A parameter of a registered rule.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradwireOwnParameter {
    /// Its name: at most 12 of `a` to `z`, `0` to `9` and `_`.
    pub name: *const c_char,
    /// A `GradwireRange`.
    pub range: i32,
    /// Its value in declarations that do not give it.
    pub usual: f32,
}

/// The numbers of one round.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradwireOwnStep {
    /// The round, from 1; outside mode sync the chunk's version.
    pub round: u64,
    /// The step size, by the declaration's learning rate and schedule.
    pub rate: f32,
    /// The declaration's weight decay. The rule applies it, or not.
    pub decay: f32,
    /// The rule's parameters, in the order in which it names them.
    pub parameters: *const f32,
}

/// One round over part of a chunk: changes `weights`, and the rule's state in `first` and `second`, which begins with
/// zeros and is null for arrays that the rule does not keep. `gradient` is the sum of the contributions, divided by
/// their number and multiplied by `rescale` if the declaration says so. All arrays have `elements` elements. What becomes
/// of an element may depend on this element and on `step` only, because chunks are cut into blocks of any length. The
/// server's data threads call it, several at once. No exception may leave it.
pub type GradwireUpdate = Option<
    extern "C" fn(
        context: *mut c_void,
        step: Option<&GradwireOwnStep>,
        elements: u64,
        weights: *mut f32,
        gradient: *const f32,
        first: *mut f32,
        second: *mut f32,
    ),
>;

/// An update rule of this program. All servers of a job must have the same ones.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradwireOwnRule {
    /// Its name: at most 24 of `a` to `z`, `0` to `9` and `_`.
    pub name: *const c_char,
    /// Its parameters.
    pub parameters: *const GradwireOwnParameter,
    /// The number of its parameters, at most 8.
    pub parameter_count: u64,
    /// The number of arrays that it keeps, at most 2.
    pub arrays: u32,
    /// Its arithmetic.
    pub update: GradwireUpdate,
    /// Passed to `update`. It must exist until the server is freed.
    pub context: *mut c_void,
}

/// The rules of a program.
pub(crate) fn rules(given: &[GradwireOwnRule]) -> Result<Rules, Failure> {
    let mut rules = Rules::default();
    for rule in given {
        let registered = rules.register(rule.typed()?);
        registered.map_err(|error| Failure::argument(error.to_string()))?;
    }
    Ok(rules)
}

impl GradwireOwnRule {
    fn typed(&self) -> Result<Registered, Failure> {
        let update = self.update.ok_or_else(|| Failure::null("rules->update"))?;
        let arrays = u8::try_from(self.arrays).unwrap_or(u8::MAX);
        let mut kind = OwnKind::new(text(self.name, "rules->name")?).keeps(arrays);
        for parameter in slice(self.parameters, self.parameter_count, "rules->parameters")? {
            let name = text(parameter.name, "rules->parameters->name")?;
            kind = kind.parameter(name, range(parameter.range)?, parameter.usual);
        }
        Ok(Registered { kind, update, context: self.context })
    }
}

fn range(number: i32) -> Result<Range, Failure> {
    Ok(match number {
        0 => Range::Any,
        1 => Range::NotNegative,
        2 => Range::Positive,
        3 => Range::Share,
        4 => Range::UpToOne,
        _ => {
            let text = format!("invalid range {number}; use a GRADWIRE_RANGE_ constant");
            return Err(Failure::argument(text));
        }
    })
}

struct Registered {
    kind: OwnKind,
    update:
        extern "C" fn(*mut c_void, Option<&GradwireOwnStep>, u64, *mut f32, *const f32, *mut f32, *mut f32),
    context: *mut c_void,
}

// SAFETY: the header says that several threads of the library call `update` at once with this pointer, which nothing here
// looks behind. Needed to carry it there.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl OwnRule for Registered {
    fn kind(&self) -> OwnKind {
        self.kind.clone()
    }

    fn update(&self, step: &OwnStep<'_>, block: Block<'_, f32>) {
        let Block { weights, sum, state: [first, second] } = block;
        let step = GradwireOwnStep {
            round: step.round,
            rate: step.rate,
            decay: step.decay,
            parameters: step.parameters.as_ptr(),
        };
        let kept = |array: &mut [f32]| if array.is_empty() { ptr::null_mut() } else { array.as_mut_ptr() };
        let elements = weights.len() as u64;
        (self.update)(
            self.context,
            Some(&step),
            elements,
            weights.as_mut_ptr(),
            sum.as_ptr(),
            kept(first),
            kept(second),
        );
    }
}
