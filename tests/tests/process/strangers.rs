//! Whoever connects to a port of the cluster and is no member: garbage, lengths that lie, silence, floods.
//! They are dropped in time and counted, the job does not notice, and no process grows.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE, Place};
use gradwire_tests::rigs::control::ControlPeer;
use gradwire_tests::rigs::hostile::registration;
use gradwire_tests::rigs::launching::until;
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::{gauge, status};
use proto_common::error::ExitCode;
use proto_common::ids::Role;
use proto_common::limits::{FIRST_FRAME_BYTES_MAX, PROTOCOL_VERSION};
use proto_common::message::{Build, FromScheduler, MemberReport, RefusalReason, ToScheduler, opening_of};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Short for strangers; a member on a busy machine still says its first word in this time.
const HANDSHAKE: &str = "deadlines.handshake_ms=1000";
/// A stranger that says nothing useful is gone by then: the handshake's time, and the lingering after it.
const DROPPED: Duration = Duration::from_secs(5);
/// Memory a daemon may grow by while hundreds of strangers come and go.
const GROWTH_BYTES: u64 = 12 << 20;

/// One server and two trainers in endless training, all with short patience for strangers.
fn training() -> Cluster {
    let mut cluster = Cluster::new(1, 2, &["--set", HANDSHAKE]);
    cluster.add_servers(1, &["--set", HANDSHAKE]);
    cluster.add_trainers(2, &["--layers", "64,32,10", "--epochs", "1000000", "--batch", "16"]);
    cluster.workers[0].expect_line("epoch       3/", PATIENCE);
    cluster
}

/// Epochs go by: the job has not noticed.
fn trains_on(cluster: &mut Cluster) {
    let epochs = |text: &str| text.lines().filter(|line| line.starts_with("epoch ")).count();
    let next = epochs(&cluster.workers[0].log().text()) + 3;
    let line = format!("epoch {next:>7}/1000000");
    cluster.workers[0].expect_line(&line, PATIENCE);
    assert!(cluster.everyone().all(Process::is_running));
    cluster.assert_no_panic();
}

/// Where the control port and the server's bootstrap are. The status is a copy, which is made after the log line.
fn ports(cluster: &Cluster) -> [String; 2] {
    let mut address = None;
    until("the status has a server", || {
        let mut members = cluster.status().members.into_iter();
        address = members.find_map(|member| member.data_address.filter(|_| member.role == Role::Server));
        address.is_some()
    });
    [cluster.control.clone(), address.unwrap()]
}

