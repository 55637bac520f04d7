//! Checkpoints of real servers: whoever reads them, training goes on with the same bits.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use checkpoint::{Listed, Store, list, name_of_job, newest, open_job, round_name, verify};
use gradwire_tests::rigs::bed::Bed;
use gradwire_tests::rigs::cluster::{Cluster, Place};
use gradwire_tests::rigs::job::join;
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::training::hash_in;
use gradwire_worker::{Client, ClientError, Tensor};
use proto_common::config::Settings;
use proto_common::element::Dtype;
use proto_common::error::ExitCode;
use proto_common::optimizer::{Adam, Lamb, Optimizer, Rule};
use proto_common::table::{Initial, TableSpec};
use proto_common::tensor::TensorSpec;
use proto_common::transport::Driver;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const WORKERS: u32 = 2;

/// Rules that keep something, halves with their exact weights, a rule of norms, integers, and one that nobody contributes to; that
/// one is called as the table is in parts.
fn specs() -> Vec<TensorSpec> {
    fn mean(rule: impl Into<Rule>) -> Optimizer {
        Optimizer::mean(rule, 0.125)
    }
    let named = |spec: TensorSpec, name: &str| TensorSpec { name: name.into(), ..spec };
    vec![
        named(TensorSpec::f32(1, 5003, mean(Adam::default())), "adam"),
        named(TensorSpec::of(Dtype::F64, 2, 2001, Optimizer::sgd(0.25, 0.5, 0.125)), "momentum"),
        named(TensorSpec::f32(3, 3000, mean(Lamb::default())), "lamb"),
        named(TensorSpec::of(Dtype::I32, 4, 1500, Optimizer::sum()), "counts"),
        named(TensorSpec::f32(5, 1100, Optimizer::sum()), "table.7"),
    ]
}

fn value(key: u64, at: usize, rank: u32, round: u64) -> i32 {
    ((at as u64 * 7 + key * 13 + u64::from(rank) * 3 + round * 5) % 31) as i32 - 15
}

/// What a round's checkpoint is called: jobs of these tests have number 0.
fn name(round: u64) -> String {
    name_of_job(0, &round_name(round))
}

/// The job's own checkpoints at a place.
fn store_in(place: &Path) -> Arc<dyn Store> {
    open_job(place.to_str().unwrap(), 0).unwrap()
}

/// A cluster of so many servers over checkpoints in a directory.
fn bed(servers: u32, lanes: u16, directory: &Path, edit: impl Fn(&mut Settings)) -> Bed {
    Bed::new(Driver::Shm, (servers, WORKERS), |settings| {
        (settings.cluster.chunk_bytes, settings.cluster.lanes) = (4096, lanes);
        settings.checkpoint.directory = directory.display().to_string();
        edit(settings);
    })
}

