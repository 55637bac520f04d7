//! The device interface of the paper over each driver: copies both ways, completion by callback and by handle, spread
//! over completion queues, names, deadlines, deaths. Over verbs where a device is (`tests/guest`): the same tests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "test code: a panic is a failed test"
)]

use fabric::machine::{CopyError, Direction, Driver, Machine, MachineConfig};
use fabric::{FabricError, PeerWritable, VerbsConfig};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The example, for its own tests.
#[path = "../examples/copy_between_processes.rs"]
#[allow(dead_code, reason = "its main is called by nobody here")]
mod example;

/// Set for the other process of a test: its driver.
const CHILD: &str = "FABRIC_MACHINE_CHILD";
const SOON: Duration = Duration::from_secs(30);

fn config(driver: Option<Driver>) -> MachineConfig {
    MachineConfig { driver, ..MachineConfig::new("127.0.0.1:0".parse().unwrap(), 2, 4) }
}

fn open(driver: Driver) -> Machine {
    Machine::open(&config(Some(driver))).unwrap()
}

fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(31) >> 3) as u8 ^ (at + seed) as u8).collect()
}

fn bytes_of(region: &PeerWritable, offset: u64, bytes: usize) -> Vec<u8> {
    let mut got = vec![0; bytes];
    region.read(offset, &mut got).unwrap();
    got
}

