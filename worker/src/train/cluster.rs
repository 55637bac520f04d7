//! The one place where the trainer meets the client library: an [`Exchange`] over a cluster.
//!
//! Must not know anything of the network being trained.

use super::error::TrainError;
use super::exchange::{Exchange, NamedTensor, Traffic};
use crate::client::{Client, Handle, Tensor, TensorBuffer};
use anyhow::Context;
use proto_common::codec::Compression;
use proto_common::config::Settings;
use proto_common::optimizer::Optimizer;
use proto_common::tensor::TensorSpec;

/// Joins the cluster that the settings name.
pub fn connect(settings: Settings) -> Result<Box<dyn Exchange>, TrainError> {
    let client = Client::connect(settings).map_err(|error| TrainError::Exchange(error.into()))?;
    Ok(Box::new(Cluster { client, tensors: Vec::new(), traffic: Traffic::default(), finished: false }))
}

/// One tensor with its two buffers, which are away while an operation owns them.
struct Place {
    tensor: Tensor,
    buffers: Option<(TensorBuffer, TensorBuffer)>,
    handle: Option<Handle>,
}

struct Cluster {
    client: Client,
    tensors: Vec<Place>,
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

    fn init(
        &mut self,
        tensors: &[NamedTensor],
        optimizer: &Optimizer,
        compression: Compression,
    ) -> anyhow::Result<()> {
        let spec = |(key, tensor): (usize, &NamedTensor)| TensorSpec {
            name: tensor.name.clone(),
            compression,
            ..TensorSpec::f32(key as u64, tensor.values.len() as u64, *optimizer)
        };
        let specs: Vec<TensorSpec> = tensors.iter().enumerate().map(spec).collect();
        for (tensor, initial) in self.client.declare(&specs)?.into_iter().zip(tensors) {
            self.client.init(&tensor, &initial.values)?;
            let gradient = self.client.allocate(tensor.bytes())?;
            let weights = self.client.allocate(tensor.bytes())?;
            let weights =
                self.client.pull(&tensor, weights)?.wait()?.target.context("pull returned no buffer")?;
            self.tensors.push(Place { tensor, buffers: Some((gradient, weights)), handle: None });
        }
        Ok(())
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
        let client = self.client.clone();
        let place = self.place(i)?;
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
        place.buffers = ended.source.zip(ended.target);
        Ok(())
    }

    fn finish_training(&mut self) -> anyhow::Result<()> {
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
