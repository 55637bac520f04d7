//! What must hold in every state, and what must be reachable.

use crate::state::{Scheduler, State};
use crate::{Protocol, WORKERS};
use stateright::Property;

/// All of them, by the names that a counterexample is found under.
pub(crate) fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always("no acknowledged contribution is lost", |_, state: &State| nothing_lost(state)),
        Property::always("no contribution is applied twice", |_, state: &State| nothing_twice(state)),
        Property::always("a published version is the same wherever it is published", |_, state: &State| {
            !state.forked
        }),
        Property::always("one server for the chunk in each epoch", |_, state: &State| {
            !state.torn && one_leader(state)
        }),
        Property::always("only a copy that is kept up is promoted", |_, state: &State| kept_up(state)),
        Property::always("no late write lands in reused memory", |_, state: &State| !state.overwritten),
        Property::always("nobody waits for nothing", |protocol: &Protocol, state: &State| {
            let over = matches!(state.scheduler, Scheduler::Over);
            over || state.is_finished(protocol) || state.goes_on(protocol)
        }),
        Property::sometimes("all rounds finish without a fault", |protocol: &Protocol, state: &State| {
            state.is_finished(protocol) && state.faultless(&protocol.budget)
        }),
        Property::sometimes("all rounds finish after every fault", |protocol: &Protocol, state: &State| {
            let left = state.left;
            let servers = left.crashes + left.deposed + left.moves;
            let others = left.schedulers + left.breaks + left.workers + left.stops;
            servers + others == 0 && state.is_finished(protocol)
        }),
    ]
}

/// The server that the newest decision names, once it has heard of it, has all that any worker was answered.
fn nothing_lost(state: &State) -> bool {
    let Some((epoch, place)) = state.decided.last_key_value() else { return true };
    let server = &state.servers[usize::from(*place)];
    if server.map.epoch != *epoch || !server.leads(*place) || matches!(state.scheduler, Scheduler::Over) {
        return true;
    }
    (0..WORKERS).all(|worker| {
        let rounds = usize::from(state.workers[worker].acked_ever);
        server.applied[worker][..rounds].iter().all(|count| *count > 0)
    })
}

fn nothing_twice(state: &State) -> bool {
    let mut chunks = state.servers.iter().map(|server| &server.applied).chain(state.published.values());
    chunks.all(|applied| applied.iter().flatten().all(|count| *count < 2))
}

/// No two servers take themselves for the server of the same epoch.
fn one_leader(state: &State) -> bool {
    let mut epochs: Vec<_> = (0u8..)
        .zip(&state.servers)
        .filter(|(place, server)| server.leads(*place))
        .map(|(_, server)| server.map.epoch)
        .collect();
    let all = epochs.len();
    epochs.sort_unstable();
    epochs.dedup();
    epochs.len() == all
}

/// Whoever is made the server has a version at least as new as each that was published.
fn kept_up(state: &State) -> bool {
    let Scheduler::Decides(map) = &state.scheduler else { return true };
    let server = &state.servers[usize::from(map.primary)];
    let published = state.published.last_key_value().map_or(0, |(version, _)| *version);
    let current = server.up && server.life == map.lives[usize::from(map.primary)];
    !current || server.version >= published
}
