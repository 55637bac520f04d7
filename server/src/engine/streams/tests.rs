//! One copy of one chunk, from the first question to an update that is confirmed.

use super::*;

const TO: Rank = Rank(3);

fn slot(slot: u32, generation: u8) -> SlotGrant {
    SlotGrant { slot, generation }
}

struct Rig {
    streams: Streams,
    chunks: [Chunk; 1],
    groups: Groups,
}

impl Rig {
    /// A stream with two slots; its other side is to have a copy, and is asked about it.
    fn new() -> Self {
        let mut rig =
            Self { streams: Streams::default(), chunks: [Chunk::sample(1)], groups: Groups::default() };
        rig.chunks[0].copies[0] = Some(rig.streams.keep(TO, true, Epoch::default()));
        rig.streams.up(TO, Incarnation(2), &[slot(0, 1), slot(1, 1)], 64);
        rig.streams.check(0, &mut rig.chunks[0], TO);
        assert_eq!(rig.write(), [(OpKind::CopyCheck, slot(0, 1))]);
        rig
    }

    /// The records that go out.
    fn write(&mut self) -> Vec<(OpKind, SlotGrant)> {
        let mut out = Commands::default();
        self.streams.write(0, &mut self.chunks, &mut out);
        let record = |command: &Command| match command {
            Command::Record { block, slot, .. } => (block.op, *slot),
            other => panic!("{other:?}"),
        };
        out.list.iter().map(record).collect()
    }

    fn judged(&mut self, slot: SlotGrant, judgement: Judgement) -> Result<Option<u32>, &'static str> {
        self.streams.notice(TO, Notice::Judged(slot, judgement), &mut self.chunks, &self.groups)
    }

    fn returned(&mut self, slot: SlotGrant) -> Result<Option<u32>, &'static str> {
        self.streams.notice(TO, Notice::Returned(slot), &mut self.chunks, &self.groups)
    }

    fn is_confirmed(&mut self) -> bool {
        whole::is_confirmed(0, &mut self.chunks, &self.groups)
    }
}

#[test]
fn a_copy_gets_the_chunk_whole_and_then_every_update() {
    let mut rig = Rig::new();
    assert_eq!(rig.judged(slot(0, 1), Judgement::Wanting), Ok(Some(0)));
    assert_eq!(rig.returned(slot(0, 2)), Ok(None));
    let mut out = Commands::default();
    assert!(rig.streams.begin_next(0, Epoch::default(), &mut rig.chunks, &rig.groups, &mut out));
    assert!(matches!(out.list[..], [Command::Capture { to: TO, chunk: 0, .. }]));
    assert_eq!(rig.write(), [], "the image is not taken yet");
    // A round is complete meanwhile: its update follows the image.
    rig.streams.send_update(0, &mut rig.chunks[0]);
    rig.streams.captured(TO, 0, 16);
    assert_eq!(rig.write(), [(OpKind::CopyState, slot(1, 1)), (OpKind::CopyUpdate, slot(0, 2))]);
    assert!(rig.streams.sends_image(TO) && rig.streams.reads_sum(TO, 0) && !rig.is_confirmed());
    assert_eq!(rig.judged(slot(1, 1), Judgement::Confirmed), Ok(Some(0)));
    assert!(!rig.is_confirmed(), "the image is of the round before");
    assert_eq!(rig.judged(slot(0, 2), Judgement::Confirmed), Ok(Some(0)));
    assert!(rig.is_confirmed() && rig.chunks[0].copies[0].is_some_and(|keep| keep.is_kept_up()));
}

#[test]
fn a_copy_that_has_the_version_joins_and_a_wrong_word_is_told_from_a_repeated_one() {
    let mut rig = Rig::new();
    assert_eq!(rig.judged(slot(0, 1), Judgement::Confirmed), Ok(Some(0)));
    assert_eq!(rig.judged(slot(0, 1), Judgement::Confirmed), Ok(None), "it says so again");
    assert!(rig.judged(slot(1, 1), Judgement::Confirmed).is_err(), "nothing was written there");
    assert!(rig.returned(slot(1, 2)).is_err());
    assert_eq!((rig.returned(slot(0, 2)), rig.returned(slot(0, 2))), (Ok(None), Ok(None)));
    assert_eq!(rig.write(), [(OpKind::CopyRules, slot(1, 1))], "changes of its rule follow");
    assert!(rig.streams.down(TO) && !rig.streams.down(TO));
}
