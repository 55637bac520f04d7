//! Where checkpoints lie. A place keeps files under a checkpoint's name; what makes them complete is the manifest.

use crate::error::CheckpointError;
use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// The manifest's file.
pub(crate) const MANIFEST: &str = "manifest.json";
/// What the names of files begin with that are being written.
pub(crate) const STAGED: &str = ".tmp-";

/// A local file that a part is written to. If it is dropped before [`Store::put`] has taken it, nothing of it remains.
#[derive(Debug)]
pub struct Staged {
    /// The file, open for reading and writing.
    pub file: File,
    /// Where it is, for errors; where it was, if it has no name any more.
    pub path: PathBuf,
    has_name: bool,
}

impl Staged {
    /// A file with a name, which it loses when it is dropped.
    pub(crate) fn named(file: File, path: PathBuf) -> Self {
        Self { file, path, has_name: true }
    }

    /// A file whose name is removed already: if the process is killed, the system frees its bytes.
    #[cfg(feature = "object-store")]
    pub(crate) fn nameless(file: File, path: PathBuf) -> Self {
        Self { file, path, has_name: false }
    }

    /// The name is another one now.
    pub(crate) fn renamed(mut self) {
        self.has_name = false;
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if self.has_name {
            // What was given up takes no room any more. An error has nobody to hear it, and retention looks for leftovers too.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes a new file, and does not follow a link that somebody has put in its place.
pub(crate) fn new_file(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.read(true).write(true).create_new(true).open(path)
}

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
    /// A new local file to write a part to. The checkpoint does not contain it before [`Store::put`].
    fn stage(&self, name: &str, file: &str) -> Result<Staged, CheckpointError>;
    /// Makes a staged file a part, under its name: whole, and so that it outlives a loss of power.
    fn put(&self, name: &str, file: &str, staged: Staged) -> Result<(), CheckpointError>;
    /// Puts a small file there, whole or not at all, in place of one of that name.
    fn put_bytes(&self, name: &str, file: &str, bytes: &[u8]) -> Result<(), CheckpointError>;
    /// Makes a small file of this name, if there is none. False: there is one, and it stays as it is.
    fn put_new(&self, name: &str, file: &str, bytes: &[u8]) -> Result<bool, CheckpointError>;
    /// Removes a file, if it is there.
    fn remove(&self, name: &str, file: &str) -> Result<(), CheckpointError>;
    /// Removes what is left of a checkpoint that has no files any more. False: it has some, and stays.
    fn forget(&self, name: &str) -> Result<bool, CheckpointError>;
}
