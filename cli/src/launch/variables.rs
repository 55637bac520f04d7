//! Makes a plan from flags and the environment: the variables of processes, and the seats of each kind of cluster. Must not start
//! anything.

use super::args::LaunchArgs;
use super::hosts::{self, Host, is_loopback};
use super::kind::Kind;
use super::plan::{Meeting, Plan, Programs, Seat, bind_towards, seats};
use super::ranks::{self, Root, Task, is_handed_on, value};
use super::trust::{self, Trust};
use anyhow::Context as _;
use daemon::exit::{Failure, WithCode as _};
use daemon::process::DIE_WITH_PARENT;
use daemon::settings::{load_settings, split_pair, variable_of};
use proto_common::config::Settings;
use proto_common::error::ExitCode;
use proto_common::ids::{JobId, MemberId, Role};
use proto_common::limits::WORKERS_MAX;
use proto_common::transport::Driver;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

type Pairs = Vec<(String, String)>;

/// Settings that only the launcher sets, and what to do instead.
const OWN: [(&str, &str); 5] = [
    (WORKERS, "use --workers"),
    ("cluster.servers", "use --servers"),
    ("scheduler.host", "remove it: the scheduler runs here; --host-ip sets its address"),
    ("scheduler.port", "remove it: the system chooses a free port; --scheduler-port sets one"),
    ("node.rank", "remove it: the launcher assigns the ranks"),
];

/// The settings of certificates.
const SECURITY: [&str; 4] = ["security.mode", "security.ca", "security.certificate", "security.key"];

const WORKERS: &str = "cluster.workers";

const UNBUFFERED: &str = "PYTHONUNBUFFERED";

fn usage(text: String) -> Failure {
    Failure::message(ExitCode::Usage, text)
}

/// The plan of a cluster of `kind`. `task` is this task of Slurm or MPI, if it is one.
pub(super) fn plan(
    args: &LaunchArgs,
    env: &[(String, String)],
    kind: Kind,
    task: Option<&Task>,
) -> Result<Plan, Failure> {
    let servers = args.servers.unwrap_or(1);
    if args.starts_no_workers() && (!matches!(kind, Kind::Local | Kind::Ssh) || args.every_role) {
        return Err(usage("--workers 0 is for --cluster local and ssh, without --every-role".into()));
    }
    let (meeting, seats, servers, workers) = match (kind, task) {
        (Kind::BytePs, _) => byteps(args, env)?,
        (Kind::Slurm | Kind::Mpi, Some(task)) => {
            let workers = ranks::workers(task.size, servers, args.workers)?;
            let root =
                ranks::root(task, host_ip(args).or(value(env, "DMLC_PS_ROOT_URI")), root_port(args, env)?)?;
            let MemberId { role, rank } = ranks::member(task.rank, servers);
            let seat = Seat { local: ranks::place(task, servers), ..Seat::here(role, rank.0) };
            (Meeting::Known(root), vec![seat], servers, workers)
        }
        (Kind::Ssh, _) => ssh(args)?,
        (Kind::Local | Kind::Slurm | Kind::Mpi, _) => {
            let workers = args.workers.unwrap_or(1);
            let all = roles(servers, workers).into_iter().map(|role| (role, None));
            let host = host_ip(args).unwrap_or("127.0.0.1").to_owned();
            (Meeting::Asked { host, port: own_port(args) }, seats(all), servers, workers)
        }
    };
    let workers = if args.starts_no_workers() { joining(args, env)? } else { workers };
    let mut plan = Plan {
        kind,
        programs: Programs::find(args, kind)?,
        common: common(args, env, kind, (servers, workers))?,
        of_servers: pairs("--env-server", &args.env_server, env)?,
        of_workers: pairs("--env-worker", &args.env_worker, env)?,
        removed: removed(kind),
        trust: None,
        directory: remote_working_directory(args, kind)?,
        meeting,
        seats,
    };
    if args.every_role {
        everyone_meets_at_a_known_place(&mut plan)?;
    }
    if let Meeting::Known(root) = &plan.meeting {
        // A random job id is possible only if one launcher starts the whole job.
        let job = root.job.to_string();
        if kind != Kind::BytePs && value(env, &variable_of("job")).is_none() {
            plan.common.push((variable_of("job"), job));
        }
        if kind != Kind::Ssh {
            let given = [env, &plan.common[..]].concat();
            plan.common.extend(bind_towards(&root.host, &given)?);
        }
    }
    plan.trust = trust_for(&plan, env)?;
    Ok(plan)
}

