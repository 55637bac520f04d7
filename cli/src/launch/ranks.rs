//! The role of a task of Slurm or MPI: task 0 is the scheduler, the next tasks are servers, the others workers. All tasks derive the
//! same result from their environment, without communication. The environment is an argument. Must not read anything else.

use super::hosts::is_loopback;
use super::nodelist;
use daemon::exit::{Failure, WithCode as _};
use daemon::settings::variable_of;
use proto_common::error::ExitCode;
use proto_common::ids::{MemberId, Rank, Role};
use std::ops::Range;

/// Range of ports that are derived from a job's id: below the ports that systems choose themselves.
const PORTS: Range<u64> = 20_000..30_000;

/// Open MPI 4 sets this variable and passes the options of its mapper to the ranks.
const TELLS_OPTIONS: &str = "OMPI_MCA_ess_base_jobid";
const OPTIONS: &str = "OMPI_MCA_rmaps";
/// Options of the mapper with which the ranks of a host are consecutive.
const HARMLESS: [&str; 2] = ["OMPI_MCA_rmaps_base_oversubscribe", "OMPI_MCA_rmaps_base_no_oversubscribe"];
const POLICIES: [&str; 2] = ["OMPI_MCA_rmaps_base_mapping_policy", "OMPI_MCA_rmaps_base_ranking_policy"];

/// Prefix of variables from a launcher to the launchers in its tasks. Tasks remove them from the environment of their processes.
const HANDED_ON: &str = "GRADWIRE_LAUNCH_";
/// The host of rank 0, which MPI does not name. A launcher that calls mpirun reads it from the host file.
pub(super) const FIRST_HOST: &str = "GRADWIRE_LAUNCH_FIRST_HOST";

/// Is this variable only for launchers in tasks? No settings file or process knows it. With a second underscore it is
/// the name of a setting, and an error, because there is no section `launch`.
pub(super) fn is_handed_on(name: &str) -> bool {
    name.strip_prefix(HANDED_ON).is_some_and(|rest| !rest.starts_with('_'))
}

/// A task of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) rank: u32,
    pub(super) size: u32,
    /// The host of task 0, if known.
    pub(super) first_host: Option<String>,
    /// All tasks are on one host.
    pub(super) is_alone: bool,
    /// The tasks on this task's host; empty if unknown.
    pub(super) here: Vec<Range<u32>>,
    /// A text that is the same for all tasks of this job, and differs from other jobs'.
    pub(super) seed: Option<String>,
}

pub(super) fn value<'a>(env: &'a [(String, String)], name: &str) -> Option<&'a str> {
    env.iter().find(|(known, value)| known == name && !value.is_empty()).map(|(_, value)| value.as_str())
}

fn number(env: &[(String, String)], name: &str) -> Result<Option<u32>, Failure> {
    let parse = |text: &str| {
        text.parse().map_err(|_| {
            let text = format!("invalid {name} = {text:?}: use a number; srun and mpirun set it");
            Failure::message(ExitCode::Config, text)
        })
    };
    value(env, name).map(parse).transpose()
}

/// This task of srun; none outside a step. (A batch script has SLURM_PROCID too, but no step.)
pub(super) fn slurm(env: &[(String, String)]) -> Result<Option<Task>, Failure> {
    let (rank, size) = (number(env, "SLURM_PROCID")?, number(env, "SLURM_STEP_NUM_TASKS")?);
    let (Some(rank), Some(size)) = (rank, size) else { return Ok(None) };
    let list = value(env, "SLURM_STEP_NODELIST").or_else(|| value(env, "SLURM_JOB_NODELIST"));
    let nodes = list.map(nodelist::expand).transpose().code(ExitCode::Config)?.unwrap_or_default();
    let ids = value(env, "SLURM_JOB_ID").zip(value(env, "SLURM_STEP_ID"));
    let is_alone = nodes.len() == 1;
    Ok(Some(Task {
        rank,
        size,
        is_alone,
        here: here_of_slurm(env, rank, size, is_alone),
        first_host: nodes.into_iter().next(),
        seed: ids.map(|(job, step)| format!("slurm {job}.{step}")),
    }))
}

