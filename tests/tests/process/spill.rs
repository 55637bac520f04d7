//! A server whose spill area is used up sends contributions back, to be tried again. Where that goes on until the
//! deadline, the error names the workers whose contributions have to come first, not the server.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::cluster::Cluster;
use gradwire_tests::rigs::job::{declare, join, only, summed};
use gradwire_worker::{Client, ClientError, OpError};
use proto_common::error::ExitCode;
use proto_common::ids::{Key, Rank};
use proto_common::transport::Driver;

/// One block of the default chunk size.
const SPILL: &str = "memory.spill_bytes=262144";

#[test]
fn a_contribution_that_finds_no_place_names_who_comes_first() {
    for driver in [Driver::Shm, Driver::Tcp] {
        let mut cluster = Cluster::new(1, 3, &[]);
        cluster.add_servers(1, &["--set", SPILL]);
        let clients = join(&cluster, 3, |settings| {
            (settings.deadlines.operation_ms, settings.deadlines.busy_ms) = (1_000, 1_000);
            settings.transport = only(driver);
        });
        declare(&clients, &[summed(1, 4), summed(2, 4)]);
        let push = |rank: usize, key| {
            let tensor = clients[rank].tensor(key).unwrap();
            clients[rank].push_slice(&tensor, &[rank as f32 + 1.0; 4])
        };
        // Rank 2 comes after 0 and 1: the first contribution is kept in the only block, the second comes back.
        for key in [1, 2] {
            let error = push(2, key).expect_err("the others do not push");
            assert_eq!(error.exit_code(), ExitCode::Deadline);
            let ClientError::Op(OpError::Deadline { chunk, round, missing, .. }) = &error else {
                panic!("{error}")
            };
            assert_eq!((chunk.key, *round, &missing[..]), (Key(key), 1, &[Rank(0), Rank(1)][..]), "{error}");
        }
        // Both contributions count when the others come.
        let push_both = |client: &Client, value: f32| {
            for key in [1, 2] {
                let tensor = client.tensor(key).unwrap();
                let mut weights = [0.0f32; 4];
                client.push_pull_slice(&tensor, &[value; 4], &mut weights).unwrap();
                assert_eq!(weights, [6.0; 4]);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| push_both(&clients[0], 1.0));
            scope.spawn(|| push_both(&clients[1], 2.0));
        });
        cluster.assert_no_panic();
    }
}
