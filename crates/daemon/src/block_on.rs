//! Waits for a future on the current thread, for callers without a runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The output of `future`. A store in memory answers at the first poll; a store that does not gets the thread
/// parked until it wakes it.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return output;
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Poll;

    use super::block_on;

    #[test]
    fn a_ready_future_is_answered_at_once() {
        assert_eq!(block_on(async { 7 }), 7);
    }

    #[test]
    fn a_pending_future_is_woken_from_another_thread() {
        let (send, receive) = mpsc::channel();
        let mut polls = 0;
        let future = std::future::poll_fn(move |context| {
            polls += 1;
            if polls < 3 {
                let waker = context.waker().clone();
                std::thread::spawn(move || waker.wake());
                return Poll::Pending;
            }
            send.send(polls).ok();
            Poll::Ready("woken")
        });
        assert_eq!(block_on(future), "woken");
        assert_eq!(receive.recv(), Ok(3));
    }
}
