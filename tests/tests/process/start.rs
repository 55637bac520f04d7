//! Starts that cannot succeed: wrong settings, ports in use, registrations that the cluster refuses, members
//! that do not come, transports that cannot be had, data that cannot be read. Each ends within its deadline
//! with the documented exit code, and says cause and fix in its last line.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE, Place};
use gradwire_tests::rigs::ports::free_port;
use gradwire_tests::rigs::process::Process;
use proto_common::error::ExitCode;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

/// Starting and failing at once takes milliseconds, and a machine's worst day. It is shorter than any deadline that
/// a wrong start could run into instead.
const AT_ONCE: Duration = Duration::from_secs(15);
/// For members that come to be there on a busy machine, while others do not come.
const ASSEMBLE: &str = "deadlines.assemble_ms=3000";

/// The process ends with this code, and its last error says all these words.
fn ends(process: &mut Process, code: ExitCode, words: &[&str], within: Duration) {
    let ended = process.expect_end(within);
    let text = process.log().text();
    assert_eq!(ended, code as i32, "{}", process.name());
    let error = text.lines().rfind(|line| line.contains("error: "));
    let error = error.unwrap_or_else(|| panic!("{} ended without a word: {text}", process.name()));
    for word in words {
        assert!(error.contains(word), "{error:?} does not say {word:?}");
    }
    assert!(!text.contains("panicked"), "{text}");
}

fn start(command: &mut Command) -> Process {
    let name = format!("{:?}", command.get_args().collect::<Vec<_>>());
    Process::start(name, command)
}

fn fails(mut command: Command, code: ExitCode, words: &[&str]) {
    ends(&mut start(&mut command), code, words, AT_ONCE);
}

fn daemon(program: &str, args: &[&str]) -> Command {
    let mut command = Place::default().command(program);
    command.args(args);
    command
}

/// Where a process may have so many KiB of address space.
fn limited(kib: u64) -> Place {
    let script = format!("ulimit -v {kib} && exec \"$0\" \"$@\"");
    Place { prefix: ["sh", "-c", &script].map(str::to_owned).into(), ..Place::default() }
}

#[test]
fn a_limit_of_address_space_that_does_not_do_is_named_with_its_fix() {
    let mut cluster = Cluster::new(1, 1, &[]);
    // A server knows how many lanes it has once all members are there.
    cluster.add_trainer(&[]);
    cluster.place = limited(384 << 10);
    let server = cluster.member("gradwire-server", &[], None, &[]);
    let words =
        ["the memory of", "limited to 393216 KiB", "`ulimit -v`", "lower cluster.lanes, memory.spill_bytes"];
    fails(server, ExitCode::Transport, &words);
    cluster.assert_no_panic();
}

#[test]
fn a_job_trains_under_a_limit_of_address_space_that_does() {
    let mut cluster = Cluster::new(1, 2, &[]);
    cluster.place = limited(8 << 20);
    cluster.add_server(&[]);
    cluster.add_trainers(2, &["--epochs", "1"]);
    for process in cluster.workers.iter_mut().chain(&mut cluster.servers) {
        assert_eq!(process.expect_end(PATIENCE), 0, "{}", process.name());
        let text = process.log().text();
        assert!(text.contains("`ulimit -v` limits the address space"), "{text}");
    }
}

#[test]
fn unknown_settings_name_the_nearest() {
    for program in ["gradwire-scheduler", "gradwire-server"] {
        let words = ["unknown setting cluster.worker", "did you mean cluster.workers?"];
        fails(daemon(program, &["--set", "cluster.worker=2"]), ExitCode::Config, &words);
    }
    let mut worker = daemon("gradwire-worker", &["train"]);
    worker.env("GRADWIRE_DEADLINES__CONECT_MS", "5");
    let words = ["GRADWIRE_DEADLINES__CONECT_MS", "did you mean deadlines.connect_ms?"];
    fails(worker, ExitCode::Config, &words);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("my.toml");
    std::fs::write(&file, "[cluster]\nlane = 2\n").unwrap();
    let words = ["cluster.lane ", "my.toml", "did you mean cluster.lanes?"];
    fails(daemon("gradwire-server", &["--config", file.to_str().unwrap()]), ExitCode::Config, &words);
}

#[test]
fn bad_values_say_what_would_be_right() {
    let cases: [(&str, &[&str]); 6] = [
        ("cluster.lanes=0", &["cluster.lanes = 0", "from 1 to 64"]),
        ("cluster.lanes=many", &["cluster.lanes", "many"]),
        ("cluster.chunk_bytes=5000", &["cluster.chunk_bytes = 5000", "multiple of 4096"]),
        ("transport.shm=maybe", &["maybe", "require, prefer or off"]),
        ("deadlines.silence_ms=100", &["deadlines.silence_ms", "3 times deadlines.heartbeat_ms"]),
        ("log.filter=a=b=c", &["log.filter", "use a filter such as info"]),
    ];
    for (set, words) in cases {
        fails(daemon("gradwire-scheduler", &["--set", set]), ExitCode::Config, words);
    }
    let words = ["--scheduler", "HOST:PORT"];
    fails(daemon("gradwire-server", &["--scheduler", "nowhere"]), ExitCode::Config, &words);
}

