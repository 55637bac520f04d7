//! Jobs that are held up in every way that is known, and what is found.

use super::*;
use serde_json::{Value, json};

fn member(role: Role, rank: u32, more: Value) -> Value {
    let mut member = json!({
        "role": role, "rank": rank, "pid": 4_000 + rank, "build": "0.1.0", "data_address": null,
        "http_address": "10.0.0.9:90", "silent_ms": 20, "left": false, "links_ready": true, "round": 70,
        "in_flight": 0, "oldest": null, "links": [],
    });
    member.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    member
}

fn wait(cause: WaitCause, on: &[u32], waited_ms: u64) -> Value {
    json!({ "in_flight": 1, "oldest": { "what": "a wait", "waited_ms": waited_ms, "cause": cause, "on": on } })
}

/// What a server says: whose operations wait for which workers.
fn at_server(waits: &[(u32, &[u32])]) -> Value {
    let one = |(of, on): &(u32, &[u32])| json!({ "what": "a round", "of": of, "waited_ms": 3_000, "cause": WaitCause::Contributions, "on": on });
    let waits: Vec<Value> = waits.iter().map(one).collect();
    json!({ "oldest": waits[0], "others": waits[1..] })
}

fn job(members: &[Value], more: Value) -> ClusterStatus {
    let mut status = json!({
        "job": 7, "phase": "running", "epoch": "1.2", "workers": 3, "servers": 2, "silence_ms": 10_000,
        "uptime_ms": 65_000, "tensors": 3, "tensor_bytes": 1_500, "uncopied_chunks": 0, "members": members,
        "missing": [], "barriers": [], "ending": null, "rounds_per_second": 0.0,
    });
    status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(status).unwrap()
}

/// The only finding.
fn one(status: &ClusterStatus) -> Finding {
    let found = causes(status);
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().unwrap()
}

fn server(rank: u32, more: Value) -> Value {
    member(Role::Server, rank, more)
}

fn worker(rank: u32, more: Value) -> Value {
    member(Role::Worker, rank, more)
}

/// Worker 0 waits for server 0, whose wait is given.
fn behind_server(wait_of_it: Value, others: &[Value]) -> ClusterStatus {
    let first = [server(0, wait_of_it), worker(0, wait(WaitCause::Answers, &[0], 3_100))];
    job(&[&first[..], others].concat(), json!({}))
}

#[test]
fn a_trainer_that_does_not_contribute_is_the_cause() {
    let status = behind_server(wait(WaitCause::Contributions, &[1], 3_000), &[worker(1, json!({}))]);
    let found = one(&status);
    assert_eq!(found.what, "worker 1 is what the others wait for, for 3.1 s");
    let seen = [
        "worker 0: a wait, for 3.1 s",
        "server 0: a wait, for 3.0 s",
        "worker 1: nothing under way, round 70, heard of 20 ms ago",
    ];
    assert_eq!(found.seen, seen);
    assert!(found.fix.contains("process 4001 on 10.0.0.9"), "{}", found.fix);
}

#[test]
fn trouble_at_the_port_of_one_that_waits_is_shown() {
    let port = json!({ "port": { "device": "rxe0", "port": 1, "trouble": [["duplicate_request", 3], ["rcvd_seq_err", 12]] } });
    let status = behind_server(wait(WaitCause::Contributions, &[1], 3_000), &[worker(1, port)]);
    let line = "worker 1: port 1 of RDMA device rxe0 has lately counted duplicate_request 3, rcvd_seq_err 12";
    assert_eq!(one(&status).seen.last().unwrap(), line);
}

#[test]
fn of_several_the_one_that_waits_for_nobody_is_the_cause() {
    let slow = [worker(1, wait(WaitCause::Answers, &[0], 2_000)), worker(2, json!({}))];
    let status = behind_server(wait(WaitCause::Contributions, &[1, 2], 3_000), &slow);
    assert_eq!(one(&status).what, "worker 2 is what the others wait for, for 3.1 s");
}

#[test]
fn a_worker_with_something_under_way_is_not_said_to_rest() {
    let busy = worker(1, json!({ "in_flight": 2 }));
    let found = one(&behind_server(wait(WaitCause::Contributions, &[1], 3_000), &[busy]));
    assert_eq!(found.what, "worker 1 is what the others wait for, for 3.1 s");
    assert!(found.fix.starts_with("it has 2 operations under way"), "{}", found.fix);
    let found = one(&behind_server(wait(WaitCause::Contributions, &[1], 3_000), &[worker(1, json!({}))]));
    assert!(found.fix.starts_with("it has nothing under way"), "{}", found.fix);
}

