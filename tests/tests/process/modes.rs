//! Modes through real servers, counted: every contribution is a one, so that each weight says how many contributions its
//! chunk has, which is its version. Nothing is lost or applied twice, no chunk is torn, workers read what they wrote, none
//! is told more than the bound ahead of the slowest, and who comes too late for a round is told.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::Cluster;
use gradwire_tests::rigs::job::{declare, join, only};
use gradwire_worker::{Client, ClientError, Element, Ended, OpError, Tensor};
use half::{bf16, f16};
use proto_common::codec::{Codec, Compression};
use proto_common::ids::{Rank, Version};
use proto_common::mode::Mode;
use proto_common::optimizer::Optimizer;
use proto_common::plan::PlacementPolicy;
use proto_common::tensor::TensorSpec;
use proto_common::transport::Driver;
use std::sync::atomic::{AtomicU64, Ordering};

const WORKERS: u32 = 3;
/// Several chunks of every type, the last of them partial.
const COUNT: usize = 5003;
const CHUNK: &[&str] = &["--set", "cluster.chunk_bytes=4096", "--set", "cluster.lanes=2"];
const TURNS: u64 = 8;
const PLACEMENTS: [PlacementPolicy; 4] = [
    PlacementPolicy::Slot,
    PlacementPolicy::Static,
    PlacementPolicy::RendezvousRead,
    PlacementPolicy::RendezvousWrite,
];

fn cluster(more: &[&str]) -> Cluster {
    let mut cluster = Cluster::new(2, WORKERS, &[CHUNK, more].concat());
    cluster.add_servers(2, &[]);
    cluster
}

fn together(clients: &[Client], work: impl Fn(&Client) + Sync) {
    std::thread::scope(|scope| {
        for client in clients {
            let work = &work;
            scope.spawn(move || work(client));
        }
    });
}

/// How many contributions each chunk has, as its weights say it: all of a chunk say the same.
fn counts<T: Element + Into<f64>>(weights: &[T]) -> Vec<u64> {
    let chunks = weights.chunks(4096 / size_of::<T>());
    let count = |chunk: &[T]| {
        let count: f64 = chunk[0].into();
        assert!(chunk.iter().all(|weight| (*weight).into() == count), "a chunk is of one version");
        count as u64
    };
    chunks.map(count).collect()
}

fn look<T: Element + Into<f64>>(ended: &Ended, zero: T) -> Vec<u64> {
    let mut weights = vec![zero; COUNT];
    ended.weights.as_ref().unwrap().copy_to(&mut weights).unwrap();
    let (counts, versions) = (counts(&weights), ended.chunk_versions.as_ref().unwrap());
    assert_eq!(versions.iter().min(), Some(&ended.version), "one version is the least of all");
    assert_eq!(
        counts,
        versions.iter().map(|version| version.0).collect::<Vec<_>>(),
        "it carries its version"
    );
    counts
}

/// One worker's contributions in every way; what the others have made at least is the bound's.
fn contribute<T: Element + Into<f64>>(
    client: &Client,
    key: u64,
    (zero, one): (T, T),
    least: impl Fn(u64) -> u64,
) {
    let tensor = client.tensor(key).unwrap().with_chunk_versions();
    let (ones, mut weights) = (vec![one; COUNT], vec![zero; COUNT]);
    let mut last = Vec::new();
    for turn in 1..=TURNS {
        let version = if turn % 2 == 0 {
            client.push_slice(&tensor, &ones).unwrap()
        } else {
            client.push_pull_slice(&tensor, &ones, &mut weights).unwrap()
        };
        assert!(version.0 >= least(turn), "{version} after {turn}");
        let counts = look(&client.pull_view(&tensor).unwrap().wait().unwrap(), zero);
        assert!(counts.iter().all(|count| *count >= least(turn)), "{counts:?} after {turn}");
        let grown = last.iter().zip(&counts).all(|(before, now)| before <= now);
        assert!(grown, "versions only grow: {last:?} {counts:?}");
        last = counts;
    }
    client.barrier().unwrap();
    let counts = look(&client.pull_view(&tensor).unwrap().wait().unwrap(), zero);
    assert!(counts.iter().all(|count| *count == TURNS * u64::from(WORKERS)), "exactly: {counts:?}");
    client.barrier().unwrap();
}

/// Own contributions, and those of the others but for as many as the bound says.
fn least(mode: Mode, turn: u64) -> u64 {
    match mode {
        Mode::Bounded(bound) => turn + u64::from(WORKERS - 1) * turn.saturating_sub(u64::from(bound)),
        _ => turn,
    }
}

