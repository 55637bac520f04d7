//! Executes what the engines decide. `lane` is what one data thread works on. `turn` receives batches and calls the engine, `execute`
//! executes the commands, `posting` writes to workers, `results` encodes result batches, `replicas` writes and reads records between
//! servers, and `thread` runs the lane. `bootstrap` accepts connections of workers and other servers, `streams` connects to servers
//! that have replicas, `serving` executes what the member engine decides, and `run` connects all of them with the scheduler link and the
//! HTTP endpoints.

mod bootstrap;
mod calling;
mod calls;
mod change;
mod draining;
mod embed;
mod error;
mod execute;
#[cfg(test)]
mod failure_tests;
#[cfg(test)]
mod fence_tests;
mod fences;
mod flight;
mod journals;
mod lane;
mod link;
mod message;
mod moving;
mod news;
mod peers;
mod posting;
mod records;
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
mod turn;

pub use embed::{Server, StartError, listen};
pub use error::LaneError;
pub use lane::{DataLane, LaneConfig};
pub use link::WorkerInbox;
pub use message::LaneNews;
pub(crate) use message::{Answers, HandlerNews};
pub use run::run;
pub use serving::RunError;
