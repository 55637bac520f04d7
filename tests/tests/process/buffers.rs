//! Buffers of the trainer's own, through a real server, over shm and over tcp: copied once and then sent from where
//! they lie, the same bytes each time; memory that is freed and used again under the registration cache never reaches
//! the server under an old entry; whoever drops a buffer gets rid of it, and nobody loses one by an error.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::job::{declare, join, only, summed};
use gradwire_worker::{Client, ClientError, OpError, TensorBuffer, UserBuffer};
use proto_common::config::Settings;
use proto_common::transport::Driver;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

/// Several chunks, the last of them partial.
const COUNT: usize = 5000;
const BYTES: u64 = 4 * COUNT as u64;
const KEY: u64 = 1;
const OTHER: u64 = 2;

fn cluster(driver: Driver, edit: impl Fn(&mut Settings)) -> (Cluster, Client) {
    let words = ["--set", "cluster.chunk_bytes=4096", "--set", "deadlines.heartbeat_ms=50"];
    let mut cluster = Cluster::new(1, 1, &words);
    cluster.add_servers(1, &[]);
    let clients = join(&cluster, 1, |settings| {
        settings.transport = only(driver);
        edit(settings);
    });
    declare(&clients, &[summed(KEY, COUNT as u64), summed(OTHER, COUNT as u64)]);
    (cluster, clients.into_iter().next().unwrap())
}