/// All workers train up to a round, from wherever training is; says where that was.
fn train(clients: &[Client], to: u64) -> u64 {
    std::thread::scope(|scope| {
        let running: Vec<_> =
            clients.iter().map(|client| scope.spawn(move || train_one(client, to))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
    })
}

fn train_one(client: &Client, to: u64) -> u64 {
    let tensors = client.declare(&specs()).unwrap();
    let (trained, frozen) = tensors.split_at(4);
    for tensor in &tensors {
        let (key, count) = (tensor.key().0, tensor.spec().elements as usize);
        let initial = |at| value(key, at, 9, 0);
        match tensor.spec().dtype {
            Dtype::F64 => {
                client.init(tensor, &(0..count).map(|at| f64::from(initial(at))).collect::<Vec<_>>())
            }
            Dtype::I32 => client.init(tensor, &(0..count).map(initial).collect::<Vec<_>>()),
            _ => client.init(tensor, &(0..count).map(|at| initial(at) as f32).collect::<Vec<_>>()),
        }
        .unwrap();
    }
    let from = client.resume(trained).unwrap();
    for round in from + 1..=to {
        trained.iter().for_each(|tensor| one_round(client, tensor, round));
    }
    assert_eq!(frozen.len(), 1);
    from
}

fn one_round(client: &Client, tensor: &Tensor, round: u64) {
    let (key, count, rank) = (tensor.key().0, tensor.spec().elements as usize, client.rank());
    let number = |at| value(key, at, rank, round);
    match tensor.spec().dtype {
        Dtype::F64 => {
            let gradient: Vec<f64> = (0..count).map(|at| f64::from(number(at)) / 8.0).collect();
            client.push_pull_slice(tensor, &gradient, &mut vec![0.0; count]).map(drop)
        }
        Dtype::I32 => {
            let gradient: Vec<i32> = (0..count).map(number).collect();
            client.push_pull_slice(tensor, &gradient, &mut vec![0; count]).map(drop)
        }
        _ => {
            let gradient: Vec<f32> = (0..count).map(|at| number(at) as f32 / 8.0).collect();
            client.push_pull_slice(tensor, &gradient, &mut vec![0.0; count]).map(drop)
        }
    }
    .unwrap();
}

/// The bits of all weights.
fn weights(client: &Client) -> Vec<Vec<u8>> {
    let tensors = specs().into_iter().map(|spec| {
        let tensor = client.tensor(spec.key.0).unwrap();
        let count = spec.elements as usize;
        match spec.dtype {
            Dtype::F64 => {
                let mut values = vec![0f64; count];
                client.pull_slice(&tensor, &mut values).unwrap();
                values.iter().flat_map(|value| value.to_le_bytes()).collect()
            }
            Dtype::I32 => {
                let mut values = vec![0i32; count];
                client.pull_slice(&tensor, &mut values).unwrap();
                values.iter().flat_map(|value| value.to_le_bytes()).collect()
            }
            _ => {
                let mut values = vec![0f32; count];
                client.pull_slice(&tensor, &mut values).unwrap();
                values.iter().flat_map(|value| value.to_le_bytes()).collect()
            }
        }
    });
    tensors.collect()
}

fn save(client: &Client) -> String {
    let tensors: Vec<Tensor> = specs().iter().map(|spec| client.tensor(spec.key.0).unwrap()).collect();
    client.checkpoint(&tensors, PATIENCE).unwrap()
}

#[test]
fn any_number_of_servers_goes_on_from_what_any_other_wrote_with_the_same_bits() {
    let directory = tempfile::tempdir().unwrap();
    let mut undisturbed = None;
    for (servers, lanes) in [(1, 1), (2, 2), (3, 1), (5, 2)] {
        let place = directory.path().join(servers.to_string());
        let bed = bed(servers, lanes, &place, |_| {});
        assert_eq!(train(&bed.clients, 4), 0);
        assert_eq!(save(&bed.clients[0]), name(4));
        let at_four = weights(&bed.clients[0]);
        assert_eq!(train(&bed.clients, 6), 4, "training goes on where it is");
        let at_six = weights(&bed.clients[0]);
        let expected = undisturbed.get_or_insert((at_four.clone(), at_six.clone()));
        assert!(*expected == (at_four, at_six), "{servers} servers");
        bed.end();
        let store = store_in(&place);
        verify(&store, &round_name(4), |_, _| ()).unwrap();
    }
    let (at_four, at_six) = undisturbed.unwrap();
    for wrote in [1, 2, 3, 5] {
        for (servers, lanes) in [(1, 2), (2, 1), (3, 2), (5, 1)] {
            let place = directory.path().join(wrote.to_string());
            let bed = bed(servers, lanes, &place, |settings| settings.checkpoint.restore = "latest".into());
            assert_eq!(train(&bed.clients, 4), 4);
            assert!(weights(&bed.clients[1]) == at_four, "{wrote} to {servers}");
            assert_eq!(train(&bed.clients, 6), 4);
            assert!(weights(&bed.clients[0]) == at_six, "{wrote} to {servers}");
            bed.end();
        }
    }
}

#[test]
fn a_round_is_written_again_as_often_as_somebody_asks_and_nothing_is_written_over() {
    let directory = tempfile::tempdir().unwrap();
    let store = store_in(directory.path());
    let bed = bed(2, 2, directory.path(), |settings| settings.checkpoint.every_rounds = 2);
    train(&bed.clients, 4);
    let mut files = Vec::new();
    for client in [0, 1, 0] {
        assert_eq!(save(&bed.clients[client]), name(4));
        verify(&store, &round_name(4), |_, _| ()).unwrap();
        let parts = newest(&*store).unwrap().unwrap().parts;
        files.extend(parts.into_iter().map(|part| part.file));
    }
    // The first may be the one that had begun by itself.
    let (count, mut distinct) = (files.len(), files);
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), count, "{distinct:?}");
    // And those that begin by themselves do so afterwards.
    train(&bed.clients, 8);
    assert_eq!(save(&bed.clients[1]), name(8));
    bed.end();
    assert!(complete(&*store).contains(&round_name(6)) || complete(&*store).contains(&round_name(8)));
}

