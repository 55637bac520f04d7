//! What can be seen on this host alone: limits, memory to share, addresses to bind and to be reached by.
//! Judging takes what was seen as arguments where that is more than one look.

use super::check::{Check, Level, bytes};
use super::dial;
use super::{rdma, scheduler, transport};
use daemon::devices::advertised;
use daemon::security::Security;
use daemon::settings::Loaded;
use fabric::{Devices, LaneQueue, PeerWritable, VERBS_QUEUE_BYTES, memlock};
use proto_common::config::{SecurityMode, Settings};
use proto_common::error::ExitCode;
use proto_common::footprint::{Limit, inbox_slots, server_bytes, spill_bytes, worker_bytes};
use proto_common::ids::Role;
use proto_common::transport::Driver;
use rustix::process::{Resource, getrlimit};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;

/// Descriptors of a process that has no peers yet: logs, listeners, queues.
const FILES_ALONE: u64 = 64;
/// Descriptors of a channel: its socket, and on shared memory the ring's memory, and at a server two regions of the worker's.
const FILES_PER_CHANNEL: u64 = 4;
/// A certificate that is good for less time than this is to be renewed.
const RENEW_S: i64 = 14 * 86_400;
/// Unfinished requests of a channel on the queue that is opened to see whether it can be.
const DEPTH: usize = 64;

/// All of them. `opened`: the devices of these settings, or why a required driver cannot be had.
pub(super) async fn checks(
    (loaded, role): (&Loaded, Role),
    opened: Result<&Devices, String>,
    asks_scheduler: bool,
    within: Duration,
) -> Vec<Check> {
    let settings = &loaded.settings;
    let mut checks = vec![sources(loaded)];
    checks.extend(loaded.warnings.iter().map(|warning| Check::warn("settings", warning, "")));
    checks.extend(certificates(settings, role));
    let limit = getrlimit(Resource::Nofile).current;
    if role == Role::Scheduler {
        // No payload comes its way, and it is the scheduler that others look for.
        checks.push(open_files(limit, scheduler_files(settings), settings));
        checks.extend(listening(settings, within).await);
        return checks;
    }
    let (rdma, is_usable) = rdma::judge(&rdma::look(), settings);
    checks.push(shared_memory(settings));
    checks.extend(rdma);
    let queue = opening(opened, settings, is_usable);
    let has_verbs = is_usable && queue.as_ref().is_some_and(|check| check.level == Level::Good);
    checks.extend(queue);
    checks.extend(transport::check(settings, has_verbs));
    checks.push(pinned(memlock::limit_bytes(), settings, is_usable));
    checks.push(open_files(limit, member_files(settings), settings));
    checks.push(binding(settings, within).await);
    checks.push(advertising(settings, within).await);
    if asks_scheduler {
        checks.push(scheduler::check(settings, within).await);
    }
    checks
}

fn sources(loaded: &Loaded) -> Check {
    let files: Vec<_> = loaded.files.iter().map(|file| file.display().to_string()).collect();
    let seen = match files.is_empty() {
        true => "no settings file; defaults, environment and flags".to_owned(),
        false => format!("from {}, environment and flags", files.join(", ")),
    };
    Check::good("settings", seen)
}

/// What this process would show, and whether it is this role's and still good.
fn certificates(settings: &Settings, role: Role) -> Option<Check> {
    let what = "certificates";
    if settings.security.mode == SecurityMode::Off {
        let fix = "create certificates (gradwire certs), unless every process on this network is trusted";
        return Some(Check::warn(what, "security.mode = \"off\": peers are not authenticated", fix));
    }
    let (security, expires_s) = match Security::open(settings, Some(role)) {
        Ok(security) => (security.is_on(), security.expires_s()),
        Err(error) => return Some(Check::fail(what, ExitCode::Config, error.to_string(), "")),
    };
    let left_s = expires_s? - now_s();
    let seen = format!("valid for a {role} of job {}, for {} more days", settings.job, left_s / 86_400);
    security.then(|| match left_s < RENEW_S {
        true => Check::warn(what, seen, "renew it with `gradwire certs issue`"),
        false => Check::good(what, seen),
    })
}

fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}

/// Buffers lie in such memory whatever the transport, and peers learn this host's identity in any case.
fn shared_memory(settings: &Settings) -> Check {
    let what = "shared memory";
    let opened = PeerWritable::allocate(4096, "gradwire-doctor").and_then(|_| LaneQueue::new(DEPTH));
    if let Err(error) = opened {
        let fix = "allow memfd_create (a container's seccomp profile may forbid it) and raise `ulimit -n`";
        return Check::fail(what, ExitCode::Transport, error.to_string(), fix);
    }
    match daemon::host::host_identity() {
        Ok(host) => {
            if let Some(why) = transport::unused(Driver::Shm, &settings.transport) {
                return Check::good(what, why);
            }
            let user = rustix::process::geteuid().as_raw();
            Check::good(what, format!("with processes of user {user} on this host, {host}"))
        }
        Err(error) => Check::fail(
            what,
            ExitCode::Transport,
            format!("this host's identity cannot be read: {error}"),
            "mount /proc, with sys/kernel/random/boot_id in it",
        ),
    }
}

/// What looks usable is used.
fn opening(opened: Result<&Devices, String>, settings: &Settings, is_usable: bool) -> Option<Check> {
    let what = "verbs queue";
    let devices = match opened {
        Ok(devices) => devices,
        // What is required and lacking was told above, unless only opening it shows it.
        Err(reason) => return is_usable.then(|| Check::fail(what, ExitCode::Transport, reason, "")),
    };
    let device = devices.verbs().filter(|_| is_usable)?;
    Some(match device.queue(DEPTH) {
        Ok(_) => Check::good(what, "a completion queue can be opened"),
        Err(error) => unserved(what, error.to_string(), "", settings),
    })
}

/// A device that is there and cannot serve: how bad that is, and what carries a job then.
fn unserved(what: &'static str, seen: String, fix: &str, settings: &Settings) -> Check {
    let seen = match transport::instead_of_verbs(&settings.transport) {
        Some(others) => format!("{seen}; where verbs fails for it a job uses {others}"),
        None => seen,
    };
    Check::new(transport::without_verbs(&settings.transport), what, seen, fix)
}

/// Memory that may be pinned and registered, against what is registered with a RDMA device. A server's inbox is made to
/// fit, as the server itself does it.
fn pinned(limit: Option<u64>, settings: &Settings, is_usable: bool) -> Check {
    let what = "memlock";
    if !is_usable {
        let may = limit.map_or_else(|| "any memory".to_owned(), bytes);
        return Check::good(what, format!("{may} may be pinned, which matters for verbs only"));
    }
    let (cluster, memory) = (&settings.cluster, &settings.memory);
    let bound = Limit::of(memory, limit);
    let slots = inbox_slots(memory, (cluster.lanes, cluster.chunk_bytes), VERBS_QUEUE_BYTES, bound);
    let messages = u64::from(cluster.lanes) * VERBS_QUEUE_BYTES;
    let (server, worker) = (server_bytes(settings, slots) + messages, worker_bytes(settings) + messages);
    let (spill, pool) = (spill_bytes(settings), memory.pool_bytes);
    let most = server.saturating_add(spill).max(worker.saturating_add(pool));
    if limit.is_none() && most <= bound.bytes() && slots == memory.inbox_slots {
        return Check::good(what, "no limit");
    }
    let (may, fix) = match bound {
        Limit::Pinned(_) => ("may be pinned", memlock::FIX),
        Limit::Registered(_) => {
            ("may be registered (memory.registered_bytes)", "raise memory.registered_bytes")
        }
    };
    let seen = format!(
        "{} {may}; with verbs a server registers {} ({} inbox slots of the {} set) and a worker {}, over {} lanes, and \
         as far as they are used up to {} of spill area, a worker's pool of {}, and tensors",
        bytes(bound.bytes()),
        bytes(server),
        slots,
        memory.inbox_slots,
        bytes(worker),
        cluster.lanes,
        bytes(spill),
        bytes(pool)
    );
    if bound.bytes() < server.max(worker) {
        unserved(what, seen, fix, settings)
    } else if slots < memory.inbox_slots {
        Check::warn(what, seen, format!("for all slots, {fix}"))
    } else if bound.bytes() < most {
        Check::warn(what, seen, format!("if more is used than is left, {fix}"))
    } else {
        Check::good(what, seen)
    }
}

