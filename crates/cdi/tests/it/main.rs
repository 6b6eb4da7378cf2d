//! The programs of CDI on the embedded API server, in process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod apiserver;
mod controller;
mod importer;
mod operator;
mod poller;
mod populators;
mod proxy;
mod upload;
