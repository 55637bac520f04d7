//! Clients: joining a cluster, asking about it, barriers, leaving.

use crate::border::{make, object, put, text};
use crate::error::{Failure, GradwireCode, guard, guard_or};
use crate::message::{GradwireMessages, group_of, number_of};
use crate::settings::{GradwireSettings, load};
use gradwire_worker::{Client, OpError};
use proto_common::ids::Role;
use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;

/// Value of the setting `node.rank`: the highest free rank, for members that must not take a rank that others ask for.
pub const GRADWIRE_LAST_RANK: u32 = u32::MAX;

/// A worker of a cluster. Any thread may call its functions at any time. A process may have several clients, of one
/// cluster or of several. Free it with `gradwire_client_free`.
///
/// Do not use it in a child process after a `fork`: its threads exist only in the parent.
#[derive(Debug)]
pub struct GradwireClient {
    pub(crate) client: Client,
    transport: CString,
}

/// What a client has done so far. The counts never decrease.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GradwireStats {
    /// Completed operations, counted once for each lane that worked on one.
    pub done: u64,
    /// Failed operations, counted in the same way.
    pub failed: u64,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// The same bytes before encoding.
    pub plain_bytes: u64,
    /// Bytes of weights that servers wrote into this client's memory.
    pub landed_bytes: u64,
    /// Bytes of weights that were read in the servers' memory (views).
    pub shown_bytes: u64,
    /// Batches sent.
    pub batches: u64,
    /// Parts sent again because a server had no room for them.
    pub retries: u64,
    /// How many times a batch had to wait for a credit.
    pub credit_waits: u64,
}

/// Joins the cluster that the settings name (null: settings from the environment and the settings file), and waits
/// until all its members have registered. Each step has a deadline (`deadlines.assemble_ms`, `deadlines.connect_ms`),
/// and the error names the missing members.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_connect(
    settings: Option<&GradwireSettings>,
    client: Option<&mut MaybeUninit<Option<Box<GradwireClient>>>>,
) -> GradwireCode {
    guard(|| {
        make(client, "client", || {
            let client = Client::connect(load(settings, Role::Worker)?.settings)?;
            let transport = CString::new(client.transport()).unwrap_or_default();
            Ok(GradwireClient { client, transport })
        })
    })
}

/// Leaves the cluster in good order and frees the client. Null is allowed. Operations in flight fail with
/// `GRADWIRE_CODE_CLOSED`; their handles, tensors and buffers stay valid until they are freed.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_free(client: Option<Box<GradwireClient>>) {
    guard(|| {
        if let Some(client) = client {
            client.client.close();
        }
        Ok(())
    });
}

/// Leaves the cluster in good order; the other members continue. The client stays valid, but all later calls fail with
/// `GRADWIRE_CODE_CLOSED`. Operations of other threads end at once.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_close(client: Option<&GradwireClient>) -> GradwireCode {
    guard(|| {
        object(client, "client")?.client.close();
        Ok(())
    })
}

/// Leaves because the program failed. All other members are notified of the reason, and exit.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_fail(
    client: Option<&GradwireClient>,
    reason: *const c_char,
) -> GradwireCode {
    guard(|| {
        object(client, "client")?.client.fail(text(reason, "reason")?);
        Ok(())
    })
}

/// Returns nonzero when what a program waits for is over. It is called very often, and must not block.
pub type GradwireIsOver = Option<extern "C" fn(context: *mut c_void) -> i32>;

/// Returns when what a program waits for is over.
pub type GradwireSleep = Option<extern "C" fn(context: *mut c_void)>;

/// Waits for what only the program knows to be over, such as the callbacks of its calls. This thread works for the client
/// meanwhile, which saves hand-overs between threads; callbacks run on it, too. When there has been nothing to do for
/// `memory.spin_us`, `sleep` is called, once. No exception may leave the functions.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_wait(
    client: Option<&GradwireClient>,
    is_over: GradwireIsOver,
    sleep: GradwireSleep,
    context: *mut c_void,
) -> GradwireCode {
    guard(|| {
        let is_over = is_over.ok_or_else(|| Failure::null("is_over"))?;
        let sleep = sleep.ok_or_else(|| Failure::null("sleep"))?;
        object(client, "client")?.client.wait_for(|| is_over(context) != 0, || sleep(context));
        Ok(())
    })
}

