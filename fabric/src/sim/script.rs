//! Faults at given times, by hand or drawn from a seed. Owns the list; the network carries it out.

use crate::rng::Rng;
use std::fmt;

/// A node of a simulated network: one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// Something that happens to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing passes between two nodes any more.
    Partition(NodeId, NodeId),
    /// Messages pass again.
    Heal(NodeId, NodeId),
    /// A process dies. It does not come back: its restart is a new node.
    Crash(NodeId),
    /// All channels between two nodes break at once; new ones can be made.
    Break(NodeId, NodeId),
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition(a, b) => write!(f, "partition {} | {}", a.0, b.0),
            Self::Heal(a, b) => write!(f, "heal {} - {}", a.0, b.0),
            Self::Crash(node) => write!(f, "crash {}", node.0),
            Self::Break(a, b) => write!(f, "break {} x {}", a.0, b.0),
        }
    }
}

/// How many faults a random script holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScriptShape {
    /// All faults happen, and all partitions are healed, before this time.
    pub horizon_us: u64,
    /// Partitions; one in four cuts a node off from all others.
    pub partitions: u32,
    /// The longest partition.
    pub partition_max_us: u64,
    /// Breaks of all channels between two nodes.
    pub breaks: u32,
    /// Crashes, of different nodes.
    pub crashes: u32,
}

/// A list of faults with their times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultScript {
    /// Time in microseconds and what happens then, in order of time.
    pub actions: Vec<(u64, Action)>,
}

impl FaultScript {
    /// Draws a script. `crashable` are the nodes that may crash.
    #[must_use]
    pub fn random(seed: u64, nodes: &[NodeId], crashable: &[NodeId], shape: ScriptShape) -> Self {
        let mut rng = Rng::new(seed);
        let mut script = Self::default();
        let horizon = shape.horizon_us.max(1);
        if nodes.len() > 1 {
            for _ in 0..shape.partitions {
                let start = rng.below(horizon);
                let end = rng.within(start, start.saturating_add(shape.partition_max_us)).min(horizon);
                let (one, other) = pair(&mut rng, nodes);
                let alone = rng.below(4) == 0;
                for &peer in nodes.iter().filter(|&&n| if alone { n != one } else { n == other }) {
                    script.actions.push((start, Action::Partition(one, peer)));
                    script.actions.push((end, Action::Heal(one, peer)));
                }
            }
            for _ in 0..shape.breaks {
                let (one, other) = pair(&mut rng, nodes);
                script.actions.push((rng.below(horizon), Action::Break(one, other)));
            }
        }
        let mut left = crashable.to_vec();
        for _ in 0..shape.crashes.min(u32::try_from(left.len()).unwrap_or(u32::MAX)) {
            let victim = left.swap_remove(rng.below(left.len() as u64) as usize);
            script.actions.push((rng.below(horizon), Action::Crash(victim)));
        }
        // Stable, so a heal drawn for the instant of its partition stays behind it.
        script.actions.sort_by_key(|(at_us, _)| *at_us);
        script
    }
}

impl fmt::Display for FaultScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.actions.iter().try_for_each(|(at_us, action)| writeln!(f, "{at_us:>12} us  {action}"))
    }
}

/// Two different nodes of at least two.
fn pair(rng: &mut Rng, nodes: &[NodeId]) -> (NodeId, NodeId) {
    let one = rng.below(nodes.len() as u64) as usize;
    let other = (one + 1 + rng.below(nodes.len() as u64 - 1) as usize) % nodes.len();
    (nodes[one], nodes[other])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_scripts_repeat_heal_and_keep_their_bounds() {
        let nodes: Vec<_> = (0..5).map(NodeId).collect();
        let shape =
            ScriptShape { horizon_us: 10_000, partitions: 9, partition_max_us: 3_000, breaks: 3, crashes: 2 };
        for seed in 0..200 {
            let script = FaultScript::random(seed, &nodes, &nodes[..2], shape);
            assert_eq!(script, FaultScript::random(seed, &nodes, &nodes[..2], shape));
            assert!(script.actions.windows(2).all(|w| w[0].0 <= w[1].0));
            assert!(script.actions.iter().all(|(at, _)| *at <= 10_000));
            let count = |f: fn(&Action) -> bool| script.actions.iter().filter(|(_, a)| f(a)).count();
            assert_eq!(count(|a| matches!(a, Action::Crash(n) if n.0 < 2)), 2);
            assert_eq!(count(|a| matches!(a, Action::Break(a, b) if a != b)), 3);
            let cuts = count(|a| matches!(a, Action::Partition(a, b) if a != b));
            assert!(cuts >= 9 && cuts == count(|a| matches!(a, Action::Heal(..))));
        }
        let lonely = FaultScript::random(1, &nodes[..1], &[], shape);
        assert!(lonely.actions.is_empty(), "one node has nobody to lose and nobody may crash");
    }
}
