//! What `gradwire launch` is told: its own flags, and those that users of dmlc-submit, MXNet's launch.py and BytePS know.
//! It only names and bounds them; what follows from them is `plan`'s.

use super::dmlc::DmlcArgs;
use clap::{Arg, Args, Command};
use daemon::settings::{PLACEMENTS, Transport};
use proto_common::limits::{SERVERS_MAX, WORKERS_MAX};
use std::ffi::OsString;
use std::path::PathBuf;

/// Starts one scheduler, N servers and M copies of PROGRAM, with the variables that tell them about each
/// other (GRADWIRE_* and DMLC_*). What they say goes to stderr, each line with its process in front, apart
/// from the stdout of worker 0, which goes to stdout as it is. Ends with the code of the process that failed
/// first, and says on stderr which one it was.
///
/// With --cluster ssh they run on the hosts of a file, with --cluster slurm or mpi in the tasks that srun or mpirun
/// started, or starts. Where DMLC_ROLE is set and no count is given, this machine's part of a job is started, as
/// bpslaunch does. Flags of dmlc-submit and launch.py are taken, and those that do nothing here are named in a warning.
#[derive(Args, Debug)]
pub(crate) struct LaunchArgs {
    /// Number of servers. The default is 1; MXNet's launch.py starts as many as workers. With --server-host-file it is one for
    /// each host of that file.
    #[arg(short = 's', long, visible_alias = "num-servers", alias = "server-nodes", value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(SERVERS_MAX)))]
    pub(super) servers: Option<u32>,
    /// How many workers, copies of PROGRAM: 1 unless given, or what Slurm and MPI leave.
    #[arg(short = 'n', long, visible_alias = "num-workers", alias = "nworker", value_name = "M",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))]
    pub(super) workers: Option<u32>,
    /// Where processes run: local, ssh, slurm, mpi or byteps (this machine's part, by DMLC_ROLE). Unless given, the
    /// variable DMLC_SUBMIT_CLUSTER says; else ssh with a host file, and local without.
    #[arg(long, visible_alias = "launcher", value_name = "KIND")]
    pub(super) cluster: Option<String>,
    /// Hosts, one a line: HOST, and where wanted USER@ before, :PORT behind, then slots=N. Servers and workers are dealt
    /// out in turn, N at most to each.
    #[arg(short = 'H', long, visible_alias = "hostfile", value_name = "FILE")]
    pub(super) host_file: Option<PathBuf>,
    /// Hosts of servers only, or of workers only, instead of --host-file for them.
    #[arg(long, visible_alias = "server-hostfile", value_name = "FILE")]
    pub(super) server_host_file: Option<PathBuf>,
    /// See --server-host-file.
    #[arg(long, visible_alias = "worker-hostfile", value_name = "FILE")]
    pub(super) worker_host_file: Option<PathBuf>,
    /// What reaches other hosts: a program and its first arguments, parted by spaces. It is called as ssh is.
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub(super) ssh: String,
    /// The user on other hosts, where the host file names none.
    #[arg(long, value_name = "NAME")]
    pub(super) username: Option<String>,
    /// How long a program on another host may take to be started.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) start_timeout: u64,
    /// Copy the working directory to this directory of every other host with rsync first, and run there.
    #[arg(long, visible_alias = "sync-dir", value_name = "DIR")]
    pub(super) sync_dst_dir: Option<String>,
    /// Address by which members reach the scheduler, where it cannot be guessed.
    #[arg(long, visible_alias = "scheduler-ip", value_name = "ADDRESS")]
    pub(super) host_ip: Option<String>,
    /// The scheduler's port. Unless given the system chooses, or it follows from the id of Slurm's or MPI's job.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) scheduler_port: Option<u16>,
    /// Network interface of every process, as DMLC_INTERFACE.
    #[arg(long, value_name = "NAME")]
    pub(super) interface: Option<String>,
    /// A variable for all processes: NAME:VALUE or NAME=VALUE. May be repeated.
    #[arg(long, visible_alias = "env-map", value_name = "NAME:VALUE")]
    pub(super) env: Vec<String>,
    /// The same for servers and the scheduler only.
    #[arg(long, value_name = "NAME:VALUE")]
    pub(super) env_server: Vec<String>,
    /// The same for workers only.
    #[arg(long, value_name = "NAME:VALUE")]
    pub(super) env_worker: Vec<String>,
    /// Start PROGRAM in every role, for programs that are scheduler and server themselves, as ps-lite's are.
    #[arg(long)]
    pub(super) every_role: bool,
    /// Workers of each machine, with --cluster byteps; else those of NVIDIA_VISIBLE_DEVICES, or BYTEPS_LOCAL_SIZE, or 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))]
    pub(super) local_size: Option<u32>,
    /// Require this transport and turn the others off. Without it the best one is used.
    #[arg(long, value_name = "NAME")]
    pub(super) transport: Option<Transport>,
    /// How workers' contributions travel; auto lets a plan choose for each tensor (see gradwire plan).
    #[arg(long, value_name = "NAME", value_parser = PLACEMENTS)]
    pub(super) placement: Option<String>,
    /// A setting for all processes, by its dotted name, such as cluster.lanes=2. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// What processes log: INFO or DEBUG, or any filter of log.filter.
    #[arg(long, value_name = "LEVEL")]
    pub(super) log_level: Option<String>,
    /// Also write what each process says to a file of its own in this directory.
    #[arg(long, value_name = "DIR")]
    pub(super) keep_logs: Option<PathBuf>,
    /// Where gradwire-scheduler and gradwire-server are, if not beside this program.
    #[arg(long, value_name = "DIR")]
    pub(super) bin_dir: Option<PathBuf>,
    /// Where gradwire and gradwire-server are on other hosts, if not where they are here.
    #[arg(long, value_name = "DIR")]
    pub(super) remote_bin_dir: Option<PathBuf>,
    /// Let the stdout of worker 0 through to stdout, unprefixed. With false it goes to stderr as all others.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(super) plain_rank0: bool,
    /// End the job after this many seconds, with exit code 72.
    #[arg(long, value_name = "SECONDS")]
    pub(super) timeout: Option<u64>,
    /// How long the other processes may take to end by themselves after the first failure, or after the last
    /// worker is done (a minute more where a checkpoint is being written then), before they are told to, and then again before
    /// they are killed. The death of a server with
    /// cluster.replicas = 1, or of a worker with cluster.worker_loss = "continue", is no failure while others of its role are
    /// left: the job goes on without it.
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    pub(super) grace_ms: u64,
    /// Start a process that dies again, N times at most (3 unless said), after a pause that grows: scheduler, servers and
    /// workers whose death the job survives (cluster.replicas, cluster.worker_loss, deadlines.scheduler_ms say of which).
    /// Servers come again as spares; a worker keeps its rank, and its program has to resume, as gradwire-worker does. In
    /// the tasks of Slurm and MPI it is the task that starts its process again; a node that is lost takes the job with it,
    /// and a requeued job starts from checkpoint.restore.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "3",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) restart: Option<u32>,
    #[command(flatten)]
    pub(super) dmlc: DmlcArgs,
    /// The program of the workers, and its arguments. A bare name is looked for beside gradwire, then on PATH.
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub(super) program: Vec<OsString>,
}