#[test]
fn a_tensor_that_cannot_go_on_from_a_checkpoint_is_no_obstacle_to_others() {
    let directory = tempfile::tempdir().unwrap();
    let first = bed(1, 1, directory.path(), |_| {});
    train(&first.clients, 2);
    save(&first.clients[0]);
    let expected = weights(&first.clients[0]).swap_remove(1);
    first.end();
    let bed = bed(1, 1, directory.path(), |settings| settings.checkpoint.restore = "latest".into());
    let other = TensorSpec::f32(1, 5003, Optimizer::sum());
    let error = bed.clients[0].declare(&[other]).unwrap_err();
    assert!(error.to_string().contains("declare it as in the checkpoint"), "{error}");
    assert_eq!(error.exit_code(), ExitCode::BadData);
    // Behind it, in the same lane.
    let tensor = bed.clients[0].declare(&specs()[1..2]).unwrap().remove(0);
    let mut values = vec![0f64; tensor.spec().elements as usize];
    bed.clients[0].pull_slice(&tensor, &mut values).unwrap();
    assert!(values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>() == expected);
    bed.end();
}

fn complete(store: &dyn Store) -> Vec<String> {
    list(store).unwrap().iter().filter_map(Listed::complete).map(|manifest| manifest.name.clone()).collect()
}

#[test]
fn rounds_are_written_behind_training_within_little_memory_and_are_never_torn() {
    let directory = tempfile::tempdir().unwrap();
    let bed = bed(2, 2, directory.path(), |settings| {
        (settings.checkpoint.every_rounds, settings.checkpoint.keep) = (3, 2);
        // One chunk's copy at a time.
        settings.checkpoint.memory_bytes = 1;
    });
    assert_eq!(train(&bed.clients, 20), 0);
    let expected = weights(&bed.clients[0]);
    bed.end();
    let store = store_in(directory.path());
    let found = complete(&*store);
    assert!(!found.is_empty() && found.len() <= 2, "{found:?}");
    let last = list(&*store).unwrap().into_iter().rev().find_map(|one| one.manifest.ok().flatten()).unwrap();
    assert!(last.tensors.iter().take(4).all(|tensor| tensor.version == last.round), "{last:?}");
    assert_eq!(last.tensors[4].version, 0, "nobody contributed to it");
    let bed = self::bed(3, 1, directory.path(), |settings| settings.checkpoint.restore = "latest".into());
    assert_eq!(train(&bed.clients, 20), last.round);
    assert!(weights(&bed.clients[0]) == expected);
    bed.end();
}

