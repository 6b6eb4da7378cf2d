//! The steps of tasks.

pub mod create_vm;
pub mod data_object;
pub mod disk_tools;
pub mod disk_uploader;
pub mod execute;
pub mod iso;
mod power;
pub mod prepare_windows;
mod program;
pub mod selector;
mod ssh;
pub mod ssh_keys;
mod ssh_options;
pub mod templates;
pub mod wait_for_vmi;
