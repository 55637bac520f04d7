//! Messages between programs, by way of the scheduler: between any two members and to groups, answered once by each
//! receiver; late handlers, missing handlers, dropped answers, members that left, and bodies that are too long.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use daemon::post::{Post, PostAnswer, Posts};
use gradwire_tests::rigs::bed::Bed;
use proto_common::ids::{MemberId, Rank, Role};
use proto_common::message::{NodeGroup, POST_BODY_BYTES_MAX, PostError, PostMessage, PostReply, PostTo};
use proto_common::transport::Driver;
use std::time::{Duration, Instant};

const APP: u32 = 3;
const PATIENCE: Duration = Duration::from_secs(60);
const EVERYONE: PostTo = PostTo::Group(NodeGroup { scheduler: true, servers: true, workers: true });

fn bed() -> (Bed, Vec<(MemberId, Posts)>) {
    let bed = Bed::new(Driver::Tcp, (2, 2), |_| {});
    let id = |role, rank: usize| MemberId { role, rank: Rank(rank as u32) };
    let servers =
        bed.servers.iter().enumerate().map(|(rank, of)| (id(Role::Server, rank), of.posts().clone()));
    let workers =
        bed.clients.iter().enumerate().map(|(rank, of)| (id(Role::Worker, rank), of.posts().clone()));
    let scheduler = (id(Role::Scheduler, 0), bed.scheduler.posts().clone());
    let all = std::iter::once(scheduler).chain(servers).chain(workers).collect();
    (bed, all)
}

fn message(head: i32, body: &[u8]) -> PostMessage {
    PostMessage { app: APP, head, body: body.to_vec() }
}

/// Answers with the head's negative, and the body with its sender before it.
fn answer(post: Post) {
    let body = [post.from.to_string().as_bytes(), &post.body].concat();
    // One that is too long is told to both.
    let _ = post.reply.send(-post.head, body);
}

/// All answers.
fn ask(posts: &Posts, to: PostTo, message: PostMessage, within: Duration) -> Vec<PostAnswer> {
    let (tell, told) = std::sync::mpsc::channel();
    posts.post(to, message, within, move |answer| tell.send(answer).unwrap());
    // The sender goes with the last answer.
    std::iter::from_fn(|| told.recv_timeout(within + PATIENCE).ok()).collect()
}

fn error(mut answers: Vec<PostAnswer>) -> PostError {
    assert_eq!(answers.len(), 1);
    answers.remove(0).result.unwrap_err()
}

#[test]
fn everyone_reaches_everyone_and_groups() {
    let (bed, all) = bed();
    for (_, posts) in &all {
        assert!(posts.register(APP, answer));
        assert!(!posts.register(APP, answer), "there is one already");
    }
    for (from, posts) in &all {
        for (to, _) in &all {
            let answers = ask(posts, PostTo::One(*to), message(7, b"!"), PATIENCE);
            let want = Ok(PostReply { head: -7, body: format!("{from}!").into_bytes() });
            assert!(answers.len() == 1 && answers[0].from == *to && answers[0].result == want, "{answers:?}");
        }
        let mut answers = ask(posts, EVERYONE, message(1, b""), PATIENCE);
        answers.sort_by_key(|answer| answer.from);
        let mut who: Vec<_> = all.iter().map(|(id, _)| *id).collect();
        who.sort_unstable();
        assert_eq!(answers.iter().map(|answer| answer.from).collect::<Vec<_>>(), who);
        assert!(answers.iter().all(|answer| answer.of == 5 && answer.result.is_ok()), "{answers:?}");
        let workers = PostTo::Group(NodeGroup::WORKERS);
        assert_eq!(ask(posts, workers, message(1, &[7; 1 << 20]), PATIENCE).len(), 2);
    }
    // In order, also those that nobody waits for one by one.
    let (tell, told) = std::sync::mpsc::channel();
    assert!(all[2].1.unregister(APP).unwrap());
    all[2].1.register(APP, move |post: Post| tell.send(post.head).unwrap());
    for head in 0..300 {
        all[4].1.post(PostTo::One(all[2].0), message(head, b""), PATIENCE, drop);
    }
    let heads: Vec<i32> = told.iter().take(300).collect();
    assert_eq!(heads, (0..300).collect::<Vec<_>>());
    drop(all);
    bed.end();
}

