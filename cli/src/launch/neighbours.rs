//! Which tasks of a job share this task's host, and a worker's number among the workers of its host, if the environment determines
//! them. Must not guess: with a wrong number two workers would silently use the same device.

use super::ranks::{Task, value};
use std::ops::Range;

/// Open MPI 4 sets this variable and passes the options of its mapper to the ranks.
const TELLS_OPTIONS: &str = "OMPI_MCA_ess_base_jobid";
const OPTIONS: &str = "OMPI_MCA_rmaps";
/// Options of the mapper with which the ranks of a host are consecutive.
const HARMLESS: [&str; 2] = ["OMPI_MCA_rmaps_base_oversubscribe", "OMPI_MCA_rmaps_base_no_oversubscribe"];
const POLICIES: [&str; 2] = ["OMPI_MCA_rmaps_base_mapping_policy", "OMPI_MCA_rmaps_base_ranking_policy"];

/// The tasks on this task's node; empty if unknown. SLURM_GTIDS lists them for any distribution.
pub(super) fn of_slurm(env: &[(String, String)], rank: u32, size: u32, is_alone: bool) -> Vec<Range<u32>> {
    if is_alone {
        return all(rank, size);
    }
    let ids = value(env, "SLURM_GTIDS").unwrap_or_default().split(',').map(|id| id.trim().parse::<u32>());
    let Ok(ids) = ids.collect::<Result<Vec<u32>, _>>() else { return Vec::new() };
    let is_ours = ids.contains(&rank) && ids.iter().all(|id| *id < size);
    if is_ours { ids.into_iter().map(|id| id..id + 1).collect() } else { Vec::new() }
}

/// The ranks on the host of this rank, which has number `local` of `count` there; empty if unknown. On several hosts they are
/// consecutive only with the default options of Open MPI's mapper.
pub(super) fn of_open_mpi(
    env: &[(String, String)],
    (rank, size): (u32, u32),
    (local, count): (u32, u32),
) -> Vec<Range<u32>> {
    if count == size {
        return all(rank, size);
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
pub(super) fn all(rank: u32, size: u32) -> Vec<Range<u32>> {
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
    use super::super::ranks::{mpi, slurm};
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
