//! What is in `deploy/prometheus` and `deploy/grafana`, with the real programs: promtool judges files and rules, and a
//! Prometheus scrapes a live cluster with the sample configuration, which rules and panels are then asked of.
//!
//! Grafana's server is not run: panels are checked by their expressions and by their generator.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::rigs::certs::Certs;
use gradwire_tests::rigs::cluster::{Cluster, PATIENCE};
use gradwire_tests::rigs::ports::free_port;
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::programs::repository;
use gradwire_tests::rigs::status;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Expressions that read these may have no value: one is there while a checkpoint is being written, one where a RDMA device is.
const SOMETIMES: [&str; 2] = ["gradwire_scheduler_checkpoint_parts_missing", "gradwire_rdma_port_total"];
/// A certificate that expires then is none to warn of.
const FAR_S: i64 = 90 * 86_400;
/// May fire on a machine that is busy with other things: both are about time.
const OF_TIME: [&str; 2] = ["GradwireMemberSilent", "GradwireOperationWaits"];
/// A training that nobody waits for.
const TRAIN: [&str; 6] = ["--epochs", "1000000", "--layers", "64,105,33,10", "--batch", "8"];

fn deploy(directory: &str) -> PathBuf {
    repository().join("deploy").join(directory)
}

fn read(directory: &str, file: &str) -> String {
    std::fs::read_to_string(deploy(directory).join(file)).unwrap()
}

