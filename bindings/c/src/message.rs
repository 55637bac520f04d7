//! Small messages between programs of a cluster, whatever their roles, and barriers of groups.

use crate::border::{bytes, lock, object, put, shown, text};
use crate::error::{Failure, GradwireCode, free, guard, guard_or, remember};
use daemon::post::{Answering, Post, PostAnswer, Posts};
use proto_common::ids::{MemberId, Rank, Role};
use proto_common::message::{NodeGroup, PostError, PostMessage, PostTo, WaitError};
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::time::Duration;

/// Instead of a rank: all members of the group.
pub const GRADWIRE_EVERYONE: u32 = u32::MAX;

/// The messages of one client, server or scheduler. It may outlive that member; sending then fails. Free it with
/// `gradwire_messages_free`.
#[derive(Debug)]
pub struct GradwireMessages(pub(crate) Posts);

/// A received message. Free it with `gradwire_message_free`; head and body are valid until then. If it is freed
/// without an answer, its sender gets `GRADWIRE_CODE_NO_REPLY`.
#[derive(Debug)]
pub struct GradwireMessage {
    from: MemberId,
    head: i32,
    body: Vec<u8>,
    reply: Mutex<Option<Answering>>,
}

/// Receives a message. The callee must answer and free it, at once or later and on any thread. All handlers and
/// callbacks for messages of one member run on one thread, one after the other: return quickly, and do not wait for a
/// message there.
pub type GradwireOnMessage =
    Option<extern "C" fn(context: *mut c_void, message: Option<Box<GradwireMessage>>)>;

/// Receives one receiver's answer; the body is valid during the call. It is called `of` times for a message, once for
/// each receiver, or once with an error and `of` 1 if the message reached no receiver.
pub type GradwireOnAnswer = Option<extern "C" fn(context: *mut c_void, answer: &GradwireAnswer)>;

/// One receiver's answer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradwireAnswer {
    /// `GRADWIRE_CODE_OK`, or why there is no answer; then `gradwire_last_error` returns the reason during the call.
    pub code: GradwireCode,
    /// The receiver's group: one `GradwireGroup` constant.
    pub from_group: u32,
    /// The receiver's rank in the group.
    pub from_rank: u32,
    /// The number of receivers.
    pub of: u32,
    /// The head of the answer.
    pub head: i32,
    /// The body of the answer.
    pub body: *const c_void,
    /// Bytes of the body.
    pub body_bytes: u64,
}

/// Members of a cluster, as flags to be added: the group of a barrier.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GradwireGroup {
    /// The scheduler.
    Scheduler = 1,
    /// All servers.
    Servers = 2,
    /// All workers.
    Workers = 4,
}

/// The group of one role.
pub(crate) fn number_of(role: Role) -> u32 {
    let group = match role {
        Role::Scheduler => GradwireGroup::Scheduler,
        Role::Server => GradwireGroup::Servers,
        Role::Worker => GradwireGroup::Workers,
    };
    group as u32
}

/// The group for these flags.
pub(crate) fn group_of(number: u32) -> Result<NodeGroup, Failure> {
    let has = |group: GradwireGroup| number & group as u32 != 0;
    if number == 0 || number > 7 {
        return Err(Failure::argument(format!(
            "invalid group {number}; pass a sum of GRADWIRE_GROUP_ constants"
        )));
    }
    Ok(NodeGroup {
        scheduler: has(GradwireGroup::Scheduler),
        servers: has(GradwireGroup::Servers),
        workers: has(GradwireGroup::Workers),
    })
}

/// The receivers for a group and a rank.
fn receivers(group: u32, rank: u32) -> Result<PostTo, Failure> {
    let all = group_of(group)?;
    if rank == GRADWIRE_EVERYONE {
        return Ok(PostTo::Group(all));
    }
    let role =
        [Role::Scheduler, Role::Server, Role::Worker].into_iter().find(|role| number_of(*role) == group);
    let several =
        || Failure::argument("a rank needs exactly one group; pass one group, or GRADWIRE_EVERYONE");
    Ok(PostTo::One(MemberId { role: role.ok_or_else(several)?, rank: Rank(rank) }))
}

