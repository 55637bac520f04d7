//! The plan of a launch: programs, arguments and variables of each process. It is complete before the first process starts, so a
//! wrong command line starts nothing. Must not start anything.

use super::args::LaunchArgs;
use super::hosts::{Host, is_loopback};
use super::kind::Kind;
use super::ranks::{Root, value};
use super::trust::Trust;
use crate::find;
use daemon::exit::{Failure, WithCode as _};
use daemon::settings::variable_of;
use proto_common::error::ExitCode;
use proto_common::ids::{MemberId, Rank, Role};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// One process to start.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ChildSpec {
    /// Its role and rank.
    pub(super) id: MemberId,
    /// Its host, if it is another one.
    pub(super) host: Option<Host>,
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
    /// Its working directory. The default is the launcher's.
    pub(super) directory: Option<PathBuf>,
    /// Variables in addition to the launcher's.
    pub(super) env: Vec<(String, String)>,
    /// Variables of the launcher that it must not inherit.
    pub(super) env_removed: Vec<String>,
}

/// A member of the cluster that this launcher starts.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Seat {
    pub(super) id: MemberId,
    pub(super) host: Option<Host>,
    /// A worker's number among the workers of its host, and their count, if known.
    pub(super) local: Option<(u32, u32)>,
    /// The scheduler chooses its rank.
    pub(super) any_rank: bool,
}

impl Seat {
    /// A seat on this host.
    pub(super) fn here(role: Role, rank: u32) -> Self {
        Self { id: MemberId { role, rank: Rank(rank) }, host: None, local: None, any_rank: false }
    }
}

/// Where the scheduler is.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Meeting {
    /// The scheduler starts first, at this address, and reports its port.
    Asked { host: String, port: u16 },
    /// The address is known before the start.
    Known(Root),
}

/// The programs of the roles.
#[derive(Clone, Debug)]
pub(super) struct Programs {
    pub(super) scheduler: PathBuf,
    pub(super) server: PathBuf,
    pub(super) worker: PathBuf,
    pub(super) worker_args: Vec<OsString>,
    /// The workers' program runs in every role.
    pub(super) every_role: bool,
}

impl Programs {
    /// The programs of `args`: found on this host if they run here, else their paths on the other hosts.
    pub(super) fn find(args: &LaunchArgs, kind: Kind) -> Result<Self, Failure> {
        let directory = find::bin_dir(args.bin_dir.as_deref())?;
        let usage = |text: &'static str| Failure::message(ExitCode::Usage, text);
        let no_program = (OsString::new(), Vec::new());
        let (name, worker_args) = match (args.program.split_first(), args.starts_no_workers()) {
            (Some((name, worker_args)), false) => (name, worker_args),
            (None, true) => (&no_program.0, &no_program.1[..]),
            (None, false) => return Err(usage("no PROGRAM is given; name one after --")),
            (Some(_), true) => return Err(usage("--workers 0 starts no workers; remove PROGRAM")),
        };
        let ours = |name: &str| match args.every_role {
            true => Ok(PathBuf::new()),
            false => find::ours(&directory, name),
        };
        let path = std::env::var_os("PATH");
        let is_far = kind == Kind::Ssh;
        Ok(Self {
            scheduler: ours("gradwire-scheduler")?,
            server: match is_far {
                true => remote_directory(args)?.join("gradwire-server"),
                false => ours("gradwire-server")?,
            },
            worker: match is_far && !args.every_role {
                true => PathBuf::from(name),
                false if args.starts_no_workers() => PathBuf::new(),
                false => find::program(&directory, name, path.as_deref())?,
            },
            worker_args: worker_args.to_vec(),
            every_role: args.every_role,
        })
    }
}

/// The directory of Gradwire's programs on other hosts.
pub(super) fn remote_directory(args: &LaunchArgs) -> Result<PathBuf, Failure> {
    let directory = match &args.remote_bin_dir {
        Some(directory) => directory.clone(),
        None => find::bin_dir(args.bin_dir.as_deref())?,
    };
    std::path::absolute(directory).code(ExitCode::Io)
}

