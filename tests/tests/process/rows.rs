//! Rows of sparse tables while servers are killed, come and go: whatever was acknowledged is there, once, and workers that push
//! and pull notice nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::over_each;
use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::job::{join, only};
use gradwire_tests::rigs::process::Process;
use gradwire_worker::{Client, Table};
use proto_common::config::Settings;
use proto_common::optimizer::Optimizer;
use proto_common::table::{Initial, TableSpec};
use proto_common::transport::Driver;
use rustix::process::Signal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WIDTH: usize = 4;
const WORKERS: u32 = 2;
const ROWS: u64 = 500;
/// Pushes of each worker before something happens, and after it.
const STEPS: u64 = 30;

over_each!(
    no_row_is_lost_with_a_server_that_is_killed,
    whoever_takes_over_has_the_rows_that_there_were_and_no_others,
    a_spare_server_gets_the_copies_and_then_takes_over,
    what_a_worker_that_comes_again_repeats_of_a_step_counts_once,
    a_server_with_rows_is_emptied_before_it_goes
);

/// A cluster, its clients, and a table that every one of them has declared.
struct Bed {
    clients: Vec<Client>,
    tables: Vec<Table>,
    cluster: Cluster,
    words: Vec<&'static str>,
}

impl Bed {
    fn new(driver: Driver, servers: u32, replicas: bool) -> Self {
        let mut words = vec!["--set", "cluster.lanes=2", "--set", "cluster.chunk_bytes=16384"];
        let copies: &[&str] = if replicas { &["--set", "cluster.replicas=1"] } else { &[] };
        let mut cluster = Cluster::new(servers, WORKERS, &[&words[..], copies].concat());
        words.extend(["--transport", if driver == Driver::Shm { "shm" } else { "tcp" }]);
        cluster.add_servers(servers, &words);
        let clients = join(&cluster, WORKERS, |settings| {
            settings.cluster.chunk_bytes = 16384;
            settings.transport = only(driver);
        });
        let spec = TableSpec::new(3, WIDTH as u32, Optimizer::sum(), Initial::Constant(0.0));
        let tables = clients.iter().map(|client| client.declare_table(&spec).unwrap()).collect();
        Self { clients, tables, cluster, words }
    }

    /// All workers push one to every row, again and again, while `happens` does; each push is acknowledged, and its worker's
    /// next pull has it. As many pushes as were made in all.
    fn train(&mut self, happens: impl FnOnce(&mut Cluster, &[&str])) -> u64 {
        let (pushed, is_over) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        let Self { clients, tables, cluster, words } = self;
        let ids: Vec<u64> = (0..ROWS).collect();
        std::thread::scope(|scope| {
            for (client, table) in clients.iter().zip(tables.iter()) {
                let (pushed, is_over, ids) = (&pushed, &is_over, &ids);
                scope.spawn(move || {
                    let mut out = vec![0.0; ids.len() * WIDTH];
                    let mut own = 0;
                    while own < is_over.load(Ordering::Acquire) {
                        client.push_rows(table, ids, &vec![1.0; out.len()]).unwrap().wait().unwrap();
                        own += 1;
                        pushed.fetch_add(1, Ordering::AcqRel);
                        if own % 8 == 0 {
                            client.pull_rows(table, ids, &mut out).unwrap();
                            assert!(
                                out.iter().all(|number| *number >= own as f32),
                                "a push of its own is missing"
                            );
                        }
                    }
                });
            }
            let reach = |goal: u64| {
                let deadline = Instant::now() + PATIENCE;
                while pushed.load(Ordering::Acquire) < goal {
                    if Instant::now() > deadline {
                        is_over.store(0, Ordering::Release);
                        panic!("{goal} pushes were not reached");
                    }
                    // Sleep: workers tell by a count.
                    std::thread::sleep(Duration::from_millis(1));
                }
            };
            reach(STEPS);
            happens(cluster, words);
            let least = pushed.load(Ordering::Acquire);
            reach(least + STEPS);
            is_over.store(0, Ordering::Release);
        });
        pushed.into_inner()
    }

