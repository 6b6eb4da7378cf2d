//! The launcher from the outside: its driver on libvirt's test driver, and a real guest under QEMU.

mod boot;
mod driver;
mod support;