/// This worker's rank, from 0 to the number of workers minus one. `UINT32_MAX` for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_rank(client: Option<&GradwireClient>) -> u32 {
    guard_or(u32::MAX, || Ok(object(client, "client")?.client.rank()))
}

/// The number of workers in the cluster. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_workers(client: Option<&GradwireClient>) -> u32 {
    guard_or(0, || Ok(object(client, "client")?.client.workers()))
}

/// The number of servers in the cluster. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_servers(client: Option<&GradwireClient>) -> u32 {
    guard_or(0, || Ok(object(client, "client")?.client.servers()))
}

/// The transports in use, such as "shm" or "shm+tcp". Valid as long as the client; null for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_transport(client: Option<&GradwireClient>) -> *const c_char {
    guard_or(std::ptr::null(), || Ok(object(client, "client")?.transport.as_ptr()))
}

/// What the client has done so far. The call asks its data threads, which takes microseconds.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_stats(
    client: Option<&GradwireClient>,
    stats: Option<&mut MaybeUninit<GradwireStats>>,
) -> GradwireCode {
    guard(|| {
        let of = object(client, "client")?.client.stats();
        let stats_of = GradwireStats {
            done: of.done,
            failed: of.failed,
            sent_bytes: of.sent_bytes,
            plain_bytes: of.plain_bytes,
            landed_bytes: of.landed_bytes,
            shown_bytes: of.shown_bytes,
            batches: of.batches,
            retries: of.retries,
            credit_waits: of.credit_waits,
        };
        put(stats, "stats", stats_of)
    })
}

/// Whether the job has ended: `GRADWIRE_CODE_OK` while it runs, otherwise the error that ended it, with the message.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_check(client: Option<&GradwireClient>) -> GradwireCode {
    guard(|| object(client, "client")?.client.dead().map_or(Ok(()), |error| Err(error.into())))
}

/// The client's messages, and barriers with their own time limit.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_messages(
    client: Option<&GradwireClient>,
    messages: Option<&mut MaybeUninit<Option<Box<GradwireMessages>>>>,
) -> GradwireCode {
    guard(|| {
        make(messages, "messages", || Ok(GradwireMessages(object(client, "client")?.client.posts().clone())))
    })
}

/// Which member's failure ended the job. Returns 1 and writes its group (one `GradwireGroup` constant) and rank if a
/// failure ended it; otherwise returns 0 and writes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_dead_member(
    client: Option<&GradwireClient>,
    group: Option<&mut MaybeUninit<u32>>,
    rank: Option<&mut MaybeUninit<u32>>,
) -> i32 {
    guard_or(0, || {
        let Some(OpError::Died(death)) = object(client, "client")?.client.dead() else { return Ok(0) };
        put(group, "group", number_of(death.member.role))?;
        put(rank, "rank", death.member.rank.0)?;
        Ok(1)
    })
}

/// Reports a value of the training by name, such as its loss. The scheduler's page, `gradwire status --json`,
/// `gradwire top` and this worker's `/metrics` show the newest value of each name. At most 16 names of 1 to 48 bytes;
/// the value must be finite.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_report_metric(
    client: Option<&GradwireClient>,
    name: *const c_char,
    value: f64,
) -> GradwireCode {
    guard(|| Ok(object(client, "client")?.client.report_metric(text(name, "name")?, value)?))
}

/// Waits at the barrier with this name until all members of the group have arrived, at most `deadlines.busy_ms`.
/// The group is the sum of `GradwireGroup` constants and must include this worker. The error names the missing
/// members.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_barrier(
    client: Option<&GradwireClient>,
    name: *const c_char,
    group: u32,
) -> GradwireCode {
    guard(|| {
        let (client, name) = (object(client, "client")?, text(name, "name")?);
        Ok(client.client.barrier_of(name, group_of(group)?)?)
    })
}
