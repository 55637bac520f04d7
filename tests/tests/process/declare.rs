//! Declarations that wait for a server that stands still: the scheduler's answer names it, and once the server
//! goes on, declaring the same again succeeds.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::Cluster;
use gradwire_tests::rigs::job::{declare, join, round, summed};
use gradwire_worker::ClientError;
use proto_common::error::{Blame, ExitCode};
use proto_common::ids::Rank;
use proto_common::message::DeclareError;
use rustix::process::Signal;
use std::time::{Duration, Instant};

const OPERATION_MS: u64 = 2_000;
/// The worker's own patience beyond its deadline: the scheduler's answer must come before it ends.
const GRACE: Duration = Duration::from_secs(2);

#[test]
fn a_server_that_stands_still_is_named_and_the_tensor_can_be_declared_again() {
    let mut cluster = Cluster::new(2, 2, &["--set", "deadlines.silence_ms=60000"]);
    cluster.add_servers(2, &[]);
    let clients = join(&cluster, 2, |settings| settings.deadlines.operation_ms = OPERATION_MS);
    // Ranks go by arrival: stop both in turn, and see each one named by the rank it has.
    let mut named = Vec::new();
    for (index, key) in [(0, 1), (1, 2)] {
        cluster.servers[index].signal(Signal::STOP);
        let started = Instant::now();
        let error = clients[0].declare(&[summed(key, 4)]).expect_err("a server stands still");
        let took = started.elapsed();
        let ClientError::Declare(DeclareError::Deadline { waited_ms, servers }) = &error else {
            panic!("{error}")
        };
        assert!(*waited_ms >= OPERATION_MS, "{error}");
        let least = Duration::from_millis(OPERATION_MS - 1);
        assert!(took >= least && took < least + GRACE, "{took:?}: {error}");
        assert_eq!((error.exit_code(), error.blame()), (ExitCode::Deadline, Blame::Membership));
        assert_eq!(servers.len(), 1, "the other one has answered: {error}");
        named.extend(servers.iter().copied());
        cluster.servers[index].signal(Signal::CONT);
        // Its late answer does no harm: the same declaration succeeds everywhere, and the tensor works.
        declare(&clients, &[summed(key, 4)]);
        round(&clients, key);
    }
    named.sort_unstable();
    assert_eq!(named, [Rank(0), Rank(1)]);
    cluster.assert_no_panic();
}