/// The port of a scheduler that this launcher starts. Workers of other launchers look for it at the default port.
fn own_port(args: &LaunchArgs) -> u16 {
    let default = if args.starts_no_workers() { Settings::default().scheduler.port } else { 0 };
    args.scheduler_port.unwrap_or(default)
}

/// The number of workers that other launchers start.
fn joining(args: &LaunchArgs, env: &[(String, String)]) -> Result<u32, Failure> {
    let mut set = args.set.iter().filter_map(|pair| split_pair(pair).ok());
    let set = set.rfind(|(key, _)| *key == WORKERS).map(|(_, value)| value);
    let given = set.or(value(env, &variable_of(WORKERS))).or(value(env, "WORLD_SIZE"));
    let count = given.and_then(|text| text.parse().ok()).filter(|count| (1..=WORKERS_MAX).contains(count));
    count.ok_or_else(|| {
        usage(format!(
            "--workers 0 starts the scheduler and the servers, and workers join from elsewhere: set their number with \
             --set {WORKERS}=N, such as the number of processes that torchrun starts (1 to {WORKERS_MAX})"
        ))
    })
}

fn roles(servers: u32, workers: u32) -> Vec<Role> {
    [vec![Role::Server; servers as usize], vec![Role::Worker; workers as usize]].concat()
}

/// `--host-ip`, except the words with which dmlc-submit asks for a default.
fn host_ip(args: &LaunchArgs) -> Option<&str> {
    args.host_ip.as_deref().filter(|given| !["auto", "ip", "dns"].contains(given))
}

fn root_port(args: &LaunchArgs, env: &[(String, String)]) -> Result<Option<u16>, Failure> {
    let from_env = value(env, "DMLC_PS_ROOT_PORT").map(|text| {
        text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(|| {
            let text = format!("invalid DMLC_PS_ROOT_PORT = {text:?}: use a port from 1 to 65535");
            Failure::message(ExitCode::Config, text)
        })
    });
    args.scheduler_port.map(Ok).or(from_env).transpose()
}

type Placed = (Meeting, Vec<Seat>, u32, u32);

/// The scheduler on this host, and the other processes on the hosts of files.
fn ssh(args: &LaunchArgs) -> Result<Placed, Failure> {
    let read = |file: &Path| {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the host file {}", file.display()))
            .code(ExitCode::Io)?;
        let own_user = |host| Host { user: args.username.clone(), ..host };
        let parsed = hosts::parse(&text).with_context(|| file.display().to_string()).code(ExitCode::Usage)?;
        let named = parsed.into_iter().map(|host| if host.user.is_none() { own_user(host) } else { host });
        Ok::<_, Failure>(named.collect::<Vec<Host>>())
    };
    let of = |own: &Option<PathBuf>| own.as_deref().or(args.host_file.as_deref()).map(read).transpose();
    let (servers_on, workers_on) = (of(&args.server_host_file)?, of(&args.worker_host_file)?);
    let (Some(servers_on), Some(workers_on)) = (servers_on, workers_on) else {
        return Err(usage("--cluster ssh needs hosts: give a file of them with --host-file".into()));
    };
    // With a file for a role, the default is one process on each of its hosts, as with BytePS's launcher.
    let count = |given: Option<u32>, file: &Option<PathBuf>, hosts: &[Host]| {
        given.unwrap_or(if file.is_some() { hosts.len() as u32 } else { 1 })
    };
    let workers = count(args.workers, &args.worker_host_file, &workers_on);
    let servers = match (args.servers, &args.server_host_file, &args.worker_host_file) {
        (None, None, None) => hosts::servers_beside(workers, &workers_on),
        (given, own, _) => count(given, own, &servers_on),
    };
    let of_role = |role| if role == Role::Server { servers_on.clone() } else { workers_on.clone() };
    let dealt =
        hosts::deal(&[(Role::Server, servers), (Role::Worker, workers)], of_role).code(ExitCode::Usage)?;
    let host = match host_ip(args) {
        Some(host) => host.to_owned(),
        None => address_for(dealt.iter().map(|(_, host)| host.name.as_str()))?,
    };
    let seats = seats(dealt.into_iter().map(|(role, host)| (role, Some(host))));
    Ok((Meeting::Asked { host, port: own_port(args) }, seats, servers, workers))
}

