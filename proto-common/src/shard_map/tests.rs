//! Properties of the cut: cover, contiguity, balance, stability.

use super::*;
use crate::optimizer::{Lamb, Optimizer};
use proptest::prelude::*;

const CHUNK: u64 = 4096;

fn tensors(sizes: &[u64]) -> Vec<TensorSpec> {
    sizes.iter().enumerate().map(|(i, n)| TensorSpec::f32(i as u64 * 7 + 1, *n, Optimizer::sum())).collect()
}

fn map_of(tensors: &[TensorSpec], loads: &[u64]) -> ShardMap {
    let mut map = ShardMap::new(CHUNK, 2);
    let epoch = Epoch { term: 1, counter: 1 };
    map.apply(&MapUpdate { epoch, tensors: tensors.to_vec(), ranges: assign(tensors, loads, CHUNK) })
        .unwrap();
    map
}

proptest! {
    #[test]
    fn every_chunk_has_one_server_and_bytes_balance(
        sizes in prop::collection::vec(1u64..20_000, 1..40), servers in 1usize..9,
    ) {
        let tensors = tensors(&sizes);
        let map = map_of(&tensors, &vec![0; servers]);
        let mut bytes = vec![0u64; servers];
        let mut last = 0;
        for spec in &tensors {
            let mut chunks = 0;
            for (span, server) in map.placed_chunks(spec.key) {
                prop_assert_eq!(map.server_of(span.id), Some(server));
                prop_assert!(server.0 >= last, "ranges are contiguous over the ordered key space");
                last = server.0;
                bytes[server.0 as usize] += span.bytes;
                chunks += 1;
            }
            prop_assert_eq!(chunks, spec.chunk_count(CHUNK));
        }
        let total: u64 = bytes.iter().sum();
        for held in &bytes {
            prop_assert!(*held <= total.div_ceil(servers as u64) + CHUNK, "{:?}", bytes);
            prop_assert!(*held + CHUNK + servers as u64 >= total / servers as u64, "{:?}", bytes);
        }
    }

    #[test]
    fn small_tensors_stay_whole(sizes in prop::collection::vec(1u64..=CHUNK / 4, 1..60), servers in 1usize..5) {
        let tensors = tensors(&sizes);
        let map = map_of(&tensors, &vec![0; servers]);
        for spec in &tensors {
            prop_assert_eq!(map.placed_chunks(spec.key).count(), 1);
        }
    }

    #[test]
    fn later_declarations_level_the_loads(first in 1u64..200, second in 200u64..4000) {
        let loads = [first * CHUNK, 0, 0];
        let new = [TensorSpec::f32(9, second * CHUNK / 4, Optimizer::sum())];
        let map = map_of(&new, &loads);
        let mut totals = loads;
        for (span, server) in map.placed_chunks(Key(9)) {
            totals[server.0 as usize] += span.bytes;
        }
        let (low, high) = (totals.iter().min().unwrap(), totals.iter().max().unwrap());
        if second > 2 * first {
            prop_assert!(high - low <= 2 * CHUNK, "{:?}", totals);
        }
    }
}

#[test]
fn updates_that_do_not_cover_are_refused_and_change_nothing() {
    let tensors = tensors(&[5000]);
    let mut map = map_of(&tensors, &[0, 0]);
    let before = map.clone();
    let mut ranges = assign(&tensors, &[0, 0], CHUNK);
    ranges.pop();
    let epoch = Epoch { term: 1, counter: 2 };
    let error = map.apply(&MapUpdate { epoch, tensors: tensors.clone(), ranges }).unwrap_err();
    assert!(matches!(error, MapError::BadCover { .. }));
    let stray = KeyRange::alone(ChunkId::new(99, 0), 1, Rank(0));
    assert!(map.apply(&MapUpdate { epoch, tensors: vec![], ranges: vec![stray] }).is_err());
    assert_eq!(map, before);
    let old = MapUpdate { epoch: Epoch { term: 0, counter: 9 }, ..MapUpdate::default() };
    assert!(matches!(map.apply(&old), Err(MapError::OldTerm { .. })));
}