#[test]
fn every_type_counts_up_in_each_mode() {
    let mut cluster = cluster(&[]);
    let clients = join(&cluster, WORKERS, |_| ());
    macro_rules! count_up {
        ($key:expr, $($value:ty: $zero:expr, $one:expr;)*) => {
            let mut key = $key;
            $(for mode in [Mode::Async, Mode::Bounded(1)] {
                key += 1;
                let spec = TensorSpec::of(<$value>::DTYPE, key, COUNT as u64, Optimizer::sum()).in_mode(mode);
                declare(&clients, &[spec]);
                let numbers: ($value, $value) = ($zero, $one);
                together(&clients, |client| contribute(client, key, numbers, |turn| least(mode, turn)));
            })*
        };
    }
    count_up!(0,
        f32: 0.0, 1.0; f64: 0.0, 1.0; f16: f16::ZERO, f16::ONE; bf16: bf16::ZERO, bf16::ONE;
        i8: 0, 1; u8: 0, 1; i32: 0, 1;
    );
    drop(clients);
    cluster.assert_no_panic();
}

#[test]
fn every_placement_codec_and_driver_counts_up() {
    for driver in [Driver::Shm, Driver::Tcp] {
        for placement in PLACEMENTS {
            let mut cluster = cluster(&["--set", "cluster.mode=async"]);
            let clients = join(&cluster, WORKERS, |settings| {
                settings.transport = only(driver);
                settings.transport.placement = placement;
            });
            let open = |key| TensorSpec::f32(key, COUNT as u64, Optimizer::sum());
            let specs = [
                open(1),
                open(2).in_mode(Mode::Bounded(0)),
                open(3).compressed(Compression::of(Codec::F16)),
                open(4).compressed(Compression::of(Codec::OneBit)).in_mode(Mode::Bounded(3)),
            ];
            declare(&clients, &specs);
            for (spec, mode) in
                specs.iter().zip([Mode::Async, Mode::Bounded(0), Mode::Async, Mode::Bounded(3)])
            {
                let key = spec.key.0;
                assert_eq!(
                    clients[0].tensor(key).unwrap().spec().mode,
                    Some(mode),
                    "the cluster's, or its own"
                );
                together(&clients, |client| contribute(client, key, (0.0f32, 1.0), |turn| least(mode, turn)));
            }
            drop(clients);
            cluster.assert_no_panic();
        }
    }
}

/// Pulls that land, and many operations under way at once, by buffers.
#[test]
fn pipelined_contributions_are_all_applied_once_in_order() {
    let mut cluster = cluster(&["--set", "cluster.mode=async"]);
    let clients = join(&cluster, WORKERS, |_| ());
    declare(&clients, &[TensorSpec::f32(1, COUNT as u64, Optimizer::sum())]);
    const MANY: u64 = 60;
    together(&clients, |client| {
        let tensor = client.tensor(1).unwrap();
        let one = || {
            let mut buffer = client.allocate(tensor.bytes()).unwrap();
            buffer.as_f32_mut().fill(1.0);
            buffer
        };
        let pull = |_| client.push_pull(&tensor, one(), client.allocate(tensor.bytes()).unwrap(), 0).unwrap();
        let handles: Vec<_> = (0..MANY).map(pull).collect();
        for (made, handle) in (1..).zip(handles) {
            let ended = handle.wait().unwrap();
            let counts = counts(ended.target.unwrap().as_f32());
            assert!(counts.iter().all(|count| *count >= made), "{counts:?} after {made}");
            assert_eq!(counts.into_iter().min(), Some(ended.version.0));
        }
        client.barrier().unwrap();
        let mut weights = vec![0.0f32; COUNT];
        assert_eq!(client.pull_slice(&tensor, &mut weights).unwrap(), Version(MANY * u64::from(WORKERS)));
        client.barrier().unwrap();
    });
    drop(clients);
    cluster.assert_no_panic();
}

