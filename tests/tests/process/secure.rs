//! A cluster whose control connections are mutual TLS, and everybody who should not be let in: the training goes on through all
//! of it, to the last bit.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::certs::{Certs, Stranger};
use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::control::ControlPeer;
use gradwire_tests::rigs::held::{Held, PATIENT};
use gradwire_tests::rigs::hostile::registration;
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::training::{TRAIN, hash_in, reference, reference_by};
use gradwire_tests::rigs::{gauge, status};
use proto_common::ids::{Epoch, Incarnation, JobId, Rank, Role};
use proto_common::limits::PROTOCOL_VERSION;
use proto_common::message::{FromScheduler, FromServer, Hello, ToScheduler, ToServer};
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

const WORKERS: u32 = 4;
/// Dropped by then: the handshake's time, and the lingering after it.
const DROPPED: Duration = Duration::from_secs(8);
/// Memory a daemon may grow by while strangers come and go.
const GROWTH_BYTES: u64 = 24 << 20;
const HALF_OPEN: usize = 10_000;
/// Descriptors that a daemon may have for strangers: those that it listens to, and what comes and goes meanwhile.
const STRANGERS: usize = 320;
/// While strangers try it goes as far as [`HOLD`].
const LONG: [&str; 8] = ["--layers", "64,105,33,10", "--epochs", "60", "--batch", "8", "--seed", "7"];
const HOLD: &str = "epoch 50/60";
const SHORT: [&str; 2] = ["--set", "deadlines.handshake_ms=1000"];

fn words(own: &[String]) -> Vec<&str> {
    own.iter().map(String::as_str).chain(SHORT).collect()
}

/// A scheduler and two servers that show certificates, and workers that do; they train for so many epochs.
fn training(certs: &Certs, more: &[&str], train: &[&str]) -> Cluster {
    let (scheduler, server) = (certs.flags("gradwire://0/scheduler"), certs.flags("gradwire://any/server"));
    let mut cluster = Cluster::new(2, WORKERS, &[&words(&scheduler)[..], more].concat());
    cluster.add_servers(2, &[&words(&server)[..], more].concat());
    let worker = certs.flags("gradwire://0/worker");
    cluster.add_trainers(WORKERS, &[&words(&worker)[..], more, train].concat());
    cluster
}

fn ends_as(cluster: &mut Cluster, expected: &str) {
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{} failed", process.name());
    }
    cluster.assert_no_panic();
    assert_eq!(hash_in(&cluster.workers[0].log().text()), expected);
}

#[test]
fn a_cluster_trains_over_mutual_tls_with_the_same_hash() {
    let certs = Certs::new();
    let more = ["--set", "security.mode=tls"];
    let mut cluster = training(&certs, &more, &TRAIN);
    ends_as(&mut cluster, &reference(WORKERS));
}

#[test]
fn copies_travel_between_servers_that_know_each_other() {
    let certs = Certs::new();
    let mut cluster = training(&certs, &["--set", "cluster.replicas=1"], &TRAIN);
    ends_as(&mut cluster, &reference(WORKERS));
}

#[test]
fn encrypted_data_gives_the_same_hash() {
    let certs = Certs::new();
    let more = ["security.encrypt_data=true", "transport.tcp=require", "node.unix_sockets=false"];
    let more: Vec<&str> = more.into_iter().flat_map(|setting| ["--set", setting]).collect();
    let mut cluster = training(&certs, &more, &TRAIN);
    ends_as(&mut cluster, &reference(WORKERS));
    let text = cluster.workers[0].log().text();
    assert!(text.contains("tcp socket, encrypted"), "{text}");
}