/// This rank of mpirun, of Open MPI or of an MPI with Hydra (MPICH, Intel MPI). `parent` is the parent's process id, which the ranks
/// of Hydra on one host share.
pub(super) fn mpi(env: &[(String, String)], parent: u32) -> Result<Option<Task>, Failure> {
    let kinds = [
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ];
    for (rank, size, count) in kinds {
        let (Some(rank), Some(size)) = (number(env, rank)?, number(env, size)?) else { continue };
        let count = number(env, count)?;
        let is_alone = count == Some(size);
        let here = match number(env, "OMPI_COMM_WORLD_LOCAL_RANK")?.zip(count) {
            Some(local) => here_of_open_mpi(env, (rank, size), local),
            None if is_alone => here_alone(rank, size),
            None => Vec::new(),
        };
        let id = value(env, "PMIX_NAMESPACE").or_else(|| value(env, "OMPI_MCA_ess_base_jobid"));
        let seed = id.map(|id| format!("mpi {id}")).or_else(|| is_alone.then(|| format!("mpi {parent}")));
        // On several hosts Hydra has no job id; the launcher that calls it chooses one.
        let seed = seed.or_else(|| value(env, &variable_of("job")).map(|job| format!("job {job}")));
        let first_host = value(env, FIRST_HOST).map(str::to_owned);
        return Ok(Some(Task { rank, size, first_host, is_alone, here, seed }));
    }
    Ok(None)
}

/// The number of workers in a job of `size` tasks with one scheduler and `servers` servers.
pub(super) fn workers(size: u32, servers: u32, wanted: Option<u32>) -> Result<u32, Failure> {
    let left = size.saturating_sub(1).saturating_sub(servers);
    if left >= 1 && wanted.is_none_or(|wanted| wanted == left) {
        return Ok(left);
    }
    let needed = 1 + servers + wanted.unwrap_or(1);
    let text = format!(
        "{size} tasks were started, but 1 scheduler, {servers} servers and {} workers are {needed}; \
         start {needed} tasks, or give other numbers",
        wanted.map_or("at least 1".into(), |wanted| wanted.to_string()),
    );
    Err(Failure::message(ExitCode::Usage, text))
}

/// Role and rank of a task.
pub(super) fn member(rank: u32, servers: u32) -> MemberId {
    let (role, rank) = match rank {
        0 => (Role::Scheduler, 0),
        rank if rank <= servers => (Role::Server, rank - 1),
        rank => (Role::Worker, rank - 1 - servers),
    };
    MemberId { role, rank: Rank(rank) }
}

/// The scheduler's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) host: String,
    pub(super) port: u16,
    /// The address that the scheduler binds to, if it is not `host`.
    pub(super) bind: Option<String>,
    /// The job's id, the same for all.
    pub(super) job: u64,
}

/// The scheduler's address for the task's job: as given, else derived from the environment.
pub(super) fn root(task: &Task, host: Option<&str>, port: Option<u16>) -> Result<Root, Failure> {
    let missing = |what: &str, fix: &str| Failure::message(ExitCode::Usage, format!("{what}; {fix}"));
    let host = match (host, &task.first_host) {
        (Some(host), _) => host.to_owned(),
        (None, _) if task.is_alone => "127.0.0.1".to_owned(),
        (None, Some(host)) => host.clone(),
        (None, None) => {
            let fix = "pass --host-file, or name the host of rank 0 with --host-ip or DMLC_PS_ROOT_URI";
            return Err(missing("cannot determine the host of rank 0: MPI does not name it", fix));
        }
    };
    let seed = match (&task.seed, port) {
        (Some(seed), _) => seed.clone(),
        (None, Some(port)) => format!("{host}:{port}"),
        (None, None) => {
            let fix = "name the scheduler's port with --scheduler-port or DMLC_PS_ROOT_PORT";
            return Err(missing("cannot derive the scheduler's port: the environment has no job id", fix));
        }
    };
    let hash = fnv(&seed);
    let any = PORTS.start + hash % (PORTS.end - PORTS.start);
    let port = port.unwrap_or(u16::try_from(any).unwrap_or(u16::MAX));
    // On its own host the name may resolve to another address than on the other hosts.
    let bind = (!is_loopback(&host)).then(|| "0.0.0.0".to_owned());
    Ok(Root { host, port, bind, job: hash })
}