#[test]
fn a_worker_that_has_no_way_to_its_servers_is_not_said_to_rest() {
    let unlinked = worker(1, json!({ "links_ready": false, "round": 0 }));
    for others in [&[unlinked.clone()][..], &[worker(2, json!({})), unlinked.clone()][..]] {
        let found =
            one(&behind_server(wait(WaitCause::Contributions, &[1, 2][..others.len()], 3_000), others));
        assert_eq!(found.what, "worker 1 is what the others wait for, for 3.1 s");
        assert!(
            found.fix.starts_with("it is not connected to its servers; its log says why"),
            "{}",
            found.fix
        );
        assert!(
            found.fix.contains("certificate, firewall") && found.fix.contains("doctor --peer"),
            "{}",
            found.fix
        );
        let line = "worker 1: not connected to its servers, round 0, heard of 20 ms ago";
        assert_eq!(found.seen.last().unwrap(), line);
    }
}

#[test]
fn a_worker_that_has_no_way_to_its_servers_is_no_straggler() {
    let slow = |worker: u32| json!({ "worker": worker, "behind": 3, "waited_for_percent": 100 });
    let members = [worker(0, json!({ "links_ready": false })), worker(1, json!({}))];
    let found = one(&job(&members, json!({ "stragglers": [slow(0), slow(1)] })));
    assert_eq!(found.what, "worker 1 is slower than the others, round after round");
    assert_eq!(causes(&job(&members, json!({ "stragglers": [slow(0)] }))), []);
}

#[test]
fn where_to_look_is_said_as_it_is_known() {
    let loopback = json!({ "data_address": "127.0.0.1:9", "http_address": "[::1]:90", "host": "node-a" });
    let place = |members: &[Value]| {
        let status = job(members, json!({}));
        place(&status, status.members.last().unwrap())
    };
    let alone = [server(0, loopback.clone()), worker(1, json!({ "http_address": "localhost:7" }))];
    assert_eq!(place(&alone), "process 4001 on localhost", "all of it is on this host");
    let with = |data_address: &str| {
        server(0, json!({ "data_address": data_address, "http_address": "127.0.0.1:90" }))
    };
    assert_eq!(
        place(&[with("10.0.0.3:9")]),
        "process 4000 on 10.0.0.3",
        "and not where its HTTP endpoints are"
    );
    let here = json!({ "http_address": "127.0.0.1:90", "host": "node-b" });
    assert_eq!(place(&[with("10.0.0.3:9"), worker(1, here)]), "process 4001 on node-b");
    let unnamed = worker(1, json!({ "http_address": "127.0.0.1:90" }));
    assert_eq!(place(&[with("10.0.0.3:9"), unnamed]), "process 4001 of worker 1");
    assert_eq!(place(&[with("[fd00::1]:9"), server(1, loopback)]), "process 4001 on node-a");
}

#[test]
fn a_lane_that_does_not_answer_is_named() {
    let late = json!({ "oldest": { "what": "lane 1 has not answered", "waited_ms": 4_000, "cause": "lane", "on": [] } });
    let found = one(&behind_server(late, &[]));
    assert_eq!(found.what, "server 0: lane 1 has not answered, for 4.0 s");
    assert!(found.fix.contains("stuck"), "{}", found.fix);
}

#[test]
fn who_is_not_there_is_named() {
    let status = behind_server(wait(WaitCause::Contributions, &[1], 3_000), &[]);
    assert_eq!(one(&status).what, "worker 1 is what the others wait for, for 3.1 s, and it is not there");
}

#[test]
fn who_waits_for_one_another_is_told_so() {
    let second = worker(1, wait(WaitCause::Answers, &[0], 3_000));
    let crossed = at_server(&[(0, &[1]), (1, &[0])]);
    let found = one(&behind_server(crossed, std::slice::from_ref(&second)));
    assert_eq!(found.what, "worker 0, worker 1 wait for one another, for 3.1 s");
    assert!(found.fix.contains("different orders"), "{}", found.fix);
    // One that waits for itself is no others' victim.
    let found = one(&behind_server(at_server(&[(0, &[0])]), &[]));
    assert_eq!(found.what, "worker 0 waits for itself, for 3.1 s");
    assert!(found.fix.contains("push to a tensor before"), "{}", found.fix);
    // The same server, but what the second one waits for is a third one's.
    let found =
        one(&behind_server(at_server(&[(0, &[1]), (1, &[2])]), &[second.clone(), worker(2, json!({}))]));
    assert_eq!(found.what, "worker 2 is what the others wait for, for 3.1 s");
    assert_eq!(found.seen.len(), 5, "{:?}", found.seen);
    // It does not say what it does about the second one's.
    let found = one(&behind_server(at_server(&[(0, &[1])]), &[second]));
    assert!(found.what.starts_with("server 0 has not answered, for 3.1 s"), "{}", found.what);
}

