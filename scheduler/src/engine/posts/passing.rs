//! Messages between members' programs, as they pass the scheduler: who is asked, and what an answer is worth.

use super::super::barriers::Arrival;
use super::super::command::{Command, deadline_ms, send, send_to};
use super::super::member::{ConnectionId, LOCAL, SCHEDULER};
use super::super::{Engine, Phase};
use super::{Pending, answered};
use proto_common::ids::MemberId;
use proto_common::message::{
    FromScheduler, POST_BODY_BYTES_MAX, POSTS_ASKED_MAX, PostError, PostMessage, PostReply, PostTo,
    ToScheduler,
};

impl Engine {
    /// What the scheduler's own program says.
    pub(in super::super) fn local(&mut self, now_ms: u64, message: ToScheduler, out: &mut Vec<Command>) {
        match message {
            ToScheduler::Post { request, to, message, timeout_ms } => {
                self.post(now_ms, (LOCAL, SCHEDULER, request), to, message, timeout_ms, out);
            }
            ToScheduler::PostReply { ticket, result } => self.post_reply(LOCAL, ticket, result, out),
            ToScheduler::Barrier { request, name, group, passed, timeout_ms } => {
                let who = Arrival::new(SCHEDULER, LOCAL, (request, passed), now_ms, timeout_ms);
                self.arrive(who, name, group, out);
            }
            // Only messages and barriers come from there.
            ToScheduler::Register(_)
            | ToScheduler::Heartbeat(_)
            | ToScheduler::LinksReady
            | ToScheduler::Declare { .. }
            | ToScheduler::Assigned { .. }
            | ToScheduler::Goodbye
            | ToScheduler::Heard { .. }
            | ToScheduler::Abandons
            | ToScheduler::Failing { .. }
            | ToScheduler::ChangeRule { .. }
            | ToScheduler::Seeded { .. }
            | ToScheduler::Resuming { .. }
            | ToScheduler::Identify
            | ToScheduler::Drain
            | ToScheduler::Rounds { .. }
            | ToScheduler::Checkpoint(_)
            | ToScheduler::SaveCheckpoint { .. }
            | ToScheduler::OrderCheckpoint { .. } => {}
        }
    }

    /// A message is passed on to all that it is for.
    pub(in super::super) fn post(
        &mut self,
        now_ms: u64,
        (asker, sender, request): (ConnectionId, MemberId, u64),
        to: PostTo,
        message: PostMessage,
        timeout_ms: u64,
        out: &mut Vec<Command>,
    ) {
        let receivers: Vec<MemberId> =
            self.known_places().into_iter().chain([SCHEDULER]).filter(|id| to.holds(*id)).collect();
        let bytes = message.body.len();
        let refusal = match self.phase {
            _ if receivers.is_empty() => Some(PostError::Nobody),
            _ if bytes > POST_BODY_BYTES_MAX => Some(PostError::TooLong { bytes: bytes as u64 }),
            Phase::Assembling | Phase::Rebuilding => {
                Some(PostError::NotNow("the cluster is not complete yet".into()))
            }
            Phase::Ending { .. } | Phase::Ended { .. } => Some(PostError::NotNow("the job is ending".into())),
            Phase::Running if self.posts.load(asker).asked + receivers.len() > POSTS_ASKED_MAX => {
                Some(PostError::Busy)
            }
            Phase::Running => None,
        };
        if let Some(error) = refusal {
            let message = FromScheduler::PostAnswered { request, from: SCHEDULER, of: 1, result: Err(error) };
            out.push(send(asker, message));
            return;
        }
        let of = receivers.len() as u32;
        self.posts.next += 1;
        let (ticket, mut told) = (self.posts.next, Vec::new());
        for to in receivers {
            let there = self.members.get(&to).filter(|member| !member.gone).map(|member| member.connection);
            let owes = if to == SCHEDULER { Some(LOCAL) } else { there };
            let error = match owes {
                None => PostError::Gone { member: to },
                Some(owes) if self.posts.has_room(owes, bytes) => {
                    let deadline_ms = deadline_ms(now_ms, timeout_ms);
                    let pending =
                        Pending { asker, request, of, to, owes, bytes, since_ms: now_ms, deadline_ms };
                    self.posts.add(ticket, pending);
                    told.push(owes);
                    continue;
                }
                Some(_) => PostError::Busy,
            };
            out.push(send(asker, FromScheduler::PostAnswered { request, from: to, of, result: Err(error) }));
        }
        if !told.is_empty() {
            let message = FromScheduler::Posted { ticket, from: sender, message, timeout_ms };
            out.push(send_to(told, message));
        }
    }

    /// A receiver answers. One that answers what it was not asked, or too late, is not heard.
    pub(in super::super) fn post_reply(
        &mut self,
        from: ConnectionId,
        ticket: u64,
        result: Result<PostReply, PostError>,
        out: &mut Vec<Command>,
    ) {
        let result = match result {
            Ok(reply) if reply.body.len() > POST_BODY_BYTES_MAX => {
                Err(PostError::TooLong { bytes: reply.body.len() as u64 })
            }
            Ok(reply) => Ok(reply),
            Err(error @ (PostError::TooLong { .. } | PostError::Busy)) => Err(error),
            // Whatever else it says: its words are not passed on.
            Err(_) => Err(PostError::NoReply),
        };
        out.extend(self.posts.take((ticket, from)).map(|pending| answered(&pending, result)));
    }
}
