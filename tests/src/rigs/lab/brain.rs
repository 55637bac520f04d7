//! The scheduler's process: its engine, one life after the other, and its ends of the control connections.

use super::Lab;
use super::seat::Clock;
use super::wire::Parcel;
use daemon::status::JobPhase;
use gradwire_scheduler::engine::{
    CheckpointConfig, Command, ConnectionId, Engine, EngineConfig, Input, Outcome,
};
use proto_common::ids::{Incarnation, JobId};
use proto_common::message::FromScheduler;

pub(super) const JOB: JobId = JobId(77);

/// See the module.
#[derive(Debug)]
pub(super) struct Brain {
    pub(super) clock: Clock,
    pub(super) engine: Option<Engine>,
    /// Which life it is, from 1.
    pub(super) life: u64,
    pub(super) tick_us: u64,
    /// When it last told members of a decision.
    pub(super) decided_us: u64,
    /// When the next life begins.
    pub(super) start_us: Option<u64>,
    /// It does nothing before.
    pub(super) paused_until_us: u64,
    pub(super) outcome: Option<Outcome>,
}

impl Brain {
    /// Nobody yet.
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            clock,
            engine: None,
            life: 0,
            tick_us: 0,
            decided_us: 0,
            start_us: None,
            paused_until_us: 0,
            outcome: None,
        }
    }

    /// Is there one that knows its cluster, and is awake?
    pub(super) fn is_running(&self, now_us: u64) -> bool {
        let phase = self.engine.as_ref().map(|engine| engine.status(self.clock.clock_ms(now_us)).phase);
        phase == Some(JobPhase::Running) && self.paused_until_us <= now_us
    }

    /// Which life hears what members say now.
    pub(super) fn listening(&self, now_us: u64) -> Option<u64> {
        self.engine.as_ref().filter(|_| self.paused_until_us <= now_us).map(|_| self.life)
    }

    pub(super) fn next_us(&self) -> Option<u64> {
        let tick = self.engine.as_ref().map(|_| self.tick_us.max(self.paused_until_us));
        tick.into_iter().chain(self.start_us).min()
    }
}

impl Lab {
    pub(super) fn step_brain(&mut self) {
        let now_us = self.now_us();
        if self.brain.start_us.is_some_and(|at_us| at_us <= now_us) {
            self.start_brain();
        }
        self.between();
        while let Some(life) = self.brain.listening(now_us)
            && let Some((id, parcel)) = self.wires.next_up(life, now_us)
        {
            let connection = ConnectionId(id);
            let input = match parcel {
                Parcel::Message(message) => Input::Message { from: connection, message },
                Parcel::Closed => {
                    self.wires.deafen(id);
                    Input::Closed { connection, fault: None }
                }
            };
            self.decide(input);
            self.between();
        }
        if self.brain.listening(now_us).is_some() && self.brain.tick_us <= now_us {
            self.decide(Input::Tick);
        }
    }

    fn start_brain(&mut self) {
        let now_us = self.now_us();
        self.brain.start_us = None;
        self.brain.life += 1;
        let config = EngineConfig {
            job: JOB,
            shape: self.shape.cluster(),
            term: 1,
            scheduler: Incarnation(9_000 + self.brain.life),
            assemble_ms: 20_000,
            drain_ms: 2_000,
            rejoin_ms: 20_000,
            rebalance: true,
            resume: self.brain.life > 1,
            force: self.shape.forced && self.brain.is_rival(),
            pid: 1,
            checkpoints: CheckpointConfig::default(),
        };
        self.note(&format!("scheduler life {} begins", self.brain.life));
        self.brain.engine = Some(Engine::new(config, self.brain.clock.clock_ms(now_us)));
        (self.brain.tick_us, self.brain.paused_until_us) = (now_us, 0);
    }

    /// Its process dies: members find their connections closed, and what it had said last may not have left it.
    pub(super) fn crash_brain(&mut self, down_us: u64) {
        let (now_us, life) = (self.now_us(), self.brain.life);
        if self.brain.engine.take().is_some() {
            self.note("scheduler dies");
            let rng = &mut self.rng;
            self.wires.lose_last_decisions(life, &mut |said| rng.below(said as u64 + 1) as usize);
            let at_us = now_us + self.rng.within(0, self.shape.control_us);
            self.wires.drop_scheduler(life, at_us);
            self.brain.start_us = Some(now_us + down_us);
        }
    }

    fn decide(&mut self, input: Input) {
        let now_us = self.now_us();
        let now_ms = self.brain.clock.clock_ms(now_us);
        let Some(engine) = &mut self.brain.engine else { return };
        // What comes meanwhile does not put off a tick that was asked for.
        let asked_us = if matches!(input, Input::Tick) { u64::MAX } else { self.brain.tick_us };
        let commands = engine.handle(now_ms, input);
        let next_ms = engine.next_tick_ms(now_ms).max(now_ms + 1);
        self.brain.tick_us = asked_us.min(self.brain.clock.true_us(next_ms));
        for command in commands {
            self.between();
            if self.brain.engine.is_none() {
                return;
            }
            match command {
                Command::Send { to, message } => {
                    if !matches!(*message, FromScheduler::HeartbeatAck | FromScheduler::Welcome(_)) {
                        let text = format!("{message:?}");
                        let end = text.char_indices().nth(3_000).map_or(text.len(), |(at, _)| at);
                        self.note(&format!("to {to:?}: {}", &text[..end]));
                    }
                    // A scheduler without a majority that asks all members again needs somebody who knows. Workers that have
                    // ended, and processes whose admission is not in force, do not.
                    if matches!(*message, FromScheduler::SendMap) && !self.can_tell() {
                        self.may_fail = true;
                    }
                    if matches!(*message, FromScheduler::Remap { .. } | FromScheduler::Roster { .. }) {
                        self.brain.decided_us = now_us;
                    }
                    for connection in to {
                        self.between();
                        if self.brain.engine.is_none() {
                            return;
                        }
                        let at_us = self.soon_us(self.wires.seat_of(connection.0));
                        self.wires.say_down(connection.0, at_us, (*message).clone());
                    }
                }
                // Nothing of this laboratory asks for checkpoints.
                Command::WriteManifest(_) | Command::ClearAway(_) => {}
                Command::Close { connection } => {
                    self.wires.deafen(connection.0);
                    self.wires.close_down(connection.0, now_us);
                }
                Command::End(outcome) => {
                    self.note(&format!("the job is over: {outcome}"));
                    self.brain.outcome = Some(outcome);
                    self.brain.engine = None;
                    self.wires.drop_scheduler(self.brain.life, now_us);
                    return;
                }
            }
        }
    }
}
