//! The real binary from outside. One program for all of them: what they share is built once.

mod check;
mod common;
mod conformance;
mod conformance_redis;
mod gateway;
mod gateway_drain;
mod gateway_faithful;
mod gateway_http1;
mod gateway_http2;
mod gateway_nginx;
mod gateway_plans;
mod gateway_proxy_protocol;
mod gateway_redis;
mod gateway_reload;
mod gateway_start;
mod gateway_streams;
mod gateway_switch;
mod gateway_systemd;
mod gateway_tls;
mod gateway_upgrade;
mod gateway_upstreams;
mod hostile;
mod hostile_admin;
mod hostile_http2;
mod hostile_upstream;
mod soak;
