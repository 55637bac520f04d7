//! Deaths, joins, drains, copies, moves and restarts in any order: whoever serves a chunk has its data, copies are elsewhere,
//! decisions' epochs grow, nothing is given up while a copy is left, and when all is quiet bytes balance.

use super::world::{CHUNK_BYTES, World};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn config(replicas: u32, servers: u32, places: u32) -> EngineConfig {
    let mut config = Rig::new(servers, 2).engine.config;
    config.shape.replicas = replicas;
    config.shape.server_places = places;
    config.shape.worker_loss = WorkerLoss::Wait;
    config.shape.scheduler_ms = 1_000;
    config
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Declare(u64, u64),
    Deliver(usize),
    Answer(usize),
    Seed(usize),
    Kill(usize),
    Come(bool),
    Drain(usize),
    Restart(Option<usize>),
}

fn actions() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => (0u64..4, 1u64..40).prop_map(|(key, chunks)| Action::Declare(key, chunks)),
        12 => (0usize..8).prop_map(Action::Deliver),
        6 => (0usize..8).prop_map(Action::Answer),
        6 => (0usize..8).prop_map(Action::Seed),
        2 => (0usize..8).prop_map(Action::Kill),
        3 => any::<bool>().prop_map(Action::Come),
        1 => (0usize..8).prop_map(Action::Drain),
        1 => prop::option::of(0usize..8).prop_map(Action::Restart),
    ]
}

fn act(world: &mut World, action: Action, number: u64) {
    let count = world.players.len();
    let at = |at: usize| at % count.max(1);
    let workers = world.players.iter().filter(|player| player.id.role == Role::Worker).count();
    let spare = |world: &World, at: usize| world.players[at].id.role == Role::Server || workers > 1;
    match action {
        Action::Declare(key, chunks) => {
            let tensors = vec![TensorSpec::f32(key, chunks * 1024, Optimizer::sum())];
            let message = ToScheduler::Declare { request: number, tensors, timeout_ms: 60_000 };
            if let Some(worker) = world.players.iter().position(|player| player.id.role == Role::Worker) {
                world.say(worker, message);
            }
        }
        Action::Deliver(who) => {
            // Some take several at once.
            for _ in 0..=who {
                world.deliver(at(who));
            }
        }
        Action::Answer(who) => world.answer(at(who)),
        Action::Seed(who) => world.seed(at(who)),
        Action::Kill(who) if spare(world, at(who)) => world.kill(at(who)),
        Action::Come(server) => world.come(if server { Role::Server } else { Role::Worker }),
        Action::Drain(who) => world.say(at(who), ToScheduler::Drain),
        Action::Restart(who) => world.restart(who.map(at).filter(|at| spare(world, *at))),
        Action::Kill(_) => {}
    }
}

/// When all is quiet every chunk has its copy, and servers have as many bytes as each other.
fn check_quiet(world: &World, replicas: u32) {
    let shards = &world.engine.declarations.shards;
    let servers = world.engine.members.servers();
    assert!(shards.seeds().is_empty(), "{:?}", shards.seeds());
    let staying = servers.there.difference(&servers.draining).count();
    let mut served: BTreeMap<Rank, u64> = servers.takers().into_iter().map(|rank| (rank, 0)).collect();
    for range in shards.map().ranges() {
        let has_copy = range.backup.is_some() == (replicas > 0 && staying > 1);
        assert!(has_copy || !servers.draining.is_empty(), "{range:?} with {servers:?}");
        *served.entry(range.server).or_default() +=
            range.bytes(shards.map().tensor(range.first.key).unwrap(), CHUNK_BYTES);
    }
    if servers.draining.is_empty()
        && world.engine.declarations.is_level()
        && world.engine.members.changes().joined > 0
    {
        let (most, least) = (served.values().max().unwrap(), served.values().min().unwrap());
        assert!(most - least <= 2 * CHUNK_BYTES, "{served:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn whoever_serves_has_the_data(
        replicas in 0u32..2,
        servers in 2u32..4,
        list in prop::collection::vec(actions(), 0..150),
    ) {
        let mut world = World::new(config(replicas, servers, 4));
        for (number, action) in list.into_iter().enumerate() {
            if world.outcome.is_some() || world.players.is_empty() {
                break;
            }
            world.now_ms += 1;
            act(&mut world, action, number as u64);
        }
        match &world.outcome {
            None => {
                world.settle();
                // Without a majority nothing is decided any more. Scenario: two servers have exited, which the next scheduler does not
                // know, and a worker exits before it has heard that they are dropped.
                let decides = !world.engine.quorum.has_undecided();
                if world.outcome.is_none() && world.engine.phase == Phase::Running && decides {
                    check_quiet(&world, replicas);
                }
            }
            Some(Outcome::Died(death)) => prop_assert!(
                replicas == 0 || world.may_lose || death.to_string().contains("rejoin") || world.engine.members.servers().there.is_empty(),
                "given up with all data there: {death}"
            ),
            Some(other) => prop_assert!(matches!(other, Outcome::Incomplete { .. }), "{other:?}"),
        }
    }
}
