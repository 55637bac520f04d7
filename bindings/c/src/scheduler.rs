//! The scheduler in the program's process.

use crate::border::{lock, make, object};
use crate::error::{Failure, GradwireCode, free, guard};
use crate::message::GradwireMessages;
use crate::server::ended;
use crate::settings::{GradwireSettings, load};
use daemon::post::Posts;
use gradwire_scheduler::runtime::Scheduler;
use proto_common::ids::Role;
use std::mem::MaybeUninit;
use std::sync::Mutex;

/// The scheduler of a cluster. Any thread may call its functions. Free it with `gradwire_scheduler_free`.
#[derive(Debug)]
pub struct GradwireScheduler {
    workers: u32,
    servers: u32,
    posts: Posts,
    scheduler: Mutex<Option<Scheduler>>,
}

/// Starts the scheduler in this process, on a separate thread, and returns when it listens at the address in the
/// settings.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_scheduler_start(
    settings: Option<&GradwireSettings>,
    scheduler: Option<&mut MaybeUninit<Option<Box<GradwireScheduler>>>>,
) -> GradwireCode {
    guard(|| {
        make(scheduler, "scheduler", || {
            let settings = load(settings, Role::Scheduler)?.settings;
            let (workers, servers) = (settings.cluster.workers, settings.cluster.servers);
            let failed = |error| Failure::new(GradwireCode::Unreachable, format!("{error:#}"));
            let started = Scheduler::start(settings).map_err(failed)?;
            let posts = started.posts().clone();
            Ok(GradwireScheduler { workers, servers, posts, scheduler: Mutex::new(Some(started)) })
        })
    })
}

/// The number of workers in the cluster. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_scheduler_workers(scheduler: Option<&GradwireScheduler>) -> u32 {
    scheduler.map_or(0, |scheduler| scheduler.workers)
}

/// The number of servers in the cluster. 0 for null.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_scheduler_servers(scheduler: Option<&GradwireScheduler>) -> u32 {
    scheduler.map_or(0, |scheduler| scheduler.servers)
}

/// Its messages and barriers.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_scheduler_messages(
    scheduler: Option<&GradwireScheduler>,
    messages: Option<&mut MaybeUninit<Option<Box<GradwireMessages>>>>,
) -> GradwireCode {
    guard(|| {
        make(messages, "messages", || Ok(GradwireMessages(object(scheduler, "scheduler")?.posts.clone())))
    })
}

/// Waits until the job has ended: successfully when all workers have left, otherwise with the reason. It has no
/// deadline, because a job has none. If several threads call it, one of them waits.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_scheduler_wait(scheduler: Option<&GradwireScheduler>) -> GradwireCode {
    guard(|| {
        let running = lock(&object(scheduler, "scheduler")?.scheduler).take();
        running.map_or(Ok(()), |running| ended(running.join()))
    })
}

/// Ends the job in good order, unless it has ended or another thread waits for that, and frees the scheduler. Null is
/// allowed.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_scheduler_free(scheduler: Option<Box<GradwireScheduler>>) {
    free(scheduler);
}