/// Each has begun a handshake and says no more: half of them at the scheduler, half at a server.
#[test]
fn ten_thousand_half_open_connections_are_not_noticed_by_a_training() {
    let certs = Certs::new();
    let mut cluster = training(&certs, &PATIENT, &LONG);
    let held = Held::at(&cluster.workers[0], HOLD);
    cluster.workers[0].expect_line("epoch ", PATIENCE);
    let used = |cluster: &Cluster| {
        [&cluster.scheduler, &cluster.servers[0]]
            .map(|one| (gauge::resident_bytes(one), gauge::open_files(one)))
    };
    let before = used(&cluster);
    let server = cluster.servers[0].log().text();
    let address = cluster.status().members.iter().find_map(|member| member.data_address.clone());
    let address = address.unwrap_or_else(|| panic!("{server}"));
    let flood = |address: String| {
        move || {
            let half_open = |_| {
                let mut stranger = TcpStream::connect(&address).unwrap();
                // One that was sent away does not take it.
                let _ = stranger.write_all(&[0x16, 3, 1, 2, 0, 1, 0]);
                stranger
            };
            (0..HALF_OPEN / 2).map(half_open).collect::<Vec<_>>()
        }
    };
    // Daemons let so many of them in, and the rest wait: both floods take a while.
    let floods = [cluster.control.clone(), address].map(|address| std::thread::spawn(flood(address)));
    let strangers = floods.map(|flood| flood.join().unwrap());
    assert_eq!(cluster.status().members.len(), 6, "who is one of them is still answered");
    for ((bytes, descriptors), (bytes_before, descriptors_before)) in used(&cluster).into_iter().zip(before) {
        assert!(bytes < bytes_before + GROWTH_BYTES, "grown from {bytes_before} to {bytes} bytes");
        assert!(descriptors < descriptors_before + STRANGERS, "{descriptors_before} to {descriptors} files");
    }
    assert!(cluster.everyone().all(Process::is_running), "the flood must fall into the training");
    drop(held);
    ends_as(&mut cluster, &reference_by(WORKERS, &LONG));
    drop(strangers);
}

/// One line of the table.
struct Attempt {
    what: &'static str,
    /// What was seen from outside.
    seen: String,
}

fn tell(table: &mut Vec<Attempt>, what: &'static str, seen: Result<String, String>, expected: &str) {
    let seen = seen.unwrap_or_else(|error| error);
    assert!(seen.contains(expected), "{what}: {seen} does not say {expected:?}");
    table.push(Attempt { what, seen });
}

fn register(stranger: &mut Stranger, role: Role, job: u64) -> Result<String, String> {
    let mut register = registration(role, None);
    register.job = JobId(job);
    stranger.ask::<FromScheduler>(&ToScheduler::Register(register)).map(|answer| match answer {
        FromScheduler::Refused(reason) => reason.to_string(),
        other => format!("let in: {other:?}"),
    })
}

/// Asks without a registration, as operators and other schedulers do.
fn ask(certs: &Certs, address: &str, name: &str, question: &ToScheduler) -> Result<String, String> {
    let mut stranger = Stranger::connect(address, Some(&certs.issue(name)));
    stranger.ask::<FromScheduler>(question).map(|answer| match answer {
        FromScheduler::Refused(reason) => reason.to_string(),
        other => format!("answered: {other:?}"),
    })
}

/// With any certificate of the job one may ask; with another job's none is told anything.
fn questions(certs: &Certs, address: &str, table: &mut Vec<Attempt>) {
    let order = ToScheduler::OrderCheckpoint { protocol: PROTOCOL_VERSION, timeout_ms: 60_000 };
    let none = "its certificate is for gradwire://8/any, but this is job 0";
    let other = "gradwire://8/any";
    tell(table, "a checkpoint for another job", ask(certs, address, other, &order), none);
    tell(
        table,
        "who is there, asked for another job",
        ask(certs, address, other, &ToScheduler::Identify),
        none,
    );
    tell(table, "a goodbye of another job", ask(certs, address, other, &ToScheduler::Goodbye), none);
    let own = "gradwire://0/worker";
    tell(
        table,
        "a checkpoint, asked with a worker's",
        ask(certs, address, own, &order),
        "answered: CheckpointSaved",
    );
    let who = ask(certs, address, own, &ToScheduler::Identify);
    tell(table, "who is there, asked with a worker's", who, "a scheduler of job 0 is already running there");
}

fn hello(stranger: &mut Stranger) -> Result<String, String> {
    let hello = Hello {
        protocol: PROTOCOL_VERSION,
        job: JobId(0),
        rank: Rank(0),
        incarnation: Incarnation(1),
        server_incarnation: Incarnation(1),
        epoch: Epoch::default(),
        offer: registration(Role::Worker, None).offer,
    };
    stranger.ask::<FromServer>(&ToServer::Hello(hello)).map(|answer| match answer {
        FromServer::Refused { reason } => reason,
        other => format!("let in: {other:?}"),
    })
}

