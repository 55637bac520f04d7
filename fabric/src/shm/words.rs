//! Two words that two processes of one user share and wait on: what a benchmark measures a bare exchange with. Drivers
//! have rings and doorbells instead.

use super::link::timespec;
use super::shared::{LINE_PAIR_BYTES, map_shared_memory, own_memory, word32};
use crate::error::FabricError;
use crate::memory::{Mapping, Region};
use rustix::fs::{Mode, OFlags, open};
use rustix::thread::futex;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const BYTES: usize = 4096;

/// Which of the two words; they are cache lines apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedWord {
    /// The first one.
    First,
    /// The second one.
    Second,
}

/// Two 32-bit words in memory shared with another process.
#[derive(Debug)]
pub struct SharedWords {
    mapping: Mapping,
    /// Of whoever made them.
    region: Option<Region>,
}

impl SharedWords {
    /// Makes two words, both 0.
    pub fn create() -> Result<Self, FabricError> {
        let (mapping, region) = own_memory(BYTES, "gradwire-words")?;
        Ok(Self { mapping, region: Some(region) })
    }

    /// Where another process of this user can open them, while this one lives; `None` of words that were opened.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        let fd = self.region.as_ref()?.memfd()?.as_fd().as_raw_fd();
        Some(PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id())))
    }

    /// Opens what another process has made.
    pub fn open(path: &Path) -> Result<Self, FabricError> {
        let file = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| FabricError::os("opening shared words", e))?;
        Ok(Self { mapping: map_shared_memory(file.as_fd(), BYTES)?, region: None })
    }

    fn word(&self, word: SharedWord) -> &AtomicU32 {
        word32(&self.mapping, if word == SharedWord::First { 0 } else { LINE_PAIR_BYTES })
    }

    /// The word's value.
    #[inline]
    #[must_use]
    pub fn load(&self, word: SharedWord) -> u32 {
        self.word(word).load(Ordering::Acquire)
    }

    /// Changes the word, and wakes nobody.
    #[inline]
    pub fn store(&self, word: SharedWord, value: u32) {
        self.word(word).store(value, Ordering::Release);
    }

    /// Wakes whoever sleeps on the word.
    pub fn wake(&self, word: SharedWord) {
        // Cannot fail on a mapped word.
        let _ = futex::wake(self.word(word), futex::Flags::empty(), i32::MAX as u32);
    }

    /// Sleeps while the word has this value: until it is woken, or the time is over, or for no reason at all.
    pub fn sleep_while(&self, word: SharedWord, value: u32, at_most: Duration) {
        // Interrupted, over, or changed before: the caller looks for itself in each case.
        let _ = futex::wait(self.word(word), futex::Flags::empty(), value, Some(&timespec(at_most)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_side_stores_the_other_sees_and_is_woken_by() {
        let ours = SharedWords::create().unwrap();
        let theirs = SharedWords::open(&ours.path().unwrap()).unwrap();
        assert!(theirs.path().is_none());
        let echo = std::thread::spawn(move || {
            while theirs.load(SharedWord::First) == 0 {
                theirs.sleep_while(SharedWord::First, 0, Duration::from_secs(5));
            }
            theirs.store(SharedWord::Second, theirs.load(SharedWord::First) + 1);
            theirs.wake(SharedWord::Second);
        });
        ours.store(SharedWord::First, 7);
        ours.wake(SharedWord::First);
        while ours.load(SharedWord::Second) == 0 {
            ours.sleep_while(SharedWord::Second, 0, Duration::from_secs(5));
        }
        echo.join().unwrap();
        assert_eq!((ours.load(SharedWord::First), ours.load(SharedWord::Second)), (7, 8));
    }

    #[test]
    fn only_sealed_memory_is_opened() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(BYTES as u64).unwrap();
        assert!(SharedWords::open(file.path()).is_err());
        assert!(SharedWords::open(Path::new("/nonexistent")).is_err());
        let readable = Region::allocate_readable(BYTES, "readable").unwrap();
        let fd = readable.memfd().unwrap().as_fd().as_raw_fd();
        let path = PathBuf::from(format!("/proc/self/fd/{fd}"));
        assert!(SharedWords::open(&path).is_err(), "a word that nobody could write");
    }
}