/// Runs promtool beside the rules; `input` goes to its standard input.
fn promtool(args: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(args).current_dir(deploy("prometheus"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("promtool: deploy/bootstrap.sh test installs it");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "promtool {args:?}: {}", String::from_utf8_lossy(&said));
}

#[test]
fn sample_configurations_and_rules_are_valid() {
    promtool(&["check", "config", "prometheus.yml", "targets.yml"], "");
    promtool(&["check", "rules", "recording.yml", "alerts.yml"], "");
}

#[test]
fn rules_do_what_their_tests_say() {
    promtool(&["test", "rules", "rules_test.yml"], "");
}

#[test]
fn the_dashboard_is_what_its_generator_writes() {
    let output = Command::new("python3").arg(deploy("grafana").join("dashboard.py")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let same = String::from_utf8(output.stdout).unwrap() == read("grafana", "gradwire.json");
    assert!(same, "run: deploy/grafana/dashboard.py > deploy/grafana/gradwire.json");
}

/// A Prometheus with the sample configuration, quicker, and its directory.
struct Prometheus {
    address: String,
    process: Process,
    _directory: TempDir,
}

impl Prometheus {
    fn scraping(cluster: &Cluster) -> Self {
        let directory = TempDir::new().unwrap();
        for file in ["recording.yml", "alerts.yml"] {
            std::fs::copy(deploy("prometheus").join(file), directory.path().join(file)).unwrap();
        }
        let sample = read("prometheus", "prometheus.yml");
        let (at, pace) = ("http://127.0.0.1:9095/targets", ": 15s");
        assert!(sample.contains(at) && sample.matches(pace).count() == 3, "{sample}");
        let own = sample.replace(at, &format!("http://{}/targets", cluster.http)).replace(pace, ": 1s");
        let config = directory.path().join("prometheus.yml");
        std::fs::write(&config, own).unwrap();
        // Prometheus does not say which port it got.
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new("prometheus");
        command.arg("--config.file").arg(&config);
        command.arg("--storage.tsdb.path").arg(directory.path().join("data"));
        command.arg(format!("--web.listen-address={address}"));
        Self { address, process: Process::start("prometheus", &mut command), _directory: directory }
    }

    /// The `data` of an answer of its API. Asked by HTTP 1.0, which has no pieces that would have to be put together.
    fn get(&self, path: &str) -> Result<Value, String> {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(&self.address)?;
            stream.set_read_timeout(Some(Duration::from_secs(20)))?;
            write!(stream, "GET /api/v1/{path} HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().map_err(|error| error.to_string())?;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        let mut body: Value = serde_json::from_str(body).map_err(|error| format!("{error}: {answer}"))?;
        match body["status"] == "success" {
            true => Ok(body["data"].take()),
            false => Err(body.to_string()),
        }
    }

    /// The series that an expression has now.
    fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        let escape =
            |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
        let escaped: String = expression.bytes().map(escape).collect();
        let data = self.get(&format!("query?query={escaped}"))?;
        // A scalar is a value, too.
        match data["resultType"] == "scalar" {
            true => Ok(vec![data["result"].clone()]),
            false => Ok(data["result"].as_array().cloned().unwrap_or_default()),
        }
    }

    fn until<T>(&mut self, what: &str, mut ready: impl FnMut(&Self) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = ready(self) {
                return found;
            }
            assert!(self.process.is_running(), "Prometheus has ended");
            assert!(Instant::now() < deadline, "waited in vain for {what}");
            // Sleep: Prometheus scrapes when it pleases, and tells nobody.
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Waits until it scrapes so many targets, all of them well.
    fn until_all_up(&mut self, targets: usize) {
        self.until("targets that are up", |prometheus| {
            let data = prometheus.get("targets?state=active").ok()?;
            let active = data["activeTargets"].as_array()?;
            (active.len() == targets && active.iter().all(|one| one["health"] == "up")).then_some(())
        });
    }
}

/// Names of series in an expression or a file of rules: of the code, and of recording rules.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let is_metric = |word: &&str| word.starts_with("gradwire_") && word.matches('_').count() >= 2;
    words.filter(|word| is_metric(word) || word.starts_with("gradwire:")).collect()
}

fn recorded(rules: &Value) -> Vec<(String, String)> {
    let all = rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap());
    let text = |rule: &Value, key: &str| rule[key].as_str().unwrap().to_owned();
    all.filter(|rule| rule["type"] == "recording")
        .map(|rule| (text(rule, "name"), text(rule, "query")))
        .collect()
}

/// Each rule was evaluated well, its expression can be asked for, and it reads series that are there.
fn check_rules(prometheus: &mut Prometheus) {
    let rules = prometheus.until("all rules to be evaluated", |prometheus| {
        let data = prometheus.get("rules").ok()?;
        let groups = data["groups"].as_array()?.clone();
        let mut all = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
        all.all(|rule| rule["health"] != "unknown").then_some(data)
    });
    for (name, _) in recorded(&rules) {
        prometheus.until(&name, |prometheus| prometheus.query(&name).ok().filter(|found| !found.is_empty()));
    }
    let all: Vec<&Value> = rules["groups"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();
    assert!(all.len() > 60, "{} rules", all.len());
    for rule in all {
        assert_eq!(rule["health"], "ok", "{rule}");
        let expression = rule["query"].as_str().unwrap();
        prometheus.query(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        for name in names(expression).into_iter().filter(|name| !SOMETIMES.contains(name)) {
            assert!(!prometheus.query(name).unwrap().is_empty(), "{name} has no series: {rule}");
        }
    }
}

/// Each panel and each list of choices has something to show.
fn check_dashboard(prometheus: &mut Prometheus) {
    let dashboard: Value = serde_json::from_str(&read("grafana", "gradwire.json")).unwrap();
    let chosen = |text: &str| {
        let text = text.replace("$__rate_interval", "30s");
        ["$job", "$gradwire_job", "$role", "$instance"]
            .iter()
            .fold(text, |text, name| text.replace(name, ".*"))
    };
    let mut asked = 0;
    for panel in dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().unwrap();
        assert!(!panel["description"].as_str().unwrap().is_empty(), "{title} says nothing");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
        for target in panel["targets"].as_array().unwrap() {
            let expression = chosen(target["expr"].as_str().unwrap());
            let query = |prometheus: &Prometheus| {
                let found = prometheus.query(&expression);
                found.unwrap_or_else(|error| panic!("{title}: {expression}: {error}"))
            };
            if SOMETIMES.iter().any(|name| expression.contains(name)) {
                query(prometheus);
            } else {
                // A rate needs two scrapes.
                let what = format!("{title} to show something: {expression}");
                prometheus.until(&what, |prometheus| (!query(prometheus).is_empty()).then_some(()));
            }
            assert!(!target["legendFormat"].as_str().unwrap().is_empty(), "{title}: {expression}: no legend");
            asked += 1;
        }
    }
    assert!(asked > 100, "{asked} expressions");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let queries = variables.iter().filter_map(|variable| variable["query"]["query"].as_str());
    let mut choices = 0;
    for query in queries {
        let words = chosen(query);
        let (series, label) = words
            .strip_prefix("label_values(")
            .and_then(|rest| rest.strip_suffix(')')?.rsplit_once(", "))
            .unwrap_or_else(|| panic!("{query}"));
        let found = prometheus.query(&format!("count by ({label}) ({series})")).unwrap();
        assert!(found.iter().all(|one| one["metric"][label].is_string()) && !found.is_empty(), "{query}");
        choices += 1;
    }
    assert_eq!(choices, 4);
}

fn firing(prometheus: &Prometheus) -> BTreeSet<String> {
    let found = prometheus.query("ALERTS{alertstate=\"firing\"}").unwrap();
    found.iter().map(|one| one["metric"]["alertname"].as_str().unwrap().to_owned()).collect()
}

/// Everything that the scheduler lists is scraped well, every rule and panel has what it reads, and a server that is
/// killed leaves the list and raises its alert.
#[test]
fn a_live_cluster_is_found_scraped_judged_and_shown() {
    let certs = Certs::new();
    let shown = certs.flags_until("gradwire://any/any", FAR_S);
    let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
    let mut cluster = Cluster::new(2, 2, &[&["--set", "cluster.replicas=1"], &shown[..]].concat());
    cluster.add_servers(2, &shown);
    cluster.add_trainers(2, &[&shown[..], &TRAIN].concat());
    let mut prometheus = Prometheus::scraping(&cluster);
    prometheus.until_all_up(5);
    let targets: Value = serde_json::from_str(&status::get(&cluster.http, "/targets").unwrap()).unwrap();
    let mut found = Vec::new();
    for group in targets.as_array().unwrap() {
        let metrics = status::get(group["targets"][0].as_str().unwrap(), "/metrics").unwrap();
        promtool(&["check", "metrics"], &metrics);
        let label = |name: &str| group["labels"][name].as_str().unwrap().to_owned();
        found.push((label("role"), label("rank")));
    }
    let expected = [("scheduler", "0"), ("server", "0"), ("server", "1"), ("worker", "0"), ("worker", "1")];
    assert_eq!(found, expected.map(|(role, rank)| (role.to_owned(), rank.to_owned())));
    let roles = prometheus.query("count by (role) (gradwire_scheduler_members)").unwrap();
    assert_eq!(roles.len(), 2, "a metric's own role is kept: {roles:?}");
    check_rules(&mut prometheus);
    check_dashboard(&mut prometheus);
    let healthy: Vec<String> =
        firing(&prometheus).into_iter().filter(|name| !OF_TIME.contains(&name.as_str())).collect();
    assert_eq!(healthy, Vec::<String>::new(), "nothing is wrong");

    cluster.servers[1].kill();
    prometheus.until("the death's alert", |prometheus| {
        firing(prometheus).contains("GradwireMemberDied").then_some(())
    });
    prometheus.until_all_up(4);
    cluster.assert_no_panic();
}