/// The processes that this launcher starts: the whole cluster, or this host's part of it.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) programs: Programs,
    pub(super) meeting: Meeting,
    pub(super) seats: Vec<Seat>,
    /// Variables of all processes, of servers and the scheduler, and of workers.
    pub(super) common: Vec<(String, String)>,
    pub(super) of_servers: Vec<(String, String)>,
    pub(super) of_workers: Vec<(String, String)>,
    pub(super) removed: Vec<String>,
    /// Certificates, if the processes need them.
    pub(super) trust: Option<Trust>,
    /// The working directory on other hosts.
    pub(super) directory: Option<PathBuf>,
}

impl Plan {
    /// Is the rest of the cluster started by other launchers?
    pub(super) fn is_part(&self) -> bool {
        matches!(self.kind, Kind::Slurm | Kind::Mpi | Kind::BytePs)
    }

    /// The scheduler, which writes its addresses to `port_file`.
    pub(super) fn scheduler(&self, port_file: &Path) -> Option<ChildSpec> {
        let Meeting::Asked { host, port } = &self.meeting else { return None };
        let seat = Seat::here(Role::Scheduler, 0);
        let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let args = ["--scheduler".into(), address.into(), "--port-file".into(), port_file.into()];
        Some(ChildSpec { args: args.into(), ..self.spec(&seat, host, &port.to_string()) })
    }

    /// How workers that other launchers start find the scheduler at this address.
    pub(super) fn invitation(&self, control: &str) -> String {
        let has_workers = self.seats.iter().any(|seat| seat.id.role == Role::Worker);
        match control.rsplit_once(':').filter(|_| !has_workers) {
            Some((host, port)) => {
                let (host_name, port_name) = (variable_of("scheduler.host"), variable_of("scheduler.port"));
                format!(", for workers with {host_name}={host} {port_name}={port}")
            }
            None => String::new(),
        }
    }

    /// All processes, if the scheduler's address is known before the start.
    pub(super) fn everyone(&self) -> Option<Vec<ChildSpec>> {
        let Meeting::Known(root) = &self.meeting else { return None };
        Some(self.seats.iter().map(|seat| self.spec(seat, &root.host, &root.port.to_string())).collect())
    }

    /// Servers and workers of the scheduler at `host:port`.
    pub(super) fn members(&self, host: &str, port: &str) -> Vec<ChildSpec> {
        let members = self.seats.iter().filter(|seat| seat.id.role != Role::Scheduler);
        members.map(|seat| self.spec(seat, host, port)).collect()
    }

    fn spec(&self, seat: &Seat, host: &str, port: &str) -> ChildSpec {
        let (id, programs) = (seat.id, &self.programs);
        let mut env = self.common.clone();
        let own = [
            (variable_of("scheduler.host"), host),
            (variable_of("scheduler.port"), port),
            ("DMLC_PS_ROOT_URI".into(), host),
            ("DMLC_PS_ROOT_PORT".into(), port),
            ("DMLC_ROLE".into(), &id.role.to_string()),
        ];
        env.extend(own.map(|(name, value)| (name, value.to_owned())));
        env.extend(self.place(seat));
        env.extend(self.trust.iter().flat_map(|trust| trust.variables(id.role)));
        env.extend(if id.role == Role::Worker { self.of_workers.clone() } else { self.of_servers.clone() });
        let is_users = programs.every_role || id.role == Role::Worker;
        let program = match id.role {
            _ if is_users => &programs.worker,
            Role::Scheduler => &programs.scheduler,
            _ => &programs.server,
        };
        ChildSpec {
            id,
            host: seat.host.clone(),
            program: program.clone(),
            args: if is_users { programs.worker_args.clone() } else { Vec::new() },
            directory: seat.host.as_ref().and_then(|_| self.directory.clone()),
            env,
            env_removed: self.removed.clone(),
        }
    }

