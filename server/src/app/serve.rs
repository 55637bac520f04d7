//! The thread of one handler: its state is loaded and its journaled requests are handled again, then it takes calls. It must not know
//! what a journal has.

use super::queue::{Queue, Turn};
use super::{App, Call, ReplyMemory};
use crate::journal::{Begin, Desk, Log, Past, Places};
use crate::own::reason;
use crate::runtime::HandlerNews;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

/// A state that could not be saved is asked for again after this time.
const SAVE_AGAIN: Duration = Duration::from_secs(1);
/// While a lane has not answered, the handler looks so often whether it is still wanted.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A handler's number, its queue, and which handler of that queue it is.
pub(super) struct Seat {
    pub(super) app: u32,
    pub(super) queue: Arc<Queue>,
    pub(super) life: u64,
}

/// Runs what may panic. The error is the panic's text.
fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| reason(&*panic))
}

/// Runs a handler until it is unregistered or panics. `lanes`: they exist once there is a journal. `ready`: a handler with a state
/// takes calls from now on.
pub(super) fn serve(
    mut handler: impl App,
    seat: &Seat,
    (spin, desk): (Duration, &Desk),
    lanes: impl Fn() -> Vec<HandlerNews>,
    ready: impl FnOnce(),
) {
    let mut log = None;
    if handler.has_state() {
        match begin(&mut handler, seat, desk, &lanes) {
            Ok(begun) => log = begun,
            Err(()) => return,
        }
        ready();
    }
    while let Some(call) = next(&mut handler, seat, spin, log.as_ref()) {
        if caught(|| handler.call(call)).is_err() {
            tracing::error!(
                app = seat.app,
                "a handler panicked and was removed; calls to it wait for a new handler until their deadline"
            );
            return;
        }
    }
}

/// The next call; the state is saved before it if that is due.
fn next(handler: &mut impl App, seat: &Seat, spin: Duration, log: Option<&Arc<Log>>) -> Option<Call> {
    loop {
        let due = log.filter(|log| log.wants_state());
        let is_saved = due.is_none_or(|log| save(handler, seat, log));
        match seat.queue.next(seat.life, spin, (!is_saved).then_some(SAVE_AGAIN)) {
            Turn::Over => return None,
            Turn::Poked => {}
            Turn::Call(mut call) => {
                if let Some(log) = log {
                    let noted = log.request(call.from, call.origin, &call.head, &call.body);
                    call.reply.go_by(noted);
                }
                return Some(call);
            }
        }
    }
}

/// False: it could not be saved.
fn save(handler: &mut impl App, seat: &Seat, log: &Log) -> bool {
    let app = seat.app;
    match caught(|| handler.save()) {
        Ok(Some(state)) => {
            // Another handler may have the number by now: the journal is of that one.
            if seat.queue.is_open(seat.life) {
                tracing::info!(app, bytes = state.len(), "saved the handler's state for its journal");
                log.saved(state);
            }
            true
        }
        Ok(None) => {
            tracing::warn!(app, "the handler could not save its state; it is asked again");
            false
        }
        Err(reason) => {
            tracing::error!(app, reason, "the handler panicked while it saved its state; it is asked again");
            false
        }
    }
}

/// Brings the handler to where its journal ends. The error: it is not to be run.
fn begin(
    handler: &mut impl App,
    seat: &Seat,
    desk: &Desk,
    lanes: impl Fn() -> Vec<HandlerNews>,
) -> Result<Option<Arc<Log>>, ()> {
    let (app, queue) = (seat.app, seat.queue.clone());
    let is_wanted = || seat.queue.is_open(seat.life);
    let why = match desk.begin(app, is_wanted, move || queue.poke()) {
        Begin::Over => return Err(()),
        Begin::Without => return Ok(None),
        Begin::Fresh(log) => return Ok(Some(log)),
        Begin::After(log, past) => match restore(handler, &log, past, (&lanes(), &is_wanted)) {
            Ok(()) => return Ok(Some(log)),
            Err(reason) => reason,
        },
        Begin::Lost => {
            "no server has its journal: the server that kept it failed, too, before another one had the state"
                .to_owned()
        }
    };
    tracing::error!(
        app,
        reason = why,
        "the state of a handler is lost; calls to it fail. Start the job again"
    );
    desk.lose(app);
    lanes().iter().for_each(|lane| lane.lose(app));
    Err(())
}

fn restore(
    handler: &mut impl App,
    log: &Arc<Log>,
    mut past: Past,
    (lanes, is_wanted): (&[HandlerNews], &impl Fn() -> bool),
) -> Result<(), String> {
    // Before lanes take calls: where it cannot be loaded, none is handled.
    let state = past.state();
    caught(|| handler.load(&state))??;
    let mut places = Places::new();
    let mut memory: Option<ReplyMemory> = None;
    let placed = lanes.iter().zip(past.place(lanes.len(), log));
    let asked: Vec<_> =
        placed.map(|(lane, placed)| (placed.calls, lane.restore(log.app, placed.lines))).collect();
    for (calls, answer) in asked {
        // A lane may read a checkpoint first. If it ends, so does the server, and with it this handler.
        let restored = loop {
            match answer.recv_timeout(LOOK_AGAIN) {
                Ok(restored) => break restored,
                Err(RecvTimeoutError::Timeout) if is_wanted() => {}
                Err(_) => return Err("a lane of this server has ended".to_owned()),
            }
        };
        for (calls, ids) in calls.into_iter().zip(restored.calls) {
            let at = ids.into_iter().map(|id| (restored.answers.clone(), id));
            places.extend(calls.into_iter().zip(at));
        }
        memory = Some(restored.memory);
    }
    let memory = memory.ok_or("this server has no lanes")?;
    let mut count = 0;
    for call in past.requests(log, places, &memory) {
        count += 1;
        caught(|| handler.call(call))?;
    }
    tracing::info!(
        app = log.app,
        state_bytes = state.len(),
        requests = count,
        "the handler continues where the failed process has ended"
    );
    Ok(())
}