/// Bytes that are no first message, each with what is wrong.
fn nonsense() -> Vec<(&'static str, Vec<u8>)> {
    let announced = |length: u32, body: &[u8]| [&length.to_le_bytes()[..], body].concat();
    let mut stray = ControlPeer::frame(&ToScheduler::Register(registration(Role::Worker, None)));
    stray.extend([0; 3]);
    let length = stray.len() as u32 - 4;
    stray[..4].copy_from_slice(&length.to_le_bytes());
    vec![
        ("a page of garbage", (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()),
        ("an HTTP request", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("the largest length there is", announced(u32::MAX, &[])),
        ("one byte more than allowed", announced(FIRST_FRAME_BYTES_MAX as u32 + 1, &[7; 100])),
        ("an empty message", announced(0, &[])),
        ("an unknown variant", announced(8, &[0xFF; 8])),
        (
            "a vector of 2^60 entries",
            announced(20, &[&[3, 0, 0, 0][..], &[0; 8], &(1u64 << 60).to_le_bytes()].concat()),
        ),
        ("a registration with stray bytes", stray),
    ]
}

#[test]
fn nonsense_is_dropped_at_once() {
    let mut cluster = training();
    for address in ports(&cluster) {
        for (what, bytes) in nonsense() {
            let mut stranger = ControlPeer::connect(&address);
            stranger.send_raw(&bytes);
            assert!(stranger.is_closed_within(DROPPED), "{what} at {address}");
        }
    }
    let metrics = status::get(&cluster.http, "/metrics").unwrap();
    let malformed = "gradwire_scheduler_connections_refused_total{reason=\"malformed\"}";
    let line = metrics.lines().find(|line| line.starts_with(malformed)).expect("they are counted");
    assert!(line.rsplit(' ').next().unwrap().parse::<u32>().unwrap() >= 6, "{line}");
    trains_on(&mut cluster);
}

#[test]
fn a_frame_shorter_than_it_says_and_silence_end_with_the_handshake() {
    let mut cluster = training();
    for address in ports(&cluster) {
        let started = Instant::now();
        let mut cut = ControlPeer::connect(&address);
        cut.send_raw(&[&1000u32.to_le_bytes()[..], &[1; 10]].concat());
        let mut mute = ControlPeer::connect(&address);
        let mut closing = ControlPeer::connect(&address);
        closing.send_raw(&1000u32.to_le_bytes());
        drop(closing);
        assert!(cut.is_closed_within(DROPPED) && mute.is_closed_within(DROPPED), "{address}");
        assert!(started.elapsed() >= Duration::from_millis(900), "they have the handshake's time");
    }
    trains_on(&mut cluster);
}

/// A frame that comes a byte at a time is whole in the end, or too late.
#[test]
fn a_peer_that_drips_is_bounded_by_the_handshake() {
    let mut cluster = training();
    for address in ports(&cluster) {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_nodelay(true).unwrap();
        let started = Instant::now();
        let mut sent = 0;
        while stream.write_all(if sent < 4 { &[100, 0, 0, 0][sent..=sent] } else { &[1] }).is_ok() {
            sent += 1;
            assert!(started.elapsed() < DROPPED, "{address}: still taken after {sent} bytes");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    trains_on(&mut cluster);
}

#[test]
fn messages_out_of_place_are_refused_with_the_reason() {
    let mut cluster = training();
    let mut strangers = vec![
        (ToScheduler::Heartbeat(MemberReport::default()), "a heartbeat before a registration"),
        (ToScheduler::LinksReady, "before a registration"),
        (ToScheduler::Goodbye, "before a registration"),
        (ToScheduler::Register(registration(Role::Scheduler, None)), "a second scheduler cannot join a job"),
        (
            ToScheduler::Register(registration(Role::Server, None)),
            "the job already has 1 servers, the maximum",
        ),
    ];
    let mut old = registration(Role::Worker, None);
    old.protocol = 0;
    strangers.push((ToScheduler::Register(old), "(protocol version 0) cannot join a job"));
    let mut long = registration(Role::Worker, None);
    long.build = "x".repeat(5000);
    strangers.push((ToScheduler::Register(long), "at most 256 bytes"));
    for (message, words) in strangers {
        let mut stranger = ControlPeer::connect(&cluster.control);
        stranger.send(&message);
        // What follows a refused registration does not count any more.
        stranger.send_raw(&[0xA5; 10_000]);
        let Some(FromScheduler::Refused(reason)) = stranger.receive() else { panic!("{words}: not refused") };
        assert!(reason.to_string().contains(words), "{reason} does not say {words:?}");
        assert!(stranger.is_closed_within(DROPPED));
    }
    trains_on(&mut cluster);
}

/// A member of a later release, whose registration this one cannot read but for how it opens, and one of an earlier.
#[test]
fn members_of_other_versions_are_told_both_versions_and_the_fix() {
    let mut cluster = training();
    for (protocol, older) in [(PROTOCOL_VERSION + 7, "the scheduler"), (1, "upgrade this process")] {
        let theirs = Build { protocol, version: "77.0.1".into() };
        let body = opening_of(&theirs);
        let mut stranger = ControlPeer::connect(&cluster.control);
        stranger.send_raw(&[&(body.len() as u32).to_le_bytes()[..], &body].concat());
        let Some(FromScheduler::Refused(reason)) = stranger.receive() else { panic!("not refused") };
        assert_eq!(reason, RefusalReason::Protocol { theirs: theirs.clone(), ours: Build::own() });
        let text = reason.to_string();
        for words in [&theirs.to_string(), &Build::own().to_string(), "same release", older] {
            assert!(text.contains(words), "{text} does not say {words:?}");
        }
        assert!(stranger.is_closed_within(DROPPED));
    }
    // Strangers' are logged once a second: the first of both.
    cluster.scheduler.expect_line("Gradwire 77.0.1 (protocol version", PATIENCE);
    trains_on(&mut cluster);
}

/// The same from the other side: real processes whose scheduler is of a later release.
#[test]
fn a_scheduler_of_another_version_ends_a_member_with_the_fix() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let later = Build { protocol: PROTOCOL_VERSION + 1, version: "77.0.1".into() };
    let refusing = std::thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            let mut length = [0; 4];
            stream.read_exact(&mut length).unwrap();
            let mut body = vec![0; u32::from_le_bytes(length) as usize];
            stream.read_exact(&mut body).unwrap();
            let theirs = proto_common::message::speaker_of(&body).expect("it opens as every version does");
            let refused = FromScheduler::Refused(RefusalReason::Protocol { theirs, ours: later.clone() });
            stream.write_all(&ControlPeer::frame(&refused)).unwrap();
        }
    });
    let place = Place::default();
    for words in [&["gradwire-server"][..], &["gradwire-worker", "train"]] {
        let mut command = place.command(words[0]);
        command.args(&words[1..]).args(["--scheduler", &address]);
        let mut member = Process::start(words[0], &mut command);
        assert_eq!(member.expect_end(PATIENCE), ExitCode::Refused as i32);
        let line = member.expect_line("the scheduler refused this process", PATIENCE);
        assert!(line.contains(&Build::own().to_string()) && line.contains("Gradwire 77.0.1"), "{line}");
        assert!(line.contains("docs/upgrading.md"), "{line}");
    }
    refusing.join().unwrap();
}

