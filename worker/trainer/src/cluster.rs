//! The one place where the trainer meets the client library: an [`Exchange`] over a cluster.
//!
//! Must not know anything of the network being trained.

use crate::error::TrainError;
use crate::exchange::{Exchange, How, NamedTensor, Traffic};
use anyhow::{Context, ensure};
use daemon::flight::Flight;
use daemon::notify::Notify;
use gradwire_worker::{Client, Handle, Tensor, TensorBuffer};
use proto_common::config::Settings;
use proto_common::message::NodeGroup;
use proto_common::tensor::TensorSpec;

/// Joins the cluster that the settings name. With `poisons` the trainer computes in memory of its own: see `Own`.
pub fn connect(
    (settings, notify, flight): (Settings, Notify, Flight),
    poisons: bool,
) -> Result<Box<dyn Exchange>, TrainError> {
    let client = Client::connect_told(settings, notify, flight);
    let client = client.map_err(|error| TrainError::Exchange(error.into()))?;
    let traffic = Traffic::default();
    Ok(Box::new(Cluster { client, poisons, tensors: Vec::new(), rounds: 0, traffic, finished: false }))
}

/// One tensor with its two buffers, which are away while an operation owns them.
struct Place {
    tensor: Tensor,
    buffers: Option<(TensorBuffer, TensorBuffer)>,
    /// Where they are poisoned.
    own: Option<Own>,
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

    /// The buffers, for an operation.
    fn give(&mut self) -> anyhow::Result<(TensorBuffer, TensorBuffer)> {
        let (mut gradient, weights) =
            self.buffers.take().context("a round of this tensor is under way already")?;
        if let Some(own) = &self.own {
            own.give(gradient.as_f32_mut(), weights.as_f32())?;
        }
        Ok((gradient, weights))
    }

    /// An operation has returned the buffers.
    fn take(&mut self, poisons: bool, mut buffers: Option<(TensorBuffer, TensorBuffer)>) {
        let back = buffers.as_mut().filter(|_| poisons);
        self.own = back.map(|(gradient, weights)| Own::take(gradient.as_f32_mut(), weights.as_f32_mut()));
        self.buffers = buffers;
    }

    /// Gets the weights in force.
    fn pull(&mut self, client: &Client, poisons: bool) -> anyhow::Result<()> {
        let (gradient, weights) = self.give()?;
        let ended = client.pull(&self.tensor, weights)?.wait()?;
        self.version = ended.version.0;
        self.take(poisons, ended.target.map(|weights| (gradient, weights)));
        Ok(())
    }
}

struct Cluster {
    client: Client,
    poisons: bool,
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
            let buffers = Some((gradient, weights));
            let mut place = Place { tensor, buffers, own: None, handle: None, version: done };
            place.pull(&self.client, self.poisons)?;
            self.tensors.push(place);
        }
        Ok(done)
    }

    fn weights(&self, i: usize) -> &[f32] {
        let place = self.tensors.get(i);
        match place.map(|place| (&place.own, &place.buffers)) {
            Some((Some(own), _)) => &own.weights,
            Some((None, Some((_, weights)))) => weights.as_f32(),
            _ => &[],
        }
    }

    fn gradient_mut(&mut self, i: usize) -> &mut [f32] {
        let place = self.tensors.get_mut(i);
        match place.map(|place| (&mut place.own, &mut place.buffers)) {
            Some((Some(own), _)) => &mut own.gradient,
            Some((None, Some((gradient, _)))) => gradient.as_f32_mut(),
            _ => &mut [],
        }
    }

    fn start(&mut self, i: usize) -> anyhow::Result<()> {
        let (client, rounds) = (self.client.clone(), self.rounds);
        let place = self.place(i)?;
        if place.is_over(rounds) {
            return Ok(());
        }
        let (gradient, weights) = place.give()?;
        // First layers are needed first in the next forward pass.
        let priority = -i32::try_from(i).unwrap_or(i32::MAX);
        place.handle = Some(client.push_pull(&place.tensor, gradient, weights, priority)?);
        let (plain_bytes, sent_bytes) = (place.tensor.bytes(), place.tensor.sent_bytes());
        self.traffic.add(plain_bytes, sent_bytes);
        Ok(())
    }

    fn finish(&mut self, i: usize) -> anyhow::Result<()> {
        let poisons = self.poisons;
        let place = self.place(i)?;
        let Some(handle) = place.handle.take() else { return Ok(()) };
        let ended = handle.wait()?;
        place.version = ended.version.0;
        place.take(poisons, ended.source.zip(ended.target));
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
            self.tensors.iter_mut().try_for_each(|place| place.pull(&self.client, self.poisons))?;
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

/// A NaN that no computation yields. If a server still reads it as a gradient, the weights of all workers are NaN.
const POISON: u32 = 0x7FA5_5A5A;

/// What a trainer computes in while its buffers are poisoned, for tests of failures (`--poison`): every buffer that an operation has
/// returned holds a pattern until the next operation, and the pattern must be intact then.
///
/// Scenario: a server is stopped in the middle of a copy into a buffer, another server takes over, and the operation returns the
/// buffer. If the first server continues, it writes into memory that the trainer computes in. The trainer would not notice.
#[derive(Debug)]
struct Own {
    /// Of the next operation.
    gradient: Vec<f32>,
    /// Of the last one.
    weights: Vec<f32>,
}

impl Own {
    /// An operation has returned these buffers.
    fn take(gradient: &mut [f32], weights: &mut [f32]) -> Self {
        let own = Self { gradient: gradient.to_vec(), weights: weights.to_vec() };
        for buffer in [gradient, weights] {
            buffer.fill(f32::from_bits(POISON));
        }
        own
    }

    /// An operation is to have these buffers.
    fn give(&self, gradient: &mut [f32], weights: &[f32]) -> anyhow::Result<()> {
        for (name, buffer) in [("gradient", &*gradient), ("weights", weights)] {
            let at = buffer.iter().position(|number| number.to_bits() != POISON);
            ensure!(
                at.is_none(),
                "somebody wrote into the buffer of the {name}, element {}, after its operation had returned it",
                at.unwrap_or_default()
            );
        }
        gradient.copy_from_slice(&self.gradient);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_written_between_two_operations_is_named() {
        for spoiled in [None, Some(0), Some(1)] {
            let mut buffers = [vec![1.0; 4], vec![2.0; 4]];
            let [gradient, weights] = &mut buffers;
            let mut own = Own::take(gradient, weights);
            assert_eq!((&own.gradient[..], &own.weights[..]), (&[1.0; 4][..], &[2.0; 4][..]));
            own.gradient.fill(3.0);
            spoiled.into_iter().for_each(|which: usize| buffers[which][2] = f32::NAN);
            let [gradient, weights] = &mut buffers;
            let given = own.give(gradient, weights).map_err(|error| error.to_string());
            match spoiled {
                None => assert_eq!((given, &gradient[..]), (Ok(()), &[3.0; 4][..])),
                Some(which) => {
                    let name = ["gradient", "weights"][which];
                    let text = given.unwrap_err();
                    assert!(text.contains(&format!("of the {name}, element 2")), "{text}");
                }
            }
        }
    }
}
