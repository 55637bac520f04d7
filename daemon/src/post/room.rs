//! The room for messages that wait for a handler of this process. It must not know what a message is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bounds of what waits, and how much does.
#[derive(Debug)]
pub(super) struct Room {
    count_max: usize,
    bytes_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    bytes: usize,
}

/// What one message takes, until this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    room: Arc<Room>,
    bytes: usize,
}

impl Room {
    pub(super) fn new(count_max: usize, bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { count_max, bytes_max, taken: Mutex::default() })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        // Two numbers that are added to and taken from are whole, whatever happened to others.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for so many bytes, where there is one.
    pub(super) fn place(self: &Arc<Self>, bytes: usize) -> Option<Place> {
        let mut taken = self.taken();
        let has_room = taken.count < self.count_max && taken.bytes.saturating_add(bytes) <= self.bytes_max;
        has_room.then(|| {
            taken.count += 1;
            taken.bytes += bytes;
            Place { room: Arc::clone(self), bytes }
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.room.taken();
        taken.count -= 1;
        taken.bytes -= self.bytes;
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
}