/// Each of these functions as a test a driver.
macro_rules! over_each {
    ($($test:ident),* $(,)?) => {
        mod over_shm {
            $(#[test] fn $test() { super::$test(fabric::machine::Driver::Shm) })*
        }
        mod over_tcp {
            $(#[test] fn $test() { super::$test(fabric::machine::Driver::Tcp) })*
        }
        mod over_verbs {
            $(
                #[test]
                #[ignore = "needs an RDMA device: tests/guest/run.sh"]
                fn $test() { super::$test(fabric::machine::Driver::Verbs) }
            )*
        }
    };
}

over_each!(
    copies_of_all_sizes_go_both_ways,
    queue_pairs_are_spread_over_the_completion_queues,
    many_copies_are_under_way_at_once_and_end_in_order,
    both_sides_may_connect_at_once,
    what_is_published_later_is_reached_by_channels_of_before,
    a_peer_that_is_gone_fails_what_is_under_way_and_may_come_back,
    a_closed_machine_ends_its_copies,
    a_killed_peer_fails_what_is_under_way,
);

fn copies_of_all_sizes_go_both_ways(driver: Driver) {
    let (here, there) = (open(driver), open(driver));
    let size = 3 << 20;
    let lent = there.allocate_region(size).unwrap();
    there.publish("lent", &lent).unwrap();
    let remote = here.lookup(there.endpoint(), "lent", SOON).unwrap();
    assert_eq!((remote.len(), remote.endpoint()), (size as u64, there.endpoint()));
    let ours = here.allocate_region(2 * size).unwrap();
    let channel = here.channel(there.endpoint(), 3, SOON).unwrap();
    for bytes in [1, 7, 4096, 65_537, size] {
        let sent = pattern(bytes, bytes);
        ours.write(0, &sent).unwrap();
        let offset = (size - bytes) as u64;
        let (out, back) =
            (ours.span(0, bytes as u64).unwrap(), ours.span(size as u64, bytes as u64).unwrap());
        // The second is not waited for by the first: one channel's copies are in order.
        let there_and = channel.start_copy(&out, &remote, offset, Direction::LocalToRemote).unwrap();
        let back_again = channel.start_copy(&back, &remote, offset, Direction::RemoteToLocal).unwrap();
        assert_eq!(back_again.wait(), Ok(()), "{bytes}");
        assert_eq!(there_and.wait(), Ok(()));
        assert_eq!(bytes_of(&ours, size as u64, bytes), sent);
        assert_eq!(bytes_of(&lent, offset, bytes), sent);
    }
    assert_eq!(here.choice(there.endpoint(), SOON).unwrap().driver, driver);
}

fn queue_pairs_are_spread_over_the_completion_queues(driver: Driver) {
    let (here, there) = (open(driver), open(driver));
    let lent = there.allocate_region(4096).unwrap();
    there.publish("lent", &lent).unwrap();
    let remote = here.lookup(there.endpoint(), "lent", SOON).unwrap();
    let ours = here.allocate_region(4096).unwrap();
    let (tell, told) = mpsc::channel();
    for index in 0..4 {
        let channel = here.channel(there.endpoint(), index, SOON).unwrap();
        let (tell, span) = (tell.clone(), ours.span(0, 8).unwrap());
        let on_done = move |result: Result<(), CopyError>| {
            let thread = std::thread::current().name().unwrap_or_default().to_owned();
            tell.send((thread, result)).unwrap();
        };
        channel.copy(&span, &remote, 0, Direction::LocalToRemote, on_done).unwrap();
    }
    let mut by_thread = HashMap::new();
    for _ in 0..4 {
        let (thread, result) = told.recv_timeout(SOON).unwrap();
        assert_eq!(result, Ok(()));
        *by_thread.entry(thread).or_insert(0) += 1;
    }
    assert_eq!(by_thread, HashMap::from([("gradwire-cq-0".into(), 2), ("gradwire-cq-1".into(), 2)]));
}

fn many_copies_are_under_way_at_once_and_end_in_order(driver: Driver) {
    let (here, there) = (open(driver), open(driver));
    let lent = there.allocate_region(64 << 10).unwrap();
    there.publish("lent", &lent).unwrap();
    let remote = here.lookup(there.endpoint(), "lent", SOON).unwrap();
    let ours = here.allocate_region(64 << 10).unwrap();
    let channel = here.channel(there.endpoint(), 0, SOON).unwrap();
    let (tell, told) = mpsc::channel();
    // More than a channel's queue takes.
    for number in 0..1000u64 {
        let span = ours.span(number * 64, 64).unwrap();
        ours.write(number * 64, &pattern(number as usize, 64)).unwrap();
        let tell = tell.clone();
        let on_done = move |result| drop(tell.send((number, result)));
        channel.copy(&span, &remote, number * 64, Direction::LocalToRemote, on_done).unwrap();
    }
    for number in 0..1000 {
        assert_eq!(told.recv_timeout(SOON).unwrap(), (number, Ok(())));
    }
    // A copy back sees all that was copied there before.
    let back = here.allocate_region(64 << 10).unwrap();
    let whole = back.span(0, 64 << 10).unwrap();
    channel.start_copy(&whole, &remote, 0, Direction::RemoteToLocal).unwrap().wait().unwrap();
    assert_eq!(bytes_of(&back, 0, 64_000), bytes_of(&ours, 0, 64_000));
}

fn both_sides_may_connect_at_once(driver: Driver) {
    let (one, other) = (open(driver), open(driver));
    let copy_from = |from: &Machine, to: &Machine, seed: usize| {
        let ours = from.allocate_region(4096).unwrap();
        from.publish("mine", &ours).unwrap();
        let remote = from.lookup(to.endpoint(), "mine", SOON).unwrap();
        let channel = from.channel(to.endpoint(), 0, SOON).unwrap();
        let source = from.allocate_region(100).unwrap();
        source.write(0, &pattern(seed, 100)).unwrap();
        let span = source.span(0, 100).unwrap();
        channel.start_copy(&span, &remote, 50, Direction::LocalToRemote).unwrap().wait().unwrap();
        // What arrived is seen by a copy back on the same channel.
        channel.start_copy(&span, &remote, 50, Direction::RemoteToLocal).unwrap().wait().unwrap();
        ours
    };
    let (mine, theirs) = std::thread::scope(|scope| {
        let far = scope.spawn(|| copy_from(&other, &one, 2));
        (copy_from(&one, &other, 1), far.join().unwrap())
    });
    assert_eq!(bytes_of(&mine, 50, 100), pattern(2, 100));
    assert_eq!(bytes_of(&theirs, 50, 100), pattern(1, 100));
}

fn what_is_published_later_is_reached_by_channels_of_before(driver: Driver) {
    let (here, there) = (open(driver), open(driver));
    let channel = here.channel(there.endpoint(), 0, SOON).unwrap();
    let lent = there.allocate_region(4096).unwrap();
    let remote = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| here.lookup(there.endpoint(), "late", SOON).unwrap());
        there.publish("late", &lent).unwrap();
        waiting.join().unwrap()
    });
    let ours = here.allocate_region(16).unwrap();
    ours.write(0, &pattern(9, 16)).unwrap();
    let span = ours.span(0, 16).unwrap();
    channel.start_copy(&span, &remote, 4080, Direction::LocalToRemote).unwrap().wait().unwrap();
    channel.start_copy(&span, &remote, 4080, Direction::RemoteToLocal).unwrap().wait().unwrap();
    assert_eq!(bytes_of(&lent, 4080, 16), pattern(9, 16));
}