impl From<PostError> for Failure {
    fn from(error: PostError) -> Self {
        let code = match &error {
            PostError::Deadline { .. } => GradwireCode::Deadline,
            PostError::NoReply => GradwireCode::NoReply,
            PostError::Gone { .. } | PostError::NotNow(_) => GradwireCode::Closed,
            PostError::Nobody | PostError::TooLong { .. } | PostError::OwnThread => GradwireCode::BadArgument,
            PostError::Busy | PostError::Crowded { .. } => GradwireCode::Refused,
        };
        Self::new(code, error.to_string())
    }
}

impl From<WaitError> for Failure {
    fn from(error: WaitError) -> Self {
        let code = match error {
            WaitError::Deadline { .. } => GradwireCode::Deadline,
            WaitError::Refused { .. } => GradwireCode::Refused,
        };
        Self::new(code, error.to_string())
    }
}

/// Sends `body_bytes` bytes, at most 1 MiB, with a number as head, to the member with this rank in the group, or with
/// `GRADWIRE_EVERYONE` to all members of a group (constants added). The bytes are copied during the call. Receivers
/// have `timeout_ms` milliseconds; all answers have arrived shortly after that. The scheduler can receive messages if
/// a program runs it.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_messages_send(
    messages: Option<&GradwireMessages>,
    group: u32,
    rank: u32,
    app: u32,
    head: i32,
    body: *const c_void,
    body_bytes: u64,
    timeout_ms: u64,
    on_answer: GradwireOnAnswer,
    context: *mut c_void,
) -> GradwireCode {
    guard(|| {
        let posts = &object(messages, "messages")?.0;
        let call = on_answer.ok_or_else(|| Failure::null("on_answer"))?;
        let to = receivers(group, rank)?;
        let body = bytes(body.cast(), body_bytes, "body")?.to_vec();
        let answers = Answers { call, context };
        let message = PostMessage { app, head, body };
        posts.post(to, message, Duration::from_millis(timeout_ms), move |answer| answers.tell(answer));
        Ok(())
    })
}

/// Waits until this member has fewer than half of the unanswered messages that it may have, at most `timeout_ms`
/// milliseconds. Call it before `gradwire_messages_send`, except in handlers and callbacks, which must not wait for
/// messages: if members' handlers waited for each other, no message would be answered.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_messages_wait_for_room(
    messages: Option<&GradwireMessages>,
    timeout_ms: u64,
) -> GradwireCode {
    guard(|| {
        let room = object(messages, "messages")?.0.wait_for_room(Duration::from_millis(timeout_ms));
        let full = |count: usize| {
            let text = format!(
                "too many messages in flight: {count} messages of this member are unanswered after {timeout_ms} ms; check what their receivers' handlers wait for"
            );
            Failure::new(GradwireCode::Deadline, text)
        };
        room.map_err(full)
    })
}

struct Answers {
    call: extern "C" fn(*mut c_void, &GradwireAnswer),
    context: *mut c_void,
}

// SAFETY: the program is told that its callback comes on a thread of the library, with this pointer, which nothing here
// looks behind. Needed to carry it there.
unsafe impl Send for Answers {}

impl Answers {
    fn tell(&self, answer: PostAnswer) {
        let PostAnswer { from, of, result } = answer;
        let (code, head, body) = match result {
            Ok(reply) => (GradwireCode::Ok, reply.head, reply.body),
            Err(error) => {
                let failure = Failure::from(error);
                remember(&failure);
                (failure.code, 0, Vec::new())
            }
        };
        let answer = GradwireAnswer {
            code,
            from_group: number_of(from.role),
            from_rank: from.rank.0,
            of,
            head,
            body: body.as_ptr().cast(),
            body_bytes: body.len() as u64,
        };
        (self.call)(self.context, &answer);
    }
}

