//! The server of an export as its clients see it, and the proxy before it.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod backup;
mod proxy;
mod scene;
mod server;