/// Open files of a member with the channels of the largest cluster of these settings.
fn member_files(settings: &Settings) -> u64 {
    let cluster = &settings.cluster;
    let peers = u64::from(cluster.workers.max(cluster.servers));
    FILES_ALONE + peers * (1 + u64::from(cluster.lanes) * FILES_PER_CHANNEL)
}

/// Those of a scheduler, which has a connection of each member.
fn scheduler_files(settings: &Settings) -> u64 {
    let cluster = &settings.cluster;
    FILES_ALONE + u64::from(cluster.workers) + u64::from(cluster.server_places())
}

fn open_files(limit: Option<u64>, need: u64, settings: &Settings) -> Check {
    let what = "open files";
    let Some(limit) = limit else { return Check::good(what, "no limit") };
    let cluster = &settings.cluster;
    let seen = format!(
        "{limit} allowed, about {need} needed for {} workers and {} servers with {} lanes",
        cluster.workers, cluster.servers, cluster.lanes
    );
    if limit < need {
        let fix = format!(
            "raise `ulimit -n` to {need} (LimitNOFILE in a systemd unit, nofile in /etc/security/limits.conf)"
        );
        return Check::fail(what, ExitCode::Io, seen, fix);
    }
    Check::good(what, seen)
}

async fn binding(settings: &Settings, within: Duration) -> Check {
    let at = (settings.node.bind.as_str(), settings.node.port);
    bindable(at, ("node.bind", "node.port"), within).await
}

/// Where a scheduler listens: for members, and for those who look.
async fn listening(settings: &Settings, within: Duration) -> Vec<Check> {
    let own = &settings.scheduler;
    let (host, named) = match &own.bind {
        Some(bind) => (bind.as_str(), "scheduler.bind"),
        None => (own.host.as_str(), "scheduler.host"),
    };
    let mut checks = vec![bindable((host, own.port), (named, "scheduler.port"), within).await];
    let http = settings.node.http.rsplit_once(':');
    if let Some((host, port)) = http.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?))) {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        checks.push(bindable((host, port), ("node.http", "node.http"), within).await);
    }
    checks
}

/// `address` and `port`: the settings that name them.
async fn bindable(
    (host, port): (&str, u16),
    (address, port_setting): (&str, &str),
    within: Duration,
) -> Check {
    let what = "bind";
    let bound = tokio::time::timeout(within, TcpListener::bind((host, port))).await;
    let error = match bound {
        Ok(Ok(_)) => return Check::good(what, format!("{host} can be bound")),
        Ok(Err(error)) => error,
        Err(_) => ErrorKind::TimedOut.into(),
    };
    let fix = match error.kind() {
        ErrorKind::AddrNotAvailable => {
            format!("set {address} to an address of this host (`ip address` lists them)")
        }
        ErrorKind::AddrInUse => {
            format!("a process listens there already: stop it, or set {port_setting} to 0 or a free port")
        }
        ErrorKind::PermissionDenied => format!("set {port_setting} to 0 or a port from 1024"),
        _ => format!(
            "set {address} to an address of this host (`ip address` lists them), or a name that resolves to one"
        ),
    };
    Check::fail(what, ExitCode::Io, format!("cannot bind {host}:{port}: {error}"), fix)
}

