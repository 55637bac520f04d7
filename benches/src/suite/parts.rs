//! The parts of the suite: which works, with which subjects, under which names.
//!
//! A work is the same for all its subjects. Nothing is measured here.

use super::compare::{
    Changed, Comparison, GRPC, ONE_TENSOR, PEER, PLAIN_RECEIVE, STORE_AND_FORWARD, in_one_tensor,
};
use super::plan::{Plan, SUBJECTS};
use crate::child::cpus;
use crate::gradwire::GradwireSubject;
use crate::gradwire::worker::{Buffers, Variant};
use crate::grpc::{GrpcSubject, Tuning};
use crate::measure::Subject;
use crate::models::{self, INCEPTION, Model};
use crate::peer::Peer;
use crate::ping::{PingPong, Way};
use crate::plain::{Duty, PlainSubject};
use crate::report::{self, Row};
use crate::workload::{self, FOUR_FLOATS_BYTES, Op, Order, WORKLOADS, WorkSpec, Workload};
use std::time::Duration;

/// A part: adds its rows, and notes where it leaves something out.
type Part = fn(&Plan, &mut Vec<Row>, &mut Vec<String>) -> anyhow::Result<()>;

/// All parts, in the order in which they are measured.
pub(super) const PARTS: [(&str, Part); 8] = [
    ("latency", latency),
    ("sizes", sizes),
    ("models", all_models),
    ("receive", receive),
    ("shapes", shapes),
    ("late", late),
    ("rows", rows),
    ("idle", idle),
];

/// Those whose ways differ where a tensor fits a cache.
const EVERYWHERE: [&str; 6] = ["shm", "shm_view", "unix", "tcp", STORE_AND_FORWARD, GRPC];

fn over_shm(name: &'static str, buffers: Buffers) -> Box<dyn Subject> {
    let variant = Variant { buffers, ..Variant::default() };
    Box::new(GradwireSubject::new("shm").with_variant(name, variant))
}

fn subject(name: &str) -> Option<Box<dyn Subject>> {
    Some(match name {
        "shm" => Box::new(GradwireSubject::new("shm")),
        "shm_view" => over_shm("shm_view", Buffers::View),
        "shm_touch" => over_shm("shm_touch", Buffers::Touch),
        "shm_own" => over_shm("shm_own", Buffers::Own),
        "shm_plain" => over_shm("shm_plain", Buffers::Plain),
        "unix" => Box::new(GradwireSubject::new("unix")),
        "tcp" => Box::new(GradwireSubject::new("tcp")),
        STORE_AND_FORWARD => Box::new(PlainSubject::new(STORE_AND_FORWARD, Duty::Forward)),
        PLAIN_RECEIVE => Box::new(PlainSubject::new(PLAIN_RECEIVE, Duty::Receive)),
        GRPC => Box::new(GrpcSubject::new(Tuning::default())),
        _ => return None,
    })
}

/// As [`subjects`], and the outside program if there is one.
fn with_peer(plan: &Plan, names: &[&str]) -> Vec<Box<dyn Subject>> {
    let mut all = subjects(plan, names);
    all.extend(plan.args.peer.iter().map(|command| Box::new(Peer::new(PEER, command)) as Box<dyn Subject>));
    all
}

/// Those of these subjects that are wanted.
fn subjects(plan: &Plan, names: &[&str]) -> Vec<Box<dyn Subject>> {
    names.iter().filter(|name| plan.wants_subject(name)).filter_map(|name| subject(name)).collect()
}

/// Above this a work's processes end with it, so that what it declared does not lie beside the next one's.
const KEPT_BYTES: u64 = 64 << 20;

fn stop_after(subjects: &mut [Box<dyn Subject>], spec: &WorkSpec) {
    if spec.model_bytes() > KEPT_BYTES {
        subjects.iter_mut().for_each(|subject| subject.stop());
    }
}

/// Longer than any wait: nobody sleeps.
const SPINNING: &str = "memory.spin_us=5000";
/// Nobody spins.
const BLOCKED: &str = "memory.spin_us=0";

/// push_pull of four floats, spinning and sleeping on a CPU each, beside bare exchanges that wait in the same way there.
fn latency(plan: &Plan, rows: &mut Vec<Row>, notes: &mut Vec<String>) -> anyhow::Result<()> {
    if !plan.wants("latency", "latency", true) || !plan.has_time("latency", notes) {
        return Ok(());
    }
    let waiting = |name: &'static str, transport, setting: &str| {
        let subject = GradwireSubject::new(transport).with_variant(name, Variant::default());
        Box::new(subject.with_settings(&[setting.to_owned()]).with_cpus(cpus())) as Box<dyn Subject>
    };
    let mut all: Vec<Box<dyn Subject>> = vec![
        waiting("shm_spinning", "shm", SPINNING),
        Box::new(PingPong::new(Way::Spin)),
        waiting("shm_blocked", "shm", BLOCKED),
        Box::new(PingPong::new(Way::Futex)),
        waiting("unix_blocked", "unix", BLOCKED),
        Box::new(PingPong::new(Way::Unix)),
        waiting("tcp_blocked", "tcp", BLOCKED),
        Box::new(PingPong::new(Way::Tcp)),
    ];
    let spec =
        WorkSpec { seconds: plan.seconds, ..WorkSpec::alike("latency", Op::PushPull, FOUR_FLOATS_BYTES, 1) };
    let (pairs, copy) = (plan.pairs, &plan.copy);
    let comparison = Comparison { spec, throughput: false, latency: true, pairs, copy };
    rows.extend(comparison.run(&mut all)?.rows);
    Ok(())
}