#[test]
fn servers_with_copies_write_what_they_serve_and_copies_begin_from_it_too() {
    let directory = tempfile::tempdir().unwrap();
    let copies = |settings: &mut Settings| settings.cluster.replicas = 1;
    let first = bed(2, 2, directory.path(), copies);
    train(&first.clients, 4);
    assert_eq!(save(&first.clients[0]), name(4));
    train(&first.clients, 6);
    let expected = weights(&first.clients[0]);
    first.end();
    let second = bed(3, 1, directory.path(), |settings| {
        copies(settings);
        settings.checkpoint.restore = round_name(4);
    });
    assert_eq!(train(&second.clients, 6), 4);
    assert!(weights(&second.clients[0]) == expected);
    second.end();
}

/// Real servers over checkpoints in a directory, and clients in this process.
fn processes(servers: u32, directory: &Path, restore: &str) -> (Cluster, Vec<Client>) {
    let place = format!("checkpoint.directory={}", directory.display());
    let restore = format!("checkpoint.restore={restore}");
    let words = [
        "--set",
        &place,
        "--set",
        "checkpoint.every_rounds=1",
        "--set",
        "cluster.chunk_bytes=4096",
        // No other scheduler comes.
        "--set",
        "deadlines.scheduler_ms=500",
        "--set",
        &restore,
    ];
    let mut cluster = Cluster::new(servers, WORKERS, &words);
    cluster.add_servers(servers, &words);
    let clients = join(&cluster, WORKERS, |settings| settings.cluster.chunk_bytes = 4096);
    (cluster, clients)
}

#[test]
fn whatever_is_killed_while_it_writes_earlier_checkpoints_are_whole() {
    let directory = tempfile::tempdir().unwrap();
    let undisturbed = bed(1, 1, &directory.path().join("undisturbed"), |_| {});
    train(&undisturbed.clients, 40);
    let expected = weights(&undisturbed.clients[0]);
    undisturbed.end();
    let place = directory.path().join("killed");
    let store = store_in(&place);
    let mut reached = 0;
    for (servers, until) in [(2, 9), (1, 17), (3, 25)] {
        let (mut cluster, clients) = processes(servers, &place, "latest");
        assert_eq!(train(&clients, until), reached);
        // A slow disk may have none yet.
        let deadline = Instant::now() + PATIENCE;
        while complete(&*store).is_empty() {
            assert!(Instant::now() < deadline, "no checkpoint is complete");
            // Sleep: nothing tells of files of another process.
            std::thread::sleep(Duration::from_millis(2));
        }
        // One of the last rounds is being written, and may be complete at any moment.
        cluster.servers.iter_mut().for_each(|server| server.kill());
        cluster.scheduler.kill();
        drop((clients, cluster));
        let found = complete(&*store);
        assert!(!found.is_empty());
        for name in &found {
            verify(&store, name, |_, _| ()).unwrap();
        }
        let newest = checkpoint::newest(&*store).unwrap().unwrap();
        assert!(newest.round <= until, "{found:?}");
        reached = newest.round;
    }
    let (cluster, clients) = processes(2, &place, "latest");
    assert_eq!(train(&clients, 40), reached);
    assert!(weights(&clients[0]) == expected);
    drop((clients, cluster));
}

const WIDTH: usize = 8;
const ROWS: u64 = 5000;

fn table() -> TableSpec {
    let adam = Optimizer::mean(Adam::default(), 0.125);
    TableSpec::new(7, WIDTH as u32, adam, Initial::Uniform { low: -1.0, high: 1.0, seed: 3 })
}

