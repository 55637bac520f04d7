//! Whatever well-formed batches and notices come, in whatever order: no panic, no slot lost.

use super::*;
use proptest::prelude::*;

fn op() -> impl Strategy<Value = OpKind> {
    prop_oneof![Just(OpKind::Push), Just(OpKind::Pull), Just(OpKind::PushPull), Just(OpKind::Init)]
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..6, 1 => Just(u64::MAX), 1 => any::<u64>()]
}

prop_compose! {
    fn any_block()(op in op(), key in 1u64..4, operation in number(), round in number(), whole in any::<bool>(),
                   odd in 0u8..20, lands in any::<bool>(), timeout_ms in any::<u32>()) -> Block {
        let bytes = if whole { BYTES } else { 0 };
        Block {
            id: ChunkId::new(key, 0),
            operation: Operation(operation),
            bytes,
            timeout_ms,
            codec: u8::from(odd == 0),
            dtype: if odd == 1 { Dtype::I64 } else { Dtype::F32 },
            data: if odd == 2 { BlockData::ByReference { region: 1, offset: u64::MAX } } else { BlockData::Inline { offset: 0 } },
            landing: lands.then(landing),
            ..block(op, operation, round)
        }
    }
}

#[derive(Clone, Debug)]
enum Event {
    Batch { rank: u32, blocks: Vec<Block>, wanted: u16, own: bool, wire: u32, grants: Vec<u32> },
    Notice { rank: u32, wire: u32 },
    Landed { rank: u32, chunk: u32, buffer: u8 },
    Down(u32),
    Up(u32),
    Tick(u64),
}

fn grant() -> impl Strategy<Value = u32> {
    (0u32..6, 0u32..4).prop_map(|(slot, generation)| slot << 8 | generation)
}

fn notice() -> impl Strategy<Value = u32> {
    let small = (0u32..6, 0u8..4).prop_map(|(slot, generation)| SlotGrant { slot, generation });
    (small, 0u8..6).prop_map(|(grant, kind)| {
        let notice = match kind {
            0 | 1 => Notice::Returned(grant),
            2 | 3 => Notice::GivenBack(grant),
            4 => Notice::Want(grant.generation.max(1)),
            _ => Notice::Probe,
        };
        notice.to_wire()
    })
}

fn event() -> impl Strategy<Value = Event> {
    let rank = 0u32..4; // One more than there are.
    prop_oneof![
        10 => (rank.clone(), prop::collection::vec(any_block(), 0..5), any::<u16>(), prop::bool::weighted(0.8), grant(),
               prop::collection::vec(grant(), 0..2))
            .prop_map(|(rank, blocks, wanted, own, wire, grants)| Event::Batch { rank, blocks, wanted, own, wire, grants }),
        5 => (rank.clone(), notice()).prop_map(|(rank, wire)| Event::Notice { rank, wire }),
        3 => (rank.clone(), 0u32..4, 0u8..3).prop_map(|(rank, chunk, buffer)| Event::Landed { rank, chunk, buffer }),
        1 => rank.clone().prop_map(Event::Down),
        2 => rank.prop_map(Event::Up),
        2 => (0u64..2_000).prop_map(Event::Tick),
    ]
}

fn play(rig: &mut Rig, event: &Event) -> Vec<Command> {
    match event {
        Event::Batch { rank, blocks, wanted, own, wire, grants } => {
            let held = rig.workers.get_mut(*rank as usize).and_then(|worker| worker.credits.pop_front());
            let wild = SlotGrant::from_wire(*wire).expect("small");
            let slot = if *own { held.unwrap_or(wild) } else { wild };
            let grants: Vec<_> = grants.iter().filter_map(|wire| SlotGrant::from_wire(*wire)).collect();
            let header = BatchHeader { wanted: *wanted, ..rig.header(*rank) };
            rig.deliver(*rank, slot, &header, blocks, &grants)
        }
        Event::Notice { rank, wire } => rig.notice(*rank, Notice::from_wire(*wire).expect("encoded above")),
        Event::Landed { rank, chunk, buffer } => {
            let mut out = Commands::default();
            rig.engine.landed(Rank(*rank), *chunk, *buffer, &mut out);
            out.list
        }
        Event::Down(rank) => {
            rig.down(Rank(*rank));
            Vec::new()
        }
        Event::Up(rank) => {
            rig.down(Rank(*rank));
            if *rank < rig.config.workers {
                rig.connect(*rank);
            }
            Vec::new()
        }
        Event::Tick(pass_ms) => {
            rig.now_ms = rig.now_ms.saturating_add(*pass_ms);
            assert_eq!(rig.time(), []);
            Vec::new()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn nothing_panics_and_no_slot_is_lost(events in prop::collection::vec(event(), 1..80), deterministic: bool) {
        let mut rig = Rig::new(EngineConfig { inbox_slots: 5, spill_blocks: 2, deterministic, ..config(3) });
        rig.engine.assign(Epoch::default(), &[spec(2)]);
        for event in &events {
            for command in play(&mut rig, event) {
                if let Command::Expel { peer, .. } = command {
                    rig.down(peer); // What the runtime does.
                }
            }
            rig.flush_unread();
            prop_assert!(rig.engine.oldest(rig.now_ms).is_none_or(|oldest| oldest.on.len() <= 3));
            prop_assert!(rig.engine.spills().0 <= 2);
        }
        for rank in 0..3 {
            rig.down(Rank(rank));
        }
        prop_assert_eq!(rig.engine.credits(), (5, 5));
    }
}

/// Found by the fuzzer: giving a credit back took those not told of yet as the worker's own, used or not.
#[test]
fn a_credit_that_was_guessed_and_used_is_free_only_once() {
    let mut rig = Rig::new(config(1));
    rig.notice(0, Notice::Want(1));
    assert_eq!(rig.flush(), [], "it has enough in hand: the new grant waits for a result to ride on");
    let guess = SlotGrant { slot: 4, generation: 1 };
    assert_eq!(rig.deliver(0, guess, &rig.header(0), &[], &[]), []);
    rig.give_back(0);
    assert_eq!(rig.engine.credits(), (16, 16));
}
