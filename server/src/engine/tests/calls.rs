//! Calls: taken in order and once, answered again after a broken channel, kept no longer and no more than allowed.

use super::*;
use crate::engine::CallAnswer;
use proptest::prelude::*;
use proto_common::call::{CALLS_IN_FLIGHT_MAX, call_id};

mod kept;
mod restored;

const APP: u32 = 4;
/// Bytes of a reply that does not travel with its result.
const LONG: u64 = 1 << 20;

/// A call with so many bytes of body, whose worker knows all answers before `from`.
fn call_from(operation: u64, from: u64, bytes: u64) -> Block {
    Block {
        id: call_id(APP, Rank(0)),
        bytes: 32,
        landing: Some(Landing { region: REGION, offset: 0, bytes: 0 }),
        first_open: Operation(from),
        ..block(OpKind::Call, operation, bytes)
    }
}

fn call(operation: u64) -> Block {
    call_from(operation, 1, 10)
}

fn take(rig: &Rig, call: u64, bytes: u64) -> Command {
    take_as(rig, call, (call, 1), bytes)
}

fn take_as(rig: &Rig, call: u64, (operation, first_open): (u64, u64), bytes: u64) -> Command {
    Command::CallTake(CallTaken {
        call,
        peer: Rank(0),
        life: life(0),
        app: APP,
        operation,
        first_open,
        from: rig.at(),
        frame_bytes: 32,
        region: REGION,
        bytes,
    })
}

impl Rig {
    fn arrived(&mut self, call: u64) -> Vec<Command> {
        let mut out = Commands::default();
        self.engine.call_arrived(call, &mut out);
        out.list
    }

    fn answered(&mut self, call: u64, body_bytes: u64) -> Vec<Command> {
        let mut out = Commands::default();
        let answer = CallAnswer { status: Status::Done, head_bytes: 4, body_bytes };
        self.engine.call_answered(call, answer, &mut out);
        out.list
    }

    /// A reply is on its way to its room.
    fn reply_sent(&mut self, call: u64) {
        let mut out = Commands::default();
        self.engine.call_landed(call, true, &mut out);
        assert_eq!(out.list, []);
    }

    /// What workers are told, and which calls are over.
    fn flush_calls(&mut self) -> (Vec<(u64, Status, u64)>, Vec<u64>) {
        let mut out = Commands::default();
        self.engine.flush(usize::MAX, &mut out);
        let (mut told, mut gone) = (Vec::new(), Vec::new());
        for command in &out.list {
            match command {
                Command::Results { peer, slot, results, grants, .. } => {
                    let worker = &mut self.workers[peer.0 as usize];
                    worker.credits.extend(&out.grants[grants.clone()]);
                    worker.read.push(SlotGrant { generation: slot.generation.wrapping_add(1), ..*slot });
                    let results = out.results[results.clone()].iter();
                    told.extend(results.map(|r| (r.block.operation.0, r.block.status, r.inline_bytes())));
                }
                Command::CallDrop { call } => gone.push(*call),
                other => panic!("flush only sends: {other:?}"),
            }
        }
        self.return_slots();
        (told, gone)
    }
}

fn deliver(call: u64) -> Command {
    Command::CallDeliver { call }
}

#[test]
fn handlers_get_calls_in_order_whatever_arrives_first() {
    let mut rig = Rig::new(config(1));
    let taken = rig.send(0, &[call(1), call(2)]);
    assert_eq!(taken, [take(&rig, 1, 10), take(&rig, 2, 10)]);
    assert_eq!(rig.arrived(2), [], "the one before it is not whole");
    assert_eq!(rig.arrived(1), [deliver(1), deliver(2)]);
    assert_eq!(rig.engine.under_way(), 2);
    // Answers come as handlers give them.
    assert_eq!(rig.answered(2, 5), []);
    assert_eq!(rig.flush_calls(), (vec![(2, Status::Done, 2 + 4 + 5)], vec![]));
    assert_eq!(rig.answered(1, 0), []);
    assert_eq!(rig.flush_calls().0, [(1, Status::Done, 6)]);
    assert_eq!((rig.engine.under_way(), rig.engine.calls()), (0, 2), "answered, and kept");
    // With the next call they are known, and let go of.
    let taken = rig.send(0, &[call_from(3, 3, 10)]);
    assert_eq!(taken, [take_as(&rig, 3, (3, 3), 10)]);
    assert_eq!(rig.flush_calls().1, [1, 2]);
    assert_eq!(rig.send(0, &[call_from(5, 3, 10)]), [], "one is missing before it");
    assert_eq!(rig.flush_calls().0, [(5, Status::Retry, 0)]);
}

