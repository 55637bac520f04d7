//! Random sequences of everything that can happen: never a panic, unique ranks, barriers opened exactly
//! once, declarations answered once, nothing sent to a closed connection, nothing after the end.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[derive(Clone, Copy, Debug)]
enum Action {
    Register { connection: u64, server: bool, wanted: Option<u32> },
    Barrier { connection: u64, name: u8, all: bool, timeout_ms: u64 },
    Declare { connection: u64, key: u64, elements: u64, timeout_ms: u64 },
    Assigned { connection: u64, counter: u32, fails: bool },
    Heartbeat { connection: u64 },
    Goodbye { connection: u64 },
    Failing { connection: u64 },
    Close { connection: u64 },
    Pass { ms: u64 },
    Stop,
}

fn actions() -> impl Strategy<Value = Action> {
    let c = 0u64..7;
    prop_oneof![
        12 => (c.clone(), any::<bool>(), prop::option::of(0u32..4))
            .prop_map(|(connection, server, wanted)| Action::Register { connection, server, wanted }),
        12 => (c.clone(), 0u8..2, any::<bool>(), 0u64..60).prop_map(|(connection, name, all, timeout_ms)| {
            Action::Barrier { connection, name, all, timeout_ms }
        }),
        8 => (c.clone(), 0u64..4, 0u64..3000, 0u64..60).prop_map(|(connection, key, elements, timeout_ms)| {
            Action::Declare { connection, key, elements, timeout_ms }
        }),
        12 => (c.clone(), 0u32..6, prop::bool::weighted(0.1))
            .prop_map(|(connection, counter, fails)| Action::Assigned { connection, counter, fails }),
        8 => c.clone().prop_map(|connection| Action::Heartbeat { connection }),
        2 => c.clone().prop_map(|connection| Action::Goodbye { connection }),
        1 => c.clone().prop_map(|connection| Action::Failing { connection }),
        1 => c.prop_map(|connection| Action::Close { connection }),
        6 => (0u64..40).prop_map(|ms| Action::Pass { ms }),
        1 => Just(Action::Stop),
    ]
}

/// What an observer outside the engine knows.
#[derive(Default)]
struct Observer {
    asked: BTreeSet<(ConnectionId, u64)>,
    closed: BTreeSet<ConnectionId>,
    ended: bool,
}

impl Observer {
    fn check(&mut self, commands: &[Command]) {
        assert!(!self.ended || commands.is_empty(), "after the end: {commands:?}");
        for command in commands {
            match command {
                Command::Send { to, message } => self.check_send(to, message),
                Command::Close { connection } => {
                    assert!(self.closed.insert(*connection), "{connection:?} closed twice");
                }
                Command::WriteManifest(_) | Command::ClearAway(_) => {}
                Command::End(_) => self.ended = true,
            }
        }
    }

    fn check_send(&mut self, to: &[ConnectionId], message: &FromScheduler) {
        assert!(!to.is_empty(), "a message to nobody: {message:?}");
        for connection in to {
            assert!(!self.closed.contains(connection), "{message:?} to a closed connection");
            if let FromScheduler::Released { request, .. } | FromScheduler::Declared { request, .. } = message
            {
                assert!(
                    self.asked.remove(&(*connection, *request)),
                    "answered twice or unasked: {message:?}"
                );
            }
        }
        if let FromScheduler::Roster { members, .. } = message {
            let ids: BTreeSet<MemberId> = members.iter().map(|member| member.id).collect();
            assert_eq!(ids.len(), members.len(), "ranks are unique");
        }
    }
}

