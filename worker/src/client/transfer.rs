//! Moving tensors: push, pull, push_pull, init. Zero-copy with registered buffers; plain slices are copied
//! once into registered memory.

use super::buffer::copy_in;
use super::{Client, Ended, Handle, Tensor, TensorBuffer};
use crate::engine::PartSpec;
use crate::error::ClientError;
use crate::runtime::{OpBuffers, OpState, Submission};
use proto_common::batch::OpKind;
use proto_common::element::Dtype;
use proto_common::ids::{Rank, Version};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Client {
    /// Contributes a gradient to the tensor's next round. Ends when the round is published. A dynamic tensor takes a
    /// buffer of any number of elements up to its most; all contributions to a round agree on it.
    pub fn push(&self, tensor: &Tensor, gradient: TensorBuffer) -> Result<Handle, ClientError> {
        self.start(tensor, OpKind::Push, Some(gradient), None, 0)
    }

    /// Lands the weights of the last round this worker contributed to, or later, in `weights`. Of a dynamic tensor
    /// [`Ended::landed_bytes`] says how long they are; `weights` has room for the most. Wait for it before the next push:
    /// after a channel broke, parts of it could otherwise be those of the next round.
    pub fn pull(&self, tensor: &Tensor, weights: TensorBuffer) -> Result<Handle, ClientError> {
        self.start(tensor, OpKind::Pull, None, Some(weights), 0)
    }

    /// Contributes a gradient and lands the weights of that round. Higher `priority` goes first; operations
    /// of one tensor are never reordered.
    pub fn push_pull(
        &self,
        tensor: &Tensor,
        gradient: TensorBuffer,
        weights: TensorBuffer,
        priority: i32,
    ) -> Result<Handle, ClientError> {
        self.start(tensor, OpKind::PushPull, Some(gradient), Some(weights), priority)
    }

    /// Sets the tensor's initial value: rank 0's counts, and every rank's call ends when it is set. Only
    /// before the first round. Ranks other than 0 send nothing.
    pub fn init(&self, tensor: &Tensor, values: &[f32]) -> Result<(), ClientError> {
        let source = if self.0.rank == Rank(0) { Some(self.copied(tensor, values)?) } else { None };
        self.start(tensor, OpKind::Init, source, None, 0)?.wait().map(drop)
    }

    /// As [`Client::push`] with plain memory, and waits.
    pub fn push_slice(&self, tensor: &Tensor, gradient: &[f32]) -> Result<Version, ClientError> {
        let gradient = self.copied(tensor, gradient)?;
        Ok(self.push(tensor, gradient)?.wait()?.version)
    }

    /// As [`Client::pull`] with plain memory, and waits.
    pub fn pull_slice(&self, tensor: &Tensor, weights: &mut [f32]) -> Result<Version, ClientError> {
        check_slice(tensor, weights.len())?;
        let ended = self.pull(tensor, self.allocate(tensor.bytes())?)?.wait()?;
        Ok(copy_out(ended, weights))
    }

    /// As [`Client::push_pull`] with plain memory, and waits.
    pub fn push_pull_slice(
        &self,
        tensor: &Tensor,
        gradient: &[f32],
        weights: &mut [f32],
    ) -> Result<Version, ClientError> {
        check_slice(tensor, weights.len())?;
        let gradient = self.copied(tensor, gradient)?;
        let ended = self.push_pull(tensor, gradient, self.allocate(tensor.bytes())?, 0)?.wait()?;
        Ok(copy_out(ended, weights))
    }

    fn copied(&self, tensor: &Tensor, values: &[f32]) -> Result<TensorBuffer, ClientError> {
        check_slice(tensor, values.len())?;
        let mut buffer = self.allocate(tensor.bytes())?;
        copy_in(&mut buffer, values);
        Ok(buffer)
    }

    /// Are tensor and buffers this client's, and do they fit?
    fn check<'b>(
        &self,
        tensor: &Tensor,
        kind: OpKind,
        buffers: impl Iterator<Item = &'b TensorBuffer>,
    ) -> Result<(), ClientError> {
        let key = tensor.key();
        if tensor.spec().dynamic && !matches!(kind, OpKind::Push | OpKind::Pull) {
            return Err(ClientError::Dynamic { key });
        }
        if !tensor.is_of(self.0.incarnation) {
            return Err(ClientError::Foreign { key, what: "tensor", source_of: "`declare` or `tensor`" });
        }
        for buffer in buffers {
            let (want, have, dtype) = (tensor.bytes(), buffer.len() as u64, tensor.spec().dtype);
            let shorter = kind == OpKind::Push && tensor.spec().dynamic;
            let fits = shorter && have <= want && have.is_multiple_of(dtype.bytes() as u64);
            if want != have && !fits {
                return Err(ClientError::WrongLength { key, dtype, want, have });
            }
            // Weights land by offset into our own region: another's would be overwritten memory.
            if !buffer.is_of(self.0.pool.region()) {
                return Err(ClientError::Foreign { key, what: "buffer", source_of: "`allocate`" });
            }
        }
        Ok(())
    }

    fn start(
        &self,
        tensor: &Tensor,
        kind: OpKind,
        source: Option<TensorBuffer>,
        target: Option<TensorBuffer>,
        priority: i32,
    ) -> Result<Handle, ClientError> {
        self.check(tensor, kind, source.iter().chain(&target))?;
        if let Some(error) = self.dead() {
            return Err(error.into());
        }
        let buffers = OpBuffers {
            source: source.map(TensorBuffer::into_inner),
            target: target.map(TensorBuffer::into_inner),
        };
        let spans =
            [&buffers.source, &buffers.target].map(|buffer| buffer.as_ref().map(fabric::Buffer::span));
        let lanes = tensor.lanes().iter().filter(|parts| !parts.is_empty()).count() as u32;
        let state = OpState::with_buffers(lanes, buffers);
        let timeout_ms = u32::try_from(self.0.settings.deadlines.operation_ms).unwrap_or(u32::MAX);
        let op = self.0.next_op.fetch_add(1, Ordering::Relaxed);
        let mut numbers = tensor.numbers();
        let (operation, round) = numbers.next(kind);
        let (mut used, mut open) = (0u64, true);
        for (index, (lane, parts)) in self.0.lanes.iter().zip(tensor.lanes()).enumerate() {
            if parts.is_empty() {
                continue;
            }
            used |= 1 << index;
            let [source, target] = spans.clone();
            let submission = Submission {
                state: state.clone(),
                op,
                kind,
                dtype: tensor.spec().dtype,
                placement: tensor.placement(),
                operation,
                round,
                priority,
                timeout_ms,
                parts: match &source {
                    Some(source) if tensor.spec().dynamic => shortened(parts, source.len()),
                    _ => parts.clone(),
                },
                source,
                target,
            };
            open &= lane.submit(submission);
        }
        // The order of a tensor's operations is settled; starting them takes no lock of the tensor's.
        drop(numbers);
        if kind.contributes() {
            self.look_at_round(round);
        }
        for (_, lane) in self.0.lanes.iter().enumerate().filter(|(index, _)| used >> index & 1 == 1) {
            open &= lane.kick();
        }
        if !open {
            return Err(crate::error::OpError::Closed("its data threads have ended".into()).into());
        }
        Ok(Handle::new(
            state,
            self.0.lanes.clone(),
            used,
            (tensor.key(), tensor.spec().dynamic),
            Duration::from_millis(u64::from(timeout_ms)),
        ))
    }
}

/// The chunks of a contribution that has so many bytes; those behind its end are told that they are empty.
fn shortened(parts: &[PartSpec], bytes: u64) -> Arc<[PartSpec]> {
    let part =
        |part: &PartSpec| PartSpec { bytes: bytes.saturating_sub(part.offset).min(part.bytes), ..*part };
    parts.iter().map(part).collect()
}

fn check_slice(tensor: &Tensor, elements: usize) -> Result<(), ClientError> {
    let spec = tensor.spec();
    if spec.dtype != Dtype::F32 {
        return Err(ClientError::WrongDtype { key: spec.key, want: spec.dtype, have: Dtype::F32 });
    }
    let (want, have) = (tensor.bytes(), elements as u64 * 4);
    if want != have {
        return Err(ClientError::WrongLength { key: spec.key, dtype: spec.dtype, want, have });
    }
    Ok(())
}

fn copy_out(ended: Ended, weights: &mut [f32]) -> Version {
    if let Some(target) = &ended.target {
        weights.copy_from_slice(target.as_f32());
    }
    ended.version
}