#[test]
fn three_hundred_half_open_connections_cost_nothing() {
    let mut cluster = training();
    let ports = ports(&cluster);
    let flood = |address: &String| (0..300).map(|_| ControlPeer::connect(address)).collect::<Vec<_>>();
    let mut before = None;
    for _ in 0..3 {
        let mut strangers: Vec<ControlPeer> = ports.iter().flat_map(flood).collect();
        for (number, stranger) in strangers.iter_mut().enumerate() {
            stranger.send_raw(&[&60_000u32.to_le_bytes()[..], &vec![1; number % 50_000]].concat());
        }
        assert!(strangers.iter_mut().all(|stranger| stranger.is_closed_within(Duration::from_secs(10))));
        let used = [&cluster.scheduler, &cluster.servers[0]].map(gauge::resident_bytes);
        // The first flood takes what every flood needs.
        for (before, now) in before.get_or_insert(used).iter().zip(used) {
            let grown = now.saturating_sub(*before);
            assert!(grown < GROWTH_BYTES, "grown by {} KiB", grown >> 10);
        }
    }
    trains_on(&mut cluster);
}

/// Silent strangers fill every place for strangers; the members still get in, within the handshake's time.
#[test]
fn a_flood_while_assembling_does_not_keep_members_out() {
    let mut cluster = Cluster::new(1, 1, &["--set", HANDSHAKE]);
    let flood = |address: &str| (0..300).map(|_| ControlPeer::connect(address)).collect::<Vec<_>>();
    let scheduler = flood(&cluster.control);
    cluster.add_servers(1, &["--set", HANDSHAKE]);
    cluster.scheduler.expect_line("server 0 registered", PATIENCE);
    let [_, data] = ports(&cluster);
    let server = flood(&data);
    let started = Instant::now();
    cluster.add_trainer(&["--layers", "64,10", "--epochs", "1"]);
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{}", process.name());
    }
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    drop((scheduler, server));
}

