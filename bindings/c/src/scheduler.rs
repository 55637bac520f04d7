//! The scheduler in the program's process.

use crate::border::object;
use crate::error::{Failure, GradwireCode, chain, guard};
use crate::server::ended;
use crate::settings::{GradwireSettings, load};
use daemon::shutdown::Trigger;
use gradwire_scheduler::runtime;
use proto_common::config::Settings;
use proto_common::ids::Role;
use std::mem::MaybeUninit;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The scheduler of a cluster. Its functions may be called from any thread. Freed with `gradwire_scheduler_free`.
#[derive(Debug)]
pub struct GradwireScheduler {
    trigger: Trigger,
    running: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    ended: Receiver<Result<(), String>>,
    thread: JoinHandle<()>,
}

impl Running {
    fn join(self) -> Result<(), Failure> {
        let result = self.ended.recv().unwrap_or_else(|_| Err("the scheduler's thread panicked".into()));
        let panicked = |_| Failure::new(GradwireCode::Internal, "the scheduler's thread panicked");
        self.thread.join().map_err(panicked)?;
        ended(result)
    }
}

/// How long binding two sockets may take.
const BIND_WITHIN: Duration = Duration::from_secs(30);

/// Starts the scheduler in this process, on a thread of its own, and returns when it listens where the settings say.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_scheduler_start(
    settings: Option<&GradwireSettings>,
    scheduler: Option<&mut MaybeUninit<Option<Box<GradwireScheduler>>>>,
) -> GradwireCode {
    guard(|| {
        let place = scheduler.ok_or_else(|| Failure::null("scheduler"))?;
        let settings = load(settings, Role::Scheduler)?.settings;
        let (trigger, shutdown) = daemon::shutdown::channel();
        let (tell_bound, bound) = sync_channel(1);
        let (tell_ended, ended) = sync_channel(1);
        let work = move || {
            let result = daemon::process::run_to_end(serve(settings, shutdown, tell_bound));
            let result = result.map_err(|error| chain(&error)).and_then(|result| result);
            // Nobody listens any more where it was freed.
            let _ = tell_ended.try_send(result);
        };
        let thread = std::thread::Builder::new().name("gradwire-scheduler".into()).spawn(work);
        let no_thread = |error| Failure::new(GradwireCode::Memory, format!("cannot start a thread: {error}"));
        let running = Running { ended, thread: thread.map_err(no_thread)? };
        if bound.recv_timeout(BIND_WITHIN).is_err() {
            trigger.fire("it did not start");
            running.join()?;
            return Err(Failure::new(GradwireCode::Unreachable, "the scheduler ended before it listened"));
        }
        place.write(Some(Box::new(GradwireScheduler { trigger, running: Mutex::new(Some(running)) })));
        Ok(())
    })
}

async fn serve(
    settings: Settings,
    shutdown: daemon::shutdown::Shutdown,
    tell_bound: SyncSender<()>,
) -> Result<(), String> {
    let listeners = runtime::bind(&settings).await.map_err(|error| error.to_string())?;
    let _ = tell_bound.try_send(());
    let outcome = runtime::run(listeners, &settings, shutdown).await.map_err(|error| format!("{error:#}"))?;
    runtime::verdict(&outcome).map_err(|error| error.to_string())
}

/// Waits until the job has ended: in good order when all workers have left, else with the reason. It has no deadline of its
/// own, because the job has none. Of several calls one waits.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_scheduler_wait(scheduler: Option<&GradwireScheduler>) -> GradwireCode {
    guard(|| {
        let mut running =
            object(scheduler, "scheduler")?.running.lock().unwrap_or_else(PoisonError::into_inner);
        let running = running.take();
        running.map_or(Ok(()), Running::join)
    })
}

/// Ends the job in good order, unless it has ended, and frees the scheduler. Null is fine.
#[unsafe(no_mangle)]
pub extern "C" fn gradwire_scheduler_free(scheduler: Option<Box<GradwireScheduler>>) {
    guard(|| {
        let Some(scheduler) = scheduler else { return Ok(()) };
        scheduler.trigger.fire("it was freed");
        let running = scheduler.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        running.map_or(Ok(()), Running::join)
    });
}