/// The address of this host towards the first of these hosts that is not this host.
fn address_for<'a>(names: impl Iterator<Item = &'a str>) -> Result<String, Failure> {
    let far: Vec<&str> = names.filter(|name| !is_loopback(name)).collect();
    let mut last = None;
    for name in &far {
        match hosts::address_towards(name) {
            Ok(address) if !address.is_loopback() => return Ok(address.to_string()),
            Ok(_) => {}
            Err(error) => last = Some(format!("{name}: {error}")),
        }
    }
    match last {
        Some(reason) => {
            let fix = "check the host file, or name this host's address with --host-ip";
            Err(Failure::message(
                ExitCode::Io,
                format!(
                    "cannot determine an address at which the hosts reach the scheduler: {reason}; {fix}"
                ),
            ))
        }
        None => Ok("127.0.0.1".into()),
    }
}

/// This machine's part of a job, as bpslaunch starts it: its role, with one worker for each device.
fn byteps(args: &LaunchArgs, env: &[(String, String)]) -> Result<Placed, Failure> {
    let need = |name: &str| {
        let missing = || {
            let fix = "set the variables of bpslaunch, or start the whole job with gradwire launch -n N -s M";
            Failure::message(ExitCode::Config, format!("{name} is not set; {fix}"))
        };
        value(env, name).ok_or_else(missing)
    };
    let count = |name: &str| {
        let text = need(name)?;
        text.parse::<u32>().map_err(|_| {
            Failure::message(
                ExitCode::Config,
                format!("invalid {name} = {text:?}: use an integer of at least 0"),
            )
        })
    };
    let role = match need("DMLC_ROLE")? {
        "scheduler" => Role::Scheduler,
        "server" => Role::Server,
        "worker" => Role::Worker,
        other => {
            let text = format!("invalid DMLC_ROLE = {other:?}: use scheduler, server or worker");
            return Err(Failure::message(ExitCode::Config, text));
        }
    };
    let host = need("DMLC_PS_ROOT_URI")?.to_owned();
    need("DMLC_PS_ROOT_PORT")?;
    let port = root_port(args, env)?.unwrap_or_default();
    let (machines, servers) = (count("DMLC_NUM_WORKER")?, count("DMLC_NUM_SERVER")?);
    let devices = value(env, "NVIDIA_VISIBLE_DEVICES").filter(|list| !["all", "none", "void"].contains(list));
    let local = match (args.local_size, devices, value(env, "BYTEPS_LOCAL_SIZE")) {
        (Some(size), ..) => size,
        (None, None, Some(_)) => count("BYTEPS_LOCAL_SIZE")?.max(1),
        (None, devices, _) => devices.map_or(1, |list| list.split(',').count() as u32),
    };
    let seats = match role {
        Role::Worker => {
            let first = count("DMLC_WORKER_ID")?.saturating_mul(local);
            let seat =
                |index| Seat { local: Some((index, local)), ..Seat::here(role, first.saturating_add(index)) };
            (0..local).map(seat).collect()
        }
        Role::Server => {
            let rank = value(env, "DMLC_SERVER_ID").map(|_| count("DMLC_SERVER_ID")).transpose()?;
            vec![Seat { any_rank: rank.is_none(), ..Seat::here(role, rank.unwrap_or(0)) }]
        }
        Role::Scheduler => vec![Seat::here(role, 0)],
    };
    let root = Root { host, port, bind: None, job: 0 };
    Ok((Meeting::Known(root), seats, servers, machines.saturating_mul(local)))
}

