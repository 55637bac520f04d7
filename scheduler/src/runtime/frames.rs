//! Messages as frames. Answers to equal declarations are encoded once, and their receivers share the bytes: an answer may have
//! 16 MiB, and a thousand workers may wait for it. It must not know connections.

use daemon::control::{LENGTH_BYTES, frame_of};
use proto_common::message::{CodecError, FromScheduler};
use proto_common::shard_map::SharedUpdate;
use std::sync::Arc;

/// A frame; clones share its bytes.
#[derive(Clone, Debug)]
pub(super) struct Encoded {
    /// What is of this receiver only.
    head: Arc<[u8]>,
    rest: Arc<[u8]>,
}

impl Encoded {
    pub(super) fn len(&self) -> usize {
        self.head.len() + self.rest.len()
    }

    /// Its bytes, in order.
    pub(super) fn parts(&self) -> [&[u8]; 2] {
        [&self.head, &self.rest]
    }
}

impl From<Vec<u8>> for Encoded {
    fn from(frame: Vec<u8>) -> Self {
        Self { head: Arc::default(), rest: frame.into() }
    }
}

/// The encoder, with the last answer to a declaration.
#[derive(Debug, Default)]
pub(super) struct Frames {
    last: Option<(SharedUpdate, Encoded)>,
}

impl Frames {
    pub(super) fn encode(&mut self, message: &FromScheduler) -> Result<Encoded, CodecError> {
        let FromScheduler::Declared { request, result: Ok(update) } = message else {
            return Ok(frame_of(message)?.into());
        };
        if let Some((_, frame)) = self.last.as_ref().filter(|(of, _)| of.is_same(update)) {
            let head = [&frame.head[..LENGTH_BYTES], &FromScheduler::declared_head(*request)?[..]].concat();
            return Ok(Encoded { head: head.into(), rest: Arc::clone(&frame.rest) });
        }
        let whole = frame_of(message)?;
        let (head, rest) = whole.split_at(LENGTH_BYTES + FromScheduler::DECLARED_HEAD_BYTES);
        let frame = Encoded { head: head.into(), rest: rest.into() };
        self.last = Some((update.clone(), frame.clone()));
        Ok(frame)
    }

    /// Whoever declares the same later costs another encoding; the bytes are not kept for it.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto_common::optimizer::Optimizer;
    use proto_common::shard_map::MapUpdate;
    use proto_common::tensor::TensorSpec;

    #[test]
    fn answers_to_equal_declarations_share_their_bytes() {
        let tensors = (0..100).map(|key| TensorSpec::f32(key, 1024, Optimizer::sum())).collect();
        let update = SharedUpdate::from(MapUpdate { tensors, ..MapUpdate::default() });
        let answer = |request| FromScheduler::Declared { request, result: Ok(update.clone()) };
        let mut frames = Frames::default();
        let first = frames.encode(&answer(1)).unwrap();
        let other = frames.encode(&answer(u64::MAX)).unwrap();
        assert!(Arc::ptr_eq(&first.rest, &other.rest), "one copy of what both are told");
        for (request, frame) in [(1, &first), (u64::MAX, &other)] {
            assert_eq!(frame.parts().concat(), frame_of(&answer(request)).unwrap());
            assert_eq!(frame.len(), frame.parts().concat().len());
        }
        frames.forget();
        assert!(!Arc::ptr_eq(&frames.encode(&answer(1)).unwrap().rest, &first.rest), "kept by nobody");
        let small = frames.encode(&FromScheduler::HeartbeatAck).unwrap();
        assert_eq!(small.parts().concat(), frame_of(&FromScheduler::HeartbeatAck).unwrap());
    }
}
