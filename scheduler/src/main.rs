//! `gradwire-scheduler`: command line, settings, logs, exit code. The work is in the library.
#![forbid(unsafe_code)]

use clap::Parser;
use daemon::exit::{Failure, WithCode as _, run_main};
use daemon::flight::Flight;
use daemon::manual::Manual;
use daemon::notify::Notify;
use daemon::settings::{CommonArgs, Override};
use gradwire_scheduler::runtime::{self, Follows, Listeners};
use proto_common::error::ExitCode;
use proto_common::ids::{Rank, Role};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The scheduler of a job: assigns ranks, detects failures, releases barriers and places tensors on servers.
///
/// Exit codes: 0 when all workers are done or on SIGTERM, 65 if the checkpoint to restore is missing or damaged, 71 if a member
/// failed or no majority of the members is reachable, 72 if members did not register in time, 73 if another scheduler owns the
/// job's checkpoints, 74 if its port is in use or checkpoints cannot be read, 78 if a setting is invalid.
#[derive(Debug, Parser)]
#[command(name = "gradwire-scheduler", version)]
struct Args {
    /// Number of workers (cluster.workers).
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    /// Number of servers (cluster.servers).
    #[arg(long, value_name = "N")]
    servers: Option<u32>,
    /// Write the bound addresses to this file, as the lines control=HOST:PORT and http=HOST:PORT.
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,
    /// Take over a job whose scheduler has failed: wait for its members, and accept no new process before they have reconnected.
    /// Without this flag, the scheduler also takes over if a member of that job connects before a new job is complete.
    #[arg(long)]
    resume: bool,
    /// With --resume: continue with the members that reconnect, even if they are no majority. Use it only if the other members have
    /// exited. If they still run, in another part of the network or under another scheduler, two jobs train the same tensors and
    /// write the same checkpoints.
    #[arg(long, requires = "resume")]
    force: bool,
    #[command(flatten)]
    common: CommonArgs,
}

const EXAMPLES: &str = "\
gradwire-scheduler:
  gradwire-scheduler --servers 2 --workers 4
      A job of two servers and four workers, on the port in the settings
  gradwire-scheduler --scheduler 127.0.0.1:9092 --job 7 --resume
      Restart after a failure, with the same port, job and cluster.* settings
  gradwire-scheduler --scheduler 127.0.0.1:9092 --job 7 --resume --force
      Restart after a failure in which half of the members or more have exited";

const MANUAL: Manual = Manual { examples: EXAMPLES, role: Some(Role::Scheduler), others: Vec::new };

fn main() -> std::process::ExitCode {
    let args: Args = match daemon::manual::parse(&MANUAL) {
        Ok(args) => args,
        Err(code) => return code,
    };
    run_main("gradwire-scheduler", || start(&args))
}

fn start(args: &Args) -> Result<(), anyhow::Error> {
    let env = daemon::process::environment();
    daemon::process::die_with_parent(&env)?;
    let counts =
        [("--workers", "cluster.workers", args.workers), ("--servers", "cluster.servers", args.servers)];
    let own: Vec<Override> = counts
        .into_iter()
        .filter_map(|(flag, key, count)| Some(Override::new(flag, key, count?.to_string())))
        .collect();
    let loaded = args.common.load_with(Role::Scheduler, &env, &own)?;
    let (identity, filter) = daemon::logging::init(Role::Scheduler, &loaded.settings.log)?;
    let flight = Flight::new(identity, &loaded.settings);
    // A job has one scheduler.
    flight.set_rank(Rank(0));
    loaded.log();
    flight.on_panic();
    let common = args.common.clone();
    let (env_again, own) = (env.clone(), own.clone());
    let again = Box::new(move || common.load_with(Role::Scheduler, &env_again, &own));
    daemon::process::run_to_end(async {
        daemon::reload::on_hangup(&loaded, again, filter)?;
        flight.on_signal()?;
        let settings = loaded.settings;
        let shutdown = daemon::shutdown::on_signals()?;
        let notify = Notify::from_env(&env);
        notify.follow(&shutdown);
        let listeners = runtime::bind(&settings).await?;
        announce(&listeners, args.port_file.as_deref())?;
        let told = (notify, flight.clone());
        let follows = if args.force { Follows::Whoever } else { Follows::Majority };
        let ended = match args.resume {
            true => runtime::resume(listeners, &settings, shutdown, told, follows).await,
            false => runtime::run(listeners, &settings, shutdown, told).await,
        };
        let ended = ended.and_then(|outcome| {
            tracing::info!(%outcome, "the job is over");
            Ok(runtime::verdict(&outcome)?)
        });
        flight.ended(&ended);
        ended
    })?
}

/// Logs the bound addresses and writes them to the port file, which launchers read.
fn announce(listeners: &Listeners, port_file: Option<&Path>) -> Result<(), Failure> {
    let control = listeners.control.local_addr().code(ExitCode::Io)?.to_string();
    let http = daemon::http::address_of(listeners.http.as_ref()).unwrap_or_default();
    tracing::info!(control, http, protocol = proto_common::limits::PROTOCOL_VERSION, "the scheduler listens");
    let Some(path) = port_file else { return Ok(()) };
    write_whole(path, &format!("control={control}\nhttp={http}\n")).map_err(|error| {
        let text = format!("cannot write --port-file {}: {error}; name a writable directory", path.display());
        Failure::message(ExitCode::Io, text)
    })
}

/// Writes a file such that a reader sees either the whole file or none.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(name);
    // Removed first: a file that an earlier process with this pid has left, or a symbolic link that another user has planted.
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = std::fs::File::create_new(&temporary)?;
    file.write_all(text.as_bytes())?;
    std::fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn examples_are_taken() {
        assert_eq!(daemon::manual::unfit(&Args::command(), &MANUAL), Vec::<String>::new());
    }

    #[test]
    fn a_port_file_is_written_through_no_link() {
        let directory = tempfile::tempdir().unwrap();
        let [ports, victim] = ["ports", "victim"].map(|name| directory.path().join(name));
        let planted = directory.path().join(format!("ports.{}", std::process::id()));
        std::fs::write(&victim, "as it was").unwrap();
        for _ in 0..2 {
            std::os::unix::fs::symlink(&victim, &planted).unwrap();
            write_whole(&ports, "control=x\n").unwrap();
            assert_eq!(std::fs::read_to_string(&ports).unwrap(), "control=x\n");
            assert!(std::fs::symlink_metadata(&ports).unwrap().is_file(), "no link itself");
            assert_eq!(std::fs::read_to_string(&victim).unwrap(), "as it was");
        }
    }
}