/// Programs that contain the scheduler do not report a port, so a free one is chosen before the start.
fn everyone_meets_at_a_known_place(plan: &mut Plan) -> Result<(), Failure> {
    let Meeting::Asked { host, port } = &plan.meeting else { return Ok(()) };
    let (host, mut port) = (host.clone(), *port);
    if port == 0 {
        let free = TcpListener::bind((host.as_str(), 0)).and_then(|listener| listener.local_addr());
        let free = free.with_context(|| format!("cannot bind {host}; name another address with --host-ip"));
        port = free.code(ExitCode::Io)?.port();
    }
    let job = daemon::host::new_incarnation()?.0;
    plan.meeting = Meeting::Known(Root { host, port, bind: None, job });
    plan.seats.insert(0, Seat::here(Role::Scheduler, 0));
    Ok(())
}

/// Variables of all processes. Unless the user has set them, the system chooses ports, and the job gets an id of its own.
pub(super) fn common(
    args: &LaunchArgs,
    env: &[(String, String)],
    kind: Kind,
    (servers, workers): (u32, u32),
) -> Result<Pairs, Failure> {
    let mut common = vec![
        (variable_of("cluster.workers"), workers.to_string()),
        (variable_of("cluster.servers"), servers.to_string()),
        (variable_of("node.http"), "127.0.0.1:0".into()),
        (variable_of("node.port"), "0".into()),
        ("DMLC_JOB_CLUSTER".into(), kind.name().into()),
    ];
    if kind != Kind::BytePs {
        common.push(("DMLC_NUM_WORKER".into(), workers.to_string()));
        common.push(("DMLC_NUM_SERVER".into(), servers.to_string()));
    }
    let is_whole = matches!(kind, Kind::Local | Kind::Ssh) && !args.every_role;
    // Workers of other launchers do not know a random id.
    if is_whole && !args.starts_no_workers() && value(env, &variable_of("job")).is_none() {
        common.push((variable_of("job"), daemon::host::new_incarnation()?.0.to_string()));
    }
    // Python buffers output to a pipe, and a killed process would lose it.
    if !env.iter().any(|(name, _)| name == UNBUFFERED) {
        common.push((UNBUFFERED.into(), "1".into()));
    }
    for (key, value) in args.transport.into_iter().flat_map(Driver::settings) {
        common.push((variable_of(key), value.to_owned()));
    }
    if let Some(placement) = &args.placement {
        common.push((variable_of("transport.placement"), placement.clone()));
    }
    if let Some(level) = &args.log_level {
        common.push((variable_of("log.filter"), level.to_ascii_lowercase()));
    }
    common.extend(args.interface.iter().map(|name| ("DMLC_INTERFACE".to_owned(), name.clone())));
    common.extend(pairs("--env", &args.env, env)?);
    for pair in &args.set {
        let (key, value) = split_pair(pair).map_err(|error| Failure::new(ExitCode::Usage, error))?;
        if key == WORKERS && args.starts_no_workers() {
            continue;
        }
        if let Some((_, instead)) = OWN.iter().find(|(own, _)| *own == key) {
            return Err(usage(format!("--set {key}: gradwire launch sets it; {instead}")));
        }
        common.push((variable_of(key), value.to_owned()));
    }
    Ok(common)
}

/// `NAME:VALUE`, as BytePS and MXNet write it, `NAME=VALUE`, as a shell does, or `NAME` for the value in `env`.
fn pairs(flag: &str, given: &[String], env: &[(String, String)]) -> Result<Pairs, Failure> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let own = |name: &str| env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let split = |pair: &String| {
        let (name, value) = match pair.split_once([':', '=']) {
            Some((name, value)) => (name, Some(value)),
            None => (pair.as_str(), own(pair)),
        };
        match value {
            _ if !is_name(name) => Err(usage(format!(
                "{flag} {pair}: write NAME:VALUE, such as OMP_NUM_THREADS:4, or NAME for the value that it has here"
            ))),
            None => Err(usage(format!("{flag} {name}: {name} is not set here; write {name}=VALUE"))),
            Some(value) => Ok((name.to_owned(), value.to_owned())),
        }
    };
    given.iter().map(split).collect()
}

