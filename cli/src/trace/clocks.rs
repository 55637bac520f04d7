//! One time axis for processes of several hosts: this process's monotonic clock. Processes of one clock are exact to each other;
//! another host's clock was looked at between two looks at ours, or (files) its time of day is believed.

use super::collect::{Look, Source};
use daemon::flight::Stamp;
use std::collections::BTreeMap;

/// How a clock was laid on the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It is the axis.
    Same,
    /// It can be off by so much.
    Looked { error_ns: u64 },
    /// By the time of day.
    Believed,
}

#[derive(Clone, Copy, Debug)]
struct Placed {
    /// To be added to its monotonic time.
    offset_ns: i128,
    how: How,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Axis {
    clocks: BTreeMap<String, Placed>,
    here: Stamp,
}

impl Axis {
    pub(super) fn of(sources: &[Source]) -> Self {
        Self::from_here(Stamp::here(), sources)
    }

    fn from_here(here: Stamp, sources: &[Source]) -> Self {
        let mut clocks = BTreeMap::new();
        for source in sources {
            let stamp = &source.dump.stamp;
            let placed = match &source.look {
                _ if stamp.clock == here.clock => Placed { offset_ns: 0, how: How::Same },
                Some(look) => looked(look),
                None => believed(&here, stamp),
            };
            let best = clocks.entry(stamp.clock.clone()).or_insert(placed);
            if error_of(placed.how) < error_of(best.how) {
                *best = placed;
            }
        }
        Self { clocks, here }
    }

    /// A time of a process's recorder, on the axis.
    pub(super) fn place(&self, stamp: &Stamp, recorder_ns: u64) -> i128 {
        let offset_ns = self.clocks.get(&stamp.clock).map_or(0, |placed| placed.offset_ns);
        i128::from(stamp.monotonic_ns) - i128::from(stamp.recorder_ns) + i128::from(recorder_ns) + offset_ns
    }

    /// The time of day, in nanoseconds since 1970, of a time on the axis.
    pub(super) fn wall_ns(&self, axis_ns: i128) -> i128 {
        axis_ns - i128::from(self.here.monotonic_ns) + i128::from(self.here.wall_ns)
    }

    /// How exact it is, for people.
    pub(super) fn describe(&self) -> String {
        let words = |placed: &Placed| match placed.how {
            How::Same => "this host's, exact".to_owned(),
            How::Looked { error_ns } => {
                format!("another host's, off by {:.3} ms at most", error_ns as f64 / 1e6)
            }
            How::Believed => {
                "another host's, or from before its last boot, by its time of day: as exact as that is"
                    .to_owned()
            }
        };
        let clocks: Vec<String> = self.clocks.values().map(words).collect();
        clocks.join("; ")
    }
}

fn error_of(how: How) -> u64 {
    match how {
        How::Same => 0,
        How::Looked { error_ns } => error_ns,
        How::Believed => u64::MAX,
    }
}

/// Theirs was read at some time between our two looks.
fn looked(look: &Look) -> Placed {
    let middle_ns = i128::from(look.before.monotonic_ns) + i128::from(look.took_ns() / 2);
    let offset_ns = middle_ns - i128::from(look.theirs.monotonic_ns);
    Placed { offset_ns, how: How::Looked { error_ns: look.took_ns().div_ceil(2) } }
}

fn believed(here: &Stamp, stamp: &Stamp) -> Placed {
    let wall_ns = |stamp: &Stamp| i128::from(stamp.wall_ns) - i128::from(stamp.monotonic_ns);
    Placed { offset_ns: wall_ns(stamp) - wall_ns(here), how: How::Believed }
}

#[cfg(test)]
mod tests {
    use super::*;
    use daemon::flight::{Dump, FORMAT};
    use proto_common::ids::Role;

    fn stamp(clock: &str, monotonic_ns: u64, wall_ns: u64, recorder_ns: u64) -> Stamp {
        Stamp { clock: clock.into(), monotonic_ns, wall_ns, recorder_ns }
    }

    fn source(stamp: Stamp, look: Option<Look>) -> Source {
        let (role, rank, job, pid) = (Role::Server, Some(0), 0, 1);
        let (format, build, reason) = (FORMAT.to_owned(), String::new(), String::new());
        let (names, threads, notes) = Default::default();
        let dump = Dump { format, role, rank, job, pid, build, reason, stamp, names, threads, notes };
        Source { dump, look }
    }

    #[test]
    fn one_clock_is_exact_a_look_has_a_bound_and_a_file_has_the_time_of_day() {
        let here = stamp("a", 1_000, 50_000, 0);
        let look = |before_ns, theirs_ns, after_ns| Look {
            before: stamp("a", before_ns, 0, 0),
            theirs: stamp("b", theirs_ns, 0, 0),
            after_ns,
        };
        let sources = [
            source(stamp("a", 900, 0, 100), None),
            source(stamp("b", 7_100, 0, 0), Some(look(500, 7_000, 700))),
            source(stamp("b", 7_200, 0, 200), Some(look(800, 7_200, 820))),
            source(stamp("c", 100, 49_600, 0), None),
        ];
        let axis = Axis::from_here(here, &sources);
        let at = |index: usize, ns| axis.place(&sources[index].dump.stamp, ns);
        assert_eq!(at(0, 100), 900, "its own clock, whatever the time of day");
        assert_eq!((at(2, 200), at(1, 0)), (810, 710), "the quicker look counts for both");
        assert_eq!(at(3, 0), 600, "400 ns before now");
        assert_eq!(axis.wall_ns(600), 49_600);
        let words = axis.describe();
        assert!(
            words.contains("exact") && words.contains("0.000 ms") && words.contains("time of day"),
            "{words}"
        );
    }
}