/// What a port says to whoever shows a certificate that is none for it.
fn with_bad_certificates(certs: &Certs, address: &str, table: &mut Vec<Attempt>, is_scheduler: bool) {
    let mut ask = |what, shown: Option<&_>, expected| {
        let mut stranger = Stranger::connect(address, shown);
        let seen = if is_scheduler { register(&mut stranger, Role::Worker, 0) } else { hello(&mut stranger) };
        tell(table, what, seen, expected);
    };
    ask("TLS without a certificate", None, "CertificateRequired");
    let other = Certs::new().issue("gradwire://0/worker");
    ask("a certificate of another authority", Some(&other), "received fatal alert");
    let expired = certs.issue_between("gradwire://0/worker", -7200, -3600);
    ask("an expired certificate", Some(&expired), "CertificateExpired");
    let early = certs.issue_between("gradwire://0/worker", 3600, 7200);
    ask("a certificate that is not valid yet", Some(&early), "received fatal alert");
    ask(
        "another job's certificate",
        Some(&certs.issue("gradwire://8/worker")),
        "its certificate is for gradwire://8/worker",
    );
    let role = certs.issue("gradwire://0/scheduler");
    ask("another role's certificate", Some(&role), "its certificate is for gradwire://0/scheduler");
}

fn without_tls(address: &str, table: &mut Vec<Attempt>) {
    let mut closed = |what, bytes: &[u8]| {
        let mut stranger = ControlPeer::connect(address);
        stranger.send_raw(bytes);
        let seen = if stranger.is_closed_within(DROPPED) { "closed" } else { "still open" };
        tell(table, what, Ok(seen.into()), "closed");
    };
    let good = ControlPeer::frame(&ToScheduler::Register(registration(Role::Worker, None)));
    closed("a good registration without TLS", &good);
    closed("a page of garbage", &[0xA7; 4096]);
    closed("an HTTP request", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    closed("the largest length there is", &u32::MAX.to_le_bytes());
    closed("a record of TLS that never ends", &[0x16, 3, 1, 0x40, 0]);
    closed("silence", b"");
}

/// What an honest client sends until it has shown its certificate, recorded and sent again.
fn replayed(certs: &Certs, address: &str) -> Result<String, String> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let between = listener.local_addr().unwrap().to_string();
    let far = address.to_owned();
    let recorder = std::thread::spawn(move || {
        let (mut near, _) = listener.accept().unwrap();
        let mut far = TcpStream::connect(far).unwrap();
        let (mut back, mut answer) = (near.try_clone().unwrap(), far.try_clone().unwrap());
        let copying = std::thread::spawn(move || std::io::copy(&mut answer, &mut back));
        let (mut recorded, mut bytes) = (Vec::new(), [0; 4096]);
        while let Ok(got @ 1..) = near.read(&mut bytes) {
            recorded.extend_from_slice(&bytes[..got]);
            if far.write_all(&bytes[..got]).is_err() {
                break;
            }
        }
        let _ = far.shutdown(std::net::Shutdown::Both);
        let _ = copying.join().unwrap();
        recorded
    });
    let mut honest = Stranger::connect(&between, Some(&certs.issue("gradwire://0/worker")));
    // All places are taken: it is refused as one who may ask.
    let answer = register(&mut honest, Role::Worker, 0)?;
    assert!(answer.contains("the maximum"), "{answer}");
    drop(honest);
    let recorded = recorder.join().unwrap();
    assert!(recorded.len() > 500, "{}", recorded.len());
    let mut again = ControlPeer::connect(address);
    again.send_raw(&recorded);
    Ok(if again.is_closed_within(DROPPED) { "closed" } else { "still open" }.into())
}

#[test]
fn whoever_should_not_be_let_in_is_not_and_the_training_does_not_notice() {
    let certs = Certs::new();
    let mut cluster = training(&certs, &PATIENT, &LONG);
    let held = Held::at(&cluster.workers[0], HOLD);
    cluster.workers[0].expect_line("epoch ", PATIENCE);
    let daemons = |cluster: &mut Cluster| -> Vec<u64> {
        cluster.everyone().take(3).map(|process| gauge::resident_bytes(process)).collect()
    };
    let before = daemons(&mut cluster);
    let server = cluster.status().members.iter().find_map(|member| member.data_address.clone()).unwrap();
    let mut table = Vec::new();
    for (address, is_scheduler) in [(cluster.control.clone(), true), (server, false)] {
        without_tls(&address, &mut table);
        with_bad_certificates(&certs, &address, &mut table, is_scheduler);
    }
    let control = cluster.control.clone();
    questions(&certs, &control, &mut table);
    tell(&mut table, "what an honest worker sent, sent again", replayed(&certs, &control), "closed");
    let mut claim = Stranger::connect(&control, Some(&certs.issue("gradwire://0/worker")));
    tell(
        &mut table,
        "a worker that claims to be a server",
        register(&mut claim, Role::Server, 0),
        "its certificate is for",
    );
    let mut claim = Stranger::connect(&control, Some(&certs.issue("gradwire://0/worker")));
    tell(
        &mut table,
        "a worker that claims another job",
        register(&mut claim, Role::Worker, 8),
        "its certificate is for",
    );
    let metrics = status::get(&cluster.http, "/metrics").unwrap();
    for reason in ["tls", "certificate", "handshake"] {
        let name = format!("gradwire_scheduler_connections_refused_total{{reason=\"{reason}\"}}");
        let line = metrics.lines().find(|line| line.starts_with(&name));
        assert!(line.is_some_and(|line| !line.ends_with(" 0")), "{name}: {line:?}");
    }
    assert!(metrics.contains("gradwire_certificate_expiry_timestamp_seconds "));
    for (now, before) in daemons(&mut cluster).into_iter().zip(before) {
        assert!(now < before + GROWTH_BYTES, "a daemon grew from {before} to {now} bytes");
    }
    let shown = table.iter().fold(String::new(), |mut text, Attempt { what, seen }| {
        let _ = writeln!(text, "| {what} | {seen} |");
        text
    });
    println!("{shown}");
    assert!(cluster.everyone().all(Process::is_running), "the attacks must fall into the training");
    drop(held);
    ends_as(&mut cluster, &reference_by(WORKERS, &LONG));
}