fn input(action: Action, number: u64, observer: &mut Observer) -> Option<Input> {
    let mut from = |connection: u64, message: ToScheduler| {
        let from = ConnectionId(connection);
        if let ToScheduler::Barrier { request, .. } | ToScheduler::Declare { request, .. } = &message {
            observer.asked.insert((from, *request));
        }
        // The runtime drops what comes from connections it was told to close.
        (!observer.closed.contains(&from)).then_some(Input::Message { from, message })
    };
    match action {
        Action::Register { connection, server, wanted } => {
            let role = if server { Role::Server } else { Role::Worker };
            let wanted_rank = wanted.map(Rank);
            let message = Register { wanted_rank, ..register(role, number + 1) };
            from(connection, ToScheduler::Register(message))
        }
        Action::Barrier { connection, name, all, timeout_ms } => {
            let group = if all { NodeGroup::ALL } else { NodeGroup::WORKERS };
            let name = name.to_string();
            from(connection, ToScheduler::Barrier { request: number, name, group, passed: 0, timeout_ms })
        }
        Action::Declare { connection, key, elements, timeout_ms } => {
            let tensors = vec![TensorSpec::f32(key, elements, Optimizer::sum())];
            from(connection, ToScheduler::Declare { request: number, tensors, timeout_ms })
        }
        Action::Assigned { connection, counter, fails } => {
            let error = fails.then(|| "no".into());
            from(connection, ToScheduler::Assigned { epoch: Epoch { term: 1, counter }, error })
        }
        Action::Heartbeat { connection } => from(connection, ToScheduler::Heartbeat(MemberReport::default())),
        Action::Goodbye { connection } => from(connection, ToScheduler::Goodbye),
        Action::Failing { connection } => from(connection, ToScheduler::Failing { reason: "x".into() }),
        Action::Close { connection } => {
            let connection = ConnectionId(connection);
            observer.closed.insert(connection).then_some(Input::Closed { connection, fault: None })
        }
        Action::Pass { .. } => Some(Input::Tick),
        Action::Stop => Some(Input::Stop { reason: "x".into() }),
    }
}

proptest! {
    #[test]
    fn whatever_happens(
        complete in any::<bool>(),
        may_follow in any::<bool>(),
        list in prop::collection::vec(actions(), 0..120),
    ) {
        let mut rig = Rig::new(2, 3);
        if may_follow {
            let mut config = rig.engine.config.clone();
            config.shape.scheduler_ms = 1_000;
            rig.engine = Engine::new(config, 0);
        }
        let mut observer = Observer::default();
        if complete {
            for number in 0..5u64 {
                let action = Action::Register { connection: number, server: number < 2, wanted: None };
                let input = input(action, 1_000 + number, &mut observer);
                let commands = rig.handle(input.unwrap());
                observer.check(&commands);
            }
            prop_assert_eq!(&rig.engine.phase, &Phase::Running);
        }
        for (number, action) in list.into_iter().enumerate() {
            if let Action::Pass { ms } = action {
                rig.now_ms += ms;
            }
            let Some(input) = input(action, number as u64, &mut observer) else { continue };
            let commands = rig.handle(input);
            observer.check(&commands);
            prop_assert!(rig.engine.next_tick_ms(rig.now_ms) <= rig.now_ms + 20 || rig.now_ms == 0);
            let _ = rig.engine.status(rig.now_ms);
        }
        // Whatever state it is in, telling it to stop and waiting ends it.
        let commands = rig.handle(Input::Stop { reason: "end of test".into() });
        observer.check(&commands);
        let commands = rig.tick_at(rig.now_ms + DRAIN_MS);
        observer.check(&commands);
        prop_assert!(observer.ended);
    }

    #[test]
    fn a_barrier_opens_exactly_once(order in Just((0..8u32).collect::<Vec<_>>()).prop_shuffle()) {
        let mut rig = Rig::running(1, 8);
        for (position, rank) in order.iter().enumerate() {
            let group = NodeGroup::WORKERS;
            let request = u64::from(*rank);
            let barrier = ToScheduler::Barrier { request, name: "b".into(), group, passed: 0, timeout_ms: 1_000 };
            let commands = rig.say(worker(*rank), barrier);
            prop_assert_eq!(commands.len(), if position == 7 { 8 } else { 0 });
        }
    }
}
