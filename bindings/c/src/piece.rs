//! Memory of the program for a request or a reply: copied during the call, or kept until it is released.

use crate::border::bytes;
use crate::error::Failure;
use fabric::{Access, Region};
use gradwire_worker::{Client, LentMemory, Piece};
use std::ffi::c_void;
use std::ptr::NonNull;

/// A piece of a body. Without `release` it is copied during the call. With `release` the library may read the memory
/// until it calls `release` with the context: exactly once, from any thread, and also if the call fails. Nothing may
/// change the memory before that. `release` must return quickly and must not call the library.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GradwirePiece {
    /// Its address.
    pub data: *const c_void,
    /// Its size in bytes; if 0, `data` may be null.
    pub bytes: u64,
    /// Called when the library no longer needs the memory; may be null.
    pub release: Option<extern "C" fn(context: *mut c_void)>,
    /// The context for `release`.
    pub context: *mut c_void,
}

/// Lets go of the program's memory when it is dropped.
#[derive(Debug)]
struct Owner {
    release: extern "C" fn(*mut c_void),
    context: *mut c_void,
}

// SAFETY: the program is told that release is called from any thread, once, with the context, which nothing here looks
// behind. Needed because whoever needs the memory last may be any thread.
unsafe impl Send for Owner {}
// SAFETY: a shared owner is not used for anything.
unsafe impl Sync for Owner {}

impl Drop for Owner {
    fn drop(&mut self) {
        (self.release)(self.context);
    }
}

/// A piece as it was taken over.
#[derive(Debug)]
pub(crate) enum Lent<'a> {
    /// The caller's again when the call returns.
    Borrowed(&'a [u8]),
    /// Kept, with who lets go of it.
    Kept(Region),
}

impl<'a> Lent<'a> {
    /// Takes pieces over: from here on each owner is let go of, whatever fails.
    pub(crate) fn take(pieces: &[GradwirePiece]) -> Result<Vec<Self>, Failure> {
        let owners: Vec<_> = pieces
            .iter()
            .map(|piece| piece.release.map(|release| Owner { release, context: piece.context }))
            .collect();
        let taken = pieces.iter().zip(owners).map(|(piece, owner)| Self::one(piece, owner));
        // All of them are looked at, so that none is left with its owner.
        taken.collect::<Vec<_>>().into_iter().collect()
    }

    fn one(piece: &GradwirePiece, owner: Option<Owner>) -> Result<Self, Failure> {
        let data = bytes(piece.data.cast(), piece.bytes, "a piece's data")?;
        let (start, count) = (NonNull::from(data).cast(), data.len());
        let Some(owner) = owner.filter(|_| count > 0) else { return Ok(Self::Borrowed(data)) };
        // SAFETY: by the header's contract the memory stays readable and unchanged until its owner is told, which is
        // when the region is dropped. Needed because a region outlives every borrow.
        Ok(Self::Kept(unsafe { Region::adopt(start, count, Access::Read, Box::new(owner)) }))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Borrowed(data) => data.len(),
            Self::Kept(region) => region.len(),
        }
    }

    /// Room for a reply, if it is registered memory of this client; otherwise it is released.
    pub(crate) fn room(self, client: &Client) -> Option<LentMemory> {
        match self {
            Self::Borrowed(_) => None,
            Self::Kept(region) => client.lent(region).ok(),
        }
    }

    /// The piece of a call. Registered memory of the client stays where it is until the server has read it. Other memory is copied
    /// and released before the call returns.
    pub(crate) fn for_call(self, client: &Client) -> Piece {
        match self {
            Self::Kept(region) => client.lent(region).map_or_else(Piece::Adopted, Piece::Lent),
            Self::Borrowed(data) => {
                // SAFETY: the caller's memory stays readable and unchanged until the function that borrowed it returns, and
                // `Client::call` drops its pieces of other owners before that. Needed so that it is copied once, when
                // there is registered memory for all of the request.
                let region = unsafe {
                    Region::adopt(NonNull::from(data).cast(), data.len(), Access::Read, Box::new(()))
                };
                Piece::Adopted(region)
            }
        }
    }

    /// Copies it; `to` is as long as it is.
    pub(crate) fn copy_to(&self, to: &mut [u8]) {
        match self {
            Self::Borrowed(data) => to.copy_from_slice(data),
            Self::Kept(region) => to.copy_from_slice(&region.contents()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    extern "C" fn count(context: *mut c_void) {
        // SAFETY: the tests pass a counter that outlives the pieces.
        unsafe { &*context.cast::<AtomicU32>() }.fetch_add(1, Ordering::Relaxed);
    }

    fn piece(data: &[u8], released: &AtomicU32) -> GradwirePiece {
        let context = std::ptr::from_ref(released).cast_mut().cast();
        GradwirePiece { data: data.as_ptr().cast(), bytes: data.len() as u64, release: Some(count), context }
    }

    #[test]
    fn each_owner_is_told_once_when_the_memory_is_not_needed() {
        let released = AtomicU32::new(0);
        let taken = Lent::take(&[piece(b"abc", &released), piece(b"", &released)]).expect("pieces");
        assert_eq!(released.load(Ordering::Relaxed), 1, "the empty one is not needed");
        let mut copy = [0; 3];
        taken[0].copy_to(&mut copy);
        assert_eq!((&copy, taken[0].len()), (b"abc", 3));
        drop(taken);
        assert_eq!(released.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn owners_are_told_where_a_piece_is_wrong() {
        let released = AtomicU32::new(0);
        let wrong = GradwirePiece { data: std::ptr::null(), ..piece(b"abc", &released) };
        assert!(Lent::take(&[piece(b"abc", &released), wrong, piece(b"abc", &released)]).is_err());
        assert_eq!(released.load(Ordering::Relaxed), 3);
    }
}
