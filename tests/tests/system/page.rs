//! The scheduler's live page in a real browser, over live clusters: it shows what the scheduler knows, fits a phone, can be
//! read in both colour schemes, treats names as text, and says when nobody answers.
//!
//! Pictures of it go to target/page.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::browser::Browser;
use gradwire_tests::rigs::cluster::Cluster;
use gradwire_tests::rigs::control::ControlPeer;
use gradwire_tests::rigs::hostile::registration;
use gradwire_tests::rigs::programs::repository;
use proto_common::ids::{Rank, Role};
use proto_common::message::{FromScheduler, LinkReport, MemberReport, ToScheduler, Wait, WaitCause};
use proto_common::transport::Driver;
use std::path::PathBuf;

/// Trains until it is killed.
const TRAIN: [&str; 8] = ["--layers", "64,128,64,10", "--epochs", "1000000", "--batch", "16", "--seed", "7"];
/// What a browser would run, if it took it for markup.
const MARKUP: &str = "<img src=x onerror=window.ran=1><script>window.ran=1</script>";

/// Where nothing may stick out.
const OVERFLOW: &str = "document.documentElement.scrollWidth - document.documentElement.clientWidth";

/// The lowest contrast of a text with what is behind it, and that text.
const CONTRAST: &str = "(() => {
  const rgb = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, part, at) => {
    const v = c[at] / 255;
    return sum + part * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }, 0);
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const c = rgb(getComputedStyle(at).backgroundColor);
      if (c.length === 3 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  let worst = [99, ''];
  for (const node of document.querySelectorAll('body *')) {
    const has = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!has || !node.checkVisibility()) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    // What is half seen through is not judged by its colours.
    const pale = (at) => at && (getComputedStyle(at).opacity !== '1' || pale(at.parentElement));
    const ratio = pale(node) ? 1 : (a + 0.05) / (b + 0.05);
    if (ratio < worst[0]) worst = [ratio, node.textContent];
  }
  return worst;
})()";

fn pictures() -> PathBuf {
    let directory = repository().join("target/page");
    std::fs::create_dir_all(&directory).expect("a directory for pictures");
    directory
}

fn open(cluster: &Cluster) -> Browser {
    let mut browser = Browser::start();
    browser.window(1280, 900, "light");
    browser.open(&format!("http://{}/", cluster.http));
    browser
}

fn welcome(peer: &mut ControlPeer) {
    match peer.receive() {
        Some(FromScheduler::Welcome(_)) => {}
        other => panic!("not welcome: {other:?}"),
    }
}

fn rows(table: &str) -> String {
    format!("document.querySelectorAll('#{table} tbody tr').length")
}

fn assert_readable(browser: &mut Browser, scheme: &str) {
    let worst = browser.eval(CONTRAST);
    assert!(worst[0].as_f64().unwrap() >= 4.5, "{scheme}: {worst}");
}

#[test]
fn a_running_cluster_is_shown() {
    let mut cluster = Cluster::new(2, 4, &["--set", "cluster.replicas=1"]);
    cluster.add_servers(2, &[]);
    cluster.add_trainers(3, &TRAIN);
    // Each of its gradients is late by up to this.
    cluster.add_trainer(&[&TRAIN[..], &["--jitter-us", "60000"]].concat());
    let mut browser = open(&cluster);
    for (table, count) in [("workers", 4), ("servers", 2), ("links", 8), ("processes", 6)] {
        browser.wait(&format!("{} === {count}", rows(table)));
    }
    browser.wait("document.querySelector('#phase').textContent === 'running'");
    let value = |tile: &str| format!("document.querySelector('#tile-{tile} .value').textContent");
    browser.wait(&format!("parseFloat({}) > 0", value("pace")));
    browser.wait(&format!("parseFloat({}) > 0", value("metric")));
    browser.wait(&format!("{}.includes('worker 3')", value("late")));
    browser.wait("document.querySelectorAll('#tile-pace polyline')[0].points.length >= 8");
    // Rounds go on, and so does what is shown of them.
    let round = "document.querySelector('#workers tbody tr td:nth-child(3)').textContent";
    let before = browser.eval(round);
    browser.wait(&format!("{round} !== {before}"));
    let page = browser.eval("document.body.innerText").as_str().unwrap().to_owned();
    for words in [
        "loss",
        "shm: first choice",
        "worker 3 – server 1",
        "Credits granted",
        "Replicas up to date",
        "epoch 1.",
    ] {
        assert!(page.contains(words), "{words:?} is missing in\n{page}");
    }
    let pids = format!("'{}'", cluster.servers[1].pid());
    assert!(page.contains(pids.trim_matches('\'')), "{pids} is missing in\n{page}");
    for (name, width, height, scheme) in [
        ("wide-light", 1280, 900, "light"),
        ("wide-dark", 1280, 900, "dark"),
        ("narrow-light", 390, 844, "light"),
        ("narrow-dark", 390, 844, "dark"),
        ("narrowest", 360, 740, "light"),
        ("tablet", 768, 1024, "light"),
    ] {
        browser.window(width, height, scheme);
        browser.wait(&format!("window.innerWidth === {width}"));
        assert_eq!(browser.eval(OVERFLOW), 0, "sticks out at {width} px");
        assert_readable(&mut browser, scheme);
        browser.screenshot(&pictures().join(format!("{name}.png")), false);
        browser.screenshot(&pictures().join(format!("{name}-whole.png")), true);
    }
    browser.assert_no_errors();
    cluster.scheduler.kill();
    browser.wait("document.querySelector('#answer').textContent.includes('does not answer since')");
    assert_eq!(browser.eval(&rows("workers")), 4, "what was before stays");
    assert_eq!(browser.eval("document.querySelector('#phase').textContent"), "no answer");
    browser.window(1280, 900, "light");
    assert_readable(&mut browser, "stale");
    browser.screenshot(&pictures().join("no-answer.png"), false);
}