/// FNV-1a: small, and the same everywhere.
fn fnv(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

// Which tasks share a host. Nothing here guesses: with a wrong number two workers would silently use the same device.

/// The tasks on this task's node; empty if unknown. SLURM_GTIDS lists them for any distribution.
fn here_of_slurm(env: &[(String, String)], rank: u32, size: u32, is_alone: bool) -> Vec<Range<u32>> {
    if is_alone {
        return here_alone(rank, size);
    }
    let ids = value(env, "SLURM_GTIDS").unwrap_or_default().split(',').map(|id| id.trim().parse::<u32>());
    let Ok(ids) = ids.collect::<Result<Vec<u32>, _>>() else { return Vec::new() };
    let is_ours = ids.contains(&rank) && ids.iter().all(|id| *id < size);
    if is_ours { ids.into_iter().map(|id| id..id + 1).collect() } else { Vec::new() }
}

/// The ranks on the host of this rank, which has number `local` of `count` there; empty if unknown. On several hosts they are
/// consecutive only with the default options of Open MPI's mapper.
fn here_of_open_mpi(
    env: &[(String, String)],
    (rank, size): (u32, u32),
    (local, count): (u32, u32),
) -> Vec<Range<u32>> {
    if count == size {
        return here_alone(rank, size);
    }
    let is_plain = |(name, asked): &(String, String)| {
        let by_slot = POLICIES.contains(&name.as_str()) && asked.eq_ignore_ascii_case("slot");
        !name.starts_with(OPTIONS) || by_slot || HARMLESS.contains(&name.as_str())
    };
    let is_told = value(env, TELLS_OPTIONS).is_some() && value(env, "OMPI_NUM_APP_CTX") == Some("1");
    let here = rank.checked_sub(local).and_then(|first| Some(first..first.checked_add(count)?));
    let is_block = is_told && env.iter().all(is_plain);
    here.filter(|here| is_block && here.contains(&rank) && here.end <= size).into_iter().collect()
}

/// All tasks of a job on one host.
fn here_alone(rank: u32, size: u32) -> Vec<Range<u32>> {
    (rank < size).then_some(0..size).into_iter().collect()
}

/// A worker's number among the workers of its host, and their count; none for other roles, or if unknown.
pub(super) fn place(task: &Task, servers: u32) -> Option<(u32, u32)> {
    let first = servers.saturating_add(1);
    let is_known = task.rank >= first && task.here.iter().any(|here| here.contains(&task.rank));
    let workers_below = |end: u32| {
        let workers = |here: &Range<u32>| here.end.min(end).saturating_sub(here.start.max(first));
        task.here.iter().map(workers).fold(0, u32::saturating_add)
    };
    is_known.then(|| (workers_below(task.rank), workers_below(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn name(rank: u32, servers: u32) -> String {
        member(rank, servers).to_string()
    }

    #[test]
    fn tasks_become_roles_in_order() {
        let names: Vec<String> = (0..5).map(|rank| name(rank, 2)).collect();
        assert_eq!(names, ["scheduler", "server 0", "server 1", "worker 0", "worker 1"]);
        assert_eq!(workers(5, 2, None).unwrap(), 2);
        assert_eq!(workers(5, 2, Some(2)).unwrap(), 2);
        for (size, servers, wanted) in [(5, 2, Some(3)), (3, 2, None), (0, 1, None), (6, 2, Some(2))] {
            let error = workers(size, servers, wanted).unwrap_err();
            assert_eq!(error.code(), ExitCode::Usage);
            assert!(error.to_string().contains(&format!("{size} tasks were started")), "{error}");
        }
    }

    #[test]
    fn slurms_step_and_not_its_batch_script() {
        let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "7")];
        assert_eq!(slurm(&env(&batch)).unwrap(), None);
        let step = [("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_STEP_ID", "1"), ("SLURM_STEP_NODELIST", "n[3-4]")];
        let task = slurm(&env(&[&batch[..], &step[..]].concat())).unwrap().unwrap();
        assert_eq!((task.rank, task.size, task.is_alone), (0, 4, false));
        assert_eq!((task.first_host.as_deref(), task.seed.as_deref()), (Some("n3"), Some("slurm 7.1")));
        let root = root(&task, None, None).unwrap();
        assert_eq!((root.host.as_str(), root.bind.as_deref()), ("n3", Some("0.0.0.0")));
        assert!(PORTS.contains(&u64::from(root.port)));
        let wrong = env(&[("SLURM_PROCID", "x"), ("SLURM_STEP_NUM_TASKS", "4")]);
        assert_eq!(slurm(&wrong).unwrap_err().code(), ExitCode::Config);
    }

    #[test]
    fn ranks_of_both_kinds_of_mpi() {
        let ours = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "3"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "3"),
        ];
        let task = mpi(&env(&[&ours[..], &[("PMIX_NAMESPACE", "99")]].concat()), 5).unwrap().unwrap();
        assert_eq!((task.rank, task.size, task.is_alone, task.seed.as_deref()), (1, 3, true, Some("mpi 99")));
        assert_eq!(root(&task, None, None).unwrap().host, "127.0.0.1");
        let hydra = env(&[("PMI_RANK", "2"), ("PMI_SIZE", "3")]);
        let far = mpi(&hydra, 5).unwrap().unwrap();
        assert!(root(&far, None, None).unwrap_err().to_string().contains("--host-ip"));
        assert!(root(&far, Some("h"), None).unwrap_err().to_string().contains("--scheduler-port"));
        let root = root(&far, Some("h"), Some(9)).unwrap();
        assert_eq!((root.host.as_str(), root.port), ("h", 9));
        assert!(is_handed_on("GRADWIRE_LAUNCH_FIRST_HOST") && !is_handed_on("GRADWIRE_LAUNCH__END_FAILED"));
        let called = [("GRADWIRE_LAUNCH_FIRST_HOST", "n1"), ("GRADWIRE_JOB", "7")];
        let called = mpi(&[hydra.clone(), env(&called)].concat(), 5).unwrap().unwrap();
        let known = super::root(&called, None, None).unwrap();
        assert_eq!((known.host.as_str(), known.job), ("n1", fnv("job 7")));
        let near = mpi(&[hydra, env(&[("MPI_LOCALNRANKS", "3")])].concat(), 5).unwrap().unwrap();
        assert_eq!(near.seed.as_deref(), Some("mpi 5"));
        assert_eq!(mpi(&[], 5).unwrap(), None);
    }

    #[test]
    fn jobs_differ_in_id_and_mostly_in_port() {
        let of = |step: u32| {
            let task = Task {
                rank: 0,
                size: 3,
                first_host: None,
                is_alone: true,
                here: Vec::new(),
                seed: Some(format!("slurm 7.{step}")),
            };
            root(&task, None, None).unwrap()
        };
        let jobs: std::collections::BTreeSet<u64> = (0..100).map(|step| of(step).job).collect();
        let ports: std::collections::BTreeSet<u16> = (0..100).map(|step| of(step).port).collect();
        assert_eq!(jobs.len(), 100);
        assert!(ports.len() > 90, "{}", ports.len());
    }
}

