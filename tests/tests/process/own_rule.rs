//! An update rule of the servers' program (`server/examples/dc_asgd.rs`): servers are killed and replaced, the job continues from
//! a checkpoint, and the weights are those of an undisturbed run, to the last bit.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::job::join;
use gradwire_tests::rigs::process::Process;
use gradwire_worker::Client;
use proto_common::optimizer::{Optimizer, Own};
use proto_common::tensor::TensorSpec;
use std::path::Path;
use std::time::{Duration, Instant};

const WORKERS: u32 = 2;
const ELEMENTS: usize = 5000;
/// Rounds in all, and that of the checkpoint.
const ROUNDS: u64 = 12;
const SAVED: u64 = 9;

fn spec(name: &str, parameters: &[(&str, f32)]) -> TensorSpec {
    let own = Own::new(name, parameters).unwrap();
    let optimizer = Optimizer { weight_decay: 0.01, ..Optimizer::mean(own, 0.1) };
    TensorSpec::f32(1, ELEMENTS as u64, optimizer)
}

fn rule() -> TensorSpec {
    spec("dc_asgd", &[("clip", 0.5), ("momentum", 0.75), ("compensation", 2.0)])
}

struct Job {
    cluster: Cluster,
    clients: Vec<Client>,
    words: Vec<String>,
}

impl Job {
    /// Servers with the rule; chunks of so many bytes.
    fn new(servers: u32, chunk_bytes: u64, directory: &Path, settings: &[&str]) -> Self {
        let places = [
            format!("cluster.chunk_bytes={chunk_bytes}"),
            format!("checkpoint.directory={}", directory.display()),
        ];
        let settings = settings.iter().map(|setting| (*setting).to_owned()).chain(places);
        let words: Vec<String> = settings.flat_map(|setting| ["--set".to_owned(), setting]).collect();
        let told: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut job = Self { cluster: Cluster::new(servers, WORKERS, &told), clients: Vec::new(), words };
        (0..servers).for_each(|rank| job.add_server(Some(rank as usize)));
        job.clients = join(&job.cluster, WORKERS, |settings| settings.cluster.chunk_bytes = chunk_bytes);
        job
    }

    fn add_server(&mut self, rank: Option<usize>) {
        let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
        let mut command = self.cluster.member("own_rule_server", &[], rank, &words);
        let name = format!("server {}", self.cluster.servers.len());
        self.cluster.servers.push(Process::start(name, &mut command));
    }

    /// All workers train up to a round, from wherever training is; says where that was.
    fn train(&self, to: u64) -> u64 {
        std::thread::scope(|scope| {
            let running: Vec<_> =
                self.clients.iter().map(|client| scope.spawn(move || train(client, to))).collect();
            running.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
        })
    }

    fn bits(&self) -> Vec<u32> {
        let mut weights = vec![0f32; ELEMENTS];
        self.clients[0].pull_slice(&self.clients[0].tensor(1).unwrap(), &mut weights).unwrap();
        weights.into_iter().map(f32::to_bits).collect()
    }

    /// Kills a server in the midst of a round, and starts another one in its place; returns when that has all replicas.
    fn lose(&mut self, victim: usize, (rank, survivor): (u32, usize), to: u64) {
        self.cluster.servers[victim].kill();
        // Before that, the job has no place for another one.
        self.cluster.scheduler.expect_line(&format!("server {rank} failed"), PATIENCE);
        self.add_server(None);
        self.train(to);
        let line = format!("the replicas at a server are complete server={rank}");
        self.cluster.servers[survivor].expect_line(&line, PATIENCE);
        let deadline = Instant::now() + PATIENCE;
        while self.cluster.status().uncopied_chunks > 0 {
            assert!(Instant::now() < deadline, "chunks are without a replica");
            // Sleep: no event of another process tells.
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn end(mut self, killed: &[usize]) {
        self.clients.iter().for_each(Client::close);
        for (at, server) in self.cluster.servers.iter_mut().enumerate() {
            let code = server.expect_end(PATIENCE);
            assert!(code == 0 || killed.contains(&at), "{} failed with {code}", server.name());
        }
        assert_eq!(self.cluster.scheduler.expect_end(PATIENCE), 0);
        self.cluster.assert_no_panic();
    }
}

fn train(client: &Client, to: u64) -> u64 {
    let tensor = client.declare(&[rule()]).unwrap().remove(0);
    let initial: Vec<f32> = (0..ELEMENTS).map(|at| (at % 17) as f32 / 8.0 - 1.0).collect();
    client.init(&tensor, &initial).unwrap();
    let from = client.resume(std::slice::from_ref(&tensor)).unwrap();
    let mut weights = vec![0f32; ELEMENTS];
    for round in from + 1..=to {
        let seed = (round * 31 + u64::from(client.rank()) * 7) as usize;
        // Some are larger than the clip.
        let gradient: Vec<f32> =
            (0..ELEMENTS).map(|at| ((at * 13 + seed) % 101) as f32 / 64.0 - 0.75).collect();
        client.push_pull_slice(&tensor, &gradient, &mut weights).unwrap();
    }
    from
}

#[test]
fn servers_are_killed_and_a_job_restored_with_the_bits_of_an_undisturbed_run() {
    let directory = tempfile::tempdir().unwrap();
    let undisturbed = Job::new(1, 65536, &directory.path().join("undisturbed"), &[]);
    assert_eq!(undisturbed.train(ROUNDS), 0);
    let expected = undisturbed.bits();
    undisturbed.end(&[]);

    let place = directory.path().join("killed");
    let mut job = Job::new(2, 4096, &place, &["cluster.replicas=1"]);
    assert_eq!(job.train(3), 0);
    job.lose(1, (1, 0), 6);
    job.lose(0, (0, 2), SAVED);
    let tensor = job.clients[0].tensor(1).unwrap();
    job.clients[0].checkpoint(&[tensor], PATIENCE).unwrap();
    assert_eq!(job.train(ROUNDS), SAVED);
    assert!(job.bits() == expected, "after both servers were killed");
    job.end(&[0, 1]);

    let restored = Job::new(2, 4096, &place, &["checkpoint.restore=latest"]);
    assert_eq!(restored.train(ROUNDS), SAVED);
    assert!(restored.bits() == expected, "from a checkpoint");
    restored.end(&[]);
}

#[test]
fn names_that_no_server_has_are_refused_with_those_that_they_have() {
    let directory = tempfile::tempdir().unwrap();
    let job = Job::new(1, 65536, directory.path(), &[]);
    let refused = |spec: TensorSpec| job.clients[0].declare(&[spec]).unwrap_err().to_string();
    let text = refused(spec("dc_agsd", &[]));
    assert!(text.contains("no update rule \"dc_agsd\"") && text.contains("dc_asgd"), "{text}");
    let text = refused(spec("dc_asgd", &[("clip", -1.0)]));
    assert!(text.contains("parameter clip = -1 is out of range"), "{text}");
    // A server of another program does not fit, and the job goes on without it.
    let mut command = job.cluster.member("gradwire-server", &[], None, &[]);
    let mut other = Process::start("another program", &mut command);
    assert_ne!(other.expect_end(PATIENCE), 0);
    let text = other.log().text();
    assert!(text.contains("this one has no update rule \"dc_asgd\""), "{text}");
    job.train(2);
    job.end(&[]);
}
