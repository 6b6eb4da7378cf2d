//! The program as its users run it: exit codes and words, and the console on a real pseudo terminal against a server that
//! speaks the stream's protocol.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod cluster;
mod commands;
mod console;
mod credentials;
mod expand;
mod export;
mod forward;
mod migrate;
mod server;
mod vnc;