#[test]
fn a_big_tensor_beyond_four_gib_is_cut_at_chunk_borders() {
    let spec = TensorSpec::f32(1 << 33, 3 << 30, Optimizer::assign());
    let ranges = assign(std::slice::from_ref(&spec), &[0, 0], 256 << 10);
    assert_eq!(ranges.len(), 2);
    assert_eq!(ranges[0].chunks, 24_576);
    assert_eq!(ranges[1].first, ChunkId::new(1 << 33, 24_576));
}

#[test]
fn lanes_take_turns() {
    let mut counts = [0; 4];
    for chunk in 0..64 {
        counts[usize::from(lane_of(ChunkId::new(5, chunk), 4).0)] += 1;
    }
    assert_eq!(counts, [16; 4]);
}

#[test]
fn a_tensor_with_norms_stays_on_one_lane_of_one_server() {
    let lamb = Optimizer::mean(Lamb::default(), 0.1);
    let tensors: Vec<TensorSpec> = (1..5).map(|key| TensorSpec::f32(key, 10 * CHUNK / 4, lamb)).collect();
    let map = map_of(&tensors, &[0, 0]);
    let mut servers = Vec::new();
    for spec in &tensors {
        let places: Vec<(Rank, Lane)> =
            map.placed_chunks(spec.key).map(|(span, server)| (server, map.lane_of(span.id))).collect();
        assert_eq!(places, vec![places[0]; 10]);
        servers.push(places[0].0);
    }
    assert_eq!(servers, [Rank(0), Rank(0), Rank(1), Rank(1)], "their bytes balance");
    let range = |first, chunks, server| KeyRange::alone(ChunkId::new(9, first), chunks, Rank(server));
    let cut = MapUpdate {
        epoch: Epoch { term: 1, counter: 2 },
        tensors: vec![TensorSpec::f32(9, 2 * CHUNK / 4, lamb)],
        ranges: vec![range(0, 1, 0), range(1, 1, 1)],
    };
    assert!(matches!(map.clone().apply(&cut), Err(MapError::BadCover { .. })));
}

#[test]
fn a_server_s_end_leaves_its_ranges_to_their_backups() {
    let of = |first, server, backup: Option<u32>, seeding: Option<u32>| KeyRange {
        backup: backup.map(Rank),
        seeding: seeding.map(Rank),
        ..KeyRange::alone(ChunkId::new(9, first), 1, Rank(server))
    };
    let gone_once = |ranges: [KeyRange; 1], gone| {
        let mut map = ShardMap::new(4096, 1);
        let tensors = vec![TensorSpec::f32(9, 1024, Optimizer::sum())];
        map.apply(&MapUpdate { epoch: Epoch::default().next(), tensors, ranges: ranges.to_vec() }).unwrap();
        let epoch = map.epoch().next();
        let lost = map.change(epoch, &MapChange::ServerGone(Rank(gone))).unwrap();
        assert_eq!(map.epoch(), epoch);
        (map.ranges_of(Key(9)).to_vec(), lost.len())
    };
    assert_eq!(gone_once([of(0, 0, Some(1), None)], 0), (vec![of(0, 1, None, None)], 0));
    assert_eq!(gone_once([of(0, 0, Some(1), None)], 1), (vec![of(0, 0, None, None)], 0));
    assert_eq!(gone_once([of(0, 0, None, Some(1))], 1), (vec![of(0, 0, None, None)], 0));
    assert_eq!(gone_once([of(0, 0, Some(1), Some(2))], 0), (vec![of(0, 1, None, None)], 0));
    assert_eq!(gone_once([of(0, 0, None, Some(2))], 0).1, 1, "a copy that is being made is none");
    assert_eq!(gone_once([of(0, 0, Some(1), None)], 3), (vec![of(0, 0, Some(1), None)], 0));
}
