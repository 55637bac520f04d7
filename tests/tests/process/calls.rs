//! Calls to handlers of servers that run in this process, over shm and over tcp: every size arrives whole and is answered,
//! calls of one worker are taken in order, and a handler that is slow, missing, gone or broken is told as what it is.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_server::Call;
use gradwire_server::app::ReplyError;
use gradwire_tests::over_each;
use gradwire_tests::rigs::bed::{Bed, ECHO, echo};
use gradwire_worker::{CallFault, CallRequest, ClientError, OpError, Piece};
use proto_common::transport::Driver;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

fn bytes(count: usize, seed: u8) -> Vec<u8> {
    (0..count).map(|at| (at % 251) as u8 ^ seed ^ (at >> 16) as u8).collect()
}

fn request(head: &[u8], body: Vec<u8>) -> CallRequest {
    CallRequest { head: head.to_vec(), body: vec![Piece::Bytes(body)], ..CallRequest::default() }
}

fn fault(error: ClientError) -> CallFault {
    match error {
        ClientError::Op(OpError::Call { fault, .. }) => fault,
        other => panic!("{other}"),
    }
}

over_each!(
    every_size_arrives_and_comes_back,
    pieces_are_seen_as_one,
    calls_of_a_worker_are_taken_in_order,
    a_handler_that_is_not_there_is_waited_for_and_told,
    a_handler_that_lets_go_or_panics_is_told,
    a_slow_handler_costs_its_own_calls_only,
    a_body_that_is_too_long_is_told,
    a_reply_without_room_is_told,
    more_than_is_kept_goes_through_in_turns,
    more_than_the_pool_has_goes_through_in_turns,
    announced_replies_have_room_where_their_requests_were,
    a_full_pool_that_nothing_comes_back_to_is_told,
    a_server_that_ends_ends_its_calls,
    a_handler_that_does_not_return_holds_up_nobody_s_end,
    replies_longer_than_is_kept_are_refused_at_the_handler,
    callbacks_run_and_bad_requests_are_refused,
);

// Where bodies are read, and replies written, by a device, out of memory that is registered with it.
gradwire_tests::over!(#[ignore = "needs an RDMA device: tests/guest/run.sh"] over_verbs, Verbs:
    every_size_arrives_and_comes_back,
    pieces_are_seen_as_one,
    calls_of_a_worker_are_taken_in_order,
    a_reply_without_room_is_told,
    more_than_is_kept_goes_through_in_turns,
);

fn every_size_arrives_and_comes_back(driver: Driver) {
    let bed = Bed::new(driver, (2, 2), |_| {});
    // An emulated device is slow.
    let largest = if driver == Driver::Verbs { 6 << 20 } else { 64 << 20 };
    let sizes = [0, 1, 16, 4 << 10, 8 << 10, 32 << 10, (32 << 10) + 1, 64 << 10, 300_001, 1 << 20, largest];
    for (at, size) in sizes.into_iter().enumerate() {
        let (client, server) = (&bed.clients[at % 2], (at / 2 % 2) as u32);
        for known in [false, true] {
            let sent = bytes(size, at as u8);
            let mut call = request(b"head", sent.clone());
            call.reply_bytes = if known { size as u64 } else { 0 };
            let reply = client.call(ECHO, server, call).unwrap().wait().unwrap();
            assert_eq!(reply.head, b"head");
            assert!(*reply.body == *sent, "{size} bytes came back otherwise: {}", reply.body.len());
            assert!(matches!(&reply.request[..], [Piece::Bytes(back)] if *back == sent));
        }
    }
    bed.end();
}

