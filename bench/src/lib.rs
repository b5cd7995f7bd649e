//! What the benchmarks share.

pub mod keys;
pub mod machine;
pub mod markdown;
