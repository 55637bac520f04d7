//! The settings of the cluster's shape, and of its reaction to failures of members.

use super::error::{SettingError, within, wrong};
use crate::limits::{
    CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, LANES_MAX, SERVERS_MAX, WORKERS_MAX,
};
use crate::mode::{Mode, backup_fault};
use serde::{Deserialize, Serialize};

/// The cluster's shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ClusterSettings {
    /// Number of workers.
    pub workers: u32,
    /// Number of servers.
    pub servers: u32,
    /// Size of a chunk in bytes: the unit in which tensors are transferred and reduced. A multiple of 4096.
    pub chunk_bytes: u64,
    /// Lanes (data threads) per server. Chunks are distributed over them.
    pub lanes: u16,
    /// Reduce contributions in rank order, so that two runs give bit-identical results. Applies in mode `sync`; in other modes
    /// contributions are applied in order of arrival.
    pub deterministic: bool,
    /// Default mode of tensors: `sync`, `bounded:N` or `async`.
    #[serde(with = "crate::mode::by_name")]
    #[cfg_attr(test, schemars(with = "String"))]
    pub mode: Mode,
    /// Rounds of sync tensors complete without the contributions of this many workers. Later contributions to such a round are
    /// dropped. A tensor's declaration may override it.
    pub backup_workers: u32,
    /// Replicas of every shard on another server: 0 or 1. With 1, no state is lost when a server fails: its replicas take
    /// over (`docs/recovery.md`).
    pub replicas: u32,
    /// Maximum number of servers at the same time. A server that joins during training takes over shards of others. 0: the
    /// value of `servers`.
    pub servers_max: u32,
    /// Move shards when a server joins or leaves, so that all servers hold about the same number of bytes.
    pub rebalance: bool,
    /// What happens when a worker fails.
    pub worker_loss: WorkerLoss,
    /// The job ends when fewer workers than this remain, whatever `worker_loss` is. Workers that the job waits for are counted.
    pub workers_min: u32,
}

/// What happens when a worker fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum WorkerLoss {
    /// The job ends. All members report which worker failed and why.
    #[default]
    Stop,
    /// Rounds wait until the worker rejoins, for at most `deadlines.rejoin_ms`; then the job ends.
    Wait,
    /// Rounds continue without the worker. It may rejoin, and contributes from a round that the scheduler chooses.
    Continue,
}

/// What a member of which nothing has changed is known for may be so old, and no older.
pub const RARE_HEARTBEAT_MS_MAX: u64 = 2_000;

/// The cluster's shape. It is set only at the scheduler, so that members cannot disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterShape {
    /// The number of workers.
    pub workers: u32,
    /// The number of servers.
    pub servers: u32,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Lanes.
    pub lanes: u16,
    /// Whether to reduce in rank order.
    pub deterministic: bool,
    /// The mode of tensors that set none.
    pub mode: Mode,
    /// Backup workers of tensors that set none.
    pub backup_workers: u32,
    /// Members send a heartbeat this often, and more rarely while they have nothing to tell: see [`ClusterShape::rare_heartbeat_ms`].
    pub heartbeat_ms: u64,
    /// A member that is silent for this long has failed.
    pub silence_ms: u64,
    /// Replicas of every shard on other servers.
    pub replicas: u32,
    /// Places for servers; `servers` of them are used at the start.
    pub server_places: u32,
    /// What the failure of a worker means for the others.
    pub worker_loss: WorkerLoss,
    /// With fewer workers the job ends.
    pub workers_min: u32,
    /// How long members continue without a scheduler.
    pub scheduler_ms: u64,
}

impl ClusterShape {
    /// So often members send a heartbeat whose reports have not changed for a while. With a long silence, too, people are told in time.
    #[must_use]
    pub fn rare_heartbeat_ms(&self) -> u64 {
        self.heartbeat_ms.max((self.silence_ms / 5).min(RARE_HEARTBEAT_MS_MAX))
    }

    /// The first setting, with both values, in which two shapes differ that cannot belong to one job. Members are
    /// built with the shape that they received at their start, and their data depends on it. Deadlines and
    /// `workers_min` belong to the scheduler, so a restarted one may have other values.
    #[must_use]
    pub fn conflict(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let texts = |shape: &Self| {
            let loss = format!("{:?}", shape.worker_loss).to_lowercase();
            [
                ("cluster.workers", shape.workers.to_string()),
                ("cluster.servers", shape.servers.to_string()),
                ("cluster.chunk_bytes", shape.chunk_bytes.to_string()),
                ("cluster.lanes", shape.lanes.to_string()),
                ("cluster.replicas", shape.replicas.to_string()),
                ("cluster.servers_max", shape.server_places.to_string()),
                ("cluster.mode", shape.mode.to_string()),
                ("cluster.deterministic", shape.deterministic.to_string()),
                ("cluster.backup_workers", shape.backup_workers.to_string()),
                ("cluster.worker_loss", loss),
            ]
        };
        let mut pairs = texts(self).into_iter().zip(texts(other));
        pairs.find(|(own, theirs)| own != theirs).map(|((key, own), (_, theirs))| (key, own, theirs))
    }
}

impl Default for ClusterSettings {
    fn default() -> Self {
        Self {
            workers: 1,
            servers: 1,
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            lanes: 1,
            deterministic: true,
            mode: Mode::Sync,
            backup_workers: 0,
            replicas: 0,
            servers_max: 0,
            rebalance: true,
            worker_loss: WorkerLoss::Stop,
            workers_min: 1,
        }
    }
}

impl ClusterSettings {
    /// How many servers there may be, including those that the job starts with.
    #[must_use]
    pub fn server_places(&self) -> u32 {
        if self.servers_max == 0 { self.servers } else { self.servers_max }
    }

    /// Checks the bounds of each setting.
    pub(super) fn validate(&self) -> Result<(), SettingError> {
        within("cluster.workers", self.workers, 1, WORKERS_MAX)?;
        within("cluster.servers", self.servers, 1, SERVERS_MAX)?;
        within("cluster.lanes", self.lanes, 1, LANES_MAX)?;
        within("cluster.chunk_bytes", self.chunk_bytes, CHUNK_BYTES_MIN, CHUNK_BYTES_MAX)?;
        if !self.chunk_bytes.is_multiple_of(4096) {
            return wrong("cluster.chunk_bytes", self.chunk_bytes, "use a multiple of 4096");
        }
        within("cluster.replicas", self.replicas, 0, 1)?;
        within("cluster.workers_min", self.workers_min, 1, WORKERS_MAX)
    }

    /// Checks relations between settings, at the scheduler: members may know only some of them.
    pub(super) fn validate_shape(&self) -> Result<(), SettingError> {
        if self.replicas > 0 && self.servers < 2 {
            let fix = "replicas require at least two servers: raise cluster.servers";
            return wrong("cluster.replicas", self.replicas, fix);
        }
        if self.servers_max != 0 {
            within("cluster.servers_max", self.servers_max, self.servers, SERVERS_MAX)?;
        }
        within("cluster.workers_min", self.workers_min, 1, self.workers)?;
        self.validate_backup()
    }

    fn validate_backup(&self) -> Result<(), SettingError> {
        let backup = self.backup_workers;
        if backup > 0 && !self.mode.has_rounds() {
            return wrong("cluster.backup_workers", backup, "backup workers require cluster.mode = \"sync\"");
        }
        match backup_fault(backup, self.workers, self.deterministic) {
            Some(fault) => wrong("cluster.backup_workers", backup, fault),
            None => Ok(()),
        }
    }
}
