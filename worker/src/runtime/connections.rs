//! A lane's connections as its data thread knows them: which ones are wanted, whose first write is not answered yet, and who
//! gets a message when one ends. It must not decide which servers there are.

use super::lane::LaneDriver;
use fabric::{CompletionQueue, oneshot};
use proto_common::ids::Rank;
use std::collections::HashMap;

/// Told of a channel that ended: to whom, the number of its connection, and why. It runs on whoever drives the lane, and must
/// return at once.
pub(crate) type OnBroken = Box<dyn Fn(Rank, u64, String) + Send>;

/// See the module.
pub(super) struct Connections {
    /// The connection that a server's channel is taken of. Bounded by the places for servers.
    wanted: HashMap<Rank, u64>,
    /// Activations that wait for their probe's answer.
    probes: Vec<(Rank, oneshot::Sender<Result<(), String>>)>,
    on_broken: OnBroken,
}

impl Connections {
    pub(super) fn new(on_broken: OnBroken) -> Self {
        Self { wanted: HashMap::new(), probes: Vec::new(), on_broken }
    }

    /// Of this server channels of this connection are taken only.
    pub(super) fn want(&mut self, server: Rank, number: u64) {
        self.wanted.insert(server, number);
    }

    /// Of this server none are taken any more.
    pub(super) fn end(&mut self, server: Rank) {
        self.wanted.remove(&server);
        self.probes.retain(|(other, reply)| {
            let stays = *other != server;
            if !stays {
                reply.send(Err("the server process has ended".into()));
            }
            stays
        });
    }

    /// Is this connection still wanted? One that was given up may be late: its channel would take the place of another's, or
    /// let a server in that is gone.
    pub(super) fn check(&self, server: Rank, number: u64) -> Result<(), String> {
        match self.wanted.get(&server) == Some(&number) {
            true => Ok(()),
            false => Err("this connection was abandoned meanwhile".into()),
        }
    }

    /// The answer goes out when the probe was answered.
    pub(super) fn probing(&mut self, server: Rank, reply: oneshot::Sender<Result<(), String>>) {
        self.probes.push((server, reply));
    }

    /// Tells what there is to tell; looked at after each turn.
    pub(super) fn look<Q: CompletionQueue>(&mut self, driver: &mut LaneDriver<Q>) {
        if !self.probes.is_empty() {
            self.answer_probes(driver);
        }
        if driver.has_broken() {
            self.tell_broken(driver);
        }
    }

    fn tell_broken<Q: CompletionQueue>(&mut self, driver: &mut LaneDriver<Q>) {
        while let Some((server, number, reason)) = driver.take_broken() {
            // The end of a channel of before says nothing of the connection that is wanted by now.
            if self.wanted.get(&server) == Some(&number) {
                (self.on_broken)(server, number, reason);
            }
        }
    }

    fn answer_probes<Q: CompletionQueue>(&mut self, driver: &LaneDriver<Q>) {
        self.probes.retain(|(server, reply)| {
            let broke = driver.unready(*server).map(|reason| Err(reason.to_owned()));
            let Some(answer) = broke.or_else(|| driver.probed(*server).then_some(Ok(()))) else {
                return true;
            };
            // Nobody listens any more where the bootstrap's deadline has passed.
            reply.send(answer);
            false
        });
    }
}
