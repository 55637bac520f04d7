//! Timelines of documents made by hand: what they say, and that they are what viewers take.

use super::*;
use daemon::flight::{Dump, FORMAT, Note, ThreadDump};

fn source(role: Role, rank: u32, events: &[(u64, u64, Event)]) -> Source {
    let rows = events.iter().map(|&(start_ns, took_ns, event)| Timed { start_ns, took_ns, event }.row());
    let thread = ThreadDump { name: "lane 0".into(), events: rows.collect(), ..ThreadDump::default() };
    let dump = Dump {
        format: FORMAT.into(),
        role,
        rank: Some(rank),
        job: 0,
        pid: rank + 1,
        build: String::new(),
        reason: "asked".into(),
        stamp: Stamp::here(),
        names: [(7, "fc1.weight".to_owned())].into(),
        threads: vec![thread],
        notes: vec![Note { at_ns: 5_000, what: "roster".into(), text: "epoch 1.1".into() }],
    };
    Source { dump, look: None }
}

fn event(kind: Kind) -> Event {
    Event { key: 7, round: 3, peer: 1, ..Event::of(kind) }
}

fn timeline(sources: Vec<Source>) -> Vec<Value> {
    let found = Found { sources, missing: vec!["worker 9: it has not registered".into()] };
    let made = of(&found, &Axis::of(&found.sources));
    let document: Value = serde_json::from_str(&made.text).unwrap();
    assert_eq!(document["otherData"]["left_out"][0], "worker 9: it has not registered");
    let events = document["traceEvents"].as_array().unwrap().clone();
    check(&events);
    events
}

/// The format's rules, as far as viewers rely on them.
fn check(events: &[Value]) {
    let mut last: HashMap<(u64, u64), f64> = HashMap::new();
    let mut open: HashMap<(u64, u64), Vec<f64>> = HashMap::new();
    let (mut begun, mut ended) = (0, 0);
    for event in events {
        let place = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let (ts, ph) = (event["ts"].as_f64().unwrap(), event["ph"].as_str().unwrap());
        assert!(ts >= 0.0 && event["name"].is_string(), "{event}");
        if ph == "M" {
            continue;
        }
        assert!(ts >= last.insert(place, ts).unwrap_or(0.0), "sorted on each thread: {event}");
        match ph {
            "X" => {
                let end = ts + event["dur"].as_f64().unwrap();
                let open = open.entry(place).or_default();
                open.retain(|until| *until > ts);
                assert!(open.iter().all(|until| end <= until + 1e-3), "spans of a row nest: {event}");
                open.push(end);
            }
            "b" => begun += 1,
            "e" => ended += 1,
            "i" | "s" | "f" => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(begun, ended);
}

fn named<'a>(events: &'a [Value], name: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["name"] == name).collect()
}

#[test]
fn a_slow_worker_shows_as_the_last_of_its_round() {
    let round = Event { bytes: 64, extra: 900_000, ..event(Kind::Round) };
    let push = Event { extra: OpKind::PushPull as u64, chunk: 250, ..event(Kind::Operation) };
    let events = timeline(vec![
        source(Role::Server, 0, &[(10_000, 900_000_000, round), (20_000, 30_000, event(Kind::Reduce))]),
        source(Role::Worker, 1, &[(10_000, 950_000_000, push)]),
        source(Role::Worker, 2, &[(10_000, 950_000_000, Event { peer: NOBODY, ..push })]),
    ]);
    let round = named(&events, "fc1.weight chunk 0 round 3")[0];
    assert_eq!(
        (round["args"]["last_worker"].as_u64(), round["args"]["came_after_ms"].as_f64()),
        (Some(1), Some(900.0))
    );
    let pushes = named(&events, "push_pull fc1.weight");
    let push = pushes[0];
    assert_eq!((push["dur"].as_f64(), push["args"]["sent_after_ms"].as_f64()), (Some(950_000.0), Some(0.25)));
    let last: Vec<Option<u64>> = pushes.iter().map(|push| push["args"]["last_server"].as_u64()).collect();
    assert_eq!(last, [Some(1), None], "of one that failed there is none");
    let arrows = named(&events, "in round");
    assert_eq!(arrows.iter().map(|arrow| arrow["ph"].as_str().unwrap()).collect::<String>().len(), 4);
    let rows: Vec<&str> =
        named(&events, "thread_name").iter().map(|row| row["args"]["name"].as_str().unwrap()).collect();
    for name in ["control", "lane 0", "lane 0 rounds", "lane 0 operations"] {
        assert!(rows.contains(&name), "{name}: {rows:?}");
    }
    let processes: Vec<&Value> =
        named(&events, "process_name").iter().map(|row| &row["args"]["name"]).collect();
    assert_eq!(processes, ["server 0", "worker 1", "worker 2"]);
}

#[test]
fn more_at_once_than_rows_become_pairs() {
    let count = ROWS_MAX + 3;
    let spans: Vec<(u64, u64, Event)> =
        (0..count as u64).map(|at| (at, 1_000_000, event(Kind::Operation))).collect();
    let events = timeline(vec![source(Role::Worker, 0, &spans)]);
    assert_eq!(events.iter().filter(|event| event["ph"] == "b").count(), 3);
}

#[test]
fn every_kind_has_words() {
    for role in [Role::Server, Role::Worker] {
        let all: Vec<(u64, u64, Event)> =
            Kind::ALL.into_iter().zip(1u64..).map(|(kind, at)| (at * 10_000, 1_000, event(kind))).collect();
        let events = timeline(vec![source(role, 0, &all)]);
        let spoken = events.iter().filter(|event| event["cat"].is_string()).count();
        assert!(spoken >= Kind::ALL.len(), "{spoken}");
    }
    let waits = Event { extra: 0b1010, ..event(Kind::Waits) };
    assert_eq!(ranks(&waits), "1, 3");
    assert_eq!(ranks(&Event { extra: 0, peer: 70, ..waits }), "70 and others perhaps");
}

#[test]
fn what_overlaps_lies_on_different_rows() {
    let mut rows = Rows::default();
    let placed = [(0, 10), (5, 8), (9, 20), (10, 11), (12, 13)].map(|(from, to)| rows.place(from, to));
    assert_eq!(placed, [Some(0), Some(1), Some(1), Some(0), Some(0)]);
    let mut rows = Rows::default();
    assert!((0..ROWS_MAX).all(|row| rows.place(0, 9) == Some(row)));
    assert_eq!((rows.place(8, 9), rows.place(9, 10)), (None, Some(0)), "both sides of the bound");
}
