//! A steady round allocates nothing and registers nothing, neither at the worker nor at the server, over shared memory
//! and over sockets, of one tensor and of many, on one lane and on several, with copies and without. Servers run in this process,
//! so that all are counted; they record what they do.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use daemon::flight::Flight;
use daemon::notify::Notify;
use fabric::allocations::{Counting, of_process};
use gradwire_tests::rigs::cluster::Cluster;
use gradwire_tests::rigs::job::only;
use gradwire_worker::{Client, Handle, Source, Tensor, TensorBuffer, UserBuffer, Weights};
use proto_common::config::Settings;
use proto_common::ids::Role;
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;
use proto_common::transport::Driver;
use std::sync::Mutex;
use std::thread::JoinHandle;
use tokio::net::TcpListener;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations are counted over the whole process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Rounds after which whatever grows has grown.
const WARM_UP: u32 = 200;
/// Rounds that are counted together.
const ROUNDS: u32 = 20;
/// Heartbeats allocate, and are none of the rounds' business: they meet a few of so many windows.
const WINDOWS: u32 = 40;

/// A server in a thread of this process.
fn serve(settings: Settings) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (_trigger, shutdown) = daemon::shutdown::channel();
            let told = (Notify::default(), Flight::embedded(Role::Server, &settings));
            let program = (gradwire_server::Program::default(), |_: &_| {});
            gradwire_server::runtime::run(listener, None, settings, program, shutdown, told).await.unwrap();
        });
    })
}

/// A tensor with the trainer's memory of it.
struct Place {
    tensor: Tensor,
    gradient: Option<Gradient>,
    /// None where weights are shown.
    weights: Option<TensorBuffer>,
    shown: Option<Weights>,
    flight: Option<Handle>,
}

/// Whose memory it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The client's.
    Library,
    /// Gradients are the trainer's.
    User,
    /// Weights stay at the server's.
    View,
}

enum Gradient {
    Library(TensorBuffer),
    User(UserBuffer),
}

fn places(client: &Client, elements: &[u64], way: Way) -> Vec<Place> {
    let specs: Vec<TensorSpec> = (1..)
        .zip(elements)
        .map(|(key, elements)| TensorSpec::f32(key, *elements, Optimizer::sgd(0.5, 0.0, 0.0)))
        .collect();
    let place = |tensor: Tensor| {
        let bytes = tensor.bytes();
        let gradient = match way {
            Way::User => Gradient::User(vec![1.0; (bytes / 4) as usize].into()),
            Way::Library | Way::View => Gradient::Library(client.allocate(bytes).unwrap()),
        };
        let weights = (way != Way::View).then(|| client.allocate(bytes).unwrap());
        Place { gradient: Some(gradient), weights, shown: None, flight: None, tensor }
    };
    client.declare(&specs).unwrap().into_iter().map(place).collect()
}

/// All tensors under way together.
fn round(client: &Client, places: &mut [Place]) {
    for place in places.iter_mut() {
        let source: Source = match place.gradient.take().unwrap() {
            Gradient::Library(buffer) => buffer.into(),
            Gradient::User(buffer) => buffer.into(),
        };
        place.shown = None;
        let handle = match place.weights.take() {
            Some(weights) => client.push_pull(&place.tensor, source, weights, 0),
            None => client.push_pull_view(&place.tensor, source, 0),
        };
        place.flight = Some(handle.unwrap());
    }
    for place in places {
        let ended = place.flight.take().unwrap().wait().unwrap();
        place.gradient = ended.user.map(Gradient::User).or(ended.source.map(Gradient::Library));
        (place.weights, place.shown) = (ended.target, ended.weights);
    }
}

/// The least that a window of rounds allocates, on one lane.
fn least_allocations(driver: Driver, elements: &[u64], way: Way) -> u64 {
    least_allocations_on(1, driver, elements, way)
}

fn least_allocations_on(lanes: u32, driver: Driver, elements: &[u64], way: Way) -> u64 {
    least_allocations_of((1, 0), lanes, driver, elements, way)
}

fn least_allocations_of(
    (servers, replicas): (u32, u32),
    lanes: u32,
    driver: Driver,
    elements: &[u64],
    way: Way,
) -> u64 {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // Chunks are small, so that tensors of several are, too: these builds reduce slowly.
    let cluster = Cluster::new(
        servers,
        1,
        &[
            "--set",
            "cluster.chunk_bytes=4096",
            "--set",
            &format!("cluster.lanes={lanes}"),
            "--set",
            &format!("cluster.replicas={replicas}"),
        ],
    );
    let mut settings = cluster.settings();
    settings.transport = only(driver);
    settings.node.http = String::new();
    // What is recorded must not allocate either.
    settings.log.recorder_events = 64;
    let servers: Vec<_> = (0..servers).map(|_| serve(settings.clone())).collect();
    settings.node.rank = Some(0);
    let client = Client::connect(settings).unwrap();
    let mut places = places(&client, elements, way);
    (0..WARM_UP).for_each(|_| round(&client, &mut places));
    let registered = client.registrations();
    let window = |_| {
        let before = of_process();
        (0..ROUNDS).for_each(|_| round(&client, &mut places));
        of_process() - before
    };
    let least = (0..WINDOWS).map(window).min().unwrap();
    let after = client.registrations();
    assert_eq!(cluster.status().uncopied_chunks, 0, "every copy is kept up");
    assert_eq!((after.registered, after.copies), (registered.registered, registered.copies));
    drop(places);
    client.close();
    servers.into_iter().for_each(|server| server.join().unwrap());
    least
}

/// From one chunk with room to spare to several and a part of one.
const MANY: [u64; 16] = [4, 100, 1000, 4, 5000, 16, 1024, 5, 64, 33, 2048, 4, 999, 1, 1025, 8];

#[test]
fn over_shared_memory() {
    assert_eq!(least_allocations(Driver::Shm, &[4], Way::Library), 0, "one small tensor");
    assert_eq!(least_allocations(Driver::Shm, &MANY, Way::Library), 0, "many");
}

#[test]
fn where_weights_are_shown() {
    assert_eq!(least_allocations(Driver::Shm, &[4], Way::View), 0, "one small tensor");
    assert_eq!(least_allocations(Driver::Shm, &MANY, Way::View), 0, "many");
}

/// One tensor with chunks on all: each round waits for all.
#[test]
fn on_several_lanes() {
    let one = [20_000];
    assert_eq!(least_allocations_on(2, Driver::Shm, &one, Way::Library), 0, "shared memory");
    assert_eq!(least_allocations_on(2, Driver::Shm, &one, Way::View), 0, "shown");
    assert_eq!(least_allocations_on(2, Driver::Tcp, &one, Way::Library), 0, "sockets");
    assert_eq!(least_allocations_on(10, Driver::Shm, &one, Way::Library), 0, "on ten lanes");
}

#[test]
fn where_another_server_has_copies() {
    let of = |driver| least_allocations_of((2, 1), 1, driver, &MANY, Way::Library);
    assert_eq!(of(Driver::Shm), 0, "shared memory");
    assert_eq!(of(Driver::Tcp), 0, "sockets");
}

#[test]
fn over_sockets() {
    assert_eq!(least_allocations(Driver::Tcp, &[4], Way::Library), 0, "one small tensor");
    assert_eq!(least_allocations(Driver::Tcp, &MANY, Way::Library), 0, "many");
}

#[test]
fn from_memory_of_the_trainers_own() {
    assert_eq!(least_allocations(Driver::Shm, &MANY, Way::User), 0, "shared memory");
    assert_eq!(least_allocations(Driver::Tcp, &MANY, Way::User), 0, "sockets");
}