#[test]
fn a_replay_is_told_again_and_not_taken_again() {
    let mut rig = Rig::new(config(1));
    rig.send(0, &[call(1), call(2), call(3)]);
    assert_eq!(rig.arrived(1), [deliver(1)]);
    assert_eq!(rig.arrived(2), [deliver(2)]);
    rig.answered(1, 0);
    rig.flush_calls();
    rig.down(Rank(0));
    // The third one was not whole: its memory is let go of, and it comes as new.
    assert_eq!(rig.flush_calls(), (vec![], vec![3]));
    assert_eq!(rig.answered(2, 0), [], "there is nobody to tell");
    rig.connect(0);
    let taken = rig.send(0, &[call(1), call(2), call(3)]);
    assert_eq!(taken, [take_as(&rig, 4, (3, 1), 10)]);
    assert_eq!(rig.flush_calls().0, [(1, Status::Done, 6), (2, Status::Done, 6)]);
    // Another life of the worker starts anew.
    rig.arrived(4);
    rig.down(Rank(0));
    let mut out = Commands::default();
    rig.engine.peer_up(Rank(0), Incarnation(77), &[], false, &mut out);
    assert_eq!(rig.flush_calls().1, [1, 2, 4]);
    assert_eq!(rig.answered(4, 0), [Command::CallDrop { call: 4 }], "of a worker that has gone");
    assert_eq!(rig.engine.calls(), 0);
}

#[test]
fn a_long_reply_waits_for_room() {
    let mut rig = Rig::new(config(1));
    rig.send(0, &[call(1)]);
    rig.arrived(1);
    assert_eq!(rig.answered(1, LONG), []);
    assert_eq!(rig.flush_calls().0, [(1, Status::ReplyRoom, 0)]);
    let landing = Landing { region: REGION, offset: 64, bytes: LONG + 5 };
    let again = Block { landing: Some(landing), bytes: 0, ..call(1) };
    let landed = Landing { bytes: LONG, ..landing };
    assert_eq!(rig.send(0, &[again]), [Command::CallLand { peer: Rank(0), call: 1, landing: landed }]);
    assert_eq!(rig.send(0, &[again]), [], "it is on its way");
    assert_eq!(rig.flush_calls().0, [], "its result follows the reply");
    rig.reply_sent(1);
    assert_eq!(rig.flush_calls().0, [(1, Status::Done, 6)]);
    let with_room = Block { landing: Some(landing), ..call_from(2, 2, 10) };
    rig.send(0, &[with_room]);
    rig.arrived(2);
    assert_eq!(rig.answered(2, LONG), [Command::CallLand { peer: Rank(0), call: 2, landing: landed }]);
    // A broken channel ends what was on its way; the replay starts anew.
    rig.down(Rank(0));
    rig.reply_sent(2);
    assert_eq!(rig.flush_calls().0, []);
    rig.connect(0);
    assert_eq!(rig.send(0, &[with_room]), [Command::CallLand { peer: Rank(0), call: 2, landing: landed }]);
    let mut out = Commands::default();
    rig.engine.call_landed(2, false, &mut out);
    assert_eq!(out.list, [Command::CallDrop { call: 2 }], "it cannot be sent");
    assert_eq!(rig.flush_calls().0, [(2, Status::NoMemory, 0)]);
}