#[test]
fn what_waits_for_nobody_is_its_own_cause() {
    let nobody: &[u32] = &[];
    for (cause, words) in [
        (WaitCause::Checkpoint, "its disk is slower than training"),
        (WaitCause::Handler, "a handler of the program at server 0"),
        (WaitCause::Lane, "server 0 has everything that it needs"),
    ] {
        let mut server = wait(cause, nobody, 3_000);
        server["oldest"]["of"] = json!(0);
        let found = one(&behind_server(server, &[]));
        assert!(found.what.contains(words), "{}", found.what);
    }
    let found = one(&behind_server(json!({}), &[]));
    assert!(
        found.what.contains("server 0 has not answered, for 3.1 s, and waits for nobody"),
        "{}",
        found.what
    );
}

#[test]
fn a_copy_that_is_not_confirmed_leads_to_its_server() {
    let status = behind_server(wait(WaitCause::Copies, &[1], 3_000), &[server(1, json!({}))]);
    assert_eq!(one(&status).what, "server 1 has not confirmed its copies, for 3.1 s");
}

#[test]
fn what_lies_between_two_is_not_looked_for_behind_the_other() {
    for (cause, words) in [
        (WaitCause::Credits, "server 0 has granted no slot of its inbox, for 3.0 s"),
        (WaitCause::Links, "there is no connection to server 0, for 3.0 s"),
    ] {
        let busy = server(0, wait(WaitCause::Contributions, &[0], 2_000));
        let found = one(&job(&[busy, worker(0, wait(cause, &[0], 3_000))], json!({})));
        assert_eq!(found.what, words);
    }
}

#[test]
fn a_round_that_takes_its_time_holds_nobody_up() {
    let members = [server(0, wait(WaitCause::Contributions, &[0], 3_000)), worker(0, json!({}))];
    assert_eq!(causes(&job(&members, json!({ "rounds_per_second": 0.5 }))), []);
    assert_eq!(causes(&job(&members, json!({ "rounds_per_second": 1.0 }))).len(), 1);
    let soon = [server(0, wait(WaitCause::Contributions, &[0], WAIT_MIN_MS - 1)), worker(0, json!({}))];
    assert_eq!(causes(&job(&soon, json!({}))), []);
}

#[test]
fn other_things_that_hold_a_job_up() {
    let members = [json!({ "role": "server", "rank": 1 })];
    let cases = [
        (
            json!({ "phase": "assembling", "missing": members }),
            "the job has been waiting for members for 1 min 5 s: server 1",
        ),
        (
            json!({ "phase": "rebuilding", "missing": members }),
            "a new scheduler has been waiting for the members",
        ),
        (json!({ "phase": "ending", "ending": "server 0 failed" }), "the job is ending: server 0 failed"),
        (json!({ "recovery": { "awaited": [2] } }), "rounds wait for worker 2 to rejoin after a failure"),
        (
            json!({ "stragglers": [{ "worker": 1, "behind": 3, "waited_for_percent": 90 }] }),
            "worker 1 is slower than the others, round after round",
        ),
        (
            json!({ "barriers": [{ "name": "go", "arrived": [], "missing": members, "waited_ms": BARRIER_MIN_MS }] }),
            "barrier \"go\" waits for server 1, for 1.0 s",
        ),
        (
            json!({ "checkpoints": {
                "newest": null, "writing": 9, "stalled_ms": STALLED_MIN_MS, "parts": 1, "parts_expected": 2,
                "missing": [[1, 0]], "completed": 0, "failed": 0, "failure": null,
            } }),
            "nothing has come of the checkpoint of round 9 for 5.0 s",
        ),
        (
            json!({ "checkpoints": {
                "newest": null, "writing": null, "stalled_ms": 0, "parts": 0, "parts_expected": 0, "missing": [],
                "completed": 0, "failed": 4, "failure": null, "stopped": "parts of rounds [5, 10, 15] stay",
            } }),
            "no checkpoint is written any more",
        ),
    ];
    for (more, words) in cases {
        let found = one(&job(&[], more));
        assert!(found.what.contains(words), "{}", found.what);
        assert!(!found.fix.is_empty());
    }
    let load = json!({ "stored_bytes": 1, "credits_free": 1, "credits": 2, "spill_blocks_used": 4, "spill_blocks": 4 });
    assert!(one(&job(&[server(0, json!({ "load": load }))], json!({}))).what.contains("no memory left"));
    let load = json!({
        "stored_bytes": 1, "credits_free": 0, "credits": 2, "spill_blocks_used": 0, "spill_blocks": 4, "quarantined_bytes": 4096,
        "quarantined_for": 3,
    });
    let found = one(&job(&[server(0, json!({ "load": load }))], json!({})));
    assert!(found.what.contains("in quarantine: worker 3") && found.fix.contains("SIGSTOP"), "{found:?}");
    let silent = [worker(0, json!({ "silent_ms": 5_100 }))];
    assert!(one(&job(&silent, json!({}))).what.contains("no heartbeat from worker 0 for 5.1 s"));
    assert_eq!(causes(&job(&[], json!({}))), [], "nothing is wrong");
}
