//! `gradwire doctor`: looks at this host, and at its ways to others with real writes, and says what would keep a job
//! from running, with the fix. It must not change anything.

mod check;
mod dial;
mod local;
mod pair;
mod rdma;
mod scheduler;
mod table;
mod transport;

use crate::common::{environment_of_no_role, role};
use check::code_of;
use clap::Args;
use daemon::devices::Lacking;
use daemon::exit::{Failure, WithCode as _};
use daemon::security::Security;
use daemon::settings::{CommonArgs, Loaded, Override};
use proto_common::error::ExitCode;
use proto_common::ids::Role;
use serde_json::json;
use std::io::{self, Write as _};
use std::net::SocketAddr;

/// Where a listening doctor is unless said: next to the scheduler's port.
const PORT: u16 = 9094;

/// Check this host, and the connections to other hosts, for problems that would keep a job from running, and show the fixes.
///
/// Without --peer, it checks this host with the settings of a daemon: the limit of pinned memory, RDMA devices with their
/// ports and addresses, shared memory, usable transports, open files, the addresses to bind and to advertise, and, with
/// --scheduler, whether a scheduler of this release and job answers. For the role scheduler it checks certificates, open
/// files and the addresses that a scheduler binds. Each check prints one line: ok, warn (a job runs, but more slowly) or FAIL
/// (a job would fail), the subject of the check, the finding, and the fix.
///
/// To check the connection of two hosts, start `gradwire doctor --listen` on one and `gradwire doctor --peer HOST:PORT` on
/// the other. For every transport that both have, it opens a channel, transfers and compares a pattern in each direction, and
/// measures round trips and throughput. The table shows which transport a job would use, and why.
#[derive(Args, Debug)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct DoctorArgs {
    /// Answer --peer of other hosts until SIGTERM. Default address: node.bind, port 9094; port 0 selects a free port. On
    /// addresses other than loopback this requires certificates, as daemons do, or --set security.mode=off, which answers
    /// every peer.
    #[arg(long, value_name = "ADDRESS:PORT", num_args = 0..=1, conflicts_with_all = ["peer", "json"])]
    listen: Option<Option<SocketAddr>>,
    /// With --listen: exit after the first visit.
    #[arg(long, requires = "listen")]
    once: bool,
    /// Test all transports to a listening doctor at this address. May be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    peer: Vec<String>,
    /// Print one JSON object: checks, peers and the exit code.
    #[arg(long)]
    json: bool,
    /// Role whose settings are checked: scheduler, server or worker. For a systemd unit, give --config /etc/gradwire/ROLE.toml.
    #[arg(long, value_name = "ROLE", default_value = "worker", value_parser = role)]
    role: Role,
    #[command(flatten)]
    common: CommonArgs,
}

const EXIT_CODES: &str = "Exit codes: 0 when all that is needed works (warnings included), else that of the first FAIL: \
69 no scheduler answers there, 72 a peer did not answer in time (a firewall that drops), 73 a peer refused or is no \
doctor of this release, or the scheduler would refuse this process (another release or job), 74 an address or port cannot be used or refuses, 75 a transport that would be used or is \
required does not work, 78 bad settings or addresses. A doctor that listens (--listen) ends with 0 on SIGTERM or SIGINT. Deadlines: every step takes at most deadlines.handshake_ms.";

pub(crate) fn run(args: &DoctorArgs) -> Result<u8, anyhow::Error> {
    let address = args.listen.flatten();
    let bind = address.map(|address| Override::new("--listen", "node.bind", address.ip().to_string()));
    let loaded = args.common.load_with(args.role, &environment_of_no_role(), bind.as_slice())?;
    if args.common.log.is_some() {
        daemon::logging::init(args.role, &loaded.settings.log)?;
    }
    let code = daemon::process::run_to_end(examine(args, &loaded)).code(ExitCode::Io)?;
    match code {
        Err(error) if is_closed_pipe(&error) => Ok(0),
        other => other.map(|code| code as u8),
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().filter_map(|link| link.downcast_ref()).any(broken)
}

async fn examine(args: &DoctorArgs, loaded: &Loaded) -> Result<ExitCode, anyhow::Error> {
    let settings = &loaded.settings;
    let opened = daemon::devices::open(settings);
    let devices = opened.as_ref().map(|(devices, _)| devices).map_err(ToString::to_string);
    let asks_scheduler = args.common.scheduler.is_some();
    let checks = local::checks((loaded, args.role), devices, asks_scheduler, pair::step(settings)).await;
    if !args.json {
        print(checks.iter().map(|check| format!("{check}\n")).collect())?;
    }
    let failed = code_of(&checks);
    if args.peer.is_empty() && args.listen.is_none() {
        return finish(args, &checks, &[], failed.unwrap_or(ExitCode::Ok));
    }
    let (devices, missing) = match opened {
        Ok(opened) => opened,
        // Nothing can be tried without it, and nobody is to think that it was.
        Err(lacking) => {
            let code = failed.unwrap_or(ExitCode::Transport);
            return give_up(args, &checks, &lacking, code);
        }
    };
    let offer = daemon::host::offer(settings.transport, missing).code(ExitCode::Io)?;
    let security = Security::open(settings, None)?;
    let host = pair::Host::new(settings, (devices, security), offer);
    if let Some(address) = args.listen {
        pair::listen(
            host,
            listening(address, &settings.node.bind)?,
            args.once,
            daemon::shutdown::on_signals()?,
        )
        .await?;
        return Ok(ExitCode::Ok);
    }
    let mut visits = Vec::new();
    for peer in &args.peer {
        let visit = pair::visit(&host, peer).await;
        show(args, &visit)?;
        visits.push(visit);
    }
    let of_visits = visits.iter().map(pair::Visit::code).find(|code| *code != ExitCode::Ok);
    finish(args, &checks, &visits, failed.or(of_visits).unwrap_or(ExitCode::Ok))
}

/// A required driver is lacking: each peer that was not tried for it is told, or that nobody listens.
fn give_up(
    args: &DoctorArgs,
    checks: &[check::Check],
    lacking: &Lacking,
    code: ExitCode,
) -> Result<ExitCode, anyhow::Error> {
    if args.listen.is_some() {
        return Err(Failure::message(code, format!("not listening: {lacking}")).into());
    }
    let visits: Vec<_> = args.peer.iter().map(|peer| pair::Visit::untried(peer, lacking)).collect();
    visits.iter().try_for_each(|visit| show(args, visit))?;
    finish(args, checks, &visits, code)
}

fn show(args: &DoctorArgs, visit: &pair::Visit) -> Result<(), io::Error> {
    if args.json { Ok(()) } else { print(format!("\n{}", table::render(visit))) }
}

fn listening(address: Option<SocketAddr>, bind: &str) -> Result<SocketAddr, Failure> {
    if let Some(address) = address {
        return Ok(address);
    }
    let ip = bind.parse().map_err(|_| {
        let text = format!("node.bind = {bind} is a name; give --listen an address and a port");
        Failure::message(ExitCode::Usage, text)
    })?;
    Ok(SocketAddr::new(ip, PORT))
}

fn finish(
    args: &DoctorArgs,
    checks: &[check::Check],
    visits: &[pair::Visit],
    code: ExitCode,
) -> Result<ExitCode, anyhow::Error> {
    if args.json {
        let peers: Vec<_> = visits.iter().map(table::to_json).collect();
        let whole = json!({ "checks": checks, "peers": peers, "code": code as u8 });
        print(format!("{whole:#}\n"))?;
    }
    Ok(code)
}

fn print(text: String) -> Result<(), io::Error> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