#[test]
fn what_cannot_be_answered_is_told() {
    let (bed, all) = bed();
    let (worker, server) = (&all[3], &all[1]);
    let ask = |to, message, within| ask(&worker.1, to, message, within);
    let began = Instant::now();
    let (tell, told) = std::sync::mpsc::channel();
    let short = Duration::from_millis(200);
    worker.1.post(PostTo::One(server.0), message(1, b""), short, move |answer| tell.send(answer).unwrap());
    // The receiver counts its time from when it has come: before the answer to one that was sent after it.
    assert!(server.1.register(APP + 1, answer));
    let after = PostMessage { app: APP + 1, ..message(1, b"") };
    assert!(ask(PostTo::One(server.0), after, PATIENCE)[0].result.is_ok());
    let gone_by = Instant::now() + short;
    let missing = told.recv_timeout(PATIENCE).unwrap().result.unwrap_err();
    assert!(matches!(missing, PostError::Deadline { member, .. } if member == server.0), "{missing}");
    assert!(began.elapsed() < PATIENCE);
    // Sleep: until its time is up at the receiver, too.
    std::thread::sleep(gone_by.saturating_duration_since(Instant::now()));
    // A handler that comes later takes what still has time, and not what has not.
    let (tell, told) = std::sync::mpsc::channel();
    worker.1.post(PostTo::One(server.0), message(2, b""), PATIENCE, move |answer| tell.send(answer).unwrap());
    server.1.register(APP, |post: Post| {
        assert_eq!(post.head, 2);
        answer(post);
    });
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().result.unwrap().head, -2);
    assert!(server.1.unregister(APP).unwrap() && !server.1.unregister(APP).unwrap());
    server.1.register(APP, drop::<Post>);
    assert_eq!(error(ask(PostTo::One(server.0), message(1, b""), PATIENCE)), PostError::NoReply);
    let long = error(ask(PostTo::One(server.0), message(1, &vec![0; POST_BODY_BYTES_MAX + 1]), PATIENCE));
    assert_eq!(long, PostError::TooLong { bytes: POST_BODY_BYTES_MAX as u64 + 1 });
    let nobody = PostTo::One(MemberId { role: Role::Server, rank: Rank(9) });
    assert_eq!(error(ask(nobody, message(1, b""), PATIENCE)), PostError::Nobody);
    bed.clients[1].close();
    let gone = all[4].0;
    let error = loop {
        // Until the scheduler has heard its goodbye.
        let error = error(ask(PostTo::One(gone), message(1, b""), Duration::from_millis(500)));
        if !matches!(error, PostError::Deadline { .. }) {
            break error;
        }
    };
    assert_eq!(error, PostError::Gone { member: gone });
    drop(all);
    bed.end();
}

#[test]
fn an_answer_just_before_the_goodbye_arrives() {
    const WORKERS: u32 = 8;
    let bed = Bed::new(Driver::Tcp, (1, WORKERS), |_| {});
    let server = bed.servers[0].posts();
    for (rank, client) in (0..WORKERS).zip(&bed.clients) {
        let (tell, answered) = std::sync::mpsc::channel();
        client.posts().register(APP, move |post: Post| {
            answer(post);
            tell.send(()).unwrap();
        });
        let (tell, told) = std::sync::mpsc::channel();
        let to = PostTo::One(MemberId { role: Role::Worker, rank: Rank(rank) });
        server.post(to, message(1, b""), PATIENCE, move |answer| tell.send(answer).unwrap());
        answered.recv_timeout(PATIENCE).unwrap();
        client.close();
        let got = told.recv_timeout(PATIENCE).unwrap();
        assert!(got.result.is_ok(), "{got:?}");
    }
    bed.end();
}
