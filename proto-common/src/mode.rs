//! How contributions of several workers become versions of a tensor: the modes, their names in settings and on command
//! lines, and which tensor may have which. It must not know how a server implements them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How contributions of several workers become versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// One version per round, from the contributions of all workers (BSP), or of all except the backup workers. A
    /// tensor has one version.
    #[default]
    Sync,
    /// As `async`, but if a worker is this many contributions ahead of the slowest one, its operation is answered only
    /// when the slowest has caught up (SSP). With 0, all workers must have made as many contributions.
    Bounded(u32),
    /// Each contribution is an update of its own, applied to each chunk when it arrives (ASP). Each chunk has its own
    /// version, the number of its applied contributions.
    Async,
}

impl Mode {
    /// Whether contributions are collected into rounds.
    #[must_use]
    #[inline]
    pub const fn has_rounds(self) -> bool {
        matches!(self, Self::Sync)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sync => f.write_str("sync"),
            Self::Bounded(bound) => write!(f, "bounded:{bound}"),
            Self::Async => f.write_str("async"),
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "sync" => Ok(Self::Sync),
            "async" => Ok(Self::Async),
            _ => {
                let bound = text.strip_prefix("bounded:").and_then(|bound| bound.parse().ok());
                bound.map(Self::Bounded).ok_or_else(|| {
                    format!("invalid mode {text:?}: use sync, async, or bounded:N with N contributions, such as bounded:3")
                })
            }
        }
    }
}

/// Modes in settings, by name.
pub(crate) mod by_name {
    use super::Mode;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(mode: &Mode, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(mode)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mode, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// What is wrong with this number of backup workers in a cluster, if anything.
#[must_use]
pub fn backup_fault(backup: u32, workers: u32, deterministic: bool) -> Option<String> {
    if backup == 0 {
        return None;
    }
    if deterministic {
        let why = "with backup workers, two runs do not give bit-identical results, because the first contributions of a round are random";
        return Some(format!("{why}; set cluster.deterministic = false"));
    }
    let most = workers.saturating_sub(1);
    (backup > most).then(|| {
        format!("{backup} of {workers} workers cannot be backup workers, because one must contribute; use at most {most}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ClusterShape, Settings};
    use crate::optimizer::{Lamb, Optimizer};
    use crate::tensor::{TensorError, TensorSpec};

    fn shape(workers: u32, mode: Mode, backup_workers: u32) -> ClusterShape {
        let settings = Settings::default();
        ClusterShape { workers, mode, backup_workers, deterministic: false, ..settings.shape() }
    }

    fn refused(spec: &TensorSpec, shape: &ClusterShape) -> String {
        match spec.validate_in(shape) {
            Err(TensorError::Unsupported { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for mode in [Mode::Sync, Mode::Async, Mode::Bounded(0), Mode::Bounded(7)] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        for wrong in ["", "bounded", "bounded:", "bounded:-1", "bounded:4294967296", "Async", "bsp"] {
            let error = wrong.parse::<Mode>().unwrap_err();
            assert!(error.contains("bounded:3") && error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn what_a_declaration_leaves_open_is_the_cluster_s() {
        let sum = TensorSpec::f32(1, 5, Optimizer::sum());
        let settled = sum.clone().settled(&shape(4, Mode::Bounded(2), 0));
        assert_eq!((settled.mode, settled.backup_workers), (Some(Mode::Bounded(2)), Some(0)));
        let backed = sum.clone().settled(&shape(4, Mode::Sync, 1));
        assert_eq!((backed.mode, backed.backup_workers), (Some(Mode::Sync), Some(1)));
        let own = sum.in_mode(Mode::Async).settled(&shape(4, Mode::Sync, 1));
        assert_eq!((own.mode, own.backup_workers), (Some(Mode::Async), Some(0)));
        let dynamic = TensorSpec::dynamic_f32(1, 5).settled(&shape(4, Mode::Sync, 1));
        assert_eq!(dynamic.backup_workers, Some(0), "it is not refused for what others can have");
    }

    #[test]
    fn what_a_mode_cannot_serve_is_refused_with_the_reason() {
        let lamb = TensorSpec::f32(1, 5, Optimizer::mean(Lamb::default(), 0.1));
        let (sum, dynamic) = (TensorSpec::f32(1, 5, Optimizer::sum()), TensorSpec::dynamic_f32(1, 5));
        let shape = shape(3, Mode::Sync, 0);
        for mode in [Mode::Async, Mode::Bounded(0)] {
            assert_eq!(sum.clone().in_mode(mode).validate_in(&shape), Ok(()));
            assert!(refused(&lamb.clone().in_mode(mode), &shape).contains("use adam_w"));
            assert!(refused(&dynamic.clone().in_mode(mode), &shape).contains("use mode sync"));
            assert!(refused(&sum.clone().in_mode(mode).with_backup(1), &shape).contains("use mode sync"));
        }
        assert_eq!(lamb.with_backup(1).validate_in(&shape), Ok(()));
        assert!(refused(&dynamic.with_backup(1), &shape).contains("without backup"));
    }

    #[test]
    fn backup_workers_leave_somebody_and_are_not_deterministic() {
        let sum = TensorSpec::f32(1, 5, Optimizer::sum());
        let shape = shape(3, Mode::Sync, 0);
        assert_eq!(sum.clone().with_backup(2).validate_in(&shape), Ok(()));
        assert!(refused(&sum.clone().with_backup(3), &shape).contains("at most 2"));
        let ordered = ClusterShape { deterministic: true, ..shape };
        assert!(refused(&sum.clone().with_backup(1), &ordered).contains("cluster.deterministic = false"));
        assert_eq!(sum.with_backup(0).validate_in(&ordered), Ok(()));
    }
}