    /// Variables with role and rank, in the names of Gradwire, ps-lite and BytePS.
    fn place(&self, seat: &Seat) -> Vec<(String, String)> {
        let (rank, mut env) = (seat.id.rank.to_string(), Vec::new());
        if let (Role::Scheduler, Meeting::Known(Root { bind: Some(bind), .. })) =
            (seat.id.role, &self.meeting)
        {
            env.push((variable_of("scheduler.bind"), bind.clone()));
        }
        if seat.any_rank {
            return env;
        }
        if seat.id.role != Role::Scheduler {
            env.push((variable_of("node.rank"), rank.clone()));
        }
        // BytePS counts machines in these variables; they keep their values.
        let own_name = match seat.id.role {
            Role::Server => Some("DMLC_SERVER_ID"),
            Role::Worker if self.kind != Kind::BytePs => Some("DMLC_WORKER_ID"),
            _ => None,
        };
        env.extend(own_name.map(|name| (name.to_owned(), rank)));
        if let Some((index, count)) = seat.local {
            env.push(("BYTEPS_LOCAL_RANK".into(), index.to_string()));
            env.push(("BYTEPS_LOCAL_SIZE".into(), count.to_string()));
        }
        env
    }
}

/// The seats of a cluster, from the role and host of each member.
pub(super) fn seats(hosts: impl IntoIterator<Item = (Role, Option<Host>)>) -> Vec<Seat> {
    let mut seats: Vec<Seat> = Vec::new();
    for (role, host) in hosts {
        let rank = seats.iter().filter(|seat| seat.id.role == role).count() as u32;
        seats.push(Seat { host, ..Seat::here(role, rank) });
    }
    let workers: Vec<(MemberId, Option<Host>)> = seats
        .iter()
        .filter(|seat| seat.id.role == Role::Worker)
        .map(|seat| (seat.id, seat.host.clone()))
        .collect();
    for seat in seats.iter_mut().filter(|seat| seat.id.role == Role::Worker) {
        let here = workers.iter().filter(|(_, host)| *host == seat.host);
        let before = here.clone().filter(|(id, _)| id.rank < seat.id.rank).count() as u32;
        seat.local = Some((before, here.count() as u32));
    }
    seats
}

/// The address that a process binds to in a cluster of several hosts: that of the interface towards the scheduler, unless the user
/// has set one.
pub(super) fn bind_towards(root: &str, env: &[(String, String)]) -> Result<Vec<(String, String)>, Failure> {
    let said = [variable_of("node.bind"), "DMLC_INTERFACE".into(), "DMLC_NODE_HOST".into()];
    if is_loopback(root) || said.iter().any(|name| value(env, name).is_some()) {
        return Ok(Vec::new());
    }
    let wrong = |reason: String| {
        let fix = "name the interface with --interface, or the scheduler's address with --host-ip";
        Failure::message(
            ExitCode::Io,
            format!("cannot determine the address of this host towards {root}: {reason}; {fix}"),
        )
    };
    let address = super::hosts::address_towards(root).map_err(|error| wrong(error.to_string()))?;
    if address.is_loopback() {
        return Err(wrong(format!("the name resolves to {address}, which other hosts cannot reach")));
    }
    Ok(vec![
        (variable_of("node.bind"), address.to_string()),
        (variable_of("node.advertise"), address.to_string()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Option<Host> {
        Some(Host { name: name.into(), user: None, ssh_port: None, slots: None })
    }

    #[test]
    fn workers_are_counted_on_their_hosts() {
        let dealt = [
            (Role::Server, host("a")),
            (Role::Worker, host("b")),
            (Role::Worker, host("a")),
            (Role::Worker, host("b")),
        ];
        let local: Vec<_> = seats(dealt).iter().map(|seat| (seat.id.to_string(), seat.local)).collect();
        let expected = [
            ("server 0", None),
            ("worker 0", Some((0, 2))),
            ("worker 1", Some((0, 1))),
            ("worker 2", Some((1, 2))),
        ];
        assert_eq!(local, expected.map(|(name, local)| (name.to_owned(), local)));
    }

    #[test]
    fn on_one_host_nothing_is_bound_and_what_users_say_stays() {
        assert_eq!(bind_towards("127.0.0.1", &[]).unwrap(), []);
        let said = [("DMLC_INTERFACE".to_owned(), "eth1".to_owned())];
        assert_eq!(bind_towards("10.255.0.1", &said).unwrap(), []);
        assert!(bind_towards("no such host", &[]).unwrap_err().to_string().contains("--interface"));
    }
}
