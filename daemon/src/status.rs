//! The scheduler's `/status` as a type: the scheduler writes it, `gradwire status` reads it. Plain data only.

use proto_common::ids::{MemberId, Rank, Role};
use proto_common::message::{PortReport, Wait};
use proto_common::transport::Driver;
use serde::{Deserialize, Serialize};

/// Where the job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobPhase {
    /// Members are missing.
    Assembling,
    /// A scheduler was lost, and the next one waits for the members.
    Rebuilding,
    /// All members are there.
    Running,
    /// Members are leaving.
    Ending,
    /// Nothing is left to do.
    Ended,
}

/// The job as the scheduler sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// The job.
    pub job: u64,
    /// Where it stands.
    pub phase: JobPhase,
    /// The epoch, as term.counter.
    pub epoch: String,
    /// Workers that are to be there: those that are done do not count, and those that died do.
    pub workers: u32,
    /// Servers that are to be there, also those that came later; one that died counts until another one has come for it.
    pub servers: u32,
    /// A member silent for this many milliseconds is dead.
    pub silence_ms: u64,
    /// Milliseconds since the scheduler started.
    pub uptime_ms: u64,
    /// Tensors declared.
    pub tensors: u64,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Rounds per second: the mean over workers that are there. In mode sync all go at the job's pace.
    #[serde(default)]
    pub rounds_per_second: f64,
    /// Workers that hold others up.
    #[serde(default)]
    pub stragglers: Vec<StragglerStatus>,
    /// What deaths, joins and restarts have led to.
    #[serde(default)]
    pub recovery: RecoveryStatus,
    /// Chunks without the copies that they are to have, and those that are being copied.
    pub uncopied_chunks: u64,
    /// Who has registered, by role and rank.
    pub members: Vec<MemberStatus>,
    /// Who has not.
    pub missing: Vec<MemberId>,
    /// Barriers with someone waiting.
    pub barriers: Vec<BarrierStatus>,
    /// What there is of checkpoints.
    #[serde(default)]
    pub checkpoints: CheckpointStatus,
    /// Why the job ends, once it does.
    pub ending: Option<String>,
    /// The member whose failure ended it: other members failed because of that.
    #[serde(default)]
    pub ended_by: Option<MemberId>,
    /// It is only known to be silent, and its process may still run.
    #[serde(default)]
    pub is_silent: bool,
}

impl ClusterStatus {
    /// The job in one line, for the service manager.
    #[must_use]
    pub fn line(&self) -> String {
        let there = |role| {
            let is_there = |member: &&MemberStatus| member.role == role && !member.left;
            self.members.iter().filter(is_there).count()
        };
        let counts = format!(
            "{} of {} servers, {} of {} workers",
            there(Role::Server),
            self.servers,
            there(Role::Worker),
            self.workers
        );
        let round = self.members.iter().map(|member| member.round).max().unwrap_or(0);
        match self.phase {
            JobPhase::Assembling => format!("waiting for members: {counts}"),
            JobPhase::Rebuilding => {
                format!("recovering: waiting for members of the previous scheduler: {counts}")
            }
            JobPhase::Running if self.uncopied_chunks > 0 => {
                let uncopied = self.uncopied_chunks;
                format!(
                    "running: {counts}, round {round}, epoch {}, {uncopied} chunks without a replica",
                    self.epoch
                )
            }
            JobPhase::Running => format!("running: {counts}, round {round}, epoch {}", self.epoch),
            JobPhase::Ending | JobPhase::Ended => {
                format!("the job is ending: {}", self.ending.as_deref().unwrap_or("no reason was given"))
            }
        }
    }
}

/// What there is of checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointStatus {
    /// The newest complete one.
    pub newest: Option<String>,
    /// The round of the one that is being written.
    pub writing: Option<u64>,
    /// Milliseconds for which nothing has come of it.
    #[serde(default)]
    pub stalled_ms: u64,
    /// Parts of it that are there.
    pub parts: u64,
    /// Parts that it is to have.
    pub parts_expected: u64,
    /// Servers and lanes whose parts are not there.
    #[serde(default)]
    pub missing: Vec<(Rank, u16)>,
    /// Complete since this scheduler started.
    pub completed: u64,
    /// Given up since then, or not begun for what is left of those.
    pub failed: u64,
    /// Not begun since then at a round of `checkpoint.every_rounds`, because another one was being written.
    #[serde(default)]
    pub skipped: u64,
    /// Why the last of those that failed did.
    pub failure: Option<String>,
    /// Why no other is begun: what is left of those that failed cannot be removed.
    #[serde(default)]
    pub stopped: Option<String>,
}

