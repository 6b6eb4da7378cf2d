//! The programs of SSP on the embedded API server, in process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod cluster;
mod console_proxy;
mod operator;
mod validator;
