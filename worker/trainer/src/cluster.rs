//! The one place where the trainer meets the client library: an [`Exchange`] over a cluster.
//!
//! Must not know anything of the network being trained.

use crate::error::TrainError;
use crate::exchange::{Exchange, How, NamedTensor, Traffic};
use anyhow::Context;
use daemon::flight::Flight;
use daemon::notify::Notify;
use gradwire_worker::{Client, Handle, Tensor, TensorBuffer};
use proto_common::config::Settings;
use proto_common::message::NodeGroup;
use proto_common::tensor::TensorSpec;

/// Joins the cluster that the settings name.
pub fn connect(
    (settings, notify, flight): (Settings, Notify, Flight),
) -> Result<Box<dyn Exchange>, TrainError> {
    let client = Client::connect_told(settings, notify, flight);
    let client = client.map_err(|error| TrainError::Exchange(error.into()))?;
    let traffic = Traffic::default();
    Ok(Box::new(Cluster { client, tensors: Vec::new(), rounds: 0, traffic, finished: false }))
}

/// One tensor with its two buffers, which are away while an operation owns them.
struct Place {
    tensor: Tensor,
    buffers: Option<(TensorBuffer, TensorBuffer)>,
    handle: Option<Handle>,
    /// Of its weights.
    version: u64,
}

impl Place {
    /// Has it had its last round, without this worker perhaps? Other rounds than those of backup workers end with each
    /// worker's own contribution only.
    fn is_over(&self, rounds: u64) -> bool {
        self.tensor.spec().settled_backup() > 0 && self.version >= rounds
    }

    /// Gets the weights in force.
    fn pull(&mut self, client: &Client) -> anyhow::Result<()> {
        let (gradient, weights) = self.buffers.take().context("a round of this tensor is under way still")?;
        let ended = client.pull(&self.tensor, weights)?.wait()?;
        self.version = ended.version.0;
        self.buffers = ended.target.map(|weights| (gradient, weights));
        Ok(())
    }
}

struct Cluster {
    client: Client,
    tensors: Vec<Place>,
    /// Rounds of the whole training.
    rounds: u64,
    traffic: Traffic,
    finished: bool,
}

impl Cluster {
    fn place(&mut self, i: usize) -> anyhow::Result<&mut Place> {
        self.tensors.get_mut(i).with_context(|| format!("internal error: no tensor {i}"))
    }
}

impl Exchange for Cluster {
    fn rank(&self) -> u32 {
        self.client.rank()
    }

    fn workers(&self) -> u32 {
        self.client.workers()
    }

    fn is_over(&self) -> bool {
        !self.tensors.is_empty() && self.tensors.iter().all(|place| place.is_over(self.rounds))
    }

    fn init(&mut self, tensors: &[NamedTensor], how: &How) -> anyhow::Result<u64> {
        let How { optimizer, compression, mode, backup_workers, rounds } = *how;
        self.rounds = rounds;
        let spec = |(key, tensor): (usize, &NamedTensor)| TensorSpec {
            name: tensor.name.clone(),
            compression,
            mode,
            backup_workers,
            ..TensorSpec::f32(key as u64, tensor.values.len() as u64, optimizer)
        };
        let specs: Vec<TensorSpec> = tensors.iter().enumerate().map(spec).collect();
        let declared = self.client.declare(&specs)?;
        let done = self.client.resume(&declared)?;
        for (tensor, initial) in declared.into_iter().zip(tensors) {
            if done == 0 {
                self.client.init(&tensor, &initial.values)?;
            }
            let gradient = self.client.allocate(tensor.bytes())?;
            let weights = self.client.allocate(tensor.bytes())?;
            let weights =
                self.client.pull(&tensor, weights)?.wait()?.target.context("pull returned no buffer")?;
            let buffers = Some((gradient, weights));
            self.tensors.push(Place { tensor, buffers, handle: None, version: done });
        }
        Ok(done)
    }

    fn weights(&self, i: usize) -> &[f32] {
        let buffers = self.tensors.get(i).and_then(|place| place.buffers.as_ref());
        buffers.map_or(&[], |(_, weights)| weights.as_f32())
    }

    fn gradient_mut(&mut self, i: usize) -> &mut [f32] {
        let buffers = self.tensors.get_mut(i).and_then(|place| place.buffers.as_mut());
        buffers.map_or(&mut [], |(gradient, _)| gradient.as_f32_mut())
    }

    fn start(&mut self, i: usize) -> anyhow::Result<()> {
        let (client, rounds) = (self.client.clone(), self.rounds);
        let place = self.place(i)?;
        if place.is_over(rounds) {
            return Ok(());
        }
        let (gradient, weights) =
            place.buffers.take().context("a round of this tensor is under way already")?;
        // First layers are needed first in the next forward pass.
        let priority = -i32::try_from(i).unwrap_or(i32::MAX);
        place.handle = Some(client.push_pull(&place.tensor, gradient, weights, priority)?);
        let (plain_bytes, sent_bytes) = (place.tensor.bytes(), place.tensor.sent_bytes());
        self.traffic.add(plain_bytes, sent_bytes);
        Ok(())
    }

    fn finish(&mut self, i: usize) -> anyhow::Result<()> {
        let place = self.place(i)?;
        let Some(handle) = place.handle.take() else { return Ok(()) };
        let ended = handle.wait()?;
        place.version = ended.version.0;
        place.buffers = ended.source.zip(ended.target);
        Ok(())
    }

    fn report(&self, name: &str, value: f64) {
        if let Err(error) = self.client.report_metric(name, value) {
            tracing::debug!(%error, "a number is not reported");
        }
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        if self.tensors.iter().any(|place| !place.tensor.spec().settled_mode().has_rounds()) {
            // What this worker got last lacks what others contribute still.
            self.client.barrier_of("trained", NodeGroup::WORKERS)?;
            self.tensors.iter_mut().try_for_each(|place| place.pull(&self.client))?;
        }
        Ok(())
    }

    fn leave(mut self: Box<Self>) -> anyhow::Result<()> {
        self.finished = true;
        self.client.close();
        Ok(())
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn transport(&self) -> String {
        self.client.transport()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.finished {
            // The others would wait for gradients that never come.
            self.client.fail("the trainer ended before training was finished");
        }
    }
}
