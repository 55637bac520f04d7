//! The runtime over loopback: whole jobs, and peers that misbehave.

use super::*;
use daemon::control::{Connection, LinkError, LinkEvent, SchedulerLink};
use daemon::security::Security;
use daemon::shutdown::{self, Trigger};
use proto_common::ids::{Epoch, Incarnation};
use proto_common::limits::{FIRST_FRAME_BYTES_MAX, PROTOCOL_VERSION};
use proto_common::message::{
    Member, MemberReport, NodeGroup, POST_BODY_BYTES_MAX, PostMessage, PostReply, PostTo, Register, Resume,
    ToScheduler,
};
use proto_common::transport::Policies;
use std::net::Ipv4Addr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(30);

struct Job {
    settings: Settings,
    http: String,
    trigger: Trigger,
    task: JoinHandle<Result<Outcome, anyhow::Error>>,
}

async fn job(servers: u32, workers: u32, edit: impl FnOnce(&mut Settings)) -> Job {
    let mut settings = Settings::default();
    settings.scheduler.port = 0;
    settings.cluster.servers = servers;
    settings.cluster.workers = workers;
    settings.deadlines.heartbeat_ms = 20;
    settings.deadlines.silence_ms = 1_000;
    settings.deadlines.handshake_ms = 200;
    // Tests come one by one without ranks, and want each to be welcome at once: no scheduler before this one can have given any.
    settings.deadlines.scheduler_ms = 0;
    edit(&mut settings);
    let listeners = bind(&settings).await.unwrap();
    settings.scheduler.port = listeners.control.local_addr().unwrap().port();
    let http = http::address_of(listeners.http.as_ref()).unwrap();
    let (trigger, shutdown) = shutdown::channel();
    let scheduler = settings.clone();
    let told = (Notify::default(), Flight::embedded(Role::Scheduler, &scheduler));
    let task = tokio::spawn(async move { run(listeners, &scheduler, shutdown, told).await });
    Job { settings, http, trigger, task }
}

fn register(role: Role) -> Register {
    Register {
        protocol: PROTOCOL_VERSION,
        build: "test".into(),
        job: Default::default(),
        role,
        incarnation: daemon::host::new_incarnation().unwrap(),
        wanted_rank: None,
        data_address: Some("127.0.0.1:1".into()),
        http_address: None,
        host: None,
        pid: std::process::id(),
        offer: daemon::host::offer(Policies::default(), Vec::new()).unwrap(),
        rules: Vec::new(),
        resume: None,
    }
}

impl Job {
    async fn join(&self, role: Role) -> Result<SchedulerLink, LinkError> {
        let report = || MemberReport { round: 4, ..MemberReport::default() };
        SchedulerLink::connect((&self.settings, &Security::off()), register(role), report, || None)
            .await
            .map(|(link, _)| link)
    }

    async fn outcome(self) -> Outcome {
        timeout(LONG, self.task).await.expect("the job ends").unwrap().unwrap()
    }

    async fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.http).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

#[test]
fn our_own_stop_comes_before_a_loss_that_shows_with_it() {
    let (trigger, shutdown) = shutdown::channel();
    let loss = Input::Closed { connection: ConnectionId(1), fault: None };
    assert!(stop_before(&loss, false, &shutdown).is_none(), "nobody asked to stop");
    trigger.fire("SIGTERM received");
    let stop = stop_before(&loss, false, &shutdown);
    assert!(matches!(stop, Some(Input::Stop { reason }) if reason == "SIGTERM received"));
    assert!(stop_before(&loss, true, &shutdown).is_none(), "once is enough");
    assert!(stop_before(&Input::Tick, false, &shutdown).is_none(), "the rest can wait for its turn");
}

