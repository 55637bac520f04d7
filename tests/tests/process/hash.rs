//! The same weights to the last bit, whatever carries them: driver, number of servers, lanes, chunk size and
//! order of arrival must not show. Four workers, because two commute and prove nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::training::{SHM, TCP, UNIX, reference, trained, trained_by};

#[test]
fn the_reference_depends_on_seed_and_workers_and_on_nothing_else() {
    assert_eq!(reference(4), reference(4));
    assert_ne!(reference(4), reference(3), "the comparison below could not fail");
}

#[test]
fn one_two_and_three_servers_over_shm() {
    let expected = reference(4);
    for servers in 1..=3 {
        assert_eq!(trained(SHM, servers, 4, &[]), expected, "shm, {servers} servers");
    }
}

#[test]
fn one_two_and_three_servers_over_tcp() {
    let expected = reference(4);
    for (servers, carrier) in [(1, UNIX), (2, TCP), (3, UNIX)] {
        assert_eq!(trained(carrier, servers, 4, &[]), expected, "{}, {servers} servers", carrier.1);
    }
}

#[test]
fn two_workers_and_one() {
    for workers in 1..=2 {
        assert_eq!(trained(SHM, 2, workers, &[]), reference(workers), "shm, {workers} workers");
        assert_eq!(trained(TCP, 2, workers, &[]), reference(workers), "tcp, {workers} workers");
    }
}

#[test]
fn with_and_without_overlap_and_in_turns() {
    let expected = reference(4);
    for (carrier, overlap) in [(SHM, "off"), (SHM, "alternate"), (UNIX, "alternate")] {
        assert_eq!(
            trained_by(&["--overlap", overlap], carrier, 2, 4, &[]),
            expected,
            "{}, overlap {overlap}",
            carrier.1
        );
    }
}

#[test]
fn several_lanes() {
    let lanes = ["--set", "cluster.lanes=2"];
    let expected = reference(4);
    assert_eq!(trained(SHM, 2, 4, &lanes), expected, "shm, 2 lanes");
    assert_eq!(trained(UNIX, 1, 4, &lanes), expected, "tcp, 2 lanes");
}

#[test]
fn small_chunks_with_short_last_ones() {
    let chunks = ["--set", "cluster.chunk_bytes=4096"];
    let both = ["--set", "cluster.chunk_bytes=4096", "--set", "cluster.lanes=3"];
    let expected = reference(4);
    assert_eq!(trained(SHM, 2, 4, &chunks), expected, "shm, 4 KiB chunks");
    assert_eq!(trained(UNIX, 3, 4, &both), expected, "tcp, 4 KiB chunks, 3 lanes");
}
