//! A member as the scheduler knows it: plain data, and the arithmetic of its reports. It must not know other members.

use super::pace::Pace;
use proto_common::ids::{Incarnation, MemberId, Rank, Role};
use proto_common::message::{self, ClusterShape, MemberReport, Register};
use proto_common::optimizer::OwnKind;

/// All places of a cluster, servers first, by rank.
pub(super) fn places(shape: &ClusterShape) -> impl Iterator<Item = MemberId> + use<> {
    let of = |role, count| (0..count).map(move |rank| MemberId { role, rank: Rank(rank) });
    of(Role::Server, shape.servers).chain(of(Role::Worker, shape.workers))
}

/// A control connection, numbered by the runtime; never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// The scheduler's own program, as if it were connected.
pub const LOCAL: ConnectionId = ConnectionId(u64::MAX);

pub(super) const SCHEDULER: MemberId = MemberId { role: Role::Scheduler, rank: Rank(0) };

/// A registered member.
#[derive(Clone, Debug, Default)]
pub(super) struct Member {
    pub(super) connection: ConnectionId,
    pub(super) incarnation: Incarnation,
    pub(super) build: String,
    pub(super) pid: u32,
    pub(super) data_address: Option<String>,
    pub(super) http_address: Option<String>,
    pub(super) host: Option<String>,
    /// Tells its host from others, whatever they call themselves.
    pub(super) host_identity: Option<String>,
    /// A server's: update rules of its program.
    pub(super) rules: Vec<OwnKind>,
    /// When it last said anything.
    pub(super) heard_ms: u64,
    pub(super) report: MemberReport,
    /// When the report came.
    report_ms: Option<u64>,
    /// Bytes per second of each link of the report, since the report before.
    pub(super) rates: Vec<u64>,
    pub(super) pace: Pace,
    pub(super) links_ready: bool,
    /// It wishes to go, once others have what it has.
    pub(super) draining: bool,
    /// It has given this scheduler up, and looks for another one: that its connection closes says nothing.
    pub(super) is_away: bool,
    /// It said goodbye; then it is gone as well.
    pub(super) left: bool,
    /// Its connection is closed, by whichever side.
    pub(super) gone: bool,
}

impl Member {
    pub(super) fn new(connection: ConnectionId, register: Register, now_ms: u64) -> Self {
        Self {
            connection,
            incarnation: register.incarnation,
            build: register.build,
            pid: register.pid,
            data_address: register.data_address,
            http_address: register.http_address,
            host: register.host,
            host_identity: Some(register.offer.host),
            rules: register.rules,
            heard_ms: now_ms,
            ..Self::default()
        }
    }

    /// One that was there before this scheduler, and has not come.
    pub(super) fn absent(entry: &message::Member, now_ms: u64) -> Self {
        Self {
            incarnation: entry.incarnation,
            data_address: entry.data_address.clone(),
            http_address: entry.http_address.clone(),
            left: false,
            ..Self::departed(now_ms)
        }
    }

    /// One that had left before this scheduler came.
    pub(super) fn departed(now_ms: u64) -> Self {
        let connection = ConnectionId(u64::MAX - 1);
        Self { connection, heard_ms: now_ms, left: true, gone: true, ..Self::default() }
    }

    /// What others are told of it.
    pub(super) fn entry(&self, id: MemberId) -> message::Member {
        message::Member {
            id,
            incarnation: self.incarnation,
            data_address: self.data_address.clone(),
            http_address: self.http_address.clone(),
        }
    }

    /// Replaces the report and works out the links' rates.
    pub(super) fn take_report(&mut self, now_ms: u64, report: MemberReport) {
        let passed_ms = self.report_ms.map_or(0, |before| now_ms.saturating_sub(before)).max(1);
        let rate = |link: &proto_common::message::LinkReport| {
            let before = self.report.links.iter().find(|old| old.server == link.server);
            let bytes = |l: &proto_common::message::LinkReport| l.sent_bytes.saturating_add(l.received_bytes);
            let moved = before.map_or(0, |old| bytes(link).saturating_sub(bytes(old)));
            moved.saturating_mul(1000) / passed_ms
        };
        self.rates = report.links.iter().map(rate).collect();
        self.pace.see(now_ms, &report);
        self.report = report;
        self.report_ms = Some(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::message::LinkReport;
    use proto_common::transport::{Driver, Offer, Policies};

    #[test]
    fn a_rate_is_bytes_between_two_reports() {
        let offer = Offer { host: String::new(), uid: 0, policies: Policies::default(), missing: Vec::new() };
        let register = Register {
            protocol: 1,
            build: String::new(),
            job: Default::default(),
            role: Role::Worker,
            incarnation: Incarnation(1),
            wanted_rank: None,
            data_address: None,
            http_address: None,
            host: None,
            pid: 1,
            offer,
            rules: Vec::new(),
            resume: None,
        };
        let mut member = Member::new(ConnectionId(1), register, 0);
        let report = |sent_bytes, received_bytes| {
            let (server, driver, why) = (Rank(0), Driver::Shm, String::new());
            let links = vec![LinkReport { server, driver, why, sent_bytes, received_bytes }];
            MemberReport { links, ..MemberReport::default() }
        };
        member.take_report(1_000, report(500, 500));
        assert_eq!(member.rates, [0], "one report is no rate");
        member.take_report(1_500, report(1_000, 1_500));
        assert_eq!(member.rates, [3_000]);
        member.take_report(1_500, report(0, 0));
        assert_eq!(member.rates, [0], "a count that goes back is no rate");
    }
}
