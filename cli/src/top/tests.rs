//! What `top` shows, in terminals of several sizes and as plain text, and what its keys do.

use super::*;
use daemon::status::{LoadStatus, MetricStatus, StragglerStatus};
use proto_common::ids::Rank;
use proto_common::message::{Wait, WaitCause};
use proto_common::transport::Driver;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::json;

fn member(role: Role, rank: u32) -> MemberStatus {
    let member = json!({
        "role": role, "rank": rank, "pid": 4_000 + rank, "build": "0.1.0", "data_address": null,
        "http_address": "127.0.0.1:90", "silent_ms": 20, "left": false, "links_ready": true, "round": 700,
        "in_flight": 2, "oldest": null, "links": [], "rounds_per_second": 12.5, "resident_bytes": 52_000_000,
    });
    serde_json::from_value(member).unwrap()
}

fn status() -> ClusterStatus {
    let mut server = member(Role::Server, 0);
    server.oldest = Some(Wait {
        what: "missing workers: 1".into(),
        of: None,
        waited_ms: 1_500,
        cause: WaitCause::Contributions,
        on: vec![Rank(1)],
    });
    server.load = Some(LoadStatus {
        stored_bytes: 2_000_000,
        credits_free: 60,
        credits: 64,
        spill_blocks_used: 1,
        spill_blocks: 256,
        quarantined_bytes: 0,
        quarantined_for: None,
    });
    let mut slow = member(Role::Worker, 1);
    slow.waited_for_percent = 90;
    slow.metrics.push(MetricStatus { name: "loss\x1b[2J".into(), value: 0.25 });
    slow.links.push(daemon::status::LinkStatus {
        server: Rank(0),
        driver: Driver::Shm,
        why: "same host".into(),
        sent_bytes: 2_000_000,
        received_bytes: 999,
        bytes_per_second: 1_234_000_000,
    });
    let mut first = member(Role::Worker, 0);
    first.round = 701;
    let status = json!({
        "job": 7, "phase": "running", "epoch": "1.2", "workers": 2, "servers": 1, "silence_ms": 10_000,
        "uptime_ms": 65_000, "tensors": 3, "tensor_bytes": 1_500, "uncopied_chunks": 0, "members": [],
        "missing": [], "barriers": [], "ending": null, "rounds_per_second": 12.5,
    });
    let mut status: ClusterStatus = serde_json::from_value(status).unwrap();
    status.members = vec![server, first, slow];
    status.stragglers.push(StragglerStatus { worker: Rank(1), behind: 0, waited_for_percent: 90 });
    status
}

fn view() -> (View, Instant) {
    let now = Instant::now();
    let mut view = View::new(now);
    view.answered(Ok(status()), now);
    (view, now)
}

fn drawn(view: &mut View, width: u16, height: u16, now: Instant) -> Vec<String> {
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    draw(view, area, &mut buffer, now);
    let text = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(text).collect()
}

fn press(view: &mut View, code: KeyCode) -> bool {
    view.key(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn one_frame_has_everything_and_no_escape_of_a_peer() {
    let (view, now) = view();
    let lines: Vec<String> =
        whole(&view, usize::from(u16::MAX), now).iter().map(ToString::to_string).collect();
    let text = lines.join("\n");
    for words in [
        "job 7  running  epoch 1.2  up 1 min 5 s",
        "rounds 700 to 701  12.5 rounds/s  loss[2J 0.25  1.2 GB/s moved  3 tensors, 1.5 kB",
        "stragglers: worker 1 (waited for in 90 % of samples)",
        "oldest wait: 1.5 s at server 0: missing workers: 1",
        "90 % !",
        "4 of 64",
        "1.2 GB/s  2.0 MB  999 B",
        "no member waits at a barrier",
    ] {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
    assert!(!text.contains('\x1b'), "a peer cannot clear the terminal");
}

#[test]
fn a_narrow_terminal_shows_what_matters_most() {
    let (mut view, now) = view();
    let lines = drawn(&mut view, 36, 16, now);
    assert!(lines.iter().any(|line| line.starts_with("worker 1") && line.contains("up")), "{lines:#?}");
    assert!(lines.iter().any(|line| line.contains("ROUND") && !line.contains("OLDEST")), "{lines:#?}");
    let wide = drawn(&mut view, 160, 40, now).join("\n");
    assert!(wide.contains("OLDEST OPERATION") && wide.contains("q quit"), "{wide}");
    // Whatever the size, nothing panics.
    for (width, height) in [(1, 1), (0, 0), (5, 3), (80, 2), (300, 100)] {
        drawn(&mut view, width, height, now);
    }
}

#[test]
fn keys_choose_tables_sort_scroll_and_leave() {
    let (mut view, now) = view();
    let first_row = |view: &mut View| {
        let lines = drawn(view, 160, 40, now);
        let title = lines.iter().position(|line| line.starts_with("WORKER")).unwrap();
        lines[title + 1].clone()
    };
    assert!(first_row(&mut view).starts_with("worker 0"));
    assert!(press(&mut view, KeyCode::Char('r')));
    assert!(first_row(&mut view).starts_with("worker 1"), "the order is turned round");
    press(&mut view, KeyCode::Char('r'));
    press(&mut view, KeyCode::Char('s'));
    press(&mut view, KeyCode::Char('s'));
    assert!(first_row(&mut view).starts_with("worker 1"), "by round");
    press(&mut view, KeyCode::Tab);
    assert_eq!(view.tab, Tab::Servers);
    press(&mut view, KeyCode::BackTab);
    press(&mut view, KeyCode::Left);
    assert_eq!(view.tab, Tab::Processes);
    press(&mut view, KeyCode::Char('3'));
    assert_eq!(view.tab, Tab::Links);
    assert!(!press(&mut view, KeyCode::Char('q')));
    assert!(!view.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    assert!(press(&mut view, KeyCode::Char('c')), "without Ctrl it is no key of ours");
}

#[test]
fn scrolling_ends_where_rows_end() {
    let (mut view, now) = view();
    let mut status = status();
    status.members = (0..50).map(|rank| member(Role::Worker, rank)).collect();
    view.answered(Ok(status), now);
    drawn(&mut view, 80, 16, now);
    for _ in 0..200 {
        press(&mut view, KeyCode::Down);
    }
    press(&mut view, KeyCode::PageDown);
    let lines = drawn(&mut view, 80, 16, now);
    assert!(lines.iter().any(|line| line.starts_with("worker 49")), "{lines:#?}");
    assert!(lines.last().unwrap().contains("of 50"), "{lines:#?}");
    press(&mut view, KeyCode::End);
    press(&mut view, KeyCode::Home);
    assert!(drawn(&mut view, 80, 16, now).iter().any(|line| line.starts_with("worker 0 ")));
}

#[test]
fn no_answer_is_told_and_what_was_before_stays() {
    let (mut view, now) = view();
    view.answered(Err("refused".into()), now + Duration::from_secs(1));
    let soon = drawn(&mut view, 100, 30, now + Duration::from_secs(1)).join("\n");
    assert!(!soon.contains("NO ANSWER"), "one look that fails is no news: {soon}");
    let later = drawn(&mut view, 100, 30, now + Duration::from_secs(9)).join("\n");
    assert!(later.contains("NO ANSWER for 9.0 s") && later.contains("worker 1"), "{later}");
    view.answered(Ok(status()), now + Duration::from_secs(10));
    let again = drawn(&mut view, 100, 30, now + Duration::from_secs(10)).join("\n");
    assert!(!again.contains("NO ANSWER"), "{again}");
}
