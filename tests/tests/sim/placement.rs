//! Placements: however contributions travel, the weights are the oracle's, bit for bit, also where channels break in
//! the middle of a read or a write; each placement is really used; and a server without room falls back to slots.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use fabric::sim::{Action, SimFaults};
use gradwire_tests::rigs::sim::{Cluster, PLACEMENTS, Shape, Style, bits_hash, seeds, tensors};
use proto_common::plan::Placement;
use proto_common::tensor::TensorSpec;

const FILE: &str = "placement";
const ROUNDS: u64 = 4;

fn all_placements() -> Vec<Vec<Placement>> {
    let mut all: Vec<_> = PLACEMENTS.iter().map(|one| vec![*one]).collect();
    all.push(PLACEMENTS.to_vec());
    all
}

/// The usual tensors, and one of up to two chunks and a bit whose length is another one in each round.
fn with_a_dynamic_one() -> Vec<TensorSpec> {
    let mut all = tensors();
    all.push(TensorSpec::dynamic_f32(11, 308));
    all
}

/// Reads and key buffers that the servers have used.
fn used(cluster: &Cluster) -> (u64, u64) {
    let stats = (0..cluster.shape().servers).map(|rank| cluster.server_stats(rank));
    stats.fold((0, 0), |(fetches, placed), stats| (fetches + stats.fetches, placed + stats.placed))
}

fn check_use(cluster: &Cluster, placements: &[Placement]) {
    let (fetches, placed) = used(cluster);
    let writes = placements.contains(&Placement::Static) || placements.contains(&Placement::RendezvousWrite);
    assert_eq!(fetches > 0, placements.contains(&Placement::RendezvousRead), "{fetches} reads");
    assert_eq!(placed > 0, writes, "{placed} payloads placed");
}

fn bits(cluster: &Cluster) -> Vec<u64> {
    let tensors = 0..cluster.shape().tensors.len();
    tensors.map(|tensor| bits_hash(&cluster.last_weights(0, tensor).expect("pulled in the end"))).collect()
}

#[test]
fn the_same_bits_with_every_placement() {
    seeds::for_each(FILE, "the_same_bits_with_every_placement", 20, |seed| {
        let mut all = Vec::new();
        for placements in all_placements() {
            let faults = if seed % 2 == 0 { SimFaults::hostile() } else { SimFaults::rough() };
            let (placements, tensors) = (placements.clone(), with_a_dynamic_one());
            let shape =
                Shape { workers: 4, faults, tensors, placements: placements.clone(), ..Shape::default() };
            let mut cluster = Cluster::new(seed, shape);
            cluster.run_until_connected();
            cluster.train(if seed % 3 == 0 { Style::Waited } else { Style::Pipelined }, ROUNDS);
            cluster.finish();
            check_use(&cluster, &placements);
            all.push(bits(&cluster));
        }
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "placements differ: {all:x?}");
    });
}

/// Breaks come at any point of a rendezvous: announced, granted, half read, written and not told.
#[test]
fn channels_that_break_in_mid_transfer_are_replayed() {
    for (at, placements) in all_placements().into_iter().enumerate() {
        seeds::for_each(FILE, "channels_that_break_in_mid_transfer_are_replayed", 6, |seed| {
            let faults = SimFaults { spurious_full_per_10k: 2_000, ..SimFaults::rough() };
            let (placements, tensors) = (placements.clone(), with_a_dynamic_one());
            let mut cluster = Cluster::new(seed, Shape { faults, placements, tensors, ..Shape::drawn(seed) });
            cluster.run_until_connected();
            cluster.train(Style::Pipelined, 30);
            for nth in 0..40 {
                let server = cluster.server_node((nth % u64::from(cluster.shape().servers)) as u32);
                let worker = cluster.worker_node((nth % u64::from(cluster.shape().workers)) as u32);
                let at_us = cluster.now_us() + 1_700 * nth + 97 * (seed % 17) + at as u64;
                cluster.fault(at_us, Action::Break(server, worker));
            }
            cluster.finish();
            assert!(cluster.reconnects() > 5, "{} only", cluster.reconnects());
        });
    }
}

/// One spill block: nobody gets a key buffer, and references find no room.
#[test]
fn without_room_everything_comes_in_slots() {
    for placements in all_placements() {
        seeds::for_each(FILE, "without_room_everything_comes_in_slots", 10, |seed| {
            let shape =
                Shape { spill_blocks: 1, workers: 4, placements: placements.clone(), ..Shape::default() };
            let mut cluster = Cluster::new(seed, shape);
            cluster.run_until_connected();
            cluster.train(Style::Pipelined, ROUNDS);
            cluster.finish();
            assert_eq!(used(&cluster).1, 0, "a half of one block is none");
        });
    }
}

/// A kept buffer pays its rendezvous once.
#[test]
fn a_static_tensor_is_announced_once() {
    seeds::for_each(FILE, "a_static_tensor_is_announced_once", 5, |seed| {
        let shape = Shape { placements: vec![Placement::Static], servers: 1, workers: 2, ..Shape::default() };
        let mut cluster = Cluster::new(seed, Shape { faults: SimFaults::default(), ..shape });
        cluster.run_until_connected();
        cluster.train(Style::Waited, 10);
        cluster.finish();
        // 5 chunks, 10 rounds, 2 workers, and the initial values of rank 0.
        assert_eq!(used(&cluster).1, 5 * 10 * 2 + 5);
        assert_eq!(cluster.server_stats(0).spills, 0, "a key buffer keeps what comes before its turn");
    });
}

/// A tensor that is placed anew lets go of its key buffers with its next contribution.
#[test]
fn a_tensor_placed_anew_gives_its_key_buffers_back() {
    for placement in [Placement::Slot, Placement::RendezvousRead, Placement::RendezvousWrite] {
        seeds::for_each(FILE, "a_tensor_placed_anew_gives_its_key_buffers_back", 5, |seed| {
            let shape =
                Shape { placements: vec![Placement::Static], servers: 1, workers: 2, ..Shape::default() };
            let mut cluster = Cluster::new(seed, Shape { faults: SimFaults::rough(), ..shape });
            cluster.run_until_connected();
            cluster.train(if seed % 2 == 0 { Style::Waited } else { Style::Pipelined }, 12);
            // Of both workers, for 5 chunks each.
            cluster.run_until("a buffer for everything", |cluster| cluster.key_buffers(0) == 10);
            cluster.place_by(&[placement]);
            cluster.finish();
            assert_eq!(cluster.key_buffers(0), 0, "{placement}");
        });
    }
}
