//! Control messages: frozen bytes, stray bytes, garbage.

use super::*;
use crate::ids::*;
use proptest::prelude::*;

#[test]
fn frozen_bytes() {
    let message = ToScheduler::Barrier {
        request: 5,
        name: "a".into(),
        group: NodeGroup::ALL,
        passed: 0,
        timeout_ms: 9,
    };
    let bytes = encode(&message).unwrap();
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(
        hex,
        "050000000500000000000000010000000000000061000101".to_owned()
            + "0000000000000000"
            + "0900000000000000"
    );
    assert_eq!(decode::<ToScheduler>(&bytes), Ok(message));
}

#[test]
fn frozen_bytes_of_a_heartbeat() {
    let load = ServerLoad {
        stored_bytes: 1,
        credits_free: 2,
        credits: 3,
        spill_blocks_used: 4,
        spill_blocks: 5,
        quarantined_bytes: 6,
        quarantined_for: Some(Rank(7)),
    };
    let message = ToScheduler::Heartbeat(MemberReport {
        round: 7,
        in_flight: 8,
        waits: vec![Wait {
            what: "o".into(),
            of: Some(Rank(12)),
            waited_ms: 9,
            cause: WaitCause::Readers,
            on: vec![Rank(11)],
        }],
        links: Vec::new(),
        resident_bytes: 10,
        load: Some(load),
        metrics: vec![("m".into(), 1.0)],
        port: Some(PortReport { device: "d".into(), port: 3, trouble: vec![("t".into(), 13)] }),
    });
    let bytes = encode(&message).unwrap();
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let u64_of = |n: u64| n.to_le_bytes().iter().map(|b| format!("{b:02x}")).collect::<String>();
    let mut wanted = "01000000".to_owned() + &u64_of(7) + &u64_of(8);
    wanted += &(u64_of(1) + &u64_of(1) + "6f" + "010c000000" + &u64_of(9));
    wanted += &("02000000".to_owned() + &u64_of(1) + "0b000000");
    wanted += &(u64_of(0) + &u64_of(10));
    wanted += "01";
    wanted.extend((1..=6).map(u64_of));
    wanted += "0107000000";
    wanted += &(u64_of(1) + &u64_of(1) + "6d" + "000000000000f03f");
    wanted += &("01".to_owned() + &u64_of(1) + "6403" + &u64_of(1) + &u64_of(1) + "74" + &u64_of(13));
    assert_eq!(hex, wanted);
    assert_eq!(decode::<ToScheduler>(&bytes), Ok(message));
}

#[test]
fn stray_and_missing_bytes_are_refused() {
    let mut bytes = encode(&ToScheduler::Goodbye).unwrap();
    bytes.push(0);
    assert!(matches!(decode::<ToScheduler>(&bytes), Err(CodecError::Trailing { extra: 1, .. })));
    assert!(matches!(decode::<ToScheduler>(&bytes[..2]), Err(CodecError::Malformed(_))));
}

#[test]
fn a_length_that_lies_does_not_allocate() {
    // Declare with 2^60 tensors: refused by the limit before any allocation.
    let mut bytes = vec![3, 0, 0, 0];
    bytes.extend(1u64.to_le_bytes());
    bytes.extend((1u64 << 60).to_le_bytes());
    assert!(matches!(decode::<ToScheduler>(&bytes), Err(CodecError::Malformed(_))));
}

#[test]
fn errors_name_who_is_missing() {
    let missing =
        vec![MemberId { role: Role::Worker, rank: Rank(3) }, MemberId { role: Role::Server, rank: Rank(0) }];
    let error = WaitError::Deadline { name: "start".into(), waited_ms: 10, missing };
    let text = error.to_string();
    assert!(
        text.starts_with("barrier \"start\" timed out after 10 ms, missing: worker 3, server 0; check"),
        "{text}"
    );
}

proptest! {
    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode::<ToScheduler>(&bytes);
        let _ = decode::<FromScheduler>(&bytes);
        let _ = decode::<ToServer>(&bytes);
        let _ = decode::<FromServer>(&bytes);
    }
}

#[test]
fn answers_to_a_declaration_differ_in_their_first_bytes_only() {
    let spec = crate::tensor::TensorSpec::f32(7, 1024, crate::optimizer::Optimizer::sum());
    let update = crate::shard_map::MapUpdate { tensors: vec![spec], ..Default::default() };
    let answer =
        |request| encode(&FromScheduler::Declared { request, result: Ok(update.clone().into()) }).unwrap();
    let (one, other) = (answer(1), answer(u64::MAX));
    let at = FromScheduler::DECLARED_HEAD_BYTES;
    assert_eq!(one[at..], other[at..]);
    for (request, answer) in [(1, one), (u64::MAX, other)] {
        assert_eq!(FromScheduler::declared_head(request).unwrap(), answer[..at]);
    }
}
