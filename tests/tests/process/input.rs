//! Wrong calls into the client library against a real cluster: each is a typed error that names the key, says
//! cause and fix, and leaves the cluster and the client able to work.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::Cluster;
use gradwire_tests::rigs::job::{declare, join, round, summed};
use gradwire_worker::{Client, ClientError, OpError};
use proto_common::batch::Status;
use proto_common::codec::{Codec, Compression};
use proto_common::element::Dtype;
use proto_common::error::Blame;
use proto_common::ids::Key;
use proto_common::message::DeclareError;
use proto_common::optimizer::{Lamb, Optimizer};
use proto_common::tensor::{Mode, TensorError, TensorSpec};

/// Tensors that all tests declare: one of less than a chunk, one of several chunks on several servers.
const SMALL: u64 = 10;
const LARGE: u64 = 1 << 40;
const LARGE_ELEMENTS: u64 = 5000;

fn cluster(workers: u32) -> (Cluster, Vec<Client>) {
    let mut cluster = Cluster::new(2, workers, &["--set", "cluster.chunk_bytes=4096"]);
    cluster.add_servers(2, &[]);
    let clients = join(&cluster, workers, |settings| settings.deadlines.operation_ms = 20_000);
    declare(&clients, &[summed(SMALL, 3), summed(LARGE, LARGE_ELEMENTS)]);
    (cluster, clients)
}

/// After whatever went wrong: both tensors still make rounds, and nothing has panicked.
fn works(cluster: &mut Cluster, clients: &[Client]) {
    for key in [SMALL, LARGE] {
        round(clients, key);
        round(clients, key);
    }
    cluster.assert_no_panic();
}

fn blames_the_caller(error: &ClientError, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.blame(), Blame::Caller, "{text}");
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
}

#[test]
fn buffers_of_the_wrong_size() {
    let (mut cluster, clients) = cluster(1);
    let client = &clients[0];
    let large = client.tensor(LARGE).unwrap();
    for bytes in [4 * LARGE_ELEMENTS - 4, 4 * LARGE_ELEMENTS + 4, 1] {
        let buffer = || client.allocate(bytes).unwrap();
        let fit = || client.allocate(4 * LARGE_ELEMENTS).unwrap();
        let errors = [
            client.push(&large, buffer()).unwrap_err(),
            client.pull(&large, buffer()).unwrap_err(),
            client.push_pull(&large, buffer(), fit(), 0).unwrap_err(),
            client.push_pull(&large, fit(), buffer(), 0).unwrap_err(),
        ];
        for error in &errors {
            blames_the_caller(error, &["20000 bytes", &format!("{bytes} bytes"), "of exactly 20000 bytes"]);
            assert!(matches!(error, ClientError::WrongLength { key: Key(LARGE), .. }), "{error:?}");
        }
    }
    let mut short = [0.0f32; 2];
    let small = client.tensor(SMALL).unwrap();
    for error in [
        client.push_slice(&small, &short).unwrap_err(),
        client.init(&small, &[0.0f32; 4]).unwrap_err(),
        client.pull_slice(&small, &mut short).unwrap_err(),
        client.push_pull_slice(&small, &[1.0; 3], &mut short).unwrap_err(),
        client.push_pull_slice(&small, &[1.0; 4], &mut [0.0f32; 3]).unwrap_err(),
    ] {
        blames_the_caller(&error, &["tensor 10 has 12 bytes of f32"]);
    }
    works(&mut cluster, &clients);
}

#[test]
fn tensors_and_buffers_of_another_client() {
    let (mut cluster, clients) = cluster(2);
    let (mine, theirs) = (&clients[0], &clients[1]);
    let small = mine.tensor(SMALL).unwrap();
    let foreign = theirs.tensor(SMALL).unwrap();
    let buffer = |client: &Client| client.allocate(small.bytes()).unwrap();
    for error in [
        mine.push_slice(&foreign, &[1.0f32; 3]).unwrap_err(),
        mine.pull(&foreign, buffer(mine)).unwrap_err(),
        mine.init(&foreign, &[1.0f32; 3]).unwrap_err(),
    ] {
        blames_the_caller(
            &error,
            &["the tensor passed for tensor 10 belongs to another client", "`declare`"],
        );
    }
    for error in [
        mine.push(&small, buffer(theirs)).unwrap_err(),
        mine.pull(&small, buffer(theirs)).unwrap_err(),
        mine.push_pull(&small, buffer(mine), buffer(theirs), 0).unwrap_err(),
    ] {
        blames_the_caller(
            &error,
            &["the buffer passed for tensor 10 belongs to another client", "`allocate`"],
        );
    }
    works(&mut cluster, &clients);
}

#[test]
fn keys_that_are_not_declared_not_sorted_or_twice() {
    let (mut cluster, clients) = cluster(1);
    let client = &clients[0];
    let undeclared = client.tensor(11).unwrap_err();
    assert!(matches!(undeclared, ClientError::Undeclared(Key(11))));
    blames_the_caller(&undeclared, &["tensor 11 is not declared", "Declare it first"]);
    assert!(matches!(client.tensors(&[SMALL, 11]), Err(ClientError::Undeclared(Key(11)))));
    for (keys, position, key) in [([LARGE, SMALL], 1, SMALL), ([SMALL, SMALL], 1, SMALL)] {
        let error = client.tensors(&keys).unwrap_err();
        blames_the_caller(&error, &["sorted keys without duplicates"]);
        let ClientError::Unsorted { position: at, key: Key(which) } = error else { panic!("{error:?}") };
        assert_eq!((at, which), (position, key));
    }
    assert_eq!(client.tensors(&[SMALL, LARGE]).unwrap().len(), 2);
    works(&mut cluster, &clients);
}

