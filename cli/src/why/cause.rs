//! Finds causes in a status: each waiting process names the processes that it waits for, and so on, up to one that waits for no other. A
//! pure function, which knows only what the scheduler's status contains.

use crate::status::table::quarantine;
use crate::status::words::{duration, id, names, state};
use daemon::status::{ClusterStatus, JobPhase, MemberStatus};
use proto_common::config::RARE_HEARTBEAT_MS_MAX;
use proto_common::ids::{MemberId, Role};
use proto_common::message::{PortReport, Wait, WaitCause};
use serde::Serialize;
use std::net::IpAddr;

/// If one member reports a wait of 2.5 s, the members that it waits for report their own waits from this length on.
const WAIT_TOLD_MS: u64 = 500;
/// Rounds take their time: a wait shorter than this and than so many rounds holds nobody up.
const WAIT_MIN_MS: u64 = RARE_HEARTBEAT_MS_MAX + WAIT_TOLD_MS;
/// A checkpoint of which nothing has come for so long is stuck.
const STALLED_MIN_MS: u64 = 5_000;
/// A barrier has to be waited for so long to count.
const BARRIER_MIN_MS: u64 = 1_000;

/// One thing that holds a job up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Who or what holds up what, and for how long.
    pub(super) what: String,
    pub(super) seen: Vec<String>,
    /// What to do about it.
    pub(super) fix: String,
}

impl Finding {
    fn new(what: impl Into<String>, seen: Vec<String>, fix: impl Into<String>) -> Self {
        Self { what: what.into(), seen, fix: fix.into() }
    }
}

/// Everything that holds this job up, the heaviest first.
pub(super) fn causes(status: &ClusterStatus) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(phase(status));
    found.extend(silent(status));
    found.extend(awaited(status));
    found.extend(longest(status));
    found.extend(stragglers(status));
    found.extend(barriers(status));
    found.extend(checkpoint(status));
    found.extend(full(status));
    found
}

/// A job that does not train yet, or not any more.
fn phase(status: &ClusterStatus) -> Option<Finding> {
    let missing = names(&status.missing);
    let since = duration(status.uptime_ms);
    match status.phase {
        JobPhase::Assembling if !status.missing.is_empty() => Some(Finding::new(
            format!("the job has been waiting for members for {since}: {missing}"),
            vec![],
            "start them; if they are already running, check their logs for why they cannot register (address, job id, certificate)",
        )),
        JobPhase::Rebuilding => Some(Finding::new(
            format!("a new scheduler has been waiting for the members of the job for {since}: {missing}"),
            vec![],
            "if they are running, nothing: they reconnect within deadlines.scheduler_ms. Otherwise restart them",
        )),
        JobPhase::Ending | JobPhase::Ended => {
            let why = status.ending.as_deref().unwrap_or("no reason was given");
            Some(Finding::new(
                format!("the job is ending: {why}"),
                vec![],
                "check the log of the member that it names",
            ))
        }
        _ => None,
    }
}

fn silent(status: &ClusterStatus) -> Vec<Finding> {
    let is_silent = |member: &&MemberStatus| state(member, status.silence_ms) == "SILENT";
    let finding = |member: &MemberStatus| {
        let (who, silent) = (id(member), duration(member.silent_ms));
        Finding::new(
            format!("no heartbeat from {who} for {silent}"),
            vec![format!("it counts as failed after {} (deadlines.silence_ms)", duration(status.silence_ms))],
            format!("check whether {} is stopped, swaps, or has lost its network", place(status, member)),
        )
    };
    status.members.iter().filter(is_silent).map(finding).collect()
}

/// Workers that died and that rounds wait for.
fn awaited(status: &ClusterStatus) -> Option<Finding> {
    let ranks = &status.recovery.awaited;
    (!ranks.is_empty()).then(|| {
        let who: Vec<MemberId> =
            ranks.iter().map(|rank| MemberId { role: Role::Worker, rank: *rank }).collect();
        Finding::new(
            format!("rounds wait for {} to rejoin after a failure", names(&who)),
            vec!["cluster.worker_loss is \"wait\"".into()],
            "restart it with the job's settings within deadlines.rejoin_ms",
        )
    })
}

/// The wait that is the longest of all, followed to its end.
fn longest(status: &ClusterStatus) -> Option<Finding> {
    let there = status.members.iter().filter(|member| !member.left);
    let waits = there.filter_map(|member| Some((member, member.oldest.as_ref()?)));
    let (member, wait) = waits.max_by_key(|(_, wait)| wait.waited_ms)?;
    // Rounds that follow each other are no wait, however long one takes.
    let round_ms = (2e3 / status.rounds_per_second.max(1e-3)) as u64;
    let is_stuck =
        wait.waited_ms >= WAIT_MIN_MS && (status.rounds_per_second == 0.0 || wait.waited_ms > round_ms);
    is_stuck.then(|| Chain::from(status, member, wait).finding(wait.waited_ms))
}

