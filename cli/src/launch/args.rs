//! The command line of `gradwire launch`: its own flags, and the flags of dmlc-submit, MXNet's launch.py and BytePS's launcher.
//! Owns names, defaults and bounds. It must not derive anything from them; `plan` does.

use super::dmlc::DmlcArgs;
use clap::{Arg, Args, Command};
use daemon::settings::{PLACEMENTS, driver_words};
use proto_common::limits::{SERVERS_MAX, WORKERS_MAX};
use proto_common::transport::Driver;
use std::ffi::OsString;
use std::path::PathBuf;

/// Flags of `gradwire launch`. Its description in the help stands at the command, in `main`.
#[derive(Args, Debug)]
pub(crate) struct LaunchArgs {
    /// Number of servers. The default is 1; one on each host of --host-file, if each has a worker and slots are left; and one on
    /// each host of --server-host-file. (MXNet's launch.py starts as many servers as workers by default.)
    #[arg(short = 's', long, visible_alias = "num-servers", alias = "server-nodes", value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(SERVERS_MAX)))]
    pub(super) servers: Option<u32>,
    /// Number of workers. The default is 1, or one for each host of --worker-host-file. Under Slurm, and inside mpirun, the
    /// default is all tasks that are neither scheduler nor server. 0: scheduler and servers only, for workers that torchrun or
    /// other launchers start; --set cluster.workers=N, or WORLD_SIZE, is their number.
    #[arg(short = 'n', long, visible_alias = "num-workers", alias = "nworker", value_name = "M",
        value_parser = clap::value_parser!(u32).range(0..=i64::from(WORKERS_MAX)))]
    pub(super) workers: Option<u32>,
    /// Where the processes run: local, ssh, slurm, mpi or byteps (only this machine's part of a job, selected by DMLC_ROLE).
    /// The default is DMLC_SUBMIT_CLUSTER if set, else ssh if a host file is given, else byteps if DMLC_ROLE is set and
    /// neither -n nor -s is given, else local.
    #[arg(long, visible_alias = "launcher", value_name = "KIND")]
    pub(super) cluster: Option<String>,
    /// File of hosts, one per line: [USER@]HOST[:PORT] [slots=N]. Servers and workers are assigned to the hosts in turn, at
    /// most N to each. With --cluster mpi the file is passed to mpirun, in the format of that MPI.
    #[arg(short = 'H', long, visible_alias = "hostfile", value_name = "FILE")]
    pub(super) host_file: Option<PathBuf>,
    /// File of hosts for the servers, in place of --host-file. Also spelled -SH.
    #[arg(long, visible_alias = "server-hostfile", value_name = "FILE")]
    pub(super) server_host_file: Option<PathBuf>,
    /// File of hosts for the workers, in place of --host-file. Also spelled -WH.
    #[arg(long, visible_alias = "worker-hostfile", value_name = "FILE")]
    pub(super) worker_host_file: Option<PathBuf>,
    /// Command that runs a program on another host: its name and first arguments, separated by spaces. It is called like ssh.
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub(super) ssh: String,
    /// User on the other hosts, where the host file names none.
    #[arg(long, value_name = "NAME")]
    pub(super) username: Option<String>,
    /// Time limit for starting a program on another host, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(super) start_timeout: u64,
    /// First copy the working directory to this directory on every other host with rsync, and run there.
    #[arg(long, visible_alias = "sync-dir", value_name = "DIR")]
    pub(super) sync_dst_dir: Option<String>,
    /// Address at which the other processes reach the scheduler. The default is derived from the hosts.
    #[arg(long, visible_alias = "scheduler-ip", value_name = "ADDRESS")]
    pub(super) host_ip: Option<String>,
    /// Port of the scheduler. By default the system chooses a free port; under Slurm and MPI the port is derived from the job.
    /// With -n 0 the default is 9092, where workers look for it.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) scheduler_port: Option<u16>,
    /// Network interface of every process (sets DMLC_INTERFACE).
    #[arg(long, value_name = "NAME")]
    pub(super) interface: Option<String>,
    /// Environment variable for all processes: NAME=VALUE, NAME:VALUE, or NAME to forward the value that it has here. May be
    /// repeated. Without it, ssh forwards only GRADWIRE_*, DMLC_*, PS_*, BYTEPS_*, MXNET_*, OMP_*, KMP_*, LD_LIBRARY_PATH,
    /// PYTHONPATH, PYTHONUNBUFFERED, RUST_BACKTRACE and the AWS_* variables of checkpoints to other hosts.
    #[arg(long, visible_alias = "env-map", value_name = "NAME:VALUE")]
    pub(super) env: Vec<String>,
    /// The same as --env, for the scheduler and the servers only.
    #[arg(long, value_name = "NAME:VALUE")]
    pub(super) env_server: Vec<String>,
    /// The same as --env, for the workers only.
    #[arg(long, value_name = "NAME:VALUE")]
    pub(super) env_worker: Vec<String>,
    /// Run PROGRAM in every role, for programs that contain the scheduler and the server, as programs of ps-lite do.
    #[arg(long)]
    pub(super) every_role: bool,
    /// Number of workers on each machine, with --cluster byteps. The default is the number of devices in
    /// NVIDIA_VISIBLE_DEVICES, else BYTEPS_LOCAL_SIZE, else 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))]
    pub(super) local_size: Option<u32>,
    /// Require this transport and turn the others off. By default the fastest available one is used.
    #[arg(long, value_name = "NAME", value_parser = driver_words())]
    pub(super) transport: Option<Driver>,
    /// How contributions of workers travel to the servers. With auto, a plan chooses for each tensor (see gradwire plan).
    #[arg(long, value_name = "NAME", value_parser = PLACEMENTS)]
    pub(super) placement: Option<String>,
    /// Setting for all processes, by its dotted name, such as cluster.lanes=2. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// Log level of all processes: INFO or DEBUG, or any filter that log.filter accepts.
    #[arg(long, value_name = "LEVEL")]
    pub(super) log_level: Option<String>,
    /// Also write the output of each process to a file in this directory.
    #[arg(long, value_name = "DIR")]
    pub(super) keep_logs: Option<PathBuf>,
    /// Directory of gradwire-scheduler and gradwire-server. The default is the directory of this program.
    #[arg(long, value_name = "DIR")]
    pub(super) bin_dir: Option<PathBuf>,
    /// Directory of gradwire and gradwire-server on other hosts. The default is the same path as here.
    #[arg(long, value_name = "DIR")]
    pub(super) remote_bin_dir: Option<PathBuf>,
    /// Write the stdout of worker 0 to stdout without a prefix. With false it goes to stderr with a prefix, as all other output.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub(super) plain_rank0: bool,
    /// End the job after this time, with exit code 72. By default there is no limit.
    #[arg(long, value_name = "SECONDS")]
    pub(super) timeout: Option<u64>,
    /// Grace period at the end of a job, in milliseconds. After the first failure, or after the last worker has finished, the
    /// other processes have this long to exit by themselves (one minute more while a checkpoint is written). Then they get
    /// SIGTERM, and after the same time again SIGKILL. The failure of a server with cluster.replicas = 1, or of a worker with
    /// cluster.worker_loss = "continue", does not end the job while other processes of that role are left.
    #[arg(long, value_name = "MS", default_value_t = 5_000)]
    pub(super) grace_ms: u64,
    /// Restart a failed process, at most N times (3 without a number), after a pause that grows. This applies to each
    /// scheduler, server or worker whose failure the job survives (see cluster.replicas, cluster.worker_loss and
    /// deadlines.scheduler_ms). Servers rejoin as spares. A worker keeps its rank, and its program has to resume, as
    /// gradwire-worker does. Under Slurm and MPI the task restarts its process. A node that fails ends the job; a requeued
    /// job starts from checkpoint.restore.
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true, default_missing_value = "3",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) restart: Option<u32>,
    /// End servers on this host with SIGKILL if the scheduler has declared them failed, and they have not exited after
    /// --grace-ms. A server that was stopped (SIGSTOP, a debugger, the freezer of its container) does not exit by itself. The
    /// memory that peers have granted to it cannot be used again before it exits, and --restart does not replace it. By
    /// default it is left alone, because it may only be slow, or somebody may be debugging it. Workers, and programs of
    /// --every-role, are never ended. This works with --cluster local and ssh, while node.http is on.
    #[arg(long)]
    pub(super) end_failed: bool,
    #[command(flatten)]
    pub(super) dmlc: DmlcArgs,
    /// Program of the workers, and its arguments. A name without a slash is searched for in the directory of gradwire, then
    /// on PATH. None with -n 0.
    #[arg(trailing_var_arg = true, required_unless_present = "workers", value_name = "PROGRAM")]
    pub(super) program: Vec<OsString>,
}

impl LaunchArgs {
    /// Do other launchers start the workers?
    pub(super) fn starts_no_workers(&self) -> bool {
        self.workers == Some(0)
    }
}

/// Flags of BytePS's launcher with one dash and two letters, and their names here.
const TWO_LETTERS: [(&str, &str); 2] = [("-SH", "--server-host-file"), ("-WH", "--worker-host-file")];

/// Replaces each two-letter flag of `gradwire launch` by its long name. The arguments of PROGRAM stay as they are.
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
