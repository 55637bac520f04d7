//! A rule that the program of a server has registered: its name, and what a declaration gives it. The arithmetic is the
//! server's, and the list of rules the scheduler's (`own.rs`).

use crate::optimizer::elements::Block;
use crate::optimizer::name::{NameError, ShortName};
use crate::optimizer::real::Real;
use crate::optimizer::rule::{CONSTANTS_MAX, Constants, Factors, Form, Parameter, UpdateRule, Values};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The name of a program's own rule.
pub type RuleName = ShortName<24>;
/// The name of its parameter.
pub type ParameterName = ShortName<12>;

/// A rule that the program of each server has registered under this name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Own {
    /// The rule.
    pub name: RuleName,
    /// Its parameters. A declaration gives any of them; the scheduler adds the others, and puts all in the rule's order.
    #[serde(default)]
    pub parameters: Given,
    /// The number of arrays that it keeps. The scheduler sets it.
    #[serde(default)]
    pub arrays: u8,
}

impl Own {
    /// The rule of this name, with these parameters and the usual values of its others.
    pub fn new(name: &str, parameters: &[(&str, f32)]) -> Result<Self, NameError> {
        let mut own = Self { name: RuleName::new(name)?, ..Self::default() };
        for (parameter, value) in parameters {
            own.parameters.set(ParameterName::new(parameter)?, *value);
        }
        Ok(own)
    }
}

/// Parameters by name.
#[derive(Clone, Copy, Default, PartialEq)]
pub struct Given {
    count: u8,
    pairs: [(ParameterName, f32); CONSTANTS_MAX],
}

impl Given {
    /// Gives a parameter its value. A further one than [`CONSTANTS_MAX`] replaces the last one, which no rule takes.
    pub(crate) fn set(&mut self, name: ParameterName, value: f32) {
        let at = self.pairs().position(|(given, _)| given == name);
        let at = at.unwrap_or(usize::from(self.count)).min(CONSTANTS_MAX - 1);
        self.pairs[at] = (name, value);
        self.count = self.count.max(at as u8 + 1);
    }

    /// All of them, in order.
    #[inline]
    pub fn pairs(&self) -> impl Iterator<Item = (ParameterName, f32)> + '_ {
        self.pairs.iter().take(usize::from(self.count)).copied()
    }

    /// Their values, in order, and zeros behind them.
    #[must_use]
    #[inline]
    pub fn values(&self) -> Values {
        self.pairs.map(|(_, value)| value)
    }
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.pairs()).finish()
    }
}

impl Serialize for Given {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer
            .collect_map(self.pairs.iter().take(usize::from(self.count)).map(|(name, value)| (name, value)))
    }
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Given;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "at most {CONSTANTS_MAX} parameters by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Given, A::Error> {
                let mut given = Given::default();
                while let Some((name, value)) = map.next_entry::<ParameterName, f32>()? {
                    if given.pairs().count() == CONSTANTS_MAX {
                        let what = format!("a rule has at most {CONSTANTS_MAX} parameters");
                        return Err(A::Error::custom(what));
                    }
                    if given.pairs().any(|(before, _)| before == name) {
                        return Err(A::Error::custom(format!("parameter {name} is given twice")));
                    }
                    given.set(name, value);
                }
                Ok(given)
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}

impl Constants for Own {
    const ABOUT: &'static str = "A rule that the program of each server has registered.";
    /// They are the rule's own.
    const PARAMETERS: &'static [Parameter] = &[];
    fn values(&self) -> Values {
        self.parameters.values()
    }
    /// Values do not name a rule: no server has this one.
    fn of(_: &Values) -> Self {
        Self::default()
    }
}

impl UpdateRule for Own {
    const CLASS: &'static str = "Own";
    /// Its class in Python and its structure in C are not made from constants.
    const IS_INTERNAL: bool = true;

    /// `Optimizer::continues` tells two rules with such arrays apart by their names.
    #[inline]
    fn arrays(&self, _: Form) -> &'static [&'static str] {
        match self.arrays {
            0 => &[],
            1 => &["own 1"],
            _ => &["own 1", "own 2"],
        }
    }

    /// The server runs what its program has registered instead.
    #[inline(always)]
    fn update<T: Real>(&self, _: &Factors, _: Block<'_, T>, _: impl Fn(T, T) -> T + Copy) {}

    #[cfg(test)]
    fn frozen() -> Option<(Self, &'static str, &'static str)> {
        Some((
            Self { arrays: 2, ..Self::new("dc", &[("clip", 0.5)]).ok()? },
            "0a0000000200000000000000646301000000000000000400000000000000636c69700000003f02",
            r#"{"own":{"name":"dc","parameters":{"clip":0.5},"arrays":2}}"#,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_named_once_and_bounded() {
        let own = Own::new("clipped", &[("clip", 1.0), ("lambda", 0.5), ("clip", 2.0)]).unwrap();
        assert_eq!(own.values()[..3], [2.0, 0.5, 0.0]);
        let json = serde_json::to_string(&own).unwrap();
        assert_eq!(json, r#"{"name":"clipped","parameters":{"clip":2.0,"lambda":0.5},"arrays":0}"#);
        assert_eq!(serde_json::from_str::<Own>(&json).unwrap(), own);
        assert_eq!(serde_json::from_str::<Own>(r#"{"name":"a"}"#).unwrap(), Own::new("a", &[]).unwrap());
        let named = |count: usize| {
            let pairs: Vec<String> = (0..count).map(|at| format!("\"p{at}\":{at}.0")).collect();
            serde_json::from_str::<Given>(&format!("{{{}}}", pairs.join(",")))
        };
        assert_eq!(named(CONSTANTS_MAX).unwrap().pairs().count(), CONSTANTS_MAX);
        assert!(named(CONSTANTS_MAX + 1).unwrap_err().to_string().contains("at most 8 parameters"));
        let twice = serde_json::from_str::<Given>(r#"{"a":1.0,"a":2.0}"#).unwrap_err();
        assert!(twice.to_string().contains("given twice"), "{twice}");
        assert!(Own::new("Clipped", &[]).is_err() && Own::new("clipped", &[("", 0.0)]).is_err());
    }
}