fn a_peer_that_is_gone_fails_what_is_under_way_and_may_come_back(driver: Driver) {
    let (here, there) = (open(driver), open(driver));
    let endpoint = there.endpoint();
    let publish = |machine: &Machine| {
        let lent = machine.allocate_region(1 << 20).unwrap();
        machine.publish("lent", &lent).unwrap();
        here.lookup(endpoint, "lent", SOON).unwrap()
    };
    let remote = publish(&there);
    let channel = here.channel(endpoint, 0, SOON).unwrap();
    let ours = here.allocate_region(1 << 20).unwrap();
    let span = ours.span(0, 1 << 20).unwrap();
    drop(there);
    let error = loop {
        let copying = channel.start_copy(&span, &remote, 0, Direction::RemoteToLocal).unwrap();
        match copying.wait() {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, CopyError::Ended(_)), "{error}");
    assert!(channel.ended().is_some());
    let again = Machine::open(&MachineConfig { endpoint, ..config(Some(driver)) }).unwrap();
    let remote = publish(&again);
    let channel = here.channel(endpoint, 0, SOON).unwrap();
    channel.start_copy(&span, &remote, 0, Direction::RemoteToLocal).unwrap().wait().unwrap();
}

fn a_closed_machine_ends_its_copies(driver: Driver) {
    let (here, there) = (open(driver), open(driver));
    let lent = there.allocate_region(1 << 20).unwrap();
    there.publish("lent", &lent).unwrap();
    let remote = here.lookup(there.endpoint(), "lent", SOON).unwrap();
    let channel = here.channel(there.endpoint(), 0, SOON).unwrap();
    let ours = here.allocate_region(1 << 20).unwrap();
    let span = ours.span(0, 1 << 20).unwrap();
    let start = || channel.start_copy(&span, &remote, 0, Direction::LocalToRemote).unwrap();
    let copies: Vec<_> = (0..200).map(|_| start()).collect();
    drop(here);
    for copying in copies {
        let ended = copying.wait();
        assert!(matches!(ended, Ok(()) | Err(CopyError::Ended(_) | CopyError::Closed)), "{ended:?}");
    }
    assert_eq!(start().wait(), Err(CopyError::Closed));
}

/// Another process of this test that lends memory over a driver until it is killed; and where.
fn lending_child(driver: Driver) -> (Child, SocketAddr) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "child_lends"]).env(CHILD, driver.to_string());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let endpoint =
        lines.map_while(Result::ok).find_map(|line| Some(line.split_once("endpoint=")?.1.parse().unwrap()));
    (child, endpoint.expect("the child says where it is"))
}

#[test]
#[ignore = "the other process of a test"]
fn child_lends() {
    let Ok(name) = std::env::var(CHILD) else { return };
    let machine = open(Driver::ALL.into_iter().find(|driver| driver.to_string() == name).unwrap());
    let lent = machine.allocate_region(1 << 20).unwrap();
    machine.publish("lent", &lent).unwrap();
    println!("endpoint={}", machine.endpoint());
    // Until it is killed, or the parent has died.
    let _ = std::io::stdin().read(&mut [0]);
}

