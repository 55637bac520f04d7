//! A job's status as tables for people. Text from text; no I/O.

use super::words::{bytes, clean, duration, id, names, phase, state};
use daemon::status::{CheckpointStatus, ClusterStatus, MemberStatus};
use proto_common::ids::Role;

/// The whole page.
pub(crate) fn render(status: &ClusterStatus) -> String {
    let mut page = head(status);
    page.push('\n');
    page.push_str(&members(status));
    if let Some(links) = links(status) {
        page.push('\n');
        page.push_str(&links);
    }
    if !status.barriers.is_empty() {
        page.push('\n');
        page.push_str(&barriers(status));
    }
    page
}

/// Nothing where there are no checkpoints.
fn checkpoints(status: &CheckpointStatus) -> String {
    let mut words = Vec::new();
    words.extend(status.newest.as_ref().map(|name| format!("newest {name}")));
    let CheckpointStatus { parts, parts_expected, .. } = status;
    words.extend(
        status.writing.map(|round| format!("writing round {round}: {parts} of {parts_expected} parts")),
    );
    words.extend(
        (status.skipped > 0)
            .then(|| format!("{} skipped because another one was being written", status.skipped)),
    );
    words.extend(status.failure.as_ref().map(|why| format!("last failure: {why}")));
    if words.is_empty() { String::new() } else { format!("checkpoints: {}\n", words.join("; ")) }
}

fn head(status: &ClusterStatus) -> String {
    let phase = phase(status.phase);
    let mut text = format!(
        "job {}  {phase}  epoch {}  up {}  {} tensors, {}\n",
        status.job,
        status.epoch,
        duration(status.uptime_ms),
        status.tensors,
        bytes(status.tensor_bytes),
    );
    text.push_str(&checkpoints(&status.checkpoints));
    if let Some(ending) = &status.ending {
        text.push_str(&format!("ending: {ending}\n"));
    }
    if status.uncopied_chunks > 0 {
        text.push_str(&format!("chunks without an up-to-date replica: {}\n", status.uncopied_chunks));
    }
    if !status.missing.is_empty() {
        text.push_str(&format!("missing: {}\n", names(&status.missing)));
    }
    for member in &status.members {
        text.push_str(&quarantine(member).map_or_else(String::new, |line| format!("{line}\n")));
    }
    let running = |role| status.members.iter().filter(move |m| m.role == role && !m.left);
    if let (Some(first), Some(last)) =
        (running(Role::Worker).map(|m| m.round).max(), running(Role::Worker).map(|m| m.round).min())
    {
        let behind = running(Role::Worker).filter(|m| m.round < first).map(id).collect::<Vec<_>>();
        match behind.is_empty() {
            true => text.push_str(&format!("round {first}\n")),
            false => text.push_str(&format!("rounds {last} to {first}, behind: {}\n", names(&behind))),
        }
    }
    let waits = status.members.iter().filter_map(|m| Some((m, m.oldest.as_ref()?)));
    if let Some((member, oldest)) = waits.max_by_key(|(_, oldest)| oldest.waited_ms) {
        let waited = duration(oldest.waited_ms);
        text.push_str(&format!("oldest waiting operation: {} of {}, {waited}\n", oldest.what, id(member)));
    }
    text
}

/// What a server keeps back because a peer may still write it.
pub(crate) fn quarantine(member: &MemberStatus) -> Option<String> {
    let load = member.load.filter(|load| load.quarantined_bytes > 0 && !member.left)?;
    let who = load.quarantined_for.map_or_else(|| "a worker".to_owned(), |rank| format!("worker {rank}"));
    let (bytes, at) = (bytes(load.quarantined_bytes), id(member));
    Some(format!(
        "{at} keeps {bytes} in quarantine: {who}, whose channel has ended, was stopped while it wrote there"
    ))
}