#[test]
fn deadlines_say_whether_there_is_a_handler() {
    let mut rig = Rig::new(config(1));
    rig.send(0, &[call(1), call(2)]);
    rig.arrived(2);
    rig.now_ms = 1_000;
    let let_go = [Command::CallDrop { call: 1 }, Command::CallDrop { call: 2 }];
    assert_eq!(rig.time(), let_go, "neither was handed over, and their bodies are counted no more");
    assert_eq!(rig.flush_calls().0, [(1, Status::NoHandler, 0), (2, Status::NoHandler, 0)]);
    rig.engine.set_handler(APP, true);
    rig.send(0, &[call_from(3, 3, 10)]);
    rig.arrived(3);
    rig.now_ms = 2_000;
    assert_eq!(rig.time(), [Command::CallCancel { call: 3 }]);
    assert_eq!(rig.flush_calls(), (vec![(3, Status::DeadlineWaiting, 0)], vec![1, 2]));
    assert_eq!(rig.answered(3, 0), [Command::CallDrop { call: 3 }], "too late");
    assert_eq!(rig.flush_calls().0, []);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut rig = Rig::new(config(1));
    rig.engine.limit_calls(2 * LONG);
    let landing = Some(Landing { region: REGION, offset: 0, bytes: LONG });
    let long = |operation, bytes| Block { landing, ..call_from(operation, 1, bytes) };
    let short = |operation, bytes| call_from(operation, 1, bytes);
    assert_eq!(rig.send(0, &[long(1, 2 * LONG + 1)]), []);
    assert_eq!(rig.flush_calls().0, [(1, Status::WrongShape, 0)], "never");
    rig.send(0, &[long(2, 2 * LONG)]);
    assert_eq!(rig.send(0, &[long(3, 1)]), []);
    assert_eq!(rig.flush_calls().0, [(3, Status::CallRoom, 0)], "not now");
    rig.arrived(2);
    rig.answered(2, LONG - 6);
    rig.reply_sent(2);
    assert_eq!(rig.flush_calls().0, [(2, Status::Done, 6)]);
    rig.send(0, &[short(3, LONG)]);
    assert_eq!(rig.flush_calls(), (vec![], vec![]));
    // The kept reply makes way, and is not told again.
    let taken = rig.send(0, &[short(4, LONG)]);
    assert_eq!(taken, [take(&rig, 4, LONG)]);
    assert_eq!(rig.flush_calls().1, [2]);
    rig.send(0, &[long(2, 2 * LONG)]);
    assert_eq!(rig.flush_calls().0, [(2, Status::NoReply, 0)]);
}

#[test]
fn whoever_breaks_the_rules_is_expelled() {
    let sent = |blocks: &[Block]| {
        let mut rig = Rig::new(config(1));
        rig.send(0, &[call(1)]);
        expelled(&rig.send(0, blocks)).to_owned()
    };
    assert!(sent(&[call_from(2, 2, 10)]).contains("not answered"));
    assert!(sent(&[call_from(1 + CALLS_IN_FLIGHT_MAX, 1, 10)]).contains("more calls in flight"));
    assert!(sent(&[call(0)]).contains("invalid fields"));
    assert!(sent(&[Block { view: true, ..call(2) }]).contains("invalid fields"));
    assert!(sent(&[Block { id: ChunkId::new(1, 0), ..call(2) }]).contains("names no handler"));
    let elsewhere = BlockData::ByReference { region: 1, offset: 0 };
    assert!(sent(&[Block { data: elsewhere, ..call(2) }]).contains("names no handler"));
    // What is no call has no business there.
    let mut rig = Rig::new(config(1));
    assert_eq!(rig.send(0, &[Block { id: call_id(APP, Rank(0)), ..push(1, 1) }]), []);
    assert_eq!(rig.flush_calls().0, [(1, Status::UnknownChunk, 0)]);
}

#[derive(Clone, Debug)]
enum Step {
    Submit { bytes: u64 },
    Send { most: usize },
    Arrive(usize),
    Land(usize),
    Answer(usize, u64),
    Break,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = any::<usize>;
    let bytes = prop_oneof![Just(10u64), Just(LONG), Just(3 * LONG), Just(5 * LONG)];
    let step = prop_oneof![
        6 => bytes.clone().prop_map(|bytes| Step::Submit { bytes }),
        6 => (1usize..5).prop_map(|most| Step::Send { most }),
        6 => any().prop_map(Step::Arrive),
        6 => any().prop_map(Step::Land),
        6 => (any(), bytes).prop_map(|(at, bytes)| Step::Answer(at, bytes)),
        1 => Just(Step::Break),
        1 => (0u64..700).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..120)
}

/// A worker that keeps the protocol, and a runtime that does what it is told.
struct Play {
    rig: Rig,
    /// Not ended, in order, with their bodies; sent or not.
    open: std::collections::BTreeMap<u64, (u64, bool)>,
    next: u64,
    /// Taken, and not whole.
    fetching: Vec<u64>,
    /// With the handler.
    delivered: Vec<u64>,
    /// Replies on their way.
    landing: Vec<u64>,
    /// Operation of each call that was ever taken.
    operations: std::collections::BTreeMap<u64, u64>,
    /// Operations in the order in which handlers got them.
    handed: Vec<u64>,
    ended: std::collections::BTreeMap<u64, Status>,
}

