//! The tables of `top` as data: columns, the most important first, and rows that can be sorted. Text from a status; no I/O.

use crate::status::words::{bytes, clean, duration, id, names, number, rate, state};
use daemon::status::{ClusterStatus, MemberStatus};
use proto_common::ids::Role;
use std::cmp::Ordering;

/// Which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tab {
    Workers,
    Servers,
    Links,
    Barriers,
    Processes,
}

impl Tab {
    pub(super) const ALL: [Self; 5] =
        [Self::Workers, Self::Servers, Self::Links, Self::Barriers, Self::Processes];

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Workers => "Workers",
            Self::Servers => "Servers",
            Self::Links => "Links",
            Self::Barriers => "Barriers",
            Self::Processes => "Processes",
        }
    }

    pub(super) fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Workers => &[
                "WORKER",
                "STATE",
                "ROUND",
                "ROUNDS/S",
                "WAITED FOR",
                "IN FLIGHT",
                "REPORTS",
                "MEMORY",
                "HEARD",
                "OLDEST OPERATION",
            ],
            Self::Servers => &[
                "SERVER",
                "STATE",
                "ROUND",
                "ROUNDS/S",
                "STORED",
                "CREDITS GRANTED",
                "SPILL",
                "IN FLIGHT",
                "MEMORY",
                "HEARD",
                "OLDEST OPERATION",
            ],
            Self::Links => &["WORKER", "SERVER", "DRIVER", "RATE", "SENT", "RECEIVED", "WHY"],
            Self::Barriers => &["BARRIER", "WAITS", "THERE", "MISSING"],
            Self::Processes => {
                &["MEMBER", "STATE", "PROCESS", "HEARD", "DATA ADDRESS", "HTTP ADDRESS", "BUILD"]
            }
        }
    }

    /// What stands where there are no rows.
    pub(super) fn nothing(self) -> &'static str {
        match self {
            Self::Workers => {
                "no workers yet: start them with gradwire-worker, or with a program that connects"
            }
            Self::Servers => "no servers yet: start them with gradwire-server",
            Self::Links => "no links yet: workers connect when all members have registered",
            Self::Barriers => "no member waits at a barrier",
            Self::Processes => "no processes have registered yet",
        }
    }

    pub(super) fn rows(self, status: &ClusterStatus) -> Vec<Row> {
        let of = |role| status.members.iter().filter(move |member| member.role == role);
        match self {
            Self::Workers => of(Role::Worker).map(|member| worker(status, member)).collect(),
            Self::Servers => of(Role::Server).map(|member| server(status, member)).collect(),
            Self::Links => links(status),
            Self::Barriers => barriers(status),
            Self::Processes => status.members.iter().map(|member| process(status, member)).collect(),
        }
    }
}

/// How much a row asks for attention; each has a word of its own, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
    #[default]
    None,
    Slow,
    Silent,
}

/// A cell: what is shown, and the number that it is sorted by, if it is one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) number: Option<f64>,
}

impl Cell {
    fn text(text: impl AsRef<str>) -> Self {
        Self { text: clean(text.as_ref()), number: None }
    }

    fn number(text: String, number: f64) -> Self {
        Self { text, number: Some(number) }
    }

    fn count(count: u64) -> Self {
        Self::number(count.to_string(), count as f64)
    }

    fn bytes(count: u64) -> Self {
        Self::number(bytes(count), count as f64)
    }

    fn duration(ms: u64) -> Self {
        Self::number(duration(ms), ms as f64)
    }

    fn rate(per_second: f64) -> Self {
        Self::number(rate(per_second), per_second)
    }

    fn used(used: u64, whole: u64) -> Self {
        Self::number(format!("{used} of {whole}"), used as f64 / whole.max(1) as f64)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) cells: Vec<Cell>,
    pub(super) alarm: Alarm,
}

/// By which column, and which way round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) column: usize,
    pub(super) is_reversed: bool,
}

/// Sorts rows, equal ones as they came.
pub(super) fn sort(rows: &mut [Row], order: Order) {
    let compare = |a: &Row, b: &Row| match (a.cells.get(order.column), b.cells.get(order.column)) {
        (Some(a), Some(b)) => match (a.number, b.number) {
            (Some(a), Some(b)) => a.total_cmp(&b),
            _ => a.text.cmp(&b.text),
        },
        _ => Ordering::Equal,
    };
    rows.sort_by(|a, b| if order.is_reversed { compare(b, a) } else { compare(a, b) });
}

