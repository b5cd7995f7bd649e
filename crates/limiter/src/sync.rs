//! Atomics and locks, so that the table's protocol can be run under a model checker as it is.

#[cfg(not(tollgate_loom))]
pub(crate) use std::sync::atomic::AtomicU64;
pub(crate) use std::sync::atomic::Ordering;

#[cfg(tollgate_loom)]
pub(crate) use loom::sync::atomic::AtomicU64;

/// Lets another thread go on while a slot changes hands.
#[inline]
pub(crate) fn pause() {
    #[cfg(not(tollgate_loom))]
    std::thread::yield_now();
    #[cfg(tollgate_loom)]
    loom::thread::yield_now();
}

/// A lock that does not poison: what it guards is never left half done.
#[derive(Debug, Default)]
pub(crate) struct Lock(
    #[cfg(not(tollgate_loom))] parking_lot::Mutex<()>,
    #[cfg(tollgate_loom)] loom::sync::Mutex<()>,
);

/// Holds a [`Lock`] until it is dropped.
#[cfg(not(tollgate_loom))]
pub(crate) type LockGuard<'a> = parking_lot::MutexGuard<'a, ()>;
#[cfg(tollgate_loom)]
pub(crate) type LockGuard<'a> = loom::sync::MutexGuard<'a, ()>;

#[cfg(not(tollgate_loom))]
impl Lock {
    #[inline]
    pub(crate) fn hold(&self) -> LockGuard<'_> {
        self.0.lock()
    }
}

#[cfg(tollgate_loom)]
#[allow(clippy::unwrap_used)]
impl Lock {
    pub(crate) fn hold(&self) -> LockGuard<'_> {
        self.0.lock().unwrap()
    }
}
