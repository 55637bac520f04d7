//! Handles as futures: `handle.await` in async programs, with any runtime. Owns the one kind of future that all handles
//! become. It must not block: whoever ends the operation wakes the task.

use super::{CallHandle, CallReply, Ended, Handle, RowsHandle};
use crate::error::ClientError;
use fabric::lock;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

/// A handle that is awaited. It is ready when the operation has ended, and returns what the handle's `wait` returns.
/// Dropping it does not cancel the operation.
///
/// Operations end within their deadlines (`deadlines.operation_ms`, or `deadlines.busy_ms` while workers that are alive are
/// waited for). The data threads enforce the deadlines, and the future has no timer of its own.
pub struct OpFuture<T> {
    signal: Arc<Signal>,
    /// Takes the result of the ended operation, which does not wait. Taken with the result.
    take: Option<Box<dyn FnOnce() -> Result<T, ClientError> + Send>>,
}

/// What the data threads and the task share: operations that have not ended, and the task to wake.
#[derive(Debug)]
pub(super) struct Signal(Mutex<(usize, Option<Waker>)>);

impl Signal {
    pub(super) fn new(operations: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new((operations, None))))
    }

    /// One operation has ended. The last one wakes the task.
    pub(super) fn ended(&self) {
        let mut state = lock(&self.0);
        state.0 -= 1;
        let waker = if state.0 == 0 { state.1.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Have all operations ended? If not, `waker` is woken when they have.
    fn is_over(&self, waker: &Waker) -> bool {
        let mut state = lock(&self.0);
        if state.0 > 0 {
            state.1 = Some(waker.clone());
        }
        state.0 == 0
    }
}

impl<T> OpFuture<T> {
    pub(super) fn new(
        signal: Arc<Signal>,
        take: impl FnOnce() -> Result<T, ClientError> + Send + 'static,
    ) -> Self {
        Self { signal, take: Some(Box::new(take)) }
    }
}

impl<T> std::fmt::Debug for OpFuture<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpFuture").field("is_taken", &self.take.is_none()).finish_non_exhaustive()
    }
}

impl<T> Future for OpFuture<T> {
    type Output = Result<T, ClientError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.signal.is_over(context.waker()) {
            return Poll::Pending;
        }
        match self.take.take() {
            Some(take) => Poll::Ready(take()),
            None => Poll::Ready(Err(ClientError::Internal("a finished operation was polled again".into()))),
        }
    }
}

/// Replaces a callback that [`Handle::on_end`] was given.
impl IntoFuture for Handle {
    type Output = Result<Ended, ClientError>;
    type IntoFuture = OpFuture<Ended>;

    fn into_future(self) -> Self::IntoFuture {
        let signal = Signal::new(1);
        let ended = signal.clone();
        self.on_end(move |_| ended.ended());
        OpFuture::new(signal, move || self.wait())
    }
}

impl IntoFuture for CallHandle {
    type Output = Result<CallReply, ClientError>;
    type IntoFuture = OpFuture<CallReply>;

    fn into_future(self) -> Self::IntoFuture {
        let signal = Signal::new(1);
        let ended = signal.clone();
        self.notify(move || ended.ended());
        OpFuture::new(signal, move || self.wait())
    }
}

impl IntoFuture for RowsHandle {
    type Output = Result<(), ClientError>;
    type IntoFuture = OpFuture<()>;

    fn into_future(self) -> Self::IntoFuture {
        let handles = self.handles();
        let signal = Signal::new(handles.len());
        for handle in handles {
            let ended = signal.clone();
            handle.on_end(move |_| ended.ended());
        }
        OpFuture::new(signal, move || self.wait())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn the_last_operation_wakes_the_task_once_and_the_result_comes_once() {
        let (signal, woken) = (Signal::new(2), Arc::new(Count::default()));
        let mut future = OpFuture::new(signal.clone(), || Ok(7));
        let waker = Waker::from(woken.clone());
        let mut poll = || Pin::new(&mut future).poll(&mut Context::from_waker(&waker));
        assert!(poll().is_pending());
        signal.ended();
        assert!(poll().is_pending());
        assert_eq!(woken.0.load(Ordering::SeqCst), 0);
        signal.ended();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(matches!(poll(), Poll::Ready(Ok(7))));
        assert!(matches!(poll(), Poll::Ready(Err(ClientError::Internal(_)))));
    }

    #[test]
    fn nothing_to_wait_for_is_ready_at_once() {
        let mut future = OpFuture::new(Signal::new(0), || Ok(()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(Pin::new(&mut future).poll(&mut context), Poll::Ready(Ok(()))));
    }
}
