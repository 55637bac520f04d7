//! Calls of a worker to the handlers that servers' programs have registered, and their replies.

use crate::border::{bytes, lock, make, object, put_if_wanted, shown, slice};
use crate::client::GradwireClient;
use crate::error::{Failure, GradwireCode, free, guard, guard_or, remember};
use crate::piece::{GradwirePiece, Lent};
use gradwire_worker::{CallHandle, CallReply, CallRequest, Client, OpError, ReplyInto, TensorBuffer};
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Mutex;
use std::time::Duration;

/// Calls of one worker to one handler of one server that may be in flight; further ones wait at the worker.
pub const GRADWIRE_CALLS_IN_FLIGHT_MAX: u32 = 128;
const _: () = assert!(GRADWIRE_CALLS_IN_FLIGHT_MAX as u64 == proto_common::call::CALLS_IN_FLIGHT_MAX);

/// A request to a handler of a server. Initialise the structure with zeros.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradwireCall {
    /// The handler's number.
    pub app: u32,
    /// The server's rank.
    pub server: u32,
    /// The head: a few bytes for the handler, at most 512; read during the call.
    pub head: *const c_void,
    /// Bytes of the head.
    pub head_bytes: u64,
    /// The body, in at most 16 pieces that the handler receives as one.
    pub pieces: *const GradwirePiece,
    /// The number of pieces.
    pub piece_count: u64,
    /// Calls with higher priority go first; calls to one handler of one server are never reordered.
    pub priority: i32,
    /// The expected size of the reply's body, so that a long one needs no second round trip. 0: unknown.
    pub reply_bytes: u64,
    /// Where the reply's body is to land, if this is memory of a buffer of the client (`gradwire_buffer_data`), the body is not
    /// longer, and it does not travel with the result. Otherwise it lands elsewhere. `gradwire_reply_body` says where it
    /// is. Nobody may use the memory until `release` is called. A call to a server that stands still may fail before that.
    pub reply_into: GradwirePiece,
    /// Deadline in milliseconds; 0: `deadlines.operation_ms`.
    pub timeout_ms: u64,
}

/// A call in flight. It ends by itself, with a reply or an error, at its deadline at the latest. Free it with
/// `gradwire_call_free`.
#[derive(Debug)]
pub struct GradwireCallHandle(Mutex<Option<(CallHandle, Place)>>);

/// The address where a reply was to land.
type Place = usize;

/// A handler's reply. Free it with `gradwire_reply_free`; head and body are valid until then.
#[derive(Debug)]
pub struct GradwireReply(CallReply, Place);

/// Called once when a call has ended. With `GRADWIRE_CODE_OK` the callee owns the reply and must free it; otherwise
/// the reply is null, and `gradwire_last_error` returns the reason. The library calls it on one of its threads, or on
/// the caller's thread before `gradwire_call_then` returns. Return quickly: take the reply and wake your own thread.
pub type GradwireOnReply =
    Option<extern "C" fn(context: *mut c_void, code: GradwireCode, reply: Option<Box<GradwireReply>>)>;

/// A call whose pieces are taken over, which comes before everything else: whatever fails later, their owners are let go of.
fn taken(call: Option<&GradwireCall>) -> Result<(&GradwireCall, Vec<Lent<'_>>, Lent<'_>), Failure> {
    let call = object(call, "call")?;
    let into = Lent::take(std::slice::from_ref(&call.reply_into));
    let pieces = Lent::take(slice(call.pieces, call.piece_count, "pieces")?)?;
    let into = into?.pop().unwrap_or(Lent::Borrowed(&[]));
    Ok((call, pieces, into))
}

fn start(
    client: Option<&GradwireClient>,
    (call, lent, into): (&GradwireCall, Vec<Lent<'_>>, Lent<'_>),
) -> Result<(CallHandle, Place), Failure> {
    let client = &object(client, "client")?.client;
    let head = bytes(call.head.cast(), call.head_bytes, "head")?.to_vec();
    let body = lent.into_iter().map(|piece| piece.for_call(client)).collect();
    let place = call.reply_into.data.expose_provenance();
    let reply_into = into.room(client).map(ReplyInto::Lent);
    let timeout = (call.timeout_ms > 0).then(|| Duration::from_millis(call.timeout_ms));
    let (priority, reply_bytes) = (call.priority, call.reply_bytes);
    let request = CallRequest { head, body, priority, reply_bytes, reply_into, timeout };
    Ok((client.call(call.app, call.server, request)?, place))
}

