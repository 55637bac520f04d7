//! The client: what trainers hold. Connects, declares, moves tensors, meets others at barriers. Everything
//! belongs to an instance; several clients can live in one process. `state` has what all clones of a client share, and imports none of
//! the files that move something with it.

mod buffer;
mod call;
mod connect;
mod cut;
mod declare;
mod future;
mod gate;
mod going;
mod handle;
mod home;
mod homes;
mod placing;
mod registrations;
mod reported;
mod resume;
mod state;
mod status;
mod tables;
mod tensor;
mod together;
mod transfer;
mod weights;

pub use buffer::{Element, LentMemory, Piece, ReplyInto, SharedBuffer, Source, Target, TensorBuffer};
pub use call::{CallHandle, CallReply, CallRequest, ReplyBody};
pub use future::OpFuture;
pub use handle::{Ended, Handle};
pub use registrations::RegistrationStats;
pub use state::Client;
pub use tables::{RowsHandle, Table};
pub use tensor::Tensor;
pub use weights::Weights;
