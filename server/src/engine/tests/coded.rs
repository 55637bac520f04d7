//! Chunks whose contributions are encoded: their length and codec, what is refused, and what is counted.

use super::*;

/// 16 bytes of numbers are 2 words: a scale, and a bit for each.
const CODED_BYTES: u64 = 8;

/// A rig with an encoded chunk: index 1, key 2.
fn rig(workers: u32) -> Rig {
    let mut rig = Rig::new(config(workers));
    rig.engine.assign(Epoch::default(), &[ChunkSpec { codec: Codec::OneBit, ..spec(2) }]);
    rig
}

fn of(block: Block) -> Block {
    let (codec, bytes) = if block.op.contributes() { (3, CODED_BYTES) } else { (0, block.bytes) };
    Block { id: ChunkId::new(2, 0), codec, bytes, ..block }
}

#[test]
fn contributions_are_reduced_spilled_and_held_by_their_encoded_bytes() {
    let mut rig = rig(3);
    let commands = rig.send(0, &[of(push_pull(1, 1))]);
    assert_eq!(commands, [Command::Reduce { chunk: 1, addend: first(rig.at()) }], "no word of a length");
    let commands = rig.send(2, &[of(push_pull(1, 1))]);
    assert!(matches!(commands[..], [Command::Spill { chunk: 1, .. }]), "{commands:?}");
    let commands = rig.send(1, &[of(push_pull(1, 1))]);
    let [
        Command::Reduce { .. },
        Command::Finish { last: Some(Addend { from: Source::Spill(_), .. }), .. },
        lands @ ..,
    ] = &commands[..]
    else {
        panic!("{commands:?}");
    };
    assert_eq!(lands.len(), 3, "plain weights for all: {lands:?}");
    let stats = rig.engine.stats();
    assert_eq!((stats.contributions, stats.contribution_bytes), (3, 3 * CODED_BYTES), "as they were sent");
}

#[test]
fn initial_values_and_weights_are_plain() {
    let mut rig = rig(1);
    let commands = rig.send(0, &[of(init(1, BYTES))]);
    assert!(matches!(commands[..], [Command::Init { chunk: 1, .. }]), "{commands:?}");
    let commands = rig.send(0, &[of(pull(2, 0))]);
    assert!(matches!(commands[..], [Command::Land { chunk: 1, .. }]), "{commands:?}");
    rig.flush();
    for bad in [Block { codec: 3, ..of(init(3, CODED_BYTES)) }, Block { codec: 3, ..of(pull(3, 0)) }] {
        let mut rig = self::rig(1);
        let bad = Block { operation: Operation(1), ..bad };
        assert_eq!(rig.send(0, &[bad]), []);
        let told = rig.flush();
        assert!(matches!(told[0].status, Status::Refused | Status::WrongShape), "{told:?}");
    }
}

#[test]
fn another_codec_length_or_place_is_refused() {
    let good = of(push(1, 1));
    let by_reference = BlockData::ByReference { region: 1, offset: 0 };
    for (bad, status) in [
        (Block { codec: 0, ..good }, Status::Refused),
        (Block { codec: 4, ..good }, Status::Refused),
        (Block { codec: 0, bytes: BYTES, ..good }, Status::WrongShape),
        (Block { bytes: CODED_BYTES - 4, ..good }, Status::WrongShape),
        (Block { bytes: CODED_BYTES + 4, ..good }, Status::WrongShape),
        (Block { data: by_reference, ..good }, Status::Refused),
        (Block { data: BlockData::Announced { keep: true }, ..good }, Status::Refused),
    ] {
        let mut rig = rig(1);
        assert_eq!(rig.send(0, &[bad]), [], "{bad:?}");
        assert_eq!(rig.flush(), [answer(0, 1, status, 1)], "{bad:?}");
        let next = Block { operation: Operation(2), ..good };
        assert!(
            matches!(rig.send(0, &[next])[..], [Command::Finish { chunk: 1, .. }]),
            "its number is used up"
        );
    }
}

#[test]
fn a_malformed_one_is_refused_counted_and_used_up() {
    let mut rig = rig(2);
    let bad = Block { status: Status::Malformed, ..of(push_pull(1, 1)) };
    assert_eq!(rig.send(0, &[bad]), [], "nothing of it reaches storage");
    assert_eq!(rig.flush(), [answer(0, 1, Status::Malformed, 1)]);
    assert_eq!((rig.engine.stats().malformed, rig.engine.stats().refusals), (1, 1));
    rig.send(1, &[of(push(1, 1))]);
    let commands = rig.send(0, &[of(push_pull(2, 1))]);
    assert!(matches!(commands[..], [Command::Finish { chunk: 1, .. }, Command::Land { .. }]), "{commands:?}");
}