/// From one that waits to one that does not.
struct Chain<'a> {
    status: &'a ClusterStatus,
    seen: Vec<String>,
    end: End<'a>,
}

enum End<'a> {
    /// It waits for nobody.
    Idle(&'a MemberStatus),
    /// A worker that has no way to its servers yet, so its trainer has not even begun.
    Unlinked(&'a MemberStatus),
    Absent(MemberId),
    /// It waits, for this reason, and for nobody else.
    Stays(&'a MemberStatus, WaitCause),
    /// A lane of it does not answer, as this says.
    Stuck(&'a MemberStatus, &'a str),
    /// They wait for one another.
    Circle(Vec<MemberId>),
}

impl<'a> Chain<'a> {
    fn from(status: &'a ClusterStatus, member: &'a MemberStatus, wait: &'a Wait) -> Self {
        let (mut at, mut wait) = (member, wait);
        let (mut seen, mut passed, mut ports) = (Vec::new(), Vec::new(), Vec::new());
        let end = loop {
            passed.push((id(at), wait.of));
            ports.extend(port_line(at));
            seen.push(format!("{}: {}, for {}", id(at), wait.what, duration(wait.waited_ms)));
            let Some(next) = next(status, wait) else { break end_at(at, wait) };
            let next = match next {
                Ok(next) => next,
                Err(absent) => break End::Absent(absent),
            };
            match further(at, wait, next) {
                Some(further) => (at, wait) = (next, further),
                None => {
                    seen.push(member_line(next));
                    ports.extend(port_line(next));
                    break match next.role {
                        Role::Worker if is_unlinked(next) => End::Unlinked(next),
                        Role::Worker => End::Idle(next),
                        _ => End::Stays(next, wait.cause),
                    };
                }
            }
            if let Some(first) = passed.iter().position(|one| *one == (id(at), wait.of)) {
                let workers = passed.split_off(first).into_iter().map(|(one, _)| one);
                break End::Circle(workers.filter(|one| one.role == Role::Worker).collect());
            }
        };
        seen.extend(ports);
        Self { status, seen, end }
    }

    fn finding(self, waited_ms: u64) -> Finding {
        let Self { status, seen, end } = self;
        let waited = duration(waited_ms);
        let (what, fix) = match end {
            End::Idle(member) => {
                (format!("{} is what the others wait for, for {waited}", id(member)), idle(status, member))
            }
            End::Unlinked(member) => (
                format!("{} is what the others wait for, for {waited}", id(member)),
                "it is not connected to its servers; its log says why (certificate, firewall); `gradwire doctor --peer` tries \
                 every transport between two hosts"
                    .to_owned(),
            ),
            End::Absent(who) => (
                format!("{who} is what the others wait for, for {waited}, and it is not there"),
                "its log says why it ended; start it again".to_owned(),
            ),
            End::Circle(who) => circle(&who, &waited),
            End::Stays(member, cause) => stays(status, member, cause, &waited),
            End::Stuck(member, what) => (
                format!("{}: {what}, for {waited}", id(member)),
                format!(
                    "its data thread is stuck, or gets no processor: see what {} does, and its log",
                    place(status, member)
                ),
            ),
        };
        Finding { what, seen, fix }
    }
}

/// The end at one who waits for nobody else. Only a lane that does not answer is a wait of its own lane's for no worker.
fn end_at<'a>(at: &'a MemberStatus, wait: &'a Wait) -> End<'a> {
    match (wait.cause, wait.of) {
        (WaitCause::Lane, None) => End::Stuck(at, &wait.what),
        (cause, _) => End::Stays(at, cause),
    }
}

fn is_unlinked(member: &MemberStatus) -> bool {
    member.role == Role::Worker && !member.links_ready
}

/// What to do about a worker that others wait for, and that waits for nobody.
fn idle(status: &ClusterStatus, member: &MemberStatus) -> String {
    let place = place(status, member);
    match member.in_flight {
        0 => format!(
            "it has nothing under way, so its trainer computes, reads data or is stopped: look at what {place} does"
        ),
        count => format!(
            "it has {count} operations under way and has waited long for none of them, so it is late, and not at rest: look at \
             what {place} does, and what else runs beside it"
        ),
    }
}

/// Workers that wait for one another, or one that waits for itself.
fn circle(who: &[MemberId], waited: &str) -> (String, String) {
    match who {
        [one] => (
            format!("{one} waits for itself, for {waited}"),
            "it waits for a round that it has not contributed to itself: push to a tensor before you wait for that round of it"
                .to_owned(),
        ),
        _ => (
            format!("{} wait for one another, for {waited}", names(who)),
            "workers take their tensors in different orders, each waiting for one before it pushes the next: push all before \
             you wait, or keep one order"
                .to_owned(),
        ),
    }
}

/// Of those that are waited for, the one that tells most: who is silent, or else not connected, or else waits least itself. One
/// that is not there explains everything, and is the error; none where nobody is waited for.
fn next<'a>(status: &'a ClusterStatus, wait: &Wait) -> Option<Result<&'a MemberStatus, MemberId>> {
    let role = wait.cause.role()?;
    let mut members = Vec::new();
    for who in wait.on.iter().map(|rank| MemberId { role, rank: *rank }) {
        match status.members.iter().find(|member| id(member) == who && !member.left) {
            Some(member) => members.push(member),
            None => return Some(Err(who)),
        }
    }
    let telling = |member: &&MemberStatus| {
        let waits_ms = member.oldest.as_ref().map_or(0, |wait| wait.waited_ms);
        (state(member, status.silence_ms) != "SILENT", !is_unlinked(member), waits_ms)
    };
    members.into_iter().min_by_key(telling).map(Ok)
}

