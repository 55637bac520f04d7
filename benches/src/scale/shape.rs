//! What is simulated: how many of whom, which tensors, on which hosts. And the same as the real daemons' settings.

use proto_common::config::Settings;
use proto_common::footprint;
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;
use serde::{Deserialize, Serialize};

/// Where processes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Hosts {
    /// Each on a host of its own, with a core for each data thread and a link.
    Own,
    /// All on one host without a link: what is sent is there once its sender is through. All take turns on one core, or
    /// workers on one and servers on another, as real runs are told to.
    Pinned { cores: u32 },
}

/// What all workers do with all tensors, round by round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Work {
    Push,
    Pull,
    PushPull,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    /// Tensors, all of the same size, f32.
    pub(crate) tensors: u32,
    pub(crate) tensor_bytes: u64,
    pub(crate) chunk_bytes: u64,
    pub(crate) work: Work,
    /// Fold in rank order.
    pub(crate) is_deterministic: bool,
    /// Rounds, of which the first is not counted.
    pub(crate) rounds: u64,
    pub(crate) hosts: Hosts,
}

impl Shape {
    /// `push_pull` of one model that is cut into tensors of a chunk, two rounds, each process on its own host.
    pub(crate) fn cluster(workers: u32, servers: u32, model_bytes: u64) -> Self {
        let chunk_bytes = Settings::default().cluster.chunk_bytes;
        Self {
            workers,
            servers,
            tensors: 1,
            tensor_bytes: model_bytes,
            chunk_bytes,
            work: Work::PushPull,
            is_deterministic: true,
            rounds: 2,
            hosts: Hosts::Own,
        }
    }

    /// As the daemons would be told.
    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.cluster.workers = self.workers;
        settings.cluster.servers = self.servers;
        settings.cluster.chunk_bytes = self.chunk_bytes;
        settings.cluster.deterministic = self.is_deterministic;
        settings
    }

    pub(crate) fn tensors(&self) -> Vec<TensorSpec> {
        let optimizer = Optimizer::sgd(0.5, 0.0, 0.0);
        (0..u64::from(self.tensors))
            .map(|key| TensorSpec::f32(key, self.tensor_bytes / 4, optimizer))
            .collect()
    }

    pub(crate) fn spill_blocks(&self) -> u32 {
        footprint::spill_blocks(&self.settings().memory, self.chunk_bytes)
    }
}
