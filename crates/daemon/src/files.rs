//! How many files may be open: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many as anybody needs. Some systems have no limit, and yet do not take any number for one.
const PLENTY: u64 = 1 << 20;
/// For what is neither of a client nor of a server: the store, logs, and what each thread has.
const KEPT: u64 = 28;
/// For the admin door, where there are plenty; of few it gets a part.
const KEPT_FOR_ADMIN: u64 = 64;
const KEPT_PER_THREAD: u64 = 4;

/// Raises the limit of this process as far as it may, and says what it is then: the usual one is made for programs
/// that wait for one thing at a time.
pub(crate) fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let now = current.unwrap_or(PLENTY);
    let most = maximum.unwrap_or(PLENTY).min(PLENTY);
    let raised = || setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum });
    if now < most && raised().is_ok() { most } else { now }
}

/// How many connections the admin door may have: operators and their tools are few, and take nothing from those whom the gateway is
/// for.
pub(crate) fn for_admin(files: u64) -> usize {
    usize::try_from((files / 16).clamp(4, KEPT_FOR_ADMIN)).unwrap_or(4)
}

/// How many clients there is room for, and how many connections to all servers together: half of the files each.
pub(crate) fn connections_within(files: u64, threads: usize) -> usize {
    let kept = KEPT + for_admin(files) as u64 + KEPT_PER_THREAD.saturating_mul(threads as u64);
    usize::try_from(files.saturating_sub(kept) / 2).unwrap_or(usize::MAX).max(1)
}