/// Each of these functions as a test of each driver.
macro_rules! over_every {
    ($($test:ident),* $(,)?) => {
        gradwire_tests::over_each!($($test),*);
        // Where a device reads the pages that it was told of, whatever lies there by now.
        gradwire_tests::over!(#[ignore = "needs an RDMA device: tests/guest/run.sh"] over_verbs, Verbs: $($test),*);
    };
}

/// Of so many pages, however many the machine has: normal ones do, and it is said what would change that.
#[test]
fn too_few_huge_pages_are_told_with_their_fix() {
    let mut cluster = Cluster::new(1, 1, &[]);
    cluster.add_servers(1, &[]);
    let pages = [
        "--set",
        "transport.shm=off",
        "--set",
        "memory.huge_pages=true",
        "--set",
        "memory.pool_bytes=17592186044416",
    ];
    cluster.add_trainers(1, &[&["--layers", "64,10", "--epochs", "1"], &pages[..]].concat());
    assert_eq!(cluster.workers[0].expect_end(PATIENCE), 0);
    let text = cluster.workers[0].log().text();
    let told: Vec<_> = text.lines().filter(|line| line.contains("raise vm.nr_hugepages")).collect();
    assert!(told.len() == 1 && told[0].contains("WARN"), "{text}");
}

over_every!(
    the_second_push_is_sent_from_where_it_lies,
    reused_memory_never_arrives_under_an_old_entry,
    remapped_memory_never_arrives_under_an_old_entry,
    changes_between_pushes_arrive,
    two_threads_push_one_buffer,
);

/// Numbers whose every element tells which they are, and where it stands.
fn pattern(which: usize) -> Vec<f32> {
    pattern_of(COUNT, which)
}

fn pattern_of(count: usize, which: usize) -> Vec<f32> {
    (0..count).map(|at| ((which % 4001) * 4096 + at % 4093) as f32).collect()
}

/// With one worker the weights of a round are what was pushed.
fn assert_arrives(client: &Client, key: u64, gradient: &UserBuffer, weights: TensorBuffer) -> TensorBuffer {
    let tensor = client.tensor(key).unwrap();
    let ended = client.push_pull(&tensor, gradient.clone(), weights, 0).unwrap().wait().unwrap();
    let landed = ended.target.unwrap();
    let same = landed.as_f32().iter().zip(gradient.iter()).all(|(a, b)| a.to_bits() == b.to_bits());
    assert!(same && landed.as_f32().len() == gradient.len(), "other bytes arrived than were pushed");
    assert_eq!(ended.user.unwrap().as_ptr(), gradient.as_ptr(), "the owner comes back");
    assert!(ended.source.is_none(), "the copy does not");
    landed
}

fn the_second_push_is_sent_from_where_it_lies(driver: Driver) {
    // Room for the weights and one copy.
    let padded = BYTES.next_multiple_of(4096);
    let (mut cluster, client) = cluster(driver, |settings| settings.memory.pool_bytes = 2 * padded);
    let odd = [f32::NAN, -0.0, f32::MIN_POSITIVE / 2.0, f32::INFINITY];
    let numbers: Vec<f32> = (0..COUNT).map(|at| if at % 7 == 0 { odd[at % 4] } else { at as f32 }).collect();
    for owner in [UserBuffer::from(numbers.clone()), UserBuffer::from(Arc::new(numbers))] {
        let before = client.registrations();
        let weights = assert_arrives(&client, KEY, &owner, client.allocate(BYTES).unwrap());
        assert_eq!(client.registrations().copies, before.copies + 1);
        // From here on there is no room for a copy.
        let full = client.allocate(padded).unwrap();
        let weights = assert_arrives(&client, KEY, &owner, weights);
        drop(assert_arrives(&client, KEY, &owner, weights));
        drop(full);
        let stats = client.registrations();
        assert_eq!((stats.hits, stats.copies), (before.hits + 2, before.copies + 1));
        assert_eq!((stats.registered, stats.registered_bytes), (1, BYTES));
    }
    cluster.assert_no_panic();
}

fn reused_memory_never_arrives_under_an_old_entry(driver: Driver) {
    const OWNERS: usize = 3000;
    let (mut cluster, client) = cluster(driver, |_| {});
    let mut weights = client.allocate(BYTES).unwrap();
    let (mut addresses, mut reused) = (HashSet::new(), 0);
    for which in 0..OWNERS {
        let numbers = pattern(which);
        reused += usize::from(!addresses.insert(numbers.as_ptr() as usize));
        let owner =
            if which % 2 == 0 { UserBuffer::from(numbers) } else { UserBuffer::from(Arc::new(numbers)) };
        weights = assert_arrives(&client, KEY, &owner, weights);
        weights = assert_arrives(&client, KEY, &owner, weights);
        drop(owner);
        // Whatever lies there now is none of the cluster's business.
        drop(std::hint::black_box(vec![-7777.0f32; COUNT]));
    }
    let stats = client.registrations();
    assert!(reused > OWNERS / 2, "only {reused} owners lay where another had lain: nothing was tested");
    assert_eq!((stats.hits, stats.copies), (OWNERS as u64, OWNERS as u64), "each was new, and then known");
    assert_eq!((stats.registered, stats.evictions), (0, 0), "what is dropped does not stay");
    cluster.assert_no_panic();
}

/// So large that the system takes the pages back at once when it is freed, and maps others there for the next one.
fn remapped_memory_never_arrives_under_an_old_entry(driver: Driver) {
    const LARGE: u64 = 3;
    const LARGE_COUNT: usize = (33 << 20) / 4;
    let mut cluster = Cluster::new(1, 1, &["--set", "cluster.chunk_bytes=1048576"]);
    cluster.add_servers(1, &[]);
    let clients = join(&cluster, 1, |settings| settings.transport = only(driver));
    declare(&clients, &[summed(LARGE, LARGE_COUNT as u64)]);
    let client = &clients[0];
    let mut weights = client.allocate(4 * LARGE_COUNT as u64).unwrap();
    let (mut addresses, mut reused) = (HashSet::new(), 0);
    for which in 0..4 {
        let numbers = pattern_of(LARGE_COUNT, which);
        reused += usize::from(!addresses.insert(numbers.as_ptr() as usize));
        let owner = UserBuffer::from(numbers);
        weights = assert_arrives(client, LARGE, &owner, weights);
        weights = assert_arrives(client, LARGE, &owner, weights);
    }
    assert!(reused > 0, "no owner lay where another had lain: nothing was tested");
    let stats = client.registrations();
    // Servers that share memory read such large ones in the pool, to which each is copied.
    let sent_there = if driver == Driver::Shm { 0 } else { 4 };
    assert_eq!((stats.hits, stats.copies, stats.registered), (sent_there, sent_there, 0));
    cluster.assert_no_panic();
}

fn changes_between_pushes_arrive(driver: Driver) {
    let (mut cluster, client) = cluster(driver, |_| {});
    let mut weights = client.allocate(BYTES).unwrap();
    let mut owner = UserBuffer::from(vec![0.0f32; COUNT]);
    for which in 0..100 {
        owner.get_mut().expect("no operation has it").copy_from_slice(&pattern(which));
        weights = assert_arrives(&client, KEY, &owner, weights);
    }
    assert_eq!(client.registrations().hits, 99);
    let owner = owner.into_vec().expect_err("the cache has it");
    client.forget(&owner);
    assert_eq!(client.registrations().registered_bytes, 0);
    assert!(owner.into_vec().expect("nobody else has it") == pattern(99));
    cluster.assert_no_panic();
}

fn two_threads_push_one_buffer(driver: Driver) {
    let (mut cluster, client) = cluster(driver, |_| {});
    for which in 0..100 {
        let owner = UserBuffer::from(pattern(which));
        std::thread::scope(|scope| {
            for key in [KEY, OTHER] {
                let (client, owner) = (&client, owner.clone());
                scope.spawn(move || {
                    let weights = client.allocate(BYTES).unwrap();
                    let weights = assert_arrives(client, key, &owner, weights);
                    assert_arrives(client, key, &owner, weights);
                });
            }
        });
        assert_eq!(client.registrations().registered, 1);
    }
    let stats = client.registrations();
    assert_eq!((stats.hits, stats.copies), (300, 100), "one of the threads was first");
    cluster.assert_no_panic();
}

#[test]
fn more_buffers_than_the_cache_holds_still_arrive() {
    let (mut cluster, client) =
        cluster(Driver::Shm, |settings| settings.memory.registration_cache_bytes = 2 * BYTES);
    let owners: Vec<UserBuffer> = (0..3).map(|which| pattern(which).into()).collect();
    let mut weights = client.allocate(BYTES).unwrap();
    // Two fit: nothing gives way.
    for owner in owners[..2].iter().cycle().take(10) {
        weights = assert_arrives(&client, KEY, owner, weights);
    }
    assert_eq!((client.registrations().registered, client.registrations().evictions), (2, 0));
    for owner in owners.iter().cycle().take(30) {
        weights = assert_arrives(&client, KEY, owner, weights);
        assert!(client.registrations().registered_bytes <= 2 * BYTES);
    }
    assert!(client.registrations().evictions > 0);
    cluster.assert_no_panic();
}

/// Tells of its end.
struct Mortal(Vec<f32>, Sender<()>);

impl AsRef<[f32]> for Mortal {
    fn as_ref(&self) -> &[f32] {
        &self.0
    }
}

impl Drop for Mortal {
    fn drop(&mut self) {
        let _ = self.1.send(());
    }
}

#[test]
fn a_dropped_buffer_leaves_the_cache_by_itself() {
    let (mut cluster, client) = cluster(Driver::Shm, |_| {});
    let (sender, dead) = channel();
    let owner = UserBuffer::from(Arc::new(Mortal(pattern(1), sender)));
    let weights = assert_arrives(&client, KEY, &owner, client.allocate(BYTES).unwrap());
    assert_arrives(&client, KEY, &owner, weights);
    assert!(dead.try_recv().is_err());
    drop(owner);
    dead.recv_timeout(PATIENCE).expect("the heartbeat lets go of it");
    cluster.assert_no_panic();
}

#[test]
fn an_operation_owns_its_buffer_and_an_error_does_not_lose_it() {
    let mut cluster = Cluster::new(1, 2, &[]);
    cluster.add_servers(1, &[]);
    let clients = join(&cluster, 2, |settings| {
        (settings.deadlines.operation_ms, settings.deadlines.busy_ms) = (300, 300);
    });
    declare(&clients, &[summed(KEY, COUNT as u64)]);
    let tensor = clients[0].tensor(KEY).unwrap();
    let mut owner = UserBuffer::from(pattern(3));

    let short = UserBuffer::from(vec![1.0f32; COUNT - 1]);
    let error = clients[0].push(&tensor, short.clone()).unwrap_err();
    assert!(matches!(error, ClientError::WrongLength { .. }), "{error}");
    assert_eq!(short.into_vec().map(|numbers| numbers.len()).ok(), Some(COUNT - 1), "it was never begun");

    // The other worker does not contribute.
    let handle = clients[0].push(&tensor, owner.clone()).unwrap();
    assert!(owner.get_mut().is_none(), "the operation has it");
    let error = handle.wait().unwrap_err();
    assert!(matches!(error, ClientError::Op(OpError::Deadline { .. })), "{error}");
    clients[0].close();
    assert!(owner.get_mut().is_some(), "nothing reads it any more");
    assert!(owner.into_vec().expect("nobody else has it") == pattern(3));
    clients[1].close();
    cluster.assert_no_panic();
}

#[test]
fn an_initial_value_from_a_buffer_is_set_by_rank_0() {
    let mut cluster = Cluster::new(1, 2, &[]);
    cluster.add_servers(1, &[]);
    let clients = join(&cluster, 2, |_| {});
    declare(&clients, &[summed(KEY, COUNT as u64)]);
    std::thread::scope(|scope| {
        for (rank, client) in clients.iter().enumerate() {
            scope.spawn(move || {
                let tensor = client.tensor(KEY).unwrap();
                client.init_from(&tensor, UserBuffer::from(pattern(rank))).unwrap().wait().unwrap();
                let mut weights = vec![0.0f32; COUNT];
                client.pull_slice(&tensor, &mut weights).unwrap();
                assert!(weights == pattern(0));
            });
        }
    });
    cluster.assert_no_panic();
}
