//! Update rules that the programs of servers register: what a server reports of them, and what becomes of a declaration that
//! names one. It must not compute.

use super::bounds::Range;
use super::name::NameError;
use super::rule::CONSTANTS_MAX;
use super::rules::{Own, ParameterName, RuleName};
use serde::{Deserialize, Serialize};
use std::fmt;
use thiserror::Error;

/// The most rules of a program. They travel with the server's registration, which is a short message.
pub const OWN_RULES_MAX: usize = 16;
/// The most arrays of the tensor's length that a rule keeps.
pub const OWN_ARRAYS_MAX: u8 = 2;

/// A rule as its server reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnKind {
    /// Its name.
    pub name: String,
    /// Its parameters, in the order in which it is given their values.
    pub parameters: Vec<OwnParameter>,
    /// The number of arrays that it keeps, which begin with zeros.
    pub arrays: u8,
}

/// A parameter of such a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OwnParameter {
    /// Its name.
    pub name: String,
    /// The allowed values.
    pub range: Range,
    /// Its value in declarations that do not give it.
    pub usual: f32,
}

/// A description of a rule that cannot be registered.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum OwnKindError {
    /// An invalid name.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Too many of something.
    #[error("update rule {rule:?} has {count} {what}; at most {most} are allowed")]
    TooMany {
        /// The rule.
        rule: String,
        /// How many it has.
        count: usize,
        /// Of what.
        what: &'static str,
        /// How many are allowed.
        most: usize,
    },
    /// Two of one name.
    #[error("{what} {name:?} is registered twice; give each a name of its own")]
    Twice {
        /// What has the name.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A usual value that a declaration could not give.
    #[error(
        "update rule {rule:?}: the usual value {value} of {parameter} is out of range: it must be {range}"
    )]
    Usual {
        /// The rule.
        rule: String,
        /// The parameter.
        parameter: String,
        /// Its usual value.
        value: f32,
        /// The allowed values.
        range: &'static str,
    },
}

/// A declaration that names a rule which it cannot have.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum OwnError {
    /// No server has such a rule.
    #[error(
        "this job's servers have no update rule {rule:?}: {}. Register it in the program that runs the servers \
         (docs/own-rules.md)",
        listed(have)
    )]
    Unknown {
        /// The name.
        rule: RuleName,
        /// Those that they have.
        have: Vec<String>,
    },
    /// The rule has no such parameter.
    #[error("update rule {rule} has no parameter {parameter:?}; it has {has}")]
    Parameter {
        /// The rule.
        rule: RuleName,
        /// The parameter.
        parameter: ParameterName,
        /// What it has, in words.
        has: String,
    },
    /// A value out of range.
    #[error(
        "update rule {rule}: parameter {parameter} = {value} is out of range: it must be finite and {range}"
    )]
    OutOfRange {
        /// The rule.
        rule: RuleName,
        /// The parameter.
        parameter: ParameterName,
        /// The given value.
        value: f32,
        /// The allowed values.
        range: &'static str,
    },
}

fn listed(have: &[String]) -> String {
    match have {
        [] => "their programs have registered none".into(),
        _ => format!("they have {}", have.join(", ")),
    }
}