fn a_killed_peer_fails_what_is_under_way(driver: Driver) {
    let (mut child, endpoint) = lending_child(driver);
    let here = open(driver);
    let remote = here.lookup(endpoint, "lent", SOON).unwrap();
    let channel = here.channel(endpoint, 0, SOON).unwrap();
    let ours = here.allocate_region(1 << 20).unwrap();
    let span = ours.span(0, 1 << 20).unwrap();
    let start = || channel.start_copy(&span, &remote, 0, Direction::RemoteToLocal).unwrap();
    start().wait().unwrap();
    let copies: Vec<_> = (0..500).map(|_| start()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    for copying in copies {
        let ended = copying.wait();
        assert!(matches!(ended, Ok(()) | Err(CopyError::Ended(_))), "{ended:?}");
    }
    // On shared memory a dead peer's memory is still there: until its death is noticed it can be copied from.
    while start().wait().is_ok() {
        assert!(killed.elapsed() < SOON);
    }
    assert!(channel.ended().is_some());
}

/// Peers answer reads on tcp only by their polling thread: a callback that blocks it makes a peer that is alive and
/// does nothing.
#[test]
fn a_late_copy_closes_its_channel() {
    let driver = Driver::Tcp;
    let within = Duration::from_millis(200);
    let one_queue = MachineConfig { num_cqs: 1, copy_within: within, ..config(Some(driver)) };
    let (here, there) = (Machine::open(&one_queue).unwrap(), Machine::open(&one_queue).unwrap());
    let region = there.allocate_region(4096).unwrap();
    there.publish("lent", &region).unwrap();
    here.publish("back", &region).unwrap();
    let remote = here.lookup(there.endpoint(), "lent", SOON).unwrap();
    let channel = here.channel(there.endpoint(), 0, SOON).unwrap();
    let back = there.lookup(here.endpoint(), "back", SOON).unwrap();
    let blocking = there.channel(here.endpoint(), 0, SOON).unwrap();
    let (go_on, blocked) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let span = region.span(0, 8).unwrap();
    let on_done = move |_| {
        tell.send(()).unwrap();
        let _ = blocked.recv();
    };
    blocking.copy(&span, &back, 8, Direction::LocalToRemote, on_done).unwrap();
    told.recv_timeout(SOON).unwrap();
    let started = Instant::now();
    let late = channel.start_copy(&span, &remote, 0, Direction::RemoteToLocal).unwrap().wait();
    assert!(matches!(late, Err(CopyError::Late { waited_ms: 200.. })), "{late:?}");
    assert!(started.elapsed() < SOON);
    assert!(channel.ended().is_some_and(|why| why.contains("late")));
    let after = channel.start_copy(&span, &remote, 0, Direction::RemoteToLocal).unwrap().wait();
    assert!(matches!(after, Err(CopyError::Ended(_))), "{after:?}");
    drop(go_on);
}

#[test]
fn the_driver_is_chosen_with_a_reason_or_as_required() {
    let without_verbs = || MachineConfig { verbs: None, ..config(None) };
    let (here, there) = (Machine::open(&without_verbs()).unwrap(), Machine::open(&without_verbs()).unwrap());
    let choice = here.choice(there.endpoint(), SOON).unwrap();
    assert_eq!(
        (choice.driver, choice.why.as_str()),
        (Driver::Shm, "shm: first choice, available on both sides")
    );
    let tcp = open(Driver::Tcp);
    let choice = here.choice(tcp.endpoint(), SOON).unwrap();
    assert_eq!(choice.driver, Driver::Tcp);
    assert!(choice.why.contains("tcp is required by the peer"), "{}", choice.why);
    let error = open(Driver::Shm).choice(tcp.endpoint(), SOON).unwrap_err().to_string();
    assert!(error.contains("no driver reaches") && error.contains("shm is required by this side"), "{error}");
    // On hosts with an RDMA device, too: none has this name.
    let nowhere = VerbsConfig { device: Some("no-such-device".into()), ..VerbsConfig::default() };
    let nowhere = MachineConfig { verbs: Some(nowhere), ..config(Some(Driver::Verbs)) };
    let error = Machine::open(&nowhere).unwrap_err().to_string();
    assert!(error.contains("verbs is required") && error.contains("no-such-device"), "{error}");
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    let (here, there) = (open(Driver::Shm), open(Driver::Shm));
    let lent = there.allocate_region(4096).unwrap();
    there.publish("lent", &lent).unwrap();
    assert!(matches!(there.publish("", &lent), Err(FabricError::Misuse(_))));
    assert!(matches!(there.publish(&"x".repeat(257), &lent), Err(FabricError::Misuse(_))));
    assert!(matches!(here.allocate_region(0), Err(FabricError::Misuse(_))));
    assert!(matches!(here.channel(there.endpoint(), 4, SOON), Err(FabricError::Misuse(_))));
    let started = Instant::now();
    let unknown = here.lookup(there.endpoint(), "unknown", Duration::from_millis(300)).unwrap_err();
    assert!(matches!(&unknown, FabricError::Deadline { what, .. } if what.contains("unknown")), "{unknown}");
    assert!(started.elapsed() >= Duration::from_millis(300) && started.elapsed() < SOON);

    let remote = here.lookup(there.endpoint(), "lent", SOON).unwrap();
    let channel = here.channel(there.endpoint(), 0, SOON).unwrap();
    let ours = here.allocate_region(8192).unwrap();
    let start = |bytes, offset| {
        channel
            .start_copy(&ours.span(0, bytes).unwrap(), &remote, offset, Direction::LocalToRemote)
            .map(|_| ())
    };
    assert!(start(4096, 0).is_ok() && start(1, 4095).is_ok());
    for (bytes, offset) in [(4097, 0), (1, 4096), (2, u64::MAX), (0, 0)] {
        assert!(matches!(start(bytes, offset), Err(FabricError::Misuse(_))), "{bytes} at {offset}");
    }
    let third = open(Driver::Shm);
    let to_third = here.channel(third.endpoint(), 0, SOON).unwrap();
    let span = ours.span(0, 1).unwrap();
    let refused = to_third.start_copy(&span, &remote, 0, Direction::LocalToRemote);
    assert!(matches!(refused, Err(FabricError::Misuse(_))));
}

#[test]
fn a_channel_has_a_bound_of_copies_that_have_not_ended() {
    const MOST: usize = 1 << 16;
    let (here, there) = (open(Driver::Shm), open(Driver::Shm));
    let lent = there.allocate_region(64).unwrap();
    there.publish("lent", &lent).unwrap();
    let remote = here.lookup(there.endpoint(), "lent", SOON).unwrap();
    let channel = here.channel(there.endpoint(), 0, SOON).unwrap();
    let span = here.allocate_region(8).unwrap().span(0, 8).unwrap();
    let (go_on, blocked) = mpsc::channel::<()>();
    let (tell, told) = mpsc::channel();
    let on_done = move |_| {
        tell.send(()).unwrap();
        let _ = blocked.recv();
    };
    channel.copy(&span, &remote, 0, Direction::LocalToRemote, on_done).unwrap();
    told.recv_timeout(SOON).unwrap();
    let start = || channel.start_copy(&span, &remote, 0, Direction::LocalToRemote);
    let copies: Vec<_> = (0..MOST).map(|_| start().unwrap()).collect();
    for _ in 0..2 {
        assert!(
            matches!(start(), Err(FabricError::Misuse(why)) if why.contains("are in flight, the maximum"))
        );
    }
    drop(go_on);
    copies.into_iter().for_each(|copying| copying.wait().unwrap());
    start().unwrap().wait().unwrap();
}

#[test]
fn nobody_there_and_a_silent_endpoint_are_told_apart_in_time() {
    let here = open(Driver::Tcp);
    let gone = open(Driver::Tcp).endpoint();
    assert!(matches!(here.channel(gone, 0, SOON), Err(FabricError::Os { .. })));
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let started = Instant::now();
    let error = here.channel(silent.local_addr().unwrap(), 0, Duration::from_millis(200)).unwrap_err();
    assert!(matches!(error, FabricError::Deadline { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn who_does_not_know_the_secret_gets_nothing() {
    let with = |secret: &str| {
        let secret = secret.to_owned().into();
        Machine::open(&MachineConfig { secret, ..config(Some(Driver::Tcp)) }).unwrap()
    };
    let (there, friend) = (with("open sesame"), with("open sesame"));
    there.publish("lent", &there.allocate_region(4096).unwrap()).unwrap();
    for wrong in ["", "open", "open sesame!"] {
        let stranger = with(wrong);
        for error in [
            stranger.lookup(there.endpoint(), "lent", SOON).unwrap_err(),
            stranger.channel(there.endpoint(), 0, SOON).unwrap_err(),
        ] {
            assert!(matches!(&error, FabricError::Peer(why) if why.contains("secret")), "{error}");
        }
    }
    // One that does not even greet: the question for a region, by its number and its name.
    let mut rude = TcpStream::connect(there.endpoint()).unwrap();
    rude.set_read_timeout(Some(SOON)).unwrap();
    let mut body = 3u32.to_le_bytes().to_vec();
    body.extend_from_slice(&4u64.to_le_bytes());
    body.extend_from_slice(b"lent");
    body.extend_from_slice(&0u64.to_le_bytes());
    rude.write_all(&(body.len() as u32).to_le_bytes()).unwrap();
    rude.write_all(&body).unwrap();
    let mut answer = Vec::new();
    rude.read_to_end(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("has not greeted"), "{answer:?}");
    assert_eq!(friend.lookup(there.endpoint(), "lent", SOON).unwrap().len(), 4096);
}

#[test]
fn strangers_at_the_endpoint_are_sent_away_and_disturb_nobody() {
    let step = Duration::from_millis(200);
    let there = Machine::open(&MachineConfig { step, ..config(Some(Driver::Tcp)) }).unwrap();
    let connect = || {
        let stream = TcpStream::connect(there.endpoint()).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    };
    let (mut silent, mut garbage) = (connect(), connect());
    garbage.write_all(&[0xFF; 100]).unwrap();
    let lent = there.allocate_region(4096).unwrap();
    there.publish("lent", &lent).unwrap();
    let here = open(Driver::Tcp);
    let remote = here.lookup(there.endpoint(), "lent", SOON).unwrap();
    let channel = here.channel(there.endpoint(), 0, SOON).unwrap();
    let span = here.allocate_region(8).unwrap().span(0, 8).unwrap();
    channel.start_copy(&span, &remote, 0, Direction::RemoteToLocal).unwrap().wait().unwrap();
    for stranger in [&mut silent, &mut garbage] {
        assert!(!matches!(stranger.read(&mut [0]), Ok(1..)), "nothing is said to a stranger");
    }
}

#[test]
fn a_callback_that_panics_harms_nothing_else() {
    let driver = Driver::Shm;
    let (here, there) = (open(driver), open(driver));
    let lent = there.allocate_region(4096).unwrap();
    there.publish("lent", &lent).unwrap();
    let remote = here.lookup(there.endpoint(), "lent", SOON).unwrap();
    let ours = here.allocate_region(4096).unwrap();
    let span = ours.span(0, 4096).unwrap();
    let channel = here.channel(there.endpoint(), 0, SOON).unwrap();
    for _ in 0..3 {
        channel
            .copy(&span, &remote, 0, Direction::LocalToRemote, |_| panic!("a callback's own fault"))
            .unwrap();
    }
    let copy = channel.start_copy(&span, &remote, 0, Direction::LocalToRemote).unwrap();
    assert_eq!(copy.wait(), Ok(()), "its channel goes on");
    assert_eq!(channel.ended(), None);
    // Also those that are still under way when the machine goes.
    channel.copy(&span, &remote, 0, Direction::LocalToRemote, |_| panic!("a callback's own fault")).unwrap();
    drop(here);
}

#[test]
fn waits_that_no_clock_can_end_are_shortened_or_refused() {
    let (here, there) = (open(Driver::Shm), open(Driver::Shm));
    assert!(here.channel(there.endpoint(), 0, Duration::MAX).is_ok());
    assert!(here.choice(there.endpoint(), Duration::MAX).is_ok());
    let region = there.allocate_region(4096).unwrap();
    there.publish("lent", &region).unwrap();
    assert!(here.lookup(there.endpoint(), "lent", Duration::MAX).is_ok());
    let for_ever = MachineConfig { step: Duration::MAX, ..config(Some(Driver::Shm)) };
    assert!(Machine::open(&for_ever).is_err());
}
