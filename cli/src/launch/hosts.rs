//! Host files, and the assignment of processes to hosts. Parses text. Must not read files or connect to hosts.

use proto_common::ids::Role;
use proto_common::limits::SERVERS_MAX;
use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs as _, UdpSocket};
use std::{fmt, io};
use thiserror::Error;

/// A line of a host file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) user: Option<String>,
    pub(super) ssh_port: Option<u16>,
    /// Largest number of processes; no limit if absent.
    pub(super) slots: Option<u32>,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// An unusable host file.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum HostsError {
    #[error(
        "line {line} of the host file, {text:?}, is wrong: write [USER@]HOST[:PORT] [slots=N], such as node1 slots=2"
    )]
    Line { line: usize, text: String },
    #[error("the host file contains no host; write one host per line")]
    Empty,
    #[error(
        "the host file has {slots} slots, but the job has {processes} processes; add hosts, or raise slots="
    )]
    Slots { slots: u32, processes: u32 },
}

/// The hosts of a file. If a host is listed twice, its slots are added.
pub(super) fn parse(text: &str) -> Result<Vec<Host>, HostsError> {
    let mut hosts: Vec<Host> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let words = line.split('#').next().unwrap_or_default().trim();
        if words.is_empty() {
            continue;
        }
        let host = host(words).ok_or_else(|| HostsError::Line { line: index + 1, text: line.to_owned() })?;
        let same = |known: &&mut Host| {
            (&known.name, &known.user, known.ssh_port) == (&host.name, &host.user, host.ssh_port)
        };
        match hosts.iter_mut().find(same) {
            Some(known) => known.slots = known.slots.zip(host.slots).map(|(a, b)| a.saturating_add(b)),
            None => hosts.push(host),
        }
    }
    if hosts.is_empty() { Err(HostsError::Empty) } else { Ok(hosts) }
}

/// The first host of a file for mpirun: `HOST slots=N` of Open MPI, `HOST:N` of Hydra. None if it is a loopback name.
pub(super) fn first_of_mpi(text: &str) -> Option<String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let word = lines.filter_map(|line| line.split_whitespace().next()).next()?;
    let host = word.rsplit_once('@').map_or(word, |(_, host)| host);
    let name = match host.split_once(':') {
        Some((name, count)) if count.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    (!name.is_empty() && !is_loopback(name)).then(|| name.to_owned())
}

fn host(words: &str) -> Option<Host> {
    let (address, rest) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
    let mut slots = None;
    for word in rest.split_whitespace() {
        match word.split_once('=') {
            Some(("slots", count)) => slots = Some(count.parse().ok().filter(|count| *count > 0)?),
            // Open MPI's upper bound; here slots= is the bound.
            Some(("max_slots" | "max-slots", _)) => {}
            _ => return None,
        }
    }
    let (user, address) = match address.split_once('@') {
        Some((user, address)) => (Some(user.to_owned()).filter(|user| !user.is_empty())?.into(), address),
        None => (None, address),
    };
    // [v6]:port, v6, name:port.
    let (name, port) = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, "")) => (name, None),
        Some((name, port)) => (name, Some(port.strip_prefix(':')?)),
        None if address.matches(':').count() > 1 => (address, None),
        None => address.split_once(':').map_or((address, None), |(name, port)| (name, Some(port))),
    };
    let ssh_port =
        port.map(|port| port.parse().ok().filter(|port| *port > 0)).map_or(Some(None), |p| p.map(Some))?;
    // A name that starts with a dash would be an option of ssh's.
    let is_name = |name: &str| !name.is_empty() && !name.starts_with('-') && !name.contains(['[', ']']);
    let usable = is_name(name) && user.as_deref().is_none_or(is_name);
    usable.then(|| Host { name: name.to_owned(), user, ssh_port, slots })
}

/// Assigns `counts` processes of each role to the hosts in turn, within their slots.
pub(super) fn deal(
    counts: &[(Role, u32)],
    hosts_of: impl Fn(Role) -> Vec<Host>,
) -> Result<Vec<(Role, Host)>, HostsError> {
    let mut used: BTreeMap<Host, u32> = BTreeMap::new();
    let mut dealt = Vec::new();
    let mut turns: Vec<(Vec<Host>, usize)> = Vec::new();
    for (role, count) in counts {
        let hosts = hosts_of(*role);
        // Roles that share hosts continue after the last assigned host.
        let turn = match turns.iter().position(|(known, _)| *known == hosts) {
            Some(turn) => turn,
            None => {
                turns.push((hosts, 0));
                turns.len() - 1
            }
        };
        let (hosts, next) = &mut turns[turn];
        for _ in 0..*count {
            let free =
                |host: &Host| host.slots.is_none_or(|slots| used.get(host).copied().unwrap_or(0) < slots);
            let found =
                (0..hosts.len()).map(|step| (*next + step) % hosts.len()).find(|at| free(&hosts[*at]));
            let Some(at) = found else {
                let slots = hosts.iter().filter_map(|host| host.slots).sum();
                return Err(HostsError::Slots {
                    slots,
                    processes: counts.iter().map(|(_, count)| count).sum(),
                });
            };
            *next = at + 1;
            *used.entry(hosts[at].clone()).or_default() += 1;
            dealt.push((*role, hosts[at].clone()));
        }
    }
    Ok(dealt)
}