/// What deaths, joins and restarts have led to, and what is still to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecoveryStatus {
    /// Rosters told.
    pub rosters: u64,
    /// Members that died and that the job went on without, or waits for.
    pub lost: u64,
    /// Members that came while the job ran.
    pub joined: u64,
    /// How often the cluster was rebuilt from what members knew.
    pub rebuilt: u64,
    /// Ranges that a copy took over.
    pub promotions: u64,
    /// Milliseconds from the last sign of life of the server that died last to the decision who takes over.
    pub promotion_ms: u64,
    /// Copies that were made.
    pub copies_made: u64,
    /// Ranges that another server serves since, while both lived.
    pub moves_made: u64,
    /// Bytes that were copied for them.
    pub moved_bytes: u64,
    /// Bytes that have a copy that is kept up.
    pub copied_bytes: u64,
    /// Bytes that are being copied.
    pub seeding_bytes: u64,
    /// Workers that died and are waited for.
    pub awaited: Vec<Rank>,
    /// Servers that wish to go.
    pub draining: Vec<Rank>,
    /// Processes that were declared failed, the newest last. Older ones are left out.
    pub failed: Vec<FailedStatus>,
}

/// A process that was declared failed. It may still run: one that is stopped is silent, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedStatus {
    /// What it was.
    pub member: MemberId,
    /// Operating system process id; 0 of one that had not come to this scheduler.
    pub pid: u32,
    /// Boot id and network namespace of its host, which tell it from other hosts; none of one that had not come to this scheduler.
    pub host_identity: Option<String>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its role.
    pub role: Role,
    /// Its rank.
    pub rank: Rank,
    /// Operating system process id.
    pub pid: u32,
    /// Build it runs.
    pub build: String,
    /// Where workers reach it (servers).
    pub data_address: Option<String>,
    /// Its HTTP endpoints.
    pub http_address: Option<String>,
    /// What its host calls itself; none of one that has not come to this scheduler.
    #[serde(default)]
    pub host: Option<String>,
    /// Milliseconds since it last said anything.
    pub silent_ms: u64,
    /// It said goodbye.
    pub left: bool,
    /// Its links to all servers are up (workers).
    pub links_ready: bool,
    /// Highest round finished.
    pub round: u64,
    /// Operations in flight.
    pub in_flight: u64,
    /// Its oldest operation in flight, or a lane that does not answer.
    pub oldest: Option<Wait>,
    /// What else waits: the oldest operations of further workers (servers), and further lanes.
    #[serde(default)]
    pub others: Vec<Wait>,
    /// Its links (workers).
    pub links: Vec<LinkStatus>,
    /// Rounds per second over its last heartbeats.
    #[serde(default)]
    pub rounds_per_second: f64,
    /// Resident memory of its process; 0 before its first heartbeat.
    #[serde(default)]
    pub resident_bytes: u64,
    /// In how many of a hundred looks at servers their oldest operation waited for it (workers).
    #[serde(default)]
    pub waited_for_percent: u32,
    /// What it has, and what it has room for (servers).
    #[serde(default)]
    pub load: Option<LoadStatus>,
    /// What its trainer reports (workers).
    #[serde(default)]
    pub metrics: Vec<MetricStatus>,
    /// What went wrong lately at the port of its RDMA device.
    #[serde(default)]
    pub port: Option<PortReport>,
}

/// What a server has, and what it has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadStatus {
    /// Bytes of weights, accumulators and optimizer state.
    pub stored_bytes: u64,
    /// Inbox slots granted to nobody.
    pub credits_free: u64,
    /// Inbox slots.
    pub credits: u64,
    /// Spill blocks in use.
    pub spill_blocks_used: u64,
    /// Spill blocks.
    pub spill_blocks: u64,
    /// Bytes that a worker whose channel has ended may still be writing; they are used for nothing else.
    #[serde(default)]
    pub quarantined_bytes: u64,
    /// The first such worker.
    #[serde(default)]
    pub quarantined_for: Option<Rank>,
}

/// A number that a trainer reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricStatus {
    /// The trainer's name for it.
    pub name: String,
    /// Its newest value, finite.
    pub value: f64,
}

/// A worker that holds others up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StragglerStatus {
    /// Its rank.
    pub worker: Rank,
    /// Rounds that it is behind the first one; 0 where it only makes the others wait in each round.
    pub behind: u64,
    /// As in [`MemberStatus`].
    pub waited_for_percent: u32,
}

/// A worker's link to one server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The server.
    pub server: Rank,
    /// The driver in use.
    pub driver: Driver,
    /// Why this driver.
    pub why: String,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Payload bytes received.
    pub received_bytes: u64,
    /// Bytes per second of both directions between the last two heartbeats.
    pub bytes_per_second: u64,
}

/// A barrier with someone waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarrierStatus {
    /// Its name.
    pub name: String,
    /// Who is there.
    pub arrived: Vec<MemberId>,
    /// Who is not.
    pub missing: Vec<MemberId>,
    /// Milliseconds since the first arrived.
    pub waited_ms: u64,
}
