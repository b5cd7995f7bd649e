//! What the tests run against: real servers, started on free ports and gone with the test.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a test that cannot set itself up fails, and servers live in real time"
)]

pub mod cases;
mod cluster;
mod corpus;
pub mod http;
pub mod http2;
mod nginx;
mod port;
mod program;
mod proxy;
mod redis;
mod sentinel;
mod tls;
mod tollgate;

pub use cluster::{Cluster, Move};
pub use corpus::replay_corpus;
pub use nginx::Nginx;
pub use port::free_port;
pub use program::{Program, run_script, script};
pub use proxy::Proxy;
pub use redis::{Flavour, RedisServer, wait_until};
pub use sentinel::Sentinel;
pub use tls::{Certificates, TlsServer};
pub use tollgate::Tollgate;