#[test]
fn names_of_peers_are_text() {
    let cluster = Cluster::new(1, 1, &["--set", "deadlines.silence_ms=60000"]);
    let long = "w".repeat(180);
    let mut control = ControlPeer::connect(&cluster.control);
    let register = |role| {
        let mut register = registration(role, Some(0));
        register.build = format!("{MARKUP}{long}");
        register.http_address = Some("javascript:window.ran=1".into());
        ToScheduler::Register(register)
    };
    let mut server = ControlPeer::connect(&cluster.control);
    server.send(&register(Role::Server));
    welcome(&mut server);
    control.send(&register(Role::Worker));
    welcome(&mut control);
    let why = format!("{MARKUP}\u{202e}{long}");
    control.send(&ToScheduler::Heartbeat(MemberReport {
        waits: vec![Wait {
            what: why.clone(),
            of: None,
            waited_ms: 7_000,
            cause: WaitCause::Answers,
            on: vec![Rank(0)],
        }],
        links: vec![LinkReport {
            server: Rank(0),
            driver: Driver::Tcp,
            why,
            sent_bytes: 1,
            received_bytes: 2,
        }],
        metrics: vec![("<b>loss</b>".into(), 0.5), ("__proto__".into(), 1e300)],
        ..MemberReport::default()
    }));
    let mut browser = open(&cluster);
    browser.window(360, 740, "dark");
    browser.wait(&format!("{} === 1", rows("links")));
    let page = browser.eval("document.body.innerText").as_str().unwrap().to_owned();
    for words in [MARKUP, "<b>loss</b> 0.5", "__proto__ 1.00e+300", "javascript:window.ran=1"] {
        assert!(page.contains(words), "{words:?} is missing in\n{page}");
    }
    assert_eq!(browser.eval("document.querySelectorAll('img, b, script').length"), 2, "the page's own two");
    assert_eq!(browser.eval("document.querySelectorAll('a').length"), 2, "no address of a peer is a link");
    assert!(browser.eval("window.ran").is_null());
    assert_eq!(browser.eval(OVERFLOW), 0, "long names stick out");
    browser.assert_no_errors();
}

#[test]
fn a_cluster_that_lacks_members_says_for_whom_it_waits() {
    let mut cluster = Cluster::new(2, 1, &[]);
    cluster.add_server(&[]);
    let mut browser = open(&cluster);
    browser.wait(&format!("{} === 1", rows("servers")));
    let notice = browser.eval("document.querySelector('#notices').textContent");
    assert!(notice.as_str().unwrap().starts_with("Waiting for server 1, worker 0."), "{notice}");
    let page = browser.eval("document.body.innerText").as_str().unwrap().to_owned();
    for words in ["No workers yet, 1 expected", "No links yet", "No member waits at a barrier."] {
        assert!(page.contains(words), "{words:?} is missing in\n{page}");
    }
    for (width, scheme) in [(360, "light"), (1280, "dark")] {
        browser.window(width, 844, scheme);
        assert_eq!(browser.eval(OVERFLOW), 0, "sticks out at {width} px");
        assert_readable(&mut browser, scheme);
        browser.screenshot(&pictures().join(format!("waiting-{scheme}.png")), true);
    }
    let metric = browser.eval("document.querySelector('#tile-metric').checkVisibility()");
    assert_eq!(metric, false, "nobody reports anything");
    browser.assert_no_errors();
}

#[test]
fn a_page_that_nobody_looks_at_asks_nobody() {
    let cluster = Cluster::new(1, 1, &[]);
    let mut browser = Browser::start();
    // Which timers and requests are open, and whether somebody looks, is the test's to say.
    let watch = "window.open_ = new Set(); window.asked = 0; let hidden = false;
        const [set, clear, ask] = [window.setTimeout, window.clearTimeout, window.fetch];
        window.setTimeout = (f, ms) => { const id = set(() => { open_.delete(id); f(); }, ms); open_.add(id); return id; };
        window.clearTimeout = (id) => { open_.delete(id); clear(id); };
        window.fetch = (...all) => { asked += 1; open_.add('ask'); return ask(...all).finally(() => open_.delete('ask')); };
        Object.defineProperty(document, 'hidden', { get: () => hidden });
        window.look = (is) => { hidden = !is; document.dispatchEvent(new Event('visibilitychange')); };";
    browser.call("Page.addScriptToEvaluateOnNewDocument", serde_json::json!({ "source": watch }));
    browser.open(&format!("http://{}/", cluster.http));
    browser.wait("asked >= 2");
    browser.eval("look(false)");
    // Nothing is open, so nothing can follow.
    browser.wait("open_.size === 0");
    let asked = browser.eval("asked");
    browser.eval("look(true)");
    browser.wait(&format!("asked >= {asked} + 2"));
    browser.assert_no_errors();
}