/// Pushes over TCP, which are received, reduced and applied, beside receiving the same bytes to memory.
fn receive(plan: &Plan, rows: &mut Vec<Row>, notes: &mut Vec<String>) -> anyhow::Result<()> {
    for (bytes, is_quick) in [(1 << 20, true), (16 << 20, false), (64 << 20, false)] {
        if !plan.wants("receive", "receive", is_quick) {
            continue;
        }
        if !plan.has_time("receive", notes) {
            return Ok(());
        }
        let inflight = workload::throughput_inflight(bytes);
        let spec =
            WorkSpec { seconds: plan.seconds, ..WorkSpec::alike("receive", Op::Push, bytes, inflight) };
        let (pairs, copy) = (plan.pairs, &plan.copy);
        let comparison = Comparison { spec, throughput: true, latency: false, pairs, copy };
        let mut subjects = subjects(plan, &["tcp", "unix"]);
        subjects.extend(subject(PLAIN_RECEIVE));
        rows.extend(comparison.run(&mut subjects)?.rows);
    }
    Ok(())
}

/// The size sweep, one direction alone, and the seed paper's work.
fn sizes(plan: &Plan, rows: &mut Vec<Row>, notes: &mut Vec<String>) -> anyhow::Result<()> {
    let wanted = |work: &&Workload| {
        let is_size = plan.args.bytes.is_none_or(|bytes| bytes == work.bytes);
        is_size && plan.wants("sizes", work.name, work.quick || plan.args.bytes.is_some())
    };
    // Any of them where it is asked for by name.
    let names: &[&str] = if plan.args.subjects.is_empty() { &EVERYWHERE } else { &SUBJECTS };
    let mut subjects = with_peer(plan, names);
    for &workers in &plan.workers {
        for work in WORKLOADS.iter().filter(wanted) {
            if !plan.has_time(&format!("{} of {} bytes", work.name, work.bytes), notes) {
                return Ok(());
            }
            let inflight = workload::throughput_inflight(work.bytes);
            let spec = WorkSpec {
                workers,
                servers: plan.args.servers,
                seconds: plan.seconds,
                ..WorkSpec::alike(work.name, work.op, work.bytes, inflight)
            };
            let (pairs, copy) = (plan.pairs, &plan.copy);
            let comparison = Comparison { spec, throughput: work.throughput, latency: true, pairs, copy };
            rows.extend(comparison.run(&mut subjects)?.rows);
            stop_after(&mut subjects, &comparison.spec);
        }
        subjects.iter_mut().for_each(|subject| subject.stop());
    }
    Ok(())
}

/// Whole models, all of their tensors under way together; one of them beside the same bytes in one tensor.
fn all_models(plan: &Plan, rows: &mut Vec<Row>, notes: &mut Vec<String>) -> anyhow::Result<()> {
    for &workers in &plan.workers {
        for model in models::all().into_iter().filter(|model| plan.wants("models", model.name, model.quick)) {
            if !plan.has_time(model.name, notes) {
                return Ok(());
            }
            let mut subjects = with_peer(plan, &SUBJECTS);
            if model.name == INCEPTION {
                let also = ["shm", "unix", "tcp"].into_iter().filter(|name| plan.wants_subject(name));
                let also =
                    also.filter_map(subject).map(|subject| Changed::new(subject, ONE_TENSOR, in_one_tensor));
                subjects.extend(also.map(|changed| Box::new(changed) as Box<dyn Subject>));
            }
            let Model { name, tensors, .. } = model;
            let spec = WorkSpec {
                workers,
                servers: plan.args.servers,
                seconds: plan.seconds,
                ..WorkSpec::of_tensors(name, Op::PushPull, tensors)
            };
            let (pairs, copy) = (plan.model_pairs, &plan.copy);
            let comparison = Comparison { spec, throughput: true, latency: false, pairs, copy };
            rows.extend(comparison.run(&mut subjects)?.rows);
        }
    }
    Ok(())
}

