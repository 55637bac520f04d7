//! Room for tensors whose chunks finish a round together (LAMB): all of them must fit what a worker has under way on
//! a link at once, or workers that started with different ones wait for each other for ever. It must not decide where
//! tensors lie.

use proto_common::ids::{ChunkId, Lane, Rank};
use proto_common::shard_map::ShardMap;
use proto_common::tensor::{TensorError, TensorSpec};
use std::collections::BTreeMap;

/// Have new tensors room beside those that are in use, if a worker has `most` chunks in flight on a link? All of them lie as the
/// map says. One tensor alone always fits: it has at most `NORM_CHUNKS_MAX` chunks.
pub(super) fn fit<'a>(
    used: impl Iterator<Item = &'a TensorSpec>,
    new: impl Iterator<Item = &'a TensorSpec>,
    map: &ShardMap,
    most: usize,
) -> Result<(), TensorError> {
    let mut new = new.filter(|spec| spec.optimizer.needs_norms()).peekable();
    if new.peek().is_none() {
        return Ok(());
    }
    let mut links: BTreeMap<(Rank, Lane), u64> = BTreeMap::new();
    let mut count = |spec: &TensorSpec| {
        // The map keeps such a tensor whole, where its first chunk is.
        let first = ChunkId::new(spec.key.0, 0);
        let link = (map.server_of(first).unwrap_or_default(), map.lane_of(first));
        let chunks = links.entry(link).or_default();
        *chunks += spec.chunk_count(map.chunk_bytes());
        (link, *chunks)
    };
    for spec in used.filter(|spec| spec.optimizer.needs_norms()) {
        count(spec);
    }
    for spec in new {
        let ((server, lane), chunks) = count(spec);
        if chunks > most as u64 {
            return Err(spec.unsupported(format!(
                "with it the lamb tensors of lane {lane} of server {server} have {chunks} chunks, all in flight at once, and a \
                 worker has at most {most} in flight; raise cluster.chunk_bytes, or use adam_w"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::ids::Epoch;
    use proto_common::optimizer::{Lamb, Optimizer};
    use proto_common::shard_map::{MapUpdate, assign};

    const CHUNK_BYTES: u64 = 1024;

    fn lamb(key: u64, chunks: u64) -> TensorSpec {
        TensorSpec::f32(key, chunks * 256, Optimizer::mean(Lamb::default(), 0.1))
    }

    fn map(tensors: &[TensorSpec], servers: usize) -> ShardMap {
        let mut map = ShardMap::new(CHUNK_BYTES, 1);
        let ranges = assign(tensors, &vec![0; servers], CHUNK_BYTES);
        let epoch = Epoch { term: 1, counter: 1 };
        map.apply(&MapUpdate { epoch, tensors: tensors.to_vec(), ranges }).unwrap();
        map
    }

    #[test]
    fn tensors_of_a_link_share_its_room_and_both_sides_of_the_bound() {
        let plain = TensorSpec::f32(3, 100 * 256, Optimizer::sum());
        let all = [lamb(1, 5), lamb(2, 3), plain];
        let (used, new) = all.split_at(1);
        let on_one = map(&all, 1);
        assert_eq!(fit(used.iter(), new.iter(), &on_one, 8), Ok(()));
        let refused = fit(used.iter(), new.iter(), &on_one, 7).unwrap_err();
        let TensorError::Unsupported { key, what, .. } = &refused else { panic!("{refused:?}") };
        assert_eq!(key.0, 2);
        assert!(
            what.contains("lane 0 of server 0 have 8 chunks") && what.contains("at most 7 in flight; raise"),
            "{what}"
        );
        assert_eq!(fit(all.iter(), new[1..].iter(), &on_one, 7), Ok(()), "another rule needs no room");
        let lambs = [lamb(1, 5), lamb(2, 5)];
        let (used, new) = lambs.split_at(1);
        assert_eq!(
            fit(used.iter(), new.iter(), &map(&lambs, 2), 7),
            Ok(()),
            "another server is another link"
        );
    }
}
