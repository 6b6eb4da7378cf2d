//! virt-controller