#[test]
fn declarations_that_cannot_be_served() {
    let (mut cluster, clients) = cluster(1);
    let client = &clients[0];
    let good = || TensorSpec::f32(20, 8, Optimizer::sgd(0.1, 0.0, 0.0));
    let lamb = Optimizer::mean(Lamb::default(), 0.1);
    let one_bit = Compression::of(Codec::OneBit);
    let wrong: [(TensorSpec, &str); 12] = [
        (TensorSpec::of(Dtype::F16, 20, 8, Optimizer::sum()).compressed(one_bit), "encodes f32, not f16"),
        (TensorSpec::dynamic_f32(20, 8).compressed(one_bit), "needs a fixed length"),
        (good().compressed(Compression::of(Codec::TopK { share: 0.9 })), "at most 0.5"),
        (
            TensorSpec { dtype: Dtype::I8, ..good() },
            "takes the rules sum and assign without average; use one of them",
        ),
        (TensorSpec { dtype: Dtype::I64, ..good() }, "dtype i64"),
        (TensorSpec::dynamic_f32(20, 4).in_mode(Mode::Async), "use mode sync"),
        (good().with_backup(1), "cluster.deterministic = false"),
        (TensorSpec { elements: 0, ..good() }, "has no elements"),
        (TensorSpec { elements: u64::MAX, ..good() }, "too large"),
        (TensorSpec { name: "n".repeat(257), ..good() }, "at most 256"),
        (
            TensorSpec { optimizer: lamb, elements: 1 << 40, ..good() },
            "raise cluster.chunk_bytes, cut the tensor",
        ),
        (TensorSpec { optimizer: Optimizer::sgd(f32::NAN, 0.0, 0.0), ..good() }, "learning_rate"),
    ];
    for (spec, words) in wrong {
        let error = client.declare(std::slice::from_ref(&spec)).unwrap_err();
        blames_the_caller(&error, &["tensor 20", words]);
        assert!(matches!(error, ClientError::Declare(DeclareError::Tensor(_))), "{error:?}");
    }
    let error = client.declare(&[good(), good()]).unwrap_err();
    assert!(matches!(error, ClientError::Declare(DeclareError::Duplicate { key: Key(20), .. })), "{error:?}");
    assert!(matches!(client.tensor(20), Err(ClientError::Undeclared(_))), "a refused one is not there");
    client.declare(&[good()]).unwrap();
    client.declare(&[good()]).expect("repeating is harmless");
    works(&mut cluster, &clients);
}

/// What no honest client would send is refused by the scheduler too: its own check does not count there.
#[test]
fn a_tensor_too_large_for_its_chunks_is_named() {
    let (_cluster, clients) = cluster(1);
    let spec = summed(30, (u64::from(u32::MAX) + 1) * 1024);
    let error = clients[0].declare(&[spec]).unwrap_err();
    let ClientError::Declare(DeclareError::Tensor(TensorError::TooLarge { key, .. })) = error else {
        panic!("{error:?}")
    };
    assert_eq!(key, Key(30));
}

#[test]
fn two_workers_that_disagree() {
    let (mut cluster, clients) = cluster(2);
    clients[0].declare(&[summed(40, 100)]).unwrap();
    let others = [
        (summed(40, 101), "101"),
        (summed(40, 100).compressed(Compression::of(Codec::OneBit)), "onebit"),
        (TensorSpec { optimizer: Optimizer::sgd(0.5, 0.0, 0.0), ..summed(40, 100) }, "Sgd"),
        (TensorSpec { name: "bias".into(), ..summed(40, 100) }, "bias"),
    ];
    for (spec, words) in others {
        let error = clients[1].declare(&[spec]).unwrap_err();
        blames_the_caller(&error, &["was declared before as", "all workers must declare the same"]);
        let text = error.to_string().to_lowercase();
        assert!(text.contains(&words.to_lowercase()), "{text:?} does not say {words:?}");
        assert!(matches!(error, ClientError::Declare(DeclareError::Conflict { .. })), "{error:?}");
    }
    clients[1].declare(&[summed(40, 100)]).unwrap();
    round(&clients, 40);
    works(&mut cluster, &clients);
}

#[test]
fn init_after_the_first_round_is_refused_and_harms_nothing() {
    let (mut cluster, clients) = cluster(2);
    round(&clients, LARGE);
    let values = vec![7.0f32; LARGE_ELEMENTS as usize];
    let tensor = clients[0].tensor(LARGE).unwrap();
    let error = clients[0].init(&tensor, &values).unwrap_err();
    let refused = matches!(&error, ClientError::Op(OpError::Refused { status: Status::Refused, .. }));
    assert!(refused, "{error:?}");
    let text = error.to_string();
    assert!(text.contains(&format!("tensor {LARGE}")) && text.contains("refused"), "{text}");
    let mut weights = vec![0.0f32; LARGE_ELEMENTS as usize];
    clients[0].pull_slice(&tensor, &mut weights).expect("operations after a refused one go on");
    assert!(weights.iter().all(|w| *w == 3.0), "{:?}", &weights[..4]);
    works(&mut cluster, &clients);
}

/// Nothing waits for a cluster that the client has left.
#[test]
fn a_client_that_is_closed_says_so() {
    let (cluster, clients) = cluster(1);
    let tensor = clients[0].tensor(SMALL).unwrap();
    clients[0].close();
    let error = clients[0].push_slice(&tensor, &[0.0f32; 3]).unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    let error = clients[0].barrier().unwrap_err();
    assert!(error.to_string().contains("closed"), "{error}");
    drop(cluster);
}
