//! virt-launcher
