//! The scheduler's engine, driven as its runtime drives it while a cluster starts: everyone registers, tells that its
//! links are up, and declares the tensors. Gives the shard map that it decided, and what was said.

use super::message::JOB;
use super::shape::Shape;
use super::turn::ModelError;
use gradwire_scheduler::engine::{Command, ConnectionId, Engine, EngineConfig, Input};
use proto_common::ids::{Epoch, Incarnation, Role};
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::{FromScheduler, Register, ToScheduler};
use proto_common::shard_map::{MapUpdate, ShardMap};
use proto_common::transport::{Offer, Policies};
use serde::Serialize;

/// Declarations wait for each other so long; nothing here takes any time.
const TIMEOUT_MS: u64 = 60_000;

/// Messages between the scheduler and its members until all tensors are there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct StartUp {
    pub(crate) to_scheduler: u64,
    pub(crate) from_scheduler: u64,
}

struct Driver {
    engine: Engine,
    said: StartUp,
    /// What servers are to allocate: whom, and the update.
    assigned: Vec<(ConnectionId, MapUpdate)>,
    /// Who is to answer a proposal, and its epoch.
    proposed: Vec<(ConnectionId, Epoch)>,
    /// Answered declarations, and what the first one said.
    declared: u64,
    update: Option<MapUpdate>,
    refused: Option<String>,
}

impl Driver {
    fn say(&mut self, from: ConnectionId, message: ToScheduler) {
        self.said.to_scheduler += 1;
        for command in self.engine.handle(0, Input::Message { from, message }) {
            self.obey(command);
        }
        for (member, epoch) in std::mem::take(&mut self.proposed) {
            self.say(member, ToScheduler::Heard { epoch });
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Send { to, message } => {
                self.said.from_scheduler += to.len() as u64;
                match *message {
                    FromScheduler::Assign(update) => {
                        self.assigned.extend(to.into_iter().map(|server| (server, update.clone())));
                    }
                    FromScheduler::Proposed { epoch, .. } => {
                        self.proposed.extend(to.into_iter().map(|member| (member, epoch)));
                    }
                    FromScheduler::Declared { result: Ok(update), .. } => {
                        self.declared += 1;
                        self.update.get_or_insert_with(|| update.into_inner());
                    }
                    FromScheduler::Declared { result: Err(error), .. } => self.refuse(&error.to_string()),
                    FromScheduler::Refused(reason) => self.refuse(&reason.to_string()),
                    _ => {}
                }
            }
            Command::Close { .. } => self.refuse("it closed a connection"),
            Command::End(outcome) => self.refuse(&outcome.to_string()),
            Command::WriteManifest(_) | Command::ClearAway(_) => self.refuse("it wrote a checkpoint"),
        }
    }

    fn refuse(&mut self, reason: &str) {
        self.refused.get_or_insert_with(|| reason.to_owned());
    }
}

/// Starts a cluster of this shape.
///
/// # Errors
/// The scheduler refused somebody, or did not answer: the shape is beyond its limits.
pub(crate) fn start(shape: &Shape) -> Result<(ShardMap, StartUp), ModelError> {
    let mut config = EngineConfig::new(&shape.settings(), Incarnation(1));
    config.job = JOB;
    let mut driver = Driver {
        engine: Engine::new(config, 0),
        said: StartUp::default(),
        assigned: Vec::new(),
        proposed: Vec::new(),
        declared: 0,
        update: None,
        refused: None,
    };
    let members = u64::from(shape.servers + shape.workers);
    for number in 0..members {
        let role = if number < u64::from(shape.servers) { Role::Server } else { Role::Worker };
        driver.say(ConnectionId(number), ToScheduler::Register(register(role, number)));
    }
    for number in 0..members {
        driver.say(ConnectionId(number), ToScheduler::LinksReady);
    }
    for number in u64::from(shape.servers)..members {
        let declare = ToScheduler::Declare { request: 1, tensors: shape.tensors(), timeout_ms: TIMEOUT_MS };
        driver.say(ConnectionId(number), declare);
        for (server, update) in std::mem::take(&mut driver.assigned) {
            driver.say(server, ToScheduler::Assigned { epoch: update.epoch, error: None });
        }
    }
    let scheduler = |reason: String| ModelError::Scheduler { reason };
    if let Some(reason) = driver.refused {
        return Err(scheduler(reason));
    }
    let all = driver.declared == u64::from(shape.workers);
    let update = driver.update.filter(|_| all);
    let update = update.ok_or_else(|| scheduler("it did not answer all declarations".to_owned()))?;
    let mut map = ShardMap::new(shape.chunk_bytes, 1);
    map.apply(&update).map_err(|error| scheduler(error.to_string()))?;
    Ok((map, driver.said))
}

fn register(role: Role, number: u64) -> Register {
    let policies = Policies::default();
    Register {
        protocol: PROTOCOL_VERSION,
        build: "model".to_owned(),
        job: JOB,
        role,
        incarnation: Incarnation(2 + number),
        wanted_rank: None,
        data_address: (role == Role::Server).then(|| format!("model:{number}")),
        http_address: None,
        host: None,
        pid: 0,
        offer: Offer { host: String::new(), uid: 0, policies, missing: Vec::new() },
        rules: Vec::new(),
        resume: None,
    }
}
