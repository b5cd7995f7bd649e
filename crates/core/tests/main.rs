//! Properties of the pure functions, for every algorithm. One program for all of them: what they share is built once.

mod answer;
mod bounds;
mod common;
mod convert;
mod divide;
mod edges;
mod giveback;
mod honesty;
mod join;
mod keys;
mod leases;
mod level;
mod packing;
mod policy_address;
mod policy_draft;
mod policy_evasion;
mod policy_gateway;
mod policy_path;
mod policy_plan;
mod policy_read;
mod policy_warnings;
mod summary;
mod time;
mod verdict;
mod worker;