#[test]
fn binding_beyond_loopback_needs_an_explicit_word() {
    let fix = "set security.mode = \"off\"";
    fails(
        daemon("gradwire-scheduler", &["--scheduler", "0.0.0.0:0"]),
        ExitCode::Config,
        &["scheduler.host", fix],
    );
    fails(daemon("gradwire-server", &["--bind", "0.0.0.0"]), ExitCode::Config, &["node.bind", fix]);
    fails(daemon("gradwire-server", &["--http", "0.0.0.0:0"]), ExitCode::Config, &["node.http", fix]);
    fails(daemon("gradwire-worker", &["train", "--bind", "::"]), ExitCode::Config, &["node.bind", fix]);
}

#[test]
fn ports_in_use_say_which_setting_names_them() {
    let mut cluster = Cluster::new(1, 1, &[]);
    let control = cluster.control.clone();
    let second = daemon("gradwire-scheduler", &["--scheduler", &control]);
    fails(second, ExitCode::Io, &[&control, "scheduler.port", "in use"]);
    let http = cluster.http.clone();
    let words = [http.as_str(), "node.http", "in use"];
    fails(
        daemon("gradwire-scheduler", &["--scheduler", "127.0.0.1:0", "--http", &http]),
        ExitCode::Io,
        &words,
    );
    fails(cluster.member("gradwire-server", &[], None, &["--http", &http]), ExitCode::Io, &words);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let server = cluster.member("gradwire-server", &[], None, &["--set", &format!("node.port={port}")]);
    fails(server, ExitCode::Io, &[&format!("127.0.0.1:{port}"), "node.port", "in use"]);
    assert!(cluster.scheduler.is_running());
}

#[test]
fn a_scheduler_that_is_not_there_or_says_nothing() {
    // Not one that the system gives to another process's listener meanwhile.
    let free = format!("127.0.0.1:{}", free_port());
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = mute.local_addr().unwrap().to_string();
    let limit = ["--set", "deadlines.connect_ms=400"];
    let nobody = ["cannot connect to", "within", "start gradwire-scheduler there"];
    let nothing = ["did not answer the registration", "is a Gradwire scheduler listening there?"];
    let mut all = Vec::new();
    for (address, words) in [(&free, &nobody[..]), (&silent, &nothing)] {
        let server = [&["--scheduler", address], &limit[..]].concat();
        all.push((daemon("gradwire-server", &server), words));
        let worker = [&["train", "--scheduler", address], &limit[..]].concat();
        all.push((daemon("gradwire-worker", &worker), words));
    }
    // Each of them waits for its deadline: all at once.
    let mut started =
        all.into_iter().map(|(mut command, words)| (start(&mut command), words)).collect::<Vec<_>>();
    for (process, words) in &mut started {
        ends(process, ExitCode::SchedulerUnreachable, words, AT_ONCE);
    }
}

#[test]
fn the_doctor_asks_a_scheduler_and_does_not_join() {
    let mut cluster = Cluster::new(1, 1, &["--job", "7"]);
    let asked = |address: &str, job: &str| {
        let mut command = daemon("gradwire", &["doctor", "--scheduler", address, "--job", job]);
        let mut process = Process::start("doctor", &mut command);
        (process.expect_end(AT_ONCE), process.log().text())
    };
    for _ in 0..3 {
        let (code, text) = asked(&cluster.control, "7");
        assert!(code == 0 && text.contains("ok    scheduler"), "{text}");
    }
    let (code, text) = asked(&cluster.control, "8");
    assert!(code == ExitCode::Refused as i32 && text.contains("job 8 is not"), "{text}");
    let (code, text) = asked(&cluster.http, "7");
    assert!(code == ExitCode::SchedulerUnreachable as i32 && text.contains("FAIL  scheduler"), "{text}");
    assert!(!cluster.scheduler.log().text().contains(" registered"), "nobody has joined");
    assert!(cluster.scheduler.is_running());
}

#[test]
fn strangers_to_the_job_are_refused_and_the_job_goes_on() {
    let mut cluster = Cluster::new(1, 2, &["--job", "7"]);
    let refused = |command: Command, words: &[&str]| fails(command, ExitCode::Refused, words);
    let job = ["job 8 is not this scheduler's job 7", "set job to the same value for all processes"];
    refused(cluster.member("gradwire-server", &[], None, &["--job", "8"]), &job);
    refused(cluster.member("gradwire-worker", &["train"], None, &["--job", "8"]), &job);
    let train = ["--job", "7", "--epochs", "1", "--layers", "64,10"];
    cluster.add_servers(1, &["--job", "7"]);
    cluster.add_trainer(&train);
    cluster.scheduler.expect_line("worker 0 registered", PATIENCE);
    cluster.scheduler.expect_line("server 0 registered", PATIENCE);
    let taken = ["rank 0 is taken or out of range", "leave node.rank unset"];
    refused(cluster.member("gradwire-worker", &["train"], Some(0), &train), &taken);
    refused(
        cluster.member("gradwire-worker", &["train"], Some(2), &train),
        &["rank 2 is taken or out of range"],
    );
    let full = ["the job already has 1 servers, the maximum", "start the job with a larger cluster.servers"];
    refused(cluster.member("gradwire-server", &[], None, &["--job", "7"]), &full);
    cluster.add_trainer(&train);
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{}", process.name());
    }
}

