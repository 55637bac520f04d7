//! The server's part of checkpoints beside the data path: the thread that writes parts, the memory that copies may take until
//! they are written, and the reading of the checkpoint that tensors begin from. It must not decide what is copied when: that is
//! the engine's business.

mod budget;
mod part;
mod restore;
mod saver;

pub(crate) use part::{Begin, Copied, LanePart, Piece, file_of};
pub(crate) use restore::{Progress, Restorer};
pub(crate) use saver::{LaneSaver, Saver};