/// Flags of BytePS's launcher that have one dash and two letters, and what they are called here.
const TWO_LETTERS: [(&str, &str); 2] = [("-SH", "--server-host-file"), ("-WH", "--worker-host-file")];

/// The words of a command line, with the long name of a flag of `gradwire launch` that has two letters after one dash. The
/// program's own arguments stay as they are.
pub(crate) fn with_long_names(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_none_or(|word| word != "launch") {
        return words;
    }
    let command = LaunchArgs::augment_args(Command::new("launch"));
    let mut at = 2;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()) {
        if word == "--" || !word.starts_with('-') {
            break;
        }
        if let Some((_, name)) = TWO_LETTERS.iter().find(|(short, _)| *short == word) {
            words[at] = (*name).into();
            at += 2;
        } else {
            at += if takes_next(&command, word) { 2 } else { 1 };
        }
    }
    words
}

/// Is the word after this flag its value?
fn takes_next(command: &Command, word: &str) -> bool {
    let takes = |arg: &Arg| arg.get_action().takes_values() && !arg.is_require_equals_set();
    let named = |name: &str| {
        command.get_arguments().find(|arg| {
            arg.get_long() == Some(name)
                || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
        })
    };
    let mut letters = word.chars().skip(1);
    match word.strip_prefix("--") {
        Some(name) => named(name).is_some_and(takes),
        // In a group, flags without values may stand before one with a value, which may be attached.
        None => loop {
            let Some(letter) = letters.next() else { return false };
            match command.get_arguments().find(|arg| arg.get_short() == Some(letter)) {
                Some(arg) if takes(arg) => return letters.next().is_none(),
                _ => {}
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(line: &str) -> String {
        let words = line.split_whitespace().map(OsString::from).collect();
        with_long_names(words).iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn flags_of_two_letters_have_long_names_and_the_programs_stay() {
        for (given, expected) in [
            ("x launch -n 2 -SH f -WH g p", "x launch -n 2 --server-host-file f --worker-host-file g p"),
            ("x launch --num-workers 2 -p -SH f p", "x launch --num-workers 2 -p --server-host-file f p"),
            ("x launch --restart -n2 -SH f p", "x launch --restart -n2 --server-host-file f p"),
            ("x launch -pn 2 -SH f p", "x launch -pn 2 --server-host-file f p"),
            ("x launch -n 2 -- p -SH f", "x launch -n 2 -- p -SH f"),
            ("x launch -n 2 p -SH f", "x launch -n 2 p -SH f"),
            ("x launch --env -SH p", "x launch --env -SH p"),
            ("x top -SH f", "x top -SH f"),
        ] {
            assert_eq!(renamed(given), expected);
        }
    }
}
