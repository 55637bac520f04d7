//! Where Prometheus finds a job's daemons: the body of the scheduler's `/targets`, in the format of Prometheus' HTTP
//! service discovery. Members are not believed: what is no address is left out. Must not resolve or connect to anything.

use crate::http;
use crate::status::{ClusterStatus, MemberStatus};
use proto_common::ids::Role;
use serde_json::{Value, json};
use std::net::Ipv6Addr;
use tokio::net::TcpListener;

/// The address of a process's HTTP endpoints for others. A listener that takes every address of its host is reached by
/// the one that is `advertised`.
#[must_use]
pub fn reachable(listener: Option<&TcpListener>, advertised: &str) -> Option<String> {
    let bound = listener?.local_addr().ok()?;
    if !bound.ip().is_unspecified() {
        return http::address_of(listener);
    }
    let is_v6 = advertised.parse::<Ipv6Addr>().is_ok();
    let host = if is_v6 { format!("[{advertised}]") } else { advertised.to_owned() };
    Some(format!("{host}:{}", bound.port()))
}

/// One group a daemon: the scheduler, whose endpoints are at `own`, and the members that have not left.
#[must_use]
pub fn groups(status: &ClusterStatus, own: Option<&str>) -> Value {
    let group = |address: &str, role: Role, rank: u32| {
        let labels = json!({
            "role": role.to_string(),
            "rank": rank.to_string(),
            "gradwire_job": status.job.to_string(),
        });
        json!({ "targets": [address], "labels": labels })
    };
    let of_member = |member: &MemberStatus| {
        let address = member.http_address.as_deref().filter(|_| !member.left)?;
        is_address(address).then(|| group(address, member.role, member.rank.0))
    };
    let scheduler = own.map(|address| group(address, Role::Scheduler, 0));
    scheduler.into_iter().chain(status.members.iter().filter_map(of_member)).collect()
}

/// `HOST:PORT` and nothing else: a path or a user's name in it would send Prometheus elsewhere.
fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_name = !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    let in_brackets = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_v6 = in_brackets.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok());
    let is_port = port.chars().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    (is_name || is_v6) && is_port
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(role: Role, rank: u32, http_address: Option<&str>) -> MemberStatus {
        let member = json!({
            "role": role, "rank": rank, "pid": 1, "build": "", "data_address": null, "http_address": http_address,
            "silent_ms": 0, "left": false, "links_ready": true, "round": 0, "in_flight": 0, "oldest": null,
            "links": [],
        });
        serde_json::from_value(member).unwrap()
    }

    fn status(members: Vec<MemberStatus>) -> ClusterStatus {
        let status = json!({
            "job": 7, "phase": "running", "epoch": "1.0", "workers": 2, "servers": 1, "silence_ms": 10_000,
            "uptime_ms": 0, "tensors": 0, "tensor_bytes": 0, "uncopied_chunks": 0, "members": [], "missing": [],
            "barriers": [], "ending": null,
        });
        let mut status: ClusterStatus = serde_json::from_value(status).unwrap();
        status.members = members;
        status
    }

    #[test]
    fn everyone_who_can_be_scraped_is_listed_once() {
        let mut done = member(Role::Worker, 1, Some("127.0.0.1:4"));
        done.left = true;
        let members = vec![
            member(Role::Server, 0, Some("[::1]:2")),
            member(Role::Worker, 0, Some("host-a.lan:3")),
            done,
            member(Role::Worker, 2, None),
            member(Role::Worker, 3, Some("a/b:80")),
        ];
        let expected = json!([
            { "targets": ["10.0.0.1:1"], "labels": { "role": "scheduler", "rank": "0", "gradwire_job": "7" } },
            { "targets": ["[::1]:2"], "labels": { "role": "server", "rank": "0", "gradwire_job": "7" } },
            { "targets": ["host-a.lan:3"], "labels": { "role": "worker", "rank": "0", "gradwire_job": "7" } },
        ]);
        assert_eq!(groups(&status(members), Some("10.0.0.1:1")), expected);
        assert_eq!(groups(&status(Vec::new()), None), json!([]), "endpoints that are off");
    }

    #[test]
    fn what_is_no_address_is_left_out() {
        for address in ["a:1", "127.0.0.1:65535", "[::1]:9", "a-b.c_d:80"] {
            assert!(is_address(address), "{address}");
        }
        let wrong = [
            "", ":1", "a", "a:", "a:0", "a:65536", "a:+1", "::1:9", "[::1:9", "[a]:9", "u@a:1", "a/x:1",
            "a:1/x", "a b:1", "a\n:1",
        ];
        for address in wrong {
            assert!(!is_address(address), "{address}");
        }
    }

    #[tokio::test]
    async fn a_listener_on_every_address_is_reached_by_the_advertised_one() {
        let every = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = every.local_addr().unwrap().port();
        assert_eq!(reachable(Some(&every), "10.0.0.1"), Some(format!("10.0.0.1:{port}")));
        assert_eq!(reachable(Some(&every), "fd00::1"), Some(format!("[fd00::1]:{port}")));
        let one = TcpListener::bind("127.0.0.1:0").await.unwrap();
        assert_eq!(reachable(Some(&one), "10.0.0.1"), http::address_of(Some(&one)));
        assert_eq!(reachable(None, "10.0.0.1"), None);
    }
}
