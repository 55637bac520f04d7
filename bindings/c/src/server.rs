//! A server in the program's process, and its handlers for workers' calls.

use crate::border::{bytes, lock, make, object, put_if_wanted, shown, slice};
use crate::error::{Failure, GradwireCode, free, guard, guard_or};
use crate::message::GradwireMessages;
use crate::own::{self, GradwireOwnRule};
use crate::piece::{GradwirePiece, Lent};
use crate::settings::{GradwireSettings, load};
use daemon::post::Posts;
use gradwire_server::runtime::StartError;
use gradwire_server::{App, Apps, Call, Reply, ReplyBody, ReplyError, Server};
use proto_common::ids::Role;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;

/// A server of a cluster. Any thread may call its functions. Free it with `gradwire_server_free`.
#[derive(Debug)]
pub struct GradwireServer {
    rank: u32,
    workers: u32,
    servers: u32,
    is_recovery: bool,
    apps: Apps,
    posts: Posts,
    server: Mutex<Option<Server>>,
}

/// A worker's call to a handler of this program. Free it with `gradwire_request_free`; head and body are valid until
/// then, also after the reply. If it is freed without a reply, the worker gets `GRADWIRE_CODE_NO_REPLY`.
#[derive(Debug)]
pub struct GradwireRequest {
    from: u32,
    head: Vec<u8>,
    body: gradwire_server::app::Body,
    reply: Mutex<Option<Reply>>,
}

/// Receives a call. The callee must answer and free it, at once or later and on any thread. Handlers run on a separate
/// thread, one call at a time, and each worker's calls in the order in which it made them. No exception may leave the
/// handler.
pub type GradwireHandler = Option<extern "C" fn(context: *mut c_void, request: Option<Box<GradwireRequest>>)>;

/// Receives the bytes of a handler's state while `GradwireSave` runs. It is valid until that returns.
#[derive(Debug, Default)]
pub struct GradwireState {
    bytes: Vec<u8>,
    /// A write has failed, so bytes are missing.
    is_cut: bool,
}

/// Writes the state of a handler with `gradwire_state_write`, and returns true; on the handler's thread, between calls, while every
/// call has been answered. False: the state cannot be saved now, and is asked for again; the journal keeps the earlier state, if it
/// has one, and the calls since. No exception may leave it.
pub type GradwireSave =
    Option<extern "C" fn(context: *mut c_void, state: Option<&mut GradwireState>) -> bool>;

/// Takes over the state that `GradwireSave` wrote in an earlier process; on the handler's thread, before its first call. The bytes
/// are valid during the call. False: the state cannot be loaded; the handler is not started, and calls to it fail. No exception
/// may leave it.
pub type GradwireLoad = Option<extern "C" fn(context: *mut c_void, bytes: *const c_void, count: u64) -> bool>;

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        Self::new(GradwireCode::Unreachable, error.to_string())
    }
}

impl From<ReplyError> for Failure {
    fn from(error: ReplyError) -> Self {
        let code = match error {
            ReplyError::Ended => GradwireCode::Closed,
            ReplyError::NoRoom { .. } => GradwireCode::Memory,
            ReplyError::LongHead(_) | ReplyError::LongBody { .. } => GradwireCode::BadArgument,
        };
        Self::new(code, error.to_string())
    }
}

/// The result of a role, for C.
pub(crate) fn ended(result: Result<(), impl std::fmt::Display>) -> Result<(), Failure> {
    result.map_err(|error| Failure::new(GradwireCode::Closed, format!("{error:#}")))
}

/// Starts a server in this process, on separate threads, and returns when the scheduler has assigned a rank.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_server_start(
    settings: Option<&GradwireSettings>,
    server: Option<&mut MaybeUninit<Option<Box<GradwireServer>>>>,
) -> GradwireCode {
    gradwire_server_start_with(settings, ptr::null(), 0, server)
}

/// As `gradwire_server_start`, with update rules of this program, which workers then name in declarations. All servers
/// of a job must have the same ones. The structures may be freed afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_server_start_with(
    settings: Option<&GradwireSettings>,
    rules: *const GradwireOwnRule,
    rule_count: u64,
    server: Option<&mut MaybeUninit<Option<Box<GradwireServer>>>>,
) -> GradwireCode {
    guard(|| {
        make(server, "server", || {
            let rules = own::rules(slice(rules, rule_count, "rules")?)?;
            let started = Server::start_with(load(settings, Role::Server)?.settings, rules)?;
            Ok(GradwireServer {
                rank: started.rank(),
                workers: started.workers(),
                servers: started.servers(),
                is_recovery: started.is_recovery(),
                apps: started.apps().clone(),
                posts: started.posts().clone(),
                server: Mutex::new(Some(started)),
            })
        })
    })
}

