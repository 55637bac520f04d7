//! Clients: joining a cluster, asking about it, barriers, leaving.

use crate::border::{object, put, text};
use crate::error::{Failure, GradwireCode, guard, guard_or};
use crate::message::GradwireMessages;
use crate::settings::{GradwireSettings, load};
use gradwire_worker::{Client, OpError};
use proto_common::ids::Role;
use proto_common::message::NodeGroup;
use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;

/// As the setting `node.rank`: the highest rank that is free, for members that must not take one that others ask for.
pub const GRADWIRE_LAST_RANK: u32 = u32::MAX;

/// A worker of a cluster. All functions on it may be called from any thread at any time. A process may have several, of
/// one cluster or of many. Freed with `gradwire_client_free`.
///
/// After a `fork` the child must not use it: its threads stay with the parent.
#[derive(Debug)]
pub struct GradwireClient {
    client: Client,
    transport: CString,
}

impl GradwireClient {
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }
}

/// Members of a cluster, to be added up: who meets at a barrier.
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

/// The group that a number stands for.
pub(crate) fn group(number: u32) -> Result<NodeGroup, Failure> {
    let has = |group: GradwireGroup| number & group as u32 != 0;
    if number == 0 || number > 7 {
        return Err(Failure::argument(format!("group {number} is none; add up GRADWIRE_GROUP_ constants")));
    }
    Ok(NodeGroup {
        scheduler: has(GradwireGroup::Scheduler),
        servers: has(GradwireGroup::Servers),
        workers: has(GradwireGroup::Workers),
    })
}

/// What a client has done so far. Counts never fall.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GradwireStats {
    /// Operations that ended well, counted once for each lane that worked on one.
    pub done: u64,
    /// Operations that failed, counted the same way.
    pub failed: u64,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// The same before they were encoded.
    pub plain_bytes: u64,
    /// Payload bytes that landed here.
    pub landed_bytes: u64,
    /// Bytes of weights that were read where the servers have them.
    pub shown_bytes: u64,
    /// Batches sent.
    pub batches: u64,
    /// Parts sent again because a server had no room for them.
    pub retries: u64,
    /// Times a batch had to wait for room at a server.
    pub credit_waits: u64,
}

/// Joins the cluster that the settings name (null: the environment's and the settings file's) and waits until all its
/// members are there. Each step has its deadline (`deadlines.assemble_ms`, `deadlines.connect_ms`), and the message names
/// who was waited for.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_connect(
    settings: Option<&GradwireSettings>,
    client: Option<&mut MaybeUninit<Option<Box<GradwireClient>>>>,
) -> GradwireCode {
    guard(|| {
        let place = client.ok_or_else(|| Failure::null("client"))?;
        let connected = Client::connect(load(settings, Role::Worker)?.settings)?;
        let transport = CString::new(connected.transport()).unwrap_or_default();
        place.write(Some(Box::new(GradwireClient { client: connected, transport })));
        Ok(())
    })
}

/// Leaves the cluster in good order and frees the client. Null is fine. Operations in flight fail with
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

/// Leaves the cluster in good order: other members go on. The client stays valid, and each call fails from then on with
/// `GRADWIRE_CODE_CLOSED`. Another thread's operations end at once.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_close(client: Option<&GradwireClient>) -> GradwireCode {
    guard(|| {
        object(client, "client")?.client.close();
        Ok(())
    })
}

/// Leaves because the program failed: every other member is told why, and ends.
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

/// This worker's rank, 0 to one less than there are workers. `UINT32_MAX` for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_rank(client: Option<&GradwireClient>) -> u32 {
    guard_or(u32::MAX, || Ok(object(client, "client")?.client.rank()))
}

/// How many workers the cluster has. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_workers(client: Option<&GradwireClient>) -> u32 {
    guard_or(0, || Ok(object(client, "client")?.client.workers()))
}

/// How many servers the cluster has. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_servers(client: Option<&GradwireClient>) -> u32 {
    guard_or(0, || Ok(object(client, "client")?.client.servers()))
}

/// The transports in use, such as "shm" or "shm+tcp". Valid as long as the client is; null for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_transport(client: Option<&GradwireClient>) -> *const c_char {
    guard_or(std::ptr::null(), || Ok(object(client, "client")?.transport.as_ptr()))
}

/// What the client has done. Asks its data threads, which takes microseconds.
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

/// Why the job has ended, if it has: `GRADWIRE_CODE_OK` while it goes on, else what killed it, with the message.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_check(client: Option<&GradwireClient>) -> GradwireCode {
    guard(|| object(client, "client")?.client.dead().map_or(Ok(()), |error| Err(error.into())))
}

/// Its messages and barriers with a time of their own.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_messages(
    client: Option<&GradwireClient>,
    messages: Option<&mut MaybeUninit<Option<Box<GradwireMessages>>>>,
) -> GradwireCode {
    guard(|| {
        let posts = object(client, "client")?.client.posts().clone();
        put(messages, "messages", Some(Box::new(GradwireMessages(posts))))
    })
}

/// Which member's death ended the job: 1, with its group (one `GradwireGroup` constant) and rank, where one did; else 0, and
/// nothing is written.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_client_dead_member(
    client: Option<&GradwireClient>,
    group: Option<&mut MaybeUninit<u32>>,
    rank: Option<&mut MaybeUninit<u32>>,
) -> i32 {
    guard_or(0, || {
        let Some(OpError::Died(death)) = object(client, "client")?.client.dead() else { return Ok(0) };
        let of = match death.member.role {
            Role::Scheduler => GradwireGroup::Scheduler,
            Role::Server => GradwireGroup::Servers,
            Role::Worker => GradwireGroup::Workers,
        };
        put(group, "group", of as u32)?;
        put(rank, "rank", death.member.rank.0)?;
        Ok(1)
    })
}

/// Reports a number of the training by name, such as its loss: the scheduler's page, `gradwire status --json`, `gradwire top` and
/// this worker's `/metrics` show the newest value of each name. At most 16 names of 1 to 48 bytes; the value must be finite.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_report_metric(
    client: Option<&GradwireClient>,
    name: *const c_char,
    value: f64,
) -> GradwireCode {
    guard(|| Ok(object(client, "client")?.client.report_metric(text(name, "name")?, value)?))
}

/// Waits at the barrier of this name until every member of the group (`GradwireGroup` constants added up; this worker is
/// in it) has come, at most `deadlines.barrier_ms`. The message names the missing.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_barrier(
    client: Option<&GradwireClient>,
    name: *const c_char,
    group: u32,
) -> GradwireCode {
    guard(|| {
        let (client, name) = (object(client, "client")?, text(name, "name")?);
        Ok(client.client.barrier_of(name, self::group(group)?)?)
    })
}
