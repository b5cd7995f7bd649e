//! The modules of the binary `tollgate`, as a library so that tests can call them.
//!
//! | module | holds |
//! |---|---|
//! | [`check`] | validates a policy file: `tollgate check` |
//! | [`conformance`] | replays test-vector files through a store: `tollgate conformance` |
//! | [`demo`] | the four limiters at work in a terminal: `tollgate run` |
//! | [`mod@block_on`] | waits for a store's answer where there is no runtime |

pub mod block_on;
pub mod check;
pub mod conformance;
pub mod demo;