/// Its rank among servers. `UINT32_MAX` for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_server_rank(server: Option<&GradwireServer>) -> u32 {
    server.map_or(u32::MAX, |server| server.rank)
}

/// The number of workers in the cluster. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_server_workers(server: Option<&GradwireServer>) -> u32 {
    server.map_or(0, |server| server.workers)
}

/// The number of servers in the cluster. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_server_servers(server: Option<&GradwireServer>) -> u32 {
    server.map_or(0, |server| server.servers)
}

/// True if this process has taken the place of a failed server. False for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_server_is_recovery(server: Option<&GradwireServer>) -> bool {
    server.is_some_and(|server| server.is_recovery)
}

/// Its messages and barriers.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_server_messages(
    server: Option<&GradwireServer>,
    messages: Option<&mut MaybeUninit<Option<Box<GradwireMessages>>>>,
) -> GradwireCode {
    guard(|| make(messages, "messages", || Ok(GradwireMessages(object(server, "server")?.posts.clone()))))
}

/// Registers a handler for calls to this number. Earlier calls have waited for it. The context must exist until the
/// handler is unregistered or the server is freed.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_server_register(
    server: Option<&GradwireServer>,
    app: u32,
    handler: GradwireHandler,
    context: *mut c_void,
) -> GradwireCode {
    guard(|| {
        let server = object(server, "server")?;
        let handler = Handler::new(handler, context)?;
        let registered = server.apps.register(app, handler);
        registered.map_err(|error| Failure::argument(error.to_string()))
    })
}

/// As `gradwire_server_register`, for a handler whose state must outlive this process. If `cluster.replicas` is at least 1, another
/// server keeps a journal of it: the saved state, and the requests since. A process that takes a failed server's place and
/// registers the handler loads that state, handles those requests again, and continues. Workers' calls wait for it, and each counts
/// once. The same requests in the same order must lead to the same state: the handler must not depend on clocks or random numbers.
/// All three functions run on the handler's thread.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_server_register_with_state(
    server: Option<&GradwireServer>,
    app: u32,
    handler: GradwireHandler,
    save: GradwireSave,
    load: GradwireLoad,
    context: *mut c_void,
) -> GradwireCode {
    guard(|| {
        let server = object(server, "server")?;
        let handler = Handler::new(handler, context)?;
        let save = save.ok_or_else(|| Failure::null("save"))?;
        let load = load.ok_or_else(|| Failure::null("load"))?;
        let registered = server.apps.register(app, Stateful { handler, save, load });
        registered.map_err(|error| Failure::argument(error.to_string()))
    })
}

/// Appends bytes to a state; for `GradwireSave`, which may call it several times. The bytes are copied during the call. If it
/// fails, the state is not saved, whatever `GradwireSave` returns.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_state_write(
    state: Option<&mut GradwireState>,
    bytes: *const c_void,
    count: u64,
) -> GradwireCode {
    guard(|| state.ok_or_else(|| Failure::null("state"))?.write(bytes, count))
}