    /// Every row has so many pushes, as every worker sees it.
    fn check(&self, pushes: u64) {
        let ids: Vec<u64> = (0..ROWS).collect();
        for (client, table) in self.clients.iter().zip(&self.tables) {
            let mut out = vec![0.0; ids.len() * WIDTH];
            client.pull_rows(table, &ids, &mut out).unwrap();
            let wrong = out.iter().position(|number| *number != pushes as f32);
            assert_eq!(wrong.map(|at| (at / WIDTH, out[at])), None, "of {pushes} pushes");
        }
    }

    fn end(mut self, killed: &[usize]) {
        self.clients.iter().for_each(Client::close);
        for (rank, server) in self.cluster.servers.iter_mut().enumerate() {
            let code = server.expect_end(PATIENCE);
            assert!(code == 0 || killed.contains(&rank), "{} failed with {code}", server.name());
        }
        assert_eq!(self.cluster.scheduler.expect_end(PATIENCE), 0);
        self.cluster.assert_no_panic();
    }
}

fn kill(cluster: &mut Cluster, server: usize, witness: usize, rank: u32) {
    cluster.servers[server].kill();
    let line = format!("server process has ended: closed its channels server={rank}");
    cluster.servers[witness].expect_line(&line, PATIENCE);
}

fn no_row_is_lost_with_a_server_that_is_killed(driver: Driver) {
    let mut bed = Bed::new(driver, 3, true);
    let pushes = bed.train(|cluster, _| kill(cluster, 1, 0, 1));
    bed.check(pushes);
    bed.end(&[1]);
}

fn whoever_takes_over_has_the_rows_that_there_were_and_no_others(driver: Driver) {
    let mut bed = Bed::new(driver, 2, true);
    let spec = TableSpec { key: 4, admit_after: 3, rows_max: 4 * ROWS, ..bed.tables[0].spec().clone() };
    let (client, others) = bed.clients.split_first().unwrap();
    let late = client.declare_table(&spec).unwrap();
    others.iter().for_each(|other| drop(other.declare_table(&spec).unwrap()));
    let push = |ids: std::ops::Range<u64>| {
        let ids: Vec<u64> = ids.collect();
        client.push_rows(&late, &ids, &vec![1.0; ids.len() * WIDTH]).unwrap().wait().unwrap();
    };
    // Rows that are kept, and then many times as many as a table may have that never are.
    (0..3).for_each(|_| push(0..ROWS));
    (1..40).for_each(|lap| push(lap * ROWS..(lap + 1) * ROWS));
    push(ROWS..2 * ROWS);
    let pull = |ids: std::ops::Range<u64>| {
        let mut out = vec![0.0; (ROWS as usize) * WIDTH];
        client.pull_rows(&late, &ids.collect::<Vec<u64>>(), &mut out).unwrap();
        out
    };
    let (kept, rare) = (pull(0..ROWS), pull(ROWS..2 * ROWS));
    kill(&mut bed.cluster, 1, 0, 1);
    assert!(kept.iter().all(|number| *number == 1.0) && pull(0..ROWS) == kept, "a row went that was kept");
    // Some share their count with others.
    let left_out = rare.iter().filter(|number| **number == 0.0).count();
    assert!(left_out > rare.len() / 2 && pull(ROWS..2 * ROWS) == rare, "of {left_out} some are there");
    push(ROWS..2 * ROWS);
    let counted = pull(ROWS..2 * ROWS).iter().zip(&rare).all(|(now, before)| *now == before + 1.0);
    assert!(counted, "it counts on from what there was");
    bed.end(&[1]);
}