/// What the one that is waited for waits for itself; at a server, on behalf of the worker that waits for it.
fn further<'a>(at: &MemberStatus, wait: &Wait, next: &'a MemberStatus) -> Option<&'a Wait> {
    // What a connection, a slot or a copy lacks is not to be found in its other end's own wait.
    if matches!(wait.cause, WaitCause::Links | WaitCause::Credits | WaitCause::Copies) {
        return None;
    }
    let of = |wait: &&Wait| at.role != Role::Worker || wait.of.is_none_or(|of| of == at.rank);
    next.oldest.iter().chain(&next.others).filter(of).find(|wait| wait.waited_ms >= WAIT_TOLD_MS)
}

fn member_line(member: &MemberStatus) -> String {
    let under_way = match member.in_flight {
        _ if is_unlinked(member) => "not connected to its servers".to_owned(),
        0 => "nothing under way".to_owned(),
        count => format!("{count} operations under way"),
    };
    let often = match member.waited_for_percent {
        0 => String::new(),
        percent => format!("; servers waited for it in {percent} of 100 looks"),
    };
    let heard = duration(member.silent_ms);
    format!("{}: {under_way}, round {}, heard of {heard} ago{often}", id(member), member.round)
}

/// What its RDMA device's port had trouble with lately, where it had.
fn port_line(member: &MemberStatus) -> Option<String> {
    let PortReport { device, port, trouble } = member.port.as_ref()?;
    let counts: Vec<String> = trouble.iter().map(|(name, count)| format!("{name} {count}")).collect();
    Some(format!(
        "{}: port {port} of RDMA device {device} has lately counted {}",
        id(member),
        counts.join(", ")
    ))
}

/// What it is when one waits and nobody else is to blame.
fn stays(status: &ClusterStatus, member: &MemberStatus, cause: WaitCause, waited: &str) -> (String, String) {
    let who = id(member);
    match cause {
        WaitCause::Checkpoint => {
            let round =
                status.checkpoints.writing.map_or_else(String::new, |round| format!(" of round {round}"));
            (
                format!(
                    "the checkpoint{round} holds {who} up, for {waited}: its disk is slower than training"
                ),
                format!(
                    "raise checkpoint.memory_bytes, write to a faster place than checkpoint.directory, or less often \
                     (checkpoint.every_rounds); see the disk of {}",
                    place(status, member)
                ),
            )
        }
        WaitCause::Handler => (
            format!("a handler of the program at {who} has not answered, for {waited}"),
            format!("look at what {} does", place(status, member)),
        ),
        WaitCause::Credits => (
            format!("{who} has granted no slot of its inbox, for {waited}"),
            format!(
                "it is busy or full: look at {}; more slots are memory.inbox_slots",
                place(status, member)
            ),
        ),
        WaitCause::Links => (
            format!("there is no connection to {who}, for {waited}"),
            "the worker's log says why; `gradwire doctor --peer` tries every transport between two hosts"
                .to_owned(),
        ),
        WaitCause::Copies => (
            format!("{who} has not confirmed its copies, for {waited}"),
            format!("look at {}, and at the network between the servers", place(status, member)),
        ),
        WaitCause::Answers => (
            format!("{who} has not answered, for {waited}, and waits for nobody"),
            format!(
                "the message or its answer is still in transit: see that link's rate below RATE in `gradwire status`, and {}",
                place(status, member)
            ),
        ),
        _ => (
            format!("{who} has everything that it needs and has not finished, for {waited}"),
            format!(
                "its data threads are busy: see the processors of {}; more of them are cluster.lanes",
                place(status, member)
            ),
        ),
    }
}