/// Registers a handler for messages with this number. Earlier messages have waited for it. The context must exist
/// until the handler is unregistered.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_messages_register(
    messages: Option<&GradwireMessages>,
    app: u32,
    handler: GradwireOnMessage,
    context: *mut c_void,
) -> GradwireCode {
    guard(|| {
        let posts = &object(messages, "messages")?.0;
        let handler = Handler { call: handler.ok_or_else(|| Failure::null("handler"))?, context };
        match posts.register(app, move |post| handler.take(post)) {
            true => Ok(()),
            false => Err(Failure::argument(format!("a handler of messages to {app} is already registered"))),
        }
    })
}

struct Handler {
    call: extern "C" fn(*mut c_void, Option<Box<GradwireMessage>>),
    context: *mut c_void,
}

// SAFETY: as for `Answers`.
unsafe impl Send for Handler {}

impl Handler {
    fn take(&self, post: Post) {
        let Post { from, app: _, head, body, reply } = post;
        let message = GradwireMessage { from, head, body, reply: Mutex::new(Some(reply)) };
        (self.call)(self.context, Some(Box::new(message)));
    }
}

/// Unregisters a handler, and waits until it has finished its current message, unless a handler or callback for
/// messages makes this call.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_messages_unregister(
    messages: Option<&GradwireMessages>,
    app: u32,
) -> GradwireCode {
    guard(|| {
        let stuck = |error: daemon::post::Stuck| Failure::new(GradwireCode::Deadline, error.to_string());
        object(messages, "messages")?.0.unregister(app).map(drop).map_err(stuck)
    })
}

/// Waits at the barrier with this name until all members of the group have arrived, at most `timeout_ms` milliseconds
/// (at most a day). The group is the sum of `GradwireGroup` constants and must include this member. The error names
/// the missing members. The scheduler is waited for if a program runs it.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_messages_barrier(
    messages: Option<&GradwireMessages>,
    name: *const c_char,
    group: u32,
    timeout_ms: u64,
) -> GradwireCode {
    guard(|| {
        let (posts, name) = (&object(messages, "messages")?.0, text(name, "name")?);
        Ok(posts.barrier(name, group_of(group)?, Duration::from_millis(timeout_ms))?)
    })
}

/// Frees the object. Null is allowed. Handlers stay registered.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_messages_free(messages: Option<Box<GradwireMessages>>) {
    free(messages);
}

/// The sender: one `GradwireGroup` constant, and the rank in the group.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_message_from(
    message: Option<&GradwireMessage>,
    group: Option<&mut MaybeUninit<u32>>,
    rank: Option<&mut MaybeUninit<u32>>,
) -> GradwireCode {
    guard(|| {
        let from = object(message, "message")?.from;
        put(group, "group", number_of(from.role))?;
        put(rank, "rank", from.rank.0)
    })
}

/// The head of the message. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_message_head(message: Option<&GradwireMessage>) -> i32 {
    message.map_or(0, |message| message.head)
}

/// The body of the message, and its length in `bytes`, which may be null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_message_body(
    message: Option<&GradwireMessage>,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> *const c_void {
    guard_or(std::ptr::null(), || Ok(shown(message.map_or(&[], |message| &message.body), bytes)))
}

/// Answers a message, once, from any thread, with a number and at most 1 MiB, copied during the call.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_message_reply(
    message: Option<&GradwireMessage>,
    head: i32,
    body: *const c_void,
    body_bytes: u64,
) -> GradwireCode {
    guard(|| {
        let body = bytes(body.cast(), body_bytes, "body")?.to_vec();
        let message = object(message, "message")?;
        let answered = || Failure::argument("the message has already been answered; answer once");
        Ok(lock(&message.reply).take().ok_or_else(answered)?.send(head, body)?)
    })
}

/// Frees a message. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_message_free(message: Option<Box<GradwireMessage>>) {
    free(message);
}
