//! The plugins as a runtime calls them, in network namespaces with real links.

mod bridge;
mod frames;
mod macvtap;
mod program;
mod scene;
mod tuning;
