//! virt-handler
