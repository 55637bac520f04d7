//! Tensors with codecs, through real servers: the same weights as the reference's whatever carries them, what is pulled and
//! initialised is plain, what is not finite is seen by all.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::Cluster;
use gradwire_tests::rigs::job::{declare, join};
use gradwire_tests::rigs::training::{SHM, TCP, UNIX, reference, reference_of, trained_by};
use gradwire_worker::{Client, UserBuffer};
use proto_common::codec::{Codec, Compression};
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;

const CODECS: [&str; 7] = ["f16", "bf16", "onebit", "twobit:0.05", "topk:0.05", "randomk:0.2", "dither:4"];

#[test]
fn every_codec_gives_the_reference_s_weights() {
    let plain = reference(3);
    for (codec, carrier) in CODECS.into_iter().zip([SHM, TCP, UNIX].into_iter().cycle()) {
        let expected = reference_of(3, &["--codec", codec]);
        assert_eq!(trained_by(&["--codec", codec], carrier, 2, 3, &[]), expected, "{codec}");
        assert_ne!(expected, plain, "{codec}: it was not used");
    }
}

/// The seed of what is random is made of the grid's chunks, which servers and lanes do not change; bytes that a worker sends
/// ahead of its turn are spilled as they are.
#[test]
fn servers_lanes_and_drivers_do_not_show() {
    let train = ["--codec", "dither:2", "--codec-momentum", "0.5", "--momentum", "0"];
    let chunks = ["--set", "cluster.chunk_bytes=4096"];
    let both = [&chunks[..], &["--set", "cluster.lanes=2"]].concat();
    let expected = trained_by(&train, SHM, 1, 4, &chunks);
    assert_eq!(trained_by(&train, UNIX, 3, 4, &both), expected);
    assert_eq!(trained_by(&train, SHM, 2, 4, &both), expected);
}

const KEY: u64 = 5;
/// Chunks of 4 KiB, and a short one.
const COUNT: usize = 2500;

fn cluster(workers: u32, codec: Codec) -> (Cluster, Vec<Client>) {
    cluster_with(workers, codec, Optimizer::sum())
}

fn cluster_with(workers: u32, codec: Codec, rule: Optimizer) -> (Cluster, Vec<Client>) {
    let mut cluster = Cluster::new(2, workers, &["--set", "cluster.chunk_bytes=4096"]);
    cluster.add_servers(2, &[]);
    let clients = join(&cluster, workers, |_| {});
    let spec = TensorSpec::f32(KEY, COUNT as u64, rule).compressed(Compression::of(codec));
    declare(&clients, &[spec]);
    (cluster, clients)
}

/// One round: each client pushes what `gradient` says of its rank; what they pull is the same, and returned.
fn round(clients: &[Client], gradient: impl Fn(u32) -> Vec<f32> + Sync) -> Vec<f32> {
    let pulled: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let work = |client: &Client| {
            let tensor = client.tensor(KEY).unwrap();
            let mut weights = vec![0.0; COUNT];
            client.push_pull_slice(&tensor, &gradient(client.rank()), &mut weights).unwrap();
            weights
        };
        let threads: Vec<_> = clients.iter().map(|client| scope.spawn(move || work(client))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let bits = |weights: &[f32]| weights.iter().map(|weight| weight.to_bits()).collect::<Vec<_>>();
    assert!(pulled.iter().all(|weights| bits(weights) == bits(&pulled[0])));
    pulled.into_iter().next().unwrap()
}

#[test]
fn error_feedback_brings_what_was_left_out_later() {
    let (mut cluster, clients) = cluster(2, Codec::TwoBit { threshold: 1.0 });
    let initial: Vec<f32> = (0..COUNT).map(|at| at as f32 + 0.125).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| client.init(&client.tensor(KEY).unwrap(), &initial).unwrap());
        }
    });
    // Worker 0 gives a quarter a round, worker 1 three: sent when they have become a whole.
    let gradient = |rank: u32| vec![if rank == 0 { 0.25 } else { 0.75 }; COUNT];
    for (number, sum) in [(1, 0.0), (2, 1.0), (3, 2.0), (4, 4.0)] {
        let expected: Vec<f32> = initial.iter().map(|value| value + sum).collect();
        assert_eq!(round(&clients, gradient), expected, "round {number}");
    }
    for client in &clients {
        let (tensor, stats) = (client.tensor(KEY).unwrap(), client.stats());
        assert_eq!(tensor.sent_bytes(), 256 + 256 + 116);
        let initial_bytes = if client.rank() == 0 { tensor.bytes() } else { 0 };
        assert_eq!(stats.sent_bytes, initial_bytes + 4 * tensor.sent_bytes());
        assert_eq!(stats.plain_bytes, initial_bytes + 4 * tensor.bytes());
    }
    clients.iter().for_each(Client::close);
    cluster.assert_no_panic();
}

#[test]
fn gradients_in_own_memory_and_several_rounds_in_flight() {
    let (mut cluster, clients) = cluster(1, Codec::Bf16);
    let tensor = clients[0].tensor(KEY).unwrap();
    let used_bytes = |client: &Client| client.registrations().registered;
    let handles: Vec<_> = (1..=8)
        .map(|number| clients[0].push(&tensor, UserBuffer::from(vec![number as f32; COUNT])).unwrap())
        .collect();
    for (handle, number) in handles.into_iter().zip(1..) {
        let ended = handle.wait().unwrap();
        assert_eq!(ended.version.0, number);
        assert!(ended.user.is_some() && ended.source.is_none(), "the trainer has its buffer back");
    }
    let mut weights = vec![0.0f32; COUNT];
    clients[0].pull_slice(&tensor, &mut weights).unwrap();
    assert!(weights.iter().all(|weight| *weight == 36.0));
    assert_eq!(used_bytes(&clients[0]), 0, "what is encoded is never registered");
    clients[0].close();
    cluster.assert_no_panic();
}

#[test]
fn a_gradient_that_is_not_finite_is_seen_by_all_and_is_gone_in_the_next_round() {
    let (mut cluster, clients) = cluster_with(2, Codec::OneBit, Optimizer::assign());
    let seen = round(&clients, |rank| vec![if rank == 0 { f32::NAN } else { 1.0 }; COUNT]);
    assert!(seen.iter().all(|value| value.is_nan()));
    assert_eq!(round(&clients, |_| vec![2.0; COUNT]), vec![4.0; COUNT]);
    clients[0].close();
    cluster.assert_no_panic();
}