/// Ids that are spread over all numbers.
fn ids() -> Vec<u64> {
    (0..ROWS).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

/// One push to every row, and another one to some; then all rows, as bits.
fn touch(client: &Client, step: u64) -> Vec<u32> {
    let (table, ids) = (client.declare_table(&table()).unwrap(), ids());
    let some: Vec<u64> = ids.iter().copied().step_by(3).collect();
    for ids in [&ids, &some] {
        let values: Vec<f32> =
            (0..ids.len() * WIDTH).map(|at| ((at as u64 * 7 + step) % 17) as f32 / 16.0 - 0.5).collect();
        client.push_rows(&table, ids, &values).unwrap().wait().unwrap();
    }
    pull(client)
}

fn pull(client: &Client) -> Vec<u32> {
    let (table, ids) = (client.declare_table(&table()).unwrap(), ids());
    let mut out = vec![0.0; ids.len() * WIDTH];
    client.pull_rows(&table, &ids, &mut out).unwrap();
    out.into_iter().map(f32::to_bits).collect()
}

#[test]
fn rows_of_tables_come_to_whatever_server_has_them_then() {
    let directory = tempfile::tempdir().unwrap();
    let first = bed(3, 2, directory.path(), |settings| settings.checkpoint.memory_bytes = 1);
    train(&first.clients, 2);
    let saved_rows = touch(&first.clients[0], 1);
    assert_eq!(save(&first.clients[0]), name(2));
    let later = touch(&first.clients[0], 2);
    first.end();
    let store = store_in(directory.path());
    verify(&store, &round_name(2), |_, _| ()).unwrap();
    let manifest = checkpoint::newest(&*store).unwrap().unwrap();
    assert_eq!((manifest.tables[0].spec.clone(), manifest.tables[0].rows), (table(), ROWS));
    for (servers, lanes) in [(1, 1), (2, 2), (5, 1)] {
        let bed =
            bed(servers, lanes, directory.path(), |settings| settings.checkpoint.restore = "latest".into());
        train(&bed.clients, 2);
        assert!(pull(&bed.clients[1]) == saved_rows, "{servers} servers");
        // What the rule keeps came with them, and each row's count of pushes.
        assert!(touch(&bed.clients[0], 2) == later, "{servers} servers");
        bed.end();
    }
    let bed = bed(1, 1, directory.path(), |settings| settings.checkpoint.restore = "latest".into());
    let other = TableSpec { optimizer: Optimizer::sum(), ..table() };
    let error = bed.clients[0].declare_table(&other).unwrap_err().to_string();
    assert!(error.contains("declare it as in the checkpoint"), "{error}");
    bed.end();
}

#[test]
fn halves_keep_their_exact_weights() {
    let directory = tempfile::tempdir().unwrap();
    let spec = |key, dtype| TensorSpec::of(dtype, key, 3000, Optimizer::sgd(0.25, 0.5, 0.125));
    let specs = [spec(1, Dtype::F16), spec(2, Dtype::Bf16)];
    let step = |clients: &[Client], to: u64| {
        std::thread::scope(|scope| {
            let each = |client: &'_ Client| -> Vec<Vec<u16>> {
                let tensors = client.declare(&specs).unwrap();
                let from = client.resume(&tensors).unwrap();
                let mut weights = vec![vec![0u16; 3000]; 2];
                for round in from + 1..=to {
                    for (at, (tensor, out)) in tensors.iter().zip(&mut weights).enumerate() {
                        // Small steps: what a half cannot say is in the exact weights only.
                        let number =
                            |at: usize| value(tensor.key().0, at, client.rank(), round) as f32 / 4096.0;
                        if at == 0 {
                            let gradient: Vec<half::f16> =
                                (0..3000).map(|at| half::f16::from_f32(number(at))).collect();
                            let mut into = vec![half::f16::ZERO; 3000];
                            client.push_pull_slice(tensor, &gradient, &mut into).unwrap();
                            out.iter_mut().zip(into).for_each(|(out, value)| *out = value.to_bits());
                        } else {
                            let gradient: Vec<half::bf16> =
                                (0..3000).map(|at| half::bf16::from_f32(number(at))).collect();
                            let mut into = vec![half::bf16::ZERO; 3000];
                            client.push_pull_slice(tensor, &gradient, &mut into).unwrap();
                            out.iter_mut().zip(into).for_each(|(out, value)| *out = value.to_bits());
                        }
                    }
                }
                weights
            };
            let running: Vec<_> = clients.iter().map(|client| scope.spawn(move || each(client))).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).next().unwrap()
        })
    };
    let first = bed(2, 1, directory.path(), |_| {});
    step(&first.clients, 5);
    let tensors: Vec<Tensor> = [1, 2].map(|key| first.clients[0].tensor(key).unwrap()).into();
    assert_eq!(first.clients[0].checkpoint(&tensors, PATIENCE).unwrap(), name(5));
    let expected = step(&first.clients, 12);
    first.end();
    let second = bed(1, 2, directory.path(), |settings| settings.checkpoint.restore = "latest".into());
    assert!(step(&second.clients, 12) == expected);
    second.end();
}