fn pieces_are_seen_as_one(driver: Driver) {
    let bed = Bed::new(driver, (1, 1), |settings| settings.transport.payload_checksum = true);
    let client = &bed.clients[0];
    for (small, large) in [(10, 100), (10, 200_000), (3000, 5_000_000)] {
        let mut buffer = client.allocate(large as u64).unwrap();
        buffer.copy_from_slice(&bytes(large, 3));
        let adopted = fabric::Region::of_bytes(bytes(large, 4));
        let body = vec![Piece::Bytes(bytes(small, 1)), Piece::Buffer(buffer), Piece::Adopted(adopted)];
        let into = client.allocate(1 << 24).unwrap();
        let call = CallRequest { body, reply_into: Some(into.into()), ..CallRequest::default() };
        let reply = client.call(ECHO, 0, call).unwrap().wait().unwrap();
        let want = [bytes(small, 1), bytes(large, 3), bytes(large, 4)].concat();
        assert!(*reply.body == *want);
        assert_eq!(
            reply.body.into_buffer().map(|buffer| buffer.len()),
            (want.len() > 8000).then_some(1 << 24)
        );
    }
    bed.end();
}

fn calls_of_a_worker_are_taken_in_order(driver: Driver) {
    const CALLS: u32 = 1000;
    const APP: u32 = 7;
    let bed = Bed::new(driver, (1, 2), |_| {});
    let (seen, order) = channel();
    let tell = move |call: Call| {
        let number = u32::from_le_bytes(call.head[..4].try_into().unwrap());
        assert!(call.body.iter().all(|byte| *byte == number as u8));
        seen.send((call.from.0, number)).unwrap();
        call.reply.send(&call.head, Vec::new()).unwrap();
    };
    bed.servers[0].register(APP, tell).unwrap();
    std::thread::scope(|scope| {
        for client in &bed.clients {
            scope.spawn(move || {
                let handles: Vec<_> = (0..CALLS)
                    .map(|number| {
                        // Some are read by the server, which takes longer than what comes in a slot.
                        let body = vec![number as u8; if number % 5 == 0 { 100_000 } else { 10 }];
                        client.call(APP, 0, request(&number.to_le_bytes(), body)).unwrap()
                    })
                    .collect();
                for (number, handle) in handles.into_iter().enumerate() {
                    assert_eq!(handle.wait().unwrap().head, (number as u32).to_le_bytes());
                }
            });
        }
    });
    assert!(bed.servers[0].unregister(APP).unwrap());
    let order: Vec<_> = order.iter().collect();
    for rank in 0..2 {
        let mine: Vec<u32> = order.iter().filter(|(from, _)| *from == rank).map(|(_, at)| *at).collect();
        assert_eq!(mine, (0..CALLS).collect::<Vec<_>>());
    }
    bed.end();
}

fn a_handler_that_is_not_there_is_waited_for_and_told(driver: Driver) {
    let bed = Bed::new(driver, (1, 1), |_| {});
    let client = &bed.clients[0];
    let mut short = request(b"", vec![1]);
    short.timeout = Some(Duration::from_millis(200));
    let error = client.call(5, 0, short).unwrap().wait().unwrap_err();
    assert!(error.to_string().contains("handler 5 at server 0"), "{error}");
    assert_eq!(fault(error), CallFault::NoHandler);
    let early = client.call(5, 0, request(b"early", vec![2; 100_000])).unwrap();
    // What ended by its deadline is not handed over any more.
    let (seen, order) = channel();
    bed.servers[0]
        .register(5, move |call: Call| {
            seen.send(call.body.len()).unwrap();
            call.reply.send(b"late", Vec::new()).unwrap();
        })
        .unwrap();
    assert_eq!(early.wait().unwrap().head, b"late");
    assert_eq!(order.recv_timeout(PATIENCE).unwrap(), 100_000);
    let taken = bed.servers[0].register(5, echo).unwrap_err();
    assert!(taken.to_string().contains("already registered"), "{taken}");
    bed.end();
}

