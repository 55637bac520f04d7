//! What is to be started: programs, arguments and variables of each process. Decides everything before the
//! first process exists, so that a wrong command line starts nothing.

use super::LaunchArgs;
use crate::find;
use daemon::exit::Failure;
use daemon::process::DIE_WITH_PARENT;
use daemon::settings::{split_pair, variable_of};
use proto_common::error::ExitCode;
use proto_common::ids::{MemberId, Rank, Role};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// One process to start.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ChildSpec {
    /// Who it is in the cluster.
    pub(super) id: MemberId,
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
    /// Variables on top of the launcher's own.
    pub(super) env: Vec<(String, String)>,
    /// Variables of the launcher that it must not see.
    pub(super) env_removed: Vec<String>,
}

/// The whole cluster.
#[derive(Debug)]
pub(super) struct Plan {
    scheduler_program: PathBuf,
    server_program: PathBuf,
    worker_program: PathBuf,
    worker_args: Vec<OsString>,
    servers: u32,
    workers: u32,
    /// The same for all processes.
    common: Vec<(String, String)>,
    removed: Vec<String>,
}

impl Plan {
    pub(super) fn new(args: &LaunchArgs, env: &[(String, String)]) -> Result<Self, Failure> {
        let directory = find::bin_dir(args.bin_dir.as_deref())?;
        let (name, worker_args) = args
            .program
            .split_first()
            .ok_or_else(|| Failure::message(ExitCode::Usage, "no PROGRAM is given; name one after --"))?;
        let path = std::env::var_os("PATH");
        Ok(Self {
            scheduler_program: find::ours(&directory, "gradwire-scheduler")?,
            server_program: find::ours(&directory, "gradwire-server")?,
            worker_program: find::program(&directory, name, path.as_deref())?,
            worker_args: worker_args.to_vec(),
            servers: args.servers,
            workers: args.workers,
            common: common_env(args, env)?,
            removed: removed(env),
        })
    }

    /// The scheduler, which writes its addresses to `port_file`.
    pub(super) fn scheduler(&self, port_file: &Path) -> ChildSpec {
        let id = MemberId { role: Role::Scheduler, rank: Rank(0) };
        let args = ["--scheduler".into(), "127.0.0.1:0".into(), "--port-file".into(), port_file.into()];
        ChildSpec { args: args.into(), ..self.spec(id, &self.scheduler_program, "127.0.0.1", "0") }
    }

    /// Servers and workers of the scheduler at `host:port`.
    pub(super) fn members(&self, host: &str, port: &str) -> Vec<ChildSpec> {
        let servers = (0..self.servers).map(|rank| {
            let id = MemberId { role: Role::Server, rank: Rank(rank) };
            self.spec(id, &self.server_program, host, port)
        });
        let workers = (0..self.workers).map(|rank| {
            let id = MemberId { role: Role::Worker, rank: Rank(rank) };
            let spec = self.spec(id, &self.worker_program, host, port);
            ChildSpec { args: self.worker_args.clone(), ..spec }
        });
        servers.chain(workers).collect()
    }

    fn spec(&self, id: MemberId, program: &Path, host: &str, port: &str) -> ChildSpec {
        let mut env = self.common.clone();
        let own = [
            (variable_of("scheduler.host"), host),
            (variable_of("scheduler.port"), port),
            ("DMLC_PS_ROOT_URI".into(), host),
            ("DMLC_PS_ROOT_PORT".into(), port),
            ("DMLC_ROLE".into(), &id.role.to_string()),
        ];
        env.extend(own.map(|(name, value)| (name, value.to_owned())));
        if id.role != Role::Scheduler {
            env.push((variable_of("node.rank"), id.rank.to_string()));
        }
        let program = program.to_path_buf();
        ChildSpec { id, program, args: Vec::new(), env, env_removed: self.removed.clone() }
    }
}

/// Settings that the launcher gives its processes, and what to do instead of setting them.
const OWN: [(&str, &str); 5] = [
    ("cluster.workers", "use --workers"),
    ("cluster.servers", "use --servers"),
    ("scheduler.host", "leave it out: the scheduler is started here"),
    ("scheduler.port", "leave it out: the system chooses a free port"),
    ("node.rank", "leave it out: ranks are given in order"),
];

/// Ports that only one process can have are left to the system, and the job gets an id of its own, unless
/// the user says otherwise.
fn common_env(args: &LaunchArgs, env: &[(String, String)]) -> Result<Vec<(String, String)>, Failure> {
    let (workers, servers) = (args.workers.to_string(), args.servers.to_string());
    let mut common = vec![
        (variable_of("cluster.workers"), workers.clone()),
        (variable_of("cluster.servers"), servers.clone()),
        ("DMLC_NUM_WORKER".into(), workers),
        ("DMLC_NUM_SERVER".into(), servers),
        (variable_of("node.http"), "127.0.0.1:0".into()),
        (variable_of("node.port"), "0".into()),
    ];
    if !env.iter().any(|(name, _)| *name == variable_of("job")) {
        common.push((variable_of("job"), daemon::host::new_incarnation()?.0.to_string()));
    }
    for (key, value) in args.transport.iter().flat_map(|transport| transport.settings()) {
        common.push((variable_of(&key), value));
    }
    if let Some(placement) = &args.placement {
        common.push((variable_of("transport.placement"), placement.clone()));
    }
    for pair in &args.set {
        let (key, value) = split_pair(pair).map_err(|error| Failure::new(ExitCode::Usage, error))?;
        if let Some((_, instead)) = OWN.iter().find(|(own, _)| *own == key) {
            let text = format!("--set {key}: launch decides that for its cluster; {instead}");
            return Err(Failure::message(ExitCode::Usage, text));
        }
        common.push((variable_of(key), value.to_owned()));
    }
    Ok(common)
}

/// A rank or a parent that the launcher itself was given means nothing to its children.
fn removed(env: &[(String, String)]) -> Vec<String> {
    let names = [DIE_WITH_PARENT.to_owned(), variable_of("node.rank")];
    names.into_iter().filter(|name| env.iter().any(|(given, _)| given == name)).collect()
}