/// A copy of plain memory in registered memory.
pub(crate) fn copied(client: &Client, data: &[u8]) -> Result<TensorBuffer, Failure> {
    let mut buffer = client.allocate(data.len() as u64)?;
    buffer.copy_in(data);
    Ok(buffer)
}

/// Calls a handler of a server's program. Calls to one handler of one server are handled in the order in which they
/// are made, each of them once. The function waits if `GRADWIRE_CALLS_IN_FLIGHT_MAX` earlier calls to the handler are in
/// flight, or if the pool (`memory.pool_bytes`) has no room for the request and its reply: as long as earlier operations
/// end within the call's time limit. The library's callbacks must not call it.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_call(
    client: Option<&GradwireClient>,
    call: Option<&GradwireCall>,
    handle: Option<&mut MaybeUninit<Option<Box<GradwireCallHandle>>>>,
) -> GradwireCode {
    guard(|| {
        let call = taken(call)?;
        make(handle, "handle", || Ok(GradwireCallHandle(Mutex::new(Some(start(client, call)?)))))
    })
}

/// As `gradwire_call`, with a callback instead of a handle. If this function returns an error, the callback is not
/// called.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_call_then(
    client: Option<&GradwireClient>,
    call: Option<&GradwireCall>,
    callback: GradwireOnReply,
    context: *mut c_void,
) -> GradwireCode {
    guard(|| {
        let call = taken(call)?;
        let call_back = callback.ok_or_else(|| Failure::null("callback"))?;
        let context = Context(context);
        let (handle, place) = start(client, call)?;
        handle.on_end(move |result| context.tell(call_back, result, place));
        Ok(())
    })
}

/// The program's, for its callback.
struct Context(*mut c_void);

// SAFETY: the program is told that its callback comes on a thread of the library, with this pointer, which nothing here
// looks behind. Needed to carry it there.
unsafe impl Send for Context {}

impl Context {
    fn tell(
        &self,
        callback: extern "C" fn(*mut c_void, GradwireCode, Option<Box<GradwireReply>>),
        result: Result<CallReply, OpError>,
        place: Place,
    ) {
        match result {
            Ok(reply) => callback(self.0, GradwireCode::Ok, Some(Box::new(GradwireReply(reply, place)))),
            Err(error) => {
                let failure = Failure::from(error);
                remember(&failure);
                callback(self.0, failure.code, None);
            }
        }
    }
}

/// Waits for the reply, at most until the call's deadline. A second wait returns `GRADWIRE_CODE_ALREADY_WAITED`.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_call_wait(
    handle: Option<&GradwireCallHandle>,
    reply: Option<&mut MaybeUninit<Option<Box<GradwireReply>>>>,
) -> GradwireCode {
    guard(|| {
        let text = "the call has already been waited for; wait once per call";
        let waited = || Failure::new(GradwireCode::AlreadyWaited, text);
        make(reply, "reply", || {
            let (call, place) = lock(&object(handle, "handle")?.0).take().ok_or_else(waited)?;
            Ok(GradwireReply(call.wait()?, place))
        })
    })
}

/// 1 if the call has ended, so that a wait returns at once; otherwise 0. 1 for null and after a wait.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_call_is_done(handle: Option<&GradwireCallHandle>) -> i32 {
    let done = guard_or(true, || {
        Ok(lock(&object(handle, "handle")?.0).as_ref().is_none_or(|(call, _)| call.is_done()))
    });
    i32::from(done)
}

/// Frees a call's handle. Null is allowed. The call continues.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_call_free(handle: Option<Box<GradwireCallHandle>>) {
    free(handle);
}

/// The reply's head, and its length in `bytes`, which may be null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_reply_head(
    reply: Option<&GradwireReply>,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> *const c_void {
    guard_or(std::ptr::null(), || Ok(shown(reply.map_or(&[], |reply| &reply.0.head), bytes)))
}

/// The reply's body, and its length in `bytes`, which may be null. The address is that of `reply_into` if it landed there.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_reply_body(
    reply: Option<&GradwireReply>,
    bytes: Option<&mut MaybeUninit<u64>>,
) -> *const c_void {
    guard_or(std::ptr::null(), || {
        let Some(GradwireReply(reply, place)) = reply else { return Ok(shown(&[], bytes)) };
        let Some(landed) = reply.body.in_place_bytes() else { return Ok(shown(&reply.body, bytes)) };
        put_if_wanted(bytes, landed as u64);
        Ok(std::ptr::with_exposed_provenance(*place))
    })
}

/// Frees a reply. Null is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_reply_free(reply: Option<Box<GradwireReply>>) {
    free(reply);
}
