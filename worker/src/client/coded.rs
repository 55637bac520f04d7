//! Contributions to tensors with a codec: encoded on the caller's thread into registered memory that the tensor uses again
//! and again. An operation owns its encoded bytes until it has ended, so a replay sends the very same.

use super::tensor::{CodedTensor, Numbers};
use super::{Client, Source};
use crate::error::ClientError;
use crate::runtime::OpBuffers;
use fabric::{Exclusive, Span};
use zerocopy::FromBytes;

impl Client {
    /// As `gather`, of a gradient that is to be encoded: room is made.
    pub(super) fn hold(
        &self,
        coded: &CodedTensor,
        source: Option<Source>,
    ) -> Result<(Option<Span>, OpBuffers), ClientError> {
        let mut buffers = OpBuffers::default();
        match source {
            None => return Ok((None, buffers)),
            Some(Source::Pool(buffer)) => buffers.source = Some(buffer.into_inner()),
            Some(Source::User(user)) => buffers.user = Some(user),
            // Others may write it while it is looked at: a copy of our own is encoded.
            Some(Source::Shared(shared)) => {
                let mut copy = self.0.pool.allocate(shared.bytes())?;
                shared.read(&mut copy).map_err(|error| ClientError::Internal(error.to_string()))?;
                buffers.source = Some(copy);
            }
        }
        let allocate = || -> Result<Exclusive, ClientError> {
            let buffer = self.0.pool.allocate(coded.bytes)?;
            self.prepare(&buffer.span())?;
            Ok(buffer)
        };
        let span = buffers.encoded.insert(coded.spares.take(allocate)?).span();
        Ok((span, buffers))
    }
}

fn gradient(buffers: &OpBuffers) -> &[f32] {
    match (&buffers.user, &buffers.source) {
        (Some(user), _) => user,
        // Pool buffers are aligned, and the tensor's length was checked.
        (None, Some(source)) => <[f32]>::ref_from_bytes(source).unwrap_or_default(),
        (None, None) => &[],
    }
}

impl Numbers {
    /// Encodes the contribution to a round that was numbered just now: rounds follow one another, and so does what the
    /// encoder keeps.
    pub(super) fn encode(&mut self, round: u64, buffers: &mut OpBuffers) {
        if let (Some(encoder), Some(mut encoded)) = (&mut self.encoder, buffers.encoded.take()) {
            encoder.encode(gradient(buffers), round, &mut encoded);
            buffers.encoded = Some(encoded);
        }
    }
}
