//! Where checkpoints lie. A place keeps files under a checkpoint's name; what makes them complete is the manifest.

use crate::directory::Directory;
use crate::error::CheckpointError;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The manifest's file.
pub(crate) const MANIFEST: &str = "manifest.json";
/// What the names of files begin with that are being written.
pub(crate) const STAGED: &str = ".tmp-";

/// See the module. Names and files are plain names, which [`crate::Manifest::parse`] checks.
pub trait Store: Debug + Send + Sync {
    /// For people.
    fn place(&self) -> String;
    /// Everything that may be a checkpoint, complete or not, in the order of names.
    fn names(&self) -> Result<Vec<String>, CheckpointError>;
    /// Files of one, with their bytes.
    fn files(&self, name: &str) -> Result<Vec<(String, u64)>, CheckpointError>;
    /// Bytes of a file; `None` where it is not there.
    fn bytes(&self, name: &str, file: &str) -> Result<Option<u64>, CheckpointError>;
    /// Reads so many bytes.
    fn read(&self, name: &str, file: &str, offset: u64, into: &mut [u8]) -> Result<(), CheckpointError>;
    /// A local file to write a part to; it may exist already. The checkpoint does not contain it before [`Store::put`].
    fn stage(&self, name: &str, file: &str) -> Result<PathBuf, CheckpointError>;
    /// Makes a staged file a part, under its name: whole, and so that it outlives a loss of power.
    fn put(&self, name: &str, file: &str, staged: &Path) -> Result<(), CheckpointError>;
    /// Puts a small file there, whole or not at all, in place of one of that name.
    fn put_bytes(&self, name: &str, file: &str, bytes: &[u8]) -> Result<(), CheckpointError>;
    /// Removes a file, if it is there.
    fn remove(&self, name: &str, file: &str) -> Result<(), CheckpointError>;
    /// Removes what is left of a checkpoint that has no files any more. False: it has some, and stays.
    fn forget(&self, name: &str) -> Result<bool, CheckpointError>;
}

/// The store at a directory's path or an object store's URL.
pub fn open(place: &str) -> Result<Arc<dyn Store>, CheckpointError> {
    match place.split_once("://") {
        None => Ok(Arc::new(Directory::new(place))),
        #[cfg(feature = "object-store")]
        Some(_) => Ok(Arc::new(crate::bucket::Bucket::open(place)?)),
        #[cfg(not(feature = "object-store"))]
        Some(_) => {
            let why = "this build knows directories only; build it with the feature object-store".to_owned();
            Err(CheckpointError::BadPlace { place: place.into(), why })
        }
    }
}