impl GradwireState {
    fn write(&mut self, start: *const c_void, count: u64) -> Result<(), Failure> {
        // Whatever fails, bytes are missing: the next ones do not follow the earlier ones.
        let was_cut = std::mem::replace(&mut self.is_cut, true);
        let more = bytes(start.cast(), count, "bytes")?;
        let had = self.bytes.len();
        let no_memory = |error| {
            let text = format!("no memory for {count} more bytes of a state of {had} bytes: {error}");
            Failure::new(GradwireCode::Memory, text)
        };
        self.bytes.try_reserve(more.len()).map_err(no_memory)?;
        self.bytes.extend_from_slice(more);
        self.is_cut = was_cut;
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Handler {
    call: extern "C" fn(*mut c_void, Option<Box<GradwireRequest>>),
    context: *mut c_void,
}

// SAFETY: the program is told that its handler runs on a thread of the library, with this pointer, which nothing here
// looks behind. Needed to carry it there.
unsafe impl Send for Handler {}

impl Handler {
    fn new(handler: GradwireHandler, context: *mut c_void) -> Result<Self, Failure> {
        Ok(Self { call: handler.ok_or_else(|| Failure::null("handler"))?, context })
    }

    fn take(&self, call: Call) {
        let Call { from, head, body, reply, .. } = call;
        let request = GradwireRequest { from: from.0, head, body, reply: Mutex::new(Some(reply)) };
        (self.call)(self.context, Some(Box::new(request)));
    }
}

impl App for Handler {
    fn call(&mut self, call: Call) {
        self.take(call);
    }

    fn reads_in_place(&self) -> bool {
        true
    }
}

/// A handler with a state.
struct Stateful {
    handler: Handler,
    save: extern "C" fn(*mut c_void, Option<&mut GradwireState>) -> bool,
    load: extern "C" fn(*mut c_void, *const c_void, u64) -> bool,
}

impl App for Stateful {
    fn call(&mut self, call: Call) {
        self.handler.take(call);
    }

    fn has_state(&self) -> bool {
        true
    }

    fn save(&mut self) -> Option<Vec<u8>> {
        let mut state = GradwireState::default();
        let is_saved = (self.save)(self.handler.context, Some(&mut state));
        (is_saved && !state.is_cut).then_some(state.bytes)
    }

    fn load(&mut self, state: &[u8]) -> Result<(), String> {
        let is_loaded = (self.load)(self.handler.context, state.as_ptr().cast(), state.len() as u64);
        let refused =
            || format!("the program's load function refused the saved state of {} bytes", state.len());
        is_loaded.then_some(()).ok_or_else(refused)
    }
}

/// Unregisters a handler, and waits until it has finished its current call, unless the handler itself makes this call.
/// Does nothing if there is no handler.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_server_unregister(server: Option<&GradwireServer>, app: u32) -> GradwireCode {
    guard(|| {
        let unregistered = object(server, "server")?.apps.unregister(app).map(drop);
        unregistered.map_err(|stuck| Failure::new(GradwireCode::Deadline, stuck.to_string()))
    })
}

/// Waits until the job has ended: successfully when all workers have left, otherwise with the reason. It has no
/// deadline, because a job has none; failures and the loss of the scheduler end it. If several threads call it, one of
/// them waits.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_server_wait(server: Option<&GradwireServer>) -> GradwireCode {
    guard(|| {
        let running = lock(&object(server, "server")?.server).take();
        running.map_or(Ok(()), |running| ended(running.join()))
    })
}

/// Leaves the cluster in good order, unless another thread waits for the end, and frees the server. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_server_free(server: Option<Box<GradwireServer>>) {
    free(server);
}

/// The rank of the calling worker. `UINT32_MAX` for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_request_from(request: Option<&GradwireRequest>) -> u32 {
    request.map_or(u32::MAX, |request| request.from)
}

/// The request's head, and its length in `bytes`, which may be null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_request_head(
    request: Option<&GradwireRequest>,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> *const c_void {
    guard_or(std::ptr::null(), || Ok(shown(request.map_or(&[], |request| &request.head), bytes)))
}

/// The request's complete body, and its length in `bytes`, which may be null. A large body is aligned to 64 bytes. As
/// `gradwire_request_part` of all of it.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_request_body(
    request: Option<&GradwireRequest>,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> *const c_void {
    guard_or(std::ptr::null(), || {
        let all = request.map_or(0, |request| request.body.bytes());
        let body = request.and_then(|request| request.body.part(0, all));
        put_if_wanted(bytes, body.map_or(0, |_| all));
        Ok(body.map_or(std::ptr::null(), |body| body.start.cast()))
    })
}

/// `count` bytes of the request's body, from `offset` on. Null if the body is shorter. A long piece that a worker on the same host has
/// sent may lie in the worker's memory, and is not copied; then `is_lent`, which may be null, becomes true. The bytes stay valid until
/// the request is freed, also after the reply. The program may write there, and the worker does not see it. If the program still reads
/// them some milliseconds after the reply, the library copies them in place. From then on only accesses of this process are safe:
/// a forked child, a device, or an asynchronous system call may see what the worker writes next.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_request_part(
    request: Option<&GradwireRequest>,
    offset: u64,
    count: u64,
    is_lent: Option<&mut MaybeUninit<bool>>,
) -> *const c_void {
    guard_or(std::ptr::null(), || {
        let part = request.and_then(|request| request.body.part(offset, count));
        put_if_wanted(is_lent, part.is_some_and(|part| part.is_lent));
        Ok(part.map_or(std::ptr::null(), |part| part.start.cast()))
    })
}

/// The program uses no lent part of the request's body any more, not even one of `gradwire_request_body`. Other parts stay valid. A
/// program that calls this, or frees the request, right after the reply, or before it, saves the copy.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_request_release(request: Option<&GradwireRequest>) {
    guard_or((), || {
        request.into_iter().for_each(|request| request.body.release());
        Ok(())
    });
}