fn a_handler_that_lets_go_or_panics_is_told(driver: Driver) {
    let bed = Bed::new(driver, (1, 1), |_| {});
    let client = &bed.clients[0];
    bed.servers[0].register(5, |call: Call| assert!(&*call.body != b"panic", "as asked")).unwrap();
    let dropped = client.call(5, 0, request(b"", vec![1])).unwrap().wait().unwrap_err();
    assert_eq!(fault(dropped), CallFault::NoReply);
    let panicked = client.call(5, 0, request(b"", b"panic".to_vec())).unwrap().wait().unwrap_err();
    assert_eq!(fault(panicked), CallFault::NoReply);
    let mut after = request(b"", vec![1]);
    after.timeout = Some(Duration::from_millis(200));
    let gone = client.call(5, 0, after).unwrap().wait().unwrap_err();
    assert_eq!(fault(gone), CallFault::NoHandler);
    bed.servers[0].register(5, echo).unwrap();
    assert_eq!(client.call(5, 0, request(b"again", vec![])).unwrap().wait().unwrap().head, b"again");
    bed.end();
}

fn a_slow_handler_costs_its_own_calls_only(driver: Driver) {
    let bed = Bed::new(driver, (1, 1), |_| {});
    let client = &bed.clients[0];
    let gate = Arc::new(Barrier::new(2));
    let held = gate.clone();
    bed.servers[0]
        .register(5, move |call: Call| {
            held.wait();
            call.reply.send(b"slow", Vec::new()).unwrap();
        })
        .unwrap();
    let mut first = request(b"", vec![]);
    first.timeout = Some(Duration::from_millis(100));
    let first = client.call(5, 0, first).unwrap();
    let second = client.call(5, 0, request(b"", vec![])).unwrap();
    for _ in 0..100 {
        client.call(ECHO, 0, request(b"", vec![3; 50_000])).unwrap().wait().unwrap();
    }
    let error = first.wait().unwrap_err();
    assert_eq!(fault(error), CallFault::Deadline);
    gate.wait();
    gate.wait();
    assert_eq!(second.wait().unwrap().head, b"slow");
    bed.end();
}

fn a_body_that_is_too_long_is_told(driver: Driver) {
    let bed = Bed::new(driver, (1, 1), |settings| settings.memory.call_bytes = 1 << 20);
    let client = &bed.clients[0];
    let error = client.call(ECHO, 0, request(b"", vec![0; (1 << 20) + 1])).unwrap().wait().unwrap_err();
    assert!(error.to_string().contains("memory.call_bytes"), "{error}");
    assert_eq!(fault(error), CallFault::TooLong { bytes: (1 << 20) + 1 });
    let whole = client.call(ECHO, 0, request(b"", vec![9; 500_000])).unwrap().wait().unwrap();
    assert_eq!(whole.body.len(), 500_000);
    bed.end();
}

fn a_reply_without_room_is_told(driver: Driver) {
    let bed = Bed::new(driver, (1, 1), |settings| settings.memory.pool_bytes = 1 << 20);
    bed.servers[0].register(5, |call: Call| call.reply.send(b"", vec![1; 2 << 20]).unwrap()).unwrap();
    let client = &bed.clients[0];
    let error = client.call(5, 0, request(b"", vec![])).unwrap().wait().unwrap_err();
    assert!(error.to_string().contains("memory.pool_bytes"), "{error}");
    assert_eq!(fault(error), CallFault::NoRoom { bytes: 2 << 20 });
    assert_eq!(client.call(ECHO, 0, request(b"still", vec![])).unwrap().wait().unwrap().head, b"still");
    bed.end();
}

fn more_than_is_kept_goes_through_in_turns(driver: Driver) {
    let bed = Bed::new(driver, (1, 2), |settings| settings.memory.call_bytes = 1 << 20);
    std::thread::scope(|scope| {
        for client in &bed.clients {
            scope.spawn(move || {
                let body = || vec![client.rank() as u8; 400_000];
                let calls: Vec<_> =
                    (0..20).map(|_| client.call(ECHO, 0, request(b"", body())).unwrap()).collect();
                for call in calls {
                    assert!(*call.wait().unwrap().body == *body());
                }
            });
        }
    });
    bed.end();
}

