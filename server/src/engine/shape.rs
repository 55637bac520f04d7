//! Does an operation have the shape that its chunk needs? It must not know what state a chunk is in.

use super::spec::ChunkSpec;
use proto_common::batch::{Block, BlockData, OpKind, Status};
use proto_common::ids::Rank;

/// `in_place`: worker and server read each other's memory in place.
pub(super) fn check_shape(spec: &ChunkSpec, block: &Block, peer: Rank, in_place: bool) -> Result<(), Status> {
    let payload = match block.op {
        OpKind::Pull | OpKind::Release => 0,
        OpKind::Init if block.bytes == 0 => 0,
        OpKind::Init => spec.bytes,
        // Only where contributions to a round are added, and all have the same length.
        OpKind::Push if block.data == BlockData::Merged && spec.merges() => 0,
        OpKind::Push | OpKind::PushPull => spec.payload_bytes(spec.bytes),
        OpKind::Call | OpKind::CopyCheck | OpKind::CopyUpdate | OpKind::CopyState | OpKind::CopyRules => {
            return Err(Status::Refused);
        }
    };
    let payload = if spec.dynamic { dynamic_payload(spec, block)? } else { payload };
    let landing = block.landing.map(|landing| landing.bytes);
    let wanted = (block.op.lands() && !block.view).then_some(spec.bytes);
    if block.dtype != spec.dtype || block.bytes != payload || landing != wanted {
        return Err(Status::WrongShape);
    }
    if block.view && (!block.op.lands() || !in_place || spec.dynamic) {
        return Err(Status::Refused);
    }
    // Worker 0 always sends its initial value.
    if block.op == OpKind::Init && peer == Rank(0) && block.bytes == 0 {
        return Err(Status::Refused);
    }
    // Elsewhere a version is no round that all have together.
    if block.exact && (block.op != OpKind::Pull || block.view || !spec.mode.has_rounds()) {
        return Err(Status::Refused);
    }
    // What has no payload has it nowhere.
    let is_merged = block.data == BlockData::Merged;
    if is_merged && !block.op.contributes() {
        return Err(Status::Refused);
    }
    if payload == 0 && !is_merged && !matches!(block.data, BlockData::Inline { .. }) {
        return Err(Status::Refused);
    }
    let codec = if block.op.contributes() { spec.codec.wire_id() } else { 0 };
    // Encoded bytes are checked before anything is decided, and so where they lie already.
    let elsewhere = codec != 0 && !matches!(block.data, BlockData::Inline { .. });
    if block.codec != codec || elsewhere || block.operation.0 == 0 {
        return Err(Status::Refused);
    }
    match block.status {
        Status::None => Ok(()),
        Status::Malformed => Err(Status::Malformed),
        _ => Err(Status::Refused),
    }
}

/// Bytes of an operation on a dynamic chunk: a contribution has as many as it says. It has no initial value, and
/// nobody contributes and lands at once, because the two may differ in length.
fn dynamic_payload(spec: &ChunkSpec, block: &Block) -> Result<u64, Status> {
    match block.op {
        OpKind::Push
            if block.bytes > spec.bytes || !block.bytes.is_multiple_of(spec.dtype.bytes() as u64) =>
        {
            Err(Status::WrongShape)
        }
        OpKind::Push => Ok(block.bytes),
        OpKind::Pull | OpKind::Release => Ok(0),
        _ => Err(Status::Refused),
    }
}