fn members(status: &ClusterStatus) -> String {
    let heading = ["MEMBER", "PID", "STATE", "ROUND", "IN FLIGHT", "HEARD", "DATA", "HTTP"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for member in &status.members {
        rows.push(vec![
            id(member).to_string(),
            member.pid.to_string(),
            state(member, status.silence_ms).to_owned(),
            member.round.to_string(),
            member.in_flight.to_string(),
            format!("{} ago", duration(member.silent_ms)),
            member.data_address.clone().unwrap_or_else(|| "-".into()),
            member.http_address.clone().unwrap_or_else(|| "-".into()),
        ]);
    }
    columns(&rows)
}

fn links(status: &ClusterStatus) -> Option<String> {
    let heading = ["WORKER", "SERVER", "DRIVER", "RATE", "SENT", "RECEIVED", "WHY"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for member in &status.members {
        for link in &member.links {
            rows.push(vec![
                member.rank.to_string(),
                link.server.to_string(),
                link.driver.to_string(),
                format!("{}/s", bytes(link.bytes_per_second)),
                bytes(link.sent_bytes),
                bytes(link.received_bytes),
                link.why.clone(),
            ]);
        }
    }
    (rows.len() > 1).then(|| columns(&rows))
}

fn barriers(status: &ClusterStatus) -> String {
    let mut rows = vec![["BARRIER", "WAITING", "ARRIVED", "MISSING"].map(str::to_owned).to_vec()];
    for barrier in &status.barriers {
        rows.push(vec![
            barrier.name.clone(),
            duration(barrier.waited_ms),
            names(&barrier.arrived),
            names(&barrier.missing),
        ]);
    }
    columns(&rows)
}

/// Left-aligned columns, as wide as their widest cell; control characters of peers' texts are not shown.
fn columns(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| clean(cell)).collect()).collect();
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(i, cell)| format!("{cell:<w$}", w = width(i).unwrap_or(0)))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use daemon::status::{BarrierStatus, JobPhase, LinkStatus, MemberStatus};
    use proto_common::ids::{MemberId, Rank};
    use proto_common::message::{Wait, WaitCause};
    use proto_common::transport::Driver;

    fn member(role: Role, rank: u32, round: u64) -> MemberStatus {
        MemberStatus {
            role,
            rank: Rank(rank),
            pid: 42,
            build: "0.1.0".into(),
            data_address: None,
            http_address: Some("127.0.0.1:5\x1b[31m".into()),
            host: None,
            silent_ms: 20,
            left: false,
            links_ready: true,
            round,
            in_flight: 1,
            oldest: None,
            others: Vec::new(),
            links: Vec::new(),
            rounds_per_second: 0.0,
            resident_bytes: 0,
            waited_for_percent: 0,
            load: None,
            port: None,
            metrics: Vec::new(),
        }
    }

    fn status() -> ClusterStatus {
        let mut slow = member(Role::Worker, 1, 6);
        slow.silent_ms = 6_000;
        slow.oldest = Some(Wait {
            what: "push_pull of 5/0".into(),
            of: None,
            waited_ms: 1_500,
            cause: WaitCause::Answers,
            on: vec![Rank(0)],
        });
        slow.links.push(LinkStatus {
            server: Rank(0),
            driver: Driver::Shm,
            why: "same host".into(),
            sent_bytes: 2_000_000,
            received_bytes: 999,
            bytes_per_second: 1_234_000_000,
        });
        let waits = vec![MemberId { role: Role::Worker, rank: Rank(0) }];
        ClusterStatus {
            job: 7,
            phase: JobPhase::Running,
            epoch: "1.2".into(),
            workers: 2,
            servers: 1,
            silence_ms: 10_000,
            uptime_ms: 65_000,
            tensors: 3,
            rounds_per_second: 0.0,
            stragglers: Vec::new(),
            recovery: Default::default(),
            uncopied_chunks: 0,
            tensor_bytes: 1_500,
            members: vec![member(Role::Server, 0, 7), member(Role::Worker, 0, 7), slow],
            missing: Vec::new(),
            ended_by: None,
            is_silent: false,
            barriers: vec![BarrierStatus {
                name: "start".into(),
                arrived: waits.clone(),
                missing: waits,
                waited_ms: 10,
            }],
            checkpoints: CheckpointStatus::default(),
            ending: None,
        }
    }

    #[test]
    fn the_page_says_who_is_behind_and_what_waits() {
        let page = render(&status());
        for words in [
            "job 7  running  epoch 1.2  up 1 min 5 s  3 tensors, 1.5 kB",
            "rounds 6 to 7, behind: worker 1",
            "oldest waiting operation: push_pull of 5/0 of worker 1, 1.5 s",
            "1       0       shm     1.2 GB/s  2.0 MB  999 B     same host",
            "start    10 ms    worker 0  worker 0",
        ] {
            assert!(page.contains(words), "{words:?} is missing in\n{page}");
        }
        assert!(page.lines().any(|line| line.starts_with("worker 1") && line.contains("SILENT")), "{page}");
        assert!(!page.contains('\x1b'), "a peer cannot colour the terminal");
    }

    #[test]
    fn an_empty_job_is_a_page_too() {
        let mut status = status();
        status.members.clear();
        status.barriers.clear();
        status.phase = JobPhase::Assembling;
        status.missing = vec![MemberId { role: Role::Server, rank: Rank(0) }];
        let page = render(&status);
        assert!(page.contains("missing: server 0"), "{page}");
    }
}