impl Play {
    fn new() -> Self {
        let mut rig = Rig::new(config(1));
        rig.engine.limit_calls(4 * LONG);
        Self {
            rig,
            open: Default::default(),
            next: 1,
            fetching: Vec::new(),
            delivered: Vec::new(),
            landing: Vec::new(),
            operations: Default::default(),
            handed: Vec::new(),
            ended: Default::default(),
        }
    }

    fn execute(&mut self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::CallTake(CallTaken { call, frame_bytes, bytes, .. }) => {
                    // Frames are as long as their operation's number.
                    assert_eq!(self.open[&frame_bytes].0, bytes);
                    self.operations.insert(call, frame_bytes);
                    self.fetching.push(call);
                }
                Command::CallDeliver { call } => {
                    self.delivered.push(call);
                    self.handed.push(self.operations[&call]);
                }
                Command::CallLand { call, .. } => self.landing.push(call),
                Command::CallCancel { .. } | Command::CallDrop { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn send(&mut self, most: usize) {
        let from = self.open.keys().next().copied().unwrap_or(self.next);
        let window = from + CALLS_IN_FLIGHT_MAX;
        let due = self.open.iter().filter(|(operation, (_, sent))| !sent && **operation < window);
        let due: Vec<u64> = due.take(most).map(|(operation, _)| *operation).collect();
        if due.is_empty() || self.rig.held(0) == 0 {
            return self.flush();
        }
        let block = |operation: &u64| {
            // None, too little, or enough.
            let room = Some(Landing { region: REGION, offset: 0, bytes: (operation % 3) * 2 * LONG });
            let call = call_from(*operation, from, self.open[operation].0);
            Block { landing: room, bytes: *operation, ..call }
        };
        let blocks: Vec<Block> = due.iter().map(block).collect();
        due.iter().for_each(|operation| self.open.get_mut(operation).unwrap().1 = true);
        let commands = self.rig.send_wanting(0, 4, &blocks);
        self.execute(commands);
        self.flush();
    }

    fn flush(&mut self) {
        for (operation, status, _) in self.rig.flush_calls().0 {
            match status {
                Status::Retry | Status::CallRoom => {
                    if let Some((_, sent)) = self.open.get_mut(&operation) {
                        *sent = false;
                    }
                }
                status => {
                    if self.open.remove(&operation).is_some() {
                        self.ended.insert(operation, status);
                    }
                }
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Submit { bytes } => {
                self.open.insert(self.next, (bytes, false));
                self.next += 1;
            }
            Step::Send { most } => self.send(most),
            Step::Arrive(at) if !self.fetching.is_empty() => {
                let call = self.fetching.remove(at % self.fetching.len());
                let commands = self.rig.arrived(call);
                self.execute(commands);
            }
            Step::Answer(at, bytes) if !self.delivered.is_empty() => {
                let call = self.delivered.remove(at % self.delivered.len());
                let commands = self.rig.answered(call, bytes);
                self.execute(commands);
            }
            Step::Land(at) if !self.landing.is_empty() => {
                let call = self.landing.remove(at % self.landing.len());
                self.rig.reply_sent(call);
            }
            Step::Break => {
                self.rig.down(Rank(0));
                self.fetching.clear();
                self.landing.clear();
                self.rig.flush_calls();
                self.rig.connect(0);
                self.open.values_mut().for_each(|(_, sent)| *sent = false);
            }
            Step::Pass(ms) => {
                self.rig.now_ms += ms;
                let commands = self.rig.time();
                self.execute(commands);
            }
            Step::Arrive(_) | Step::Answer(..) | Step::Land(_) => {}
        }
        self.flush();
    }
}

proptest! {
    #[test]
    fn once_each_in_order_and_all_are_answered(steps in steps()) {
        let mut play = Play::new();
        steps.into_iter().for_each(|step| play.step(step));
        // A quiet end: everything that is under way ends.
        for _ in 0..10_000 {
            if play.open.is_empty() {
                break;
            }
            play.step(Step::Send { most: 4 });
            play.step(Step::Arrive(0));
            play.step(Step::Answer(0, 10));
            play.step(Step::Land(0));
        }
        prop_assert!(play.open.is_empty(), "{:?}", play.open);
        let mut once = play.handed.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(&once, &play.handed, "handed over twice, or not in order");
        for (operation, status) in &play.ended {
            let fine = match status {
                Status::ReplyRoom | Status::NoMemory => play.handed.contains(operation),
                status => matches!(status, Status::Done | Status::NoHandler | Status::WrongShape | Status::NoReply),
            };
            prop_assert!(fine, "{operation}: {status:?}");
            if *status == Status::Done {
                prop_assert!(play.handed.contains(operation));
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Wild {
    Batch { rank: u32, calls: Vec<Block> },
    Arrived(u64),
    Answered(u64, u64),
    Landed(u64, bool),
    Failed(u64),
    Down(u32),
    Up(u32, u64),
    Tick(u64),
}

fn wild_number() -> impl Strategy<Value = u64> {
    prop_oneof![12 => 0u64..6, 1 => Just(u64::MAX), 1 => Just(u64::MAX - 1), 1 => any::<u64>()]
}

prop_compose! {
    fn wild_call()(operation in wild_number(), from in wild_number(), bytes in wild_number(), app in 0u32..3, odd in 0u8..30,
                   room in wild_number()) -> Block {
        Block {
            id: if odd == 0 { ChunkId::new(1, u32::MAX) } else { call_id(app, Rank(0)) },
            data: if odd == 1 { BlockData::Placed } else { BlockData::Inline { offset: 0 } },
            status: if odd == 2 { Status::Corrupt } else { Status::None },
            landing: (odd != 3).then_some(Landing { region: 1, offset: u64::MAX, bytes: room }),
            ..call_from(operation, from, bytes)
        }
    }
}

fn wild() -> impl Strategy<Value = Vec<Wild>> {
    let wild = prop_oneof![
        10 => (0u32..2, prop::collection::vec(wild_call(), 1..4)).prop_map(|(rank, calls)| Wild::Batch { rank, calls }),
        4 => (0u64..30).prop_map(Wild::Arrived),
        4 => (0u64..30, wild_number()).prop_map(|(call, bytes)| Wild::Answered(call, bytes)),
        4 => (0u64..30, any::<bool>()).prop_map(|(call, is_sent)| Wild::Landed(call, is_sent)),
        1 => (0u64..30).prop_map(Wild::Failed),
        1 => (0u32..2).prop_map(Wild::Down),
        1 => (0u32..2, 0u64..2).prop_map(|(rank, life)| Wild::Up(rank, life)),
        1 => (0u64..2_000).prop_map(Wild::Tick),
    ];
    prop::collection::vec(wild, 1..100)
}

proptest! {
    #[test]
    fn whatever_is_called_nothing_panics_and_nothing_is_left(events in wild()) {
        let mut rig = Rig::new(config(2));
        rig.engine.limit_calls(100);
        for event in events {
            let commands = match event {
                Wild::Batch { rank, calls } if rig.held(rank) > 0 => rig.send_wanting(rank, 4, &calls),
                Wild::Batch { rank, .. } => {
                    rig.connect(rank);
                    Vec::new()
                }
                Wild::Arrived(call) => rig.arrived(call),
                Wild::Answered(call, bytes) => rig.answered(call, bytes),
                Wild::Landed(call, is_sent) => {
                    let mut out = Commands::default();
                    rig.engine.call_landed(call, is_sent, &mut out);
                    out.list
                }
                Wild::Failed(call) => {
                    let mut out = Commands::default();
                    rig.engine.call_failed(call, &mut out);
                    out.list
                }
                Wild::Down(rank) => {
                    rig.down(Rank(rank));
                    Vec::new()
                }
                Wild::Up(rank, life) => {
                    let mut out = Commands::default();
                    rig.engine.peer_up(Rank(rank), Incarnation(200 + life), &[], false, &mut out);
                    rig.connect(rank);
                    out.list
                }
                Wild::Tick(ms) => {
                    rig.now_ms += ms;
                    rig.time()
                }
            };
            for command in commands {
                if let Command::Expel { peer, .. } = command {
                    rig.down(peer); // What the runtime does.
                    rig.connect(peer.0);
                }
            }
            rig.flush_calls();
            prop_assert!(rig.engine.calls() as u64 <= 2 * 3 * CALLS_IN_FLIGHT_MAX);
        }
        for rank in 0..2 {
            let mut out = Commands::default();
            rig.engine.peer_up(Rank(rank), Incarnation(300), &[], false, &mut out);
        }
        prop_assert_eq!((rig.engine.calls(), rig.engine.call_bytes()), (0, 0));
    }
}
