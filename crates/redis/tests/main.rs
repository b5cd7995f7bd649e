//! The shared store on real servers. One program for all of them: what they share is built once.

mod cluster;
mod common;
mod exactness;
mod faults;
mod start;
mod twin;
