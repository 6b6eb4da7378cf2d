//! One module for each command.

pub(crate) mod completion;
pub(crate) mod console;
pub(crate) mod create;
pub(crate) mod create_clone;
pub(crate) mod create_vm;
pub(crate) mod evacuate_cancel;
pub(crate) mod explain;
pub(crate) mod expose;
pub(crate) mod guest;
pub(crate) mod guestfs;
pub(crate) mod image_upload;
pub(crate) mod memory_dump;
pub(crate) mod migrate;
pub(crate) mod migrate_cancel;
pub(crate) mod pause;
pub(crate) mod port_forward;
mod request;
pub(crate) mod reset;
pub(crate) mod restart;
pub(crate) mod scp;
pub(crate) mod ssh;
pub(crate) mod start;
pub(crate) mod stop;
pub(crate) mod version;
pub(crate) mod vmexport;
pub(crate) mod vnc;
pub(crate) mod volume;