/// Answers a request, once, from any thread, with a head of at most 512 bytes and a body of pieces. A body of one long
/// piece with a `release` is sent in place; everything else is copied during the call.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_request_reply(
    request: Option<&GradwireRequest>,
    head: *const c_void,
    head_bytes: u64,
    pieces: *const GradwirePiece,
    piece_count: u64,
) -> GradwireCode {
    guard(|| {
        let lent = Lent::take(slice(pieces, piece_count, "pieces")?)?;
        let head = bytes(head.cast(), head_bytes, "head")?;
        let request = object(request, "request")?;
        let answered = || Failure::argument("the request has already been answered; answer once");
        let reply = lock(&request.reply).take().ok_or_else(answered)?;
        let body = body_of(&reply, lent)?;
        Ok(reply.send(head, body)?)
    })
}

/// A long piece with an owner stays in place.
fn body_of(reply: &Reply, mut lent: Vec<Lent<'_>>) -> Result<ReplyBody, Failure> {
    /// Shorter bodies travel with the result, into which they are copied anyway.
    const LONG_BYTES: usize = 8 << 10;
    let total: usize = lent.iter().map(Lent::len).sum();
    if let ([Lent::Kept(_)], true) = (&lent[..], total > LONG_BYTES)
        && let Some(Lent::Kept(region)) = lent.pop()
    {
        return Ok(ReplyBody::Adopted(region));
    }
    let copy = |mut to: &mut [u8]| {
        for piece in &lent {
            let (part, rest) = to.split_at_mut(piece.len());
            piece.copy_to(part);
            to = rest;
        }
    };
    if total <= LONG_BYTES {
        let mut body = vec![0; total];
        copy(&mut body);
        return Ok(body.into());
    }
    let no_memory =
        |error| Failure::new(GradwireCode::Memory, format!("no memory for the body of the reply: {error}"));
    let mut body = reply.allocate(total as u64).map_err(no_memory)?;
    copy(&mut body);
    Ok(body.into())
}

/// Frees a request. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_request_free(request: Option<Box<GradwireRequest>>) {
    free(request);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program's context: what it saves, in two writes, and what it got.
    #[derive(Default)]
    struct Program {
        saves: bool,
        is_null: bool,
        state: Vec<u8>,
    }

    extern "C" fn call(_: *mut c_void, request: Option<Box<GradwireRequest>>) {
        gradwire_request_free(request);
    }

    extern "C" fn save(context: *mut c_void, state: Option<&mut GradwireState>) -> bool {
        // SAFETY: the tests pass a program that outlives the handler.
        let program = unsafe { &*context.cast::<Program>() };
        let state = state.expect("a state");
        let (first, rest) = program.state.split_at(program.state.len() / 2);
        assert_eq!(write(state, first), GradwireCode::Ok);
        if program.is_null {
            assert_eq!(gradwire_state_write(Some(&mut *state), ptr::null(), 1), GradwireCode::NullArgument);
        }
        assert_eq!(write(state, rest), GradwireCode::Ok);
        program.saves
    }

    fn write(state: &mut GradwireState, bytes: &[u8]) -> GradwireCode {
        gradwire_state_write(Some(state), bytes.as_ptr().cast(), bytes.len() as u64)
    }

    extern "C" fn load(context: *mut c_void, start: *const c_void, count: u64) -> bool {
        // SAFETY: as above; nobody else uses the program meanwhile.
        let program = unsafe { &mut *context.cast::<Program>() };
        program.state = bytes(start.cast(), count, "bytes").expect("readable").to_vec();
        program.state != b"garbage"
    }

    fn stateful(program: &mut Program) -> Stateful {
        let context = ptr::from_mut(program).cast();
        Stateful { handler: Handler { call, context }, save, load }
    }

    #[test]
    fn a_state_is_what_was_written_and_missing_bytes_are_no_state() {
        for (saves, is_null) in [(true, false), (false, false), (true, true)] {
            let mut program = Program { saves, is_null, state: b"abcde".to_vec() };
            let saved = stateful(&mut program).save();
            assert_eq!(saved.as_deref(), (saves && !is_null).then_some(&b"abcde"[..]));
        }
        let mut empty = Program { saves: true, ..Program::default() };
        assert_eq!(stateful(&mut empty).save(), Some(Vec::new()), "nothing is a state, too");
        assert_eq!(gradwire_state_write(None, ptr::null(), 0), GradwireCode::NullArgument);
    }

    #[test]
    fn a_state_is_loaded_or_refused() {
        let mut program = Program::default();
        let mut app = stateful(&mut program);
        assert!(app.has_state());
        for state in [&b"abc"[..], b""] {
            assert_eq!(app.load(state), Ok(()));
        }
        let error = app.load(b"garbage").expect_err("refused");
        assert!(error.contains("refused the saved state of 7 bytes"), "{error}");
        assert_eq!(program.state, b"garbage");
    }
}
