//! Executes what the lanes' engines decide. `lane` is one data thread's work; `thread` runs it, and so do callers
//! through `seat`; `bootstrap` connects servers; `control` talks to the scheduler.

mod bootstrap;
mod connections;
mod control;
#[cfg(test)]
mod failure_tests;
mod flight;
mod lane;
mod line;
mod link;
mod links;
mod live;
mod members;
mod message;
mod op;
#[cfg(test)]
pub(crate) mod rig;
mod seat;
mod shown;
mod spares;
mod states;
mod thread;

pub(crate) use bootstrap::Connector;
pub(crate) use control::{Control, ControlStart, Requests, Roster, Told};
pub(crate) use flight::{waiting, warn};
pub use lane::{LaneConfig, LaneDriver, LaneError};
pub(crate) use line::Line;
pub use link::ServerInbox;
pub(crate) use links::Links;
pub(crate) use members::{Members, Step};
pub(crate) use message::{LaneMessage, LaneReport};
pub(crate) use op::{Answering, CallParts, OpBuffers, RawReply};
pub use op::{OpState, Submission};
pub(crate) use seat::{Blocked, LaneHandle, drive_until};
pub(crate) use shown::{Shown, Viewing};
pub(crate) use spares::Spares;
pub(crate) use states::OpStates;
pub(crate) use thread::spawn_lane;
