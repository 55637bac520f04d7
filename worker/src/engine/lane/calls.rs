//! Calls on their way: how many of a line may be under way, and what their answers mean.

use super::LaneEngine;
use crate::engine::command::{Command, Commands};
use crate::engine::part::{Coded, Part};
use crate::error::{CallFault, OpError};
use crate::subject::Subject;
use proto_common::batch::{Block, BlockData, Status};
use proto_common::call::called;
use proto_common::ids::Rank;

impl LaneEngine {
    /// A call is answered, or its reply needs room.
    pub(super) fn call_answered(
        &mut self,
        server: Rank,
        (index, part): (u32, Part),
        block: &Block,
        out: &mut Commands,
    ) {
        let Some(op) = self.ops.get(part.op) else { return };
        let (id, mut spec) = (op.submit.op, part.spec);
        if !op.is_call() {
            return out.close(server, "it answered an operation that is not a call as a call");
        }
        let bytes = block.count.body_bytes();
        match (block.status, block.data, block.landing.map(|landing| landing.bytes)) {
            (Status::ReplyRoom, _, None) if bytes > spec.bytes => {
                // Its caller was told already that it failed: then nobody wants the reply.
                let is_over = op.has_failed();
                if !is_over {
                    out.list.push(Command::Room { op: id, bytes });
                }
                // The server has the request.
                (spec.bytes, spec.coded) = (bytes, Some(Coded { codec: 0, offset: 0, bytes: 0 }));
                if let Some(part) = self.parts.get_mut(index) {
                    part.spec = spec;
                    if is_over {
                        part.give_up();
                    }
                }
                self.requeue(index, part);
                self.enqueue(spec.id);
            }
            (Status::Done, BlockData::Inline { offset }, landed)
                if landed.is_none_or(|landed| landed <= spec.bytes) =>
            {
                out.list.push(Command::Replied { op: id, offset, bytes: block.bytes, landed });
                self.end_part(index, spec, 0, None, out);
            }
            (Status::Done | Status::ReplyRoom | Status::Granted, ..) => {
                out.close(server, "it answered a call with an invalid result");
            }
            (status, ..) => {
                let failure =
                    OpError::Refused { subject: Subject::default(), chunk: spec.id, server, status };
                self.end_part(index, spec, 0, Some(failure), out);
            }
        }
    }

    /// There is no room of so many bytes for a call's reply: it has failed, and its server is told to let go of that.
    pub fn give_up(&mut self, op: u64, bytes: u64, out: &mut Commands) {
        let part =
            self.parts.iter().find(|(_, part)| self.ops.get(part.op).is_some_and(|of| of.submit.op == op));
        let Some((index, part)) = part.map(|(index, part)| (index, *part)) else { return };
        if let Some(part) = self.parts.get_mut(index) {
            part.give_up();
        }
        let Some(op) = self.ops.get_mut(part.op) else { return };
        let (app, server) = called(part.spec.id).unwrap_or((0, part.spec.server));
        let waited_ms = op.waited_ms(self.now_ms);
        let error = OpError::Call { app, server, waited_ms, fault: CallFault::NoRoom { bytes } };
        op.fail(error, &mut self.stats, out);
    }
}
