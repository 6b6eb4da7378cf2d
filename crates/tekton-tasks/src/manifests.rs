//! What users of Tekton apply: Tasks, the rights that each takes, and Pipelines. Pure.

mod pipelines;
mod rights;
mod task;
mod tasks;

pub use pipelines::{config_maps, pipelines};
pub use rights::rights;
pub use tasks::{NAMES, tasks, without_kvm};
