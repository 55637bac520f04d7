//! Whatever well-formed batches and notices come from servers: no panic, no operation ends twice.

use super::*;
use proptest::prelude::*;
use proto_common::batch::{Count, Reading};
use proto_common::limits::INBOX_SLOTS_MAX;
use std::collections::BTreeSet;

#[test]
fn a_header_for_someone_else_costs_the_channel() {
    let good = Rig::header(0);
    for bad in [
        BatchHeader { kind: BatchKind::Request, ..good },
        BatchHeader { job: JobId(8), ..good },
        BatchHeader { lane: Lane(1), ..good },
        BatchHeader { sender: Rank(1), ..good },
        BatchHeader { sender_incarnation: life(1), ..good },
        BatchHeader { receiver_incarnation: life(1), ..good },
    ] {
        let mut rig = Rig::new(4);
        rig.push(1, &[part(1, 0)]);
        let block = done(&rig.sent()[0].blocks[0]);
        let slot = rig.inbox[0][0];
        assert!(closed(&rig.deliver(0, slot, &bad, &[block], &[], &[])).contains("someone else"), "{bad:?}");
        assert_eq!(rig.engine.in_flight(), 1);
    }
}

#[test]
fn answers_that_nobody_waits_for_are_ignored() {
    let mut rig = Rig::new(4);
    rig.push(1, &[part(1, 0), PartSpec { id: ChunkId::new(1, 1), ..part(1, 1) }]);
    let sent = rig.sent();
    let block = sent[0].blocks[0];
    let others = sent[1].blocks[0];
    for (what, bad) in [
        ("an unknown token", Block { token: 77, ..done(&block) }),
        ("an old generation", Block { token: block.token + (1 << 32), ..done(&block) }),
        ("another chunk", Block { id: ChunkId::new(1, 9), ..done(&block) }),
        ("another server's chunk", done(&others)),
    ] {
        assert_eq!(rig.results(0, &[bad], &[]), [], "{what}");
    }
    assert_eq!((rig.engine.stats().duplicates, rig.engine.in_flight()), (4, 1));
    rig.results(0, &[done(&block)], &[]);
    assert_eq!(rig.results(0, &[done(&block)], &[]), [], "twice");
    assert_eq!(rig.results(1, &[done(&others)], &[]).len(), 1);
}

#[test]
fn notices_that_only_workers_send_cost_the_channel() {
    let grant = SlotGrant { slot: 0, generation: 1 };
    for notice in [Notice::Returned(grant), Notice::GivenBack(grant), Notice::Want(1)] {
        let (mut rig, mut out) = (Rig::new(1), Commands::default());
        rig.engine.notice(Rank(0), notice, &mut out);
        assert!(closed(&out.list).contains("only workers"));
    }
    let (mut rig, mut out) = (Rig::new(1), Commands::default());
    rig.engine.notice(Rank(0), Notice::ProbeReply, &mut out);
    assert_eq!(out.list, []);
    rig.engine.notice(Rank(0), Notice::Probe, &mut out);
    assert_eq!(out.list, [Command::Notice { server: Rank(0), notice: Notice::ProbeReply }]);
}

#[derive(Clone, Debug)]
enum Event {
    Submit { key: u64, kind: u8, priority: i32, timeout_ms: u32 },
    Flush(usize),
    Results { server: u32, blocks: Vec<(u64, u64, u8, u64, u64)>, wire: Option<u32>, grants: Vec<u32> },
    Notice { server: u32, wire: u32 },
    Tick(u64),
    Down(u32),
    Up(u32, u32),
    Fail,
}

fn event() -> impl Strategy<Value = Event> {
    let number = || prop_oneof![6 => 0u64..5, 1 => Just(u64::MAX), 1 => any::<u64>()];
    let block = (number(), 1u64..4, 0u8..12, number(), number());
    let server = 0u32..3; // One more than there are.
    prop_oneof![
        6 => (1u64..4, 0u8..4, -2i32..2, any::<u32>())
            .prop_map(|(key, kind, priority, timeout_ms)| Event::Submit { key, kind, priority, timeout_ms }),
        6 => (0usize..4).prop_map(Event::Flush),
        8 => (server.clone(), prop::collection::vec(block, 0..4), prop::option::weighted(0.2, 0u32..4096),
              prop::collection::vec(0u32..4096, 0..3))
            .prop_map(|(server, blocks, wire, grants)| Event::Results { server, blocks, wire, grants }),
        2 => (server.clone(), any::<u32>()).prop_map(|(server, wire)| Event::Notice { server, wire }),
        2 => (0u64..8_000).prop_map(Event::Tick),
        1 => server.clone().prop_map(Event::Down),
        2 => (server, 0u32..4).prop_map(|(server, credits)| Event::Up(server, credits)),
        1 => Just(Event::Fail),
    ]
}