/// Who is slow; that one cannot come to its servers at all is no slowness, and no setting for slow ones helps it.
fn stragglers(status: &ClusterStatus) -> Vec<Finding> {
    let finding = |slow: &daemon::status::StragglerStatus| {
        let who = MemberId { role: Role::Worker, rank: slow.worker };
        let mut seen = vec![format!("servers waited for it in {} of 100 looks", slow.waited_for_percent)];
        if slow.behind > 0 {
            seen.push(format!("it is {} rounds behind the first", slow.behind));
        }
        let member = status.members.iter().find(|member| id(member) == who);
        let at = member.map_or_else(|| who.to_string(), |member| place(status, member));
        Finding::new(
            format!("{who} is slower than the others, round after round"),
            seen,
            format!(
                "see what else runs beside {at}; cluster.backup_workers or cluster.mode=bounded:N let rounds complete without the slowest worker"
            ),
        )
    };
    let is_linked = |slow: &&daemon::status::StragglerStatus| {
        !status.members.iter().any(|member| member.rank == slow.worker && is_unlinked(member))
    };
    status.stragglers.iter().filter(is_linked).map(finding).collect()
}

fn barriers(status: &ClusterStatus) -> Vec<Finding> {
    let long = status.barriers.iter().filter(|barrier| barrier.waited_ms >= BARRIER_MIN_MS);
    long.map(|barrier| {
        Finding::new(
            format!(
                "barrier {:?} waits for {}, for {}",
                barrier.name,
                names(&barrier.missing),
                duration(barrier.waited_ms)
            ),
            vec![format!("there: {}", names(&barrier.arrived))],
            "those that are missing have not come to it: look at what their trainers do",
        )
    })
    .collect()
}

fn checkpoint(status: &ClusterStatus) -> Option<Finding> {
    let checkpoints = &status.checkpoints;
    if let Some(why) = &checkpoints.stopped {
        return Some(Finding::new(
            "no checkpoint is written any more: those that were given up cannot be removed".to_owned(),
            vec![why.clone()],
            "let the scheduler and all servers run as one user, or remove what is left by hand",
        ));
    }
    let round = checkpoints.writing.filter(|_| checkpoints.stalled_ms >= STALLED_MIN_MS)?;
    let parts = checkpoints.missing.iter().map(|(server, lane)| format!("server {server} lane {lane}"));
    Some(Finding::new(
        format!(
            "nothing has come of the checkpoint of round {round} for {}",
            duration(checkpoints.stalled_ms)
        ),
        vec![format!("missing: {}", parts.collect::<Vec<_>>().join(", "))],
        "a disk hangs or is full, or a chunk has not reached that round: the servers' logs say which",
    ))
}

/// Servers whose memory for what is under way is used up.
fn full(status: &ClusterStatus) -> Vec<Finding> {
    let mut found = Vec::new();
    for member in &status.members {
        let Some(load) = member.load.filter(|_| !member.left) else { continue };
        if load.spill_blocks > 0 && load.spill_blocks_used == load.spill_blocks {
            found.push(Finding::new(
                format!("{} has no memory left for contributions that arrive before their turn", id(member)),
                vec![format!("{} of {} spill blocks in use", load.spill_blocks_used, load.spill_blocks)],
                "workers must send again until there is room: raise memory.spill_bytes, or find the slow worker",
            ));
        }
        if let Some(kept) = quarantine(member) {
            found.push(Finding::new(
                kept,
                vec![format!("{} of {} slots free", load.credits_free, load.credits)],
                "training goes on with the rest; it is free again when that process continues or ends: see whether it is stopped \
                 (SIGSTOP, a debugger, the freezer of its container), and end it if nobody needs it",
            ));
        }
    }
    found
}

/// Where to look for a member: the host that its peers reach it by, or else what that calls itself. An address that means
/// another host everywhere says something only where all of the job is on one.
fn place(status: &ClusterStatus, member: &MemberStatus) -> String {
    let on_one_host = status.members.iter().flat_map(hosts).all(is_loopback);
    let mut reached = hosts(member).filter(|host| on_one_host || !is_loopback(host));
    match reached.next().or(member.host.as_deref()) {
        Some(host) => format!("process {} on {host}", member.pid),
        None => format!("process {} of {}", member.pid, id(member)),
    }
}

/// Those of its addresses, the one for data first.
fn hosts(member: &MemberStatus) -> impl Iterator<Item = &str> {
    let addresses = [&member.data_address, &member.http_address].into_iter().flatten();
    addresses.filter_map(|address| Some(address.rsplit_once(':')?.0))
}

fn is_loopback(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