#[test]
fn tensors_that_are_not_in_step_are_not_gone_on_with() {
    let directory = tempfile::tempdir().unwrap();
    let bed = bed(1, 1, directory.path(), |_| {});
    let specs = [1, 2].map(|key| TensorSpec::f32(key, 8, Optimizer::sum()));
    let contribute = |client: &Client| {
        let tensors = client.declare(&specs).unwrap();
        let mut out = [0.0_f32; 8];
        for _ in 0..2 {
            client.push_pull_slice(&tensors[1], &[1.0_f32; 8], &mut out).unwrap();
        }
    };
    std::thread::scope(|scope| {
        bed.clients.iter().for_each(|client| drop(scope.spawn(|| contribute(client))));
    });
    let client = &bed.clients[0];
    let tensors: Vec<Tensor> = [1, 2].map(|key| client.tensor(key).unwrap()).into();
    let error = client.resume(&tensors).unwrap_err();
    let Some(ClientError::Uneven { behind, ahead, least: 0, greatest: 2, .. }) = Some(error) else {
        panic!("rounds 0 and 2 are gone on with")
    };
    assert_eq!((behind.0, ahead.0), (1, 2));
    assert_eq!(client.resume(&tensors[1..]).unwrap(), 2);
    bed.end();
}

#[test]
fn an_operator_has_a_checkpoint_of_a_training_that_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let place = format!("checkpoint.directory={}", directory.path().display());
    let words = ["--set", &place, "--set", "cluster.chunk_bytes=4096"];
    let mut cluster = Cluster::new(2, WORKERS, &words);
    cluster.add_servers(2, &words);
    let clients = join(&cluster, WORKERS, |settings| settings.cluster.chunk_bytes = 4096);
    let over = std::sync::atomic::AtomicBool::new(false);
    let name = std::thread::scope(|scope| {
        let train = scope.spawn(|| {
            let mut to = 0;
            while !over.load(std::sync::atomic::Ordering::Relaxed) {
                to += 10;
                train(&clients, to);
            }
            to
        });
        let saved = cluster
            .place
            .command("gradwire")
            .args(["checkpoint", "save", "--timeout-s", "60", "--scheduler"])
            .arg(&cluster.control)
            .output()
            .unwrap();
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        train.join().unwrap();
        assert!(saved.status.success(), "{saved:?}");
        String::from_utf8(saved.stdout).unwrap().trim().to_owned()
    });
    let store = store_in(directory.path());
    let own = name.strip_prefix("job-0/").unwrap();
    assert_eq!(complete(&*store), [own]);
    verify(&store, own, |_, _| ()).unwrap();
    let manifest = checkpoint::newest(&*store).unwrap().unwrap();
    assert!(manifest.tensors.iter().take(4).all(|tensor| tensor.version == manifest.round), "{manifest:?}");
    // Nobody trains: it says what it waits for.
    let late = cluster
        .place
        .command("gradwire")
        .args(["checkpoint", "save", "--timeout-s", "1", "--scheduler"])
        .arg(&cluster.control)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&late.stderr).into_owned();
    assert!(!late.status.success() && text.contains("of tensor") && text.contains("not yet at"), "{text}");
    drop((clients, cluster));
}