/// More workers and servers than one each, at a megabyte.
fn shapes(plan: &Plan, rows: &mut Vec<Row>, notes: &mut Vec<String>) -> anyhow::Result<()> {
    const SHAPES: [(u32, u32); 7] = [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1)];
    for (workers, servers) in SHAPES {
        let is_quick = (workers, servers) == (2, 2);
        if !plan.wants("shapes", "shapes", is_quick) {
            continue;
        }
        if !plan.has_time("shapes", notes) {
            return Ok(());
        }
        let spec = WorkSpec {
            workers,
            servers,
            seconds: plan.seconds,
            ..WorkSpec::alike("shapes", Op::PushPull, 1 << 20, workload::throughput_inflight(1 << 20))
        };
        let (pairs, copy) = (plan.model_pairs, &plan.copy);
        let comparison = Comparison { spec, throughput: true, latency: false, pairs, copy };
        let mut subjects = subjects(plan, &["shm", "tcp", STORE_AND_FORWARD, GRPC]);
        rows.extend(comparison.run(&mut subjects)?.rows);
    }
    Ok(())
}

/// How much later than the other one of two workers begins each round.
const LATE_US: u32 = 5_000;
const LATE: &str = "_late";

/// One of two workers is late each round: what the other one loses by it. At best that is as much as the late one is
/// late; less where work is under way meanwhile.
fn late(plan: &Plan, rows: &mut Vec<Row>, notes: &mut Vec<String>) -> anyhow::Result<()> {
    if !plan.wants("late", "late", true) || !plan.has_time("late", notes) {
        return Ok(());
    }
    let mut all = Vec::new();
    for name in ["shm", "tcp", STORE_AND_FORWARD, GRPC].into_iter().filter(|name| plan.wants_subject(name)) {
        let too_late =
            subject(name).map(|subject| Changed::new(subject, LATE, |spec| spec.late_us = LATE_US));
        all.extend(subject(name));
        all.extend(too_late.map(|changed| Box::new(changed) as Box<dyn Subject>));
    }
    let spec = WorkSpec {
        workers: 2,
        seconds: plan.seconds,
        ..WorkSpec::alike("late", Op::PushPull, 256 << 10, 16)
    };
    let (pairs, copy) = (plan.model_pairs, &plan.copy);
    let comparison = Comparison { spec, throughput: true, latency: false, pairs, copy };
    let mut compared = comparison.run(&mut all)?;
    let series = &compared.throughput;
    for row in &mut compared.rows {
        let Some(me) = row.transport.as_deref() else { continue };
        let of = |name: &str| series.iter().find(|series| series.subject == name);
        let even = me.strip_suffix(LATE).and_then(of);
        let lost_s = of(me).zip(even).and_then(|(late, even)| late.round_s_beyond(even));
        row.lost_per_late = lost_s.map(|lost| lost * 1e6 / f64::from(LATE_US));
    }
    rows.extend(compared.rows);
    Ok(())
}

/// Rows of an embedding by Zipf's law. There are no sparse tables yet: each row is a tensor of 256 bytes.
fn rows(plan: &Plan, rows: &mut Vec<Row>, notes: &mut Vec<String>) -> anyhow::Result<()> {
    const ROWS: u32 = 4096;
    const BATCH: u32 = 64;
    const NAME: &str = "embedding_rows";
    if !plan.wants("rows", NAME, true) || !plan.has_time(NAME, notes) {
        return Ok(());
    }
    let spec = WorkSpec {
        inflight: BATCH,
        order: Order::Zipf { draws: ROWS },
        seconds: plan.seconds,
        ..WorkSpec::alike(NAME, Op::PushPull, 256, ROWS)
    };
    let (pairs, copy) = (plan.model_pairs, &plan.copy);
    let comparison = Comparison { spec, throughput: true, latency: false, pairs, copy };
    rows.extend(comparison.run(&mut subjects(plan, &EVERYWHERE))?.rows);
    Ok(())
}

/// How long a cluster is watched while it does nothing: CPU time is told in steps of 10 ms.
const IDLE_TIME: Duration = Duration::from_secs(10);

/// What a cluster takes of a CPU between two pieces of work: a scheduler, a server and two workers.
fn idle(plan: &Plan, rows: &mut Vec<Row>, notes: &mut Vec<String>) -> anyhow::Result<()> {
    for transport in ["shm", "tcp"] {
        if !plan.wants("idle", "idle", false) || !plan.has_time("idle", notes) {
            continue;
        }
        report::progress(&format!("idle over {transport}"));
        let spec = WorkSpec { workers: 2, ..WorkSpec::alike("idle", Op::PushPull, 1 << 20, 8) };
        let taken = GradwireSubject::new(transport).idle_cpu_percent(&spec, IDLE_TIME)?;
        rows.push(Row {
            name: spec.name,
            transport: Some(transport.to_owned()),
            workers: Some(spec.workers),
            servers: Some(spec.servers),
            idle_cpu_percent: Some(taken),
            ..Row::default()
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subject_goes_by_its_own_name() {
        for name in SUBJECTS.into_iter().chain([PLAIN_RECEIVE]) {
            assert_eq!(subject(name).map(|subject| subject.name().to_owned()).as_deref(), Some(name));
        }
        assert!(subject("nobody").is_none());
    }
}
