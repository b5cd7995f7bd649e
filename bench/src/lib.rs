//! What the benchmarks share.

pub mod figures;
pub mod keys;
pub mod machine;
pub mod markdown;
