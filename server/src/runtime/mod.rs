//! Executes what the engines decide. `lane` is one data thread's work, `thread` runs it; `bootstrap` takes
//! others' connections, `streams` reaches servers that have copies; `serving` executes what the member engine decides; `run`
//! puts them together with the scheduler link and the HTTP endpoints.

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