/// Variables about the launcher's own place and parent, which its processes must not inherit.
fn removed(kind: Kind) -> Vec<String> {
    let own = [DIE_WITH_PARENT, trust::VARIABLE, ranks::FIRST_HOST, "DMLC_RANK"].map(str::to_owned);
    let mut names = [&own[..], &[variable_of("node.rank")]].concat();
    if kind != Kind::BytePs {
        let places = ["DMLC_WORKER_ID", "DMLC_SERVER_ID", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE"];
        names.extend(places.map(str::to_owned));
    }
    if kind == Kind::Ssh {
        names.push("DMLC_NODE_HOST".into());
    }
    names
}

/// The working directory on other hosts: the copied one, else the same path as here.
fn remote_working_directory(args: &LaunchArgs, kind: Kind) -> Result<Option<PathBuf>, Failure> {
    match (&args.sync_dst_dir, kind) {
        (Some(directory), Kind::Ssh) => Ok(Some(PathBuf::from(directory))),
        (None, Kind::Ssh) => Ok(Some(std::env::current_dir().code(ExitCode::Io)?)),
        _ => Ok(None),
    }
}

/// Certificates for a plan whose processes reach each other beyond loopback, unless the user has set `security`.
fn trust_for(plan: &Plan, env: &[(String, String)]) -> Result<Option<Trust>, Failure> {
    let given = [env, &plan.common[..]].concat();
    if !needs_certificates(plan, &given) {
        return Ok(None);
    }
    if plan.is_part() { Trust::passed_on(env) } else { Trust::new(job_in(&given)).map(Some) }
}

/// What srun or mpirun has to pass on to the tasks: the job's id and the certificates for it. Nothing where the user has set
/// `security`. The tasks ignore the certificates where all of them are on one host.
pub(super) fn trust_for_tasks(
    args: &LaunchArgs,
    env: &[(String, String)],
    kind: Kind,
) -> Result<Vec<(String, String)>, Failure> {
    let counts = (args.servers.unwrap_or(1), args.workers.unwrap_or(1));
    let given = [env, &common(args, env, kind, counts)?[..]].concat();
    if has_security(&given) {
        return Ok(Vec::new());
    }
    let job = match job_in(&given) {
        Some(job) => job,
        None => JobId(daemon::host::new_incarnation()?.0),
    };
    Ok(vec![(variable_of("job"), job.to_string()), Trust::new(Some(job))?.to_pass_on()?])
}

/// What to do about tasks on several hosts that have received no certificates, because srun or mpirun was started by hand.
pub(super) fn advice_on_trust(plan: &Plan, env: &[(String, String)]) -> Option<String> {
    let given = [env, &plan.common[..]].concat();
    let starter = match plan.kind {
        Kind::Slurm => "srun",
        Kind::Mpi => "mpirun",
        _ => return None,
    };
    if plan.trust.is_some() || !needs_certificates(plan, &given) {
        return None;
    }
    Some(format!(
        "the tasks are on several hosts and have no certificates: run gradwire launch --cluster {} without {starter}, which makes \
         them for each job, or set security.ca, security.certificate and security.key (gradwire certs issue --role any)",
        plan.kind.name()
    ))
}

fn needs_certificates(plan: &Plan, given: &[(String, String)]) -> bool {
    let meets = match &plan.meeting {
        Meeting::Asked { host, .. } => host,
        Meeting::Known(root) => &root.host,
    };
    plan.kind != Kind::BytePs && !is_loopback(meets) && !has_security(given)
}

/// Has the user set anything about certificates, in variables, flags or a settings file?
fn has_security(given: &[(String, String)]) -> bool {
    let in_variables = SECURITY.iter().any(|key| value(given, &variable_of(key)).is_some());
    let known: Vec<(String, String)> =
        given.iter().filter(|(name, _)| !is_handed_on(name)).cloned().collect();
    // A process reports by itself what is wrong with its settings.
    let in_files = load_settings(Role::Scheduler, &known, None, &[])
        .is_ok_and(|loaded| SECURITY.iter().any(|key| loaded.origins.contains_key(*key)));
    in_variables || in_files
}

fn job_in(given: &[(String, String)]) -> Option<JobId> {
    value(given, &variable_of("job")).and_then(|job| job.parse().ok()).map(JobId)
}
