//! virt-api
