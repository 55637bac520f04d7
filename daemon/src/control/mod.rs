//! Control connections: frames over TCP, reaching a peer, and a member's link to the scheduler. Payload
//! never travels here, and nothing here decides anything.

mod beats;
mod connect;
mod connection;
mod crowd;
mod frame;
mod link;
mod link_error;
mod seek;
mod undecided;

pub use connect::{ConnectError, connect_with_retry};
pub use connection::{Connection, ReadHalf, WriteHalf};
pub use crowd::{STRANGERS_MAX, patience};
pub use frame::{FrameError, FrameReader, FrameWriter, LENGTH_BYTES, frame_of};
pub use link::{LinkEvent, LinkSender, SchedulerLink};
pub use link_error::{LinkError, code_of_refusal};
pub use undecided::{Overflow, Undecided};