fn alarm(status: &ClusterStatus, member: &MemberStatus) -> Alarm {
    let is_late = status.stragglers.iter().any(|late| late.worker == member.rank);
    match member.role {
        _ if state(member, status.silence_ms) == "SILENT" => Alarm::Silent,
        Role::Worker if is_late => Alarm::Slow,
        _ => Alarm::None,
    }
}

fn rank(member: &MemberStatus) -> Cell {
    Cell::number(id(member).to_string(), f64::from(member.rank.0))
}

fn oldest(member: &MemberStatus) -> Cell {
    match &member.oldest {
        Some(oldest) => {
            let text = format!("{}: {}", duration(oldest.waited_ms), clean(&oldest.what));
            Cell::number(text, oldest.waited_ms as f64)
        }
        None => Cell::number("none".into(), -1.0),
    }
}

fn heard(member: &MemberStatus) -> Cell {
    Cell::number(format!("{} ago", duration(member.silent_ms)), member.silent_ms as f64)
}

fn worker(status: &ClusterStatus, member: &MemberStatus) -> Row {
    let late = status.stragglers.iter().find(|late| late.worker == member.rank);
    let behind = late.map_or(0, |late| late.behind);
    let round = match behind {
        0 => member.round.to_string(),
        behind => format!("{} (-{behind})", member.round),
    };
    let percent = member.waited_for_percent;
    let mark = if late.is_some() { " !" } else { "" };
    let reports: Vec<String> = member
        .metrics
        .iter()
        .map(|metric| format!("{} {}", clean(&metric.name), number(metric.value)))
        .collect();
    let cells = vec![
        rank(member),
        Cell::text(state(member, status.silence_ms)),
        Cell::number(round, member.round as f64),
        Cell::rate(member.rounds_per_second),
        Cell::number(format!("{percent} %{mark}"), f64::from(percent)),
        Cell::count(member.in_flight),
        Cell::text(reports.join(", ")),
        Cell::bytes(member.resident_bytes),
        heard(member),
        oldest(member),
    ];
    Row { cells, alarm: alarm(status, member) }
}

fn server(status: &ClusterStatus, member: &MemberStatus) -> Row {
    let load = member.load.as_ref();
    let unknown = || Cell::number("-".into(), -1.0);
    let cells = vec![
        rank(member),
        Cell::text(state(member, status.silence_ms)),
        Cell::count(member.round),
        Cell::rate(member.rounds_per_second),
        load.map_or_else(unknown, |load| Cell::bytes(load.stored_bytes)),
        load.map_or_else(unknown, |load| {
            Cell::used(load.credits.saturating_sub(load.credits_free), load.credits)
        }),
        load.map_or_else(unknown, |load| Cell::used(load.spill_blocks_used, load.spill_blocks)),
        Cell::count(member.in_flight),
        Cell::bytes(member.resident_bytes),
        heard(member),
        oldest(member),
    ];
    Row { cells, alarm: alarm(status, member) }
}

fn links(status: &ClusterStatus) -> Vec<Row> {
    let mut rows = Vec::new();
    for member in &status.members {
        for link in &member.links {
            let cells = vec![
                Cell::count(u64::from(member.rank.0)),
                Cell::count(u64::from(link.server.0)),
                Cell::text(link.driver.to_string()),
                Cell::number(format!("{}/s", bytes(link.bytes_per_second)), link.bytes_per_second as f64),
                Cell::bytes(link.sent_bytes),
                Cell::bytes(link.received_bytes),
                Cell::text(&link.why),
            ];
            rows.push(Row { cells, alarm: Alarm::None });
        }
    }
    rows
}

fn barriers(status: &ClusterStatus) -> Vec<Row> {
    let row = |barrier: &daemon::status::BarrierStatus| Row {
        cells: vec![
            Cell::text(&barrier.name),
            Cell::duration(barrier.waited_ms),
            Cell::text(names(&barrier.arrived)),
            Cell::text(names(&barrier.missing)),
        ],
        alarm: Alarm::None,
    };
    status.barriers.iter().map(row).collect()
}

fn process(status: &ClusterStatus, member: &MemberStatus) -> Row {
    let address = |address: &Option<String>| Cell::text(address.as_deref().unwrap_or("-"));
    let cells = vec![
        Cell::text(id(member).to_string()),
        Cell::text(state(member, status.silence_ms)),
        Cell::count(u64::from(member.pid)),
        heard(member),
        address(&member.data_address),
        address(&member.http_address),
        Cell::text(&member.build),
    ];
    Row { cells, alarm: alarm(status, member) }
}