#[test]
fn a_worker_too_many_is_refused_while_the_others_train() {
    let mut cluster = Cluster::new(1, 1, &[]);
    cluster.add_servers(1, &[]);
    cluster.add_trainer(&["--epochs", "1000000", "--layers", "64,10"]);
    cluster.workers[0].expect_line("epoch       3/", PATIENCE);
    let words = ["the job already has 1 workers, the maximum", "start the job with a larger cluster.workers"];
    fails(cluster.member("gradwire-worker", &["train"], None, &[]), ExitCode::Refused, &words);
    assert!(cluster.everyone().all(Process::is_running));
}

#[test]
fn members_that_do_not_come_are_named_at_the_deadline() {
    let mut cluster = Cluster::new(2, 2, &["--set", ASSEMBLE]);
    let started = Instant::now();
    cluster.add_server(&[]);
    cluster.add_trainer(&[]);
    let words = ["missing: server 1, worker 1", "raise deadlines.assemble_ms"];
    for process in cluster.everyone() {
        ends(process, ExitCode::Deadline, &words, AT_ONCE);
    }
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
}

/// The contract is never broken silently: whoever requires what the other side has off, does not start.
#[test]
fn a_transport_that_cannot_be_had() {
    let cases: [(&[&str], &[&str], &[&str]); 2] = [
        (&["--transport", "tcp"], &["--transport", "shm"], &["no shm (", "no tcp ("]),
        (
            &["--set", "transport.shm=off"],
            &["--transport", "shm"],
            &["turned off in the", "shm is required by the", "transport.<name>"],
        ),
    ];
    for (server, worker, words) in cases {
        let mut cluster = Cluster::new(1, 1, &[]);
        cluster.add_servers(1, server);
        cluster.add_trainer(worker);
        ends(&mut cluster.workers[0], ExitCode::Transport, &[&["server 0"], words].concat(), AT_ONCE);
        for process in [&mut cluster.servers[0], &mut cluster.scheduler] {
            ends(
                process,
                ExitCode::MemberDied,
                &["worker 0 failed", "no transport satisfies both sides"],
                AT_ONCE,
            );
        }
    }
}

/// Known before anyone is asked, so nobody else is told.
#[test]
fn a_required_device_that_does_not_exist_is_named_at_once() {
    let require = ["--set", "transport.verbs=require", "--set", "verbs.device=no-such-device"];
    let words = ["transport.verbs = \"require\"", "no-such-device", "prefer"];
    let mut cluster = Cluster::new(1, 1, &[]);
    cluster.add_servers(1, &require);
    cluster.add_trainer(&require);
    ends(&mut cluster.servers[0], ExitCode::Transport, &words, AT_ONCE);
    ends(&mut cluster.workers[0], ExitCode::Transport, &words, AT_ONCE);
}

#[test]
fn bad_rows_and_files_are_named_before_the_cluster_is_touched() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let row = |last: &str| format!("{}{last}\n", "1,".repeat(64));
    let word = file("word.csv", &format!("{}{}", row("3"), row("3").replacen('1', "x", 1)));
    let short = file("short.csv", &format!("{}1,2\n", row("3")));
    let class = file("class.csv", &format!("{}{}{}", row("3"), row("4"), row("10")));
    let empty = file("empty.csv", "");
    let missing = format!("{}/missing.csv", directory.path().display());
    let cases: [(&str, &[&str]); 5] = [
        (&word, &["word.csv:2, column 1", "fix: "]),
        (&short, &["short.csv:2", "fix: "]),
        (&class, &["class.csv:3, column 65", "fix: "]),
        (&empty, &["empty.csv", "fix: "]),
        (&missing, &["cannot open", "missing.csv", "fix: "]),
    ];
    for (path, words) in cases {
        // A scheduler that nobody could reach: the data is looked at first.
        let args = ["train", "--data", path, "--scheduler", "127.0.0.1:1"];
        fails(daemon("gradwire-worker", &args), ExitCode::BadData, words);
    }
}

#[test]
fn others_wait_for_a_worker_with_bad_data_only_until_the_deadline() {
    let mut cluster = Cluster::new(1, 2, &["--set", ASSEMBLE]);
    cluster.add_servers(1, &[]);
    cluster.add_trainer(&[]);
    cluster.add_trainer(&["--data", "/nonexistent.csv"]);
    ends(&mut cluster.workers[1], ExitCode::BadData, &["/nonexistent.csv"], AT_ONCE);
    for process in [&mut cluster.scheduler, &mut cluster.servers[0], &mut cluster.workers[0]] {
        ends(process, ExitCode::Deadline, &["missing: worker 1"], AT_ONCE);
    }
}