/// Another scheduler of this job at the same place is refused; told to take over, it has the job, and the first one ends.
#[test]
fn two_schedulers_of_one_job_do_not_write_to_one_place() {
    let directory = tempfile::tempdir().unwrap();
    let place = format!("checkpoint.directory={}", directory.path().display());
    let mut first = Cluster::new(1, 1, &["--set", &place]);
    let second = |more: &[&str]| {
        let mut command = first.place.command("gradwire-scheduler");
        command.args(["--scheduler", "127.0.0.1:0", "--set", &place]).args(more);
        command
    };
    first.scheduler.expect_line("owns the job's checkpoints", PATIENCE);
    let refused = second(&[]).output().unwrap();
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(i32::from(ExitCode::Refused as u8)), "{text}");
    let pid = format!("process {} on host", first.scheduler.pid());
    assert!(text.contains(&pid) && text.contains("another checkpoint.directory"), "{text}");
    let other_job = ["--job", "7", "--set", "deadlines.assemble_ms=100"];
    let text = second(&other_job).output().unwrap().stderr;
    assert!(!String::from_utf8_lossy(&text).contains("another scheduler"), "{text:?}");
    // One that takes the job over changes nothing before members have elected it.
    let taking = Process::start("the next scheduler", &mut second(&["--resume"]));
    taking.expect_line("the scheduler listens", PATIENCE);
    let terms = || fs::read_dir(directory.path().join("job-0/owner")).unwrap().count();
    assert_eq!(terms(), 1);
    drop(taking);
    // The record of one that was elected.
    let record = directory.path().join("job-0/owner/term-1.json");
    fs::copy(&record, record.with_file_name("term-2.json")).unwrap();
    first.scheduler.expect_line("has taken over the checkpoints", PATIENCE);
    assert_eq!(first.scheduler.expect_end(PATIENCE), i32::from(ExitCode::Refused as u8));
}

const TRAIN: [&str; 8] = ["--layers", "64,105,33,10", "--epochs", "5", "--batch", "8", "--seed", "7"];

/// Trains the demo on so many servers until `epoch` is over, and kills everybody then; to the end without it.
fn demo(servers: u32, directory: &Path, epoch: Option<&str>) -> String {
    let place = format!("checkpoint.directory={}", directory.display());
    let mut words = vec!["--set", &place, "--set", "cluster.chunk_bytes=4096"];
    words.extend(["--set", "checkpoint.every_rounds=10", "--set", "checkpoint.restore=latest"]);
    let mut cluster = Cluster::new(servers, 4, &words);
    cluster.add_servers(servers, &words);
    cluster.add_trainers(4, &[&TRAIN[..], &["--jitter-us", "1500"]].concat());
    if let Some(epoch) = epoch {
        cluster.workers[0].expect_line(&format!("epoch {epoch}/"), PATIENCE);
        cluster.everyone().for_each(|process| process.kill());
        return String::new();
    }
    for process in cluster.everyone() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{} failed", process.name());
    }
    hash_in(&cluster.workers[0].log().text())
}

#[test]
fn the_demo_goes_on_from_a_checkpoint_to_the_hash_of_an_undisturbed_run() {
    let mut reference = Place::default().command("gradwire-worker");
    reference.arg("train").args(TRAIN).args(["--reference", "--workers", "4"]);
    let mut reference = Process::start("reference", &mut reference);
    let directory = tempfile::tempdir().unwrap();
    demo(2, directory.path(), Some("3"));
    let store = store_in(directory.path());
    let killed_at = newest(&*store).unwrap().expect("one was complete").round;
    let hash = demo(3, directory.path(), None);
    assert_eq!(reference.expect_end(PATIENCE), 0);
    assert_eq!(hash, hash_in(&reference.log().text()));
    assert!(newest(&*store).unwrap().unwrap().round > killed_at, "and it wrote others");
}
