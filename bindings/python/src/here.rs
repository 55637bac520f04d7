//! What belongs to the process that made it: a child that was forked later has a copy of the memory, but neither the
//! threads nor a right to the connections. There it is refused, and never dropped.

use crate::error::{Failure, Kind};

/// Something of this process's.
#[derive(Debug)]
pub(crate) struct Here<T> {
    /// There until it is dropped.
    inner: Option<T>,
    pid: u32,
}

impl<T> Here<T> {
    pub(crate) fn new(inner: T) -> Self {
        Self { inner: Some(inner), pid: std::process::id() }
    }

    /// It, in a child that was forked: to be looked at, where that takes no lock.
    pub(crate) fn in_child(&self) -> Option<&T> {
        self.inner.as_ref().filter(|_| self.pid != std::process::id())
    }

    /// It, in the process that made it.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        match &self.inner {
            Some(inner) if self.pid == std::process::id() => Ok(inner),
            _ => Err(Failure::new(
                Kind::Fork,
                "forked",
                format!(
                    "this client belongs to process {1}, and process {0} was forked from it: call gradwire.connect() in \
                     each process, and start processes with \"spawn\", or fork before gradwire.connect()",
                    std::process::id(),
                    self.pid
                ),
            )),
        }
    }
}

impl<T> Drop for Here<T> {
    /// Dropping it joins threads and says goodbye on connections, which are the parent's.
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            std::mem::forget(self.inner.take());
        }
    }
}
