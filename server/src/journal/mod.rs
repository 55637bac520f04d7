//! Journals of handlers that have a state: what another server has to keep, so that a process that takes this one's place can continue
//! with the same state. [`Log`] is a journal as the handler's server writes it, [`Books`] has the journals that this server keeps for
//! others, [`Past`] is what a new process finds, and [`Desk`] brings handlers and the server's connections together. Without I/O; the
//! connections are in `runtime`.
//!
//! The keeper stores the requests and does not handle them. If it did, each state would have to be in the memory of two programs, and
//! a handler that answers late could not be followed by one that has not seen the same requests.

mod books;
mod desk;
mod log;
mod past;

pub(crate) use books::Books;
pub(crate) use desk::{Begin, Desk};
pub(crate) use log::{Log, Noted, Record};
pub(crate) use past::{Past, Places};