#[test]
fn nobody_gets_further_ahead_of_a_straggler_than_the_bound() {
    const BOUND: u32 = 2;
    let mut cluster = cluster(&["--set", "cluster.mode=bounded:2"]);
    let clients = join(&cluster, WORKERS, |_| ());
    declare(&clients, &[TensorSpec::f32(1, COUNT as u64, Optimizer::sum())]);
    let (begun, ones) = (AtomicU64::new(0), vec![1.0f32; COUNT]);
    let most = AtomicU64::new(0);
    together(&clients, |client| {
        let tensor = client.tensor(1).unwrap();
        for made in 1..=40 {
            if client.rank() == 2 {
                begun.store(made, Ordering::SeqCst);
                // Work that takes longer than the others' is what a straggler is.
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
            client.push_slice(&tensor, &ones).unwrap();
            let ahead = u64::saturating_sub(made, begun.load(Ordering::SeqCst));
            assert!(ahead <= u64::from(BOUND), "{ahead} ahead");
            most.fetch_max(ahead, Ordering::SeqCst);
        }
    });
    assert!(most.into_inner() > 0, "nobody was ever ahead");
    drop(clients);
    cluster.assert_no_panic();
}

#[test]
fn the_error_of_a_bound_names_who_is_behind_and_the_next_operation_goes_on() {
    let mut cluster = cluster(&[]);
    let clients = join(&cluster, WORKERS, |settings| {
        (settings.deadlines.operation_ms, settings.deadlines.busy_ms) = (600, 600);
    });
    declare(&clients, &[TensorSpec::f32(1, COUNT as u64, Optimizer::sum()).in_mode(Mode::Bounded(1))]);
    let tensors: Vec<Tensor> = clients.iter().map(|client| client.tensor(1).unwrap()).collect();
    let ones = vec![1.0f32; COUNT];
    let push = |rank: usize| clients[rank].push_slice(&tensors[rank], &ones);
    push(0).unwrap();
    push(1).unwrap();
    let error = push(0).unwrap_err();
    let ClientError::Op(OpError::Behind { made: 2, behind, .. }) = &error else { panic!("{error}") };
    assert_eq!(*behind, [Rank(2)]);
    assert!(error.to_string().contains("worker 2 is further behind this worker"), "{error}");
    push(2).unwrap();
    let mut weights = vec![0.0f32; COUNT];
    assert_eq!(clients[0].pull_slice(&tensors[0], &mut weights).unwrap(), Version(4), "it was applied");
    drop((tensors, clients));
    cluster.assert_no_panic();
}

#[test]
fn a_new_rule_holds_for_what_is_sent_after_it_is_answered() {
    let mut cluster = cluster(&[]);
    let clients = join(&cluster, WORKERS, |_| ());
    declare(&clients, &[TensorSpec::f32(1, COUNT as u64, Optimizer::sum()).in_mode(Mode::Async)]);
    together(&clients, |client| {
        let tensor = client.tensor(1).unwrap();
        let mut weights = vec![0.0f32; COUNT];
        for _ in 0..=client.rank() {
            client.push_slice(&tensor, &vec![1.0f32; COUNT]).unwrap();
        }
        client.barrier().unwrap();
        client.pull_slice(&tensor, &mut weights).unwrap();
        assert!(weights.iter().all(|weight| *weight == 6.0), "workers made 1, 2 and 3 contributions");
        client.barrier().unwrap();
        if client.rank() == 1 {
            let average = Optimizer { average: true, ..Optimizer::sum() };
            // The last word counts, also of more than servers keep for later.
            for _ in 0..40 {
                client.change_rule(&tensor, average).unwrap();
            }
            client.change_rule(&tensor, Optimizer::sgd(0.5, 0.0, 0.0)).unwrap();
        }
        client.barrier().unwrap();
        client.push_pull_slice(&tensor, &vec![2.0f32; COUNT], &mut weights).unwrap();
        client.barrier().unwrap();
        client.pull_slice(&tensor, &mut weights).unwrap();
        assert!(weights.iter().all(|weight| *weight == 3.0), "each of the three takes one off, by itself");
    });
    drop(clients);
    cluster.assert_no_panic();
}

const FREE: &[&str] = &["--set", "cluster.deterministic=false", "--set", "cluster.backup_workers=1"];

#[test]
fn a_round_goes_on_without_its_backup_worker_who_joins_the_next_one() {
    let mut cluster = cluster(FREE);
    let clients = join(&cluster, WORKERS, |_| ());
    let average = Optimizer { average: true, ..Optimizer::sum() };
    declare(&clients, &[TensorSpec::f32(1, COUNT as u64, average)]);
    let tensors: Vec<Tensor> = clients.iter().map(|client| client.tensor(1).unwrap()).collect();
    let start = |rank: usize| {
        let mut gradient = clients[rank].allocate(tensors[rank].bytes()).unwrap();
        gradient.as_f32_mut().fill(1.0);
        clients[rank].push_pull_view(&tensors[rank].with_chunk_versions(), gradient, 0).unwrap()
    };
    let round = |ranks: &[usize], version| {
        let handles: Vec<_> = ranks.iter().map(|rank| start(*rank)).collect();
        for handle in handles {
            let ended = handle.wait().unwrap();
            assert_eq!((ended.version, ended.late_chunks), (Version(version), 0));
            look(&ended, 0.0f32);
        }
    };
    (1..=5).for_each(|version| round(&[0, 1], version));
    let ended = start(2).wait().unwrap();
    let chunks = ended.chunk_versions.as_ref().unwrap().len() as u32;
    assert_eq!(
        (ended.version, ended.late_chunks),
        (Version(5), chunks),
        "it was dropped, and is told what is in force"
    );
    look(&ended, 0.0f32);
    drop(ended);
    round(&[2, 0], 6);
    // Worker 1 reads before it contributes: what it computes is of these weights, and goes into the next round.
    drop(clients[1].pull_view(&tensors[1]).unwrap().wait().unwrap());
    round(&[1, 2], 7);
    let mut weights = vec![0.0f32; COUNT];
    clients[0].pull_slice(&tensors[0], &mut weights).unwrap();
    assert_eq!(counts(&weights), vec![7; chunks as usize], "the mean of those who contributed");
    drop((tensors, clients));
    cluster.assert_no_panic();
}