async fn next(link: &mut SchedulerLink) -> FromScheduler {
    match timeout(LONG, link.events.recv()).await.expect("an event") {
        Some(LinkEvent::Message(message)) => message,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_whole_job_in_good_order() {
    let job = job(1, 2, |_| ()).await;
    let mut server = job.join(Role::Server).await.unwrap();
    let mut workers = [job.join(Role::Worker).await.unwrap(), job.join(Role::Worker).await.unwrap()];
    for link in workers.iter_mut().chain([&mut server]) {
        assert!(matches!(next(link).await, FromScheduler::Roster { members, .. } if members.len() == 3));
    }
    for (number, link) in workers.iter_mut().enumerate() {
        let (request, group) = (number as u64, NodeGroup::WORKERS);
        let barrier =
            ToScheduler::Barrier { request, name: "go".into(), group, passed: 0, timeout_ms: 5_000 };
        link.sender().send(&barrier).await.unwrap();
    }
    for (number, link) in workers.iter_mut().enumerate() {
        let released = FromScheduler::Released { request: number as u64, result: Ok(()) };
        assert_eq!(next(link).await, released);
    }
    assert!(job.get("/readyz").await.starts_with("HTTP/1.1 200"));
    // A barrier may pass before the first heartbeat, which carries the round.
    let reported = async {
        loop {
            let status = job.get("/status").await;
            assert!(status.contains("\"phase\":\"running\""), "{status}");
            if status.contains("\"round\":4") {
                break;
            }
        }
    };
    timeout(LONG, reported).await.expect("the heartbeats' report is shown");
    let targets = job.get("/targets").await;
    let own = format!(
        "[{{\"labels\":{{\"gradwire_job\":\"0\",\"rank\":\"0\",\"role\":\"scheduler\"}},\"targets\":[\"{}\"]}}]\n",
        job.http
    );
    assert!(targets.ends_with(&own), "these members have no endpoints: {targets}");
    let metrics = job.get("/metrics").await;
    assert!(metrics.contains("gradwire_scheduler_members{role=\"worker\"} 2"), "{metrics}");
    assert!(metrics.contains("gradwire_scheduler_unsent_bytes 0"), "all was read: {metrics}");
    assert!(metrics.contains("gradwire_scheduler_barrier_waits_total{result=\"released\"} 2"), "{metrics}");
    for link in workers {
        link.finish(&ToScheduler::Goodbye, LONG).await.unwrap();
    }
    assert!(matches!(next(&mut server).await, FromScheduler::Roster { left, .. } if left.len() == 1));
    assert!(matches!(next(&mut server).await, FromScheduler::Shutdown { .. }));
    server.finish(&ToScheduler::Goodbye, LONG).await.unwrap();
    let outcome = job.outcome().await;
    assert!(verdict(&outcome).is_ok(), "{outcome}");
}

#[tokio::test]
async fn a_lost_member_ends_the_job_at_once_for_all() {
    let job = job(1, 1, |settings| settings.deadlines.silence_ms = 60_000).await;
    let mut server = job.join(Role::Server).await.unwrap();
    let worker = job.join(Role::Worker).await.unwrap();
    assert!(matches!(next(&mut server).await, FromScheduler::Roster { .. }));
    drop(worker);
    let FromScheduler::MemberDied(death) = next(&mut server).await else { panic!("no death") };
    assert_eq!(death.member, MemberId { role: Role::Worker, rank: Rank(0) });
    drop(server);
    let failure = verdict(&job.outcome().await).unwrap_err();
    assert_eq!(failure.code(), ExitCode::MemberDied);
    assert!(failure.to_string().contains("worker 0 failed"), "{failure}");
}

#[tokio::test]
async fn the_assembly_has_a_deadline_that_everyone_hears_of() {
    let job = job(1, 1, |settings| settings.deadlines.assemble_ms = 100).await;
    let mut worker = job.join(Role::Worker).await.unwrap();
    let FromScheduler::Refused(reason) = next(&mut worker).await else { panic!("not refused") };
    assert_eq!(daemon::control::code_of_refusal(&reason), ExitCode::Deadline);
    assert!(reason.to_string().contains("missing: server 0"), "{reason}");
    assert_eq!(verdict(&job.outcome().await).unwrap_err().code(), ExitCode::Deadline);
}

#[tokio::test]
async fn a_refusal_arrives_although_the_connection_closes() {
    let job = job(1, 1, |_| ()).await;
    let _worker = job.join(Role::Worker).await.unwrap();
    let error = job.join(Role::Worker).await.unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::Refused);
    assert!(error.to_string().contains("already has 1 workers"), "{error}");
    job.trigger.fire("SIGTERM");
    assert!(verdict(&job.outcome().await).is_ok());
}

#[tokio::test]
async fn strangers_that_are_mute_or_lie_are_dropped_and_the_job_lives() {
    let job = job(1, 1, |_| ()).await;
    let address = ("127.0.0.1", job.settings.scheduler.port);
    let mut mute = TcpStream::connect(address).await.unwrap();
    let mut liar = TcpStream::connect(address).await.unwrap();
    liar.write_all(&u32::MAX.to_le_bytes()).await.unwrap();
    for stream in [&mut liar, &mut mute] {
        let mut byte = [0u8; 1];
        assert_eq!(timeout(LONG, stream.read(&mut byte)).await.expect("dropped").unwrap_or(0), 0);
    }
    let metrics = job.get("/metrics").await;
    for reason in ["malformed", "handshake"] {
        let line = format!("gradwire_scheduler_connections_refused_total{{reason=\"{reason}\"}} 1");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    assert!(job.join(Role::Worker).await.is_ok());
}

#[tokio::test]
async fn a_member_that_stops_reading_is_dead_and_nothing_grows() {
    let job = job(1, 1, |settings| settings.deadlines.silence_ms = 2_000).await;
    let mut server = job.join(Role::Server).await.unwrap();
    let stream = TcpStream::connect(("127.0.0.1", job.settings.scheduler.port)).await.unwrap();
    let mut deaf = Connection::new(stream).unwrap();
    deaf.send_within(&ToScheduler::Register(register(Role::Worker)), LONG).await.unwrap();
    // Refused barriers with long answers, as fast as they go, and never a read.
    let name = "x".repeat(30_000);
    let flood = async {
        for request in 0.. {
            let (name, group) = (name.clone(), NodeGroup::SERVERS);
            let barrier = ToScheduler::Barrier { request, name, group, passed: 0, timeout_ms: 1 };
            if deaf.send_within(&barrier, LONG).await.is_err() {
                break;
            }
        }
    };
    let death = async {
        loop {
            if let FromScheduler::MemberDied(death) = next(&mut server).await {
                break death;
            }
        }
    };
    let death = tokio::select! {
        death = death => death,
        () = flood => panic!("the flood ended before the death"),
    };
    assert!(death.to_string().contains("read its control connection"), "{death}");
}

#[tokio::test]
async fn a_member_that_asks_for_much_and_does_not_read_is_told_and_lives() {
    const ASKED: u64 = 24;
    let job = job(1, 1, |settings| settings.deadlines.silence_ms = 60_000).await;
    let mut server = job.join(Role::Server).await.unwrap();
    // Some machines' sockets would hold all answers.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    let stream = socket.connect((Ipv4Addr::LOCALHOST, job.settings.scheduler.port).into()).await.unwrap();
    let mut asker = Connection::new(stream).unwrap();
    asker.send_within(&ToScheduler::Register(register(Role::Worker)), LONG).await.unwrap();
    asker.admit();
    assert!(matches!(next(&mut server).await, FromScheduler::Roster { .. }));
    let to = PostTo::One(MemberId { role: Role::Server, rank: Rank(0) });
    for request in 0..ASKED {
        let message = PostMessage { app: 1, head: 0, body: Vec::new() };
        let post = ToScheduler::Post { request, to, message, timeout_ms: 60_000 };
        asker.send_within(&post, LONG).await.unwrap();
    }
    // 24 MiB are answered, which nobody has read yet.
    for _ in 0..ASKED {
        let FromScheduler::Posted { ticket, .. } = next(&mut server).await else { panic!("no message") };
        let result = Ok(PostReply { head: 0, body: vec![7; POST_BODY_BYTES_MAX] });
        server.sender().send(&ToScheduler::PostReply { ticket, result }).await.unwrap();
    }
    // The asker reads only after the scheduler has seen the last answer: read while they come, all fit.
    let (name, group) = ("answered".to_owned(), NodeGroup::SERVERS);
    let barrier = ToScheduler::Barrier { request: 0, name, group, passed: 0, timeout_ms: 60_000 };
    server.sender().send(&barrier).await.unwrap();
    while !matches!(next(&mut server).await, FromScheduler::Released { result: Ok(()), .. }) {}
    let (mut whole, mut refused) = (0, 0);
    while whole + refused < ASKED {
        let message = asker.receive_within::<FromScheduler>(LONG).await.unwrap();
        match message {
            Some(FromScheduler::PostAnswered { result: Ok(_), .. }) => whole += 1,
            Some(FromScheduler::PostAnswered { result: Err(PostError::Crowded { .. }), .. }) => refused += 1,
            Some(FromScheduler::PostAnswered { result, .. }) => panic!("{result:?}"),
            Some(_) => {}
            None => panic!("its connection was closed"),
        }
    }
    assert!(whole >= 4 && refused > 0, "{whole} answers, {refused} refusals");
}

#[tokio::test]
async fn a_member_that_pauses_while_others_ask_with_short_deadlines_lives() {
    // More than closes a connection.
    const ASKED: u64 = 80;
    let job = job(1, 1, |settings| settings.deadlines.silence_ms = 60_000).await;
    let mut worker = job.join(Role::Worker).await.unwrap();
    let stream = TcpStream::connect(("127.0.0.1", job.settings.scheduler.port)).await.unwrap();
    let mut paused = Connection::new(stream).unwrap();
    paused.send_within(&ToScheduler::Register(register(Role::Server)), LONG).await.unwrap();
    paused.admit();
    assert!(matches!(next(&mut worker).await, FromScheduler::Roster { .. }));
    let ask = |request, body, timeout_ms| {
        let to = PostTo::One(MemberId { role: Role::Server, rank: Rank(0) });
        let message = PostMessage { app: 1, head: 0, body };
        ToScheduler::Post { request, to, message, timeout_ms }
    };
    let (mut late, mut busy) = (0, 0);
    for request in 0..ASKED {
        worker.sender().send(&ask(request, vec![7; POST_BODY_BYTES_MAX], 1)).await.unwrap();
        match next(&mut worker).await {
            FromScheduler::PostAnswered { result: Err(PostError::Deadline { .. }), .. } => late += 1,
            FromScheduler::PostAnswered { result: Err(PostError::Busy), .. } => busy += 1,
            other => panic!("{other:?}"),
        }
        if busy == 2 {
            break;
        }
    }
    assert!(late >= 3 && busy > 0, "{late} late, {busy} refused");
    // It goes on: what was sent to it is there, and there is room again.
    worker.sender().send(&ask(ASKED, Vec::new(), 60_000)).await.unwrap();
    let (mut asked, mut long) = (None, 0);
    while asked.is_none() {
        match paused.receive_within::<FromScheduler>(LONG).await.unwrap() {
            Some(FromScheduler::Posted { ticket, message, .. }) if message.body.is_empty() => {
                asked = Some(ticket);
            }
            Some(FromScheduler::Posted { .. }) => long += 1,
            Some(_) => {}
            None => panic!("its connection was closed"),
        }
    }
    assert_eq!(long, late, "what was refused was not sent");
    let (ticket, result) = (asked.unwrap(), Ok(PostReply { head: 0, body: Vec::new() }));
    paused.send_within(&ToScheduler::PostReply { ticket, result }, LONG).await.unwrap();
    let answer = next(&mut worker).await;
    assert!(matches!(answer, FromScheduler::PostAnswered { result: Ok(_), .. }), "{answer:?}");
}

#[tokio::test]
async fn a_member_whose_heartbeats_stop_is_dead_even_if_others_talk_all_the_time() {
    let job = job(1, 1, |settings| settings.deadlines.silence_ms = 200).await;
    let mut server = job.join(Role::Server).await.unwrap();
    let stream = TcpStream::connect(("127.0.0.1", job.settings.scheduler.port)).await.unwrap();
    let mut silent = Connection::new(stream).unwrap();
    let message = Register { incarnation: Incarnation(5), ..register(Role::Worker) };
    silent.send_within(&ToScheduler::Register(message), LONG).await.unwrap();
    let chatter = server.sender();
    let talk = async {
        loop {
            chatter.send(&ToScheduler::LinksReady).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let death = async {
        assert!(matches!(next(&mut server).await, FromScheduler::Roster { .. }));
        next(&mut server).await
    };
    let told = tokio::select! {
        told = death => told,
        () = talk => unreachable!("talks for ever"),
    };
    assert!(
        matches!(&told, FromScheduler::MemberDied(d) if d.to_string().contains("no heartbeat")),
        "{told:?}"
    );
}

impl Job {
    async fn connect(&self) -> Connection {
        Connection::new(TcpStream::connect(("127.0.0.1", self.settings.scheduler.port)).await.unwrap())
            .unwrap()
    }
}

/// The next message of a scheduler to one that it does not know; none where it has closed.
/// The next message that is not about votes; those are given at once.
async fn heard(connection: &mut Connection) -> Option<FromScheduler> {
    loop {
        let epoch = match connection.receive_within(LONG).await.expect("an answer, or the end") {
            Some(FromScheduler::Decided { .. }) => continue,
            Some(FromScheduler::Proposed { epoch, .. }) => epoch,
            Some(FromScheduler::Candidate { term }) => Epoch { term, counter: 0 },
            other => return other,
        };
        // It may be over already.
        let _ = connection.send_within(&ToScheduler::Heard { epoch }, LONG).await;
    }
}

#[tokio::test]
async fn who_is_no_member_is_closed_with_its_answer() {
    let job = job(1, 1, |_| ()).await;
    let order = ToScheduler::OrderCheckpoint { protocol: PROTOCOL_VERSION, timeout_ms: 60_000 };
    for (question, what) in [(order, "an order"), (ToScheduler::Identify, "a question")] {
        let mut stranger = job.connect().await;
        stranger.send_within(&question, LONG).await.unwrap();
        assert!(heard(&mut stranger).await.is_some(), "{what} is answered");
        assert_eq!(heard(&mut stranger).await, None, "{what} keeps no connection");
    }
}

#[tokio::test]
async fn only_who_is_let_in_may_say_much_at_once() {
    let is_held = |settings: &mut Settings| {
        (settings.deadlines.scheduler_ms, settings.deadlines.silence_ms) = (60_000, 60_000);
    };
    let job = job(1, 1, is_held).await;
    let long = || ToScheduler::Failing { reason: "x".repeat(100_000) };
    let mut held = job.connect().await;
    held.send_within(&ToScheduler::Register(register(Role::Worker)), LONG).await.unwrap();
    held.send_within(&long(), LONG).await.unwrap();
    assert_eq!(heard(&mut held).await, None, "it waits to be let in, and is dropped");
    assert!(job.get("/metrics").await.contains("connections_refused_total{reason=\"malformed\"} 1"));
    let (mut server, mut worker) = (job.connect().await, job.connect().await);
    server.send_within(&ToScheduler::Register(register(Role::Server)), LONG).await.unwrap();
    worker.send_within(&ToScheduler::Register(register(Role::Worker)), LONG).await.unwrap();
    for member in [&mut server, &mut worker] {
        assert!(matches!(heard(member).await, Some(FromScheduler::Welcome(_))));
    }
    worker.send_within(&long(), LONG).await.unwrap();
    let death = loop {
        match heard(&mut server).await {
            Some(FromScheduler::MemberDied(death)) => break death.to_string(),
            other => assert!(matches!(other, Some(FromScheduler::Roster { .. })), "{other:?}"),
        }
    };
    assert!(death.contains("worker 0 failed") && death.contains("xxx"), "{death}");
}

#[tokio::test]
async fn who_comes_again_may_say_all_it_knows_at_once() {
    let job = job(1, 1, |settings| settings.deadlines.scheduler_ms = 60_000).await;
    let again = register(Role::Worker);
    let id = MemberId { role: Role::Worker, rank: Rank(0) };
    let own = Member { id, incarnation: again.incarnation, data_address: None, http_address: None };
    let barrier = |number: usize| (format!("{number:0200}"), NodeGroup::WORKERS, 1);
    let barriers = (0..1000).map(barrier).collect();
    let epoch = Epoch { term: 1, counter: 1 };
    let known = Resume { term: 1, epoch, members: vec![own], barriers, ..Resume::default() };
    let mut worker = job.connect().await;
    let again = Register { resume: Some(known.head()), ..again };
    worker.send_within(&ToScheduler::Register(again), LONG).await.unwrap();
    let all = ToScheduler::Resuming { part: known, last: true };
    assert!(frame_of(&all).unwrap().len() > FIRST_FRAME_BYTES_MAX);
    worker.send_within(&all, LONG).await.unwrap();
    let answer = heard(&mut worker).await;
    assert!(matches!(answer, Some(FromScheduler::Welcome(_))), "{answer:?}");
}

#[tokio::test]
async fn one_that_cannot_be_accepted_keeps_nothing_waiting() {
    let settings = Settings::default();
    let config = EngineConfig::new(&settings, Incarnation(1));
    let told = (Posts::start().unwrap(), Flight::embedded(Role::Scheduler, &settings));
    let mut core = Core::new((&settings, Security::off()), Engine::new(config, 0), told, None).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    assert!(core.may_accept());
    core.accept(Err(std::io::ErrorKind::OutOfMemory.into()));
    let again = core.accept_from.expect("a moment to try again");
    assert!(!core.may_accept() && again > core.start);
    // The loop goes on meanwhile, and takes connections after that moment.
    let (trigger, shutdown) = shutdown::channel();
    let running = tokio::spawn(async move { core.run(listener, shutdown, &Notify::default()).await });
    let mut stranger = Connection::new(TcpStream::connect(address).await.unwrap()).unwrap();
    stranger.send_within(&ToScheduler::Identify, LONG).await.unwrap();
    assert!(matches!(heard(&mut stranger).await, Some(FromScheduler::Refused(_))));
    assert!(Instant::now() >= again, "it was taken too early");
    trigger.fire("SIGTERM");
    timeout(LONG, running).await.expect("it ends").unwrap().unwrap();
}

#[tokio::test]
async fn a_second_scheduler_on_the_port_says_cause_and_fix() {
    let job = job(1, 1, |_| ()).await;
    let error = bind(&job.settings).await.unwrap_err();
    assert_eq!(error.code(), ExitCode::Io);
    let text = daemon::exit::describe(&error.into());
    assert!(text.contains("scheduler.port") && text.contains("in use"), "{text}");
    let who = format!("job 0 is already running there (pid {}, term 1", std::process::id());
    assert!(text.contains(&who), "{text}");
}

/// Of a member: the first message that is neither about decisions nor a heartbeat's answer. Decisions are not confirmed.
async fn told(connection: &mut Connection) -> Option<FromScheduler> {
    loop {
        match connection.receive_within(LONG).await.expect("an answer, or the end") {
            Some(
                FromScheduler::Proposed { .. }
                | FromScheduler::Decided { .. }
                | FromScheduler::Roster { .. }
                | FromScheduler::HeartbeatAck,
            ) => {}
            other => return other,
        }
    }
}

#[tokio::test]
async fn a_goodbye_that_waits_for_a_proposal_is_answered_although_its_sender_has_closed_its_side() {
    let is_held = |settings: &mut Settings| {
        (settings.deadlines.scheduler_ms, settings.deadlines.silence_ms) = (60_000, 60_000);
    };
    let job = job(1, 3, is_held).await;
    let mut members = Vec::new();
    for role in [Role::Server, Role::Worker, Role::Worker, Role::Worker] {
        let mut member = job.connect().await;
        member.send_within(&ToScheduler::Register(register(role)), LONG).await.unwrap();
        members.push(member);
    }
    for member in &mut members {
        assert!(matches!(told(member).await, Some(FromScheduler::Welcome(_))));
    }
    // The roster that all have joined is proposed, and nobody confirms it: what the goodbyes change waits.
    let mut leaving = Vec::new();
    for mut member in members.drain(1..3) {
        member.send_within(&ToScheduler::Goodbye, LONG).await.unwrap();
        let (read, mut write) = member.into_split();
        write.close().await.unwrap();
        leaving.push(read);
    }
    let mut others = members;
    let confirmed = async {
        for other in &mut others {
            while !matches!(heard(other).await, Some(FromScheduler::Shutdown { .. }) | None) {}
        }
    };
    let answered = async {
        for mut read in leaving {
            let answer = loop {
                match read.receive_within::<FromScheduler>(LONG).await.expect("an answer") {
                    Some(FromScheduler::GoodbyeAck) => break true,
                    None => break false,
                    Some(_) => {}
                }
            };
            assert!(answer, "it was closed without an answer");
        }
    };
    tokio::select! {
        () = answered => {}
        () = confirmed => panic!("the job ended before the goodbyes were answered"),
    }
    job.trigger.fire("the test is over");
}
