//! What a device does not give back: it may still reach the memory, so that is kept for the process's life, counted and
//! said. Nothing here calls the device.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

static KEPT: AtomicU64 = AtomicU64::new(0);

/// Objects that devices did not give back since the process began.
pub(in crate::verbs) fn kept() -> u64 {
    KEPT.load(Ordering::Relaxed)
}

/// After the attempt to give something back, with its code: if that failed, `needs` is never dropped. Was it done?
pub(super) fn keep_unless_done(code: i32, what: &str, needs: impl Sized) -> bool {
    if code == 0 {
        return true;
    }
    std::mem::forget(needs);
    let kept = KEPT.fetch_add(1, Ordering::Relaxed) + 1;
    let error = io::Error::from_raw_os_error(code);
    tracing::error!(
        %error,
        kept,
        "{what} failed: the device may still reach what it was for, which is kept until this process ends; restart it"
    );
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;

    #[test]
    fn memory_that_a_device_did_not_give_back_is_never_freed() {
        let region = Region::allocate(1, "kept").unwrap();
        keep_unless_done(0, "giving back", region.clone());
        assert_eq!(region.owners(), 1);
        let before = kept();
        keep_unless_done(libc::EBUSY, "giving back", region.clone());
        assert_eq!((region.owners(), kept() - before), (2, 1));
    }
}