async fn advertising(settings: &Settings, within: Duration) -> Check {
    let what = "advertise";
    let name = advertised(settings);
    let found = match dial::resolve(&name, 0, within).await {
        Ok(found) => found,
        Err(error) => {
            let fix = "set node.advertise to a name or address under which peers reach this host";
            return Check::fail(what, ExitCode::Io, error.to_string(), fix);
        }
    };
    judge_advertised(&name, &found, &settings.node.bind)
}

fn judge_advertised(name: &str, found: &[SocketAddr], bind: &str) -> Check {
    let what = "advertise";
    let listed = found.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>().join(", ");
    let seen = match name.parse::<IpAddr>() {
        Ok(_) => format!("peers are told {name}"),
        Err(_) => format!("peers are told {name}, here {listed}"),
    };
    if found.iter().any(|address| address.ip().is_unspecified()) {
        let fix = "set node.advertise (--advertise) to an address of this host that peers reach";
        return Check::fail(what, ExitCode::Config, format!("{seen}, which is no address of anybody"), fix);
    }
    let listens_beyond = bind.parse::<IpAddr>().is_ok_and(|bind| !bind.is_loopback());
    if listens_beyond && found.iter().all(|address| address.ip().is_loopback()) {
        let fix =
            "peers on other hosts would reach themselves: set node.advertise to an address of the network";
        return Check::warn(what, format!("{seen}, a loopback address"), fix);
    }
    if !listens_beyond {
        return Check::good(what, format!("{seen}; processes on this host only"));
    }
    Check::good(what, seen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::transport::Policy;

    fn level(check: &Check) -> &'static str {
        match check.level {
            Level::Good => "ok",
            Level::Warn => "warn",
            Level::Fail(_) => "FAIL",
        }
    }

    #[test]
    fn memory_that_may_be_pinned_is_judged_at_each_bound() {
        let settings = Settings::default();
        let least = server_bytes(&settings, 2).max(worker_bytes(&settings)) + VERBS_QUEUE_BYTES;
        let most = worker_bytes(&settings) + VERBS_QUEUE_BYTES + settings.memory.pool_bytes;
        let judged = |limit, is_usable| level(&pinned(limit, &settings, is_usable));
        assert_eq!(judged(None, true), "ok");
        assert_eq!(judged(Some(most), true), "ok");
        assert_eq!(judged(Some(most - 1), true), "warn");
        assert_eq!(judged(Some(least), true), "warn", "a smaller inbox fits");
        assert_eq!(judged(Some(least - 1), true), "warn", "other transports are used");
        assert_eq!(judged(Some(0), false), "ok", "nobody pins anything");
        let told = pinned(Some(64 << 10), &settings, true).to_string();
        assert!(told.contains("64.0 KiB") && told.contains("ulimit -l"), "{told}");
        let told = pinned(Some(8 << 20), &settings, true).to_string();
        assert!(told.starts_with("warn") && told.contains("inbox slots of the 16 set"), "{told}");
    }

    #[test]
    fn the_settings_own_limit_of_registered_memory_is_judged_too() {
        let mut settings = Settings::default();
        settings.memory.registered_bytes = 8 << 20;
        let told = pinned(None, &settings, true).to_string();
        assert!(told.starts_with("warn") && told.contains("memory.registered_bytes"), "{told}");
        settings.memory.registered_bytes = 1 << 20;
        assert_eq!(level(&pinned(Some(1 << 40), &settings, true)), "warn");
        settings.transport.verbs = Policy::Require;
        assert_eq!(level(&pinned(Some(1 << 40), &settings, true)), "FAIL");
    }

    #[test]
    fn too_little_memory_fails_only_a_job_that_nothing_else_carries() {
        for kib in [64, 2048, 4096] {
            let mut settings = Settings::default();
            let told = |settings: &Settings| pinned(Some(kib << 10), settings, true).to_string();
            assert!(told(&settings).starts_with("warn"), "{}", told(&settings));
            assert!(told(&settings).contains("a job uses shm"), "{}", told(&settings));
            settings.transport.shm = Policy::Off;
            assert!(told(&settings).contains("a job uses tcp"), "{}", told(&settings));
            settings.transport.tcp = Policy::Off;
            assert!(told(&settings).starts_with("FAIL"), "{}", told(&settings));
        }
    }

    #[test]
    fn the_spill_area_counts() {
        let mut settings = Settings::default();
        settings.memory.pool_bytes = 0;
        settings.memory.spill_bytes = 1 << 30;
        let most = server_bytes(&settings, 16) + VERBS_QUEUE_BYTES + (1 << 30);
        assert_eq!(level(&pinned(Some(most), &settings, true)), "ok");
        assert_eq!(level(&pinned(Some(most - 1), &settings, true)), "warn");
    }

    #[test]
    fn open_files_are_judged_by_the_channels() {
        let mut settings = Settings::default();
        (settings.cluster.workers, settings.cluster.lanes) = (100, 4);
        let need = 64 + 100 * 17;
        assert_eq!((member_files(&settings), scheduler_files(&settings)), (need, 64 + 100 + 1));
        assert_eq!(level(&open_files(Some(need), need, &settings)), "ok");
        let short = open_files(Some(need - 1), need, &settings);
        assert_eq!(level(&short), "FAIL");
        assert!(short.to_string().contains("`ulimit -n` to 1764"), "{short}");
        assert_eq!(level(&open_files(None, need, &settings)), "ok");
    }

    #[test]
    fn an_advertised_address_that_nobody_reaches_is_told() {
        let judged = |address: &str, bind| {
            let found = [SocketAddr::new(address.parse().unwrap(), 0)];
            level(&judge_advertised("name", &found, bind))
        };
        assert_eq!(judged("0.0.0.0", "0.0.0.0"), "FAIL");
        assert_eq!(judged("127.0.0.1", "10.0.0.1"), "warn");
        assert_eq!(judged("127.0.0.1", "127.0.0.1"), "ok");
        assert_eq!(judged("10.0.0.1", "0.0.0.0"), "ok");
    }

    #[tokio::test]
    async fn an_address_of_nobody_and_a_taken_port_cannot_be_bound() {
        let mut settings = Settings::default();
        let within = Duration::from_secs(30);
        assert_eq!(level(&binding(&settings, within).await), "ok");
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        settings.node.port = taken.local_addr().unwrap().port();
        let told = binding(&settings, within).await.to_string();
        assert!(told.starts_with("FAIL") && told.contains("listens there already"), "{told}");
        settings.node.bind = "192.0.2.1".into();
        let told = binding(&settings, within).await.to_string();
        assert!(told.contains("address of this host"), "{told}");
    }

    #[tokio::test]
    async fn a_scheduler_is_told_which_of_its_own_addresses_cannot_be_bound() {
        let mut settings = Settings::default();
        let within = Duration::from_secs(30);
        settings.scheduler.port = 0;
        let levels = |checks: &[Check]| checks.iter().map(level).collect::<Vec<_>>();
        assert_eq!(levels(&listening(&settings, within).await), ["ok", "ok"]);
        let held = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let taken = held.local_addr().unwrap();
        (settings.scheduler.port, settings.node.http) = (taken.port(), taken.to_string());
        let checks = listening(&settings, within).await;
        assert_eq!(levels(&checks), ["FAIL", "FAIL"]);
        let told: Vec<_> = checks.iter().map(ToString::to_string).collect();
        assert!(told[0].contains("set scheduler.port") && told[1].contains("set node.http"), "{told:?}");
        (settings.scheduler.bind, settings.node.http) = (Some("192.0.2.1".into()), String::new());
        let checks = listening(&settings, within).await;
        assert_eq!(checks.len(), 1);
        assert!(checks[0].to_string().contains("set scheduler.bind"), "{}", checks[0]);
    }
}
