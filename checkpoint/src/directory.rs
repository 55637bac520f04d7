//! Checkpoints in a directory that everybody sees. Files come to their names by renaming, after they are on the disk.

use crate::error::CheckpointError;
use crate::store::{MANIFEST, STAGED, Staged, Store, new_file};
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Parts that are kept open: a part is read block by block, and several lanes read at once.
const KEPT_OPEN_MAX: usize = 16;
/// How often a directory is made again if others remove it while it is empty. Each writer of an earlier try removes it at most once.
const STAGE_TRIES: u32 = 1000;

/// Parts that were read last, the newest first.
type Kept = VecDeque<(PathBuf, Arc<File>)>;

/// See the module.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    kept: Mutex<Kept>,
}

impl Directory {
    /// The checkpoints under a path.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), kept: Mutex::default() }
    }

    fn path(&self, name: &str, file: &str) -> PathBuf {
        self.root.join(name).join(file)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing that can panic runs while the lock is held.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another file comes under this name, or none.
    fn let_go(&self, path: &Path) {
        self.kept().retain(|(other, _)| other != path);
    }

    /// A file to read. Manifests are read once, and others may write them: they are not kept open.
    fn open(&self, path: PathBuf) -> io::Result<Arc<File>> {
        let known = {
            let mut kept = self.kept();
            let at = kept.iter().position(|(other, _)| *other == path);
            at.and_then(|at| kept.remove(at))
        };
        let file = match known {
            Some((_, file)) => file,
            None => Arc::new(File::open(&path)?),
        };
        if !path.ends_with(MANIFEST) {
            let mut kept = self.kept();
            kept.push_front((path, file.clone()));
            kept.truncate(KEPT_OPEN_MAX);
        }
        Ok(file)
    }

    /// The names in a directory say what is in it only once the directory itself is on the disk.
    fn sync(path: &Path) -> Result<(), CheckpointError> {
        flush(path).map_err(CheckpointError::io("sync", path.display().to_string()))
    }
}

fn flush(directory: &Path) -> io::Result<()> {
    #[cfg(test)]
    tests::FLUSHED.with_borrow_mut(|flushed| flushed.push(directory.to_owned()));
    File::open(directory)?.sync_all()
}

/// Makes a directory, and those above it that are missing. After a loss of power each of them is there: a new one is only in
/// the directory above it once that is on the disk. False: it was there.
fn make(directory: &Path) -> io::Result<bool> {
    // Of a path of one word, that is where the process runs.
    let above =
        directory.parent().map(|above| if above.as_os_str().is_empty() { Path::new(".") } else { above });
    let made = match (fs::create_dir(directory), above) {
        (Err(error), Some(above)) if error.kind() == ErrorKind::NotFound => {
            make(above)?;
            fs::create_dir(directory)
        }
        (made, _) => made,
    };
    match made {
        Ok(()) => above.map_or(Ok(()), flush).map(|()| true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists && directory.is_dir() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Is the directory gone, and nothing else in its place?
fn is_removed(error: &io::Error, directory: &Path) -> bool {
    let may_be = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists);
    may_be && !directory.is_symlink() && !directory.is_file()
}

/// A new file in place of one of an earlier try. A link in its place is removed, and not followed.
fn replace(path: &Path) -> io::Result<File> {
    match new_file(path, &mut OpenOptions::new()) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            absent(fs::remove_file(path))?;
            new_file(path, &mut OpenOptions::new())
        }
        made => made,
    }
}

