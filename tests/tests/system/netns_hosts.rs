//! The settings that `docs/hosts.md` shows for three hosts, on three hosts: as they stand there, but for addresses and places of
//! files, with certificates made as the page makes them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test code: a panic is a failed test")]

use gradwire_tests::book::blocks;
use gradwire_tests::rigs::cluster::{PATIENCE, Place};
use gradwire_tests::rigs::launching::done;
use gradwire_tests::rigs::netns::Net;
use gradwire_tests::rigs::process::Process;
use gradwire_tests::rigs::programs::repository;
use gradwire_tests::rigs::training::{TRAIN, hash_in, reference};
use std::path::{Path, PathBuf};

/// In the order of the page's hosts.
const ROLES: [&str; 3] = ["scheduler", "server", "worker"];

/// The page's settings of a role, where nothing is anybody else's.
fn settings(page: &str, role: &str, directory: &Path) -> PathBuf {
    let head = format!("# /etc/gradwire/{role}.toml on ");
    let found: Vec<_> = blocks::of(page).into_iter().filter(|block| block.text.starts_with(&head)).collect();
    assert_eq!((found.len(), found[0].language.as_str()), (1, "toml"), "{role}");
    let mut text = found[0].text.replace("/etc/gradwire/", &format!("{}/", directory.display()));
    text = text.replace("/var/lib/gradwire/", &format!("{}/", directory.display()));
    for host in 1..=ROLES.len() {
        text = text.replace(&format!("10.0.0.{host}"), &Net::address(host));
    }
    let file = directory.join(format!("{role}.toml"));
    std::fs::write(&file, text).unwrap();
    file
}

fn started(place: &Place, program: &str, words: &[&str], file: &Path, rank: Option<usize>) -> Process {
    let mut command = place.command(program);
    command.args(words).arg("--config").arg(file);
    command.envs(rank.map(|rank| ("GRADWIRE_NODE__RANK", rank.to_string())));
    Process::start(format!("{program} {rank:?}"), &mut command)
}

#[test]
fn the_pages_settings_make_a_cluster_of_three_hosts() {
    let page = std::fs::read_to_string(repository().join("docs/hosts.md")).unwrap();
    let (net, directory) = (Net::new(ROLES.len()), tempfile::tempdir().unwrap());
    let gradwire = |place: &Place, words: &[&str]| {
        done(place.command("gradwire").args(words).current_dir(directory.path()))
    };
    let here = Place::default();
    gradwire(&here, &["certs", "init"]);
    for role in ROLES {
        let out = format!("tls/{role}");
        gradwire(&here, &["certs", "issue", "--role", role, "--job", "1", "--out", &out]);
    }
    let files = ROLES.map(|role| settings(&page, role, directory.path()));
    let places = [1, 2, 3].map(|host| net.place(host));
    for (role, (file, place)) in ROLES.iter().zip(files.iter().zip(&places)) {
        let file = file.to_str().unwrap();
        gradwire(place, &["config", "check", file]);
        gradwire(place, &["doctor", "--role", role, "--config", file]);
    }
    let mut everyone = vec![started(&places[0], "gradwire-scheduler", &[], &files[0], None)];
    everyone.extend([0, 1].map(|rank| started(&places[1], "gradwire-server", &[], &files[1], Some(rank))));
    let words = [&["train"][..], &TRAIN].concat();
    everyone.extend([0, 1].map(|rank| started(&places[2], "gradwire-worker", &words, &files[2], Some(rank))));
    for process in everyone.iter_mut().rev() {
        assert_eq!(process.expect_end(PATIENCE), 0, "{}", process.name());
        assert!(!process.log().text().contains("not authenticated"), "{}", process.name());
    }
    let said =
        everyone.iter().map(|process| process.log().text()).find(|text| text.contains("weights_sha256="));
    assert_eq!(hash_in(&said.expect("rank 0 says what it has learnt")), reference(2));
}