/// How many servers share hosts with so many workers, without `-s`: one on each host, where each has a worker and slots are left. Then a
/// gradient and its sum cross each host's link as often as in a ring of all-reduce.
pub(super) fn servers_beside(workers: u32, hosts: &[Host]) -> u32 {
    let all = hosts.len() as u32;
    let slots = hosts.iter().try_fold(0u32, |sum, host| sum.checked_add(host.slots?));
    let has_room = slots.is_none_or(|slots| slots >= workers.saturating_add(all))
        && hosts.iter().all(|host| host.slots.is_none_or(|slots| slots >= 2));
    if (1..=SERVERS_MAX).contains(&all) && workers >= all && has_room { all } else { 1 }
}

/// Is this a name or address of loopback?
pub(super) fn is_loopback(name: &str) -> bool {
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The source address of packets from this host to `name`. Nothing is sent.
pub(super) fn address_towards(name: &str) -> io::Result<IpAddr> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in (name, 9).to_socket_addrs()? {
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        match UdpSocket::bind(any)
            .and_then(|socket| socket.connect(address).and_then(|()| socket.local_addr()))
        {
            Ok(local) => return Ok(local.ip()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_of_workers_has_a_server_where_slots_allow() {
        let hosts = |slots: &[Option<u32>]| slots.iter().map(|s| named("a", *s)).collect::<Vec<_>>();
        let any = hosts(&[None, None, Some(2)]);
        assert_eq!([0, 1, 2, 3, 9].map(|workers| servers_beside(workers, &any)), [1, 1, 1, 3, 3]);
        let full = hosts(&[Some(2), Some(2)]);
        assert_eq!([1, 2, 3, 4].map(|workers| servers_beside(workers, &full)), [1, 2, 1, 1]);
        assert_eq!(servers_beside(2, &hosts(&[Some(1), Some(5)])), 1, "the first host would have no worker");
    }

    fn named(name: &str, slots: Option<u32>) -> Host {
        Host { name: name.into(), user: None, ssh_port: None, slots }
    }

    #[test]
    fn every_form_of_a_line() {
        let text = "# ours\n\nnode1\nnode2:2222 slots=2\nme@node3 slots=1 max_slots=4 # old\n[fe80::1]:22\nfe80::2\nnode2:2222 slots=1\n";
        let hosts = parse(text).unwrap();
        assert_eq!(hosts.len(), 5);
        assert_eq!(hosts[0], named("node1", None));
        assert_eq!(hosts[1], Host { ssh_port: Some(2222), ..named("node2", Some(3)) });
        assert_eq!(hosts[2], Host { user: Some("me".into()), ..named("node3", Some(1)) });
        assert_eq!(hosts[3], Host { ssh_port: Some(22), ..named("fe80::1", None) });
        assert_eq!(hosts[4], named("fe80::2", None));
    }

    #[test]
    fn the_first_host_of_a_file_for_mpirun() {
        let first = |text| first_of_mpi(text);
        for text in ["# all\n\n n1 slots=4\nn2\n", "n1:4\nn2:4\n", "me@n1\n", "n1 # first\n"] {
            assert_eq!(first(text).as_deref(), Some("n1"), "{text:?}");
        }
        assert_eq!(first("fe80::1 slots=1").as_deref(), Some("fe80::1"));
        assert_eq!(["", "# n1", "localhost slots=9", "127.0.0.1\nn2"].map(first), [const { None }; 4]);
    }

    #[test]
    fn lines_that_mean_nothing_are_refused_by_number() {
        for bad in [
            "a slots=0",
            "a slots=x",
            "a b",
            "a:0",
            "a:70000",
            "@a",
            "-oProxyCommand=x",
            "-l@a",
            "[::1",
            "[a]x",
        ] {
            let error = parse(&format!("good\n{bad}\n")).unwrap_err();
            assert!(matches!(error, HostsError::Line { line: 2, .. }), "{bad}: {error:?}");
        }
        assert_eq!(parse("\n# none\n"), Err(HostsError::Empty));
    }

    #[test]
    fn processes_are_dealt_out_in_turn_within_slots() {
        let hosts = vec![named("a", Some(2)), named("b", None)];
        let deal = |workers| deal(&[(Role::Server, 1), (Role::Worker, workers)], |_| hosts.clone()).unwrap();
        let names: Vec<String> = deal(4).iter().map(|(_, host)| host.name.clone()).collect();
        assert_eq!(names, ["a", "b", "a", "b", "b"], "a's second slot is its last");
        let full = vec![named("a", Some(2)), named("b", Some(1))];
        let counts = [(Role::Server, 1), (Role::Worker, 3)];
        assert_eq!(super::deal(&counts, |_| full.clone()), Err(HostsError::Slots { slots: 3, processes: 4 }));
        assert!(super::deal(&[(Role::Server, 1), (Role::Worker, 2)], |_| full.clone()).is_ok());
    }

    #[test]
    fn roles_may_have_hosts_of_their_own() {
        let of = |role| vec![named(if role == Role::Server { "s" } else { "w" }, Some(1))];
        let dealt = deal(&[(Role::Server, 1), (Role::Worker, 1)], of).unwrap();
        assert_eq!(dealt, [(Role::Server, named("s", Some(1))), (Role::Worker, named("w", Some(1)))]);
    }

    #[test]
    fn the_way_to_oneself_is_loopback() {
        assert!(address_towards("127.0.0.1").unwrap().is_loopback());
        assert!(
            is_loopback("localhost")
                && is_loopback("127.0.0.9")
                && is_loopback("::1")
                && !is_loopback("node1")
        );
        assert!(address_towards("no such host").is_err());
    }
}
