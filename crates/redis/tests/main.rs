//! The shared store on real servers. One program for all of them: what they share is built once.

mod cluster;
mod common;
mod dark;
mod disturbances;
mod exactness;
mod faults;
mod recovery;
mod start;
mod twin;
