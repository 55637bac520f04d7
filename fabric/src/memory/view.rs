//! A view: a stretch of memory that somebody else may write, read, or written, where it lies. It hands out copies and numbers
//! only: the bytes may change at any time, so they are never a Rust reference.

use super::elements::{Number, Numbers};
use super::lent::PeerWritable;
#[cfg(feature = "sim")]
use super::region::Region;
use super::region::{Mapping, OutOfBounds};
use std::sync::Arc;

/// Who keeps the memory.
#[derive(Clone, Debug)]
enum Holder {
    /// A peer's region, mapped here.
    Mapped(Arc<Mapping>),
    /// This process, which has both ends of a simulated channel.
    #[cfg(feature = "sim")]
    Ours(Region),
    /// This process, which lends it: nobody slices it while there is a view.
    Lent(Arc<PeerWritable>),
}

/// A stretch of a peer's granted region. It stays readable when the channel has ended and the peer is gone; what the
/// bytes then mean is for its holder to know.
#[derive(Clone, Debug)]
pub struct View {
    holder: Holder,
    offset: u64,
    bytes: u64,
}

impl View {
    pub(crate) fn all(mapping: Arc<Mapping>) -> Self {
        Self { offset: 0, bytes: mapping.len() as u64, holder: Holder::Mapped(mapping) }
    }

    /// Of a region of this process, for the simulated driver, where that is a peer's, too.
    #[cfg(feature = "sim")]
    pub(crate) fn of_region(region: &Region) -> Self {
        Self { offset: 0, bytes: region.len() as u64, holder: Holder::Ours(region.clone()) }
    }

    /// A stretch of this stretch.
    #[inline]
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<Self, OutOfBounds> {
        OutOfBounds::unless_within(offset, bytes, self.bytes)?;
        Ok(Self { holder: self.holder.clone(), offset: self.offset + offset, bytes })
    }

    /// Bytes of the view.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Is it empty?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn mapping(&self) -> &Mapping {
        match &self.holder {
            Holder::Mapped(mapping) => mapping,
            #[cfg(feature = "sim")]
            Holder::Ours(region) => region.mapping(),
            Holder::Lent(lent) => lent.mapping(),
        }
    }

    #[inline]
    fn at(&self, offset: u64, bytes: usize) -> Result<*mut u8, OutOfBounds> {
        OutOfBounds::unless_within(offset, bytes as u64, self.bytes)?;
        self.mapping().at(self.offset + offset, bytes as u64)
    }

    /// Copies bytes out, from `offset` within the view. A peer writing meanwhile can tear them: validate the
    /// copy, or know from the protocol that nobody writes.
    #[inline]
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.at(offset, into.len())?;
        // SAFETY: the source is mapped as long as the holder lives and in bounds (checked); the target is
        // an exclusive slice, which memory with a view is none of. Should the target be a pool buffer of this very process
        // that the view maps once more, the two are different addresses. Needed because a peer's memory must not be a Rust
        // reference.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes in, at `offset` within the view: only while the protocol gives this side the right to
    /// ([`CompletionQueue::while_open`](crate::CompletionQueue::while_open)). Memory that is for reading only is out of bounds.
    #[inline]
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfBounds> {
        if !self.is_writable() {
            OutOfBounds::unless_within(offset, from.len() as u64, 0)?;
        }
        let to = self.at(offset, from.len())?;
        // SAFETY: the target is mapped for writing as long as the holder lives, and in bounds (both checked); the source is
        // private memory, at other addresses as in `read`. Needed because a peer's memory must not be a Rust reference.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        Ok(())
    }

    /// May its bytes be written?
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.mapping().is_writable()
    }

    /// As [`View::read`] with stores that do not pass through the cache: for what is not read again soon.
    pub fn read_streaming(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.at(offset, into.len())?;
        // SAFETY: as for `read`.
        unsafe { crate::copy::streaming_raw(into.as_mut_ptr(), from, into.len()) };
        Ok(())
    }

    /// Copies all of it into memory that peers write.
    pub fn copy_to(&self, to: &PeerWritable, offset: u64) -> Result<(), OutOfBounds> {
        let to = to.span(offset, self.bytes)?;
        let from = self.mapping().at(self.offset, self.bytes)?;
        let to = to.region().writable_at(to.offset(), self.bytes)?;
        // SAFETY: both stretches lie in live mappings (checked), which may be one and then may overlap. Nobody has a
        // reference into memory that peers write. Needed so that a contribution in a peer's memory is copied once.
        unsafe { std::ptr::copy(from.cast_const(), to, self.bytes as usize) };
        Ok(())
    }

    /// The `count` numbers from `offset` bytes on.
    #[inline]
    pub fn numbers<N: Number>(&self, offset: u64, count: usize) -> Result<Numbers<'_, N>, OutOfBounds> {
        Numbers::within(self.mapping(), (self.offset, self.bytes), offset, count)
    }
}

impl From<Arc<PeerWritable>> for View {
    fn from(lent: Arc<PeerWritable>) -> Self {
        let all = lent.all();
        Self { offset: all.offset(), bytes: all.len(), holder: Holder::Lent(lent) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bytes_of_a_stretch_are_read_within_it() {
        let lent = Arc::new(PeerWritable::allocate(4096, "view").unwrap());
        lent.write(16, &[1.5f32, 2.5, 3.5].map(f32::to_ne_bytes).concat()).unwrap();
        let view = View::from(lent.clone()).slice(16, 12).unwrap();
        let numbers = view.numbers::<f32>(4, 2).unwrap();
        assert_eq!((numbers.len(), numbers.at(0), numbers.at(1)), (2, 2.5, 3.5));
        assert!(view.numbers::<f32>(4, 3).is_err() && view.numbers::<f32>(u64::MAX, 1).is_err());
        assert!(view.numbers::<f32>(0, usize::MAX).is_err());
        let mut plain = [0; 12];
        let mut streamed = [0; 12];
        view.read(0, &mut plain).unwrap();
        view.read_streaming(0, &mut streamed).unwrap();
        assert_eq!((plain, &plain[..4]), (streamed, &1.5f32.to_ne_bytes()[..]));
        assert!(view.read_streaming(1, &mut streamed).is_err());
        assert!(view.slice(4, 8).is_ok_and(|part| part.len() == 8) && view.slice(4, 9).is_err());
        view.copy_to(&lent, 4084).unwrap();
        assert!(view.copy_to(&lent, 4085).is_err());
        lent.read(4084, &mut plain).unwrap();
        assert_eq!(plain, streamed);
    }

    #[test]
    fn bytes_are_written_within_it_and_only_where_that_may_be() {
        let lent = Arc::new(PeerWritable::allocate(4096, "view").unwrap());
        let view = View::from(lent.clone()).slice(8, 16).unwrap();
        view.write(4, b"twelve bytes").unwrap();
        let mut found = [0; 12];
        lent.read(12, &mut found).unwrap();
        assert_eq!(&found, b"twelve bytes");
        assert!(view.write(5, b"twelve bytes").is_err() && view.write(u64::MAX, b"1").is_err());
        let constant = View::of_region(&Region::of_bytes(vec![0; 16]));
        assert!(!constant.is_writable() && constant.write(0, b"1").is_err());
    }
}
