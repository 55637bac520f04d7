//! Update rules that the program of a server registers: what such a rule is ([`OwnRule`]), and the list of them. It must not know
//! where weights lie, nor when a round is complete.

pub use proto_common::optimizer::elements::Block;
use proto_common::optimizer::{Own, OwnKind, OwnKindError, RuleName};
pub use proto_common::optimizer::{OwnParameter, Range};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use thiserror::Error;

/// An update rule of a program that embeds a server.
///
/// It computes element by element: what becomes of a weight and of its state may depend on that weight, its gradient, its
/// state and the [`OwnStep`], and on nothing else. If a rule also looked at the neighbours of an element, or counted its calls,
/// then results would depend on how the tensor is cut: a chunk is given to the rule in blocks of any length, chunks have another
/// length in a job with another `cluster.chunk_bytes`, and a chunk that moves to another server after a failure continues there.
/// For the same reason it must not draw random numbers or look at a clock. [`Block::with_two`] and its siblings run a closure
/// over the elements, and so keep to this.
///
/// It runs on the server's data threads, of several chunks at once, and delays all other chunks of its thread. If it panics, the
/// server fails with an error that names the rule.
pub trait OwnRule: Send + Sync {
    /// Its name, its parameters, and how many arrays it keeps. It is asked once, when the rule is registered.
    fn kind(&self) -> OwnKind;

    /// One round over part of a chunk. `sum` of the block is the gradient: the contributions' sum, divided by their number and
    /// multiplied by `rescale` if the declaration says so. `state` has the arrays that the rule keeps, the others are empty.
    fn update(&self, step: &OwnStep<'_>, block: Block<'_, f32>);
}

/// The numbers of one round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnStep<'a> {
    /// The round, from 1; outside mode sync the version.
    pub round: u64,
    /// The step size, by the declaration's learning rate and schedule.
    pub rate: f32,
    /// The declaration's weight decay. The rule applies it, or not.
    pub decay: f32,
    /// The rule's parameters, in the order in which it has named them.
    pub parameters: &'a [f32],
}

/// A server's rule that cannot be applied.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OwnRuleError {
    /// The program has no such rule.
    #[error(
        "this server's program has no update rule {0}; register it before the server starts (docs/own-rules.md)"
    )]
    Missing(RuleName),
    /// The program's rule is another one.
    #[error(
        "update rule {rule} of this server's program has {ours}, but the tensor or its checkpoint has {theirs}; run the program \
         that it was made with"
    )]
    Other {
        /// The rule.
        rule: RuleName,
        /// What the program's rule has.
        ours: String,
        /// What the tensor's has.
        theirs: String,
    },
    /// It panicked.
    #[error("update rule {rule} of this server's program panicked: {reason}")]
    Panicked {
        /// The rule.
        rule: RuleName,
        /// What the panic said.
        reason: String,
    },
}

/// The rules of a program. All servers of a job must have the same ones, also those that replace a failed one.
#[derive(Clone, Default)]
pub struct Rules(Vec<Registered>);

#[derive(Clone)]
struct Registered {
    kind: OwnKind,
    rule: Arc<dyn OwnRule>,
}

impl Rules {
    /// Adds a rule.
    pub fn register(&mut self, rule: impl OwnRule + 'static) -> Result<(), OwnKindError> {
        let mut kinds = self.kinds();
        kinds.push(rule.kind());
        OwnKind::check_all(&kinds)?;
        let kind = kinds.swap_remove(self.0.len());
        self.0.push(Registered { kind, rule: Arc::new(rule) });
        Ok(())
    }

    /// Their description for the scheduler.
    pub(crate) fn kinds(&self) -> Vec<OwnKind> {
        self.0.iter().map(|registered| registered.kind.clone()).collect()
    }

    /// The rule that a tensor names, if the program has it with the same parameters and arrays.
    pub(crate) fn find(&self, own: &Own) -> Result<&Arc<dyn OwnRule>, OwnRuleError> {
        let rule = own.name;
        let named = |registered: &&Registered| registered.kind.name == rule.as_str();
        let Registered { kind, rule: found } =
            self.0.iter().find(named).ok_or(OwnRuleError::Missing(rule))?;
        let ours = kind.parameters.iter().map(|parameter| parameter.name.as_str());
        let theirs: Vec<_> = own.parameters.pairs().map(|(name, _)| name).collect();
        if kind.arrays == own.arrays && ours.eq(theirs.iter().map(|name| name.as_str())) {
            return Ok(found);
        }
        let theirs: Vec<&str> = theirs.iter().map(|name| name.as_str()).collect();
        let theirs = format!("parameters {} and {} arrays", theirs.join(", "), own.arrays);
        Err(OwnRuleError::Other { rule, ours: kind.to_string(), theirs })
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|registered| &registered.kind.name)).finish()
    }
}

/// The rule that a chunk had last, so that it is looked up once.
#[derive(Clone, Default)]
pub(crate) struct Found(Option<(Own, Arc<dyn OwnRule>)>);

impl Found {
    /// The rule that a chunk has.
    pub(crate) fn of(&mut self, rules: &Rules, own: &Own) -> Result<&dyn OwnRule, OwnRuleError> {
        if self.0.as_ref().is_none_or(|(before, _)| before != own) {
            self.0 = None;
        }
        let (_, rule) = match &mut self.0 {
            Some(found) => found,
            none => none.insert((*own, rules.find(own)?.clone())),
        };
        Ok(&**rule)
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Found").field(&self.0.as_ref().map(|(own, _)| own)).finish()
    }
}

/// A rule in one round.
#[derive(Clone, Copy)]
pub struct Applied<'a> {
    /// The rule.
    pub rule: &'a dyn OwnRule,
    /// The round's numbers.
    pub step: OwnStep<'a>,
    /// Factor of the contributions' sum.
    pub scale: f64,
}

impl fmt::Debug for Applied<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Applied")
            .field("step", &self.step)
            .field("scale", &self.scale)
            .finish_non_exhaustive()
    }
}

/// Runs a rule's work; a panic is an error that names the rule. What it leaves half done is not used any more: the lane fails.
pub(crate) fn caught<T>(rule: RuleName, work: impl FnOnce() -> T) -> Result<T, OwnRuleError> {
    catch_unwind(AssertUnwindSafe(work))
        .map_err(|panic| OwnRuleError::Panicked { rule, reason: reason(&*panic) })
}

/// The text of a panic.
pub(crate) fn reason(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no reason was given").to_owned()
}