#[test]
fn an_operator_shows_a_certificate_of_the_job_to_have_a_checkpoint() {
    let (certs, directory) = (Certs::new(), tempfile::tempdir().unwrap());
    let place = format!("checkpoint.directory={}", directory.path().display());
    let endless = ["--layers", "64,32,10", "--epochs", "1000000", "--batch", "16"];
    let mut cluster = training(&certs, &["--set", &place, "--set", "cluster.chunk_bytes=4096"], &endless);
    cluster.workers[0].expect_line("epoch ", PATIENCE);
    let save = |flags: &[String]| {
        let mut command = cluster.place.command("gradwire");
        command
            .args(["checkpoint", "save", "--timeout-s", "50", "--scheduler", &cluster.control])
            .args(flags);
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, name, said) = save(&certs.flags("gradwire://0/worker"));
    assert_eq!(code, Some(0), "{said}");
    assert!(directory.path().join(&name).is_dir(), "{name} is not there");
    let (code, _, said) = save(&certs.flags("gradwire://8/worker"));
    assert!(code == Some(73) && said.contains("this is job 0"), "{code:?} {said}");
    let (code, _, said) = save(&Certs::new().flags("gradwire://0/worker"));
    assert!(code == Some(73) && said.contains("another authority"), "{code:?} {said}");
    let (code, _, said) = save(&[]);
    assert!(code == Some(73) && said.contains("set security.ca"), "{code:?} {said}");
    assert!(cluster.everyone().all(Process::is_running), "the training does not notice");
}

#[test]
fn each_side_says_what_to_do_when_the_other_is_not_trusted() {
    let certs = Certs::new();
    let (scheduler, server) = (certs.flags("gradwire://0/scheduler"), certs.flags("gradwire://0/server"));
    let mut cluster = Cluster::new(1, 1, &words(&scheduler));
    let mut ends = |what: &str, flags: &[String], code: i32, expected: &str| {
        cluster.add_server(&words(flags));
        let mut process = cluster.servers.pop().unwrap();
        assert_eq!(process.expect_end(PATIENCE), code, "{what}: {}", process.log().text());
        let text = process.log().text();
        assert!(text.contains(expected), "{what}: {text}");
    };
    ends("no certificate", &[], 73, "the peer uses TLS and this process does not");
    let other = Certs::new();
    ends("another authority", &other.flags("gradwire://0/server"), 73, "another authority has signed it");
    ends("another role", &certs.flags("gradwire://0/worker"), 78, "this process is a server of job 0");
    let job: Vec<String> = ["--job", "8"].map(str::to_owned).into();
    let of_8 = [certs.flags("gradwire://8/server"), job].concat();
    ends("another job", &of_8, 73, "its certificate is for gradwire://0/scheduler");
    certs.put("0-server", &certs.issue_between("gradwire://0/server", -7200, -60));
    ends("an expired one", &server, 78, "it expired less than a day ago");
    let missing: Vec<String> = [
        "--set",
        "security.ca=/nowhere/ca.pem",
        "--set",
        "security.certificate=/nowhere/c.pem",
        "--set",
        "security.key=/nowhere/k.pem",
    ]
    .map(str::to_owned)
    .into();
    ends("no file", &missing, 78, "cannot read security.ca = /nowhere/ca.pem");
    ends("a part", &missing[..2], 78, "set all of security.ca, security.certificate and security.key");
}