/// The handshake's time is long, and strangers that say nothing fill half of the places: who comes next is soon done with.
#[test]
fn silent_strangers_do_not_keep_members_waiting_for_the_handshakes_time() {
    const PATIENT: [&str; 2] = ["--set", "deadlines.handshake_ms=40000"];
    let mut cluster = Cluster::new(1, 1, &PATIENT);
    let flood = |address: &str| (0..400).map(|_| ControlPeer::connect(address)).collect::<Vec<_>>();
    let started = Instant::now();
    let scheduler = flood(&cluster.control);
    cluster.add_servers(1, &PATIENT);
    cluster.scheduler.expect_line("server 0 registered", PATIENCE);
    let [_, data] = ports(&cluster);
    let server = flood(&data);
    cluster.add_trainer(&["--layers", "64,10", "--epochs", "1"]);
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{}", process.name());
    }
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    drop((scheduler, server));
}

/// Each has had its answer, and says nothing more.
#[test]
fn whoever_has_been_answered_keeps_no_place() {
    let mut cluster = Cluster::new(1, 1, &[]);
    let order = ToScheduler::OrderCheckpoint { protocol: PROTOCOL_VERSION, timeout_ms: 60_000 };
    let ask = |_| {
        let mut stranger = ControlPeer::connect(&cluster.control);
        stranger.send(&order);
        let answer = stranger.receive();
        assert!(matches!(answer, Some(FromScheduler::CheckpointSaved { result: Err(_), .. })), "{answer:?}");
        stranger
    };
    let mut strangers: Vec<ControlPeer> = (0..300).map(ask).collect();
    cluster.add_servers(1, &[]);
    cluster.add_trainer(&["--layers", "64,10", "--epochs", "1"]);
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{}", process.name());
    }
    assert!(strangers.iter_mut().all(|stranger| stranger.is_closed_within(DROPPED)));
}

/// A member is no stranger: what breaks its connection is its death, and everyone hears of it.
#[test]
fn a_registered_worker_that_turns_to_garbage_ends_the_job_by_name() {
    let mut cluster = Cluster::new(1, 2, &[]);
    cluster.add_servers(1, &[]);
    cluster.add_trainer(&["--epochs", "1000000"]);
    for member in ["server 0 registered", "worker 0 registered"] {
        cluster.scheduler.expect_line(member, PATIENCE);
    }
    let mut liar = ControlPeer::connect(&cluster.control);
    let garbage = [&50u32.to_le_bytes()[..], &[0xFF; 50]].concat();
    let register = ControlPeer::frame(&ToScheduler::Register(registration(Role::Worker, Some(1))));
    liar.send_raw(&[register, garbage].concat());
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(DROPPED), ExitCode::MemberDied as i32, "{}", process.name());
        let text = process.log().text();
        assert!(text.contains("worker 1 failed: it reported: malformed control message"), "{text}");
    }
    cluster.assert_no_panic();
}

#[test]
fn the_http_endpoints_bear_it_too() {
    let mut cluster = training();
    let members = cluster.status().members;
    let addresses = members.into_iter().filter_map(|member| member.http_address);
    for address in addresses.chain([cluster.http.clone()]) {
        let mut silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(&address).unwrap()).collect();
        let mut garbage = TcpStream::connect(&address).unwrap();
        garbage.write_all(&[0xA5; 5000]).unwrap();
        let mut huge = TcpStream::connect(&address).unwrap();
        huge.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
        // Cut off when the head is too large; how much it takes until then is the system's affair.
        while huge.write_all(&[b"X: ", &[b'x'; 4000][..], b"\r\n"].concat()).is_ok() {}
        assert!(status::get(&address, "/healthz").is_ok(), "{address}");
        silent.clear();
    }
    trains_on(&mut cluster);
}
