//! Steps on the embedded API server, in process. Controllers are played by the tests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod cluster;
mod machines;
mod objects;
mod power;
mod sessions;
mod templates;
mod uploads;
mod windows;
