//! virt-operator
