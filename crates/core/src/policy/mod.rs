//! The policy: who is calling, what kind of request it is, and which limits it is charged to.

pub mod address;
pub mod facts;
pub mod path;

pub use facts::{Facts, Headers};
