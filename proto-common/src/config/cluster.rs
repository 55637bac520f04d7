//! The settings of a cluster's shape, and what its members' deaths mean.

use super::{SettingError, within, wrong};
use crate::limits::{
    CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, LANES_MAX, SERVERS_MAX, WORKERS_MAX,
};
use crate::mode::{Mode, backup_fault};
use serde::{Deserialize, Serialize};

/// The cluster's shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct ClusterSettings {
    /// How many workers the job has.
    pub workers: u32,
    /// How many servers the job has.
    pub servers: u32,
    /// Bytes moved and reduced at once.
    pub chunk_bytes: u64,
    /// Data threads per server; chunks are spread over them.
    pub lanes: u16,
    /// Reduce in rank order, so that two runs give the same bits. Counts in mode `sync`: in others contributions are applied
    /// as they come.
    pub deterministic: bool,
    /// The mode of tensors that do not say theirs: `sync`, `bounded:N` or `async`.
    #[serde(with = "crate::mode::by_name")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub mode: Mode,
    /// Rounds of sync tensors that do not say otherwise end without so many of the workers; what comes later to a round is
    /// dropped.
    pub backup_workers: u32,
    /// Copies of every shard on servers other than its own: 0, or 1. With 1 a server's death costs nothing: its shards go on
    /// from their copies (`docs/recovery.md`).
    pub replicas: u32,
    /// Places for servers, those in `servers` included: as many may be there at once. A server that comes while training goes on
    /// takes over shards of others. 0: as many as `servers`.
    pub servers_max: u32,
    /// Shards move between servers that are there so that each has as many bytes: when one has come, or gone.
    pub rebalance: bool,
    /// What a worker's death means for the others.
    pub worker_loss: WorkerLoss,
    /// With fewer workers than this the job ends, whatever `worker_loss` says; those that are waited for count as there.
    pub workers_min: u32,
}

/// What a worker's death means for the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum WorkerLoss {
    /// The job ends, and everybody is told who died and why.
    #[default]
    Stop,
    /// Rounds wait for it to come again, for `deadlines.rejoin_ms`; then the job ends.
    Wait,
    /// Rounds go on without it. It may come again, and counts from a round on that the scheduler names.
    Continue,
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
    /// Places for servers, those that the job starts with included.
    #[must_use]
    pub fn server_places(&self) -> u32 {
        if self.servers_max == 0 { self.servers } else { self.servers_max }
    }

    /// Bounds of each, for everybody.
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

    /// How they have to fit each other, for the scheduler: members may know some of them only.
    pub(super) fn validate_shape(&self) -> Result<(), SettingError> {
        if self.replicas > 0 && self.servers < 2 {
            let fix = "a copy lies on another server: use it with cluster.servers of 2 and more";
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
            return wrong("cluster.backup_workers", backup, "use it with cluster.mode = \"sync\" only");
        }
        match backup_fault(backup, self.workers, self.deterministic) {
            Some(fault) => wrong("cluster.backup_workers", backup, fault),
            None => Ok(()),
        }
    }
}
