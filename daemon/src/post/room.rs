//! The room for messages that wait: for a handler of this process, or for their answers. It must not know what a message is.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bounds of what waits, and how much does.
#[derive(Debug)]
pub(super) struct Room {
    count_max: usize,
    bytes_max: usize,
    taken: Mutex<Taken>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    bytes: usize,
    waiters: usize,
}

/// What some messages take, until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    room: Arc<Room>,
    count: usize,
    bytes: usize,
}

impl Room {
    pub(super) fn new(count_max: usize, bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { count_max, bytes_max, taken: Mutex::default(), freed: Condvar::new() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Two numbers that are added to and taken from are whole, whatever happened to others.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn place(self: &Arc<Self>, bytes: usize) -> Option<Place> {
        let mut taken = self.taken();
        let has_room = taken.count < self.count_max && taken.bytes.saturating_add(bytes) <= self.bytes_max;
        has_room.then(|| self.take_of(&mut taken, 1, bytes))
    }

    /// A place for so many messages with so many bytes, also beyond the bounds.
    pub(super) fn take(self: &Arc<Self>, count: usize, bytes: usize) -> Place {
        self.take_of(&mut self.taken(), count, bytes)
    }

    fn take_of(self: &Arc<Self>, taken: &mut Taken, count: usize, bytes: usize) -> Place {
        taken.count += count;
        taken.bytes += bytes;
        Place { room: Arc::clone(self), count, bytes }
    }

    /// Waits until both bounds have room, at most so long. Otherwise the error is how many messages wait.
    pub(super) fn wait(&self, within: Duration) -> Result<(), usize> {
        let until = Instant::now() + within;
        let mut taken = self.taken();
        while taken.count >= self.count_max || taken.bytes >= self.bytes_max {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(taken.count);
            }
            taken.waiters += 1;
            taken = self.freed.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
            taken.waiters -= 1;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.room.taken();
        taken.count -= self.count;
        taken.bytes -= self.bytes;
        if taken.waiters > 0 {
            self.room.freed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_of_each_bound() {
        let room = Room::new(2, 10);
        let whole = room.place(10).unwrap();
        assert!(room.place(1).is_none(), "by its bytes");
        let empty = room.place(0).unwrap();
        assert!(room.place(0).is_none(), "by their number");
        drop((whole, empty));
        assert!(room.place(11).is_none() && room.place(usize::MAX).is_none());
        assert!(room.place(10).is_some());
    }

    #[test]
    fn whoever_waits_waits_until_both_bounds_have_room() {
        for (count, bytes) in [(8, 0), (1, 100)] {
            let room = Room::new(8, 100);
            let (most, beyond) = (room.take(count, bytes), room.take(0, 0));
            assert_eq!(room.wait(Duration::from_millis(1)), Err(count));
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| room.wait(Duration::from_secs(60)));
                while room.taken().waiters == 0 {
                    std::thread::yield_now();
                }
                drop(most);
                assert_eq!(waiter.join().unwrap(), Ok(()));
            });
            drop(beyond);
            let _less = room.take(count.min(7), bytes.min(99));
            assert_eq!(room.wait(Duration::ZERO), Ok(()));
        }
    }
}
