//! Where a cluster runs, selected by flags and the environment: on this host, on other hosts through ssh, or in the tasks of Slurm
//! or MPI.

use super::args::LaunchArgs;
use super::ranks::value;
use daemon::exit::Failure;
use proto_common::error::ExitCode;

/// Where processes run, and who starts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// All on this host.
    Local,
    /// The scheduler on this host, the others on the hosts of a file.
    Ssh,
    /// One process in each task of Slurm.
    Slurm,
    /// One process in each rank of MPI.
    Mpi,
    /// This machine's part of a job, selected by `DMLC_ROLE`.
    BytePs,
}

impl Kind {
    /// The name in `--cluster`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Ssh => "ssh",
            Self::Slurm => "slurm",
            Self::Mpi => "mpi",
            Self::BytePs => "byteps",
        }
    }

    /// The kind that flags and variables select.
    pub(super) fn choose(args: &LaunchArgs, env: &[(String, String)]) -> Result<Self, Failure> {
        let named = args.cluster.as_deref().map(|name| ("--cluster", name));
        match named.or_else(|| value(env, "DMLC_SUBMIT_CLUSTER").map(|name| ("DMLC_SUBMIT_CLUSTER", name))) {
            Some((origin, name)) => Self::parse(origin, name),
            None if args.host_file.is_some() || args.worker_host_file.is_some() => Ok(Self::Ssh),
            None if args.workers.is_none() && args.servers.is_none() && value(env, "DMLC_ROLE").is_some() => {
                Ok(Self::BytePs)
            }
            None => Ok(Self::Local),
        }
    }

    fn parse(origin: &str, name: &str) -> Result<Self, Failure> {
        let instead = match name.to_ascii_lowercase().as_str() {
            "local" => return Ok(Self::Local),
            "ssh" => return Ok(Self::Ssh),
            "slurm" => return Ok(Self::Slurm),
            "mpi" => return Ok(Self::Mpi),
            "byteps" => return Ok(Self::BytePs),
            "kubernetes" => {
                "Kubernetes starts pods itself: run one role a pod, with DMLC_ROLE, DMLC_PS_ROOT_URI and \
                 DMLC_PS_ROOT_PORT, by gradwire launch --cluster byteps"
            }
            "yarn" | "sge" | "mesos" => {
                "start one task a role there, with DMLC_ROLE, DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT, by \
                 gradwire launch --cluster byteps"
            }
            _ => "use local, ssh, slurm, mpi or byteps",
        };
        Err(Failure::message(ExitCode::Usage, format!("{origin} {name} is not supported; {instead}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: LaunchArgs,
    }

    fn choose(line: &str, env: &[(&str, &str)]) -> Result<Kind, String> {
        let cli = Cli::parse_from(line.split_whitespace());
        let env: Vec<(String, String)> = env.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
        Kind::choose(&cli.args, &env).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_named_counts_then_what_is_there() {
        assert_eq!(choose("x p", &[]), Ok(Kind::Local));
        assert_eq!(choose("x -H f p", &[]), Ok(Kind::Ssh));
        assert_eq!(choose("x --launcher mpi -H f p", &[]), Ok(Kind::Mpi));
        assert_eq!(choose("x p", &[("DMLC_SUBMIT_CLUSTER", "slurm")]), Ok(Kind::Slurm));
        assert_eq!(choose("x --cluster local p", &[("DMLC_SUBMIT_CLUSTER", "slurm")]), Ok(Kind::Local));
        assert_eq!(choose("x p", &[("DMLC_ROLE", "worker")]), Ok(Kind::BytePs));
        assert_eq!(
            choose("x -n 2 p", &[("DMLC_ROLE", "worker")]),
            Ok(Kind::Local),
            "a launch within a launch"
        );
        for name in ["yarn", "sge", "mesos", "kubernetes", "cloud"] {
            let error = choose(&format!("x --cluster {name} p"), &[]).unwrap_err();
            assert!(error.contains(name) && error.contains("byteps"), "{error}");
        }
    }

    #[test]
    fn the_program_needs_no_dashes_before_it_and_keeps_its_own() {
        let args = |line: &str| Cli::parse_from(line.split_whitespace()).args;
        let submit = args("x -n 2 -s 1 --cluster local --worker-cores 2 python train.py --lr 1 -n 3");
        assert_eq!(submit.program, ["python", "train.py", "--lr", "1", "-n", "3"]);
        assert_eq!((submit.workers, submit.servers), (Some(2), Some(1)));
        assert_eq!(args("x --num-workers 4 -- p -s 2").program, ["p", "-s", "2"]);
        assert!(
            Cli::try_parse_from(["x", "--wrokers", "2", "p"]).is_err(),
            "a flag that is none is no program"
        );
    }
}
