//! Calls on their way: how many of a line may be under way, and what their answers mean.

use super::LaneEngine;
use crate::call_fault::CallFault;
use crate::engine::command::{Command, Commands};
use crate::engine::part::{Coded, Part, PartSpec};
use crate::error::OpError;
use crate::subject::Subject;
use proto_common::batch::{Block, BlockData, Status};
use proto_common::call::called;
use proto_common::ids::Rank;

/// The payload of a call whose request the server has.
const NO_FRAME: Coded = Coded { codec: 0, offset: 0, bytes: 0 };

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
        let (id, spec) = (op.submit.op, part.spec);
        if !op.is_call() {
            return out.close(server, "it answered an operation that is not a call as a call");
        }
        let bytes = block.count.body_bytes();
        match (block.status, block.data, block.landing.map(|landing| landing.bytes)) {
            (Status::ReplyRoom, _, None) if bytes > spec.bytes => {
                // Its caller was told already that it failed: then nobody wants the reply.
                if op.has_failed() {
                    return self.ask_again(index, part, None);
                }
                out.list.push(Command::Room { op: id, bytes });
                if let Some(part) = self.parts.get_mut(index) {
                    // The server has the request.
                    (part.spec.coded, part.is_announced) = (Some(NO_FRAME), true);
                }
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
                let failure = refusal(server, &part, status, op.waited_ms(self.now_ms));
                self.end_part(index, spec, 0, Some(failure), out);
            }
        }
    }

    /// Asks a call's server again for the reply, for which there is now so much room. No room: the server may drop the reply. Until
    /// then the part is under way: if the channel breaks meanwhile, it goes out again, and the server announces its reply again.
    fn ask_again(&mut self, index: u32, part: Part, room: Option<u64>) {
        let spec = PartSpec { bytes: room.unwrap_or(part.spec.bytes), coded: Some(NO_FRAME), ..part.spec };
        if let Some(part) = self.parts.get_mut(index) {
            part.spec = spec;
            if room.is_none() {
                part.give_up();
            }
        }
        self.requeue(index, part);
        self.enqueue(part.chunk);
    }

    /// The part of a call whose reply was announced and has no room yet.
    fn announced(&self, op: u64) -> Option<(u32, Part)> {
        let is_of = |part: &Part| self.ops.get(part.op).is_some_and(|of| of.submit.op == op);
        let part = self.parts.iter().find(|(_, part)| is_of(part)).map(|(index, part)| (index, *part));
        part.filter(|(_, part)| part.is_announced)
    }

    /// Does a call still wait for room for its reply?
    #[must_use]
    pub fn wants_room(&self, op: u64) -> bool {
        let part = self.announced(op);
        part.and_then(|(_, part)| self.ops.get(part.op)).is_some_and(|op| !op.has_failed())
    }

    /// There is room of so many bytes for a call's reply.
    pub fn has_room(&mut self, op: u64, bytes: u64) {
        if let Some((index, part)) = self.announced(op) {
            self.ask_again(index, part, Some(bytes));
        }
    }

    /// There will be no room of so many bytes for a call's reply: the call has failed, and its server may drop the reply.
    pub fn give_up(&mut self, op: u64, bytes: u64, out: &mut Commands) {
        let Some((index, part)) = self.announced(op) else { return };
        self.ask_again(index, part, None);
        let Some(op) = self.ops.get_mut(part.op) else { return };
        let (app, server) = called(part.spec.id).unwrap_or((0, part.spec.server));
        let waited_ms = op.waited_ms(self.now_ms);
        let error = OpError::Call { app, server, waited_ms, fault: CallFault::NoRoom { bytes } };
        op.fail(error, &mut self.stats, out);
    }
}

/// The error of a call that its server does not answer with a reply.
fn refusal(server: Rank, part: &Part, status: Status, waited_ms: u64) -> OpError {
    let fault = match status {
        // An earlier process may have handled the request, and this one knows nothing of it.
        Status::NoReply if part.is_again() => CallFault::ServerDied,
        Status::StateLost => CallFault::StateLost,
        status => {
            return OpError::Refused { subject: Subject::default(), chunk: part.spec.id, server, status };
        }
    };
    let app = called(part.spec.id).map_or(0, |(app, _)| app);
    OpError::Call { app, server, waited_ms, fault }
}