/// Neither requests nor replies fit together. Some replies have room from the start, others are announced.
fn more_than_the_pool_has_goes_through_in_turns(driver: Driver) {
    let bed = Bed::new(driver, (2, 1), |settings| {
        (settings.memory.pool_bytes, settings.memory.call_bytes) = (1 << 20, 1 << 20);
    });
    let client = &bed.clients[0];
    let (tell, told) = channel();
    for at in 0..1000usize {
        let size = [10, 3_000, 20_000, 100_000, 450_000][at % 5];
        let sent = bytes(size, at as u8);
        let mut call = request(b"", sent.clone());
        call.reply_bytes = if at % 3 == 0 { size as u64 } else { 0 };
        let tell = tell.clone();
        let check = move |reply: Result<gradwire_worker::CallReply, OpError>| {
            tell.send(reply.map(|reply| *reply.body == *sent)).unwrap();
        };
        client.call(ECHO, (at % 2) as u32, call).unwrap().on_end(check);
    }
    for _ in 0..1000 {
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Ok(true));
    }
    bed.end();
}

/// Requests that travel in their frames fill the pool, and each waits for its reply.
fn announced_replies_have_room_where_their_requests_were(driver: Driver) {
    let bed = Bed::new(driver, (1, 1), |settings| settings.memory.pool_bytes = 1 << 20);
    let (hold, held) = channel();
    bed.servers[0].register(5, move |call: Call| hold.send(call.reply).unwrap()).unwrap();
    let call = |_| bed.clients[0].call(5, 0, request(b"", vec![1; 20_000])).unwrap();
    let calls: Vec<_> = (0..52).map(call).collect();
    let replies: Vec<_> = calls.iter().map(|_| held.recv_timeout(PATIENCE).unwrap()).collect();
    replies.into_iter().for_each(|reply| reply.send(b"", vec![2; 20_000]).unwrap());
    for call in calls {
        assert_eq!(call.wait().unwrap().body.len(), 20_000);
    }
    bed.end();
}

fn a_full_pool_that_nothing_comes_back_to_is_told(driver: Driver) {
    let bed = Bed::new(driver, (1, 1), |settings| settings.memory.pool_bytes = 1 << 20);
    let client = &bed.clients[0];
    let held = client.allocate(600_000).unwrap();
    let call = || CallRequest { timeout: Some(Duration::from_millis(50)), ..request(b"", vec![1; 500_000]) };
    let error = client.call(ECHO, 0, call()).unwrap_err();
    assert!(error.to_string().contains("the program holds its buffers or replies"), "{error}");
    // It is the handler that keeps the memory.
    let (hold, kept) = channel();
    bed.servers[0].register(5, move |call: Call| hold.send(call.reply).unwrap()).unwrap();
    drop(held);
    let waiting = client.call(5, 0, request(b"", vec![1; 600_000])).unwrap();
    let error = client.call(ECHO, 0, call()).unwrap_err();
    assert!(error.to_string().contains("earlier operations of this client: server 0"), "{error}");
    assert!(matches!(fault(error), CallFault::PoolFull { .. }));
    kept.recv_timeout(PATIENCE).unwrap().send(b"", Vec::new()).unwrap();
    waiting.wait().unwrap();
    let whole = client.call(ECHO, 0, request(b"", vec![1; 500_000])).unwrap().wait().unwrap();
    assert_eq!(whole.body.len(), 500_000);
    drop(whole);
    // An announced reply waits until the call's deadline.
    bed.servers[0].register(6, |call: Call| call.reply.send(b"", vec![1; 200_000]).unwrap()).unwrap();
    let call = || CallRequest { timeout: Some(Duration::from_secs(3)), ..request(b"", vec![]) };
    let held = client.allocate(900_000).unwrap();
    let error = client.call(6, 0, call()).unwrap().wait().unwrap_err();
    assert_eq!(fault(error), CallFault::NoRoom { bytes: 200_000 });
    drop(held);
    assert_eq!(client.call(6, 0, call()).unwrap().wait().unwrap().body.len(), 200_000);
    bed.end();
}

