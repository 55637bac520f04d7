//! Executes what the engines decide. `lane` is one data thread's work: it receives batches and calls the engine; `execute` executes
//! the commands, `posting` writes to workers, `results` encodes result batches, `replicas` writes and reads records between servers,
//! `thread` runs it. `bootstrap` takes others' connections, `streams` connects to servers that have replicas, `serving` executes what
//! the member engine decides, and `run` puts them together with the scheduler link and the HTTP endpoints.

mod bootstrap;
mod calls;
mod change;
mod embed;
mod execute;
#[cfg(test)]
mod failure_tests;
#[cfg(test)]
mod fence_tests;
mod fences;
mod flight;
mod lane;
mod link;
mod making;
mod moving;
mod news;
mod posting;
mod replicas;
#[cfg(test)]
mod restore_tests;
mod results;
#[cfg(test)]
mod rig;
mod roles;
mod run;
mod saving;
mod serving;
mod slots;
mod standing;
mod status;
mod streams;
mod tables;
mod thread;
mod workers;

pub(crate) use calls::{AnswerBody, Answers, HandlerNews};
pub use embed::{Server, StartError, listen};
pub use lane::{DataLane, LaneConfig, LaneError};
pub use link::WorkerInbox;
pub use run::run;
pub use serving::RunError;
pub use thread::LaneNews;
