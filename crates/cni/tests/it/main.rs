//! The plugins as a runtime calls them, in network namespaces with real links.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]
#![allow(clippy::needless_pass_by_value, reason = "configurations are written where they are passed")]

mod bridge;
mod frames;
mod macvtap;
mod program;
mod scene;
mod tuning;