fn absent<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Store for Directory {
    fn place(&self) -> String {
        self.root.display().to_string()
    }

    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let failed = || CheckpointError::io("list", self.place());
        let Some(entries) = absent(fs::read_dir(&self.root)).map_err(failed())? else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed())?;
            // One that cannot be looked at may be a checkpoint: whoever reads it is told why it cannot be read.
            let may_be = match absent(fs::metadata(entry.path())) {
                Ok(about) => about.map_or(entry.path().is_symlink(), |about| about.is_dir()),
                Err(_) => true,
            };
            if let (true, Ok(name)) = (may_be, entry.file_name().into_string()) {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn files(&self, name: &str) -> Result<Vec<(String, u64)>, CheckpointError> {
        let path = self.root.join(name);
        let failed = || CheckpointError::io("list", path.display().to_string());
        let Some(entries) = absent(fs::read_dir(&path)).map_err(failed())? else { return Ok(Vec::new()) };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed())?;
            // One that has just been renamed is not there any more.
            let Some(about) = absent(entry.metadata()).map_err(failed())? else { continue };
            if let (true, Ok(file)) = (about.is_file(), entry.file_name().into_string()) {
                files.push((file, about.len()));
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    fn bytes(&self, name: &str, file: &str) -> Result<Option<u64>, CheckpointError> {
        let path = self.path(name, file);
        // Whoever begins to read asks this first: it may be another file by now.
        self.let_go(&path);
        let about = absent(fs::metadata(&path));
        let about = about.map_err(CheckpointError::io("get the size of", path.display().to_string()))?;
        if about.is_none() {
            // An archive that is not mounted: what is there cannot be said.
            let leads_nowhere = |link: &PathBuf| link.is_symlink() && !link.exists();
            if let Some(link) = [self.root.join(name), path.clone()].into_iter().find(leads_nowhere) {
                let why = ErrorKind::NotFound.into();
                return Err(CheckpointError::io("follow the link", link.display().to_string())(why));
            }
        }
        match about {
            // A pipe in a file's place would be waited for.
            Some(about) if !about.is_file() => {
                Err(CheckpointError::corrupt(&path.display().to_string(), "it is not a file"))
            }
            about => Ok(about.map(|about| about.len())),
        }
    }

    fn read(&self, name: &str, file: &str, offset: u64, into: &mut [u8]) -> Result<(), CheckpointError> {
        let path = self.path(name, file);
        let read = self.open(path.clone()).and_then(|file| file.read_exact_at(into, offset));
        read.map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => {
                CheckpointError::corrupt(&path.display().to_string(), "it is too short")
            }
            _ => CheckpointError::io("read", path.display().to_string())(error),
        })
    }

    /// Makes the file at once, because cleaning up after an earlier try removes the directory while it is empty: once for each writer of
    /// that try.
    fn stage(&self, name: &str, file: &str) -> Result<Staged, CheckpointError> {
        let directory = self.root.join(name);
        let path = directory.join(format!("{STAGED}{file}"));
        let failed = |path: &Path| CheckpointError::io("make", path.display().to_string());
        let (mut is_new, mut tries) = (false, STAGE_TRIES);
        loop {
            match make(&directory).and_then(|_| replace(&path)) {
                Ok(file) => {
                    let staged = Staged::named(file, path);
                    // Somebody else has made it, and may not have synced it yet.
                    return if is_new { Self::sync(&self.root).map(|()| staged) } else { Ok(staged) };
                }
                // It was removed before the file was there, or between another writer's making it and a look at it.
                Err(error) if tries > 0 && is_removed(&error, &directory) => {
                    (is_new, tries) = (true, tries - 1);
                }
                Err(error) => return Err(failed(&path)(error)),
            }
        }
    }

    fn put(&self, name: &str, file: &str, staged: Staged) -> Result<(), CheckpointError> {
        let path = self.path(name, file);
        let failed = || CheckpointError::io("put in place", path.display().to_string());
        staged.file.sync_all().map_err(failed())?;
        fs::rename(&staged.path, &path).map_err(failed())?;
        staged.renamed();
        self.let_go(&path);
        Self::sync(&self.root.join(name))
    }

    fn put_bytes(&self, name: &str, file: &str, bytes: &[u8]) -> Result<(), CheckpointError> {
        // If this fails on a full disk, half of a file must not take the room of the next one: it goes when it is dropped.
        let mut staged = self.stage(name, file)?;
        let written = staged.file.write_all(bytes);
        written.map_err(CheckpointError::io("write", staged.path.display().to_string()))?;
        self.put(name, file, staged)
    }

    fn put_new(&self, name: &str, file: &str, bytes: &[u8]) -> Result<bool, CheckpointError> {
        let (directory, path) = (self.root.join(name), self.path(name, file));
        let failed = || CheckpointError::io("make", path.display().to_string());
        make(&directory).map_err(failed())?;
        let mut made = match new_file(&path, &mut OpenOptions::new()) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
            made => made.map_err(failed())?,
        };
        if let Err(error) = made.write_all(bytes).and_then(|()| made.sync_all()) {
            // On a full disk, half of it would stand for a file of somebody else.
            let _ = fs::remove_file(&path);
            return Err(failed()(error));
        }
        Self::sync(&directory).map(|()| true)
    }

    fn remove(&self, name: &str, file: &str) -> Result<(), CheckpointError> {
        let path = self.path(name, file);
        let removed = absent(fs::remove_file(&path));
        removed.map_err(CheckpointError::io("remove", path.display().to_string()))?;
        self.let_go(&path);
        // Whoever else clears up may have removed the directory as well.
        let directory = self.root.join(name);
        let synced = absent(flush(&directory)).map(drop);
        synced.map_err(CheckpointError::io("sync", directory.display().to_string()))
    }

    fn forget(&self, name: &str) -> Result<bool, CheckpointError> {
        let path = self.root.join(name);
        match fs::remove_dir(&path) {
            Ok(()) => Self::sync(&self.root).map(|()| true),
            Err(error) => match error.kind() {
                ErrorKind::NotFound => Ok(true),
                // Something is in it; or it is a link to where somebody put it.
                ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
                    Ok(false)
                }
                _ => Err(CheckpointError::io("remove", path.display().to_string())(error)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_directory_that_others_remove_while_it_is_empty_is_made_again() {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::new(place.path());
        let (is_over, begin) = (AtomicBool::new(false), Barrier::new(3));
        let write = |part: &'static str| {
            begin.wait();
            (0..50).try_for_each(|_| {
                drop(directory.stage("one", part)?);
                directory.put_bytes("one", &format!("{part}.json"), b"{}")?;
                directory.remove("one", &format!("{part}.json"))
            })
        };
        std::thread::scope(|scope| {
            let clearing = scope.spawn(|| {
                let mut removed = 0;
                begin.wait();
                while removed < STAGE_TRIES && !is_over.load(Ordering::Relaxed) {
                    removed += u32::from(fs::remove_dir(place.path().join("one")).is_ok());
                }
                removed
            });
            let other = scope.spawn(|| write("part-1"));
            let written = write("part-0").and(other.join().unwrap());
            is_over.store(true, Ordering::Relaxed);
            written.unwrap();
            assert!(clearing.join().unwrap() > 0);
        });
    }

    thread_local! {
        /// Directories that this thread has synced.
        pub(super) static FLUSHED: RefCell<Vec<PathBuf>> = RefCell::default();
    }

    #[test]
    fn every_directory_that_is_made_is_synced_into_the_one_above_it() {
        let place = tempfile::tempdir().unwrap();
        let (first, root) = (place.path().join("a"), place.path().join("a/b"));
        drop(Directory::new(&root).stage("one", "part").unwrap());
        let flushed = FLUSHED.take();
        for above in [place.path(), &first, &root] {
            assert!(
                flushed.iter().any(|path| path == above),
                "{} is not synced: {flushed:?}",
                above.display()
            );
        }
        drop(Directory::new(&root).stage("one", "part").unwrap());
        assert!(FLUSHED.take().is_empty(), "nothing is made");
    }

    #[test]
    fn a_link_in_place_of_a_staged_file_is_replaced_and_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let (directory, other) = (Directory::new(place.path()), place.path().join("other"));
        fs::create_dir(place.path().join("one")).unwrap();
        fs::write(&other, "somebody's").unwrap();
        std::os::unix::fs::symlink(&other, directory.path("one", ".tmp-part")).unwrap();
        directory.put_bytes("one", "part", b"ours").unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"somebody's");
        assert_eq!(fs::read(directory.path("one", "part")).unwrap(), b"ours");
        assert!(!directory.path("one", "part").is_symlink());
    }

    #[test]
    fn parts_are_kept_open_and_what_takes_their_place_is_read() {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::new(place.path());
        let read = |file: &str| {
            let mut byte = [0];
            directory.read("one", file, 1, &mut byte).map(|()| byte[0])
        };
        let names: Vec<String> = (0..2 * KEPT_OPEN_MAX).map(|part| format!("part-{part}")).collect();
        for (at, name) in (0u8..).zip(&names) {
            directory.put_bytes("one", name, &[0, at]).unwrap();
            assert_eq!((read(name).unwrap(), read(name).unwrap()), (at, at));
        }
        assert_eq!(directory.kept().len(), KEPT_OPEN_MAX);
        // The newest is kept: it is read where it is not found by its name any more.
        let last = names.last().unwrap();
        fs::remove_file(directory.path("one", last)).unwrap();
        assert_eq!(read(last).unwrap(), names.len() as u8 - 1);
        directory.put_bytes("one", last, &[0, 99]).unwrap();
        assert_eq!(read(last).unwrap(), 99);
        directory.remove("one", last).unwrap();
        assert!(read(last).is_err());
        // Somebody else puts a manifest there.
        directory.put_bytes("one", MANIFEST, &[0, 1]).unwrap();
        assert_eq!(read(MANIFEST).unwrap(), 1);
        Directory::new(place.path()).put_bytes("one", MANIFEST, &[0, 2]).unwrap();
        assert_eq!(read(MANIFEST).unwrap(), 2);
    }
}
