//! Rows of a lane that moves them, copies them, and writes them into a checkpoint.

use super::super::lane::DataLane;
use super::super::rig;
use crate::checkpoint::Saver;
use crate::engine::{ChunkSpec, Role};
use crate::tables::Applied;
use fabric::sim::{SimFaults, SimNet, SimQueue};
use proto_common::codec::Codec;
use proto_common::config::CheckpointSettings;
use proto_common::element::Dtype;
use proto_common::ids::{ChunkId, Epoch, Incarnation, Rank};
use proto_common::message::{CheckpointNews, CheckpointOrder, encode};
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;
use proto_common::table::{HOMES, Initial, PushHead, RowOp, TableSpec};
use std::time::Duration;
use zerocopy::IntoBytes;

const CHUNK_BYTES: u64 = 64 << 10;
const WIDTH: usize = 1024;
const ALONE: Role = Role::Primary { backup: None, seeding: None };

fn home() -> ChunkId {
    ChunkId::new(HOMES, 0)
}

fn lane(net: &SimNet, rank: u32) -> DataLane<SimQueue> {
    rig::lane(net, rank, CHUNK_BYTES)
}

fn take(lane: &mut DataLane<SimQueue>, counter: u32, role: Role) {
    let spec = ChunkSpec {
        id: home(),
        bytes: CHUNK_BYTES,
        dynamic: true,
        dtype: Dtype::F32,
        codec: Codec::Plain,
        optimizer: Optimizer::assign(),
        mode: Mode::Async,
        backup_workers: 0,
    };
    lane.roles(Epoch { term: 1, counter }, &[(spec, role)]).unwrap();
}

/// A table with so many rows, on a lane that serves the home.
fn fill(lane: &mut DataLane<SimQueue>, rows: u64) {
    let spec = encode(&TableSpec::new(3, WIDTH as u32, Optimizer::sum(), Initial::Constant(0.0))).unwrap();
    let mut contribute = |op, count: usize, body: &[u8]| {
        let head = PushHead { op, key: 3, count: count as u32, parts: 1, room: 0, which: None };
        let mut bytes = [&head.to_bytes()[..], body].concat();
        lane.tables.plan(home(), &mut bytes, &|_, _| Ok(()));
        assert_eq!(lane.tables.apply(home(), &bytes, &|_, _| Ok(())), Applied::Done);
    };
    contribute(RowOp::Declare, spec.len(), &spec);
    for id in 0..rows {
        contribute(RowOp::Push, 1, &[[id].as_bytes(), [1f32; WIDTH].as_bytes()].concat());
    }
}

#[test]
fn a_checkpoint_fails_where_a_home_moves_whose_rows_are_still_copied() {
    let (mut lane, settings) =
        (lane(&SimNet::new(1, SimFaults::default()), 0), CheckpointSettings::default());
    let own = (Rank(0), Incarnation(1), CHUNK_BYTES);
    let settings = CheckpointSettings { memory_bytes: 4 << 20, ..settings };
    let mut saver = Saver::start(None, &settings, own, (Duration::from_secs(9), None), || ()).unwrap();
    lane.set_checkpoints(saver.lane(0), None);
    take(&mut lane, 1, ALONE);
    fill(&mut lane, 1000);
    // One turn copies the home's chunk; its rows come in pieces, of which there is room for none.
    lane.checkpoint_order(&CheckpointOrder::Save { round: 1, now: true }).unwrap();
    assert!(lane.engine().saving().is_none() && lane.engine().serves_home(home()), "the chunk is copied");
    take(&mut lane, 2, Role::Copy { of: Rank(1) });
    let failed = std::iter::from_fn(|| saver.try_news())
        .any(|news| matches!(&news, CheckpointNews::Failed { round: 1, reason } if reason.contains("moved")));
    assert!(failed);
    assert!(!lane.save().unwrap(), "nothing is left of it");
}

#[test]
fn the_image_of_a_home_is_let_go_when_its_copy_has_it_whatever_it_is_a_copy_for() {
    for is_backup in [true, false] {
        let net = SimNet::new(1, SimFaults::default());
        let (mut one, mut other) = (lane(&net, 0), lane(&net, 1));
        take(&mut one, 1, ALONE);
        fill(&mut one, 100);
        let to = Some(Rank(1));
        let (backup, seeding) = if is_backup { (to, None) } else { (None, to) };
        take(&mut one, 2, Role::Primary { backup, seeding });
        // What it had counts as nothing: it gets the home whole.
        take(&mut other, 1, ALONE);
        take(&mut other, 2, Role::Copy { of: Rank(0) });
        let (ours, theirs) = net.connect(one.queue_mut(), other.queue_mut());
        let inbox = other.adopt_copy(Rank(0), Incarnation(1), theirs).unwrap();
        one.adopt_stream((Rank(1), 1), Incarnation(1), ours, inbox).unwrap();
        let mut was_sent = false;
        for turn in 0..500 {
            one.step(turn).unwrap();
            was_sent |= one.sends_from_memory();
            other.step(turn).unwrap();
            net.advance_to(net.now_us() + 20);
        }
        assert_eq!(one.engine().copies(), (1, 1, 0), "it is kept up");
        assert!(was_sent && !one.sends_from_memory(), "a backup: {is_backup}");
        let rows = |lane: &DataLane<SimQueue>| lane.tables.stats(|_| true).rows;
        assert_eq!((rows(&one), rows(&other)), (100, 100));
    }
}
