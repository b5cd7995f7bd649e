//! The library from outside. One program for all of them: what they share is built once.

mod changes;
mod common;
mod counts;
mod eviction;
mod failsafe;
mod fairness;
mod flood;
mod group;
mod growth;
mod input;
mod invariants;
mod layer;
mod leases;
mod model;
mod plans;
mod reload;
mod stress;
mod together;
mod tokens;
mod told;
mod tolls;
mod usual;
mod utilization;