fn play(rig: &mut Rig, numbers: &mut [u64; 4], event: &Event, out: &mut Commands) {
    match event {
        Event::Submit { key, kind, priority, timeout_ms } => {
            numbers[*key as usize] += 1;
            let kind = [OpKind::Push, OpKind::Pull, OpKind::PushPull, OpKind::Init][usize::from(*kind)];
            let parts = [part(*key, (*key % 2) as u32)];
            rig.next_op += 1;
            let (op, operation) = (rig.next_op, numbers[*key as usize]);
            let (priority, timeout_ms) = (*priority, *timeout_ms);
            let placement = PLACEMENTS[operation as usize % 4];
            let submit =
                Submit { op, priority, timeout_ms, busy_ms: 10_000, placement, ..submit(kind, operation) };
            rig.engine.submit(&submit, &parts, rig.now_ms, out);
        }
        Event::Flush(batches) => rig.engine.flush(*batches, rig.now_ms, out),
        Event::Results { server, blocks, wire, grants } => {
            let slot = match wire {
                None if (*server as usize) < rig.inbox.len() && !rig.inbox[*server as usize].is_empty() => {
                    let slot = rig.inbox[*server as usize].remove(0);
                    let again = SlotGrant { generation: slot.generation.wrapping_add(1), ..slot };
                    rig.inbox[*server as usize].push(again);
                    slot
                }
                other => SlotGrant::from_wire(other.unwrap_or(0)).expect("small"),
            };
            let grants: Vec<_> = grants.iter().filter_map(|wire| SlotGrant::from_wire(*wire)).collect();
            let blocks: Vec<Block> = blocks
                .iter()
                .map(|(token, key, status, round, bytes)| Block {
                    id: ChunkId::new(*key, 0),
                    token: *token,
                    count: Count::Round(*round),
                    bytes: *bytes,
                    status: Status::from_wire(*status).expect("below twelve"),
                    data: BlockData::Inline { offset: *bytes },
                    landing: (round % 2 == 1).then_some(Landing { region: 1, offset: 0, bytes: *round << 5 }),
                    ..done(&block_of_nothing())
                })
                .collect();
            let header = Rig::header(*server);
            let context = ResultContext {
                server: Rank(*server),
                slot,
                header: &header,
                blocks: &blocks,
                grants: &grants,
                payload: &[1, 2, 3, 4, 5],
            };
            rig.engine.results(&context, rig.now_ms, out);
        }
        Event::Notice { server, wire } => {
            if let Some(notice) = Notice::from_wire(*wire) {
                rig.engine.notice(Rank(*server), notice, out);
            }
        }
        Event::Tick(pass_ms) => {
            rig.now_ms += pass_ms;
            rig.engine.tick(rig.now_ms, out);
        }
        Event::Down(server) => rig.engine.server_down(Rank(*server)),
        Event::Up(server, credits) => {
            rig.engine.server_down(Rank(*server));
            if (*server as usize) < rig.inbox.len() {
                rig.up(*server, *credits);
            }
        }
        Event::Fail => rig.engine.fail_all(&OpError::Closed("test".into()), out),
    }
}

fn block_of_nothing() -> Block {
    Block {
        id: ChunkId::new(1, 0),
        op: OpKind::Push,
        dtype: Dtype::F32,
        codec: 0,
        status: Status::Done,
        operation: Operation(1),
        first_open: Operation(1),
        exact: false,
        count: Count::Round(1),
        bytes: 0,
        data: BlockData::Inline { offset: 0 },
        landing: None,
        view: false,
        reading: Reading::default(),
        timeout_ms: 0,
        token: 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn nothing_panics_and_nothing_ends_twice(events in prop::collection::vec(event(), 1..80)) {
        let mut rig = Rig::new(3);
        let (mut numbers, mut failed, mut ended) = ([0; 4], BTreeSet::new(), BTreeSet::new());
        for event in &events {
            let mut out = Commands::default();
            play(&mut rig, &mut numbers, event, &mut out);
            for command in &out.list {
                match command {
                    Command::Failed { op, .. } => {
                        prop_assert!(failed.insert(*op), "failed twice: {}", op);
                        prop_assert!(!ended.contains(op), "failed after its end: {}", op);
                    }
                    Command::Done { op, .. } => prop_assert!(ended.insert(*op), "ended twice: {}", op),
                    Command::Send { parts, .. } => prop_assert!(!parts.is_empty()),
                    Command::Close { server, .. } => rig.engine.server_down(*server),
                    Command::Notice { .. } | Command::Place { .. } => {}
                    Command::Landed { op, .. } => prop_assert!(!ended.contains(op), "landed after its end"),
                    Command::Version { op, .. }
                    | Command::Late { op, .. }
                    | Command::Waits { op, .. }
                    | Command::Carried { op, .. } => {
                        prop_assert!(!ended.contains(op), "told of after its end");
                    }
                    Command::Replied { .. } | Command::Room { .. } => {
                        prop_assert!(false, "nothing here is a call: {command:?}");
                    }
                    Command::Shown { op, .. } => prop_assert!(!ended.contains(op), "shown after its end"),
                }
            }
            prop_assert_eq!(rig.engine.in_flight() + ended.len(), rig.next_op as usize);
        }
    }
}

#[test]
fn more_credits_than_an_inbox_has_slots_cost_the_channel() {
    let mut rig = Rig::new(4);
    let grant = SlotGrant { slot: 9, generation: 1 };
    assert_eq!(rig.results(0, &[], &vec![grant; INBOX_SLOTS_MAX - 4]), []);
    assert!(closed(&rig.results(0, &[], &[grant])).contains("more slots"));
}
