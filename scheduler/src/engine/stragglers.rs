//! Which workers delay the others. It reads heartbeats and decides nothing, because a slow worker has not failed.
//!
//! There are two signs. First, a worker lags behind in rounds. Heartbeats arrive at different times, so rounds are compared as of the
//! newest heartbeat, and the rounds of half a second do not count. A worker that has fallen silent is not assumed to have continued.
//! Second, servers wait for this worker, and not for the others, in most samples. In synchronous rounds no worker lags by more than one
//! round, so only the second sign shows there.

use super::member::Member;
use super::members::Members;
use super::pace::thousandths;
use daemon::status::StragglerStatus;
use proto_common::ids::{Rank, Role};
use proto_common::message::ClusterShape;
use std::collections::BTreeMap;

/// Rounds by which a worker may lag without being a straggler.
const BEHIND_MIN: f64 = 2.0;
/// Seconds by which it may lag, at the pace of the fastest worker.
const BEHIND_SECONDS: f64 = 0.5;
/// Samples of a hundred in which servers wait for it.
const WAITED_PERCENT_MIN: u32 = 50;
/// Servers wait for it so many times as often as for the median of the other workers.
const WAITED_TIMES: u32 = 2;

/// In how many of a hundred samples servers wait for each worker of the roster.
pub(super) type Waited = BTreeMap<Rank, u32>;

fn working(members: &Members) -> impl Iterator<Item = (Rank, &Member)> {
    let there = members.iter().filter(|(id, member)| id.role == Role::Worker && !member.left);
    there.map(|(id, member)| (id.rank, member))
}

/// Rounds per second: the mean over workers that are there.
pub(super) fn rounds_per_second(members: &Members) -> f64 {
    let (mut sum, mut count) = (0.0, 0u32);
    for (_, member) in working(members) {
        sum += member.pace.rounds_per_second();
        count += 1;
    }
    thousandths(sum / f64::from(count.max(1)))
}

pub(super) fn waited_for(members: &Members) -> Waited {
    let servers = members.iter().filter(|(id, member)| id.role == Role::Server && !member.left);
    let servers: Vec<&Member> = servers.map(|(_, member)| member).collect();
    let percent = |worker: Rank| {
        let (looks, waits) = servers
            .iter()
            .map(|server| server.pace.waits_for(worker))
            .fold((0, 0), |(looks, waits), (more_looks, more_waits)| {
                (looks + more_looks, waits + more_waits)
            });
        (100 * waits / looks.max(1)) as u32
    };
    working(members).map(|(rank, _)| (rank, percent(rank))).collect()
}

/// Who holds the others up, of members that report every `heartbeat_ms` while they do something.
pub(super) fn stragglers(members: &Members, waited: &Waited, shape: &ClusterShape) -> Vec<StragglerStatus> {
    let newest_ms = working(members).filter_map(|(_, member)| Some(member.pace.newest()?.0)).max();
    // A silent one may stand still: it is taken to have gone on for as long as a heartbeat may be old, and no longer, or the
    // others, who wait for it, would look as if they were behind it.
    let period_ms = shape.heartbeat_ms.max((BEHIND_SECONDS * 1e3) as u64);
    let rare_ms = shape.rare_heartbeat_ms().max(period_ms);
    // Where each would be at the newest heartbeat's time.
    let place = |member: &Member| {
        let (at_ms, round) = member.pace.newest()?;
        let later_ms = newest_ms?.saturating_sub(at_ms).min(period_ms);
        Some(round as f64 + member.pace.rounds_per_second() * later_ms as f64 / 1e3)
    };
    let reports_rarely = |at_ms: u64| {
        let age_ms = newest_ms.map_or(0, |newest_ms| newest_ms - at_ms);
        age_ms > period_ms && age_ms <= rare_ms + period_ms
    };
    let first = working(members).filter_map(|(_, member)| place(member)).fold(0.0, f64::max);
    let fastest = working(members).map(|(_, member)| member.pace.rounds_per_second()).fold(0.0, f64::max);
    let allowed = BEHIND_MIN.max(fastest * BEHIND_SECONDS);
    let mut found = Vec::new();
    for (worker, member) in working(members) {
        let behind = match member.pace.idle() {
            // An idle member may report rarely. What the others have done since is no sign: it may have done the same.
            Some((at_ms, round)) if reports_rarely(at_ms) => {
                let rounds = working(members).map(|(_, member)| member.pace.round_at(at_ms));
                rounds.max().unwrap_or(0).saturating_sub(round) as f64
            }
            _ => place(member).map_or(0.0, |place| first - place),
        };
        let behind = if behind > allowed { behind as u64 } else { 0 };
        let waited_for_percent = waited.get(&worker).copied().unwrap_or(0);
        if behind > 0 || is_waited_for(worker, waited) {
            found.push(StragglerStatus { worker, behind, waited_for_percent });
        }
    }
    found
}

/// Do servers wait for this worker, and much less for the others?
fn is_waited_for(worker: Rank, waited: &Waited) -> bool {
    let percent = waited.get(&worker).copied().unwrap_or(0);
    let mut others: Vec<u32> =
        waited.iter().filter(|(rank, _)| **rank != worker).map(|(_, percent)| *percent).collect();
    others.sort_unstable();
    let Some(middle) = others.get(others.len() / 2) else { return false };
    percent >= WAITED_PERCENT_MIN && percent >= WAITED_TIMES * middle
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_waited_for_more_than_the_others_is_one() {
        let waited = |percents: &[u32]| (0..).map(Rank).zip(percents.iter().copied()).collect::<Waited>();
        let found = |percents: &[u32]| {
            let waited = waited(percents);
            waited.keys().filter(|worker| is_waited_for(**worker, &waited)).map(|w| w.0).collect::<Vec<_>>()
        };
        assert_eq!(found(&[0, 5, 90, 10]), [2]);
        assert_eq!(found(&[50, 25]), [0]);
        assert_eq!(found(&[49, 0]), [0u32; 0], "half of the looks");
        assert_eq!(found(&[50, 26]), [0u32; 0], "twice as often as for the other");
        assert_eq!(found(&[90, 90, 90, 80]), [0u32; 0], "all are slow: nobody is slower");
        assert_eq!(found(&[100]), [0u32; 0], "nobody else is there");
    }
}
