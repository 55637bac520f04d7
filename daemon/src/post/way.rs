//! The way of messages to the scheduler, for all threads of this process: a handler that does not return is not in it. It must
//! not wait.

use proto_common::message::ToScheduler;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Sends to the scheduler without waiting; false when it cannot any more.
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
        std::mem::take(&mut state.unsent).into_iter().for_each(|message| state.say(message));
    }

    pub(super) fn say(&self, message: ToScheduler) {
        self.state().say(message);
    }
}

impl State {
    fn say(&mut self, message: ToScheduler) {
        match &self.out {
            // Where nobody takes it any more, everyone hears of that as a loss.
            Some(out) => _ = out(message),
            None => self.unsent.push(message),
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