/// It dies in the middle of a step, and the server of some rows dies as well before the step is repeated.
fn what_a_worker_that_comes_again_repeats_of_a_step_counts_once(driver: Driver) {
    let words = ["cluster.replicas=1", "cluster.worker_loss=wait", "cluster.chunk_bytes=16384"];
    let words: Vec<&str> = words.iter().flat_map(|pair| ["--set", pair]).collect();
    let mut cluster = Cluster::new(2, WORKERS, &words);
    cluster.add_servers(2, &["--transport", if driver == Driver::Shm { "shm" } else { "tcp" }]);
    let edit = |settings: &mut Settings| {
        settings.cluster.chunk_bytes = 16384;
        settings.transport = only(driver);
    };
    let mut clients = join(&cluster, WORKERS, edit);
    let spec = TableSpec::new(3, WIDTH as u32, Optimizer::sum(), Initial::Constant(0.0));
    let tables: Vec<Table> = clients.iter().map(|client| client.declare_table(&spec).unwrap()).collect();
    let [some, others]: [Vec<u64>; 2] = [(0..ROWS / 2).collect(), (ROWS / 2..ROWS).collect()];
    let push = |client: &Client, table: &Table, step: u64, ids: &[u64]| {
        client.push_rows_in_step(table, step, ids, &vec![1.0; ids.len() * WIDTH])?.wait()
    };
    for (client, table) in clients.iter().zip(&tables) {
        push(client, table, 7, &some).unwrap();
        push(client, table, 7, &others).unwrap();
        push(client, table, 8, &some).unwrap();
    }
    let early = push(&clients[1], &tables[1], 7, &some).unwrap_err();
    assert!(early.to_string().contains("step 7 is smaller than step"), "{early}");
    clients.pop().unwrap().fail("as if it had died");
    cluster.servers[0].kill();
    let mut settings = cluster.settings();
    settings.node.rank = Some(1);
    edit(&mut settings);
    clients.push(Client::connect(settings).unwrap());
    let again = clients[1].declare_table(&spec).unwrap();
    for ids in [&some, &others] {
        push(&clients[1], &again, 8, ids).unwrap();
    }
    push(&clients[0], &tables[0], 8, &others).unwrap();
    let ids: Vec<u64> = (0..ROWS).collect();
    let mut out = vec![0.0; ids.len() * WIDTH];
    for value in [4.0, 5.0] {
        clients[1].pull_rows(&again, &ids, &mut out).unwrap();
        assert_eq!(out.iter().find(|number| **number != value), None);
        push(&clients[1], &again, 9, &ids).unwrap();
    }
    clients.iter().for_each(Client::close);
    assert_eq!(cluster.servers[1].expect_end(PATIENCE), 0);
    assert_eq!(cluster.scheduler.expect_end(PATIENCE), 0);
    cluster.assert_no_panic();
}

/// One after the other, until nobody is left of those that the job began with.
fn a_spare_server_gets_the_copies_and_then_takes_over(driver: Driver) {
    let mut bed = Bed::new(driver, 2, true);
    let first = bed.train(|cluster, words| {
        kill(cluster, 1, 0, 1);
        let mut command = cluster.member("gradwire-server", &[], None, words);
        cluster.servers.push(Process::start("the spare server", &mut command));
        cluster.servers[0].expect_line("the replicas at a server are complete server=1", PATIENCE);
    });
    bed.check(first);
    let second = bed.train(|cluster, _| kill(cluster, 0, 2, 0));
    bed.check(first + second);
    bed.end(&[0, 1]);
}

fn a_server_with_rows_is_emptied_before_it_goes(driver: Driver) {
    let mut sum = 0;
    let replicas = driver == Driver::Shm;
    let mut bed = Bed::new(driver, 3, replicas);
    for server in [1, 0] {
        sum += bed.train(|cluster, _| {
            cluster.servers[server].signal(Signal::TERM);
            assert_eq!(cluster.servers[server].expect_end(PATIENCE), 0);
            let said = cluster.servers[server].log().text();
            assert!(said.contains("other servers have taken over all chunks of this server"), "{said}");
        });
        bed.check(sum);
    }
    bed.end(&[]);
}