fn a_server_that_ends_ends_its_calls(driver: Driver) {
    let mut bed = Bed::new(driver, (2, 1), |_| {});
    let client = &bed.clients[0];
    let (hold, held) = channel();
    bed.servers[1].register(5, move |call: Call| hold.send(call.reply).unwrap()).unwrap();
    let waiting = client.call(5, 1, request(b"", vec![1; 100_000])).unwrap();
    let reply = held.recv_timeout(PATIENCE).unwrap();
    let began = Instant::now();
    let server = bed.servers.remove(1);
    server.close().unwrap();
    let error = waiting.wait().unwrap_err();
    assert!(began.elapsed() < PATIENCE && error.to_string().contains("server 1"), "{error}");
    assert!(reply.send(b"", Vec::new()).is_err(), "the server has ended");
    drop(bed);
}

fn a_handler_that_does_not_return_holds_up_nobody_s_end(driver: Driver) {
    let mut bed = Bed::new(driver, (2, 1), |settings| settings.deadlines.drain_ms = 200);
    let client = &bed.clients[0];
    let ((go_on, blocked), (tell, told)) = (channel::<()>(), channel());
    bed.servers[1]
        .register(5, move |call: Call| {
            tell.send(call.from).unwrap();
            // Until the test is over.
            let _ = blocked.recv();
        })
        .unwrap();
    let call = client.call(5, 1, request(b"", vec![])).unwrap();
    told.recv_timeout(PATIENCE).unwrap();
    let error = bed.servers[1].unregister(5).unwrap_err().to_string();
    assert!(error.contains("handler 5") && error.contains("200 ms"), "{error}");
    let server = bed.servers.remove(1);
    // Its thread is left behind already; another one is not.
    server.register(6, echo).unwrap();
    server.close().unwrap();
    assert!(call.wait().is_err());
    drop(go_on);
    drop(bed);
    let mut bed = Bed::new(driver, (2, 1), |settings| settings.deadlines.drain_ms = 200);
    let ((go_on, blocked), (tell, told)) = (channel::<()>(), channel());
    bed.servers[1]
        .register(5, move |call: Call| {
            tell.send(call.from).unwrap();
            let _ = blocked.recv();
        })
        .unwrap();
    let call = bed.clients[0].call(5, 1, request(b"", vec![])).unwrap();
    told.recv_timeout(PATIENCE).unwrap();
    let began = Instant::now();
    let error = bed.servers.remove(1).close().unwrap_err();
    assert!(error.to_string().contains("handler 5 has not returned"), "{error:#}");
    assert!(began.elapsed() < PATIENCE);
    assert!(call.wait().is_err());
    drop((go_on, bed));
}

fn replies_longer_than_is_kept_are_refused_at_the_handler(driver: Driver) {
    let bed = Bed::new(driver, (1, 1), |settings| settings.memory.call_bytes = 1 << 20);
    let (tell, told) = channel();
    let answer = move |call: Call| tell.send(call.reply.send(b"", vec![1; (1 << 20) + 1])).unwrap();
    bed.servers[0].register(5, answer).unwrap();
    let error = bed.clients[0].call(5, 0, request(b"", vec![])).unwrap().wait().unwrap_err();
    assert_eq!(fault(error), CallFault::NoReply);
    let error = told.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(error, ReplyError::LongBody { bytes: (1 << 20) + 1, most: 1 << 20 });
    assert!(error.to_string().contains("memory.call_bytes"), "{error}");
    bed.end();
}

fn callbacks_run_and_bad_requests_are_refused(driver: Driver) {
    let bed = Bed::new(driver, (1, 1), |_| {});
    let client = &bed.clients[0];
    let (tell, told) = channel();
    let handle = client.call(ECHO, 0, request(b"x", vec![5; 100_000])).unwrap();
    handle.on_end(move |reply| tell.send(reply.map(|reply| reply.body.len())).unwrap());
    assert_eq!(told.recv_timeout(PATIENCE).unwrap(), Ok(100_000));
    let refused = |server, call, why: &str| {
        let error = client.call(ECHO, server, call).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(1, request(b"", vec![]), "the job has 1 servers");
    refused(0, request(&[0; 513], vec![]), "at most 512");
    let body = (0..17).map(|_| Piece::Bytes(vec![])).collect();
    refused(0, CallRequest { body, ..CallRequest::default() }, "at most 16");
    bed.end();
}
