//! An operation and what is to be done when it has ended, which meet once: on the thread that brings them, or on the one that sees the end.

use crate::error::lock;
use gradwire_worker::Handle;
use std::sync::{Arc, Mutex};

/// Who comes first: the caller, to leave what is to be done, or the end itself.
enum Meeting<E> {
    Nobody,
    Left(Handle, E),
    Over,
}

/// Calls `then` when the operation has ended: at once, or on a data thread, where it must be brief and must not wait.
pub(crate) fn when_ended<E: Send + 'static>(
    handle: Handle,
    end: E,
    then: impl Fn(Handle, E) + Clone + Send + 'static,
) {
    if handle.is_done() {
        return then(handle, end);
    }
    let meeting = Arc::new(Mutex::new(Meeting::Nobody));
    let (called, place) = (then.clone(), meeting.clone());
    handle.on_end(move |_| {
        let before = std::mem::replace(&mut *lock(&place), Meeting::Over);
        if let Meeting::Left(handle, end) = before {
            called(handle, end);
        }
    });
    let mut place = lock(&meeting);
    if let Meeting::Over = *place {
        drop(place);
        then(handle, end);
    } else {
        *place = Meeting::Left(handle, end);
    }
}
