//! The way of messages to the scheduler, for all threads of this process: a handler that does not return is not in it. It must
//! not wait.

use proto_common::message::ToScheduler;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Sends to the scheduler without waiting; false when it does not take the message.
pub(super) type Out = Box<dyn Fn(ToScheduler) -> bool + Send>;

/// Keeps what is said before there is a way.
#[derive(Default)]
pub(super) struct Way(Mutex<State>);

#[derive(Default)]
struct State {
    out: Option<Out>,
    unsent: Vec<ToScheduler>,
}

impl Way {
    fn state(&self) -> MutexGuard<'_, State> {
        // What is there is whole, whatever happened to others.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn attach(&self, out: Out) {
        let mut state = self.state();
        state.out = Some(out);
        for message in std::mem::take(&mut state.unsent) {
            state.say(message);
        }
    }

    /// False when the message is not sent: whoever waits for an answer is to be told.
    pub(super) fn say(&self, message: ToScheduler) -> bool {
        self.state().say(message)
    }
}

impl State {
    fn say(&mut self, message: ToScheduler) -> bool {
        match &self.out {
            Some(out) => out(message),
            None => {
                self.unsent.push(message);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn what_is_said_before_there_is_a_way_comes_first() {
        let (way, (say, said)) = (Way::default(), channel());
        way.say(ToScheduler::LinksReady);
        way.attach(Box::new(move |message| say.send(message).is_ok()));
        way.say(ToScheduler::Goodbye);
        assert_eq!(said.try_iter().collect::<Vec<_>>(), [ToScheduler::LinksReady, ToScheduler::Goodbye]);
    }
}