impl OwnKind {
    /// A rule without parameters that keeps nothing. The server checks it when it is registered.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), parameters: Vec::new(), arrays: 0 }
    }

    /// The same with one more parameter, with its range and the value that it has if a declaration does not give it.
    #[must_use]
    pub fn parameter(mut self, name: &str, range: Range, usual: f32) -> Self {
        self.parameters.push(OwnParameter { name: name.into(), range, usual });
        self
    }

    /// The same with this number of arrays that it keeps, at most [`OWN_ARRAYS_MAX`]. They have an element for each weight.
    #[must_use]
    pub fn keeps(self, arrays: u8) -> Self {
        Self { arrays, ..self }
    }

    fn check(&self) -> Result<(), OwnKindError> {
        RuleName::new(&self.name)?;
        let rule = || self.name.clone();
        let too_many =
            |count: usize, what, most| Err(OwnKindError::TooMany { rule: rule(), count, what, most });
        if self.parameters.len() > CONSTANTS_MAX {
            return too_many(self.parameters.len(), "parameters", CONSTANTS_MAX);
        }
        if self.arrays > OWN_ARRAYS_MAX {
            return too_many(self.arrays.into(), "arrays", OWN_ARRAYS_MAX.into());
        }
        for (at, OwnParameter { name, range, usual }) in self.parameters.iter().enumerate() {
            ParameterName::new(name)?;
            if self.parameters[..at].iter().any(|before| before.name == *name) {
                return Err(OwnKindError::Twice { what: "parameter", name: name.clone() });
            }
            if !range.holds(*usual) {
                let (parameter, range) = (name.clone(), range.words());
                return Err(OwnKindError::Usual { rule: rule(), parameter, value: *usual, range });
            }
        }
        Ok(())
    }

    /// Checks all rules of a program.
    pub fn check_all(kinds: &[Self]) -> Result<(), OwnKindError> {
        if kinds.len() > OWN_RULES_MAX {
            let (count, most) = (kinds.len(), OWN_RULES_MAX);
            return Err(OwnKindError::TooMany { rule: kinds[0].name.clone(), count, what: "siblings", most });
        }
        for (at, kind) in kinds.iter().enumerate() {
            kind.check()?;
            if kinds[..at].iter().any(|before| before.name == kind.name) {
                return Err(OwnKindError::Twice { what: "update rule", name: kind.name.clone() });
            }
        }
        Ok(())
    }

    /// What the programs of two servers do not have alike, in words; `None` if they have the same rules, in any order.
    #[must_use]
    pub fn difference(ours: &[Self], theirs: &[Self]) -> Option<String> {
        let missing = |from: &[Self], of: &[Self]| {
            of.iter()
                .find(|kind| !from.iter().any(|other| other.name == kind.name))
                .map(|kind| kind.name.clone())
        };
        if let Some(name) = missing(theirs, ours) {
            return Some(format!("this one has no update rule {name:?}, the others have it"));
        }
        if let Some(name) = missing(ours, theirs) {
            return Some(format!("this one has the update rule {name:?}, the others do not have it"));
        }
        let other = theirs.iter().find(|kind| !ours.contains(kind))?;
        let name = &other.name;
        let before = ours.iter().find(|kind| kind.name == *name).map(ToString::to_string).unwrap_or_default();
        Some(format!("its update rule {name:?} has {other}, that of the others has {before}"))
    }
}

/// What it has, in words.
impl fmt::Display for OwnKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { parameters, arrays, .. } = self;
        for OwnParameter { name, range, usual } in parameters {
            write!(f, "{name} ({}, {usual} if not given), ", range.words())?;
        }
        let none = if parameters.is_empty() { "no parameters, " } else { "" };
        write!(f, "{none}{arrays} arrays")
    }
}