#[cfg(test)]
mod neighbours {
    use super::*;

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn env(pairs: Pairs<'_>) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// A task of six of srun's, with a server: tasks 2 to 5 are workers.
    fn in_slurm(rank: u32, more: Pairs<'_>) -> Option<(u32, u32)> {
        let rank = rank.to_string();
        let step = [("SLURM_PROCID", rank.as_str()), ("SLURM_STEP_NUM_TASKS", "6"), ("SLURM_LOCALID", "0")];
        place(&slurm(&env(&[&step[..], more].concat())).unwrap().unwrap(), 1)
    }

    /// A rank of six of Open MPI's, with a server, as the `local`th of `count` on its host.
    fn in_open_mpi(rank: u32, local: u32, count: u32, more: Pairs<'_>) -> Option<(u32, u32)> {
        let [rank, local, count] = [rank, local, count].map(|number| number.to_string());
        let place_there = [
            ("OMPI_COMM_WORLD_RANK", rank.as_str()),
            ("OMPI_COMM_WORLD_LOCAL_RANK", local.as_str()),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", count.as_str()),
            ("OMPI_COMM_WORLD_SIZE", "6"),
        ];
        place(&mpi(&env(&[&place_there[..], more].concat()), 5).unwrap().unwrap(), 1)
    }

    #[test]
    fn slurm_lists_the_tasks_of_a_node_in_any_distribution() {
        let two = ("SLURM_STEP_NODELIST", "n[1-2]");
        let block = |rank, ids| in_slurm(rank, &[two, ("SLURM_GTIDS", ids)]);
        assert_eq!([2, 0, 1].map(|rank| block(rank, "0,1,2")), [Some((0, 1)), None, None]);
        assert_eq!([3, 4, 5].map(|rank| block(rank, "3,4,5")), [0, 1, 2].map(|index| Some((index, 3))));
        // In turns: the scheduler and two workers here, the server and two workers there.
        assert_eq!([2, 4].map(|rank| block(rank, "0,2,4")), [Some((0, 2)), Some((1, 2))]);
        assert_eq!([3, 5].map(|rank| block(rank, "1,3,5")), [Some((0, 2)), Some((1, 2))]);
        for ids in ["", "0,1", "3,x", "3,6"] {
            assert_eq!(block(3, ids), None, "{ids}");
        }
        assert_eq!(in_slurm(3, &[two]), None, "a local id alone does not say who the others are");
    }

    #[test]
    fn on_one_host_workers_are_all_but_the_first_tasks() {
        let one = [("SLURM_STEP_NODELIST", "n1")];
        assert_eq!([1, 2, 5].map(|rank| in_slurm(rank, &one)), [None, Some((0, 4)), Some((3, 4))]);
        assert_eq!([0, 2, 5].map(|rank| in_open_mpi(rank, rank, 6, &[])), [None, Some((0, 4)), Some((3, 4))]);
        let hydra = |count| {
            let there = [("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", count)];
            place(&mpi(&env(&there), 5).unwrap().unwrap(), 1)
        };
        assert_eq!((hydra("4"), hydra("2"), hydra("")), (Some((1, 2)), None, None));
    }

    #[test]
    fn open_mpi_s_ranks_of_a_host_are_known_unless_its_mapper_was_asked_otherwise() {
        let told = [("OMPI_MCA_ess_base_jobid", "9"), ("OMPI_NUM_APP_CTX", "1")];
        assert_eq!(in_open_mpi(3, 0, 3, &told), Some((0, 3)));
        assert_eq!(in_open_mpi(2, 2, 3, &told), Some((0, 1)));
        let asked = |name, how| in_open_mpi(4, 1, 3, &[&told[..], &[(name, how)]].concat());
        assert_eq!(asked("OMPI_MCA_rmaps_base_oversubscribe", "1"), Some((1, 3)));
        assert_eq!(asked("OMPI_MCA_rmaps_base_mapping_policy", "slot"), Some((1, 3)));
        assert_eq!(asked("OMPI_MCA_rmaps_base_mapping_policy", "node"), None);
        assert_eq!(asked("OMPI_MCA_rmaps_base_ranking_policy", "node"), None);
        assert_eq!(asked("OMPI_MCA_rmaps_base_bynode", "1"), None);
        assert_eq!(asked("OMPI_MCA_rmaps", "seq"), None);
        // Nonsense, several programs, and versions that do not tell.
        assert_eq!(
            [(0, 1, 3), (5, 1, 3), (4, 3, 3)].map(|(rank, at, of)| in_open_mpi(rank, at, of, &told)),
            [None; 3]
        );
        let several = [told[0], ("OMPI_NUM_APP_CTX", "2")];
        assert_eq!((in_open_mpi(3, 0, 3, &several), in_open_mpi(3, 0, 3, &[])), (None, None));
    }
}
