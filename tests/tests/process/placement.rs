//! Placements between real daemons. The weights are the same to the last bit however contributions travel, over shared memory
//! and TCP (in the guest of `tests/guest`: over an RDMA device). Each placement is really used if it is requested. Without room, and
//! without a request, contributions travel in slots.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::Cluster;
use gradwire_tests::rigs::training::{Carrier, SHM, TCP, VERBS, reference, trained_with};
use gradwire_tests::rigs::{job, status};
use gradwire_worker::Client;
use proto_common::plan::{Placement, PlacementPolicy};
use proto_common::tensor::TensorSpec;
use proto_common::transport::Driver;

/// Tensors of several chunks.
const CHUNKS: [&str; 2] = ["--set", "cluster.chunk_bytes=4096"];
const CHUNK: u64 = 1024;
const KEY: u64 = 5;

/// Each of these functions as a test of each driver.
macro_rules! over_every {
    ($($test:ident),* $(,)?) => {
        gradwire_tests::over_each!($($test),*);
        gradwire_tests::over!(#[ignore = "needs an RDMA device: tests/guest/run.sh"] over_verbs, Verbs: $($test),*);
    };
}

over_every!(
    the_same_weights_with_every_placement,
    each_placement_is_used_where_it_is_asked_for,
    a_dynamic_tensor_has_the_length_of_its_round,
);

fn the_same_weights_with_every_placement(driver: Driver) {
    let expected = reference(4);
    let Carrier(flags, words) = match driver {
        Driver::Shm => SHM,
        Driver::Verbs => VERBS,
        Driver::Tcp => TCP,
    };
    for placement in Placement::ALL {
        let word = placement.to_string();
        let flags = [flags, &["--placement", &word]].concat();
        assert_eq!(trained_with(&flags, words, 2, 4, &CHUNKS), expected, "{placement}: {words}");
    }
}

fn clients(cluster: &Cluster, driver: Driver, placement: PlacementPolicy) -> Vec<Client> {
    let clients = job::join(cluster, 2, |settings| {
        settings.transport = job::only(driver);
        settings.transport.placement = placement;
    });
    job::declare(&clients, &[job::summed(KEY, 3 * CHUNK + 7)]);
    clients
}

/// A counter of the only server.
fn counted(cluster: &Cluster, name: &str) -> u64 {
    status::number(cluster.status().members[0].http_address.as_deref().unwrap(), name)
}

fn each_placement_is_used_where_it_is_asked_for(driver: Driver) {
    // Several workers contribute to several chunks.
    let (planned, by_plan) = match driver {
        Driver::Verbs => (Placement::Static, (24, 0)),
        Driver::Shm => (Placement::RendezvousRead, (0, 24)),
        Driver::Tcp => (Placement::Slot, (0, 0)),
    };
    for (policy, placed, fetched) in [
        (PlacementPolicy::Auto, by_plan.0, by_plan.1),
        (PlacementPolicy::Slot, 0, 0),
        (PlacementPolicy::Static, 24, 0),
        (PlacementPolicy::RendezvousWrite, 24, 0),
        (PlacementPolicy::RendezvousRead, 0, 24),
    ] {
        let mut cluster = Cluster::new(1, 2, &CHUNKS);
        cluster.add_server(&[]);
        let clients = clients(&cluster, driver, policy);
        (0..3).for_each(|_| job::round(&clients, KEY));
        // Four chunks, three rounds, two workers.
        let stats: Vec<_> = clients.iter().map(Client::stats).collect();
        let sum = |of: fn(&gradwire_worker::engine::LaneStats) -> u64| stats.iter().map(of).sum::<u64>();
        let found = (sum(|stats| stats.placed), sum(|stats| stats.referenced));
        assert_eq!(found, (placed, fetched), "{policy:?} over {driver}");
        let served = counted(&cluster, "gradwire_server_placed_total");
        // Where the worker's memory can be read in place, nothing is copied out of it first.
        let (read, other) = ("gradwire_server_fetches_total", "gradwire_server_in_place_total");
        let (read, other) = if driver == Driver::Shm { (other, read) } else { (read, other) };
        assert_eq!(counted(&cluster, other), 0, "{policy:?} over {driver}");
        let read = counted(&cluster, read);
        assert_eq!((served, read), (placed, fetched), "{policy:?} over {driver}");
        let wanted = policy.fixed().unwrap_or(planned);
        assert_eq!(clients[0].tensor(KEY).unwrap().placement(), wanted, "{policy:?} over {driver}");
    }
}

/// A tensor of another length in each round, from one element to two chunks and a bit: what is pulled is as long as
/// what was pushed, by whatever placement.
fn a_dynamic_tensor_has_the_length_of_its_round(driver: Driver) {
    let most = 2 * CHUNK + 9;
    for policy in [PlacementPolicy::Auto, PlacementPolicy::Slot, PlacementPolicy::Static] {
        let mut cluster = Cluster::new(2, 2, &[&CHUNKS[..], &["--set", "cluster.lanes=2"]].concat());
        cluster.add_servers(2, &[]);
        let clients = clients(&cluster, driver, policy);
        job::declare(&clients, &[TensorSpec::dynamic_f32(9, most)]);
        for length in [5, most, CHUNK, 1, CHUNK + 1] {
            std::thread::scope(|scope| {
                for (rank, client) in clients.iter().enumerate() {
                    scope.spawn(move || dynamic_round(client, rank, length));
                }
            });
        }
        let tensor = clients[0].tensor(9).unwrap();
        let expected =
            if policy == PlacementPolicy::Auto { Placement::RendezvousRead } else { policy.fixed().unwrap() };
        assert_eq!(tensor.placement(), expected);
        let whole = clients[0].allocate(tensor.bytes()).unwrap();
        let weights = clients[0].allocate(tensor.bytes()).unwrap();
        let error = clients[0].push_pull(&tensor, whole, weights, 0).unwrap_err().to_string();
        assert!(error.contains("Use push and pull"), "{error}");
        let long = clients[0].allocate(tensor.bytes() + 4).unwrap();
        assert!(clients[0].push(&tensor, long).is_err());
    }
}

fn dynamic_round(client: &Client, rank: usize, length: u64) {
    let tensor = client.tensor(9).unwrap();
    let mut gradient = client.allocate(4 * length).unwrap();
    gradient.as_f32_mut().fill(rank as f32 + 1.0);
    client.push(&tensor, gradient).unwrap().wait().unwrap();
    let weights = client.allocate(tensor.bytes()).unwrap();
    let ended = client.pull(&tensor, weights).unwrap().wait().unwrap();
    assert_eq!(ended.landed_bytes, 4 * length);
    let target = ended.target.unwrap();
    assert!(target.as_f32()[..length as usize].iter().all(|value| *value == 3.0), "{length}");
    // A view of them ends where they do, whatever the buffer held before.
    let weights = client.pull_view(&tensor).unwrap().wait().unwrap().weights.unwrap();
    let seen: usize = weights.numbers::<f32>().map(|(_, numbers)| numbers.len()).sum();
    assert_eq!((weights.bytes(), seen as u64), (4 * length, length));
    let mut copied = vec![0.0f32; length as usize];
    weights.copy_to(&mut copied).unwrap();
    assert_eq!(client.pull_slice(&tensor, &mut copied).unwrap(), weights.version());
    assert!(copied.iter().all(|value| *value == 3.0), "{length}");
    let error = weights.copy_to(&mut vec![0.0f32; length as usize + 1]).unwrap_err().to_string();
    assert!(error.contains("Pass a buffer of exactly "), "{error}");
}

#[test]
fn a_server_without_room_gets_slots() {
    let mut cluster = Cluster::new(1, 2, &CHUNKS);
    // One block: a half of it is none.
    cluster.add_server(&["--set", "memory.spill_bytes=4096", "--set", "cluster.chunk_bytes=4096"]);
    let clients = clients(&cluster, Driver::Shm, PlacementPolicy::Static);
    (0..3).for_each(|_| job::round(&clients, KEY));
    assert_eq!(counted(&cluster, "gradwire_server_placed_total"), 0);
    assert_eq!(counted(&cluster, "gradwire_server_key_buffers"), 0);
}