impl Own {
    /// The rule with all parameters in their order, and its arrays, if servers have these rules.
    pub fn settled(&self, kinds: &[OwnKind]) -> Result<Self, OwnError> {
        let rule = self.name;
        let Some(kind) = kinds.iter().find(|kind| kind.name == rule.as_str()) else {
            let have = kinds.iter().map(|kind| kind.name.clone()).collect();
            return Err(OwnError::Unknown { rule, have });
        };
        let is_known = |name: ParameterName| kind.parameters.iter().any(|known| known.name == name.as_str());
        if let Some((parameter, _)) = self.parameters.pairs().find(|(name, _)| !is_known(*name)) {
            return Err(OwnError::Parameter { rule, parameter, has: kind.to_string() });
        }
        let mut settled = Self { name: rule, arrays: kind.arrays, ..Self::default() };
        for OwnParameter { name, range, usual } in &kind.parameters {
            let given = self.parameters.pairs().find(|(given, _)| given.as_str() == name);
            let value = given.map_or(*usual, |(_, value)| value);
            // Servers' rules are checked when they come.
            let parameter = ParameterName::new(name).unwrap_or_default();
            if !range.holds(value) {
                return Err(OwnError::OutOfRange { rule, parameter, value, range: range.words() });
            }
            settled.parameters.set(parameter, value);
        }
        Ok(settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind() -> OwnKind {
        OwnKind::new("clipped")
            .parameter("clip", Range::Positive, 1.0)
            .parameter("mu", Range::Share, 0.5)
            .keeps(2)
    }

    #[test]
    fn a_declaration_gets_all_parameters_in_their_order() {
        let settled = |given: &[(&str, f32)]| Own::new("clipped", given).unwrap().settled(&[kind()]);
        let usual = settled(&[]).unwrap();
        assert_eq!((usual.arrays, usual.parameters.values()[..2].to_vec()), (2, vec![1.0, 0.5]));
        let given = settled(&[("mu", 0.25), ("clip", 4.0)]).unwrap();
        assert_eq!(given, settled(&[("clip", 4.0), ("mu", 0.25)]).unwrap(), "their order does not matter");
        assert_eq!(given.parameters.values()[..2], [4.0, 0.25]);
        assert_eq!(given.settled(&[kind()]).unwrap(), given);
    }

    #[test]
    fn what_servers_do_not_have_is_refused_with_what_they_have() {
        let error = |name: &str, given: &[(&str, f32)], kinds: &[OwnKind]| {
            Own::new(name, given).unwrap().settled(kinds).unwrap_err().to_string()
        };
        let text = error("other", &[], &[kind(), OwnKind::new("second")]);
        assert!(text.contains("\"other\"") && text.contains("they have clipped, second"), "{text}");
        let text = error("other", &[], &[]);
        assert!(text.contains("registered none") && text.contains("docs/own-rules.md"), "{text}");
        let text = error("clipped", &[("clib", 1.0)], &[kind()]);
        assert!(
            text.contains("no parameter \"clib\"") && text.contains("clip (above 0, 1 if not given)"),
            "{text}"
        );
        for (name, value) in [("clip", 0.0), ("mu", 1.0), ("mu", f32::NAN)] {
            let text = error("clipped", &[(name, value)], &[kind()]);
            assert!(text.contains(&format!("parameter {name} = {value}")), "{text}");
        }
        assert!(Own::new("clipped", &[("mu", 0.0)]).unwrap().settled(&[kind()]).is_ok());
    }

    #[test]
    fn what_is_registered_is_checked() {
        let many = |count: usize| (0..count).map(|at| OwnKind::new(&format!("r{at}"))).collect::<Vec<_>>();
        assert_eq!(OwnKind::check_all(&many(OWN_RULES_MAX)), Ok(()));
        assert!(OwnKind::check_all(&many(OWN_RULES_MAX + 1)).is_err());
        let wide = |count: usize| {
            (0..count).fold(kind(), |kind, at| kind.parameter(&format!("p{at}"), Range::Any, 0.0))
        };
        assert_eq!(OwnKind::check_all(&[wide(CONSTANTS_MAX - 2)]), Ok(()));
        let bad = [
            wide(CONSTANTS_MAX - 1),
            kind().keeps(3),
            OwnKind::new(""),
            OwnKind::new("a-b"),
            kind().parameter("clip", Range::Any, 0.0),
            kind().parameter("much_too_long", Range::Any, 0.0),
            kind().parameter("beta", Range::Share, 1.0),
        ];
        for kind in bad {
            assert!(OwnKind::check_all(std::slice::from_ref(&kind)).is_err(), "{kind:?}");
        }
        let twice = OwnKind::check_all(&[kind(), kind()]).unwrap_err();
        assert!(twice.to_string().contains("\"clipped\" is registered twice"), "{twice}");
    }

    #[test]
    fn programs_of_one_job_have_the_same_rules() {
        let second = OwnKind::new("second");
        assert_eq!(OwnKind::difference(&[kind(), second.clone()], &[second.clone(), kind()]), None);
        for (ours, theirs, what) in [
            (vec![kind()], vec![], "has no update rule \"clipped\""),
            (vec![], vec![kind()], "the others do not have it"),
            (vec![kind()], vec![kind().keeps(1)], "1 arrays, that of the others has"),
        ] {
            let text = OwnKind::difference(&ours, &theirs).unwrap();
            assert!(text.contains(what), "{text}");
        }
    }
}
