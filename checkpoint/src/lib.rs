//! The checkpoint format: safetensors parts and a manifest in a directory. `docs/checkpoints.md` is for users. It must
//! not know roles, threads or channels: servers write parts, the scheduler writes manifests, and the command line
//! reads both.
#![forbid(unsafe_code)]

#[cfg(feature = "object-store")]
mod bucket;
mod catalog;
mod directory;
mod entry;
mod error;
mod header;
mod manifest;
mod owner;
mod place;
mod reader;
mod removal;
mod restore;
mod store;
mod writer;

pub use catalog::{
    Listed, Verified, commit, is_name, left_behind, list, name_beside, newest, newest_readable, round_name,
    verify,
};
pub use directory::Directory;
pub use entry::What;
pub use error::CheckpointError;
pub use header::{Entry, Header};
pub use manifest::{Contents, Manifest, PartRecord, Shape, TableRecord, TensorRecord};
pub use owner::{Owner, Ownership, Term, claim, newest_term, utc};
pub use place::{find, is_name_at, list_all, name_of_job, newest_of, open, open_job, own_name, resolve};
pub use reader::{Part, Stretch, TableRows};
pub use removal::{Removed, clean, discard, remove, retain, sweep};
pub use restore::{Checkpoint, ChunkState};
pub use store::{Staged, Store};
pub use writer::{PartPlan, PartWriter, Planned, RowsPiece};

#[cfg(test)]
mod catalog_tests;
#[cfg(test)]
mod tests;
