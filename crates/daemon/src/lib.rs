//! The modules of the binary `tollgate`, as a library so that tests can call them.
//!
//! | module | holds |
//! |---|---|
//! | [`run`] | opens the doors and closes them well: `tollgate run` |
//! | `gateway` | the reverse proxy |
//! | `admin` | health, metrics, switches |
//! | [`operate`] | `tollgate status`, `tollgate switch` |
//! | [`check`] | validates a policy file: `tollgate check` |
//! | [`conformance`] | replays test-vector files through a store: `tollgate conformance` |
//! | [`mod@block_on`] | waits for a store's answer where there is no runtime |

mod access_log;
mod admin;
pub mod block_on;
mod caller_labels;
pub mod check;
pub mod conformance;
mod demo_api;
mod files;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod gateway;
pub mod operate;
pub mod run;
mod seldom;
pub mod settings;
mod store;
mod systemd;
mod upstreams_watch;
